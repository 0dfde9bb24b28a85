//! What went wrong: from a sign of failure to the decision to recover or give up.

use std::collections::BTreeSet;

use crate::orders::Order;
use outlive_base::{Code, Entity, Error, JobName, NodeId, Rank, Time};

use super::{
    Action, CommandState, Event, NodeSlotState, Phase, Site, Storage, Supervisor, Verdict,
};
use crate::ended::Ended;
use crate::report::FailureEntry;

/// Two signs of trouble within this time may be one failure: a command that ends
/// because its node did.
const ONE_FAILURE_MS: u64 = 2_000;

/// How long the command may take, when the job is over because a rank was killed, to
/// say by its own end why: its launcher kills the others when one rank fails, and which
/// of their deaths is seen first is chance.
const CAUSE_MS: u64 = 1_000;

/// A failure as it is found.
pub(super) struct Found {
    pub place: Site,
    pub cause: String,
    /// How the process ended that tells the exit status.
    pub ended: Option<Ended>,
    /// When it was killed, or gave its last sign of life.
    pub base: Option<Time>,
    pub injected: bool,
    /// When it was suspected, if it was before it was found.
    pub suspected: Option<Time>,
}

impl Supervisor {
    /// A failure was found: report it, and recover unless that is under way or
    /// not permitted.
    pub(super) fn found(&mut self, now: Time, found: Found) {
        let error = found.error(&self.set.job);
        if !self.is_alive() {
            return self.warn(error);
        }
        self.steer_lost(now, found.place);
        self.course.stands(found.base.unwrap_or(now));
        self.drop_explained();
        if let Site::Rank(rank) = found.place
            && found.is_collateral()
        {
            self.collateral.insert(rank);
        }
        if let Some(index) = self.same_failure(now, found.place) {
            return self.fold(now, index, &found);
        }
        let detect_ms = found.base.map(|base| now.since(base).as_ms());
        let entry = FailureEntry {
            kind: found.place.kind().to_owned(),
            place: found.place.to_string(),
            cause: found.cause.clone(),
            injected: found.injected,
            at_version: self.newest_offered.map(|version| version.0),
            at_seconds: now.as_secs(),
            suspected_ms: found.suspected_ms(),
            detect_ms,
            ..FailureEntry::default()
        };
        self.report.failures.push(entry);
        self.tell_failure(now, &found, detect_ms);
        let first = self.open.is_empty();
        self.open.push((found.place, now));
        if first && self.first_start.is_some() {
            self.begin_recovery(now, &found, error);
        } else {
            self.fail_again(now, error);
        }
    }

    /// A rank's end may be seen before that of its node: it waits a moment, so that one
    /// failure is told once.
    fn tell_failure(&mut self, now: Time, found: &Found, detect_ms: Option<f64>) {
        let event = Event::Failure {
            what: match found.place {
                // Why has been said.
                Site::Hang => "the ranks are ended".to_owned(),
                Site::Start => "the command is ended".to_owned(),
                place => format!("{place} lost: {}", found.cause),
            },
            suspected_ms: found.suspected_ms(),
            detect_ms,
        };
        if !(found.is_collateral() || (found.injected && matches!(found.place, Site::Rank(_)))) {
            // One that waits still may be of a node that was lost at the same time.
            return self.tell(event);
        }
        self.say_failure(Time::NEVER);
        self.words.unsaid_failure = Some((now, found.place, event));
    }

    /// Another failure before the command runs again: bounded by its own count.
    fn fail_again(&mut self, now: Time, error: Error) {
        self.open_retries += 1;
        if self.open_retries > self.set.max_restarts.max(3) {
            return self.give_up(now, error, None);
        }
        self.leave_incarnation(now);
    }

    fn begin_recovery(&mut self, now: Time, found: &Found, error: Error) {
        let status = found.exit_status(self.command_status);
        let was_running = self.is_running();
        if was_running && let Some(error) = self.hopeless() {
            return self.give_up(now, error, None);
        }
        if let Some(error) = self.count_start(now, found, status) {
            let (status, own) = self.quick_first.unwrap_or((status, true));
            self.provisional = !own;
            return self.give_up(now, error, Some(status));
        }
        if self.set.max_restarts == 0 {
            self.provisional = found.is_collateral();
            return self.give_up(now, error, Some(status));
        }
        if self.restarts >= self.set.max_restarts {
            let reason = format!(
                "after {}: {error}",
                outlive_base::count(self.restarts, "restart")
            );
            let exhausted = Error::new(
                Code::RestartsExhausted,
                Entity::Job(self.set.job.to_string()),
                reason,
                "look at the failures in the report, or allow more with --max-restarts",
            );
            return self.give_up(now, exhausted, None);
        }
        self.restarts += 1;
        self.leave_incarnation(now);
    }

    /// An error at restore that the next start would meet again.
    fn hopeless(&mut self) -> Option<Error> {
        let same_again = |error: &Error| {
            matches!(
                error.code(),
                Code::RankCount | Code::RegionMissing | Code::RegionSize | Code::RegionUnclaimed
            )
        };
        let errors = std::mem::take(&mut self.restore_errors);
        errors.into_values().find(same_again)
    }

    /// Counts starts that brought nothing; says so if the job dies at once every time.
    fn count_start(&mut self, now: Time, found: &Found, status: u8) -> Option<Error> {
        let Phase::Running {
            since,
            stable_before,
            ..
        } = self.phase
        else {
            return None;
        };
        let own = !matches!(found.place, Site::Node(..)) && !found.injected;
        if self.newest_stable > stable_before || !own {
            (self.fruitless, self.quick) = (0, 0);
            return None;
        }
        self.fruitless += 1;
        let delay = match self.fruitless {
            0 | 1 => 0,
            n => self.set.backoff_ms.saturating_mul(1 << (n - 2).min(20)),
        };
        let delay = delay.min(self.set.backoff_max_ms);
        self.not_before = now + Time::from_ms(delay);
        if now.since(since) >= Time::from_ms(self.set.quick_ms) {
            self.quick = 0;
            return None;
        }
        self.quick += 1;
        let own = !found.is_collateral();
        if self.quick == 1 || (own && self.quick_first.is_none_or(|(_, own)| !own)) {
            self.quick_first = Some((status, own));
        }
        // The back-off does not help a job that cannot start, so it is not waited for.
        (self.quick >= self.set.quick_max && self.restarts < self.set.max_restarts).then(|| {
            let reason = format!(
                "{} in a row ended within {} ms without a newer checkpoint; the last: {}",
                outlive_base::count(self.quick, "start"),
                self.set.quick_ms,
                found.cause
            );
            Error::new(
                Code::DiesAtOnce,
                Entity::Job(self.set.job.to_string()),
                reason,
                "run the command without outlive and look at its own messages",
            )
        })
    }

    /// Stops what runs of the present incarnation; the next is opened when nothing
    /// is left of it.
    pub(super) fn leave_incarnation(&mut self, now: Time) {
        self.end_command(now, None, 0);
        let up: Vec<NodeId> = self.up().collect();
        for node in up {
            self.order(node, Order::EndRanks);
        }
        for slot in self.slots.values_mut() {
            slot.ranks.clear();
            slot.ready = false;
        }
        self.left.clear();
        self.unexplained.clear();
        self.forget_reached();
        self.phase = Phase::Assembling { since: now };
    }

    pub(super) fn end_command(&mut self, now: Time, signal: Option<i32>, grace_ms: u64) {
        if self.command == CommandState::Running {
            self.command = CommandState::Ending;
            self.ending_since = Some(now + Time::from_ms(grace_ms));
            self.actions
                .push_back(Action::EndCommand { signal, grace_ms });
        }
    }

    /// The job ends here. `status` is the exit status, by default the error's own.
    pub(super) fn give_up(&mut self, now: Time, error: Error, status: Option<u8>) {
        if !self.is_alive() {
            return;
        }
        let status = status.unwrap_or(error.code().exit_status());
        self.report.errors.push((&error).into());
        self.tell(Event::Fatal(error));
        self.end_command(now, None, if self.provisional { CAUSE_MS } else { 0 });
        self.wind_down(now, Verdict::Failed(status.max(1)));
    }

    pub(super) fn wind_down(&mut self, now: Time, verdict: Verdict) {
        self.verdict = Some(verdict);
        self.steer_ended(now);
        if let Some(version) = self.newest_stable.filter(|_| self.history.0 != 0) {
            let history = Some((self.history, version));
            self.actions.push_back(Action::RecordHistory { history });
        }
        // Nothing more is to be found out about ranks that were seen to go.
        self.unexplained.clear();
        self.phase = Phase::Finishing {
            since: now,
            asked: false,
        };
        self.tell(Event::Finishing);
    }

    /// A slot's holder is lost: kill what may be left of it.
    pub(super) fn lose_slot(&mut self, now: Time, node: NodeId, storage: Storage) {
        let Some(slot) = self.slots.get_mut(&node) else {
            return;
        };
        let pids: BTreeSet<u32> = slot.ranks.values().copied().chain(slot.agent_pid).collect();
        if let Some(steering) = &mut self.steering {
            steering.failed(now, storage.lost());
        }
        slot.state = NodeSlotState::Fencing {
            since: now,
            storage,
        };
        slot.ready = false;
        let epoch = slot.epoch;
        self.forget_words_of(node);
        self.injections_lost(node);
        self.actions.push_back(Action::Fence {
            node,
            epoch,
            pids: pids.into_iter().collect(),
        });
    }

    /// The index among the open entries that this place belongs to.
    fn same_failure(&self, now: Time, place: Site) -> Option<usize> {
        let recent = |at: Time| now.since(at) < Time::from_ms(ONE_FAILURE_MS);
        self.open.iter().position(|(open, at)| match (open, place) {
            (Site::Command, _) => recent(*at),
            // Its ranks, which are being ended.
            (Site::Hang | Site::Start, Site::Rank(_)) | (_, Site::Command) => true,
            (Site::Rank(rank), Site::Node(node, _)) => {
                let there = self.node_of(*rank) == Some(node);
                recent(*at) && (there || self.collateral.contains(rank))
            }
            (Site::Rank(_), Site::Rank(_)) => true,
            (Site::Node(node, _), Site::Rank(rank)) => self.node_of(rank) == Some(*node),
            (Site::Node(a, x), Site::Node(b, y)) => *a == b && *x == y,
            // It is found of ranks that run, before anything else is.
            (Site::Hang | Site::Start, _) | (_, Site::Hang | Site::Start) => false,
        })
    }

    /// One failure showed itself twice: the larger entity counts.
    fn fold(&mut self, now: Time, index: usize, found: &Found) {
        let (place, _) = self.open[index];
        let cause = matches!((place, found.place), (Site::Rank(rank), Site::Rank(_))
            if self.collateral.contains(&rank) && !found.is_collateral());
        if place.weight() >= found.place.weight() && !cause {
            return;
        }
        self.open[index].0 = found.place;
        let entry = &mut self.open_entries()[index];
        entry.kind = found.place.kind().to_owned();
        entry.place = found.place.to_string();
        entry.cause.clone_from(&found.cause);
        entry.injected |= found.injected;
        // The first sign was the detection; the base may only be known now.
        let detected = Time((entry.at_seconds * 1e9) as u64);
        let detect_ms = found.base.map(|base| detected.since(base).as_ms());
        entry.detect_ms = detect_ms.or(entry.detect_ms);
        entry.suspected_ms = found.suspected_ms().or(entry.suspected_ms);
        let detect_ms = entry.detect_ms;
        let same = |(_, waits, _): &mut (Time, Site, Event)| *waits == place;
        self.words.unsaid_failure.take_if(same);
        self.tell_failure(now, found, detect_ms);
        if matches!(self.phase, Phase::Running { .. } | Phase::Opening { .. }) {
            self.leave_incarnation(now);
        }
    }

    /// The command's own end may tell more of a rank that was found killed: its
    /// launcher ends with the status of the rank that failed first.
    pub(super) fn explain(&mut self, ended: Ended) {
        if ended.is_success() || ended.is_kill() {
            return;
        }
        self.own_status(ended);
        let collateral =
            |place: &Site| matches!(place, Site::Rank(rank) if self.collateral.contains(rank));
        if let Some(index) = self.open.iter().position(|(place, _)| collateral(place)) {
            let entry = &mut self.open_entries()[index];
            entry.cause += &format!("; the command ended with {ended}");
        }
    }

    /// A process ended by itself, and the job's exit status is so far that of one that
    /// was killed.
    pub(super) fn own_status(&mut self, ended: Ended) {
        if std::mem::take(&mut self.provisional) {
            self.verdict = Some(Verdict::Failed(ended.exit_status().max(1)));
        }
    }

    pub(super) fn rank_found(&mut self, now: Time, rank: Rank, ended: Option<Ended>) {
        let hit = self.rank_hits.remove(&rank);
        let slot = self.node_of(rank).and_then(|node| self.slots.get(&node));
        let node_hit = slot.and_then(|slot| slot.hit);
        let doomed = slot.is_some_and(|slot| slot.doomed && slot.is_up());
        let seen = self.unexplained.remove(&rank);
        if doomed && hit.is_none() {
            // The end of its keeper follows and is the failure: the rank's own would be told
            // as one more if the end of another node came in between.
            return;
        }
        let base = hit.or(node_hit).or_else(|| {
            seen.map(|until| Time(until.0.saturating_sub(Time::from_ms(self.set.settle_ms).0)))
        });
        let cause = ended.map_or_else(|| "its process is gone".to_owned(), |e| e.to_string());
        self.found(
            now,
            Found {
                place: Site::Rank(rank),
                cause,
                ended,
                base,
                injected: hit.or(node_hit).is_some(),
                suspected: None,
            },
        );
    }
}

impl Found {
    fn suspected_ms(&self) -> Option<f64> {
        let suspected = self.suspected?;
        Some(suspected.since(self.base?).as_ms())
    }

    /// True for a rank that may have been killed because another one failed.
    fn is_collateral(&self) -> bool {
        matches!(self.place, Site::Rank(_))
            && !self.injected
            && self.ended.is_none_or(Ended::is_kill)
    }

    fn exit_status(&self, command: Option<Ended>) -> u8 {
        if matches!(self.place, Site::Hang | Site::Start) {
            return Code::NoProgress.exit_status();
        }
        let failed = |ended: &Ended| !ended.is_success();
        let ended = self.ended.or(command).filter(failed);
        ended
            .unwrap_or(Ended::Signal(crate::ended::SIGKILL))
            .exit_status()
    }

    fn error(&self, job: &JobName) -> Error {
        let (code, entity, remedy) = match self.place {
            Site::Node(node, _) => (
                Code::NodeLost,
                Entity::Node(node.0),
                "outlive replaces it while spares are left",
            ),
            Site::Rank(rank) => (
                Code::RankLost,
                Entity::Rank(rank.0),
                "look at the program's own messages",
            ),
            Site::Command => (
                Code::RankLost,
                Entity::Call,
                "look at the command's own messages",
            ),
            Site::Hang => (
                Code::NoProgress,
                Entity::Job(job.to_string()),
                "look where its ranks are, in the file of their stacks",
            ),
            Site::Start => (
                Code::NotJoined,
                Entity::Job(job.to_string()),
                "look what the command's processes did, in the file of their stacks",
            ),
        };
        Error::new(code, entity, self.cause.clone(), remedy)
    }
}

impl Site {
    pub(super) const fn kind(self) -> &'static str {
        match self {
            Site::Node(..) => "node",
            Site::Rank(_) => "rank",
            Site::Command => "command",
            Site::Hang | Site::Start => "hang",
        }
    }
    const fn weight(self) -> u8 {
        match self {
            Site::Node(..) => 2,
            Site::Rank(_) | Site::Hang | Site::Start => 1,
            Site::Command => 0,
        }
    }
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Site::Node(node, _) => write!(f, "node:{}", node.0),
            Site::Rank(rank) => write!(f, "rank:{}", rank.0),
            Site::Command => f.write_str("command"),
            Site::Hang | Site::Start => f.write_str("job"),
        }
    }
}

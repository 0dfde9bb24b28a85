//! The end of the job: ranks come to their last version, close and leave, the command ends
//! well, the nodes finish what is under way, and the supervisor is done.
//!
//! Judged: an end without faults loses no time to a bound; no node goes without its answer; an
//! end amid faults comes within the supervisor's bounds all the same.

use outlive_base::ipc::ToAgent;
use outlive_base::{Rank, Time};
use outlive_control::ended::Ended;
use outlive_control::orders::{Notice, Order};
use outlive_control::supervisor::{Input, Outcome, Verdict};

use super::launcher::BOUNDS;
use super::program::Stage;
use super::*;

/// Versions that a level keeps (`--keep`, by default).
const KEPT_PER_LEVEL: usize = 2;
/// So far a removal may be behind what it follows.
const KEPT_MEANWHILE: Time = Time::from_secs(4);

/// So many versions after the last one that was begun the programs end, at most.
const VERSIONS_LEFT: u64 = 12;
/// From the command's end to the supervisor's, at most: what is left of the command, the
/// agents' bound and what the launcher adds to it, and the keepers' end.
const END_MAX: Time = Time::from_ms(BOUNDS.drain_ms + 1_000 + 1_000);
/// From the last version to the end of a history, at most: faults may begin it anew.
pub const ENDING_MAX: Time = Time::from_secs(16);

/// So long after the faults have ended, nothing of them is to be seen.
const CALM: Time = Time::from_secs(8);

/// Agents that end late do so this long before the programs' last version at most, and half as
/// long after it was said.
const LATE: Time = Time::from_ms(600);

/// What is known of the end.
#[derive(Default)]
pub struct Ends {
    /// The ranks are to end.
    begun: bool,
    /// The version after which they do, in this start.
    last: Option<u64>,
    /// Ranks of this start that have ended well.
    exited: u32,
    /// The command's own process has ended.
    command_over: bool,
    /// Since when nodes finish, and when the launcher was done.
    since: Option<Time>,
    done: Option<Time>,
}

impl Ends {
    /// The launcher has ended.
    pub const fn is_over(&self) -> bool {
        self.done.is_some()
    }
}

impl Job {
    /// When the programs come to their last version: amid the faults, or so long after them that
    /// the job has become stable again.
    pub(super) fn latest(&self) -> Time {
        let last = self.options.last;
        match last > self.options.heal + CALM {
            true => last.max(self.healed() + CALM + CALM),
            false => last,
        }
    }

    /// Plans how the job comes to its end.
    pub(super) fn plan_end(&mut self) {
        let (heal, last) = (self.options.heal, self.options.last);
        self.after(last, Action::LastVersions);
        if last > heal + CALM {
            let from = last.since(LATE);
            let mut random = Sequence::new(self.seed, 0x6c61_7465);
            for _ in 0..self.options.late_restarts {
                let at = from + Time(random.below(LATE.0 + LATE.0 / 2));
                self.after(at, Action::LateRestart);
            }
        }
    }

    /// The programs have done their work soon.
    pub(super) fn last_versions(&mut self) {
        let last = self.latest();
        if last > self.now {
            // An injection was late: after it, too, the job must become stable again.
            return self.after(last.since(self.now), Action::LastVersions);
        }
        if last > self.options.heal + CALM {
            self.final_checks(self.healed());
        }
        self.note(|| "the programs come to their end".to_owned());
        self.ends.begun = true;
        self.set_last(0);
    }

    /// Containers that no level has needed for long: older than all that a level keeps, and than what
    /// a removal may be behind.
    pub(super) fn kept_too_long(&mut self) -> Vec<String> {
        if self.options.slow > 0 {
            // A removal may last for longer than many versions.
            return Vec::new();
        }
        let mut found = Vec::new();
        for node in 0..self.options.nodes {
            let who = self.at(node);
            let storage = &self.homes[who as usize].storage;
            let own = storage.own.keys().map(|&key| (key, node));
            let all = own.chain(storage.partner.keys().copied());
            let late = self.now.since(KEPT_MEANWHILE);
            let judge = &self.judge;
            let gone = |key: Key| judge.is_replaced_since(key, KEPT_PER_LEVEL, late);
            let left: Vec<(Key, u32)> = all.filter(|(key, _)| gone(*key)).collect();
            if !left.is_empty() {
                found.push(format!("P3: node {node} still has {left:?}"));
            }
        }
        found
    }

    /// An agent ends shortly before the job does, or meanwhile: what the next one finds must
    /// not keep the job from its end.
    pub(super) fn late_restart(&mut self) {
        let node = self.random.below(u64::from(self.options.nodes)) as u32;
        let who = self.at(node);
        self.end_agent(who);
    }

    fn set_last(&mut self, from: u64) {
        let furthest = self.programs.values().map(|program| program.next).max();
        let furthest = furthest.unwrap_or(0).max(from);
        let left = 1 + self.random.below(VERSIONS_LEFT);
        self.ends.last = (furthest > 0).then(|| furthest + left * self.options.stride);
    }

    /// Ranks start: what was known of the last start's end is void.
    pub(super) fn starts_anew(&mut self) {
        let begun = self.ends.begun;
        self.ends = Ends {
            begun,
            ..Ends::default()
        };
    }

    /// A rank is about to go one step. True if it has taken its last one, and closes.
    pub(super) fn closes(&mut self, rank: u32, epoch: u32, next: u64) -> bool {
        if self.ends.begun && self.ends.last.is_none() {
            self.set_last(next + 1);
        }
        let first = self.seed % u64::from(self.ranks_total());
        let early = match u64::from(rank) == first {
            true => self.options.early * self.options.stride,
            false => 0,
        };
        if self.ends.last.is_none_or(|last| next + early < last) {
            return false;
        }
        let Some(program) = self.program(rank, epoch) else {
            return true;
        };
        program.stage = Stage::Closing;
        match program.token {
            Some(_) => self.say(rank, epoch, ToAgent::Close),
            None => self.reach(rank, epoch),
        }
        true
    }

    /// A rank's process ends well.
    pub(super) fn exits(&mut self, rank: u32, epoch: u32) {
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        let (pid, token) = (program.pid, program.token);
        self.programs.remove(&rank);
        if let Some(token) = token {
            self.leaves(token, true);
        }
        let delay = self.some_us(20_000);
        self.after(delay, Action::RankExited { rank, pid });
        self.ends.exited += 1;
        if self.ends.exited == self.ranks_total() {
            let delay = self.some_us(20_000);
            let ended = Ended::Code(0);
            self.after(delay, Action::CommandOver { epoch, ended });
        }
    }

    pub(super) fn rank_exited(&mut self, rank: u32, pid: u32) {
        // Not each kernel tells how.
        let ended = self.random.chance(500_000).then_some(Ended::Code(0));
        let rank = Rank(rank);
        self.supervise(Input::RankGone { rank, pid, ended });
    }

    /// The command's own process ends.
    pub(super) fn command_over(&mut self, epoch: u32, ended: Ended) {
        if epoch != self.epoch || std::mem::replace(&mut self.ends.command_over, true) {
            return;
        }
        self.note(|| format!("the command ends: {ended}"));
        if !ended.is_success() {
            self.ends_rest();
        }
        self.supervise(Input::CommandEnded { ended });
    }

    /// What has started the ranks ends those that are left.
    fn ends_rest(&mut self) {
        let left: Vec<(u32, u32, Option<u64>)> = self
            .programs
            .values()
            .map(|it| (it.rank, it.pid, it.token))
            .collect();
        for (rank, pid, token) in left {
            self.programs.remove(&rank);
            if let Some(token) = token {
                self.leaves(token, true);
            }
            let delay = self.some_us(50_000);
            self.after(delay, Action::RankKilled { rank, pid });
        }
    }

    /// Since when it does.
    pub(super) fn wound_down(&self) -> Option<Time> {
        self.ends.since
    }

    /// The supervisor winds down.
    pub(super) fn finishing(&mut self) {
        self.ends.since = Some(self.now);
    }

    /// A node is told to end: its keeper takes SIGTERM, a frozen one is killed later.
    pub(super) fn stop_node(&mut self, node: u32) {
        let who = self.at(node);
        let delay = match self.is_frozen(who) {
            Some(left) => left,
            None if self.home(who).keeper_stopped => STOPPED_LOOK,
            None => self.some_us(20_000),
        };
        let epoch = self.home(who).epoch;
        if !self.home(who).lost {
            self.after(delay, Action::KeeperStops { node, epoch });
        }
    }

    pub(super) fn keeper_stops(&mut self, node: u32, epoch: u64) {
        let who = self.at(node);
        if self.home(who).epoch == epoch && !self.home(who).lost {
            let open = self.home(who).open;
            self.kill_all_of(who);
            self.home(who).open = open;
            let (node, ended) = (NodeId(node), Ended::Code(0));
            self.supervise(Input::KeeperEnded { node, epoch, ended });
        }
    }

    /// The launcher is done.
    pub(super) fn done_with(&mut self, outcome: &Outcome) {
        self.ends.done = Some(self.now);
        self.note(|| format!("the launcher ends: {outcome:?}"));
        let report = self.launcher.report();
        self.judge_injections(&report);
        if outcome.verdict != Verdict::Ok {
            self.wrong(format!("P5: the job ended with {:?}", outcome.verdict));
        }
        // Judged where nothing has gone wrong: a node whose storage has refused a record, or that has
        // missed a word, need not wait.
        let faultless = self.options.faults.refuse == 0 && self.options.weights.sum() == 0;
        if faultless && self.is_clean_end() && !self.nobody_decides() {
            let number = self.launcher.supervisor_incarnation();
            let since = self.ends.since.unwrap_or(self.now);
            self.judge.ends(self.now, number, since);
        }
        let since = self.ends.since.map(|since| self.now.since(since));
        let most = match self.is_clean_end() && !self.nobody_decides() {
            true => Time::from_ms(BOUNDS.drain_ms),
            false => END_MAX,
        };
        if since.is_none_or(|it| it > most) {
            self.wrong(format!("P5: the end took {since:?}"));
        }
    }

    /// The coordinator's agent was started anew, and it or another that was has a damaged record of the
    /// incarnation: that one takes no part in it, and the coordinator asks all before it decides. No
    /// other is opened at the end for the last round, for which all wait their bound.
    fn nobody_decides(&mut self) -> bool {
        let coordinator = self.at(self.options.coordinator);
        if self.home(coordinator).life == 1 {
            return false;
        }
        (0..self.options.nodes).any(|node| {
            let who = self.at(node);
            let home = self.home(who);
            home.damaged && home.life > 1 && home.incarnation == 0
        })
    }

    /// The end has begun long after the faults.
    fn is_clean_end(&self) -> bool {
        let calm = self.healed() + CALM;
        self.ends.since.is_some_and(|since| since >= calm)
    }

    pub(super) fn wrong(&mut self, text: String) {
        self.note(|| format!("wrong: {text}"));
        let at = self.now.as_ms();
        self.judge.violations.push(format!("{at:.3} ms: {text}"));
    }

    // ---- orders and answers ----

    /// An agent has taken an order.
    pub(super) fn ordered(&mut self, who: Process, order: &Order) {
        let now = self.now;
        let open = &mut self.home(who).open;
        match order {
            Order::Open { .. } => drop(self.meets(who, Occasion::Opens)),
            Order::Status => open.status += 1,
            Order::EndRanks => open.end_ranks += 1,
            Order::Finish { .. } => drop(open.finish.get_or_insert(now)),
            _ => {}
        }
    }

    /// An agent says something, perhaps to an order.
    pub(super) fn answers(&mut self, who: Process, notice: &Notice) {
        let now = self.now;
        let calm = self.healed() + CALM;
        let open = &mut self.home(who).open;
        match notice {
            Notice::Status(_) => open.status -= 1,
            Notice::RanksEnded => open.end_ranks -= 1,
            Notice::Finished if !open.finished => {
                open.finished = true;
                let waited = open.finish.map(|since| now.since(since));
                let bound = Time::from_ms(BOUNDS.drain_ms);
                let is_calm = open.finish.is_none_or(|since| since >= calm);
                if is_calm && !self.nobody_decides() && waited.is_none_or(|waited| waited >= bound)
                {
                    let node = self.home(who).node;
                    self.wrong(format!("P5: n{node} finished after {waited:?}"));
                }
            }
            _ => {}
        }
    }

    /// The job must have ended, and all that was ordered was answered.
    pub(super) fn final_end(&mut self) {
        if self.launcher.over.is_some() {
            return;
        }
        self.judge_waits();
        if self.ends.done.is_none() {
            let since = self.ends.since;
            self.wrong(format!("P5: the job does not end; winds down: {since:?}"));
        }
        for node in 0..self.options.nodes {
            let who = self.at(node);
            let home = self.home(who);
            let open = home.open;
            // What an agent was told that a fault has ended, nobody answers.
            if open.killed {
                continue;
            }
            // Nobody waits for one that is silent.
            let unfinished = self.is_clean_end() && open.finish.is_some() && !open.finished;
            if open.status != 0 || open.end_ranks != 0 || unfinished {
                self.wrong(format!("P5: n{node} has not answered: {open:?}"));
            }
        }
    }
}

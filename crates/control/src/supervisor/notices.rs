//! What agents say.

use core::net::SocketAddr;

use crate::orders::{NodeStatus, Notice, Opened, Order, RankEnd, STATUS_WARNINGS_MAX, Step};
use outlive_base::{Code, Entity, Error, Incarnation, Level, NodeId, Rank, Time, Version};

use super::{Action, Event, NodeSlotState, Phase, Site, Supervisor};
use crate::ended::Ended;
use crate::health::{CHANGES_MAX, Change};

/// What an agent says of itself.
struct Agent {
    address: SocketAddr,
    pid: u32,
    restarts: u32,
    heard: Option<u64>,
}

impl Supervisor {
    pub(super) fn on_notice(&mut self, now: Time, node: NodeId, epoch: u64, notice: Notice) {
        if !self.is_heard(now, node, epoch, &notice) {
            return;
        }
        match notice {
            Notice::Hello {
                address,
                pid,
                restarts,
                ranks,
                heard,
                ..
            } => {
                let agent = Agent {
                    address,
                    pid,
                    restarts,
                    heard,
                };
                self.on_hello(now, node, &agent, ranks);
            }
            Notice::Alive { offered, held } => {
                if let Some(slot) = self.slots.get_mut(&node) {
                    slot.held = held;
                }
                if self.is_running() {
                    self.note_offered(now, offered);
                }
            }
            // Answered by the rule for silence, which looks at both witnesses.
            Notice::Silent { node: peer, epoch } => {
                if self.is_present(peer, epoch) {
                    self.on_silent_for(now, node, peer);
                    self.on_missed(now, node, peer, false);
                }
            }
            Notice::NodeReady {
                incarnation, level, ..
            } => self.on_ready(node, incarnation, level),
            Notice::Opened(decision) => self.on_opened(decision),
            Notice::OpenFailed {
                incarnation,
                error,
                known,
            } => self.on_open_failed(now, incarnation, error, known),
            Notice::Trace { text } => drop(self.traces.insert(node, text)),
            Notice::RankUp { rank, ranks, pid } => self.on_rank_up(now, node, rank, ranks, pid),
            Notice::RankDown { rank, pid, end } => self.on_rank_down(now, node, rank, pid, end),
            Notice::Restored {
                rank,
                outcome: Err(error),
            } => {
                tracing::info!(%rank, %error, "restore failed");
                self.warn_of(Some(node), error.clone());
                self.restore_errors.insert(Some(rank), error);
            }
            // Refused at first, then with what fits.
            Notice::Restored {
                rank,
                outcome: Ok(_),
            } => drop(self.restore_errors.remove(&Some(rank))),
            Notice::Checkpoint { version, step } => {
                self.steer_step(now, node, version, &step);
                self.on_step(now, version, step);
            }
            Notice::Suspected {
                node: peer, epoch, ..
            } => {
                if self.is_present(peer, epoch) {
                    self.on_suspected_by(node, peer);
                }
            }
            Notice::Cleared { node: peer } => {
                if let Some(slot) = self.slots.get_mut(&peer) {
                    slot.suspected_by.remove(&node);
                    slot.dead_by.remove(&node);
                    slot.missed.remove(&node);
                }
            }
            Notice::Dead { node: peer, epoch } => self.on_dead(now, node, peer, epoch),
            Notice::InjectReached { id, version } => self.on_reached(now, node, id, version),
            said @ Notice::Injected { .. } => self.on_injected(now, node, said),
            Notice::Warning(error) => {
                if error.code() == Code::RankCount {
                    self.restore_errors.insert(None, error.clone());
                }
                self.on_warning(now, node, error);
            }
            Notice::Status(status) => self.on_status(now, node, status),
            Notice::Stacks { number, found } => self.on_stacks(node, number, found),
            Notice::Health(changes) => self.on_health(node, changes),
            // People look at these; nothing is decided by them.
            Notice::Spans(_) | Notice::RanksEnded => {}
            Notice::Finished => {
                if let Some(slot) = self.slots.get_mut(&node) {
                    slot.finished = true;
                }
            }
        }
    }

    /// Notes that a node was heard; false if its words count no more.
    fn is_heard(&mut self, now: Time, node: NodeId, epoch: u64, notice: &Notice) -> bool {
        let Some(slot) = self.slots.get_mut(&node).filter(|slot| slot.holds(epoch)) else {
            return false;
        };
        // A fenced agent's last words change nothing any more, but what it called stable is.
        if matches!(
            slot.state,
            NodeSlotState::Fencing { .. } | NodeSlotState::Ended
        ) {
            if let Notice::Checkpoint {
                version,
                step: Step::Stable(_),
            } = notice
            {
                self.note_history(*version);
            }
            return false;
        }
        slot.last_heard = now;
        if slot.suspected.take().is_some() {
            slot.suspected_by.clear();
            slot.dead_by.clear();
            self.tell(Event::Heard { node });
        }
        true
    }

    /// A node calls another dead. A word about a holder that was replaced since says nothing of
    /// the next.
    fn on_dead(&mut self, now: Time, node: NodeId, peer: NodeId, epoch: u64) {
        let present = self.is_present(peer, epoch);
        if let Some(slot) = self.slots.get_mut(&peer).filter(|_| present) {
            slot.suspected_by.insert(node);
            slot.dead_by.insert(node);
            self.on_missed(now, node, peer, true);
        }
    }

    fn on_ready(&mut self, node: NodeId, incarnation: Incarnation, level: Option<Level>) {
        if let Phase::Opening { incarnation: i, .. } = self.phase
            && i == incarnation
            && let Some(slot) = self.slots.get_mut(&node)
        {
            slot.ready = true;
            slot.rebuilt_from = level;
        }
    }

    fn on_opened(&mut self, decision: Opened) {
        if let Phase::Opening {
            incarnation,
            opened,
            ..
        } = &mut self.phase
            && *incarnation == decision.incarnation
        {
            // One that is said again may be of an agent that came later, and knows less of it.
            opened.get_or_insert(decision);
        }
    }

    fn is_present(&self, node: NodeId, epoch: u64) -> bool {
        let slot = self.slots.get(&node);
        slot.is_some_and(|slot| slot.holds(epoch) && slot.is_up())
    }

    fn on_hello(&mut self, now: Time, node: NodeId, agent: &Agent, ranks: Vec<(Rank, u32)>) {
        let &Agent {
            address,
            pid,
            restarts,
            heard,
        } = agent;
        let Some(slot) = self.slots.get_mut(&node) else {
            return;
        };
        let known = slot.is_up();
        let restarted = known && restarts > slot.agent_restarts;
        let moved = slot.address != Some(address);
        if moved {
            self.changes += 1;
            slot.changed = self.changes;
        }
        // What it was told on its last connection may not have reached it.
        slot.told = None;
        slot.state = NodeSlotState::Up;
        slot.address = Some(address);
        slot.agent_pid = Some(pid);
        slot.agent_restarts = restarts;
        slot.held = false;
        if restarted {
            slot.anew = Some(now);
            self.report.agent_restarts += 1;
            self.drop_explained_by(node);
            self.injections_anew(node);
            // It knows nothing of whom it missed, and would take nothing back.
            self.forget_words_of(node);
            self.tell(Event::AgentRestarted { node, restarts });
        }
        // More changes than there were: of another run of the launcher.
        let heard = heard.filter(|heard| !restarted && !moved && *heard <= self.changes);
        let news = heard.is_none();
        let opening = match &self.phase {
            Phase::Opening { incarnation, .. } => Some(*incarnation),
            // At the end, too: the others wait for what it has not decided yet.
            Phase::Running { .. } | Phase::Finishing { .. } => match heard {
                None => None,
                Some(heard) => return self.catch_up(node, heard),
            },
            // Every agent is told everything when the next incarnation is opened.
            _ => return,
        };
        match news {
            true => {
                self.configure_all();
                self.place_injections(node);
            }
            // Whom it was told of may be lost with its connection, and so may its answer.
            false => self.configure(node),
        }
        if let Some(incarnation) = opening {
            let order = self.open_order(incarnation);
            self.order(node, order);
        }
        if !news {
            return;
        }
        for (rank, pid) in ranks {
            self.register(node, rank, pid);
        }
        self.remind_of_ranks(node);
    }

    fn register(&mut self, node: NodeId, rank: Rank, pid: u32) -> bool {
        let Some(slot) = self.slots.get_mut(&node) else {
            return false;
        };
        if !matches!(self.phase, Phase::Running { .. }) || slot.ranks.insert(rank, pid) == Some(pid)
        {
            return false;
        }
        self.actions
            .push_back(Action::WatchRank { node, rank, pid });
        self.judge.moved();
        self.one_more_joined();
        true
    }

    fn on_rank_up(&mut self, now: Time, node: NodeId, rank: Rank, ranks: u32, pid: u32) {
        if !self.register(node, rank, pid) {
            return;
        }
        let first = self
            .slots
            .values()
            .map(|slot| slot.ranks.len())
            .sum::<usize>()
            == 1;
        if first {
            self.tell_ranks(ranks);
        }
        self.ranks_total = Some(ranks);
        self.report.ranks = Some(ranks);
        self.left.remove(&rank);
        let here: usize = self.slots.values().map(|slot| slot.ranks.len()).sum();
        let Phase::Running { complete, .. } = &mut self.phase else {
            return;
        };
        if *complete || here + self.left.len() < ranks as usize {
            return;
        }
        *complete = true;
        self.checkpoint_if_warned();
        let after_ms = self.ready_at.map_or(0.0, |at| now.since(at).as_ms());
        let from = self.report.failures.len() - self.relaunching;
        for entry in &mut self.report.failures[from..] {
            entry.relaunch_ms = Some(after_ms);
        }
        self.relaunching = 0;
        self.steer_ready(now);
        self.course.runs(now);
        self.tell(Event::RanksUp { ranks, after_ms });
    }

    /// Nodes without a rank of their own must know that the job has begun.
    fn tell_ranks(&mut self, ranks: u32) {
        let incarnation = Incarnation(self.last_incarnation);
        let up: Vec<NodeId> = self.up().collect();
        for node in up {
            self.order(node, Order::Ranks { incarnation, ranks });
        }
    }

    /// True if this process is a rank of the incarnation that runs, and has not left.
    fn is_rank(&self, rank: Rank, pid: u32) -> bool {
        self.is_running() && !self.left.contains(&rank) && self.pid_of(rank) == Some(pid)
    }

    fn on_rank_down(&mut self, now: Time, node: NodeId, rank: Rank, pid: u32, end: RankEnd) {
        match end {
            RankEnd::Closed if self.is_rank(rank, pid) => self.leave(node, rank),
            RankEnd::Lost if self.is_running() && self.left.contains(&rank) => {
                self.warn_not_closed(rank);
            }
            RankEnd::Lost if self.is_rank(rank, pid) => self.wait_for_reason(now, rank),
            _ => {}
        }
    }

    fn leave(&mut self, node: NodeId, rank: Rank) {
        if let Some(slot) = self.slots.get_mut(&node) {
            slot.ranks.remove(&rank);
        }
        self.unexplained.remove(&rank);
        self.left.insert(rank);
        self.judge.moved();
    }

    fn wait_for_reason(&mut self, now: Time, rank: Rank) {
        let until = now + Time::from_ms(self.set.settle_ms);
        self.unexplained.entry(rank).or_insert(until);
    }

    /// The launcher saw a rank's process end.
    pub(super) fn on_rank_gone(&mut self, now: Time, rank: Rank, pid: u32, ended: Option<Ended>) {
        if !self.is_rank(rank, pid) {
            return self.late_cause(now, rank, ended);
        }
        match ended {
            Some(ended) if ended.is_success() => {
                if let Some(node) = self.node_of(rank) {
                    self.leave(node, rank);
                }
            }
            Some(ended) => self.rank_found(now, rank, Some(ended)),
            None => self.wait_for_reason(now, rank),
        }
    }

    /// A rank that ended by itself, or by an injection, but was seen after those that
    /// were killed because of it.
    fn late_cause(&mut self, now: Time, rank: Rank, ended: Option<Ended>) {
        let own = ended.is_some_and(|ended| !ended.is_success() && !ended.is_kill());
        if let (true, true, Some(ended)) = (self.provisional, own, ended) {
            self.own_status(ended);
            if let Some(entry) = self.open_entries().last_mut() {
                entry.cause += &format!("; {} ended with {ended}", Site::Rank(rank));
            }
        }
        let late = !self.is_running() && self.is_alive() && !self.open.is_empty();
        if late && (own || self.rank_hits.contains_key(&rank)) {
            self.rank_found(now, rank, ended);
        }
    }

    /// Nobody explained within the bound why a rank is gone: it failed.
    pub(super) fn settle_unexplained(&mut self, now: Time) {
        let due = self.unexplained.iter().find(|(_, until)| **until <= now);
        if let Some((rank, _)) = due {
            let rank = *rank;
            self.rank_found(now, rank, None);
        }
    }

    pub(super) fn warn_not_closed(&mut self, rank: Rank) {
        self.warn(Error::new(
            Code::RankLost,
            Entity::Rank(rank.0),
            "it ended well but did not call outlive_close",
            "call it before the end, so that a failure can be told from an end",
        ));
    }

    fn on_step(&mut self, now: Time, version: Version, step: Step) {
        let counts = &mut self.report.checkpoints;
        match step {
            Step::Armed => {}
            Step::Captured { bytes, blocked_ns } => {
                counts.bytes += bytes;
                counts.blocked_ms_max = counts.blocked_ms_max.max(blocked_ns as f64 / 1e6);
                let longer = self.course.captured(now, version, blocked_ns);
                counts.blocked_ms_sum += longer as f64 / 1e6;
                // Nodes say it one after the other, some when others have the next one.
                if !self.captured_here.is_known(version) {
                    self.captured_here.note(version);
                    counts.taken += 1;
                    self.kept_again(version, None);
                    self.tell(Event::Captured { version });
                }
                self.note_offered(now, Some(version));
            }
            Step::Stable(level) => self.on_stable(now, version, level),
            Step::Aborted { level, error } => self.on_given_up(now, version, level, error),
        }
    }

    fn on_stable(&mut self, now: Time, version: Version, level: Level) {
        if self.stable_here.is_known(version, level) {
            return;
        }
        let newest = self.stable_here.note(version, level);
        let counts = &mut self.report.checkpoints;
        counts.last.insert(level.name().to_owned(), newest.0);
        *counts.stable.entry(level.name().to_owned()).or_insert(0) += 1;
        if let Some(took) = self.course.kept(now, version, level) {
            *counts.kept_ms.entry(level.name().to_owned()).or_insert(0.0) += took.as_ms();
        }
        self.newest_stable = self.newest_stable.max(Some(version));
        self.note_history(version);
        // A program that could not restore has forgiven that.
        self.restore_errors.clear();
        self.kept_again(version, Some(level));
        self.tell(Event::Stable { version, level });
    }

    /// Sensors of a node say something else than before: people are told, and nothing else yet.
    fn on_health(&mut self, node: NodeId, changes: Vec<Change>) {
        for change in changes.into_iter().take(CHANGES_MAX) {
            self.tell(Event::Health { node, change });
        }
    }

    fn on_status(&mut self, now: Time, node: NodeId, status: NodeStatus) {
        let takes_part = !self.is_running() || status.incarnation == self.last_incarnation;
        if let Some(slot) = self.slots.get_mut(&node) {
            let since = *slot.outside.get_or_insert(now);
            slot.outside = (!takes_part).then_some(since);
        }
        if self.is_running() && status.incarnation == self.last_incarnation {
            let offered = status.ranks.iter().filter_map(|(_, _, version)| *version);
            self.note_offered(now, offered.max());
        }
        self.scrubs
            .note(now, node.0, status.agent_restarts, *status.scrub);
        // What is known is repeated here, for a word that was lost on its way.
        for warning in status.warnings.into_iter().take(STATUS_WARNINGS_MAX) {
            if !self.is_known(node, &warning) {
                self.on_warning(now, node, warning);
            }
        }
    }
}

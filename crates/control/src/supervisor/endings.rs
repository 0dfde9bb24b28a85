//! How it comes to an end: the command's own, an interrupt, the last flushes.

use crate::orders::Order;
use outlive_base::{Code, Entity, Error, NodeId, Time};

use super::faults::Found;
use super::{
    Action, CommandState, Event, NodeSlot, NodeSlotState, Outcome, Phase, Site, Supervisor, Verdict,
};
use crate::ended::{Ended, SIGUSR1};

impl Supervisor {
    pub(super) fn on_command_ended(&mut self, now: Time, ended: Ended) {
        self.command_status = Some(ended);
        if !self.is_running() || !self.is_alive() {
            return self.explain(ended);
        }
        if ended.is_success() {
            let without: Vec<_> = self.unexplained.keys().copied().collect();
            for rank in without {
                self.warn_not_closed(rank);
            }
            self.end_command(now, Some(crate::ended::SIGTERM), self.set.kill_grace_ms);
            return self.wind_down(now, Verdict::Ok);
        }
        if let Some(rank) = self.unexplained.keys().next().copied() {
            return self.rank_found(now, rank, Some(ended));
        }
        let found = Found {
            place: Site::Command,
            cause: format!("the command ended with {ended}"),
            ended: Some(ended),
            base: None,
            injected: false,
            suspected: None,
        };
        self.found(now, found);
    }

    pub(super) fn on_command_failed(&mut self, now: Time, error: Error) {
        self.command = CommandState::None;
        self.give_up(now, error, None);
    }

    pub(super) fn on_tree_ended(&mut self, now: Time) {
        if self.command == CommandState::Ending {
            self.command = CommandState::None;
        }
        self.note_fenced(now);
    }

    pub(super) fn on_interrupt(&mut self, now: Time, signal: i32, from_terminal: bool) {
        let announces = self.set.preempt_signal == Some(signal) && self.announced.is_none();
        if announces && self.interrupts == 0 && self.is_alive() {
            return self.on_announced(now, signal);
        }
        if signal == SIGUSR1 {
            return self.on_warned(now);
        }
        self.interrupts += 1;
        let times = self.interrupts;
        self.tell(Event::Interrupted { signal, times });
        let status = Ended::Signal(signal).exit_status();
        if times > 1 {
            self.verdict = Some(match self.verdict {
                Some(Verdict::Failed(code)) => Verdict::Failed(code),
                _ => Verdict::Interrupted(status),
            });
            return self.done();
        }
        if self.is_alive() {
            // The terminal has told the command already.
            let forward = (!from_terminal).then_some(signal);
            self.end_command(now, forward, self.set.kill_grace_ms);
            self.wind_down(now, Verdict::Interrupted(status));
        }
    }

    /// Asks the agents to finish, those again that have not answered: the order is lost
    /// on a node that is cut off for a moment.
    pub(super) fn order_finish(&mut self) {
        let success = self.verdict == Some(Verdict::Ok);
        let slots = self.slots.iter();
        let left = slots.filter(|(_, slot)| slot.is_up() && !slot.finished);
        for node in left.map(|(node, _)| *node).collect::<Vec<_>>() {
            self.order(node, Order::Finish { success });
        }
    }

    pub(super) fn finish(&mut self, now: Time, since: Time, asked: bool) {
        if self.command != CommandState::None {
            let bound = self.set.kill_grace_ms + self.set.fence_ms;
            if !self.over(now, since, bound) {
                return;
            }
            self.command = CommandState::None;
        }
        if !asked {
            self.order_finish();
            self.phase = Phase::Finishing {
                since: now,
                asked: true,
            };
        }
        // Nobody replaces a silent node any more, so nobody waits for it.
        let rule = self.rule();
        let silent = |slot: &NodeSlot| rule.is_witness(now.since(slot.last_heard));
        let waiting = self
            .slots
            .values()
            .any(|slot| slot.is_up() && !slot.finished && !silent(slot));
        // A little longer than the agents' own bound, so that they can say what was late.
        let late = asked && self.over(now, since, self.set.bounds.drain_ms + 1_000);
        if waiting && !late {
            return;
        }
        if waiting {
            self.warn(Error::new(
                Code::AgentTimeout,
                Entity::Job(self.set.job.to_string()),
                format!(
                    "flushes were not finished within {} ms",
                    self.set.bounds.drain_ms
                ),
                "versions that were stable before are kept; raise --drain-timeout",
            ));
        }
        let slots = self.slots.iter();
        let left = slots.filter(|(_, slot)| slot.state != NodeSlotState::Ended);
        let left: Vec<NodeId> = left.map(|(node, _)| *node).collect();
        for node in left {
            self.actions.push_back(Action::StopNode { node });
        }
        self.phase = Phase::Stopping { since: now };
        if self.slots.values().all(|s| s.state == NodeSlotState::Ended) {
            self.done();
        }
    }

    pub(super) fn done(&mut self) {
        self.end_injections();
        self.last_words();
        let verdict = self.verdict.unwrap_or(Verdict::Failed(70));
        let (result, exit_status) = match verdict {
            Verdict::Ok => ("finished", 0),
            Verdict::Failed(status) => ("failed", status),
            Verdict::Interrupted(status) => ("interrupted", status),
        };
        self.report.result = result.to_owned();
        self.report.scrub = self.scrubs.entry();
        self.report.exit_status = exit_status;
        self.phase = Phase::Done;
        self.actions.push_back(Action::Done(Outcome {
            verdict,
            exit_status,
        }));
    }
}

//! Words that come from every node all the time: signs of life, answers to questions, the steps of
//! a version.
//!
//! What follows from time and from the state of all slots costs a look at each of them. Done at
//! each word of each node it would cost the square of their number, and a launcher of thousands
//! of nodes would do nothing else. So it is done at its times ([`Supervisor::due`]), and at all
//! words that may change more than what is looked at here.
//!
//! Invariants: a routine word makes no node more silent, brings none nearer to being given up, and
//! leaves as it is whether the ranks are at work; it is never put off.

use outlive_base::Time;

use super::{Input, NodeSlot, Phase, Supervisor};
use crate::orders::{Notice, Step};

impl Supervisor {
    /// True if nothing follows from this but what [`Supervisor::take_routine`] does.
    pub(super) fn is_routine(&self, input: &Input) -> bool {
        let Input::Notice {
            node,
            epoch,
            notice,
        } = input
        else {
            return false;
        };
        let usual = |slot: &NodeSlot| {
            slot.holds(*epoch) && slot.is_up() && slot.suspected.is_none() && slot.outside.is_none()
        };
        let Some(slot) = self.slots.get(node).filter(|slot| usual(slot)) else {
            return false;
        };
        match notice {
            Notice::Alive { offered, held } => {
                *held == slot.held && *offered <= self.newest_offered
            }
            Notice::Status(status) => {
                let offered = status.ranks.iter().filter_map(|(_, _, offered)| *offered);
                offered.max() <= self.newest_offered
                    && status.warnings.is_empty()
                    && (!self.is_running() || status.incarnation == self.last_incarnation)
            }
            Notice::Checkpoint { version, step } => {
                !matches!(step, Step::Aborted { .. }) && Some(*version) <= self.newest_offered
            }
            // The first of them makes the ranks be at work.
            Notice::RankUp { .. } => self.is_running() && self.has_rank(),
            Notice::Spans(_) | Notice::RanksEnded | Notice::NodeReady { .. } => true,
            _ => false,
        }
    }

    fn has_rank(&self) -> bool {
        self.slots.values().any(|slot| !slot.ranks.is_empty())
    }

    pub(super) fn take_routine(&mut self, now: Time, input: Input) {
        let Input::Notice {
            node,
            epoch,
            notice,
        } = input
        else {
            return;
        };
        let follows = !matches!(
            notice,
            Notice::Alive { .. } | Notice::Status(_) | Notice::Spans(_) | Notice::RanksEnded
        );
        self.on_notice(now, node, epoch, notice);
        if follows {
            self.speak(now);
            // Nodes that are awaited are looked at when they come.
            if !matches!(self.phase, Phase::Assembling { .. }) {
                self.step(now);
            }
            self.steer(now);
            self.fire_due(now);
        }
    }
}

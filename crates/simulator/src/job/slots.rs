//! Service work in slots: what stands still between them, and whether nodes say the truth of the
//! coordinator's clock.

use outlive_base::rng::Sequence;
use outlive_base::{NodeId, Time};
use outlive_control::slots::{Offset, ServiceSettings, Slots};

use super::node::Process;
use super::*;

/// What stands still is looked at again so much later.
pub const STANDS: Time = Time::from_ms(5);

/// The coordinator's clocks.
#[derive(Default)]
pub struct Clocks {
    /// When its agents were started, one after the other: the clock of each begins there.
    pub began: Vec<Time>,
    /// How often a node has said how that stands to its own.
    pub told: u64,
}

impl Job {
    /// The agent of the coordinator is started, with a clock of its own.
    pub(super) fn begins_clock(&mut self, who: Process) {
        if self.home(who).node == self.options.coordinator {
            self.clocks.began.push(self.now);
        }
    }

    /// A node says how the coordinator's clock stands to its own. It may have heard that of an agent that was
    /// another's successor meanwhile.
    pub(super) fn hears_clock(&mut self, who: Process, said: Option<Offset>) {
        let Some(said) = said else { return };
        let started = self.home(who).started;
        let wrong = |began: &Time| {
            let ahead = i128::from(started.0) - i128::from(began.0);
            (ahead - i128::from(said.ahead_ns)).unsigned_abs()
        };
        self.clocks.told += 1;
        if self.clocks.began.iter().map(wrong).min() > Some(u128::from(said.error_ns)) {
            let node = NodeId(self.home(who).node);
            self.judge.lies_of_clock(self.now, node.0, said);
        }
    }
}

impl Options {
    /// Draws in which histories there are slots: a third, and what the agents of the others are told is as
    /// without them.
    pub(super) fn with_slots(mut self, seed: u64) -> Options {
        let mut random = Sequence::new(seed, 0x736c_6f74);
        if random.chance(333_333) {
            let period_ms = 100 + random.below(2_000);
            self.slots = Slots {
                period_ms,
                length_ms: 5 + random.below(period_ms / 2 - 5),
            };
        }
        self
    }

    pub(super) const fn service(&self) -> ServiceSettings {
        ServiceSettings {
            slots: self.slots,
            daemon: None,
        }
    }
}

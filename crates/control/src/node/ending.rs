//! The end of the job at this node: it ends when nothing is undecided here.

use outlive_base::Time;
use outlive_ledger::Record;

use super::Planted;
use super::core::Core;
use super::service::{Haste, Service, Silent};
use super::shell::{Ask, Shell};
use crate::orders::{Notice, Order};

/// How long after the bound of the last flushes a launcher may let an agent live.
const STAY: Time = Time::from_secs(10);

/// How long the last words of ranks that have not closed are waited for: the end of their command may be
/// heard before what they said. What they have left behind may hold their connections open for ever.
const LAST_WORDS: Time = Time::from_secs(1);

/// How far the end is.
pub struct Ending {
    /// The job ends: until when decisions are waited for.
    until: Option<Time>,
    /// Until when ranks may still say what they have captured.
    words: Time,
    /// The launcher knows that nothing is to be waited for here.
    told: bool,
    over: bool,
}

impl Service for Ending {
    type Word = Silent;

    fn new(_: Time) -> Ending {
        Ending {
            until: None,
            words: Time::ZERO,
            told: false,
            over: false,
        }
    }

    fn on_order<S: Shell>(&mut self, core: &mut Core<S>, order: Order) -> Option<Order> {
        let Order::Finish { success } = order else {
            return Some(order);
        };
        self.finish(core, success);
        None
    }

    fn on_look<S: Shell>(&mut self, core: &mut Core<S>) {
        let Some(until) = self.until else { return };
        let late = core.now() >= until;
        if self.told {
            // Others may still need an answer: this agent goes when it is told to.
            self.over = late && core.now().since(until) >= STAY;
            return;
        }
        // Without storage this node cannot take note of a decision, however long it waits.
        let undecided = core.is_undecided() && core.is_writable();
        let speaking = core.now() < self.words && core.has_speakers();
        let busy = speaking || undecided || core.is_flushing() || core.is_rejoining();
        if late || !busy || core.has_planted(Planted::EndAtOnce) {
            self.told = true;
            core.tell_spans();
            core.tell(&Notice::Finished);
        }
    }

    fn haste<S: Shell>(&self, _: &Core<S>) -> Haste {
        match self.until {
            Some(_) => Haste::Awaited,
            None => Haste::Calm,
        }
    }
}

impl Ending {
    /// True when nobody is left to serve.
    pub const fn is_over(&self) -> bool {
        self.over
    }

    fn finish<S: Shell>(&mut self, core: &mut Core<S>, success: bool) {
        if self.until.is_some() {
            // Asked again: the answer may have been lost.
            if self.told {
                core.tell(&Notice::Finished);
            }
            return;
        }
        let drain = core
            .config()
            .map_or(60_000, |config| config.bounds.drain_ms);
        self.until = Some(core.now() + Time::from_ms(drain));
        self.words = core.now() + LAST_WORDS;
        core.begin_to_finish();
        if success && core.incarnation().0 != 0 {
            let stable = core.stable().values();
            let record = Record::Finished {
                incarnation: core.incarnation(),
                version: stable.map(|(_, version)| *version).max(),
            };
            core.begin(Ask::Finished(record));
        }
    }
}

//! When service work of this node is done, and the user's own: in slots that are the same on all nodes.
//!
//! Invariants: without slots, before any rank is here and once the job ends, nothing waits; a node that
//! has not heard of the coordinator's clock goes by its own, so that work is done all the same.

use outlive_base::Time;
use serde::{Deserialize, Serialize};

use super::Planted;
use super::core::{Core, News};
use super::service::{Service, say};
use super::shell::{Ask, DaemonAct, Done, Shell};
use crate::orders::Order;
use crate::slots::{Clock, Offset};

/// The coordinator's clock is asked for this often at first, and how often that is.
const AT_FIRST: (Time, u32) = (Time::from_ms(250), 8);
/// Later: clocks run apart by a millisecond in this time.
const LATER: Time = Time::from_secs(10);
/// A daemon without slots is looked after so often.
const LOOKED_AFTER: Time = Time::from_secs(1);

/// What nodes say of their clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Word {
    /// What time is it at the coordinator?
    Ask {
        /// The time of one's own clock.
        sent: Time,
        /// Whose clock that is: the answer may come to the next agent of this node.
        asker: u64,
    },
    /// It is this; that was asked at this time, and this is whose clock it is.
    Told {
        /// As it was asked.
        sent: Time,
        /// As it was asked.
        asker: u64,
        /// Of the coordinator's clock.
        told: Time,
        /// Of the coordinator's agent.
        life: u64,
    },
}

/// See the module.
pub struct Slots {
    clock: Clock,
    /// When the clock is asked for next, and how often it was.
    asks: (Time, u32),
    /// When a slot begins or ends next.
    edge: Time,
    /// When the daemon is looked after next; what it was told last.
    daemon: (Time, Option<DaemonAct>),
}

impl Service for Slots {
    type Word = Word;
    const NUMBER: u8 = 3;

    fn new(now: Time) -> Slots {
        Slots {
            clock: Clock::default(),
            asks: (now, 0),
            edge: now,
            daemon: (now, None),
        }
    }

    fn on_word<S: Shell>(&mut self, core: &mut Core<S>, from: outlive_base::NodeId, word: Word) {
        match word {
            Word::Ask { sent, asker } => {
                let (told, life) = (core.now(), core.life());
                let word = Word::Told {
                    sent,
                    asker,
                    told,
                    life,
                };
                say::<Slots, S>(core, from, &word);
            }
            Word::Told {
                sent,
                asker,
                told,
                life,
            } if from == core.spec().coordinator && asker == core.life() => {
                self.clock.hear(life, sent, told, core.now());
                self.note(core);
                self.look(core);
            }
            Word::Told { .. } => {}
        }
    }

    fn on_news<S: Shell>(&mut self, core: &mut Core<S>, news: &News) {
        if matches!(news, News::Opened { .. } | News::Joined | News::Gone(_)) {
            self.look(core);
        }
    }

    fn on_order<S: Shell>(&mut self, core: &mut Core<S>, order: Order) -> Option<Order> {
        if matches!(order, Order::Status) {
            self.note(core);
        }
        if matches!(order, Order::Finish { .. }) {
            self.end(core);
        }
        Some(order)
    }

    fn on_done<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        done: Done<S::Slab>,
    ) -> Option<Done<S::Slab>> {
        let Done::Daemon(error) = done else {
            return Some(done);
        };
        core.warn(error);
        None
    }

    fn on_time<S: Shell>(&mut self, core: &mut Core<S>) {
        let now = core.now();
        if now >= self.asks.0 {
            self.ask(core);
        }
        if now >= self.edge {
            self.look(core);
        }
    }

    fn deadline<S: Shell>(&self, core: &Core<S>) -> Option<Time> {
        let slots = core.spec().service.slots.are_set() && core.config().is_some();
        slots.then_some(self.asks.0.min(self.edge))
    }

    fn on_look<S: Shell>(&mut self, core: &mut Core<S>) {
        if !core.spec().service.slots.are_set() && core.now() >= self.daemon.0 {
            self.daemon.0 = core.now() + LOOKED_AFTER;
            self.tell_daemon(core, true);
        }
    }
}

impl Slots {
    /// For `outlive status`.
    fn note<S: Shell>(&self, core: &mut Core<S>) {
        let mut offset = self.clock.offset(core.now());
        if core.has_planted(Planted::SureOfClock) {
            offset = offset.map(|it| Offset { error_ns: 0, ..it });
        }
        core.note_clock(offset);
    }

    fn ask<S: Shell>(&mut self, core: &mut Core<S>) {
        let now = core.now();
        let (pause, often) = AT_FIRST;
        self.asks.1 = self.asks.1.saturating_add(1);
        self.asks.0 = now + if self.asks.1 < often { pause } else { LATER };
        if !core.is_coordinator() {
            let to = core.spec().coordinator;
            let asker = core.life();
            say::<Slots, S>(core, to, &Word::Ask { sent: now, asker });
        }
    }

    /// Begins or ends a slot, if it is time.
    fn look<S: Shell>(&mut self, core: &mut Core<S>) {
        let slots = core.spec().service.slots;
        if !slots.are_set() {
            return;
        }
        let now = core.now();
        let none = Offset {
            ahead_ns: 0,
            error_ns: 0,
        };
        let offset = self.clock.offset(now).unwrap_or(none);
        let (is_open, lasts) = slots.at(now, offset.ahead_ns);
        self.edge = now + lasts.max(Time(1));
        let is_open = is_open || core.is_finishing() || !core.has_ranks();
        if is_open != core.may_serve() {
            core.set_serving(is_open);
        }
        self.tell_daemon(core, is_open);
    }

    /// The user's command runs, stands still or is none.
    fn tell_daemon<S: Shell>(&mut self, core: &mut Core<S>, runs: bool) {
        if core.spec().service.daemon.is_none() || core.is_finishing() || !core.has_ranks() {
            return;
        }
        let act = match runs {
            true => DaemonAct::Run,
            false => DaemonAct::Pause,
        };
        // One that runs may have ended: it is looked after again.
        if act == DaemonAct::Run || self.daemon.1 != Some(act) {
            self.daemon.1 = Some(act);
            core.begin(Ask::Daemon(act));
        }
    }

    fn end<S: Shell>(&mut self, core: &mut Core<S>) {
        if !core.may_serve() {
            core.set_serving(true);
        }
        if self.daemon.1.take().is_some() {
            core.begin(Ask::Daemon(DaemonAct::End));
        }
    }
}

#[cfg(test)]
mod tests;

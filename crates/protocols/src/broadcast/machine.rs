//! The broadcast of one process: dissemination, then correction on the ring.
//!
//! Facts from Hoefler et al. (Corrected gossip algorithms for fast reliable broadcast,
//! IPDPS 2017) and Küttler et al. (Corrected trees, PPoPP 2019). "Coloured" is their
//! word for a process that has the message; one takes part in the correction if it was
//! coloured by the dissemination.
//!
//! Invariants:
//! - every send is decided when the port is free, from all that was heard until then;
//! - a process sends nothing before it is coloured;
//! - checked and failure-proof: a side is left only after the process sent to everyone
//!   between itself and the senders that it relies on, or all round the ring. So of an
//!   uncoloured process the nearest live one that takes part on either side has not
//!   finished, unless more died than `f`. This needs links that neither lose nor
//!   double a message, and processes that stop when they fail.
//!
//! Who takes part: under checked correction, and after gossip, the coloured by
//! dissemination; under failure-proof correction and opportunistic correction of a tree
//! everyone coloured. If failure-proof correction did not count all, the last live one
//! that takes part could die after it coloured only some; so the outcome is all or
//! nothing even if the root dies.
//! A process that a correction reaches before its parent's message still serves its
//! children (overlapped), so that the tree stays whole below it.

use outlive_base::machine::{Body, Cx, Fault, Machine, Op, Output, Peer, Ready};
use outlive_base::{Time, rng};

use super::side::Side;
use super::types::{Cause, Command, Config, Correction, Dissemination, Event, Msg, Start};

/// The broadcast of one process.
#[derive(Clone, Debug, Default)]
pub struct Broadcast {
    left: Side,
    right: Side,
    /// Children served, or gossip sent.
    spread: u32,
    /// Children that acknowledged.
    acknowledged: u32,
    cause: Option<Cause>,
    told: bool,
    takes_part: bool,
    finished: bool,
}

impl Broadcast {
    /// How the process came to the message, if it has it.
    pub const fn cause(&self) -> Option<Cause> {
        self.cause
    }

    fn colour(&mut self, cx: &Cx<Self>, cause: Cause) {
        let first = *self.cause.get_or_insert(cause);
        let config = cx.config;
        let in_time = config.start == Start::Overlapped || cx.now <= config.correct_from;
        self.takes_part |= match config.correction {
            Correction::None => false,
            // Whoever was reached by a correction is already between two who take part.
            Correction::Checked => in_time && first != Cause::Correction,
            // Here each one counts, however it first heard of the message; down a tree
            // also from a correction, so that corrections go on across a long gap.
            Correction::Opportunistic(_) | Correction::OptimizedOpportunistic(_) => {
                config.tree_of().is_some() || (in_time && cause != Cause::Correction)
            }
            Correction::FailureProof(_) => true,
        };
    }

    /// A sender at this distance was heard.
    fn hear(&mut self, config: &Config, distance: u32, from_left: bool) {
        let (left, right) = (&mut self.left, &mut self.right);
        let (near, far) = if from_left {
            (left, right)
        } else {
            (right, left)
        };
        match config.correction {
            Correction::None | Correction::Opportunistic(_) => {}
            Correction::OptimizedOpportunistic(_) => {
                // It covers its whole reach: on its side all of ours, on the other what
                // is left of its reach beyond us. All round the ring that is everybody.
                let (left, right) = config.reach;
                let distance = if config.reaches_all() { 0 } else { distance };
                let (near_reach, far_reach) = if from_left {
                    (left, right)
                } else {
                    (right, left)
                };
                near.sent = near.sent.max(near_reach);
                far.sent = far.sent.max(far_reach.saturating_sub(distance));
            }
            Correction::Checked => near.hear(distance, 1),
            Correction::FailureProof(f) => near.hear(distance, f.saturating_add(1)),
        }
    }

    /// The next correction, if there is one.
    fn correct(&mut self, config: &Config, place: u32) -> Option<Msg> {
        let needed = match config.correction {
            Correction::None => return None,
            Correction::Opportunistic(_) | Correction::OptimizedOpportunistic(_) => 0,
            Correction::Checked => 1,
            Correction::FailureProof(f) => f.saturating_add(1),
        };
        let leftward = if needed == 0 {
            let ((left, right), limit) = (config.reach, config.limits(place));
            let to_left = self.left.sent < left.min(limit.0);
            let to_right = self.right.sent < right.min(limit.1);
            if !to_left && !to_right {
                return None;
            }
            to_left && (!to_right || self.left.sent < self.right.sent)
        } else {
            let (left, right) = config.limits(place);
            let (left, right) = (self.left.done(needed, left), self.right.done(needed, right));
            let all_round = self.left.sent.saturating_add(self.right.sent) >= config.ring.processes;
            if left && right || all_round {
                return None;
            }
            !left && (right || self.left.sent <= self.right.sent)
        };
        if leftward {
            self.left.sent += 1;
            return Some(Msg::Leftward);
        }
        self.right.sent += 1;
        Some(Msg::Rightward)
    }

    /// The next send of the dissemination, to a rank.
    fn spread(&mut self, cx: &Cx<Self>, cause: Cause) -> Option<Peer> {
        let config = cx.config;
        let ring = config.ring;
        if cause == Cause::Correction && config.start == Start::Synchronized {
            return None; // The tree below gets its corrections now.
        }
        if let Dissemination::Gossip { until } = config.dissemination {
            if cx.now >= until || ring.processes < 2 {
                return None;
            }
            let drawn = rng::below(
                cx.random(u64::from(self.spread)),
                u64::from(ring.processes - 1),
            );
            let drawn = drawn as Peer;
            self.spread += 1;
            return Some(drawn + u32::from(drawn >= cx.me));
        }
        let child = config.tree_of()?.child(ring.place(cx.me), self.spread)?;
        self.spread += 1;
        Some(ring.rank(child))
    }

    /// The acknowledgement, once everyone below has acknowledged.
    fn acknowledge(&mut self, cx: &Cx<Self>, send: bool) -> Option<Output<Self>> {
        let ring = cx.config.ring;
        let tree = cx.config.tree_of()?;
        if self.finished || self.acknowledged < self.spread {
            return None;
        }
        let place = ring.place(cx.me);
        let served = tree.child(place, self.spread).is_none();
        let parent = tree.parent(place);
        if !served || (parent.is_some() && !send) {
            return None;
        }
        self.finished = true;
        Some(match parent {
            None => Output::Event(Event::Acknowledged),
            Some(parent) => Output::Send {
                to: ring.rank(parent),
                msg: Msg::Acknowledge,
                body: None,
            },
        })
    }
}

impl Machine for Broadcast {
    type Config = Config;
    type Msg = Msg;
    type Command = Command;
    type Record = ();
    type Event = Event;

    fn on_message(&mut self, cx: &Cx<Self>, from: Peer, msg: Msg, _body: Option<Body>) {
        let ring = cx.config.ring;
        if from >= ring.processes || from == cx.me {
            return; // Not of this broadcast.
        }
        let (me, from) = (ring.place(cx.me), ring.place(from));
        let clockwise = |from: u32, to: u32| ring.left(to, from);
        match msg {
            Msg::Spread => self.colour(cx, Cause::Dissemination),
            Msg::Rightward => {
                self.hear(cx.config, clockwise(from, me), true);
                self.colour(cx, Cause::Correction);
            }
            Msg::Leftward => {
                self.hear(cx.config, clockwise(me, from), false);
                self.colour(cx, Cause::Correction);
            }
            Msg::Acknowledge => self.acknowledged = self.acknowledged.saturating_add(1),
        }
    }

    fn on_command(&mut self, cx: &Cx<Self>, command: Command) {
        let Command::Start = command;
        if cx.me == cx.config.ring.root {
            self.colour(cx, Cause::Root);
        }
    }

    fn on_timeout(&mut self, _: &Cx<Self>) {}

    fn on_done(&mut self, _: &Cx<Self>, _: Op, _: Result<(), Fault>) {}

    fn poll(&mut self, cx: &Cx<Self>, ready: Ready) -> Option<Output<Self>> {
        let cause = self.cause?;
        if !self.told {
            self.told = true;
            return Some(Output::Event(Event::Coloured(cause)));
        }
        if cx.config.acknowledged()
            && let Some(output) = self.acknowledge(cx, ready.send)
        {
            return Some(output);
        }
        if !ready.send {
            return None;
        }
        let send = |to, msg| {
            Some(Output::Send {
                to,
                msg,
                body: None,
            })
        };
        if let Some(to) = self.spread(cx, cause) {
            return send(to, Msg::Spread);
        }
        let alone = cx.config.ring.processes < 2;
        if alone || !self.takes_part || cx.now < cx.config.correct_from {
            return None;
        }
        let ring = cx.config.ring;
        let me = ring.place(cx.me);
        let msg = self.correct(cx.config, me)?;
        let to = match msg {
            Msg::Leftward => ring.left(me, self.left.sent),
            _ => ring.right(me, self.right.sent),
        };
        send(ring.rank(to), msg)
    }

    /// The start of the correction, for those that wait for it.
    fn deadline(&self, cx: &Cx<Self>) -> Option<Time> {
        let from = cx.config.correct_from;
        (self.takes_part && cx.now < from).then_some(from)
    }

    fn recover(_: &Cx<Self>, _: impl Iterator<Item = ()>) -> Self {
        Broadcast::default()
    }
}

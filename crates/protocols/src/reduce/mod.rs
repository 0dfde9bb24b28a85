//! Reduce that tolerates f failures at any moment: groups exchange, then f + 1 trees.
//!
//! After Küttler and Härtig, Fault-tolerant Reduce and Allreduce operations based on
//! correction (arXiv 2602.22445). All processes but the root form groups of f + 1; the
//! members of a group first send their operands to each other (up-correction), so that
//! each member speaks for its whole group. Then member j of every group takes part in
//! tree j of f + 1 trees under the root. At most f failures leave at least one tree
//! without any; messages say whether anyone was missing below ([`Msg::clean`]), and the
//! root takes the first whole tree.
//!
//! Invariants, with at most f failures among the processes other than the root, and
//! nobody called dead who lives:
//! - the root's result holds the operand of every live process once;
//! - it has it one time-out after the start at the latest, whatever fails: a whole tree
//!   waits for nobody but silent members of groups.
//!
//! With more than f failures the root fails with [`Why::TooMany`] rather than give a
//! part for the whole, unless a tree is whole all the same.
//!
//! Messages without failures, with q = floor((P-1) / (f+1)) whole groups and
//! r = (P-1) mod (f+1) left over: q f (f+1) + r (r+1) in groups, q (f+1) in trees.
//! *Deviation*: the r that are left form a group with the root, as in the paper, but
//! take no part in the trees, where they would have nothing to say; so all trees are
//! alike, and the paper's n - 1 messages in trees are n - 1 - r here. All trees and
//! groups combine in the same order, so the result does not depend on the tree.
//!
//! One machine is one collective at one process. The operator must commute.

mod types;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use outlive_base::Time;
use outlive_base::machine::{Body, Cx, Fault, Machine, Op, Output, Peer, Ready};

use crate::collective::fold::{Fold, NONE, Source, Step};
use crate::collective::{CollectiveKind, Command, Event, Record, Why};

pub use types::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Not called yet.
    Idle,
    /// Exchanging in the group.
    Group,
    /// Waiting for children in the tree; the root: for a whole tree.
    Tree,
    Done,
}

/// What waits, and for whom.
#[derive(Debug, Default)]
struct Work {
    fold: Fold,
    absent: Vec<Peer>,
    /// What came before it was awaited: from, message, body.
    early: Vec<(Peer, Msg, u32)>,
    out: VecDeque<Output<Reduce>>,
    sends: VecDeque<Output<Reduce>>,
    known: Vec<Peer>,
}

/// One process. See the module.
#[derive(Debug)]
pub struct Reduce {
    own: u32,
    /// What this process says for its group, or in the end for all below it.
    value: u32,
    phase: Phase,
    combining: bool,
    clean: bool,
    start: Time,
    work: Box<Work>,
}

type C<'a> = Cx<'a, Reduce>;

impl Default for Reduce {
    fn default() -> Reduce {
        Reduce::new()
    }
}

impl Reduce {
    /// A process that has not called.
    pub fn new() -> Reduce {
        Reduce {
            own: NONE,
            value: NONE,
            phase: Phase::Idle,
            combining: false,
            clean: true,
            start: Time::ZERO,
            work: Box::default(),
        }
    }

    fn place(cx: &C) -> u32 {
        cx.config.ring().place(cx.me)
    }

    fn event(&mut self, event: Event) {
        self.work.out.push_back(Output::Event(event));
    }

    fn release(&mut self, body: u32) {
        if body != NONE {
            let body = Body(body);
            self.work.sends.push_back(Output::Release { body });
        }
    }

    fn send(&mut self, to: Peer, msg: Msg, body: u32) {
        let body = (body != NONE).then_some(Body(body));
        self.work.sends.push_back(Output::Send { to, msg, body });
    }

    fn fail(&mut self, why: Why) {
        self.phase = Phase::Done;
        if !self.combining {
            let fold = core::mem::take(&mut self.work.fold);
            for body in fold.bodies() {
                self.release(body);
            }
        }
        self.event(Event::Failed { seq: 0, why });
    }

    /// The operand goes to the others of the group, theirs are awaited.
    fn begin(&mut self, cx: &C) {
        self.phase = Phase::Group;
        let (ring, me) = (cx.config.ring(), Reduce::place(cx));
        let mut sources = Vec::new();
        for place in cx.config.group(me) {
            let peer = ring.rank(place);
            let mut source = Source::awaited(peer, cx.now, true);
            if place == me {
                (source.given, source.body) = (true, self.own);
            } else {
                let msg = Msg {
                    step: MsgStep::Exchange,
                    clean: true,
                };
                self.send(peer, msg, self.own);
            }
            sources.push(source);
        }
        self.await_all(cx, sources, self.own);
    }

    /// Those from whom a message is awaited now.
    pub fn awaited(&self) -> impl Iterator<Item = Peer> + '_ {
        let open = matches!(self.phase, Phase::Group | Phase::Tree);
        let sources = self.work.fold.sources.iter().filter(move |_| open);
        sources
            .filter(|source| !source.given)
            .map(|source| source.peer)
    }

    /// Lets go of every body but the own operand and `kept`: the machine has ended, or
    /// its result has come on another way. It takes no more messages.
    pub fn retire(&mut self, kept: Option<Body>) {
        let kept = kept.map_or(NONE, |body| body.0);
        let mut held: Vec<u32> = self.work.fold.bodies().collect();
        held.extend(self.work.early.drain(..).map(|(.., body)| body));
        held.push(self.value);
        held.sort_unstable();
        held.dedup();
        for body in held {
            if body != self.own && body != kept {
                self.release(body);
            }
        }
        self.work.fold = Fold::default();
        self.value = NONE;
        self.phase = Phase::Done;
    }

    /// Waits for those below in the tree.
    fn climb(&mut self, cx: &C) {
        self.phase = Phase::Tree;
        let (ring, me) = (cx.config.ring(), Reduce::place(cx));
        let below = cx.config.below(me);
        let awaited = |place: u32| Source::awaited(ring.rank(place), cx.now, true);
        let sources = below.into_iter().map(awaited).collect();
        self.await_all(cx, sources, NONE);
    }

    fn await_all(&mut self, cx: &C, sources: Vec<Source>, fixed: u32) {
        self.work.fold = Fold::new(sources, fixed);
        let early = core::mem::take(&mut self.work.early);
        for (from, msg, body) in early {
            self.take(cx, from, msg, body);
        }
        for peer in self.work.known.clone() {
            self.bypass(cx, peer);
        }
        self.advance(cx);
    }

    fn step_awaited(&self) -> Option<MsgStep> {
        match self.phase {
            Phase::Group => Some(MsgStep::Exchange),
            Phase::Tree => Some(MsgStep::Up),
            _ => None,
        }
    }

    /// A message whose body is kept.
    fn take(&mut self, cx: &C, from: Peer, msg: Msg, body: u32) {
        if self.phase == Phase::Idle || self.phase == Phase::Group && msg.step == MsgStep::Up {
            self.work.early.push((from, msg, body));
            return;
        }
        let awaited = self.step_awaited() == Some(msg.step);
        let at = self.work.fold.awaited(from).filter(|_| awaited);
        let Some(at) = at else {
            return self.release(body);
        };
        let is_root = Reduce::place(cx) == 0;
        if self.phase == Phase::Tree && is_root {
            if !msg.clean {
                self.release(body);
                return self.without(at);
            }
            // A whole tree: nobody else is needed.
            let others = core::mem::take(&mut self.work.fold);
            let mut whole = others.sources[at];
            (whole.given, whole.body) = (true, body);
            self.work.fold = Fold::new(vec![whole], NONE);
            return;
        }
        self.clean &= msg.clean;
        let source = &mut self.work.fold.sources[at];
        (source.given, source.body) = (true, body);
    }

    /// Nothing comes from this entry.
    fn without(&mut self, at: usize) {
        self.work.fold.replace(at, Vec::new());
        if self.phase == Phase::Tree {
            self.clean = false;
        }
    }

    fn bypass(&mut self, cx: &C, peer: Peer) {
        let Some(at) = self.work.fold.awaited(peer) else {
            return;
        };
        if self.phase == Phase::Group {
            self.work.absent.push(peer);
        }
        if self.work.known.contains(&peer) || peer == cx.me {
            // The driver knows already.
        } else {
            self.event(Event::Silent { seq: 0, peer });
        }
        self.without(at);
    }

    fn advance(&mut self, cx: &C) {
        while !self.combining && matches!(self.phase, Phase::Group | Phase::Tree) {
            if self.phase == Phase::Tree
                && Reduce::place(cx) == 0
                && self.work.fold.sources.is_empty()
                && !self.clean
            {
                return self.fail(Why::TooMany);
            }
            let base = if self.phase == Phase::Tree {
                self.value
            } else {
                NONE
            };
            match self.work.fold.step(base) {
                Step::Waiting => return,
                Step::Combine { acc, arg, acc_left } => {
                    self.combining = true;
                    self.work.out.push_back(Output::Combine {
                        op: Op(0),
                        acc: Body(acc),
                        arg: Body(arg),
                        acc_left,
                    });
                }
                Step::Value(value) => self.complete(cx, value),
            }
        }
    }

    fn complete(&mut self, cx: &C, value: u32) {
        if self.phase == Phase::Group {
            self.value = value;
            for peer in core::mem::take(&mut self.work.absent) {
                let body = Body(value);
                self.event(Event::Absent { body, peer });
            }
            return self.climb(cx);
        }
        self.phase = Phase::Done;
        let is_root = Reduce::place(cx) == 0;
        if let Some(above) = cx.config.above(Reduce::place(cx)) {
            let msg = Msg {
                step: MsgStep::Up,
                clean: self.clean,
            };
            self.send(cx.config.ring().rank(above), msg, value);
        }
        self.event(Event::Done {
            seq: 0,
            value: (is_root && value != NONE).then_some(Body(value)),
            by: cx.config.root,
        });
        let group = core::mem::replace(&mut self.value, value);
        if group != value && group != self.own {
            self.release(group);
        }
    }

    /// Silence that is borne: in the tree it grows with what lies below, for those may
    /// themselves wait for the silent.
    fn limit(&self, cx: &C) -> Time {
        let levels = match self.phase {
            // One more than needed: a tree that is cut off may be deeper elsewhere.
            Phase::Tree => 3 + u64::from(cx.config.levels(Reduce::place(cx))),
            _ => 1,
        };
        Time(cx.config.timeout.0.saturating_mul(levels))
    }
}

impl Machine for Reduce {
    type Config = Config;
    type Msg = Msg;
    type Command = Command;
    type Record = Record;
    type Event = Event;

    fn on_message(&mut self, cx: &Cx<Self>, from: Peer, msg: Msg, body: Option<Body>) {
        if from >= cx.config.processes || self.phase == Phase::Done {
            return;
        }
        let again = self
            .work
            .early
            .iter()
            .any(|&(peer, m, _)| (peer, m.step) == (from, msg.step));
        if again || self.work.early.len() > cx.config.peers_max() {
            return;
        }
        let later = self.phase == Phase::Idle || self.phase == Phase::Group;
        if !later && self.work.fold.awaited(from).is_none() {
            return;
        }
        if let Some(body) = body {
            self.work.out.push_back(Output::Retain { body });
        }
        self.take(cx, from, msg, body.map_or(NONE, |body| body.0));
        self.advance(cx);
    }

    fn on_command(&mut self, cx: &Cx<Self>, command: Command) {
        match command {
            Command::Start(call) if self.phase == Phase::Idle => {
                self.start = cx.now;
                let Some(value) = call.value else {
                    return self.fail(Why::Argument);
                };
                self.own = value.0;
                if call.ordered {
                    self.fail(Why::Unordered);
                } else if call.kind != CollectiveKind::Reduce || call.root != cx.config.root {
                    self.fail(Why::Argument);
                } else {
                    self.begin(cx);
                }
            }
            Command::Dead { peer } => {
                if !self.work.known.contains(&peer) {
                    self.work.known.push(peer);
                }
                self.bypass(cx, peer);
                self.advance(cx);
            }
            Command::Returned { peer } => self.work.known.retain(|&other| other != peer),
            Command::Start(_) | Command::Prepare { .. } | Command::Run { .. } => {
                self.event(Event::Failed {
                    seq: 0,
                    why: Why::Argument,
                });
            }
        }
    }

    fn on_timeout(&mut self, cx: &Cx<Self>) {
        if self.deadline(cx).is_none_or(|due| cx.now < due) {
            return;
        }
        let awaited = self.work.fold.sources.iter().filter(|source| !source.given);
        let silent: Vec<Peer> = awaited.map(|source| source.peer).collect();
        for peer in silent {
            self.bypass(cx, peer);
        }
        self.advance(cx);
    }

    fn on_done(&mut self, cx: &Cx<Self>, _op: Op, result: Result<(), Fault>) {
        if !core::mem::take(&mut self.combining) || self.phase == Phase::Done {
            return;
        }
        if result.is_err() {
            return self.fail(Why::Operator);
        }
        if let Some(body) = self.work.fold.combined() {
            self.release(body);
        }
        self.advance(cx);
    }

    fn poll(&mut self, _cx: &Cx<Self>, ready: Ready) -> Option<Output<Self>> {
        if let Some(output) = self.work.out.pop_front() {
            return Some(output);
        }
        let send = matches!(self.work.sends.front()?, Output::Send { .. });
        if send && !ready.send {
            return None;
        }
        self.work.sends.pop_front()
    }

    fn deadline(&self, cx: &Cx<Self>) -> Option<Time> {
        self.step_awaited()?;
        let waits = self.work.fold.sources.iter().any(|source| !source.given);
        waits.then(|| self.start + self.limit(cx))
    }

    fn recover(_cx: &Cx<Self>, _log: impl Iterator<Item = Record>) -> Self {
        Reduce::new()
    }
}

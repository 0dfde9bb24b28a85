//! One collective at one process.
//!
//! Invariants: at most one result is ever delivered; the own contribution is fixed when
//! it is first given and never changes, so whoever asks for it again gets the same.

use std::collections::VecDeque;

use outlive_base::Time;
use outlive_base::machine::{Body, Op, Output, Peer};

use super::Machine;
use super::known::{Doubt, Known};
use super::types::*;
use crate::broadcast::tree::Ring;
use crate::collective::fold::{Fold, NONE, Source, Step};
use crate::collective::{CollectiveKind, Event, Why, series};

/// What a collective needs of its machine during one call.
pub(super) struct Env<'a> {
    pub me: Peer,
    pub now: Time,
    pub config: &'a Config,
    pub known: &'a mut Known,
    pub out: &'a mut VecDeque<Output<Machine>>,
    pub sends: &'a mut VecDeque<Output<Machine>>,
}

impl Env<'_> {
    pub fn event(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }
    pub fn retain(&mut self, body: u32) {
        self.out.push_back(Output::Retain { body: Body(body) });
    }
    pub fn release(&mut self, body: u32) {
        if body != NONE {
            self.sends.push_back(Output::Release { body: Body(body) });
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Nothing is known but the sequence number.
    Empty,
    /// Messages came, the call has not.
    Idle,
    /// Waiting for those below.
    Gather,
    /// Has given; waiting for the result.
    Watch,
    /// In the root's place, waiting for those that the dead leave behind.
    Takeover,
    /// Has ended (perhaps before the call, see `STARTED`).
    Done,
    /// Has ended without a result.
    Failed,
}

/// The call was made.
pub(super) const STARTED: u16 = 1;
/// The operator is at work.
pub(super) const COMBINING: u16 = 1 << 1;
/// `above` was asked and has not answered.
pub(super) const ASKED: u16 = 1 << 2;
/// `above` has claimed the contribution.
pub(super) const CLAIMED: u16 = 1 << 3;
/// The fold is not wanted any more, but the operator still works on it.
pub(super) const DROP_FOLD: u16 = 1 << 4;
/// Someone was in another call.
pub(super) const MISMATCHED: u16 = 1 << 5;
/// Another result was seen.
pub(super) const DIVERGED: u16 = 1 << 6;
/// `result` is what this process will decide at the next poll.
pub(super) const DECIDING: u16 = 1 << 7;

/// What only inner processes need, and others when something fails.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub fold: Fold,
    /// Found silent, not yet on a body's list.
    pub absent: Vec<Peer>,
    /// Who gets the result from this process, in the order of sending.
    pub heirs: Vec<Peer>,
    /// How many heirs were told.
    pub told: u32,
    /// Contributions that nobody awaits yet.
    pub early: Vec<(Peer, u32)>,
    /// Silence after which someone below is bypassed.
    pub limit: Time,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Collective {
    pub seq: u32,
    pub root: Peer,
    pub kind: CollectiveKind,
    pub phase: Phase,
    pub flags: u16,
    /// The caller's operand.
    pub own: u32,
    /// What this process contributes for all below it.
    pub acc: u32,
    pub result: u32,
    /// Who put the result together.
    pub by: Peer,
    /// Who is expected to bring the result.
    pub above: Peer,
    pub start: Time,
    /// When `above` was last heard, or when waiting for it began.
    pub heard: Time,
    pub work: Option<Box<Work>>,
}

/// Most contributions kept before they are awaited; more are asked for again.
const EARLY_MAX: usize = 4096;

impl series::CallState for Collective {
    fn empty(seq: u32) -> Collective {
        Collective {
            seq,
            root: 0,
            kind: CollectiveKind::Barrier,
            phase: Phase::Empty,
            flags: 0,
            own: NONE,
            acc: NONE,
            result: NONE,
            by: 0,
            above: NONE,
            start: Time::ZERO,
            heard: Time::ZERO,
            work: None,
        }
    }
}

impl Collective {
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
    pub fn set(&mut self, flag: u16, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }
    pub fn ring(&self, env: &Env) -> Ring {
        env.config.plan.ring(self.root)
    }
    pub fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }
    /// True if the call was made and has ended.
    pub fn ended(&self) -> bool {
        self.has(STARTED) && matches!(self.phase, Phase::Done | Phase::Failed)
    }
    pub fn send(&self, env: &mut Env, to: Peer, verb: Verb, body: u32) {
        let msg = Msg {
            seq: self.seq,
            root: self.root,
            by: self.by,
            kind: self.kind,
            verb,
        };
        let body = (body != NONE).then_some(Body(body));
        env.sends.push_back(Output::Send { to, msg, body });
    }

    /// The call is made. CollectiveKind and root are those of the call already.
    pub fn start(&mut self, env: &mut Env, value: Option<Body>) {
        self.own = value.map_or(NONE, |body| body.0);
        self.start = env.now;
        self.set(STARTED, true);
        if self.phase == Phase::Done {
            return self.said(env);
        }
        if self.kind.up() {
            self.gather(env);
        } else if env.me == self.root {
            self.result = self.own;
            self.by = env.me;
            self.done(env);
        } else {
            self.watch(env);
        }
    }

    /// A call that cannot be carried out.
    pub fn refuse(&mut self, env: &mut Env, why: Why, value: Option<Body>) {
        self.own = value.map_or(NONE, |body| body.0);
        self.set(STARTED, true);
        self.fail(env, why);
    }

    /// A message of this very call.
    pub fn message(&mut self, env: &mut Env, from: Peer, msg: Msg, body: u32) {
        match msg.verb {
            Verb::Give => self.on_give(env, from, body),
            Verb::Claim => self.on_claim(env, from),
            Verb::Ask => self.on_ask(env, from),
            Verb::Wait => self.on_alive(env, from, true),
            Verb::Idle => self.on_alive(env, from, env.now < self.start + env.config.late),
            Verb::Result => self.on_result(env, from, msg.by, body),
            Verb::Gone => self.on_gone(env, from),
            Verb::Mismatch => self.on_mismatch(env, from),
        }
    }

    fn on_give(&mut self, env: &mut Env, from: Peer, body: u32) {
        match self.phase {
            Phase::Empty | Phase::Idle => self.keep_early(env, from, body),
            Phase::Gather | Phase::Takeover => {
                let fold = &mut self.work().fold;
                if let Some(at) = fold.awaited(from) {
                    fold.sources[at].given = true;
                    fold.sources[at].body = body;
                    if body != NONE {
                        env.retain(body);
                    }
                    self.advance(env);
                } else if !fold.holds(from) {
                    self.keep_early(env, from, body);
                    self.heir(from);
                }
            }
            // It comes late, or knows of a death that this process does not know of.
            Phase::Watch => self.heir(from),
            Phase::Done if self.kind.down() => self.send(env, from, Verb::Result, self.result),
            Phase::Done | Phase::Failed => {}
        }
    }

    fn keep_early(&mut self, env: &mut Env, from: Peer, body: u32) {
        let early = &mut self.work().early;
        let known = early.iter().any(|&(peer, _)| peer == from);
        if !known && early.len() < EARLY_MAX {
            early.push((from, body));
            if body != NONE {
                env.retain(body);
            }
        }
    }

    fn on_claim(&mut self, env: &mut Env, from: Peer) {
        let ring = self.ring(env);
        let lower = ring.place(from) < ring.place(env.me);
        if lower && !matches!(self.phase, Phase::Done | Phase::Failed) {
            self.above = from;
            self.heard = env.now;
            self.set(ASKED, false);
            self.set(CLAIMED, true);
        }
        match self.phase {
            Phase::Empty | Phase::Idle => self.send(env, from, Verb::Idle, NONE),
            Phase::Gather => self.send(env, from, Verb::Wait, NONE),
            Phase::Watch => self.send(env, from, Verb::Give, self.acc),
            Phase::Takeover if lower => {
                self.step_back(env);
                self.send(env, from, Verb::Give, self.acc);
            }
            Phase::Takeover => self.send(env, from, Verb::Wait, NONE),
            Phase::Done if self.kind.down() => self.send(env, from, Verb::Result, self.result),
            Phase::Done => self.send(env, from, Verb::Give, self.acc),
            Phase::Failed => self.send(env, from, Verb::Mismatch, NONE),
        }
    }

    fn on_ask(&mut self, env: &mut Env, from: Peer) {
        match self.phase {
            Phase::Empty | Phase::Idle => {
                self.heir(from);
                self.send(env, from, Verb::Idle, NONE);
            }
            Phase::Gather | Phase::Watch | Phase::Takeover => {
                self.heir(from);
                self.send(env, from, Verb::Wait, NONE);
            }
            Phase::Done if self.kind.down() => self.send(env, from, Verb::Result, self.result),
            Phase::Done => self.send(env, from, Verb::Wait, NONE),
            Phase::Failed => self.send(env, from, Verb::Mismatch, NONE),
        }
    }

    /// Someone waits for the result here who is not among those that gave.
    pub fn heir(&mut self, peer: Peer) {
        if self.kind.down() {
            let work = self.work();
            if !work.heirs.contains(&peer) {
                work.heirs.push(peer);
            }
        }
    }

    /// `from` lives, and is worth waiting for.
    fn on_alive(&mut self, env: &mut Env, from: Peer, worth: bool) {
        if !worth {
            return;
        }
        match self.phase {
            Phase::Watch => {
                let ring = self.ring(env);
                if from == self.above || ring.place(from) < ring.place(self.above) {
                    self.above = from;
                    self.heard = env.now;
                    self.set(ASKED, false);
                }
            }
            Phase::Gather | Phase::Takeover => {
                let now = env.now;
                if let Some(at) = self.work().fold.awaited(from) {
                    let source = &mut self.work().fold.sources[at];
                    source.heard = now;
                    source.asked = false;
                } else if self.phase == Phase::Takeover {
                    let ring = self.ring(env);
                    if ring.place(from) < ring.place(env.me) {
                        self.above = from;
                        self.heard = env.now;
                        self.set(ASKED, false);
                        self.step_back(env);
                    }
                }
            }
            _ => {}
        }
    }

    fn on_result(&mut self, env: &mut Env, from: Peer, by: Peer, body: u32) {
        match self.phase {
            Phase::Failed => return,
            Phase::Done => {
                if self.kind.down() && by != self.by && !self.has(DIVERGED) {
                    self.set(DIVERGED, true);
                    env.event(Event::Diverged {
                        seq: self.seq,
                        peer: from,
                    });
                    self.send(env, from, Verb::Result, self.result);
                }
                return;
            }
            Phase::Gather | Phase::Takeover => {
                self.undecide(env);
                self.drop_fold(env);
            }
            Phase::Watch | Phase::Empty | Phase::Idle => {}
        }
        if body != NONE {
            env.retain(body);
        }
        self.result = body;
        self.by = by;
        self.done(env);
    }

    fn on_gone(&mut self, env: &mut Env, from: Peer) {
        let awaited = match self.phase {
            Phase::Watch => from == self.above,
            Phase::Gather | Phase::Takeover => self.work().fold.awaited(from).is_some(),
            _ => false,
        };
        if awaited {
            self.fail(env, Why::Expired);
        }
    }

    /// `from` is in another call: it is no contributor of this one.
    pub fn on_mismatch(&mut self, env: &mut Env, from: Peer) {
        self.set(MISMATCHED, true);
        match self.phase {
            Phase::Gather | Phase::Takeover => {
                if let Some(at) = self.work().fold.awaited(from) {
                    self.bypass(env, at);
                }
            }
            Phase::Watch if from == self.above => {
                if from == self.root || !self.is_ancestor(env, from) {
                    self.fail(env, Why::Mismatch);
                } else {
                    self.climb(env);
                }
            }
            _ => {}
        }
    }

    /// The result (or that there is none) is known here.
    pub fn done(&mut self, env: &mut Env) {
        self.phase = Phase::Done;
        if !self.kind.up() {
            self.bequeath(env);
        }
        if self.has(STARTED) {
            self.said(env);
        }
    }

    fn said(&mut self, env: &mut Env) {
        let value = (self.result != NONE).then_some(Body(self.result));
        env.event(Event::Done {
            seq: self.seq,
            value,
            by: self.by,
        });
    }

    /// Ends without a result; those who ask are told so.
    pub fn fail(&mut self, env: &mut Env, why: Why) {
        self.undecide(env);
        self.drop_fold(env);
        self.phase = Phase::Failed;
        env.event(Event::Failed { seq: self.seq, why });
    }

    /// The next who gets the result from here.
    pub fn tell(&mut self) -> Option<Peer> {
        let work = self.work.as_mut()?;
        if self.phase != Phase::Done || !self.kind.down() {
            return None;
        }
        let heir = *work.heirs.get(work.told as usize)?;
        work.told += 1;
        Some(heir)
    }

    /// The result for an heir.
    pub fn result_to(&self, to: Peer) -> Output<Machine> {
        let msg = Msg {
            seq: self.seq,
            root: self.root,
            by: self.by,
            kind: self.kind,
            verb: Verb::Result,
        };
        let body = (self.result != NONE).then_some(Body(self.result));
        Output::Send { to, msg, body }
    }

    /// `from` is in another call with this sequence number.
    pub fn other_call(&mut self, env: &mut Env, from: Peer, msg: Msg) {
        if msg.verb == Verb::Mismatch && !self.has(STARTED) {
            return;
        }
        if !self.has(MISMATCHED) {
            env.event(Event::Mismatch {
                seq: self.seq,
                peer: from,
            });
        }
        if matches!(msg.verb, Verb::Give | Verb::Claim | Verb::Ask) {
            self.send(env, from, Verb::Mismatch, NONE);
        }
        self.on_mismatch(env, from);
    }

    /// True if someone is to be told.
    pub fn telling(&self) -> bool {
        let untold = |work: &Work| (work.told as usize) < work.heirs.len();
        self.phase == Phase::Done && self.kind.down() && self.work.as_deref().is_some_and(untold)
    }

    /// The driver knows that `peer` is dead.
    pub fn dead(&mut self, env: &mut Env, peer: Peer) {
        match self.phase {
            Phase::Gather | Phase::Takeover => {
                if let Some(at) = self.work().fold.awaited(peer) {
                    self.bypass(env, at);
                }
            }
            Phase::Watch if self.above == peer => self.climb(env),
            Phase::Done if self.kind.down() => {
                let held = |work: &Work| work.heirs.contains(&peer);
                if self.work.as_deref().is_some_and(held) {
                    let ring = self.ring(env);
                    let config = env.config;
                    for child in config.plan.children(ring.place(peer)) {
                        self.heir(ring.rank(child));
                    }
                }
            }
            _ => {}
        }
    }

    /// The operator has ended.
    pub fn combined(&mut self, env: &mut Env, good: bool) {
        if !self.has(COMBINING) {
            return;
        }
        self.set(COMBINING, false);
        if self.has(DROP_FOLD) {
            self.set(DROP_FOLD, false);
            return self.drop_fold(env);
        }
        if !good {
            return self.fail(env, Why::Operator);
        }
        if let Some(body) = self.work().fold.combined() {
            env.release(body);
        }
        self.advance(env);
    }

    pub fn advance(&mut self, env: &mut Env) {
        if self.has(COMBINING) {
            return;
        }
        let base = if self.phase == Phase::Takeover {
            self.acc
        } else {
            self.own
        };
        match self.work().fold.step(base) {
            Step::Waiting => {}
            Step::Combine { acc, arg, acc_left } => {
                self.set(COMBINING, true);
                env.out.push_back(Output::Combine {
                    op: Op(self.seq),
                    acc: Body(acc),
                    arg: Body(arg),
                    acc_left,
                });
            }
            Step::Value(value) => self.gathered(env, value),
        }
    }

    /// Lets the bodies of a fold go that is not wanted any more. Those who gave remain
    /// heirs.
    pub fn drop_fold(&mut self, env: &mut Env) {
        if self.work.is_none() {
            return;
        }
        if self.has(COMBINING) {
            self.set(DROP_FOLD, true);
            return;
        }
        let fold = core::mem::take(&mut self.work().fold);
        for body in fold.bodies() {
            env.release(body);
        }
        self.work().absent.clear();
        self.inherit(env, &fold.sources);
    }

    /// Those who gave get the result, in the order of sending.
    pub fn inherit(&mut self, env: &Env, sources: &[Source]) {
        // Who was claimed in a takeover waits here, whether it has given or not.
        let all = self.phase == Phase::Takeover;
        let inherits = sources.iter().filter(|source| source.given || all);
        let mut heirs: Vec<Peer> = inherits.map(|source| source.peer).collect();
        // The list is in the order of places; the largest subtree is served first.
        if env.config.plan.descending() {
            heirs.reverse();
        }
        if self.kind.down() && !heirs.is_empty() {
            let work = self.work();
            let asked = core::mem::replace(&mut work.heirs, heirs);
            for peer in asked {
                self.heir(peer);
            }
        }
    }

    /// Forgets the collective.
    pub fn retire(&mut self, env: &mut Env) {
        self.drop_fold(env);
        if let Some(work) = &mut self.work {
            for (_, body) in work.early.drain(..) {
                env.release(body);
            }
        }
        env.release(self.own);
        if self.acc != self.own {
            env.release(self.acc);
        }
        if self.result != self.own && self.result != self.acc {
            env.release(self.result);
        }
        (self.own, self.acc, self.result) = (NONE, NONE, NONE);
    }

    /// `peer` is on no list and not waited for.
    pub fn silent(&self, env: &mut Env, peer: Peer) {
        env.known.mark(peer, Doubt::Silent);
        env.event(Event::Silent {
            seq: self.seq,
            peer,
        });
    }
}

//! One collective at one process: reduce, broadcast, and how it ends.

mod recover;
mod reducing;

use std::collections::VecDeque;

use outlive_base::Time;
use outlive_base::machine::{Body, Cx, Machine as _, Output, Peer, Ready};

use super::kept::{Branches, Forest};
use super::{Config, MODEL, Machine, Msg, Part};
use crate::broadcast::spanning::Trees;
use crate::broadcast::{self, Broadcast};
use crate::collective::fold::NONE;
use crate::collective::{Call, CollectiveKind, Event, Why, series};
use crate::reduce;
use recover::Gather;
use reducing::{Answer, Reducing};

/// Longest wait between two questions, as a multiple of the first.
const ASK_FACTOR: u64 = 64;

pub(super) struct Env<'a, 'b> {
    pub cx: &'a Cx<'b, Machine>,
    pub dead: &'a [Peer],
    pub active: &'a mut Vec<u32>,
    pub forest: &'a mut Forest,
    pub paced: &'a mut Time,
    pub out: &'a mut VecDeque<Output<Machine>>,
    pub sends: &'a mut VecDeque<Output<Machine>>,
}

impl Env<'_, '_> {
    pub fn event(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }
    pub fn retain(&mut self, body: Option<Body>) -> u32 {
        if let Some(body) = body {
            self.out.push_back(Output::Retain { body });
        }
        body.map_or(NONE, |body| body.0)
    }
    pub fn release(&mut self, body: u32) {
        if body != NONE {
            let body = Body(body);
            self.sends.push_back(Output::Release { body });
        }
    }
    /// A body that was kept goes to whoever asked for it since `out` had `before` entries,
    /// else it is released.
    pub fn hand_over(&mut self, before: usize, body: u32) {
        let wanted = |output: &Output<Machine>| matches!(output, Output::Retain { body: one } if one.0 == body);
        match self.out.iter().skip(before).position(wanted) {
            Some(at) => drop(self.out.remove(before + at)),
            None => self.release(body),
        }
    }
    pub fn config(&self) -> &Config {
        self.cx.config
    }
}

/// What comes of polling a entry.
pub(super) enum Turn {
    Send(Output<Machine>),
    /// A correction waits for its pace.
    Held,
    /// The call ended; who leads from now on.
    Ended {
        lead: Option<Peer>,
    },
    Idle,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Nothing is known of it, or only what others said.
    Idle,
    Started,
    Ended,
    /// Ended without a result.
    Failed,
}

#[derive(Debug)]
struct Spreading {
    machine: Broadcast,
    config: broadcast::Config,
    /// This process's virtual time.
    at: Time,
}

#[derive(Debug)]
pub(super) struct Collective {
    pub seq: u32,
    pub kind: CollectiveKind,
    pub root: Peer,
    phase: Phase,
    /// Who was the first to say which call it is.
    told: Option<Peer>,
    /// Said by those who heard another end of the call before than `told` did. Which end
    /// counts shows when this process is in the call.
    others: Vec<(Peer, Msg, u32)>,
    pub start: Time,
    pub own: u32,
    pub value: u32,
    /// The call is decided here: by `value`, or lost.
    pub has: bool,
    pub lost: bool,
    pub by: Peer,
    /// Answered a claim: results are taken from claimants only.
    pub sealed: bool,
    spread: Option<Box<Spreading>>,
    /// Instead of that: down trees that are kept.
    branches: Option<Box<Branches>>,
    pub reduce: Option<Box<Reducing>>,
    pub early: Vec<(Peer, reduce::Msg, u32)>,
    /// Wait for this process's operand.
    pub claimants: Vec<Peer>,
    pub gather: Option<Box<Gather>>,
    /// Is to collect once it is called.
    pub due: bool,
    /// Passed over in this call, though not known to be dead.
    pub gone: Vec<Peer>,
    pub ask_at: Time,
    pub ask_every: Time,
    /// Who was asked last, when, and whether it answered.
    pub asked: Option<(Peer, Time, bool)>,
    /// Who was asked for its part of the reduce, and what it answered.
    pub probed: Vec<(Peer, Answer)>,
    pub probe_at: Time,
}

impl series::CallState for Collective {
    fn empty(seq: u32) -> Collective {
        Collective {
            seq,
            kind: CollectiveKind::Bcast,
            root: 0,
            phase: Phase::Idle,
            told: None,
            others: Vec::new(),
            start: Time::ZERO,
            own: NONE,
            value: NONE,
            has: false,
            lost: false,
            by: 0,
            sealed: false,
            spread: None,
            branches: None,
            reduce: None,
            early: Vec::new(),
            claimants: Vec::new(),
            gather: None,
            due: false,
            gone: Vec::new(),
            ask_at: Time::NEVER,
            ask_every: Time::ZERO,
            asked: None,
            probed: Vec::new(),
            probe_at: Time::NEVER,
        }
    }
}

impl Collective {
    pub fn ended(&self) -> bool {
        matches!(self.phase, Phase::Ended | Phase::Failed)
    }
    pub fn entered(&self) -> bool {
        self.phase != Phase::Idle
    }
    pub fn failed(&self) -> bool {
        self.phase == Phase::Failed
    }

    pub fn send(&self, env: &mut Env, to: Peer, part: Part, body: u32) {
        let msg = self.msg(part);
        let body = (body != NONE).then_some(Body(body));
        env.sends.push_back(Output::Send { to, msg, body });
    }

    pub fn msg(&self, part: Part) -> Msg {
        let Collective {
            seq,
            root,
            by,
            kind,
            ..
        } = *self;
        Msg {
            seq,
            root,
            by,
            kind,
            part,
        }
    }

    /// The caller enters.
    pub fn start(&mut self, env: &mut Env, call: Call, lead: Peer) {
        let root = if rooted(call.kind) { call.root } else { lead };
        let lacks = call.value.is_none() && (call.kind.up() || root == env.cx.me);
        self.own = call.value.map_or(NONE, |body| body.0);
        self.start = env.cx.now;
        if let Some(peer) = self.told
            && (self.kind, self.root) != (call.kind, root)
        {
            let stale = self.kind == call.kind && !rooted(call.kind);
            if peer == root && !stale {
                (self.kind, self.root) = (call.kind, root);
                return self.quit(env, Why::Mismatch);
            }
            let (own, others) = (self.own, std::mem::take(&mut self.others));
            self.own = NONE;
            self.retire(env);
            *self = series::CallState::empty(self.seq);
            (self.own, self.start, self.others) = (own, env.cx.now, others);
            (self.kind, self.root) = (call.kind, root);
            if !stale {
                self.send(env, peer, Part::Mismatch, NONE);
            }
        }
        (self.kind, self.root) = (call.kind, root);
        self.told = Some(env.cx.me);
        for (from, msg, body) in std::mem::take(&mut self.others) {
            let before = env.out.len();
            if (msg.kind, msg.root) == (call.kind, root) {
                self.message(env, from, msg, (body != NONE).then_some(Body(body)));
            }
            env.hand_over(before, body);
        }
        if lacks || root >= env.config().processes {
            return self.fail(env, Why::Argument);
        }
        if !super::serves(call.kind, call.ordered) {
            return self.fail(env, Why::Unordered);
        }
        self.phase = Phase::Started;
        self.ask_every = env.config().ask;
        self.ask_at = self.start + self.ask_every;
        self.probe_at = self.start + Time(env.config().timeout.0 / 2);
        self.enter(env);
        env.active.push(self.seq);
        self.without_root(env);
    }

    fn enter(&mut self, env: &mut Env) {
        for claimant in std::mem::take(&mut self.claimants) {
            self.give(env, claimant);
        }
        if self.has {
            return;
        }
        if self.kind == CollectiveKind::Bcast {
            if self.root == env.cx.me && !self.sealed {
                self.decide(env, self.own, env.cx.me);
                self.begin_spread(env);
            }
        } else if !self.sealed {
            self.begin_reduce(env);
        }
        if self.due && !self.has {
            self.collect(env);
        }
    }

    /// The result is known here.
    pub fn decide(&mut self, env: &mut Env, value: u32, by: Peer) {
        (self.has, self.value, self.by) = (true, value, by);
        env.active.push(self.seq);
    }

    pub fn begin_spread(&mut self, env: &mut Env) {
        if let Some(branches) = env.forest.begin(env.cx, env.dead) {
            self.branches = Some(Box::new(branches));
            return;
        }
        self.spreading(env, Time::ZERO, |machine, cx| {
            machine.on_command(cx, broadcast::Command::Start);
        });
    }

    fn spreading(
        &mut self,
        env: &mut Env,
        at: Time,
        feed: impl FnOnce(&mut Broadcast, &Cx<Broadcast>),
    ) {
        if self.spread.is_none() {
            let Ok(config) = env.config().broadcast(self.root) else {
                return;
            };
            let machine = Broadcast::default();
            self.spread = Some(Box::new(Spreading {
                machine,
                config,
                at,
            }));
        }
        if let Some(inner) = &mut self.spread {
            let Spreading {
                machine,
                config,
                at,
            } = &mut **inner;
            feed(machine, &spread_cx(env.cx, self.seq, *at, config));
            if env.active.last() != Some(&self.seq) {
                env.active.push(self.seq);
            }
        }
    }

    pub fn message(&mut self, env: &mut Env, from: Peer, msg: Msg, body: Option<Body>) {
        if self.failed() {
            if matches!(msg.part, Part::Ask(_) | Part::Claim) {
                self.send(env, from, Part::Out, NONE);
            }
            return;
        }
        match self.told {
            None => {
                (self.kind, self.root, self.told) = (msg.kind, msg.root, Some(from));
            }
            Some(_) if (self.kind, self.root) == (msg.kind, msg.root) => {}
            Some(_) if self.kind == msg.kind && !rooted(msg.kind) => {
                return self.of_another_end(env, from, msg, body);
            }
            Some(_) => return self.other_call(env, from, msg),
        }
        match msg.part {
            Part::Spread(inner, at) => self.spread_message(env, from, inner, at, body),
            Part::Branch { generation, trees } => {
                self.branch(env, from, (generation, trees), body);
            }
            Part::Grow { .. } => {} // Of no call.
            Part::Reduce(inner) => self.reduce_message(env, from, inner, body),
            Part::Ask(dead) => self.asked_by(env, from, dead),
            Part::Wait(entered) => self.waits(from, entered),
            Part::Claim => self.claimed(env, from),
            Part::Give => self.given(env, from, body),
            Part::Result(lost) => self.result(env, from, (lost, msg.by), body),
            Part::Gone if self.waiting(env) => self.fail(env, Why::Expired),
            Part::Gone => {}
            Part::Mismatch => self.other_call(env, from, msg),
            Part::Out => self.pass_over(env, from, false),
        }
    }

    /// `from` heard another end of the call before, and so another root of this one. Once
    /// this process is in the call, that is one of whom nobody knows more: it is dead, or
    /// called dead and will find itself passed over. Before, it may be this process that
    /// was told by such a one.
    fn of_another_end(&mut self, env: &mut Env, from: Peer, msg: Msg, body: Option<Body>) {
        if self.entered() {
            return;
        }
        if matches!(msg.part, Part::Ask(_) | Part::Claim) {
            // As its call names it, so that it is heard.
            let (to, body) = (from, None);
            let part = Part::Wait(false);
            let msg = Msg { part, ..msg };
            env.sends.push_back(Output::Send { to, msg, body });
        }
        let again = |&(peer, m, _): &(Peer, Msg, u32)| (peer, m) == (from, msg);
        let full = self.others.len() > 2 * env.config().processes as usize;
        if !full && !self.others.iter().any(again) {
            let body = env.retain(body);
            self.others.push((from, msg, body));
        }
    }

    /// `from` is in another call: that of the root counts.
    fn other_call(&mut self, env: &mut Env, from: Peer, msg: Msg) {
        if self.phase == Phase::Ended && msg.part != Part::Mismatch {
            self.send(env, from, Part::Mismatch, NONE);
        }
        if self.phase != Phase::Started {
            return;
        }
        let seq = self.seq;
        env.event(Event::Mismatch { seq, peer: from });
        if from == self.root {
            self.quit(env, Why::Mismatch);
        } else {
            if msg.part != Part::Mismatch {
                self.send(env, from, Part::Mismatch, NONE);
            }
            self.pass_over(env, from, false);
        }
    }

    fn spread_message(
        &mut self,
        env: &mut Env,
        from: Peer,
        msg: broadcast::Msg,
        at: u32,
        body: Option<Body>,
    ) {
        if !self.has && self.sealed {
            return;
        }
        if !self.has {
            self.take_result(env, body);
        } else if self.spread.is_none() {
            return; // It came from a claimant.
        }
        let at = Time(u64::from(at));
        self.spreading(env, at, |machine, cx| {
            machine.on_message(cx, from, msg, None)
        });
    }

    /// The result came down trees that are kept: it is passed on, once.
    fn branch(
        &mut self,
        env: &mut Env,
        from: Peer,
        (generation, trees): (u32, Trees),
        body: Option<Body>,
    ) {
        if let Some(branches) = &mut self.branches {
            branches.to.retain(|&to| to != from); // It has it.
            return;
        }
        if self.sealed || self.has && (self.lost || self.by != self.root) {
            return;
        }
        if !self.has {
            self.take_result(env, body);
        }
        let mut branches = env.forest.pass(env.cx, (self.root, generation, trees));
        branches.to.retain(|&to| to != from);
        self.branches = Some(Box::new(branches));
        env.active.push(self.seq);
    }

    /// The root's result has come: nothing that was on its way to it is needed.
    fn take_result(&mut self, env: &mut Env, body: Option<Body>) {
        self.drop_reduce(env);
        self.drop_gather(env);
        let value = env.retain(body);
        self.decide(env, value, self.root);
    }

    /// The next who gets the result down the trees.
    fn next_branch(&mut self, env: &Env) -> Option<Output<Machine>> {
        let branches = self.branches.as_mut()?;
        let (generation, trees) = (branches.generation, branches.trees);
        while let Some(to) = branches.to.pop() {
            if env.dead.binary_search(&to).is_err() {
                let msg = self.msg(Part::Branch { generation, trees });
                let body = (self.value != NONE).then_some(Body(self.value));
                return Some(Output::Send { to, msg, body });
            }
        }
        None
    }

    /// True if the result left the root down its trees so long ago that who asks now must
    /// have been missed by them.
    pub fn missed(&self, cx: &Cx<Machine>) -> bool {
        let since = self.branches.as_ref().map(|branches| branches.since);
        let here = self.root == cx.me;
        here && since.is_some_and(|since| cx.now >= since + Time(cx.config.ask.0 / 2))
    }

    /// The next message of the broadcast, or the end of the call.
    pub fn turn(&mut self, env: &mut Env) -> Turn {
        while let Some(inner) = &mut self.spread {
            let Spreading {
                machine,
                config,
                at,
            } = &mut **inner;
            // Tried on a copy: what must wait for its pace is decided anew then.
            let mut next = machine.clone();
            match next.poll(&spread_cx(env.cx, self.seq, *at, config), Ready::ALL) {
                None => break,
                Some(Output::Send { to, msg, .. }) => {
                    let correction = msg != broadcast::Msg::Spread;
                    let dead = env.dead.binary_search(&to).is_ok();
                    if correction && !dead && env.cx.now < *env.paced {
                        return Turn::Held;
                    }
                    *machine = next;
                    let arrival = at.0.saturating_add(MODEL.delay());
                    *at = *at + Time(MODEL.gap);
                    if dead {
                        continue;
                    }
                    if correction {
                        *env.paced = env.cx.now + env.cx.config.pace;
                    }
                    let arrival = u32::try_from(arrival).unwrap_or(u32::MAX);
                    let msg = self.msg(Part::Spread(msg, arrival));
                    let body = (self.value != NONE).then_some(Body(self.value));
                    return Turn::Send(Output::Send { to, msg, body });
                }
                Some(_) => *machine = next,
            }
        }
        if let Some(output) = self.next_branch(env) {
            return Turn::Send(output);
        }
        if self.phase != Phase::Started || !self.has || self.gather.is_some() {
            return Turn::Idle;
        }
        self.phase = Phase::Ended;
        let here = self.kind.down() || self.root == env.cx.me;
        let value = (here && self.value != NONE).then_some(Body(self.value));
        env.event(Event::Done {
            seq: self.seq,
            value,
            by: self.by,
        });
        Turn::Ended {
            lead: self.kind.synchronises().then_some(self.by),
        }
    }

    /// Fails, and tells the others to go on without this process.
    pub fn quit(&mut self, env: &mut Env, why: Why) {
        for to in 0..env.config().processes {
            if to != env.cx.me && !self.passed(env, to) {
                self.send(env, to, Part::Out, NONE);
            }
        }
        self.fail(env, why);
    }

    pub fn fail(&mut self, env: &mut Env, why: Why) {
        if self.ended() {
            return;
        }
        self.phase = Phase::Failed;
        self.drop_reduce(env);
        self.drop_gather(env);
        let seq = self.seq;
        env.event(Event::Failed { seq, why });
    }

    /// Lets all bodies go.
    pub fn retire(&mut self, env: &mut Env) {
        for (.., body) in std::mem::take(&mut self.others) {
            env.release(body);
        }
        self.drop_reduce(env);
        self.drop_gather(env);
        if self.value != self.own {
            env.release(self.value);
        }
        env.release(self.own);
        (self.own, self.value) = (NONE, NONE);
    }

    pub fn timeout(&mut self, env: &mut Env) {
        if self.phase == Phase::Started && env.cx.now >= self.start + env.config().bound {
            return self.fail(env, Why::Bound);
        }
        self.probe(env);
        if !self.waiting(env) {
            return;
        }
        if self.ask_due(env.cx).is_some_and(|at| at <= env.cx.now)
            && let Some((peer, ..)) = self.asked
        {
            self.pass_over(env, peer, true);
        }
        if self.waiting(env) && self.ask_at <= env.cx.now {
            self.ask_every = Time(
                (self.ask_every.0.saturating_mul(2))
                    .min(env.config().ask.0.saturating_mul(ASK_FACTOR)),
            );
            self.ask_at = env.cx.now + self.ask_every;
            self.ask(env);
        }
    }

    pub fn deadline(&self, cx: &Cx<Machine>) -> Option<Time> {
        let awaits = self.reduce.is_some() || self.gather.is_some();
        let probe = awaits.then_some(self.probe_at);
        if self.phase != Phase::Started {
            return probe;
        }
        let bound = self.start + cx.config.bound;
        let elsewhere = self.root != cx.me || self.sealed;
        let waiting = !self.has && self.kind.down() && self.gather.is_none() && elsewhere;
        let ask = waiting.then_some(self.ask_at);
        let asked = self.ask_due(cx).filter(|_| waiting);
        [Some(bound), probe, ask, asked].into_iter().flatten().min()
    }
}

/// True for calls whose root the caller names.
fn rooted(kind: CollectiveKind) -> bool {
    matches!(
        kind,
        CollectiveKind::Bcast | CollectiveKind::Reduce | CollectiveKind::Gather
    )
}

fn spread_cx<'a>(
    cx: &Cx<Machine>,
    seq: u32,
    at: Time,
    config: &'a broadcast::Config,
) -> Cx<'a, Broadcast> {
    // Each call gossips to others.
    let seed = outlive_base::rng::draw(cx.seed, u64::from(seq), 0);
    Cx {
        me: cx.me,
        now: at,
        config,
        seed,
    }
}

//! A machine together with the process that calls it: when it enters its calls, when
//! it is away, and the bodies that it holds.

use std::cell::RefCell;
use std::collections::VecDeque;

use outlive_base::Time;
use outlive_base::machine::{Body, Cx, Fault, Machine, Op, Output, Peer, Ready};
use outlive_protocols::collective::{Call, Command, Event, Record};
use outlive_protocols::ftco::{self, Verb};
use outlive_protocols::reduce;

use super::arena::{Arena, Value};

/// A machine whose runs are simulated here.
pub trait Subject:
    std::fmt::Debug + Machine<Command = Command, Event = Event, Record = Record>
{
    /// One that has seen nothing.
    fn fresh() -> Self;
    /// How many processes there are.
    fn processes(config: &Self::Config) -> u32;
    /// True if the message gives a contribution to another.
    fn gives(msg: &Self::Msg) -> bool;
    /// True if the message claims one.
    fn claims(msg: &Self::Msg) -> bool;
    /// True if the message asks where a result or an operand stays.
    fn asks(_msg: &Self::Msg) -> bool {
        false
    }
    /// True if the message takes a result down a tree that is kept.
    fn branches(_msg: &Self::Msg) -> bool {
        false
    }
}

impl Subject for ftco::Machine {
    fn fresh() -> Self {
        ftco::Machine::new()
    }
    fn processes(config: &ftco::Config) -> u32 {
        config.plan.processes()
    }
    fn gives(msg: &ftco::Msg) -> bool {
        msg.verb == Verb::Give
    }
    fn claims(msg: &ftco::Msg) -> bool {
        msg.verb == Verb::Claim
    }
}

impl Subject for reduce::Reduce {
    fn fresh() -> Self {
        reduce::Reduce::new()
    }
    fn processes(config: &reduce::Config) -> u32 {
        config.processes
    }
    fn gives(_: &reduce::Msg) -> bool {
        true
    }
    fn claims(_: &reduce::Msg) -> bool {
        false
    }
}

/// What all callers share.
#[derive(Debug)]
pub struct Shared<C> {
    /// The configuration of the machines.
    pub config: C,
    /// All bodies; of a run there is one thread.
    pub arena: RefCell<Arena>,
    /// Whether operands remember their ranks.
    pub exact: bool,
    /// A fault built into the machine, to try the checker.
    pub planted: Option<Planted>,
    /// Violations of the rules for bodies.
    pub violations: RefCell<Vec<String>>,
}

/// Faults to try the checkers on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A contribution is counted again when it is given a second time.
    CountedTwice,
    /// Claims never leave: the children of the dead are lost.
    LostBypass,
    /// The list of the absent is not passed on.
    LostAbsent,
    /// An orphan puts its own result together at once.
    HastyOrphan,
    /// Who passes a result on down trees that are kept forgets some of its children.
    ForgottenChild,
}

/// What a process says to the one who watches the run.
#[derive(Clone, PartialEq, Debug)]
pub struct Said {
    /// The event.
    pub event: Event,
    /// What the body of [`Event::Done`] holds.
    pub value: Option<Value>,
}

/// One process.
#[derive(Debug)]
pub struct Caller<S: Subject> {
    machine: S,
    /// When it enters which call; the first last.
    calls: Vec<(Time, Call)>,
    /// Who is told to be dead, and when; the first last.
    news: Vec<(Time, Peer)>,
    /// From when to when it does nothing at all.
    away: (Time, Time),
    waiting: Vec<(Peer, S::Msg, Option<Body>)>,
    said: VecDeque<Said>,
    gives: u32,
    hasty: bool,
}

type C<'a, S> = Cx<'a, Caller<S>>;

/// No message may be sent.
const QUIET: Ready = Ready {
    send: false,
    persist: true,
};

fn inner<'a, S: Subject>(cx: &C<'a, S>) -> Cx<'a, S> {
    Cx {
        me: cx.me,
        now: cx.now,
        config: &cx.config.config,
        seed: cx.seed,
    }
}

impl<S: Subject> Caller<S> {
    /// Enters these calls at these times (ascending), and is away from and until.
    pub fn new(mut calls: Vec<(Time, Call)>, away: (Time, Time)) -> Caller<S> {
        calls.reverse();
        calls.shrink_to_fit();
        Caller {
            machine: S::fresh(),
            calls,
            news: Vec::new(),
            away,
            waiting: Vec::new(),
            said: VecDeque::new(),
            gives: 0,
            hasty: false,
        }
    }

    /// Is told of these deaths at these times.
    pub fn hears(mut self, mut news: Vec<(Time, Peer)>) -> Caller<S> {
        news.sort_unstable_by(|a, b| b.cmp(a));
        self.news = news;
        self
    }

    fn is_away(&self, now: Time) -> bool {
        self.away.0 <= now && now < self.away.1
    }

    /// What came while it was away, then the calls that are due.
    fn catch_up(&mut self, cx: &C<S>) {
        // As the machine asks: all that has arrived, before it is polled.
        let waiting = std::mem::take(&mut self.waiting);
        for &(from, msg, body) in &waiting {
            self.machine.on_message(&inner(cx), from, msg, body);
        }
        self.drain(cx, waiting.iter().filter_map(|&(.., body)| body).collect());
        while let Some(&(at, peer)) = self.news.last()
            && at <= cx.now
        {
            self.news.pop();
            self.machine.on_command(&inner(cx), Command::Dead { peer });
            self.drain(cx, Vec::new());
        }
        while let Some(&(at, mut call)) = self.calls.last()
            && at <= cx.now
        {
            self.calls.pop();
            let operand = call.kind.up() || call.root == cx.me;
            call.value = operand.then(|| {
                let value = Value::of(cx.me, cx.config.exact);
                cx.config.arena.borrow_mut().put(value)
            });
            self.machine.on_command(&inner(cx), Command::Start(call));
            self.drain(cx, Vec::new());
        }
    }

    /// Carries out what needs no port; lets go of those `given` that it does not keep.
    fn drain(&mut self, cx: &C<S>, mut given: Vec<Body>) {
        while let Some(output) = self.machine.poll(&inner(cx), QUIET) {
            let mut arena = cx.config.arena.borrow_mut();
            let good = match output {
                Output::Retain { body } => {
                    let at = given.iter().position(|&other| other == body);
                    at.map(|at| given.swap_remove(at)).is_some()
                }
                Output::Release { body } => arena.release(body),
                Output::Combine {
                    op,
                    acc,
                    arg,
                    acc_left,
                } => {
                    let good = arena.combine(acc, arg, acc_left);
                    self.machine.on_done(&inner(cx), op, Ok(()));
                    good
                }
                Output::Event(event) => {
                    self.say(cx, &mut arena, event);
                    true
                }
                Output::Send { .. } | Output::Persist { .. } => false,
            };
            if !good {
                let text = format!("rank {}: misused body in {output:?}", cx.me);
                cx.config.violations.borrow_mut().push(text);
            }
        }
        for body in given {
            cx.config.arena.borrow_mut().release(body);
        }
    }

    fn say(&mut self, cx: &C<S>, arena: &mut Arena, event: Event) {
        let planted = cx.config.planted;
        let mut value = None;
        match event {
            Event::Absent { .. } if planted == Some(Planted::LostAbsent) => return,
            Event::Absent { body, peer } => return arena.absent(body, peer),
            Event::Done { .. } if self.hasty => return,
            Event::Done { value: body, .. } => {
                value = body.and_then(|body| arena.get(body)).cloned();
            }
            Event::Silent { seq, .. } if planted == Some(Planted::HastyOrphan) && !self.hasty => {
                self.hasty = true;
                let event = Event::Done {
                    seq,
                    value: None,
                    by: cx.me,
                };
                let value = Some(Value::of(cx.me, cx.config.exact));
                self.said.push_back(Said { event, value });
            }
            _ => {}
        }
        self.said.push_back(Said { event, value });
    }

    /// The copy that travels; the machine keeps its own.
    fn copy(&mut self, cx: &C<S>, msg: S::Msg, body: Body) -> Option<Body> {
        let mut arena = cx.config.arena.borrow_mut();
        let Some(value) = arena.get(body) else {
            let text = format!("rank {}: sends a body that it let go: {msg:?}", cx.me);
            cx.config.violations.borrow_mut().push(text);
            return None;
        };
        let mut value = value.clone();
        if S::gives(&msg) {
            self.gives += 1;
            if cx.config.planted == Some(Planted::CountedTwice) && self.gives > 1 {
                value.ranks.push(cx.me);
                value.count += 1;
            }
        }
        Some(arena.put(value))
    }
}

impl<S: Subject> Machine for Caller<S> {
    type Config = Shared<S::Config>;
    type Msg = S::Msg;
    /// Time has begun.
    type Command = ();
    type Record = Record;
    type Event = Said;

    fn on_message(&mut self, cx: &Cx<Self>, from: Peer, msg: S::Msg, body: Option<Body>) {
        self.waiting.push((from, msg, body));
        if !self.is_away(cx.now) {
            self.catch_up(cx);
        }
    }

    fn on_command(&mut self, cx: &Cx<Self>, (): ()) {
        if !self.is_away(cx.now) {
            self.catch_up(cx);
        }
    }

    fn on_timeout(&mut self, cx: &Cx<Self>) {
        if self.is_away(cx.now) {
            return;
        }
        self.catch_up(cx);
        let due = self.machine.deadline(&inner(cx));
        if due.is_some_and(|due| due <= cx.now) {
            self.machine.on_timeout(&inner(cx));
            self.drain(cx, Vec::new());
        }
    }

    fn on_done(&mut self, _cx: &Cx<Self>, _op: Op, _result: Result<(), Fault>) {}

    fn poll(&mut self, cx: &Cx<Self>, ready: Ready) -> Option<Output<Self>> {
        if self.is_away(cx.now) {
            return None;
        }
        loop {
            if let Some(said) = self.said.pop_front() {
                return Some(Output::Event(said));
            }
            if !ready.send {
                return None;
            }
            match self.machine.poll(&inner(cx), ready)? {
                Output::Send { msg, .. }
                    if S::claims(&msg) && cx.config.planted == Some(Planted::LostBypass) => {}
                Output::Send { to, msg, .. }
                    if S::branches(&msg)
                        && to % 5 == 4
                        && cx.config.planted == Some(Planted::ForgottenChild) => {}
                Output::Send { to, msg, body } => {
                    let body = body.and_then(|body| self.copy(cx, msg, body));
                    return Some(Output::Send { to, msg, body });
                }
                Output::Release { body } => {
                    cx.config.arena.borrow_mut().release(body);
                }
                Output::Event(event) => {
                    let mut arena = cx.config.arena.borrow_mut();
                    self.say(cx, &mut arena, event);
                }
                // A machine that begins its next call when a message has left.
                Output::Combine {
                    op,
                    acc,
                    arg,
                    acc_left,
                } => {
                    let good = cx.config.arena.borrow_mut().combine(acc, arg, acc_left);
                    if !good {
                        let text = format!("rank {}: combines what it let go", cx.me);
                        cx.config.violations.borrow_mut().push(text);
                    }
                    self.machine.on_done(&inner(cx), op, Ok(()));
                }
                output => {
                    let text = format!("rank {}: {output:?} after the ports' turn", cx.me);
                    cx.config.violations.borrow_mut().push(text);
                }
            }
        }
    }

    fn deadline(&self, cx: &Cx<Self>) -> Option<Time> {
        let due = self.machine.deadline(&inner(cx));
        let call = self.calls.last().map(|&(at, _)| at);
        let news = self.news.last().map(|&(at, _)| at);
        let due = [due, call, news].into_iter().flatten().min();
        if self.is_away(cx.now) {
            return Some(self.away.1);
        }
        // The end of an absence is a reason to wake, for what came meanwhile.
        due
    }

    fn recover(_cx: &Cx<Self>, _log: impl Iterator<Item = Record>) -> Self {
        Caller::new(Vec::new(), (Time::ZERO, Time::ZERO))
    }
}

//! Fault-tolerant collectives over a tree: every live process gets a result, at the
//! cost of the tree alone when nobody fails.
//!
//! After FTCO (Margolin and Barak, Tree-based fault-tolerant collective operations for
//! MPI, ExaMPI 2018; Concurrency and Computation 33(14), e5826, 2021): detection and
//! recovery are part of each collective, over any tree, and their cost grows with the
//! number of faults in series, not with the number of processes.
//!
//! *Up*: each process waits for its children, combines, gives to its parent. A child
//! that stays silent is bypassed: its children are claimed by the one who waits.
//! *Down*: the result goes to those who gave. A process to which no result comes asks
//! above; an orphan turns to its grandparent and further up. If the root is dead, the
//! first live process in the order of places takes its place (`watch`).
//!
//! One [`Machine`] serves one communicator at one process: it numbers the collectives,
//! holds several in flight, and keeps a bounded number of results for those who come
//! late.
//!
//! Invariants:
//! - Fault-free, P - 1 messages go up and P - 1 down, and no other.
//! - Each contribution counts once (see `collective::fold`); a process that is bypassed and comes
//!   back is on the list of the absent and gets the retained result.
//! - State is O(children + faults); lists of the absent travel with the bodies.
//! - If nobody is called dead who lives, all live processes get the same result and
//!   all of them are among its contributors. If someone is, each call still ends;
//!   two results can meet if a *root* was passed over while it lived, which
//!   [`Event::Diverged`] says where the two are seen (not in every such run).
//! - No wait without a bound (P5): [`Config::bound`] ends every call.
//!
//! Assumed: fail-stop processes; links that neither lose nor reorder; `timeout` above
//! four times the largest delay of a message between processes that run.

mod collective;
mod gather;
mod known;
mod plan;
mod types;
mod watch;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use outlive_base::Time;
use outlive_base::machine::{Body, Cx, Fault, Op, Output, Peer, Ready};

use crate::collective::fold::NONE;
use crate::collective::series::{CallState, Series};
use crate::collective::{Call, Command, Event, PREPARED_MAX, Record, Why};
use collective::{COMBINING, Collective, Env, Phase};
use known::{Doubt, Known};

pub use plan::Plan;
pub use types::*;

/// All collectives of one communicator at one process. See the module.
///
/// Its driver gives it all that has arrived before it polls: a root that comes back
/// learns so that another took its place before it decides itself.
#[derive(Debug, Default)]
pub struct Machine {
    series: Series<Collective>,
    known: Known,
    /// Sequence numbers of collectives with heirs to be told.
    telling: Vec<u32>,
    /// Sequence numbers of collectives that this process decides at the next poll.
    deciding: Vec<u32>,
    prepared: Vec<(u32, Call)>,
    /// Events, operators and bodies to keep: never wait for a port.
    out: VecDeque<Output<Machine>>,
    /// Messages, and bodies to let go after them.
    sends: VecDeque<Output<Machine>>,
}

impl Machine {
    /// A machine that has seen no call.
    pub fn new() -> Machine {
        Machine::default()
    }

    /// The sequence number that the next call will have.
    pub fn next_seq(&self) -> u32 {
        self.series.next()
    }

    /// True if a call is under way here.
    pub fn busy(&self) -> bool {
        self.series.called().any(|entry| !entry.ended())
    }

    /// Carries out `act` on the entry of `seq`, if there is one.
    fn with(&mut self, cx: &Cx<Self>, seq: u32, act: impl FnOnce(&mut Collective, &mut Env)) {
        let Some(entry) = self.series.get_mut(seq) else {
            return;
        };
        let mut env = Env {
            me: cx.me,
            now: cx.now,
            config: cx.config,
            known: &mut self.known,
            out: &mut self.out,
            sends: &mut self.sends,
        };
        act(entry, &mut env);
        if entry.telling() && !self.telling.contains(&seq) {
            self.telling.push(seq);
        }
        if entry.has(collective::DECIDING) && !self.deciding.contains(&seq) {
            self.deciding.push(seq);
        }
    }

    fn start(&mut self, cx: &Cx<Self>, mut call: Call) {
        let seq = self.series.next();
        if !self.series.reach(seq, cx.config.ahead) {
            // Only with `ahead` 0, or after 2^32 calls.
            let why = Why::Busy;
            self.out
                .push_back(Output::Event(Event::Failed { seq, why }));
            return;
        }
        let plan = &cx.config.plan;
        let in_flight = self.series.called().filter(|entry| !entry.ended());
        let busy = in_flight.count() >= cx.config.ahead as usize;
        self.series.advance();
        let lacks = call.value.is_none() && (call.kind.up() || cx.me == call.root);
        let up = call.kind.up();
        // Turned around the ring, a tree in order begins with the root: the result is
        // put together at rank 0 instead, and everyone gets it.
        if up && call.ordered && call.root != 0 {
            call.root = 0;
            call.kind = call.kind.row().to_all;
        }
        let rootless = up && call.kind.down();
        let refused = if busy {
            Some(Why::Busy)
        } else if lacks || call.root.max(cx.me) >= plan.processes() || rootless && call.root != 0 {
            Some(Why::Argument)
        } else if up && call.ordered && !plan.ordered() {
            Some(Why::Unordered)
        } else {
            None
        };
        self.with(cx, seq, |entry, env| {
            if entry.phase != Phase::Empty && (entry.kind, entry.root) != (call.kind, call.root) {
                // What came before the call was of another call.
                entry.retire(env);
                *entry = CallState::empty(seq);
            }
            (entry.kind, entry.root) = (call.kind, call.root);
            match refused {
                Some(why) => entry.refuse(env, why, call.value),
                None => entry.start(env, call.value),
            }
        });
        self.trim(cx);
    }

    /// Lets the oldest ended collectives go.
    fn trim(&mut self, cx: &Cx<Self>) {
        let over =
            |entry: &Collective| entry.ended() && !entry.telling() && entry.flags & COMBINING == 0;
        while let Some(seq) = self.series.spare(cx.config.retained, over) {
            self.with(cx, seq, |entry, env| entry.retire(env));
            self.series.forget();
            self.telling.retain(|&other| other != seq);
        }
    }

    /// Every entry that holds something.
    fn each(&mut self, cx: &Cx<Self>, act: impl Fn(&mut Collective, &mut Env)) {
        for seq in self.series.numbers() {
            self.with(cx, seq, &act);
        }
        self.trim(cx);
    }

    fn fail(&mut self, why: Why) {
        let seq = self.series.next();
        self.out
            .push_back(Output::Event(Event::Failed { seq, why }));
    }

    fn reply(&mut self, to: Peer, msg: Msg, verb: Verb) {
        let msg = Msg { verb, ..msg };
        self.sends.push_back(Output::Send {
            to,
            msg,
            body: None,
        });
    }
}

impl outlive_base::machine::Machine for Machine {
    type Config = Config;
    type Msg = Msg;
    type Command = Command;
    type Record = Record;
    type Event = Event;

    fn on_message(&mut self, cx: &Cx<Self>, from: Peer, msg: Msg, body: Option<Body>) {
        let processes = cx.config.plan.processes();
        if from >= processes || from == cx.me || msg.root >= processes {
            return;
        }
        self.known.heard(from);
        if self.series.is_gone(msg.seq) {
            if matches!(msg.verb, Verb::Ask | Verb::Claim) {
                self.reply(from, msg, Verb::Gone);
            }
            return;
        }
        if !self.series.reach(msg.seq, cx.config.ahead) {
            return;
        }
        self.with(cx, msg.seq, |entry, env| {
            if entry.phase == Phase::Empty {
                (entry.kind, entry.root, entry.phase) = (msg.kind, msg.root, Phase::Idle);
            }
            let body = body.map_or(NONE, |body| body.0);
            if (entry.kind, entry.root) == (msg.kind, msg.root) {
                entry.message(env, from, msg, body);
            } else if matches!(entry.phase, Phase::Idle) || !entry.has(collective::STARTED) {
                // Which call is the right one is not known before it is made here.
                if matches!(msg.verb, Verb::Ask | Verb::Claim) {
                    let msg = Msg {
                        verb: Verb::Idle,
                        ..msg
                    };
                    env.sends.push_back(Output::Send {
                        to: from,
                        msg,
                        body: None,
                    });
                }
            } else {
                entry.other_call(env, from, msg);
            }
        });
        self.trim(cx);
    }

    fn on_command(&mut self, cx: &Cx<Self>, command: Command) {
        match command {
            Command::Start(call) => self.start(cx, call),
            Command::Prepare { handle, call } => {
                self.prepared.retain(|&(other, _)| other != handle);
                if handle < PREPARED_MAX {
                    self.prepared.push((handle, call));
                }
            }
            Command::Run { handle, value } => {
                let found = self.prepared.iter().find(|&&(other, _)| other == handle);
                match found.map(|&(_, call)| call) {
                    Some(call) => self.start(cx, Call { value, ..call }),
                    None => {
                        self.fail(Why::Argument);
                        if let Some(body) = value {
                            self.sends.push_back(Output::Release { body });
                        }
                    }
                }
            }
            Command::Dead { peer } => {
                if peer != cx.me && peer < cx.config.plan.processes() {
                    self.known.mark(peer, Doubt::Dead);
                    self.each(cx, |entry, env| entry.dead(env, peer));
                }
            }
            Command::Returned { peer } => self.known.returned(peer),
        }
    }

    fn on_timeout(&mut self, cx: &Cx<Self>) {
        self.each(cx, |entry, env| entry.timeout(env));
    }

    fn on_done(&mut self, cx: &Cx<Self>, op: Op, result: Result<(), Fault>) {
        self.with(cx, op.0, |entry, env| entry.combined(env, result.is_ok()));
        self.trim(cx);
    }

    fn poll(&mut self, cx: &Cx<Self>, ready: Ready) -> Option<Output<Self>> {
        while let Some(seq) = self.deciding.pop() {
            self.with(cx, seq, |entry, env| entry.decide(env));
            self.trim(cx);
        }
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        if let Some(front) = self.sends.front() {
            if !ready.send && matches!(front, Output::Send { .. }) {
                return None;
            }
            return self.sends.pop_front();
        }
        if !ready.send {
            return None;
        }
        while let Some(&seq) = self.telling.first() {
            let entry = self.series.get_mut(seq);
            let Some((entry, to)) = entry.and_then(|entry| entry.tell().map(|to| (entry, to)))
            else {
                self.telling.remove(0);
                self.trim(cx);
                continue;
            };
            return Some(entry.result_to(to));
        }
        self.sends.pop_front()
    }

    fn deadline(&self, cx: &Cx<Self>) -> Option<Time> {
        let called = self.series.called();
        called.filter_map(|entry| entry.deadline(cx.config)).min()
    }

    fn recover(_cx: &Cx<Self>, _log: impl Iterator<Item = Record>) -> Self {
        Machine::new()
    }
}

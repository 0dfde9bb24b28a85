//! Collectives by correction: every live process gets a result without anybody being
//! detected as dead first, as long as at most f die.
//!
//! *Bcast*: a tree or gossip, then correction on the ring, checked or failure-proof
//! ([`crate::broadcast`]; Hoefler et al., IPDPS 2017; Küttler et al., PPoPP 2019).
//! *Reduce*: up-correction groups and f + 1 trees ([`crate::reduce`]; Küttler and Härtig,
//! arXiv 2602.22445). *Allreduce* and *Barrier*: the reduce to one process, from there
//! the broadcast. With [`Config::keep`] the broadcast goes down trees that were grown once
//! (`kept`), and is corrected only until they are there.
//!
//! *Beyond f, and when the root dies*: a process without a result asks for it, the root
//! first; if the root is dead the lowest rank that lives. That one asks everybody
//! (`recover`): whoever has the result gives it and all get it, else it is put together
//! there from the operands. Costs a message to and from each, and nothing else does.
//!
//! One [`Machine`] serves one communicator at one process: it numbers the collectives,
//! starts each when the one before has ended here, and keeps a bounded number of results
//! for those who come late. It passes a broadcast on before it is called itself.
//!
//! Invariants:
//! - A process that answered a claim without a result takes one from claimants only: so a
//!   claimant who hears of no result from anybody alive knows that there is none.
//! - A message that can wait does: corrections leave when the port is free and
//!   [`Config::pace`] has passed since the last, and each is decided from all that was
//!   heard until then. So back-pressure makes them fewer, never wrong.
//! - Gossip is timed by virtual time ([`MODEL`]), which goes on with sends.
//! - If nobody is called dead who lives: all who live get one result (of a Bcast whose
//!   root died: the data, or none of them any), in which all of them are counted once,
//!   with the list of the absent.
//! - No wait without a bound (P5): [`Config::bound`] ends every call.
//! - State is O(P) bits at a claimant while it collects, else O(children + faults + f).
//!
//! Operators must commute. Assumed: fail-stop processes; links that neither lose nor
//! double a message.

mod collective;
mod kept;
mod types;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use outlive_base::Time;
use outlive_base::machine::{Body, Cx, Fault, Op, Output, Peer, Ready};

use crate::broadcast::spanning::Trees;
use crate::collective::series::Series;
use crate::collective::{Call, CollectiveKind, Command, Event, Record, Why};
use collective::{Collective, Env, Turn};
use kept::Forest;

pub use kept::ROOTS_MAX;
pub use types::*;

/// All corrected collectives of one communicator at one process. See the module.
#[derive(Debug, Default)]
pub struct Machine {
    /// Calls that have begun, and what came for others.
    series: Series<Collective>,
    /// Who puts together the results that have no root of the caller's.
    lead: Peer,
    /// Calls that wait for the end of the one before.
    queued: VecDeque<Call>,
    /// Known to be dead, ascending.
    dead: Vec<Peer>,
    /// Sequence numbers of broadcasts that go on, and of calls that may have ended.
    active: Vec<u32>,
    forest: Forest,
    /// No correction leaves before.
    paced: Time,
    /// A correction waits for that.
    held: bool,
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

    /// At a root: the trees that are kept and, as far as is known, whole; `None` if there are
    /// none, or if they still grow. A bit each.
    pub fn whole_trees(&self, root: Peer) -> Option<Trees> {
        self.forest.whole(root)
    }

    fn with<T>(
        &mut self,
        cx: &Cx<Self>,
        seq: u32,
        act: impl FnOnce(&mut Collective, &mut Env) -> T,
    ) -> Option<T> {
        let entry = self.series.get_mut(seq)?;
        let mut env = Env {
            cx,
            dead: &self.dead,
            active: &mut self.active,
            forest: &mut self.forest,
            paced: &mut self.paced,
            out: &mut self.out,
            sends: &mut self.sends,
        };
        Some(act(entry, &mut env))
    }

    /// Begins queued calls whose turn has come. True if one was.
    fn begin(&mut self, cx: &Cx<Self>) -> bool {
        let seq = self.series.next();
        let before = seq.checked_sub(1);
        let before = before.and_then(|before| self.series.get(before));
        if before.is_some_and(|entry| !entry.ended()) {
            return false;
        }
        let Some(call) = self.queued.pop_front() else {
            return false;
        };
        let reached = self.series.reach(seq, cx.config.ahead.max(1));
        self.series.advance();
        if !reached {
            let why = Why::Busy;
            self.out
                .push_back(Output::Event(Event::Failed { seq, why }));
            return true;
        }
        let lead = self.lead;
        self.with(cx, seq, |entry, env| entry.start(env, call, lead));
        self.trim(cx);
        true
    }

    /// Lets the oldest ended collectives go.
    fn trim(&mut self, cx: &Cx<Self>) {
        while let Some(seq) = self.series.spare(cx.config.retained, Collective::ended) {
            self.with(cx, seq, |entry, env| entry.retire(env));
            self.series.forget();
        }
    }

    fn each(&mut self, cx: &Cx<Self>, act: impl Fn(&mut Collective, &mut Env)) {
        for seq in self.series.numbers() {
            self.with(cx, seq, &act);
        }
    }

    /// The next message of a broadcast, or the end of a call.
    fn turn(&mut self, cx: &Cx<Self>) -> Option<Output<Self>> {
        self.held = false;
        let mut at = 0;
        while let Some(&seq) = self.active.get(at) {
            match self.with(cx, seq, Collective::turn) {
                Some(Turn::Send(output)) => return Some(output),
                Some(Turn::Held) => {
                    self.held = true;
                    at += 1;
                }
                Some(Turn::Ended { lead }) => {
                    self.active.remove(at);
                    self.lead = lead.unwrap_or(self.lead);
                    return self.out.pop_front();
                }
                Some(Turn::Idle) | None => {
                    self.active.remove(at);
                }
            }
        }
        let (to, msg) = self.forest.turn(cx)?;
        let body = None;
        Some(Output::Send { to, msg, body })
    }
}

impl outlive_base::machine::Machine for Machine {
    type Config = Config;
    type Msg = Msg;
    type Command = Command;
    type Record = Record;
    type Event = Event;

    fn on_message(&mut self, cx: &Cx<Self>, from: Peer, msg: Msg, body: Option<Body>) {
        let processes = cx.config.processes;
        if from >= processes || from == cx.me || msg.root >= processes {
            return;
        }
        if matches!(msg.part, Part::Grow { .. }) {
            return self.forest.message(cx, &self.dead, from, msg);
        }
        if self.series.is_gone(msg.seq) {
            if matches!(msg.part, Part::Ask(_) | Part::Claim) {
                let msg = Msg {
                    part: Part::Gone,
                    ..msg
                };
                self.sends.push_back(Output::Send {
                    to: from,
                    msg,
                    body: None,
                });
            }
            return;
        }
        let ahead = cx.config.ahead.max(1);
        if self.series.reach(msg.seq, ahead) {
            self.with(cx, msg.seq, |entry, env| {
                entry.message(env, from, msg, body)
            });
        }
    }

    fn on_command(&mut self, cx: &Cx<Self>, command: Command) {
        match command {
            Command::Start(call) => {
                self.queued.push_back(call);
                self.begin(cx);
            }
            Command::Dead { peer } => {
                let Err(at) = self.dead.binary_search(&peer) else {
                    return;
                };
                if peer != cx.me && peer < cx.config.processes {
                    self.dead.insert(at, peer);
                    self.each(cx, |entry, env| entry.lost(env, peer));
                    self.forest.lost(cx, peer);
                }
            }
            Command::Returned { peer } => {
                self.dead.retain(|&other| other != peer);
                self.forest.returned(cx, peer);
            }
            Command::Prepare { .. } | Command::Run { .. } => {
                let seq = self.series.next() + self.queued.len() as u32;
                let why = Why::Argument;
                self.out
                    .push_back(Output::Event(Event::Failed { seq, why }));
            }
        }
    }

    fn on_timeout(&mut self, cx: &Cx<Self>) {
        self.each(cx, Collective::timeout);
        self.forest.timeout(cx);
    }

    fn on_done(&mut self, cx: &Cx<Self>, op: Op, result: Result<(), Fault>) {
        let (seq, gathering) = (op.0 >> 1, op.0 & 1 == 1);
        self.with(cx, seq, |entry, env| {
            entry.combined(env, gathering, result);
        });
    }

    fn poll(&mut self, cx: &Cx<Self>, ready: Ready) -> Option<Output<Self>> {
        loop {
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
            if let Some(output) = self.turn(cx) {
                return Some(output);
            }
            if self.queued.is_empty() || !self.begin(cx) {
                return None;
            }
        }
    }

    fn deadline(&self, cx: &Cx<Self>) -> Option<Time> {
        let due = self.series.all().filter_map(|entry| entry.deadline(cx));
        let paced = self.held.then_some(self.paced);
        due.chain(paced).chain(self.forest.deadline(cx)).min()
    }

    fn recover(_cx: &Cx<Self>, _log: impl Iterator<Item = Record>) -> Self {
        Machine::new()
    }
}

/// True if the machine carries out this kind of call: it keeps no order of operands.
pub fn serves(kind: CollectiveKind, ordered: bool) -> bool {
    !(ordered && kind.up())
}

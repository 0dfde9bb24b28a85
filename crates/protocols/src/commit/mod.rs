//! The commit protocol: when a version counts, and what a restart begins from.
//!
//! One [`Commit`] a node. Every node is a *participant*; one, the same for the job's
//! life ([`Config::coordinator`]), is also the *coordinator*. Per (incarnation, version, level)
//! this is two-phase commit with presumed abort, whose decision record is
//! replicated over f + 1 failure domains before it counts (STABLE); the opening
//! of an incarnation, and the restart of a coordinator within one, is a round of
//! promises in a higher ballot, as in Paxos (Lamport 1998), so no decision of an
//! older ballot can be made or acknowledged afterwards.
//!
//! Invariants:
//! - COMMIT is persisted by the coordinator only after the PREPARED of every
//!   node, each durable at its node; it is sent only when it is durable.
//! - STABLE is said only when COMMIT is durable in f + 1 failure domains.
//! - A coordinator that has answered ABORT for a key never commits it; one that
//!   was restarted first asks every node for its COMMITs in a higher term, then
//!   presumes ABORT for the rest.
//! - A participant that is PREPARED does not decide alone; before that it may.
//! - A message of another incarnation or an older term is ignored.
//! - Every wait has a bound; where a decision is not this node's to make,
//!   [`Event::Undecided`] says that the bound has passed.
//!
//! State: O(rounds) at a participant; at the coordinator O(rounds x nodes) bits,
//! and while opening O(versions x nodes) bits and one u16 a node: it alone must
//! know who is missing. Decisions are kept for versions that are on disk
//! ([`Command::Forget`]).
//!
//! The reasons are in `docs/protocols/commit.md`.

mod doubts;
mod items;
mod lead;
mod local;
mod log;
mod opening;
mod outbox;
mod planted;
mod recovery;
mod round;
mod types;
mod why;

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::level::StoreKind;
use outlive_base::machine::{Body, Cx, Fault, Machine, Op, Output, Peer, Ready};
use outlive_base::{Incarnation, Level, NodeId, Time, Version};

use crate::nodes::NodeSet;
use local::Local;
use log::{Line, Log, Mark};
use opening::Opening;
use outbox::Outbox;
use recovery::Lead;
use round::Round;

pub use planted::Planted;
pub use types::*;
pub use why::Why;

/// See `Commit::given_up`.
const GIVEN_UP_MAX: usize = 64;

/// When to say something again.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    next: Time,
    factor: u32,
}

/// Where [`Backoff::patient`] begins. A node says where it stands in a round, and has no answer
/// until all have captured, or written: to say it every 50 ms woke all nodes for nothing.
const PATIENT_FACTOR: u32 = 4;

impl Backoff {
    fn new(now: Time, interval: Time) -> Backoff {
        Backoff {
            next: now + interval,
            factor: 1,
        }
    }
    /// For what is rarely lost and answered only when others are ready: it begins with
    /// [`PATIENT_FACTOR`] times the interval.
    fn patient(now: Time, interval: Time) -> Backoff {
        Backoff {
            next: now + Time(interval.0.saturating_mul(u64::from(PATIENT_FACTOR))),
            factor: PATIENT_FACTOR,
        }
    }
    /// True if it is time; then the interval doubles.
    fn due(&mut self, now: Time, interval: Time) -> bool {
        let due = now >= self.next;
        if due {
            self.factor = (self.factor * 2).min(RESEND_FACTOR_MAX);
            self.next = now + Time(interval.0.saturating_mul(u64::from(self.factor)));
        }
        due
    }
}

#[derive(Debug)]
enum Mode {
    /// No incarnation is open here.
    Idle,
    /// An incarnation is opening.
    Opening(Box<Opening>),
    /// The coordinator was restarted and asks the others for their decisions.
    Rejoining(Box<Lead>),
    /// An incarnation is open.
    Running,
}

/// What a record's completion leads to.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    Opened,
    Rejoin,
    Serve {
        from: Peer,
    },
    Prepared {
        version: Version,
        level: Level,
    },
    Decided {
        version: Version,
        level: Level,
    },
    Committed {
        version: Version,
        level: Level,
    },
    /// Ended here for good: now it may be said.
    GivenUp {
        version: Version,
        level: Option<Level>,
        why: Why,
        culprit: Option<NodeId>,
    },
    /// A decision that was in doubt.
    Confirmed {
        version: Version,
        level: Level,
    },
    Forward {
        index: u16,
    },
    Recorded,
}

#[derive(Debug)]
struct Pending {
    ballot: Ballot,
    record: Record,
    then: Then,
}

/// One node's part of the commit protocol. See the module.
#[derive(Debug)]
pub struct Commit {
    out: Outbox,
    log: Log,
    mode: Mode,
    /// In force from the moment of the request, before its promise is durable.
    ballot: Ballot,
    lost: NodeSet,
    pending: BTreeMap<Op, Pending>,
    next_op: u32,
    /// The largest version armed here in this incarnation.
    seen: Option<Version>,
    /// The largest version of this incarnation that was collected here: a late
    /// message about it changes nothing.
    forgotten: Option<Version>,
    /// Versions of this incarnation that were called aborted here, the newest
    /// [`GIVEN_UP_MAX`]: a forced call does not take them again.
    given_up: BTreeSet<Version>,
    locals: BTreeMap<Version, Local>,
    /// The items of the inventory that is being fetched.
    items: Option<Vec<MsgKind>>,
    rounds: BTreeMap<Version, Round>,
    /// See [`doubts`].
    doubts: BTreeSet<log::Key>,
    ended: Ended,
    /// What the last opening found: skipped versions, uncertainty.
    found: (u16, bool),
}

/// Rounds that are over at the coordinator, in bounded memory: every version up
/// to `floor` is over.
#[derive(Debug, Default)]
struct Ended {
    floor: Option<Version>,
    recent: BTreeSet<Version>,
    /// Not over: this instance has said that they were not armed everywhere.
    unarmed: BTreeSet<Version>,
    used: Option<Version>,
}

impl Ended {
    const RECENT_MAX: usize = 256;

    fn add_unarmed(&mut self, version: Version) {
        self.unarmed.insert(version);
        if self.unarmed.len() > Self::RECENT_MAX {
            self.unarmed.pop_first();
        }
    }

    fn add(&mut self, version: Version) {
        self.unarmed.remove(&version);
        self.recent.insert(version);
        self.used = self.used.max(Some(version));
        if self.recent.len() > Self::RECENT_MAX {
            self.floor = self.floor.max(self.recent.pop_first());
        }
    }
    fn contains(&self, version: Version) -> bool {
        Some(version) <= self.floor || self.recent.contains(&version)
    }
}

type C<'a> = Cx<'a, Commit>;

impl Commit {
    /// An instance without history. The same as [`Machine::recover`] with an empty
    /// log.
    pub fn new(cx: &Cx<Self>) -> Commit {
        Commit {
            out: Outbox::default(),
            log: Log::default(),
            mode: Mode::Idle,
            ballot: Ballot::default(),
            lost: NodeSet::new(cx.config.nodes),
            pending: BTreeMap::new(),
            next_op: 0,
            seen: None,
            forgotten: None,
            given_up: BTreeSet::new(),
            locals: BTreeMap::new(),
            items: None,
            rounds: BTreeMap::new(),
            doubts: BTreeSet::new(),
            ended: Ended::default(),
            found: (0, false),
        }
    }

    /// The open incarnation, if this instance takes part in one.
    pub fn incarnation(&self) -> Option<Incarnation> {
        matches!(self.mode, Mode::Running).then_some(self.ballot.incarnation)
    }

    /// The version with which the incarnation of this instance began, and the incarnation in
    /// which that was captured; `None` if it began anew.
    pub fn restored(&self) -> Option<(Incarnation, Version)> {
        let line = self.log.lines.get(&self.ballot.incarnation);
        line.copied().filter(|(source, _)| source.0 != 0)
    }

    /// True if this incarnation is open for all that is recorded here, or is being taken up again.
    pub fn has_open(&self, incarnation: Incarnation) -> bool {
        let open = matches!(self.mode, Mode::Running | Mode::Rejoining(_));
        open && self.ballot.incarnation == incarnation
    }

    /// The highest number this node knows of: a new incarnation needs a larger one.
    pub fn known(&self) -> Incarnation {
        let promised = self.log.promised.incarnation.max(self.ballot.incarnation);
        self.log
            .lines
            .keys()
            .next_back()
            .copied()
            .unwrap_or_default()
            .max(promised)
    }

    /// True if the records of this version may be removed: nobody will ask for its
    /// decision again. A driver asks before it removes them, and tells
    /// [`Command::Forget`] after it did. On the coordinator this waits until every
    /// node has the decision, else one that missed it would be told ABORT.
    pub fn may_forget(&self, source: Incarnation, version: Version) -> bool {
        let open = self.rounds.contains_key(&version) || self.locals.contains_key(&version);
        source != self.ballot.incarnation || matches!(self.mode, Mode::Running) && !open
    }

    /// Which of these levels of a version of this incarnation the decision is recorded of here:
    /// nothing of them is left to do.
    pub fn decided_here(&self, version: Version, levels: Levels) -> Levels {
        let recorded = |level: &Level| self.log.committed(self.key(version, *level)).is_some();
        levels
            .iter()
            .filter(recorded)
            .fold(Levels::NONE, Levels::with)
    }

    /// True if no incarnation is open or opening here.
    pub fn is_idle(&self) -> bool {
        matches!(self.mode, Mode::Idle)
    }

    fn running(&self) -> bool {
        matches!(self.mode, Mode::Running)
    }

    fn say(&mut self, cx: &C, to: Peer, kind: MsgKind) {
        self.out.send(
            cx.me,
            to,
            Msg {
                ballot: self.ballot,
                kind,
            },
        );
    }

    fn say_all(&mut self, cx: &C, kind: MsgKind) {
        self.out.send_all(
            cx.config.nodes,
            Msg {
                ballot: self.ballot,
                kind,
            },
        );
    }

    fn persist(&mut self, record: Record, then: Then) {
        let op = Op(self.next_op);
        self.next_op = self.next_op.wrapping_add(1);
        self.pending.insert(
            op,
            Pending {
                ballot: self.ballot,
                record,
                then,
            },
        );
        self.out.persist(op, record);
    }

    fn accept(&mut self, cx: &C, from: Peer, msg: Msg) {
        let mine = self.ballot;
        if msg.ballot.incarnation != mine.incarnation {
            let planted = cx.config.planted == Some(Planted::AcceptOldIncarnation);
            if !planted || msg.ballot.incarnation > mine.incarnation {
                return;
            }
        } else if msg.ballot.term < mine.term {
            return;
        } else if msg.ballot.term > mine.term {
            if from != cx.config.coordinator {
                return;
            }
            let asks = matches!(msg.kind, MsgKind::Fetch { .. });
            if asks && cx.config.planted != Some(Planted::AwaitLostWord) {
                // It has the record of the incarnation, and it records last: its word that the
                // incarnation is open was lost with its agent.
                self.on_started();
            }
            if !self.running() {
                return;
            }
            if asks {
                return self.promise_term(msg.ballot, from);
            }
            if !msg.kind.is_of_a_round() {
                return;
            }
            // It leads rounds only when all have promised its term: this node has, and its
            // record of that was damaged before its agent was started anew.
            self.ballot = msg.ballot;
            let ballot = msg.ballot;
            self.persist(Record::Promise { ballot }, Then::Nothing);
        }
        match msg.kind {
            MsgKind::Fetch { .. }
            | MsgKind::ItemCopy { .. }
            | MsgKind::ItemPiece { .. }
            | MsgKind::ItemCommit { .. }
            | MsgKind::ItemPrepared { .. }
            | MsgKind::ItemIncarnation { .. }
            | MsgKind::ItemTrace { .. }
            | MsgKind::ItemBlind { .. }
            | MsgKind::ItemEnd { .. }
            | MsgKind::Rebuild { .. }
            | MsgKind::Rebuilt { .. }
            | MsgKind::Begin { .. }
            | MsgKind::Recall { .. }
            | MsgKind::Begun
            | MsgKind::Started => self.open_message(cx, from, msg.kind),
            _ if !self.running() => {}
            MsgKind::ArmAck { .. }
            | MsgKind::Forced { .. }
            | MsgKind::Captured { .. }
            | MsgKind::Failed { .. }
            | MsgKind::Prepared { .. }
            | MsgKind::CommitAck { .. } => self.lead_message(cx, from, msg.kind),
            _ if from != cx.config.coordinator => {}
            kind => self.local_message(cx, kind),
        }
    }

    /// Handles this node's messages to itself. Each leads to at most a bounded
    /// number of others, so this ends.
    fn settle(&mut self, cx: &C) {
        while let Some(msg) = self.out.to_self.pop_front() {
            self.accept(cx, cx.me, msg);
        }
    }

    fn command(&mut self, cx: &C, command: Command) {
        match command {
            Command::Open {
                incarnation,
                replaced,
                fenced,
                fresh,
                history,
            } => {
                let lead = (cx.me == cx.config.coordinator)
                    .then(|| Lead::new(cx, incarnation, replaced, fenced, fresh, history));
                self.open(cx, incarnation, lead.map(Box::new));
            }
            Command::Available {
                source,
                version,
                node,
            } => {
                self.inventory(MsgKind::ItemCopy {
                    index: 0,
                    source,
                    version,
                    node: node.0,
                });
            }
            Command::Piece {
                source,
                version,
                level,
            } => {
                self.inventory(MsgKind::ItemPiece {
                    index: 0,
                    level,
                    source,
                    version,
                });
            }
            Command::Planned {
                source,
                version,
                ok,
            } => self.planned(cx, (source, version), ok),
            Command::Found { record } => self.log.apply(record),
            Command::Trace { incarnation } => self.inventory(MsgKind::ItemTrace {
                index: 0,
                number: incarnation,
            }),
            Command::Doubt => self.doubt(cx),
            Command::Blind => self.inventory(MsgKind::ItemBlind { index: 0 }),
            Command::InventoryDone { incarnation } => self.inventory_done(cx, incarnation),
            Command::Rebuilt {
                source,
                version,
                outcome,
            } => self.rebuilt(cx, source, version, outcome),
            Command::Want {
                at_least,
                levels,
                any,
            } => self.want(cx, at_least, levels, any),
            Command::Lost { node } => self.lose(cx, node.0),
            Command::Heard { node } => self.lost.remove(node.0),
            Command::Forget { source, version } => {
                self.log.forget(source, version);
                if source == self.ballot.incarnation {
                    self.forgotten = self.forgotten.max(Some(version));
                }
            }
            other => self.local_command(cx, other),
        }
    }

    fn lose(&mut self, cx: &C, node: Peer) {
        if node >= cx.config.nodes || !self.lost.insert(node) {
            return;
        }
        let culprit = Some(NodeId(node));
        match self.mode {
            // A coordinator that comes back asks on: the node may be heard again.
            Mode::Idle | Mode::Rejoining(_) => {}
            Mode::Opening(_) => self.open_failed(Why::NodeLost, culprit),
            Mode::Running => {
                self.lead_lost(cx, node);
                if node == cx.config.coordinator {
                    self.local_coordinator_lost(cx);
                }
            }
        }
    }

    fn done(&mut self, cx: &C, pending: Pending, result: Result<(), Fault>) {
        if result.is_ok() {
            self.log.apply(pending.record);
        }
        if pending.ballot.incarnation != self.ballot.incarnation {
            return;
        }
        let ok = result.is_ok();
        match pending.then {
            Then::Nothing => {}
            Then::Opened => self.promised(cx, ok),
            Then::Rejoin => self.rejoin_promised(cx, ok),
            Then::Serve { from } if ok => self.serve(cx, from, 0),
            Then::Serve { .. } => {}
            Then::Prepared { version, level } => self.prepared_done(cx, version, level, ok),
            Then::Decided { version, level } => {
                // A decision of an older term of this coordinator cannot arrive
                // here: terms change only by a restart, which forgets `pending`.
                self.decided(cx, version, level, ok);
            }
            Then::Committed { version, level } => self.committed_done(cx, version, level, ok),
            // Said without its record too: the node can keep nothing then, and nothing that
            // it has can be restored after its agent's end.
            Then::GivenUp {
                version,
                level,
                why,
                culprit,
            } => self.out.event(Event::Aborted {
                version,
                level,
                why,
                culprit,
            }),
            Then::Confirmed { version, level } => self.confirmed(cx, version, level, ok),
            Then::Forward { index } => self.forwarded(cx, index, ok),
            Then::Recorded => self.recorded(cx, ok),
        }
    }
}

impl Machine for Commit {
    type Config = Config;
    type Msg = Msg;
    type Command = Command;
    type Record = Record;
    type Event = Event;

    fn on_message(&mut self, cx: &Cx<Self>, from: Peer, msg: Msg, _body: Option<Body>) {
        if from < cx.config.nodes {
            self.accept(cx, from, msg);
            self.settle(cx);
        }
    }

    fn on_command(&mut self, cx: &Cx<Self>, command: Command) {
        self.command(cx, command);
        self.settle(cx);
    }

    fn on_timeout(&mut self, cx: &Cx<Self>) {
        match self.mode {
            Mode::Idle => {}
            Mode::Opening(_) => self.opening_timeout(cx),
            Mode::Rejoining(_) => self.rejoin_timeout(cx),
            Mode::Running => {
                self.lead_timeout(cx);
                self.local_timeout(cx);
            }
        }
        self.settle(cx);
    }

    fn on_done(&mut self, cx: &Cx<Self>, op: Op, result: Result<(), Fault>) {
        if let Some(pending) = self.pending.remove(&op) {
            self.done(cx, pending, result);
            self.settle(cx);
        }
    }

    fn poll(&mut self, cx: &Cx<Self>, ready: Ready) -> Option<Output<Self>> {
        self.out.pull(cx.me, ready)
    }

    fn deadline(&self, _cx: &Cx<Self>) -> Option<Time> {
        match &self.mode {
            Mode::Idle => None,
            Mode::Opening(opening) => Some(opening.deadline()),
            Mode::Rejoining(lead) => Some(lead.deadline()),
            Mode::Running => self
                .lead_deadline()
                .into_iter()
                .chain(self.local_deadline())
                .min(),
        }
    }

    fn recover(cx: &Cx<Self>, log: impl Iterator<Item = Record>) -> Self {
        let mut commit = Commit::new(cx);
        for record in log {
            commit.log.apply(record);
        }
        commit.resume(cx);
        commit
    }
}

/// How many failure domains must hold COMMIT before it is stable: f + 1, at most
/// as many as there are. A shared level's record lies in the shared storage
/// itself, which is the domain that survives all nodes: the coordinator's own
/// completion is enough.
fn domains_needed(config: &Config, level: Level) -> u32 {
    match level {
        // However many nodes are lost.
        level if level.store() == StoreKind::Shared => 1,
        level => {
            let all = domains(config, &NodeSet::of(config.nodes, 0..config.nodes));
            (level.domains_tolerated(config.nodes) + 1).min(all)
        }
    }
}

/// How many failure domains the nodes belong to.
fn domains(config: &Config, nodes: &NodeSet) -> u32 {
    if config.domains.is_empty() {
        return nodes.len();
    }
    let domain = |node: u32| config.domains.get(node as usize).copied().unwrap_or(node);
    let distinct: BTreeSet<u32> = nodes.iter().map(domain).collect();
    u32::try_from(distinct.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;

//! What goes in and out of the commit machine. Drivers depend on these types;
//! the reasons behind the rules are in the module [`super`] and in
//! `docs/protocols/commit.md`.

use std::collections::BTreeSet;

pub use outlive_base::Levels;
use outlive_base::{Incarnation, Level, NodeId, Time, Version};
use serde::{Deserialize, Serialize};

use super::planted::Planted;
use super::why::Why;
use crate::nodes::NodeSet;

/// Who decides: the incarnation, and the number of times its coordinator's agent
/// was started anew in it (`term`). The highest ballot wins.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash, Serialize, Deserialize,
)]
pub struct Ballot {
    /// The incarnation; 0 before the first.
    pub incarnation: Incarnation,
    /// 0 when the incarnation opens, one more at each restart of its coordinator.
    pub term: u32,
}

/// What all instances of a job share.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of nodes of the job; the members are the slots `0..nodes`.
    pub nodes: u32,
    /// The node that begins rounds and decides: one of the members, the same for the job's life.
    /// Another one could not know what the last one alone had decided.
    pub coordinator: u32,
    /// The levels in use. A round asks for a subset.
    pub levels: Levels,
    /// The failure domain of each node; empty: every node is its own.
    pub domains: Vec<u32>,
    /// Bound on arming, from [`Command::Want`] to the last [`Command::Armed`].
    pub arm_timeout: Time,
    /// Bound on capturing (from armed to the last [`Command::Captured`]) and again
    /// on every level (from all captured to the last PREPARED).
    pub commit_timeout: Time,
    /// Levels whose copies may come long after the others of their version: bounded by
    /// [`Config::background_timeout`] instead, and no reason to begin no other round.
    pub background: Levels,
    /// Bound on them. Who makes such copies says when one comes no further; this is for the case
    /// that nobody does.
    pub background_timeout: Time,
    /// Bound on each step of opening: inventory, one rebuild, records.
    pub recovery_timeout: Time,
    /// First interval at which an unanswered message is sent again; doubled at
    /// each repetition up to [`RESEND_FACTOR_MAX`] times itself.
    pub resend: Time,
    /// Versions added to the largest `called` when a round is armed again.
    pub margin: u64,
    /// A round that is armed again gets a multiple of this: 1, or the n of a policy
    /// that wants every n-th version.
    pub stride: u64,
    /// How often a round is armed again before it is given up.
    pub arm_retries_max: u32,
    /// Rounds that may be undecided or not yet stable at one time.
    pub rounds_max: u32,
    /// A planted fault, for tests of the checkers only.
    #[doc(hidden)]
    pub planted: Option<Planted>,
}

/// Largest factor by which the resend interval grows.
pub const RESEND_FACTOR_MAX: u32 = 16;
/// Most items of one node's inventory.
pub const ITEMS_MAX: u16 = 4096;

impl Default for Config {
    fn default() -> Config {
        Config {
            nodes: 1,
            coordinator: 0,
            levels: Levels::of(&[Level::MEMORY, Level::DISK, Level::PARTNER]),
            domains: Vec::new(),
            arm_timeout: Time::from_secs(10),
            commit_timeout: Time::from_secs(600),
            background: Levels::NONE,
            background_timeout: Time::from_secs(86_400),
            recovery_timeout: Time::from_secs(300),
            resend: Time::from_ms(50),
            margin: 2,
            stride: 1,
            arm_retries_max: 8,
            rounds_max: 2,
            planted: None,
        }
    }
}

/// What the driver (agent) tells the machine.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// The launcher opens an incarnation. Given to the agent of *every* node. All
    /// slots `0..nodes` are members; [`Config::coordinator`] leads. The
    /// number must be larger than any before, else [`Event::OpenFailed`] says
    /// [`Why::Stale`]; a participant (not the coordinator) that was restarted
    /// while opening may be given the same number again.
    Open {
        /// The new number, from 1.
        incarnation: Incarnation,
        /// Slots whose node was replaced by one with empty memory and storage
        /// since the last incarnation.
        replaced: NodeSet,
        /// The launcher's word that no process of an older incarnation can act
        /// any more: all were killed.
        fenced: bool,
        /// Start from the beginning, by the user's word, if committed versions
        /// exist but none can be rebuilt.
        fresh: bool,
        /// The newest incarnation in which, for all that the launcher knows, a version
        /// was committed; 0 if it knows of none.
        history: Incarnation,
    },
    /// Answer to [`Event::CollectInventory`], any number of times: this node can
    /// supply the bytes of `node` at a version, from whatever medium: its own
    /// memory or disk, as a partner, or from shared storage.
    Available {
        /// The incarnation in which the version was captured.
        source: Incarnation,
        /// The version.
        version: Version,
        /// Whose bytes these are.
        node: NodeId,
    },
    /// Answer to [`Event::CollectInventory`], any number of times: this node holds its
    /// parity of a version at a level, of which bytes of others can be made.
    Piece {
        /// The incarnation in which the version was captured.
        source: Incarnation,
        /// The version.
        version: Version,
        /// The level.
        level: Level,
    },
    /// Answer to [`Event::Plan`].
    Planned {
        /// The incarnation in which the version was captured.
        source: Incarnation,
        /// The version.
        version: Version,
        /// True if the bytes of every node can be had from what there is.
        ok: bool,
    },
    /// Answer to [`Event::CollectInventory`], any number of times: a record that
    /// was found outside this node's own log (in shared storage).
    Found {
        /// The record.
        record: Record,
    },
    /// Answer to [`Event::CollectInventory`]: what lies here shows that versions were
    /// committed, in this incarnation or before it, though no record of one can be read
    /// (marks, damaged records, containers without any record).
    Trace {
        /// The newest incarnation that it speaks of, from 1.
        incarnation: Incarnation,
    },
    /// End of the answer to [`Event::CollectInventory`].
    InventoryDone {
        /// The incarnation of the event.
        incarnation: Incarnation,
    },
    /// After a restart of the coordinator: the storage that all nodes share could not be read, so
    /// that the newest decisions there may be recorded at this node alone.
    Doubt,
    /// Answer to [`Event::CollectInventory`]: the storage that all nodes share could not be
    /// read. Versions that may lie there are not passed over for older ones: the opening fails
    /// with [`Why::Unreadable`].
    Blind,
    /// Answer to [`Event::Rebuild`].
    Rebuilt {
        /// The incarnation in which the version was captured.
        source: Incarnation,
        /// The version.
        version: Version,
        /// What came of it.
        outcome: Rebuilding,
    },
    /// The policy wants a checkpoint. Only on the coordinator.
    Want {
        /// The smallest acceptable version.
        at_least: Version,
        /// The levels wanted; those not in use are ignored.
        levels: Levels,
        /// Of any number, whatever the stride of the policy: somebody asked for it.
        any: bool,
    },
    /// The ranks capture `version` without its being armed: a forced checkpoint,
    /// collective by contract, or the first version that they offer past an armed one
    /// that they leave out. Before this node's `Captured`; here the round counts as
    /// armed, and the other nodes get [`Event::Join`].
    /// Not for a version that was called aborted here in this incarnation: the
    /// control block remembers it over a restart of the agent, this machine does not.
    Force {
        /// The version.
        version: Version,
        /// The levels wanted; the coordinator takes the first request's.
        levels: Levels,
    },
    /// Answer to [`Event::Arm`]; also given by an agent that was restarted and
    /// finds the version armed in its control blocks.
    Armed {
        /// The version.
        version: Version,
        /// True if slots are reserved, `armed` is written and fenced, and no
        /// local rank has `called >= version`.
        ok: bool,
        /// If not ok: the largest version a local rank has called, or `None` if
        /// there is no room.
        max_called: Option<Version>,
    },
    /// All local ranks have captured.
    Captured {
        /// The version.
        version: Version,
    },
    /// A local rank will not capture this version.
    CaptureFailed {
        /// The version.
        version: Version,
        /// Why.
        why: Why,
    },
    /// The local part of a level is written, read back and verified.
    Prepared {
        /// The version.
        version: Version,
        /// The level.
        level: Level,
    },
    /// The local part of a level could not be written or verified.
    LevelFailed {
        /// The version.
        version: Version,
        /// The level.
        level: Level,
        /// Why.
        why: Why,
    },
    /// The detector or launcher says that a node is dead in this incarnation: no
    /// further round can commit until it is heard again or the next incarnation opens.
    Lost {
        /// The node.
        node: NodeId,
    },
    /// A node that was called lost was heard again, and is the same: rounds are led again.
    /// What was ended because of it stays ended.
    Heard {
        /// The node.
        node: NodeId,
    },
    /// Garbage collection removed this version here, after
    /// [`Commit::may_forget`](super::Commit::may_forget): its records are gone.
    Forget {
        /// The incarnation in which the version was captured.
        source: Incarnation,
        /// The version.
        version: Version,
    },
}

/// What came of bringing a node's part of a version into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Rebuilding {
    /// All local ranks' bytes are there and verified.
    Done,
    /// No copy can be used.
    Unusable,
    /// None that can be read now, and the storage that all nodes share cannot be.
    Unreadable,
    /// None that can be had now; one lies at a node that takes part and cannot be reached.
    OutOfReach,
}

/// What the machine tells the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Reserve slots, write `armed`, fence, read `called`, answer with
    /// [`Command::Armed`].
    Arm {
        /// The version.
        version: Version,
        /// The levels to write once captured.
        levels: Levels,
    },
    /// Ranks of another node capture this version without its having been armed: the
    /// local ones should too. Answer with [`Command::CaptureFailed`] if one has passed
    /// it, else with [`Command::Captured`] in the end.
    Join {
        /// The version.
        version: Version,
        /// The levels to write once captured.
        levels: Levels,
    },
    /// Withdraw `armed`; the version is not taken. A rank that had entered it is
    /// waited for before its slot is used again.
    Disarm {
        /// The version.
        version: Version,
    },
    /// The round lives on (after this agent's restart, or because a forced version
    /// had been asked for with other levels): these are its levels.
    Resumed {
        /// The version.
        version: Version,
        /// The levels to write once captured.
        levels: Levels,
    },
    /// A [`Command::Want`] started no round (coordinator only).
    Declined {
        /// What was asked for.
        at_least: Version,
        /// Why.
        why: Why,
        /// The node that is dead, if that is why.
        culprit: Option<NodeId>,
    },
    /// A version was not armed everywhere within its bound: it is not taken, unless it is forced
    /// (coordinator only).
    Unready {
        /// The version.
        version: Version,
        /// A node that has not said that it is armed.
        culprit: Option<NodeId>,
    },
    /// All nodes have captured (coordinator only).
    AllCaptured {
        /// The version.
        version: Version,
        /// The levels that it was wanted at; some may have been given up already.
        levels: Levels,
    },
    /// COMMIT is durable on this node.
    Committed {
        /// The version.
        version: Version,
        /// The level.
        level: Level,
    },
    /// COMMIT is durable in f + 1 failure domains: `wait` may return, what it
    /// supersedes may be removed. May be repeated after a restart.
    Stable {
        /// The version.
        version: Version,
        /// The level.
        level: Level,
    },
    /// The version, or one level of it, will never commit. Implies disarming.
    Aborted {
        /// The version.
        version: Version,
        /// The level, or `None` for all of them.
        level: Option<Level>,
        /// Why.
        why: Why,
        /// The node that is missing or failed.
        culprit: Option<NodeId>,
    },
    /// This node is prepared and has not heard the decision within the bound. It
    /// will be told when the coordinator answers or the next incarnation opens;
    /// until then the slot stays in use.
    Undecided {
        /// The version.
        version: Version,
        /// The level.
        level: Level,
    },
    /// A coordinator that was started anew still waits for an answer of this node, after
    /// another `recovery_timeout`: until then no version is committed.
    RejoinLate {
        /// The open incarnation.
        incarnation: Incarnation,
        /// A node that has not answered.
        culprit: Option<NodeId>,
    },
    /// Say what this node can supply: [`Command::Available`] and
    /// [`Command::Found`], then [`Command::InventoryDone`].
    CollectInventory {
        /// The incarnation that is opening.
        incarnation: Incarnation,
    },
    /// Some nodes' bytes of this version are nowhere as they are. Say with
    /// [`Command::Planned`] whether they can be made of what there is, which
    /// [`Commit::pieces`](super::Commit::pieces) tells (coordinator only).
    Plan {
        /// The incarnation in which it was captured.
        source: Incarnation,
        /// The version.
        version: Version,
    },
    /// Bring this version of the local ranks into memory and verify it, from the
    /// first source that verifies. Replaces an earlier request.
    Rebuild {
        /// The incarnation in which it was captured.
        source: Incarnation,
        /// The version.
        version: Version,
        /// The farthest level at which it is committed.
        level: Level,
    },
    /// The incarnation's record is durable on every node: ranks may start.
    Opened {
        /// The incarnation.
        incarnation: Incarnation,
        /// The incarnation in which the restored version was captured; 0: nothing
        /// is restored, the job starts from the beginning.
        source: Incarnation,
        /// The restored version.
        version: Version,
        /// Newer committed versions that could not be rebuilt (coordinator only).
        skipped: u16,
        /// More nodes were lost than a level tolerates, and a newer version of it
        /// may have been committed without trace (coordinator only).
        uncertain: bool,
    },
    /// The incarnation did not open. The launcher tries again with a larger number.
    OpenFailed {
        /// The incarnation.
        incarnation: Incarnation,
        /// Why.
        why: Why,
        /// The node that did not answer.
        culprit: Option<NodeId>,
        /// The largest number known here: use a larger one.
        known: Incarnation,
    },
    /// After this agent's restart: it takes part again in this open incarnation.
    Rejoined {
        /// The incarnation.
        incarnation: Incarnation,
    },
}

impl Event {
    /// The version that [`Event::Opened`] restores, if any.
    pub fn restored(&self) -> Option<(Incarnation, Version)> {
        match *self {
            Event::Opened {
                source, version, ..
            } if source.0 != 0 => Some((source, version)),
            _ => None,
        }
    }
}

/// What there is of a version, while an incarnation opens.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pieces {
    /// The nodes whose bytes are somewhere as they are.
    pub whole: BTreeSet<NodeId>,
    /// The nodes whose parity is there, by level.
    pub parity: BTreeSet<(Level, NodeId)>,
}

/// What must survive a crash. The driver adds the long contents to `Prepared` and
/// `Commit` (containers, lengths, digests, placement); the machine needs none of
/// it. A driver reports success only when a record is durable, and failure only
/// when it is certain that no replay will find it; else it must stop itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Record {
    /// Nothing of a lower ballot is accepted any more.
    Promise {
        /// The ballot.
        ballot: Ballot,
    },
    /// The local part is verified.
    Prepared {
        /// The incarnation of the capture.
        incarnation: Incarnation,
        /// The version.
        version: Version,
        /// The level.
        level: Level,
    },
    /// The version is committed at the level.
    Commit {
        /// The incarnation of the capture.
        incarnation: Incarnation,
        /// The version.
        version: Version,
        /// The level.
        level: Level,
        /// Who decided, or replicated the decision again.
        ballot: Ballot,
    },
    /// The version will never be committed at the level.
    Abort {
        /// The incarnation of the capture.
        incarnation: Incarnation,
        /// The version.
        version: Version,
        /// The level, or `None` for all of them.
        level: Option<Level>,
    },
    /// An incarnation is open. Versions of older incarnations that are not on its
    /// line (`source` up to `version`, and so on backwards) are void. With a shared
    /// level the coordinator's driver also writes it to shared storage.
    Incarnation {
        /// The number.
        number: Incarnation,
        /// The incarnation in which the restored version was captured, 0 for none.
        source: Incarnation,
        /// The restored version.
        version: Version,
    },
}

/// A message: who speaks in which ballot, and what. 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Msg {
    /// The sender's ballot; a stale one is ignored.
    pub ballot: Ballot,
    /// What is said.
    pub kind: MsgKind,
}

/// What a message says. C: said by the coordinator, P: by a participant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields repeat the names explained above")]
pub enum MsgKind {
    /// C: arm this version.
    Arm { version: Version, levels: Levels },
    /// P: armed, or not.
    ArmAck {
        version: Version,
        ok: bool,
        max_called: Option<Called>,
    },
    /// C: all are armed, or the round is alive.
    Go { version: Version, levels: Levels },
    /// P: my ranks capture this without being asked.
    Forced { version: Version, levels: Levels },
    /// C: other nodes' ranks capture this without being asked.
    Join { version: Version, levels: Levels },
    /// P: my ranks have captured.
    Captured { version: Version },
    /// P: the round or one of its levels failed here.
    Failed {
        version: Version,
        level: Option<Level>,
        why: Why,
    },
    /// P: PREPARED is durable here.
    Prepared { version: Version, level: Level },
    /// C: COMMIT.
    Commit { version: Version, level: Level },
    /// P: COMMIT is durable here.
    CommitAck { version: Version, level: Level },
    /// C: COMMIT is durable in f + 1 failure domains.
    Stable { version: Version, level: Level },
    /// C: will never commit.
    Abort {
        version: Version,
        level: Option<Level>,
        why: Why,
        culprit: u32,
    },
    /// C: send item `index` of your inventory (a new ballot: promise it first).
    Fetch { index: u16 },
    /// P: a copy of `node`'s bytes is here. Items of an inventory carry `index`.
    ItemCopy {
        index: u16,
        source: Incarnation,
        version: Version,
        node: u32,
    },
    /// P: the sender's parity at a level is here.
    ItemPiece {
        index: u16,
        level: Level,
        source: Incarnation,
        version: Version,
    },
    /// Either way: a COMMIT record.
    ItemCommit {
        index: u16,
        level: Level,
        source: Incarnation,
        version: Version,
        by: Ballot,
    },
    /// P: a PREPARED record without a decision.
    ItemPrepared {
        index: u16,
        level: Level,
        source: Incarnation,
        version: Version,
    },
    /// P: an incarnation's record.
    ItemIncarnation {
        index: u16,
        number: Incarnation,
        source: Incarnation,
        version: Version,
    },
    /// P: versions were committed, up to this incarnation, whose records cannot be read.
    ItemTrace { index: u16, number: Incarnation },
    /// P: the storage that all nodes share could not be read here.
    ItemBlind { index: u16 },
    /// P: the inventory has `index` items, of this digest.
    ItemEnd { index: u16, digest: u64 },
    /// C: rebuild this version.
    Rebuild {
        source: Incarnation,
        version: Version,
        level: Level,
    },
    /// P: rebuilt, or not.
    Rebuilt {
        source: Incarnation,
        version: Version,
        outcome: Rebuilding,
    },
    /// C: record the incarnation, after the `commits` decisions that roll forward.
    Begin {
        source: Incarnation,
        version: Version,
        commits: u16,
    },
    /// P: send decision `index`.
    Recall { index: u16 },
    /// P: the incarnation's record is durable here.
    Begun,
    /// C: it is durable everywhere.
    Started,
}

impl MsgKind {
    /// True for what a coordinator says of a round.
    pub(super) const fn is_of_a_round(&self) -> bool {
        matches!(
            self,
            MsgKind::Arm { .. }
                | MsgKind::Join { .. }
                | MsgKind::Go { .. }
                | MsgKind::Commit { .. }
                | MsgKind::Stable { .. }
                | MsgKind::Abort { .. }
        )
    }
}

/// The largest version called, in a message (the niche of a version is not used,
/// so that the message stays small).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Called(core::num::NonZeroU64);

impl Called {
    /// Wraps a version.
    pub const fn new(version: Version) -> Called {
        // Versions are at most u64::MAX - 2, so one more is neither 0 nor wraps.
        Called(core::num::NonZeroU64::MIN.saturating_add(version.0))
    }
    /// The version.
    pub const fn version(self) -> Version {
        Version(self.0.get() - 1)
    }
}

//! What a node needs of the world, and what the world answers.
//!
//! The same node runs over an agent's descriptors, threads and disks and over simulated ones.
//! No call of a [`Shell`] waits: what takes time is asked for with [`Ask`] and comes back as
//! [`Done`], which says to what it belongs, so that an answer to something that is over is
//! known as such.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use outlive_base::control_block::{ControlWords, Identity};
use outlive_base::ipc::ToRank;
use outlive_base::machine::Op;
use outlive_base::slab::{SlabHead, SlabId};
use outlive_base::{ContainerId, Error, Incarnation, Level, NodeId, Rank, Result, Time, Version};
use outlive_ledger::scheme::Group;
use outlive_ledger::{GcPolicy, Parity, Part, Record};
use outlive_protocols::commit;
use outlive_protocols::commit::Levels;
use serde::{Deserialize, Serialize};

use super::copies::{CopyId, Reading, Scrubbed, Transferring};
use super::prints::Print;
use crate::health::Sample;
use crate::orders::{Fault, Member, Notice, Opened, RankStacks};
use crate::refused::Refused;
use crate::traffic::Traffic;

/// Longest list of records that travels with one message.
pub const ATTACHMENTS_MAX: usize = 8;

/// What names a decision: where its version was captured, the version, the level.
pub type DecisionKey = (Incarnation, Version, Level);

/// A message between agents.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PeerMessage {
    /// Of the commit machine. `records` are the long contents that belong to it,
    /// encoded as on disk: where containers lie, their lengths and digests.
    Commit {
        /// The machine's message.
        msg: commit::Msg,
        /// Encoded [`Record`]s, at most [`ATTACHMENTS_MAX`].
        records: Vec<Arc<[u8]>>,
        /// Decisions whose contents the sender has: they need not be told to it.
        named: Vec<DecisionKey>,
        /// Decisions that belong to the message too, and whose contents the receiver has, as it
        /// said.
        left_out: Vec<DecisionKey>,
    },
    /// Contents that were left out are not here after all: nothing is to be left out until they
    /// are named again. The message is repeated, as any that is not answered.
    Lacks,
    /// Of a service, to itself on another node.
    Service {
        /// Which.
        service: u8,
        /// Its word, encoded.
        bytes: Vec<u8>,
    },
}

impl PeerMessage {
    /// The records of a message; damaged ones are left out: whoever needs them
    /// asks again or takes another copy.
    pub fn records(encoded: &[Arc<[u8]>], job_hash: u64) -> Vec<Record> {
        let sound = encoded.iter().take(ATTACHMENTS_MAX);
        sound
            .filter_map(|bytes| Record::decode(bytes, job_hash).ok())
            .collect()
    }
}

/// Staging memory of one slot, as far as a node looks at it. Who captures fills it.
pub trait Staging {
    /// Bytes of the whole slab, head page included.
    fn capacity(&self) -> u64;
    /// The checked head.
    ///
    /// # Errors
    /// If what is there is no head that agent or library wrote.
    fn head(&self) -> Result<SlabHead>;
    /// Makes it empty and stamps whose it is from now on.
    ///
    /// # Errors
    /// If the identity is outside the job.
    fn format(&mut self, id: SlabId) -> Result<()>;
    /// A complete capture is taken over: it does not change any more.
    ///
    /// # Errors
    /// If it is not complete.
    fn seal(&mut self) -> Result<()>;
}

/// A process that is or wants to be a rank: its connection and its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Names the connection; never used twice.
    pub token: u64,
    /// The process, as the kernel knows it.
    pub pid: u32,
}

/// What tells processes of one script apart, in whichever order they come: the command
/// line and the working directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandLine {
    /// The words, as the system has them.
    pub words: Vec<u8>,
    /// The working directory.
    pub directory: Vec<u8>,
}

/// What goes to a rank beside an answer.
pub enum With<'a, S: Shell + ?Sized> {
    /// Nothing.
    Nothing,
    /// Its control block.
    Block(&'a S::Block),
    /// A slab to fill.
    Slab(&'a S::Slab),
    /// A slab to read.
    ReadOnly(&'a S::Slab),
}

/// What a node needs of the world.
pub trait Shell {
    /// A rank's control block.
    type Block: ControlWords;
    /// A slot's staging memory.
    type Slab: Staging;

    /// Tells the launcher; a lost launcher is noticed by others.
    fn tell(&mut self, notice: &Notice);
    /// Says something to a peer. What cannot be sent is lost: the machines repeat it.
    fn send(&mut self, to: NodeId, message: &PeerMessage);
    /// Where a peer lives from now on; `known` is what was known of it.
    fn meet(&mut self, member: &Member, known: Option<&Member>);
    /// Cuts this node off from all others, or no more.
    fn isolate(&mut self, on: bool);
    /// Reads the records that came with a message.
    fn read_records(&self, encoded: &[Arc<[u8]>], job_hash: u64) -> Vec<Record> {
        PeerMessage::records(encoded, job_hash)
    }
    /// What was sent and received so far, where that is counted.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    /// Answers a process, if it is there still.
    fn answer(&mut self, link: Link, sequence: u32, message: &ToRank, with: With<'_, Self>);
    /// True while the process lives and has not hung up. Both are asked of the kernel:
    /// the events that tell of them may still be under way.
    fn is_live(&self, link: Link) -> bool;
    /// The command of a process, if the system says it.
    fn command_of(&self, pid: u32) -> Option<CommandLine>;
    /// Ends a process at once.
    fn kill(&mut self, pid: u32);

    /// Makes a control block, and leaves it with the keeper.
    ///
    /// # Errors
    /// If there is no memory.
    fn make_block(&mut self, identity: Identity) -> Result<Self::Block>;
    /// Leaves word with the keeper that an incarnation is open, for an agent that is started anew: the
    /// launcher may not have heard it.
    fn leave_word(&mut self, opened: &Opened);
    /// Leaves a slot's slab with the keeper.
    fn keep_slab(&mut self, rank: Rank, slot: usize, slab: &Arc<Self::Slab>);

    /// Begins something that takes time; a [`Done`] answers where one is named.
    fn ask(&mut self, ask: Ask<Self::Slab>);
    /// Puts a fault into force that is one of the shell's: a slow or full disk, a fail point.
    /// One that is in force already, by its number, stays as it is.
    fn inject(&mut self, id: u32, fault: Fault);
    /// A place at which an injection may wait. If one does, the launcher is told, as often as it
    /// asks, and this process held; what the launcher ordered meanwhile is to happen here.
    fn point(&mut self, name: &'static str) -> Vec<(u32, Fault)>;
}

/// Where a copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// It stays where it is: the slabs are the copy.
    Memory,
    /// The node's own storage.
    Disk,
    /// The storage of this node.
    Partner(NodeId),
    /// Shared storage.
    Shared,
    /// The node's own storage, for a level whose parity is made when all members of the group
    /// are so far ([`Ask::Parity`]).
    Group(Level),
}

impl Target {
    /// The level that this copy is for.
    pub const fn level(self) -> Level {
        match self {
            Target::Memory => Level::MEMORY,
            Target::Disk => Level::DISK,
            Target::Partner(_) => Level::PARTNER,
            Target::Shared => Level::SHARED,
            Target::Group(level) => level,
        }
    }
}

/// A version of this node in slabs.
pub struct Captures<L> {
    /// The incarnation of the capture.
    pub source: Incarnation,
    /// The version.
    pub version: Version,
    /// Ranks of the whole job.
    pub ranks_total: u32,
    /// The local ranks' captures.
    pub slabs: Vec<(Rank, Arc<L>)>,
}

/// A version of this node to be written.
pub struct Flush<L> {
    /// What.
    pub captures: Captures<L>,
    /// Where to.
    pub targets: Vec<Target>,
    /// The partner's present holder; a stream with an older one is of no use.
    pub partner_epoch: u64,
    /// Bytes a second that may go to shared storage; 0: as many as can.
    pub shared_bytes_per_s: u64,
    /// With such numbers it is written nowhere.
    pub refused: Refused,
    /// This node's part, if it is known already: of an agent before this one, or of copies that
    /// are made again. If the slots hold other bytes, they have been overwritten since, and are
    /// written nowhere: they would take the place of sound copies, and count as good.
    pub known: Option<Part>,
    /// Levels that were committed already: each is not told, [`Done::Protected`] is.
    pub quiet: bool,
}

impl<L> Flush<L> {
    /// Leaves out the levels that are not in `levels`.
    pub fn keep_targets(&mut self, levels: Levels) {
        self.targets
            .retain(|target| levels.contains(target.level()));
    }
}

/// What to rebuild, and from where.
pub struct Rebuild<L> {
    /// The incarnation of the capture.
    pub source: Incarnation,
    /// The version.
    pub version: Version,
    /// The incarnation that is opening.
    pub incarnation: Incarnation,
    /// Ranks of the whole job.
    pub ranks_total: u32,
    /// The copies named by the commit records.
    pub parts: Vec<(Level, Part)>,
    /// Of levels with groups: the node's group, and the parts of its members.
    pub made_of: BTreeMap<Level, (Group, Vec<Part>)>,
    /// The slots, if they hold the version.
    pub in_memory: Option<Captures<L>>,
    /// Most bytes of new slabs.
    pub budget: u64,
    /// Slabs that make room, given back first.
    pub unused: Vec<Arc<L>>,
}

/// A parity to be made of the containers of a group.
pub struct Making {
    /// The incarnation of the capture.
    pub source: Incarnation,
    /// The version.
    pub version: Version,
    /// The group.
    pub group: Group,
    /// The members' parts, in the order of the group. Of a version that was committed they name
    /// the parities too.
    pub parts: Vec<Part>,
    /// The version was committed already: [`Done::Protected`] tells of it.
    pub quiet: bool,
}

impl Making {
    /// Of these parts, in the order of the group.
    pub fn new(
        source: Incarnation,
        version: Version,
        level: Level,
        parts: Vec<Part>,
        quiet: bool,
    ) -> Making {
        Making {
            source,
            version,
            group: Group {
                level,
                members: parts.iter().map(|part| part.node).collect(),
                lengths: parts.iter().map(|part| part.length).collect(),
            },
            parts,
            quiet,
        }
    }
}

/// A version that was rebuilt.
pub struct Rebuilt<L> {
    /// Where the bytes came from.
    pub level: Level,
    /// Bytes read or received; 0 if they were in memory.
    pub bytes: u64,
    /// New slabs; empty if the slots hold the version already.
    pub slabs: Vec<(Rank, L)>,
    /// Why copies before it could not be used.
    pub rejected: Vec<Error>,
}

/// What is to become of the user's own command on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DaemonAct {
    /// It runs, and is started if it does not.
    Run,
    /// It stands still.
    Pause,
    /// It ends.
    End,
}

/// What takes time.
pub enum Ask<L> {
    /// Make a record durable: [`Done::Persisted`], in the order of asking.
    Persist {
        /// Comes back.
        op: Op,
        /// What.
        record: Record,
        /// In shared storage too.
        shared: bool,
    },
    /// Write a version: [`Done::LevelDone`] for each level, then [`Done::FlushOver`]; or,
    /// quietly, [`Done::Protected`].
    Flush(Flush<L>),
    /// Make a parity: [`Done::ParityMade`] or [`Done::Protected`].
    Parity(Making),
    /// Bring a version into memory: [`Done::Rebuilt`].
    Rebuild(Rebuild<L>),
    /// Look what lies in storage: [`Done::Inventory`].
    Inventory {
        /// Comes back.
        incarnation: Incarnation,
    },
    /// Remove what is not needed any more: [`Done::Collected`].
    Collect {
        /// What is.
        policy: GcPolicy,
        /// In shared storage too.
        shared: bool,
    },
    /// Make a slab for a slot: [`Done::SlabMade`].
    Slab {
        /// Whose.
        rank: Rank,
        /// Which.
        slot: usize,
        /// Comes back.
        ticket: u64,
        /// How large.
        bytes: u64,
        /// Tells that it is not wanted any more.
        stop: Stop,
        /// Goes first: both together would break the budget.
        old: Option<Arc<L>>,
    },
    /// Give memory back that nobody needs.
    GiveBack(Vec<Arc<L>>),
    /// Leave a record that the job has ended, after those that wait: [`Done::Protected`].
    Finished(Record),
    /// Damage the newest container at a level: [`Done::Corrupted`].
    Corrupt {
        /// Comes back.
        id: u32,
        /// Where.
        level: Level,
    },
    /// Make the directory for a rank's own files of a version: [`Done::Routed`].
    Route {
        /// Whose.
        rank: Rank,
        /// Comes back.
        sequence: u32,
        /// In which start.
        incarnation: Incarnation,
        /// Of which version.
        version: Version,
        /// The file's name.
        name: String,
    },
    /// Remove such a directory.
    DropRouted {
        /// Whose.
        rank: Rank,
        /// In which start.
        incarnation: Incarnation,
        /// Of which version.
        version: Version,
    },
    /// Remove all such directories but those of one start.
    EndRouted {
        /// The start.
        but: Incarnation,
    },
    /// Read a copy from its storage, and mend it if it is damaged: [`Done::Scrubbed`].
    Scrub(Box<Reading>),
    /// Make this node's copy at `shared` of its container: [`Done::Transferred`].
    Transfer(Box<Transferring>),
    /// Count the bytes in node storage: [`Done::DiskUsage`].
    DiskUsage,
    /// Read the sensors of this machine: [`Done::Health`].
    Health,
    /// Something is to become of the user's own command on this node: [`Done::Daemon`] if that fails.
    Daemon(DaemonAct),
    /// Look at what these ranks are doing: [`Done::Stacks`].
    Stacks {
        /// Comes back.
        number: u32,
        /// Ranks and their processes.
        ranks: Vec<(Rank, u32)>,
        /// What is not found in this time is left out.
        within: Time,
    },
}

/// What came back.
pub enum Done<L> {
    /// What ended together.
    Together(Vec<Done<L>>),
    /// A slab was made for a slot.
    SlabMade {
        /// Whose.
        rank: Rank,
        /// Which.
        slot: usize,
        /// As it was asked with.
        ticket: u64,
        /// `None`: it was not wanted any more.
        made: Result<Option<L>>,
    },
    /// A record is durable, or not. With an error beside: the disk did not take it, the
    /// keeper holds it.
    Persisted {
        /// As it was asked with.
        op: Op,
        /// What became of it.
        result: Result<Option<Error>>,
        /// True if it is shared storage that refused it.
        by_shared: bool,
    },
    /// Nothing is recorded of a decision of which too little is known here: it is asked for
    /// again.
    Unknown {
        /// As it was asked with.
        op: Op,
    },
    /// The local part of a level is written and read back, or failed.
    LevelDone {
        /// The incarnation of the capture.
        source: Incarnation,
        /// The version.
        version: Version,
        /// The level.
        level: Level,
        /// Where it lies.
        result: Result<Part>,
    },
    /// A parity is written and read back, or failed.
    ParityMade {
        /// The incarnation of the capture.
        source: Incarnation,
        /// The version.
        version: Version,
        /// The level.
        level: Level,
        /// What it is.
        result: Result<Parity>,
    },
    /// What the regions of a version hold.
    Printed {
        /// The incarnation of the capture.
        source: Incarnation,
        /// The version.
        version: Version,
        /// Region by region.
        prints: Vec<Print>,
    },
    /// All levels of a version ended, well or not.
    FlushOver {
        /// The incarnation of the capture.
        source: Incarnation,
        /// The version.
        version: Version,
    },
    /// What lies in storage.
    Inventory {
        /// As it was asked with.
        incarnation: Incarnation,
        /// What was found.
        found: Result<Found>,
    },
    /// The local ranks' bytes of a version.
    Rebuilt {
        /// The one that was being opened.
        incarnation: Incarnation,
        /// The incarnation of the capture.
        source: Incarnation,
        /// The version.
        version: Version,
        /// The bytes. An error of code [`outlive_base::Code::Io`]: shared storage, where a copy may
        /// lie, cannot be read now.
        result: Result<Rebuilt<L>>,
    },
    /// Old containers were removed.
    Collected {
        /// Which.
        result: Result<Collected>,
    },
    /// A directory for a rank's own files was made, or not.
    Routed {
        /// Whose.
        rank: Rank,
        /// As it was asked with.
        sequence: u32,
        /// The answer.
        message: ToRank,
    },
    /// Bytes in node storage, and free bytes there.
    DiskUsage((u64, u64)),
    /// What the sensors of this machine say.
    Health(Vec<Sample>),
    /// The user's own command on this node could not be started, or has ended.
    Daemon(Error),
    /// What ranks are doing.
    Stacks {
        /// As it was asked with.
        number: u32,
        /// Those that were looked at.
        ranks: Vec<RankStacks>,
    },
    /// A copy for a lost partner was made again, or something else of which only a failure
    /// is news.
    Protected {
        /// What became of it.
        result: Result<()>,
    },
    /// A copy was read, or not.
    Scrubbed {
        /// Which.
        copy: CopyId,
        /// What came of it.
        outcome: Scrubbed,
    },
    /// This node's copy at `shared` was made of its container, or was not.
    Transferred {
        /// Whose container.
        id: ContainerId,
        /// `None`: it was not wanted any more.
        result: Result<Option<Part>>,
    },
    /// The newest container at a level was damaged, as an injection wants, or could not be.
    Corrupted {
        /// As it was asked with.
        id: u32,
        /// The level.
        level: Level,
        /// What became of it.
        result: Result<()>,
    },
    /// A copy for another node could not be kept here, or could be.
    Kept {
        /// What became of it.
        result: Result<()>,
    },
}

impl<L> Done<L> {
    /// In words, for who reads that it took too long.
    pub const fn what(&self) -> &'static str {
        match self {
            Done::Together(_) => "what ended together",
            Done::SlabMade { .. } => "new memory",
            Done::Persisted { .. } | Done::Unknown { .. } => "a record that was written",
            Done::LevelDone { .. }
            | Done::ParityMade { .. }
            | Done::Printed { .. }
            | Done::FlushOver { .. } => "a version that was written",
            Done::Inventory { .. } => "what lies in storage",
            Done::Rebuilt { .. } => "a version that was rebuilt",
            Done::Collected { .. } => "old versions that were removed",
            Done::Scrubbed { .. } => "a copy that was read before it is needed",
            Done::Transferred { .. } => "a copy for shared storage",
            Done::Routed { .. }
            | Done::DiskUsage(_)
            | Done::Health(_)
            | Done::Daemon(_)
            | Done::Stacks { .. }
            | Done::Protected { .. }
            | Done::Corrupted { .. }
            | Done::Kept { .. } => "small work",
        }
    }
}

/// What an inventory has found.
pub struct Found {
    /// Containers that can be read here: the incarnation of the capture, the version, whose.
    pub available: Vec<(Incarnation, Version, NodeId)>,
    /// This node's parities that are here.
    pub parities: Vec<(Incarnation, Version, Level)>,
    /// Records in shared storage.
    pub records: Vec<Record>,
    /// The newest incarnation of which something shows that versions were committed.
    pub newest: Option<Incarnation>,
    /// For people: what lies here, if it is no committed version.
    pub text: Option<String>,
    /// What could not be read.
    pub errors: Vec<Error>,
    /// Why shared storage could not be: what was found there is not all.
    pub unseen: Vec<Error>,
}

/// What a collection has removed.
#[derive(Default)]
pub struct Collected {
    /// Containers.
    pub removed: Vec<ContainerId>,
    /// Versions of which only records were left.
    pub forgotten: Vec<(Incarnation, Version)>,
}

/// Says to whoever makes something that it is not wanted any more: it ends soon, without.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// It is not wanted any more.
    pub fn give_up(&self) {
        self.0.store(true, Relaxed);
    }
    /// True if it is not.
    pub fn is_given_up(&self) -> bool {
        self.0.load(Relaxed)
    }
}

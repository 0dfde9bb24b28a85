//! The versions of a node and what they lie in: its ranks and their slots, rounds, the opening of
//! an incarnation, the commit machine. One turn decides of arming, capture, writing and opening at
//! once, because all of them give and take the same slots.
//!
//! What else a node does hangs on this as a [service](super::service): it hears [`News`], reads
//! what is known here, and changes it only through what is offered for that.

mod asks;
mod contents;
mod ends;
mod groups;
mod health;
mod joining;
mod leaving;
mod looking;
mod memory;
mod missing;
mod opening;
mod orders;
mod passing;
mod ranks;
mod reading;
mod rejoining;
mod rounds;
mod serving;
mod spans;
mod through;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use outlive_base::ipc::ToAgent;
use outlive_base::{Code, Entity, Error, Incarnation, Level, NodeId, Rank, Result, Time, Version};
use outlive_ledger::{Part, Record};
use outlive_protocols::commit::{self, Commit, Levels, Pieces, Why};

use super::copies::OnTheWay;
use super::machines::{Driver, Effect};
use super::shell::{CommandLine, Done, Link, Shell};
use super::{Hello, Planted, Start};
use crate::health::NodeHealth;
use crate::orders::{AgentSpec, Fault, JobConfig, Notice, Rejected, STATUS_WARNINGS_MAX};
use crate::scrubbing::ScrubStatus;
use crate::told::{Said, Told, is_of_connection};
use contents::Contents;
pub(super) use ends::abort_error;
use leaving::Leaving;
pub(super) use looking::Sight;
pub use ranks::{Ranks, SLOTS, no_memory, overwritten};
pub(super) use through::Through;

/// The named points of the way of versions at which a crash can be tested: before a record is made
/// durable or a message is sent, when a rank may capture by force and when it has captured,
/// and after a level is written and read back.
pub const CORE_POINTS: [&str; 8] = [
    "prepared:persist",
    "prepared:send",
    "commit:persist",
    "commit:send",
    "stable:send",
    "capture:slab",
    "capture:taken",
    "flush:prepared",
];

/// A version on its way through this node.
pub(super) struct Round {
    /// The levels to write; none while an agent that was started anew does not know them.
    pub levels: Levels,
    /// The levels that ended while they were not known.
    ended: Levels,
    /// Ranks that have captured.
    captured: BTreeSet<Rank>,
    /// Longest time a rank was blocked.
    blocked_ns: u64,
    /// Bytes captured.
    bytes: u64,
    /// The commit machine was told.
    pub told: bool,
    /// A flush reads the slots.
    pub flushing: bool,
    /// Levels of a short version that are written: they are prepared together, with the
    /// last of them or when this time has come, so that their records share their syncs.
    written: Vec<Level>,
    pub written_until: Option<Time>,
    /// Where its copy at `shared` comes from.
    pub through: Through,
    /// A rank's slot for it was lent to a forced version before it.
    pub made_way: bool,
    /// It will not be committed; slots go back as they become free.
    pub void: bool,
}

/// What garbage collection must know of versions.
#[derive(Default)]
pub(super) struct Line {
    /// Every (incarnation, version, level) that is stable.
    pub stable: BTreeSet<(Incarnation, Version, Level)>,
    /// The levels at which a version is or may still become committed.
    pub levels: BTreeMap<(Incarnation, Version), BTreeSet<Level>>,
}

/// The opening that is under way.
struct Opening {
    incarnation: Incarnation,
    since: Time,
    replaced: Vec<NodeId>,
    /// Where this node's bytes came from.
    level: Option<Level>,
    bytes: u64,
    rejected: Vec<Rejected>,
    /// The version whose copy in memory is being checked.
    checking: Option<(Incarnation, Version)>,
    /// The versions whose copy in memory is damaged.
    damaged: BTreeSet<(Incarnation, Version)>,
    /// What there is of the newest version that cannot be made of it.
    short: Option<(Incarnation, Version, Pieces)>,
}

/// What services hear of, each in its turn, after the step in which it happened.
pub enum News {
    /// The job is known, or has changed; these nodes are new or live elsewhere.
    Configured { joined: Vec<NodeId> },
    /// A peer has said something.
    Heard(NodeId),
    /// An incarnation is being opened: all that belonged to the one before is over.
    Opening,
    /// One is open.
    Opened {
        restored: Option<(Incarnation, Version)>,
        /// What lives elsewhere than before.
        replaced: Vec<NodeId>,
    },
    /// A process has become a rank.
    Joined,
    /// A connection of a rank is gone.
    Gone(Rank),
    /// All local ranks have captured a version.
    Captured,
    /// All ranks of the job have.
    CapturedEverywhere(Levels),
    /// The ranks leave out what was armed: this later version is taken in its place.
    Passed { armed: Version, version: Version },
    /// This node's container is written, for a level with groups.
    Sealed {
        version: Version,
        level: Level,
        part: Part,
    },
    /// This node's container is written, of which its copy at `shared` is to be made.
    OwnWritten { part: Part },
    /// A version is stable at a level.
    Stable {
        version: Version,
        level: Level,
        /// It is newer than what was stable there.
        newest: bool,
    },
    /// A version will not be taken.
    Disarmed(Version),
    /// A version has ended at a level, or everywhere, without being stable there.
    Aborted(Aborted),
    /// The commit machine begins no version now.
    Declined,
    /// Something that held a version here is over.
    Released,
    /// How the machine is has changed: see [`Core::health`].
    Health,
    /// A fault is one that a service carries out.
    Injected { id: u32, fault: Fault },
}

/// How a version came to nothing.
pub struct Aborted {
    pub version: Version,
    /// The level at which it did; `None`: everywhere.
    pub level: Option<Level>,
    pub why: Why,
    /// The node that is to blame.
    pub culprit: Option<NodeId>,
    /// Something may still come of it at another level.
    pub live: bool,
}

/// See the module.
pub struct Core<S: Shell> {
    spec: AgentSpec,
    me: NodeId,
    shell: S,
    /// The time of the input that is being taken.
    now: Time,
    /// When this agent began, or the open incarnation was opened.
    began: Time,
    hello: Hello,
    base: commit::Config,
    planted: Option<Planted>,
    restarts: Option<u32>,
    /// What lay in node storage when this agent began; taken when the job is known.
    found_records: Option<Result<Vec<Record>>>,
    kept_records: Vec<Record>,
    shared_unseen: bool,
    /// The number of the last slab that was begun.
    tickets: u64,
    config: Option<JobConfig>,
    commit: Option<Driver<Commit>>,
    commit_effects: VecDeque<Effect<Commit>>,
    /// What was done without the shell.
    done: VecDeque<Done<S::Slab>>,
    news: VecDeque<News>,
    ranks: Ranks<S>,
    strangers: BTreeMap<u64, Link>,
    /// Greetings that came before this agent, started anew, knew what is open.
    early: Vec<(u64, u32, ToAgent)>,
    contents: Contents,
    leaving: Leaving,
    /// The open incarnation; 0: none.
    incarnation: Incarnation,
    /// What it restored.
    restored: Option<(Incarnation, Version)>,
    /// Ranks of the job, as the launcher heard.
    job_ranks: Option<u32>,
    opening: Option<Opening>,
    /// What the launcher was told when the open incarnation had been opened.
    opened: Vec<Notice>,
    rounds: BTreeMap<Version, Round>,
    /// An arming that waits for room: version, levels, until when.
    deferred: Option<(Version, Levels, Time)>,
    /// The newest version that is stable at each level.
    stable: BTreeMap<Level, (Incarnation, Version)>,
    line: Line,
    /// What took how long, until the launcher is told.
    lives: spans::Lives,
    /// What was warned of, for `outlive status`.
    told: Told,
    /// What is wrong with the node's storage, until it takes a container again.
    storage_trouble: Option<Code>,
    memory_warned: bool,
    /// How the machine is, and when that was read.
    health: (Time, NodeHealth),
    /// The command of the only rank, once others took themselves for it.
    contested: Option<CommandLine>,
    /// There is memory for one slot a rank: it is a way to the other levels, no level.
    staging: bool,
    /// Ranks that wait for memory to capture into, each at most once.
    asks: Vec<asks::Waiter>,
    /// So many ranks wait for a version to be safe.
    waiting: usize,
    /// Faults that were carried out here, by number: each once.
    injected: BTreeSet<u32>,
    /// What became of damage that was ordered.
    corrupted: BTreeMap<u32, Result<()>>,
    /// The last record could not be written.
    unwritable: bool,
    /// The last record that was refused was refused by shared storage.
    refused_by_shared: bool,
    /// And it did because another run of the job has decided there since.
    superseded: bool,
    /// What was read before it was needed, for `outlive status`.
    scrub_said: ScrubStatus,
    /// Copies on their way to shared storage, likewise.
    transfers: Vec<OnTheWay>,
    /// The job ends: nothing is begun any more.
    finishing: bool,
    /// Something happened since the last look.
    stirred: bool,
    /// A slot may have become free, so that the next version can be wanted at once.
    look_now: bool,
}

impl<S: Shell> Core<S> {
    pub(super) fn new(start: Start<S>) -> Core<S> {
        let now = start.now;
        Core {
            me: start.spec.node,
            spec: start.spec,
            shell: start.shell,
            now,
            began: now,
            hello: start.hello,
            base: start.commit,
            planted: start.planted,
            restarts: start.restarts,
            found_records: Some(start.found_records),
            kept_records: start.kept_records,
            shared_unseen: start.shared_unseen,
            tickets: 0,
            config: None,
            commit: None,
            commit_effects: VecDeque::new(),
            done: VecDeque::new(),
            news: VecDeque::new(),
            ranks: start.ranks,
            strangers: BTreeMap::new(),
            early: Vec::new(),
            contents: Contents::planted(start.planted),
            leaving: Leaving::default(),
            incarnation: Incarnation(0),
            restored: None,
            job_ranks: None,
            opening: None,
            opened: Vec::new(),
            rounds: BTreeMap::new(),
            deferred: None,
            stable: BTreeMap::new(),
            line: Line::default(),
            lives: spans::Lives::default(),
            told: Told::of(start.troubles),
            storage_trouble: None,
            memory_warned: false,
            health: (
                now,
                NodeHealth::unknown("the sensors have not been read yet"),
            ),
            contested: None,
            staging: false,
            asks: Vec::new(),
            waiting: 0,
            injected: BTreeSet::new(),
            corrupted: BTreeMap::new(),
            unwritable: false,
            refused_by_shared: false,
            superseded: false,
            scrub_said: ScrubStatus::default(),
            transfers: Vec::new(),
            finishing: false,
            stirred: false,
            look_now: false,
        }
    }

    /// Number of node slots.
    pub(super) fn nodes(&self) -> u32 {
        self.config
            .as_ref()
            .map_or(1, |config| config.members.len() as u32)
    }

    fn is_planted(&self, fault: Planted) -> bool {
        self.planted == Some(fault)
    }

    /// An input is taken at this time; `stirs` if something may have to be looked at.
    pub(super) const fn at(&mut self, now: Time, stirs: bool) {
        self.now = now;
        self.stirred |= stirs;
    }

    fn news(&mut self, news: News) {
        self.news.push_back(news);
    }

    /// What services have not heard yet.
    pub(super) fn next_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// What this node lives in.
    pub(super) const fn shell(&mut self) -> &mut S {
        &mut self.shell
    }

    pub(super) fn tell(&mut self, notice: &Notice) {
        self.shell.tell(notice);
    }

    /// Something went wrong that does not stop the job (P4): remembered and reported.
    pub(super) fn warn(&mut self, error: Error) {
        // What the loss of a node would explain is told by the launcher, if nothing does.
        let other = matches!(error.entity(), Entity::Node(node) if *node != self.me.0);
        match self.told.add(None, error.clone()) {
            _ if other && is_of_connection(&error) => {
                tracing::info!(node = self.me.0, %error, "a peer's connection");
            }
            Said::Again => tracing::info!(node = self.me.0, %error, "warning, again"),
            Said::New | Said::Grown(..) => tracing::warn!(node = self.me.0, %error, "warning"),
        }
        self.tell(&Notice::Warning(error));
    }

    /// Node storage refuses something: told once, until it works again; what that costs
    /// is told version by version by the coordinator.
    fn warn_of_storage(&mut self, error: Error) {
        if self.storage_trouble.replace(error.code()) == Some(error.code()) {
            return tracing::info!(node = self.me.0, %error, "storage, again");
        }
        self.warn(error);
    }

    /// What the status says of warnings: each kind with its count, the newest ones.
    fn warnings(&self) -> Vec<Error> {
        let entries = self.told.entries();
        let skipped = entries.len().saturating_sub(STATUS_WARNINGS_MAX);
        entries[skipped..]
            .iter()
            .map(|entry| entry.error.clone())
            .collect()
    }

    /// An open node that knows its job, and drives no machine.
    #[cfg(test)]
    pub(super) fn configure_alone(&mut self, config: JobConfig) {
        self.config = Some(config);
        self.incarnation = Incarnation(1);
    }
}

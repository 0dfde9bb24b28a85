//! The versions of a node and what they lie in: its ranks and their slots, rounds, the opening of
//! an incarnation, the commit machine. One turn decides of arming, capture, writing and opening at
//! once, because all of them give and take the same slots.
//!
//! What else a node does hangs on this as a [service](super::service): it hears [`News`], reads
//! what is known here, and changes it only through what is offered for that.

mod asks;
mod contents;
mod deferred;
mod door;
mod ends;
mod faults;
mod found;
mod groups;
mod joining;
mod leaving;
mod looking;
mod memory;
mod missing;
mod open;
mod opening;
mod orders;
mod partners;
mod passing;
mod ranks;
mod reading;
mod recording;
mod rejoining;
mod rounds;
mod serving;
mod shown;
mod spans;
mod through;
mod trouble;
mod turn;

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::{Incarnation, Level, NodeId, Rank, Time, Version};
use outlive_ledger::Part;
use outlive_protocols::commit::{self, Commit, Levels, Pieces, Why};

use super::machines::Driver;
use super::shell::Shell;
use super::{Hello, Planted, Start};
use crate::orders::{AgentSpec, Fault, JobConfig, Notice, Opened, Rejected};
use asks::Asks;
use contents::Contents;
use deferred::Deferred;
use door::Door;
pub(super) use ends::abort_error;
use faults::Faults;
use found::Found;
use leaving::Leaving;
pub(super) use looking::Sight;
use memory::Supply;
use open::Open;
pub use ranks::{Ranks, SLOTS, no_memory, overwritten};
use recording::Recording;
use shown::Shown;
pub(super) use through::Through;
use trouble::Trouble;
use turn::Turn;

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
    /// Levels that ended, or of which that was said while they were not known.
    ended: Levels,
    /// Levels to write after what is being written.
    more: Levels,
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
    /// What the commit machine was told to be prepared.
    prepared: Levels,
    /// A rank has captured it because its program forces it, armed or not.
    forced: bool,
    /// Where its copy at `shared` comes from.
    pub through: Through,
    /// Found captured by an agent that was started anew, by a rank that forces a later one by now: whether this one was
    /// forced, and goes further than its levels say, is known when one of them is stable.
    pub unsure: bool,
    /// A rank's slot for it was lent to a forced version before it.
    pub made_way: bool,
    /// Others have begun the version again, which came to nothing here and is still being written.
    pub again: Option<Levels>,
    /// It will not be committed; slots go back as they become free.
    pub void: bool,
}

/// What is stable, and what may become so: what garbage collection must know of versions.
#[derive(Default)]
pub(super) struct Line {
    /// The newest version that is stable at each level.
    pub newest: BTreeMap<Level, (Incarnation, Version)>,
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
    /// A slot for service work begins or ends: see [`Core::may_serve`].
    Serving,
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

/// See the module. Each part keeps its own fields to itself.
pub struct Core<S: Shell> {
    spec: AgentSpec,
    me: NodeId,
    shell: S,
    /// The time of the input that is being taken.
    now: Time,
    hello: Hello,
    base: commit::Config,
    planted: Option<Planted>,
    restarts: Option<u32>,
    config: Option<JobConfig>,
    commit: Option<Driver<Commit>>,
    found: Found,
    turn: Turn<S::Slab>,
    door: Door,
    ranks: Ranks<S>,
    asks: Asks,
    supply: Supply,
    contents: Contents,
    leaving: Leaving,
    open: Open,
    opening: Option<Opening>,
    rounds: BTreeMap<Version, Round>,
    deferred: Deferred,
    line: Line,
    /// The version withdrawn last because a rank elsewhere had passed it, and its levels: ranks here
    /// that capture a later one in its place begin that, as they do where it still is armed.
    passed: Option<(Version, Levels)>,
    /// What took how long, until the launcher is told.
    lives: spans::Lives,
    shown: Shown,
    trouble: Trouble,
    recording: Recording,
    faults: Faults,
    /// The job ends: nothing is begun any more.
    finishing: bool,
    /// What the agent before this one told the launcher of the incarnation that it opened.
    before: Option<Opened>,
}

impl<S: Shell> Core<S> {
    pub(super) fn new(start: Start<S>) -> Core<S> {
        let now = start.now;
        let (records, kept) = (start.found_records, start.kept_records);
        Core {
            me: start.spec.node,
            spec: start.spec,
            shell: start.shell,
            now,
            hello: start.hello,
            base: start.commit,
            planted: start.planted,
            restarts: start.restarts,
            config: None,
            commit: None,
            found: Found::new(records, kept, start.shared_unseen),
            turn: Turn::default(),
            door: Door::default(),
            ranks: start.ranks,
            asks: Asks::default(),
            supply: Supply::default(),
            contents: Contents::planted(start.planted),
            leaving: Leaving::default(),
            open: Open::none(now),
            opening: None,
            rounds: BTreeMap::new(),
            deferred: Deferred::default(),
            line: Line::default(),
            passed: None,
            lives: spans::Lives::default(),
            shown: Shown::new(start.troubles, now),
            trouble: Trouble::default(),
            recording: Recording::default(),
            faults: Faults::default(),
            finishing: false,
            before: start.opened,
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
        self.turn.stir(stirs);
    }

    fn news(&mut self, news: News) {
        self.turn.tell(news);
    }

    /// What services have not heard yet.
    pub(super) fn next_news(&mut self) -> Option<News> {
        self.turn.next_news()
    }

    /// What this node lives in.
    pub(super) const fn shell(&mut self) -> &mut S {
        &mut self.shell
    }

    pub(super) fn tell(&mut self, notice: &Notice) {
        self.shell.tell(notice);
    }

    /// An open node that knows its job, and drives no machine.
    #[cfg(test)]
    pub(super) fn configure_alone(&mut self, config: JobConfig) {
        self.config = Some(config);
        self.open.take_up(Incarnation(1), None);
    }
}

//! The node of a job: what an agent decides. Its ranks and their slots, the rounds of
//! checkpoints, openings, waits, what may be removed, and the machines of
//! `outlive-protocols` that it drives.
//!
//! Pure: the clock comes with each input ([`Node::on`]), shared memory and everything that
//! takes time are the [`Shell`]'s. An agent runs it over descriptors, threads and disks, the
//! simulator over its own.
//!
//! Invariants: the commit machine hears of a level only after its bytes were read
//! back; ranks wait for a node only in requests that they chose to make, each bounded on
//! their side; no step takes long.

mod asks;
mod contents;
mod ends;
mod joining;
mod looks;
mod machines;
mod memory;
mod missing;
mod opening;
mod orders;
mod parity;
mod passing;
pub mod plain;
mod planted;
mod policy;
mod ranks;
mod rounds;
mod serving;
pub mod shell;
#[cfg(test)]
mod still;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use outlive_base::control_block::ControlWords;
use outlive_base::ipc::ToAgent;
use outlive_base::{
    Code, Entity, Error, Incarnation, Level, NodeId, Rank, Result, Survives, Time, Version,
};
use outlive_ledger::Record;
use outlive_protocols::commit::{self, Commit, Levels, Pieces};
use outlive_protocols::detector::Detector;

use crate::orders::{
    AgentSpec, JobConfig, NodeStatus, Notice, Order, Rejected, STATUS_WARNINGS_MAX,
};
use crate::told::{Said, Told, is_of_connection};
use contents::Contents;
use machines::{Driver, Effect};
pub use planted::Planted;
pub use ranks::{Ranks, SLOTS, no_memory, overwritten};
use shell::{CommandLine, Done, Link, PeerMessage, Shell};

/// A version of a node that is so short is written by one thread, one copy after the
/// other: each is over before another thread has begun. Shared storage has a thread of
/// its own all the same, for it may hang.
pub const SHORT_BYTES: u64 = 8 << 20;
/// Longest time a rank is held at an injection's version, and a process at a fail point.
pub const HOLD_MAX: Time = Time::from_secs(10);

/// A version on its way through this node.
struct Round {
    /// The levels to write; none while an agent that was started anew does not know them.
    pub levels: Levels,
    /// The levels that ended while they were not known.
    pub ended: Levels,
    /// Ranks that have captured.
    pub captured: BTreeSet<Rank>,
    /// Longest time a rank was blocked.
    pub blocked_ns: u64,
    /// Bytes captured.
    pub bytes: u64,
    /// The commit machine was told.
    pub told: bool,
    /// A flush reads the slots.
    pub flushing: bool,
    /// Levels of a short version that are written: they are prepared together, with the
    /// last of them or when this time has come, so that their records share their syncs.
    pub written: Vec<Level>,
    pub written_until: Option<Time>,
    /// It will not be committed; slots go back as they become free.
    pub void: bool,
}

/// What garbage collection must know of versions.
#[derive(Default)]
struct Line {
    /// Every (incarnation, version, level) that is stable.
    pub stable: BTreeSet<(Incarnation, Version, Level)>,
    /// The levels at which a version is or may still become committed.
    pub levels: BTreeMap<(Incarnation, Version), BTreeSet<Level>>,
}

/// A rank's `wait` that cannot be answered yet.
struct Waiting {
    pub rank: Rank,
    pub sequence: u32,
    pub version: Version,
    pub survives: Survives,
    pub until: Time,
}

/// An injection that waits for a version, and the ranks held at it.
struct AtVersion {
    pub id: u32,
    pub rank: Option<Rank>,
    pub version: Version,
    pub told: bool,
    pub held: Vec<(Rank, u32)>,
}

/// The opening that is under way.
struct Opening {
    pub incarnation: Incarnation,
    pub since: Time,
    pub replaced: Vec<NodeId>,
    /// Where this node's bytes came from.
    pub level: Option<Level>,
    pub bytes: u64,
    pub rejected: Vec<Rejected>,
    /// The version whose copy in memory is being checked.
    pub checking: Option<(Incarnation, Version)>,
    /// The versions whose copy in memory is damaged.
    pub damaged: BTreeSet<(Incarnation, Version)>,
    /// What there is of the newest version that cannot be made of it.
    pub short: Option<(Incarnation, Version, Pieces)>,
}

/// When the next checkpoint is wanted (coordinator only).
struct PolicyState {
    pub last: Time,
    pub wanted: Option<(Version, Time)>,
    pub not_before: Option<Time>,
    pub misses: u32,
    /// Versions in a row that came to nothing because ranks had passed them.
    pub passed: u32,
    pub rounds: u32,
    /// Versions a second, smoothed, and its last sample.
    pub rate: f64,
    pub sample: (Time, u64),
    /// Versions between the last two samples that differed.
    pub stride: u64,
    /// The next version to want is not near: how long ranks need to come near it at their
    /// rate, for ever if they do not call.
    pub far: Option<Time>,
    /// The launcher asks for one, at these levels, if any are named.
    pub asked: Option<Levels>,
}

impl PolicyState {
    const fn new(now: Time) -> PolicyState {
        PolicyState {
            last: now,
            wanted: None,
            not_before: None,
            misses: 0,
            passed: 0,
            rounds: 0,
            rate: 0.0,
            sample: (now, 0),
            stride: 0,
            far: None,
            asked: None,
        }
    }
}

/// Who a node is, and what an agent before this one has left.
pub struct Start<S: Shell> {
    /// Who it is.
    pub spec: AgentSpec,
    /// What it lives in.
    pub shell: S,
    /// The time now.
    pub now: Time,
    /// Ranks and slots that were adopted from the keeper.
    pub ranks: Ranks<S>,
    /// What could not be.
    pub troubles: Vec<Error>,
    /// What lies in node storage.
    pub found_records: Result<Vec<Record>>,
    /// What an agent before this one left with the keeper instead of on disk.
    pub kept_records: Vec<Record>,
    /// How often the agent was started again; `None` without a keeper.
    pub restarts: Option<u32>,
    /// Bytes in node storage, and free bytes there.
    pub disk_usage: (u64, u64),
    /// What the launcher is told first, but for the ranks that are connected.
    pub hello: Hello,
    /// The commit machine's configuration, but for what the job's says.
    pub commit: commit::Config,
    /// A fault, in tests.
    pub planted: Option<Planted>,
}

/// Where this agent is.
#[derive(Clone, Debug)]
pub struct Hello {
    /// Where it listens.
    pub address: core::net::SocketAddr,
    /// Its process.
    pub pid: u32,
    /// The keeper's process.
    pub keeper_pid: u32,
}

/// What happens to a node.
pub enum Input<L> {
    /// The launcher orders something.
    Order(Order),
    /// A peer says something.
    Peer {
        /// Who.
        from: NodeId,
        /// What.
        message: PeerMessage,
    },
    /// There is a new connection with the launcher or a peer.
    Up(NodeId),
    /// A process has connected.
    Joined(Link),
    /// A process says something.
    Said {
        /// Its connection.
        token: u64,
        /// Comes back with the answer.
        sequence: u32,
        /// What.
        message: ToAgent,
    },
    /// A connection of a process is closed, or the process has ended.
    Gone {
        /// The connection.
        token: u64,
        /// True if the process has ended; false if only the connection was closed.
        exited: bool,
    },
    /// Something that was asked for is done.
    Done(Done<L>),
    /// Something went wrong around this node that people should know.
    Trouble(Error),
}

impl<L> Input<L> {
    /// In words, for who reads that it took too long.
    pub const fn what(&self) -> &'static str {
        match self {
            Input::Order(_) => "an order of the launcher",
            Input::Peer { .. } | Input::Up(_) | Input::Trouble(_) => "what came over the network",
            Input::Joined(_) | Input::Said { .. } | Input::Gone { .. } => "what a rank said",
            Input::Done(done) => done.what(),
        }
    }
}

/// Everything a node knows.
pub struct Node<S: Shell> {
    spec: AgentSpec,
    me: NodeId,
    shell: S,
    /// The time of the input that is being taken.
    now: Time,
    hello: Hello,
    base: commit::Config,
    planted: Option<Planted>,
    restarts: Option<u32>,
    /// What lay in node storage when this agent began; taken when the job is known.
    found_records: Option<Result<Vec<Record>>>,
    kept_records: Vec<Record>,
    /// The number of the last slab that was begun.
    tickets: u64,
    config: Option<JobConfig>,
    commit: Option<Driver<Commit>>,
    detector: Option<Driver<Detector>>,
    commit_effects: VecDeque<Effect<Commit>>,
    detector_effects: VecDeque<Effect<Detector>>,
    /// What was done without the shell.
    done: VecDeque<Done<S::Slab>>,
    ranks: Ranks<S>,
    strangers: BTreeMap<u64, Link>,
    /// Greetings that came before this agent, started anew, knew what is open.
    early: Vec<(u64, u32, ToAgent)>,
    contents: Contents,
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
    gathering: parity::Gathering,
    line: Line,
    waits: Vec<Waiting>,
    injections: Vec<AtVersion>,
    policy: PolicyState,
    /// What was warned of, for `outlive status`.
    told: Told,
    /// What is wrong with the node's storage, until it takes a container again.
    storage_trouble: Option<Code>,
    memory_warned: bool,
    /// The command of the only rank, once others took themselves for it.
    contested: Option<CommandLine>,
    /// There is memory for one slot a rank: it is a way to the other levels, no level.
    staging: bool,
    /// Ranks that wait for memory to capture into, each at most once.
    asks: Vec<asks::Waiter>,
    collecting: bool,
    /// What a collection has found that ended while an incarnation was opening.
    collected: Option<Result<shell::Collected>>,
    /// When the bytes in node storage were last asked for, and what was found.
    disk_usage: (Time, (u64, u64)),
    /// A version became stable: what it replaces is removed when all its levels are
    /// decided, or some time after this.
    collect_due: Option<(Version, Time)>,
    /// The last record could not be written.
    unwritable: bool,
    isolated_until: Option<Time>,
    finishing: Option<Time>,
    /// The launcher knows that nothing is to be waited for here.
    finished: bool,
    over: bool,
    /// Something happened since the last look.
    stirred: bool,
    /// A slot may have become free, so that the next version can be wanted at once.
    look_now: bool,
    /// When it looks around next.
    look_at: Time,
    /// What the last look saw, and how many in a row saw the same.
    looks: (policy::Sight, u32),
}

impl<S: Shell> Node<S> {
    /// A node that knows nothing of its job yet. It tells the launcher that it is there.
    pub fn new(start: Start<S>) -> Node<S> {
        let now = start.now;
        let mut node = Node {
            me: start.spec.node,
            spec: start.spec,
            shell: start.shell,
            now,
            hello: start.hello,
            base: start.commit,
            planted: start.planted,
            restarts: start.restarts,
            found_records: Some(start.found_records),
            kept_records: start.kept_records,
            tickets: 0,
            config: None,
            commit: None,
            detector: None,
            commit_effects: VecDeque::new(),
            detector_effects: VecDeque::new(),
            done: VecDeque::new(),
            ranks: start.ranks,
            strangers: BTreeMap::new(),
            early: Vec::new(),
            contents: Contents::default(),
            incarnation: Incarnation(0),
            restored: None,
            job_ranks: None,
            opening: None,
            opened: Vec::new(),
            rounds: BTreeMap::new(),
            deferred: None,
            stable: BTreeMap::new(),
            gathering: parity::Gathering::default(),
            line: Line::default(),
            waits: Vec::new(),
            injections: Vec::new(),
            policy: PolicyState::new(now),
            told: Told::of(start.troubles),
            storage_trouble: None,
            memory_warned: false,
            contested: None,
            staging: false,
            asks: Vec::new(),
            collecting: false,
            collected: None,
            disk_usage: (now, start.disk_usage),
            collect_due: None,
            unwritable: false,
            isolated_until: None,
            finishing: None,
            finished: false,
            over: false,
            stirred: false,
            look_now: false,
            look_at: now + looks::TICK,
            looks: (policy::Sight::default(), 0),
        };
        node.say_hello();
        node
    }

    /// Takes an input at `now`, which never goes back.
    pub fn on(&mut self, now: Time, input: Input<S::Slab>) {
        self.now = now;
        self.stirred |= match &input {
            // The launcher's regular question is nothing new.
            Input::Order(order) => !matches!(order, Order::Status),
            Input::Joined(_) | Input::Said { .. } | Input::Gone { .. } | Input::Done(_) => true,
            Input::Peer { .. } | Input::Up(_) | Input::Trouble(_) => false,
        };
        match input {
            Input::Order(order) => self.on_order(order),
            Input::Peer { from, message } => self.on_peer_message(from, message),
            Input::Up(from) => self.on_peer_up(from),
            Input::Joined(link) => drop(self.strangers.insert(link.token, link)),
            Input::Said {
                token,
                sequence,
                message,
            } => self.on_rank_message(token, sequence, message),
            Input::Gone { token, exited } => self.on_rank_gone(token, exited),
            Input::Done(done) => self.on_done(done),
            Input::Trouble(error) => self.warn(error),
        }
        self.carry_out();
    }

    /// True when nobody is left to serve.
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// How often heartbeats are due.
    pub fn heartbeat(&self) -> Time {
        let bounds = self.config.as_ref().map(|config| config.bounds);
        Time::from_ms(bounds.unwrap_or_default().heartbeat_ms)
    }

    /// What this node lives in.
    pub const fn shell(&mut self) -> &mut S {
        &mut self.shell
    }

    /// Number of node slots.
    fn nodes(&self) -> u32 {
        self.config
            .as_ref()
            .map_or(1, |config| config.members.len() as u32)
    }

    fn tell(&mut self, notice: &Notice) {
        self.shell.tell(notice);
    }

    /// Something went wrong that does not stop the job (P4): remembered and reported.
    fn warn(&mut self, error: Error) {
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

    /// A snapshot for `outlive status`.
    fn status(&mut self) -> NodeStatus {
        let ranks = self.ranks.iter().filter_map(|entry| {
            let link = entry.link.as_ref()?;
            let called = entry
                .block()
                .and_then(|block| block.called().checked_sub(1));
            Some((entry.rank, link.pid, called.map(Version)))
        });
        NodeStatus {
            incarnation: self.incarnation.0,
            ranks: ranks.collect(),
            stable: self
                .stable
                .iter()
                .map(|(level, at)| (*level, at.1))
                .collect(),
            memory: (self.ranks.memory(), self.spec.memory_bytes),
            disk: self.disk_usage(),
            agent_restarts: self.restarts.unwrap_or(0),
            warnings: self.warnings(),
        }
    }
}

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

mod collection;
pub mod contents;
pub mod copies;
mod core;
mod ending;
mod freshness;
mod health;
mod injection;
mod looks;
mod machines;
mod parity;
pub mod plain;
mod planted;
mod policy;
pub mod prints;
mod registry;
mod room;
mod scrub;
mod service;
pub mod shell;
mod silence;
mod slots;
mod stacks;
mod status;
#[cfg(test)]
mod still;
mod transfer;
mod waits;

use outlive_base::ipc::ToAgent;
use outlive_base::{Error, NodeId, Result, Time};
use outlive_ledger::Record;
use outlive_protocols::commit;

use self::core::{Core, Sight};
use crate::orders::{AgentSpec, Opened, Order};
use registry::Services;
use shell::{Done, Link, PeerMessage, Shell};

pub use self::core::{Ranks, SLOTS, no_memory, overwritten};
pub use planted::Planted;
pub use registry::fail_points;
pub(crate) use silence::word_of_silence;

/// A version of a node that is so short is written by one thread, one copy after the
/// other: each is over before another thread has begun. Shared storage has a thread of
/// its own all the same, for it may hang.
pub const SHORT_BYTES: u64 = 8 << 20;
/// Longest time a rank is held at an injection's version, and a process at a fail point.
pub const HOLD_MAX: Time = Time::from_secs(10);

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
    /// The coordinator's: what the agent before this one told the launcher of the incarnation that it
    /// opened, in the keeper's life.
    pub opened: Option<Opened>,
    /// The coordinator's: shared storage could not be read, so that its newest decisions may be
    /// recorded at this node alone.
    pub shared_unseen: bool,
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
    pub address: ::core::net::SocketAddr,
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

/// See the module.
pub struct Node<S: Shell> {
    core: Core<S>,
    services: Services,
    /// When it looks around next.
    look_at: Time,
    /// What the last look saw, and how many in a row saw the same.
    looks: (Sight, u32),
}

impl<S: Shell> Node<S> {
    /// A node that knows nothing of its job yet. It tells the launcher that it is there.
    pub fn new(start: Start<S>) -> Node<S> {
        let (now, disk_usage) = (start.now, start.disk_usage);
        let mut node = Node {
            core: Core::new(start),
            services: Services::new(now),
            look_at: now + looks::TICK,
            looks: (Sight::default(), 0),
        };
        node.on_done(Done::DiskUsage(disk_usage));
        node.core.say_hello();
        node
    }

    /// Takes an input at `now`, which never goes back.
    pub fn on(&mut self, now: Time, input: Input<S::Slab>) {
        let stirs = match &input {
            // The launcher's regular question is nothing new.
            Input::Order(order) => !matches!(order, Order::Status),
            // Nor is how the machine is, or the user's own work, to those who take versions.
            Input::Done(Done::Health(_) | Done::Daemon(_)) => false,
            Input::Joined(_) | Input::Said { .. } | Input::Gone { .. } | Input::Done(_) => true,
            Input::Peer { .. } | Input::Up(_) | Input::Trouble(_) => false,
        };
        self.core.at(now, stirs);
        match input {
            Input::Order(order) => {
                if let Some(order) = self.services.on_order(&mut self.core, order) {
                    self.core.on_order(order);
                }
            }
            Input::Peer { from, message } => match message {
                PeerMessage::Commit {
                    msg,
                    records,
                    named,
                    left_out,
                } => {
                    let keys = (&named[..], &left_out[..]);
                    self.core.on_commit_message(from, msg, &records, keys);
                }
                PeerMessage::Lacks => self.core.on_lacks(from),
                PeerMessage::Service { service, bytes } => {
                    let said = (service, &bytes[..]);
                    self.services.on_word(&mut self.core, from, said);
                }
            },
            Input::Up(from) => self.core.on_up(from),
            Input::Joined(link) => self.core.on_stranger(link),
            Input::Said {
                token,
                sequence,
                message,
            } => self.on_said(token, sequence, message),
            Input::Gone { token, exited } => self.core.on_rank_gone(token, exited),
            Input::Done(done) => self.on_done(done),
            Input::Trouble(error) => self.core.warn(error),
        }
        self.carry_out();
    }

    fn on_said(&mut self, token: u64, sequence: u32, message: ToAgent) {
        let rest = match self.core.rank_of(token) {
            Some(rank) => {
                let from = (rank, sequence);
                self.services.on_rank(&mut self.core, from, message)
            }
            None => Some(message),
        };
        if let Some(message) = rest {
            self.core.on_rank_message(token, sequence, message);
        }
    }

    fn on_done(&mut self, done: Done<S::Slab>) {
        if let Done::Together(all) = done {
            for done in all {
                self.on_done(done);
                // As if each had come by itself.
                self.carry_out();
            }
        } else if let Some(done) = self.services.on_done(&mut self.core, done) {
            self.core.on_done(done);
        }
    }

    /// Lets services hear what has happened, until that makes no news.
    fn deliver(&mut self) {
        while let Some(news) = self.core.next_news() {
            self.services.on_news(&mut self.core, &news);
        }
    }

    /// Carries out what is wanted, in order, until nothing is.
    fn carry_out(&mut self) {
        self.deliver();
        while let Some(done) = self.core.next() {
            if let Some(done) = done {
                self.on_done(done);
            }
            self.deliver();
        }
    }

    /// Ends every connected rank.
    pub fn kill_ranks(&mut self) {
        self.core.kill_ranks();
    }

    /// True when nobody is left to serve.
    pub const fn is_over(&self) -> bool {
        self.services.ending.is_over()
    }

    /// How often heartbeats are due.
    pub fn heartbeat(&self) -> Time {
        let bounds = self.core.config().map(|config| config.bounds);
        Time::from_ms(bounds.unwrap_or_default().heartbeat_ms)
    }

    /// What this node lives in.
    pub const fn shell(&mut self) -> &mut S {
        self.core.shell()
    }
}

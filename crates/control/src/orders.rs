//! What launcher and agents say to each other, and how an agent is told who it is.
//!
//! Encoded with `postcard`; at most [`MESSAGE_BYTES_MAX`] bytes each; decoded from
//! a slice, so nothing larger than the message is ever reserved (P7). The first
//! byte is [`PROTOCOL`]: another number is refused as [`Code::PeerVersion`].

use core::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use outlive_base::{
    Code, Entity, Error, Incarnation, JobName, Level, NodeId, Ports, Rank, Result, Version,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use crate::config::{Bounds, JobConfig, LevelSetting, Member, Policy};
use crate::health::{Change, NodeHealth, Settings};
use crate::scrubbing::ScrubStatus;
use crate::slots::{Offset, ServiceSettings};
use crate::traffic::Traffic;
use crate::transfers::TransferStatus;

/// Version of this protocol; both ends of a run come from the same installation.
pub const PROTOCOL: u8 = 1;
/// Longest encoded message, in bytes: a decision that names 10,000 nodes at several levels is a small
/// part of it.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Most bytes that wait for one peer.
pub const QUEUE_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;
/// Environment variable that carries an [`AgentSpec`] as JSON to keeper and agent.
pub const SPEC_VARIABLE: &str = "OUTLIVE_AGENT_SPEC";
/// The first word of the command line of keepers and agents, which reads in `ps` as
/// `outlive: agent job NAME node 2`; the second word is the subcommand.
pub const TITLE: &str = "outlive:";

/// Environment variable that tells a keeper its launcher's process id, so that the
/// launcher's death is seen even if it comes before the keeper looks.
pub const LAUNCHER_VARIABLE: &str = "OUTLIVE_LAUNCHER_PID";

/// Who an agent is and where its things are. Holds no secret.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AgentSpec {
    /// The job's name.
    pub job: JobName,
    /// First 8 bytes of a digest of job name and key: tells jobs apart on the wire.
    pub job_hash: u64,
    /// The slot that this agent serves.
    pub node: NodeId,
    /// The slot whose agent begins checkpoints and decides: the same for the job's life, and
    /// one that has ranks, for it goes by what they offer.
    pub coordinator: NodeId,
    /// Rises each time another node takes the slot.
    pub epoch: u64,
    /// Where the launcher listens.
    pub launcher: SocketAddr,
    /// Address to listen on.
    pub bind: IpAddr,
    /// Ports to listen at.
    #[serde(default)]
    pub ports: Ports,
    /// File of the job's key.
    pub key_file: PathBuf,
    /// Storage of this node: `containers/`, `partner/`, `records/`, `files/`.
    pub node_dir: PathBuf,
    /// `STORE/JOB`, which all nodes share.
    pub job_dir: PathBuf,
    /// Where the level shared lies, if not in that directory: `s3://BUCKET/PREFIX`.
    #[serde(default)]
    pub object_store: Option<String>,
    /// Where the memory server of the job is, if it has one: `HOST:PORT`.
    #[serde(default)]
    pub memory_server: Option<String>,
    /// The Unix socket for the ranks.
    pub socket: PathBuf,
    /// Bound of the staging memory, in bytes.
    pub memory_bytes: u64,
    /// Encrypt bulk data too.
    pub encrypt: bool,
    /// How its machine's sensors are read and judged.
    #[serde(default)]
    pub health: Settings,
    /// When work is done that need not be done at once, and the user's own.
    #[serde(default)]
    pub service: ServiceSettings,
}

impl AgentSpec {
    /// The words of a command line that follow the subcommand: for people who look at
    /// processes, nobody reads them.
    pub fn title(&self) -> [String; 4] {
        let node = self.node.0.to_string();
        ["job".into(), self.job.to_string(), "node".into(), node]
    }
}

/// A fault that the agent carries out on itself, for tests and rehearsals.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fault {
    /// Drop all traffic with peers and launcher. The agent ends it by itself: an
    /// order to do so could not reach it.
    Isolate {
        /// For so long, in milliseconds; for ever if `None`.
        for_ms: Option<u64>,
    },
    /// Limit disk and stream bandwidth to this many bytes a second; 0: no limit.
    Slow(u64),
    /// Every write to node storage reports that no space is left.
    Full(bool),
    /// Flip one bit in the newest container of this node at this level.
    Corrupt(Level),
    /// Tell the launcher when the named point is reached for the n-th time
    /// (1: the first), and wait there, bounded, for what it does.
    FailPoint {
        /// One of [`fail_points`](crate::node::fail_points).
        point: String,
        /// Count.
        nth: u32,
    },
    /// Tell the launcher when a rank of this node offers this version; that rank
    /// waits, bounded, for what the launcher does.
    AtVersion {
        /// Only this rank; any rank of the node if `None`.
        rank: Option<Rank>,
        /// The version.
        version: Version,
    },
}

impl Fault {
    /// True for what happens when it is ordered; the others wait for their time.
    pub const fn is_effect(&self) -> bool {
        !matches!(self, Fault::FailPoint { .. } | Fault::AtVersion { .. })
    }
}

/// Launcher to agent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Know the job.
    Configure(JobConfig),
    /// Open an incarnation: find the newest version that can be rebuilt, rebuild it.
    Open {
        /// Its number, larger than any before.
        incarnation: Incarnation,
        /// Slots that lost everything since the last incarnation.
        replaced: Vec<NodeId>,
        /// The launcher's word that no process of an older membership runs any more.
        fenced: bool,
        /// Restore nothing, whatever is stored.
        fresh: bool,
        /// The newest incarnation in which a version is known to have been committed; 0:
        /// the launcher knows of none.
        history: Incarnation,
    },
    /// How many ranks the job has in this incarnation, as the first of them said. A
    /// node on which none lives takes part in checkpoints with nothing.
    Ranks {
        /// The incarnation.
        incarnation: Incarnation,
        /// The number.
        ranks: u32,
    },
    /// SIGKILL all ranks registered here; answered by [`Notice::RanksEnded`].
    EndRanks,
    /// Carry out a fault, or wait for its time: `id` comes back in [`Notice::InjectReached`] and
    /// [`Notice::Injected`]. Repeated until it is answered, it is the same one.
    Inject {
        /// The launcher's number of the injection.
        id: u32,
        /// What.
        fault: Fault,
    },
    /// The action of an injection that was reached is done (or will not come): go on.
    InjectDone {
        /// The launcher's number of the injection.
        id: u32,
    },
    /// The launcher, as the second witness, has not heard of this node either.
    Silent {
        /// The node.
        node: NodeId,
    },
    /// Ask for [`Notice::Status`].
    Status,
    /// Say what the ranks here are doing ([`Notice::Stacks`]); asked again while they are looked
    /// at, it is the same question.
    Stacks {
        /// Comes back.
        number: u32,
        /// What is not found in this time, in milliseconds, is left out.
        within_ms: u64,
        /// The answer's length at most, in bytes.
        bytes_max: u32,
    },
    /// Take a checkpoint as soon as possible, however often that comes to nothing; asked
    /// again before it was taken, it is the same one, at the levels of both.
    CheckpointNow {
        /// At these levels; none: those whose turn it is.
        levels: Vec<Level>,
    },
    /// The job has ended: finish flushes within `drain_ms`, answer
    /// [`Notice::Finished`]; the keeper is told when to end.
    Finish {
        /// Record that the job ended well.
        success: bool,
    },
    /// These members have changed since the revision that the agent has heard of. Who knows no job
    /// leaves it aside, and is told of it when it says so.
    Members {
        /// With these the agent knows the members of this revision ([`JobConfig::revision`]).
        revision: u64,
        /// The members that have changed.
        changed: Vec<Member>,
    },
}

/// How a rank ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RankEnd {
    /// It called `close` before.
    Closed,
    /// Its process is gone without `close`; the launcher's command knows the status.
    Lost,
}

/// A step in a version's life, for the timeline.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Step {
    /// All agents armed it.
    Armed,
    /// All ranks of all nodes captured it.
    Captured {
        /// Bytes of this node.
        bytes: u64,
        /// Longest time a rank of this node was blocked.
        blocked_ns: u64,
    },
    /// The commit record is durable in enough failure domains.
    Stable(Level),
    /// It will not be committed (at this level, or at all if `None`).
    Aborted {
        /// The level.
        level: Option<Level>,
        /// Why.
        error: Error,
    },
}

/// Why a version was not chosen at a restart.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Rejected {
    /// The version.
    pub version: Version,
    /// The reason.
    pub reason: String,
}

/// The outcome of opening an incarnation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// The incarnation.
    pub incarnation: Incarnation,
    /// The version that the ranks will restore; `None`: a fresh start.
    pub restored: Option<Version>,
    /// The most stable level from which a node had to take its bytes.
    pub level: Option<Level>,
    /// The number of ranks in that version.
    pub ranks: u32,
    /// From [`Order::Open`] to here, in milliseconds.
    pub rebuild_ms: f64,
    /// Bytes that came over the network or from disk.
    pub rebuilt_bytes: u64,
    /// Newer versions that were known and could not be used.
    pub rejected: Vec<Rejected>,
    /// More nodes were silent than the level tolerates: a newer version may have
    /// existed.
    pub uncertain: bool,
}

/// Spans that an agent keeps at most until it tells them; the oldest are left out then.
pub const SPANS_MAX: usize = 256;

/// What a node does for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Work {
    /// A rank captures: it is blocked.
    Capture(Rank),
    /// A level is written and read back; with groups, its parity too.
    Write(Level),
    /// From then until the level is known to be stable.
    Commit(Level),
    /// An incarnation is opened: the newest version is found, rebuilt and verified.
    Rebuild,
}

/// Something that took a while at a node, and has ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Span {
    /// What.
    pub work: Work,
    /// The version; `None`: nothing was restored.
    pub version: Option<Version>,
    /// Bytes that were captured, written or rebuilt; 0 for a commit.
    pub bytes: u64,
    /// It ended so long before this was said, in nanoseconds.
    pub ago_ns: u64,
    /// It lasted so long, in nanoseconds.
    pub lasted_ns: u64,
}

/// What ended at a node since it last said so.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Spans {
    /// In the order in which they ended, at most [`SPANS_MAX`].
    pub spans: Vec<Span>,
    /// So many older ones are not among them.
    pub left_out: u64,
}

/// Warnings in a status.
pub const STATUS_WARNINGS_MAX: usize = 64;

/// What an agent knows of itself.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The incarnation that is open, 0 if none.
    pub incarnation: u32,
    /// Registered ranks: number, process, last version offered.
    pub ranks: Vec<(Rank, u32, Option<Version>)>,
    /// The last stable version of each level that has one.
    pub stable: Vec<(Level, Version)>,
    /// Staging memory in use and its bound, in bytes.
    pub memory: (u64, u64),
    /// Bytes in node storage and free bytes there.
    pub disk: (u64, u64),
    /// How often this agent was started anew by its keeper.
    pub agent_restarts: u32,
    /// What it warned of, oldest first, at most [`STATUS_WARNINGS_MAX`].
    pub warnings: Vec<Error>,
    /// What it has sent and received.
    pub traffic: Traffic,
    /// What it has read before it was needed.
    pub scrub: Box<ScrubStatus>,
    /// Its copies on their way to shared storage.
    pub transfers: Vec<TransferStatus>,
    /// How its machine is.
    pub health: Box<NodeHealth>,
    /// How the coordinator's clock stands to this node's, if slots go by it and it was heard.
    pub clock: Option<Offset>,
}

/// Where a rank is, in words. Ranks at the same place have the same words.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Place {
    /// What it does and in which function, for example `waiting in MPI_Recv, called by solve`.
    pub does: String,
    /// The file of that function; empty if it is not known.
    pub file: String,
    /// The line there; 0 if it is not known.
    pub line: u32,
}

/// What a rank is doing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RankStacks {
    /// The rank.
    pub rank: Rank,
    /// Where it is.
    pub place: Place,
    /// The stacks of its process, for people.
    pub text: String,
}

/// What the ranks of a node are doing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stacks {
    /// Those that were looked at.
    pub ranks: Vec<RankStacks>,
    /// So many more live there.
    pub left_out: u32,
}

/// Agent to launcher.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Notice {
    /// First message on each connection.
    Hello {
        /// Where peers reach this agent.
        address: SocketAddr,
        /// Its process.
        pid: u32,
        /// Its keeper's process.
        keeper_pid: u32,
        /// How often the keeper had to start it anew.
        restarts: u32,
        /// Ranks that it already serves (after a restart of the agent).
        ranks: Vec<(Rank, u32)>,
        /// The revision of the members that it has heard of; `None`: it knows no job, no
        /// [`Order::Configure`] has reached it.
        heard: Option<u64>,
    },
    /// The order [`Order::Open`] was carried out on this node; ranks may start.
    NodeReady {
        /// The incarnation.
        incarnation: Incarnation,
        /// Where this node's bytes came from; `None`: nothing to restore.
        level: Option<Level>,
        /// Bytes that were read or received for it.
        rebuilt_bytes: u64,
    },
    /// A heartbeat: this agent's main loop turns.
    Alive {
        /// The newest version that a rank here has offered in the open incarnation.
        offered: Option<Version>,
        /// A rank here waits for this agent, which it asked for something.
        held: bool,
    },
    /// This agent has not heard of a peer for the time after which it is dead; is
    /// it silent for the launcher too?
    Silent {
        /// The peer.
        node: NodeId,
        /// Which holder of its slot.
        epoch: u64,
    },
    /// From the coordinator only: the decision of the incarnation.
    Opened(Opened),
    /// The incarnation cannot be opened.
    OpenFailed {
        /// The incarnation.
        incarnation: Incarnation,
        /// Why.
        error: Error,
        /// The largest number known there: a larger one is needed.
        known: Incarnation,
    },
    /// What lies in this node's storage, said as an incarnation is opened, if no record of a
    /// committed version is there: for the reason, should nothing be found anywhere.
    Trace {
        /// For people.
        text: String,
    },
    /// A rank joined.
    RankUp {
        /// The rank.
        rank: Rank,
        /// Its idea of the number of ranks.
        ranks: u32,
        /// Its process.
        pid: u32,
    },
    /// A rank's process ended or left.
    RankDown {
        /// The rank.
        rank: Rank,
        /// Its process.
        pid: u32,
        /// How.
        end: RankEnd,
    },
    /// A rank has restored (or failed to).
    Restored {
        /// The rank.
        rank: Rank,
        /// What.
        outcome: std::result::Result<Version, Error>,
    },
    /// A version moved on.
    Checkpoint {
        /// The version.
        version: Version,
        /// How.
        step: Step,
    },
    /// A peer is silent.
    Suspected {
        /// The peer.
        node: NodeId,
        /// The epoch of its holder that is meant.
        epoch: u64,
        /// For how long.
        silent_ms: u64,
    },
    /// A suspected peer was heard again.
    Cleared {
        /// The peer.
        node: NodeId,
    },
    /// A peer is dead in the view of this agent and a second witness.
    Dead {
        /// The peer.
        node: NodeId,
        /// The epoch of its holder that is meant.
        epoch: u64,
    },
    /// An injection's place was reached.
    InjectReached {
        /// Its number.
        id: u32,
        /// The version offered, if it was a version.
        version: Option<Version>,
    },
    /// A fault was carried out here, or could not be.
    Injected {
        /// Its number.
        id: u32,
        /// What was ordered.
        fault: Fault,
        /// Why not.
        outcome: std::result::Result<(), Error>,
    },
    /// Something went wrong that does not stop the job.
    Warning(Error),
    /// The answer to [`Order::Status`].
    Status(NodeStatus),
    /// The answer to [`Order::Stacks`].
    Stacks {
        /// As it was asked with.
        number: u32,
        /// What was found.
        found: Stacks,
    },
    /// What took how long here, beside an answer to [`Order::Status`] and before the end.
    Spans(Spans),
    /// The answer to [`Order::EndRanks`].
    RanksEnded,
    /// The answer to [`Order::Finish`].
    Finished,
    /// Sensors of its machine are worse than they were, or well again.
    Health(Vec<Change>),
}

/// Encodes a message.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    let bytes = postcard::to_extend(message, vec![PROTOCOL])
        .map_err(|error| Error::internal(format!("cannot encode a message: {error}")))?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(Error::new(
            Code::Network,
            Entity::Call,
            format!(
                "a message of {} bytes, of at most {MESSAGE_BYTES_MAX}: the job has more nodes and ranks than a decision can name",
                bytes.len()
            ),
            "place ranks in blocks or in turn, which is named in few bytes; else use fewer nodes",
        ));
    }
    Ok(bytes)
}

/// Decodes a message from an authenticated peer.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let bad = |reason: String| {
        Error::new(
            Code::PeerVersion,
            Entity::Call,
            reason,
            "use the same version of Outlive on all nodes",
        )
    };
    match bytes.split_first() {
        Some((&PROTOCOL, rest)) if bytes.len() <= MESSAGE_BYTES_MAX => {
            let (message, left) =
                postcard::take_from_bytes(rest).map_err(|error| bad(error.to_string()))?;
            if left.is_empty() {
                Ok(message)
            } else {
                Err(bad("bytes left over".into()))
            }
        }
        Some((&PROTOCOL, _)) => Err(bad(format!("message of {} bytes", bytes.len()))),
        Some((other, _)) => Err(bad(format!("protocol {other}, expected {PROTOCOL}"))),
        None => Err(bad("empty message".into())),
    }
}

#[cfg(test)]
mod tests;

//! `outlive coordinator`: the service of turns on shared storage, and how what it knows survives
//! its death.
//!
//! What jobs say is put in one order by Raft (D. Ongaro and J. Ousterhout, USENIX ATC 2014; the
//! library openraft) among the *members*: one, or three that run on three machines. Each member
//! keeps log and snapshots in the store (`STORE/.coordinator/members/N`), and applies the same
//! words to the same pure service ([`outlive_control::turns::Kept`]). The one that leads serves the
//! jobs; its address lies where jobs look. A job's side is [`outlive_launch::coordinator`].
//!
//! Invariants: an answer leaves after a majority has what it follows from, so that no two members
//! give turns, whatever they believe; a member that does not reach a majority turns its jobs away
//! within 2 s; a job is heard under its own key and as itself alone (P7); what was
//! written down is believed only with its checksum.
//!
//! A crate of its own: the consensus library is generic, and whoever uses it compiles it.

mod frames;
mod group;
mod log;
mod machine;
mod members;
mod metrics;
mod serve;
mod state;
#[cfg(test)]
mod testing;

use outlive_control::turns::{Answer, Batch};
use outlive_planner::coordinate::JobId;

pub use serve::{Choice, serve};

/// Answers to the words of a batch, each with its job.
type Answers = Vec<(JobId, Answer)>;

openraft::declare_raft_types!(
    /// What is agreed on: batches of what jobs say.
    pub(crate) Types:
        D = Batch,
        R = Answers,
        NodeId = u64,
        Node = (),
        SnapshotData = std::io::Cursor<Vec<u8>>,
);

type Raft = openraft::Raft<Types>;

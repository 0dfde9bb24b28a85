//! Where a node's things are: what workers need besides what they are asked for.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outlive_base::NodeId;
use outlive_network::{Endpoint, Stream};
use outlive_vault::Vault;

use crate::faults::Faults;
use crate::served::Served;
use crate::shared_records::SharedRecords;

/// Where a node's things are.
pub struct Places {
    /// This node.
    pub node: NodeId,
    /// The job, as on the wire and in records.
    pub job_hash: u64,
    /// Node storage.
    pub store: Arc<Vault>,
    /// Where ranks write files of their own.
    pub files: PathBuf,
    /// Shared storage.
    pub shared: Arc<Vault>,
    /// Who records decisions there, and removes what may go.
    pub shared_records: SharedRecords,
    /// The memory server, if the job has one.
    pub served: Option<Served>,
    /// The network.
    pub endpoint: Arc<Endpoint>,
    /// The stream to the partner, while nothing is sent on it.
    pub line_out: Idle,
    /// Faults in force.
    pub faults: Arc<Faults>,
}

/// The stream to the partner between two versions: to make one costs both ends more than
/// a short version does.
#[derive(Default)]
pub struct Idle(Mutex<Option<Stream>>);

impl Idle {
    /// What was left, if its peer is this one, of this epoch or a newer, and has not
    /// ended it.
    pub fn take(&self, peer: NodeId, epoch: u64) -> Option<Stream> {
        let stream = self.stream().take();
        let same = |stream: &Stream| {
            let with = stream.peer();
            with.peer == peer && with.epoch >= epoch && stream.is_idle()
        };
        stream.filter(same)
    }

    /// Keeps a stream of which everything was read.
    pub fn leave(&self, stream: Stream) {
        *self.stream() = Some(stream);
    }

    fn stream(&self) -> MutexGuard<'_, Option<Stream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

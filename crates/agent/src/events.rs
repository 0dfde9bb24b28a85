//! What wakes the agent's thread: the network, ranks, and what workers have done.

use std::os::fd::OwnedFd;

use outlive_base::machine::Op;
use outlive_base::{Error, Incarnation, Level, NodeId, Rank, Result, Version};
use outlive_capture::ipc::ToRank;
use outlive_capture::slab::Slab;
use outlive_network::Event as NetEvent;
use outlive_vault::{GcReport, Part, Record};

use crate::ipc_server::IpcEvent;

/// What came back from a worker.
pub(crate) enum Work {
    /// What ended together: one wake for all.
    Together(Vec<Work>),
    /// A slab was made for a slot.
    SlabMade {
        rank: Rank,
        slot: usize,
        ticket: u64,
        /// `None`: it was not wanted any more.
        made: Result<Option<(Slab, OwnedFd)>>,
    },
    /// A record is durable, or not. With an error beside: the disk did not take it, the
    /// keeper holds it.
    Persisted {
        op: Op,
        result: Result<Option<Error>>,
    },
    /// The local part of a level is written and read back, or failed.
    LevelDone {
        source: Incarnation,
        version: Version,
        level: Level,
        result: Result<Part>,
    },
    /// All levels of a version ended, well or not.
    FlushOver {
        source: Incarnation,
        version: Version,
    },
    /// What lies in storage.
    Inventory {
        incarnation: Incarnation,
        available: Vec<(Incarnation, Version, NodeId)>,
        records: Vec<Record>,
        traces: crate::opening::Traces,
    },
    /// The local ranks' bytes of a version.
    Rebuilt {
        /// The one that was being opened.
        incarnation: Incarnation,
        source: Incarnation,
        version: Version,
        result: Result<crate::rebuild::Rebuilt>,
    },
    /// Old containers were removed.
    Collected { result: Result<GcReport> },
    /// A directory for a rank's own files was made, or not.
    Routed {
        rank: Rank,
        sequence: u32,
        message: ToRank,
    },
    /// Bytes in node storage, and free bytes there.
    DiskUsage((u64, u64)),
    /// A copy for a lost partner was made again.
    Protected { result: Result<()> },
    /// A copy for another node could not be kept here, or could be.
    Kept { result: Result<()> },
}

/// What woke the agent's thread.
pub(crate) enum Woken {
    Network(NetEvent),
    Rank(IpcEvent),
    Work(Work),
    /// Its time to look around has come.
    Nothing,
    /// Nobody is left to serve.
    Over,
}

impl Woken {
    /// For who reads that it took too long.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Woken::Network(NetEvent::Message { from, .. }) if from.peer == NodeId::LAUNCHER => {
                "an order of the launcher"
            }
            Woken::Network(_) => "what came over the network",
            Woken::Rank(_) => "what a rank said",
            Woken::Work(work) => work.what(),
            Woken::Nothing | Woken::Over => "housekeeping",
        }
    }
}

impl Work {
    pub(crate) const fn what(&self) -> &'static str {
        match self {
            Work::Together(_) => "what ended together",
            Work::SlabMade { .. } => "new memory",
            Work::Persisted { .. } => "a record that was written",
            Work::LevelDone { .. } | Work::FlushOver { .. } => "a version that was written",
            Work::Inventory { .. } => "what lies in storage",
            Work::Rebuilt { .. } => "a version that was rebuilt",
            Work::Collected { .. } => "old versions that were removed",
            Work::Routed { .. }
            | Work::DiskUsage(_)
            | Work::Protected { .. }
            | Work::Kept { .. } => "small work",
        }
    }
}

//! One place that keeps a job's containers and records, in whatever store: a node's storage,
//! or what all nodes share.
//!
//! Invariants: one agent writes to a node's storage at a time; shared storage has many
//! writers, who only ever create.

use std::path::Path;
use std::sync::Arc;

use outlive_base::{ContainerId, Level};

use crate::directory::Directory;
use crate::error::{ReadError, WriteError};
use crate::found::Found;
use crate::gc::{self, GcReport};
use crate::records::RecordStore;
use crate::store::{Key, Kind, Store};
use outlive_ledger::{GcPolicy, Record};

/// Containers and records of a job at one place.
#[derive(Clone, Debug)]
pub struct Vault {
    store: Arc<dyn Store>,
    records: RecordStore,
    mark: RecordStore,
    /// Which copies are there.
    kinds: &'static [(Kind, Level)],
}

/// A node keeps its own containers, and some for another node.
const NODE: &[(Kind, Level)] = &[
    (Kind::Container, Level::Disk),
    (Kind::Partner, Level::Partner),
];
const SHARED: &[(Kind, Level)] = &[(Kind::Container, Level::Shared)];

impl Vault {
    /// The storage of a node, for any reader.
    pub fn of_node(store: Arc<dyn Store>, job_hash: u64) -> Vault {
        Vault::new(store, job_hash, NODE)
    }

    /// The storage of a node, for its agent.
    pub fn own(store: Arc<dyn Store>, job_hash: u64) -> Vault {
        let mut vault = Vault::new(store, job_hash, NODE);
        vault.records = vault.records.with_logs();
        vault
    }

    /// What all nodes share. Records there are written with
    /// [`RecordStore::persist_exclusive`].
    pub fn shared(store: Arc<dyn Store>, job_hash: u64) -> Vault {
        Vault::new(store, job_hash, SHARED)
    }

    /// [`Vault::own`] of a directory.
    pub fn create(root: &Path, job_hash: u64) -> Result<Vault, WriteError> {
        Ok(Vault::own(Arc::new(Directory::own(root)?), job_hash))
    }

    fn new(store: Arc<dyn Store>, job_hash: u64, kinds: &'static [(Kind, Level)]) -> Vault {
        let records = |kind| RecordStore::new(Arc::clone(&store), kind, job_hash);
        Vault {
            records: records(Kind::Record),
            mark: records(Kind::Mark),
            store,
            kinds,
        }
    }

    /// Where it keeps all.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
    /// Its records.
    pub fn records(&self) -> &RecordStore {
        &self.records
    }
    /// Where the mark of a history stands, [`crate::Record::History`].
    pub fn mark(&self) -> &RecordStore {
        &self.mark
    }
    /// The key of a copy at a level; of one that is not kept here, that of a container.
    pub fn key(&self, level: Level, id: ContainerId) -> Key {
        let mut kinds = self.kinds.iter();
        let kind = kinds.find(|(_, at)| *at == level);
        Key::container(kind.map_or(Kind::Container, |(kind, _)| *kind), id)
    }

    /// All containers here, in no particular order; their content is not looked at.
    pub fn found(&self) -> Result<Vec<Found>, ReadError> {
        let mut found = Vec::new();
        for (kind, level) in self.kinds {
            let items = self.store.list(*kind);
            let items = items
                .map_err(|error| ReadError::io(&self.store.name(), "list containers", error))?;
            found.extend(items.into_iter().filter_map(|item| {
                Some(Found {
                    id: item.key.id()?,
                    level: *level,
                    path: self.store.locate(&item.key),
                    length: item.length?,
                    key: item.key,
                })
            }));
        }
        Ok(found)
    }

    /// Removes what P3 allows to remove, tombstones first. Idempotent: after a crash
    /// in the middle the next call goes on. Of shared storage for the coordinator alone.
    pub fn gc(&self, policy: &GcPolicy) -> Result<GcReport, outlive_base::Error> {
        self.gc_of(self.found()?, policy)
    }

    /// [`Vault::gc`] of containers that were found a moment ago.
    pub fn gc_of(
        &self,
        found: Vec<Found>,
        policy: &GcPolicy,
    ) -> Result<GcReport, outlive_base::Error> {
        self.with_place(|place| gc::collect(place, found, policy))
    }

    /// The tombstones that [`Vault::gc_of`] would write: who writes others' records at this
    /// time may write these with them, and spares it a sync.
    pub fn tombs_due(
        &self,
        found: &[Found],
        policy: &GcPolicy,
    ) -> Result<Vec<Record>, outlive_base::Error> {
        self.with_place(|place| gc::tombs_due(place, found, policy))
    }

    fn with_place<T>(&self, act: impl FnOnce(&gc::Place<'_>) -> T) -> T {
        let kinds: Vec<Kind> = self.kinds.iter().map(|(kind, _)| *kind).collect();
        act(&gc::Place {
            records: &self.records,
            store: &*self.store,
            kinds: &kinds,
        })
    }
}

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
use crate::gc::{self, GcReport, Removal};
use crate::records::RecordStore;
use crate::store::{Key, ObjectKind, Store};
use outlive_ledger::GcPolicy;

/// Containers and records of a job at one place.
#[derive(Clone, Debug)]
pub struct Vault {
    store: Arc<dyn Store>,
    records: RecordStore,
    mark: RecordStore,
    /// Which copies are there, and the level of the containers.
    kinds: &'static [ObjectKind],
    own: Level,
}

/// A node keeps its own containers, some for another node, and parities.
const NODE: &[ObjectKind] = &[
    ObjectKind::Container,
    ObjectKind::Partner,
    ObjectKind::Parity,
];
const SHARED: &[ObjectKind] = &[ObjectKind::Container];
const SERVER: &[ObjectKind] = &[ObjectKind::Parity];

impl Vault {
    /// The storage of a node, for any reader.
    pub fn of_node(store: Arc<dyn Store>, job_hash: u64) -> Vault {
        Vault::new(store, job_hash, NODE, Level::DISK)
    }

    /// The storage of a node, for its agent.
    pub fn own(store: Arc<dyn Store>, job_hash: u64) -> Vault {
        let mut vault = Vault::new(store, job_hash, NODE, Level::DISK);
        vault.records = vault.records.with_logs();
        vault
    }

    /// What all nodes share. Records there are written with
    /// [`RecordStore::persist_exclusive`].
    pub fn shared(store: Arc<dyn Store>, job_hash: u64) -> Vault {
        Vault::new(store, job_hash, SHARED, Level::SHARED)
    }

    /// What a memory server keeps: parities, each written by the node that it is named after.
    /// There are no records there.
    pub fn of_server(store: Arc<dyn Store>, job_hash: u64) -> Vault {
        Vault::new(store, job_hash, SERVER, Level::DISK)
    }

    /// [`Vault::own`] of a directory.
    pub fn create(root: &Path, job_hash: u64) -> Result<Vault, WriteError> {
        Ok(Vault::own(Arc::new(Directory::own(root)?), job_hash))
    }

    fn new(
        store: Arc<dyn Store>,
        job_hash: u64,
        kinds: &'static [ObjectKind],
        own: Level,
    ) -> Vault {
        let records = |kind| RecordStore::new(Arc::clone(&store), kind, job_hash);
        Vault {
            records: records(ObjectKind::Record),
            mark: records(ObjectKind::Mark),
            store,
            kinds,
            own,
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
    /// The key of what a level alone calls for: a container, or a parity.
    pub fn key(&self, level: Level, id: ContainerId) -> Key {
        match level.members() {
            Some(_) => Key::parity(level, id),
            None if level.has_partner() => self.kept_key(id),
            None => self.container_key(id),
        }
    }
    /// The key of a container in the storage of its own node, or in that which all share.
    pub fn container_key(&self, id: ContainerId) -> Key {
        Key::container(ObjectKind::Container, id)
    }
    /// The key of a container that a node keeps for another.
    pub fn kept_key(&self, id: ContainerId) -> Key {
        Key::container(ObjectKind::Partner, id)
    }

    /// What a key names, and at which level.
    fn named(&self, key: &Key) -> Option<(ContainerId, Level)> {
        match key.kind() {
            ObjectKind::Container => Some((key.id()?, self.own)),
            ObjectKind::Partner => Some((key.id()?, Level::PARTNER)),
            ObjectKind::Parity => key.parity_of(),
            ObjectKind::Record | ObjectKind::Mark => None,
        }
    }

    /// All containers and parities here, in no particular order; their content is not looked at.
    pub fn found(&self) -> Result<Vec<Found>, ReadError> {
        let mut found = Vec::new();
        for kind in self.kinds {
            let items = self.store.list(*kind);
            let items = items
                .map_err(|error| ReadError::io(&self.store.name(), "list containers", error))?;
            found.extend(items.into_iter().filter_map(|item| {
                let (id, level) = self.named(&item.key)?;
                Some(Found {
                    id,
                    level,
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
        self.remove(&self.removal(self.found()?, policy.clone())?)
    }

    /// What [`Vault::remove`] would remove of containers that were found a moment ago.
    pub fn removal(
        &self,
        found: Vec<Found>,
        policy: GcPolicy,
    ) -> Result<Removal, outlive_base::Error> {
        self.with_place(|place| Removal::of(place, found, policy))
    }

    /// [`Vault::gc`] of what was found out a moment ago.
    pub fn remove(&self, removal: &Removal) -> Result<GcReport, outlive_base::Error> {
        self.with_place(|place| gc::collect(place, removal))
    }

    /// Makes removals durable. Under their tombstones they need not be; who reports room that is
    /// free wants them to.
    pub fn settle(&self) -> Result<(), WriteError> {
        let mut kinds = self.kinds.iter();
        kinds.try_for_each(|kind| self.store.settle(*kind, &[]))
    }

    fn with_place<T>(&self, act: impl FnOnce(&gc::Storage<'_>) -> T) -> T {
        act(&gc::Storage {
            records: &self.records,
            store: &*self.store,
            kinds: self.kinds,
        })
    }
}

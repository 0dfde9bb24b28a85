//! The directories of a node and of the job: `docs/design/first-rescue.md`,
//! "Directories".
//!
//! Invariants: one agent writes to a node's directory at a time; the shared one has
//! many writers, who only ever create; all are private to the user (P7).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outlive_base::{ContainerId, Incarnation, Level, NodeId, Version};

use crate::disk;
use crate::error::{ReadError, WriteError};
use crate::found::Found;
use crate::gc::{self, GcReport};
use crate::records::RecordStore;
use crate::spares::{self, Spares};
use outlive_ledger::GcPolicy;

/// The storage of one node.
#[derive(Clone, Debug)]
pub struct NodeStore {
    root: PathBuf,
    records: RecordStore,
    mark: RecordStore,
    spares: Option<Arc<Spares>>,
}

impl NodeStore {
    /// Creates what is missing and removes unfinished files of an earlier life. For
    /// the one agent that writes here.
    pub fn create(root: &Path, job_hash: u64) -> Result<NodeStore, WriteError> {
        for name in ["containers", "partner", "files", spares::NAME] {
            let directory = root.join(name);
            disk::create_directory(&directory)?;
            disk::sweep(&directory)?;
        }
        let records = RecordStore::open(&root.join("records"), job_hash)?;
        records.sweep()?;
        disk::sweep(root)?;
        disk::sync_directory(root)?;
        let mut store = NodeStore::at(root, job_hash);
        store.records = records.with_reserve().with_logs();
        store.spares = Some(Arc::new(Spares::at(root.join(spares::NAME))));
        Ok(store)
    }

    /// [`NodeStore::create`]; on storage that is full or may not be written to, what is
    /// there, and why. Such a node answers, promises and rebuilds from what it can read
    /// (P9); what it cannot write it says when it should.
    pub fn create_or_read(
        root: &Path,
        job_hash: u64,
    ) -> Result<(NodeStore, Option<WriteError>), WriteError> {
        match NodeStore::create(root, job_hash) {
            Ok(store) => Ok((store, None)),
            Err(error) if error.is_refusal() => {
                let mut store = NodeStore::at(root, job_hash);
                store.records = store.records.with_reserve().with_logs();
                Ok((store, Some(error)))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a directory of the store that could not be made when it was opened.
    pub fn make(&self, path: &Path) -> Result<(), WriteError> {
        match disk::parent(path) {
            directory if directory.is_dir() => Ok(()),
            directory => disk::create_directory(directory),
        }
    }

    /// The storage for reading; it need not exist.
    pub fn at(root: &Path, job_hash: u64) -> NodeStore {
        NodeStore {
            root: root.to_owned(),
            records: RecordStore::at(&root.join("records"), job_hash),
            mark: RecordStore::at(root, job_hash),
            spares: None,
        }
    }

    /// Files for new containers.
    pub fn spares(&self) -> Option<&Spares> {
        self.spares.as_deref()
    }
    /// The directory of it all.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// This node's records.
    pub fn records(&self) -> &RecordStore {
        &self.records
    }
    /// Where the mark of a history stands, [`crate::Record::History`].
    pub fn mark(&self) -> &RecordStore {
        &self.mark
    }
    /// Where routed files are written.
    pub fn files(&self) -> PathBuf {
        self.root.join("files")
    }
    /// Where a container of this node belongs.
    pub fn container_path(&self, id: ContainerId) -> PathBuf {
        self.root.join("containers").join(file_name(id))
    }
    /// Where a container kept for another node belongs.
    pub fn partner_path(&self, id: ContainerId) -> PathBuf {
        self.root.join("partner").join(file_name(id))
    }

    /// All container files here, in no particular order; their content is not looked at.
    pub fn found(&self) -> Result<Vec<Found>, ReadError> {
        let mut found = list(&self.root.join("containers"), Level::Disk)?;
        found.extend(list(&self.root.join("partner"), Level::Partner)?);
        Ok(found)
    }

    /// Removes what P3 allows to remove, tombstones first. Idempotent: after a crash
    /// in the middle the next call goes on.
    pub fn gc(&self, policy: &GcPolicy) -> Result<GcReport, outlive_base::Error> {
        let directories = ["containers", "partner"].map(|name| self.root.join(name));
        let place = gc::Place {
            records: &self.records,
            directories: &directories,
            spares: self.spares(),
        };
        let report = gc::collect(&place, self.found()?, policy);
        self.records.refill();
        report
    }
}

/// The directory that all nodes share (level shared).
#[derive(Clone, Debug)]
pub struct SharedStore {
    root: PathBuf,
    records: RecordStore,
    mark: RecordStore,
}

impl SharedStore {
    /// Creates what is missing. Any number of writers.
    pub fn create(root: &Path, job_hash: u64) -> Result<SharedStore, WriteError> {
        disk::create_directory(&root.join("containers"))?;
        RecordStore::open(&root.join("records"), job_hash)?;
        disk::sync_directory(root)?;
        Ok(SharedStore::at(root, job_hash))
    }

    /// The directory for reading; it need not exist.
    pub fn at(root: &Path, job_hash: u64) -> SharedStore {
        SharedStore {
            root: root.to_owned(),
            records: RecordStore::at(&root.join("records"), job_hash),
            mark: RecordStore::at(root, job_hash),
        }
    }

    /// The directory of it all.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// The records that all share: write them with
    /// [`RecordStore::persist_exclusive`].
    pub fn records(&self) -> &RecordStore {
        &self.records
    }
    /// Where the mark of a history stands, [`crate::Record::History`].
    pub fn mark(&self) -> &RecordStore {
        &self.mark
    }
    /// Where a node's container belongs.
    pub fn container_path(&self, id: ContainerId) -> PathBuf {
        self.root.join("containers").join(file_name(id))
    }
    /// All container files here; their content is not looked at.
    pub fn found(&self) -> Result<Vec<Found>, ReadError> {
        list(&self.root.join("containers"), Level::Shared)
    }
    /// Like [`NodeStore::gc`]; for the coordinator alone.
    pub fn gc(&self, policy: &GcPolicy) -> Result<GcReport, outlive_base::Error> {
        let directories = [self.root.join("containers")];
        let place = gc::Place {
            records: &self.records,
            directories: &directories,
            spares: None,
        };
        gc::collect(&place, self.found()?, policy)
    }
}

/// Removes the unfinished files of killed processes from the directories of a job, node
/// or shared. Only while nobody writes there: no agent of the job may live.
pub fn sweep_unfinished(root: &Path) {
    for name in [
        "",
        "containers",
        "partner",
        "records",
        "files",
        spares::NAME,
    ] {
        // A directory that is missing or cannot be read has nothing for us.
        let _ = disk::sweep(&root.join(name));
    }
}

fn file_name(id: ContainerId) -> String {
    format!("{id}.olc")
}

/// The inverse of [`file_name`].
fn parse_name(name: &str) -> Option<ContainerId> {
    let (incarnation, rest) = name
        .strip_prefix('i')?
        .strip_suffix(".olc")?
        .split_once("-v")?;
    let (version, node) = rest.split_once("-n")?;
    let id = ContainerId {
        incarnation: Incarnation(incarnation.parse().ok()?),
        version: Version(version.parse().ok()?),
        node: NodeId(node.parse().ok()?),
    };
    (file_name(id) == name).then_some(id)
}

fn list(directory: &Path, level: Level) -> Result<Vec<Found>, ReadError> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(ReadError::io(directory, "list", error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| ReadError::io(directory, "list", error))?;
        let Some(id) = parse_name(&entry.file_name().to_string_lossy()) else {
            continue;
        };
        // One that was removed since it was listed is not there.
        let Ok(data) = entry.metadata() else { continue };
        found.push(Found {
            id,
            level,
            path: entry.path(),
            length: data.len(),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_ignored() {
        let id = ContainerId {
            incarnation: Incarnation(3),
            version: Version(u64::MAX - 2),
            node: NodeId(u32::MAX - 1),
        };
        assert_eq!(parse_name(&file_name(id)), Some(id));
        for name in [
            "i1-v2-n3",
            "i01-v2-n3.olc",
            "i1-v2-n3.olc.tmp",
            ".tmp-1-0-i1-v2-n3.olc",
            "x",
        ] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }
}

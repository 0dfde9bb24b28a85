//! What lies in one place: records, container files, damage. Made locally, or
//! received from another node, and joined into a [`crate::Catalogue`].

use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, Level, NodeId, count};
use serde::{Deserialize, Serialize};

use crate::record::{Part, Record};
use crate::store::{Found, NodeStore, SharedStore};

/// One place's records and containers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Inventory {
    /// The node; [`Part::SHARED`] for the shared directory.
    pub place: NodeId,
    /// True if the paths can be opened from here.
    pub local: bool,
    /// All sound records.
    pub records: Vec<Record>,
    /// All container files; their content was not looked at.
    pub copies: Vec<Found>,
    /// Damaged records.
    pub damaged: Vec<PathBuf>,
    /// Records of another job.
    pub foreign: Vec<PathBuf>,
    /// Why some of it could not be read. What could be read stands (P9).
    pub errors: Vec<Error>,
}

impl Inventory {
    /// Of a node's storage.
    pub fn of_node(node: NodeId, root: &Path, job_hash: u64) -> Inventory {
        let store = NodeStore::at(root, job_hash);
        Inventory::collect(node, store.records().scan(), store.found())
    }

    /// Of the shared directory (`STORE/JOB/shared`).
    pub fn of_shared(root: &Path, job_hash: u64) -> Inventory {
        let store = SharedStore::at(root, job_hash);
        Inventory::collect(Part::SHARED, store.records().scan(), store.found())
    }

    fn collect(
        place: NodeId,
        scan: Result<crate::Scan, crate::ReadError>,
        found: Result<Vec<Found>, crate::ReadError>,
    ) -> Inventory {
        let mut errors = Vec::new();
        let scan = scan.unwrap_or_else(|error| {
            errors.push(error.into());
            crate::Scan::default()
        });
        let mut copies = found.unwrap_or_else(|error| {
            errors.push(error.into());
            Vec::new()
        });
        copies.sort_by_key(|copy| (copy.level, copy.id));
        Inventory {
            place,
            local: true,
            records: scan.records,
            copies,
            damaged: scan.damaged,
            foreign: scan.foreign,
            errors,
        }
    }

    /// The records of another job or key, if there are any: ignored, but not in silence,
    /// for a job whose key was lost has no other trace of what it has saved.
    pub(crate) fn of_others(&self) -> Option<Error> {
        let directory = self.foreign.first()?.parent()?;
        Some(Error::new(
            Code::KeyMismatch,
            Entity::File(directory.display().to_string()),
            format!(
                "{} of another job, or of this one under another key, ignored",
                count(self.foreign.len() as u64, "record")
            ),
            "put the job's own key back into its directory (STORE/JOB/key), or use another --job",
        ))
    }

    /// The file of a container at a level, if it is here and not being removed.
    pub(crate) fn copy(&self, part: &Part, level: Level) -> Option<&Found> {
        let tombstone = Record::Tombstone { id: part.id, level };
        self.copies
            .iter()
            .find(|copy| copy.id == part.id && copy.level == level)
            .filter(|_| !self.records.contains(&tombstone))
    }
}

//! What lies in one place: records, container files, damage. Made locally, or
//! received from another node, and joined into a [`crate::Catalogue`].

use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, Incarnation, Level, NodeId, Version, count};
use serde::{Deserialize, Serialize};

use crate::error::ReadError;
use crate::found::Found;
use crate::records::{RecordStore, Scan};
use crate::store::{NodeStore, SharedStore};
use outlive_ledger::{Part, Record};

/// The mark of a history, [`Record::History`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// There is none.
    None,
    /// A version of this incarnation was committed.
    Sound(Incarnation, Version),
    /// There is one, and it cannot be read or is of another key.
    Unreadable,
}

/// One place's records and containers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Inventory {
    /// The node; [`Part::SHARED`] for the shared directory.
    pub place: NodeId,
    /// Its directory.
    pub root: PathBuf,
    /// True if the paths can be opened from here.
    pub local: bool,
    /// All sound records.
    pub records: Vec<Record>,
    /// The mark that versions were committed, or what was found in its place.
    pub mark: Mark,
    /// All container files; their content was not looked at.
    pub copies: Vec<Found>,
    /// Damaged records.
    pub damaged: Vec<PathBuf>,
    /// Records of another job.
    pub foreign: Vec<PathBuf>,
    /// Why some of it could not be read. What could be read stands (P9).
    pub errors: Vec<Error>,
}

impl Mark {
    fn new(scan: &Scan) -> Mark {
        let sound = scan.records.iter().find_map(|record| match record {
            Record::History {
                incarnation,
                version,
            } => Some(Mark::Sound(*incarnation, *version)),
            _ => None,
        });
        let there = !(scan.damaged.is_empty() && scan.foreign.is_empty());
        sound.unwrap_or(if there { Mark::Unreadable } else { Mark::None })
    }
}

impl Inventory {
    /// Of a node's storage.
    pub fn of_node(node: NodeId, root: &Path, job_hash: u64) -> Inventory {
        let store = NodeStore::at(root, job_hash);
        Inventory::collect(node, root, store.records(), store.mark(), store.found())
    }

    /// Of the shared directory (`STORE/JOB/shared`).
    pub fn of_shared(root: &Path, job_hash: u64) -> Inventory {
        let store = SharedStore::at(root, job_hash);
        let place = Part::SHARED;
        Inventory::collect(place, root, store.records(), store.mark(), store.found())
    }

    fn collect(
        place: NodeId,
        root: &Path,
        records: &RecordStore,
        mark: &RecordStore,
        found: Result<Vec<Found>, ReadError>,
    ) -> Inventory {
        let mut errors = Vec::new();
        let mut scan = |records: &RecordStore| {
            records.scan().unwrap_or_else(|error| {
                errors.push(error.into());
                Scan::default()
            })
        };
        let mark = Mark::new(&scan(mark));
        let scan = scan(records);
        let mut copies = found.unwrap_or_else(|error| {
            errors.push(error.into());
            Vec::new()
        });
        copies.sort_by_key(|copy| (copy.level, copy.id));
        Inventory {
            place,
            root: root.to_owned(),
            local: true,
            mark,
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

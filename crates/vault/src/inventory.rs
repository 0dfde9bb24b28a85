//! What lies in one place: records, containers, damage; joined into a
//! [`crate::Catalogue`].

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use outlive_base::{Code, Entity, Error, Incarnation, Level, NodeId, Version, count};

use crate::directory::Directory;
use crate::found::Found;
use crate::records::{RecordStore, Scan};
use crate::store::{Key, Store};
use crate::vault::Vault;
use outlive_ledger::{Checkpoint, Part, Record};

/// The mark of a history, [`Record::History`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mark {
    /// There is none.
    None,
    /// A version of this incarnation was committed.
    Sound(Incarnation, Version),
    /// There is one, and it cannot be read or is of another key.
    Unreadable,
}

/// One place's records and containers.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// The node; [`Part::SHARED`] for the shared directory.
    pub place: NodeId,
    /// Where its copies are.
    pub store: Arc<dyn Store>,
    /// All sound records.
    pub records: Vec<Record>,
    /// The mark that versions were committed, or what was found in its place.
    pub mark: Mark,
    /// All containers; their content was not looked at.
    pub copies: Vec<Found>,
    /// Damaged records.
    pub damaged: Vec<Key>,
    /// Records of another job.
    pub foreign: Vec<Key>,
    /// The versions that are pinned here, by the names of the pins.
    pub pinned: BTreeSet<Checkpoint>,
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
    /// Of a node's directory.
    pub fn of_node(node: NodeId, root: &Path, job_hash: u64) -> Inventory {
        let store = Arc::new(Directory::at(root));
        Inventory::of(node, &Vault::of_node(store, job_hash))
    }

    /// Of the shared directory (`STORE/JOB/shared`).
    pub fn of_shared(root: &Path, job_hash: u64) -> Inventory {
        let store = Arc::new(Directory::at(root));
        Inventory::of(Part::SHARED, &Vault::shared(store, job_hash))
    }

    /// Of a place: a node, or [`Part::SHARED`].
    pub fn of(place: NodeId, vault: &Vault) -> Inventory {
        let mut errors = Vec::new();
        let mut scan = |records: &RecordStore| {
            records.scan().unwrap_or_else(|error| {
                errors.push(error.into());
                Scan::default()
            })
        };
        let mark = Mark::new(&scan(vault.mark()));
        let scan = scan(vault.records());
        let pinned = vault.records().pinned().unwrap_or_else(|error| {
            errors.push(error.into());
            BTreeSet::new()
        });
        let mut copies = vault.found().unwrap_or_else(|error| {
            errors.push(error.into());
            Vec::new()
        });
        copies.sort_by_key(|copy| (copy.level, copy.id));
        Inventory {
            place,
            store: Arc::clone(vault.store()),
            mark,
            records: scan.records,
            copies,
            damaged: scan.damaged,
            foreign: scan.foreign,
            pinned,
            errors,
        }
    }

    /// True if a pin belongs here: the place is the one that all share, or a node that has
    /// recorded anything.
    pub fn is_in_use(&self) -> bool {
        self.place == Part::SHARED || !self.records.is_empty()
    }

    /// What of the records cannot be read: what they decided, nobody may know any more.
    pub fn damage(&self) -> Option<Error> {
        let first = self.damaged.first()?;
        let number = count(self.damaged.len() as u64, "damaged record");
        Some(Error::new(
            Code::Corrupt,
            Entity::File(self.store.locate(first)),
            format!("{number} left out"),
            "look at the device; a version whose decision no other place has cannot be restored, \
             and an older one is taken: outlive checkpoints verify",
        ))
    }

    /// The records of another job or key, if there are any: ignored, but not in silence,
    /// for a job whose key was lost has no other trace of what it has saved.
    pub(crate) fn of_others(&self) -> Option<Error> {
        self.foreign.first()?;
        Some(Error::new(
            Code::KeyMismatch,
            Entity::File(self.store.name()),
            format!(
                "{} of another job, or of this one under another key, ignored",
                count(self.foreign.len() as u64, "record")
            ),
            "put the job's own key back into its directory (STORE/JOB/key), or use another --job",
        ))
    }

    /// The copy of a container at a level, if it is here and not being removed.
    pub(crate) fn copy(&self, part: &Part, level: Level) -> Option<&Found> {
        let tombstone = Record::Tombstone { id: part.id, level };
        self.copies
            .iter()
            .find(|copy| copy.id == part.id && copy.level == level)
            .filter(|_| !self.records.contains(&tombstone))
    }
}

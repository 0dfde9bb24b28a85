//! All versions of a job, from the records and files of all places that can be reached.
//!
//! Invariants: a version is offered only with a commit record (P1); of several
//! commits of a level the highest ballot wins; void versions are never offered. Of the
//! level memory there are records here and no copies: those the agent knows. There is no
//! database: each scan reads the stores.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use outlive_base::{Error, Incarnation, NodeId, Version};
use serde::{Deserialize, Serialize};

use crate::container::Container;
use crate::directory::Directory;
use crate::entry::{CopyState, Entry};
use crate::error::ReadError;
use crate::inventory::Inventory;
use crate::parity::{Bytes, ParityFile};
use crate::trace::Trace;
use crate::versions::entries;
use outlive_ledger::Part;

/// A version that was passed over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rejected {
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its number.
    pub version: Version,
    /// Why, for people.
    pub reason: String,
}

/// One copy's check.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CopyCheck {
    /// The version's incarnation.
    pub incarnation: Incarnation,
    /// The version's number.
    pub version: Version,
    /// The node whose ranks are in it.
    pub node: NodeId,
    /// The copy.
    pub copy: CopyState,
    /// What is wrong with it; absent: it is sound.
    pub error: Option<Error>,
}

/// All versions of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Catalogue {
    /// Version of this structure as JSON.
    pub schema: u32,
    /// Versions, newest first.
    pub entries: Vec<Entry>,
    /// Damaged records.
    pub damaged: Vec<String>,
    /// What could not be read, and where there are records of another job or key.
    pub errors: Vec<Error>,
    #[serde(skip)]
    pub(crate) inventories: Vec<Inventory>,
}

impl Catalogue {
    /// Reads the shared directory of `job_dir` (`STORE/JOB`) and the storage of all
    /// nodes that can be reached as directories (`NODE/JOB/node-N`). Other processes
    /// may be writing there.
    pub fn scan(job_dir: &Path, node_dirs: &[(NodeId, PathBuf)], job_hash: u64) -> Catalogue {
        let shared = Inventory::of_shared(&Directory::shared_in(job_dir), job_hash);
        let nodes = node_dirs
            .iter()
            .map(|(node, root)| Inventory::of_node(*node, root, job_hash));
        Catalogue::new(std::iter::once(shared).chain(nodes).collect())
    }

    /// Joins inventories, some of which may come from other nodes.
    pub fn new(inventories: Vec<Inventory>) -> Catalogue {
        let all: Vec<&Inventory> = inventories.iter().collect();
        Catalogue {
            schema: 1,
            entries: entries(&all),
            damaged: inventories
                .iter()
                .flat_map(|it| it.damaged.iter().map(|key| it.store.locate(key)))
                .collect(),
            errors: inventories
                .iter()
                .flat_map(|it| it.errors.iter().cloned().chain(it.of_others()))
                .collect(),
            inventories,
        }
    }

    /// The newest version that may be offered for restart and of which a copy is left; with
    /// `memory` also one of which no copy is seen here, because it lies in memory.
    pub fn newest(&self, memory: bool) -> Option<&Entry> {
        let usable = |entry: &&Entry| offered(entry).is_ok() && (memory || entry.is_stored());
        self.entries.iter().find(usable)
    }

    /// What shows that versions were committed, wherever no record of one can be read.
    /// It counts if nothing of [`Catalogue::entries`] can be used.
    pub fn traces(&self) -> Vec<Trace> {
        Trace::all(&self.inventories)
    }

    /// The newest incarnation that began anew; 0 if none did.
    pub fn begun_anew(&self) -> Incarnation {
        Trace::settled_by(&self.inventories)
    }

    /// The versions as they would be without the `lost` nodes: neither their copies
    /// nor their records.
    pub fn without(&self, lost: &BTreeSet<NodeId>) -> Vec<Entry> {
        let left: Vec<&Inventory> = self
            .inventories
            .iter()
            .filter(|it| !lost.contains(&it.place))
            .collect();
        entries(&left)
    }

    /// Opens every copy that a committed version calls for; with `deep`, reads all of
    /// it. Copies that are missing are reported too, unless newer versions took the
    /// version's place.
    pub fn verify(&self, deep: bool) -> Vec<CopyCheck> {
        let mut checks = Vec::new();
        for entry in &self.entries {
            for state in &entry.parts {
                for copy in &state.copies {
                    if entry.superseded && copy.path.is_none() {
                        continue;
                    }
                    checks.push(CopyCheck {
                        incarnation: entry.incarnation,
                        version: entry.version,
                        node: state.part.node,
                        copy: copy.clone(),
                        error: self.check(copy, &state.part, deep).err(),
                    });
                }
            }
        }
        checks
    }
}

impl Catalogue {
    /// Opens a copy that is there.
    pub(crate) fn open(&self, copy: &CopyState, part: &Part) -> Result<Container, ReadError> {
        let place = self.inventories.iter().find(|it| it.place == copy.place);
        let found = place.and_then(|it| Some((it, it.copy(part, copy.level)?)));
        let Some((place, found)) = found else {
            let place = shown(copy.place);
            let gone = std::io::ErrorKind::NotFound;
            return Err(ReadError::io(&place, "find the copy", gone));
        };
        Container::open_sealed(&*place.store, &found.key, &part.sealed())
    }

    /// Opens a parity that is there, and compares what it is with what was recorded of it.
    pub(crate) fn open_parity(
        &self,
        copy: &CopyState,
        part: &Part,
    ) -> Result<ParityFile, ReadError> {
        let place = self.inventories.iter().find(|it| it.place == copy.place);
        let found = place.and_then(|it| Some((it, it.copy(part, copy.level)?)));
        let Some((place, found)) = found else {
            let gone = std::io::ErrorKind::NotFound;
            return Err(ReadError::io(&shown(copy.place), "find the parity", gone));
        };
        let file = ParityFile::open(&*place.store, &found.key)?;
        match copy.parity == Some(file.parity) {
            true => Ok(file),
            false => Err(ReadError::corrupt(
                &found.path,
                "not the parity that was recorded",
            )),
        }
    }

    /// Bytes of a piece of a group.
    pub(crate) fn bytes_of(
        &self,
        copy: &CopyState,
        part: &Part,
        range: std::ops::Range<u64>,
    ) -> Result<Bytes, ReadError> {
        let place = self.inventories.iter().find(|it| it.place == copy.place);
        let found = place.and_then(|it| Some((it, it.copy(part, copy.level)?)));
        let Some((place, found)) = found else {
            let gone = std::io::ErrorKind::NotFound;
            return Err(ReadError::io(&shown(copy.place), "find the copy", gone));
        };
        match copy.level.members() {
            Some(_) => Bytes::of_parity(&*place.store, &found.key, range),
            None => Bytes::of_container(&*place.store, &found.key, range),
        }
    }

    pub(crate) fn check(&self, copy: &CopyState, part: &Part, deep: bool) -> Result<(), Error> {
        if copy.path.is_none() {
            let place = copy.place;
            let entity = match place == Part::SHARED || place == NodeId::SERVER {
                true => outlive_base::Entity::File(shown(place)),
                false => outlive_base::Entity::Node(place.0),
            };
            return Err(Error::new(
                outlive_base::Code::NotFound,
                entity,
                "the copy is missing or has another length",
                "another copy is used; the next checkpoint makes a new one",
            ));
        }
        if copy.level.members().is_some() {
            let file = self.open_parity(copy, part)?;
            if deep {
                file.verify()?;
            }
            return Ok(());
        }
        let container = self.open(copy, part)?;
        if deep {
            container.verify(None)?;
        }
        Ok(())
    }
}

/// Whether a version may be offered at all.
pub(crate) fn offered(entry: &Entry) -> Result<(), String> {
    if entry.void {
        return Err("void: a later incarnation went on from an older version".into());
    }
    if entry.unproven {
        return Err("no record says whether a later start went on from it".into());
    }
    if entry.committed().is_none() {
        let aborted = entry.levels.iter().find_map(|it| it.aborted.as_deref());
        return Err(match aborted {
            Some(text) => format!("aborted: {text}"),
            None => "not committed at any level".into(),
        });
    }
    let ranks: BTreeSet<_> = entry
        .parts
        .iter()
        .flat_map(|it| it.part.ranks.iter())
        .collect();
    if ranks.len() != entry.ranks as usize {
        return Err(format!(
            "the commit names {} of {}",
            ranks.len(),
            outlive_base::count(entry.ranks, "rank")
        ));
    }
    Ok(())
}

pub(crate) fn shown(place: NodeId) -> String {
    if place == Part::SHARED {
        "the shared directory".into()
    } else if place == NodeId::SERVER {
        "the memory server".into()
    } else {
        place.to_string()
    }
}

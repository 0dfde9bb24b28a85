//! All versions of a job, from the records and files of all places that can be reached.
//!
//! Invariants: a version is offered only with a commit record (P1); of several
//! commits of a level the highest ballot wins; void versions are never offered. Of the
//! level memory there are records here and no copies: those the agent knows. There is no
//! database: each scan reads the directories.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use outlive_base::{Error, Incarnation, Level, NodeId, Version};
use serde::{Deserialize, Serialize};

use crate::container::Container;
use crate::inventory::Inventory;
use crate::trace::Trace;
use crate::versions::entries;
use outlive_ledger::Part;

/// A version at one level.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LevelState {
    /// The level.
    pub level: Level,
    /// The ballot of the winning commit; absent: not committed.
    pub committed: Option<u64>,
    /// In how many places that commit is recorded.
    pub recorded: u32,
    /// Recorded in f + 1 failure domains, or in the shared directory.
    pub stable: bool,
    /// Why it was aborted, if it was and is not committed.
    pub aborted: Option<String>,
}

/// A copy that a version's records call for, or that was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyState {
    /// Where: a node, or [`Part::SHARED`].
    pub place: NodeId,
    /// Disk: the node's own; partner; shared.
    pub level: Level,
    /// The file, if there is one of the right length.
    pub path: Option<PathBuf>,
    /// True if the file can be opened from here.
    pub local: bool,
}

/// The container of one node, and its copies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartState {
    /// What the copies must be. Its holder is that of one of them.
    pub part: Part,
    /// Copies, the cheapest to read first.
    pub copies: Vec<CopyState>,
}

/// One version of the job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The incarnation that captured it.
    pub incarnation: Incarnation,
    /// Its number.
    pub version: Version,
    /// True if a later incarnation went on from an older version.
    pub void: bool,
    /// True if no record that can be read says whether that is so.
    #[serde(default)]
    pub unproven: bool,
    /// True if a pin keeps it.
    pub pinned: bool,
    /// True if newer versions took its place and its copies were, or are being,
    /// removed.
    pub superseded: bool,
    /// True if it was committed, or a node at least wrote its part. False for one that was
    /// wanted and given up before that.
    pub captured: bool,
    /// Ranks of the job, by the commit.
    pub ranks: u32,
    /// Bytes of its containers, one copy of each.
    pub bytes: u64,
    /// Levels of which something is recorded.
    pub levels: Vec<LevelState>,
    /// Its containers, by node; empty if it is not committed.
    pub parts: Vec<PartState>,
}

impl Entry {
    /// True if newer versions took its place and no copy of it is left.
    pub fn is_gone(&self) -> bool {
        self.superseded && !self.is_stored()
    }

    /// True if a copy of it is left somewhere.
    pub fn is_stored(&self) -> bool {
        self.parts
            .iter()
            .flat_map(|part| &part.copies)
            .any(|copy| copy.path.is_some())
    }

    /// The strongest level at which it is committed.
    pub fn committed(&self) -> Option<Level> {
        self.levels
            .iter()
            .filter(|it| it.committed.is_some())
            .map(|it| it.level)
            .max()
    }
}

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
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Catalogue {
    /// Version of this structure as JSON.
    pub schema: u32,
    /// Versions, newest first.
    pub entries: Vec<Entry>,
    /// Damaged records.
    pub damaged: Vec<PathBuf>,
    /// What could not be read, and where there are records of another job or key.
    pub errors: Vec<Error>,
    #[serde(skip)]
    inventories: Vec<Inventory>,
}

impl Catalogue {
    /// Reads the shared directory of `job_dir` (`STORE/JOB`) and the storage of all
    /// nodes that can be reached as directories (`NODE/JOB/node-N`). Other processes
    /// may be writing there.
    pub fn scan(job_dir: &Path, node_dirs: &[(NodeId, PathBuf)], job_hash: u64) -> Catalogue {
        let shared = Inventory::of_shared(&job_dir.join("shared"), job_hash);
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
                .flat_map(|it| it.damaged.clone())
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
                        error: check(copy, &state.part, deep).err(),
                    });
                }
            }
        }
        checks
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
    let ranks: BTreeSet<_> = entry.parts.iter().flat_map(|it| &it.part.ranks).collect();
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
    } else {
        place.to_string()
    }
}

fn check(copy: &CopyState, part: &Part, deep: bool) -> Result<(), Error> {
    let Some(path) = &copy.path else {
        return Err(Error::new(
            outlive_base::Code::NotFound,
            outlive_base::Entity::Node(copy.place.0),
            "the copy is missing or has another length",
            "another copy is used; the next checkpoint makes a new one",
        ));
    };
    if !copy.local {
        // Its holder has listed it; whoever streams it checks it.
        return Ok(());
    }
    let container = Container::open_sealed(path, &part.sealed())?;
    if deep {
        container.verify(None)?;
    }
    Ok(())
}

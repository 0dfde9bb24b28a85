//! What nodes store: records on disks that tear and rot, containers, and the shared
//! directory.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::rng::{Sequence, draw};
use outlive_base::{ContainerId, Incarnation, Level, Rank, Time, Version};
use outlive_ledger::retention::long_gone;
use outlive_ledger::{Checkpoint, GcPolicy, Record};

use super::Key;
use crate::disk::Disk;

/// The bytes of a node's ranks (a word stands for a rank's), and their digest when they
/// were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub words: Vec<(Rank, u64)>,
    pub digest: u128,
}

/// The digest of the words.
pub fn digest(words: &[(Rank, u64)]) -> u128 {
    let sum = words.iter().fold(words.len() as u64, |sum, (rank, word)| {
        draw(sum, *word, u64::from(rank.0))
    });
    u128::from(sum)
}

impl Container {
    pub fn new(words: Vec<(Rank, u64)>) -> Container {
        let digest = digest(&words);
        Container { words, digest }
    }
    pub fn is_good(&self) -> bool {
        digest(&self.words) == self.digest
    }
    pub fn bare(&self) -> Vec<u64> {
        self.words.iter().map(|(_, word)| *word).collect()
    }
    pub fn flip(&mut self, random: &mut Sequence) {
        if self.words.is_empty() {
            // Of a node without ranks: its header.
            self.digest ^= 1;
            return;
        }
        let at = random.below(self.words.len() as u64) as usize;
        self.words[at].1 ^= 1 << random.below(64);
    }
}

/// Which copies were removed from a store.
#[derive(Default)]
pub struct Tombs(BTreeSet<(ContainerId, Level)>);

impl Tombs {
    pub fn insert(&mut self, copy: (ContainerId, Level)) {
        self.0.insert(copy);
    }

    /// The versions whose records go, for their copies are long gone.
    pub fn forget<'r>(
        &mut self,
        records: impl Iterator<Item = &'r Record> + Clone,
        present: impl Iterator<Item = Key>,
        policy: &GcPolicy,
    ) -> BTreeSet<Checkpoint> {
        let present = present.map(|key| (Incarnation(key.0), Version(key.1)));
        let forgotten = long_gone(records, &self.0, &present.collect(), policy);
        let gone = |id: &ContainerId| forgotten.contains(&(id.incarnation, id.version));
        self.0.retain(|(id, _)| !gone(id));
        forgotten
    }
}

/// What lies in a node's storage.
#[derive(Default)]
pub struct Storage {
    pub tombs: Tombs,
    pub records: Disk<Record>,
    pub own: BTreeMap<Key, Container>,
    /// For other nodes.
    pub partner: BTreeMap<(Key, u32), Container>,
    /// Of the containers of its groups.
    pub parity: BTreeMap<(Key, Level), Vec<u8>>,
    /// The newest incarnation in which a version is marked to have been committed.
    pub mark: Incarnation,
}

/// The bytes of a parity, and the members of its group.
pub type ServedParity = (Vec<u8>, Vec<u32>);

/// What a memory server keeps: parities, each with the members of its group, under the name of
/// the one that had it made.
#[derive(Default)]
pub struct Served {
    /// It is out of reach until then.
    pub out_until: Time,
    pub parity: BTreeMap<(Key, Level, u32), ServedParity>,
}

/// What lies in the shared directory.
#[derive(Default)]
pub struct Shared {
    /// It is out of reach until then.
    pub out_until: Time,
    /// So that it cannot be read either; else it takes nothing more.
    pub hidden: bool,
    /// Whose mount it is, if not everybody's.
    pub only: Option<u32>,
    pub tombs: Tombs,
    pub records: Vec<Record>,
    pub containers: BTreeMap<(Key, u32), Container>,
}

//! Copies of versions that a node can read, what it asks to be read before it is needed, and what it
//! asks to be made of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use outlive_base::{ContainerId, Error, Level, Time};
use outlive_ledger::scheme::Group;
use outlive_ledger::{Parity, Part, Sealed};

/// Where a copy lies, seen from the node that reads it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// Node storage: this node's own container.
    Own,
    /// Node storage: another node's container, kept for it (level partner).
    Kept,
    /// Node storage: this node's parity of a level.
    Parity(Level),
    /// The shared directory: this node's own container.
    Shared,
}

/// A copy that a node can read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CopyId {
    /// Whose container, and of which version. Of a parity: whose parity.
    pub id: ContainerId,
    /// Where.
    pub place: Place,
}

/// What a copy must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// A container.
    Container(Sealed),
    /// A parity.
    Parity(Parity),
}

/// A copy to be read from its storage, and to be mended if it is damaged.
pub struct Reading {
    /// Which.
    pub copy: CopyId,
    /// What it must be.
    pub expected: Expected,
    /// The copies that the commit records name of the same container.
    pub sources: Vec<(Level, Part)>,
    /// Of levels with groups: the group of the copy's node, and the parts of its members.
    pub made_of: BTreeMap<Level, (Group, Vec<Part>)>,
    /// Bytes a second that are read at most.
    pub bytes_per_s: u64,
    /// What slows or ends the reading.
    pub brake: Brake,
}

/// What came of reading a copy.
#[derive(Debug)]
pub enum Scrubbed {
    /// All of it is there and is what was recorded: so many bytes.
    Whole(u64),
    /// It was removed or replaced meanwhile.
    Gone,
    /// The brake ended it.
    Stopped,
    /// It could not be looked at.
    Unreadable(Error),
    /// It was damaged, and a sound copy stands in its place, made of what this level keeps.
    Mended {
        /// What was wrong with it.
        damage: Error,
        /// Where the sound bytes came from.
        from: Level,
    },
    /// It is damaged, and nothing could mend it now.
    Damaged {
        /// What is wrong with it.
        damage: Error,
        /// Why each other copy could not be used; empty: there is none.
        why: Vec<Error>,
    },
}

/// Slows or ends a reading that somebody else carries out.
#[derive(Clone, Default, Debug)]
pub struct Brake(Arc<AtomicU8>);

const SLOW: u8 = 1;
const STOP: u8 = 2;

impl Brake {
    /// Something else needs the storage, or does not any more.
    pub fn slow(&self, on: bool) {
        match on {
            true => self.0.fetch_or(SLOW, Relaxed),
            false => self.0.fetch_and(!SLOW, Relaxed),
        };
    }
    /// The reading ends soon.
    pub fn stop(&self) {
        self.0.fetch_or(STOP, Relaxed);
    }
    /// True if something else needs the storage.
    pub fn is_slow(&self) -> bool {
        self.0.load(Relaxed) & SLOW != 0
    }
    /// True if the reading is to end.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Relaxed) & STOP != 0
    }
}

/// A copy to be made at `shared` of this node's container.
pub struct Transferring {
    /// The container as it was written here.
    pub part: Part,
    /// Bytes a second that are written at most; 0: as many as can be.
    pub bytes_per_s: u64,
    /// How long a store that takes nothing is tried again.
    pub patience: Time,
    /// What ends it.
    pub brake: Brake,
    /// How far it is.
    pub progress: Progress,
}

/// How far something is that somebody else does.
#[derive(Clone, Default, Debug)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// So many bytes more were read or written.
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Relaxed);
    }
    /// All so far.
    pub fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_brake_stays_so() {
        let brake = Brake::default();
        let same = brake.clone();
        brake.slow(true);
        assert!(same.is_slow() && !same.is_stopped());
        brake.slow(false);
        assert!(!same.is_slow());
        brake.stop();
        brake.slow(true);
        brake.slow(false);
        assert!(same.is_stopped() && !same.is_slow());
    }
}

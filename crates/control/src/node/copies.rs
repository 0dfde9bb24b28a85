//! Copies of versions that a node can read, what it asks to be read before it is needed, and what it
//! asks to be made of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use outlive_base::{ContainerId, Error, Level, Time};
use outlive_ledger::scheme::Group;
use outlive_ledger::{GcPolicy, Parity, Part, Sealed};

use crate::transfers::TransferStatus;

/// Where a copy lies, seen from the node that reads it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CopySource {
    /// Node storage: this node's own container.
    Own,
    /// Node storage: another node's container, kept for it (level partner).
    Kept,
    /// This node's parity of a level, in node storage or at the memory server.
    Parity(Level),
    /// The shared directory: this node's own container.
    Shared,
}

impl CopySource {
    /// The level that this copy is called by; a node's own container serves others as well.
    pub const fn level(self) -> Level {
        match self {
            CopySource::Own => Level::DISK,
            CopySource::Kept => Level::PARTNER,
            CopySource::Parity(level) => level,
            CopySource::Shared => Level::SHARED,
        }
    }
}

/// A copy that a node can read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CopyId {
    /// Whose container, and of which version. Of a parity: whose parity.
    pub id: ContainerId,
    /// Where.
    pub place: CopySource,
}

/// What a copy must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// A container.
    Container(Sealed),
    /// A parity.
    Parity(Parity),
}

/// A copy to be read from its storage, and to be mended if it is damaged, or made again if it was lost.
pub struct Reading {
    /// Which.
    pub copy: CopyId,
    /// What it must be.
    pub expected: Expected,
    /// All of it is read; else it is only seen whether it is there.
    pub whole: bool,
    /// What may be removed: a copy that is not there, and neither may go nor was removed, was lost.
    pub policy: GcPolicy,
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
    /// It is there; no more was asked.
    There,
    /// It was removed or replaced meanwhile, or is of no use any more.
    Gone,
    /// The brake ended it.
    Stopped,
    /// It could not be looked at.
    Unreadable(Error),
    /// It was damaged or lost, and a sound copy stands in its place, made of what this level keeps.
    Mended {
        /// What was wrong with it.
        damage: Error,
        /// Where the sound bytes came from.
        from: Level,
    },
    /// It is damaged or lost, and nothing could mend it now.
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
const PAUSE: u8 = 4;

impl Brake {
    /// Something else needs the storage, or does not any more.
    pub fn slow(&self, on: bool) {
        self.set(SLOW, on);
    }
    /// It stands still, or goes on.
    pub fn pause(&self, on: bool) {
        self.set(PAUSE, on);
    }
    fn set(&self, bit: u8, on: bool) {
        match on {
            true => self.0.fetch_or(bit, Relaxed),
            false => self.0.fetch_and(!bit, Relaxed),
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
    /// True if it is to stand still.
    pub fn is_paused(&self) -> bool {
        self.0.load(Relaxed) & PAUSE != 0
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
pub struct Progress(Arc<Counts>);

#[derive(Default, Debug)]
struct Counts {
    moved: AtomicU64,
    reached: AtomicU64,
}

impl Progress {
    /// So many bytes more were read or written, also of what is read back: a sign of life.
    pub fn add(&self, bytes: u64) {
        self.0.moved.fetch_add(bytes, Relaxed);
    }
    /// All so far.
    pub fn bytes(&self) -> u64 {
        self.0.moved.load(Relaxed)
    }
    /// It goes on from this byte of the copy: what is before it is there.
    pub fn goes_on_from(&self, byte: u64) {
        self.0.reached.store(byte, Relaxed);
    }
    /// So many bytes more of the copy were handed on.
    pub fn hand_on(&self, bytes: u64) {
        self.add(bytes);
        self.0.reached.fetch_add(bytes, Relaxed);
    }
    /// So many bytes of the copy are there or were handed on.
    pub fn reached(&self) -> u64 {
        self.0.reached.load(Relaxed)
    }
}

/// A copy that is on its way to shared storage, or waits for its turn.
pub struct OnTheWay {
    /// Of this container.
    pub id: ContainerId,
    /// Its bytes.
    pub length: u64,
    /// When it began, and how far it is; `None`: it waits.
    pub going: Option<(Time, Progress)>,
}

impl OnTheWay {
    /// What is said of it at this time.
    pub fn status(&self, now: Time) -> TransferStatus {
        let age = self.going.as_ref().map(|(began, _)| now.since(*began));
        let going = |of: fn(&Progress) -> u64| self.going.as_ref().map_or(0, |(_, it)| of(it));
        let seconds = age.map_or(0.0, Time::as_secs);
        TransferStatus {
            incarnation: self.id.incarnation.0,
            version: self.id.version,
            bytes: going(Progress::reached).min(self.length),
            bytes_total: self.length,
            age_ms: age.map(|age| age.as_ms() as u64),
            bytes_per_second: match seconds > 0.0 {
                true => going(Progress::bytes) as f64 / seconds,
                false => 0.0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_told_with_its_rate_and_without_what_is_read_back() {
        let id = ContainerId {
            incarnation: outlive_base::Incarnation(2),
            version: outlive_base::Version(40),
            node: outlive_base::NodeId(1),
        };
        let progress = Progress::default();
        let going = OnTheWay {
            id,
            length: 1000,
            going: Some((Time::from_secs(5), progress.clone())),
        };
        assert_eq!(going.status(Time::from_secs(5)).bytes_per_second, 0.0);
        progress.goes_on_from(100);
        progress.hand_on(300);
        let status = going.status(Time::from_secs(8));
        assert_eq!((status.bytes, status.bytes_total), (400, 1000));
        assert_eq!(
            (status.age_ms, status.bytes_per_second),
            (Some(3000), 100.0)
        );
        progress.hand_on(600);
        progress.add(700);
        let status = going.status(Time::from_secs(15));
        assert_eq!((status.bytes, status.bytes_per_second), (1000, 160.0));
        let waits = OnTheWay {
            going: None,
            ..going
        };
        let status = waits.status(Time::from_secs(15));
        assert_eq!((status.bytes, status.age_ms), (0, None));
    }

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

//! Which versions are on the line that leads to the present, and which are void.
//!
//! Each start of a job's ranks is an incarnation that restored one version; what
//! older incarnations captured after that version belongs to a past that did not
//! happen. Invariant: a version is called void only on the word of a record.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::level::StoreKind;
use outlive_base::{Incarnation, Version};

use crate::record::Record;

/// The line of incarnations, from their records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lineage {
    /// Incarnations on the line and their last version that counts.
    last: BTreeMap<Incarnation, Version>,
    /// The newest incarnation that is recorded.
    current: Option<Incarnation>,
    /// Below this incarnation nothing is known.
    known_from: Incarnation,
    /// Below this incarnation nothing proves that a version is on the line: either
    /// nothing is known, or versions of a newer incarnation are whose record is lost.
    proven_from: Incarnation,
}

impl Lineage {
    /// The line that these records tell, in any order; others are ignored.
    pub fn new<'r>(records: impl IntoIterator<Item = &'r Record>) -> Lineage {
        let mut starts = BTreeMap::new();
        let mut committed = Incarnation(0);
        for record in records {
            if let Record::Commit { incarnation, .. } = record {
                committed = committed.max(*incarnation);
            }
            if let Record::Incarnation {
                number, restored, ..
            } = record
            {
                starts.insert(
                    *number,
                    restored.map(|(incarnation, version, _)| (incarnation, version)),
                );
            }
        }
        let mut line = Lineage {
            proven_from: committed,
            ..Lineage::default()
        };
        let Some((current, _)) = starts.last_key_value() else {
            return line;
        };
        line.current = Some(*current);
        line.last.insert(*current, Version(u64::MAX));
        let mut at = *current;
        line.known_from = loop {
            match starts.get(&at) {
                Some(Some((older, version))) if *older < at => {
                    line.last.insert(*older, *version);
                    at = *older;
                }
                // Began anew: everything before is void.
                Some(None) => break Incarnation(0),
                // No record, or one that makes no sense.
                _ => break at,
            }
        };
        if committed <= *current {
            line.proven_from = line.known_from;
        }
        line
    }

    /// True if no record proves that the version is on the line, and none that it is not:
    /// it is neither offered nor removed.
    pub fn is_unproven(&self, incarnation: Incarnation, version: Version) -> bool {
        incarnation < self.proven_from && !self.is_void(incarnation, version)
    }

    /// True if a record says that the version is not on the line.
    pub fn is_void(&self, incarnation: Incarnation, version: Version) -> bool {
        match (self.last.get(&incarnation), self.current) {
            (Some(last), _) => version > *last,
            (None, Some(current)) => incarnation < current && incarnation >= self.known_from,
            (None, None) => false,
        }
    }
}

/// Decisions about shared storage that a coordinator had recorded at its node, `here`, and not
/// yet in shared storage, `there`, when it ended: newer than all that stand there. They are to
/// be written there before anything is said of them. Older ones were collected.
pub fn unfinished<'r>(here: &'r [Record], there: &[Record]) -> Vec<&'r Record> {
    let newest = there.iter().filter_map(decided_of_all).max();
    let line = Lineage::new(here);
    let missing = |record: &&Record| {
        decided_of_all(record).is_some_and(|at| Some(at) > newest && !line.is_void(at.0, at.1))
    };
    here.iter().filter(missing).collect()
}

/// True if something is known here of a level that lies in shared storage: its decisions may stand
/// there and be missing here.
pub fn may_overlook(here: &[Record]) -> bool {
    here.iter().any(|record| {
        let level = match *record {
            Record::Commit { level, .. } | Record::Prepared { level, .. } => Some(level),
            _ => None,
        };
        level.is_some_and(|level| level.store() == StoreKind::Shared)
    })
}

/// Decisions that stand in shared storage, `there`, about versions of which a node has records,
/// `here`, without this one: that was damaged. Who asks for it is not to be told that it was never
/// taken.
pub fn overlooked(here: &[Record], there: &[Record]) -> Vec<Record> {
    let known: BTreeSet<_> = here.iter().filter_map(Record::checkpoint).collect();
    let decided: BTreeSet<_> = here.iter().filter_map(decided_of_all).collect();
    let line = Lineage::new(here);
    let lacks = |record: &&Record| {
        decided_of_all(record).is_some_and(|at| {
            known.contains(&at) && !decided.contains(&at) && !line.is_void(at.0, at.1)
        })
    };
    there.iter().filter(lacks).cloned().collect()
}

/// Of which checkpoint a record decides that it stands in shared storage.
fn decided_of_all(record: &Record) -> Option<(Incarnation, Version)> {
    match *record {
        Record::Commit {
            incarnation,
            version,
            level,
            ..
        } if level.store() == StoreKind::Shared => Some((incarnation, version)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::Level;

    use super::*;

    fn start(number: u32, restored: Option<(u32, u64)>) -> Record {
        Record::Incarnation {
            number: Incarnation(number),
            restored: restored.map(|(i, v)| (Incarnation(i), Version(v), Level::DISK)),
            members: vec![],
            ranks: 1,
        }
    }

    fn void(line: &Lineage, incarnation: u32, version: u64) -> bool {
        line.is_void(Incarnation(incarnation), Version(version))
    }

    #[test]
    fn later_versions_of_older_incarnations_are_void() {
        // 1 began; 2 restored 1/5; 3 restored 1/4 (2 lost all); 4 restored 3/9.
        let records = [
            start(4, Some((3, 9))),
            start(1, None),
            start(2, Some((1, 5))),
            start(3, Some((1, 4))),
        ];
        let line = Lineage::new(&records);
        assert!(!void(&line, 4, 1000) && !void(&line, 3, 9) && void(&line, 3, 10));
        assert!(
            void(&line, 2, 5) && void(&line, 2, 6),
            "a branch that was left"
        );
        assert!(!void(&line, 1, 4) && void(&line, 1, 5));
        assert!(!void(&line, 5, 1), "newer than all records");
    }

    #[test]
    fn what_shared_storage_lacks_is_newer_than_what_it_has_and_on_the_line() {
        let commit = |incarnation, version, level| Record::Commit {
            ballot: 1,
            incarnation: Incarnation(incarnation),
            version: Version(version),
            level,
            parts: vec![].into(),
            ranks: 1,
            groups: Vec::new(),
        };
        let shared = |incarnation, version| commit(incarnation, version, Level::SHARED);
        let here = [
            start(1, None),
            start(2, Some((1, 20))),
            shared(1, 10),
            shared(1, 20),
            shared(1, 30),
            shared(2, 40),
            commit(2, 50, Level::DISK),
        ];
        let lacks = |there: &[Record]| -> Vec<_> {
            let found = unfinished(&here, there).into_iter();
            found.filter_map(Record::checkpoint).collect()
        };
        let at = |incarnation, version| (Incarnation(incarnation), Version(version));
        assert_eq!(
            lacks(&[shared(1, 20)]),
            [at(2, 40)],
            "30 is void, 10 was collected"
        );
        assert_eq!(lacks(&[]), [at(1, 10), at(1, 20), at(2, 40)]);
        assert_eq!(lacks(&[shared(2, 40)]), []);
        assert_eq!(
            lacks(&[commit(2, 60, Level::DISK)]).len(),
            3,
            "other levels do not count"
        );
    }

    #[test]
    fn a_fresh_start_voids_all_and_a_missing_record_voids_nothing_below() {
        let line = Lineage::new(&[start(1, None), start(2, None)]);
        assert!(void(&line, 1, 1) && !void(&line, 2, 1));
        let line = Lineage::new(&[start(5, Some((3, 7)))]);
        assert!(void(&line, 4, 1) && !void(&line, 3, 7) && void(&line, 3, 8));
        assert!(!void(&line, 2, 1), "nobody knows");
        assert!(!void(&Lineage::new(&[]), 1, 1));
        let line = Lineage::new(&[start(2, Some((2, 7)))]);
        assert!(
            !void(&line, 2, 9) && !void(&line, 1, 1),
            "nonsense voids nothing"
        );
    }
}

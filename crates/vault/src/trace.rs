//! What shows that versions of a job were committed though no record of one can be read:
//! marks, damaged records, records of another key, containers without any record.
//!
//! Invariant: what is missing is never taken for what never was. A place is without a
//! trace only if nothing was ever committed there, or if its owner's word to begin anew
//! is on record since.

use std::fmt;

use outlive_base::{Error, Incarnation, NodeId, Version};
use serde::{Deserialize, Serialize};

use crate::inventory::{Inventory, Mark};
use crate::store::Key;
use outlive_ledger::Record;

/// The trace of a history at one place.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Trace {
    /// The node; [`crate::Part::SHARED`] for the shared directory.
    pub place: NodeId,
    /// What people find it by.
    pub root: String,
    /// The newest incarnation that it speaks of, from 1.
    pub incarnation: Incarnation,
    /// What the mark says was committed.
    pub mark: Option<(Incarnation, Version)>,
    /// Records that are damaged, the mark among them.
    pub damaged: usize,
    /// Records of another job or key.
    pub foreign: usize,
    /// Containers, if no record that can be read is beside them.
    pub containers: usize,
    /// Why some of it could not be looked at.
    pub errors: Vec<Error>,
}

impl Trace {
    /// The trace at a place, if there is one.
    pub fn of(inventory: &Inventory) -> Option<Trace> {
        // A place at which this job was opened was looked at then, and the rest of it: what
        // is of others, or without a record of ours, was known and is not the job's.
        let ours = |record: &Record| matches!(record, Record::Incarnation { .. });
        let opened = inventory.records.iter().any(ours);
        let (mark, damaged_mark) = match inventory.mark {
            Mark::None => (None, 0),
            Mark::Sound(incarnation, version) => (Some((incarnation, version)), 0),
            Mark::Unreadable => (None, 1),
        };
        let mut trace = Trace {
            place: inventory.place,
            root: inventory.store.name(),
            incarnation: Incarnation(0),
            mark,
            damaged: inventory.damaged.len() + damaged_mark,
            foreign: if opened { 0 } else { inventory.foreign.len() },
            containers: if opened { 0 } else { inventory.copies.len() },
            errors: inventory.errors.clone(),
        };
        let some = trace.damaged + trace.foreign + trace.containers + trace.errors.len();
        if some == 0 && mark.is_none() {
            return None;
        }
        // Where nothing tells, the first incarnation is meant: any later word to begin
        // anew is then newer.
        let named = inventory.damaged.iter().filter_map(Key::incarnation);
        let contained = inventory.copies.iter().map(|copy| copy.id.incarnation);
        trace.incarnation = named
            .chain(mark.map(|(incarnation, _)| incarnation))
            .chain(contained.filter(|_| trace.containers > 0))
            .fold(Incarnation(1), Incarnation::max);
        Some(trace)
    }

    /// The traces at all places, without those that an owner's word to begin anew, on
    /// record at any of them, has settled.
    pub fn all(inventories: &[Inventory]) -> Vec<Trace> {
        let anew = Trace::settled_by(inventories);
        let traces = inventories.iter().filter_map(Trace::of);
        traces.filter(|trace| trace.incarnation >= anew).collect()
    }

    /// The newest incarnation that began anew, by the records; 0 if none did. What is
    /// older is settled by it.
    pub(crate) fn settled_by(inventories: &[Inventory]) -> Incarnation {
        let anew = |record: &Record| match record {
            Record::Incarnation {
                number,
                restored: None,
                ..
            } => Some(*number),
            _ => None,
        };
        let records = inventories.iter().flat_map(|it| &it.records);
        records.filter_map(anew).max().unwrap_or(Incarnation(0))
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = Vec::new();
        if let Some((incarnation, version)) = self.mark {
            said.push(format!(
                "a mark that {version} of {incarnation} was committed"
            ));
        }
        let counted = [
            (self.damaged, "damaged record"),
            (self.foreign, "record of another job or key"),
            (self.containers, "container without a record"),
        ];
        for (count, what) in counted {
            match count {
                0 => {}
                1 => said.push(format!("1 {what}")),
                // "2 records of another job": the plural belongs to the first noun.
                _ => said.push(format!("{count} {}", plural(what))),
            }
        }
        said.extend(self.errors.iter().map(ToString::to_string));
        write!(f, "{}: {}", self.root, said.join(", "))
    }
}

fn plural(what: &str) -> String {
    match what.split_once(' ') {
        Some(("damaged", noun)) => format!("damaged {noun}s"),
        Some((noun, rest)) => format!("{noun}s {rest}"),
        None => format!("{what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Directory, ObjectKind, RecordStore, Vault};
    use std::path::Path;
    use std::sync::Arc;

    const COMMITTED: Record = Record::History {
        incarnation: Incarnation(2),
        version: Version(10),
    };

    fn anew(number: u32) -> Record {
        Record::Incarnation {
            number: Incarnation(number),
            restored: None,
            members: vec![],
            ranks: 1,
        }
    }

    fn look(root: &Path) -> Inventory {
        Inventory::of_node(NodeId(0), root, 7)
    }

    #[test]
    fn a_place_where_nothing_was_committed_has_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Trace::of(&look(&dir.path().join("missing"))), None);
        let store = Vault::create(dir.path(), 7).unwrap();
        assert_eq!(Trace::of(&look(dir.path())), None);
        store.records().persist(&anew(1)).unwrap();
        // A start that was cut off in its first round leaves a container.
        std::fs::write(dir.path().join("containers/i1-v10-n0.olc"), "x").unwrap();
        assert_eq!(Trace::of(&look(dir.path())), None);
    }

    #[test]
    fn whatever_is_left_is_a_trace_until_the_owners_word() {
        let dir = tempfile::tempdir().unwrap();
        let store = Vault::create(dir.path(), 7).unwrap();
        let path = dir.path().join("containers/i2-v10-n0.olc");
        std::fs::write(&path, "x").unwrap();
        let trace = Trace::of(&look(dir.path())).unwrap();
        assert_eq!((trace.containers, trace.incarnation.0), (1, 2));
        std::fs::remove_file(&path).unwrap();

        let damaged = dir.path().join("records/commit-i2-v10-disk-b1.rec");
        std::fs::write(&damaged, "x").unwrap();
        let trace = Trace::of(&look(dir.path())).unwrap();
        assert_eq!((trace.damaged, trace.incarnation.0), (1, 2));
        assert!(trace.to_string().ends_with(": 1 damaged record"), "{trace}");
        // The first start of all is no word about what came with it or after it.
        store.records().persist(&anew(2)).unwrap();
        assert_eq!(Trace::all(&[look(dir.path())]).len(), 1);
        store.records().persist(&anew(3)).unwrap();
        assert_eq!(Trace::all(&[look(dir.path())]), []);
        std::fs::remove_file(&damaged).unwrap();

        for name in ["incarnation-2.rec", "incarnation-3.rec"] {
            std::fs::remove_file(dir.path().join("records").join(name)).unwrap();
        }
        store.mark().persist(&COMMITTED).unwrap();
        let trace = Trace::of(&look(dir.path())).unwrap();
        assert_eq!(trace.mark, Some((Incarnation(2), Version(10))));
        std::fs::write(dir.path().join("history.rec"), "x").unwrap();
        assert_eq!(Trace::of(&look(dir.path())).unwrap().damaged, 1);
        // Of another key: the job's own is lost.
        let directory = Arc::new(Directory::at(dir.path()));
        let marks = RecordStore::new(directory, ObjectKind::Mark, 8);
        marks.persist(&COMMITTED).unwrap();
        assert!(Trace::of(&look(dir.path())).is_some());
    }

    #[test]
    fn a_directory_that_cannot_be_listed_is_a_trace() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("records"), "no directory").unwrap();
        let trace = Trace::of(&look(dir.path())).unwrap();
        assert!(!trace.errors.is_empty() && trace.to_string().contains("records"));
    }
}

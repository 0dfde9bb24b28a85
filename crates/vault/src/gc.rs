//! Removing what may go: `outlive_ledger::retention` says what that is.
//!
//! Invariants (P3): a tombstone is durable before its copy goes. What records of another
//! job or key speak of is not ours to remove. Another process may pin a version at any time:
//! pins are looked for once more when the tombstones stand and before the first copy goes, and
//! a tombstone that a pin has overtaken is taken back. So whoever has made a pin durable and then
//! finds no tombstone knows that nothing of the version goes.

use std::collections::BTreeSet;
use std::sync::Arc;

use outlive_base::{ContainerId, Error, Level};
use outlive_ledger::retention::long_gone;
use outlive_ledger::{Checkpoint, GcPolicy, Record, Rules};

use crate::found::Found;
use crate::records::RecordStore;
use crate::store::{Key, ObjectKind, Store};

/// What was removed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GcReport {
    /// Copies, with their length in bytes.
    pub removed: Vec<(ContainerId, Level, u64)>,
    /// Versions long gone, whose records went as well.
    pub forgotten: BTreeSet<Checkpoint>,
    /// So many records that was.
    pub records: usize,
}

/// One store.
pub(crate) struct Storage<'a> {
    pub records: &'a RecordStore,
    pub store: &'a dyn Store,
    /// What its copies are.
    pub kinds: &'a [ObjectKind],
}

type Tombs = BTreeSet<(ContainerId, Level)>;

/// The tombstones that are there.
fn tombs_of(records: &[&Record]) -> Tombs {
    let tombs = records.iter().filter_map(|record| match record {
        Record::Tombstone { id, level } => Some((*id, *level)),
        _ => None,
    });
    tombs.collect()
}

/// What goes, and what stays.
fn part(
    found: Vec<Found>,
    foreign: &[Key],
    rules: &Rules<'_>,
    (tombs, pinned): (&Tombs, &BTreeSet<Checkpoint>),
) -> (Vec<Found>, Vec<Found>) {
    // With another key the content of a record means nothing to us; its name does.
    let foreign: BTreeSet<Checkpoint> = foreign.iter().filter_map(Key::checkpoint).collect();
    found.into_iter().partition(|copy| {
        let checkpoint = (copy.id.incarnation, copy.id.version);
        // A tombstone without its removal: a crash came between.
        let buried = tombs.contains(&(copy.id, copy.level));
        let theirs = foreign.contains(&checkpoint) && !rules.is_committed(checkpoint);
        let kept = theirs || pinned.contains(&checkpoint);
        !kept && (buried || rules.may_go(checkpoint, copy.level))
    })
}

/// What may go from one store, found out before anything is written.
#[derive(Debug)]
pub struct Removal {
    policy: GcPolicy,
    records: Vec<Arc<Record>>,
    tombs: Tombs,
    doomed: Vec<Found>,
    staying: Vec<Found>,
}

impl Removal {
    /// Of these containers, of what is recorded now.
    pub(crate) fn of(
        place: &Storage<'_>,
        found: Vec<Found>,
        policy: GcPolicy,
    ) -> Result<Removal, Error> {
        let scan = place.records.scan_again()?;
        let records: Vec<&Record> = scan.records.iter().map(|record| &**record).collect();
        let tombs = tombs_of(&records);
        let rules = Rules::new(records.iter().copied(), &policy);
        let pinned = place.records.pinned()?;
        let (doomed, staying) = part(found, &scan.foreign, &rules, (&tombs, &pinned));
        Ok(Removal {
            tombs,
            doomed,
            staying,
            records: scan.records,
            policy,
        })
    }

    /// The tombstones that it will write: who writes others' records at this time may write
    /// these with them, and spares it a sync.
    pub fn tombs(&self) -> Vec<Record> {
        new_tombs(&self.doomed, &self.tombs)
    }

    /// The copies that go.
    pub fn doomed(&self) -> &[Found] {
        &self.doomed
    }

    /// Leaves where they are those of which this is not true.
    pub fn keep_to(&mut self, wanted: impl Fn(&Found) -> bool) {
        let all = std::mem::take(&mut self.doomed);
        let (doomed, stay): (Vec<Found>, Vec<Found>) = all.into_iter().partition(wanted);
        self.doomed = doomed;
        self.staying.extend(stay);
    }

    /// The policy that it follows.
    pub fn policy(&self) -> &GcPolicy {
        &self.policy
    }
}

fn new_tombs(doomed: &[Found], tombs: &Tombs) -> Vec<Record> {
    doomed
        .iter()
        .map(|copy| (copy.id, copy.level))
        .filter(|tomb| !tombs.contains(tomb))
        .map(|(id, level)| Record::Tombstone { id, level })
        .collect()
}

/// Removes what may go from one store. What was recorded since that was found out changes
/// nothing, but for pins: tombstones of what goes may stand since then, and what they bury goes.
pub(crate) fn collect(place: &Storage<'_>, removal: &Removal) -> Result<GcReport, Error> {
    let (store, mut tombs) = (place.records, removal.tombs.clone());
    persist_tombs(place, &removal.doomed, &mut tombs)?;
    let pinned = store.pinned()?;
    let is_pinned = |copy: &&Found| pinned.contains(&(copy.id.incarnation, copy.id.version));
    let (spared, doomed): (Vec<&Found>, Vec<&Found>) = removal.doomed.iter().partition(is_pinned);
    let kept = removal.staying.iter().filter(is_pinned);
    take_back(place, kept.chain(spared.iter().copied()), &mut tombs)?;
    let keys: Vec<Key> = doomed.iter().map(|copy| copy.key.clone()).collect();
    place.store.remove(&keys)?;
    let present: BTreeSet<Checkpoint> = removal
        .staying
        .iter()
        .chain(spared)
        .map(|copy| (copy.id.incarnation, copy.id.version))
        .collect();
    let removed = doomed.iter();
    let mut report = GcReport {
        removed: removed
            .map(|copy| (copy.id, copy.level, copy.length))
            .collect(),
        ..GcReport::default()
    };
    let records: Vec<&Record> = removal.records.iter().map(|record| &**record).collect();
    report.forgotten = long_gone(records.iter().copied(), &tombs, &present, &removal.policy);
    report.forgotten.retain(|gone| !pinned.contains(gone));
    if report.forgotten.is_empty() {
        return Ok(report);
    }
    // What a tombstone buries must not come back when the tombstone is gone: neither after
    // a power cut, nor after a crash in between.
    for kind in place.kinds {
        place.store.settle(*kind, &[])?;
    }
    let written = removal.tombs();
    let forgotten = |record: &&&Record| {
        let checkpoint = record.checkpoint();
        checkpoint.is_some_and(|checkpoint| report.forgotten.contains(&checkpoint))
    };
    let (last, first): (Vec<&Record>, Vec<&Record>) = records
        .iter()
        .chain(&written.iter().collect::<Vec<_>>())
        .filter(forgotten)
        .copied()
        .partition(|record| matches!(record, Record::Tombstone { .. }));
    match store.remove_in_order(&first, &last) {
        // Where there is no room for what stays, nothing goes: the next time, then.
        Err(error) if error.is_full() => {
            report.forgotten.clear();
            return Ok(report);
        }
        removed => removed?,
    }
    report.records = first.len() + last.len();
    Ok(report)
}

/// All copies that are to go have a durable tombstone before the first goes. That a
/// removal is not durable yet does no harm while the tombstone stands: a copy that comes
/// back is removed again.
fn persist_tombs(place: &Storage<'_>, doomed: &[Found], tombs: &mut Tombs) -> Result<(), Error> {
    let new = new_tombs(doomed, tombs);
    let new: Vec<&Record> = new.iter().collect();
    for result in place.records.persist_all(&new) {
        result?;
    }
    tombs.extend(doomed.iter().map(|copy| (copy.id, copy.level)));
    Ok(())
}

/// A copy that is there and pinned has no tombstone: its removal was begun, perhaps by a process
/// that has ended since, and is not carried out.
fn take_back<'a>(
    place: &Storage<'_>,
    kept: impl Iterator<Item = &'a Found>,
    tombs: &mut Tombs,
) -> Result<(), Error> {
    let over: Tombs = kept
        .map(|copy| (copy.id, copy.level))
        .filter(|tomb| tombs.contains(tomb))
        .collect();
    if over.is_empty() {
        return Ok(());
    }
    let records = over.iter().copied();
    let records: Vec<Record> = records
        .map(|(id, level)| Record::Tombstone { id, level })
        .collect();
    match place
        .records
        .remove_all(&records.iter().collect::<Vec<_>>())
    {
        // Where there is no room for what stays, they stand: the next time, then.
        Err(error) if error.is_full() => {}
        removed => removed?,
    }
    tombs.retain(|tomb| !over.contains(tomb));
    Ok(())
}

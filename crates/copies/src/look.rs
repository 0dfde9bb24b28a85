//! What lies in storage, before an incarnation opens.

use outlive_base::Incarnation;
use outlive_control::node::shell::Found;
use outlive_ledger::Record;
use outlive_vault::{Inventory, Part, Trace};

use crate::places::Places;
use crate::serving;

/// What lies in storage.
pub fn look(places: &Places) -> Found {
    // A directory that cannot be listed supplies nothing, and says so.
    let here = Inventory::of(places.node, &places.store);
    let there = Inventory::of(Part::SHARED, &places.shared);
    take_pins(places, &here, &there);
    let mine = there
        .copies
        .iter()
        .filter(|found| found.id.node == places.node);
    let (parities, copies): (Vec<_>, Vec<_>) = here
        .copies
        .iter()
        .partition(|found| found.level.members().is_some());
    let parities = parities.into_iter().map(|found| (found.id, found.level));
    let (served, unserved) = serving::look(places, &here);
    let parities = parities.chain(served);
    let parities = parities.map(|(id, level)| (id.incarnation, id.version, level));
    let copies = copies.into_iter().chain(mine);
    let available = copies
        .map(|found| (found.id.incarnation, found.id.version, found.id.node))
        .collect();
    let (newest, text) = traces(&here, &there);
    let damage = [here.damage(), there.damage()];
    Found {
        available,
        parities: parities.collect(),
        newest,
        text,
        errors: here
            .errors
            .into_iter()
            .chain(damage.into_iter().flatten())
            .chain(unserved)
            .collect(),
        unseen: there.errors,
        records: there.records,
    }
}

/// A node that has lost its storage has lost its pins too; the shared directory has them.
fn take_pins(places: &Places, here: &Inventory, there: &Inventory) {
    for (incarnation, version) in there.pinned.difference(&here.pinned).copied() {
        let pin = Record::Pin {
            incarnation,
            version,
        };
        if let Err(error) = places.store.records().persist(&pin) {
            tracing::warn!(%error, %version, "a pin is not known here");
        }
    }
}

/// What shows in storage that versions were committed, if no record of one can be read.
fn traces(here: &Inventory, there: &Inventory) -> (Option<Incarnation>, Option<String>) {
    let found: Vec<Trace> = [here, there].into_iter().filter_map(Trace::of).collect();
    let committed = |record: &Record| matches!(record, Record::Commit { .. });
    let mut records = here.records.iter().chain(&there.records);
    let nothing = || format!("{}: no record of a version", here.store.name());
    let text = match records.any(committed) {
        true => None,
        false if found.is_empty() => Some(nothing()),
        false => Some(
            found
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; "),
        ),
    };
    (found.iter().map(|trace| trace.incarnation).max(), text)
}

//! Pins: versions that stay whatever is newer, for `outlive checkpoints pin`.
//!
//! A pin is a record at each place that keeps something of the job. The job may run: its nodes look
//! for pins before they remove anything (`outlive_vault`, `gc.rs`), and a node that has lost its
//! storage takes them from the shared directory when it starts.
//!
//! Invariants: a pin that is told to stand is durable at every place, and the version could be
//! read whole after that, of copies that no removal had been begun for; so nothing but the owner's word
//! (`unpin`, `delete`) removes these. A pin that could not be had leaves nothing behind, unless
//! the process was killed on the way: then it stands at some places, is listed so, and can be
//! set or taken away by the same commands.

use std::time::{Duration, Instant};

use outlive_base::level::StoreKind;
use outlive_base::{Code, Entity, Error, NodeId, Result, Version};
use outlive_vault::{Catalogue, Checkpoint, Entry, Record, RecordStore};

use crate::jobs::{Job, hash};
use crate::{marks, shared, store, versions};

/// How long a removal that a running job has begun may take to end, or to be taken back.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// A version that stays.
#[derive(Clone, PartialEq, Debug)]
pub struct Pinned {
    /// The version.
    pub entry: Entry,
    /// At so many places.
    pub places: usize,
    /// False: it was pinned before.
    pub changed: bool,
}

/// What is asked of a place.
struct PinTarget {
    node: NodeId,
    shown: String,
    records: RecordStore,
}

fn places(job: &Job, hash: u64) -> Result<Vec<PinTarget>> {
    let place = |place: shared::OwnedStore| PinTarget {
        node: place.node,
        shown: place.at.shown(),
        records: place.vault(hash).records().clone(),
    };
    Ok(versions::places(job)?.into_iter().map(place).collect())
}

/// Pins a version.
///
/// # Errors
/// [`Code::NotFound`] if there is no such version, or not all of it any more;
/// [`Code::InvalidArgument`] if it is void, or stable at no level that outlives the job's processes;
/// [`Code::TimedOut`] if a removal of it does not end; those of the file system. Nothing is pinned then
/// that was not before.
pub fn pin(job: &Job, version: Version) -> Result<Pinned> {
    let hash = hash(job)?;
    let catalogue = versions::all(job)?;
    let entry = versions::find(&catalogue, version)?;
    refuse(entry)?;
    let record = Record::Pin {
        incarnation: entry.incarnation,
        version,
    };
    let checkpoint = (entry.incarnation, version);
    let was_there = |place: &PinTarget| {
        let mut seen = catalogue.inventories().iter();
        seen.any(|it| it.place == place.node && it.pinned.contains(&checkpoint))
    };
    let mut written: Vec<PinTarget> = Vec::new();
    let result = settle(job, hash, (&record, checkpoint), &mut |place| {
        if !was_there(&place) && !written.iter().any(|known| known.node == place.node) {
            written.push(place);
        }
    });
    let changed = !written.is_empty();
    match result {
        Ok((entry, places)) => Ok(Pinned {
            entry,
            places,
            changed,
        }),
        Err(error) => Err(withdraw(&record, &written, error)),
    }
}

/// Takes back what a pin that is not had has written.
fn withdraw(record: &Record, written: &[PinTarget], error: Error) -> Error {
    let left = written.iter().filter_map(|place| {
        let removed = place.records.remove(record).map_err(Error::from);
        Some(format!("{}: {}", place.shown, removed.err()?.reason()))
    });
    let left: Vec<String> = left.collect();
    if left.is_empty() {
        return error;
    }
    Error::new(
        error.code(),
        error.entity().clone(),
        format!("{}; the pin stays at {}", error.reason(), left.join("; ")),
        format!("{}; then take the pin away by unpin", error.remedy()),
    )
}

/// Writes the pin everywhere until it stands everywhere and the version is whole.
fn settle(
    job: &Job,
    hash: u64,
    (record, checkpoint): (&Record, Checkpoint),
    wrote: &mut dyn FnMut(PinTarget),
) -> Result<(Entry, usize)> {
    let until = Instant::now() + PATIENCE;
    loop {
        // A node may be replaced meanwhile, and then has a new directory.
        let places = places(job, hash)?;
        let count = places.len();
        for place in places {
            let result = place.records.persist(record).map_err(Error::from);
            // What failed may be there all the same.
            wrote(place);
            result?;
        }
        let catalogue = versions::all(job)?;
        let mut entries = catalogue.entries.iter();
        let same = |entry: &&Entry| (entry.incarnation, entry.version) == checkpoint;
        let Some(entry) = entries.find(same) else {
            return Err(versions::no_record(checkpoint.1));
        };
        refuse(entry)?;
        // A deletion looks for no pins; of a run without a name it does, after its mark.
        marks::refuse_begun(&job.dir, &job.name)?;
        let Some(error) = lacks(&catalogue, entry) else {
            return Ok((entry.clone(), count));
        };
        // A removal that is under way ends, or finds the pin and is taken back.
        if !entry.half_pinned && (!entry.superseded || store::running(&job.dir).is_none()) {
            return Err(error);
        }
        if Instant::now() >= until {
            return Err(Error::new(
                Code::TimedOut,
                Entity::Version(checkpoint.1.0),
                format!(
                    "{} within {} s: a removal that was begun before does not end",
                    error.reason(),
                    PATIENCE.as_secs()
                ),
                "pin it again when the job writes its next version, or pin another",
            ));
        }
        std::thread::sleep(LOOK);
    }
}

/// What cannot be pinned, whatever is stored of it.
fn refuse(entry: &Entry) -> Result<()> {
    let safe = |level: &outlive_vault::LevelState| {
        level.stable && level.level.store() != StoreKind::Keeper
    };
    let reason = match entry.levels.iter().any(safe) {
        _ if entry.void => "it is void: a later start went on from an older version",
        _ if entry.unproven => "no record that can be read says whether it is void",
        true => return Ok(()),
        false => "it is not stable at any level that outlives the job's processes",
    };
    Err(Error::new(
        Code::InvalidArgument,
        Entity::Version(entry.version.0),
        reason,
        "pin one that outlive checkpoints list shows as committed, without (weak)",
    ))
}

/// Why the version does not stay whole.
fn lacks(catalogue: &Catalogue, entry: &Entry) -> Option<Error> {
    if entry.half_pinned {
        return Some(Error::new(
            Code::NotFound,
            Entity::Version(entry.version.0),
            "a place of the job has lost the pin again",
            "pin it again; see who unpins it, or removes files there",
        ));
    }
    let node = catalogue.missing_from(entry)?;
    let reason = match entry.superseded {
        true => "it is being removed, or was: a newer version has taken its place",
        false => "not all of it is stored",
    };
    Some(Error::new(
        Code::NotFound,
        Entity::Version(entry.version.0),
        format!("{reason}; no copy of {node} is left that will stay"),
        "pin a newer one: outlive checkpoints list shows what there is",
    ))
}

/// Takes a pin away, of all versions of this number. With the places where one stood; 0: it was not
/// pinned.
///
/// # Errors
/// [`Code::NotFound`] if there is no such version; those of the file system: it then stays pinned
/// where that failed.
pub fn unpin(job: &Job, version: Version) -> Result<usize> {
    let hash = hash(job)?;
    let catalogue = versions::all(job)?;
    versions::find(&catalogue, version)?;
    let places = places(job, hash)?;
    let mut removed = 0;
    let mut failed = None;
    // The shared directory comes first: from there nodes take pins when they start.
    for inventory in catalogue.inventories() {
        let pins = inventory.pinned.iter().filter(|it| it.1 == version);
        let Some(place) = places.iter().find(|it| it.node == inventory.place) else {
            continue;
        };
        for (incarnation, version) in pins.copied() {
            let record = Record::Pin {
                incarnation,
                version,
            };
            match place.records.remove(&record) {
                Ok(()) => removed += 1,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
    }
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(removed),
    }
}

/// True if a version of the job in `dir` is pinned, or it cannot be told.
pub(crate) fn any(shared: &shared::OwnedStore, hash: u64) -> bool {
    let pinned = shared.vault(hash).records().pinned();
    pinned.map_or(true, |pinned| !pinned.is_empty())
}

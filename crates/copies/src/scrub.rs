//! Reading copies before they are needed, and mending those that have rotted.
//!
//! Invariants: nothing is called damaged that was not read twice; a damaged copy stays as it is
//! until a sound one was written beside it and read back; a reading waits in short steps, so that
//! it ends soon after its brake says so.

use std::io::Read;
use std::sync::Arc;

use outlive_base::level::StoreKind;
use outlive_base::{Code, ContainerId, Entity, Error, Level, NodeId, Result};
use outlive_control::node::copies::{CopyId, CopySource, Expected, Reading, Scrubbed};
use outlive_control::node::shell::Making;
use outlive_ledger::scheme::Piece;
use outlive_vault::{
    Bytes, Key, Part, Scrubbing, Sealed, Store, Vault, mend_container, read_container, read_parity,
};

use crate::memory::Work;
use crate::parity::{self, Remote};
use crate::peers::{StreamReply, StreamRequest, open_stream, read_reply};
use crate::places::Places;
use crate::rate::Rate;
use crate::reports::Reports;

/// Reads a copy and reports what came of it.
pub fn run(places: &Arc<Places>, reading: &Reading, work: &Reports<Work>) {
    let _ = work.send(Work::Scrubbed {
        copy: reading.copy,
        outcome: scrub(places, reading),
    });
}

fn scrub(places: &Arc<Places>, reading: &Reading) -> Scrubbed {
    let (store, key) = place_of(places, reading);
    let mut damage = None;
    // A file may be written over while it is read: what is damaged is so when it is read again.
    for _ in 0..2 {
        let mut rate = Rate::new(reading.brake.clone(), reading.bytes_per_s.max(1));
        let mut pace = |bytes: u64| rate.wait(bytes);
        let read = match reading.expected {
            Expected::Container(sealed) => read_container(store, &key, &sealed, &mut pace),
            Expected::Parity(parity) => read_parity(store, &key, parity, &mut pace),
        };
        damage = match read {
            Scrubbing::Whole(bytes) => return Scrubbed::Whole(bytes),
            Scrubbing::Gone => return Scrubbed::Gone,
            Scrubbing::Stopped => return Scrubbed::Stopped,
            Scrubbing::Unreadable(error) => return Scrubbed::Unreadable(error),
            Scrubbing::Damaged(error) => Some(error),
        };
    }
    let damage = damage.unwrap_or_else(|| Error::internal("a copy was not read"));
    match mend(places, reading, (store, &key)) {
        Ok(from) => Scrubbed::Mended { damage, from },
        Err(_) if store.tag(&key).is_none() => Scrubbed::Gone,
        Err(why) => Scrubbed::Damaged { damage, why },
    }
}

/// Where a copy lies.
fn place_of<'a>(places: &'a Places, reading: &Reading) -> (&'a dyn Store, Key) {
    let CopyId { id, place } = reading.copy;
    let vault = match place {
        CopySource::Own | CopySource::Kept | CopySource::Parity(_) => &places.store,
        CopySource::Shared => &places.shared,
    };
    (&**vault.store(), vault.key(place.level(), id))
}

/// Puts a sound copy in the place of a damaged one; where its bytes came from, or why each other
/// copy could not be used.
fn mend(
    places: &Arc<Places>,
    reading: &Reading,
    at: (&dyn Store, &Key),
) -> std::result::Result<Level, Vec<Error>> {
    match reading.expected {
        Expected::Container(sealed) => mend_of_copies(places, reading, at, sealed),
        Expected::Parity(_) => {
            let made = make_parity(places, reading);
            made.map_err(|error| vec![error])
        }
    }
}

fn mend_of_copies(
    places: &Arc<Places>,
    reading: &Reading,
    (store, key): (&dyn Store, &Key),
    sealed: Sealed,
) -> std::result::Result<Level, Vec<Error>> {
    let mut why = Vec::new();
    for (level, part) in &reading.sources {
        if is_itself(places.node, reading, *level, part) {
            continue;
        }
        let mut take = |reader: &mut dyn Read| mend_container(store, key, &sealed, reader);
        let mended = match level.store() {
            // What is captured next is written there.
            StoreKind::Keeper => continue,
            StoreKind::Shared => copy_of(&places.shared, *level, sealed, &mut take),
            StoreKind::Node | StoreKind::Server if level.members().is_some() => {
                make(places, reading, *level, sealed, &mut take)
            }
            StoreKind::Node if part.holder == places.node => {
                copy_of(&places.store, *level, sealed, &mut take)
            }
            StoreKind::Node | StoreKind::Server => fetch(places, part.holder, sealed.id, &mut take),
        };
        match mended {
            Ok(()) => return Ok(*level),
            Err(error) => why.push(error),
        }
    }
    // What is kept for another node has that node itself, named or not.
    let own = CopySource::Own.level();
    let is_named = reading.sources.iter().any(|(level, _)| *level == own);
    if reading.copy.place == CopySource::Kept && !is_named {
        let mut take = |reader: &mut dyn Read| mend_container(store, key, &sealed, reader);
        match fetch(places, sealed.id.node, sealed.id, &mut take) {
            Ok(()) => return Ok(own),
            Err(error) => why.push(error),
        }
    }
    Err(why)
}

/// True if a part names the copy that is to be mended.
fn is_itself(me: NodeId, reading: &Reading, level: Level, part: &Part) -> bool {
    let place = reading.copy.place;
    let is_here = match place {
        CopySource::Own | CopySource::Shared => true,
        CopySource::Kept => part.holder == me,
        CopySource::Parity(_) => false,
    };
    is_here && level == place.level()
}

/// What takes the bytes of a copy.
type Take<'a> = dyn FnMut(&mut dyn Read) -> Result<()> + 'a;

fn copy_of(vault: &Vault, level: Level, sealed: Sealed, take: &mut Take<'_>) -> Result<()> {
    let key = vault.key(level, sealed.id);
    let mut bytes = Bytes::of_container(&**vault.store(), &key, 0..sealed.length)?;
    take(&mut bytes)
}

fn fetch(places: &Places, holder: NodeId, id: ContainerId, take: &mut Take<'_>) -> Result<()> {
    let request = StreamRequest::Fetch { id };
    let mut stream = open_stream(&places.endpoint, holder, &request)?;
    match read_reply(&mut stream, holder)? {
        StreamReply::Coming { .. } => take(&mut stream),
        StreamReply::Refused(error) => Err(error),
        StreamReply::Stored { .. } | StreamReply::Working | StreamReply::Shown { .. } => {
            Err(Error::internal("an odd answer on a stream"))
        }
    }
}

/// The container, made of what the others of its group have.
fn make(
    places: &Arc<Places>,
    reading: &Reading,
    level: Level,
    sealed: Sealed,
    take: &mut Take<'_>,
) -> Result<()> {
    let (group, parts) = reading.made_of.get(&level).ok_or_else(|| no_group(level))?;
    let mut pieces = Remote {
        places,
        level,
        parts,
        committed: true,
    };
    let owner = sealed.id.node;
    let have = |piece: Piece| group.is_beside(piece, owner);
    let want = Piece::Whole(owner);
    outlive_vault::make(group, want, sealed.length, &have, &mut pieces, &mut |sum| {
        take(sum)
    })
}

/// The parity, made again of what its group has.
fn make_parity(places: &Arc<Places>, reading: &Reading) -> Result<Level> {
    let CopySource::Parity(level) = reading.copy.place else {
        return Err(Error::internal("no parity"));
    };
    let (group, parts) = reading.made_of.get(&level).ok_or_else(|| no_group(level))?;
    let member = |node: &NodeId| parts.iter().find(|part| part.node == *node).cloned();
    let ordered: Option<Vec<Part>> = group.members.iter().map(member).collect();
    let ordered = ordered.ok_or_else(|| no_group(level))?;
    let id = reading.copy.id;
    let making = Making::new(id.incarnation, id.version, level, ordered, true);
    parity::make(places, &making).map(|_| level)
}

fn no_group(level: Level) -> Error {
    Error::new(
        Code::NotFound,
        Entity::Call,
        format!("nothing is known of its group at {level}"),
        "the next copy is tried",
    )
}

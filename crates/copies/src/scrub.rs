//! Reading copies before they are needed, mending those that have rotted, and making again those that
//! were lost.
//!
//! Invariants: what was removed, or may go, is not made again; nothing is called damaged that was not read twice; a damaged copy stays as it is
//! until a sound one was written beside it and read back; a reading waits in short steps, so that
//! it ends soon after its brake says so.

use std::io::Read;
use std::sync::Arc;

use outlive_base::level::StoreKind;
use outlive_base::{Code, ContainerId, Entity, Error, Level, NodeId, Result};
use outlive_control::node::copies::{CopyId, CopySource, Expected, Reading, Scrubbed};
use outlive_control::node::shell::Making;
use outlive_ledger::scheme::Piece;
use outlive_ledger::{Record, Rules};
use outlive_memory::Parities;
use outlive_vault::{
    Bytes, Key, Part, RecordStore, Scrubbing, Sealed, Store, Vault, make_container, mend_container,
    read_container, read_parity,
};

use crate::memory::Work;
use crate::parity::{self, Remote};
use crate::peers::{StreamReply, StreamRequest, open_stream, read_reply};
use crate::places::Places;
use crate::rate::Rate;
use crate::reports::Reports;
use crate::serving::served_at;

/// Reads a copy and reports what came of it.
pub fn run(places: &Arc<Places>, reading: &Reading, work: &Reports<Work>) {
    let _ = work.send(Work::Scrubbed {
        copy: reading.copy,
        outcome: scrub(places, reading),
    });
}

fn scrub(places: &Arc<Places>, reading: &Reading) -> Scrubbed {
    let at = match Standing::of(places, reading) {
        Ok(at) => at,
        Err(error) => return Scrubbed::Unreadable(error),
    };
    match at.is_there() {
        Ok(true) if !reading.whole => return Scrubbed::There,
        Ok(true) => {}
        Ok(false) => return make_again(places, reading, at),
        Err(error) => return Scrubbed::Unreadable(error),
    }
    let mut damage = None;
    // A file may be written over while it is read: what is damaged is so when it is read again.
    for _ in 0..2 {
        let mut rate = Rate::new(reading.brake.clone(), reading.bytes_per_s.max(1));
        let mut pace = |bytes: u64| rate.wait(bytes);
        let read = match reading.expected {
            Expected::Container(sealed) => read_container(at.store, &at.key, &sealed, &mut pace),
            Expected::Parity(parity) => read_parity(at.store, &at.key, parity, &mut pace),
        };
        damage = match read {
            Scrubbing::Whole(bytes) => return Scrubbed::Whole(bytes),
            // What was lost meanwhile is found the next time.
            Scrubbing::Gone => return Scrubbed::Gone,
            Scrubbing::Stopped => return Scrubbed::Stopped,
            Scrubbing::Unreadable(error) => return Scrubbed::Unreadable(error),
            Scrubbing::Damaged(error) => Some(error),
        };
    }
    let damage = damage.unwrap_or_else(|| Error::internal("a copy was not read"));
    match mend(places, reading, &at) {
        Ok(from) => Scrubbed::Mended { damage, from },
        // It was removed meanwhile, or it is made again the next time.
        Err(_) if at.is_there().is_ok_and(|there| !there) && !at.is_served() => Scrubbed::Gone,
        Err(why) => Scrubbed::Damaged { damage, why },
    }
}

/// Where a copy stands, or did.
struct Standing<'a> {
    store: &'a dyn Store,
    key: Key,
    /// What says that it was removed: the records of its place.
    records: &'a RecordStore,
    copy: CopyId,
    /// The server that has it, if one has.
    served: Option<&'a Parities>,
    /// Something stands under the key: it is replaced, and what comes instead of what was removed
    /// meanwhile takes no place.
    replaces: bool,
}

impl<'a> Standing<'a> {
    fn of(places: &'a Places, reading: &Reading) -> Result<Standing<'a>> {
        let copy = reading.copy;
        let (level, id) = (copy.place.level(), copy.id);
        let vault = match copy.place {
            CopySource::Own | CopySource::Kept | CopySource::Parity(_) => &places.store,
            CopySource::Shared => &places.shared,
        };
        let served = match level.store() == StoreKind::Server {
            true => Some(served_at(places)?.parities()),
            false => None,
        };
        Ok(Standing {
            store: served.map_or(&**vault.store(), |served| served),
            key: vault.key(level, id),
            records: vault.records(),
            copy,
            served,
            replaces: true,
        })
    }

    const fn is_served(&self) -> bool {
        self.served.is_some()
    }

    /// A server that is away is no answer.
    fn is_there(&self) -> Result<bool> {
        match self.served {
            Some(served) => served.has(self.copy.place.level(), self.copy.id),
            None => Ok(self.store.tag(&self.key).is_some()),
        }
    }

    /// True if nobody removed it, and it may not go: it was lost.
    fn is_lost(&self, reading: &Reading) -> Result<bool> {
        let CopyId { id, place } = self.copy;
        // Of a node without ranks nothing is read.
        let mut parts = reading.sources.iter();
        if matches!(reading.expected, Expected::Container(_))
            && parts.all(|(_, part)| part.ranks.is_empty())
        {
            return Ok(false);
        }
        let at = (id.incarnation, id.version);
        // Of what was stable before a node was replaced, it may know the decision and not the removal.
        let mut stable = reading.policy.stable.iter();
        if !stable.any(|(source, version, _)| (*source, *version) == at) {
            return Ok(false);
        }
        let records = self.records.scan()?.records;
        let rules = Rules::new(&records, &reading.policy);
        let decided = |record: &Record| match record {
            Record::Commit {
                incarnation,
                version,
                level,
                ..
            } => (*incarnation, *version, *level) == (at.0, at.1, place.level()),
            _ => false,
        };
        // Shared storage in which not even the decision is found is another's, or away.
        let is_here = place != CopySource::Shared || records.iter().any(decided);
        Ok(is_here && !rules.may_go(at, place.level()) && !self.is_buried()?)
    }

    /// True if somebody has said that it goes. At a server there are no such words: what lies there goes
    /// with the container of the node that it is named after.
    fn is_buried(&self) -> Result<bool> {
        let wanted = self.copy;
        let records = self.records.scan()?.records;
        Ok(records.iter().any(|record| match record {
            Record::Tombstone { id, level } => {
                *id == wanted.id && (self.is_served() || *level == wanted.place.level())
            }
            _ => false,
        }))
    }

    /// Takes a container, in the place of a damaged one or of none.
    fn take(&self, sealed: Sealed, reader: &mut dyn Read) -> Result<()> {
        match self.replaces {
            true => mend_container(self.store, &self.key, &sealed, reader),
            false => make_container(self.store, &self.key, &sealed, reader),
        }
    }
}

/// Makes a copy again that nobody removed. Who removes copies says so first, so that whoever comes second
/// sees the other's word or work.
fn make_again(places: &Arc<Places>, reading: &Reading, at: Standing<'_>) -> Scrubbed {
    match at.is_lost(reading) {
        Ok(true) => {}
        Ok(false) => return Scrubbed::Gone,
        Err(error) => return Scrubbed::Unreadable(error),
    }
    let damage = Error::new(
        Code::NotFound,
        Entity::File(at.store.locate(&at.key)),
        "it is gone, and nobody has removed it",
        "see the storage",
    );
    let at = Standing {
        replaces: false,
        ..at
    };
    match mend(places, reading, &at) {
        Ok(_) if at.is_buried().unwrap_or(false) => {
            let key = std::slice::from_ref(&at.key);
            if let Err(error) = at.store.remove(key) {
                tracing::info!(%error, "what was removed meanwhile goes the next time");
            }
            Scrubbed::Gone
        }
        Ok(from) => Scrubbed::Mended { damage, from },
        Err(why) => Scrubbed::Damaged { damage, why },
    }
}

/// Puts a sound copy in the place of a damaged one, or of none; where its bytes came from, or why each other
/// copy could not be used.
fn mend(
    places: &Arc<Places>,
    reading: &Reading,
    at: &Standing<'_>,
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
    at: &Standing<'_>,
    sealed: Sealed,
) -> std::result::Result<Level, Vec<Error>> {
    let mut why = Vec::new();
    for (level, part) in &reading.sources {
        if is_itself(places.node, reading, *level, part) {
            continue;
        }
        let mut take = |reader: &mut dyn Read| at.take(sealed, reader);
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
        let mut take = |reader: &mut dyn Read| at.take(sealed, reader);
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

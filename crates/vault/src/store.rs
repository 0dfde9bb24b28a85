//! The one seam for whatever keeps the bytes of checkpoints: a directory, memory, an object store
//! (`outlive-objects`), later a memory server. `docs/design/store.md` says why it is cut here.
//!
//! Invariants, checked for every store by [`crate::conform`]: an object is there whole or
//! not at all, under its own key and no other; what was answered with `Ok` outlives a power
//! cut, but for a removal, which does from [`Store::settle`] on; of two who create one
//! object, one has made it; nobody waits for a reader.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::time::SystemTime;

use outlive_base::{ContainerId, Incarnation, Level, NodeId, Version};
use outlive_ledger::word;

use crate::error::WriteError;

/// What an object is. Objects of a kind are listed together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ObjectKind {
    /// A container of the node, or, in shared storage, of any node.
    Container,
    /// A container kept for another node.
    Partner,
    /// A node's parity of the containers of others.
    Parity,
    /// A record, or a log of decisions.
    Record,
    /// The mark of a history.
    Mark,
}

/// Names an object: its kind, and what `docs/format.md` calls it. The name of a container is
/// its incarnation, version and node; that of a record also its level, ballot and holder.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    kind: ObjectKind,
    name: String,
}

impl Key {
    /// A key, if the name may be one: not empty, no path, and not what is unfinished.
    pub fn new(kind: ObjectKind, name: impl Into<String>) -> Option<Key> {
        let name = name.into();
        let sound = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
        sound.then_some(Key { kind, name })
    }

    /// That of a container: [`ObjectKind::Container`] or [`ObjectKind::Partner`].
    pub fn container(kind: ObjectKind, id: ContainerId) -> Key {
        let name = format!("{id}.olc");
        Key { kind, name }
    }

    /// That of the parity that a node keeps at a level: `i3-v20-n1.xor4.olp`.
    pub fn parity(level: Level, id: ContainerId) -> Key {
        let name = format!("{id}.{}.olp", word(level));
        let kind = ObjectKind::Parity;
        Key { kind, name }
    }

    /// The parity that it names: the inverse of [`Key::parity`].
    pub fn parity_of(&self) -> Option<(ContainerId, Level)> {
        let (id, level) = self.name.strip_suffix(".olp")?.split_once('.')?;
        let at = level.find(|letter: char| letter.is_ascii_digit())?;
        let (scheme, numbers) = level.split_at(at);
        let level: Level = format!("{scheme}:{numbers}").parse().ok()?;
        let id = container(id)?;
        (Key::parity(level, id) == *self).then_some((id, level))
    }

    /// That of a record, whose names are sound by their form.
    pub(crate) fn record(kind: ObjectKind, name: String) -> Key {
        Key { kind, name }
    }

    /// What the object is.
    pub const fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Its name among those of its kind.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The container that it names: the inverse of [`Key::container`].
    pub fn id(&self) -> Option<ContainerId> {
        let id = container(self.name.strip_suffix(".olc")?)?;
        (Key::container(self.kind, id) == *self).then_some(id)
    }

    /// The incarnation that the name of a record speaks of (`commit-i3-v20-disk-b1.rec`,
    /// `incarnation-3.rec`), whatever its content has become.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        let word = self.word(1)?;
        let number = word.strip_prefix('i').unwrap_or(word);
        number.parse().ok().map(Incarnation)
    }

    /// The checkpoint that the name of a record speaks of.
    pub(crate) fn checkpoint(&self) -> Option<(Incarnation, Version)> {
        let incarnation = self.word(1)?.strip_prefix('i')?.parse().ok()?;
        let version = self.word(2)?.strip_prefix('v')?.parse().ok()?;
        Some((Incarnation(incarnation), Version(version)))
    }

    /// True for the name of an incarnation's record.
    pub(crate) fn is_incarnation(&self) -> bool {
        self.word(0) == Some("incarnation")
    }

    /// True for the name of a pin, [`outlive_ledger::Record::Pin`].
    pub(crate) fn is_pin(&self) -> bool {
        self.word(0) == Some("pin")
    }

    fn word(&self, nth: usize) -> Option<&str> {
        let stem = self.name.rsplit_once('.').map_or(&*self.name, |it| it.0);
        stem.split('-').nth(nth)
    }
}

/// The container of this name: `i3-v20-n1`, or nearly so.
fn container(name: &str) -> Option<ContainerId> {
    let (incarnation, rest) = name.strip_prefix('i')?.split_once("-v")?;
    let (version, node) = rest.split_once("-n")?;
    Some(ContainerId {
        incarnation: Incarnation(incarnation.parse().ok()?),
        version: Version(version.parse().ok()?),
        node: NodeId(node.parse().ok()?),
    })
}

/// An object in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// Its key.
    pub key: Key,
    /// Tells it from another object that takes its place.
    pub tag: u64,
    /// Its length in bytes, of containers; of others if it costs nothing.
    pub length: Option<u64>,
}

/// Which room a small object may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// What is free.
    Free,
    /// What is free, else what is kept for the day when nothing is (P9).
    FreeOrKept,
    /// What is kept.
    Kept,
}

/// A small object to be put.
#[derive(Clone, Debug)]
pub struct Put<'a> {
    /// Its key.
    pub key: Key,
    /// All of it.
    pub bytes: &'a [u8],
    /// Where it may go.
    pub space: Space,
}

/// An append that failed.
#[derive(Debug)]
pub struct Unappended {
    /// Why.
    pub error: WriteError,
    /// True if the object ends where it did; false if nobody knows where.
    pub cut: bool,
}

/// Whatever keeps objects by key. Several processes may use one at once; each kind of object
/// says who writes it.
pub trait Store: Send + Sync + fmt::Debug {
    /// What people find it by, for messages.
    fn name(&self) -> String;
    /// What people find an object by, for messages.
    fn locate(&self, key: &Key) -> String;

    /// Begins an object of `length` bytes: room for it is there, or an error. `aligned`: all
    /// that is written starts and ends at page boundaries, in memory and in the object.
    fn begin(&self, key: &Key, length: u64, aligned: bool) -> Result<Box<dyn Draft>, WriteError>;
    /// Goes on with a draft of the same bytes whose process ended or whose storage was away: `kept`
    /// is what it had said of itself ([`Draft::kept`]). What cannot go on begins anew.
    fn resume(
        &self,
        key: &Key,
        length: u64,
        aligned: bool,
        _kept: &[u8],
    ) -> Result<Box<dyn Draft>, WriteError> {
        self.begin(key, length, aligned)
    }
    /// Puts small objects, whose syncs are shared; each takes the place of what was there.
    /// One result each, in their order: its tag. After a power cut any may be there without
    /// the others.
    fn put_all(&self, small: &[Put<'_>]) -> Vec<Result<u64, WriteError>>;
    /// Puts a small object unless one is there. False: one was, is durable, and stands.
    fn create(&self, key: &Key, bytes: &[u8]) -> Result<bool, WriteError>;
    /// Writes at `at`, the end of all that counts in an object, and leaves what is before as
    /// it is: a power cut on the way costs nothing of that. For objects with one writer.
    fn append(&self, key: &Key, at: u64, parts: &mut [IoSlice<'_>]) -> Result<(), Unappended>;

    /// Opens an object. `fresh`: to be read into whole pages, past all that only remembers
    /// what was written. [`io::ErrorKind::InvalidData`] if what is there is no object.
    fn open(&self, key: &Key, fresh: bool) -> io::Result<Box<dyn Object>>;
    /// The first `most` bytes of an object.
    fn get(&self, key: &Key, most: u64) -> io::Result<Vec<u8>>;
    /// [`Store::get`] while nobody appends to it; `None` while somebody does.
    fn get_still(&self, key: &Key, most: u64) -> io::Result<Option<Vec<u8>>>;
    /// The tag of an object, if it is there.
    fn tag(&self, key: &Key) -> Option<u64>;
    /// When an object was written, by the clock of the store.
    fn written(&self, key: &Key) -> io::Result<SystemTime>;
    /// All objects of a kind, in no order. None if the store was never written to.
    fn list(&self, kind: ObjectKind) -> io::Result<Vec<Item>>;

    /// Removes objects; those that are not there are no error. Their room may be used at
    /// once, so that one which a power cut brings back may hold anything.
    fn remove(&self, keys: &[Key]) -> Result<(), WriteError>;
    /// Makes durable what stands under these keys, and all removals of the kind.
    fn settle(&self, kind: ObjectKind, keys: &[Key]) -> Result<(), WriteError>;
    /// Free bytes.
    fn room(&self) -> io::Result<u64>;
}

/// An object under construction. Dropped, it is nothing.
pub trait Draft: Send + Sync {
    /// Writes all slices from `at` on. Threads may write at once.
    fn write(&self, at: u64, parts: &mut [IoSlice<'_>]) -> Result<(), WriteError>;
    /// What was written so far, to be read as with `fresh` in [`Store::open`]: for who wants to see
    /// what the storage holds before it takes the place of something. Where nothing stands under its
    /// key a store may refuse ([`io::ErrorKind::Unsupported`]).
    fn read_back(&self) -> Result<Box<dyn Object>, WriteError>;
    /// All of it was written: what the store has to be told once for that is told now. If that fails,
    /// the draft may be left and gone on with, as after a write that failed; [`Draft::seal`] does it by
    /// itself else.
    fn finish(&self) -> Result<(), WriteError> {
        Ok(())
    }
    /// Makes it durable, then gives it its key, in place of what was there.
    fn seal(self: Box<Self>) -> Result<(), WriteError>;
    /// What a later draft of the same bytes must know to go on with this one; it changes with what
    /// is written. None: it cannot.
    fn kept(&self) -> Option<Vec<u8>> {
        None
    }
    /// True if these bytes are with the store already.
    fn has(&self, _at: u64, _bytes: u64) -> bool {
        false
    }
    /// Ends it, and leaves what the store has of it for [`Store::resume`].
    fn leave(self: Box<Self>) {}
}

/// An object that is read.
pub trait Object: Send + Sync {
    /// Its length in bytes, when it was opened.
    fn length(&self) -> io::Result<u64>;
    /// Fills the slices from `at` on, as far as it gets; 0 only at the end.
    fn read_at(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<usize>;
    /// The same object again, `fresh` or not as in [`Store::open`].
    fn again(&self, fresh: bool) -> io::Result<Box<dyn Object>>;
}

/// Fills all slices from `at` on; `UnexpectedEof` if the object ends first.
pub(crate) fn read_all(
    object: &dyn Object,
    mut slices: &mut [IoSliceMut<'_>],
    mut at: u64,
) -> io::Result<()> {
    IoSliceMut::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match object.read_at(at, slices)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                at += count as u64;
                IoSliceMut::advance_slices(&mut slices, count);
            }
        }
    }
    Ok(())
}

/// [`read_all`] into one slice.
pub(crate) fn read_exact(object: &dyn Object, bytes: &mut [u8], at: u64) -> io::Result<()> {
    read_all(object, &mut [IoSliceMut::new(bytes)], at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_ignored() {
        let id = ContainerId {
            incarnation: Incarnation(3),
            version: Version(u64::MAX - 2),
            node: NodeId(u32::MAX - 1),
        };
        assert_eq!(Key::container(ObjectKind::Partner, id).id(), Some(id));
        let level = Level::xor(12).unwrap();
        let parity = Key::parity(level, id);
        assert_eq!(parity.parity_of(), Some((id, level)));
        let level = Level::rs(32, 4).unwrap();
        let parity = Key::parity(level, id);
        assert!(parity.name().ends_with(".rs32+4.olp"), "{parity:?}");
        assert_eq!(parity.parity_of(), Some((id, level)));
        for word in [
            "xor2", "xor04", "xor:4", "rs4", "rs4+1", "rs04+2", "rs:4+2", "4", "disk",
        ] {
            let name = format!("i1-v2-n3.{word}.olp");
            assert_eq!(
                Key::new(ObjectKind::Parity, name).unwrap().parity_of(),
                None
            );
        }
        let bare = Key::new(ObjectKind::Parity, "i1-v2-n3.olp").unwrap();
        assert_eq!(bare.parity_of(), None);
        for name in ["i1-v2-n3", "i01-v2-n3.olc", "i1-v2-n3.olc.tmp", "x"] {
            assert_eq!(
                Key::new(ObjectKind::Container, name).unwrap().id(),
                None,
                "{name}"
            );
        }
        for name in ["", ".tmp-1-0-i1-v2-n3.olc", "../x", "a/b", "a\0b"] {
            assert_eq!(Key::new(ObjectKind::Container, name), None, "{name}");
        }
        let record = |name: &str| Key::new(ObjectKind::Record, name).unwrap();
        let commit = record("commit-i1-v20-disk-b1.rec");
        assert_eq!(commit.checkpoint(), Some((Incarnation(1), Version(20))));
        assert_eq!(commit.incarnation(), Some(Incarnation(1)));
        let incarnation = record("incarnation-3.rec");
        assert_eq!(incarnation.incarnation(), Some(Incarnation(3)));
        assert_eq!(incarnation.checkpoint(), None);
        assert_eq!(record("promise.rec").incarnation(), None);
    }
}

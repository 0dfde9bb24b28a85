//! A store whose storage fails: in front of any other, for tests, for the simulator, and
//! for the faults that `outlive inject` orders.
//!
//! Invariants: without a fault the store behind it is asked for exactly what this one was
//! asked for; a power cut does what [`Store`] allows, and all of that: what was not
//! answered is there, or not, or in an append in part; a removal that was not settled comes
//! back or does not.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outlive_base::rng::Sequence;

use crate::error::{ReadError, WriteError};
use crate::store::{
    Draft, Item, Key, Object, ObjectKind, Put, Space, Store, Unappended, read_exact,
};

/// Bytes of a transfer.
const CHUNK: u64 = 4 << 20;

/// What is about to happen to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// [`Store::begin`], of so many bytes.
    Begin,
    /// [`Draft::write`].
    Write,
    /// [`Draft::seal`].
    Seal,
    /// One of [`Store::put_all`], or [`Store::create`].
    Put,
    /// [`Store::append`].
    Append,
    /// A look at what is there, of so many bytes.
    Read,
    /// One of [`Store::remove`].
    Remove,
    /// [`Store::settle`].
    Settle,
    /// After a power cut: the return of what was removed and not settled.
    Return,
}

/// What becomes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is done. Of a [`Act::Return`]: it stays away.
    Goes,
    /// It is not done.
    Fails(io::ErrorKind),
    /// Only so many bytes of a read come, at least one; of a [`Act::Return`], so many are left.
    Short(u64),
    /// It is done, and this bit of what was read is flipped.
    Rots(u64),
    /// The power is cut on the way, when so many bytes were durable: whoever asked hears of a
    /// failure, and so does everybody until [`Faulty::restart`].
    Cut(u64),
}

/// Decides what fails. To be slow, it takes its time.
pub trait Faults: Send + Sync + fmt::Debug {
    /// Asked before each act; `bytes` is what it moves.
    fn before(&self, act: Act, key: &Key, bytes: u64) -> Fate;
    /// True if power cuts happen: what is removed is then kept until it is settled.
    fn cuts(&self) -> bool {
        false
    }
}

#[derive(Debug, Default)]
struct Power {
    off: bool,
    /// Removed and not settled.
    limbo: Vec<(Key, Vec<u8>)>,
}

/// A store in front of another.
#[derive(Clone, Debug)]
pub struct Faulty {
    inner: Arc<dyn Store>,
    faults: Arc<dyn Faults>,
    power: Arc<Mutex<Power>>,
}

impl Faulty {
    /// Puts faults in front of a store.
    pub fn new(inner: Arc<dyn Store>, faults: Arc<dyn Faults>) -> Faulty {
        Faulty {
            inner,
            faults,
            power: Arc::default(),
        }
    }

    /// True since a power cut.
    pub fn is_off(&self) -> bool {
        self.power().off
    }

    /// The power is back. What was not settled returns as the faults want it.
    pub fn restart(&self) -> Result<(), WriteError> {
        let limbo = std::mem::take(&mut *self.power()).limbo;
        for (key, bytes) in limbo {
            let left = match self.faults.before(Act::Return, &key, bytes.len() as u64) {
                Fate::Goes => continue,
                Fate::Short(left) => &bytes[..bytes.len().min(left as usize)],
                _ => &bytes[..],
            };
            // One that was written since stays.
            if self.inner.tag(&key).is_none() {
                let draft = self.inner.begin(&key, left.len() as u64, false)?;
                draft.write(0, &mut [IoSlice::new(left)])?;
                draft.seal()?;
            }
        }
        Ok(())
    }

    fn power(&self) -> MutexGuard<'_, Power> {
        self.power.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens, unless it fails.
    fn meet(&self, act: Act, key: &Key, bytes: u64) -> io::Result<Fate> {
        if self.is_off() {
            return Err(cut());
        }
        match self.faults.before(act, key, bytes) {
            Fate::Fails(kind) => Err(kind.into()),
            fate => {
                self.power().off |= matches!(fate, Fate::Cut(_));
                Ok(fate)
            }
        }
    }

    /// [`Faulty::meet`] for what writes: so many bytes are to be written. The error that is to
    /// be told, if less than that are.
    fn spared(&self, act: Act, key: &Key, bytes: u64) -> (u64, Result<(), WriteError>) {
        let error = |error| WriteError::io(self.inner.locate(key), "write", error);
        match self.meet(act, key, bytes) {
            Ok(Fate::Cut(durable)) => (durable.min(bytes), Err(error(cut()))),
            Ok(_) => (bytes, Ok(())),
            Err(failed) => (0, Err(error(failed))),
        }
    }

    /// [`Faulty::spared`] for what is done as a whole or not.
    fn whole(&self, act: Act, key: &Key, bytes: u64) -> (bool, Result<(), WriteError>) {
        let bytes = bytes.max(1);
        let (durable, told) = self.spared(act, key, bytes);
        (durable == bytes, told)
    }

    fn look(&self, key: &Key) -> io::Result<()> {
        self.meet(Act::Read, key, 0).map(drop)
    }
}

fn cut() -> io::Error {
    io::Error::other("the power was cut")
}

/// The first bytes of some slices.
fn first(parts: &[IoSlice<'_>], bytes: u64) -> Vec<u8> {
    let all = parts.iter().flat_map(|part| part.iter().copied());
    all.take(bytes as usize).collect()
}

fn total(parts: &[IoSlice<'_>]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

impl Store for Faulty {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn locate(&self, key: &Key) -> String {
        self.inner.locate(key)
    }

    fn begin(&self, key: &Key, length: u64, aligned: bool) -> Result<Box<dyn Draft>, WriteError> {
        self.spared(Act::Begin, key, length).1?;
        Ok(Box::new(Watched {
            store: self.clone(),
            key: key.clone(),
            inner: self.inner.begin(key, length, aligned)?,
        }))
    }

    fn resume(
        &self,
        key: &Key,
        length: u64,
        aligned: bool,
        kept: &[u8],
    ) -> Result<Box<dyn Draft>, WriteError> {
        self.spared(Act::Begin, key, length).1?;
        Ok(Box::new(Watched {
            store: self.clone(),
            key: key.clone(),
            inner: self.inner.resume(key, length, aligned, kept)?,
        }))
    }

    fn put_all(&self, small: &[Put<'_>]) -> Vec<Result<u64, WriteError>> {
        let mut results: Vec<Result<u64, WriteError>> = Vec::new();
        let (mut places, mut left) = (Vec::new(), Vec::new());
        for put in small {
            let bytes = put.bytes.len() as u64;
            let (whole, mut told) = self.whole(Act::Put, &put.key, bytes);
            let mut put = put.clone();
            // Where no room is left there is some that is kept.
            let full = told.as_ref().is_err_and(WriteError::is_full);
            if full && put.space != Space::Free {
                (put.space, told) = (Space::Kept, Ok(()));
            }
            if whole || put.space == Space::Kept && told.is_ok() {
                places.push(results.len());
                left.push(put);
            }
            results.push(told.map(|()| 0));
        }
        for (at, tag) in places.into_iter().zip(self.inner.put_all(&left)) {
            if results[at].is_ok() {
                results[at] = tag;
            }
        }
        // Nobody hears of a batch in which the power was cut.
        match self.is_off() {
            true => small
                .iter()
                .map(|put| self.whole(Act::Put, &put.key, 0).1.map(|()| 0))
                .collect(),
            false => results,
        }
    }

    fn create(&self, key: &Key, bytes: &[u8]) -> Result<bool, WriteError> {
        let (whole, told) = self.whole(Act::Put, key, bytes.len() as u64);
        let created = match whole {
            true => self.inner.create(key, bytes)?,
            false => false,
        };
        told.map(|()| created)
    }

    fn append(&self, key: &Key, at: u64, parts: &mut [IoSlice<'_>]) -> Result<(), Unappended> {
        let bytes = total(parts);
        let (durable, told) = self.spared(Act::Append, key, bytes);
        let appended = match durable {
            0 if bytes != 0 => Ok(()),
            _ if durable == bytes => self.inner.append(key, at, parts),
            _ => self
                .inner
                .append(key, at, &mut [IoSlice::new(&first(parts, durable))]),
        };
        let cut = durable == 0;
        told.map_err(|error| Unappended { error, cut })?;
        appended
    }

    fn open(&self, key: &Key, fresh: bool) -> io::Result<Box<dyn Object>> {
        self.look(key)?;
        Ok(Box::new(Watched {
            store: self.clone(),
            key: key.clone(),
            inner: self.inner.open(key, fresh)?,
        }))
    }

    fn get(&self, key: &Key, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = self.inner.get(key, most)?;
        if let Fate::Rots(bit) = self.meet(Act::Read, key, bytes.len() as u64)? {
            flip(&mut bytes, bit);
        }
        Ok(bytes)
    }

    fn get_still(&self, key: &Key, most: u64) -> io::Result<Option<Vec<u8>>> {
        match self.inner.get_still(key, most)? {
            Some(_) => self.get(key, most).map(Some),
            None => Ok(None),
        }
    }

    fn tag(&self, key: &Key) -> Option<u64> {
        self.look(key).ok().and_then(|()| self.inner.tag(key))
    }

    fn written(&self, key: &Key) -> io::Result<std::time::SystemTime> {
        self.look(key)?;
        self.inner.written(key)
    }

    fn list(&self, kind: ObjectKind) -> io::Result<Vec<Item>> {
        match self.is_off() {
            true => Err(cut()),
            false => self.inner.list(kind),
        }
    }

    fn remove(&self, keys: &[Key]) -> Result<(), WriteError> {
        let (mut going, mut told) = (Vec::new(), Ok(()));
        for key in keys {
            let (whole, result) = self.whole(Act::Remove, key, 1);
            if self.faults.cuts()
                && let Ok(bytes) = self.inner.get(key, u64::MAX)
            {
                self.power().limbo.push((key.clone(), bytes));
            }
            going.extend(whole.then(|| key.clone()));
            told = result;
            if told.is_err() {
                break;
            }
        }
        self.inner.remove(&going)?;
        told
    }

    fn settle(&self, kind: ObjectKind, keys: &[Key]) -> Result<(), WriteError> {
        // A kind that is settled has no key of its own.
        let key = Key::record(kind, "*".into());
        self.whole(Act::Settle, &key, 1).1?;
        self.inner.settle(kind, keys)?;
        self.power().limbo.retain(|(key, _)| key.kind() != kind);
        Ok(())
    }

    fn room(&self) -> io::Result<u64> {
        self.inner.room()
    }
}

/// A draft or an object, watched.
struct Watched<T: ?Sized> {
    store: Faulty,
    key: Key,
    inner: Box<T>,
}

impl Draft for Watched<dyn Draft> {
    fn write(&self, at: u64, parts: &mut [IoSlice<'_>]) -> Result<(), WriteError> {
        self.store.spared(Act::Write, &self.key, total(parts)).1?;
        self.inner.write(at, parts)
    }

    fn read_back(&self) -> Result<Box<dyn Object>, WriteError> {
        Ok(Box::new(Watched {
            store: self.store.clone(),
            key: self.key.clone(),
            inner: self.inner.read_back()?,
        }))
    }

    fn seal(self: Box<Self>) -> Result<(), WriteError> {
        let (whole, told) = self.store.whole(Act::Seal, &self.key, 1);
        if whole {
            self.inner.seal()?;
        }
        told
    }

    fn kept(&self) -> Option<Vec<u8>> {
        self.inner.kept()
    }

    fn has(&self, at: u64, bytes: u64) -> bool {
        self.inner.has(at, bytes)
    }

    fn finish(&self) -> Result<(), WriteError> {
        self.inner.finish()
    }

    fn leave(self: Box<Self>) {
        self.inner.leave();
    }
}

impl Object for Watched<dyn Object> {
    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }

    fn read_at(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let wanted = into.iter().map(|slice| slice.len() as u64).sum();
        let fate = self.store.meet(Act::Read, &self.key, wanted)?;
        if let (Fate::Short(most), Some(slice)) = (fate, into.iter_mut().find(|it| !it.is_empty()))
        {
            let most = slice.len().min(most.max(1) as usize);
            return self
                .inner
                .read_at(at, &mut [IoSliceMut::new(&mut slice[..most])]);
        }
        let count = self.inner.read_at(at, into)?;
        if let (Fate::Rots(bit), Some(slice)) = (fate, into.iter_mut().find(|it| !it.is_empty())) {
            let come = slice.len().min(count);
            flip(&mut slice[..come], bit);
        }
        Ok(count)
    }

    fn again(&self, fresh: bool) -> io::Result<Box<dyn Object>> {
        Ok(Box::new(Watched {
            store: self.store.clone(),
            key: self.key.clone(),
            inner: self.inner.again(fresh)?,
        }))
    }
}

fn flip(bytes: &mut [u8], bit: u64) {
    let bits = bytes.len() as u64 * 8;
    if let Some(bit) = bit.checked_rem(bits) {
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

/// Damages an object as storage may: the bit in its middle is flipped from now on.
///
/// # Errors
/// [`ReadError`] and [`WriteError`] of the store.
pub fn damage(store: &dyn Store, key: &Key) -> outlive_base::Result<()> {
    let failed = |error| ReadError::io(&store.locate(key), "read", error);
    let object = store.open(key, false).map_err(failed)?;
    let length = object.length().map_err(failed)?;
    let draft = store.begin(key, length, false)?;
    let mut buffer = vec![0; length.min(CHUNK) as usize];
    for at in (0..length).step_by(CHUNK as usize) {
        let part = &mut buffer[..CHUNK.min(length - at) as usize];
        read_exact(&*object, part, at).map_err(failed)?;
        let middle = (length / 2).checked_sub(at);
        if let Some(byte) = middle.and_then(|middle| part.get_mut(middle as usize)) {
            *byte ^= 0x10;
        }
        draft.write(at, &mut [IoSlice::new(part)])?;
    }
    Ok(draft.seal()?)
}

/// Faults by chance, in millionths of the acts that each can befall. The same seed and the
/// same acts fail in the same way.
#[derive(Debug)]
pub struct Odds {
    /// No space is left for what is written.
    pub full: u32,
    /// The device fails.
    pub fails: u32,
    /// A read gives less than was asked for.
    pub short: u32,
    /// A read gives a flipped bit.
    pub rots: u32,
    /// The power is cut.
    pub cut: u32,
    random: Mutex<Sequence>,
}

impl Odds {
    /// No faults yet.
    pub fn new(seed: u64) -> Odds {
        Odds {
            full: 0,
            fails: 0,
            short: 0,
            rots: 0,
            cut: 0,
            random: Mutex::new(Sequence::new(seed, 0)),
        }
    }
}

impl Faults for Odds {
    fn before(&self, act: Act, _: &Key, bytes: u64) -> Fate {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let part = |random: &mut Sequence| random.below(bytes.saturating_add(1));
        match act {
            Act::Return if random.chance(500_000) => return Fate::Short(part(&mut random)),
            Act::Return => return Fate::Goes,
            Act::Read if random.chance(self.short) => return Fate::Short(part(&mut random)),
            Act::Read if random.chance(self.rots) => return Fate::Rots(random.u64()),
            Act::Begin | Act::Write | Act::Put | Act::Append if random.chance(self.full) => {
                return Fate::Fails(io::ErrorKind::StorageFull);
            }
            _ => {}
        }
        if act != Act::Read && random.chance(self.cut) {
            return Fate::Cut(part(&mut random));
        }
        match random.chance(self.fails) {
            true => Fate::Fails(io::ErrorKind::Other),
            false => Fate::Goes,
        }
    }

    fn cuts(&self) -> bool {
        self.cut != 0
    }
}

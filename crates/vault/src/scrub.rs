//! Reading what is stored before it is needed, putting a sound copy in the place of a damaged one,
//! and making one again that was lost.
//!
//! Invariants: what is read comes from the storage, not from what only remembers it; nothing is
//! called damaged that was removed or replaced while it was read; what takes the place of a copy
//! was read back and is what the commit record names; until then the copy stays as it is.

use std::io::{self, IoSlice};

use outlive_base::Error;
use outlive_ledger::{Parity, Sealed};

use crate::aligned::PAGE64;
use crate::container::{Container, verify_written};
use crate::error::{ReadError, WriteError};
use crate::parity::ParityFile;
use crate::scratch::Scratch;
use crate::store::{Draft, Key, Store};

/// Bytes of a transfer.
const CHUNK: usize = 1 << 20;

/// Asked before each transfer of so many bytes, it takes its time; false ends the reading.
pub type Pace<'a> = dyn FnMut(u64) -> bool + 'a;

/// What came of reading a copy.
#[derive(Debug)]
pub enum Scrubbing {
    /// All of it is there and is what was recorded: so many bytes.
    Whole(u64),
    /// Nothing stands there, or something else than when the reading began.
    Gone,
    /// The pace ended it.
    Stopped,
    /// Its bytes are not those that were recorded, or the storage does not give them.
    Damaged(Error),
    /// It could not be looked at, for another reason.
    Unreadable(Error),
}

/// Reads all of a container, frame by frame, and compares it with what was recorded.
pub fn read_container(
    store: &dyn Store,
    key: &Key,
    expected: &Sealed,
    pace: &mut Pace<'_>,
) -> Scrubbing {
    judged(store, key, || container(store, key, expected, pace))
}

/// Reads all of a parity.
pub fn read_parity(
    store: &dyn Store,
    key: &Key,
    expected: Parity,
    pace: &mut Pace<'_>,
) -> Scrubbing {
    judged(store, key, || {
        let file = ParityFile::fresh(store, key)?;
        if file.parity != expected {
            let what = "not the parity that was recorded";
            return Err(ReadError::corrupt(&store.locate(key), what));
        }
        let whole = file.verify_paced(pace)?;
        Ok(whole.then_some(expected.length + PAGE64))
    })
}

/// `None`: the pace ended it.
fn container(
    store: &dyn Store,
    key: &Key,
    expected: &Sealed,
    pace: &mut Pace<'_>,
) -> Result<Option<u64>, ReadError> {
    let container = Container::open(store, key)?;
    if container.sealed() != *expected {
        return Err(ReadError::Other {
            path: store.locate(key),
            expected: expected.to_string(),
            found: container.sealed().to_string(),
        });
    }
    let file = container.bulk(true)?;
    let mut buffer = Scratch::new(0);
    for nth in 0..container.frames().0.len() {
        let bytes = PAGE64 + container.frames().0[nth].padded() as u64;
        if !pace(bytes) {
            return Ok(None);
        }
        container.frame(nth, &*file, &mut buffer)?;
    }
    container.verify_ends(&*file)?;
    Ok(Some(expected.length))
}

/// What a reading says, if the same object stands there after it: a file that is removed may be
/// written over while it is read.
fn judged(
    store: &dyn Store,
    key: &Key,
    read: impl FnOnce() -> Result<Option<u64>, ReadError>,
) -> Scrubbing {
    let Some(before) = store.tag(key) else {
        return Scrubbing::Gone;
    };
    let error = match read() {
        Ok(Some(bytes)) => return Scrubbing::Whole(bytes),
        Ok(None) => return Scrubbing::Stopped,
        Err(error) => error,
    };
    match store.tag(key) {
        Some(after) if after == before => match is_damage(&error) {
            true => Scrubbing::Damaged(error.into()),
            false => Scrubbing::Unreadable(error.into()),
        },
        _ => Scrubbing::Gone,
    }
}

/// Also of bytes that the device does not give: what is written in their place it does.
fn is_damage(error: &ReadError) -> bool {
    let failed = |doing: &str, source: &io::Error| {
        use io::ErrorKind::{Interrupted, NotConnected, OutOfMemory, PermissionDenied, TimedOut};
        let passes = [
            Interrupted,
            NotConnected,
            OutOfMemory,
            PermissionDenied,
            TimedOut,
        ];
        doing == "read" && !passes.contains(&source.kind())
    };
    match error {
        ReadError::Io { doing, source, .. } => failed(doing, source),
        ReadError::Format { .. } => true,
        error => error.is_damage(),
    }
}

/// Puts a container in the place of a damaged one: what `reader` gives is written beside, read
/// back, and takes the key only if it is what was recorded and something stands there still.
///
/// # Errors
/// [`outlive_base::Code::Corrupt`] if it is something else: the copy stays as it is.
/// [`outlive_base::Code::NotFound`] if the copy was removed meanwhile. What hinders the reader, or
/// the storage.
pub fn mend_container(
    store: &dyn Store,
    key: &Key,
    expected: &Sealed,
    reader: &mut dyn io::Read,
) -> outlive_base::Result<()> {
    let path = store.locate(key);
    let draft = store.begin(key, expected.length, expected.length.is_multiple_of(PAGE64))?;
    fill(&*draft, expected.length, reader)?;
    let back = Container::of_object(&path, draft.read_back()?)?;
    back.verify(Some(expected))?;
    drop(back);
    if store.tag(key).is_none() {
        let gone = io::ErrorKind::NotFound.into();
        return Err(Error::io(
            &path,
            "mend a copy that was removed meanwhile",
            &gone,
        ));
    }
    Ok(draft.seal()?)
}

/// Makes a container again that was lost: what `reader` gives is written and read back, and stands
/// under the key only if it is what was recorded.
///
/// # Errors
/// [`outlive_base::Code::Corrupt`] if it is something else: nothing stands there then. What hinders
/// the reader, or the storage.
pub fn make_container(
    store: &dyn Store,
    key: &Key,
    expected: &Sealed,
    reader: &mut dyn io::Read,
) -> outlive_base::Result<()> {
    let path = store.locate(key);
    let draft = store.begin(key, expected.length, expected.length.is_multiple_of(PAGE64))?;
    fill(&*draft, expected.length, reader)?;
    match draft.read_back() {
        Ok(back) => {
            Container::of_object(&path, back)?.verify(Some(expected))?;
            Ok(draft.seal()?)
        }
        // It can be looked at where it is to stand alone.
        Err(WriteError::Io { source, .. }) if source.kind() == io::ErrorKind::Unsupported => {
            draft.seal()?;
            if let Err(error) = verify_written(store, key, Some(expected)) {
                store.remove(std::slice::from_ref(key))?;
                return Err(error.into());
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn fill(draft: &dyn Draft, length: u64, reader: &mut dyn io::Read) -> outlive_base::Result<()> {
    let mut buffer = Scratch::new(CHUNK.min(usize::try_from(length).unwrap_or(CHUNK)));
    let mut at = 0;
    while at < length {
        let bytes = (length - at).min(CHUNK as u64) as usize;
        let chunk = &mut buffer[..bytes];
        reader.read_exact(chunk).map_err(crate::sum::of_the_sum)?;
        draft.write(at, &mut [IoSlice::new(chunk)])?;
        at += bytes as u64;
    }
    Ok(())
}

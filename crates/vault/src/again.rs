//! Writing an object in pieces that need not be written again after an interruption.
//!
//! Invariants: what a draft says it has is not read again; what is kept of a draft is noted before
//! it is given up, and now and then before; memory is that of [`CHUNKS`] pieces; several are
//! written at once, for a store that is far away takes each of them after a while.

use std::io::{IoSlice, Read};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::error::WriteError;
use crate::scratch::Scratch;
use crate::store::{Draft, Key, Store};
use crate::write::receive;

/// Bytes of a piece.
const CHUNK: usize = 4 << 20;
/// Pieces that are read or written at one time.
const CHUNKS: usize = 6;
/// Threads that write.
const WRITERS: usize = 4;
/// What is kept is noted so often at most.
const NOTED_EVERY: Duration = Duration::from_secs(1);

/// What is written, where its bytes come from, and what is remembered of it.
pub struct Again<'a> {
    /// Opens the bytes from here on.
    pub open: &'a mut dyn FnMut(u64) -> Result<Box<dyn Read>, WriteError>,
    /// What was noted of an earlier draft of the same bytes.
    pub kept: Option<Vec<u8>>,
    /// Notes what the next one needs; it is asked again soon if this fails.
    pub note: &'a mut dyn FnMut(&[u8]),
}

/// An object that did not come about.
#[derive(Debug)]
pub struct Unwritten {
    /// Why.
    pub error: WriteError,
    /// What the store has of it, for the next try; `None`: nothing, or it cannot go on.
    pub kept: Option<Vec<u8>>,
    /// The store has taken some of it in this try.
    pub came_further: bool,
}

/// Writes `length` bytes as the object `key` and makes it durable. The bytes are not looked at: the
/// caller opens and verifies it next. With `leaves` the store keeps what it has after a failure.
///
/// # Errors
/// Those of the store, and of the reader as [`WriteError::Lost`].
pub fn store_again(
    (store, key): (&dyn Store, &Key),
    length: u64,
    again: Again<'_>,
    leaves: &dyn Fn(&WriteError) -> bool,
) -> Result<(), Unwritten> {
    let aligned = length.is_multiple_of(crate::aligned::PAGE64);
    let begun = match &again.kept {
        Some(kept) => store.resume(key, length, aligned, kept),
        None => store.begin(key, length, aligned),
    };
    let draft = begun.map_err(|error| Unwritten {
        error,
        kept: again.kept.clone(),
        came_further: false,
    })?;
    let before = draft.kept();
    let written = write(&*draft, &store.locate(key), length, again).and_then(|()| draft.finish());
    let kept = draft.kept();
    let came_further = kept != before;
    let (error, kept) = match written {
        Err(error) if kept.is_some() && leaves(&error) => {
            draft.leave();
            (error, kept)
        }
        Err(error) => (error, None),
        Ok(()) => match draft.seal() {
            Ok(()) => return Ok(()),
            Err(error) => (error, None),
        },
    };
    Err(Unwritten {
        error,
        kept,
        came_further,
    })
}

fn write(draft: &dyn Draft, path: &str, length: u64, again: Again<'_>) -> Result<(), WriteError> {
    let (full, filled) = mpsc::sync_channel::<(Scratch, usize, u64)>(CHUNKS);
    let (back, free) = mpsc::sync_channel::<Scratch>(CHUNKS);
    let chunk = CHUNK.min(usize::try_from(length).unwrap_or(CHUNK));
    for _ in 0..CHUNKS.min(length.div_ceil(CHUNK as u64).max(1) as usize) {
        // The queue has room for all: this never blocks.
        let _ = back.send(Scratch::new(chunk));
    }
    let (filled, failed) = (Mutex::new(filled), Mutex::new(None));
    let work = |back: mpsc::SyncSender<Scratch>| {
        loop {
            let next = filled.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((buffer, bytes, offset)) = next else {
                return;
            };
            let failed = || failed.lock().unwrap_or_else(PoisonError::into_inner);
            if failed().is_none()
                && let Err(error) = draft.write(offset, &mut [IoSlice::new(&buffer[..bytes])])
            {
                failed().get_or_insert(error);
            }
            // Nobody may need it any more.
            let _ = back.send(buffer);
        }
    };
    let is_failed = || {
        failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    };
    let read = std::thread::scope(|scope| {
        let mut writers = 0;
        for _ in 0..WRITERS {
            let back = back.clone();
            let writer = std::thread::Builder::new();
            writers += usize::from(writer.spawn_scoped(scope, || work(back)).is_ok());
        }
        drop(back);
        if writers == 0 {
            let error = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
            return Err(WriteError::io(path, "start a thread", error));
        }
        let feeding = Feeding {
            draft,
            path,
            length,
            is_failed: &is_failed,
        };
        feeding.feed(again, &free, full)
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    // A write that failed is why the reader stopped: its error says more.
    failed.map_or(read, Err)
}

struct Feeding<'a> {
    draft: &'a dyn Draft,
    path: &'a str,
    length: u64,
    is_failed: &'a dyn Fn() -> bool,
}

impl Feeding<'_> {
    /// Reads what the draft has not into buffers, and hands them on.
    fn feed(
        &self,
        again: Again<'_>,
        free: &mpsc::Receiver<Scratch>,
        full: mpsc::SyncSender<(Scratch, usize, u64)>,
    ) -> Result<(), WriteError> {
        let (mut offset, mut noted) = (0, Instant::now());
        let mut open: Option<(u64, Box<dyn Read>)> = None;
        while offset < self.length && !(self.is_failed)() {
            let bytes = (self.length - offset).min(CHUNK as u64);
            if self.draft.has(offset, bytes) {
                offset += bytes;
                continue;
            }
            let Ok(mut buffer) = free.recv() else { break };
            let mut reader = match open.take().filter(|(at, _)| *at == offset) {
                Some((_, reader)) => reader,
                None => (again.open)(offset)?,
            };
            let into = &mut buffer[..bytes as usize];
            receive(&mut *reader, into, offset, self.length, self.path)?;
            if full.send((buffer, bytes as usize, offset)).is_err() {
                break;
            }
            offset += bytes;
            open = Some((offset, reader));
            if noted.elapsed() >= NOTED_EVERY
                && let Some(kept) = self.draft.kept()
            {
                (again.note)(&kept);
                noted = Instant::now();
            }
        }
        Ok(())
    }
}

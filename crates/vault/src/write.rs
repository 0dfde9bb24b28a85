//! Writing containers: from memory ([`write_container`]) and from a stream
//! ([`store_stream`]).
//!
//! Invariants: the final name appears only after fsync; a failure, a cancellation or
//! a crash leaves nothing under it; memory in use is bounded by [`THREADS_MAX`]
//! transfers; a caller who cancels waits for at most one transfer per thread and, at
//! the end, one fsync.

use std::io::{self, IoSlice, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

use crate::aligned::PAGE;
use crate::disk::{Temporary, write_all};
use crate::error::WriteError;
use crate::layout::{Layout, batches};
use crate::scratch::Scratch;
use crate::spares::Spares;
use outlive_ledger::Sealed;

/// Most threads that one write or read uses.
pub const THREADS_MAX: usize = 8;
/// Threads unless told otherwise: one computes checksums while others wait for the
/// disk.
pub const THREADS: usize = 3;
/// Bytes of a transfer that comes from a stream.
const CHUNK: usize = 4 << 20;
/// Transfers in flight between a stream and the disk.
const CHUNKS: usize = 3;

/// Threads for a transfer of so many bytes: a short one is over before another thread has
/// begun.
pub(crate) fn threads_for(bytes: u64) -> usize {
    usize::try_from(bytes / CHUNK as u64).map_or(THREADS, |chunks| chunks.clamp(1, THREADS))
}

/// Called before each transfer and each sync: where tests and `--inject` make a disk
/// full, failing or slow.
pub trait WriteHook: Sync {
    /// Before `bytes` are written at `offset`; an error takes the place of the write.
    fn write(&self, path: &Path, offset: u64, bytes: usize) -> io::Result<()>;
    /// Before a file is synced.
    fn sync(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// How to write.
#[derive(Clone, Copy)]
pub struct WriteOptions<'a> {
    /// Threads, 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// Bypass the page cache where possible.
    pub direct: bool,
    /// Give up as soon as this is set.
    pub cancel: Option<&'a AtomicBool>,
    /// Faults to inject.
    pub hook: Option<&'a dyn WriteHook>,
    /// Files that may be written over.
    pub spares: Option<&'a Spares>,
}

impl Default for WriteOptions<'_> {
    fn default() -> Self {
        WriteOptions {
            threads: THREADS,
            direct: true,
            cancel: None,
            hook: None,
            spares: None,
        }
    }
}

impl WriteOptions<'_> {
    fn check(&self, path: &Path) -> Result<(), WriteError> {
        match self.cancel {
            Some(flag) if flag.load(Ordering::Relaxed) => {
                Err(WriteError::Cancelled(path.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// A file of `length` bytes under construction.
    fn create(&self, path: &Path, direct: bool, length: u64) -> Result<Temporary, WriteError> {
        let spare = self
            .spares
            .and_then(|spares| spares.take(path, direct, length));
        let file = spare.map_or_else(|| Temporary::create(path, direct), Ok)?;
        file.reserve(length)
            .map_err(|error| WriteError::io(path, "reserve", error))?;
        Ok(file)
    }

    fn transfer(
        &self,
        path: &Path,
        file: &Temporary,
        slices: &mut [IoSlice<'_>],
        offset: u64,
    ) -> Result<(), WriteError> {
        self.check(path)?;
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        let hooked = self
            .hook
            .map_or(Ok(()), |hook| hook.write(path, offset, bytes));
        hooked
            .and_then(|()| write_all(&file.file, slices, offset))
            .map_err(|error| WriteError::io(path, "write", error))
    }

    fn finish(&self, path: &Path, file: Temporary) -> Result<(), WriteError> {
        self.check(path)?;
        let hooked = self.hook.map_or(Ok(()), |hook| hook.sync(path));
        hooked.map_err(|error| WriteError::io(path, "sync", error))?;
        file.sync()?;
        self.check(path)?;
        file.publish()
    }
}

/// Writes `layout` as the file `path` and makes it durable. Its directory must
/// exist. A file of that name is replaced at the end, atomically.
pub fn write_container(
    path: &Path,
    layout: &Layout<'_>,
    options: &WriteOptions<'_>,
) -> Result<Sealed, WriteError> {
    options.check(path)?;
    let direct = options.direct && layout.is_aligned();
    let file = options.create(path, direct, layout.length())?;
    let batches = batches(layout.spots());
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<WriteError>> = Mutex::new(None);
    let work = || {
        let mut slices = Vec::new();
        while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
            slices.clear();
            slices.extend(
                batch
                    .clone()
                    .flat_map(|nth| layout.frame_segments(nth))
                    .map(IoSlice::new),
            );
            let offset = layout.spots()[batch.start].file_offset;
            if let Err(error) = options.transfer(path, &file, &mut slices, offset) {
                next.store(batches.len(), Ordering::Relaxed);
                failed
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(error);
                return;
            }
        }
    };
    let threads = options.threads.clamp(1, THREADS_MAX).min(batches.len());
    let threads = match layout.length() <= CHUNK as u64 {
        true => 1,
        false => threads,
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // A process that may start no more threads does it all by itself.
            let helper = std::thread::Builder::new();
            if helper.spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    options.transfer(path, &file, &mut [IoSlice::new(layout.header())], 0)?;
    let mut end = layout.end_segments().map(IoSlice::new);
    options.transfer(path, &file, &mut end, layout.index_offset())?;
    options.finish(path, file)?;
    Ok(layout.seal())
}

/// Writes `length` bytes of `reader`, verbatim, as the file `path` and makes it
/// durable: the partner's side of a stream. The bytes are not looked at; the caller
/// opens and verifies the file next, and removes it if that fails.
pub fn store_stream(
    path: &Path,
    reader: &mut dyn Read,
    length: u64,
    options: &WriteOptions<'_>,
) -> Result<(), WriteError> {
    options.check(path)?;
    let direct = options.direct && length.is_multiple_of(PAGE as u64);
    let file = options.create(path, direct, length)?;
    match usize::try_from(length) {
        Ok(bytes) if bytes <= CHUNK => {
            let mut buffer = Scratch::new(bytes);
            reader
                .read_exact(&mut buffer[..bytes])
                .map_err(|error| WriteError::io(path, "receive", error))?;
            let mut slices = [IoSlice::new(&buffer[..bytes])];
            options.transfer(path, &file, &mut slices, 0)?;
        }
        _ => store_long(path, reader, length, &file, options)?,
    }
    options.finish(path, file)
}

/// The bytes of a stream into a file, which is written while more of them come.
fn store_long(
    path: &Path,
    reader: &mut dyn Read,
    length: u64,
    file: &Temporary,
    options: &WriteOptions<'_>,
) -> Result<(), WriteError> {
    let (to_disk, from_stream) = mpsc::sync_channel::<(Scratch, usize, u64)>(CHUNKS);
    let (to_stream, free) = mpsc::sync_channel::<Scratch>(CHUNKS);
    for _ in 0..CHUNKS {
        // The queue has room for all: this never blocks.
        let _ = to_stream.send(Scratch::new(CHUNK));
    }
    std::thread::scope(|scope| {
        let writer = std::thread::Builder::new().spawn_scoped(scope, move || {
            for (buffer, bytes, offset) in from_stream {
                let mut slices = [IoSlice::new(&buffer[..bytes])];
                options.transfer(path, file, &mut slices, offset)?;
                // The reader may be done: then nobody needs the buffer.
                let _ = to_stream.send(buffer);
            }
            Ok(())
        });
        let writer = writer.map_err(|error| WriteError::io(path, "start a thread", error))?;
        let read = feed(path, reader, length, options, &free, &to_disk);
        drop(to_disk);
        let written = writer
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // A writer that failed is why the reader stopped: its error says more.
        written.and(read)
    })
}

/// Moves a stream into buffers until `length` bytes are handed on.
fn feed(
    path: &Path,
    reader: &mut dyn Read,
    length: u64,
    options: &WriteOptions<'_>,
    free: &mpsc::Receiver<Scratch>,
    to_disk: &mpsc::SyncSender<(Scratch, usize, u64)>,
) -> Result<(), WriteError> {
    let mut offset = 0;
    while offset < length {
        options.check(path)?;
        let Ok(mut buffer) = free.recv() else { break };
        let bytes = (length - offset).min(buffer.len() as u64).min(CHUNK as u64) as usize;
        reader
            .read_exact(&mut buffer[..bytes])
            .map_err(|source| WriteError::Lost {
                path: path.to_owned(),
                expected: length,
                found: offset,
                source,
            })?;
        if to_disk.send((buffer, bytes, offset)).is_err() {
            break;
        }
        offset += bytes as u64;
    }
    Ok(())
}

//! Writing containers: from memory ([`write_container`]) and from a stream
//! ([`store_stream`]).
//!
//! Invariants: the object is there only when it is durable; a failure, a cancellation or
//! a crash leaves nothing of it; memory in use is bounded by [`THREADS_MAX`]
//! transfers; a caller who cancels waits for at most one transfer per thread and, at
//! the end, one fsync.

use std::io::{self, IoSlice, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

use crate::aligned::PAGE;
use crate::error::WriteError;
use crate::layout::{Layout, batches};
use crate::scratch::Scratch;
use crate::store::{Draft, Key, Store};
use outlive_ledger::Sealed;

/// Most threads that one write or read uses.
pub const THREADS_MAX: usize = 8;
/// Threads unless told otherwise: one computes checksums while others wait for the
/// disk.
pub const THREADS: usize = 3;
/// Bytes of a transfer that comes from a stream.
const CHUNK: usize = 4 << 20;
/// Frames of a container that is written by one call: three slices each, and some more, stay
/// under IOV_MAX. Each call waits for the disk.
const SHORT_FRAMES: usize = 256;
/// Transfers in flight between a stream and the disk.
const CHUNKS: usize = 3;

/// Threads for a transfer of so many bytes: a short one is over before another thread has
/// begun.
pub(crate) fn threads_for(bytes: u64) -> usize {
    usize::try_from(bytes / CHUNK as u64).map_or(THREADS, |chunks| chunks.clamp(1, THREADS))
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
}

impl Default for WriteOptions<'_> {
    fn default() -> Self {
        WriteOptions {
            threads: THREADS,
            direct: true,
            cancel: None,
        }
    }
}

/// An object on its way, and when to give it up.
struct Writing<'a> {
    draft: Box<dyn Draft>,
    path: String,
    cancel: Option<&'a AtomicBool>,
}

impl<'a> Writing<'a> {
    fn begin(
        (store, key): (&dyn Store, &Key),
        length: u64,
        aligned: bool,
        options: &WriteOptions<'a>,
    ) -> Result<Writing<'a>, WriteError> {
        let path = store.locate(key);
        check(options.cancel, &path)?;
        Ok(Writing {
            draft: store.begin(key, length, options.direct && aligned)?,
            path,
            cancel: options.cancel,
        })
    }

    fn transfer(&self, slices: &mut [IoSlice<'_>], offset: u64) -> Result<(), WriteError> {
        check(self.cancel, &self.path)?;
        self.draft.write(offset, slices)
    }

    fn finish(self) -> Result<(), WriteError> {
        check(self.cancel, &self.path)?;
        self.draft.seal()
    }
}

fn check(cancel: Option<&AtomicBool>, path: &str) -> Result<(), WriteError> {
    match cancel {
        Some(flag) if flag.load(Ordering::Relaxed) => Err(WriteError::Cancelled(path.to_owned())),
        _ => Ok(()),
    }
}

/// Writes `layout` as the object `key` and makes it durable. What is there is replaced at
/// the end, atomically.
pub fn write_container(
    store: &dyn Store,
    key: &Key,
    layout: &Layout<'_>,
    options: &WriteOptions<'_>,
) -> Result<Sealed, WriteError> {
    let file = Writing::begin((store, key), layout.length(), layout.is_aligned(), options)?;
    if layout.length() <= CHUNK as u64 && layout.spots().len() <= SHORT_FRAMES {
        let mut slices: Vec<IoSlice<'_>> = layout.segments().map(IoSlice::new).collect();
        file.transfer(&mut slices, 0)?;
        file.finish()?;
        return Ok(layout.seal());
    }
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
            if let Err(error) = file.transfer(&mut slices, offset) {
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
    file.transfer(&mut [IoSlice::new(layout.header())], 0)?;
    let mut end = layout.end_segments().map(IoSlice::new);
    file.transfer(&mut end, layout.index_offset())?;
    file.finish()?;
    Ok(layout.seal())
}

/// Writes `length` bytes of `reader`, verbatim, as the object `key` and makes it
/// durable: the partner's side of a stream. The bytes are not looked at; the caller
/// opens and verifies it next, and removes it if that fails.
pub fn store_stream(
    store: &dyn Store,
    key: &Key,
    reader: &mut dyn Read,
    length: u64,
    options: &WriteOptions<'_>,
) -> Result<(), WriteError> {
    let aligned = length.is_multiple_of(PAGE as u64);
    let file = Writing::begin((store, key), length, aligned, options)?;
    match usize::try_from(length) {
        Ok(bytes) if bytes <= CHUNK => {
            let mut buffer = Scratch::new(bytes);
            receive(reader, &mut buffer[..bytes], 0, length, &file.path)?;
            let mut slices = [IoSlice::new(&buffer[..bytes])];
            file.transfer(&mut slices, 0)?;
        }
        _ => store_long(reader, length, &file)?,
    }
    file.finish()
}

/// The next bytes of a stream of which so many had come before. That no more come is the
/// connection's fault, not that of what is written.
pub(crate) fn receive(
    reader: &mut dyn Read,
    into: &mut [u8],
    before: u64,
    expected: u64,
    path: &str,
) -> Result<(), WriteError> {
    let mut came = 0;
    while came < into.len() {
        let source = match reader.read(&mut into[came..]) {
            Ok(0) => io::ErrorKind::UnexpectedEof.into(),
            Ok(more) => {
                came += more;
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => error,
        };
        return Err(WriteError::Lost {
            path: path.to_owned(),
            expected,
            found: before + came as u64,
            source,
        });
    }
    Ok(())
}

/// The bytes of a stream into an object, which is written while more of them come.
fn store_long(reader: &mut dyn Read, length: u64, file: &Writing<'_>) -> Result<(), WriteError> {
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
                file.transfer(&mut slices, offset)?;
                // The reader may be done: then nobody needs the buffer.
                let _ = to_stream.send(buffer);
            }
            Ok(())
        });
        let writer = writer.map_err(|error| WriteError::io(&file.path, "start a thread", error))?;
        let read = feed(reader, length, file, &free, &to_disk);
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
    reader: &mut dyn Read,
    length: u64,
    file: &Writing<'_>,
    free: &mpsc::Receiver<Scratch>,
    to_disk: &mpsc::SyncSender<(Scratch, usize, u64)>,
) -> Result<(), WriteError> {
    let mut offset = 0;
    while offset < length {
        check(file.cancel, &file.path)?;
        let Ok(mut buffer) = free.recv() else { break };
        let bytes = (length - offset).min(buffer.len() as u64).min(CHUNK as u64) as usize;
        receive(reader, &mut buffer[..bytes], offset, length, &file.path)?;
        if to_disk.send((buffer, bytes, offset)).is_err() {
            break;
        }
        offset += bytes as u64;
    }
    Ok(())
}

//! Reading containers.
//!
//! Invariants: nothing is returned that did not match checksum, digest and place
//! (P2); nothing is reserved on the word of the file beyond the file's own length
//! (P7); reading changes nothing, so many processes may read at once.

use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use outlive_base::Rank;
use outlive_ledger::Sealed;

use crate::aligned::{Buffer, is_aligned};
use crate::aligned::{PAGE, PAGE64, up};
use crate::error::{DamagedAt, ReadError};
use crate::format::{
    ContainerHead, HEADER_FIXED, Refusal, Sums, decode_frame, decode_header, decode_header_fixed,
    decode_index, encode_footer, encode_frame, encode_index, seal,
};
use crate::layout::batches;
use crate::plan::{Plan, Spot};
use crate::scratch::Scratch;
use crate::store::{Key, Object, Store, read_all, read_exact};
use crate::write::threads_for;

/// A container that is so short is read back in one transfer.
const SHORT_BYTES: usize = 4 << 20;

/// Where the bytes of a container come from.
struct Source {
    object: Box<dyn Object>,
    /// All of a short one, as the store gave it.
    held: Option<(Scratch, usize)>,
}

impl Source {
    fn open(store: &dyn Store, key: &Key) -> io::Result<Source> {
        let object = store.open(key, false)?;
        Ok(Source { object, held: None })
    }

    /// One that was just written: what the storage holds, not what only remembers it.
    fn fresh(store: &dyn Store, key: &Key) -> io::Result<Source> {
        let object = store.open(key, true)?;
        let length = object.length()?;
        match usize::try_from(length) {
            Ok(bytes) if bytes <= SHORT_BYTES && bytes.is_multiple_of(PAGE) => {
                let mut scratch = Scratch::new(bytes);
                read_exact(&*object, &mut scratch[..bytes], 0)?;
                let held = Some((scratch, bytes));
                Ok(Source { object, held })
            }
            _ => Source::open(store, key),
        }
    }

    /// All bytes, if they are held.
    fn held(&self) -> Option<&[u8]> {
        let (held, bytes) = self.held.as_ref()?;
        Some(&held[..*bytes])
    }

    fn length(&self) -> io::Result<u64> {
        self.held()
            .map_or_else(|| self.object.length(), |held| Ok(held.len() as u64))
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let Some(held) = self.held() else {
            return read_exact(&*self.object, bytes, offset);
        };
        bytes.copy_from_slice(held_part(held, offset, bytes.len())?);
        Ok(())
    }
}

/// Why nothing was opened. What is there and cannot be an object is damage.
fn unopened(path: &str, error: io::Error) -> ReadError {
    match error.kind() {
        io::ErrorKind::InvalidData => ReadError::corrupt(path, error.to_string()),
        _ => ReadError::io(path, "open", error),
    }
}

fn held_part(held: &[u8], offset: u64, length: usize) -> io::Result<&[u8]> {
    let start = usize::try_from(offset).ok();
    let part = start.and_then(|start| held.get(start..start.checked_add(length)?));
    part.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// A rank as a container lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankEntry<'a> {
    /// The rank.
    pub rank: Rank,
    /// Its encoded region table.
    pub table: &'a [u8],
    /// Length of its data part, in bytes; whole pages.
    pub data_bytes: u64,
}

/// A container, open for reading. Header and index are checked; frames are
/// checked when they are read.
pub struct Container {
    path: String,
    source: Source,
    length: u64,
    head: ContainerHead,
    plan: Plan,
    spots: Vec<Spot>,
    sums: Vec<Sums>,
    header: Buffer,
    index: Buffer,
    sealed: Sealed,
    rebuilt: bool,
}

impl std::fmt::Debug for Container {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Container")
            .field("path", &self.path)
            .field("sealed", &self.sealed)
            .finish()
    }
}

impl Container {
    /// Opens a container and checks header, index and footer.
    pub fn open(store: &dyn Store, key: &Key) -> Result<Container, ReadError> {
        let path = store.locate(key);
        match Source::open(store, key) {
            Ok(source) => Container::from_source(&path, source),
            Err(error) => Err(unopened(&path, error)),
        }
    }

    /// What was written so far of one that has no name yet.
    pub(crate) fn of_object(path: &str, object: Box<dyn Object>) -> Result<Container, ReadError> {
        Container::from_source(path, Source { object, held: None })
    }

    fn from_source(path: &str, source: Source) -> Result<Container, ReadError> {
        let (length, head, plan, header) = read_header(path, &source)?;
        if length < plan.file_bytes {
            return Err(ReadError::Truncated {
                path: path.to_owned(),
                expected: plan.file_bytes,
                found: length,
            });
        }
        if length > plan.file_bytes {
            return Err(ReadError::corrupt(path, "bytes after the footer"));
        }
        let mut index = Buffer::new(up(plan.index_bytes) as usize);
        let mut footer = Buffer::new(PAGE);
        let footer_offset = plan.index_offset + index.len() as u64;
        source
            .read(&mut index, plan.index_offset)
            .and_then(|()| source.read(&mut footer, footer_offset))
            .map_err(|error| ReadError::io(path, "read", error))?;
        let sums = decode_index(&head, &plan, &index).map_err(|error| refused(path, error))?;
        let sealed = seal(&head, &plan, &header, &index);
        if encode_footer(&head, &plan, &index, &sealed).0 != footer[..] {
            return Err(ReadError::corrupt(
                path,
                "footer contradicts header and index",
            ));
        }
        let spots = plan.spots().collect();
        let path = path.to_owned();
        Ok(Container {
            path,
            source,
            length,
            head,
            plan,
            spots,
            sums,
            header,
            index,
            sealed,
            rebuilt: false,
        })
    }

    /// Opens a container whose index or footer is lost: rebuilds the index from the
    /// frame pages. The result is to be trusted only if [`Container::sealed`] is what
    /// a commit record says.
    pub fn rebuild_index(store: &dyn Store, key: &Key) -> Result<Container, ReadError> {
        let path = &*store.locate(key);
        let source = Source::open(store, key).map_err(|error| unopened(path, error))?;
        let (length, head, plan, header) = read_header(path, &source)?;
        let mut page = Buffer::new(PAGE);
        let (mut spots, mut sums) = (Vec::new(), Vec::new());
        for spot in plan.spots() {
            if spot.file_offset + PAGE64 + spot.padded() as u64 > length {
                let (expected, found) = (plan.file_bytes, length);
                return Err(ReadError::Truncated {
                    path: path.to_owned(),
                    expected,
                    found,
                });
            }
            source
                .read(&mut page, spot.file_offset)
                .map_err(|error| ReadError::io(path, "read", error))?;
            let found = decode_frame(&head, &plan, &spot, &page);
            sums.push(found.map_err(|error| refused_at(path, &plan, &spot, error))?);
            spots.push(spot);
        }
        let index = encode_index(&head, &plan, &sums);
        let sealed = seal(&head, &plan, &header, &index);
        tracing::warn!(path, "index rebuilt from the frames");
        let path = path.to_owned();
        Ok(Container {
            path,
            source,
            length,
            head,
            plan,
            spots,
            sums,
            header,
            index,
            sealed,
            rebuilt: true,
        })
    }

    /// Opens the container that a record speaks of, and rebuilds a damaged index if
    /// the result is exactly what was recorded.
    pub fn open_sealed(
        store: &dyn Store,
        key: &Key,
        expected: &Sealed,
    ) -> Result<Container, ReadError> {
        let container = match Container::open(store, key) {
            Err(error) if error.is_damage() => match Container::rebuild_index(store, key) {
                Ok(container) if container.sealed == *expected => container,
                _ => return Err(error),
            },
            other => other?,
        };
        container.expect(Some(expected))?;
        Ok(container)
    }

    /// What the container belongs to.
    pub fn head(&self) -> &ContainerHead {
        &self.head
    }
    /// Its seal, by header and index.
    pub fn sealed(&self) -> Sealed {
        self.sealed
    }
    /// What people find it by.
    pub fn path(&self) -> &str {
        &self.path
    }
    /// True if the index on disk is damaged and was rebuilt in memory.
    pub fn is_rebuilt(&self) -> bool {
        self.rebuilt
    }
    /// Its ranks, ascending.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = RankEntry<'_>> {
        self.plan.ranks.iter().map(|rank| RankEntry {
            rank: rank.rank,
            table: &rank.table,
            data_bytes: rank.data_bytes,
        })
    }

    /// Fills `data`, exactly the rank's `data_bytes` long, with its data part. Every
    /// frame is verified; on an error the content of `data` is undefined. Memory at
    /// page boundaries is read without a copy by the kernel.
    pub fn read_rank(&self, rank: Rank, data: &mut [u8]) -> Result<(), ReadError> {
        let slot = self
            .plan
            .ranks
            .binary_search_by_key(&rank, |plan| plan.rank);
        let slot = slot.map_err(|_| ReadError::Input(format!("{rank} is not in {}", self.path)))?;
        if data.len() as u64 != self.plan.ranks[slot].data_bytes {
            return Err(ReadError::Input(format!(
                "{} bytes of memory for the {} bytes of {rank}",
                data.len(),
                self.plan.ranks[slot].data_bytes
            )));
        }
        let file = self.bulk(is_aligned(data))?;
        let first = self.spots.partition_point(|spot| spot.slot < slot);
        let end = self.spots.partition_point(|spot| spot.slot <= slot);
        let mut jobs = Vec::new();
        let mut rest = data;
        for batch in batches(&self.spots[first..end]) {
            let batch = first + batch.start..first + batch.end;
            let bytes = self.spots[batch.clone()].iter().map(Spot::padded).sum();
            let (part, after) = rest.split_at_mut(bytes);
            jobs.push((batch, part));
            rest = after;
        }
        let bytes = self.plan.ranks[slot].data_bytes;
        in_parallel(
            (jobs, bytes),
            || Scratch::new(0),
            |pages, (batch, part)| {
                let spots = &self.spots[batch.clone()];
                if pages.len() < spots.len() * PAGE {
                    *pages = Scratch::new(spots.len() * PAGE);
                }
                let mut slices = Vec::with_capacity(2 * spots.len());
                let mut rest = &mut *part;
                for (spot, page) in spots.iter().zip(pages.chunks_exact_mut(PAGE)) {
                    let (payload, after) = rest.split_at_mut(spot.padded());
                    slices.extend([IoSliceMut::new(page), IoSliceMut::new(payload)]);
                    rest = after;
                }
                read_all(&*file, &mut slices, spots[0].file_offset)
                    .map_err(|error| self.short(error))?;
                let mut rest = &*part;
                for (nth, page) in batch.clone().zip(pages.chunks_exact(PAGE)) {
                    let (payload, after) = rest.split_at(self.spots[nth].padded());
                    self.check_frame(nth, page, payload)?;
                    rest = after;
                }
                Ok(())
            },
        )
    }

    /// Reads everything back from the disk and checks it; with `expected`, also that
    /// it is what the record speaks of. A container with a rebuilt index fails.
    pub fn verify(&self, expected: Option<&Sealed>) -> Result<Sealed, ReadError> {
        self.expect(expected)?;
        if self.rebuilt {
            return Err(ReadError::corrupt(&self.path, "index lost"));
        }
        let held = self.source.held();
        let file = match held {
            Some(_) => None,
            None => Some(self.bulk(true)?),
        };
        let jobs = batches(&self.spots);
        in_parallel(
            (jobs, self.length),
            || Scratch::new(0),
            |buffer, batch| {
                let spots = &self.spots[batch.clone()];
                let bytes = spots.iter().map(|spot| PAGE + spot.padded()).sum();
                let offset = spots[0].file_offset;
                let mut rest = match (&file, held) {
                    (Some(file), _) => {
                        if buffer.len() < bytes {
                            *buffer = Scratch::new(bytes);
                        }
                        read_exact(&**file, &mut buffer[..bytes], offset)
                            .map_err(|error| self.short(error))?;
                        &buffer[..bytes]
                    }
                    (None, held) => held_part(held.unwrap_or_default(), offset, bytes)
                        .map_err(|error| self.short(error))?,
                };
                for nth in batch.clone() {
                    let (page, after) = rest.split_at(PAGE);
                    let (payload, after) = after.split_at(self.spots[nth].padded());
                    self.check_frame(nth, page, payload)?;
                    rest = after;
                }
                Ok(())
            },
        )?;
        if let Some(file) = &file {
            self.verify_ends(&**file)?;
        }
        Ok(self.sealed)
    }

    /// What `open` may have seen in the page cache is compared with the disk.
    pub(crate) fn verify_ends(&self, file: &dyn Object) -> Result<(), ReadError> {
        let mut header = Buffer::new(self.header.len());
        let mut index = Buffer::new(self.index.len() + PAGE);
        let read = read_exact(file, &mut header, 0)
            .and_then(|()| read_exact(file, &mut index, self.plan.index_offset));
        read.map_err(|error| self.short(error))?;
        let (index, footer) = index.split_at(self.index.len());
        let want = encode_footer(&self.head, &self.plan, index, &self.sealed);
        if header[..] != self.header[..] || *index != self.index[..] || *footer != want.0 {
            return Err(ReadError::corrupt(
                &self.path,
                "header or index changed under us",
            ));
        }
        Ok(())
    }

    /// Where everything in it lies.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }
    /// Its frames, and what they are by the index.
    pub(crate) fn frames(&self) -> (&[Spot], &[Sums]) {
        (&self.spots, &self.sums)
    }

    /// Reads one frame from `file`, the object for [`Container::bulk`] reading, and checks it; its
    /// bytes without padding.
    pub(crate) fn frame<'b>(
        &self,
        nth: usize,
        file: &dyn Object,
        buffer: &'b mut Scratch,
    ) -> Result<&'b [u8], ReadError> {
        let spot = &self.spots[nth];
        let bytes = PAGE + spot.padded();
        if buffer.len() < bytes {
            *buffer = Scratch::new(bytes);
        }
        let part = &mut buffer[..bytes];
        read_exact(file, part, spot.file_offset).map_err(|error| self.short(error))?;
        let (page, payload) = part.split_at(PAGE);
        self.check_frame(nth, page, payload)?;
        Ok(&payload[..spot.length as usize])
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Reads `bytes` from `start` on; with where they lie in the file.
    fn part<'b>(
        &self,
        start: u64,
        bytes: usize,
        buffer: &'b mut Scratch,
    ) -> Result<(&'b [u8], Range<u64>), ReadError> {
        if buffer.len() < bytes {
            *buffer = Scratch::new(bytes);
        }
        let part = &mut buffer[..bytes];
        let read = self.source.read(part, start);
        read.map_err(|error| self.short(error))?;
        Ok((part, start..start + bytes as u64))
    }

    /// Fills `buffer` with the part of the file that has its byte at `at` (the header, a frame,
    /// or index and footer) and checks it; which bytes of the file these are. Frames are read from
    /// `file`, the object for [`Container::bulk`] reading.
    ///
    /// # Errors
    /// If they are damaged, or `at` is behind the end.
    pub(crate) fn part_at(
        &self,
        at: u64,
        file: &dyn Object,
        buffer: &mut Scratch,
    ) -> Result<Range<u64>, ReadError> {
        let damaged = |what| Err(ReadError::corrupt(&self.path, what));
        if at < self.plan.header_bytes {
            let (part, range) = self.part(0, self.header.len(), buffer)?;
            return match *part == self.header[..] {
                true => Ok(range),
                false => damaged("header changed under us"),
            };
        }
        if at >= self.plan.index_offset {
            let bytes = self.index.len() + PAGE;
            let (part, range) = self.part(self.plan.index_offset, bytes, buffer)?;
            let (index, footer) = part.split_at(self.index.len());
            let want = encode_footer(&self.head, &self.plan, index, &self.sealed);
            return match *index == self.index[..] && *footer == want.0 && range.contains(&at) {
                true => Ok(range),
                false => damaged("index changed under us, or nothing is there"),
            };
        }
        let after = self.spots.partition_point(|spot| spot.file_offset <= at);
        let Some(nth) = after.checked_sub(1) else {
            return damaged("bytes before the first frame");
        };
        self.frame(nth, file, buffer)?;
        let spot = &self.spots[nth];
        let range = spot.file_offset..spot.file_offset + (PAGE + spot.padded()) as u64;
        match range.contains(&at) {
            true => Ok(range),
            false => damaged("bytes between frames"),
        }
    }

    /// The object for bulk reading: past what only remembers it, if the memory allows that.
    pub(crate) fn bulk(&self, aligned: bool) -> Result<Box<dyn Object>, ReadError> {
        let again = self.source.object.again(aligned);
        again.map_err(|error| ReadError::io(&self.path, "open", error))
    }

    pub(crate) fn short(&self, error: io::Error) -> ReadError {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            let found = self.source.object.again(false);
            let found = found.and_then(|object| object.length()).unwrap_or(0);
            let expected = self.plan.file_bytes;
            return ReadError::Truncated {
                path: self.path.clone(),
                expected,
                found,
            };
        }
        ReadError::io(&self.path, "read", error)
    }

    fn expect(&self, expected: Option<&Sealed>) -> Result<(), ReadError> {
        match expected {
            Some(expected) if *expected != self.sealed => Err(ReadError::Other {
                path: self.path.clone(),
                expected: expected.to_string(),
                found: self.sealed.to_string(),
            }),
            _ => Ok(()),
        }
    }

    fn check_frame(&self, nth: usize, page: &[u8], payload: &[u8]) -> Result<(), ReadError> {
        let (spot, sums) = (&self.spots[nth], &self.sums[nth]);
        if encode_frame(&self.head, &self.plan, spot, sums).0 != page {
            let why = match decode_frame(&self.head, &self.plan, spot, page) {
                Err(error) => error,
                Ok(_) => Refusal::Damaged("frame header contradicts the index".into()),
            };
            return Err(refused_at(&self.path, &self.plan, spot, why));
        }
        check_payload(spot, sums, payload)
            .map_err(|error| refused_at(&self.path, &self.plan, spot, error))
    }
}

/// Reads a container back from the storage, just written, and checks all of it; with
/// `expected`, also that it is what was written. A short one is read in one transfer.
pub fn verify_written(
    store: &dyn Store,
    key: &Key,
    expected: Option<&Sealed>,
) -> Result<Sealed, ReadError> {
    let path = store.locate(key);
    let source = Source::fresh(store, key).map_err(|error| unopened(&path, error))?;
    Container::from_source(&path, source)?.verify(expected)
}

/// Compares a payload, with its padding, with its sums.
pub(crate) fn check_payload(spot: &Spot, sums: &Sums, payload: &[u8]) -> Result<(), Refusal> {
    let (checksum, digest) = outlive_codec::sums(payload, &[], spot.length as usize);
    if checksum != sums.checksum {
        return Err(Refusal::Damaged("payload checksum".into()));
    }
    if digest != sums.digest {
        return Err(Refusal::Damaged("payload digest".into()));
    }
    Ok(())
}

pub(crate) fn refused(path: &str, refusal: Refusal) -> ReadError {
    match refusal {
        Refusal::Damaged(what) => ReadError::corrupt(path, what),
        Refusal::Unknown(what) => ReadError::Format {
            path: path.to_owned(),
            what,
        },
    }
}

pub(crate) fn refused_at(path: &str, plan: &Plan, spot: &Spot, refusal: Refusal) -> ReadError {
    let place = DamagedAt {
        rank: Some(plan.ranks[spot.slot].rank),
        region: Some(plan.region_name(spot).to_owned()),
        frame: Some(spot.frame),
    };
    match refusal {
        Refusal::Damaged(what) => ReadError::Corrupt {
            path: path.to_owned(),
            place,
            what,
        },
        Refusal::Unknown(what) => ReadError::Format {
            path: path.to_owned(),
            what,
        },
    }
}

fn read_header(
    path: &str,
    source: &Source,
) -> Result<(u64, ContainerHead, Plan, Buffer), ReadError> {
    let io = |error| ReadError::io(path, "read", error);
    let length = source.length().map_err(io)?;
    let truncated = |expected| ReadError::Truncated {
        path: path.to_owned(),
        expected,
        found: length,
    };
    if length < HEADER_FIXED as u64 {
        return Err(truncated(HEADER_FIXED as u64));
    }
    let mut fixed = [0; HEADER_FIXED];
    source.read(&mut fixed, 0).map_err(io)?;
    let fixed = decode_header_fixed(&fixed).map_err(|error| refused(path, error))?;
    let bytes = up(u64::from(fixed.header_bytes));
    if bytes > length {
        return Err(truncated(fixed.file_bytes));
    }
    let mut header = Buffer::new(bytes as usize);
    source.read(&mut header, 0).map_err(io)?;
    let (head, plan) = decode_header(&header).map_err(|error| refused(path, error))?;
    Ok((length, head, plan, header))
}

/// Works on all jobs with a few threads, each with its own state; the first error
/// ends all.
fn in_parallel<J: Send, S>(
    (jobs, bytes): (Vec<J>, u64),
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, J) -> Result<(), ReadError> + Sync,
) -> Result<(), ReadError> {
    let threads = threads_for(bytes).min(jobs.len());
    let queue = Mutex::new(jobs.into_iter());
    let failed = Mutex::new(None);
    let run = || {
        let mut state = state();
        loop {
            let job = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(job) = job else { return };
            if let Err(error) = work(&mut state, job) {
                let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                queue.by_ref().for_each(drop);
                failed
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(error);
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // A process that may start no more threads does it all by itself.
            let helper = std::thread::Builder::new();
            if helper.spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

//! Parities: what a node keeps of the containers of others. `docs/format.md`, "Parity".
//!
//! Invariant: a parity is whole or not there, and names all that it was made of.

use std::io::{self, IoSlice, Read};
use std::ops::Range;

use outlive_base::level::Scheme;
use outlive_base::wire::{Reader, WireError, Writer};
use outlive_base::{ContainerId, Error, Level};
use outlive_codec::{Digest, crc64, field};
use outlive_ledger::{Parity, Sealed, put_id, put_level, read_id, read_level};

use crate::aligned::{Buffer, PAGE, PAGE64};
use crate::container::Container;
use crate::error::{ReadError, WriteError};
use crate::scratch::Scratch;
use crate::store::{Draft, Key, Object, Store, read_exact};
use crate::sum::of_the_sum;

/// Version of the format that is written.
const VERSION: u16 = 1;
const MAGIC: &[u8; 8] = b"OLPARIT1";
const CHECKSUM: usize = PAGE - 8;
const XXH3_128: u8 = 1;
/// Most members that a header names.
const MEMBERS_MAX: usize = 96;
/// Bytes of a transfer.
const CHUNK: usize = 1 << 20;

/// What a parity is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParityHead {
    /// Names the job across stores.
    pub job_hash: u64,
    /// The node that keeps it, and the version.
    pub id: ContainerId,
    /// The level.
    pub level: Level,
    /// The containers of its group, in order, its own among them.
    pub members: Vec<Sealed>,
}

/// A parity that is there.
pub struct ParityFile {
    /// What it is.
    pub head: ParityHead,
    /// Its bytes by the header.
    pub parity: Parity,
    object: Box<dyn Object>,
    path: String,
}

/// The polynomial of the field in which factors are numbers; 0 where all are 1.
fn polynomial(level: Level) -> u16 {
    match level.scheme() {
        Scheme::ReedSolomon => field::POLYNOMIAL,
        Scheme::Single | Scheme::Copies | Scheme::Xor => 0,
    }
}

fn encode(head: &ParityHead, parity: Parity) -> Option<Buffer> {
    if head.members.len() > MEMBERS_MAX {
        return None;
    }
    let mut out = Writer::new();
    out.raw(MAGIC).u16(VERSION).u16(0).u32(PAGE as u32);
    out.u64(head.job_hash);
    put_id(&mut out, head.id);
    put_level(&mut out, head.level);
    out.u8(XXH3_128).u16(polynomial(head.level)).u16(0);
    out.u64(parity.length).u128(parity.digest);
    out.u32(head.members.len() as u32);
    for member in &head.members {
        put_id(&mut out, member.id);
        out.u64(member.length).u128(member.digest);
    }
    let mut page = Buffer::new(PAGE);
    page.fill(0);
    page[..out.len()].copy_from_slice(out.as_slice());
    let checksum = crc64(&page[..CHECKSUM]);
    page[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    Some(page)
}

fn decode(page: &[u8]) -> Result<(ParityHead, Parity), WireError> {
    let (body, checksum) = page
        .split_at_checked(CHECKSUM)
        .ok_or(WireError::Short(PAGE))?;
    let mut input = Reader::new(body);
    if input.array::<8>()? != *MAGIC {
        return Err(WireError::Value("no parity: wrong magic"));
    }
    if crc64(body).to_le_bytes() != *checksum {
        return Err(WireError::Value("header checksum"));
    }
    let (version, flags, bytes) = (input.u16()?, input.u16()?, input.u32()?);
    if (version, flags, bytes) != (VERSION, 0, PAGE as u32) {
        return Err(WireError::Value("an unknown format of parity"));
    }
    let (job_hash, id, level) = (input.u64()?, read_id(&mut input)?, read_level(&mut input)?);
    if (input.u8()?, input.u16()?, input.u16()?) != (XXH3_128, polynomial(level), 0) {
        return Err(WireError::Value("an unknown code of parity"));
    }
    let (length, digest) = (input.u64()?, input.u128()?);
    let count = input.count(40)?;
    if count > MEMBERS_MAX {
        return Err(WireError::Value("too many members"));
    }
    let member = |input: &mut Reader<'_>| {
        Ok::<_, WireError>(Sealed {
            id: read_id(input)?,
            length: input.u64()?,
            digest: input.u128()?,
        })
    };
    let members = (0..count)
        .map(|_| member(&mut input))
        .collect::<Result<_, _>>()?;
    let head = ParityHead {
        job_hash,
        id,
        level,
        members,
    };
    Ok((head, Parity { length, digest }))
}

impl ParityHead {
    /// The page that precedes a parity's bytes: for who keeps them elsewhere.
    ///
    /// # Errors
    /// [`outlive_base::Code::InvalidArgument`] if the group is too large for a header.
    pub fn page(&self, parity: Parity) -> outlive_base::Result<Buffer> {
        let page = encode(self, parity);
        page.ok_or_else(|| WriteError::Input("too many members of a group".into()).into())
    }
}

/// Writes a parity of `length` bytes that come from `sum`, makes it durable and reads it back.
///
/// # Errors
/// [`outlive_base::Code::Corrupt`] if it is not the one that is expected; then nothing is
/// written. What hinders the sum, or the storage.
pub fn write_parity(
    store: &dyn Store,
    key: &Key,
    head: &ParityHead,
    (length, expected): (u64, Option<Parity>),
    sum: &mut dyn Read,
) -> outlive_base::Result<Parity> {
    let path = store.locate(key);
    let draft = store.begin(key, PAGE64 + length, true)?;
    let parity = Parity {
        length,
        digest: copy(&*draft, length, sum)?,
    };
    if expected.is_some_and(|expected| expected != parity) {
        let what = "what was made for it is not the parity that was recorded";
        return Err(ReadError::corrupt(&path, what).into());
    }
    let page = encode(head, parity)
        .ok_or_else(|| WriteError::Input(format!("{path}: too many members")))?;
    draft.write(0, &mut [IoSlice::new(&page)])?;
    draft.seal()?;
    ParityFile::fresh(store, key)?.verify()?;
    Ok(parity)
}

/// Copies the bytes behind the header; their digest.
fn copy(draft: &dyn Draft, length: u64, sum: &mut dyn Read) -> outlive_base::Result<u128> {
    let mut digest = Digest::new();
    let mut buffer = Buffer::new(CHUNK.min(usize::try_from(length).unwrap_or(CHUNK)));
    let mut at = 0;
    while at < length {
        let bytes = (length - at).min(buffer.len() as u64) as usize;
        let chunk = &mut buffer[..bytes];
        sum.read_exact(chunk).map_err(of_the_sum)?;
        digest.update(chunk);
        draft.write(PAGE64 + at, &mut [IoSlice::new(chunk)])?;
        at += bytes as u64;
    }
    Ok(digest.finish())
}

impl ParityFile {
    /// Opens a parity and checks its header.
    ///
    /// # Errors
    /// If it is not there, damaged, or of an unknown format.
    pub fn open(store: &dyn Store, key: &Key) -> Result<ParityFile, ReadError> {
        ParityFile::with(store, key, false)
    }

    /// One that was just written: what the storage holds.
    pub(crate) fn fresh(store: &dyn Store, key: &Key) -> Result<ParityFile, ReadError> {
        ParityFile::with(store, key, true)
    }

    fn with(store: &dyn Store, key: &Key, fresh: bool) -> Result<ParityFile, ReadError> {
        let path = store.locate(key);
        let failed = |error| ReadError::io(&path, "open", error);
        let object = store.open(key, fresh).map_err(failed)?;
        let mut page = Buffer::new(PAGE);
        read_exact(&*object, &mut page, 0).map_err(|error| ReadError::io(&path, "read", error))?;
        let decoded = decode(&page);
        let (head, parity) =
            decoded.map_err(|error| ReadError::corrupt(&path, error.to_string()))?;
        let length = object.length().map_err(failed)?;
        if Some(length) != parity.length.checked_add(PAGE64)
            || key.parity_of() != Some((head.id, head.level))
        {
            return Err(ReadError::corrupt(&path, "its name or length is another's"));
        }
        Ok(ParityFile {
            head,
            parity,
            object,
            path,
        })
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// If its bytes are not those that were written.
    pub fn verify(&self) -> Result<(), ReadError> {
        self.verify_paced(&mut |_| true).map(drop)
    }

    /// [`ParityFile::verify`]; asks before each read of so many bytes whether it goes on. False if
    /// it did not.
    pub(crate) fn verify_paced(
        &self,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool, ReadError> {
        let mut digest = Digest::new();
        let mut buffer = Buffer::new(CHUNK);
        let mut at = 0;
        while at < self.parity.length {
            let bytes = (self.parity.length - at).min(CHUNK as u64) as usize;
            if !go_on(bytes as u64) {
                return Ok(false);
            }
            self.read(at, &mut buffer[..bytes])?;
            digest.update(&buffer[..bytes]);
            at += bytes as u64;
        }
        match digest.finish() == self.parity.digest {
            true => Ok(true),
            false => Err(ReadError::corrupt(
                &self.path,
                "its bytes do not match its digest",
            )),
        }
    }

    /// Bytes of the parity from `at` on.
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), ReadError> {
        let read = read_exact(&*self.object, bytes, PAGE64.saturating_add(at));
        read.map_err(|error| ReadError::io(&self.path, "read", error))
    }
}

/// What the bytes of a range are of.
enum Whole {
    Parity(Box<dyn Object>),
    Container(Box<Opened>),
}

/// A container that is read, with the part that was read last.
struct Opened {
    container: Container,
    /// For its frames: they are read past what remembers them, as their bytes go to another node and
    /// are not wanted here again. A copy of them in the page cache costs more than all else that is done here.
    file: Box<dyn Object>,
    part: Scratch,
    /// The bytes of the file that it holds.
    held: Range<u64>,
}

/// A range of the bytes of a container or parity, to be sent as they are. Of a container no byte
/// is given before the part that it lies in was checked: what is made of it would hide the damage,
/// and lose what it was made for. A parity is checked by what is made of it.
pub struct Bytes {
    whole: Whole,
    at: u64,
    left: u64,
}

impl Bytes {
    /// A range of a container's file, whose header and index are sound.
    ///
    /// # Errors
    /// If it is not there, damaged, or shorter.
    pub fn of_container(
        store: &dyn Store,
        key: &Key,
        range: Range<u64>,
    ) -> Result<Bytes, ReadError> {
        let container = Container::open(store, key)?;
        let length = container.length();
        let opened = Opened {
            file: container.bulk(true)?,
            container,
            part: Scratch::new(0),
            held: 0..0,
        };
        let whole = Whole::Container(Box::new(opened));
        Bytes::of(&store.locate(key), (whole, length), 0, range)
    }

    /// A range of a parity, whose header is sound.
    ///
    /// # Errors
    /// If it is not there, damaged, or shorter.
    pub fn of_parity(store: &dyn Store, key: &Key, range: Range<u64>) -> Result<Bytes, ReadError> {
        ParityFile::open(store, key)?;
        let path = store.locate(key);
        let failed = |error| ReadError::io(&path, "open", error);
        let object = store.open(key, false).map_err(failed)?;
        let length = object.length().map_err(failed)?;
        Bytes::of(&path, (Whole::Parity(object), length), PAGE64, range)
    }

    fn of(
        path: &str,
        (whole, length): (Whole, u64),
        start: u64,
        range: Range<u64>,
    ) -> Result<Bytes, ReadError> {
        let end = range.end.checked_add(start);
        if range.start > range.end || end.is_none_or(|end| end > length) {
            return Err(ReadError::corrupt(path, "shorter than what is asked for"));
        }
        Ok(Bytes {
            whole,
            at: start + range.start,
            left: range.end - range.start,
        })
    }
}

impl Opened {
    /// What was read and checked of the file, from `at` on: one byte or more.
    fn part_at(&mut self, at: u64) -> io::Result<&[u8]> {
        if !self.held.contains(&at) {
            self.held = 0..0;
            let read = self.container.part_at(at, &*self.file, &mut self.part);
            // Told as it is by whoever meets it (of_the_sum).
            self.held = read.map_err(|error| io::Error::other(Error::from(error)))?;
        }
        let (from, to) = (at - self.held.start, self.held.end - self.held.start);
        Ok(&self.part[from as usize..to as usize])
    }
}

impl Bytes {
    /// The bytes that come next and lie in memory already, checked: nobody needs to copy them. None where
    /// they must be read into something, or at the end.
    ///
    /// # Errors
    /// Those of reading.
    pub fn at_hand(&mut self) -> io::Result<&[u8]> {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        match &mut self.whole {
            Whole::Container(opened) if left > 0 => {
                let part = opened.part_at(self.at)?;
                Ok(&part[..part.len().min(left)])
            }
            _ => Ok(&[]),
        }
    }

    /// Goes on behind so many of the bytes that were at hand.
    pub fn pass(&mut self, count: usize) {
        let count = (count as u64).min(self.left);
        self.at += count;
        self.left -= count;
    }
}

impl Read for Bytes {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let most = bytes
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let count = match &mut self.whole {
            Whole::Parity(object) => {
                let mut into = [io::IoSliceMut::new(&mut bytes[..most])];
                object.read_at(self.at, &mut into)?
            }
            Whole::Container(_) => {
                let part = self.at_hand()?;
                let count = most.min(part.len());
                bytes[..count].copy_from_slice(&part[..count]);
                count
            }
        };
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.pass(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::rng::Sequence;
    use outlive_base::{Incarnation, NodeId, Version};

    use super::*;
    use crate::Memory;

    fn id(node: u32) -> ContainerId {
        ContainerId {
            incarnation: Incarnation(2),
            version: Version(30),
            node: NodeId(node),
        }
    }

    fn head(members: u32) -> ParityHead {
        let member = |node: u32| Sealed {
            id: id(node),
            length: 4096 * u64::from(node),
            digest: u128::from(node) << 70,
        };
        ParityHead {
            job_hash: 7,
            id: id(1),
            level: Level::xor(3).unwrap(),
            members: (0..members).map(member).collect(),
        }
    }

    #[test]
    fn a_parity_is_written_whole_and_every_changed_byte_is_found() {
        let store = Memory::new(1 << 30);
        let head = head(3);
        let key = Key::parity(head.level, head.id);
        let bytes: Vec<u8> = (0..8192u32).map(|i| (i * 31) as u8).collect();
        let written = write_parity(&store, &key, &head, (8192, None), &mut &bytes[..]).unwrap();
        let file = ParityFile::open(&store, &key).unwrap();
        assert_eq!((&file.head, file.parity), (&head, written));
        file.verify().unwrap();
        let mut range = Vec::new();
        let mut part = Bytes::of_parity(&store, &key, 100..5000).unwrap();
        part.read_to_end(&mut range).unwrap();
        assert_eq!(range, bytes[100..5000]);
        assert!(Bytes::of_parity(&store, &key, 100..8193).is_err());
        assert!(Bytes::of_parity(&store, &key, 0..u64::MAX).is_err());

        let whole = store.get(&key, u64::MAX).unwrap();
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        let drawn: Vec<usize> = (0..300)
            .map(|_| random.below(whole.len() as u64) as usize)
            .collect();
        for at in (0..300).chain(drawn).chain([4095, 4096, whole.len() - 1]) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << random.below(8);
            let draft = store.begin(&key, damaged.len() as u64, false).unwrap();
            draft.write(0, &mut [IoSlice::new(&damaged)]).unwrap();
            draft.seal().unwrap();
            let read = ParityFile::open(&store, &key).and_then(|file| file.verify());
            assert!(read.is_err(), "byte {at}");
        }
        for length in 0..300 {
            assert!(decode(&whole[..length * 14]).is_err() || length * 14 == PAGE);
        }
    }

    #[test]
    fn a_sum_that_cannot_be_had_leaves_nothing() {
        let store = Memory::new(1 << 30);
        let head = head(3);
        let key = Key::parity(head.level, head.id);
        let short = &mut &[0; 5000][..];
        assert!(write_parity(&store, &key, &head, (8192, None), short).is_err());
        let other = Parity {
            length: 8192,
            digest: 7,
        };
        let odd = write_parity(
            &store,
            &key,
            &head,
            (8192, Some(other)),
            &mut &[0; 8192][..],
        );
        assert_eq!(odd.unwrap_err().code(), outlive_base::Code::Corrupt);
        assert!(store.get(&key, 1).is_err());
    }
}

//! Parities: what a node keeps of the containers of others, and sums of pieces.
//! `docs/format.md`, "Parity".
//!
//! Invariants: a parity is whole or not there, and names all that it was made of; memory of a
//! sum is bounded by two transfers, whatever its length; what a sum gives is checked by who
//! takes it, against the digest of what is wanted.

use std::io::{self, IoSlice, Read};

use outlive_base::wire::{Reader, WireError, Writer};
use outlive_base::{ContainerId, Level};
use outlive_codec::{Digest, crc64};
use outlive_ledger::scheme::{Piece, Term};
use outlive_ledger::{Parity, Sealed, put_id, put_level, read_id, read_level};

use crate::aligned::{Buffer, PAGE, PAGE64};
use crate::error::{ReadError, WriteError};
use crate::store::{Draft, Key, Object, Store, read_exact};

/// Version of the format that is written.
const VERSION: u16 = 1;
const MAGIC: &[u8; 8] = b"OLPARIT1";
const CHECKSUM: usize = PAGE - 8;
/// The field in which factors are numbers: GF(2^8) needs none while all factors are 1.
const NO_POLYNOMIAL: u16 = 0;
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

fn encode(head: &ParityHead, parity: Parity) -> Option<Buffer> {
    if head.members.len() > MEMBERS_MAX {
        return None;
    }
    let mut out = Writer::new();
    out.raw(MAGIC).u16(VERSION).u16(0).u32(PAGE as u32);
    out.u64(head.job_hash);
    put_id(&mut out, head.id);
    put_level(&mut out, head.level);
    out.u8(XXH3_128).u16(NO_POLYNOMIAL).u16(0);
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
    if (input.u8()?, input.u16()?, input.u16()?) != (XXH3_128, NO_POLYNOMIAL, 0) {
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

/// Writes a parity of `length` bytes that come from `sum`, makes it durable and reads it back.
pub fn write_parity(
    store: &dyn Store,
    key: &Key,
    head: &ParityHead,
    length: u64,
    sum: &mut dyn Read,
) -> outlive_base::Result<Parity> {
    let path = store.locate(key);
    let draft = store.begin(key, PAGE64 + length, true)?;
    let parity = Parity {
        length,
        digest: copy(&*draft, length, sum)?,
    };
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

/// The error of a sum as it was told, if it was told whole.
fn of_the_sum(error: io::Error) -> outlive_base::Error {
    match error.downcast::<outlive_base::Error>() {
        Ok(error) => error,
        Err(error) => outlive_base::Error::io("a sum of pieces", "read", &error),
    }
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
    fn fresh(store: &dyn Store, key: &Key) -> Result<ParityFile, ReadError> {
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
        let mut digest = Digest::new();
        let mut buffer = Buffer::new(CHUNK);
        let mut at = 0;
        while at < self.parity.length {
            let bytes = (self.parity.length - at).min(CHUNK as u64) as usize;
            self.read(at, &mut buffer[..bytes])?;
            digest.update(&buffer[..bytes]);
            at += bytes as u64;
        }
        match digest.finish() == self.parity.digest {
            true => Ok(()),
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

/// A range of the bytes of an object, to be sent as they are.
pub struct Bytes {
    object: Box<dyn Object>,
    at: u64,
    left: u64,
}

impl Bytes {
    /// A range of a container's file.
    ///
    /// # Errors
    /// If it is not there, or shorter.
    pub fn of_container(
        store: &dyn Store,
        key: &Key,
        range: std::ops::Range<u64>,
    ) -> Result<Bytes, ReadError> {
        Bytes::of(store, key, 0, range)
    }

    /// A range of a parity, whose header is sound.
    ///
    /// # Errors
    /// If it is not there, damaged, or shorter.
    pub fn of_parity(
        store: &dyn Store,
        key: &Key,
        range: std::ops::Range<u64>,
    ) -> Result<Bytes, ReadError> {
        ParityFile::open(store, key)?;
        Bytes::of(store, key, PAGE64, range)
    }

    fn of(
        store: &dyn Store,
        key: &Key,
        start: u64,
        range: std::ops::Range<u64>,
    ) -> Result<Bytes, ReadError> {
        let path = store.locate(key);
        let failed = |error| ReadError::io(&path, "open", error);
        let object = store.open(key, false).map_err(failed)?;
        let length = object.length().map_err(failed)?;
        let end = range.end.checked_add(start);
        if range.start > range.end || end.is_none_or(|end| end > length) {
            return Err(ReadError::corrupt(&path, "shorter than what is asked for"));
        }
        Ok(Bytes {
            object,
            at: start + range.start,
            left: range.end - range.start,
        })
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
        let mut into = [io::IoSliceMut::new(&mut bytes[..most])];
        let count = self.object.read_at(self.at, &mut into)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// What opens ranges of pieces, wherever they are.
pub type Opener<'a> = dyn FnMut(Piece, std::ops::Range<u64>) -> io::Result<Box<dyn Read>> + 'a;

/// The bytes of a sum, from its beginning to its end.
pub struct Sum<'a> {
    open: &'a mut Opener<'a>,
    /// Ascending by where they count, then by node.
    terms: Vec<Term>,
    /// Terms that count from here on, each with what it still has.
    running: Vec<(u64, Box<dyn Read>)>,
    next: usize,
    at: u64,
    length: u64,
    /// For all terms but the first.
    scratch: Vec<u8>,
}

impl<'a> Sum<'a> {
    /// The sum of these terms, `length` bytes.
    ///
    /// # Errors
    /// If a factor is not 1.
    pub fn new(
        mut terms: Vec<Term>,
        length: u64,
        open: &'a mut Opener<'a>,
    ) -> outlive_base::Result<Sum<'a>> {
        if terms.iter().any(|term| term.factor != 1) {
            return Err(outlive_base::Error::internal("a factor that is not 1"));
        }
        terms.retain(|term| !term.range.is_empty());
        // A node has so many threads that send. All who open pieces do so in one order, so that
        // nobody holds one that another waits for, who holds what the first waits for.
        terms.sort_by_key(|term| (term.at, term.from.node()));
        Ok(Sum {
            open,
            terms,
            running: Vec::new(),
            next: 0,
            at: 0,
            length,
            scratch: Vec::new(),
        })
    }

    /// Opens the terms that begin here; how far no other begins or ends.
    fn turn(&mut self) -> io::Result<u64> {
        self.running.retain(|(left, _)| *left > 0);
        while let Some(term) = self.terms.get(self.next).filter(|term| term.at <= self.at) {
            let bytes = term.range.end - term.range.start;
            let reader = (self.open)(term.from, term.range.clone())?;
            self.running.push((bytes, reader));
            self.next += 1;
        }
        let begins = self.terms.get(self.next).map(|term| term.at - self.at);
        let ends = self.running.iter().map(|(left, _)| *left);
        let most = self.length - self.at;
        Ok(ends.chain(begins).fold(most, u64::min))
    }
}

impl Read for Sum<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if bytes.is_empty() || self.at == self.length {
            return Ok(0);
        }
        let most = self.turn()?.min(CHUNK as u64);
        let count = bytes.len().min(most as usize);
        let bytes = &mut bytes[..count];
        let mut running = self.running.iter_mut();
        match running.next() {
            Some((left, reader)) => {
                reader.read_exact(bytes)?;
                *left -= count as u64;
            }
            None => bytes.fill(0),
        }
        self.scratch.resize(self.scratch.len().max(count), 0);
        for (left, reader) in running {
            reader.read_exact(&mut self.scratch[..count])?;
            outlive_codec::add(bytes, &self.scratch[..count]);
            *left -= count as u64;
        }
        self.at += count as u64;
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
        let written = write_parity(&store, &key, &head, 8192, &mut &bytes[..]).unwrap();
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
        assert!(write_parity(&store, &key, &head, 8192, &mut &[0; 5000][..]).is_err());
        assert!(store.get(&key, 1).is_err());
    }

    #[test]
    fn a_sum_is_the_sum_of_all_terms_at_each_byte() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        for _ in 0..100 {
            let length = 1 + random.below(9000);
            let source: Vec<u8> = (0..20_000).map(|_| random.below(256) as u8).collect();
            let mut expected = vec![0; length as usize];
            let mut terms = Vec::new();
            for _ in 0..random.below(9) {
                let at = random.below(length);
                let bytes = random.below(length - at + 1);
                let start = random.below(10_000);
                let from = Piece::Whole(NodeId(0));
                let range = start..start + bytes;
                let into = &mut expected[at as usize..(at + bytes) as usize];
                outlive_codec::add(into, &source[start as usize..][..bytes as usize]);
                terms.push(Term {
                    from,
                    range,
                    at,
                    factor: 1,
                });
            }
            let mut open = |_: Piece, range: std::ops::Range<u64>| {
                let part = source[range.start as usize..range.end as usize].to_vec();
                Ok(Box::new(io::Cursor::new(part)) as Box<dyn Read>)
            };
            let mut sum = Sum::new(terms, length, &mut open).unwrap();
            let mut got = Vec::new();
            sum.read_to_end(&mut got).unwrap();
            assert_eq!(got, expected);
        }
    }
}

//! What clients and server say to each other, as pure functions over slices (P7): nothing here
//! panics, and nothing reserves more than the bytes that arrived.
//!
//! Every message is one record of [`outlive_network::channel`]. Bytes that a [`Message::Chunk`]
//! announces follow it. A stream is chunks of [`CHUNK_BYTES`], the last one shorter, and ends with
//! [`Message::End`], or with [`Message::Failed`] where the bytes that came are worth nothing.

use std::net::SocketAddr;

use outlive_base::wire::{Reader, WireError, Writer};
use outlive_base::{Code, Entity, Error};

/// Bytes of a region move in pieces of this size.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of a put or push that travel within its message: they come whole or not at all.
pub const INLINE_BYTES_MAX: usize = 32 << 10;
/// Longest name of a region, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Most sources of one sum.
pub const SOURCES_MAX: usize = 64;
/// Entries of one answer to a list.
pub const LIST_MAX: usize = 64;
/// Ranges of one region that are told as incomplete.
pub const TORN_MAX: usize = 32;
const TEXT_BYTES_MAX: usize = 1024;

/// What a region is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// Bytes at offsets.
    Plain,
    /// A queue of messages: libNAM's ring with notifications (DEEP-ER, section II-B2).
    Ring,
}

/// What is known of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: RegionKind,
    /// Its size, in bytes.
    pub bytes: u64,
    /// How many puts, sums or pushes have ended well.
    pub puts: u64,
    /// Bytes that wait in a ring, with 8 for each message.
    pub waiting: u64,
    /// Ranges that are being written now.
    pub writers: u32,
    /// Ranges that were written in part only: start and end.
    pub torn: Vec<(u64, u64)>,
}

/// What is known of a server, as one job sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    /// Differs between any two starts of a server.
    pub instance: u128,
    /// The abstract Unix socket at which clients of the same machine are served; empty: none.
    pub unix: String,
    /// Memory that the server owns, in bytes.
    pub memory: u64,
    /// Memory that nobody has, in bytes.
    pub free: u64,
    /// What this job may have, in bytes.
    pub quota: u64,
    /// What this job has, in bytes.
    pub used: u64,
}

/// Where bytes to be summed come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// Another process of the job that serves them; `None`: the server itself.
    pub at: Option<SocketAddr>,
    /// The region's, or the exposed buffer's, name.
    pub name: String,
    /// Where they begin, in bytes.
    pub offset: u64,
    /// How many. Beyond them the source counts as zeroes.
    pub length: u64,
}

/// Part of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The region.
    pub name: String,
    /// Its first byte.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
}

/// A message in either direction.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Who are you? Answer: `About`.
    Hello,
    /// Answer to `Hello`.
    About(About),
    /// Make a region. Answer: `Done`, 1 if it is new.
    Allocate(String, u64, RegionKind),
    /// Remove a region. Answer: `Done`.
    Delete(String),
    /// Answer: `Region`.
    Stat(String),
    /// Answer to `Stat`.
    Region(Stat),
    /// The regions whose names follow this one. Answer: `Listing`.
    List(String),
    /// Answer to `List`.
    Listing(Vec<Stat>),
    /// Bytes come, within this message or, after `Go`, as a stream. Answer: `Done`.
    Put(Part, u32, Option<Vec<u8>>),
    /// Bytes are wanted. Answer: a stream; with its digest if the flag says so.
    Get(Part, u32, bool),
    /// A part is wanted for direct access: for writing, if the flag says so. The number is that of
    /// the memory whose descriptor the client has. Answer: `Lent`.
    Lend(Part, u32, bool, u64),
    /// The number of the memory; its descriptor follows if the flag says so.
    Lent(u64, bool),
    /// Direct access is over; whether all was done. Answer: `Done`.
    Return(bool),
    /// Wait until the region has had more puts than this. Answer: `Done`, with their number.
    Wait(String, u64, u32),
    /// A message for a ring, of this length; as `Put`.
    Push(String, u64, u32, Option<Vec<u8>>),
    /// The next message of a ring is wanted. Answer: `Length`, a stream; then `Taken`.
    Pop(String, u32),
    /// How long the message is that follows.
    Length(u64),
    /// The message came whole. Answer: `Done`.
    Taken,
    /// Sum the sources into this part. Answer: `Done`.
    Sum(Part, u32, Vec<Source>),
    /// The digest (XXH3-128) of a part is wanted, and not its bytes. Answer: `End`.
    Digest(Part, u32),
    /// So many bytes follow.
    Chunk(u32),
    /// The stream is whole; its digest (XXH3-128), if one was wanted.
    End(Option<u128>),
    /// Go on and send.
    Go,
    /// Still at it: a sign of life.
    Busy,
    /// It is done.
    Done(u64),
    /// It failed; within a stream: its bytes are worth nothing.
    Failed(Error),
}

fn name_of(name: &str) -> Result<String, WireError> {
    match check_name(name) {
        true => Ok(name.to_owned()),
        false => Err(WireError::Value("name of a region")),
    }
}

/// Whether a region may have this name: 1 to [`NAME_BYTES_MAX`] bytes, no control characters.
pub fn check_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn read_flag(reader: &mut Reader<'_>) -> Result<bool, WireError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Value("flag")),
    }
}

impl RegionKind {
    fn number(self) -> u8 {
        self as u8
    }
    fn read(reader: &mut Reader<'_>) -> Result<RegionKind, WireError> {
        match reader.u8()? {
            0 => Ok(RegionKind::Plain),
            1 => Ok(RegionKind::Ring),
            _ => Err(WireError::Value("kind of region")),
        }
    }
}

impl Part {
    fn write(&self, out: &mut Writer) {
        out.blob(self.name.as_bytes())
            .u64(self.offset)
            .u64(self.length);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Part, WireError> {
        Ok(Part {
            name: name_of(reader.text(NAME_BYTES_MAX)?)?,
            offset: reader.u64()?,
            length: reader.u64()?,
        })
    }
}

impl Stat {
    fn write(&self, out: &mut Writer) {
        out.blob(self.name.as_bytes()).u8(self.kind.number());
        out.u64(self.bytes).u64(self.puts).u64(self.waiting);
        out.u32(self.writers);
        let told = &self.torn[..self.torn.len().min(TORN_MAX)];
        out.u32(told.len() as u32);
        told.iter().for_each(|(start, end)| {
            out.u64(*start).u64(*end);
        });
    }
    fn read(reader: &mut Reader<'_>) -> Result<Stat, WireError> {
        let mut stat = Stat {
            name: name_of(reader.text(NAME_BYTES_MAX)?)?,
            kind: RegionKind::read(reader)?,
            bytes: reader.u64()?,
            puts: reader.u64()?,
            waiting: reader.u64()?,
            writers: reader.u32()?,
            torn: Vec::new(),
        };
        for _ in 0..reader.count(16)? {
            stat.torn.push((reader.u64()?, reader.u64()?));
        }
        Ok(stat)
    }
}

impl Source {
    fn write(&self, out: &mut Writer) {
        let at = self.at.map_or_else(String::new, |at| at.to_string());
        out.blob(at.as_bytes()).blob(self.name.as_bytes());
        out.u64(self.offset).u64(self.length);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Source, WireError> {
        // Numeric: the server asks no name service.
        let at = match reader.text(NAME_BYTES_MAX)? {
            "" => None,
            text => Some(text.parse().map_err(|_| WireError::Value("address"))?),
        };
        Ok(Source {
            at,
            name: name_of(reader.text(NAME_BYTES_MAX)?)?,
            offset: reader.u64()?,
            length: reader.u64()?,
        })
    }
}

fn write_inline(out: &mut Writer, bytes: Option<&Vec<u8>>) {
    match bytes {
        Some(bytes) => out.u8(1).blob(bytes),
        None => out.u8(0),
    };
}

fn read_inline(reader: &mut Reader<'_>) -> Result<Option<Vec<u8>>, WireError> {
    match read_flag(reader)? {
        true => Ok(Some(reader.blob(INLINE_BYTES_MAX)?.to_vec())),
        false => Ok(None),
    }
}

/// All of it: what another node's storage says may pass through here.
fn write_error(out: &mut Writer, error: &Error) {
    out.u16(error.code().number());
    match error.entity() {
        Entity::Call => out.u8(0),
        Entity::Region(name) => out.u8(1).blob(cut(name).as_bytes()),
        Entity::Address(address) => out.u8(2).blob(cut(address).as_bytes()),
        Entity::Job(name) => out.u8(3).blob(cut(name).as_bytes()),
        Entity::File(path) => out.u8(4).blob(cut(path).as_bytes()),
        Entity::Option(name) => out.u8(5).blob(cut(name).as_bytes()),
        Entity::Rank(rank) => out.u8(6).u32(*rank),
        Entity::Node(node) => out.u8(7).u32(*node),
        Entity::Version(version) => out.u8(8).u64(*version),
    };
    out.blob(cut(error.reason()).as_bytes());
    out.blob(cut(error.remedy()).as_bytes());
}

fn read_error(reader: &mut Reader<'_>) -> Result<Error, WireError> {
    let code = Code::from_number(reader.u16()?).ok_or(WireError::Value("code"))?;
    let kind = reader.u8()?;
    let mut word = || Ok(reader.text(TEXT_BYTES_MAX)?.to_owned());
    let entity = match kind {
        0 => Entity::Call,
        1 => Entity::Region(word()?),
        2 => Entity::Address(word()?),
        3 => Entity::Job(word()?),
        4 => Entity::File(word()?),
        5 => Entity::Option(word()?),
        6 => Entity::Rank(reader.u32()?),
        7 => Entity::Node(reader.u32()?),
        8 => Entity::Version(reader.u64()?),
        _ => return Err(WireError::Value("entity")),
    };
    let reason = reader.text(TEXT_BYTES_MAX)?;
    let remedy = reader.text(TEXT_BYTES_MAX)?;
    Ok(Error::new(code, entity, reason, remedy))
}

impl About {
    fn write(&self, out: &mut Writer) {
        out.u128(self.instance).blob(self.unix.as_bytes());
        out.u64(self.memory).u64(self.free);
        out.u64(self.quota).u64(self.used);
    }
    fn read(reader: &mut Reader<'_>) -> Result<About, WireError> {
        Ok(About {
            instance: reader.u128()?,
            unix: reader.text(NAME_BYTES_MAX)?.to_owned(),
            memory: reader.u64()?,
            free: reader.u64()?,
            quota: reader.u64()?,
            used: reader.u64()?,
        })
    }
}

impl Message {
    /// The bytes of the message.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Message::Hello => drop(out.u8(1)),
            Message::About(about) => about.write(out.u8(2)),
            Message::Allocate(name, bytes, kind) => {
                out.u8(3).blob(name.as_bytes());
                out.u64(*bytes).u8(kind.number());
            }
            Message::Delete(name) => drop(out.u8(4).blob(name.as_bytes())),
            Message::Stat(name) => drop(out.u8(5).blob(name.as_bytes())),
            Message::Region(stat) => stat.write(out.u8(6)),
            Message::List(after) => drop(out.u8(7).blob(after.as_bytes())),
            Message::Listing(all) => {
                out.u8(8).u32(all.len() as u32);
                all.iter().for_each(|stat| stat.write(&mut out));
            }
            Message::Put(part, bound, inline) => {
                part.write(out.u8(9));
                write_inline(out.u32(*bound), inline.as_ref());
            }
            Message::Get(part, bound, digest) => {
                part.write(out.u8(10));
                out.u32(*bound).u8((*digest).into());
            }
            Message::Lend(part, bound, writes, known) => {
                part.write(out.u8(11));
                out.u32(*bound).u8((*writes).into()).u64(*known);
            }
            Message::Lent(number, follows) => drop(out.u8(12).u64(*number).u8((*follows).into())),
            Message::Return(whole) => drop(out.u8(13).u8((*whole).into())),
            Message::Wait(name, after, bound) => {
                out.u8(14).blob(name.as_bytes()).u64(*after).u32(*bound);
            }
            Message::Push(name, length, bound, inline) => {
                out.u8(15).blob(name.as_bytes()).u64(*length);
                write_inline(out.u32(*bound), inline.as_ref());
            }
            Message::Pop(name, bound) => drop(out.u8(16).blob(name.as_bytes()).u32(*bound)),
            Message::Length(length) => drop(out.u8(17).u64(*length)),
            Message::Taken => drop(out.u8(18)),
            Message::Sum(part, bound, sources) => {
                part.write(out.u8(19));
                out.u32(*bound).u32(sources.len() as u32);
                sources.iter().for_each(|source| source.write(&mut out));
            }
            Message::Chunk(length) => drop(out.u8(20).u32(*length)),
            Message::End(None) => drop(out.u8(21).u8(0)),
            Message::End(Some(digest)) => drop(out.u8(21).u8(1).u128(*digest)),
            Message::Digest(part, bound) => {
                part.write(out.u8(22));
                out.u32(*bound);
            }
            Message::Go => drop(out.u8(23)),
            Message::Busy => drop(out.u8(24)),
            Message::Done(value) => drop(out.u8(25).u64(*value)),
            Message::Failed(error) => write_error(out.u8(26), error),
        }
        out.into_vec()
    }

    /// The message of these bytes.
    ///
    /// # Errors
    /// If they are not one message exactly.
    pub fn parse(bytes: &[u8]) -> Result<Message, WireError> {
        let mut reader = Reader::new(bytes);
        let kind = reader.u8()?;
        let message = Message::parse_kind(kind, &mut reader)?;
        reader.finish()?;
        Ok(message)
    }

    fn parse_kind(kind: u8, reader: &mut Reader<'_>) -> Result<Message, WireError> {
        let name = |reader: &mut Reader<'_>| name_of(reader.text(NAME_BYTES_MAX)?);
        Ok(match kind {
            1 => Message::Hello,
            2 => Message::About(About::read(reader)?),
            3 => Message::Allocate(name(reader)?, reader.u64()?, RegionKind::read(reader)?),
            4 => Message::Delete(name(reader)?),
            5 => Message::Stat(name(reader)?),
            6 => Message::Region(Stat::read(reader)?),
            7 => Message::List(reader.text(NAME_BYTES_MAX)?.to_owned()),
            8 => {
                let count = reader.count(38)?;
                let all = (0..count).map(|_| Stat::read(reader));
                Message::Listing(all.collect::<Result<_, _>>()?)
            }
            9 => Message::Put(Part::read(reader)?, reader.u32()?, read_inline(reader)?),
            10 => Message::Get(Part::read(reader)?, reader.u32()?, read_flag(reader)?),
            11 => {
                let (part, bound) = (Part::read(reader)?, reader.u32()?);
                Message::Lend(part, bound, read_flag(reader)?, reader.u64()?)
            }
            12 => Message::Lent(reader.u64()?, read_flag(reader)?),
            13 => Message::Return(read_flag(reader)?),
            14 => Message::Wait(name(reader)?, reader.u64()?, reader.u32()?),
            15 => {
                let (name, length, bound) = (name(reader)?, reader.u64()?, reader.u32()?);
                Message::Push(name, length, bound, read_inline(reader)?)
            }
            16 => Message::Pop(name(reader)?, reader.u32()?),
            17 => Message::Length(reader.u64()?),
            18 => Message::Taken,
            19 => {
                let (part, bound) = (Part::read(reader)?, reader.u32()?);
                let count = reader.count(24)?;
                if count > SOURCES_MAX {
                    return Err(WireError::Value("number of sources"));
                }
                let all = (0..count).map(|_| Source::read(reader));
                Message::Sum(part, bound, all.collect::<Result<_, _>>()?)
            }
            20 => match reader.u32()? {
                length if length as usize <= CHUNK_BYTES => Message::Chunk(length),
                _ => return Err(WireError::Value("length of a chunk")),
            },
            21 => match read_flag(reader)? {
                true => Message::End(Some(reader.u128()?)),
                false => Message::End(None),
            },
            22 => Message::Digest(Part::read(reader)?, reader.u32()?),
            23 => Message::Go,
            24 => Message::Busy,
            25 => Message::Done(reader.u64()?),
            26 => Message::Failed(read_error(reader)?),
            _ => return Err(WireError::Value("kind of message")),
        })
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;

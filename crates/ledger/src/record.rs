//! One decision or promise as bytes: `docs/format.md`, "Record".
//!
//! Invariants: encoding is deterministic; decoding never panics and reserves no more
//! than a constant times the bytes that it was given (P7); what decodes was whole.

use std::sync::Arc;

use outlive_base::level::{Protection, Scheme, StoreKind};
use outlive_base::wire::{Reader, WireError, Writer};
use outlive_base::{Code, ContainerId, Incarnation, Level, NodeId, Version};
use outlive_codec::crc64;
use serde::{Deserialize, Serialize};
use thiserror::Error as ThisError;

use crate::ranks::RankList;
use crate::sealed::{Sealed, put_id, read_id};

/// Longest record, in bytes.
pub const RECORD_BYTES_MAX: usize = 1 << 26;
/// Longest text of an abort, in bytes of UTF-8.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Most parts of a commit, members of an incarnation and ranks of a part.
pub const LIST_MAX: usize = 1 << 20;

/// Most ranks of all parts of a commit.
pub const RANKS_MAX: usize = RECORD_BYTES_MAX / 4;

const MAGIC: &[u8; 8] = b"OLREC01\0";
/// Version of the format that is written. Version 1 had four levels by number, versions 1 and 2
/// ranks one by one.
const RECORD_VERSION: u16 = 3;
const FIXED: usize = 24;

/// A copy of one node's container, as PREPARED and COMMIT name it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// The node whose ranks are in it.
    pub node: NodeId,
    /// The container.
    pub id: ContainerId,
    /// Length of the file, in bytes.
    pub length: u64,
    /// The seal's digest.
    #[serde(with = "crate::hex128")]
    pub digest: u128,
    /// The node where this copy lies; [`Part::SHARED`] for the shared directory.
    pub holder: NodeId,
    /// The ranks in it.
    pub ranks: RankList,
    /// The parity of others' containers that the node keeps for the level.
    #[serde(default)]
    pub parity: Option<Parity>,
}

/// A parity as PREPARED and COMMIT name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Parity {
    /// Its bytes.
    pub length: u64,
    /// XXH3-128 of them.
    #[serde(with = "crate::hex128")]
    pub digest: u128,
}

impl Part {
    /// The holder of copies in the directory that all nodes share.
    pub const SHARED: NodeId = NodeId(u32::MAX);

    /// What the copy must be sealed as.
    pub fn sealed(&self) -> Sealed {
        Sealed {
            id: self.id,
            length: self.length,
            digest: self.digest,
        }
    }
}

/// A decision or promise that must outlive its process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Record {
    /// A start of the job's ranks.
    Incarnation {
        /// Which.
        number: Incarnation,
        /// What it restored, and from which level; nothing when it began anew.
        restored: Option<(Incarnation, Version, Level)>,
        /// The nodes that take part.
        members: Vec<NodeId>,
        /// Ranks of the job.
        ranks: u32,
    },
    /// This copy was read back and is whole.
    Prepared {
        /// Of the checkpoint.
        incarnation: Incarnation,
        /// Of the checkpoint.
        version: Version,
        /// At this level.
        level: Level,
        /// The coordinator's attempt.
        ballot: u64,
        /// The copy.
        part: Part,
    },
    /// The checkpoint is committed at a level.
    Commit {
        /// Of the checkpoint.
        incarnation: Incarnation,
        /// Of the checkpoint.
        version: Version,
        /// At this level.
        level: Level,
        /// The coordinator's attempt; of several, the highest wins.
        ballot: u64,
        /// Ranks of the job.
        ranks: u32,
        /// All copies of the level; shared by all who know them, for there is one of each node.
        parts: Arc<[Part]>,
        /// The groups of nodes that protect each other; empty for a level without.
        groups: Vec<Vec<NodeId>>,
    },
    /// The checkpoint will not be committed.
    Abort {
        /// Of the checkpoint.
        incarnation: Incarnation,
        /// Of the checkpoint.
        version: Version,
        /// At this level; at all if absent.
        level: Option<Level>,
        /// Why.
        code: Code,
        /// Why, for people; cut to [`TEXT_BYTES_MAX`] when encoded.
        text: String,
    },
    /// This node's copy at a level is being removed: never rely on it again.
    Tombstone {
        /// The container.
        id: ContainerId,
        /// Which of its copies.
        level: Level,
    },
    /// The job ended well.
    Finished {
        /// In this incarnation.
        incarnation: Incarnation,
        /// The last version, if any.
        version: Option<Version>,
    },
    /// The checkpoint is kept until the pin is removed.
    Pin {
        /// Of the checkpoint.
        incarnation: Incarnation,
        /// Of the checkpoint.
        version: Version,
    },
    /// Nothing of a lower ballot is accepted by this node any more. One file a
    /// node: the newest replaces the older ones.
    Promise {
        /// The ballot.
        ballot: u64,
    },
    /// Versions of the job were committed, this one the first that this place saw in
    /// its incarnation: whoever finds no other record must not take them for none.
    /// One file a place, beside the directory of records.
    History {
        /// Of the checkpoint.
        incarnation: Incarnation,
        /// Of the checkpoint.
        version: Version,
    },
}

/// Why bytes are no record of this job.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
pub enum RecordError {
    /// Damaged or cut off.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The checksum does not match.
    #[error("record checksum")]
    Checksum,
    /// Sound, of a later format.
    #[error("record format {0}, kind {1}")]
    Unknown(u16, u16),
    /// Sound, of another job.
    #[error("a record of another job")]
    OtherJob,
}

impl Record {
    /// The record as bytes. `None` if a list is above its bound.
    pub fn encode(&self, job_hash: u64) -> Option<Vec<u8>> {
        let mut body = Writer::new();
        let kind = self.encode_body(&mut body)?;
        let mut out = Writer::new();
        out.raw(MAGIC)
            .u16(RECORD_VERSION)
            .u16(kind)
            .u32(u32::try_from(body.len()).ok()?);
        out.u64(job_hash).raw(body.as_slice());
        let checksum = crc64(out.as_slice());
        out.u64(checksum);
        (out.len() <= RECORD_BYTES_MAX).then(|| out.into_vec())
    }

    fn encode_body(&self, out: &mut Writer) -> Option<u16> {
        let kind = match self {
            Record::Incarnation {
                number,
                restored,
                members,
                ranks,
            } => {
                out.u32(number.0).u8(u8::from(restored.is_some()));
                if let Some((incarnation, version, level)) = restored {
                    out.u32(incarnation.0).u64(version.0);
                    put_level(out, *level);
                }
                put_list(out, members, |out, node| {
                    out.u32(node.0);
                })?;
                out.u32(*ranks);
                1
            }
            Record::Prepared {
                incarnation,
                version,
                level,
                ballot,
                part,
            } => {
                out.u32(incarnation.0).u64(version.0);
                put_level(out, *level);
                out.u64(*ballot);
                put_part(out, part)?;
                2
            }
            Record::Commit {
                incarnation,
                version,
                level,
                ballot,
                ranks,
                parts,
                groups,
            } => {
                out.u32(incarnation.0).u64(version.0);
                put_level(out, *level);
                out.u64(*ballot).u32(*ranks);
                let mut good = (ranks_of(parts) <= RANKS_MAX).then_some(());
                put_list(out, parts, |out, part| good = good.and(put_part(out, part)))?;
                put_list(out, groups, |out, members| {
                    let put = put_list(out, members, |out, node| {
                        out.u32(node.0);
                    });
                    good = good.and(put);
                })?;
                good?;
                3
            }
            _ => return Some(self.encode_short(out)),
        };
        Some(kind)
    }

    /// The kinds without lists, which always fit.
    fn encode_short(&self, out: &mut Writer) -> u16 {
        match self {
            // Encoded by the caller.
            Record::Incarnation { .. } | Record::Prepared { .. } | Record::Commit { .. } => 0,
            Record::Abort {
                incarnation,
                version,
                level,
                code,
                text,
            } => {
                out.u32(incarnation.0).u64(version.0);
                out.u8(u8::from(level.is_some()));
                if let Some(level) = level {
                    put_level(out, *level);
                }
                let end = text.floor_char_boundary(TEXT_BYTES_MAX);
                out.u16(code.number()).blob(&text.as_bytes()[..end]);
                4
            }
            Record::Tombstone { id, level } => {
                put_id(out, *id);
                put_level(out, *level);
                5
            }
            Record::Finished {
                incarnation,
                version,
            } => {
                out.u32(incarnation.0).u8(u8::from(version.is_some()));
                if let Some(version) = version {
                    out.u64(version.0);
                }
                6
            }
            Record::Pin {
                incarnation,
                version,
            } => {
                out.u32(incarnation.0).u64(version.0);
                7
            }
            Record::Promise { ballot } => {
                out.u64(*ballot);
                8
            }
            Record::History {
                incarnation,
                version,
            } => {
                out.u32(incarnation.0).u64(version.0);
                9
            }
        }
    }

    /// The length of the record that these bytes begin with, by its own word.
    pub fn length_at(bytes: &[u8]) -> Option<usize> {
        let mut input = Reader::new(bytes.strip_prefix(MAGIC)?);
        let (_, _, body) = (input.u16().ok()?, input.u16().ok()?, input.u32().ok()?);
        let length = (FIXED + 8).checked_add(body as usize)?;
        (length <= bytes.len().min(RECORD_BYTES_MAX)).then_some(length)
    }

    /// The job that a record of which the length is known names.
    pub fn job_hash_at(record: &[u8]) -> u64 {
        let bytes = record.get(FIXED - 8..FIXED);
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        u64::from_le_bytes(bytes.unwrap_or_default())
    }

    /// Decodes a record of the job `job_hash`.
    pub fn decode(bytes: &[u8], job_hash: u64) -> Result<Record, RecordError> {
        if bytes.len() > RECORD_BYTES_MAX {
            let (length, bound) = (bytes.len() as u64, RECORD_BYTES_MAX as u64);
            return Err(WireError::TooLong { length, bound }.into());
        }
        let mut input = Reader::new(bytes);
        if input.array::<8>()? != *MAGIC {
            return Err(WireError::Value("no record: wrong magic").into());
        }
        let (version, kind, length) = (input.u16()?, input.u16()?, input.u32()? as usize);
        let job = input.u64()?;
        let body = input.take(length)?;
        let checksum = input.u64()?;
        input.finish()?;
        if crc64(&bytes[..FIXED + length]) != checksum {
            return Err(RecordError::Checksum);
        }
        if !(1..=RECORD_VERSION).contains(&version) || !(1..=9).contains(&kind) {
            return Err(RecordError::Unknown(version, kind));
        }
        if job != job_hash {
            return Err(RecordError::OtherJob);
        }
        let mut input = Reader::new(body);
        let record = decode_body(version, kind, &mut input)?;
        input.finish()?;
        Ok(record)
    }

    /// The name of its file. `exclusive` names, for the shared directory, leave out
    /// the ballot: one commit a version.
    pub fn file_name(&self, exclusive: bool) -> String {
        match self {
            Record::Incarnation { number, .. } => format!("incarnation-{}.rec", number.0),
            Record::Prepared {
                incarnation,
                version,
                level,
                ballot,
                part,
            } => format!(
                "prepared-i{}-v{}-{}-n{}-h{}-b{ballot}.rec",
                incarnation.0,
                version.0,
                word(*level),
                part.node.0,
                part.holder.0
            ),
            Record::Commit {
                incarnation,
                version,
                level,
                ballot,
                ..
            } => {
                let ballot = if exclusive {
                    String::new()
                } else {
                    format!("-b{ballot}")
                };
                format!(
                    "commit-i{}-v{}-{}{ballot}.rec",
                    incarnation.0,
                    version.0,
                    word(*level)
                )
            }
            Record::Abort {
                incarnation,
                version,
                level,
                ..
            } => {
                let level = level.map_or("all".into(), word);
                format!("abort-i{}-v{}-{level}.rec", incarnation.0, version.0)
            }
            Record::Tombstone { id, level } => format!("tombstone-{id}-{}.rec", word(*level)),
            Record::Finished { incarnation, .. } => format!("finished-i{}.rec", incarnation.0),
            Record::Pin {
                incarnation,
                version,
            } => {
                format!("pin-i{}-v{}.rec", incarnation.0, version.0)
            }
            Record::Promise { .. } => "promise.rec".into(),
            Record::History { .. } => "history.rec".into(),
        }
    }

    /// The checkpoint that it speaks of, if it speaks of one.
    pub fn checkpoint(&self) -> Option<(Incarnation, Version)> {
        match self {
            Record::Prepared {
                incarnation,
                version,
                ..
            }
            | Record::Commit {
                incarnation,
                version,
                ..
            }
            | Record::Abort {
                incarnation,
                version,
                ..
            }
            | Record::Pin {
                incarnation,
                version,
            } => Some((*incarnation, *version)),
            Record::Tombstone { id, .. } => Some((id.incarnation, id.version)),
            Record::Incarnation { .. }
            | Record::Finished { .. }
            | Record::Promise { .. }
            | Record::History { .. } => None,
        }
    }
}

/// A level in the name of a file: without what some tools take for a host's name.
pub fn word(level: Level) -> String {
    level.name().replace(':', "")
}

fn put_list<T>(out: &mut Writer, items: &[T], mut put: impl FnMut(&mut Writer, &T)) -> Option<()> {
    if items.len() > LIST_MAX {
        return None;
    }
    out.u32(items.len() as u32);
    items.iter().for_each(|item| put(out, item));
    Some(())
}

fn put_part(out: &mut Writer, part: &Part) -> Option<()> {
    out.u32(part.node.0);
    put_id(out, part.id);
    out.u64(part.length).u128(part.digest).u32(part.holder.0);
    part.ranks.put(out)?;
    out.u8(u8::from(part.parity.is_some()));
    if let Some(parity) = part.parity {
        out.u64(parity.length).u128(parity.digest);
    }
    Some(())
}

/// Writes a level as what it is: store, scheme, k and m.
pub fn put_level(out: &mut Writer, level: Level) {
    let Protection {
        store,
        scheme,
        k,
        m,
    } = level.protection();
    out.u8(store as u8).u16(scheme as u16).u16(k).u16(m);
}

/// Reads what [`put_level`] writes.
pub fn read_level(input: &mut Reader<'_>) -> Result<Level, WireError> {
    let odd = WireError::Value("level");
    let store = match input.u8()? {
        0 => StoreKind::Keeper,
        1 => StoreKind::Node,
        2 => StoreKind::Shared,
        3 => StoreKind::Server,
        _ => return Err(odd),
    };
    let scheme = match input.u16()? {
        0 => Scheme::Single,
        1 => Scheme::Xor,
        2 => Scheme::ReedSolomon,
        3 => Scheme::Copies,
        _ => return Err(odd),
    };
    let (k, m) = (input.u16()?, input.u16()?);
    let protection = Protection {
        store,
        scheme,
        k,
        m,
    };
    Level::of(protection).ok_or(odd)
}

fn list<'a, T>(
    input: &mut Reader<'a>,
    item_bytes: usize,
    item: impl Fn(&mut Reader<'a>) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let count = input.count(item_bytes)?;
    if count > LIST_MAX {
        return Err(WireError::TooLong {
            length: count as u64,
            bound: LIST_MAX as u64,
        });
    }
    (0..count).map(|_| item(input)).collect()
}

/// A level in a record of a version.
fn level(format: u16, input: &mut Reader<'_>) -> Result<Level, WireError> {
    match format {
        1 => {
            let number = usize::from(input.u8()?);
            let found = Level::PLAIN.get(number).copied();
            found.ok_or(WireError::Value("level"))
        }
        _ => read_level(input),
    }
}

fn option<'a, T>(
    input: &mut Reader<'a>,
    some: impl FnOnce(&mut Reader<'a>) -> Result<T, WireError>,
) -> Result<Option<T>, WireError> {
    match input.u8()? {
        0 => Ok(None),
        1 => some(input).map(Some),
        _ => Err(WireError::Value("option")),
    }
}

fn part(format: u16, input: &mut Reader<'_>) -> Result<Part, WireError> {
    let parity = |input: &mut Reader<'_>| {
        Ok(Parity {
            length: input.u64()?,
            digest: input.u128()?,
        })
    };
    Ok(Part {
        node: NodeId(input.u32()?),
        id: read_id(input)?,
        length: input.u64()?,
        digest: input.u128()?,
        holder: NodeId(input.u32()?),
        ranks: match format {
            1 | 2 => RankList::read_plain(input)?,
            _ => RankList::read(input)?,
        },
        parity: match format {
            1 => None,
            _ => option(input, parity)?,
        },
    })
}

fn ranks_of(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.ranks.len()).sum()
}

/// Few bytes may name many ranks, so the bytes of a record alone do not bound them.
fn bounded(parts: Vec<Part>) -> Result<Arc<[Part]>, WireError> {
    match ranks_of(&parts) {
        ranks if ranks > RANKS_MAX => Err(WireError::TooLong {
            length: ranks as u64,
            bound: RANKS_MAX as u64,
        }),
        _ => Ok(parts.into()),
    }
}

fn decode_body(format: u16, kind: u16, input: &mut Reader<'_>) -> Result<Record, WireError> {
    let node = |input: &mut Reader<'_>| Ok(NodeId(input.u32()?));
    let level = |input: &mut Reader<'_>| level(format, input);
    let part = |input: &mut Reader<'_>| part(format, input);
    let incarnation = |input: &mut Reader<'_>| Ok::<_, WireError>(Incarnation(input.u32()?));
    let version = |input: &mut Reader<'_>| Ok::<_, WireError>(Version(input.u64()?));
    Ok(match kind {
        1 => Record::Incarnation {
            number: incarnation(input)?,
            restored: option(input, |input| {
                Ok((incarnation(input)?, version(input)?, level(input)?))
            })?,
            members: list(input, 4, node)?,
            ranks: input.u32()?,
        },
        2 => Record::Prepared {
            incarnation: incarnation(input)?,
            version: version(input)?,
            level: level(input)?,
            ballot: input.u64()?,
            part: part(input)?,
        },
        3 => Record::Commit {
            incarnation: incarnation(input)?,
            version: version(input)?,
            level: level(input)?,
            ballot: input.u64()?,
            ranks: input.u32()?,
            parts: bounded(list(input, 52, part)?)?,
            groups: match format {
                1 => Vec::new(),
                _ => list(input, 4, |input| list(input, 4, node))?,
            },
        },
        4 => Record::Abort {
            incarnation: incarnation(input)?,
            version: version(input)?,
            level: option(input, level)?,
            code: Code::from_number(input.u16()?).ok_or(WireError::Value("error code"))?,
            text: input.text(TEXT_BYTES_MAX)?.to_owned(),
        },
        5 => Record::Tombstone {
            id: read_id(input)?,
            level: level(input)?,
        },
        6 => Record::Finished {
            incarnation: incarnation(input)?,
            version: option(input, version)?,
        },
        7 => Record::Pin {
            incarnation: incarnation(input)?,
            version: version(input)?,
        },
        8 => Record::Promise {
            ballot: input.u64()?,
        },
        9 => Record::History {
            incarnation: incarnation(input)?,
            version: version(input)?,
        },
        _ => return Err(WireError::Value("record kind")),
    })
}

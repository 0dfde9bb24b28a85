//! What a rank and its agent say to each other, and its encoding.
//!
//! A datagram is u16 kind, u32 sequence number, body. The sequence number of a
//! request comes back with its answer, so that an answer that was too late for its
//! request is never taken for another's. Every datagram has a bound, every field
//! within it too; decoding is a pure function that cannot panic (P7).

use crate::wire::{Reader, WireError, Writer};
use crate::{Code, Entity, Error, Incarnation, NodeId, Rank, Survives, Version};

/// Longest name of a region or of a file, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 255;

/// Longest datagram, in bytes.
pub const DATAGRAM_BYTES_MAX: usize = 16 << 10;
/// Longest path in a message, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// Longest part of an error in a message, in bytes; longer texts are cut.
pub const TEXT_BYTES_MAX: usize = 1024;

/// What a rank says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToAgent {
    /// First of a connection. Answer: Welcome or Error.
    Hello {
        /// [`crate::control_block::CONTROL_ABI`] of the library.
        abi: u32,
        /// The rank.
        rank: Rank,
        /// Ranks of the job.
        ranks: u32,
        /// Process id, in the rank's own namespace (SO_PEERCRED tells the agent's view).
        pid: u32,
        /// The start that the rank belongs to.
        incarnation: Incarnation,
    },
    /// The slab of an armed version is needed: not mapped yet, or too small.
    /// Answer: Slab of at least `bytes`, or Error.
    Slab {
        /// The version.
        version: Version,
        /// Capacity needed, head page included.
        bytes: u64,
    },
    /// A version was captured. No answer.
    Captured {
        /// The version.
        version: Version,
        /// The slab's slot.
        slot: u32,
        /// The slab's generation.
        generation: u32,
        /// Bytes of its table.
        table_bytes: u64,
        /// Bytes of its data, padding included.
        data_bytes: u64,
        /// How long the program was blocked.
        blocked_ns: u64,
        /// The program forces this version, armed or not.
        forced: bool,
    },
    /// A version was entered and could not be captured. No answer.
    Failed {
        /// The version.
        version: Version,
        /// Why.
        code: Code,
    },
    /// Answer within `timeout_ms`: State (Pending if the time passed).
    Wait {
        /// The version.
        version: Version,
        /// What it has to survive.
        survives: Survives,
        /// Bound of the wait.
        timeout_ms: u32,
    },
    /// Answer: Restore with a slab, Fresh, or Error.
    Restore,
    /// The restored version was taken over (`None`) or refused. Answer: Ok.
    Restored {
        /// The version.
        version: Version,
        /// Why it was refused.
        code: Option<Code>,
    },
    /// Answer: Path, or Error.
    Route {
        /// The version.
        version: Version,
        /// The file's name.
        name: String,
    },
    /// The version of an injected failure is reached. Answer, if the rank lives: Ok.
    Inject {
        /// The version.
        version: Version,
    },
    /// A checkpoint is wanted by all ranks now. Answer: Slab, or Error.
    Force {
        /// The version.
        version: Version,
        /// Capacity needed, head page included.
        bytes: u64,
    },
    /// The program leaves the job. Answer: Ok.
    Close,
}

/// What became of a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum VersionState {
    /// Not decided yet.
    Pending = 0,
    /// Committed and stable.
    Committed = 1,
    /// Aborted.
    Aborted = 2,
}

/// What an agent says.
#[derive(Clone, PartialEq, Debug)]
pub enum ToRank {
    /// To Hello; carries the control block.
    Welcome {
        /// The node slot.
        node: NodeId,
        /// The start of the job.
        incarnation: Incarnation,
        /// The version to restore, if any.
        restore: Option<Version>,
    },
    /// To Slab and Force; carries the slab.
    Slab {
        /// The version.
        version: Version,
        /// The slab's slot.
        slot: u32,
        /// The slab's generation.
        generation: u32,
        /// The slab's bytes, head page included.
        capacity: u64,
    },
    /// To Wait.
    State {
        /// The version.
        version: Version,
        /// What it has to survive.
        survives: Survives,
        /// What became of it.
        state: VersionState,
    },
    /// To Restore; carries the slab, read-only.
    Restore {
        /// The version.
        version: Version,
        /// The slab's bytes, head page included.
        capacity: u64,
    },
    /// To Restore: there is nothing to restore.
    Fresh,
    /// To Route.
    Path {
        /// An absolute path in node storage; its directory exists.
        path: String,
    },
    /// To Restored, Inject and Close.
    Ok,
    /// The request cannot be fulfilled.
    Error {
        /// Why, for the user.
        error: Error,
    },
}

/// Something that travels in a datagram.
pub trait Message: Sized {
    /// Appends kind and body; the sequence number goes between.
    fn write(&self, sequence: u32, out: &mut Writer);
    /// Reads a body of this kind.
    fn read(kind: u16, body: &mut Reader<'_>) -> Result<Self, WireError>;
}

/// A message as a datagram.
pub fn encode<M: Message>(sequence: u32, message: &M) -> Vec<u8> {
    let mut out = Writer::new();
    message.write(sequence, &mut out);
    debug_assert!(out.len() <= DATAGRAM_BYTES_MAX);
    out.into_vec()
}

/// Sequence number and message of a datagram.
pub fn decode<M: Message>(datagram: &[u8]) -> Result<(u32, M), WireError> {
    if datagram.len() > DATAGRAM_BYTES_MAX {
        return Err(WireError::TooLong {
            length: datagram.len() as u64,
            bound: DATAGRAM_BYTES_MAX as u64,
        });
    }
    let mut body = Reader::new(datagram);
    let kind = body.u16()?;
    let sequence = body.u32()?;
    let message = M::read(kind, &mut body)?;
    body.finish()?;
    Ok((sequence, message))
}

fn version(body: &mut Reader<'_>) -> Result<Version, WireError> {
    let version = Version(body.u64()?);
    if version > Version::MAX {
        return Err(WireError::Value("version out of range"));
    }
    Ok(version)
}

fn survives(body: &mut Reader<'_>) -> Result<Survives, WireError> {
    Survives::from_number(body.u8()?).ok_or(WireError::Value("survives"))
}

fn code(body: &mut Reader<'_>) -> Result<Code, WireError> {
    Code::from_number(body.u16()?).ok_or(WireError::Value("code"))
}

fn flag(body: &mut Reader<'_>) -> Result<bool, WireError> {
    match body.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Value("flag")),
    }
}

fn bytes(body: &mut Reader<'_>) -> Result<u64, WireError> {
    let bytes = body.u64()?;
    if i64::try_from(bytes).is_err() {
        return Err(WireError::Value("size out of range"));
    }
    Ok(bytes)
}

fn rank(body: &mut Reader<'_>) -> Result<(Rank, u32), WireError> {
    let (rank, ranks) = (body.u32()?, body.u32()?);
    if rank >= ranks || ranks > i32::MAX as u32 {
        return Err(WireError::Value("rank outside the job"));
    }
    Ok((Rank(rank), ranks))
}

/// A file's name: not empty, no slash, no NUL, neither `.` nor `..`.
fn file_name(body: &mut Reader<'_>) -> Result<String, WireError> {
    let name = body.text(NAME_BYTES_MAX)?;
    if name.is_empty() || name.contains(['/', '\0']) || name == "." || name == ".." {
        return Err(WireError::Value("file name"));
    }
    Ok(name.to_owned())
}

fn cut(text: &str) -> &[u8] {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

impl Message for ToAgent {
    fn write(&self, sequence: u32, out: &mut Writer) {
        let mut kind = |kind: u16| {
            out.u16(kind).u32(sequence);
        };
        match self {
            ToAgent::Hello {
                abi,
                rank,
                ranks,
                pid,
                incarnation,
            } => {
                kind(1);
                out.u32(*abi)
                    .u32(rank.0)
                    .u32(*ranks)
                    .u32(*pid)
                    .u32(incarnation.0);
            }
            ToAgent::Slab { version, bytes } => {
                kind(2);
                out.u64(version.0).u64(*bytes);
            }
            ToAgent::Captured {
                version,
                slot,
                generation,
                table_bytes,
                data_bytes,
                blocked_ns,
                forced,
            } => {
                kind(3);
                out.u64(version.0)
                    .u32(*slot)
                    .u32(*generation)
                    .u64(*table_bytes);
                out.u64(*data_bytes).u64(*blocked_ns).u8(u8::from(*forced));
            }
            ToAgent::Failed { version, code } => {
                kind(4);
                out.u64(version.0).u16(code.number());
            }
            ToAgent::Wait {
                version,
                survives,
                timeout_ms,
            } => {
                kind(6);
                out.u64(version.0).u8(*survives as u8).u32(*timeout_ms);
            }
            ToAgent::Restore => kind(7),
            ToAgent::Restored { version, code } => {
                kind(8);
                out.u64(version.0).u16(code.map_or(0, Code::number));
            }
            ToAgent::Route { version, name } => {
                kind(9);
                out.u64(version.0).blob(name.as_bytes());
            }
            ToAgent::Inject { version } => {
                kind(10);
                out.u64(version.0);
            }
            ToAgent::Force { version, bytes } => {
                kind(11);
                out.u64(version.0).u64(*bytes);
            }
            ToAgent::Close => kind(12),
        }
    }

    fn read(kind: u16, body: &mut Reader<'_>) -> Result<ToAgent, WireError> {
        Ok(match kind {
            1 => {
                let abi = body.u32()?;
                let (rank, ranks) = rank(body)?;
                let (pid, incarnation) = (body.u32()?, Incarnation(body.u32()?));
                ToAgent::Hello {
                    abi,
                    rank,
                    ranks,
                    pid,
                    incarnation,
                }
            }
            2 => ToAgent::Slab {
                version: version(body)?,
                bytes: bytes(body)?,
            },
            3 => ToAgent::Captured {
                version: version(body)?,
                slot: body.u32()?,
                generation: body.u32()?,
                table_bytes: bytes(body)?,
                data_bytes: bytes(body)?,
                blocked_ns: body.u64()?,
                forced: flag(body)?,
            },
            4 => ToAgent::Failed {
                version: version(body)?,
                code: code(body)?,
            },
            6 => ToAgent::Wait {
                version: version(body)?,
                survives: survives(body)?,
                timeout_ms: body.u32()?,
            },
            7 => ToAgent::Restore,
            8 => {
                let version = version(body)?;
                let code = match body.u16()? {
                    0 => None,
                    number => Some(Code::from_number(number).ok_or(WireError::Value("code"))?),
                };
                ToAgent::Restored { version, code }
            }
            9 => ToAgent::Route {
                version: version(body)?,
                name: file_name(body)?,
            },
            10 => ToAgent::Inject {
                version: version(body)?,
            },
            11 => ToAgent::Force {
                version: version(body)?,
                bytes: bytes(body)?,
            },
            12 => ToAgent::Close,
            _ => return Err(WireError::Value("kind of message")),
        })
    }
}

impl Message for ToRank {
    fn write(&self, sequence: u32, out: &mut Writer) {
        let mut kind = |kind: u16| {
            out.u16(kind).u32(sequence);
        };
        match self {
            ToRank::Welcome {
                node,
                incarnation,
                restore,
            } => {
                kind(101);
                out.u32(node.0).u32(incarnation.0);
                out.u64(restore.map_or(u64::MAX, |version| version.0));
            }
            ToRank::Slab {
                version,
                slot,
                generation,
                capacity,
            } => {
                kind(102);
                out.u64(version.0)
                    .u32(*slot)
                    .u32(*generation)
                    .u64(*capacity);
            }
            ToRank::State {
                version,
                survives,
                state,
            } => {
                kind(103);
                out.u64(version.0).u8(*survives as u8).u8(*state as u8);
            }
            ToRank::Restore { version, capacity } => {
                kind(104);
                out.u64(version.0).u64(*capacity);
            }
            ToRank::Fresh => kind(105),
            ToRank::Path { path } => {
                kind(106);
                out.blob(path.as_bytes());
            }
            ToRank::Ok => kind(107),
            ToRank::Error { error } => {
                kind(108);
                write_error(error, out);
            }
        }
    }

    fn read(kind: u16, body: &mut Reader<'_>) -> Result<ToRank, WireError> {
        Ok(match kind {
            101 => {
                let (node, incarnation) = (NodeId(body.u32()?), Incarnation(body.u32()?));
                let restore = match body.u64()? {
                    u64::MAX => None,
                    word if word <= Version::MAX.0 => Some(Version(word)),
                    _ => return Err(WireError::Value("version out of range")),
                };
                ToRank::Welcome {
                    node,
                    incarnation,
                    restore,
                }
            }
            102 => ToRank::Slab {
                version: version(body)?,
                slot: body.u32()?,
                generation: body.u32()?,
                capacity: bytes(body)?,
            },
            103 => {
                let (version, survives) = (version(body)?, survives(body)?);
                let state = match body.u8()? {
                    0 => VersionState::Pending,
                    1 => VersionState::Committed,
                    2 => VersionState::Aborted,
                    _ => return Err(WireError::Value("state of a version")),
                };
                ToRank::State {
                    version,
                    survives,
                    state,
                }
            }
            104 => ToRank::Restore {
                version: version(body)?,
                capacity: bytes(body)?,
            },
            105 => ToRank::Fresh,
            106 => {
                let path = body.text(PATH_BYTES_MAX)?;
                if !path.starts_with('/') || path.contains('\0') {
                    return Err(WireError::Value("path not absolute"));
                }
                ToRank::Path {
                    path: path.to_owned(),
                }
            }
            107 => ToRank::Ok,
            108 => ToRank::Error {
                error: read_error(body)?,
            },
            _ => return Err(WireError::Value("kind of message")),
        })
    }
}

fn write_error(error: &Error, out: &mut Writer) {
    out.u16(error.code().number());
    match error.entity() {
        Entity::Call => out.u8(0),
        Entity::Option(name) => out.u8(1).blob(cut(name)),
        Entity::Region(name) => out.u8(2).blob(cut(name)),
        Entity::Rank(rank) => out.u8(3).u32(*rank),
        Entity::Node(node) => out.u8(4).u32(*node),
        Entity::File(path) => out.u8(5).blob(cut(path)),
        Entity::Address(address) => out.u8(6).blob(cut(address)),
        Entity::Version(version) => out.u8(7).u64(*version),
        Entity::Job(name) => out.u8(8).blob(cut(name)),
    };
    out.blob(cut(error.reason())).blob(cut(error.remedy()));
}

fn read_error(body: &mut Reader<'_>) -> Result<Error, WireError> {
    fn text(body: &mut Reader<'_>) -> Result<String, WireError> {
        Ok(body.text(TEXT_BYTES_MAX)?.to_owned())
    }
    let code = code(body)?;
    let entity = match body.u8()? {
        0 => Entity::Call,
        1 => Entity::Option(text(body)?),
        2 => Entity::Region(text(body)?),
        3 => Entity::Rank(body.u32()?),
        4 => Entity::Node(body.u32()?),
        5 => Entity::File(text(body)?),
        6 => Entity::Address(text(body)?),
        7 => Entity::Version(body.u64()?),
        8 => Entity::Job(text(body)?),
        _ => return Err(WireError::Value("entity of an error")),
    };
    Ok(Error::new(code, entity, text(body)?, text(body)?))
}

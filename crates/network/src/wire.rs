//! The bytes of the network, as pure functions over slices (P7): nothing here
//! panics, and nothing reserves more than the bytes that arrived or the bound
//! in force.
//!
//! ```text
//! caller                                            listener
//!   HEAD, claim, Noise message 1 {Hello}   ---->
//!                                          <----    HEAD, Noise message 2 {Hello}
//!   record {Confirm}                       ---->
//!                                          <----    record {Verdict}
//!   records of frames (control), or raw bytes / records of bytes (stream)
//! ```
//!
//! HEAD is `magic[4] version:u16 purpose:u8 status:u8 length:u16`, and keeps
//! this layout in every version, so that a mismatch can be named. The claim is
//! `length:u8` and the name of whose key the caller holds, in the clear: empty
//! where all have one key. A record is
//! `length:u16` and that many bytes of one Noise transport message. A frame is
//! `kind:u8 flags:u8 reserved:u16 length:u32` and its payload; frames run on
//! across records.
//!
//! Room is left on purpose: `kind` for sessions (sequence numbers,
//! acknowledgement, replay after a rail was closed and opened again), `flags`
//! for priorities and gates, `purpose` for other rails (the set-up of a
//! shared-memory or UCX rail travels over an authenticated TCP connection).

use outlive_base::wire::{Reader, WireError, Writer};
use outlive_base::{Code, NodeId};

use crate::identity::Identity;

/// Longest header of a stream, in bytes.
pub const STREAM_HEADER_BYTES_MAX: usize = 4096;

/// The version of everything below HEAD.
pub(crate) const PROTOCOL_VERSION: u16 = 2;
/// The first bytes of every connection.
pub(crate) const MAGIC: [u8; 4] = *b"OLNW";
/// Length of HEAD, in bytes.
pub(crate) const HEAD_BYTES: usize = 10;
/// Longest claim with its length and Noise handshake message, in bytes.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 256;
/// Longest claim, in bytes.
pub(crate) const CLAIM_BYTES_MAX: usize = 64;
/// Longest record, in bytes: the bound of Noise.
pub(crate) const RECORD_BYTES_MAX: usize = 65535;
/// Length of the authentication tag in a record, in bytes.
pub(crate) const TAG_BYTES: usize = 16;
/// Longest record while still in the handshake, in bytes.
pub(crate) const CONFIRM_BYTES_MAX: usize = STREAM_HEADER_BYTES_MAX + 12 + TAG_BYTES;
/// Length of a frame's header, in bytes.
pub(crate) const FRAME_HEAD_BYTES: usize = 8;
/// The only kind of frame so far: a message.
pub(crate) const FRAME_MESSAGE: u8 = 1;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Control messages.
    Control,
    /// Raw bytes after the handshake.
    Stream,
    /// Encrypted bytes after the handshake.
    SealedStream,
    /// A link of a reliable session after the handshake.
    Session,
}

impl Purpose {
    pub(crate) const fn number(self) -> u8 {
        match self {
            Purpose::Control => 0,
            Purpose::Stream => 1,
            Purpose::SealedStream => 2,
            Purpose::Session => 3,
        }
    }
    const fn from_number(number: u8) -> Option<Purpose> {
        match number {
            0 => Some(Purpose::Control),
            1 => Some(Purpose::Stream),
            2 => Some(Purpose::SealedStream),
            3 => Some(Purpose::Session),
            _ => None,
        }
    }
}

/// What the listener says in its HEAD. Not authenticated: a hint for the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Fine,
    Version,
    Key,
}

/// The cleartext before a Noise handshake message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) purpose: Purpose,
    pub(crate) status: Status,
    pub(crate) length: u16,
}

/// Why a HEAD was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeadError {
    /// Another program speaks.
    NotOurs,
    /// Our program in another version.
    Version(u16),
}

impl Head {
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        let status = match self.status {
            Status::Fine => 0,
            Status::Version => 1,
            Status::Key => 2,
        };
        let mut writer = Writer::new();
        writer
            .raw(&MAGIC)
            .u16(PROTOCOL_VERSION)
            .u8(self.purpose.number())
            .u8(status);
        writer.u16(self.length);
        out.extend_from_slice(writer.as_slice());
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Head, HeadError> {
        let mut reader = Reader::new(bytes);
        let not_ours = |_: WireError| HeadError::NotOurs;
        if reader.array::<4>().map_err(not_ours)? != MAGIC {
            return Err(HeadError::NotOurs);
        }
        let version = reader.u16().map_err(not_ours)?;
        if version != PROTOCOL_VERSION {
            return Err(HeadError::Version(version));
        }
        let purpose = Purpose::from_number(reader.u8().map_err(not_ours)?);
        let status = match reader.u8().map_err(not_ours)? {
            0 => Status::Fine,
            1 => Status::Version,
            2 => Status::Key,
            _ => return Err(HeadError::NotOurs),
        };
        let length = reader.u16().map_err(not_ours)?;
        reader.finish().map_err(not_ours)?;
        match purpose {
            Some(purpose) if usize::from(length) <= HANDSHAKE_BYTES_MAX => Ok(Head {
                purpose,
                status,
                length,
            }),
            _ => Err(HeadError::NotOurs),
        }
    }
}

/// The claim of a caller's first message, and the Noise message that follows it.
pub(crate) fn claim(body: &[u8]) -> Result<(&str, &[u8]), WireError> {
    let bad = WireError::Value("claim");
    let (length, rest) = body.split_first().ok_or(bad)?;
    let length = usize::from(*length);
    if length > CLAIM_BYTES_MAX || length > rest.len() {
        return Err(WireError::Value("claim"));
    }
    let (name, noise) = rest.split_at(length);
    let name = core::str::from_utf8(name).map_err(|_| WireError::Value("claim"))?;
    Ok((name, noise))
}

/// Who speaks and whom it means to reach; inside a Noise handshake message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    /// The speaker.
    pub(crate) identity: Identity,
    /// The peer it wants.
    pub(crate) wanted: NodeId,
    /// The port at which the speaker listens.
    pub(crate) port: u16,
}

impl Hello {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u32(self.identity.peer.0).u64(self.identity.epoch);
        writer.u32(self.wanted.0).u16(self.port);
        writer.into_vec()
    }

    /// Bytes after the known fields are left to later versions of the same
    /// protocol number.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Hello, WireError> {
        let mut reader = Reader::new(bytes);
        Ok(Hello {
            identity: Identity {
                peer: NodeId(reader.u32()?),
                epoch: reader.u64()?,
            },
            wanted: NodeId(reader.u32()?),
            port: reader.u16()?,
        })
    }
}

/// The caller's first transport message: proof that it is alive and no replay.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Confirm {
    /// The last control connection it had with this peer, 0 for none.
    pub(crate) last: u64,
    /// The header of a stream; empty for control.
    pub(crate) header: Vec<u8>,
}

impl Confirm {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u64(self.last).blob(&self.header);
        writer.into_vec()
    }
    pub(crate) fn parse(bytes: &[u8]) -> Result<Confirm, WireError> {
        let mut reader = Reader::new(bytes);
        let last = reader.u64()?;
        let header = reader.blob(STREAM_HEADER_BYTES_MAX)?.to_vec();
        reader.finish()?;
        Ok(Confirm { last, header })
    }
}

/// The listener's first transport message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The connection stands.
    Accept,
    /// Another connection between the two stands or is about to.
    Duplicate,
    /// A newer epoch of the caller is known, or the caller was forgotten.
    Stale,
    /// The caller wanted another peer.
    WrongPeer,
    /// No room for another stream.
    Busy,
    /// The caller speaks as a peer that its key is not the key of.
    NotYours,
}

impl Verdict {
    pub(crate) const fn number(self) -> u8 {
        self as u8
    }
    pub(crate) const fn from_number(number: u8) -> Option<Verdict> {
        match number {
            0 => Some(Verdict::Accept),
            1 => Some(Verdict::Duplicate),
            2 => Some(Verdict::Stale),
            3 => Some(Verdict::WrongPeer),
            4 => Some(Verdict::Busy),
            5 => Some(Verdict::NotYours),
            _ => None,
        }
    }
    /// The code and the words for a caller that was turned away.
    pub(crate) const fn explain(self) -> (Code, &'static str) {
        match self {
            Verdict::Accept => (Code::Internal, "accepted"),
            Verdict::Duplicate => (Code::Network, "another connection to it stands"),
            Verdict::Stale => (Code::Network, "it knows a newer epoch of this agent"),
            Verdict::WrongPeer => (Code::Network, "another peer listens there"),
            Verdict::Busy => (Code::Network, "it has too many streams (streams_max)"),
            Verdict::NotYours => (
                Code::KeyMismatch,
                "the number that was claimed is not the one of that key",
            ),
        }
    }
}

/// Appends a message's frame.
pub(crate) fn frame(message: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&[FRAME_MESSAGE, 0, 0, 0]);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(message);
}

/// Puts messages together from the bytes of records. Holds at most one
/// unfinished message, and never more than arrived.
#[derive(Debug)]
pub(crate) struct Assembler {
    head: [u8; FRAME_HEAD_BYTES],
    head_filled: usize,
    message: Vec<u8>,
    missing: usize,
    message_bytes_max: usize,
}

impl Assembler {
    pub(crate) fn new(message_bytes_max: usize) -> Assembler {
        Assembler {
            head: [0; FRAME_HEAD_BYTES],
            head_filled: 0,
            message: Vec::new(),
            missing: 0,
            message_bytes_max,
        }
    }

    /// Takes bytes and gives every message that they complete.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        sink: &mut dyn FnMut(Vec<u8>),
    ) -> Result<(), WireError> {
        while !bytes.is_empty() {
            if self.head_filled < FRAME_HEAD_BYTES {
                let count = bytes.len().min(FRAME_HEAD_BYTES - self.head_filled);
                self.head[self.head_filled..][..count].copy_from_slice(&bytes[..count]);
                self.head_filled += count;
                bytes = &bytes[count..];
                if self.head_filled == FRAME_HEAD_BYTES {
                    self.missing = parse_frame_head(&self.head, self.message_bytes_max)?;
                }
            }
            if self.head_filled == FRAME_HEAD_BYTES {
                let count = bytes.len().min(self.missing);
                self.message.extend_from_slice(&bytes[..count]);
                self.missing -= count;
                bytes = &bytes[count..];
                if self.missing == 0 {
                    self.head_filled = 0;
                    sink(core::mem::take(&mut self.message));
                }
            }
        }
        Ok(())
    }
}

/// The payload length of a frame.
fn parse_frame_head(head: &[u8], bound: usize) -> Result<usize, WireError> {
    let mut reader = Reader::new(head);
    if reader.u8()? != FRAME_MESSAGE {
        return Err(WireError::Value("unknown frame"));
    }
    if reader.u8()? != 0 || reader.u16()? != 0 {
        return Err(WireError::Value("reserved bits of a frame"));
    }
    let length = reader.u32()? as usize;
    if length > bound {
        return Err(WireError::TooLong {
            length: length as u64,
            bound: bound as u64,
        });
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_parses_and_another_version_is_named() {
        let head = Head {
            purpose: Purpose::Stream,
            status: Status::Key,
            length: 77,
        };
        let mut bytes = Vec::new();
        head.write(&mut bytes);
        assert_eq!(bytes.len(), HEAD_BYTES);
        assert_eq!(Head::parse(&bytes), Ok(head));
        bytes[4] = 9;
        assert_eq!(Head::parse(&bytes), Err(HeadError::Version(9)));
        bytes[0] = b'G';
        assert_eq!(Head::parse(&bytes), Err(HeadError::NotOurs));
        let hello = Hello {
            identity: Identity {
                peer: NodeId(3),
                epoch: 9,
            },
            wanted: NodeId::LAUNCHER,
            port: 80,
        };
        assert_eq!(Hello::parse(&hello.bytes()), Ok(hello));
        let confirm = Confirm {
            last: 7,
            header: b"head".to_vec(),
        };
        assert_eq!(Confirm::parse(&confirm.bytes()), Ok(confirm));
        for number in 0..=u8::MAX {
            assert!(Verdict::from_number(number).is_none_or(|v| v.number() == number));
        }
    }

    #[test]
    fn a_message_above_the_bound_is_refused_before_it_is_held() {
        let mut bytes = Vec::new();
        frame(&[0; 101], &mut bytes);
        let mut assembler = Assembler::new(100);
        assert!(matches!(
            assembler.feed(&bytes, &mut |_| panic!("no message")),
            Err(WireError::TooLong {
                length: 101,
                bound: 100
            })
        ));
        assert_eq!(assembler.message.capacity(), 0);
    }

    proptest! {
        #[test]
        fn messages_survive_any_cutting(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8),
            cuts in prop::collection::vec(1usize..64, 1..64),
        ) {
            let mut bytes = Vec::new();
            messages.iter().for_each(|message| frame(message, &mut bytes));
            let mut assembler = Assembler::new(200);
            let (mut got, mut rest) = (Vec::new(), &bytes[..]);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (head, tail) = rest.split_at((*cut).min(rest.len()));
                assembler.feed(head, &mut |message| got.push(message)).unwrap();
                rest = tail;
            }
            prop_assert_eq!(got, messages);
        }

        #[test]
        fn garbage_neither_panics_nor_grows(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = Head::parse(&bytes);
            let _ = Hello::parse(&bytes);
            let _ = Confirm::parse(&bytes);
            if let Ok((name, noise)) = claim(&bytes) {
                prop_assert_eq!(1 + name.len() + noise.len(), bytes.len());
                prop_assert!(name.len() <= CLAIM_BYTES_MAX);
            }
            let mut assembler = Assembler::new(1 << 20);
            let _ = assembler.feed(&bytes, &mut |_| ());
            prop_assert!(assembler.message.capacity() <= 2 * bytes.len().max(8));
        }
    }
}

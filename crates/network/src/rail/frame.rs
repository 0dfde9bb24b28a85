//! What travels on a rail: the key of an instance, a machine's message, a body.
//!
//! Layout (little-endian): comm u64, sequence u32, incarnation u32, protocol u8,
//! flags u8 (bit 0: a body follows), zero u16, absent u32, body length u64, message of
//! 32 bytes; then the body's bytes, then the absent ranks as u32. [`HEADER_BYTES`]
//! before the body, whatever the machine.

use std::sync::Arc;

use outlive_base::machine::MESSAGE_BYTES_MAX;
use outlive_base::wire::{Reader, WireError, Writer};

/// Bytes before the body.
pub const HEADER_BYTES: usize = 32 + MESSAGE_BYTES_MAX;
/// The largest body that a frame may announce, in bytes (1 TiB): a bound against
/// damaged headers, not a promise that memory suffices.
pub const BODY_BYTES_MAX: u64 = 1 << 40;

/// Most ranks of a job: as many may be on the list of the absent that travels with a body.
pub const RANKS_MAX: u32 = 1 << 24;

/// Shared, immutable bytes: a body is sent to many without being copied.
pub type Bytes = Arc<Vec<u8>>;

/// What a body holds: data, and the ranks that are missing from them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Content {
    /// The data.
    pub bytes: Bytes,
    /// Ranks that did not contribute, ascending. Nearly always empty.
    pub absent: Arc<Vec<u32>>,
}

impl Content {
    /// Data to which everyone contributed.
    pub fn new(bytes: Vec<u8>) -> Content {
        Content {
            bytes: Arc::new(bytes),
            absent: Arc::default(),
        }
    }
    /// Bytes that it takes on a rail.
    pub fn wire_bytes(&self) -> usize {
        self.bytes.len() + 4 * self.absent.len()
    }
    /// The list of the absent as it travels.
    pub fn absent_bytes(&self) -> Vec<u8> {
        self.absent
            .iter()
            .flat_map(|rank| rank.to_le_bytes())
            .collect()
    }
}

/// Which collective a frame belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// The communicator: equal in all its processes, different between communicators.
    pub comm: u64,
    /// The position of the call among the communicator's collectives, from 0;
    /// 0 for machines that number the calls themselves.
    pub sequence: u32,
    /// The incarnation of the job: frames of an earlier one are dropped.
    pub incarnation: u32,
    /// Which machine: an engine's own number.
    pub protocol: u8,
}

/// One message between two processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The instance.
    pub key: Key,
    /// The machine's message, in the encoding of its driver.
    pub msg: [u8; MESSAGE_BYTES_MAX],
    /// Longer data.
    pub body: Option<Content>,
}

/// A header as parsed: the frame without its body, and how long the body is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The instance.
    pub key: Key,
    /// The machine's message.
    pub msg: [u8; MESSAGE_BYTES_MAX],
    /// Length of the body, if there is one.
    pub body_bytes: Option<u64>,
    /// How many absent ranks follow the body.
    pub absent: u32,
}

impl Frame {
    /// The header's bytes.
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        let mut writer = Writer::new();
        let Key {
            comm,
            sequence,
            incarnation,
            protocol,
        } = self.key;
        let body = self.body.as_ref();
        writer.u64(comm).u32(sequence).u32(incarnation).u8(protocol);
        writer.u8(u8::from(body.is_some())).u16(0);
        // Lists are made of ranks, which are fewer than the bound.
        writer.u32(body.map_or(0, |body| body.absent.len() as u32));
        writer.u64(body.map_or(0, |body| body.bytes.len() as u64));
        writer.raw(&self.msg);
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(writer.as_slice());
        bytes
    }

    /// The whole frame as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header().to_vec();
        if let Some(body) = &self.body {
            bytes.extend_from_slice(&body.bytes);
            bytes.extend_from_slice(&body.absent_bytes());
        }
        bytes
    }

    /// A whole frame from bytes, as [`Frame::header`] and the body give them.
    ///
    /// # Errors
    /// If the bytes are no frame.
    pub fn parse(bytes: &[u8]) -> Result<Frame, WireError> {
        let (head, body) = bytes
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(WireError::Short(
                HEADER_BYTES - bytes.len().min(HEADER_BYTES),
            ))?;
        let header = Header::parse(head)?;
        let announced = header.tail_bytes();
        match (body.len() as u64).checked_sub(announced) {
            Some(0) => Ok(header.with(body.to_vec())),
            Some(more) => Err(WireError::Trailing(more as usize)),
            None => Err(WireError::Short((announced - body.len() as u64) as usize)),
        }
    }
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// If a field has a value that is not allowed.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, WireError> {
        let mut reader = Reader::new(bytes);
        let (comm, sequence) = (reader.u64()?, reader.u32()?);
        let (incarnation, protocol) = (reader.u32()?, reader.u8()?);
        let (flags, zero) = (reader.u8()?, reader.u16()?);
        let (absent, length) = (reader.u32()?, reader.u64()?);
        if flags > 1 || zero != 0 || (flags == 0 && (length != 0 || absent != 0)) {
            return Err(WireError::Value("flags"));
        }
        if length > BODY_BYTES_MAX || absent > RANKS_MAX {
            return Err(WireError::TooLong {
                length,
                bound: BODY_BYTES_MAX,
            });
        }
        Ok(Header {
            key: Key {
                comm,
                sequence,
                incarnation,
                protocol,
            },
            msg: reader.array()?,
            body_bytes: (flags == 1).then_some(length),
            absent,
        })
    }

    /// Bytes that follow the header: at most [`BODY_BYTES_MAX`] and the list.
    pub fn tail_bytes(&self) -> u64 {
        self.body_bytes.unwrap_or(0) + 4 * u64::from(self.absent)
    }

    /// The frame with this header and the [`Header::tail_bytes`] that follow it.
    pub fn with(self, mut tail: Vec<u8>) -> Frame {
        let body = self.body_bytes.map(|length| {
            let list = tail.split_off((length as usize).min(tail.len()));
            let ranks = list.chunks_exact(4);
            let absent = ranks.map(|rank| u32::from_le_bytes([rank[0], rank[1], rank[2], rank[3]]));
            Content {
                absent: Arc::new(absent.collect()),
                bytes: Arc::new(tail),
            }
        });
        Frame {
            key: self.key,
            msg: self.msg,
            body,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_come_back_and_cuts_are_refused(
            comm: u64, sequence: u32, incarnation: u32, protocol: u8,
            msg: [u8; 32], body: Option<(Vec<u8>, Vec<u32>)>, cut: prop::sample::Index,
        ) {
            let key = Key { comm, sequence, incarnation, protocol };
            let frame = Frame { key, msg, body: body.map(|(bytes, absent)| Content {
                bytes: Arc::new(bytes), absent: Arc::new(absent),
            }) };
            let mut bytes = frame.header().to_vec();
            if let Some(body) = &frame.body {
                bytes.extend_from_slice(&body.bytes);
                bytes.extend_from_slice(&body.absent_bytes());
            }
            prop_assert_eq!(Frame::parse(&bytes), Ok(frame));
            let short = &bytes[..cut.index(bytes.len())];
            prop_assert!(Frame::parse(short).is_err());
        }

        #[test]
        fn any_header_is_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), HEADER_BYTES)) {
            let mut array = [0; HEADER_BYTES];
            array.copy_from_slice(&bytes);
            if let Ok(header) = Header::parse(&array) {
                prop_assert!(header.body_bytes.unwrap_or(0) <= BODY_BYTES_MAX);
            }
        }
    }
}

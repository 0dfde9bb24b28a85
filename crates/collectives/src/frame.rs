//! What travels on a rail: the key of an instance, a machine's message, a body.
//!
//! Layout (little-endian): comm u64, sequence u64, incarnation u32, protocol u8,
//! flags u8 (bit 0: a body follows), zero u16, body length u64, message of 32 bytes;
//! then the body. [`HEADER_BYTES`] before the body, whatever the machine.

use std::sync::Arc;

use outlive_base::machine::MESSAGE_BYTES_MAX;
use outlive_base::wire::{Reader, WireError, Writer};

/// Bytes before the body.
pub const HEADER_BYTES: usize = 32 + MESSAGE_BYTES_MAX;
/// The largest body that a frame may announce, in bytes (1 TiB): a bound against
/// damaged headers, not a promise that memory suffices.
pub const BODY_BYTES_MAX: u64 = 1 << 40;

/// Shared, immutable bytes: a body is sent to many without being copied.
pub type Bytes = Arc<Vec<u8>>;

/// Which collective a frame belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// The communicator: equal in all its processes, different between communicators.
    pub comm: u64,
    /// The position of the call among the communicator's collectives, from 0.
    pub sequence: u64,
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
    /// The machine's message, encoded by [`crate::Wired`].
    pub msg: [u8; MESSAGE_BYTES_MAX],
    /// Longer data.
    pub body: Option<Bytes>,
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
        writer.u64(comm).u64(sequence).u32(incarnation).u8(protocol);
        writer.u8(u8::from(self.body.is_some())).u16(0);
        writer.u64(self.body.as_ref().map_or(0, |body| body.len() as u64));
        writer.raw(&self.msg);
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(writer.as_slice());
        bytes
    }

    /// A whole frame from bytes, as [`Frame::header`] and the body give them.
    ///
    /// # Errors
    /// If the bytes are no frame.
    pub fn parse(bytes: &[u8]) -> Result<Frame, WireError> {
        let (head, body) = bytes
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(WireError::Short(HEADER_BYTES - bytes.len().min(HEADER_BYTES)))?;
        let header = Header::parse(head)?;
        let announced = header.body_bytes.unwrap_or(0);
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
        let (comm, sequence) = (reader.u64()?, reader.u64()?);
        let (incarnation, protocol) = (reader.u32()?, reader.u8()?);
        let (flags, zero, length) = (reader.u8()?, reader.u16()?, reader.u64()?);
        if flags > 1 || zero != 0 || (flags == 0 && length != 0) {
            return Err(WireError::Value("flags"));
        }
        if length > BODY_BYTES_MAX {
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
        })
    }

    /// The frame with this header and a body of the announced length.
    pub fn with(self, body: Vec<u8>) -> Frame {
        Frame {
            key: self.key,
            msg: self.msg,
            body: self.body_bytes.map(|_| Arc::new(body)),
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
            comm: u64, sequence: u64, incarnation: u32, protocol: u8,
            msg: [u8; 32], body: Option<Vec<u8>>, cut: prop::sample::Index,
        ) {
            let key = Key { comm, sequence, incarnation, protocol };
            let frame = Frame { key, msg, body: body.map(Arc::new) };
            let mut bytes = frame.header().to_vec();
            if let Some(body) = &frame.body { bytes.extend_from_slice(body); }
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

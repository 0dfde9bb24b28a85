//! The bytes of a session, as pure functions (P7).
//!
//! A link begins with the handshake of this crate; the caller's proof carries a
//! [`Resume`], the listener's first frame is a `WELCOME` that carries another.
//! Then frames follow in both directions:
//! `kind:u8 flags:u8 reserved:u16 length:u32 seq:u64 ack:u64 link:u32 check:u32`
//! and `length` bytes. `check` mixes all other fields: it finds a stream that
//! lost its place, not a forger (the handshake keeps those out).

use outlive_base::rng;
use outlive_base::wire::{Reader, WireError, Writer};

/// Length of a frame's header, in bytes.
pub const HEAD_BYTES: usize = 32;
/// Length of a [`Resume`], in bytes.
pub const RESUME_BYTES: usize = 4 + 4 * 8;

const RESUME_MAGIC: [u8; 4] = *b"OLSS";

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// Payload with a sequence number.
    Data,
    /// An acknowledgement and a sign of life.
    Alive,
    /// The listener's answer to a caller's [`Resume`], as its payload.
    Welcome,
    /// Everything was sent and everything was received: the session ends.
    Bye,
}

impl FrameKind {
    const fn number(self) -> u8 {
        match self {
            FrameKind::Data => 1,
            FrameKind::Alive => 2,
            FrameKind::Welcome => 3,
            FrameKind::Bye => 4,
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// What it is.
    pub kind: FrameKind,
    /// For the layer above; not looked at here.
    pub flags: u8,
    /// Length of the payload, in bytes.
    pub length: u32,
    /// Sequence number of a data frame, else 0.
    pub seq: u64,
    /// The first sequence number that the sender has not received.
    pub ack: u64,
    /// Which connection the frame was made for; 0 in data frames, which may be
    /// sent again on a later one.
    pub link: u32,
}

impl Head {
    fn check(&self) -> u32 {
        let first = u64::from(self.kind.number())
            | u64::from(self.flags) << 8
            | u64::from(self.length) << 32;
        let mixed = rng::draw(first ^ u64::from(self.link) << 16, self.seq, self.ack);
        (mixed >> 32) as u32
    }

    /// As bytes.
    pub fn bytes(&self) -> [u8; HEAD_BYTES] {
        let mut out = [0; HEAD_BYTES];
        out[0] = self.kind.number();
        out[1] = self.flags;
        out[4..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..24].copy_from_slice(&self.ack.to_le_bytes());
        out[24..28].copy_from_slice(&self.link.to_le_bytes());
        out[28..].copy_from_slice(&self.check().to_le_bytes());
        out
    }

    /// From bytes; `None` if they are no header or `length` is above the bound.
    pub fn parse(bytes: &[u8; HEAD_BYTES], length_max: u32) -> Option<Head> {
        let mut reader = Reader::new(bytes);
        let kind = match reader.u8().ok()? {
            1 => FrameKind::Data,
            2 => FrameKind::Alive,
            3 => FrameKind::Welcome,
            4 => FrameKind::Bye,
            _ => return None,
        };
        let flags = reader.u8().ok()?;
        let reserved = reader.u16().ok()?;
        let head = Head {
            kind,
            flags,
            length: reader.u32().ok()?,
            seq: reader.u64().ok()?,
            ack: reader.u64().ok()?,
            link: reader.u32().ok()?,
        };
        let fits = match kind {
            FrameKind::Data => head.length <= length_max,
            FrameKind::Welcome => head.length as usize == RESUME_BYTES,
            FrameKind::Alive | FrameKind::Bye => head.length == 0,
        };
        (reserved == 0 && fits && reader.u32().ok()? == head.check()).then_some(head)
    }
}

/// What both ends tell each other before a link carries data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resume {
    /// The life of the speaker's memory: drawn once, kept as long as its memory
    /// is, also over a new kernel below it.
    pub incarnation: u64,
    /// The life that the speaker has met before, 0 for none.
    pub met: u64,
    /// The connection's number: larger than any before between the two.
    pub attach: u64,
    /// The first sequence number that the speaker has not received.
    pub next: u64,
}

impl Resume {
    /// As bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.raw(&RESUME_MAGIC).u64(self.incarnation);
        writer.u64(self.met).u64(self.attach).u64(self.next);
        writer.into_vec()
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are not exactly a resume.
    pub fn parse(bytes: &[u8]) -> Result<Resume, WireError> {
        let mut reader = Reader::new(bytes);
        if reader.array::<4>()? != RESUME_MAGIC {
            return Err(WireError::Value("resume magic"));
        }
        let resume = Resume {
            incarnation: reader.u64()?,
            met: reader.u64()?,
            attach: reader.u64()?,
            next: reader.u64()?,
        };
        reader.finish()?;
        Ok(resume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_survives_and_every_flipped_bit_is_found(
            flags: u8, length in 0u32..1000, seq: u64, ack: u64, link: u32, bit in 0usize..256,
        ) {
            let head = Head { kind: FrameKind::Data, flags, length, seq, ack, link };
            let mut bytes = head.bytes();
            prop_assert_eq!(Head::parse(&bytes, 1000), Some(head));
            prop_assert_eq!(Head::parse(&bytes, length.wrapping_sub(1)).is_some(), length == 0);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Head::parse(&bytes, u32::MAX), None);
        }

        #[test]
        fn a_resume_survives_and_garbage_does_not_pass(
            incarnation: u64, met: u64, attach: u64, next: u64,
            garbage in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let resume = Resume { incarnation, met, attach, next };
            let bytes = resume.bytes();
            prop_assert_eq!(bytes.len(), RESUME_BYTES);
            prop_assert_eq!(Resume::parse(&bytes).ok(), Some(resume));
            prop_assert!(Resume::parse(&bytes[1..]).is_err());
            if !garbage.starts_with(&RESUME_MAGIC) {
                prop_assert!(Resume::parse(&garbage).is_err());
            }
        }
    }
}

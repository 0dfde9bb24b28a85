//! The datagrams between agent and keeper, as pure functions (P7). One datagram
//! is one message; descriptors travel beside it.
//!
//! Agent to keeper: `kind:u8 id:u32` and then KEEP (1, with one descriptor) or
//! DROP (2): the tag; ADOPT (3): `from:u32`, the place of the first descriptor
//! wanted. Keeper to agent: DONE (1): `status:u8`; BATCH (2): `total:u32
//! count:u8` and `count` tags, with as many descriptors. A tag is a u32 length
//! and UTF-8.

use outlive_base::wire::{Reader, WireError, Writer};

/// Longest tag, in bytes.
pub const TAG_BYTES_MAX: usize = 255;
/// Descriptors handed over in one datagram; the kernel's bound is 253.
pub const BATCH_MAX: usize = 32;
/// Longest datagram, in bytes: a full batch.
pub const DATAGRAM_BYTES_MAX: usize = 16 + BATCH_MAX * (4 + TAG_BYTES_MAX);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    Keep(String),
    Drop(String),
    /// The descriptors from this place on, in the order of their tags.
    Adopt(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    Done,
    /// No room for another descriptor.
    Full,
    /// The datagram carried no descriptor, or several.
    Descriptor,
    /// Nothing is kept under this tag.
    Unknown,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Done(Status),
    Batch { total: u32, tags: Vec<String> },
}

fn tag(reader: &mut Reader<'_>) -> Result<String, WireError> {
    match reader.text(TAG_BYTES_MAX)? {
        "" => Err(WireError::Value("empty tag")),
        tag => Ok(tag.to_owned()),
    }
}

pub(super) fn write_wish(id: u32, wish: &Wish) -> Vec<u8> {
    let mut writer = Writer::new();
    match wish {
        Wish::Keep(tag) => writer.u8(1).u32(id).blob(tag.as_bytes()),
        Wish::Drop(tag) => writer.u8(2).u32(id).blob(tag.as_bytes()),
        Wish::Adopt(from) => writer.u8(3).u32(id).u32(*from),
    };
    writer.into_vec()
}

pub(super) fn parse_wish(bytes: &[u8]) -> Result<(u32, Wish), WireError> {
    let mut reader = Reader::new(bytes);
    let kind = reader.u8()?;
    let id = reader.u32()?;
    let wish = match kind {
        1 => Wish::Keep(tag(&mut reader)?),
        2 => Wish::Drop(tag(&mut reader)?),
        3 => Wish::Adopt(reader.u32()?),
        _ => return Err(WireError::Value("unknown wish")),
    };
    reader.finish()?;
    Ok((id, wish))
}

pub(super) fn write_answer(id: u32, answer: &Answer) -> Vec<u8> {
    let mut writer = Writer::new();
    match answer {
        Answer::Done(status) => {
            writer.u8(1).u32(id).u8(*status as u8);
        }
        Answer::Batch { total, tags } => {
            let count = u8::try_from(tags.len()).unwrap_or(u8::MAX);
            writer.u8(2).u32(id).u32(*total).u8(count);
            for tag in tags {
                writer.blob(tag.as_bytes());
            }
        }
    }
    writer.into_vec()
}

pub(super) fn parse_answer(bytes: &[u8]) -> Result<(u32, Answer), WireError> {
    let mut reader = Reader::new(bytes);
    let kind = reader.u8()?;
    let id = reader.u32()?;
    let answer = match kind {
        1 => Answer::Done(match reader.u8()? {
            0 => Status::Done,
            1 => Status::Full,
            2 => Status::Descriptor,
            3 => Status::Unknown,
            _ => return Err(WireError::Value("unknown status")),
        }),
        2 => {
            let total = reader.u32()?;
            let count = usize::from(reader.u8()?);
            if count > BATCH_MAX {
                let (length, bound) = (count as u64, BATCH_MAX as u64);
                return Err(WireError::TooLong { length, bound });
            }
            let tags = (0..count)
                .map(|_| tag(&mut reader))
                .collect::<Result<_, _>>()?;
            Answer::Batch { total, tags }
        }
        _ => return Err(WireError::Value("unknown answer")),
    };
    reader.finish()?;
    Ok((id, answer))
}

/// Both parsers, for a fuzz target: neither may panic or hold more than its
/// bounds, whatever the input.
pub fn fuzz_parsers(bytes: &[u8]) {
    let _ = parse_wish(bytes);
    let _ = parse_answer(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_parses_and_every_cut_is_refused() {
        let longest = "x".repeat(TAG_BYTES_MAX);
        for wish in [
            Wish::Keep(longest.clone()),
            Wish::Drop("a".into()),
            Wish::Adopt(7),
        ] {
            let bytes = write_wish(9, &wish);
            assert_eq!(parse_wish(&bytes), Ok((9, wish)));
            (0..bytes.len()).for_each(|cut| assert!(parse_wish(&bytes[..cut]).is_err()));
        }
        let batch = Answer::Batch {
            total: 99,
            tags: vec![longest; BATCH_MAX],
        };
        for answer in [
            Answer::Done(Status::Full),
            Answer::Done(Status::Unknown),
            batch,
        ] {
            let bytes = write_answer(9, &answer);
            assert!(bytes.len() <= DATAGRAM_BYTES_MAX);
            assert_eq!(parse_answer(&bytes), Ok((9, answer)));
            (0..bytes.len()).for_each(|cut| assert!(parse_answer(&bytes[..cut]).is_err()));
        }
        let long = write_wish(1, &Wish::Keep("x".repeat(TAG_BYTES_MAX + 1)));
        assert!(parse_wish(&long).is_err());
        assert!(parse_wish(&write_wish(1, &Wish::Keep(String::new()))).is_err());
    }

    #[test]
    fn mutated_datagrams_never_panic() {
        let mut random = outlive_base::rng::Sequence::new(outlive_base::seed!(), 0);
        let tags = vec!["a".into(), "bc".into()];
        let good = [
            write_wish(1, &Wish::Keep("tag".into())),
            write_answer(1, &Answer::Batch { total: 2, tags }),
        ];
        for _ in 0..20_000 {
            let mut bytes = good[random.below(2) as usize].clone();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.u64() as u8;
            }
            fuzz_parsers(&bytes[..random.below(bytes.len() as u64 + 1) as usize]);
        }
    }
}

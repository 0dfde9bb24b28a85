//! What a member writes down: files of frames, each with its checksum.
//!
//! A file begins with eight bytes that say what it is and of which version. A frame is the
//! length of its body and a check of that length (4 bytes each, little-endian), the body, and
//! the body's CRC-64.
//!
//! Invariants: no byte is believed that its checksum does not confirm; the frame that was being
//! written when the machine stopped is told from damage. Of such a frame the end is not there, or a
//! part of it came to the disk and another did not, which reads as zeroes; parts are at least a sector. One that
//! is there to its end, and has zeroes nowhere, was confirmed and is damaged.

use std::path::Path;

use outlive_base::{Code, Entity, Error, Result};
use outlive_codec::crc64;

/// Length of what a file begins with.
pub(crate) const MAGIC_BYTES: usize = 8;
/// Length of a frame besides its body.
pub(crate) const FRAME_BYTES: usize = 16;
/// Longest body: nothing that is written is nearly as long.
const BODY_BYTES_MAX: usize = 64 << 20;

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// How a file ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// With a whole frame.
    Whole,
    /// In the middle of one that was being written; whole up to this length.
    Torn(usize),
}

/// Appends a frame.
pub(crate) fn put(out: &mut Vec<u8>, body: &[u8]) -> Result<()> {
    if body.len() > BODY_BYTES_MAX {
        return Err(Error::internal(format!("a frame of {} bytes", body.len())));
    }
    let length = (body.len() as u32).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&(crc64(&length) as u32).to_le_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(&crc64(body).to_le_bytes());
    Ok(())
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// The first frame's body and what follows it; none if it is not whole.
fn first(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = number(bytes)? as usize;
    if length > BODY_BYTES_MAX || number(&bytes[4..])? != crc64(&bytes[..4]) as u32 {
        return None;
    }
    let body = bytes.get(8..8 + length)?;
    let sum = bytes.get(8 + length..FRAME_BYTES + length)?;
    (sum == crc64(body).to_le_bytes()).then(|| (body, &bytes[FRAME_BYTES + length..]))
}

/// True if this, which is no whole frame and begins at that byte of the file, can be the beginning of
/// one that was being written: the file ends before it does, or a part of it did not come to the disk.
fn unfinished(rest: &[u8], at: usize) -> bool {
    if rest.iter().all(|byte| *byte == 0) {
        return true;
    }
    let (Some(length), Some(check)) = (number(rest), rest.get(4..).and_then(number)) else {
        return true;
    };
    let bytes = length as usize + FRAME_BYTES;
    let is_last = check == crc64(&rest[..4]) as u32 && bytes >= rest.len();
    is_last && (bytes > rest.len() || has_hole(rest, at))
}

/// True if all that lies in some sector, of bytes that begin at this one of a file, is zero.
fn has_hole(bytes: &[u8], at: usize) -> bool {
    let head = (SECTOR_BYTES - at % SECTOR_BYTES).min(bytes.len());
    let (first, rest) = bytes.split_at(head);
    let mut parts = std::iter::once(first).chain(rest.chunks(SECTOR_BYTES));
    parts.any(|part| part.iter().all(|byte| *byte == 0))
}

/// The bodies of a file's frames, in their order, and how it ends.
///
/// # Errors
/// [`Code::FormatUnknown`] if it is another kind of file or of another version;
/// [`Code::Corrupt`] if it is damaged.
pub(crate) fn read<'a>(
    path: &Path,
    magic: &[u8; MAGIC_BYTES],
    bytes: &'a [u8],
) -> Result<(Vec<&'a [u8]>, End)> {
    if bytes.len() < MAGIC_BYTES && magic.starts_with(bytes) {
        return Err(damaged(path, "it has lost its beginning"));
    }
    let Some(mut rest) = bytes.strip_prefix(magic) else {
        return Err(Error::new(
            Code::FormatUnknown,
            Entity::File(path.display().to_string()),
            "it was written by another version of outlive coordinator, or by none",
            format!(
                "start that version, or remove {}: {AGAIN}",
                path.parent().unwrap_or(path).display()
            ),
        ));
    };
    let mut found = Vec::new();
    while !rest.is_empty() {
        let Some((body, left)) = first(rest) else {
            let whole = bytes.len() - rest.len();
            if unfinished(rest, whole) {
                return Ok((found, End::Torn(whole)));
            }
            return Err(damaged(path, &format!("at byte {whole}")));
        };
        found.push(body);
        rest = left;
    }
    Ok((found, End::Whole))
}

/// What becomes of a member whose files were removed.
pub(crate) const AGAIN: &str =
    "it begins anew then, with what the other members tell it, or else with what jobs say";

/// A file that cannot be believed.
pub(crate) fn damaged(path: &Path, what: &str) -> Error {
    Error::new(
        Code::Corrupt,
        Entity::File(path.display().to_string()),
        format!("{what}: what was written there comes back different"),
        format!(
            "check the disk, and remove {}: {AGAIN}",
            path.parent().unwrap_or(path).display()
        ),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MAGIC: [u8; 8] = *b"OLTEST\0\x01";

    fn file() -> (Vec<u8>, Vec<usize>) {
        let mut bytes = MAGIC.to_vec();
        let mut ends = vec![bytes.len()];
        for length in [0, 1, 40, 200] {
            put(&mut bytes, &vec![length as u8 | 1; length]).unwrap();
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    #[test]
    fn a_file_that_was_cut_off_is_whole_up_to_the_last_frame() {
        let (bytes, ends) = file();
        let path = Path::new("log");
        for cut in MAGIC_BYTES..=bytes.len() {
            let (found, end) = read(path, &MAGIC, &bytes[..cut]).unwrap();
            let whole = ends.iter().filter(|end| **end <= cut).count();
            assert_eq!(found.len(), whole - 1, "{cut}");
            let expected = match ends.contains(&cut) {
                true => End::Whole,
                false => End::Torn(ends[whole - 1]),
            };
            assert_eq!(end, expected, "{cut}");
            // Its length came to the disk, its bytes did not.
            let mut zeros = bytes[..cut].to_vec();
            zeros.resize(cut + 500, 0);
            if ends.contains(&cut) {
                assert_eq!(read(path, &MAGIC, &zeros).unwrap().1, End::Torn(cut));
            }
        }
    }

    #[test]
    fn no_bit_changes_unnoticed() {
        let (bytes, ends) = file();
        let last = ends[ends.len() - 2];
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1 << (place % 8);
            let found = read(Path::new("log"), &MAGIC, &changed);
            match place {
                0..MAGIC_BYTES => assert_eq!(found.unwrap_err().code(), Code::FormatUnknown),
                // The last frame's too: it is there to its end.
                _ => assert_eq!(
                    found.unwrap_err().code(),
                    Code::Corrupt,
                    "{place} of {last}"
                ),
            }
        }
    }

    #[test]
    fn a_frame_of_which_a_sector_did_not_come_to_the_disk_was_being_written() {
        let mut bytes = MAGIC.to_vec();
        put(&mut bytes, &[7; 300]).unwrap();
        let whole = bytes.len();
        put(&mut bytes, &[9; 2_000]).unwrap();
        for start in [whole, 512, 1_024, 1_536, 2_048] {
            let end = (start / SECTOR_BYTES + 1) * SECTOR_BYTES;
            let mut torn = bytes.clone();
            let end = end.min(torn.len());
            torn[start..end].fill(0);
            let found = read(Path::new("log"), &MAGIC, &torn);
            // Its length is known only where it was written.
            match start == whole {
                true => assert_eq!(found.unwrap_err().code(), Code::Corrupt),
                false => assert_eq!(found.unwrap().1, End::Torn(whole), "{start}"),
            }
            // Less than a sector is no such part.
            let mut damaged = bytes.clone();
            damaged[start + 20..(end - 1).max(start + 21)].fill(0);
            let found = read(Path::new("log"), &MAGIC, &damaged);
            assert_eq!(found.unwrap_err().code(), Code::Corrupt, "{start}");
        }
    }
}

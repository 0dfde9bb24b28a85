//! Checksums and digests of stored and logical bytes, and sums of them for parities.
//!
//! Two functions with two purposes, both fixed by `docs/format.md`:
//!
//! - [`Crc64`], CRC-64/NVME, guards *stored* bytes: it detects every burst of up to
//!   64 bits and runs on the carry-less multiplier.
//! - [`Digest`], XXH3-128 with seed 0, names *logical* bytes: two equal digests mean
//!   equal content, whatever happened to it on the way.
//!
//! Neither resists an adversary; authenticity comes from the connection and from
//! the owner of the directory. This crate is pure: no file, socket, clock or
//! environment, and results that depend on the input alone.

mod crc;
mod digest;
pub mod field;

pub use crc::{Crc64, crc64};
pub use digest::{Digest, digest};

/// Bytes that [`sums`] hands to one function before it turns to the other: small
/// enough that the second finds them in the cache.
const BLOCK: usize = 64 << 10;

/// Checksum of `body` followed by `tail`, and digest of the first `logical` bytes
/// of the same sequence, in one pass over memory. `tail` is the padded last page of
/// a frame.
///
/// # Panics
/// If `logical` is longer than `body` and `tail` together.
pub fn sums(body: &[u8], tail: &[u8], logical: usize) -> (u64, u128) {
    assert!(
        logical <= body.len() + tail.len(),
        "logical bytes beyond the stored ones"
    );
    let mut crc = Crc64::new();
    let mut name = Digest::new();
    let mut left = logical;
    for block in body.chunks(BLOCK).chain(tail.chunks(BLOCK)) {
        crc.update(block);
        let named = left.min(block.len());
        name.update(&block[..named]);
        left -= named;
    }
    (crc.finish(), name.finish())
}

/// Adds `bytes` to the same number of bytes at the start of `sum`, in GF(2^8): XOR. With factors:
/// [`field::add_multiple`].
///
/// # Panics
/// If `sum` is shorter.
pub fn add(sum: &mut [u8], bytes: &[u8]) {
    // One loop over equal lengths, which the compiler turns into vector instructions.
    let sum = &mut sum[..bytes.len()];
    sum.iter_mut()
        .zip(bytes)
        .for_each(|(sum, byte)| *sum ^= byte);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_twice_is_gone() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        let mut sum = vec![0x5a; 1100];
        add(&mut sum, &bytes);
        assert!(
            sum[..1000]
                .iter()
                .zip(&bytes)
                .all(|(sum, byte)| *sum == byte ^ 0x5a)
        );
        assert_eq!(sum[1000..], [0x5a; 100]);
        add(&mut sum, &bytes);
        assert_eq!(sum, [0x5a; 1100]);
    }

    #[test]
    fn one_pass_equals_two() {
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for (split, logical) in [
            (0, 0),
            (4096, 5000),
            (196_608, 200_000),
            (200_000, 199_999),
            (1, 1),
        ] {
            let (body, tail) = bytes.split_at(split);
            let want = (crc64(&bytes), digest(&bytes[..logical]));
            assert_eq!(sums(body, tail, logical), want, "{split} {logical}");
        }
    }
}

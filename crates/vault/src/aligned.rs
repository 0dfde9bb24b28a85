//! Memory that direct input and output accepts: whole pages at page boundaries.
//!
//! The only module of this crate with `unsafe`. Invariant: a [`Buffer`] is a vector
//! of [`Page`]s, and a `Page` is 4096 bytes without padding, so viewing the vector
//! as bytes exposes exactly its own initialised memory.

use core::ops::{Deref, DerefMut};

/// Alignment of everything in a container, in bytes.
pub const PAGE: usize = 4096;
pub(crate) const PAGE64: u64 = PAGE as u64;

/// Rounds up to whole pages. Callers bound `bytes` by 2^63.
pub(crate) const fn up(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE64)
}

/// One page of bytes at a page boundary.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Page(pub [u8; PAGE]);

const _: () = assert!(size_of::<Page>() == PAGE && align_of::<Page>() == PAGE);

/// Zeroed, page-aligned bytes; the length is a whole number of pages.
#[derive(Clone, Default)]
pub struct Buffer {
    pages: Vec<Page>,
}

impl Buffer {
    /// At least `bytes` zeros, rounded up to whole pages. The memory is touched.
    pub fn new(bytes: usize) -> Buffer {
        Buffer {
            pages: vec![Page([0; PAGE]); bytes.div_ceil(PAGE)],
        }
    }

    /// `bytes` padded with zeros to whole pages.
    pub fn padded(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::new(bytes.len());
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the pointer and length describe the vector's own pages, all
        // initialised; a page is PAGE plain bytes (asserted above), and the result
        // borrows the vector.
        unsafe {
            core::slice::from_raw_parts(self.pages.as_ptr().cast::<u8>(), self.pages.len() * PAGE)
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = self.pages.len() * PAGE;
        // SAFETY: as in `deref`; the vector is borrowed exclusively, and every bit
        // pattern is a valid byte.
        unsafe { core::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast::<u8>(), length) }
    }
}

/// True if `bytes` may be handed to direct input or output.
pub fn is_aligned(bytes: &[u8]) -> bool {
    bytes.is_empty()
        || (bytes.as_ptr().addr().is_multiple_of(PAGE) && bytes.len().is_multiple_of(PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_padded() {
        for bytes in [0, 1, PAGE, PAGE + 1, 10 * PAGE] {
            let buffer = Buffer::new(bytes);
            assert_eq!(buffer.len(), bytes.next_multiple_of(PAGE));
            assert!(is_aligned(&buffer) && buffer.iter().all(|b| *b == 0));
        }
        let buffer = Buffer::padded(&[7; 5000]);
        assert_eq!(buffer.len(), 2 * PAGE);
        assert!(buffer[..5000].iter().all(|b| *b == 7) && buffer[5000..].iter().all(|b| *b == 0));
        assert!(!is_aligned(&buffer[1..]));
    }
}

//! Memory that direct input and output accepts: whole pages at page boundaries.
//!
//! The only module of this crate with `unsafe`. Invariant: a [`Buffer`] owns `bytes` bytes at
//! `start`, all initialised, allocated with [`layout`] of the same number.

use core::ffi::c_void;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

use rustix::mm::{Advice, madvise};

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

/// What a huge page covers on most machines. The kernel pins each page of a transfer past its
/// cache by itself, which for pages of 4 KiB takes longer than a checksum of their bytes.
const HUGE: usize = 2 << 20;

/// Zeroed, page-aligned bytes; the length is a whole number of pages. Long ones lie in huge pages
/// where the system has them.
pub struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a buffer is the only owner of its memory, as a vector of bytes is.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Buffer {}

/// How whole pages are allocated.
fn layout(bytes: usize) -> Layout {
    let align = if bytes < HUGE { PAGE } else { HUGE };
    match Layout::from_size_align(bytes, align) {
        Ok(layout) => layout,
        Err(_) => panic!("capacity overflow"),
    }
}

impl Buffer {
    /// At least `bytes` zeros, rounded up to whole pages. The memory is touched.
    ///
    /// # Panics
    /// If that is more than an address space holds.
    pub fn new(bytes: usize) -> Buffer {
        let Some(bytes) = bytes.checked_next_multiple_of(PAGE) else {
            panic!("capacity overflow");
        };
        if bytes == 0 {
            return Buffer::default();
        }
        let layout = layout(bytes);
        // SAFETY: the layout is not empty.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else {
            handle_alloc_error(layout);
        };
        let whole = bytes / HUGE * HUGE;
        if whole > 0 {
            // SAFETY: whole pages of the memory above, whose content the advice does not touch.
            // Without huge pages it fails, and nothing is lost.
            let _ = unsafe {
                madvise(
                    start.as_ptr().cast::<c_void>(),
                    whole,
                    Advice::LinuxHugepage,
                )
            };
        }
        // SAFETY: the memory above, of which nothing else knows.
        unsafe { start.write_bytes(0, bytes) };
        Buffer { start, bytes }
    }

    /// `bytes` padded with zeros to whole pages.
    pub fn padded(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::new(bytes.len());
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer
    }
}

impl Default for Buffer {
    /// The empty buffer.
    fn default() -> Buffer {
        Buffer {
            start: NonNull::<Page>::dangling().cast(),
            bytes: 0,
        }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        Buffer::padded(self)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated with this layout (invariant), and no longer used.
            unsafe { dealloc(self.start.as_ptr(), layout(self.bytes)) };
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer's own initialised memory (invariant), borrowed with it; no bytes
        // at an aligned address if it is empty.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
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
        for bytes in [
            0,
            1,
            PAGE,
            PAGE + 1,
            10 * PAGE,
            HUGE - 1,
            HUGE + 1,
            3 * HUGE,
        ] {
            let buffer = Buffer::new(bytes);
            assert_eq!(buffer.len(), bytes.next_multiple_of(PAGE));
            assert!(is_aligned(&buffer) && buffer.iter().all(|b| *b == 0));
        }
        let buffer = Buffer::padded(&[7; 5000]);
        assert_eq!(buffer.len(), 2 * PAGE);
        assert!(buffer[..5000].iter().all(|b| *b == 7) && buffer[5000..].iter().all(|b| *b == 0));
        assert!(!is_aligned(&buffer[1..]));
        let copy = buffer.clone();
        drop(buffer);
        assert_eq!((copy[4999], copy[5000], copy.len()), (7, 0, 2 * PAGE));
        assert!(Buffer::new(HUGE).as_ptr().addr().is_multiple_of(HUGE));
    }
}

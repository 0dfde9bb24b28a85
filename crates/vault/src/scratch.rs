//! Memory for transfers that is kept from one to the next. Pages that the kernel must
//! give, zero and take back for each transfer cost more than a small transfer itself.
//!
//! Invariants: at most [`KEPT_BYTES`] are kept in the process; what a buffer held before
//! is still in it, so a user reads only what it has written.

use core::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use crate::aligned::Buffer;

/// Bytes that are kept while nobody uses them: three long transfers.
const KEPT_BYTES: usize = 12 << 20;

/// What is free, in no order.
static KEPT: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());

/// Page-aligned bytes with any content.
pub(crate) struct Scratch {
    buffer: Buffer,
    bytes: usize,
}

impl Scratch {
    /// At least `bytes`, rounded up to whole pages.
    pub(crate) fn new(bytes: usize) -> Scratch {
        let buffer = take(
            &mut KEPT.lock().unwrap_or_else(PoisonError::into_inner),
            bytes,
        );
        let buffer = buffer.unwrap_or_else(|| Buffer::new(bytes));
        let bytes = bytes.next_multiple_of(crate::aligned::PAGE);
        Scratch { buffer, bytes }
    }
}

/// The smallest that is long enough.
fn take(kept: &mut Vec<Buffer>, bytes: usize) -> Option<Buffer> {
    let fits = kept.iter().enumerate();
    let fits = fits.filter(|(_, buffer)| buffer.len() >= bytes);
    let (at, _) = fits.min_by_key(|(_, buffer)| buffer.len())?;
    Some(kept.swap_remove(at))
}

/// Keeps a buffer; the shortest go if that is too much. Gives what is left to free.
fn keep(kept: &mut Vec<Buffer>, buffer: Buffer) -> Vec<Buffer> {
    kept.push(buffer);
    let mut over = Vec::new();
    while kept.iter().map(|buffer| buffer.len()).sum::<usize>() > KEPT_BYTES {
        let shortest = kept.iter().enumerate();
        let Some((at, _)) = shortest.min_by_key(|(_, buffer)| buffer.len()) else {
            break;
        };
        over.push(kept.swap_remove(at));
    }
    over
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        let over = keep(
            &mut KEPT.lock().unwrap_or_else(PoisonError::into_inner),
            buffer,
        );
        // Freed after the lock.
        drop(over);
    }
}

impl Deref for Scratch {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer[..self.bytes]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aligned::PAGE;

    #[test]
    fn the_shortest_that_fits_is_taken_and_little_is_kept() {
        let mut kept = Vec::new();
        for pages in [1, 4, 2] {
            assert!(keep(&mut kept, Buffer::new(pages * PAGE)).is_empty());
        }
        let found = take(&mut kept, PAGE + 1).map(|buffer| buffer.len());
        assert_eq!(found, Some(2 * PAGE));
        assert!(take(&mut kept, 5 * PAGE).is_none());
        let over = keep(&mut kept, Buffer::new(KEPT_BYTES));
        let over: usize = over.iter().map(|buffer| buffer.len()).sum();
        assert_eq!((over, kept.len()), (5 * PAGE, 1));
        assert_eq!(keep(&mut kept, Buffer::new(KEPT_BYTES + PAGE)).len(), 2);
    }

    #[test]
    fn scratch_is_as_long_as_asked_for_and_aligned() {
        for bytes in [0, 1, PAGE, 3 * PAGE + 5, 2 * PAGE] {
            let mut scratch = Scratch::new(bytes);
            assert_eq!(scratch.len(), bytes.next_multiple_of(PAGE));
            assert!(crate::is_aligned(&scratch));
            scratch.fill(7);
        }
    }
}

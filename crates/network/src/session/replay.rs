//! The replay buffer: the wire image of every data frame that the peer has not
//! acknowledged, in one ring whose memory is taken once.
//!
//! Invariants: the ring holds whole frames, first the one with number `base`;
//! `sent` frames and `sent_in` bytes of the next one were handed to the current
//! link. Nothing is allocated after the start but the queue of lengths, which
//! is bounded by the ring.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::frame::{FrameKind, HEAD_BYTES, Head};

/// Why a peer's next expected number cannot be met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unfit {
    Old,
    Unsent,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    ring: Box<[u8]>,
    start: usize,
    used: usize,
    lengths: VecDeque<u32>,
    base: u64,
    sent: usize,
    sent_in: usize,
    /// Bytes of the ring before the cursor.
    cursor: usize,
    /// All frames below this were handed to some link whole.
    reached: u64,
}

impl Replay {
    pub(crate) fn new(bytes: usize) -> Replay {
        Replay {
            ring: vec![0; bytes].into_boxed_slice(),
            start: 0,
            used: 0,
            lengths: VecDeque::new(),
            base: 0,
            sent: 0,
            sent_in: 0,
            cursor: 0,
            reached: 0,
        }
    }

    /// The number of the next frame to be made.
    pub(crate) fn next(&self) -> u64 {
        self.base + self.lengths.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// How long a payload fits now, in bytes; `None` if not even a header does.
    pub(crate) fn room(&self) -> Option<usize> {
        (self.ring.len() - self.used).checked_sub(HEAD_BYTES)
    }

    /// Adds a frame whose payload is `parts` one after the other; false if it
    /// does not fit.
    pub(crate) fn push(&mut self, flags: u8, ack: u64, parts: &[&[u8]]) -> bool {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let Ok(wire_length) = u32::try_from(length) else {
            return false;
        };
        if self.room().is_none_or(|room| room < length) {
            return false;
        }
        let head = Head {
            kind: FrameKind::Data,
            flags,
            length: wire_length,
            seq: self.next(),
            ack,
            link: 0,
        };
        self.append(&head.bytes());
        for part in parts {
            self.append(part);
        }
        self.lengths.push_back(wire_length);
        true
    }

    fn append(&mut self, bytes: &[u8]) {
        let at = (self.start + self.used) % self.ring.len();
        let first = bytes.len().min(self.ring.len() - at);
        self.ring[at..at + first].copy_from_slice(&bytes[..first]);
        self.ring[..bytes.len() - first].copy_from_slice(&bytes[first..]);
        self.used += bytes.len();
    }

    /// The peer has everything below `ack`. False if it cannot have. What this
    /// link has not carried yet stays: it may be half sent.
    pub(crate) fn acknowledged(&mut self, ack: u64) -> bool {
        if ack > self.reached {
            return false;
        }
        let ack = ack.min(self.base + self.sent as u64);
        while self.base < ack {
            let Some(length) = self.lengths.pop_front() else {
                return false;
            };
            let bytes = HEAD_BYTES + length as usize;
            self.start = (self.start + bytes) % self.ring.len();
            self.used -= bytes;
            self.cursor -= bytes;
            self.base += 1;
            self.sent -= 1;
        }
        if self.used == 0 {
            self.start = 0; // The same few pages again: they are in the cache.
        }
        true
    }

    /// A new link begins with frame `next`: what lies before is acknowledged.
    ///
    /// # Errors
    /// [`Unfit::Old`] if the peer has acknowledged more before (it speaks from
    /// the past), [`Unfit::Unsent`] if it has what never was sent.
    pub(crate) fn rewind(&mut self, next: u64) -> Result<(), Unfit> {
        if next < self.base {
            return Err(Unfit::Old);
        }
        if next > self.reached {
            return Err(Unfit::Unsent);
        }
        // What reached the peer was sent, whatever the old link knew of it.
        self.sent = self.lengths.len();
        self.sent_in = 0;
        self.cursor = self.used;
        self.acknowledged(next);
        self.sent = 0;
        self.cursor = 0;
        Ok(())
    }

    /// True if part of a frame was handed over and the rest was not.
    pub(crate) fn inside(&self) -> bool {
        self.sent_in > 0
    }

    /// What may be handed to the link next: all that is unsent, or the rest of
    /// the frame that was begun.
    pub(crate) fn unsent(&self, only_rest: bool) -> [IoSlice<'_>; 2] {
        let count = match (only_rest, self.lengths.get(self.sent)) {
            (true, Some(length)) => HEAD_BYTES + *length as usize - self.sent_in,
            (true, None) => 0,
            (false, _) => self.used - self.cursor,
        };
        let at = (self.start + self.cursor) % self.ring.len();
        let first = count.min(self.ring.len() - at);
        [
            IoSlice::new(&self.ring[at..at + first]),
            IoSlice::new(&self.ring[..count - first]),
        ]
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.cursor < self.used
    }

    pub(crate) fn unsent_bytes(&self) -> usize {
        self.used - self.cursor
    }

    /// The link took `count` bytes.
    pub(crate) fn took(&mut self, count: usize) {
        self.cursor += count;
        self.sent_in += count;
        while let Some(length) = self.lengths.get(self.sent) {
            let whole = HEAD_BYTES + *length as usize;
            if self.sent_in < whole {
                break;
            }
            self.sent_in -= whole;
            self.sent += 1;
        }
        self.reached = self.reached.max(self.base + self.sent as u64);
        debug_assert!(self.cursor <= self.used, "took more than was offered");
    }
}

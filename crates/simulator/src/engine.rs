//! The one event engine.
//!
//! Invariants: events leave in the order of (time, sequence of insertion), so a
//! run is a function of its inputs (P8); the engine knows neither network nor
//! protocol; an entry is 24 bytes whatever the protocol, and messages lie in a
//! slab whose places are reused, so a million instances cost no boxes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use outlive_base::Time;

/// What happens, and to whom: 8 bytes. Longer data lies in a [`Slab`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Happening {
    /// The process (or another object of the world).
    pub who: u32,
    /// CollectiveKind in the upper 4 bits, index into the kind's slab in the lower 28.
    what: u32,
}

impl Happening {
    const INDEX_BITS: u32 = 28;

    /// A happening of `kind` (below 16) with an index below 2^28.
    pub const fn new(who: u32, kind: u32, index: u32) -> Happening {
        assert!(kind < 16 && index < 1 << Self::INDEX_BITS);
        Happening {
            who,
            what: kind << Self::INDEX_BITS | index,
        }
    }
    /// The kind.
    pub const fn kind(self) -> u32 {
        self.what >> Self::INDEX_BITS
    }
    /// The index.
    pub const fn index(self) -> u32 {
        self.what & ((1 << Self::INDEX_BITS) - 1)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: u64,
    sequence: u64,
    what: Happening,
}

/// The queue of what will happen.
#[derive(Default)]
pub struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
}

impl Queue {
    /// Adds a happening.
    pub fn push(&mut self, at: Time, what: Happening) {
        self.heap.push(Reverse(Entry {
            at: at.0,
            sequence: self.sequence,
            what,
        }));
        self.sequence += 1;
    }
    /// Takes the earliest; of equal times the one put in first.
    pub fn pop(&mut self) -> Option<(Time, Happening)> {
        self.heap
            .pop()
            .map(|Reverse(entry)| (Time(entry.at), entry.what))
    }
    /// How many were ever put in.
    pub fn pushed(&self) -> u64 {
        self.sequence
    }
    /// How many wait.
    pub fn len(&self) -> usize {
        self.heap.len()
    }
    /// True if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

/// Values with small indices; freed places are reused, last freed first.
pub struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    /// Stores a value.
    pub fn put(&mut self, value: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.places[index as usize] = Some(value);
            return index;
        }
        self.places.push(Some(value));
        u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
    }
    /// Takes a value out.
    pub fn take(&mut self, index: u32) -> Option<T> {
        let value = self.places.get_mut(index as usize)?.take();
        if value.is_some() {
            self.free.push(index);
        }
        value
    }
}

/// A running hash of a history (FNV-1a over words): equal seeds must give equal
/// values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trace(pub u64);

impl Default for Trace {
    fn default() -> Trace {
        Trace(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    /// Adds a word.
    pub fn add(&mut self, word: u64) {
        for byte in word.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_time_then_insertion_and_entries_are_small() {
        assert_eq!(size_of::<Entry>(), 24);
        let mut queue = Queue::default();
        for (at, who) in [(5, 0), (3, 1), (5, 2), (3, 3), (1, 4)] {
            queue.push(Time(at), Happening::new(who, 7, 9));
        }
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop())
            .map(|(_, h)| h.who)
            .collect();
        assert_eq!(order, [4, 1, 3, 0, 2]);
        let h = Happening::new(1, 15, 77);
        assert_eq!((h.kind(), h.index()), (15, 77));
    }

    #[test]
    fn a_slab_reuses_its_places() {
        let mut slab = Slab::default();
        let (a, b) = (slab.put('a'), slab.put('b'));
        assert_eq!(slab.take(a), Some('a'));
        assert_eq!(slab.take(a), None);
        assert_eq!(slab.put('c'), a);
        assert_eq!((slab.take(a), slab.take(b)), (Some('c'), Some('b')));
    }
}

//! A calendar of what will happen, for worlds with millions of objects whose steps
//! are mostly short: pushing and taking cost a few instructions, where the heap of
//! [`crate::engine`] needs a comparison for each doubling of its length.
//!
//! Invariants: entries of one time leave in the order in which they were put in (P8);
//! nothing is put in before the time that was taken last; memory follows what waits
//! (places are chunks that are used again).

use std::collections::{BTreeMap, VecDeque};

/// Times that have a place of their own; what is later waits in a map.
const SPAN: u64 = 4096;
const CHUNK: usize = 1024;

struct Bucket<T> {
    chunks: VecDeque<Vec<T>>,
    /// Taken from the first chunk.
    taken: usize,
}

/// The calendar.
pub struct Wheel<T> {
    places: Vec<Bucket<T>>,
    /// A bit for each place that holds something.
    held: Vec<u64>,
    later: BTreeMap<u64, Vec<T>>,
    spare: Vec<Vec<T>>,
    now: u64,
    pushed: u64,
}

impl<T: Copy> Default for Wheel<T> {
    fn default() -> Wheel<T> {
        let place = || Bucket {
            chunks: VecDeque::new(),
            taken: 0,
        };
        Wheel {
            places: (0..SPAN).map(|_| place()).collect(),
            held: vec![0; (SPAN / 64) as usize],
            later: BTreeMap::new(),
            spare: Vec::new(),
            now: 0,
            pushed: 0,
        }
    }
}

impl<T: Copy> Wheel<T> {
    /// Puts an entry in; a time that has passed counts as now.
    pub fn push(&mut self, at: u64, entry: T) {
        self.pushed += 1;
        let at = at.max(self.now);
        if at - self.now < SPAN {
            self.put(at, entry);
        } else {
            self.later.entry(at).or_default().push(entry);
        }
    }

    fn put(&mut self, at: u64, entry: T) {
        let slot = (at % SPAN) as usize;
        self.held[slot / 64] |= 1 << (slot % 64);
        let place = &mut self.places[slot];
        match place.chunks.back_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(entry),
            _ => {
                let spare = self.spare.pop();
                let mut chunk = spare.unwrap_or_else(|| Vec::with_capacity(CHUNK));
                chunk.push(entry);
                place.chunks.push_back(chunk);
            }
        }
    }

    /// The time of the earliest entry.
    pub fn next(&self) -> Option<u64> {
        let start = (self.now % SPAN) as usize;
        let words = self.held.len();
        for step in 0..=words {
            let at = (start / 64 + step) % words;
            let mut word = self.held[at];
            if step == 0 {
                word &= u64::MAX << (start % 64);
            } else if step == words {
                word &= !(u64::MAX << (start % 64));
            }
            if word != 0 {
                let slot = (at * 64) as u64 + u64::from(word.trailing_zeros());
                return Some(self.now + (slot + SPAN - self.now % SPAN) % SPAN);
            }
        }
        self.later.keys().next().copied()
    }

    /// Goes on to a time at or before [`Wheel::next`].
    pub fn advance(&mut self, to: u64) {
        self.now = self.now.max(to);
        while let Some(first) = self.later.first_entry()
            && first.key() - self.now < SPAN
        {
            let (at, entries) = first.remove_entry();
            for entry in entries {
                self.put(at, entry);
            }
        }
    }

    /// Takes an entry of the time to which [`Wheel::advance`] went.
    pub fn take(&mut self) -> Option<T> {
        let slot = (self.now % SPAN) as usize;
        let place = &mut self.places[slot];
        let chunk = place.chunks.front()?;
        let entry = *chunk.get(place.taken)?;
        place.taken += 1;
        if place.taken == chunk.len() {
            place.taken = 0;
            if let Some(mut chunk) = place.chunks.pop_front() {
                chunk.clear();
                self.spare.push(chunk);
            }
            if place.chunks.is_empty() {
                self.held[slot / 64] &= !(1 << (slot % 64));
            }
        }
        Some(entry)
    }

    /// How many were ever put in.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::rng::Sequence;

    /// The same order as a sorted list of (time, order of insertion).
    #[test]
    fn the_order_is_time_then_insertion() {
        for seed in outlive_base::seeds!(50) {
            let mut random = Sequence::new(seed, 1);
            let mut wheel = Wheel::default();
            let mut want: BTreeMap<(u64, u32), ()> = BTreeMap::new();
            let (mut now, mut next) = (0, 0u32);
            for _ in 0..3000 {
                for _ in 0..random.below(4) {
                    let far = [1, 3, 100, 5000, 1_000_000][random.below(5) as usize];
                    let at = now + random.below(far);
                    wheel.push(at, next);
                    want.insert((at, next), ());
                    next += 1;
                }
                let first = want.keys().next().copied();
                assert_eq!(wheel.next(), first.map(|(at, _)| at));
                let Some((at, entry)) = first else { continue };
                now = at;
                wheel.advance(at);
                assert_eq!(wheel.take(), Some(entry));
                want.remove(&(at, entry));
            }
            assert_eq!(wheel.pushed(), u64::from(next));
        }
    }

    #[test]
    fn chunks_are_used_again() {
        let mut wheel = Wheel::default();
        for round in 0..100u64 {
            for entry in 0..3000u32 {
                wheel.push(round, entry);
            }
            wheel.advance(round);
            assert_eq!(std::iter::from_fn(|| wheel.take()).count(), 3000);
        }
        assert!(wheel.spare.len() <= 3, "{}", wheel.spare.len());
        assert_eq!(wheel.next(), None);
    }
}

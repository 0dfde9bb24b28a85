//! A set of byte ranges: what of a region was written in part only.
//!
//! Invariants: disjoint, ascending, never empty; at most [`RANGES_MAX`], because a client that
//! dies again and again must not fill the server's own memory. Beyond that the two nearest are
//! joined: what lies between counts as incomplete too, never as whole.

use std::ops::Range;

/// Most ranges that are kept apart.
pub const RANGES_MAX: usize = 64;

/// The set.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Adds a range.
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut joined = range;
        self.0.retain(|one| {
            let apart = one.end < joined.start || joined.end < one.start;
            if !apart {
                joined = joined.start.min(one.start)..joined.end.max(one.end);
            }
            apart
        });
        let at = self.0.partition_point(|one| one.start < joined.start);
        self.0.insert(at, joined);
        if self.0.len() > RANGES_MAX {
            let gaps = self.0.windows(2).map(|two| two[1].start - two[0].end);
            let nearest = gaps.enumerate().min_by_key(|(_, gap)| *gap);
            if let Some((nth, _)) = nearest {
                self.0[nth].end = self.0[nth + 1].end;
                self.0.remove(nth + 1);
            }
        }
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: &Range<u64>) {
        let parts = std::mem::take(&mut self.0);
        for one in parts {
            let before = one.start..one.end.min(range.start);
            let after = one.start.max(range.end)..one.end;
            // An empty range to be taken out takes nothing out.
            if range.is_empty() {
                self.0.push(one);
                continue;
            }
            [before, after]
                .into_iter()
                .filter(|part| !part.is_empty())
                .for_each(|part| self.add(part));
        }
    }

    /// The first range that overlaps this one.
    pub fn overlap(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let meets = |one: &&Range<u64>| one.start < range.end && range.start < one.end;
        self.0
            .iter()
            .filter(|_| !range.is_empty())
            .find(meets)
            .cloned()
    }

    /// Starts and ends.
    pub fn list(&self) -> Vec<(u64, u64)> {
        self.0.iter().map(|one| (one.start, one.end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::rng::Sequence;

    /// Against one flag a byte, while there are few ranges.
    #[test]
    fn it_is_a_set() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        let (mut set, mut flags) = (Ranges::default(), [false; 100]);
        for _ in 0..2000 {
            let start = random.below(100);
            let end = start + random.below(101 - start);
            let adds = random.chance(400_000);
            if adds {
                set.add(start..end);
            } else {
                set.remove(&(start..end));
            }
            flags[start as usize..end as usize].fill(adds);
            for at in 0..100u64 {
                assert_eq!(set.overlap(&(at..at + 1)).is_some(), flags[at as usize]);
            }
            let list = set.list();
            assert!(list.iter().all(|(start, end)| start < end));
            assert!(list.windows(2).all(|two| two[0].1 < two[1].0), "{list:?}");
        }
    }

    #[test]
    fn it_is_bounded_and_loses_nothing() {
        let mut set = Ranges::default();
        (0..1000).for_each(|nth| set.add(nth * 10..nth * 10 + 3));
        assert!(set.list().len() <= RANGES_MAX);
        assert!((0..1000).all(|nth| set.overlap(&(nth * 10 + 1..nth * 10 + 2)).is_some()));
    }
}

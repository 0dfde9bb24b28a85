//! The collectives of one communicator at one process, by sequence number.
//!
//! Invariants: entries are consecutive, from the oldest that is retained; messages make entries
//! for calls that were not made yet, up to a bound; numbers are given to calls in their order
//! and never again.

use std::collections::VecDeque;
use std::ops::Range;

/// What stands for one collective.
pub(crate) trait CallState {
    /// Of this number, of which nothing else is known.
    fn empty(seq: u32) -> Self;
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Series<S> {
    base: u32,
    next: u32,
    entries: VecDeque<S>,
}

impl<S> Default for Series<S> {
    fn default() -> Series<S> {
        Series {
            base: 0,
            next: 0,
            entries: VecDeque::new(),
        }
    }
}

impl<S: CallState> Series<S> {
    /// The number of the next call.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// The next call is made: it has the number that [`Series::next`] said.
    pub fn advance(&mut self) {
        self.next += 1;
    }

    /// True if the result of this call is no longer retained.
    pub fn is_gone(&self, seq: u32) -> bool {
        seq < self.base
    }

    /// Slots up to that of `seq`, at most `ahead` before the next call; true if it has one.
    pub fn reach(&mut self, seq: u32, ahead: u32) -> bool {
        if self.is_gone(seq) || seq >= self.next.saturating_add(ahead) {
            return false;
        }
        let wanted = (seq - self.base) as usize + 1;
        self.entries
            .reserve_exact(wanted.saturating_sub(self.entries.len()));
        while self.entries.len() < wanted {
            let seq = self.base + self.entries.len() as u32;
            self.entries.push_back(S::empty(seq));
        }
        true
    }

    /// The entry of this number, if there is one.
    pub fn get_mut(&mut self, seq: u32) -> Option<&mut S> {
        let at = seq.checked_sub(self.base)?;
        self.entries.get_mut(at as usize)
    }

    /// See [`Series::get_mut`].
    pub fn get(&self, seq: u32) -> Option<&S> {
        let at = seq.checked_sub(self.base)?;
        self.entries.get(at as usize)
    }

    /// The numbers that have a entry.
    pub fn numbers(&self) -> Range<u32> {
        self.base..self.base + self.entries.len() as u32
    }

    /// All entries.
    pub fn all(&self) -> impl Iterator<Item = &S> {
        self.entries.iter()
    }

    /// The entries of calls that were made.
    pub fn called(&self) -> impl Iterator<Item = &S> {
        self.entries.iter().take((self.next - self.base) as usize)
    }

    /// The oldest, if more than `retained` calls are held and it is `over`.
    pub fn spare(&self, retained: u32, over: impl FnOnce(&S) -> bool) -> Option<u32> {
        let surplus = self.next - self.base > retained.max(2);
        (surplus && self.entries.front().is_some_and(over)).then_some(self.base)
    }

    /// Lets the oldest go.
    pub fn forget(&mut self) {
        if self.entries.pop_front().is_some() {
            self.base += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CallState, Series};

    impl CallState for u32 {
        fn empty(seq: u32) -> u32 {
            seq
        }
    }

    #[test]
    fn slots_are_reached_within_the_bound_and_forgotten_from_the_oldest_on() {
        let mut series: Series<u32> = Series::default();
        assert!(!series.reach(3, 3) && series.reach(2, 3));
        assert_eq!(series.numbers(), 0..3);
        assert_eq!(series.called().count(), 0, "none was called");
        for _ in 0..4 {
            assert!(series.reach(series.next(), 1));
            series.advance();
        }
        assert_eq!(series.called().copied().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(series.spare(4, |_| true), None);
        assert_eq!(series.spare(3, |_| false), None);
        assert_eq!(series.spare(3, |_| true), Some(0));
        series.forget();
        assert!(series.is_gone(0) && !series.reach(0, 9) && series.get(0).is_none());
        assert_eq!(series.get(1), Some(&1));
        assert_eq!(series.get_mut(4), None);
        assert_eq!(series.all().count(), 3);
    }
}

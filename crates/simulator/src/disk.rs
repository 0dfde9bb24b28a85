//! A disk for records: what was written, what a crash leaves of it, what rots.
//!
//! Invariants: a record that was reported durable survives every crash unless the
//! disk is damaged on purpose ([`Disk::damage`]), which the caller accounts as a
//! failure of the node's storage; a record whose write was cut short by a crash is
//! either whole or gone, as its checksum decides (torn and lost writes look the
//! same to a reader); a refused write leaves nothing.

use outlive_base::machine::Op;
use outlive_base::rng::Sequence;

#[derive(Clone, Debug)]
enum State {
    /// Not yet synced.
    Writing(Op),
    Durable,
    /// Present but its checksum fails.
    Damaged,
}

/// The records of one node.
#[derive(Clone, Debug)]
pub struct Disk<R> {
    records: Vec<(R, State)>,
}

impl<R> Default for Disk<R> {
    fn default() -> Disk<R> {
        Disk {
            records: Vec::new(),
        }
    }
}

impl<R: Clone + PartialEq> Disk<R> {
    /// Starts a write.
    pub fn write(&mut self, op: Op, record: R) {
        self.records.push((record, State::Writing(op)));
    }

    /// The sync of a write: the record if it is durable now, `None` if it was cut
    /// off before.
    pub fn sync(&mut self, op: Op) -> Option<R> {
        let found = self
            .records
            .iter_mut()
            .find(|(_, s)| matches!(s, State::Writing(o) if *o == op))?;
        found.1 = State::Durable;
        Some(found.0.clone())
    }

    /// True if what this write is about to make durable is such a record.
    pub fn is(&self, op: Op, such: impl Fn(&R) -> bool) -> bool {
        let writing = |state: &State| matches!(state, State::Writing(other) if *other == op);
        let mut records = self.records.iter();
        records.any(|(record, state)| writing(state) && such(record))
    }

    /// A write is refused (full): nothing is left of it.
    pub fn refuse(&mut self, op: Op) {
        self.records
            .retain(|(_, s)| !matches!(s, State::Writing(o) if *o == op));
    }

    /// The process or node crashes: every write under way is whole, or torn or
    /// lost. The records that turn out whole are returned.
    pub fn crash(&mut self, random: &mut Sequence) -> Vec<R> {
        let mut whole = Vec::new();
        for (record, state) in &mut self.records {
            if matches!(state, State::Writing(_)) {
                *state = if random.chance(500_000) {
                    whole.push(record.clone());
                    State::Durable
                } else {
                    State::Damaged
                };
            }
        }
        whole
    }

    /// A bit flips in one durable record, or a write for another place lands on it.
    /// True if there was one.
    pub fn damage(&mut self, random: &mut Sequence) -> bool {
        let durable: Vec<usize> = (0..self.records.len())
            .filter(|&at| matches!(self.records[at].1, State::Durable))
            .collect();
        let Some(&at) = durable.get(random.below(durable.len() as u64) as usize) else {
            return false;
        };
        self.records[at].1 = State::Damaged;
        true
    }

    /// Everything is gone.
    pub fn wipe(&mut self) {
        self.records.clear();
    }

    /// Removes records for good.
    pub fn remove(&mut self, mut which: impl FnMut(&R) -> bool) {
        self.records.retain(|(record, _)| !which(record));
    }

    /// What a reader finds whose checksums hold, in the order of writing.
    pub fn readable(&self) -> impl Iterator<Item = &R> + Clone {
        let durable = |(_, state): &&(R, State)| matches!(state, State::Durable);
        self.records
            .iter()
            .filter(durable)
            .map(|(record, _)| record)
    }

    /// The same, to keep.
    pub fn replay(&self) -> Vec<R> {
        self.readable().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synced_records_survive_and_others_may_not() {
        let mut random = Sequence::new(outlive_base::seed!(), 3);
        let mut survived = 0;
        for n in 0..100 {
            let mut disk = Disk::default();
            disk.write(Op(0), n);
            assert_eq!(disk.sync(Op(0)), Some(n));
            disk.write(Op(1), 1000);
            disk.write(Op(2), 2000);
            disk.refuse(Op(2));
            assert_eq!(disk.replay(), [n], "not synced, not read");
            survived += disk.crash(&mut random).len();
            assert_eq!(disk.replay()[0], n);
            assert!(!disk.replay().contains(&2000));
            assert_eq!(disk.sync(Op(1)), None, "no sync after a crash");
            assert!(disk.damage(&mut random));
            assert!(disk.replay().len() < 2);
        }
        assert!((20..80).contains(&survived), "{survived}");
    }
}

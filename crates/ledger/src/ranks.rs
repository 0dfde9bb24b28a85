//! The ranks of a part, few bytes for many of them.
//!
//! Launchers place ranks in blocks or in turn, so the ranks of a node are one row of equal steps.
//! A record of a commit names those of all nodes; one by one they would be most of its bytes, at
//! each node and in each message.
//!
//! Invariants: a list has one form, however it was made (each row is as long as it can be, from
//! the first rank on); what is decoded takes no more memory than a constant times its bytes (P7).

use outlive_base::Rank;
use outlive_base::wire::{Reader, WireError, Writer};
use serde::{Deserialize, Serialize};

/// Most ranks of a part.
const PART_RANKS_MAX: usize = 1 << 20;

/// Ranks in equal steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Row {
    first: u32,
    /// At least 1.
    count: u32,
    /// From one to the next; 0 if there is but one.
    step: u32,
}

impl Row {
    /// `None` if it is not one: it has no ranks, or goes on beyond the last number.
    fn last(&self) -> Option<u32> {
        let steps = self.count.checked_sub(1)?;
        self.first.checked_add(steps.checked_mul(self.step)?)
    }

    fn ranks(self) -> impl Iterator<Item = Rank> + Clone {
        // Every list's rows end at a number that there is.
        (0..self.count).map(move |at| Rank(self.first + at * self.step))
    }

    /// Takes the rank too, if it is the next one.
    fn takes(&mut self, rank: u32) -> bool {
        let Some(last) = self.last().filter(|last| *last < rank) else {
            return false;
        };
        let step = rank - last;
        if self.count > 1 && step != self.step {
            return false;
        }
        (self.count, self.step) = (self.count + 1, step);
        true
    }
}

/// Ranks in an order: see the module. As text it is a list of numbers.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(from = "Vec<Rank>", into = "Vec<Rank>")]
pub struct RankList {
    rows: Vec<Row>,
}

/// One number each.
const PLAIN: u8 = 0;
/// Three numbers for a row.
const ROWS: u8 = 1;
const ROW_BYTES: usize = 12;

impl RankList {
    /// The ranks, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Rank> + Clone {
        self.rows.iter().flat_map(|row| row.ranks())
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.rows.iter().map(|row| row.count as usize).sum()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// True if this is one of them.
    pub fn contains(&self, rank: Rank) -> bool {
        let in_row = |row: &Row| match rank.0.checked_sub(row.first) {
            Some(0) => true,
            Some(over) if row.step > 0 => over % row.step == 0 && over / row.step < row.count,
            _ => false,
        };
        self.rows.iter().any(in_row)
    }

    fn push(&mut self, rank: Rank) {
        let row = Row {
            first: rank.0,
            count: 1,
            step: 0,
        };
        if !self.rows.last_mut().is_some_and(|last| last.takes(rank.0)) {
            self.rows.push(row);
        }
    }

    /// Writes them in rows or one by one, whatever is less. `None` if there are too many.
    pub(crate) fn put(&self, out: &mut Writer) -> Option<()> {
        let count = self.len();
        if count > PART_RANKS_MAX {
            return None;
        }
        if self.is_less_in_rows() {
            out.u8(ROWS).u32(self.rows.len() as u32);
            for row in &self.rows {
                out.u32(row.first).u32(row.count).u32(row.step);
            }
        } else {
            out.u8(PLAIN).u32(count as u32);
            self.iter().for_each(|rank| {
                out.u32(rank.0);
            });
        }
        Some(())
    }

    fn is_less_in_rows(&self) -> bool {
        self.rows.len() * ROW_BYTES < self.len() * 4
    }

    /// Reads what [`RankList::put`] writes, and nothing else.
    pub(crate) fn read(input: &mut Reader<'_>) -> Result<RankList, WireError> {
        let form = input.u8()?;
        let list = match form {
            PLAIN => RankList::read_plain(input)?,
            ROWS => RankList::read_rows(input)?,
            _ => return Err(WireError::Value("form of a list of ranks")),
        };
        match list.is_less_in_rows() == (form == ROWS) {
            true => Ok(list),
            false => Err(WireError::Value("form of a list of ranks")),
        }
    }

    /// Reads one number each, as all records up to version 2 have them.
    pub(crate) fn read_plain(input: &mut Reader<'_>) -> Result<RankList, WireError> {
        let count = input.count(4)?;
        bounded(count)?;
        let mut found = RankList::default();
        for _ in 0..count {
            found.push(Rank(input.u32()?));
        }
        Ok(found)
    }

    fn read_rows(input: &mut Reader<'_>) -> Result<RankList, WireError> {
        let odd = WireError::Value("row of ranks");
        let count = input.count(ROW_BYTES)?;
        let mut found = RankList::default();
        let mut total = 0usize;
        for _ in 0..count {
            let row = Row {
                first: input.u32()?,
                count: input.u32()?,
                step: input.u32()?,
            };
            let is_row = row.last().is_some() && (row.count == 1) == (row.step == 0);
            let follows = |last: &Row| !{ *last }.takes(row.first);
            if !is_row || !found.rows.last().is_none_or(follows) {
                return Err(odd);
            }
            total = total.saturating_add(row.count as usize);
            bounded(total)?;
            found.rows.push(row);
        }
        Ok(found)
    }
}

fn bounded(count: usize) -> Result<(), WireError> {
    match count > PART_RANKS_MAX {
        false => Ok(()),
        true => Err(WireError::TooLong {
            length: count as u64,
            bound: PART_RANKS_MAX as u64,
        }),
    }
}

impl FromIterator<Rank> for RankList {
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> RankList {
        let mut list = RankList::default();
        ranks.into_iter().for_each(|rank| list.push(rank));
        list
    }
}

impl From<Vec<Rank>> for RankList {
    fn from(ranks: Vec<Rank>) -> RankList {
        ranks.into_iter().collect()
    }
}

impl From<RankList> for Vec<Rank> {
    fn from(list: RankList) -> Vec<Rank> {
        list.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(list: &RankList) -> Vec<u8> {
        let mut out = Writer::new();
        list.put(&mut out).expect("within bounds");
        out.into_vec()
    }

    fn read(bytes: &[u8]) -> Result<RankList, WireError> {
        let mut input = Reader::new(bytes);
        let list = RankList::read(&mut input)?;
        input.finish()?;
        Ok(list)
    }

    fn of(ranks: impl IntoIterator<Item = u32>) -> RankList {
        ranks.into_iter().map(Rank).collect()
    }

    #[test]
    fn blocks_and_turns_are_one_row_and_no_list_costs_more_than_its_numbers() {
        let head = 5;
        for (list, bytes) in [
            (of(0..0), 0),
            (of([7]), 4),
            (of([7, 9]), 8),
            (of(1_000..1_128), ROW_BYTES),
            (of((0..128).map(|at| 3 + at * 10_000)), ROW_BYTES),
            (of([5, 4, 3, 2, 1]), 20),
            (of([1, 2, 4, 8, 16, 31]), 24),
            (of([0, u32::MAX]), 8),
            (of([4, 4, 4]), 12),
        ] {
            assert_eq!(written(&list).len(), head + bytes, "{list:?}");
            assert_eq!(read(&written(&list)), Ok(list));
        }
    }

    #[test]
    fn rows_that_are_none_are_refused() {
        let rows = |rows: &[[u32; 3]]| {
            let mut out = Writer::new();
            out.u8(ROWS).u32(rows.len() as u32);
            for number in rows.iter().flatten() {
                out.u32(*number);
            }
            read(out.as_slice())
        };
        assert_eq!(rows(&[[5, 4, 2]]), Ok(of([5, 7, 9, 11])));
        let most = PART_RANKS_MAX as u32;
        for bad in [
            // No ranks; no step; a step of one alone; beyond the last number.
            &[[5, 0, 1]][..],
            &[[5, 3, 0]],
            &[[5, 1, 2]],
            &[[u32::MAX - 1, 3, 1]],
            &[[0, u32::MAX, u32::MAX]],
            // More than there may be, in one row or together.
            &[[0, most + 1, 1]],
            &[[0, most, 1], [0, 1, 0]],
            // One row in two; one alone and the first of more, which are a row; few, as rows.
            &[[0, 8, 1], [8, 8, 1]],
            &[[0, 1, 0], [7, 90, 1]],
            &[[5, 3, 2]],
        ] {
            assert!(rows(bad).is_err(), "{bad:?}");
        }
        assert!(read(&[2, 0, 0, 0, 0]).is_err());
    }

    proptest! {
        #[test]
        fn a_list_comes_back_and_has_one_form(
            ranks in prop::collection::vec(prop_oneof![any::<u32>(), 0u32..40], 0..60)
        ) {
            let list = of(ranks.iter().copied());
            let back: Vec<u32> = list.iter().map(|rank| rank.0).collect();
            prop_assert_eq!(&back, &ranks);
            prop_assert_eq!(list.len(), ranks.len());
            for rank in ranks.iter().copied().chain([3, 17, 39]) {
                prop_assert_eq!(list.contains(Rank(rank)), ranks.contains(&rank));
            }
            let bytes = written(&list);
            prop_assert!(bytes.len() <= 5 + 4 * ranks.len());
            prop_assert_eq!(read(&bytes), Ok(list));
        }

        #[test]
        fn any_bytes_are_refused_or_are_written_so_again(
            tag in 0u8..3,
            numbers in prop::collection::vec(prop_oneof![0u32..6, any::<u32>()], 0..12)
        ) {
            let bytes: Vec<u8> = core::iter::once(tag)
                .chain(numbers.iter().flat_map(|number| number.to_le_bytes()))
                .collect();
            if let Ok(list) = read(&bytes) {
                prop_assert_eq!(&list.iter().collect::<RankList>(), &list);
                prop_assert_eq!(written(&list), bytes);
            }
        }
    }
}

//! Reed-Solomon over groups (as SCR's RS level): a group of n members, of which any m may be lost.
//! Each member's container is cut into k = n - m segments. They form n rows; in each row m members
//! hold a parity, and each of the k others gives one segment. So a member stores m parities, one
//! of each of m rows, m / k of a container.
//!
//! Row r, members counted round: parity i at member r + i, segment s of member r + m + s. Parity i
//! is the sum of c(i, s) times segment s. With c from a Cauchy matrix each k bytes of a row give
//! back all k + m (Blömer, Kalfane, Karp, Karpinski, Luby, Zuckerman, *An XOR-based
//! erasure-resilient coding scheme*, ICSI TR-95-048, 1995). Its columns are scaled so that parity 0
//! is a sum without factors: what one lost member costs is what it costs with XOR.
//!
//! Containers that are shorter than the longest count as if zeroes followed. Where they end is
//! known, so that these zeroes need not be there to be known.

use std::ops::Range;

use outlive_base::NodeId;
use outlive_codec::field::{invert, multiply};

use crate::pieces::{Group, Layout, Piece, Term};

/// Segments begin at pages, so that they can be read past all caches.
const ALIGN: u64 = 4096;

/// Longer than any container; what a damaged record may say is beyond it.
const LENGTH_MAX: u64 = 1 << 56;
/// The field has so many elements: more members could not be told apart.
const MEMBERS_MAX: usize = 256;

/// The scheme.
pub struct ReedSolomon;

/// By what segment `s` counts in parity `i` of its row: 1 / (x + y) with x = 255 - i and y = s,
/// times what makes parity 0 a plain sum.
fn factor(i: usize, s: usize) -> u8 {
    let cauchy = |i: usize| (255 - i as u8) ^ s as u8;
    // Not zero: s is less than 255 - i as long as k + m is at most MEMBERS_MAX.
    invert(cauchy(i)).map_or(0, |inverse| multiply(cauchy(0), inverse))
}

/// By what each row of a square matrix has to be multiplied so that all together are `sum`;
/// `None` if that has not exactly one answer.
fn solve(rows: &[Vec<u8>], sum: &[u8]) -> Option<Vec<u8>> {
    let size = rows.len();
    // One equation for each column, with what is wanted beside it.
    let mut equations: Vec<Vec<u8>> = (0..size)
        .map(|column| {
            let mut equation: Vec<u8> = rows.iter().map(|row| row[column]).collect();
            equation.push(sum[column]);
            equation
        })
        .collect();
    for at in 0..size {
        let pivot = (at..size).find(|&row| equations[row][at] != 0)?;
        equations.swap(at, pivot);
        let inverse = invert(equations[at][at])?;
        for number in &mut equations[at] {
            *number = multiply(*number, inverse);
        }
        let chosen = equations[at].clone();
        for (row, equation) in equations.iter_mut().enumerate() {
            let by = equation[at];
            if row != at && by != 0 {
                let both = equation.iter_mut().zip(&chosen);
                both.for_each(|(number, other)| *number ^= multiply(*other, by));
            }
        }
    }
    Some(equations.iter().map(|equation| equation[size]).collect())
}

/// What is wanted of a row.
#[derive(Clone, Copy)]
enum Wanted {
    Segment(usize),
    Parity(usize),
}

impl Wanted {
    /// By what segment `s` counts in it.
    fn of(self, s: usize) -> u8 {
        match self {
            Wanted::Segment(segment) => u8::from(segment == s),
            Wanted::Parity(i) => factor(i, s),
        }
    }
}

/// A group's sizes.
struct Shape<'a> {
    group: &'a Group,
    /// Members.
    n: usize,
    /// Parities of a row.
    m: usize,
    /// Segments of a row, and of a container.
    k: usize,
    /// Bytes of a segment.
    size: u64,
}

impl<'a> Shape<'a> {
    /// `None` for what is no group of the level.
    fn of(group: &'a Group) -> Option<Shape<'a>> {
        let n = group.members.len();
        let m = usize::from(group.level.protection().m);
        let k = n.checked_sub(m).filter(|k| *k > 0 && n <= MEMBERS_MAX)?;
        let longest = group.lengths.iter().copied().max()?;
        if longest > LENGTH_MAX || group.lengths.len() != n {
            return None;
        }
        let size = longest.div_ceil(k as u64).next_multiple_of(ALIGN);
        Some(Shape {
            group,
            n,
            m,
            k,
            size,
        })
    }

    fn place(&self, node: NodeId) -> Option<usize> {
        let mut members = self.group.members.iter();
        members.position(|member| *member == node)
    }

    /// The row of which a member holds parity `i`.
    fn row_of_parity(&self, member: usize, i: usize) -> usize {
        (member + self.n - i) % self.n
    }

    /// The row to which a member gives segment `s`.
    fn row_of_segment(&self, member: usize, s: usize) -> usize {
        (member + self.n - self.m - s) % self.n
    }

    fn holder(&self, row: usize, i: usize) -> NodeId {
        self.group.members[(row + i) % self.n]
    }

    fn giver(&self, row: usize, s: usize) -> usize {
        (row + self.m + s) % self.n
    }

    /// The bytes that a member has in one of its segments.
    fn range(&self, member: usize, s: usize) -> Range<u64> {
        let length = self.group.lengths[member];
        let start = (s as u64 * self.size).min(length);
        start..(start + self.size).min(length)
    }

    /// How many they are of the segment that a row has.
    fn given(&self, row: usize, s: usize) -> u64 {
        let range = self.range(self.giver(row, s), s);
        range.end - range.start
    }

    /// The terms of the first `bytes` of what is wanted of a row, which count from `to` on.
    fn sum(
        &self,
        row: usize,
        wanted: Wanted,
        (to, bytes): (u64, u64),
        have: &dyn Fn(Piece) -> bool,
        terms: &mut Vec<Term>,
    ) -> Option<()> {
        let missing: Vec<usize> = (0..self.k)
            .filter(|&s| match wanted {
                Wanted::Segment(segment) if segment == s => true,
                _ => !have(Piece::Whole(self.group.members[self.giver(row, s)])),
            })
            .collect();
        // Where a missing segment ends, one thing fewer is unknown.
        let ends = missing.iter().map(|&s| self.given(row, s));
        let mut cuts: Vec<u64> = ends.filter(|end| *end < bytes).collect();
        cuts.extend([0, bytes]);
        cuts.sort_unstable();
        cuts.dedup();
        for cut in cuts.windows(2) {
            let unknown: Vec<usize> = missing
                .iter()
                .copied()
                .filter(|&s| self.given(row, s) > cut[0])
                .collect();
            self.part(row, wanted, (to, cut[0]..cut[1]), &unknown, have, terms)?;
        }
        Some(())
    }

    /// The terms of a part of that, in which these segments are unknown.
    fn part(
        &self,
        row: usize,
        wanted: Wanted,
        (to, part): (u64, Range<u64>),
        unknown: &[usize],
        have: &dyn Fn(Piece) -> bool,
        terms: &mut Vec<Term>,
    ) -> Option<()> {
        let itself = |i: usize| matches!(wanted, Wanted::Parity(other) if other == i);
        let parities: Vec<usize> = (0..self.m)
            .filter(|&i| !itself(i) && have(Piece::Parity(self.holder(row, i))))
            .take(unknown.len())
            .collect();
        if parities.len() < unknown.len() {
            return None;
        }
        // The unknown segments are to cancel out: of each parity so much that together they
        // have as much of each as is wanted.
        let of_unknown = |i: usize| unknown.iter().map(|&s| factor(i, s)).collect();
        let wanted_of: Vec<u8> = unknown.iter().map(|&s| wanted.of(s)).collect();
        let shares = solve(
            &parities.iter().map(|&i| of_unknown(i)).collect::<Vec<_>>(),
            &wanted_of,
        )?;
        let mut add = |from: Piece, range: Range<u64>, factor: u8| {
            if factor != 0 && !range.is_empty() {
                let at = to + part.start;
                terms.push(Term {
                    from,
                    range,
                    at,
                    factor,
                });
            }
        };
        for (&i, share) in parities.iter().zip(&shares) {
            let block = i as u64 * self.size;
            let range = block + part.start..block + part.end;
            add(Piece::Parity(self.holder(row, i)), range, *share);
        }
        for s in (0..self.k).filter(|s| !unknown.contains(s)) {
            let in_parities = parities.iter().zip(&shares);
            let in_parities = in_parities.map(|(&i, share)| multiply(*share, factor(i, s)));
            let factor = in_parities.fold(wanted.of(s), |sum, share| sum ^ share);
            let giver = self.giver(row, s);
            let whole = self.range(giver, s);
            let range =
                (whole.start + part.start).min(whole.end)..(whole.start + part.end).min(whole.end);
            add(Piece::Whole(self.group.members[giver]), range, factor);
        }
        Some(())
    }
}

impl Layout for ReedSolomon {
    fn parity_bytes(&self, group: &Group) -> u64 {
        Shape::of(group).map_or(0, |shape| shape.m as u64 * shape.size)
    }

    fn terms(&self, group: &Group, want: Piece, have: &dyn Fn(Piece) -> bool) -> Option<Vec<Term>> {
        let shape = Shape::of(group)?;
        let member = shape.place(want.node())?;
        let mut terms = Vec::new();
        match want {
            Piece::Parity(_) => {
                for i in 0..shape.m {
                    let (row, to) = (shape.row_of_parity(member, i), i as u64 * shape.size);
                    let wanted = Wanted::Parity(i);
                    shape.sum(row, wanted, (to, shape.size), have, &mut terms)?;
                }
            }
            Piece::Whole(_) => {
                for s in 0..shape.k {
                    let (row, range) = (shape.row_of_segment(member, s), shape.range(member, s));
                    let bytes = range.end - range.start;
                    let wanted = Wanted::Segment(s);
                    shape.sum(row, wanted, (range.start, bytes), have, &mut terms)?;
                }
            }
        }
        Some(terms)
    }
}

#[cfg(test)]
mod tests;

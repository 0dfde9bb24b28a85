//! Reed-Solomon over groups (as SCR's RS level): a group of n members, of which any m may be lost.
//! Each member's container is cut into k = n - m segments. They form n rows; in each row m members
//! hold a parity, and each of the k others gives one segment. So a member stores m parities, one
//! of each of m rows, m / k of a container.
//!
//! Row r, members counted round: parity i at member r + i, segment s of member r + m + s. Parity i
//! is the sum of c(i, s) times segment s. With c from a Cauchy matrix each k bytes of a row give
//! back all k + m (Blömer, Kalfane, Karp, Karpinski, Luby, Zuckerman, *An XOR-based
//! erasure-resilient coding scheme*, ICSI TR-95-048, 1995; Rizzo, *Effective erasure codes for
//! reliable computer communication protocols*, Computer Communication Review 27(2), 1997). Its
//! columns are scaled so that parity 0 is a sum without factors: what one lost member costs is
//! what it costs with XOR.
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
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use outlive_base::Level;
    use outlive_base::rng::Sequence;
    use outlive_codec::field::add_multiple;

    use super::*;

    type Pieces = BTreeMap<Piece, Vec<u8>>;

    /// Whatever is taken of these, no more than `most` at once.
    fn subsets(of: usize, most: usize, each: &mut dyn FnMut(&[usize])) {
        fn go(of: usize, most: usize, taken: &mut Vec<usize>, each: &mut dyn FnMut(&[usize])) {
            each(taken);
            let next = taken.last().map_or(0, |last| last + 1);
            if taken.len() < most {
                for one in next..of {
                    taken.push(one);
                    go(of, most, taken, each);
                    taken.pop();
                }
            }
        }
        go(of, most, &mut Vec::new(), each);
    }

    fn add(terms: &[Term], bytes: u64, of: &Pieces) -> Vec<u8> {
        let mut sum = vec![0; bytes as usize];
        for term in terms {
            let from = &of[&term.from][term.range.start as usize..term.range.end as usize];
            add_multiple(&mut sum[term.at as usize..], from, term.factor);
        }
        sum
    }

    fn group(k: u16, m: u16, lengths: &[u64]) -> Group {
        Group {
            level: Level::rs(k, m).unwrap(),
            members: (0..lengths.len() as u32)
                .map(|node| NodeId(node * 2 + 1))
                .collect(),
            lengths: lengths.to_vec(),
        }
    }

    /// Containers of these bytes, and the parities that the group makes of them.
    fn made(group: &Group, random: &mut Sequence) -> Pieces {
        let mut pieces = Pieces::new();
        for (node, length) in group.members.iter().zip(&group.lengths) {
            let bytes = (0..*length).map(|_| random.below(256) as u8).collect();
            pieces.insert(Piece::Whole(*node), bytes);
        }
        let size = group.parity_bytes();
        for node in &group.members {
            let want = Piece::Parity(*node);
            let have = |it: Piece| matches!(it, Piece::Whole(_)) && it != Piece::Whole(*node);
            let terms = group.terms(want, have).unwrap();
            assert!(terms.iter().all(|term| term.from != Piece::Whole(*node)));
            let parity = add(&terms, size, &pieces);
            pieces.insert(want, parity);
        }
        pieces
    }

    /// What the theory says: in each byte of each row that has something of what is wanted, there
    /// are as many other parities as unknown segments.
    fn is_possible(group: &Group, want: Piece, have: &dyn Fn(Piece) -> bool) -> bool {
        let shape = Shape::of(group).unwrap();
        let member = shape.place(want.node()).unwrap();
        (0..shape.n).all(|row| {
            let offset = (member + shape.n - row) % shape.n;
            let ends: Vec<u64> = (0..shape.k).map(|s| shape.given(row, s)).collect();
            let reach = match want {
                Piece::Parity(_) if offset < shape.m => shape.size,
                Piece::Whole(_) if offset >= shape.m => ends[offset - shape.m],
                _ => 0,
            };
            (0..reach)
                .step_by(512)
                .chain(ends.iter().copied())
                .all(|at| {
                    let unknown = (0..shape.k).filter(|&s| {
                        let giver = Piece::Whole(group.members[shape.giver(row, s)]);
                        ends[s] > at && (giver == want || !have(giver))
                    });
                    let parities = (0..shape.m).filter(|&i| {
                        let holder = Piece::Parity(shape.holder(row, i));
                        holder != want && have(holder)
                    });
                    at >= reach || unknown.count() <= parities.count()
                })
        })
    }

    /// The factors do not depend on k or m: what holds for the largest group that can be laid
    /// holds for all.
    #[test]
    fn every_square_of_factors_can_be_solved() {
        let widest = 2 * (32 + 4) - 1 - 4;
        subsets(4, 4, &mut |parities| {
            subsets(widest, parities.len(), &mut |segments| {
                if segments.len() == parities.len() {
                    let row = |i: &usize| segments.iter().map(|s| factor(*i, *s)).collect();
                    let rows: Vec<Vec<u8>> = parities.iter().map(row).collect();
                    let sum = vec![1; segments.len()];
                    assert!(solve(&rows, &sum).is_some(), "{parities:?} {segments:?}");
                }
            });
        });
        for s in 0..widest {
            assert_eq!(factor(0, s), 1);
            assert!((1..4).all(|i| factor(i, s) != 0));
        }
        assert_eq!(solve(&[vec![2, 4], vec![4, 8]], &[1, 1]), None, "alike");
    }

    #[test]
    fn numbers_of_the_format() {
        let four: Vec<Vec<u8>> = (0..4)
            .map(|i| (0..4).map(|s| factor(i, s)).collect())
            .collect();
        // By hand: 254 divided by 255 and so on, with the powers of 2 in this field.
        for (i, factors) in four.iter().enumerate() {
            for (s, factor) in factors.iter().enumerate() {
                let (x, y) = (255 - i as u8, s as u8);
                assert_eq!(multiply(*factor, x ^ y), 255 ^ y, "{i} {s}");
            }
        }
        // Row 1 of five members, two parities: at members 1 and 2, of segment 0 of member 3,
        // segment 1 of member 4 and segment 2 of member 0.
        let group = group(3, 2, &[12288; 5]);
        let node = |member: usize| group.members[member];
        let terms = group.terms(Piece::Parity(node(2)), |_| true).unwrap();
        let second: Vec<(NodeId, u64, u8)> = terms
            .iter()
            .filter(|term| term.at == 4096)
            .map(|term| (term.from.node(), term.range.start / 4096, term.factor))
            .collect();
        let [a, b, c] = [0, 1, 2].map(|s| factor(1, s));
        assert_eq!(second, [(node(3), 0, a), (node(4), 1, b), (node(0), 2, c)]);
    }

    /// Any m members' bytes come back from the others', whichever they are; m + 1 do not.
    #[test]
    fn m_lost_members_come_back_and_one_more_does_not() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        for (n, m) in [
            (4, 2),
            (5, 2),
            (6, 2),
            (9, 2),
            (5, 3),
            (8, 3),
            (6, 4),
            (9, 4),
        ] {
            // All reach into their last segments.
            let (k, most) = (n - m, u64::from(n - m) * 4096 * (1 + random.below(2)));
            let lengths: Vec<u64> = (0..n).map(|_| most - random.below(4096)).collect();
            let group = group(2.max(k - random.below(2) as u16), m, &lengths);
            let pieces = made(&group, &mut random);
            let size = group.parity_bytes();
            subsets(usize::from(n), usize::from(m) + 1, &mut |lost| {
                let gone: BTreeSet<NodeId> = lost.iter().map(|nth| group.members[*nth]).collect();
                let have = |it: Piece| !gone.contains(&it.node());
                if gone.len() > usize::from(m) {
                    let mut rows = gone.iter().map(|node| Piece::Whole(*node));
                    return assert!(rows.any(|it| group.terms(it, have).is_none()), "{lost:?}");
                }
                assert!(group.survives(have), "{lost:?}");
                for node in &gone {
                    for want in [Piece::Whole(*node), Piece::Parity(*node)] {
                        let terms = group.terms(want, have).unwrap();
                        assert!(terms.iter().all(|term| have(term.from)));
                        let length = match want {
                            Piece::Whole(_) => pieces[&want].len() as u64,
                            Piece::Parity(_) => size,
                        };
                        assert!(
                            add(&terms, length, &pieces) == pieces[&want],
                            "{lost:?} {want:?}"
                        );
                    }
                }
            });
        }
    }

    /// Whatever pieces are there, all comes back that can, and nothing else is promised.
    #[test]
    fn all_comes_back_that_can() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        let mut seen = [0; 2];
        for _ in 0..300 {
            let m = 2 + random.below(3) as u16;
            let n = m + 2 + random.below(6) as u16;
            let most = [1, 5000, 40_000][random.below(3) as usize];
            let lengths: Vec<u64> = (0..n).map(|_| random.below(most + 1)).collect();
            let group = group(2.max(n - m), m, &lengths);
            let pieces = made(&group, &mut random);
            for _ in 0..6 {
                let odds = random.below(700_000) as u32;
                let there: BTreeSet<Piece> = pieces
                    .keys()
                    .copied()
                    .filter(|_| !random.chance(odds))
                    .collect();
                for (want, bytes) in &pieces {
                    let have = |it: Piece| it != *want && there.contains(&it);
                    let terms = group.terms(*want, have);
                    assert_eq!(terms.is_some(), is_possible(&group, *want, &have));
                    seen[usize::from(terms.is_some())] += 1;
                    if let Some(terms) = terms {
                        assert!(terms.iter().all(|term| have(term.from)));
                        assert!(
                            add(&terms, bytes.len() as u64, &pieces) == *bytes,
                            "{want:?}"
                        );
                    }
                }
            }
        }
        assert!(seen.iter().all(|count| *count > 1000), "{seen:?}");
    }

    #[test]
    fn what_is_no_group_gives_nothing() {
        let good = group(2, 3, &[4096; 5]);
        let mut bad = vec![
            group(2, 3, &[4096; 3]),
            group(2, 3, &[]),
            group(2, 3, &[1; 257]),
        ];
        bad.push(group(2, 3, &[u64::MAX, 1, 1, 1, 1]));
        bad.push(Group {
            lengths: vec![1; 4],
            ..good.clone()
        });
        for group in bad {
            assert_eq!(group.parity_bytes(), 0);
            for want in [Piece::Whole(NodeId(1)), Piece::Parity(NodeId(1))] {
                assert_eq!(group.terms(want, |_| true), None);
            }
        }
        assert_eq!(
            good.terms(Piece::Whole(NodeId(2)), |_| true),
            None,
            "no member"
        );
    }

    /// What levels.md says of bytes: as many as a lost container has, from each of k pieces.
    #[test]
    fn one_lost_member_costs_what_it_costs_with_xor() {
        let group = group(4, 2, &[1 << 20; 6]);
        let lost = group.members[3];
        let terms = group.terms(Piece::Whole(lost), |it| it.node() != lost);
        let terms = terms.unwrap();
        assert!(terms.iter().all(|term| term.factor == 1));
        let read: u64 = terms.iter().map(|it| it.range.end - it.range.start).sum();
        assert_eq!(read, 4 << 20);
        assert_eq!(group.parity_bytes(), 2 << 18);
        let terms = group.terms(Piece::Parity(lost), |_| true).unwrap();
        let read: u64 = terms.iter().map(|it| it.range.end - it.range.start).sum();
        assert_eq!(read, 2 << 20);
    }
}

//! XOR over groups (RAID 5; SCR's XOR, deep-er, section III-D2): each member's container is cut
//! into as many segments as there are other members; each of these holds the sum of one segment
//! of every other member. One member may be lost. A member stores 1 / (members - 1) more.
//!
//! Containers that are shorter than the longest count as if zeroes followed.

use std::ops::Range;

use outlive_base::NodeId;

use crate::pieces::{Group, Layout, Piece, Term};

/// Segments begin at pages, so that they can be read past all caches.
const ALIGN: u64 = 4096;

/// The scheme.
pub struct Xor;

/// Which segment of member `whose` the parity at member `at` is made of.
fn segment_of(whose: usize, at: usize) -> usize {
    if at < whose { at } else { at - 1 }
}

/// The inverse: where the parity of a member's segment lies.
fn holder_of(whose: usize, segment: usize) -> usize {
    if segment < whose {
        segment
    } else {
        segment + 1
    }
}

impl Xor {
    /// Bytes of a segment.
    fn segment(group: &Group) -> u64 {
        let longest = group.lengths.iter().copied().max().unwrap_or(0);
        let others = group.members.len().saturating_sub(1).max(1) as u64;
        longest.div_ceil(others).next_multiple_of(ALIGN)
    }

    /// The bytes that a member has in one of its segments.
    fn range(group: &Group, member: usize, segment: usize) -> Range<u64> {
        let (size, length) = (Xor::segment(group), group.lengths[member]);
        let start = (segment as u64 * size).min(length);
        start..(start + size).min(length)
    }

    fn term(group: &Group, member: usize, segment: usize, at: u64, most: u64) -> Option<Term> {
        let range = Xor::range(group, member, segment);
        let range = range.start..range.end.min(range.start + most);
        (!range.is_empty()).then(|| Term {
            from: Piece::Whole(group.members[member]),
            range,
            at,
            factor: 1,
        })
    }

    /// The terms of the parity at one member, without one other member.
    fn sum(group: &Group, at: usize, without: usize, to: u64, most: u64) -> Vec<Term> {
        let others = (0..group.members.len()).filter(|nth| *nth != at && *nth != without);
        others
            .filter_map(|nth| Xor::term(group, nth, segment_of(nth, at), to, most))
            .collect()
    }
}

impl Layout for Xor {
    fn parity_bytes(&self, group: &Group) -> u64 {
        Xor::segment(group)
    }

    fn terms(&self, group: &Group, want: Piece, have: &dyn Fn(Piece) -> bool) -> Option<Vec<Term>> {
        let place = |node: NodeId| group.members.iter().position(|member| *member == node);
        let others = |but: usize| {
            let members = group.members.iter().enumerate();
            members
                .filter(move |(nth, _)| *nth != but)
                .map(|(_, node)| *node)
        };
        let size = Xor::segment(group);
        match want {
            Piece::Parity(node) => {
                let at = place(node)?;
                let whole = others(at).all(|node| have(Piece::Whole(node)));
                whole.then(|| Xor::sum(group, at, at, 0, size))
            }
            Piece::Whole(node) => {
                let whose = place(node)?;
                let both = |node| have(Piece::Whole(node)) && have(Piece::Parity(node));
                if !others(whose).all(both) {
                    return None;
                }
                let mut terms = Vec::new();
                for segment in 0..group.members.len() - 1 {
                    let at = Xor::range(group, whose, segment);
                    let (bytes, holder) = (at.end - at.start, holder_of(whose, segment));
                    if bytes == 0 {
                        break;
                    }
                    terms.push(Term {
                        from: Piece::Parity(group.members[holder]),
                        range: 0..bytes,
                        at: at.start,
                        factor: 1,
                    });
                    terms.extend(Xor::sum(group, holder, whose, at.start, bytes));
                }
                Some(terms)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use outlive_base::Level;
    use outlive_base::rng::Sequence;

    use super::*;

    fn add(terms: &[Term], bytes: u64, of: &BTreeMap<Piece, Vec<u8>>) -> Vec<u8> {
        let mut sum = vec![0; bytes as usize];
        for term in terms {
            let from = &of[&term.from][term.range.start as usize..term.range.end as usize];
            let into = &mut sum[term.at as usize..][..from.len()];
            into.iter_mut()
                .zip(from)
                .for_each(|(sum, byte)| *sum ^= byte);
        }
        sum
    }

    /// Any member's bytes come back from the others', whatever their lengths; two members'
    /// bytes do not.
    #[test]
    fn one_lost_member_comes_back_and_two_do_not() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        for _ in 0..200 {
            let members = 3 + random.below(6) as usize;
            let most = 1 + random.below(70_000);
            let lengths: Vec<u64> = (0..members).map(|_| random.below(most)).collect();
            let group = Group {
                level: Level::xor(members as u16).unwrap(),
                members: (0..members as u32)
                    .map(|node| NodeId(node * 2 + 1))
                    .collect(),
                lengths: lengths.clone(),
            };
            let mut pieces = BTreeMap::new();
            for (node, length) in group.members.iter().zip(&lengths) {
                let bytes = (0..*length).map(|_| random.below(256) as u8).collect();
                pieces.insert(Piece::Whole(*node), bytes);
            }
            let size = group.parity_bytes();
            assert!(size * (members as u64 - 1) >= *lengths.iter().max().unwrap());
            for node in &group.members {
                let want = Piece::Parity(*node);
                let terms = group.terms(want, |it| pieces.contains_key(&it)).unwrap();
                assert!(terms.iter().all(|term| term.from != Piece::Whole(*node)));
                let parity = add(&terms, size, &pieces);
                pieces.insert(want, parity);
            }
            for (lost, length) in group.members.iter().zip(&lengths) {
                let own = |it: Piece| it == Piece::Whole(*lost) || it == Piece::Parity(*lost);
                let terms = group.terms(Piece::Whole(*lost), |it| !own(it)).unwrap();
                assert!(terms.iter().all(|term| !own(term.from)));
                let back = add(&terms, *length, &pieces);
                assert_eq!(back, pieces[&Piece::Whole(*lost)]);
                assert!(group.survives(|it| !own(it)));
                for other in group.members.iter().filter(|other| *other != lost) {
                    let theirs =
                        |it: Piece| it == Piece::Whole(*other) || it == Piece::Parity(*other);
                    assert!(!group.survives(|it| !own(it) && !theirs(it)));
                    // Of a node that lost its parity alone nothing is missing.
                    assert!(group.survives(|it| it != Piece::Parity(*other)));
                }
            }
        }
    }
}

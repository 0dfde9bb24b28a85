//! One parity of each group, at a memory server that has made it itself (NAM XOR: deep-er,
//! sections II-B2 and III-D): the sum of all members' containers. One member may be lost, and
//! nodes store nothing but their own containers.
//!
//! The parity bears the name of the group's first member, who has the server make it. Containers
//! that are shorter than the longest count as if zeroes followed.

use outlive_base::NodeId;

use crate::pieces::{Group, Layout, Piece, Term};

/// The scheme.
pub struct Served;

impl Layout for Served {
    fn parity_bytes(&self, group: &Group) -> u64 {
        group.lengths.iter().copied().max().unwrap_or(0)
    }

    fn terms(&self, group: &Group, want: Piece, have: &dyn Fn(Piece) -> bool) -> Option<Vec<Term>> {
        let first = *group.members.first()?;
        let whole = |but: Option<NodeId>, most: u64| {
            let members = group.members.iter().zip(&group.lengths);
            let others = members.filter(|(node, _)| Some(**node) != but);
            let term = |(node, length): (&NodeId, &u64)| {
                let from = Piece::Whole(*node);
                have(from).then(|| term(from, (*length).min(most)))
            };
            others.map(term).collect::<Option<Vec<Term>>>()
        };
        let mut terms = match want {
            Piece::Parity(node) if node == first => whole(None, u64::MAX)?,
            Piece::Parity(_) => return None,
            Piece::Whole(node) => {
                let at = group.members.iter().position(|it| *it == node)?;
                let (length, parity) = (*group.lengths.get(at)?, Piece::Parity(first));
                let mut terms = vec![have(parity).then(|| term(parity, length))?];
                terms.extend(whole(Some(node), length)?);
                terms
            }
        };
        terms.retain(|term| !term.range.is_empty());
        Some(terms)
    }
}

fn term(from: Piece, length: u64) -> Term {
    Term {
        from,
        range: 0..length,
        at: 0,
        factor: 1,
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
            let into = sum[term.at as usize..].iter_mut().zip(from);
            into.for_each(|(sum, byte)| *sum ^= byte);
        }
        sum
    }

    /// Any member's bytes come back, whatever the lengths; two members' do not, nor one's without
    /// the server.
    #[test]
    fn one_lost_member_comes_back_while_the_server_is_there() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        for _ in 0..200 {
            let members = 3 + random.below(6) as usize;
            let most = 1 + random.below(70_000);
            let lengths: Vec<u64> = (0..members).map(|_| random.below(most)).collect();
            let group = Group {
                level: Level::memory_server(members as u16).unwrap(),
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
            let parity = Piece::Parity(group.members[0]);
            let terms = group.terms(parity, |it| pieces.contains_key(&it)).unwrap();
            let sum = add(&terms, group.parity_bytes(), &pieces);
            pieces.insert(parity, sum);
            for node in &group.members[1..] {
                assert_eq!(group.terms(Piece::Parity(*node), |_| true), None);
                assert!(!group.has_parity(*node));
            }
            assert!(group.has_parity(group.members[0]));
            for (lost, length) in group.members.iter().zip(&lengths) {
                let left = |it: Piece| group.is_beside(it, *lost) && pieces.contains_key(&it);
                let terms = group.terms(Piece::Whole(*lost), left).unwrap();
                let back = add(&terms, *length, &pieces);
                assert_eq!(back, pieces[&Piece::Whole(*lost)]);
                assert!(group.survives(left));
                assert!(!group.survives(|it| left(it) && it != parity));
                for other in group.members.iter().filter(|other| *other != lost) {
                    assert!(!group.survives(|it| left(it) && it != Piece::Whole(*other)));
                }
            }
            // Of a server that is lost alone nothing is missing.
            assert!(group.survives(|it| it != parity && pieces.contains_key(&it)));
        }
    }
}

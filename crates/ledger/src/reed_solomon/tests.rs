//! Whatever is lost comes back, if it can.

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

//! Trees: against their definitions written out anew, and as trees.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::cost::LogP;
use super::tree::{Order, Ring, Shape, Tree};

const UNIT: LogP = LogP {
    latency: 2,
    overhead: 1,
    gap: 1,
};
const SHAPES: [Shape; 10] = [
    Shape::Binomial,
    Shape::Kary(1),
    Shape::Kary(2),
    Shape::Kary(3),
    Shape::Kary(4),
    Shape::Kary(100),
    Shape::Lame(1),
    Shape::Lame(2),
    Shape::Lame(5),
    Shape::Optimal,
];

fn tree(shape: Shape, order: Order, processes: u32) -> Tree {
    Tree::new(shape, order, processes, &UNIT).unwrap()
}

/// Every rank but the root is the child of exactly one, and knows whose.
#[test]
fn every_tree_is_one_for_any_number_of_processes() {
    for model in [
        UNIT,
        LogP {
            latency: 7,
            overhead: 2,
            gap: 3,
        },
    ] {
        for shape in SHAPES {
            for order in [Order::Interleaved, Order::InOrder] {
                for processes in (1..70).chain([127, 128, 129, 1000]) {
                    let tree = Tree::new(shape, order, processes, &model).unwrap();
                    let mut parents = BTreeMap::new();
                    for rank in 0..processes {
                        for child in tree.children(rank) {
                            assert!(child < processes && child != 0);
                            assert_eq!(parents.insert(child, rank), None, "{shape:?} {order:?}");
                        }
                    }
                    assert_eq!(
                        parents.len() as u32,
                        processes - 1,
                        "{shape:?} {order:?} {processes}"
                    );
                    for (child, parent) in parents {
                        assert_eq!(
                            tree.parent(child),
                            Some(parent),
                            "{shape:?} {order:?} {processes}"
                        );
                        assert!(parent < child, "a parent has the lower rank");
                    }
                    assert_eq!(tree.parent(0), None);
                }
            }
        }
    }
}

/// Subtrees in order are of consecutive ranks.
#[test]
fn subtrees_in_order_are_consecutive() {
    for shape in SHAPES {
        for processes in [2, 13, 64, 100] {
            let tree = tree(shape, Order::InOrder, processes);
            for rank in 0..processes {
                let (mut open, mut below) = (vec![rank], vec![]);
                while let Some(next) = open.pop() {
                    below.push(next);
                    open.extend(tree.children(next));
                }
                below.sort_unstable();
                let end = rank + below.len() as u32;
                assert_eq!(
                    below,
                    (rank..end).collect::<Vec<_>>(),
                    "{shape:?} {processes}"
                );
            }
        }
    }
}

/// The published formulas (PPoPP 2019, section 3.2), written out.
#[test]
fn interleaved_trees_follow_their_formulas() {
    fn rts(t: u32, k: u32) -> u32 {
        if t < k {
            1
        } else {
            rts(t - 1, k) + rts(t - k, k)
        }
    }
    for processes in [5u32, 64, 100, 341] {
        for k in [1u32, 2, 3, 4] {
            let lame = tree(Shape::Lame(k), Order::Interleaved, processes);
            let kary = tree(Shape::Kary(k), Order::Interleaved, processes);
            for rank in 0..processes {
                let start = if rank == 0 {
                    0
                } else {
                    (0..).find(|&t| rts(t, k) > rank).unwrap()
                };
                let want: Vec<u32> = (0..)
                    .map(|i| rank + rts(start + i + k - 1, k))
                    .take_while(|&child| child < processes)
                    .collect();
                assert_eq!(
                    lame.children(rank).collect::<Vec<_>>(),
                    want,
                    "Lame {k} of {rank}"
                );
                if k == 1 {
                    continue;
                }
                let (mut first, mut width) = (0, 1);
                while rank >= first + width {
                    first += width;
                    width *= k;
                }
                let want: Vec<u32> = (1..=k)
                    .map(|c| rank + c * width)
                    .filter(|&child| child < processes)
                    .collect();
                assert_eq!(
                    kary.children(rank).collect::<Vec<_>>(),
                    want,
                    "{k}-ary of {rank}"
                );
            }
        }
        let binomial = tree(Shape::Binomial, Order::Interleaved, processes);
        let lame = tree(Shape::Lame(1), Order::Interleaved, processes);
        for rank in 0..processes {
            assert!(
                binomial.children(rank).eq(lame.children(rank)),
                "Lame 1 is binomial"
            );
        }
    }
}

/// Nobody is faster than the greedy tree: its end is the least time by which so many
/// can have the message, counted without any tree.
#[test]
fn the_optimal_tree_ends_when_counting_says() {
    for (latency, overhead, gap) in [
        (2, 1, 1),
        (1, 1, 2),
        (7, 2, 3),
        (0, 1, 1),
        (50, 1, 1),
        (3, 0, 4),
    ] {
        let model = LogP {
            latency,
            overhead,
            gap,
        };
        for processes in [1u32, 2, 3, 17, 100, 1000, 1024] {
            let mut informed = vec![0u64];
            let mut ports = std::collections::BinaryHeap::from([std::cmp::Reverse(0u64)]);
            while informed.len() < processes as usize {
                let std::cmp::Reverse(free) = ports.pop().unwrap();
                informed.push(free + model.delay());
                ports.push(std::cmp::Reverse(free + gap));
                ports.push(std::cmp::Reverse(free + model.delay()));
            }
            let end = *informed.iter().max().unwrap();
            for order in [Order::Interleaved, Order::InOrder] {
                let tree = Tree::new(Shape::Optimal, order, processes, &model).unwrap();
                assert_eq!(
                    tree.completion(&model),
                    end,
                    "{model:?} {processes} {order:?}"
                );
            }
        }
    }
}

/// Ends of the trees at 1024 and 65536 (quiescence of the published simulator less
/// the correction, 2L + 4o = 8) and of chains and stars by hand.
#[test]
fn completion_is_as_published() {
    for (shape, small, large) in [
        (Shape::Binomial, 40, 64),
        (Shape::Kary(4), 33, 54),
        (Shape::Lame(2), 29, 46),
        (Shape::Optimal, 24, 37),
    ] {
        for (processes, end) in [(1024, small), (65536, large)] {
            let tree = tree(shape, Order::Interleaved, processes);
            assert_eq!(tree.completion(&UNIT), end, "{shape:?} {processes}");
        }
    }
    for order in [Order::Interleaved, Order::InOrder] {
        assert_eq!(tree(Shape::Kary(1), order, 10).completion(&UNIT), 9 * 4);
        assert_eq!(tree(Shape::Kary(100), order, 50).completion(&UNIT), 48 + 4);
        assert_eq!(tree(Shape::Binomial, order, 1).completion(&UNIT), 0);
    }
    let star = LogP {
        latency: 1 << 30,
        overhead: 1,
        gap: 1,
    };
    let tree = Tree::new(Shape::Optimal, Order::Interleaved, 5000, &star).unwrap();
    assert_eq!(tree.child_count(0), 4999, "far away, the root does it all");
}

#[test]
fn bad_trees_are_refused() {
    for (shape, processes) in [
        (Shape::Kary(0), 4),
        (Shape::Lame(0), 4),
        (Shape::Binomial, 0),
        (Shape::Binomial, u32::MAX),
    ] {
        assert!(Tree::new(shape, Order::Interleaved, processes, &UNIT).is_err());
    }
    for gap in [0, 1] {
        let model = LogP {
            latency: 1,
            overhead: 2,
            gap,
        };
        assert!(Tree::new(Shape::Optimal, Order::Interleaved, 4, &model).is_err());
    }
}

#[test]
fn a_ring_turns_and_returns() {
    let ring = Ring {
        processes: 7,
        root: 5,
    };
    for rank in 0..7 {
        assert_eq!(ring.rank(ring.place(rank)), rank);
        for distance in 0..=7 {
            let right = ring.right(rank, distance);
            assert_eq!(right, (rank + distance) % 7);
            assert_eq!(ring.left(right, distance), rank);
        }
    }
    assert_eq!((ring.place(5), ring.place(4), ring.place(6)), (0, 6, 1));
}

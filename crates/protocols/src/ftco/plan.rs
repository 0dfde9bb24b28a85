//! The tree of a communicator as the collectives use it: planned once.

use outlive_base::Result;
use outlive_base::machine::Peer;

use crate::broadcast::LogP;
use crate::broadcast::tree::{Order, Ring, Shape, Tree};

/// A tree over places; place 0 is the root. With another root than rank 0 the ranks
/// are turned around the ring.
#[derive(Clone, Debug)]
pub struct Plan {
    tree: Tree,
    height: u32,
    ordered: bool,
    descending: bool,
}

impl Plan {
    /// Plans the tree over `processes` ranks; `model` matters for the optimal tree only.
    ///
    /// # Errors
    /// As [`Tree::new`]: no processes, too many, or an order or arity of 0.
    pub fn new(shape: Shape, order: Order, processes: u32, model: &LogP) -> Result<Plan> {
        let mut plan = Plan {
            tree: Tree::new(shape, order, processes, model)?,
            height: 0,
            ordered: order == Order::InOrder,
            descending: false,
        };
        plan.height = height(&plan.tree);
        let first = |i| plan.tree.child(0, i);
        plan.descending = first(1).is_some() && first(0) > first(1);
        Ok(plan)
    }
    /// How many processes.
    pub fn processes(&self) -> u32 {
        self.tree.processes()
    }
    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }
    /// True if every subtree has consecutive ranks, so that operators that do not
    /// commute may use it.
    pub fn ordered(&self) -> bool {
        self.ordered
    }
    /// True if the children of a place are served from the highest place down.
    pub fn descending(&self) -> bool {
        self.descending
    }
    /// Levels below the root.
    pub fn height(&self) -> u32 {
        self.height
    }
    /// Levels below a place, at most: what the levels above it leave of the tree's.
    pub fn height_at(&self, place: u32) -> u32 {
        let mut levels = self.height;
        let mut at = place;
        while let Some(above) = self.tree.parent(at) {
            at = above;
            levels = levels.saturating_sub(1);
        }
        levels
    }
    /// The place above; none for the root.
    pub fn parent(&self, place: u32) -> Option<u32> {
        self.tree.parent(place)
    }
    /// The places below, in the order of sending: the largest subtree first.
    pub fn children(&self, place: u32) -> impl Iterator<Item = u32> + '_ {
        self.tree.children(place)
    }
    /// The ring with this root.
    pub fn ring(&self, root: Peer) -> Ring {
        Ring {
            processes: self.processes(),
            root,
        }
    }
}

/// The longest way down. Cut off at a number of processes, a tree may have its deepest
/// part below any child, so every place is looked at, once for each plan.
fn height(tree: &Tree) -> u32 {
    let (mut highest, mut stack) = (0, vec![(0, 0)]);
    while let Some((place, depth)) = stack.pop() {
        highest = highest.max(depth);
        stack.extend(tree.children(place).map(|child| (child, depth + 1)));
    }
    highest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_bound_every_way_down() {
        let logp = LogP {
            latency: 2,
            overhead: 1,
            gap: 1,
        };
        for shape in [
            Shape::Binomial,
            Shape::Kary(1),
            Shape::Kary(3),
            Shape::Lame(2),
        ] {
            for order in [Order::Interleaved, Order::InOrder] {
                for processes in [1, 2, 5, 64, 100, 333] {
                    let plan = Plan::new(shape, order, processes, &logp).expect("valid");
                    let mut tight = processes == 1;
                    for leaf in 1..processes {
                        let (mut at, mut below) = (leaf, 0);
                        while let Some(above) = plan.parent(at) {
                            assert!(plan.height_at(at) >= below, "{shape:?} {order:?} {at}");
                            (at, below) = (above, below + 1);
                        }
                        tight |= below == plan.height();
                    }
                    assert!(tight, "someone is as deep as the tree");
                }
            }
        }
    }
}

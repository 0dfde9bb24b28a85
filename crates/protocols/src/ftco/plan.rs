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
        };
        plan.height = plan.height_at(0);
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
    /// Levels below the root.
    pub fn height(&self) -> u32 {
        self.height
    }
    /// Levels below a place: the first child has the deepest subtree in all trees.
    pub fn height_at(&self, place: u32) -> u32 {
        let (mut at, mut levels) = (place, 0);
        while let Some(child) = self.tree.child(at, 0) {
            at = child;
            levels += 1;
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

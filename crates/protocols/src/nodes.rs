//! A set of node numbers as bits: one bit a node, so that a coordinator's
//! state stays at O(nodes) bits.

use core::fmt;

/// A set of node numbers `0..nodes`.
///
/// Invariant: no bit at or above the capacity is ever set, so two sets of one
/// capacity are equal exactly when they hold the same nodes.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct NodeSet {
    words: Vec<u64>,
}

impl NodeSet {
    /// The empty set for nodes `0..nodes`.
    pub fn new(nodes: u32) -> NodeSet {
        NodeSet {
            words: vec![0; nodes.div_ceil(64) as usize],
        }
    }

    /// The set of the nodes that the iterator names; those at or above `nodes`
    /// are ignored.
    pub fn of(nodes: u32, members: impl IntoIterator<Item = u32>) -> NodeSet {
        let mut set = NodeSet::new(nodes);
        for node in members {
            if node < nodes {
                set.insert(node);
            }
        }
        set
    }

    /// Adds a node; true if it was not in the set. A node above the capacity is
    /// ignored.
    pub fn insert(&mut self, node: u32) -> bool {
        let Some(word) = self.words.get_mut((node / 64) as usize) else {
            return false;
        };
        let bit = 1 << (node % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Removes a node.
    pub fn remove(&mut self, node: u32) {
        if let Some(word) = self.words.get_mut((node / 64) as usize) {
            *word &= !(1 << (node % 64));
        }
    }

    /// True if the node is in the set.
    pub fn contains(&self, node: u32) -> bool {
        self.words
            .get((node / 64) as usize)
            .is_some_and(|word| word & (1 << (node % 64)) != 0)
    }

    /// How many nodes are in the set.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// True if no node is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// True if all of `0..nodes` are in the set.
    pub fn is_full(&self, nodes: u32) -> bool {
        self.len() == nodes
    }

    /// The nodes of the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            (0..64)
                .filter(move |bit| word & (1 << bit) != 0)
                .map(move |bit| index as u32 * 64 + bit)
        })
    }

    /// The lowest node of `0..nodes` that is not in the set.
    pub fn first_missing(&self, nodes: u32) -> Option<u32> {
        (0..nodes).find(|&node| !self.contains(node))
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        let mut set = NodeSet::new(70);
        assert!(set.is_empty());
        assert!(set.insert(3) && set.insert(69) && !set.insert(3));
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 69]);
        assert_eq!((set.len(), set.first_missing(70)), (2, Some(0)));
        set.remove(3);
        assert!(!set.contains(3) && set.contains(69));
        assert!(
            !set.insert(128) && !set.contains(1000),
            "beyond the capacity"
        );
        assert!(NodeSet::of(5, 0..9).is_full(5));
        assert_eq!(NodeSet::of(5, 0..9).first_missing(5), None);
    }
}

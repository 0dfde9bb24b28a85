//! Pieces of what a group of nodes keeps at a version, and sums of them.

use std::ops::Range;

use outlive_base::{Level, NodeId};

/// Bytes of a group of nodes at a version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Piece {
    /// A node's container.
    Whole(NodeId),
    /// The parity that a node stores.
    Parity(NodeId),
}

impl Piece {
    /// The node that has it.
    pub const fn node(self) -> NodeId {
        match self {
            Piece::Whole(node) | Piece::Parity(node) => node,
        }
    }
}

/// Bytes of a piece that are a term of a sum: bytes `at..at + range.len()` of what is wanted are
/// the sum, in GF(2^8), of all terms that reach them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Term {
    /// The piece.
    pub from: Piece,
    /// Which of its bytes.
    pub range: Range<u64>,
    /// Where they count.
    pub at: u64,
    /// What each byte is multiplied by; 1 for copies and XOR.
    pub factor: u8,
}

/// The nodes that protect each other at a level, and the lengths of their containers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// The level.
    pub level: Level,
    /// Its members, in the order that their parity was made in.
    pub members: Vec<NodeId>,
    /// Bytes of each member's container.
    pub lengths: Vec<u64>,
}

/// What a scheme with groups does.
pub trait Layout: Sync {
    /// Bytes of a parity.
    fn parity_bytes(&self, group: &Group) -> u64;
    /// The sum that gives a piece, of pieces that `have`; `None` if these are not enough.
    fn terms(&self, group: &Group, want: Piece, have: &dyn Fn(Piece) -> bool) -> Option<Vec<Term>>;
}

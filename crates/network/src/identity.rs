//! Who a peer is.

use outlive_base::NodeId;

/// Who speaks: a node slot and which life of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    /// The node, or [`NodeId::LAUNCHER`].
    pub peer: NodeId,
    /// Grows with every restart or replacement of the peer's agent. A newer
    /// epoch replaces connections of an older one; an older one is refused.
    pub epoch: u64,
}

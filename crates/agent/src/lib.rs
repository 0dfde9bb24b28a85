//! Keeper and agent of a node.

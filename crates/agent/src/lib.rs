//! Keeper and agent of a node.

pub mod keeper;

//! A container as a listing shows it.

use outlive_base::{ContainerId, Level};

use crate::store::Key;

/// A container that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Which container, by its name.
    pub id: ContainerId,
    /// Disk: the node's own; partner: kept for another; shared; or that of a parity.
    pub level: Level,
    /// Its key in the store.
    pub key: Key,
    /// What people find it by.
    pub path: String,
    /// Its length, in bytes.
    pub length: u64,
}

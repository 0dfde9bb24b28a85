//! A container's file as a listing shows it.

use std::path::PathBuf;

use outlive_base::{ContainerId, Level};
use serde::{Deserialize, Serialize};

/// A container file that was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Which container, by its name.
    pub id: ContainerId,
    /// Disk: the node's own; partner: kept for another; shared.
    pub level: Level,
    /// The file.
    pub path: PathBuf,
    /// Its length, in bytes.
    pub length: u64,
}

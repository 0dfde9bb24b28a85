//! The names of containers and of their bytes.

use outlive_base::wire::{Reader, WireError, Writer};
use outlive_base::{ContainerId, Incarnation, NodeId, Version};

/// What names the bytes of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Sealed {
    /// Which container.
    pub id: ContainerId,
    /// Length of the file, in bytes.
    pub length: u64,
    /// XXH3-128 of header and index, and so of everything.
    #[serde(with = "crate::hex128")]
    pub digest: u128,
}

impl core::fmt::Display for Sealed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "{} ({} bytes, {:032x})",
            self.id, self.length, self.digest
        )
    }
}

/// Writes a container's identity.
pub fn put_id(out: &mut Writer, id: ContainerId) {
    out.u32(id.incarnation.0).u32(id.node.0).u64(id.version.0);
}

/// Reads what [`put_id`] writes.
pub fn read_id(input: &mut Reader<'_>) -> Result<ContainerId, WireError> {
    Ok(ContainerId {
        incarnation: Incarnation(input.u32()?),
        node: NodeId(input.u32()?),
        version: Version(input.u64()?),
    })
}

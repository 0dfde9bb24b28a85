//! What is recorded of a job's checkpoints, and what follows from it: [`Record`] and its
//! bytes (`docs/format.md`), the [`Lineage`] of incarnations, and [`retention`].
//!
//! Pure: the same records lead to the same answers. `outlive-vault` reads and writes them.

mod hex128;
mod lineage;
mod record;
pub mod retention;
mod sealed;

pub use lineage::{Lineage, unfinished};
pub use record::{LIST_MAX, Part, RECORD_BYTES_MAX, Record, RecordError, TEXT_BYTES_MAX};
pub use retention::{Checkpoint, GcPolicy, Rules};
pub use sealed::{Sealed, put_id, read_id};

/// 128-bit digests as serde writes them: `#[serde(with = "outlive_ledger::digest")]`.
pub mod digest {
    pub use crate::hex128::{deserialize, serialize};
}

//! What is recorded of a job's checkpoints, and what follows from it: [`Record`] and its
//! bytes (`docs/format.md`), the [`Lineage`] of incarnations, [`retention`], and what can be made
//! of what is left ([`scheme`]).
//!
//! Pure: the same records lead to the same answers. `outlive-vault` reads and writes them.

mod hex128;
mod lineage;
mod of_job;
mod pieces;
mod ranks;
mod record;
mod reed_solomon;
pub mod retention;
pub mod scheme;
mod sealed;
mod served;
mod xor;

pub use lineage::{Lineage, may_overlook, overlooked, unfinished};
pub use of_job::OfJob;
pub use ranks::RankList;
pub use record::{
    LIST_MAX, Parity, Part, RANKS_MAX, RECORD_BYTES_MAX, Record, RecordError, TEXT_BYTES_MAX,
    put_level, read_level, word,
};
pub use retention::{Checkpoint, GcPolicy, Rules};
pub use sealed::{Sealed, put_id, read_id};

/// 128-bit digests as serde writes them: `#[serde(with = "outlive_ledger::digest")]`.
pub mod digest {
    pub use crate::hex128::{deserialize, serialize};
}

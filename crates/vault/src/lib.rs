//! Containers, records, catalogue: the checkpoint format on disk.
//!
//! `docs/format.md` is the specification. The way of a version: the agent makes a
//! [`Layout`] over the slabs of its ranks, [`write_container`] stores it while its
//! [`Layout::segments`] go to the partner, which stores them with [`store_stream`];
//! each copy is read back ([`Container::verify`]). A restart reads it into slabs
//! ([`Container::read_rank`], or [`receive`] from another node).
//!
//! All of it goes through a [`Store`]: `docs/design/store.md`. What is stored is the only
//! truth. There is no database: records are small objects, scanned by whoever wants to know.

mod again;
mod aligned;
mod catalogue;
mod census;
mod conformance;
mod container;
mod diff;
mod directory;
mod disk;
mod entry;
mod error;
mod faulty;
mod format;
mod found;
mod gc;
mod inventory;
mod layout;
mod log;
mod memory;
mod pace;
mod parity;
mod plan;
mod records;
mod rehearse;
mod reserve;
mod scratch;
mod scrub;
mod sources;
mod spares;
mod store;
mod stream;
mod sum;
mod trace;
mod values;
mod vault;
mod versions;
mod whole;
mod write;

pub use again::{Again, Unwritten, store_again};
pub use aligned::{Buffer, PAGE, Page, is_aligned};
pub use catalogue::{Catalogue, CopyCheck, Rejected};
pub use census::Census;
pub use conformance::{conform, conform_of_all};
pub use container::{Container, RankEntry, verify_written};
pub use diff::{BLOCK, Diff, RegionDiff, Uncompared};
pub use directory::Directory;
pub use entry::{CopyState, Entry, LevelState, PartState};
pub use error::{DamagedAt, ReadError, WriteError};
pub use faulty::{Act, Fate, Faults, Faulty, Odds, damage};
pub use format::{ContainerHead, FORMAT_VERSION, FRAME_BYTES, FRAME_BYTES_MAX};
pub use found::Found;
pub use gc::{GcReport, Removal};
pub use inventory::{Inventory, Mark};
pub use layout::{Layout, Print, RankImage};
pub use memory::Memory;
pub use outlive_ledger::scheme::groups;
pub use outlive_ledger::{
    Checkpoint, GcPolicy, LIST_MAX, OfJob, Parity, Part, RECORD_BYTES_MAX, Record, RecordError,
    Sealed, TEXT_BYTES_MAX,
};
pub use pace::Pace;
pub use parity::{Bytes, ParityFile, ParityHead, write_parity};
pub use records::{Exclusive, RecordStore, Scan};
pub use rehearse::{RankProof, Rehearsal};
pub use scrub::{Scrubbing, make_container, mend_container, read_container, read_parity};
pub use store::{Draft, Item, Key, Object, ObjectKind, Put, Space, Store, Unappended};
pub use stream::{Sink, receive};
pub use sum::{Opener, Pieces, Sum, make, of_received, of_the_sum};
pub use trace::Trace;
pub use values::{RegionValues, Uncounted, Values};
pub use vault::Vault;
pub use write::{THREADS, THREADS_MAX, WriteOptions, store_stream, write_container};

//! Containers, records, catalogue: the checkpoint format on disk.
//!
//! `docs/format.md` is the specification. The way of a version: the agent makes a
//! [`Layout`] over the slabs of its ranks, [`write_container`] stores it while its
//! [`Layout::segments`] go to the partner, which stores them with [`store_stream`];
//! each copy is read back ([`Container::verify`]). A restart reads it into slabs
//! ([`Container::read_rank`], or [`receive`] from another node).
//!
//! Files are the only truth. There is no database: records are small files, scanned
//! by whoever wants to know.

mod aligned;
mod container;
mod disk;
mod error;
mod format;
mod hex128;
mod layout;
mod plan;
mod stream;
mod write;

pub use aligned::{Buffer, Page, is_aligned};
pub use container::{Container, RankEntry};
pub use error::{Place, ReadError, WriteError};
pub use format::{ContainerHead, FORMAT_VERSION, FRAME_BYTES, FRAME_BYTES_MAX, PAGE, Sealed};
pub use layout::{Layout, RankImage};
pub use stream::{Sink, receive};
pub use write::{THREADS, THREADS_MAX, WriteHook, WriteOptions, store_stream, write_container};

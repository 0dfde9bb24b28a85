//! A process as data: dump it, carry it, bring it up again.
//!
//! [`freeze::freeze`] stops a tree of processes, [`dump::dump`] makes an [`model::Image`]
//! of it, [`source`] carries images through files, containers and sockets, and
//! [`restore::restore`] brings one up with its old numbers, memory, files, signals and
//! registers. Nothing here knows why a process is moved: after the death of its kernel,
//! to another node, or to an earlier time.
//!
//! Linux on x86-64 only. The page `docs/design/image.md` has the whole of it.

pub mod blame;
pub mod calls;
pub mod descriptors;
pub mod dump;
mod ended;
mod finish;
pub mod freeze;
pub mod gate;
pub mod kernel_state;
pub mod model;
mod owner;
pub mod partial;
pub mod procfs;
pub mod restore;
mod rights;
mod rseq;
mod skeleton;
pub mod source;
pub mod sys;
mod timers;
mod together;

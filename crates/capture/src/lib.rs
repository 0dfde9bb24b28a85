//! Memory shared by a rank and its agent: control block, slabs, the datagrams
//! between them, and the region table that describes what a rank protects.
//!
//! Layouts and messages are fixed in `docs/design/first-rescue.md`. Both sides run
//! as the same user, yet nothing here trusts the other: files are checked for size
//! and seals before they are mapped (so that no access can raise SIGBUS), lengths
//! are bounded before anything is reserved, and no byte of the other side can
//! cause a panic (P7).

#[cfg(target_endian = "big")]
compile_error!("the shared layouts are little-endian words");

pub mod control;
pub mod copy;
pub mod ipc;
mod mapping;
mod memory;
pub mod region;
pub mod slab;

pub use mapping::ShareError;

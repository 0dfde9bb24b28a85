//! Messages between the ranks of a job that arrive exactly once although
//! connections break and kernels below the ranks die: point-to-point with tags,
//! and the collectives that small parallel programs need.
//!
//! [`Comm`] is the Rust face; `include/outlive_sessions.h` the one for C. Both
//! stand on [`outlive_network::session`]. The C ABI is a crate of its own, on
//! the floor of the services: `network` is below it and knows no C, and
//! `outlive-client` is about checkpoints and must stay small.
//!
//! Invariants:
//! - The caller's buffers are used between a nonblocking call and its
//!   completion, never later.
//! - Only one thread at a time is in a call; a second one gets an error. A
//!   helper thread keeps connections alive while the program computes.
//! - Reductions have one order of operations that depends on the number of ranks
//!   alone, and give the same bits on every rank.

mod collectives;
mod comm;
mod ffi;
mod setup;
mod state;

pub use collectives::{ElementKind, Operator};
pub use comm::Comm;
pub use setup::Setup;
pub use state::{ANY_SOURCE, ANY_TAG, Request, Status};

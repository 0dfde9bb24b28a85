//! Broadcast to every live process, without a failure detector.
//!
//! - [`tree`]: binomial, k-ary, Lamé and optimal trees as pure functions;
//! - [`cost`]: the LogP model;
//! - [`Broadcast`]: the machine, with what it is told, says and sends;
//! - [`spanning`]: independent spanning trees, grown by corrected gossip and used by many
//!   broadcasts.

pub mod cost;
mod growth;
mod machine;
mod side;
pub mod spanning;
pub mod tree;
mod types;

#[cfg(test)]
mod tree_tests;

pub use cost::LogP;
pub use machine::Broadcast;
pub use types::{Cause, Command, Config, Correction, Dissemination, Event, Msg, Start};

/// The state of a process is small whatever the number of processes.
pub const STATE_BYTES_MAX: usize = 64;
const _: () = assert!(size_of::<Broadcast>() <= STATE_BYTES_MAX);

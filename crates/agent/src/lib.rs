//! Keeper and agent of a node.
//!
//! The keeper ([`keeper`]) owns the node's staging memory and starts the agent; the
//! agent serves the ranks over a Unix socket and its peers over TCP, runs the commit
//! and detector machines of `outlive-protocols`, and moves bytes between slabs,
//! storage and partners. `docs/design/first-rescue.md` shows how they meet.

mod asks;
mod contents;
mod core;
mod ends;
mod events;
mod faults;
mod flush;
mod ipc_server;
mod joining;
pub mod keeper;
mod machines;
mod memory;
mod opening;
mod orders;
mod passing;
mod peers;
mod policy;
mod ranks;
mod rebuild;
mod recorder;
mod rounds;
mod serving;
mod slabs;
mod streams;
mod turns;
mod workers;

pub use crate::core::run;

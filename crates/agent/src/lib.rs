//! The agent of a node.
//!
//! Its keeper ([`outlive_keeper`]) owns the node's staging memory and starts it. What an agent
//! decides is [`outlive_control::node`]; here is what it lives in: it serves the ranks over a
//! Unix socket and its peers over TCP, and moves bytes between slabs, storage and partners.
//! `docs/design/first-rescue.md` shows how they meet, `docs/design/node.md` where the line is.

mod faults;
mod flush;
pub mod fuzz;
mod health;
mod ipc_server;
mod journal;
mod kept;
mod look;
mod memory;
mod paced;
mod parity;
mod peers;
mod places;
mod queue;
mod rate;
mod rebuild;
mod record_writer;
mod reports;
mod run;
mod scrub;
mod served;
mod serving;
mod shared_records;
mod slabs;
mod stacks;
mod storage;
mod streams;
mod transfer;
mod turns;
mod workers;
mod world;

pub use run::run;

//! What a node does with bytes: copies of its versions are written to its storage, to a partner, to
//! shared storage and to a memory server, sent to whoever asks, read before they are needed, mended,
//! rebuilt and removed; its records are written in order.
//!
//! When any of it happens, and what follows, is decided by [`outlive_control::node`]; the agent
//! carries it to here. Each job gets the node's [`places`](places::Places) and what is asked for, may
//! wait for storage and for peers, and ends with what it answers: a [`Work`](memory::Work).

pub mod faults;
pub mod flush;
pub mod fuzz;
mod journal;
pub mod kept;
pub mod look;
pub mod memory;
mod paced;
pub mod parity;
mod peers;
pub mod places;
mod queue;
mod rate;
pub mod rebuild;
pub mod record_writer;
pub mod reports;
pub mod scrub;
pub mod served;
pub mod serving;
pub mod shared_records;
mod slabs;
pub mod storage;
pub mod streams;
pub mod transfer;
pub mod workers;

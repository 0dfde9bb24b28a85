//! Deterministic simulation: one event engine, networks that lose and delay, disks
//! that tear and rot, and checkers that know nothing of the code under test.
//!
//! - [`engine`]: the queue of happenings; knows no network and no protocol.
//! - [`network`], [`disk`], [`world`]: processes that run a
//!   [`outlive_base::machine::Machine`] each.
//! - [`wheel`]: a calendar for millions of short steps; [`logp`]: the world that costs
//!   what LogP and LogGP say, for the time of a protocol.
//! - [`ftco`]: collectives over a tree, with failures at any moment.
//! - [`broadcast`]: broadcasts over it, with failures; [`plot`]: pictures of runs;
//! - [`job`]: whole histories of a job's checkpoints under faults, from a seed.
//!
//! A failing seed is replayed by `outlive_simulator::job::explain(seed, ...)`,
//! or on the command line by the example `history` of this crate.

pub mod broadcast;
pub mod disk;
pub mod engine;
pub mod ftco;
pub mod job;
pub mod jobs;
pub mod logp;
pub mod network;
pub mod plot;
pub mod wheel;
pub mod world;

//! Sans-IO protocol state machines, a folder each, in the form of
//! [`outlive_base::machine::Machine`].
//!
//! - [`agreement`]: who is absent: the list that travels with contributions;
//! - [`broadcast`]: trees, gossip and their correction on the ring;
//! - [`commit`]: one decision per (incarnation, version, level), and the opening
//!   of an incarnation after a failure;
//! - [`detector`]: who is silent, who is dead.
//! - [`ftco`]: collectives over a tree that bypass the silent and the dead.
//!
//! Invariants of this crate: no clock, socket, file, thread, environment or
//! random source; no hash maps (their order is not the same on every machine);
//! no floating point. The test `purity` reads the sources and enforces it.

pub mod agreement;
pub mod broadcast;
pub mod commit;
pub mod detector;
pub mod ftco;
pub mod nodes;

pub use nodes::NodeSet;

//! Sans-IO protocol state machines, a folder each, in the form of
//! [`outlive_base::machine::Machine`].
//!
//! - [`agreement`]: who is absent: the list that travels with contributions;
//! - [`broadcast`]: trees, gossip and their correction on the ring;
//! - [`collective`]: what all collectives are asked and tell, and what their machines share;
//! - [`commit`]: one decision per (incarnation, version, level), and the opening
//!   of an incarnation after a failure;
//! - [`corrected`]: collectives by up-correction and corrected broadcast.
//! - [`detector`]: who is silent, who is dead.
//! - [`ftco`]: collectives over a tree that bypass the silent and the dead.
//! - [`reduce`]: a reduce that up to f failures cannot slow by more than one time-out.
//!
//! Invariants of this crate: no clock, socket, file, thread, environment or
//! random source; no hash maps (their order is not the same on every machine);
//! no floating point. The test `purity` reads the sources and enforces it.

pub mod agreement;
pub mod broadcast;
pub mod collective;
pub mod commit;
pub mod corrected;
pub mod detector;
pub mod ftco;
pub mod nodes;
pub mod reduce;

pub use nodes::NodeSet;

//! Collective operations for real: what drives the protocols' machines.
//!
//! An [`Engine`] holds many instances of one machine, feeds them what a [`Rail`]
//! receives, carries out what they ask for, and keeps finished instances for
//! latecomers. What the rails are, and how each knows a death: [`outlive_network::rail`].
//!
//! [`Rail`]: outlive_network::rail::Rail
//!
//! Invariants:
//! - Nothing here judges a process dead because it is slow. A rail reports a death
//!   when it knows one; all else is the protocol's time-out.
//! - Outputs of an instance are carried out in the order in which they were pulled.
//! - Memory is bounded: frames of instances that did not start here yet, finished
//!   instances kept for latecomers, and what waits to be sent ([`engine::Bounds`]).

pub mod arena;
pub mod engine;
mod wired;

pub use arena::{Arena, Operator};
pub use engine::{Engine, Start, Wired};

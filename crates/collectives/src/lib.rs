//! Collective operations for real: what drives the protocols' machines.
//!
//! An [`Engine`] holds many instances of one machine, feeds them what a [`Rail`]
//! receives, carries out what they ask for, and keeps finished instances for
//! latecomers. A rail moves frames between processes: [`threads`] in one process,
//! [`tcp`] between processes, `ucx` between processes over UCX (with the feature of
//! that name); the MPI layer adds one over the job's own point-to-point messages.
//!
//! Invariants:
//! - Nothing here judges a process dead because it is slow. A rail reports a death
//!   when it knows one (see each rail for how it knows); all else is the
//!   protocol's time-out.
//! - Outputs of an instance are carried out in the order in which they were pulled.
//! - Memory is bounded: frames of instances that did not start here yet, finished
//!   instances kept for latecomers, and what waits to be sent ([`engine::Bounds`]).
//! - Bytes from a rail are parsed by [`frame`], which cannot panic and reserves no
//!   more than arrived (P7).

pub mod arena;
pub mod engine;
pub mod frame;
pub mod rail;
pub mod tcp;
pub mod threads;
#[cfg(feature = "ucx")]
pub mod ucx;
mod wired;

pub use arena::{Arena, Operator};
pub use engine::{Engine, Start, Wired};
pub use frame::{Bytes, Content, Frame, Key};
pub use rail::Rail;

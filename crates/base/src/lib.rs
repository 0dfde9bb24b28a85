//! The ground floor: identifiers, time, errors with stable codes, bounded wire
//! framing, the counter-based random source and the [`machine::Machine`] trait.
//!
//! Nothing here touches the world: no clock, socket, file or thread. Only [`mod@seed`]
//! does, which is for tests.

pub mod control_block;
pub mod error;
pub mod id;
pub mod ipc;
pub mod level;
pub mod levels;
pub mod machine;
pub mod placement;
pub mod ports;
pub mod rng;
pub mod seed;
pub mod segments;
pub mod slab;
pub mod time;
pub mod wire;
mod words;

pub use error::{Code, Entity, Error, Result};
pub use id::{ContainerId, Incarnation, JobName, NodeId, Rank, Version};
pub use level::{Level, Survives};
pub use levels::Levels;
pub use ports::Ports;
pub use time::Time;
pub use words::count;

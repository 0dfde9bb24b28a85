//! Memory on the network: a server that owns memory, and its clients (the network attached memory
//! of DEEP-ER, sections II-B2 and III-D, without its hardware).
//!
//! A [`Server`] gives the jobs that it works for regions by name. A [`Client`] puts and gets at
//! any offset, is notified of puts, and passes messages through rings. The server itself pulls
//! from [`Exposure`]s, from other servers or from its own regions and adds up (XOR) what came, so
//! that nodes get a parity without arithmetic and without a second write.
//!
//! On one machine, bytes go directly into the region's memory; else over TCP. UCX is not spoken.
//! What the parts promise when one of them is lost is said in `docs/design/memory-server.md`.

mod client;
mod exposure;
mod fault;
mod ffi;
mod parities;
mod pool;
mod ranges;
mod server;
mod session;
mod store;
mod stream;
mod sum;
pub mod wire;

pub use client::{Client, Options, Transport, resolve};
pub use exposure::{Exposure, ReadAt};
pub use parities::Parities;
pub use pool::available;
pub use server::{Key, Options as ServerOptions, Rights, Server};
pub use wire::{About, RegionKind, Source, Stat};

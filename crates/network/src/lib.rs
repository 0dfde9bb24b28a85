//! What carries messages: authenticated connections between the agents of a job and its
//! launcher, here; between ranks [`rail`]s, which move frames, and [`session`]s.
//!
//! An [`Endpoint`] listens on one TCP address, calls peers on demand, and tells
//! what happens on a channel ([`Event`]). Peers prove to each other that they
//! hold the job's key ([`JobKey`], P7) with Noise_NNpsk0, or one who listens for many hears
//! each under a key of its own ([`Endpoint::bind_service`]); control messages are
//! always encrypted, bulk [`Stream`]s if [`Options::encrypt_streams`] says so.
//!
//! Invariants:
//! - No wait without a bound (P5): connecting, handshakes, sending, streams.
//! - No memory without a bound (P7, P9): queues, messages, callers that have
//!   not shown the key. Bytes from outside are parsed by pure functions
//!   (`wire`, `handshake`) that cannot panic.
//! - What one peer or stranger does cannot hurt another: garbage, floods,
//!   silence, a full socket end at the connection that they came from.
//! - One control connection per pair of peers; a newer epoch of a peer replaces
//!   an older one, never the other way round.
//! - Silence is not judged here: whether a peer that keeps its connection open
//!   is alive is the detector's question.
//!
//! `cargo run --release --example network-bench` compares streams with plain TCP.

pub mod channel;
mod driven;
mod endpoint;
mod event;
mod faults;
pub mod fuzz;
mod handshake;
mod identity;
mod key;
mod link;
mod options;
pub mod rail;
mod reactor;
pub mod session;
mod shared;
mod socket;
mod stream;
mod wire;

pub use driven::{Driver, Waker};
pub use endpoint::Endpoint;
pub use event::{DownReason, Event};
pub use handshake::{Guest, Guests};
pub use identity::Identity;
pub use key::{JobKey, KEY_BYTES, open_private, save_private};
pub use options::Options;
pub use socket::listen_within;
pub use stream::Stream;
pub use wire::STREAM_HEADER_BYTES_MAX;

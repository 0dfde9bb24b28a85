//! What all nodes of a job share, in an object store: S3 and what speaks its protocol, Google
//! Cloud Storage, Azure. A job whose level `shared` lies there outlives its cluster.
//!
//! Invariants: an object is there whole or not at all (uploads in parts are completed at the end,
//! or aborted); a record that decides is created only if none of its name is there, and a store
//! that does not keep to that is refused ([`Objects::probe`]); each request has a bound, and so
//! have its repetitions (P5); credentials come from where the provider's tools look for them, and
//! no message holds one (P7).

mod client;
mod draft;
mod error;
mod identity;
mod object;
mod probe;
mod store;
mod url;

pub use identity::Identity;
pub use store::Objects;
pub use url::{ObjectStoreUrl, VARIABLES};

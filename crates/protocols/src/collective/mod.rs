//! The vocabulary of collectives: what all machines that carry them out have in common.
//!
//! [`CollectiveKind`] and its row, [`Call`], [`Command`] and [`Event`] are spoken by [`crate::ftco`],
//! [`crate::corrected`] and [`crate::reduce`] alike, so a driver and a checker serve each of
//! them. Of their insides they share the numbered series of a communicator's collectives
//! (`series`) and how contributions are combined in order (`fold`); the algorithms are apart.

pub(crate) mod fold;
pub(crate) mod series;
mod types;

pub use types::*;

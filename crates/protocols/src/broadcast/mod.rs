//! Broadcast to every live process, without a failure detector.
//!
//! - [`tree`]: binomial, k-ary, Lamé and optimal trees as pure functions;
//! - [`cost`]: the LogP model.

pub mod cost;
mod growth;
pub mod tree;

#[cfg(test)]
mod tree_tests;

pub use cost::LogP;

//! Compute cores that are left alone: everything that the kernel lets be moved or calmed goes to
//! service cores while a command runs, and comes back when it has ended, however that was.
//!
//! [`plan`] says what is to be changed, [`act`] does and undoes it, [`journal`] has each change on
//! disk before it is made, and [`store`] is the directory of journals: claims, locks, and what dead
//! runs have left. All of them reach the machine through [`tree`] only.

pub mod act;
pub mod journal;
pub mod partition;
pub mod plan;
#[cfg(test)]
mod planted;
pub mod step;
pub mod store;
#[cfg(test)]
mod tests;
pub mod threads;
pub mod tree;

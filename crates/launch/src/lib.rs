//! Supervision of a launcher's command, spares, restart.
//!
//! - [`supervisor`]: what to do when something happens. Pure.
//! - [`driver`]: does it: [`store`] (directories, lock), [`fleet`] (keepers),
//!   [`command`] (the user's processes), [`watch`] (what the kernel tells), [`segments`]
//!   (the shared memory that killed ranks leave).
//! - [`jobs`]: what a store knows of its jobs; [`delete`]: their end.
//! - [`inject`], [`units`], [`input`]: what users write. [`report`], [`timeline`]: what they read.

pub mod command;
pub mod delete;
pub mod driver;
mod files;
pub mod fleet;
pub mod history;
pub mod inject;
pub mod input;
pub mod jobs;
mod leftovers;
mod owner;
pub mod process;
pub mod report;
pub mod segments;
pub mod store;
pub mod supervisor;
pub mod sys;
pub mod timeline;
pub mod units;
mod unnamed;
pub mod watch;

pub use driver::{Run, run};

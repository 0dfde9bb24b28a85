//! Supervision of a launcher's command, spares, restart.
//!
//! - [`supervisor`]: what to do when something happens. Pure.
//! - [`inject`], [`units`]: what users write.
//! - [`process`]: starting, finding and ending processes.
//! - [`report`]: what is kept of a run.

pub mod inject;
pub mod process;
pub mod report;
pub mod supervisor;
mod sys;
pub mod units;

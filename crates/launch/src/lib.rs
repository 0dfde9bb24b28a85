//! Supervision of a launcher's command, spares, restart.
//!
//! - [`driver`]: does what [`outlive_control::supervisor`] decides: [`store`] (directories,
//!   lock), [`fleet`] (keepers), [`command`] (the user's processes), [`watch`] (what the kernel
//!   tells), [`segments`] (the shared memory that killed ranks leave).
//!   Nodes that are machines of their own: [`hosts`].
//! - [`layout`]: what lies in a job's directory. [`jobs`]: what a store knows of its jobs; [`versions`]: what is stored of one; [`pins`]:
//!   versions that stay; [`delete`]: their end.
//! - [`input`]: what users write. [`sealed`]: what programs write for each other. [`timeline`]: what they read. [`record`]: what is kept of it.

pub mod command;
pub mod coordinator;
pub mod delete;
mod domains;
pub mod driver;
pub mod each;
mod emulated;
pub mod files;
pub mod fleet;
mod hangs;
#[cfg(test)]
mod harms;
pub mod history;
mod host_words;
pub mod hosts;
pub mod input;
mod job_file;
mod job_writer;
pub mod jobs;
pub mod layout;
mod leftovers;
pub mod look;
mod marks;
mod nodes;
mod owner;
pub mod pins;
mod places;
pub mod process;
pub mod prune;
mod recall;
pub mod record;
mod reporter;
mod run;
pub mod sealed;
pub mod segments;
pub mod shared;
pub mod site;
pub mod store;
pub mod sys;
mod threads;
pub mod timeline;
mod unnamed;
pub mod versions;
pub mod watch;

pub use driver::run;
pub use job_file::job_hash;
pub use run::{Machines, Run};

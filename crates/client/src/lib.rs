//! What a program links: the Rust API, and through `ffi` the C library
//! `liboutlive` (see `include/outlive.h`).
//!
//! Five calls make a program survive the loss of a node:
//!
//! ```
//! use outlive::{Job, Options, Outcome, Restored};
//!
//! let mut field = vec![0u8; 1000];
//! let mut job = Job::open(&Options::default())?;                        // 1
//! let mut step = 0;
//! if let Restored::Version(version) = job.restore_slices(&mut [("field", &mut field)])? {
//!     step = version;                                                   // 2
//! }
//! while step < 10 {
//!     job.checkpoint_slices(step, &[("field", &field)]).ok();           // 3
//!     field[step as usize] += 1;                                        // 4
//!     step += 1;
//! }
//! job.close()?;                                                         // 5
//! # Ok::<(), outlive::Error>(())
//! ```
//!
//! Without `outlive run` the same program runs as ever: every call succeeds and
//! saves nothing. The library never prints, exits or installs a signal handler
//! (P6); going on after any error is safe (P4); no wait is without a bound (P5).

pub mod environment;
mod ffi;
mod forked;
mod job;
mod link;
mod offer;
mod protected;
mod slices;
mod traced;
mod waiting;
mod writable;

pub use job::capture::Source;
pub use job::restore::{Restored, RestoredRegion};
pub use job::{DEFAULT_TIMEOUT_MS, Job, Level, Options, Outcome, Status, Waited};
pub use outlive_base::{Code, Entity, Error, Result, Survives};
pub use outlive_capture::region::{Attribute, Element, Region, RegionKind};
pub use writable::first_that_is_not as first_not_writable;

//! What a node's sensors say, and what is to be thought of it. Pure: who reads sensors gives
//! [`Sample`]s, a [`Judge`] makes a [`Report`] of them.
//!
//! Invariants: what a machine does not offer has no value and no verdict; what cannot be read is
//! unknown, with the reason, and never well; memory is bounded whatever is read; the same samples
//! at the same times give the same reports.
//!
//! [`NodeHealth`] is what travels, and what monitoring and evacuation are to go by: see "The
//! interface" in `docs/design/quiet.md`.

mod judge;
mod limits;
mod report;
mod sensors;

pub use judge::{Judge, SAMPLES_MAX};
pub use limits::{Limit, Limits, Settings};
pub use report::{CHANGES_MAX, Change, FINDINGS_MAX, Finding, NodeHealth, Report, Verdict};
pub use sensors::{ALL, Judged, Sample, Sensor, SensorRow};

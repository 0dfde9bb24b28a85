//! What the supervisor of a job and its nodes decide, and the words in which they speak. Pure:
//! drivers (`outlive-launch`, `outlive-agent`, the simulator) carry it out.
//!
//! - [`supervisor`]: what to do when something happens to the job. [`node`]: the same of a node.
//! - [`steering`]: when to checkpoint where, learned while the job runs.
//! - [`turns`]: which of several jobs writes to storage that they share.
//! - [`orders`]: what launcher and agents tell each other. [`told`]: what is not said twice.
//! - [`standstill`]: whether a job stands still. [`whereabouts`]: where its ranks are.
//! - [`health`]: what a node's sensors say, judged. [`scrubbing`]: what is read before it is needed.
//! - [`traffic`]: what they send each other, counted.
//! - [`transfers`]: how copies come to what all nodes share.
//! - [`inject`], [`units`]: what users write. [`report`]: what they read. [`ended`]: how
//!   processes end.

mod config;
pub mod ended;
pub mod health;
pub mod inject;
pub mod node;
pub mod orders;
pub mod processes;
pub mod refused;
pub mod report;
pub mod scrubbing;
mod signs;
pub mod slots;
pub mod standstill;
pub mod steering;
pub mod supervisor;
pub mod told;
pub mod traffic;
pub mod transfers;
pub mod turns;
pub mod units;
pub mod whereabouts;

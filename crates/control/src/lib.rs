//! What the supervisor of a job decides, and the words in which it speaks with the agents of
//! its nodes. Pure: drivers (`outlive-launch`, `outlive-agent`, the simulator) carry it out.
//!
//! - [`supervisor`]: what to do when something happens.
//! - [`orders`]: what launcher and agents tell each other. [`told`]: what is not said twice.
//! - [`inject`], [`units`]: what users write. [`report`]: what they read. [`ended`]: how
//!   processes end.

pub mod ended;
pub mod inject;
pub mod orders;
pub mod report;
pub mod supervisor;
pub mod told;
pub mod units;

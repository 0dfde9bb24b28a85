//! What failures cost, and how to pay least: formulas that agents, the simulator and the
//! command share.
//!
//! - [`tolerance`]: how many failures a job must be able to take.
//! - [`gossip`]: how long a broadcast by gossip should last.
//! - [`interval`]: how often to checkpoint at one level.
//! - [`machine`]: what fails, read from TOML; [`classes`]: how often which levels are left.
//! - [`fit`]: what a record of failures says.
//! - [`lifetime`]: the expected time of a job that saves at several levels.
//! - [`methods`]: the known methods; [`optimise`]: the best plan, and what would better it.
//!
//! Pure: a result is a function of its arguments, the same on every machine (sums are in a
//! fixed order, functions are `libm`'s).

pub mod classes;
pub mod fit;
pub mod gossip;
pub mod interval;
pub mod lifetime;
pub mod machine;
pub mod methods;
pub mod optimise;
pub mod spares;
pub mod tolerance;
pub mod units;

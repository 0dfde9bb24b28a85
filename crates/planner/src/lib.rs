//! What failures cost, and how to pay least: formulas that agents, the simulator and the
//! command share.
//!
//! - [`tolerance`]: how many failures a job must be able to take.
//! - [`gossip`]: how long a broadcast by gossip should last.
//! - [`interval`]: how often to checkpoint at one level.
//! - [`machine`]: what fails, read from TOML; [`classes`]: how often which levels are left.
//! - [`hindsight`]: what a run that is over paid.
//! - [`slurm`]: a machine from what a scheduler knows.
//! - [`fit`]: what a record of failures says; [`train`]: a machine that fails like it.
//! - [`lifetime`]: the expected time of a job that saves at several levels.
//! - [`online`]: when to save where, decided while the job runs.
//! - [`coordinate`]: whose turn it is on shared storage.
//! - [`methods`]: the known methods; [`optimise`]: the best plan, and what would better it.
//!
//! Pure: a result is a function of its arguments, the same on every machine (sums are in a
//! fixed order, functions are `libm`'s).

pub mod classes;
pub mod coordinate;
pub mod fit;
pub mod gossip;
pub mod hindsight;
pub mod interval;
pub mod lifetime;
pub mod machine;
pub mod methods;
pub mod online;
pub mod optimise;
pub mod slurm;
pub mod spares;
pub mod tolerance;
pub mod train;
pub mod units;

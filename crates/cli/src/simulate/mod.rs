//! `outlive simulate`: protocols under seeded faults. The same seed gives the same
//! history, byte for byte (P8).

pub mod broadcast;
mod collective;
mod commit;
mod jobs;
mod levels;
pub mod options;
mod policy;
mod turns;

use clap::{Args, Subcommand};
use outlive_base::Result;
use outlive_protocols::collective::CollectiveKind;

/// Run the protocols in simulation.
#[derive(Args, Debug)]
pub struct SimulateOptions {
    #[command(subcommand)]
    what: Simulation,
}

#[derive(Subcommand, Debug)]
enum Simulation {
    /// Commit and recovery under crashes, loss and torn writes
    Commit(commit::CommitOptions),
    /// Jobs on machines that fail, beside what the planner expects of them
    Jobs(jobs::JobsOptions),
    /// Plans for 50,000 nodes beside those of the known methods
    Levels(levels::LevelsOptions),
    /// When to checkpoint, decided while the job runs, on machines that change
    Policy(policy::PolicyOptions),
    /// Jobs that share storage, coordinated and each for itself
    Turns(turns::TurnsOptions),
    /// A broadcast by tree or gossip, corrected on the ring, with failures
    Broadcast(Box<broadcast::BroadcastOptions>),
    /// A reduction to one process over a tree, with failures
    Reduce(Box<collective::ReduceOptions>),
    /// A reduction whose result all get, over a tree, with failures
    Allreduce(Box<collective::CollectiveOptions>),
    /// A barrier over a tree, with failures
    Barrier(Box<collective::CollectiveOptions>),
}

/// Runs a simulation; 0 if no promise is broken, else 70.
pub fn run(options: &SimulateOptions) -> Result<u8> {
    match &options.what {
        Simulation::Commit(options) => commit::run(options),
        Simulation::Jobs(options) => jobs::run(options),
        Simulation::Levels(options) => levels::run(options),
        Simulation::Policy(options) => policy::run(options),
        Simulation::Turns(options) => turns::run(options),
        Simulation::Broadcast(options) => broadcast::run(options),
        Simulation::Reduce(options) => collective::reduce(options),
        Simulation::Allreduce(options) => collective::run(options, CollectiveKind::Allreduce),
        Simulation::Barrier(options) => collective::run(options, CollectiveKind::Barrier),
    }
}

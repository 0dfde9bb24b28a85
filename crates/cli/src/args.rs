//! The command line: one source for help, manual page and completions.

mod bench;

use std::path::PathBuf;

use clap::{Arg, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::checkpoints::CheckpointsOptions;
use crate::config::{KEYS, Key};
use crate::doctor::DoctorOptions;
use crate::explain::ConfigOptions;
use crate::options::RunOptions;

pub use bench::{BalanceBench, BenchOptions, Benchmark};

/// Keeps long parallel jobs running on machines that fail.
#[derive(Parser, Debug)]
#[command(
    name = "outlive",
    version,
    max_term_width = 80,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The parser, with what each option of a job is if it is not given and where else it can
/// be set, in its help.
pub fn command() -> clap::Command {
    let described = |command: clap::Command| KEYS.iter().fold(command, describe);
    let explain = |config: clap::Command| config.mut_subcommand("explain", described);
    let command = Cli::command()
        .mut_subcommand("run", described)
        .mut_subcommand("config", explain);
    let mut command = crate::usage::lenient(command);
    command.build();
    command
}

fn describe(command: clap::Command, key: &Key) -> clap::Command {
    let text = |help: Option<&clap::builder::StyledStr>| {
        help.map_or_else(String::new, ToString::to_string)
    };
    command.mut_arg(key.name.replace('-', "_"), |arg: Arg| {
        let default = match key.default {
            "" => key.decided,
            default => default,
        };
        let help = format!("{} [default: {default}]", text(arg.get_help()));
        let long = format!(
            "{help} [variable: {}] [key: {}]",
            crate::config::variable_of(key.name),
            key.name
        );
        arg.help(help).long_help(long).help_heading(key.group)
    })
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a command and keep the job alive when ranks, agents or nodes die
    Run(Box<RunOptions>),
    /// Look at stored versions: what there is, whether it is sound, what a loss would cost; delete
    /// a job
    Checkpoints(CheckpointsOptions),
    /// List all jobs of a store, or tell what is known of one job, running or not
    Status(crate::status::StatusOptions),
    /// Watch a running job: nodes, ranks, versions, rates, failures, and what it waits for
    Top(crate::view::top::TopOptions),
    /// Tell what happened to a job, or what happens while it runs
    Logs(crate::view::logs::LogsOptions),
    /// Make one page of a run: its timeline, failures, checkpoints and warnings
    Report(crate::view::report::ReportOptions),
    /// Make a trace of a run for Perfetto: captures, writes, commits and recoveries of each node
    Trace(crate::view::trace::TraceOptions),
    /// Tell what the ranks of a running job are doing: the stacks of their threads
    Stacks(crate::stacks::StacksOptions),
    /// Check what this machine offers, with a remedy for what it lacks
    Doctor(DoctorOptions),
    /// Tell how this machine is: its sensors, judged by limits that you can set
    Health(crate::health::HealthOptions),
    /// Explain the configuration: each value and where it comes from
    Config(ConfigOptions),
    /// Plan levels and intervals: what to do, what it costs, what would help
    Plan(Box<crate::plan::PlanOptions>),
    /// Let the jobs of a store take turns on its shared storage
    Coordinator(crate::coordinator::CoordinatorOptions),
    /// Own memory on the network, for the jobs whose keys it is given
    MemoryServer(crate::memory_server::MemoryServerOptions),
    /// Use a memory server: put, get, rings, sums that it computes itself
    Memory(crate::network_memory::MemoryOptions),
    /// Run the protocols in simulation
    Simulate(crate::simulate::SimulateOptions),
    /// Balance a task graph, or replay a load that changes with time
    Balance(Box<crate::balance::Balance>),
    /// Run programs that outlive a panic of their kernel
    Minickpt(Box<crate::minickpt::Minickpt>),
    /// Measure how quiet the cores are, what disturbs them, and what it costs a large job
    Noise(crate::noise::NoiseOptions),
    /// Run programs with their memory on huge pages, unchanged; tell what is huge; compare
    Pages(Box<crate::pages::PagesOptions>),
    /// Run a command on cores that are kept free of everything else; undo what a dead run left
    Quiet(Box<crate::quiet::QuietOptions>),
    /// Measure on this machine
    Bench(BenchOptions),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write those of all subcommands
    #[command(hide = true)]
    Man {
        /// Write a page for the command and for each subcommand here
        #[arg(long, value_name = "DIR")]
        out_dir: Option<PathBuf>,
    },
    /// The keeper of a node (started by run)
    #[command(hide = true)]
    Keeper {
        /// Job and node, for people who look at processes
        title: Vec<String>,
    },
    /// Stands for outlive run on a host (started by it)
    #[command(hide = true)]
    Host {
        /// The job, for people who look at processes
        job: Option<String>,
    },
    /// Runs a command on each node of a job (started by run)
    #[command(hide = true)]
    Each {
        /// Program and arguments
        #[arg(last = true, required = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Runs it on one of them (started by each)
    #[command(hide = true)]
    Member {
        /// The job, for people who look at processes
        job: Option<String>,
    },
    /// Carries bytes between a host's agent and outlive run (started by it)
    #[command(hide = true)]
    Relay {
        /// The directory of the host's sockets
        dir: PathBuf,
    },
    /// Looks at processes of a job's command (started by run)
    #[command(hide = true)]
    Look {
        /// Processes, by number
        #[arg(value_parser = clap::value_parser!(i32).range(1..))]
        processes: Vec<i32>,
    },
    /// The agent of a node (started by its keeper)
    #[command(hide = true)]
    Agent {
        /// Job and node, for people who look at processes
        title: Vec<String>,
    },
}

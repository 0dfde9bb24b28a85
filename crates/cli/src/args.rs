//! The command line: one source for help, manual page and completions.

mod bench;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::{KEYS, Key};

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
    Coordinator(crate::status::CoordinatorOptions),
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
    /// The agent of a node (started by its keeper)
    #[command(hide = true)]
    Agent {
        /// Job and node, for people who look at processes
        title: Vec<String>,
    },
}

/// Options of `outlive run` that may also come from the configuration. The name of
/// each is its key there, and `OUTLIVE_NAME` its variable.
#[derive(Args, Debug, Clone, Default)]
pub struct Settings {
    /// Directory of all jobs
    #[arg(long, value_name = "DIR")]
    pub store: Option<String>,
    /// Directory on each node for its own data
    #[arg(long, value_name = "DIR")]
    pub node_storage: Option<String>,
    /// Keep the level shared in an object store: s3://BUCKET/DIRECTORY, gs://... or az://...
    #[arg(long, value_name = "URL")]
    pub object_store: Option<String>,
    /// Where the memory server is that keeps the parities of the level memory-server:G
    #[arg(long, value_name = "HOST:PORT")]
    pub memory_server: Option<String>,
    /// Split this machine into N nodes by rank, each with its own agent and storage
    #[arg(long, value_name = "N")]
    pub emulate_nodes: Option<String>,
    /// Hosts of this file are the nodes, one on each line as for mpirun; slurm: those of the
    /// allocation. The last ones are spares
    #[arg(long, value_name = "FILE|slurm")]
    pub hosts: Option<String>,
    /// With --hosts: the command that runs another on a host, which follows it
    #[arg(long, value_name = "COMMAND", hide_short_help = true)]
    pub remote_shell: Option<String>,
    /// With --hosts: where outlive lies on them
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    pub remote_executable: Option<String>,
    /// With --hosts: the network between them, for example 10.1.0.0/16
    #[arg(long, value_name = "NETWORK", hide_short_help = true)]
    pub network: Option<String>,
    /// Failure domain of each node, in order: 0,0,1,1; or own. A partner lies in another domain
    #[arg(long, value_name = "LIST|own")]
    pub domains: Option<String>,
    /// Levels in use; level/N takes every N-th capture: memory,disk,partner,xor:4,rs:4+2,shared/4
    #[arg(long, value_name = "LIST")]
    pub levels: Option<String>,
    /// Checkpoint at versions divisible by N, or at the next version offered
    #[arg(long, value_name = "N")]
    pub every: Option<String>,
    /// Checkpoint when this time has passed; auto: when costs and failures say so, at the levels
    /// that are worth it
    #[arg(long, value_name = "TIME|auto")]
    pub interval: Option<String>,
    /// With --interval auto: checkpoints take at most this share of the time, for example 1%
    #[arg(long, value_name = "PERCENT")]
    pub overhead_max: Option<String>,
    /// With --interval auto: a failure that a level survives costs at most this much computing
    #[arg(long, value_name = "TIME")]
    pub redo_max: Option<String>,
    /// With --interval auto: the run is ended from outside after this time; the last checkpoint
    /// is made in time
    #[arg(long, value_name = "TIME")]
    pub time_limit: Option<String>,
    /// Staging memory of each node; must hold two slots of its ranks
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Nodes that may take the place of lost ones
    #[arg(long, value_name = "N")]
    pub spares: Option<String>,
    /// Restarts of the command at most; 0: supervise only
    #[arg(long, value_name = "N")]
    pub max_restarts: Option<String>,
    /// When versions were committed and none can be restored: stop, or begin anew (fresh)
    #[arg(long, value_name = "stop|fresh")]
    pub on_nothing_usable: Option<String>,
    /// When the ranks live and come no further: say where they are (report), restart from the
    /// newest version too, or end the job (kill)
    #[arg(long, value_name = "report|restart|kill")]
    pub on_hang: Option<String>,
    /// First delay before a restart that follows a start without progress; doubles each time
    #[arg(long, value_name = "TIME")]
    pub backoff: Option<String>,
    /// Time from SIGTERM to SIGKILL when the command is ended in order
    #[arg(long, value_name = "TIME")]
    pub kill_grace: Option<String>,
    /// Versions to keep on each level
    #[arg(long, value_name = "N")]
    pub keep: Option<String>,
    /// Read stored copies again after so long, and mend what is damaged; off: never
    #[arg(long, value_name = "TIME|off")]
    pub scrub_every: Option<String>,
    /// Bytes a second that each node reads for it at most
    #[arg(long, value_name = "SIZE")]
    pub scrub_rate: Option<String>,
    /// Encrypt bulk data between nodes too
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub encrypt: Option<String>,
    /// Write numbers for Prometheus here while the job runs: a file, or outlive-JOB.prom in a
    /// directory that is there
    #[arg(long, value_name = "PATH")]
    pub metrics: Option<String>,
    /// Time between two heartbeats of an agent
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    pub heartbeat: Option<String>,
    /// Silence after which a node is suspected
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    pub suspect_timeout: Option<String>,
    /// Silence after which a suspected node is dead
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    pub dead_timeout: Option<String>,
    /// Bound of the answers to an arming round
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    pub arm_timeout: Option<String>,
    /// Bound from the first capture of a version to its commit
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    pub commit_timeout: Option<String>,
    /// Bound of inventory and rebuild at a restart
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    pub recovery_timeout: Option<String>,
    /// Bound of the flushes still under way when the job ends
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    pub drain_timeout: Option<String>,
    /// Bound from a keeper's start to its agent's first word
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    pub start_timeout: Option<String>,
    /// Time without a newer version after which the ranks make no progress (--on-hang)
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    pub hang_timeout: Option<String>,
    #[command(flatten)]
    pub shared: crate::copies::SharedSettings,
    #[command(flatten)]
    pub health: crate::health::HealthSettings,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outlive run -- mpirun -n 8 ./app
  outlive run --job heat --every 20 --emulate-nodes 4 --spares 1 \\
      --inject node:2@version=60 --report report.json -- mpirun -n 8 ./heat2d

The exit status is 0 when the job ended well, else that of the failure that ended it.")]
pub struct RunOptions {
    #[command(flatten)]
    pub settings: Settings,
    /// Name of the job: the same name and store is the same job [default: a new one]
    #[arg(long, value_name = "NAME", help_heading = "Where data lies")]
    pub job: Option<String>,
    /// Configuration file, read after the system's and the user's
    /// [default: only those]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Cause a fault: rank:3@version=40, node:2@10s, freeze:node:1@5s,for=2s,
    /// partition:, slow:, corrupt:, full:; may be given often [default: none]
    #[arg(long, value_name = "FAULT", help_heading = "Faults and reports")]
    pub inject: Vec<String>,
    /// Write the report here too, as JSON [default: STORE/JOB/report.json alone]
    #[arg(long, value_name = "FILE", help_heading = "Faults and reports")]
    pub report: Option<PathBuf>,
    /// Restore nothing, whatever is stored: begin anew, also if the job ended well
    #[arg(long, help_heading = "Checkpoints")]
    pub fresh: bool,
    /// Show errors only
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Show more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Let MPI libraries add up in one order, so that a restarted job has the same bits;
    /// costs the fastest algorithms on a node
    #[arg(long)]
    pub reproducible: bool,
    /// Serve MPI_Bcast, Reduce, Allreduce and Barrier of the ranks by liboutlive_mpi.so
    /// [default: native]
    #[arg(long, value_name = "HOW", help_heading = "Collectives of MPI programs")]
    pub collectives: Option<Collectives>,
    /// What the collectives' messages travel on [default: the library chooses]
    #[arg(long, value_name = "RAIL", requires = "collectives")]
    #[arg(help_heading = "Collectives of MPI programs")]
    pub collectives_rail: Option<CollectivesRail>,
    /// Corrected collectives: how many failures they tolerate [default: 1]
    #[arg(
        long,
        value_name = "F",
        requires = "collectives",
        help_heading = "Collectives of MPI programs"
    )]
    pub collectives_failures: Option<u32>,
    /// Corrected collectives: as many failures as this mean time between failures of the whole
    /// job suggests [default: not used]
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "collectives_duration",
        help_heading = "Collectives of MPI programs"
    )]
    #[arg(conflicts_with = "collectives_failures")]
    pub collectives_mtbf: Option<f64>,
    /// How long the job runs, for --collectives-mtbf, which needs it [default: none]
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "collectives_mtbf",
        help_heading = "Collectives of MPI programs"
    )]
    pub collectives_duration: Option<f64>,
    /// The probability with which more may fail, for --collectives-mtbf [default: 0.000001]
    #[arg(
        long,
        value_name = "P",
        requires = "collectives_mtbf",
        help_heading = "Collectives of MPI programs"
    )]
    pub collectives_risk: Option<f64>,
    /// Corrected collectives: spanning trees that are kept from call to call, at least F + 1
    /// [default: F + 2 for corrected-gossip, else 0: none]
    #[arg(
        long,
        value_name = "K",
        requires = "collectives",
        help_heading = "Collectives of MPI programs"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=32))]
    pub collectives_trees: Option<u32>,
    /// The command, started as it is written
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Which collectives.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collectives {
    /// Fault-tolerant collective operations: survivors get a result
    Ftco,
    /// The same by up-correction and a corrected tree: up to f failures cost no waiting
    CorrectedTree,
    /// The same by up-correction and corrected gossip
    CorrectedGossip,
    /// The MPI library's own
    Native,
}

/// What the collectives' messages travel on.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollectivesRail {
    /// The job's own MPI messages
    Mpi,
    /// Our own TCP connections
    Tcp,
    /// Our own connections over UCX, where the library was built with it
    Ucx,
}

/// Which job.
#[derive(Args, Debug, Clone)]
pub struct JobChoice {
    /// Name of the job [default: the only one, or the one used last]
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    /// Directory of all jobs [default: from the configuration]
    #[arg(long, value_name = "DIR")]
    pub store: Option<String>,
    /// Configuration file, read after the system's and the user's [default: only those]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct DoctorOptions {
    /// Directory of all jobs [default: from the configuration]
    #[arg(long, value_name = "DIR")]
    pub store: Option<String>,
    /// The object store of a job: written to, and a decision made there [default: from the
    /// configuration]
    #[arg(long, value_name = "URL")]
    pub object_store: Option<String>,
    /// Check all hosts of this file, or those of the Slurm allocation, and the ways between them
    /// [default: from the configuration; else this machine alone]
    #[arg(long, value_name = "FILE|slurm", help_heading = "Hosts")]
    pub hosts: Option<String>,
    /// With --hosts: directory on each of them for its own data [default: from the configuration]
    #[arg(long, value_name = "DIR", help_heading = "Hosts")]
    pub node_storage: Option<String>,
    /// With --hosts: the command that runs another on a host, which follows it [default: ssh]
    #[arg(long, value_name = "COMMAND", help_heading = "How they are reached")]
    pub remote_shell: Option<String>,
    /// With --hosts: where outlive lies on them [default: where this one does]
    #[arg(long, value_name = "PATH", help_heading = "How they are reached")]
    pub remote_executable: Option<String>,
    /// With --hosts: the network between them, for example 10.1.0.0/16 [default: any]
    #[arg(long, value_name = "NETWORK", help_heading = "Hosts")]
    pub network: Option<String>,
    /// With --hosts: how long an answer is waited for
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        help_heading = "How they are reached"
    )]
    pub within: String,
    /// Stands on a host for who asks (started by it)
    #[arg(long, hide = true)]
    pub answer: bool,
    /// Configuration file, read after the system's and the user's [default: only those]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct CheckpointsOptions {
    /// Without one: list all jobs of the store, or the versions of --job
    #[command(subcommand)]
    pub action: Option<CheckpointsAction>,
    #[command(flatten)]
    pub choice: JobChoice,
}

#[derive(Args, Debug)]
pub struct DeleteOptions {
    /// Name of the job
    #[arg(
        value_name = "JOB",
        required_unless_present = "job",
        conflicts_with = "job"
    )]
    pub name: Option<String>,
    /// Name of the job, said as to the other commands [default: JOB]
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Directory of all jobs [default: from the configuration]
    #[arg(long, value_name = "DIR")]
    pub store: Option<String>,
    /// Where the nodes keep their data, if the job's own files cannot tell
    /// [default: what the job's files say]
    #[arg(long, value_name = "DIR")]
    pub node_storage: Option<String>,
    /// Configuration file, read after the system's and the user's [default: only those]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Delete without a question
    #[arg(short, long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand, Debug)]
pub enum CheckpointsAction {
    /// List versions with their levels and state
    List {
        /// List also versions that newer ones have replaced
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        choice: JobChoice,
    },
    /// Show one version: its containers, copies and records
    Show {
        /// The version [default: the newest]
        version: Option<u64>,
        #[command(flatten)]
        choice: JobChoice,
    },
    /// Read and compare stored bytes with their checksums
    Verify {
        /// Check only headers and records, not the data
        #[arg(long)]
        shallow: bool,
        #[command(flatten)]
        choice: JobChoice,
    },
    /// Tell which regions changed from one version to another, and how much
    Diff(crate::diff::DiffOptions),
    /// Pin a version: it stays whatever is newer, in this run and in later ones
    Pin {
        /// The version
        version: u64,
        #[command(flatten)]
        choice: JobChoice,
    },
    /// Take a pin away: newer versions may replace the version again
    Unpin {
        /// The version
        version: u64,
        #[command(flatten)]
        choice: JobChoice,
    },
    /// Remove versions that newer ones have replaced, and what killed processes left, of a job that
    /// does not run
    Prune(crate::prune::PruneOptions),
    /// Delete a job: all its versions and whatever else it keeps, on its nodes too
    Delete(DeleteOptions),
    /// Would the job survive this loss now? Tried by rebuilding into a scratch directory
    Rehearse {
        /// What is lost, for example node:2 or node:2,node:3; may be given often
        /// [default: nothing]
        #[arg(long, value_name = "NODES", value_delimiter = ',')]
        lose: Vec<String>,
        /// Where to rebuild [default: a temporary directory in the job's]
        #[arg(long, value_name = "DIR")]
        scratch: Option<PathBuf>,
        #[command(flatten)]
        choice: JobChoice,
    },
}

#[derive(Args, Debug)]
pub struct ConfigOptions {
    #[command(subcommand)]
    pub action: ConfigAction,
}

#[derive(Subcommand, Debug)]
pub enum ConfigAction {
    /// Print each value and where it comes from
    Explain {
        #[command(flatten)]
        settings: Box<Settings>,
        /// Configuration file, read after the system's and the user's [default: only those]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

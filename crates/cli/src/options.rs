//! Options that several commands have, and those of `outlive run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::quiet::cores::Cores;

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
    /// Hosts of this file are the nodes, one on each line as for mpirun; slurm, pbs: those of the
    /// batch job. The last ones are spares
    #[arg(long, value_name = "FILE|slurm|pbs")]
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
    /// With --hosts: the TCP ports that are open between them, for example 20000-20099
    #[arg(long, value_name = "FIRST-LAST", hide_short_help = true)]
    pub ports: Option<String>,
    /// Start COMMAND once, on this machine, or each: once on every node
    #[arg(long, value_name = "once|each")]
    pub start: Option<String>,
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
    /// With --interval auto: the run is ended this long after SIGUSR1; a last checkpoint is made
    /// as late as is safe
    #[arg(long, value_name = "TIME")]
    pub notice: Option<String>,
    /// With --notice: this signal announces a preemption. After a last checkpoint at a level that
    /// outlives the nodes the run is ended in order
    #[arg(long, value_name = "TERM|USR1")]
    pub preempt_signal: Option<String>,
    /// With --interval auto: power of the job's nodes while they compute, for example 90kW; with
    /// --watts-checkpoint energy is saved rather than time, in later runs of the job too; off: not
    /// any more
    #[arg(long, value_name = "POWER")]
    pub watts_compute: Option<String>,
    /// Their power while a checkpoint blocks the program, storage included
    #[arg(long, value_name = "POWER")]
    pub watts_checkpoint: Option<String>,
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
    /// Nodes that take turns at a node's second copies, version by version (level partner): whoever
    /// loses a node and its partner of one version has the one before
    #[arg(long, value_name = "N")]
    pub partners: Option<String>,
    /// Give up versions with such numbers in regions of which the program has said what numbers
    /// they have
    #[arg(long, value_name = "nan,inf|off")]
    pub refuse: Option<String>,
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
    /// Time for which no rank joins while the command runs and not all have, after which it is
    /// told; if it is given, --on-hang holds too
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    pub join_timeout: Option<String>,
    #[command(flatten)]
    pub shared: SharedSettings,
    #[command(flatten)]
    pub health: HealthSettings,
    #[command(flatten)]
    pub service: ServiceOptions,
}

/// Options of `outlive run` that concern the level `shared`.
#[derive(Args, Debug, Clone, Default)]
pub struct SharedSettings {
    /// What copies in shared storage are made of: node storage, so that no memory is held
    /// meanwhile, or the memory of the version itself
    #[arg(long, value_name = "disk|memory", hide_short_help = true)]
    pub shared_from: Option<String>,
    /// Bytes a second that each node writes to shared storage at most
    #[arg(long, value_name = "SIZE|off")]
    pub shared_rate: Option<String>,
    /// Bytes a second that all nodes of the job write there together at most
    #[arg(long, value_name = "SIZE|off", hide_short_help = true)]
    pub shared_rate_job: Option<String>,
    /// Take turns on shared storage with the jobs of another store, whose coordinator has issued
    /// this invitation
    #[arg(long, value_name = "FILE")]
    pub coordinator: Option<String>,
}

/// Options of `outlive run` that concern work of agents that need not be done at once.
#[derive(Args, Debug, Clone, Default)]
pub struct ServiceOptions {
    /// Do what need not be done at once (reading of copies, sensors, --daemon) on all
    /// nodes at the same time, so that ranks that wait for each other lose it once: 1s/50ms
    #[arg(long, value_name = "PERIOD/LENGTH|off", hide_short_help = true)]
    pub service_slots: Option<String>,
    /// Run this shell command on each node beside the ranks: in slots, if there are any, else all the time
    #[arg(long, value_name = "COMMAND|off", hide_short_help = true)]
    pub daemon: Option<String>,
}

/// Options of `outlive run` that concern health.
#[derive(Args, Debug, Clone, Default)]
pub struct HealthSettings {
    /// Time between two readings of the sensors of each node; off: they are not read
    #[arg(long, value_name = "TIME|off", hide_short_help = true)]
    pub health_interval: Option<String>,
    /// From where on sensors warn and from where on they say that something is failing:
    /// cpu-steal=5/20,major-faults=off
    #[arg(long, value_name = "LIST", hide_short_help = true)]
    pub health_limits: Option<String>,
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
    #[command(flatten)]
    pub cores: Cores,
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

/// Which job, named as a word of its own as well: of commands that take no other.
#[derive(Args, Debug, Clone)]
pub struct NamedChoice {
    /// Name of the job, as --job says it
    #[arg(value_name = "JOB", conflicts_with = "job")]
    pub name: Option<String>,
    #[command(flatten)]
    pub choice: JobChoice,
}

impl NamedChoice {
    /// The choice.
    pub fn chosen(self) -> JobChoice {
        let JobChoice { job, .. } = &self.choice;
        JobChoice {
            job: self.name.or_else(|| job.clone()),
            ..self.choice
        }
    }
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

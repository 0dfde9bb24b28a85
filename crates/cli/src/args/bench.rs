//! The command line of `outlive bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Args, Debug)]
pub struct BenchOptions {
    /// What to measure
    pub what: Benchmark,
    /// save, recovery: MiB of the program's memory, over all ranks
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub mib: u64,
    /// Pairs of measurements (of balance and collectives-cost: none)
    #[arg(long, value_name = "N", default_value_t = 9)]
    pub rounds: usize,
    /// Where the job keeps its files: the storage to measure [default: that of temporary files]
    #[arg(long, value_name = "DIR", visible_alias = "store")]
    pub dir: Option<PathBuf>,
    /// recovery: a frozen node too, at the default bounds (takes long)
    #[arg(long)]
    pub frozen: bool,
    #[command(flatten)]
    pub agents: crate::bench::AgentsBench,
    #[command(flatten)]
    pub levels: LevelsBench,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub balance: BalanceBench,
    #[command(flatten)]
    pub collectives: CollectivesBench,
    /// What a process of the measured job is (set by bench itself)
    #[arg(long, hide = true)]
    pub role: Option<String>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "levels and tiers only (also --nodes, --ranks, --dir)")]
pub struct LevelsBench {
    /// levels: the protections to measure, each alone
    #[arg(
        long,
        value_name = "LEVEL,...",
        value_delimiter = ',',
        default_value = "memory,disk,partner,xor:4,rs:2+2,memory-server:4,shared"
    )]
    pub levels: Vec<String>,
    /// The program's memory, over all ranks
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub bytes: String,
    /// Versions that are measured; levels: and pairs of runs on all cores
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub versions: u32,
    /// A further option of outlive run, for example --run-option=--encrypt; may be given
    /// often [default: none]
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub run_option: Vec<String>,
    /// tiers: bytes a second that all nodes write to shared storage together at most
    #[arg(
        long,
        value_name = "SIZE|off",
        default_value = "32MiB",
        allow_hyphen_values = true
    )]
    pub shared_rate: String,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "collectives and collectives-cost only (levels: --ranks)")]
pub struct CollectivesBench {
    /// collectives: numbers of real processes [default: 8,16,32]; levels: ranks of the job
    /// [default: one for each node, at least one for each core]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub ranks: Option<Vec<u32>>,
    /// collectives: silence after which a process is bypassed
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub timeout_ms: u64,
    /// collectives-cost: up to two to the power of this many simulated processes
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub log2_processes: u32,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "balance only (hybrid: --processes, --tolerance)")]
pub struct BalanceBench {
    /// shock, cloud, hot-spot, or a large load in one place: surge-2d, surge-3d,
    /// surge-geometric, surge-triangles [default: shock and cloud]
    #[arg(long)]
    pub scenario: Option<String>,
    /// Seed of what a scenario draws
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Every case that docs/measured/balance.md shows: shock with 96 (all its steps), 384, 768,
    /// 1536 and 6144 processes, cloud with 96, 384 and 768 (all its steps). Takes hours
    #[arg(long, conflicts_with_all = ["processes", "first", "shrink"])]
    pub every_case: bool,
    /// Numbers of processes [default: 96,768 for shock, 96 for cloud; hybrid:
    /// 8192,16384,131072]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub processes: Option<Vec<usize>>,
    /// Steps of the scenario
    #[arg(long, value_name = "S", default_value_t = 5)]
    pub steps: u32,
    /// The step whose loads the first partition is made for [default: the middle]
    #[arg(long, value_name = "STEP")]
    pub first: Option<u32>,
    /// Divide the extent of the graph along each axis, for a quick run
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub shrink: usize,
    /// Imbalance that all are asked for
    #[arg(long, value_name = "X", default_value_t = 0.02)]
    pub tolerance: f64,
    /// The partitioners to compare with, if installed: none, zoltan-rcb, zoltan-hsfc, zoltan-phg,
    /// zoltan-phg-repartition, scotch, scotch-remap, metis, metis-remap (METIS, with the parts
    /// named so that most tasks stay) [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub peers: Option<Vec<String>>,
    /// For ours: what a moved task is worth in cut edges
    #[arg(
        long,
        value_name = "W,...",
        value_delimiter = ',',
        default_value = "0.1,0.5,1,3"
    )]
    pub prices: Vec<f64>,
    /// The same, for peers that start from a partition
    #[arg(
        long,
        value_name = "W,...",
        value_delimiter = ',',
        default_value = "0.1,1,10,100"
    )]
    pub peer_prices: Vec<f64>,
    /// A process that cuts more than this many times the mean has its borders refined whole, by
    /// ours; 0: all processes
    #[arg(long, value_name = "X", default_value_t = 1.5)]
    pub ragged: f64,
    /// The same for a process that cuts more than this many times what a cube of as many tasks
    /// would cut
    #[arg(long, value_name = "X", default_value_t = 1.1)]
    pub compact: f64,
    /// Seconds of processor time after which a partitioner is given up
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub timeout: u64,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Benchmark {
    /// Blocked time, added time and background writing of a save
    Save,
    /// Small and frequent checkpoints of a job that keeps all cores busy
    Small,
    /// A call that is skipped
    Skip,
    /// Detection, rebuild and restore
    Recovery,
    /// What keeper, agent and launcher use while nothing happens
    Idle,
    /// What many agents send each other and the launcher: opening, checkpoint, recovery
    Agents,
    /// Each protection: bytes a second beside the limit of its bytes, and what it costs
    Levels,
    /// Shared storage written directly, and through node storage: what a program waits for
    Tiers,
    /// Save, small, skip, recovery and idle, in one table
    All,
    /// Load balancing against the partitioners that are installed
    Balance,
    /// A tree of domains against one central leader: time and memory
    Hybrid,
    /// A plan for 50,000 nodes and five levels; simulated jobs
    Plan,
    /// The simulator: a corrected broadcast over 2^20 processes
    Simulate,
    /// An Allreduce after real processes were killed
    Collectives,
    /// Messages and steps of collectives without failures, beside the native algorithms
    CollectivesCost,
}

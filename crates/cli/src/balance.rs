//! `outlive balance`: balance a task graph from a file, or replay a scenario.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use outlive_balance::command;
use outlive_balance::plot;
use outlive_balance::replay::Settings;
use outlive_balance::scenario::Scenario;
use outlive_balance::{Processes, parse};
use outlive_base::{Code, Entity, Error, Result};

use outlive_launch::input;

use crate::output;

/// The longest file of a graph or a partition.
const GRAPH_BYTES_MAX: u64 = 1 << 36;

/// Groups of options.
const DATA: &str = "Graph and partition";
const SCENARIO: &str = "Scenario";
const METHOD: &str = "Method";
const DIFFUSION: &str = "Diffusion only";
const HYBRID: &str = "Hybrid only";
const OUTPUT: &str = "Output";

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Balance {
    #[command(subcommand)]
    replay: Option<Sub>,
    /// The task graph: .graph (METIS) or .mtx (MatrixMarket) [default: none, it is needed]
    #[arg(long, value_name = "FILE", help_heading = DATA)]
    graph: Option<PathBuf>,
    /// The number of parts (processes) [default: none, it is needed]
    #[arg(long, value_name = "N", help_heading = DATA)]
    parts: Option<usize>,
    /// Start from this partition, a file with the part of each vertex on its own line
    /// [default: equal runs of vertex numbers, smoothed]
    #[arg(long, value_name = "FILE", help_heading = DATA)]
    parts_in: Option<PathBuf>,
    /// Write the new partition there [default: not written]
    #[arg(long, value_name = "FILE", help_heading = DATA)]
    parts_out: Option<PathBuf>,
    /// What the processes can do, a line for each: its speed (0: it is gone) and, if there is
    /// any, the load that it carries anyway and that cannot move [default: all alike]
    #[arg(long, value_name = "FILE", help_heading = DATA)]
    capacities: Option<PathBuf>,
    #[command(flatten)]
    how: How,
}

#[derive(Subcommand, Debug)]
enum Sub {
    /// Replay a scenario step by step.
    Replay(Replay),
}

#[derive(Args, Debug)]
struct Replay {
    /// shock, cloud, random, hot-spot, drift, node-loss, or a large load in one place: surge-2d,
    /// surge-3d, surge-geometric or surge-triangles.
    scenario: String,
    /// The number of processes.
    #[arg(long, value_name = "N", help_heading = SCENARIO)]
    processes: usize,
    /// Steps to run [default: all that the scenario has after --first]
    #[arg(long, value_name = "S", help_heading = SCENARIO)]
    steps: Option<u32>,
    /// The step whose loads the initial partition is made for.
    #[arg(long, value_name = "STEP", default_value_t = 0, help_heading = SCENARIO)]
    first: u32,
    /// Divide the extent of the graph along each axis, for a quick run.
    #[arg(long, value_name = "K", default_value_t = 1, help_heading = SCENARIO)]
    shrink: usize,
    /// Draw imbalance, migration and the largest edge-cut over the steps as SVG
    /// [default: no picture]
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    curves: Option<PathBuf>,
    #[command(flatten)]
    how: How,
}

#[derive(Args, Debug)]
struct How {
    /// diffusion, scratch (a fresh partition under names that keep tasks at home), auto (the
    /// better of these two), hybrid, greedy, refine, greedy-refine, rcb or sfc.
    #[arg(long, default_value = "diffusion", help_heading = METHOD)]
    method: String,
    /// Imbalance (max over average, minus 1) that is good enough.
    #[arg(long, value_name = "X", default_value_t = 0.02, help_heading = METHOD)]
    tolerance: f64,
    /// Edge weight that keeping a task at home is worth, in average edges.
    #[arg(long, value_name = "W", default_value_t = 0.1, help_heading = METHOD)]
    migration_price: f64,
    /// The part of the tolerance that flows leave alone, from 0 to 1.
    #[arg(long, value_name = "X", default_value_t = 0.5, help_heading = DIFFUSION)]
    slack: f64,
    /// What it is worth to smooth the border of a process that cuts far more
    /// than others, in average edges.
    #[arg(long, value_name = "W", default_value_t = 0.2, help_heading = DIFFUSION)]
    shape: f64,
    /// A process that cuts more than this many times the mean is ragged: its borders are refined
    /// whole and smoothed. 0: those of all processes, for loads that wander for long.
    #[arg(long, value_name = "X", default_value_t = 1.5, help_heading = DIFFUSION)]
    ragged: f64,
    /// A process that cuts more than this many times what a cube of as many tasks would cut is
    /// ragged too, where tasks have coordinates and there are at least 500 per process.
    #[arg(long, value_name = "X", default_value_t = 1.1, help_heading = DIFFUSION)]
    compact: f64,
    /// Layers of tasks along a border that refinement may move.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = DIFFUSION)]
    depth: u32,
    /// Without the second flow, which keeps to links that carry much.
    #[arg(long, help_heading = DIFFUSION)]
    one_flow: bool,
    /// The method of each level, from the leaves up: greedy, refine or
    /// diffusion, then refine or diffusion; the last holds for all above.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "refine",
        help_heading = HYBRID
    )]
    levels: Vec<String>,
    /// Processes in a leaf domain.
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = HYBRID)]
    group: usize,
    /// Children of a domain.
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = HYBRID)]
    fan_out: usize,
    /// Seed of everything that is drawn.
    #[arg(long, default_value_t = 1, help_heading = METHOD)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Draw the result as SVG [default: no picture]
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    plot: Option<PathBuf>,
}

impl How {
    fn settings(&self) -> Result<Settings> {
        let mut settings = Settings::default();
        settings.hybrid.levels = command::levels(&self.levels)?;
        settings.hybrid.group = self.group;
        settings.hybrid.fan_out = self.fan_out;
        settings.diffusion.tolerance = self.tolerance;
        settings.diffusion.migration_price = self.migration_price;
        settings.diffusion.slack = self.slack;
        settings.diffusion.shape = self.shape;
        settings.diffusion.ragged = self.ragged;
        settings.diffusion.compact = self.compact;
        settings.diffusion.band_depth = self.depth;
        settings.diffusion.narrow = !self.one_flow;
        settings.diffusion.seed = self.seed;
        Ok(settings)
    }
}

/// Runs the command; what it prints goes to standard output.
///
/// # Errors
/// Bad options (exit status 64), bad files (65), files that cannot be read or
/// written (74).
pub fn run(command: &Balance) -> Result<()> {
    match &command.replay {
        Some(Sub::Replay(replay)) => run_replay(replay),
        None => run_graph(command),
    }
}

fn run_graph(command: &Balance) -> Result<()> {
    let path = needed("graph", command.graph.as_ref())?;
    let count = *needed("parts", command.parts.as_ref())?;
    let method = command::method(&command.how.method)?;
    let name = path.display().to_string();
    let graph = command::graph(&name, &read(path)?)?;
    let start = match &command.parts_in {
        Some(path) => Some((path.display().to_string(), read(path)?)),
        None => None,
    };
    let start = start
        .as_ref()
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    let settings = command.how.settings()?;
    let processes = match &command.capacities {
        Some(path) => parse::capacities(&read(path)?, count)
            .map_err(|error| error.at(Entity::File(path.display().to_string())))?,
        None => Processes::uniform(count)?,
    };
    let (report, parts) =
        command::balance(&graph, &processes, method, start, &settings, &cpu_seconds)?;
    if let Some(path) = &command.parts_out {
        write(path, &parse::write_partition(&parts))?;
    }
    if let Some(path) = &command.how.plot {
        let title = format!(
            "{name}, {}, {}",
            outlive_base::count(count as u64, "part"),
            report.method
        );
        write(path, &plot::partition(&graph, &parts, &title))?;
    }
    print(&command.how, &report, &report.figures)
}

fn run_replay(replay: &Replay) -> Result<()> {
    let kind = command::kind(&replay.scenario)?;
    let method = command::method(&replay.how.method)?;
    let mut scenario = Scenario::new(kind, replay.processes, replay.shrink, replay.how.seed)?;
    let left = kind.steps().saturating_sub(replay.first.saturating_add(1));
    let range = (replay.first, replay.steps.unwrap_or(left));
    let settings = replay.how.settings()?;
    let (report, picture) =
        command::run_scenario(&mut scenario, method, range, &settings, &cpu_seconds)?;
    if let Some(path) = &replay.how.plot {
        write(path, &picture)?;
    }
    if let Some(path) = &replay.curves {
        let title = format!("{}, {}", report.scenario, report.method);
        write(path, &plot::steps(&report.steps, &title))?;
    }
    print(&replay.how, &report, &report.mean)
}

fn needed<'a, T>(option: &str, value: Option<&'a T>) -> Result<&'a T> {
    value.ok_or_else(|| {
        Error::new(
            Code::InvalidArgument,
            Entity::Option(option.into()),
            "missing",
            "give --graph FILE --parts N, or: replay SCENARIO --processes N",
        )
    })
}

fn print<T: serde::Serialize>(
    how: &How,
    report: &T,
    figures: &outlive_balance::replay::Figures,
) -> Result<()> {
    let text = match how.json {
        true => serde_json::to_string(report).map_err(|e| Error::internal(e.to_string()))?,
        false => format!(
            "imbalance     {:.4} (before {:.4})\n\
             migration     {:.4} (of all tasks {:.4})\n\
             edge-cut      {:.4} max, {} total\n\
             time          {:.3} ms\n\
             iterations    {}",
            figures.imbalance,
            figures.imbalance_before,
            figures.migration,
            figures.migration_total,
            figures.edge_cut_max,
            figures.edge_cut_total,
            figures.seconds_max_per_process * 1e3,
            figures.iterations
        ),
    };
    output::text(&text).map(drop)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    input::read(path, GRAPH_BYTES_MAX)
}

fn write(path: &PathBuf, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| Error::io(path, "write", &error))
}

/// Processor time of this thread, in seconds: other work on the machine does not
/// count.
pub fn cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

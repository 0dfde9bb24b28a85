//! `outlive plan`: at which levels to save, how often, and what that costs.
//!
//! Everything is decided by `outlive_planner`; here it is read, asked, and said in words,
//! as JSON or as a picture.

mod picture;
mod report;
mod slurm;
mod trace;
mod words;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use outlive_base::{Error, Result};
use outlive_launch::input;
use outlive_planner::classes::{Classes, classes};
use outlive_planner::lifetime::{Lifetime, Pattern, Question, lifetime};
use outlive_planner::machine::{self, Job, Level, Machine};
use outlive_planner::methods::{self, Method};
use outlive_planner::optimise::{self, Plan, Sensitivity};
use outlive_planner::spares::InRepair;
use serde::Serialize;

use crate::output;

/// Options of `outlive plan`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outlive plan --machine machine.toml --job job.toml
  outlive plan --machine machine.toml --job job.toml --compare all --plot plan.svg

The files are described in docs/how-to/plan.md; --example prints a pair to
start from.")]
pub struct PlanOptions {
    /// What fails, and at which levels a job can save (TOML) [default: none, it is needed]
    #[arg(long, value_name = "FILE", required_unless_present_any = ["example", "report", "from_slurm"])]
    machine: Option<PathBuf>,
    /// The job: nodes, work, bytes of a checkpoint (TOML) [default: none, it is needed]
    #[arg(long, value_name = "FILE", required_unless_present_any = ["example", "report", "from_slurm"])]
    job: Option<PathBuf>,
    /// Methods to put beside the plan [default: none]
    #[arg(long, value_name = "METHODS")]
    compare: Option<Compare>,
    /// Failures that were recorded (CSV): fit them, and replay them under each plan
    /// [default: none]
    #[arg(long, help_heading = "Recorded failures", value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Take the failures of the machine from the first part of the record, so much of its
    /// time, and replay only the rest [default: not done]
    #[arg(long, help_heading = "Recorded failures", value_name = "SHARE", requires = "trace", value_parser = share)]
    train: Option<f64>,
    /// Draw the expected time over the interval and its parts as SVG [default: not drawn]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Of what can only be estimated: events that hit parts of large groups
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print a machine or a job to start from [default: none]
    #[arg(long, help_heading = "Instead of a plan", value_name = "WHICH", conflicts_with_all = ["machine", "job", "compare", "trace", "plot", "json"])]
    example: Option<Example>,
    /// Judge a run that is over by its report: what it paid, and what the best interval would
    /// have paid [default: none]
    #[arg(long, help_heading = "Instead of a plan", value_name = "FILE", conflicts_with_all = ["machine", "job", "compare", "trace", "plot", "example"])]
    report: Option<PathBuf>,
    /// Print the machine that Slurm describes, asked of its commands or read from nodes.txt,
    /// topology.conf and sacct.txt in DIR [default: not done]
    #[arg(long, help_heading = "Instead of a plan", value_name = "DIR", num_args = 0..=1, conflicts_with_all = ["machine", "job", "compare", "trace", "plot", "json", "example", "report"])]
    from_slurm: Option<Option<PathBuf>>,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Compare {
    /// All known methods
    All,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Example {
    /// A machine of 1,024 nodes
    Machine,
    /// A job on it
    Job,
    /// A machine of 50,000 nodes and five levels, after FFMK 2020
    Exascale,
    /// Instances of a cloud that may be taken away, and an object store
    Spot,
    /// A few nodes with local disks and one file server
    Lab,
}

/// A share above 0 and below 1.
fn share(text: &str) -> std::result::Result<f64, String> {
    let share = text.parse::<f64>().ok();
    let share = share.filter(|share| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| "give a number between 0 and 1, for example 0.5".to_owned())
}

const MACHINE: &str = include_str!("plan/machine.toml");
const JOB: &str = include_str!("plan/job.toml");
const EXASCALE: &str = include_str!("bench/plan.toml");
const SPOT: &str = include_str!("plan/spot.toml");
const LAB: &str = include_str!("plan/lab.toml");

/// What was found.
pub(crate) struct Found {
    machine: Machine,
    job: Job,
    levels: Vec<Level>,
    classes: Classes,
    plan: Plan,
    question: Question,
    sensitivity: Vec<Sensitivity>,
    others: Vec<Other>,
    /// Known methods that have no plan for this question.
    silent: Vec<Method>,
}

/// A known method's plan, in the same model.
struct Other {
    method: Method,
    levels: Vec<usize>,
    pattern: Pattern,
    lifetime: Lifetime,
}

/// Says what to do.
pub fn run(options: &PlanOptions) -> Result<u8> {
    match options.example {
        Some(Example::Machine) => return output::bytes(MACHINE.as_bytes()),
        Some(Example::Job) => return output::bytes(JOB.as_bytes()),
        Some(Example::Exascale) => return output::bytes(EXASCALE.as_bytes()),
        Some(Example::Spot) => return output::bytes(SPOT.as_bytes()),
        Some(Example::Lab) => return output::bytes(LAB.as_bytes()),
        None => {}
    }
    if let Some(path) = &options.report {
        return report::run(path, options.json);
    }
    if let Some(directory) = &options.from_slurm {
        return output::bytes(slurm::machine(directory.as_deref())?.as_bytes());
    }
    let read = |path: &Option<PathBuf>| {
        let path = path.as_deref().unwrap_or(std::path::Path::new(""));
        let text = input::read_text(path, input::TEXT_BYTES_MAX)?;
        Ok::<_, Error>((text, path.display().to_string()))
    };
    let (text, name) = read(&options.machine)?;
    let machine = machine::machine(&text, &name)?;
    let (text, name) = read(&options.job)?;
    let job = machine::job(&text, &name, &machine)?;
    let trace = match &options.trace {
        Some(path) => Some(trace::read(path, machine.nodes.count)?),
        None => None,
    };
    let machine = match (&trace, options.train) {
        (Some(trace), Some(share)) => trace::replay::trained(&machine, trace, share)?,
        _ => machine,
    };
    let found = find(machine, job, options)?;
    let share = options.train.unwrap_or(0.0);
    let told = trace.map(|trace| trace::tell(&trace, &found, share, options.seed));
    if let Some(path) = &options.plot {
        let drawn = picture::draw(&found)?;
        std::fs::write(path, drawn)
            .map_err(|error| Error::io(path, "write the picture", &error))?;
    }
    match options.json {
        true => output::json(&answer(&found, told.as_ref())),
        false => {
            let told = told.as_ref().map(trace::describe).unwrap_or_default();
            output::text(&(words::describe(&found) + &told))
        }
    }
}

fn find(machine: Machine, job: Job, options: &PlanOptions) -> Result<Found> {
    let levels = machine::priced(&machine, &job);
    let classes = classes(&machine, &job, &levels, options.seed);
    let plan = optimise::best(&job, &levels, &classes)?;
    let question = Question::new(&job, &levels, &classes, &plan.levels);
    let sensitivity = optimise::sensitivity(&question, &plan.pattern)?;
    let (mut others, mut silent) = (Vec::new(), Vec::new());
    if options.compare.is_some() {
        let all: Vec<usize> = (0..levels.len()).collect();
        let whole = Question::new(&job, &levels, &classes, &all);
        for method in Method::ALL {
            let Some((used, pattern)) = methods::plan(method, &whole) else {
                silent.push(method);
                continue;
            };
            let question = Question::new(&job, &levels, &classes, &used);
            let lifetime = lifetime(&question, &pattern)?;
            others.push(Other {
                method,
                levels: used,
                pattern,
                lifetime,
            });
        }
    }
    Ok(Found {
        machine,
        job,
        levels,
        classes,
        plan,
        question,
        sensitivity,
        others,
        silent,
    })
}

#[derive(Serialize)]
struct Answer<'a> {
    schema: &'static str,
    machine: &'a str,
    job: &'a str,
    nodes: u32,
    work_seconds: f64,
    stops_per_hour: f64,
    interval_seconds: f64,
    levels: Vec<LevelAnswer<'a>>,
    expected: Expected,
    /// Null where the machine says nothing of repairs or spares.
    spares: Option<SparesAnswer>,
    sensitivity: Vec<Saved<'a>>,
    methods: Vec<MethodAnswer<'a>>,
    /// Null without a trace.
    trace: Option<&'a trace::Told>,
}

#[derive(Serialize)]
struct LevelAnswer<'a> {
    name: &'a str,
    /// 0: not used.
    every: u32,
    cost_seconds: f64,
    background_seconds: f64,
    restart_seconds: f64,
    fails_per_hour: f64,
    fails_error: f64,
    losses_per_hour: f64,
    away_share: f64,
}

/// Null: the job does not end.
#[derive(Serialize)]
struct Expected {
    seconds: Option<f64>,
    overhead: Option<f64>,
    checkpoint_seconds: f64,
    lost_seconds: Option<f64>,
    restart_seconds: f64,
    new_beginnings: f64,
}

#[derive(Serialize)]
struct SparesAnswer {
    spares: u32,
    in_repair: f64,
    waiting_seconds: Option<f64>,
    one_more_saves_seconds: Option<f64>,
}

#[derive(Serialize)]
struct Saved<'a> {
    input: &'a str,
    saved_seconds: f64,
}

#[derive(Serialize)]
struct MethodAnswer<'a> {
    name: &'static str,
    source: &'static str,
    interval_seconds: f64,
    levels: Vec<UsedAnswer<'a>>,
    expected: Expected,
}

#[derive(Serialize)]
struct UsedAnswer<'a> {
    name: &'a str,
    every: u32,
}

fn expected(of: &Lifetime) -> Expected {
    let finite = |value: f64| value.is_finite().then_some(value);
    Expected {
        seconds: finite(of.total),
        overhead: finite(of.overhead()),
        checkpoint_seconds: of.checkpoint,
        lost_seconds: finite(of.lost),
        restart_seconds: of.restart,
        new_beginnings: of.anew,
    }
}

fn spares(found: &Found) -> Option<SparesAnswer> {
    let finite = |value: f64| value.is_finite().then_some(value);
    let spares = found.machine.nodes.spares?;
    let repair = InRepair::of(&found.machine, &found.job)?;
    let waiting = |spares: u32| repair.waiting(found.plan.lifetime.total, spares);
    let (now, more) = (waiting(spares), waiting(spares.saturating_add(1)));
    Some(SparesAnswer {
        spares,
        in_repair: repair.mean,
        waiting_seconds: finite(now),
        one_more_saves_seconds: finite(now - more),
    })
}

fn answer<'a>(found: &'a Found, told: Option<&'a trace::Told>) -> Answer<'a> {
    let level = |(place, level): (usize, &'_ Level)| -> LevelAnswer<'_> {
        let used = found.plan.levels.iter().position(|&used| used == place);
        let fails = found.classes.fails(place);
        LevelAnswer {
            name: &found.levels[place].name,
            every: used.map_or(0, |used| found.plan.pattern.multiples[used]),
            cost_seconds: level.cost,
            background_seconds: level.background,
            restart_seconds: level.restart,
            fails_per_hour: fails.rate * 3600.0,
            fails_error: fails.error * 3600.0,
            losses_per_hour: found.classes.losses[place] * 3600.0,
            away_share: found.classes.away(place),
        }
    };
    let method = |other: &'_ Other| MethodAnswer {
        name: other.method.name(),
        source: other.method.source(),
        interval_seconds: other.pattern.interval,
        levels: other
            .levels
            .iter()
            .zip(&other.pattern.multiples)
            .map(|(&level, &every)| UsedAnswer {
                name: &found.levels[level].name,
                every,
            })
            .collect(),
        expected: expected(&other.lifetime),
    };
    let saved = found.sensitivity.iter();
    Answer {
        schema: "outlive.plan/1",
        machine: &found.machine.name,
        job: &found.job.name,
        nodes: found.job.nodes,
        work_seconds: found.job.work,
        stops_per_hour: found.classes.total() * 3600.0,
        interval_seconds: found.plan.pattern.interval,
        levels: found.levels.iter().enumerate().map(level).collect(),
        expected: expected(&found.plan.lifetime),
        spares: spares(found),
        sensitivity: saved
            .map(|one| Saved {
                input: &one.input,
                saved_seconds: one.saved,
            })
            .collect(),
        methods: found.others.iter().map(method).collect(),
        trace: told,
    }
}

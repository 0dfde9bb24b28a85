//! `outlive bench plan`: what a plan costs, on one machine and on random ones, and how fast
//! jobs are simulated.

mod random;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use outlive_base::Result;
use outlive_planner::classes::classes;
use outlive_planner::{machine, optimise};
use outlive_simulator::jobs;

use super::bytes;
use super::machine::{self as here, Machine};
use super::table::{Goal, Row, Table};
use crate::args::BenchOptions;

/// 50,000 nodes and five levels.
const MACHINE: &str = include_str!("plan.toml");
const JOB: &str = "nodes = 50000\nwork = \"100 h\"\ncheckpoint = \"60 GB\"\nrestart = \"60 s\"";
/// Goals on a machine of two cores.
const SECONDS_MAX: f64 = 1.0;
const NODE_HOURS_MIN: f64 = 1e8;
/// Intervals of each simulated run.
const INTERVALS: u64 = 2_000;

/// Random machines in each round.
const MACHINES: u64 = 10;

/// Plans for random machines.
#[derive(Default)]
struct Sample {
    /// Seconds that each took.
    seconds: Vec<f64>,
    /// Of a core: the planner uses one.
    processor: Vec<f64>,
    /// The overhead that is expected under each plan.
    overheads: Vec<f64>,
    hopeless: usize,
    /// The machine whose plan took longest: its seed, and the seconds.
    slowest: (u64, f64),
}

impl Sample {
    fn plan(&mut self, seed: u64) -> Result<()> {
        let (machine, job) = random::texts(seed);
        let machine = machine::machine(&machine, "random machine")?;
        let job = machine::job(&job, "random job", &machine)?;
        let levels = machine::priced(&machine, &job);
        let rates = classes(&machine, &job, &levels, 1);
        let (start, used) = (Instant::now(), bytes::used());
        let plan = optimise::best(&job, &levels, &rates);
        let seconds = start.elapsed().as_secs_f64();
        self.processor.push(bytes::used() - used);
        self.seconds.push(seconds);
        if seconds > self.slowest.1 {
            self.slowest = (seed, seconds);
        }
        match plan {
            Ok(plan) => self.overheads.push(100.0 * plan.lifetime.overhead()),
            Err(_) => self.hopeless += 1,
        }
        Ok(())
    }

    /// The most processor time that a plan took.
    fn slowest_of_a_core(&self) -> f64 {
        self.processor.iter().copied().fold(0.0, f64::max)
    }

    /// What so large a share of the plans takes at most.
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let at = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(at.max(1) - 1).copied().unwrap_or(0.0)
    }
}

/// Runs the benchmark: each round makes a plan and simulates the job under it.
pub fn measure(options: &BenchOptions) -> Result<Table> {
    let mut table = Table::new("plan", Machine::here());
    let machine = machine::machine(MACHINE, "plan.toml")?;
    let job = machine::job(JOB, "job", &machine)?;
    let levels = machine::priced(&machine, &job);
    let (mut seconds, mut rates, mut hours) = (Vec::new(), Vec::new(), Vec::new());
    let mut processor = Vec::new();
    let mut sample = Sample::default();
    let clock = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = clock.map_or(0, |since| since.as_secs() % 1_000_000) * 1_000;
    for round in 0..options.rounds.max(1) {
        for machine in 0..MACHINES {
            sample.plan(seed + MACHINES * round as u64 + machine)?;
        }
        let start = Instant::now();
        let rate = classes(&machine, &job, &levels, 1);
        rates.push(start.elapsed().as_secs_f64());
        let (start, used) = (Instant::now(), bytes::used());
        let plan = optimise::best(&job, &levels, &rate)?;
        seconds.push(start.elapsed().as_secs_f64());
        processor.push(bytes::used() - used);
        let used: Vec<_> = plan
            .levels
            .iter()
            .map(|&level| levels[level].clone())
            .collect();
        let start = Instant::now();
        let found = jobs::estimate(
            &machine,
            &job,
            &used,
            &plan.pattern,
            INTERVALS,
            round as u64,
        );
        let node_hours = found.sum.total / 3600.0 * f64::from(job.nodes);
        hours.push(node_hours / start.elapsed().as_secs_f64());
    }
    table.rows = vec![
        Row::new("rates of 50,000 nodes and five levels", "s", &rates),
        Row::new("the best plan for them", "s", &seconds).goal(Goal::AtMost(SECONDS_MAX)),
        Row::new("the best plan for them, of a core", "s", &processor)
            .goal(Goal::AtMost(SECONDS_MAX)),
        Row::new(
            "the best plan for a random machine: median",
            "s",
            &[sample.quantile(0.5)],
        ),
        Row::new("99 % of random machines", "s", &[sample.quantile(0.99)]),
        Row::new("the slowest random machine", "s", &[sample.quantile(1.0)])
            .goal(Goal::AtMost(SECONDS_MAX)),
        Row::new(
            "the slowest random machine, of a core",
            "s",
            &[sample.slowest_of_a_core()],
        )
        .goal(Goal::AtMost(SECONDS_MAX)),
        Row::new(
            "expected overhead on random machines",
            "%",
            &sample.overheads,
        ),
        Row::new("simulated, exponential lives", "node-hours/s", &hours)
            .goal(Goal::AtLeast(NODE_HOURS_MIN)),
    ];
    table.notes.push(format!(
        "plan: {} random machines, seeds from {seed}; slowest: {}; no plan makes headway on {}",
        sample.seconds.len(),
        sample.slowest.0,
        sample.hopeless
    ));
    table
        .notes
        .push(format!("plan: load {} at the end", here::load()));
    Ok(table)
}

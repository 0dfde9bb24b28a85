//! `outlive bench plan`: what a plan costs, and how fast jobs are simulated.

use std::time::Instant;

use outlive_base::Result;
use outlive_planner::classes::classes;
use outlive_planner::{machine, optimise};
use outlive_simulator::jobs;

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

/// Runs the benchmark: each round makes a plan and simulates the job under it.
pub fn measure(options: &BenchOptions) -> Result<Table> {
    let mut table = Table::new("plan", Machine::here());
    let machine = machine::machine(MACHINE, "plan.toml")?;
    let job = machine::job(JOB, "job", &machine)?;
    let levels = machine::priced(&machine, &job);
    let (mut seconds, mut rates, mut hours) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..options.rounds.max(1) {
        let start = Instant::now();
        let rate = classes(&machine, &job, &levels, 1);
        rates.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        let plan = optimise::best(&job, &levels, &rate)?;
        seconds.push(start.elapsed().as_secs_f64());
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
        Row::new("simulated, exponential lives", "node-hours/s", &hours)
            .goal(Goal::AtLeast(NODE_HOURS_MIN)),
    ];
    table
        .notes
        .push(format!("plan: load {} at the end", here::load()));
    Ok(table)
}

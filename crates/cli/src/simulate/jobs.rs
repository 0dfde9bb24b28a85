//! `outlive simulate jobs`: the planner's model beside a simulation of components.

use clap::Args;
use outlive_base::{Result, rng};
use outlive_simulator::jobs::grid::{Compared, cases};
use outlive_simulator::jobs::spares::{self, Waits};
use serde::Serialize;

use crate::output;

#[derive(Args, Debug)]
pub struct JobsOptions {
    /// Intervals of each of the 64 runs of a case
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    intervals: u64,
    /// Of all failures
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    schema: &'static str,
    seed: u64,
    cases: Vec<Case>,
    outside: usize,
    /// Jobs that wait for nodes.
    waits: Vec<Wait>,
}

/// Shares of the time.
#[derive(Serialize)]
struct Wait {
    name: String,
    expected: f64,
    simulated: f64,
    half_width: f64,
    inside: bool,
}

#[derive(Serialize)]
struct Case {
    name: String,
    expected: f64,
    simulated: f64,
    half_width: f64,
    stops: u64,
    inside: bool,
}

/// Compares all cases; 0 whatever comes out, for a figure is no failure.
pub fn run(options: &JobsOptions) -> Result<u8> {
    let mut found: Vec<Compared> = Vec::new();
    // Failures of their own: one history that is out of the common would be so in many cases.
    let seed = |table, number: usize| rng::draw(options.seed, table, number as u64);
    for (number, case) in cases().into_iter().enumerate() {
        found.push(case.compare(options.intervals, seed(0, number))?);
    }
    let outside = found.iter().filter(|case| !case.inside()).count();
    let mut waits: Vec<Waits> = Vec::new();
    for (number, case) in spares::cases().into_iter().enumerate() {
        waits.push(case.compare(options.intervals, seed(1, number))?);
    }
    if options.json {
        let case = |case: &Compared| Case {
            name: case.name.clone(),
            expected: case.expected,
            simulated: case.simulated.overhead,
            half_width: case.simulated.half_width(),
            stops: case.simulated.sum.stops,
            inside: case.inside(),
        };
        let cases = found.iter().map(case).collect();
        return output::json(&Answer {
            schema: "outlive.simulate.jobs/1",
            seed: options.seed,
            cases,
            outside,
            waits: waits.iter().map(wait).collect(),
        });
    }
    output::text(&(grid(&found, outside) + &in_repair(&waits)))
}

fn wait(of: &Waits) -> Wait {
    Wait {
        name: of.name.clone(),
        expected: of.expected,
        simulated: of.simulated,
        half_width: of.half_width,
        inside: of.inside(),
    }
}

/// The analysis beside simulation, as a table.
fn grid(found: &[Compared], outside: usize) -> String {
    let head = [
        "case",
        "expected",
        "simulated",
        "99.9 %",
        "overhead off",
        "time off",
        "stops",
        "",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for case in found {
        rows.push(vec![
            case.name.clone(),
            format!("{:.4}", case.expected),
            format!("{:.4}", case.simulated.overhead),
            format!("+- {:.4}", case.simulated.half_width()),
            format!("{:+.2} %", 100.0 * case.overhead_difference()),
            format!("{:+.2} %", 100.0 * case.time_difference()),
            case.simulated.sum.stops.to_string(),
            if case.inside() { "" } else { "outside" }.to_owned(),
        ]);
    }
    let worst = found
        .iter()
        .map(|case| case.time_difference().abs())
        .fold(0.0, f64::max);
    let last = format!(
        "{} cases, {outside} outside the 99.9 % interval, times off by at most {:.2} %",
        found.len(),
        100.0 * worst
    );
    format!("{}\n{last}", output::table(&rows))
}

/// Jobs that wait for nodes, as a table.
fn in_repair(waits: &[Waits]) -> String {
    let head = [
        "waiting for nodes, of the time",
        "expected",
        "simulated",
        "99.9 %",
        "",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let percent = |share: f64| format!("{:.3} %", 100.0 * share);
    for of in waits {
        rows.push(vec![
            of.name.clone(),
            percent(of.expected),
            percent(of.simulated),
            format!("+- {}", percent(of.half_width)),
            if of.inside() { "" } else { "outside" }.to_owned(),
        ]);
    }
    format!("\n\n{}", output::table(&rows))
}

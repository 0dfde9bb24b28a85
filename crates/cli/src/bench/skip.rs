//! `outlive bench skip`: what a call costs that saves nothing.

use std::time::Duration;

use outlive_base::Result;

use super::machine::{self, Machine};
use super::save::STRIDE;
use super::session::{Scratch, Session, word};
use super::table::{Goal, Row, Stat, Table};
use crate::args::BenchOptions;

/// Goal of a call.
const CALL_NS: f64 = 50.0;
/// Ranks of the job that calls all the time.
const RANKS: usize = 8;
/// Work between two calls, in microseconds.
const WORK_US: u64 = 100;
/// Pairs of loops at each rank, and calls in each: loops so short that most run
/// without losing their core, so many pairs that their median is known well enough.
const PAIRS: u64 = 1000;
const CALLS: u64 = 10;

/// Runs the benchmark.
pub fn measure(options: &BenchOptions) -> Result<Table> {
    let mut table = Table::new("skip", Machine::here());
    let scratch = Scratch::new(options.dir.as_deref())?;
    calls(&mut table, &scratch, options.rounds.max(1))?;
    job(&mut table, &scratch)?;
    table
        .notes
        .push(format!("skip: load {} at the end", machine::load()));
    Ok(table)
}

fn settings(every: &str) -> [&str; 8] {
    [
        "--emulate-nodes",
        "1",
        "--levels",
        "memory",
        "--every",
        every,
        "--memory",
        "64MiB",
    ]
}

fn calls(table: &mut Table, scratch: &Scratch, rounds: usize) -> Result<()> {
    // So far apart that none is taken.
    let every = u32::MAX.to_string();
    let mut session = Session::start(scratch, "call", 1, &settings(&every))?;
    session.gather(1)?;
    session.all("fill 65536 1")?;
    session.all("open")?;
    session.one(0, "skip 1")?;
    let mut rust = Vec::new();
    for round in 1..=rounds as u64 {
        let answer = session.one(0, &format!("skip {}", round * 2 * STRIDE))?;
        rust.push(word(&answer, 1));
    }
    session.finish()?;
    let mut session = Session::start(scratch, "call-c", 1, &settings(&every))?;
    session.gather(1)?;
    let answer = session.one(0, "skip-c")?;
    let c: Vec<f64> = (1..answer.len()).map(|nth| word(&answer, nth)).collect();
    session.finish()?;
    table
        .rows
        .push(Row::new("skipped call, C", "ns", &c).goal(Goal::AtMost(CALL_NS)));
    table
        .rows
        .push(Row::new("skipped call, Rust", "ns", &rust).goal(Goal::AtMost(CALL_NS)));
    Ok(())
}

/// The interval that holds the median of what was drawn with a probability of 95 %,
/// whatever the distribution: by order statistics (David and Nagaraja, Order
/// Statistics, section 7.1).
fn median_interval(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let half = 1.96 * n.sqrt() / 2.0;
    let low = (n / 2.0 - half).floor().max(0.0) as usize;
    let high = ((n / 2.0 + half).ceil() as usize).min(sorted.len().saturating_sub(1));
    let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
    (at(low), at(high))
}

fn job(table: &mut Table, scratch: &Scratch) -> Result<()> {
    let every = u32::MAX.to_string();
    let mut session = Session::start(scratch, "job", RANKS, &settings(&every))?;
    session.gather(RANKS)?;
    session.all("fill 65536 1")?;
    session.all("open")?;
    session.all(&format!("calibrate {WORK_US}"))?;
    session.all("offer 1 0")?;
    std::thread::sleep(Duration::from_millis(300));
    let services = session.services();
    let used = |services: &[(u32, String)]| -> f64 {
        services
            .iter()
            .map(|(pid, _)| machine::core_seconds(*pid))
            .sum()
    };
    let (before, start) = (used(&services), std::time::Instant::now());
    let answers = session.together(&format!("turns {PAIRS} {CALLS} 10"))?;
    let seconds = start.elapsed().as_secs_f64();
    let services_share = (used(&services) - before) / seconds / machine::cores() as f64;
    session.finish()?;
    let pairs = |answer: &Vec<String>| -> Vec<f64> {
        (1..answer.len())
            .map(|nth| word(answer, nth) / 1e4)
            .collect()
    };
    let lost: Vec<f64> = answers.iter().flat_map(pairs).collect();
    let (low, high) = median_interval(&lost);
    let what = format!("lost by {RANKS} ranks that call every {WORK_US} us");
    table
        .rows
        .push(Row::new(what, "%", &lost).goal(Goal::AtMost(0.1)));
    let what = format!("  at most, by the 95 % interval from {low:.3}");
    table
        .rows
        .push(Row::new(what, "%", &[high]).goal(Goal::AtMost(0.1)));
    table.rows.push(Row::new(
        "  keeper, agent and launcher meanwhile",
        "% of the machine",
        &[services_share * 100.0],
    ));
    table.rows.push(
        Row::new(
            "  both together",
            "%",
            &[Stat::of(&lost).median + services_share * 100.0],
        )
        .goal(Goal::AtMost(0.1)),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_the_median_is_that_of_the_tables() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        // Tabulated for n = 100: the 40th and 61st value.
        assert_eq!(median_interval(&values), (41.0, 61.0));
        assert_eq!(median_interval(&[3.0]), (3.0, 3.0));
        assert_eq!(median_interval(&[]), (0.0, 0.0));
    }
}

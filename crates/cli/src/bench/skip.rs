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
/// Pairs of loops, and calls in each.
const PAIRS: u64 = 100;
const CALLS: u64 = 100;

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
    let lost: Vec<f64> = answers.iter().map(|answer| word(answer, 1) / 1e4).collect();
    let what = format!("lost by {RANKS} ranks that call every {WORK_US} us");
    table
        .rows
        .push(Row::new(what, "%", &lost).goal(Goal::AtMost(0.1)));
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

//! `outlive bench idle`: what the services of a job use while its ranks compute and no
//! checkpoint is taken.

use std::time::{Duration, Instant};

use outlive_base::Result;

use super::machine::{self, Machine};
use super::session::{Scratch, Session};
use super::table::{Goal, Row, Table};
use crate::args::BenchOptions;

/// Nodes of the job, a rank each: heartbeats go between them too.
const NODES: usize = 2;
/// Until start and first preparations are over.
const SETTLE: Duration = Duration::from_secs(3);
/// One sample.
const SAMPLE: Duration = Duration::from_secs(4);
/// Goal for keeper and agent of a node, in percent of a core.
const NODE_PERCENT: f64 = 0.1;

/// Runs the benchmark.
pub fn measure(options: &BenchOptions) -> Result<Table> {
    let mut table = Table::new("idle", Machine::here());
    let scratch = Scratch::new(options.dir.as_deref())?;
    let (every, nodes) = (u32::MAX.to_string(), NODES.to_string());
    let settings = [
        "--emulate-nodes",
        &nodes,
        "--every",
        &every,
        "--memory",
        "64MiB",
    ];
    let mut session = Session::start(&scratch, "idle", NODES, &settings)?;
    session.gather(NODES)?;
    session.all("fill 65536 1")?;
    session.all("open")?;
    session.all("offer 1 0")?;
    std::thread::sleep(SETTLE);
    let services = session.services();
    let used = |wanted: &[&str]| -> f64 {
        let mine = services
            .iter()
            .filter(|(_, word)| wanted.contains(&word.as_str()));
        mine.map(|(pid, _)| machine::core_seconds(*pid)).sum()
    };
    let (mut node, mut launcher) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds.clamp(1, 5) {
        let (start, nodes_before, run_before) =
            (Instant::now(), used(&["keeper", "agent"]), used(&["run"]));
        std::thread::sleep(SAMPLE);
        let seconds = start.elapsed().as_secs_f64();
        let share = |used: f64| used / seconds * 100.0;
        node.push(share(used(&["keeper", "agent"]) - nodes_before) / NODES as f64);
        launcher.push(share(used(&["run"]) - run_before));
    }
    session.finish()?;
    table.rows.push(
        Row::new("idle: keeper and agent of a node", "% of a core", &node)
            .goal(Goal::AtMost(NODE_PERCENT)),
    );
    table.rows.push(Row::new(
        format!("  launcher, with {NODES} nodes"),
        "% of a core",
        &launcher,
    ));
    table
        .notes
        .push(format!("idle: load {} at the end", machine::load()));
    Ok(table)
}

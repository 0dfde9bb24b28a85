//! `outlive bench small`: what small and frequent checkpoints cost a job that keeps all
//! cores busy. What a node spends is then taken from the program.
//!
//! The same work is done in turns without and with checkpoints. Counted are only versions
//! that are committed at all three levels.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outlive_base::Result;
use outlive_vault::{Directory, Record, Vault};

use super::bytes;
use super::machine::{self, Machine};
use super::session::{Scratch, Session, odd, word};
use super::table::{Goal, Row, Table};
use crate::args::BenchOptions;

/// Ranks of the job, more than most machines that build this have cores.
const RANKS: usize = 8;
/// Emulated nodes.
const NODES: usize = 4;
/// Bytes that a rank protects.
const BYTES: usize = 1 << 20;
/// Work between two calls, in microseconds of a core. Then a rank waits for its neighbour.
const UNIT_US: u64 = 1000;
/// Calls from one checkpoint to the next.
const STRIDE: u64 = 50;
/// Checkpoints of one run.
const CHECKPOINTS: u64 = 15;
/// For the first preparations.
const SETTLE: Duration = Duration::from_millis(500);
/// Goal: processor time of a node's keeper and agent for one committed checkpoint.
const NODE_MS: f64 = 4.0;

struct Bench {
    session: Session,
    services: Vec<(u32, String)>,
    /// Where the next run begins.
    version: u64,
}

/// One run with checkpoints.
struct Leg {
    seconds: f64,
    /// Milliseconds of processor time of one node for each committed checkpoint.
    node_ms: f64,
    launcher_ms: f64,
    committed: usize,
    blocked_ms: f64,
}

fn longest(answers: &[Vec<String>]) -> f64 {
    let each = answers.iter().map(|answer| word(answer, 1));
    each.fold(0.0, f64::max) / 1e9
}

impl Bench {
    const UNITS: u64 = STRIDE * CHECKPOINTS;

    fn without(&mut self) -> Result<f64> {
        let order = format!("compute {} -", Self::UNITS);
        Ok(longest(&self.session.together(&order)?))
    }

    /// Milliseconds of processor time of a node for the bytes of one checkpoint alone, while
    /// the ranks compute.
    fn bytes(&mut self, dir: &Path) -> Result<f64> {
        let times = CHECKPOINTS as usize * NODES;
        std::thread::scope(|scope| {
            let limit = scope.spawn(|| bytes::measure(dir, RANKS / NODES * BYTES, times));
            self.without()?;
            let limit = limit.join().map_err(|_| odd("the limit panicked"))?;
            limit.map_err(|error| odd(format!("the limit cannot be measured: {error}")))
        })
    }

    /// Core seconds of the nodes, and of the launcher.
    fn used(&self) -> (f64, f64) {
        let of = |launcher: bool| -> f64 {
            let mine = self.services.iter();
            let mine = mine.filter(|(_, word)| (word == "run") == launcher);
            mine.map(|(pid, _)| machine::core_seconds(*pid)).sum()
        };
        (of(false), of(true))
    }

    /// The versions that node 0 knows to be committed at the level partner.
    fn committed(&self) -> Result<BTreeSet<u64>> {
        let store = Arc::new(Directory::at(&self.session.node_dir(0)));
        let store = Vault::of_node(store, self.session.job_hash()?);
        let records = store.records().scan()?.records.into_iter();
        Ok(records
            .filter_map(|record| match record {
                Record::Commit { level, version, .. } if level.has_partner() => Some(version.0),
                _ => None,
            })
            .collect())
    }

    fn with(&mut self) -> Result<Leg> {
        let (before, known) = (self.used(), self.committed()?);
        let order = format!("compute {} {}", Self::UNITS, self.version);
        let answers = self.session.together(&order)?;
        let last = word(&answers[0], 4);
        if !last.is_finite() || answers.iter().any(|answer| word(answer, 4) != last) {
            return Err(odd("not all ranks took the same checkpoints"));
        }
        self.session.all(&format!("wait {last} node-loss"))?;
        self.version += Self::UNITS;
        let after = self.used();
        let committed = self.committed()?.difference(&known).count();
        let each = 1e3 / committed.max(1) as f64;
        let blocked = answers.iter().map(|answer| word(answer, 5));
        Ok(Leg {
            seconds: longest(&answers),
            node_ms: (after.0 - before.0) * each / NODES as f64,
            launcher_ms: (after.1 - before.1) * each,
            committed,
            blocked_ms: blocked.fold(0.0, f64::max) / 1e6,
        })
    }
}

/// Runs the benchmark.
pub fn measure(options: &BenchOptions) -> Result<Table> {
    let mut table = Table::new("small", Machine::here());
    let scratch = Scratch::new(options.dir.as_deref())?;
    let (nodes, every) = (NODES.to_string(), STRIDE.to_string());
    let settings = [
        "--emulate-nodes",
        &nodes,
        "--levels",
        "memory,disk,partner",
        "--every",
        &every,
        "--memory",
        "64MiB",
    ];
    let mut session = Session::start(&scratch, "small", RANKS, &settings)?;
    session.gather(RANKS)?;
    session.all(&format!("fill {BYTES} 7"))?;
    session.all("open")?;
    session.all("offer 1 0")?;
    session.all(&format!("calibrate {UNIT_US}"))?;
    session.all(&format!("ring {RANKS}"))?;
    std::thread::sleep(SETTLE);
    let services = session.services();
    let mut bench = Bench {
        session,
        services,
        version: STRIDE,
    };
    // The first use of memory, files and threads is not what is asked about.
    bench.with()?;
    let (mut without, mut legs, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..options.rounds.max(1) {
        // Without, with; with, without: a drift of the machine hits both.
        if round % 2 == 0 {
            without.push(bench.without()?);
            legs.push(bench.with()?);
        } else {
            legs.push(bench.with()?);
            without.push(bench.without()?);
        }
        limits.push(bench.bytes(scratch.path())?);
    }
    bench.session.finish()?;
    rows(&mut table, &legs, &without, &limits);
    table.notes.push(format!(
        "small: {RANKS} ranks of {} MiB on {NODES} emulated nodes, levels memory, disk and \
         partner, all cores busy; load {} at the end",
        BYTES >> 20,
        machine::load()
    ));
    Ok(table)
}

fn rows(table: &mut Table, legs: &[Leg], without: &[f64], limits: &[f64]) {
    let all = |of: fn(&Leg) -> f64| -> Vec<f64> { legs.iter().map(of).collect() };
    let with = all(|leg| leg.seconds);
    let pairs = legs.iter().zip(without);
    let added: Vec<f64> = pairs
        .map(|(leg, without)| (leg.seconds - without) * 1e3 / leg.committed.max(1) as f64)
        .collect();
    let node = all(|leg| leg.node_ms);
    table.rows.extend([
        Row::new("processor time of a node for a checkpoint", "ms", &node)
            .goal(Goal::AtMost(NODE_MS)),
        Row::new("  beside its bytes alone", "ms", &node).beside("bytes", &node, limits),
        Row::new("  of the launcher", "ms", &all(|leg| leg.launcher_ms)),
        Row::new("longest wait of a rank", "ms", &all(|leg| leg.blocked_ms)),
        Row::new("run with checkpoints", "s", &with).beside("without", &with, without),
        Row::new("  committed in it", "", &all(|leg| leg.committed as f64)),
        Row::new("  added to the run by each", "ms", &added),
    ]);
}

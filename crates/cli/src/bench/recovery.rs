//! `outlive bench recovery`: how soon a failure is found, and how long it takes until
//! the program has its state again.

use std::time::Duration;

use outlive_base::{Code, Entity, Error, Result};
use outlive_vault::{Directory, ObjectKind};
use serde_json::Value;

use super::machine::{self, Buffer, Machine};
use super::save::{STRIDE, save};
use super::session::{Scratch, Session, failed, word};
use super::table::{Goal, Row, Table};
use crate::args::BenchOptions;

/// Iterations of the small program, 2 ms each, and where it is hit.
const VERSIONS: u64 = 160;
const HIT_RANK: u64 = 60;
const HIT_NODE: u64 = 120;
/// Runs of the small program.
const RUNS: usize = 5;
/// Nodes that are lost with all that they hold.
const LOSSES: usize = 5;

/// Runs the benchmark.
pub fn measure(options: &BenchOptions) -> Result<Table> {
    let mut table = Table::new("recovery", Machine::here());
    let scratch = Scratch::new(options.dir.as_deref())?;
    small(&mut table, &scratch)?;
    if options.frozen {
        frozen(&mut table, &scratch)?;
    }
    large(&mut table, &scratch, options)?;
    table
        .notes
        .push(format!("recovery: load {} at the end", machine::load()));
    Ok(table)
}

/// The failures of a report.
fn failures(report: &Value) -> Vec<Value> {
    report["failures"].as_array().cloned().unwrap_or_default()
}

fn of_kind(all: &[Value], kind: &str, field: &str) -> Vec<f64> {
    all.iter()
        .filter(|failure| failure["kind"] == kind)
        .filter_map(|failure| failure[field].as_f64())
        .collect()
}

fn small(table: &mut Table, scratch: &Scratch) -> Result<()> {
    let (rank, node) = (
        format!("rank:1@version={HIT_RANK}"),
        format!("node:1@version={HIT_NODE}"),
    );
    let mut all = Vec::new();
    for run in 0..RUNS {
        let settings = [
            "--emulate-nodes",
            "2",
            "--every",
            "10",
            "--spares",
            "2",
            "--backoff",
            "0",
            "--memory",
            "64MiB",
            "--inject",
            &rank,
            "--inject",
            &node,
        ];
        let name = format!("small-{run}");
        let role = format!("loops:4:{VERSIONS}");
        let session = Session::start_as(scratch, &name, &role, &settings)?;
        all.extend(failures(&session.finish()?));
    }
    for (kind, title, goal) in [
        ("rank", "killed rank", 100.0),
        ("node", "killed node", 1000.0),
    ] {
        let of = |field: &str| of_kind(&all, kind, field);
        table.rows.push(
            Row::new(format!("{title}: detected"), "ms", &of("detect_ms")).goal(Goal::AtMost(goal)),
        );
        for (field, what) in [
            ("fence_ms", "old processes gone"),
            ("rebuild_ms", "version found and rebuilt"),
            ("relaunch_ms", "ranks back"),
        ] {
            table
                .rows
                .push(Row::new(format!("  then {what}"), "ms", &of(field)));
        }
    }
    Ok(())
}

fn frozen(table: &mut Table, scratch: &Scratch) -> Result<()> {
    let settings = [
        "--emulate-nodes",
        "2",
        "--every",
        "10",
        "--spares",
        "1",
        "--backoff",
        "0",
        "--memory",
        "64MiB",
        "--inject",
        "freeze:node:1@version=60",
    ];
    let session = Session::start_as(scratch, "frozen", "loops:4:160", &settings)?;
    let all = failures(&session.finish()?);
    let of = |field: &str| of_kind(&all, "node", field);
    let (found, fenced) = (of("detect_ms"), of("fence_ms"));
    let begun = found.iter().zip(&fenced).map(|(a, b)| a + b);
    let begun: Vec<f64> = begun.collect();
    table.rows.push(
        Row::new("frozen node: suspected", "ms", &of("suspected_ms")).goal(Goal::AtMost(1_100.0)),
    );
    table
        .rows
        .push(Row::new("  given up", "ms", &of("detect_ms")));
    table
        .rows
        .push(Row::new("  its replacement begins", "ms", &begun).goal(Goal::AtMost(10_000.0)));
    Ok(())
}

/// Node 1 holds two ranks with all the memory and is lost with its storage; the
/// bytes come back from node 0, its partner.
fn large(table: &mut Table, scratch: &Scratch, options: &BenchOptions) -> Result<()> {
    const RANKS: usize = 4;
    let bytes = (options.mib << 20) / 2;
    let budget = format!("{}MiB", options.mib * 2 + 16);
    let every = STRIDE.to_string();
    let spares = LOSSES.to_string();
    let mut settings = vec![
        "--emulate-nodes",
        "2",
        "--levels",
        "memory,partner",
        "--every",
        &every,
        "--spares",
        &spares,
        "--max-restarts",
        "100",
        "--backoff",
        "0",
        "--memory",
        &budget,
        "--commit-timeout",
        "120s",
        "--recovery-timeout",
        "120s",
    ];
    let injections: Vec<String> = (0..LOSSES as u64)
        .map(|nth| format!("node:1@version={}", hit(nth)))
        .collect();
    for injection in &injections {
        settings.extend(["--inject", injection]);
    }
    let mut session = Session::start(scratch, "large", RANKS, &settings)?;
    let mut buffer = Buffer::new();
    let (mut restore_ms, mut read_ms) = (Vec::new(), Vec::new());
    let mut version = 0;
    session.gather(RANKS)?;
    for nth in 0..=LOSSES as u64 {
        // A program has its memory before it restores.
        for rank in 0..RANKS {
            let size = if rank < 2 { 1 << 20 } else { bytes };
            session.one(rank, &format!("fill {size} {rank}"))?;
        }
        session.all("open")?;
        let restored = session.all("restore")?;
        if nth > 0 {
            if restored.iter().any(|answer| answer[0] != "ok") {
                return Err(Error::new(
                    Code::NoValidCheckpoint,
                    Entity::Version(version),
                    "was not restored after the loss of a node",
                    "see what the job said",
                ));
            }
            let slowest = restored.iter().map(|answer| word(answer, 1));
            restore_ms.push(slowest.fold(0.0, f64::max) / 1e6);
        }
        if nth == LOSSES as u64 {
            break;
        }
        if nth == 0 {
            session.all("offer 1 0")?;
        }
        version = version.max(nth * 100 * STRIDE);
        save(&mut session, &mut version)?;
        session.all(&format!("wait {version} node-loss"))?;
        let directory = Directory::of_kind(&session.node_dir(0), ObjectKind::Partner);
        let newest = std::fs::read_dir(&directory)
            .map_err(|error| Error::io(&directory, "list", &error))?
            .flatten()
            .max_by_key(|entry| entry.file_name());
        if let Some(newest) = newest {
            let read = machine::read_direct(&newest.path(), &mut buffer);
            let (seconds, _) = read.map_err(|error| failed("read a container", &error))?;
            read_ms.push(seconds * 1e3);
        }
        std::thread::sleep(Duration::from_millis(500));
        // The ranks reach the version at which the node is killed.
        let _ = session.all(&format!("offer {} 0", hit(nth)));
        version = hit(nth);
        session.gather(RANKS)?;
    }
    let report = session.finish()?;
    large_rows(
        table,
        options.mib,
        &failures(&report),
        &restore_ms,
        &read_ms,
    );
    Ok(())
}

fn large_rows(table: &mut Table, mib: u64, all: &[Value], restore_ms: &[f64], read_ms: &[f64]) {
    let rebuild = of_kind(all, "node", "rebuild_ms");
    let both: Vec<f64> = rebuild.iter().zip(restore_ms).map(|(a, b)| a + b).collect();
    table.rows.push(
        Row::new(format!("rebuild and restore of {mib} MiB"), "ms", &both)
            .beside("O_DIRECT read", &both, read_ms)
            .goal(Goal::AtMost(2.0)),
    );
    table.rows.push(Row::new(
        "  of which rebuild from the partner",
        "ms",
        &rebuild,
    ));
    table
        .rows
        .push(Row::new("  of which restore", "ms", restore_ms));
    for (field, what) in [
        ("detect_ms", "detected"),
        ("fence_ms", "old processes gone"),
    ] {
        table.rows.push(Row::new(
            format!("  before: {what}"),
            "ms",
            &of_kind(all, "node", field),
        ));
    }
}

/// The version at which the nth node is killed.
const fn hit(nth: u64) -> u64 {
    (nth + 1) * 100 * STRIDE - 7
}

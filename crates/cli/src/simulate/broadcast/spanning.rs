//! `outlive simulate broadcast --dissemination spanning-trees:K`: trees grown by corrected
//! gossip, and broadcasts over them.

use std::time::Instant;

use outlive_base::{Result, count};
use outlive_protocols::broadcast::Correction;
use outlive_protocols::broadcast::spanning::Repair;
use outlive_simulator::broadcast::spanning::{One, Parameters, Plans, Run};
use serde::Serialize;

use super::{BroadcastOptions, StartName, correction_of};
use crate::output;
use crate::simulate::options::{
    Answer, Failures, LISTED_MAX, Need, Network, Spans, peak_bytes, refuse, status,
};

/// The parameters as they were understood.
#[derive(Serialize)]
struct Understood<'a> {
    #[serde(flatten)]
    network: Network,
    root: u32,
    dissemination: String,
    gossip_time: u64,
    correction: String,
    start: StartName,
    broadcasts: u32,
    timeout: u64,
    #[serde(flatten)]
    failures: Failures<'a>,
    seed: u64,
    runs: u64,
}

#[derive(Serialize)]
struct OneBroadcast {
    number: u32,
    /// The tree that carried it, from 0.
    tree: u32,
    /// From the first send to the last live process that has it.
    colouring_time: u64,
    /// From the first send until the root knows that everybody has it.
    completion_time: Option<u64>,
    messages: u64,
    uncoloured_live: u64,
}

#[derive(Serialize)]
struct OneRun<'a> {
    seed: u64,
    /// When the trees were complete.
    planned: Option<u64>,
    plan_messages: u64,
    /// Of the last broadcast.
    colouring_time: u64,
    quiescence: u64,
    messages: u64,
    dead: &'a [u32],
    uncoloured_live: u64,
    switches: u32,
    generations: u32,
    heights: &'a [u32],
    children_max: u32,
    broadcasts: Vec<OneBroadcast>,
    violation: Option<&'a str>,
}

#[derive(Serialize)]
struct Summary {
    runs: usize,
    planned: Spans,
    plan_messages_per_process: f64,
    /// Of all broadcasts of all runs.
    colouring_time: Spans,
    completion_time: Spans,
    messages_per_process_and_broadcast: f64,
    quiescence: Spans,
    switches: Spans,
    generations: Spans,
    uncoloured_live: u64,
    /// Of runs in which none may be.
    violations: usize,
    guaranteed: bool,
}

/// Runs them; 0 unless a promise was broken.
pub fn run(options: &BroadcastOptions, trees: u32, gossip_time: Option<u64>) -> Result<u8> {
    let began = Instant::now();
    let sweep = &options.sweep;
    let (repair, correction) = repair(options)?;
    let faults = options.faults.faults()?;
    let failures = faults.most(options.ring()).into();
    let each = 1_600 + 160 * u64::from(trees);
    let need = Need::of(options.network.processes, each, failures, 0);
    let threads = sweep.threads(options.network.processes, &need)?;
    let plans = Plans::new(Parameters {
        ring: options.ring(),
        model: options.network.model(),
        trees,
        gossip_time,
        repair,
        timeout: options.timeout,
        broadcasts: options.broadcasts,
        bytes: options.network.bytes,
        faults,
    })?;
    let runs = plans.sweep(sweep.seed, sweep.runs, threads)?;
    let wall_seconds = began.elapsed().as_secs_f64();
    sweep.draw(|| plans.plot(sweep.seed))?;
    let summary = summary(options, &plans, &runs);
    let status = status(summary.guaranteed && summary.violations > 0);
    if !sweep.json {
        return text(&runs, &summary, wall_seconds).map(|_| status);
    }
    output::json(&Answer {
        schema: "outlive.simulate.spanning-trees/1",
        parameters: Understood {
            network: options.network.understood(),
            root: options.root,
            dissemination: format!("spanning-trees:{trees}"),
            gossip_time: plans.gossip_time(),
            correction,
            start: options.start,
            broadcasts: options.broadcasts,
            timeout: plans.timeout(),
            failures: options.faults.understood(),
            seed: sweep.seed,
            runs: sweep.runs,
        },
        runs: runs.iter().map(one).collect(),
        summary,
        events: runs.iter().map(|run| run.events).sum(),
        wall_seconds,
        peak_bytes: peak_bytes(),
    })?;
    Ok(status)
}

fn repair(options: &BroadcastOptions) -> Result<(Repair, String)> {
    let correction = options.correction.clone();
    let correction = correction.unwrap_or_else(|| "checked".to_owned());
    let remedy = "give checked or failure-proof:F for spanning trees: each must hold everybody";
    if options.start == StartName::Overlapped {
        let remedy = "leave it synchronized: gossip ends at one time for all";
        return refuse("start", "overlapped", remedy);
    }
    match correction_of(&correction)? {
        Correction::Checked => Ok((Repair::Checked, correction)),
        Correction::FailureProof(f) => Ok((Repair::FailureProof(f), correction)),
        _ => refuse("correction", &correction, remedy),
    }
}

fn one(run: &Run) -> OneRun<'_> {
    let broadcast = |one: &One| OneBroadcast {
        number: one.number,
        tree: one.tree,
        colouring_time: one.colouring_time,
        completion_time: one.completion,
        messages: one.messages,
        uncoloured_live: one.uncoloured_live,
    };
    OneRun {
        seed: run.seed,
        planned: run.planned,
        plan_messages: run.plan_messages,
        colouring_time: run.broadcasts.last().map_or(0, |one| one.colouring_time),
        quiescence: run.quiescence,
        messages: run.messages,
        dead: &run.dead,
        uncoloured_live: run.uncoloured_live,
        switches: run.switches,
        generations: run.generations,
        heights: &run.heights,
        children_max: run.children_max,
        broadcasts: run.broadcasts.iter().map(broadcast).collect(),
        violation: run.violation.as_deref(),
    }
}

fn summary(options: &BroadcastOptions, plans: &Plans, runs: &[Run]) -> Summary {
    let all: Vec<One> = runs.iter().flat_map(|run| run.broadcasts.clone()).collect();
    let processes = f64::from(options.network.processes);
    let completed: Vec<u64> = all.iter().filter_map(|one| one.completion).collect();
    Summary {
        runs: runs.len(),
        planned: Spans::of(runs, |run| run.planned.unwrap_or(0)),
        plan_messages_per_process: Spans::of(runs, |run| run.plan_messages).mean / processes,
        colouring_time: Spans::of(&all, |one| one.colouring_time),
        completion_time: Spans::of(&completed, |&time| time),
        messages_per_process_and_broadcast: Spans::of(&all, |one| one.messages).mean / processes,
        quiescence: Spans::of(runs, |run| run.quiescence),
        switches: Spans::of(runs, |run| u64::from(run.switches)),
        generations: Spans::of(runs, |run| u64::from(run.generations)),
        uncoloured_live: runs.iter().map(|run| run.uncoloured_live).sum(),
        violations: runs.iter().filter(|run| run.violation.is_some()).count(),
        guaranteed: plans.guaranteed(),
    }
}

fn text(runs: &[Run], summary: &Summary, wall_seconds: f64) -> Result<u8> {
    let heading = [
        "seed",
        "planned",
        "plan messages",
        "last broadcast",
        "quiescent",
        "dead",
        "switches",
        "grown",
        "missed",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for run in runs.iter().take(LISTED_MAX) {
        let last = run.broadcasts.last();
        let cells = [
            run.seed,
            run.planned.unwrap_or(0),
            run.plan_messages,
            last.map_or(0, |one| one.colouring_time),
            run.quiescence,
            run.dead.len() as u64,
            u64::from(run.switches),
            u64::from(run.generations),
            run.uncoloured_live,
        ];
        rows.push(cells.map(|cell| cell.to_string()).to_vec());
    }
    let mut lines = vec![output::table(&rows)];
    if runs.len() > LISTED_MAX {
        lines.push(format!("... {} more", runs.len() - LISTED_MAX));
    }
    let broken = runs.iter().filter(|run| run.violation.is_some());
    for run in broken.take(LISTED_MAX) {
        let what = run.violation.as_deref().unwrap_or_default();
        lines.push(format!("seed {}: {what}", run.seed));
    }
    lines.push(format!(
        "mean: trees grown at {:.1} with {:.2} messages per process; a broadcast has coloured all \
         after {:.1}, is complete after {:.1}, {:.2} messages per process; {} of {} broke a promise \
         ({}); {wall_seconds:.2} s",
        summary.planned.mean,
        summary.plan_messages_per_process,
        summary.colouring_time.mean,
        summary.completion_time.mean,
        summary.messages_per_process_and_broadcast,
        summary.violations,
        count(summary.runs as u64, "run"),
        if summary.guaranteed {
            "none may"
        } else {
            "nothing is promised for these failures"
        }
    ));
    output::text(&lines.join("\n"))
}

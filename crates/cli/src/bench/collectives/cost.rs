//! `outlive bench collectives-cost`: what fault-tolerant collectives cost when nobody
//! fails, beside the native algorithms that MPI libraries choose for short messages.
//!
//! Ours are simulated over LogP (L = 2, o = g = 1). Native ones are computed:
//! - recursive doubling (Thakur, Rabenseifner, Gropp, IJHPCA 2005, section 4.2): with
//!   2^k <= P processes, P - 2^k first give to a neighbour and get the result in the end;
//!   k rounds in which all exchange. Steps k (+ 2), each L + 2o;
//! - binomial reduce and broadcast (same paper, sections 4.1 and 3.1): ceil(log2 P)
//!   steps, P - 1 messages; one after the other they are the tree's Allreduce;
//! - dissemination barrier (Hensgen, Finkel, Manber, 1988): ceil(log2 P) rounds of P.
//!
//! Steps are messages on the longest chain of messages that wait for each other.

use outlive_base::{Code, Entity, Error, Result, Time};
use outlive_protocols::broadcast::LogP;
use outlive_protocols::broadcast::tree::{Order, Shape};
use outlive_protocols::collective::{Call, CollectiveKind};
use outlive_protocols::ftco::{Config, Plan};
use outlive_protocols::reduce;
use outlive_simulator::ftco::{Report, Scenario, run, run_any};
use outlive_simulator::logp::Model;
use serde::Serialize;

use crate::args::BenchOptions;
use crate::output;

const LOGP: LogP = LogP {
    latency: 2,
    overhead: 1,
    gap: 1,
};
const MODEL: Model = Model {
    logp: LOGP,
    byte_gap: 0,
    half_duplex: false,
};

/// Two to the power of this are the most processes.
const LOG2_MAX: u32 = 20;

struct Cost {
    messages: u64,
    steps: u32,
    time: u64,
}

fn call(kind: CollectiveKind) -> Call {
    Call {
        kind,
        root: 0,
        value: None,
        ordered: false,
    }
}

fn cost(report: &Report, steps: u32) -> Cost {
    Cost {
        messages: report.outcome.messages,
        steps,
        time: report.completion().0,
    }
}

fn ours(shape: Shape, processes: u32, kind: CollectiveKind) -> Result<Cost> {
    let plan = Plan::new(shape, Order::InOrder, processes, &LOGP)?;
    let ways = u32::from(kind.up()) + u32::from(kind.down());
    let steps = plan.height() * ways;
    let mut scenario = Scenario::new(Config::new(plan), MODEL, call(kind));
    scenario.exact = false;
    scenario.end = Time(1 << 40);
    Ok(cost(&run(&scenario, 1)?, steps))
}

fn up_correction(processes: u32, failures: u32) -> Result<Cost> {
    let config = reduce::Config::new(Shape::Binomial, processes, 0, failures, &LOGP)?;
    let steps = 1 + config.levels(0);
    let mut scenario = Scenario::new(config, MODEL, call(CollectiveKind::Reduce));
    scenario.exact = false;
    Ok(cost(&run_any::<reduce::Reduce>(&scenario, 1)?, steps))
}

fn recursive_doubling(processes: u32) -> Cost {
    let rounds = processes.ilog2();
    let rest = u64::from(processes - (1 << rounds));
    let steps = rounds + if rest > 0 { 2 } else { 0 };
    Cost {
        messages: (u64::from(rounds) << rounds) + 2 * rest,
        steps,
        time: u64::from(steps) * LOGP.delay(),
    }
}

fn dissemination(processes: u32) -> Cost {
    let rounds = processes.next_power_of_two().ilog2();
    Cost {
        messages: u64::from(rounds) * u64::from(processes),
        steps: rounds,
        time: u64::from(rounds) * LOGP.delay(),
    }
}

fn binomial(processes: u32) -> Cost {
    let steps = processes.next_power_of_two().ilog2();
    Cost {
        messages: u64::from(processes) - 1,
        steps,
        // The longest chain serves as many rounds as there are steps.
        time: u64::from(steps) * LOGP.delay(),
    }
}

#[derive(Serialize)]
struct Line {
    processes: u32,
    what: &'static str,
    messages_per_process: f64,
    steps: u32,
    time: u64,
}

#[derive(Serialize)]
struct Answer {
    schema: &'static str,
    latency: u64,
    overhead: u64,
    gap: u64,
    lines: Vec<Line>,
}

fn lines(processes: u32) -> Result<Vec<Line>> {
    let line = |what, cost: Cost| Line {
        processes,
        what,
        messages_per_process: cost.messages as f64 / f64::from(processes),
        steps: cost.steps,
        time: cost.time,
    };
    let tree = |shape, kind| ours(shape, processes, kind);
    let doubling = recursive_doubling(processes);
    Ok(vec![
        line("allreduce, recursive doubling", doubling),
        line(
            "allreduce, binomial tree, ours",
            tree(Shape::Binomial, CollectiveKind::Allreduce)?,
        ),
        line(
            "allreduce, 4-ary tree, ours",
            tree(Shape::Kary(4), CollectiveKind::Allreduce)?,
        ),
        line(
            "allreduce, optimal tree, ours",
            tree(Shape::Optimal, CollectiveKind::Allreduce)?,
        ),
        line("barrier, dissemination", dissemination(processes)),
        line(
            "barrier, binomial, ours",
            tree(Shape::Binomial, CollectiveKind::Barrier)?,
        ),
        line("reduce, binomial", binomial(processes)),
        line(
            "reduce, binomial, ours",
            tree(Shape::Binomial, CollectiveKind::Reduce)?,
        ),
        line(
            "reduce, up-correction f = 1, ours",
            up_correction(processes, 1)?,
        ),
        line("broadcast, binomial", binomial(processes)),
        line(
            "broadcast, binomial, ours",
            tree(Shape::Binomial, CollectiveKind::Bcast)?,
        ),
    ])
}

/// Prints the costs for 2 to 2^`--log2-processes` processes, and for 100 and 1000.
///
/// # Errors
/// `InvalidArgument` for more than 2^20 processes.
pub fn print(options: &BenchOptions) -> Result<u8> {
    let most = options.collectives.log2_processes;
    if most > LOG2_MAX {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Option("log2-processes".into()),
            most.to_string(),
            "give 0 to 20",
        ));
    }
    let mut all = Vec::new();
    for processes in (1..=most).map(|power| 1 << power).chain([100, 1000]) {
        all.extend(lines(processes)?);
    }
    if options.json {
        return output::json(&Answer {
            schema: "outlive.bench.collectives-cost/1",
            latency: LOGP.latency,
            overhead: LOGP.overhead,
            gap: LOGP.gap,
            lines: all,
        });
    }
    let heading = ["processes", "what", "messages per process", "steps", "time"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(all.iter().map(|line| {
        vec![
            line.processes.to_string(),
            line.what.to_owned(),
            format!("{:.3}", line.messages_per_process),
            line.steps.to_string(),
            line.time.to_string(),
        ]
    }));
    output::text(&format!(
        "L = 2, o = g = 1; messages a process, steps and time of the longest chain\n{}",
        output::table(&rows)
    ))
}

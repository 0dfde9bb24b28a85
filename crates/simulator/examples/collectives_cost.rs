//! What fault-tolerant collectives cost when nobody fails, beside the native algorithms
//! that MPI libraries choose for short messages: `collectives_cost [LOG2_MAX]`.
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

use outlive_base::{Result, Time};
use outlive_protocols::broadcast::LogP;
use outlive_protocols::broadcast::tree::{Order, Shape};
use outlive_protocols::ftco::{Call, Config, Kind, Plan};
use outlive_protocols::reduce;
use outlive_simulator::ftco::{Report, Scenario, run, run_any};
use outlive_simulator::logp::Model;

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

struct Cost {
    messages: u64,
    steps: u32,
    time: u64,
}

fn call(kind: Kind) -> Call {
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

fn ours(shape: Shape, processes: u32, kind: Kind) -> Result<Cost> {
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
    let mut scenario = Scenario::new(config, MODEL, call(Kind::Reduce));
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

fn row(name: &str, processes: u32, cost: &Cost) {
    println!(
        "{processes:>8}  {name:<34} {:>8.3} {:>6} {:>6}",
        cost.messages as f64 / f64::from(processes),
        cost.steps,
        cost.time
    );
}

fn main() -> Result<()> {
    let most = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let most: u32 = most.unwrap_or(12).min(20);
    println!("L = 2, o = g = 1; messages a process, steps and time of the longest chain");
    println!(
        "{:>8}  {:<34} {:>8} {:>6} {:>6}",
        "P", "", "messages", "steps", "time"
    );
    for processes in (1..=most).map(|power| 1 << power).chain([100, 1000]) {
        row(
            "allreduce, recursive doubling",
            processes,
            &recursive_doubling(processes),
        );
        for (name, shape) in [
            ("allreduce, binomial tree, ours", Shape::Binomial),
            ("allreduce, 4-ary tree, ours", Shape::Kary(4)),
            ("allreduce, optimal tree, ours", Shape::Optimal),
        ] {
            row(name, processes, &ours(shape, processes, Kind::Allreduce)?);
        }
        row(
            "barrier, dissemination",
            processes,
            &dissemination(processes),
        );
        row(
            "barrier, binomial, ours",
            processes,
            &ours(Shape::Binomial, processes, Kind::Barrier)?,
        );
        row("reduce, binomial", processes, &binomial(processes));
        row(
            "reduce, binomial, ours",
            processes,
            &ours(Shape::Binomial, processes, Kind::Reduce)?,
        );
        row(
            "reduce, up-correction f = 1, ours",
            processes,
            &up_correction(processes, 1)?,
        );
        row("broadcast, binomial", processes, &binomial(processes));
        row(
            "broadcast, binomial, ours",
            processes,
            &ours(Shape::Binomial, processes, Kind::Bcast)?,
        );
    }
    Ok(())
}

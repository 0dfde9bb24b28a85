//! `outlive simulate reduce|allreduce|barrier`: who gets which result when, and who
//! contributed.

use std::time::Instant;

use clap::Args;
use outlive_base::{Result, Time, count};
use outlive_protocols::broadcast::tree::Ring;
use outlive_protocols::collective::{Call, CollectiveKind, Event};
use outlive_protocols::ftco::{Config, Plan};
use outlive_protocols::reduce;
use outlive_simulator::ftco::check::{Expect, check};
use outlive_simulator::ftco::{Report, Scenario, Value, run as simulate, run_any};
use outlive_simulator::logp::Death;
use outlive_simulator::plot::DRAWN_MAX;
use serde::Serialize;

use super::options::{
    Answer, Failures, FaultOptions, LISTED_MAX, Need, Network, NetworkOptions, OrderName,
    SweepOptions, number, peak_bytes, refuse, shape, status,
};
use crate::output;

/// Processes up to which a result names each contributor in order.
const EXACT_MAX: u32 = 1024;
/// A time-out of its own choice is so many times the time without failures.
const AUTO_FACTOR: u64 = 8;

/// A group of options.
const HOW: &str = "How the result is computed";

#[derive(Args, Debug)]
#[command(after_help = "\
Times are whole numbers in one unit of your choice. The operand of rank r is r + 1, the
operator is the sum. Examples:
  outlive simulate allreduce --processes 64 --dead 1,3 --timeout 2000000 --json
  outlive simulate barrier --processes 512 --faults 3 --fault-time during --runs 100
  outlive simulate reduce --processes 64 --algorithm up-correction:2 --faults 2

The exit status is 70 if a guarantee is broken: a live process without the result,
different results, an operand missing or counted twice. Nothing is promised for more
than F failures with up-correction:F, or for a time-out below four times a calm run.")]
pub struct CollectiveOptions {
    #[command(flatten)]
    network: NetworkOptions,
    /// binomial, kary:K, lame:K or optimal
    #[arg(long, value_name = "TREE", default_value = "binomial", help_heading = HOW)]
    tree: String,
    /// How ranks are laid on the tree
    #[arg(long, value_name = "ORDER", default_value = "in-order", help_heading = HOW)]
    order: OrderName,
    /// Silence after which a process is bypassed [default: eight times the time without
    /// failures]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, help_heading = HOW)]
    timeout: Option<u64>,
    /// What is added to --timeout for each level of the tree below a process
    #[arg(
        long,
        value_name = "TIME",
        default_value_t = 0,
        allow_negative_numbers = true,
        help_heading = HOW
    )]
    timeout_per_level: u64,
    /// Time before which a silent root is not replaced [default: the time-out]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, help_heading = HOW)]
    patience: Option<u64>,
    #[command(flatten)]
    faults: FaultOptions,
    #[command(flatten)]
    sweep: SweepOptions,
}

#[derive(Args, Debug)]
pub struct ReduceOptions {
    #[command(flatten)]
    common: CollectiveOptions,
    /// The rank that gets the result
    #[arg(long, value_name = "RANK", default_value_t = 0, help_heading = HOW)]
    root: u32,
    /// ftco (bypass after a time-out), or up-correction:F (groups of F + 1 exchange
    /// first; up to F failures)
    #[arg(long, value_name = "HOW", default_value = "ftco", help_heading = HOW)]
    algorithm: String,
}

/// The parameters as they were understood.
#[derive(Serialize)]
struct Understood<'a> {
    collective: &'static str,
    algorithm: &'a str,
    #[serde(flatten)]
    network: Network,
    root: u32,
    tree: &'a str,
    order: OrderName,
    timeout: u64,
    timeout_per_level: u64,
    patience: u64,
    #[serde(flatten)]
    failures: Failures<'a>,
    seed: u64,
    runs: u64,
}

#[derive(Serialize)]
struct OneRun {
    seed: u64,
    /// When the last live process had its result.
    colouring_time: u64,
    quiescence: u64,
    messages: u64,
    dead: Vec<u32>,
    /// Live processes whose call did not end with a result.
    uncoloured_live: u64,
    /// The longest run of neighbours on the ring whose operand is not in the result.
    max_gap: u32,
    /// The sum; none if nobody alive has it.
    value: Option<u64>,
    /// How many operands are in it.
    contributed: u64,
    /// Whose, in the order of operands; up to 1024 processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    contributors: Option<Vec<u32>>,
    /// Whose are not, as the result says.
    absent: Vec<u32>,
    /// Who put it together.
    by: Option<u32>,
    /// The failures and the time-out are such that nothing may be violated.
    guaranteed: bool,
    /// What the checker found.
    violation: Option<String>,
}

#[derive(Serialize)]
struct Summary {
    runs: usize,
    colouring_time_mean: f64,
    colouring_time_max: u64,
    quiescence_mean: f64,
    messages_mean: f64,
    messages_per_process: f64,
    uncoloured_live: u64,
    contributed_min: u64,
    /// Of runs in which none may be.
    violations: usize,
    /// Of runs for which nothing is promised.
    unpromised_violations: usize,
}

enum Machine {
    Ftco(Config),
    UpCorrection(reduce::Config),
}

/// Runs reductions; 0 unless a guarantee is broken.
pub fn reduce(options: &ReduceOptions) -> Result<u8> {
    run_with(
        &options.common,
        CollectiveKind::Reduce,
        options.root,
        &options.algorithm,
    )
}

/// Runs collectives; 0 unless a guarantee is broken.
pub fn run(options: &CollectiveOptions, kind: CollectiveKind) -> Result<u8> {
    run_with(options, kind, 0, "ftco")
}

fn run_with(
    options: &CollectiveOptions,
    kind: CollectiveKind,
    root: u32,
    algorithm: &str,
) -> Result<u8> {
    let began = Instant::now();
    options.check(root)?;
    let threads = options.threads(root)?;
    let mut machine = options.machine(root, algorithm)?;
    let calm = options.one(&machine, kind, root, &[], 1)?.0;
    let horizon = calm.outcome.quiescence.0;
    let timeout = options.timeout.unwrap_or(AUTO_FACTOR * horizon.max(8));
    let patience = options.patience.unwrap_or(timeout);
    machine.set_times(timeout, options.timeout_per_level, patience);
    let faults = options.faults.faults()?;
    let ring = options.ring(root);
    // A time-out must exceed four times the largest delay of a message; no delay is
    // larger than a whole calm run.
    let timely = timeout >= horizon.saturating_mul(4);
    let sweep = &options.sweep;
    let run = |seed| {
        let deaths = faults.draw(ring, seed, horizon);
        let (report, violation) = options.one(&machine, kind, root, &deaths, seed)?;
        let mut run = options.told(seed, &report, violation);
        run.guaranteed = timely && machine.tolerates(run.dead.len());
        Ok((run, report.outcome.events))
    };
    let runs = outlive_simulator::broadcast::sweep(sweep.seed, sweep.runs, threads, run)?;
    let events = runs.iter().map(|(_, events)| events).sum();
    let runs: Vec<OneRun> = runs.into_iter().map(|(run, _)| run).collect();
    let summary = options.summary(&runs);
    let status = status(summary.violations > 0);
    let wall_seconds = began.elapsed().as_secs_f64();
    sweep.draw(|| {
        let deaths = faults.draw(ring, sweep.seed, horizon);
        let (report, _) = options.one(&machine, kind, root, &deaths, sweep.seed)?;
        Ok(report.plot(options.network.processes))
    })?;
    if !sweep.json {
        return options.text(&runs, &summary, wall_seconds).map(|()| status);
    }
    let parameters = Understood {
        collective: match kind {
            CollectiveKind::Reduce => "reduce",
            CollectiveKind::Barrier => "barrier",
            _ => "allreduce",
        },
        algorithm,
        network: options.network.understood(),
        root,
        tree: &options.tree,
        order: options.order,
        timeout,
        timeout_per_level: options.timeout_per_level,
        patience,
        failures: options.faults.understood(),
        seed: sweep.seed,
        runs: sweep.runs,
    };
    output::json(&Answer {
        schema: "outlive.simulate.collective/1",
        parameters,
        runs,
        summary,
        events,
        wall_seconds,
        peak_bytes: peak_bytes(),
    })?;
    Ok(status)
}

impl Machine {
    fn tolerates(&self, failures: usize) -> bool {
        match self {
            Machine::Ftco(_) => true,
            Machine::UpCorrection(config) => failures as u64 <= u64::from(config.failures),
        }
    }

    fn set_times(&mut self, timeout: u64, per_level: u64, patience: u64) {
        match self {
            Machine::Ftco(config) => {
                config.timeout = Time(timeout);
                config.timeout_per_level = Time(per_level);
                config.patience = Time(patience);
                // Everyone may be dead one after the other, and each may be asked twice.
                let all = u64::from(config.plan.processes()).saturating_add(8) * 4;
                config.bound = Time(timeout.max(patience).saturating_mul(all));
                config.late = Time(timeout);
            }
            Machine::UpCorrection(config) => config.timeout = Time(timeout),
        }
    }
}

impl CollectiveOptions {
    const fn ring(&self, root: u32) -> Ring {
        Ring {
            processes: self.network.processes,
            root,
        }
    }

    fn check(&self, root: u32) -> Result<()> {
        let processes = self.network.processes;
        self.sweep.check()?;
        if processes == 0 {
            return refuse("processes", "0", "give 1 to 2^28 processes");
        }
        if self.timeout == Some(0) {
            return refuse(
                "timeout",
                "0",
                "give a time above four times that of a message",
            );
        }
        if let Some(who) = self.faults.dead.iter().find(|&&who| who >= processes) {
            return refuse(
                "dead",
                &who.to_string(),
                "give ranks below the number of processes",
            );
        }
        if root >= processes {
            return refuse(
                "root",
                &root.to_string(),
                "give a rank below the number of processes",
            );
        }
        let mut dead = self.faults.dead.clone();
        dead.sort_unstable();
        dead.dedup();
        let drawn = self.faults.faults()?.drawn(self.ring(root));
        if dead.len() as u64 + u64::from(drawn) >= u64::from(processes) {
            let all = format!("{} named and {drawn} drawn", dead.len());
            return refuse("faults", &all, "leave one process alive");
        }
        Ok(())
    }

    /// Threads for which there is memory: everybody comes to know of every failure.
    fn threads(&self, root: u32) -> Result<usize> {
        let processes = self.network.processes;
        let failures = self.faults.faults()?.most(self.ring(root)).into();
        let need = Need::of(processes, 1_750, failures, 9);
        self.sweep.threads(processes, &need)
    }

    fn machine(&self, root: u32, algorithm: &str) -> Result<Machine> {
        let (shape, logp) = (shape(&self.tree)?, self.network.model().logp);
        logp.check()?;
        let (order, processes) = (self.order.order(), self.network.processes);
        let mut machine = match algorithm.split_once(':') {
            None if algorithm == "ftco" => {
                Machine::Ftco(Config::new(Plan::new(shape, order, processes, &logp)?))
            }
            Some(("up-correction", failures)) => {
                let failures = number("algorithm", failures, "give up-correction:F")?;
                let config = reduce::Config::new(shape, processes, root, failures, &logp)?;
                Machine::UpCorrection(config)
            }
            _ => {
                let remedy = "give ftco or up-correction:F, for example up-correction:2";
                return refuse("algorithm", algorithm, remedy);
            }
        };
        // Without failures nobody has to be bypassed.
        machine.set_times(1 << 50, 0, 1 << 50);
        Ok(machine)
    }

    fn one(
        &self,
        machine: &Machine,
        kind: CollectiveKind,
        root: u32,
        deaths: &[(u32, Death)],
        seed: u64,
    ) -> Result<(Report, Option<String>)> {
        let call = Call {
            kind,
            root,
            value: None,
            ordered: false,
        };
        let report = match machine {
            Machine::Ftco(config) => simulate(&self.scenario(config.clone(), call, deaths), seed)?,
            Machine::UpCorrection(config) => {
                let scenario = self.scenario(config.clone(), call, deaths);
                run_any::<reduce::Reduce>(&scenario, seed)?
            }
        };
        let expect = Expect {
            processes: self.network.processes,
            calls: &[call],
            ordered: false,
            late: None,
        };
        let violation = check(&expect, &report).err();
        Ok((report, violation))
    }

    fn scenario<C>(&self, config: C, call: Call, deaths: &[(u32, Death)]) -> Scenario<C> {
        let mut scenario = Scenario::new(config, self.network.model(), call);
        scenario.deaths = deaths.to_vec();
        scenario.exact = self.network.processes <= EXACT_MAX;
        scenario.bytes = self.network.bytes;
        // Kept for a picture only: it is little for so few.
        scenario.trace = self.sweep.plot.is_some() && self.network.processes <= DRAWN_MAX;
        scenario.end = Time(u64::MAX / 4);
        scenario
    }

    fn told(&self, seed: u64, report: &Report, violation: Option<String>) -> OneRun {
        let live = |who: u32| report.dead.binary_search(&who).is_err();
        let done = report.results().filter(|&(who, ..)| live(who)).count() as u64;
        let value: Option<&Value> = report
            .results()
            .filter(|&(who, ..)| live(who))
            .find_map(|(.., value)| value);
        let by = report.lines.iter().find_map(|line| match line.said.event {
            Event::Done { by, .. } if line.said.value.is_some() && live(line.who) => Some(by),
            _ => None,
        });
        let absent = value.map_or(Vec::new(), |value| value.absent.as_slice().to_vec());
        let exact = self.network.processes <= EXACT_MAX;
        OneRun {
            seed,
            colouring_time: report.completion().0,
            quiescence: report.outcome.quiescence.0,
            messages: report.outcome.messages,
            dead: report.dead.clone(),
            uncoloured_live: u64::from(self.network.processes) - report.dead.len() as u64 - done,
            max_gap: longest_run(&absent, self.network.processes),
            value: value.map(|value| value.sum),
            contributed: value.map_or(0, |value| value.count),
            contributors: value.filter(|_| exact).map(|value| value.ranks.clone()),
            absent,
            by,
            guaranteed: true,
            violation,
        }
    }

    fn summary(&self, runs: &[OneRun]) -> Summary {
        let mean = |of: fn(&OneRun) -> u64| {
            runs.iter().map(|run| of(run) as f64).sum::<f64>() / runs.len().max(1) as f64
        };
        let broken = |guaranteed| {
            let broken = |run: &&OneRun| run.violation.is_some() && run.guaranteed == guaranteed;
            runs.iter().filter(broken).count()
        };
        let messages_mean = mean(|run| run.messages);
        Summary {
            runs: runs.len(),
            colouring_time_mean: mean(|run| run.colouring_time),
            colouring_time_max: runs.iter().map(|run| run.colouring_time).max().unwrap_or(0),
            quiescence_mean: mean(|run| run.quiescence),
            messages_mean,
            messages_per_process: messages_mean / f64::from(self.network.processes),
            uncoloured_live: runs.iter().map(|run| run.uncoloured_live).sum(),
            contributed_min: runs.iter().map(|run| run.contributed).min().unwrap_or(0),
            violations: broken(true),
            unpromised_violations: broken(false),
        }
    }

    fn text(&self, runs: &[OneRun], summary: &Summary, wall_seconds: f64) -> Result<()> {
        let heading = [
            "seed",
            "finished",
            "quiescent",
            "messages",
            "dead",
            "contributed",
            "value",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        for run in runs.iter().take(LISTED_MAX) {
            let dead = run.dead.len() as u64;
            let cells = [
                run.seed,
                run.colouring_time,
                run.quiescence,
                run.messages,
                dead,
            ];
            let mut row: Vec<String> = cells.iter().map(u64::to_string).collect();
            row.push(format!("{} of {}", run.contributed, self.network.processes));
            row.push(
                run.value
                    .map_or_else(|| "none".into(), |value| value.to_string()),
            );
            rows.push(row);
        }
        let mut lines = vec![output::table(&rows)];
        if runs.len() > LISTED_MAX {
            lines.push(format!("... {} more", runs.len() - LISTED_MAX));
        }
        for run in runs
            .iter()
            .filter(|run| run.violation.is_some())
            .take(LISTED_MAX)
        {
            let what = run.violation.as_deref().unwrap_or_default();
            lines.push(format!("seed {}: {what}", run.seed));
        }
        lines.push(format!(
            "mean: finished {:.1}, quiescent {:.1}, {:.2} messages per process; {} of {} \
             broke a guarantee, {} more failed for which there is none; {wall_seconds:.2} s",
            summary.colouring_time_mean,
            summary.quiescence_mean,
            summary.messages_per_process,
            summary.violations,
            count(summary.runs as u64, "run"),
            summary.unpromised_violations,
        ));
        output::text(&lines.join("\n")).map(|_| ())
    }
}

/// The longest run of neighbours on the ring among `ranks` (ascending).
fn longest_run(ranks: &[u32], processes: u32) -> u32 {
    if ranks.len() as u64 >= u64::from(processes) {
        return processes;
    }
    let (mut longest, mut length, mut last) = (0, 0, None);
    let again = ranks
        .iter()
        .map(|&rank| u64::from(rank) + u64::from(processes));
    for rank in ranks.iter().map(|&rank| u64::from(rank)).chain(again) {
        length = if last == Some(rank.wrapping_sub(1)) {
            length + 1
        } else {
            1
        };
        longest = longest.max(length);
        last = Some(rank);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_go_around_the_ring() {
        assert_eq!(longest_run(&[], 8), 0);
        assert_eq!(longest_run(&[0, 1, 3, 7], 8), 3);
        assert_eq!(longest_run(&[2, 3, 4], 8), 3);
        assert_eq!(longest_run(&[0, 1], 2), 2);
    }
}

//! `outlive simulate broadcast`: time, messages and reach of a corrected broadcast.

use std::time::Instant;

use clap::{Args, ValueEnum};
use outlive_base::{Result, count};
use outlive_protocols::broadcast::tree::Ring;
use outlive_protocols::broadcast::{Correction, Start};
use outlive_simulator::broadcast::{Broadcasts, Parameters, Run, Spread};
use serde::{Serialize, Serializer};

use super::options::{
    Answer, Failures, FaultOptions, LISTED_MAX, Need, Network, NetworkOptions, OrderName, Spans,
    SweepOptions, number, peak_bytes, refuse, shape, status,
};
use crate::output;

mod spanning;

/// Groups of options.
const HOW: &str = "How the message is spread";
const TREES: &str = "Spanning trees only";

#[derive(Args, Debug)]
#[command(after_help = "\
Times are whole numbers in one unit of your choice. Examples:
  outlive simulate broadcast --processes 1024 --tree lame:2 --json
  outlive simulate broadcast --processes 4096 --dissemination gossip --faults 1% --runs 100
  outlive simulate broadcast --processes 32 --dead 1 --plot picture.svg
  outlive simulate broadcast --processes 512 --dissemination spanning-trees:3 --faults 2 \
      --fault-time during --broadcasts 10

The exit status is 70 if a live process missed the message although the correction
promises that none does.")]
pub struct BroadcastOptions {
    #[command(flatten)]
    pub(super) network: NetworkOptions,
    /// The rank that has the message
    #[arg(long, value_name = "RANK", default_value_t = 0, help_heading = HOW)]
    pub(super) root: u32,
    /// How the message is first spread: tree; gossip, to others drawn at random;
    /// acknowledged-tree, acknowledged up it; spanning-trees:K, over one of K independent
    /// trees that gossip grows before the first of --broadcasts
    #[arg(long, value_name = "HOW", default_value = "tree", value_parser = dissemination, help_heading = HOW)]
    dissemination: Dissemination,
    /// binomial, kary:K, lame:K or optimal
    #[arg(long, value_name = "TREE", default_value = "binomial", help_heading = HOW)]
    tree: String,
    /// How ranks are laid on the tree
    #[arg(long, value_name = "ORDER", default_value = "interleaved", help_heading = HOW)]
    order: OrderName,
    /// When gossip ends, or auto for the best time by expectation
    #[arg(
        long,
        value_name = "TIME",
        default_value = "auto",
        allow_negative_numbers = true,
        help_heading = HOW
    )]
    gossip_time: String,
    /// none, opportunistic:D, optimized-opportunistic:D, checked or failure-proof:F
    /// [default: checked; none for an acknowledged tree]; spanning trees take checked or
    /// failure-proof:F
    #[arg(long, value_name = "CORRECTION", help_heading = HOW)]
    pub(super) correction: Option<String>,
    /// When processes correct: all at once, or each as soon as its own part of the dissemination
    /// is sent
    #[arg(long, value_name = "START", default_value = "synchronized", help_heading = HOW)]
    pub(super) start: StartName,
    /// How many broadcasts use the trees, one after the other
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = TREES)]
    pub(super) broadcasts: u32,
    /// Silence after which a process is dead [default: eight times the
    /// time of a calm run]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, help_heading = TREES)]
    pub(super) timeout: Option<u64>,
    #[command(flatten)]
    pub(super) faults: FaultOptions,
    #[command(flatten)]
    pub(super) sweep: SweepOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dissemination {
    Tree,
    Gossip,
    AcknowledgedTree,
    SpanningTrees(u32),
}

/// For the command line, which names the option and shows the reason.
fn dissemination(text: &str) -> std::result::Result<Dissemination, String> {
    let remedy = "give tree, gossip, acknowledged-tree or spanning-trees:K (K from 1 to 32)";
    match text.split_once(':') {
        None if text == "tree" => Ok(Dissemination::Tree),
        None if text == "gossip" => Ok(Dissemination::Gossip),
        None if text == "acknowledged-tree" => Ok(Dissemination::AcknowledgedTree),
        Some(("spanning-trees", k)) => k
            .parse()
            .map(Dissemination::SpanningTrees)
            .map_err(|_| remedy.to_owned()),
        _ => Err(remedy.to_owned()),
    }
}

impl Serialize for Dissemination {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Dissemination::Tree => to.serialize_str("tree"),
            Dissemination::Gossip => to.serialize_str("gossip"),
            Dissemination::AcknowledgedTree => to.serialize_str("acknowledged-tree"),
            Dissemination::SpanningTrees(k) => to.collect_str(&format_args!("spanning-trees:{k}")),
        }
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StartName {
    /// When a fault-free dissemination would have ended
    Synchronized,
    /// Each process as soon as it can
    Overlapped,
}

/// The parameters as they were understood.
#[derive(Serialize)]
struct Understood<'a> {
    #[serde(flatten)]
    network: Network,
    root: u32,
    dissemination: Dissemination,
    tree: Option<&'a str>,
    order: Option<OrderName>,
    gossip_time: Option<u64>,
    correction: &'a str,
    start: StartName,
    /// When synchronized correction starts.
    correction_start: Option<u64>,
    #[serde(flatten)]
    failures: Failures<'a>,
    seed: u64,
    runs: u64,
}

#[derive(Serialize)]
struct OneRun<'a> {
    seed: u64,
    colouring_time: u64,
    quiescence: u64,
    messages: u64,
    dead: &'a [u32],
    uncoloured_live: u64,
    max_gap: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    acknowledged: Option<bool>,
}

#[derive(Serialize)]
struct Summary {
    runs: usize,
    colouring_time: Spans,
    quiescence: Spans,
    messages: Spans,
    messages_per_process: f64,
    max_gap: Spans,
    /// Over all runs.
    uncoloured_live: u64,
    runs_with_uncoloured: usize,
    /// The correction promises that no live process misses the message.
    guaranteed: bool,
}

/// Runs the broadcasts; 0 unless the correction broke its promise.
pub fn run(options: &BroadcastOptions) -> Result<u8> {
    let began = Instant::now();
    let sweep = &options.sweep;
    sweep.check()?;
    if let Dissemination::SpanningTrees(trees) = options.dissemination {
        return spanning::run(options, trees, options.until()?);
    }
    let correction = options.correction.as_deref();
    let correction = correction.unwrap_or(match options.dissemination {
        Dissemination::AcknowledgedTree => "none",
        _ => "checked",
    });
    let parameters = options.parameters(correction)?;
    let failures = parameters.faults.most(parameters.ring).into();
    let need = Need::of(options.network.processes, 300, failures, 0);
    let threads = sweep.threads(options.network.processes, &need)?;
    let broadcasts = Broadcasts::new(parameters)?;
    let runs = broadcasts.sweep(sweep.seed, sweep.runs, threads)?;
    let wall_seconds = began.elapsed().as_secs_f64();
    sweep.draw(|| broadcasts.plot(sweep.seed))?;
    let summary = summary(options, &broadcasts, &runs);
    let status = status(summary.guaranteed && summary.uncoloured_live > 0);
    if !sweep.json {
        return text(&runs, &summary, wall_seconds).map(|_| status);
    }
    let tree = (options.dissemination != Dissemination::Gossip).then_some(&*options.tree);
    let synchronized = options.start == StartName::Synchronized && correction != "none";
    let from = broadcasts.config().correct_from().0;
    output::json(&Answer {
        schema: "outlive.simulate.broadcast/1",
        parameters: Understood {
            network: options.network.understood(),
            root: options.root,
            dissemination: options.dissemination,
            tree,
            order: tree.map(|_| options.order),
            gossip_time: broadcasts.gossip_time(),
            correction,
            start: options.start,
            correction_start: synchronized.then_some(from),
            failures: options.faults.understood(),
            seed: sweep.seed,
            runs: sweep.runs,
        },
        runs: runs.iter().map(|run| options.one(run)).collect(),
        summary,
        events: runs.iter().map(|run| run.events).sum(),
        wall_seconds,
        peak_bytes: peak_bytes(),
    })?;
    Ok(status)
}

fn summary(options: &BroadcastOptions, broadcasts: &Broadcasts, runs: &[Run]) -> Summary {
    let messages = Spans::of(runs, |run| run.messages);
    Summary {
        runs: runs.len(),
        colouring_time: Spans::of(runs, |run| run.colouring_time),
        quiescence: Spans::of(runs, |run| run.quiescence),
        messages_per_process: messages.mean / f64::from(options.network.processes),
        messages,
        max_gap: Spans::of(runs, |run| u64::from(run.max_gap)),
        uncoloured_live: runs.iter().map(|run| run.uncoloured_live).sum(),
        runs_with_uncoloured: runs.iter().filter(|run| run.uncoloured_live > 0).count(),
        guaranteed: broadcasts.guaranteed(),
    }
}

fn text(runs: &[Run], summary: &Summary, wall_seconds: f64) -> Result<u8> {
    let heading = [
        "seed",
        "coloured",
        "quiescent",
        "messages",
        "dead",
        "missed",
        "gap",
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
            run.uncoloured_live,
            u64::from(run.max_gap),
        ];
        rows.push(cells.map(|cell| cell.to_string()).to_vec());
    }
    let mut lines = vec![output::table(&rows)];
    if runs.len() > LISTED_MAX {
        lines.push(format!("... {} more", runs.len() - LISTED_MAX));
    }
    lines.push(format!(
        "mean: coloured {:.1}, quiescent {:.1}, {:.2} messages per process; {} of {} missed \
         a live process ({}); {wall_seconds:.2} s",
        summary.colouring_time.mean,
        summary.quiescence.mean,
        summary.messages_per_process,
        summary.runs_with_uncoloured,
        count(summary.runs as u64, "run"),
        if summary.guaranteed {
            "none may"
        } else {
            "nothing is promised for these failures"
        }
    ));
    output::text(&lines.join("\n"))
}

impl BroadcastOptions {
    pub(super) fn ring(&self) -> Ring {
        Ring {
            processes: self.network.processes,
            root: self.root,
        }
    }

    /// When gossip ends; none: to be chosen.
    fn until(&self) -> Result<Option<u64>> {
        let remedy = "give auto or a time of 0 or more";
        match self.gossip_time.as_str() {
            "auto" => Ok(None),
            time => number("gossip-time", time, remedy).map(Some),
        }
    }

    fn parameters(&self, correction: &str) -> Result<Parameters> {
        let (shape, order) = (shape(&self.tree)?, self.order.order());
        let until = self.until()?;
        Ok(Parameters {
            ring: self.ring(),
            model: self.network.model(),
            spread: match self.dissemination {
                Dissemination::AcknowledgedTree => Spread::AcknowledgedTree(shape, order),
                Dissemination::Gossip => Spread::Gossip(until),
                _ => Spread::Tree(shape, order),
            },
            correction: correction_of(correction)?,
            start: match self.start {
                StartName::Synchronized => Start::Synchronized,
                StartName::Overlapped => Start::Overlapped,
            },
            bytes: self.network.bytes,
            faults: self.faults.faults()?,
        })
    }

    fn one<'a>(&self, run: &'a Run) -> OneRun<'a> {
        let acknowledging = self.dissemination == Dissemination::AcknowledgedTree;
        OneRun {
            seed: run.seed,
            colouring_time: run.colouring_time,
            quiescence: run.quiescence,
            messages: run.messages,
            dead: &run.dead,
            uncoloured_live: run.uncoloured_live,
            max_gap: run.max_gap,
            acknowledged: acknowledging.then_some(run.acknowledged),
        }
    }
}

pub(super) fn correction_of(text: &str) -> Result<Correction> {
    let remedy = "give none, opportunistic:D, optimized-opportunistic:D (D of 1 or more), checked \
                  or failure-proof:F (F of 0 or more)";
    match text.split_once(':') {
        None if text == "none" => Ok(Correction::None),
        None if text == "checked" => Ok(Correction::Checked),
        Some(("opportunistic", d)) => {
            number("correction", d, remedy).map(Correction::Opportunistic)
        }
        Some(("optimized-opportunistic", d)) => {
            number("correction", d, remedy).map(Correction::OptimizedOpportunistic)
        }
        Some(("failure-proof", f)) => number("correction", f, remedy).map(Correction::FailureProof),
        _ => refuse("correction", text, remedy),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn words_are_understood_or_refused() {
        assert_eq!(
            correction_of("failure-proof:3").unwrap(),
            Correction::FailureProof(3)
        );
        for bad in ["checked:1", "failure-proof", "opportunistic:-2", ""] {
            assert!(correction_of(bad).is_err(), "{bad}");
        }
        assert_eq!(
            dissemination("spanning-trees:3").unwrap(),
            Dissemination::SpanningTrees(3)
        );
        for bad in [
            "spanning-trees",
            "spanning-trees:-1",
            "tree:2",
            "rumour",
            "",
        ] {
            assert!(dissemination(bad).is_err(), "{bad}");
        }
    }
}

//! `outlive simulate broadcast`: time, messages and reach of a corrected broadcast.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

use clap::{Args, ValueEnum};
use outlive_base::{Code, Entity, Error, Result};
use outlive_protocols::broadcast::tree::{Order, Ring, Shape};
use outlive_protocols::broadcast::{Correction, LogP, Start};
use outlive_simulator::broadcast::{Broadcasts, Faults, Moment, Parameters, Quantity, Run, Spread};
use outlive_simulator::logp::Model;
use serde::Serialize;

use crate::output;

/// Runs that are listed as text.
const LISTED_MAX: usize = 20;
/// Processes simulated at once, over all threads: bounds the memory.
const AT_ONCE_MAX: u64 = 1 << 21;

#[derive(Args, Debug)]
#[command(after_help = "\
Times are whole numbers in one unit of your choice. Examples:
  outlive simulate broadcast --processes 1024 --tree lame:2 --json
  outlive simulate broadcast --processes 4096 --dissemination gossip --faults 1% --runs 100
  outlive simulate broadcast --processes 32 --dead 1 --plot picture.svg

The exit status is 70 if a live process missed the message although the correction
promises that none does.")]
pub struct BroadcastOptions {
    /// Number of processes, the root included
    #[arg(long, value_name = "P")]
    processes: u32,
    /// The rank that has the message
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,
    /// L: from the end of a send to the start of its reception
    #[arg(
        long,
        value_name = "L",
        default_value_t = 2,
        allow_negative_numbers = true
    )]
    latency: u64,
    /// o: of a process for each message, on either side
    #[arg(
        long,
        value_name = "O",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    overhead: u64,
    /// g: between two sends of a process, and two receptions [default: the overhead, at
    /// least 1]
    #[arg(long, value_name = "G", allow_negative_numbers = true)]
    gap: Option<u64>,
    /// G of LogGP: for each byte after the first
    #[arg(
        long,
        value_name = "TIME",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    byte_gap: u64,
    /// Bytes of the message
    #[arg(long, value_name = "N", default_value_t = 1)]
    bytes: u64,
    /// A process sends or receives, never both at once
    #[arg(long)]
    half_duplex: bool,
    /// How the message is first spread
    #[arg(long, value_name = "HOW", default_value = "tree")]
    dissemination: Dissemination,
    /// binomial, kary:K, lame:K or optimal
    #[arg(long, value_name = "TREE", default_value = "binomial")]
    tree: String,
    /// How ranks are laid on the tree
    #[arg(long, value_name = "ORDER", default_value = "interleaved")]
    order: OrderName,
    /// When gossip ends, or auto for the best time by expectation
    #[arg(
        long,
        value_name = "TIME",
        default_value = "auto",
        allow_negative_numbers = true
    )]
    gossip_time: String,
    /// none, opportunistic:D, optimized-opportunistic:D, checked or failure-proof:F
    /// [default: checked; none for an acknowledged tree]
    #[arg(long, value_name = "CORRECTION")]
    correction: Option<String>,
    /// All at once, or each as soon as its own part of the dissemination is sent
    #[arg(long, value_name = "START", default_value = "synchronized")]
    start: StartName,
    /// Ranks that are dead before the start
    #[arg(long, value_name = "RANKS", value_delimiter = ',')]
    dead: Vec<u32>,
    /// More that fail, drawn by the seed: a number, or a share like 2.5%
    #[arg(
        long,
        value_name = "N|P%",
        default_value = "0",
        allow_negative_numbers = true
    )]
    faults: String,
    /// When these fail
    #[arg(long, value_name = "WHEN", default_value = "before")]
    fault_time: FaultTime,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs, with consecutive seeds
    #[arg(long, value_name = "N", default_value_t = 1)]
    runs: u64,
    /// Threads [default: one for each core, fewer if memory asks for it]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Draw the first run as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Dissemination {
    /// Down a tree
    Tree,
    /// To others drawn at random
    Gossip,
    /// Down a tree and acknowledged up it
    AcknowledgedTree,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum OrderName {
    /// Subtrees spread over the ring
    Interleaved,
    /// Subtrees of consecutive ranks
    InOrder,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum StartName {
    /// When a fault-free dissemination would have ended
    Synchronized,
    /// Each process as soon as it can
    Overlapped,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum FaultTime {
    /// Before the start
    Before,
    /// At any time, or between any two sends
    During,
    /// When all is over
    After,
}

/// The parameters as they were understood.
#[derive(Serialize)]
struct Understood<'a> {
    processes: u32,
    root: u32,
    latency: u64,
    overhead: u64,
    gap: u64,
    byte_gap: u64,
    bytes: u64,
    half_duplex: bool,
    dissemination: Dissemination,
    tree: Option<&'a str>,
    order: Option<OrderName>,
    gossip_time: Option<u64>,
    correction: &'a str,
    start: StartName,
    /// When synchronized correction starts.
    correction_start: Option<u64>,
    dead: &'a [u32],
    faults: &'a str,
    fault_time: FaultTime,
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
struct Spans {
    mean: f64,
    min: u64,
    median: u64,
    p99: u64,
    max: u64,
}

impl Spans {
    fn of(runs: &[Run], of: impl Fn(&Run) -> u64) -> Spans {
        let mut all: Vec<u64> = runs.iter().map(of).collect();
        all.sort_unstable();
        let at = |share: usize| all.get((all.len() * share / 100).min(all.len().max(1) - 1));
        let at = |share| at(share).copied().unwrap_or(0);
        Spans {
            mean: all.iter().map(|&v| v as f64).sum::<f64>() / all.len().max(1) as f64,
            min: at(0),
            median: at(50),
            p99: at(99),
            max: at(100),
        }
    }
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

#[derive(Serialize)]
struct Answer<'a> {
    schema: &'static str,
    parameters: Understood<'a>,
    runs: Vec<OneRun<'a>>,
    summary: Summary,
    events: u64,
    wall_seconds: f64,
    peak_bytes: u64,
}

/// Runs the broadcasts; 0 unless the correction broke its promise.
pub fn run(options: &BroadcastOptions) -> Result<u8> {
    let began = Instant::now();
    let correction = options.correction.as_deref();
    let correction = correction.unwrap_or(match options.dissemination {
        Dissemination::AcknowledgedTree => "none",
        _ => "checked",
    });
    if options.runs == 0 {
        return refuse("runs", "0", "give 1 or more");
    }
    let parameters = options.parameters(correction)?;
    let gap = parameters.model.logp.gap;
    let broadcasts = Broadcasts::new(parameters)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let fit = AT_ONCE_MAX / u64::from(options.processes.max(1));
    let threads = options.threads.unwrap_or(cores.min(fit.max(1) as usize));
    let runs = broadcasts.sweep(options.seed, options.runs, threads)?;
    let wall_seconds = began.elapsed().as_secs_f64();
    if let Some(path) = &options.plot {
        let picture = broadcasts.plot(options.seed)?;
        std::fs::write(path, picture).map_err(|error| Error::io(path, "write", &error))?;
    }
    let summary = summary(options, &broadcasts, &runs);
    let broken = summary.guaranteed && summary.uncoloured_live > 0;
    let status = if broken {
        Code::Internal.exit_status()
    } else {
        0
    };
    if options.json {
        let tree = (options.dissemination != Dissemination::Gossip).then_some(&*options.tree);
        let synchronized = options.start == StartName::Synchronized && correction != "none";
        let from = broadcasts.config().correct_from().0;
        let answer = Answer {
            schema: "outlive.simulate.broadcast/1",
            parameters: Understood {
                processes: options.processes,
                root: options.root,
                latency: options.latency,
                overhead: options.overhead,
                gap,
                byte_gap: options.byte_gap,
                bytes: options.bytes,
                half_duplex: options.half_duplex,
                dissemination: options.dissemination,
                tree,
                order: tree.map(|_| options.order),
                gossip_time: broadcasts.gossip_time(),
                correction,
                start: options.start,
                correction_start: synchronized.then_some(from),
                dead: &options.dead,
                faults: &options.faults,
                fault_time: options.fault_time,
                seed: options.seed,
                runs: options.runs,
            },
            runs: runs.iter().map(|run| options.one(run)).collect(),
            summary,
            events: runs.iter().map(|run| run.events).sum(),
            wall_seconds,
            peak_bytes: peak_bytes(),
        };
        output::json(&answer)?;
        return Ok(status);
    }
    text(&runs, &summary, wall_seconds)?;
    Ok(status)
}

fn summary(options: &BroadcastOptions, broadcasts: &Broadcasts, runs: &[Run]) -> Summary {
    let messages = Spans::of(runs, |run| run.messages);
    Summary {
        runs: runs.len(),
        colouring_time: Spans::of(runs, |run| run.colouring_time),
        quiescence: Spans::of(runs, |run| run.quiescence),
        messages_per_process: messages.mean / f64::from(options.processes),
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
        "mean: coloured {:.1}, quiescent {:.1}, {:.2} messages a process; {} of {} runs missed \
         a live process ({}); {wall_seconds:.2} s",
        summary.colouring_time.mean,
        summary.quiescence.mean,
        summary.messages_per_process,
        summary.runs_with_uncoloured,
        summary.runs,
        if summary.guaranteed {
            "none may"
        } else {
            "nothing is promised for these failures"
        }
    ));
    output::text(&lines.join("\n"))
}

impl BroadcastOptions {
    fn parameters(&self, correction: &str) -> Result<Parameters> {
        let shape = shape(&self.tree)?;
        let order = match self.order {
            OrderName::Interleaved => Order::Interleaved,
            OrderName::InOrder => Order::InOrder,
        };
        let until = match self.gossip_time.as_str() {
            "auto" => None,
            time => Some(number(
                "gossip-time",
                time,
                "give auto or a time of 0 or more",
            )?),
        };
        Ok(Parameters {
            ring: Ring {
                processes: self.processes,
                root: self.root,
            },
            model: Model {
                logp: LogP {
                    latency: self.latency,
                    overhead: self.overhead,
                    gap: self.gap.unwrap_or(self.overhead.max(1)),
                },
                byte_gap: self.byte_gap,
                half_duplex: self.half_duplex,
            },
            spread: match self.dissemination {
                Dissemination::Tree => Spread::Tree(shape, order),
                Dissemination::AcknowledgedTree => Spread::AcknowledgedTree(shape, order),
                Dissemination::Gossip => Spread::Gossip(until),
            },
            correction: correction_of(correction)?,
            start: match self.start {
                StartName::Synchronized => Start::Synchronized,
                StartName::Overlapped => Start::Overlapped,
            },
            bytes: self.bytes,
            faults: Faults {
                dead: self.dead.clone(),
                random: quantity(&self.faults)?,
                moment: match self.fault_time {
                    FaultTime::Before => Moment::Before,
                    FaultTime::During => Moment::During,
                    FaultTime::After => Moment::After,
                },
            },
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

/// What `bench simulate` runs.
pub fn fault_free_binomial(processes: u32) -> Parameters {
    Parameters {
        ring: Ring { processes, root: 0 },
        model: Model {
            logp: LogP {
                latency: 2,
                overhead: 1,
                gap: 1,
            },
            byte_gap: 0,
            half_duplex: false,
        },
        spread: Spread::Tree(Shape::Binomial, Order::Interleaved),
        correction: Correction::Checked,
        start: Start::Synchronized,
        bytes: 1,
        faults: Faults::none(),
    }
}

/// The most memory this process ever held, in bytes; 0 if the system does not say.
pub fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn refuse<T>(option: &str, value: &str, remedy: &str) -> Result<T> {
    let entity = Entity::Option(option.into());
    let reason = format!("'{value}' is not understood or out of range");
    Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
}

fn number<T: FromStr>(option: &str, value: &str, remedy: &str) -> Result<T> {
    value.parse().or_else(|_| refuse(option, value, remedy))
}

fn shape(text: &str) -> Result<Shape> {
    let remedy = "give binomial, kary:K, lame:K (K of 1 or more) or optimal";
    match text.split_once(':') {
        None if text == "binomial" => Ok(Shape::Binomial),
        None if text == "optimal" => Ok(Shape::Optimal),
        Some(("kary", k)) => number("tree", k, remedy).map(Shape::Kary),
        Some(("lame", k)) => number("tree", k, remedy).map(Shape::Lame),
        _ => refuse("tree", text, remedy),
    }
}

fn correction_of(text: &str) -> Result<Correction> {
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

/// `12`, or `2.5%` with up to four decimals.
fn quantity(text: &str) -> Result<Quantity> {
    let remedy = "give a number like 12, or a share of the processes like 2.5% (0% to 100%)";
    let Some(share) = text.strip_suffix('%') else {
        return number("faults", text, remedy).map(Quantity::Number);
    };
    let (whole, part) = share.split_once('.').unwrap_or((share, "0"));
    let digits = part.len();
    let all_digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !all_digits(whole) || !all_digits(part) || digits > 4 {
        return refuse("faults", text, remedy);
    }
    let whole: u32 = number("faults", whole, remedy)?;
    let part: u32 = number("faults", &format!("{part:0<4}"), remedy)?;
    match whole.checked_mul(10_000).and_then(|w| w.checked_add(part)) {
        Some(per_million) if per_million <= 1_000_000 => Ok(Quantity::PerMillion(per_million)),
        _ => refuse("faults", text, remedy),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn words_are_understood_or_refused() {
        assert_eq!(shape("kary:4").unwrap(), Shape::Kary(4));
        assert_eq!(shape("lame:2").unwrap(), Shape::Lame(2));
        assert_eq!(quantity("2.5%").unwrap(), Quantity::PerMillion(25_000));
        assert_eq!(quantity("100%").unwrap(), Quantity::PerMillion(1_000_000));
        assert_eq!(quantity("7").unwrap(), Quantity::Number(7));
        assert_eq!(
            correction_of("failure-proof:3").unwrap(),
            Correction::FailureProof(3)
        );
        for bad in ["kary", "kary:", "kary:-1", "lame:x", "bush", ""] {
            assert!(shape(bad).is_err(), "{bad}");
        }
        for bad in [
            "-1",
            "101%",
            "%",
            "1.%",
            ".5%",
            "1.00001%",
            "1e9%",
            "99999999999%",
        ] {
            assert!(quantity(bad).is_err(), "{bad}");
        }
        for bad in ["checked:1", "failure-proof", "opportunistic:-2", ""] {
            assert!(correction_of(bad).is_err(), "{bad}");
        }
    }
}

//! What the simulations over LogP have in common: options, words, figures.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use outlive_base::{Code, Entity, Error, Result, count};
use outlive_protocols::broadcast::LogP;
use outlive_protocols::broadcast::tree::{Order, Shape};
use outlive_simulator::broadcast::{Faults, Moment, Quantity};
use outlive_simulator::logp::Model;
use serde::Serialize;

use crate::memory;

/// Runs that are listed as text.
pub const LISTED_MAX: usize = 20;
/// Processes simulated at once, over all threads: bounds the memory.
const AT_ONCE_MAX: u64 = 1 << 21;
const THREADS_MAX: usize = 4096;

/// What a simulation answers: its parameters as they were understood, each run, all together.
#[derive(Serialize)]
pub struct Answer<P, R, S> {
    /// Name and version of what follows.
    pub schema: &'static str,
    pub parameters: P,
    pub runs: Vec<R>,
    pub summary: S,
    pub events: u64,
    pub wall_seconds: f64,
    pub peak_bytes: u64,
}

/// The processes and what lies between them.
#[derive(Args, Debug)]
#[command(next_help_heading = "Processes and network")]
pub struct NetworkOptions {
    /// Number of processes, the root included
    #[arg(long, value_name = "P")]
    pub processes: u32,
    /// L: from the end of a send to the start of its reception
    #[arg(
        long,
        value_name = "L",
        default_value_t = 2,
        allow_negative_numbers = true
    )]
    pub latency: u64,
    /// o: how long a message occupies its sender, and its receiver
    #[arg(
        long,
        value_name = "O",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub overhead: u64,
    /// g: least time between the starts of two sends of a process, and of two receptions
    /// [default: the overhead, at least 1]
    #[arg(long, value_name = "G", allow_negative_numbers = true)]
    pub gap: Option<u64>,
    /// G of LogGP: time for each byte after the first
    #[arg(
        long,
        value_name = "TIME",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub byte_gap: u64,
    /// Bytes of the message, or of an operand
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub bytes: u64,
    /// A process sends or receives, never both at once
    #[arg(long)]
    pub half_duplex: bool,
}

/// The network as it was understood.
#[derive(Serialize)]
pub struct Network {
    processes: u32,
    latency: u64,
    overhead: u64,
    gap: u64,
    byte_gap: u64,
    bytes: u64,
    half_duplex: bool,
}

impl NetworkOptions {
    pub fn model(&self) -> Model {
        Model {
            logp: LogP {
                latency: self.latency,
                overhead: self.overhead,
                gap: self.gap.unwrap_or(self.overhead.max(1)),
            },
            byte_gap: self.byte_gap,
            half_duplex: self.half_duplex,
        }
    }

    pub fn understood(&self) -> Network {
        Network {
            processes: self.processes,
            latency: self.latency,
            overhead: self.overhead,
            gap: self.model().logp.gap,
            byte_gap: self.byte_gap,
            bytes: self.bytes,
            half_duplex: self.half_duplex,
        }
    }
}

/// Who fails, and when.
#[derive(Args, Debug)]
#[command(next_help_heading = "Failures")]
pub struct FaultOptions {
    /// Ranks that are dead before the start [default: none]
    #[arg(long, value_name = "RANKS", value_delimiter = ',')]
    pub dead: Vec<u32>,
    /// More that fail, drawn by the seed (never the root; rank 0 where all get the
    /// result): a number, or a share like 2.5%
    #[arg(
        long,
        value_name = "N|P%",
        default_value = "0",
        allow_negative_numbers = true
    )]
    pub faults: String,
    /// When these fail
    #[arg(long, value_name = "WHEN", default_value = "before")]
    pub fault_time: FaultTime,
}

/// The failures as they were understood.
#[derive(Serialize)]
pub struct Failures<'a> {
    dead: &'a [u32],
    faults: &'a str,
    fault_time: FaultTime,
}

impl FaultOptions {
    pub fn faults(&self) -> Result<Faults> {
        Ok(Faults {
            dead: self.dead.clone(),
            random: quantity(&self.faults)?,
            moment: match self.fault_time {
                FaultTime::Before => Moment::Before,
                FaultTime::During => Moment::During,
                FaultTime::After => Moment::After,
            },
            ..Faults::none()
        })
    }

    pub fn understood(&self) -> Failures<'_> {
        Failures {
            dead: &self.dead,
            faults: &self.faults,
            fault_time: self.fault_time,
        }
    }
}

/// Memory that a simulation takes, in bytes, from above: as measured with 100,000 and
/// 400,000 processes (`outlive simulate ... --json`, `peak_bytes`), and a tenth more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// While a run is simulated.
    pub running: u64,
    /// For its figures until all runs are told.
    pub kept: u64,
}

impl Need {
    /// `each` bytes for a process, and `each_dead` more for each pair of a process and a
    /// failure that it comes to know.
    pub fn of(processes: u32, each: u64, failures: u64, each_dead: u64) -> Need {
        let dead = failures.saturating_mul(each_dead);
        Need {
            running: u64::from(processes).saturating_mul(each.saturating_add(dead)),
            kept: 400 + failures.saturating_mul(8),
        }
    }
}

/// How often, and what is shown.
#[derive(Args, Debug)]
#[command(next_help_heading = "Runs and output")]
pub struct SweepOptions {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Runs, with consecutive seeds
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub runs: u64,
    /// Threads [default: one for each core, fewer if memory asks for it]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Draw the first run as SVG [default: no picture]
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl SweepOptions {
    pub fn check(&self) -> Result<()> {
        if self.runs == 0 {
            return refuse("runs", "0", "give 1 or more");
        }
        Ok(())
    }

    /// How many threads run at once what each takes `need` of memory.
    ///
    /// # Errors
    /// `InvalidArgument` if it takes more memory than there is, or too many threads.
    pub fn threads(&self, processes: u32, need: &Need) -> Result<usize> {
        if self.threads.is_some_and(|threads| threads > THREADS_MAX) {
            return refuse("threads", "more than 4096", "give 1 to 4096");
        }
        let kept = need.kept.saturating_mul(self.runs);
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let room = memory::available().saturating_sub(kept) / need.running.max(1);
        let fit = (AT_ONCE_MAX / u64::from(processes.max(1))).min(room).max(1);
        let threads = self.threads.unwrap_or(cores.min(fit as usize)) as u64;
        let threads = threads.clamp(1, self.runs.max(1));
        let bytes = need.running.saturating_mul(threads).saturating_add(kept);
        let what = format!(
            "{}, {} in {}",
            count(processes, "process"),
            count(self.runs, "run"),
            count(threads, "thread")
        );
        memory::fits("processes", &what, bytes)?;
        Ok(threads as usize)
    }

    /// Writes the picture where it was asked for.
    pub fn draw(&self, picture: impl FnOnce() -> Result<String>) -> Result<()> {
        let Some(path) = &self.plot else {
            return Ok(());
        };
        write(path, &picture()?)
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| Error::io(path, "write", &error))
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderName {
    /// Subtrees spread over the ring
    Interleaved,
    /// Subtrees of consecutive ranks
    InOrder,
}

impl OrderName {
    pub const fn order(self) -> Order {
        match self {
            OrderName::Interleaved => Order::Interleaved,
            OrderName::InOrder => Order::InOrder,
        }
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultTime {
    /// Before the start
    Before,
    /// At any time, or between any two sends
    During,
    /// When all is over
    After,
}

/// Figures over all runs.
#[derive(Serialize)]
pub struct Spans {
    pub mean: f64,
    pub min: u64,
    pub median: u64,
    pub p99: u64,
    pub max: u64,
}

impl Spans {
    pub fn of<R>(runs: &[R], of: impl Fn(&R) -> u64) -> Spans {
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

/// 70 if a promise was broken, else 0.
pub const fn status(broken: bool) -> u8 {
    if broken {
        Code::Internal.exit_status()
    } else {
        0
    }
}

/// The most memory this process ever held, in bytes; 0 if the system does not say.
pub fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

pub fn refuse<T>(option: &str, value: &str, remedy: &str) -> Result<T> {
    let entity = Entity::Option(option.into());
    let reason = format!("'{value}' is not understood or out of range");
    Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
}

pub fn number<T: FromStr>(option: &str, value: &str, remedy: &str) -> Result<T> {
    value.parse().or_else(|_| refuse(option, value, remedy))
}

pub fn shape(text: &str) -> Result<Shape> {
    let remedy = "give binomial, kary:K, lame:K (K of 1 or more) or optimal";
    match text.split_once(':') {
        None if text == "binomial" => Ok(Shape::Binomial),
        None if text == "optimal" => Ok(Shape::Optimal),
        Some(("kary", k)) => number("tree", k, remedy).map(Shape::Kary),
        Some(("lame", k)) => number("tree", k, remedy).map(Shape::Lame),
        _ => refuse("tree", text, remedy),
    }
}

/// `12`, or `2.5%` with up to four decimals.
pub fn quantity(text: &str) -> Result<Quantity> {
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
    }
}

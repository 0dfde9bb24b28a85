//! MPI-FWQ: fixed work in every rank of an MPI job (FFMK, section 2.3, "EP and BSP runs").
//!
//! In StartSync mode one barrier stands before the first quantum, and each rank works alone
//! from then on, as in an embarrassingly parallel job. In StepSync mode a barrier stands before
//! each quantum, as in a bulk-synchronous one: each step takes as long as its slowest rank.
//!
//! [`record`] reads what the program of the ranks, [`PROGRAM`], leaves; [`judge`] makes a
//! [`Ranks`] of it; [`show`] has it in words and pictures. None of them looks at the machine.

pub mod judge;
pub mod record;
pub mod show;

use serde::{Deserialize, Serialize};

use crate::extrapolate::Scale;
use crate::stats::{Class, Summary};

/// The C source of what runs in each rank; compiled with an MPI's own compiler.
pub const PROGRAM: &str = include_str!("../c/ranks.c");
/// The form of [`Ranks`].
pub const RANKS: &str = "outlive.noise-mpi/1";

/// When the ranks wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// StartSync: once, before the first quantum.
    Start,
    /// StepSync: before each quantum, and after the last.
    Step,
}

impl Mode {
    /// As the program of the ranks is told.
    pub const fn word(self) -> &'static str {
        match self {
            Mode::Start => "start",
            Mode::Step => "step",
        }
    }
}

/// When the daemons of the ranks wake up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Coordinated: all at the same time of day.
    Same,
    /// Uncoordinated: each at a time of its own within the period.
    Random,
}

/// A disturbance that is made on purpose: on the core of each rank a thread wakes up once a
/// period and computes (HPC-Colony, section 2.2, figure 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Daemon {
    /// What it computes each time, ns of processor time.
    pub burst_ns: u64,
    /// From one time to the next, ns.
    pub period_ns: u64,
    /// When.
    pub phase: Phase,
}

/// A measurement of an MPI job. All times in nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ranks {
    /// [`RANKS`].
    pub schema: String,
    /// When the ranks waited for each other.
    pub mode: Mode,
    /// The quantum that was asked for, on the quickest rank.
    pub quantum_ns: u64,
    /// Quanta of each rank.
    pub steps: u64,
    /// The counter that was read: `tsc`, `cntvct` or `clock`.
    pub counter: String,
    /// The MPI library, in its own words.
    pub mpi: String,
    /// The seed of replayed steps and of the phases of daemons.
    pub seed: u64,
    /// What disturbed on purpose; null: nothing.
    pub daemon: Option<Daemon>,
    /// What was missing or is to be known.
    pub notes: Vec<String>,
    /// All ranks together.
    pub job: Job,
    /// Each rank, in order.
    pub ranks: Vec<Rank>,
}

/// All ranks together. Its time has parts that add up:
/// `total_ns = ideal_ns + own_ns + slowest_ns + barrier_ns`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// How many.
    pub ranks: u64,
    /// On how many hosts, by name.
    pub hosts: u64,
    /// Some host has more ranks than cores that these may use.
    pub oversubscribed: bool,
    /// From the first barrier until the last rank was done.
    pub total_ns: f64,
    /// The least quantum of all, as often as there are quanta: no noise at all.
    pub ideal_ns: f64,
    /// The rest of the quanta of a rank, mean over ranks: what noise costs without waiting.
    pub own_ns: f64,
    /// What the slowest rank adds to that: of each step, or once at the end (start).
    pub slowest_ns: f64,
    /// What is left, for step: the barriers themselves, and what hits ranks within them.
    pub barrier_ns: Option<f64>,
    /// Total over ideal, minus 1, percent.
    pub slowdown_percent: f64,
    /// Every quantum of every rank.
    pub quanta: Summary,
    /// The mean quantum of each rank.
    pub over_ranks: Summary,
    /// For step: time of a step with its waiting, mean over ranks.
    pub steps: Option<Summary>,
    /// For step: the slowest quantum of each step.
    pub slowest: Option<Summary>,
    /// For step: slowest over mean quantum of each step, the time lost to the slowest rank.
    pub lost: Option<Summary>,
    /// The expected slowest quantum of a step if ranks were hit independently of each other.
    pub independent_ns: f64,
    /// Quanta by their excess over the least of all.
    pub histogram: Vec<Class>,
    /// Place of each run of steps, and its slowest quantum.
    pub series: Vec<(u64, f64)>,
    /// What the noise of these ranks costs a bulk-synchronous job of more.
    pub extrapolation: Vec<Scale>,
}

/// One rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// The cores that it could run on, as in 0-2,5.
    pub cores: String,
    /// The core where it began to measure, and the one where it ended.
    pub core_first: u32,
    /// See above.
    pub core_last: u32,
    /// Cycles of the counter a second, by the clock.
    pub cycles_per_second: f64,
    /// Whether the memory of samples could be locked.
    pub memory_locked: bool,
    /// Its quanta.
    pub quanta: Summary,
    /// For step: its steps, each from leaving a barrier to leaving the next one.
    pub steps: Option<Summary>,
    /// From the first barrier to its own end.
    pub total_ns: f64,
    /// For step: total minus quanta, spent in barriers.
    pub waited_ns: Option<f64>,
    /// For step: steps in which it was the slowest (the first of equals).
    pub slowest_steps: Option<u64>,
    /// How often its daemon ran; null without.
    pub daemon_bursts: Option<u64>,
    /// When within the period its daemon woke up, ns; null without.
    pub daemon_phase_ns: Option<u64>,
}

//! What a measurement found, in the form in which it is written and read again.

use serde::{Deserialize, Serialize};

use crate::attribute::Attribution;
use crate::counters::Counted;
use crate::extrapolate::Scale;
use crate::spectrum::Spectrum;
use crate::stats::{Class, Summary};

/// The form of [`Noise`].
pub const NOISE: &str = "outlive.noise/1";
/// The form of [`Variation`].
pub const VARIATION: &str = "outlive.noise-variation/1";

/// Which benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Benchmark {
    /// Fixed work quantum: a sample is the time of the same work.
    Fwq,
    /// Fixed time quantum: a sample is the work done in the same time; where times are
    /// shown, it is the time in which that quantum's loss was made, see [`Core::summary`].
    Ftq,
}

/// A measurement of noise.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Noise {
    /// [`NOISE`].
    pub schema: String,
    /// Which benchmark.
    pub kind: Benchmark,
    /// The quantum that was asked for, ns.
    pub quantum_ns: u64,
    /// Samples on each core.
    pub samples: u64,
    /// The counter that was read: `tsc`, `cntvct` or `clock`.
    pub counter: String,
    /// Samples more than this over the least are long, percent.
    pub long_percent: f64,
    /// The seed of replayed steps.
    pub seed: u64,
    /// Consecutive samples in a step of the extrapolated job.
    pub step_quanta: u64,
    /// What was missing or is to be known.
    pub notes: Vec<String>,
    /// One for each core, in the order of measurement.
    pub cores: Vec<Core>,
}

/// One core.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Core {
    /// Its number.
    pub core: u32,
    /// Cycles of the counter a second, by the clock.
    pub cycles_per_second: f64,
    /// Whether the memory of samples could be locked.
    pub memory_locked: bool,
    /// Time of a sample, ns: for fixed work as measured, for fixed time the quantum plus the
    /// part of it by which its work fell short of the most.
    pub summary: Summary,
    /// Samples by their excess over the least.
    pub histogram: Vec<Class>,
    /// Place and largest time of each run of samples, ns.
    pub series: Vec<(u64, f64)>,
    /// Only for fixed time.
    pub spectrum: Option<Spectrum>,
    /// What the kernel counted meanwhile.
    pub counted: Counted,
    /// `tracefs` or `counters`.
    pub source: String,
    /// What hit long samples; null where the source was counters, which cannot say it.
    pub attribution: Option<Attribution>,
    /// Long samples, attributed or not.
    pub long_samples: u64,
    /// Their time over the least, ns.
    pub long_excess_ns: f64,
    /// What this core's noise costs a bulk-synchronous job.
    pub extrapolation: Vec<Scale>,
}

/// A measurement of variation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Variation {
    /// [`VARIATION`].
    pub schema: String,
    /// The level of the cache that working sets are a part of.
    pub level: u32,
    /// That part, percent.
    pub fill_percent: u32,
    /// The counter that was read.
    pub counter: String,
    /// What was missing or is to be known.
    pub notes: Vec<String>,
    /// One for each kernel.
    pub kernels: Vec<Kernel>,
}

/// A kernel on all cores.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its working set, bytes.
    pub bytes: u64,
    /// Calls of the kernel in one run.
    pub calls: u64,
    /// Largest over least of the cores' least run times, minus 1, percent: what the
    /// hardware alone makes of it.
    pub between_cores_percent: f64,
    /// One for each core.
    pub cores: Vec<Runs>,
}

/// Runs of a kernel on one core.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Runs {
    /// The core.
    pub core: u32,
    /// Time of a run, ns.
    pub summary: Summary,
    /// Largest over least run time, minus 1, percent (FFMK, section 2.4).
    pub variation_percent: f64,
    /// The standard error of the mean, percent of it.
    pub error_percent: f64,
}

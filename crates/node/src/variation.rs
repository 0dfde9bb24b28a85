//! Runs of kernels on each core.

use std::path::Path;

use outlive_base::{Code, Entity, Error, Result};

use crate::cycles::{Anchor, Scale, calibrate, now};
use crate::kernels::{self, BYTES_MIN, build};
use crate::model::{Kernel, Runs, VARIATION, Variation};
use crate::{cores, cycles, stats};

/// The most runs of a kernel on a core.
pub const RUNS_MAX: u32 = 100_000;
/// The longest run, ms.
pub const RUN_MS_MAX: u32 = 10_000;
/// The largest working set, as part of the cache, percent.
pub const FILL_MAX: u32 = 10_000;
/// What is taken for a cache of which sysfs says nothing: as the seed's machine had, and
/// what is common above.
const CACHES: [u64; 3] = [32 << 10, 1 << 20, 16 << 20];

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names of kernels.
    pub kernels: Vec<String>,
    /// The level of the cache.
    pub level: u32,
    /// The part of it, percent.
    pub fill_percent: u32,
    /// Runs on each core.
    pub runs: u32,
    /// The length of a run, ms.
    pub run_ms: u32,
}

impl Settings {
    /// Refuses what is out of bounds.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], with the bounds.
    pub fn check(&self) -> Result<()> {
        let refuse = |option: &str, reason: String, remedy: String| {
            let entity = Entity::Option(option.into());
            Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
        };
        for name in &self.kernels {
            if !kernels::NAMES.contains(&name.as_str()) {
                let remedy = format!("choose among {}", kernels::NAMES.join(", "));
                return refuse("kernels", format!("there is no kernel '{name}'"), remedy);
            }
        }
        for (option, value, least, most) in [
            ("level", self.level, 1, 3),
            ("fill", self.fill_percent, 1, FILL_MAX),
            ("runs", self.runs, 2, RUNS_MAX),
            ("run-ms", self.run_ms, 1, RUN_MS_MAX),
        ] {
            if !(least..=most).contains(&value) {
                let reason = format!("{value} is out of range");
                return refuse(option, reason, format!("give {least} to {most}"));
            }
        }
        Ok(())
    }

    /// The working set for `core`, bytes, and whether sysfs said how large the cache is.
    pub fn bytes(&self, root: &Path, core: u32) -> (u64, bool) {
        let said = cores::cache_bytes(root, core, self.level);
        let size = said.unwrap_or(CACHES[self.level.clamp(1, 3) as usize - 1]);
        let part = size.saturating_mul(u64::from(self.fill_percent)) / 100;
        (part.max(BYTES_MIN), said.is_some())
    }
}

/// Measures all kernels on all cores, one after the other.
///
/// # Errors
/// Those of [`cores::pin`]; a kernel that computes something else on another run.
pub fn measure(settings: &Settings, root: &Path, cores: &[u32]) -> Result<Variation> {
    let mut notes = Vec::new();
    let first = cores.first().copied().unwrap_or(0);
    let (bytes, said) = settings.bytes(root, first);
    if !said {
        notes.push(format!(
            "the system does not say how large the cache of level {} is: working sets of {bytes} \
             bytes are taken",
            settings.level
        ));
    }
    let of = |name: &String| kernel(settings, name, bytes, cores);
    Ok(Variation {
        schema: VARIATION.to_owned(),
        level: settings.level,
        fill_percent: settings.fill_percent,
        counter: cycles::COUNTER.to_owned(),
        notes,
        kernels: settings.kernels.iter().map(of).collect::<Result<_>>()?,
    })
}

fn kernel(settings: &Settings, name: &str, bytes: u64, cores: &[u32]) -> Result<Kernel> {
    let (mut runs, mut calls, mut held, mut result) = (Vec::new(), 0, 0, None);
    for &core in cores {
        let run = || on_core(settings, name, bytes, core, calls);
        let joined = std::thread::scope(|scope| scope.spawn(run).join());
        let one =
            joined.map_err(|_| Error::internal(format!("the thread of core {core} ended")))??;
        if result.is_some_and(|before: f64| before.to_bits() != one.result.to_bits()) {
            let reason = format!("{name} computes something else on core {core} than before");
            let remedy = "take the core out of use: it computes wrongly";
            return Err(Error::new(Code::Corrupt, Entity::Call, reason, remedy));
        }
        (result, calls, held) = (Some(one.result), one.calls, one.bytes);
        runs.push(one.runs);
    }
    let least = runs.iter().map(|one| one.summary.min);
    let most = least.clone().fold(0.0, f64::max);
    Ok(Kernel {
        name: name.to_owned(),
        bytes: held,
        calls,
        between_cores_percent: stats::over_percent(most, least.fold(f64::INFINITY, f64::min)),
        cores: runs,
    })
}

struct Measured {
    runs: Runs,
    calls: u64,
    bytes: u64,
    result: f64,
}

/// `calls` is 0 on the first core, which decides how many make a run.
fn on_core(settings: &Settings, name: &str, bytes: u64, core: u32, calls: u64) -> Result<Measured> {
    cores::pin(core)?;
    let still = || Error::internal("the cycle counter or the clock stands still");
    let rough = calibrate().ok_or_else(still)?;
    // Built here, so that its memory is near to its core.
    let mut kernel = build(name, bytes).ok_or_else(|| Error::internal("unknown kernel"))?;
    let result = (kernel.call)();
    let trial = |_| {
        let start = now();
        (kernel.call)();
        rough.ns(now().saturating_sub(start)).max(1.0)
    };
    let once = (0..3).map(trial).fold(f64::INFINITY, f64::min);
    let calls = match calls {
        0 => (f64::from(settings.run_ms) * 1e6 / once).max(1.0) as u64,
        calls => calls,
    };
    let mut times = Vec::with_capacity(settings.runs as usize);
    let (first, mut same) = (Anchor::take(), true);
    for _ in 0..settings.runs {
        let start = now();
        for _ in 0..calls {
            same &= (kernel.call)().to_bits() == result.to_bits();
        }
        times.push(now().saturating_sub(start));
    }
    if !same {
        let reason = format!("{name} on core {core} computed different results");
        let remedy = "take the core out of use: it computes wrongly";
        return Err(Error::new(Code::Corrupt, Entity::Call, reason, remedy));
    }
    let scale = Scale::between(first, Anchor::take()).ok_or_else(still)?;
    let times: Vec<f64> = times.into_iter().map(|cycles| scale.ns(cycles)).collect();
    let summary = stats::summary(&times).ok_or_else(|| Error::internal("no runs"))?;
    let count = times.len() as f64;
    let squares: f64 = times.iter().map(|time| (time - summary.mean).powi(2)).sum();
    let error = (squares / (count * (count - 1.0))).sqrt();
    let runs = Runs {
        core,
        variation_percent: stats::over_percent(summary.max, summary.min),
        error_percent: error / summary.mean * 100.0,
        summary,
    };
    Ok(Measured {
        runs,
        calls,
        bytes: kernel.bytes,
        result,
    })
}

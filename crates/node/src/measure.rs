//! The two loops, and a measurement of a core with what the kernel says meanwhile.
//!
//! Invariant: between the first and the last reading of the counter a measuring thread makes
//! no system call and allocates nothing; its memory is touched before, and locked if it may.

use std::fs;
use std::hint::black_box;

use outlive_base::{Code, Entity, Error, Result, count};

use crate::attribute::{Attribution, Long, attribute};
use crate::counters::{Counted, Counts, Reading, difference, schedstat, steal_ticks, table};
use crate::cycles::{Anchor, Scale, calibrate, now};
use crate::extrapolate::{RANKS, extrapolate, steps};
use crate::model::{Benchmark, Core};
use crate::tracefs::{BYTES_MAX, ROOTS, Recorded, Tracer};
use crate::{cores, spectrum, stats, trace};

/// The shortest and the longest quantum, ns.
pub const QUANTUM_NS: (u64, u64) = (1_000, 1_000_000_000);
/// The fewest and the most samples a core.
pub const SAMPLES: (u64, u64) = (2, 100_000_000);
/// The longest measurement of one core, s.
pub const SECONDS_MAX: u64 = 3_600;
/// Long samples that are matched with events.
const LONG_MATCHED_MAX: usize = 1_000_000;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Which benchmark.
    pub kind: Benchmark,
    /// The length of a quantum, ns.
    pub quantum_ns: u64,
    /// Samples a core.
    pub samples: u64,
    /// Excess over the least from which on a sample is long, percent.
    pub long_percent: f64,
    /// Consecutive samples in a step of the extrapolated job.
    pub step_quanta: u64,
    /// Seed of replayed steps.
    pub seed: u64,
    /// Without the kernel's tracer.
    pub no_trace: bool,
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
        let (least, most) = QUANTUM_NS;
        if !(least..=most).contains(&self.quantum_ns) {
            let reason = format!(
                "a quantum of {} us cannot be measured",
                self.quantum_ns / 1_000
            );
            return refuse("quantum-us", reason, "give 1 to 1000000 us".into());
        }
        let (least, most) = SAMPLES;
        if !(least..=most).contains(&self.samples) {
            let reason = format!("{} cannot be judged", count(self.samples, "sample"));
            return refuse("samples", reason, format!("give {least} to {most}"));
        }
        let seconds = self.quantum_ns * self.samples / 1_000_000_000;
        if seconds > SECONDS_MAX {
            let reason = format!("{} quanta take {seconds} s on each core", self.samples);
            let remedy = format!("give fewer or shorter ones: at most {SECONDS_MAX} s");
            return refuse("samples", reason, remedy);
        }
        if !(1..=self.samples).contains(&self.step_quanta) {
            let reason = format!("{} quanta in a step", self.step_quanta);
            let remedy = "give at least 1 and no more than there are samples";
            return refuse("step-quanta", reason, remedy.into());
        }
        if !(self.long_percent.is_finite() && self.long_percent > 0.0) {
            let reason = format!("{} is no excess", self.long_percent);
            return refuse("long", reason, "give a percentage above 0".into());
        }
        Ok(())
    }

    /// Memory that a measurement takes at most, bytes: samples as cycles, as counts and as
    /// nanoseconds, sorted copies of them, long ones with their places, and the trace.
    pub fn bytes(&self) -> u64 {
        let trace = if self.no_trace { 0 } else { BYTES_MAX };
        self.samples * (8 * 7 + size_of::<Long>() as u64) + trace
    }
}

/// A dependent chain of integer steps: no memory, nothing to vectorise, nothing to foresee.
#[inline(never)]
pub fn work(count: u64) -> u64 {
    let mut word = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..count {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
    }
    black_box(word)
}

/// Steps of [`work`] that take `quantum_ns` when nothing disturbs them.
pub(crate) fn steps_of(quantum_ns: u64, scale: &Scale) -> u64 {
    const TRIAL: u64 = 20_000;
    let trial = |_| {
        let start = now();
        work(TRIAL);
        now().saturating_sub(start).max(1)
    };
    let least = (0..64).map(trial).min().unwrap_or(1);
    (quantum_ns as f64 / scale.ns(least) * TRIAL as f64).max(1.0) as u64
}

/// Fixed work: the counter at the begin and after each quantum. Nothing lies between samples.
fn fwq(count: u64, marks: &mut [u64]) {
    marks[0] = now();
    for mark in &mut marks[1..] {
        work(count);
        *mark = now();
    }
}

/// Fixed time: units of work in each quantum; returns the begin. A quantum that passed while
/// nothing ran has none, so that quanta stay where they are in time.
fn ftq(quantum: u64, unit: u64, counts: &mut [u64]) -> u64 {
    let start = now();
    let mut deadline = start + quantum;
    let (mut at, mut done) = (0, 0);
    while at < counts.len() {
        work(unit);
        let time = now();
        if time < deadline {
            done += 1;
            continue;
        }
        // The unit that crosses the border counts where it began.
        counts[at] = done + 1;
        done = 0;
        while time >= deadline && at < counts.len() {
            at += 1;
            deadline += quantum;
        }
    }
    start
}

/// Touches and locks memory; whether it could be locked.
pub(crate) fn hold(words: &mut [u64]) -> bool {
    words.fill(1);
    // SAFETY: the range is that of a live slice; locking changes no content.
    unsafe { rustix::mm::mlock(words.as_mut_ptr().cast(), size_of_val(words)).is_ok() }
}

pub(crate) fn release(words: &mut [u64], locked: bool) {
    if locked {
        // SAFETY: the same live slice, locked by hold.
        let _ = unsafe { rustix::mm::munlock(words.as_mut_ptr().cast(), size_of_val(words)) };
    }
}

/// What the kernel has counted for `core` and this thread.
pub(crate) fn reading(core: u32) -> Reading {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut counts: Counts = table(&read("/proc/interrupts"), "interrupt", core);
    counts.append(&mut table(&read("/proc/softirqs"), "softirq", core));
    let status = read("/proc/thread-self/status");
    let field = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|value| value.trim().parse().ok())
            .unwrap_or(0)
    };
    let stat = read("/proc/thread-self/stat");
    // After the name, which ends with the last bracket: minor faults are the 8th, major the 10th.
    let rest = stat.rsplit_once(')').map_or("", |pair| pair.1);
    let faults = |at| {
        rest.split_whitespace()
            .nth(at)
            .and_then(|word| word.parse::<u64>().ok())
    };
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    Reading {
        at_s: crate::cycles::clock_ns() as f64 * 1e-9,
        counts,
        switches: (
            field("nonvoluntary_ctxt_switches:"),
            field("voluntary_ctxt_switches:"),
        ),
        faults: faults(7).unwrap_or(0) + faults(9).unwrap_or(0),
        waited_ns: schedstat(&read("/proc/thread-self/schedstat")).map(|pair| pair.1),
        stolen_ns: steal_ticks(&read("/proc/stat"), core).map(|ticks| ticks * tick_ns),
    }
}

/// Measures one core, on a thread of its own. Notes for the user go to `notes`.
///
/// # Errors
/// The core refuses the thread; the counter stands still.
pub fn measure(settings: &Settings, core: u32, notes: &mut Vec<String>) -> Result<Core> {
    let run = || on_core(settings, core);
    let result = std::thread::scope(|scope| scope.spawn(run).join());
    let (measured, told) =
        result.map_err(|_| Error::internal(format!("the thread of core {core} ended")))??;
    for note in told {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    Ok(measured)
}

/// What the loop left.
struct Raw {
    /// Begin of each sample, and the end of the last, cycles.
    marks: Vec<u64>,
    /// Time of each sample, ns.
    times: Vec<f64>,
    /// The work of each quantum, for fixed time.
    counts: Vec<f64>,
    scale: Scale,
    locked: bool,
    /// What the kernel had counted right before the loop, and right after it.
    before: Reading,
    after: Reading,
}

fn on_core(settings: &Settings, core: u32) -> Result<(Core, Vec<String>)> {
    cores::pin(core)?;
    let mut notes = Vec::new();
    let tracer = match settings.no_trace {
        true => Err("not asked for".to_owned()),
        false => Tracer::start(&ROOTS, core),
    };
    let raw = sample(settings, core)?;
    let counted = difference(&raw.before, &raw.after);
    if !raw.locked {
        let limit = "raise the limit (ulimit -l) or measure fewer samples";
        notes.push(format!(
            "memory could not be locked: page faults are possible; {limit}"
        ));
    }
    let summary = stats::summary(&raw.times).ok_or_else(|| Error::internal("no samples"))?;
    let long = long_samples(&raw, summary.min, settings.long_percent);
    let recorded = tracer.and_then(Tracer::stop);
    let attribution = explain(recorded, &long, core, &counted, &mut notes);
    let step_series = steps(&raw.times, settings.step_quanta as usize);
    let least = summary.min * settings.step_quanta as f64;
    let measured = Core {
        core,
        cycles_per_second: raw.scale.frequency_hz(),
        memory_locked: raw.locked,
        histogram: stats::histogram(&raw.times),
        series: stats::envelope(&raw.times),
        spectrum: spectrum::spectrum(&raw.counts, settings.quantum_ns as f64 * 1e-9),
        counted,
        source: if attribution.is_some() {
            "tracefs"
        } else {
            "counters"
        }
        .to_owned(),
        attribution,
        long_samples: long.len() as u64,
        long_excess_ns: long.iter().map(|one| one.excess_ns).sum(),
        extrapolation: extrapolate(&step_series, least, &RANKS, settings.seed),
        summary,
    };
    Ok((measured, notes))
}

fn sample(settings: &Settings, core: u32) -> Result<Raw> {
    let still = || Error::internal("the cycle counter or the clock stands still");
    let rough = calibrate().ok_or_else(still)?;
    let mut words = vec![0; settings.samples as usize + 1];
    let locked = hold(&mut words);
    let quantum = rough.cycles(settings.quantum_ns).max(1);
    let work_ns = match settings.kind {
        Benchmark::Fwq => settings.quantum_ns,
        // A hundredth of a quantum, and no less than reading the counter is worth.
        Benchmark::Ftq => (settings.quantum_ns / 100).max(50),
    };
    let steps = steps_of(work_ns, &rough);
    if settings.kind == Benchmark::Ftq {
        words.truncate(settings.samples as usize);
        words.fill(0);
    }
    let before = reading(core);
    let first = Anchor::take();
    let start = match settings.kind {
        Benchmark::Fwq => {
            fwq(steps, &mut words);
            None
        }
        Benchmark::Ftq => Some(ftq(quantum, steps, &mut words)),
    };
    let last = Anchor::take();
    let after = reading(core);
    let scale = Scale::between(first, last).ok_or_else(still)?;
    release(&mut words, locked);
    let Some(start) = start else {
        let times = words
            .windows(2)
            .map(|pair| scale.ns(pair[1].saturating_sub(pair[0])));
        return Ok(Raw {
            times: times.collect(),
            marks: words,
            counts: Vec::new(),
            scale,
            locked,
            before,
            after,
        });
    };
    let most = words.iter().copied().max().unwrap_or(1).max(1) as f64;
    let quantum_ns = scale.ns(quantum);
    let counts: Vec<f64> = words.iter().map(|&count| count as f64).collect();
    Ok(Raw {
        times: counts
            .iter()
            .map(|count| quantum_ns * (2.0 - count / most))
            .collect(),
        marks: (0..=settings.samples)
            .map(|at| start + at * quantum)
            .collect(),
        counts,
        scale,
        locked,
        before,
        after,
    })
}

fn long_samples(raw: &Raw, least: f64, percent: f64) -> Vec<Long> {
    let limit = least * (1.0 + percent / 100.0);
    let long = raw
        .times
        .iter()
        .enumerate()
        .filter(|(_, time)| **time > limit);
    let long = long.map(|(at, time)| Long {
        index: at as u64,
        start_ns: raw.scale.clock(raw.marks[at]),
        end_ns: raw.scale.clock(raw.marks[at + 1]),
        excess_ns: time - least,
    });
    long.collect()
}

fn explain(
    recorded: std::result::Result<Recorded, String>,
    long: &[Long],
    core: u32,
    counted: &Counted,
    notes: &mut Vec<String>,
) -> Option<Attribution> {
    let counters = "counters tell how often something came, not which sample it hit";
    match recorded {
        Err(reason) => {
            notes.push(format!("no trace of events: {reason}; {counters}"));
            None
        }
        Ok(_) if long.len() > LONG_MATCHED_MAX => {
            notes.push(format!(
                "{} long samples are too many to match; {counters}",
                long.len()
            ));
            None
        }
        Ok(recorded) => {
            let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let trace = trace::parse(&recorded.text, core, thread);
            if recorded.lost + trace.unknown > 0 {
                notes.push(format!(
                    "core {core}: the trace lost {}, and {} of it could not be read; what \
                     they would explain is called unexplained",
                    count(recorded.lost, "event"),
                    count(trace.unknown, "line")
                ));
            }
            let threads = trace
                .intervals
                .iter()
                .any(|one| one.kind == trace::Activity::Thread);
            if counted.involuntary_switches > 0 && !threads {
                // The trace has the numbers of the outermost namespace, a thread those of its own.
                notes.push(format!(
                    "core {core}: other threads took the core {} and the trace does not show \
                     it, as in a container with numbers of processes of its own; their time is \
                     called unexplained",
                    count(counted.involuntary_switches, "time")
                ));
            }
            Some(attribute(long, &trace.intervals))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(quantum_ns: u64, samples: u64) -> Settings {
        Settings {
            kind: Benchmark::Fwq,
            quantum_ns,
            samples,
            long_percent: 10.0,
            step_quanta: 1,
            seed: 1, // fixed seed: the settings alone are looked at
            no_trace: true,
        }
    }

    #[test]
    fn bounds_are_kept() {
        assert!(settings(1_000_000, 100).check().is_ok());
        for (quantum, samples, option) in [
            (0, 100, "quantum-us"),
            (u64::MAX, 100, "quantum-us"),
            (1_000_000, 1, "option samples"),
            (1_000_000, u64::MAX, "option samples"),
            (1_000_000_000, 3_700, "3700 s"),
        ] {
            let error = settings(quantum, samples).check().unwrap_err();
            assert!(error.to_string().contains(option), "{error}");
        }
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut settings = settings(1_000_000, 100);
            settings.long_percent = wrong;
            assert!(settings.check().is_err(), "{wrong}");
        }
    }

    #[test]
    fn quanta_of_time_stay_where_they_are() {
        let mut counts = vec![0; 50];
        let quantum = 200_000;
        let start = ftq(quantum, 100, &mut counts);
        assert!(now() >= start + 50 * quantum, "all of the time has passed");
        assert!(counts.iter().any(|&count| count > 0));
    }
}

//! The same work under several protections of its core, put side by side.
//!
//! Invariant: all parts of a comparison did the same number of steps, so their times are held
//! against one least, that of all.

use std::fmt::Write as _;

use outlive_base::count;
use serde::{Deserialize, Serialize};

use crate::interruptions::{Interruptions, Part};
use crate::stats::{self, Summary, over_percent};
use crate::text::time;

/// The form of [`Compared`].
pub const COMPARED: &str = "outlive.noise-compare/1";

/// A comparison.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Compared {
    /// [`COMPARED`].
    pub schema: String,
    /// The core that protections are for.
    pub core: u32,
    /// The cores for everything else.
    pub service: Vec<u32>,
    /// The quantum that was asked for, ns.
    pub quantum_ns: u64,
    /// Quanta in each turn.
    pub samples: u64,
    /// Turns of each protection; each turn begins with another one.
    pub rounds: u32,
    /// Seed of the load and of nothing else.
    pub seed: u64,
    /// The least quantum of all, ns: what a quantum takes when nothing disturbs it.
    pub least_ns: f64,
    /// How many µs of `rt_period_us` real-time threads may use of a core that others want; -1:
    /// all; null if the kernel does not say.
    pub rt_runtime_us: Option<i64>,
    /// That period, µs.
    pub rt_period_us: Option<i64>,
    /// What the load did in all turns; null without one.
    pub load: Option<Load>,
    /// One for each protection, in the order in which they were asked for.
    pub modes: Vec<Mode>,
    /// Protections that could not be had, and why.
    pub skipped: Vec<(String, String)>,
    /// What `rtla osnoise` said of the unprotected core under the same load; null where it is not
    /// installed or could not run.
    pub osnoise: Option<String>,
    /// What was missing or is to be known.
    pub notes: Vec<String>,
}

/// What a load did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Load {
    /// Times that a daemon worked.
    pub bursts: u64,
    /// Timers that expired.
    pub timers: u64,
    /// Packets that went over the loopback.
    pub packets: u64,
    /// Bytes that were written and synced to a file.
    pub bytes: u64,
}

impl Load {
    /// Both together.
    pub fn plus(self, other: Load) -> Load {
        Load {
            bursts: self.bursts + other.bursts,
            timers: self.timers + other.timers,
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// A protection, all of its turns together. Times in nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mode {
    /// Its name.
    pub name: String,
    /// Seconds of all turns.
    pub seconds: f64,
    /// Seconds of work in them: as many quanta as there were, each the least of all. A thread that
    /// is kept from its core cannot be interrupted there, so rates by the clock would make the
    /// worst protection look quiet; those of [`Mode::per_second`] are of this time.
    pub worked_seconds: f64,
    /// What interrupted the thread.
    pub interruptions: Interruptions,
    /// Interruptions of all kinds in a second of work; null if one kind could not be counted.
    pub per_second: Option<f64>,
    /// The first protection's interruptions a second over this one's; null if either is not known.
    pub times_fewer: Option<f64>,
    /// There was none, and `times_fewer` is as if there had been one: at least so many.
    pub at_least: bool,
    /// All quanta.
    pub all: Summary,
    /// Quanta that the kernel did not interrupt: what disturbs them is the hypervisor, firmware, or
    /// shared hardware. Null if there is none, or if that is not known.
    pub untouched: Option<Summary>,
    /// How many those are.
    pub untouched_samples: Option<u64>,
    /// Time that the hypervisor took from the cores that the thread may use; null if the kernel
    /// does not say.
    pub stolen_ns: Option<u64>,
}

/// All turns of one protection, without [`rates`]; `None` if there is no quantum.
pub fn mode(name: &str, parts: &[Part]) -> Option<Mode> {
    let times: Vec<f64> = parts
        .iter()
        .flat_map(|part| part.times_ns.iter().copied())
        .collect();
    let sum = |of: fn(&Part) -> Option<u64>| parts.iter().map(of).sum::<Option<u64>>();
    let interruptions = Interruptions {
        switches: parts.iter().map(|part| part.interruptions.switches).sum(),
        interrupts: sum(|part| part.interruptions.interrupts),
        softirqs: sum(|part| part.interruptions.softirqs),
    };
    let known = parts.iter().all(|part| part.hit.is_some());
    let calm = parts.iter().flat_map(|part| {
        let hit = part.hit.iter().flatten();
        part.times_ns
            .iter()
            .zip(hit)
            .filter(|pair| !*pair.1)
            .map(|pair| *pair.0)
    });
    let calm: Vec<f64> = calm.collect();
    Some(Mode {
        name: name.to_owned(),
        seconds: parts.iter().map(|part| part.seconds).sum(),
        worked_seconds: 0.0,
        interruptions,
        per_second: None,
        times_fewer: None,
        at_least: false,
        all: stats::summary(&times)?,
        untouched: stats::summary(&calm).filter(|_| known),
        untouched_samples: known.then_some(calm.len() as u64),
        stolen_ns: sum(|part| part.stolen_ns),
    })
}

/// Work and rates of all, by the least quantum of all; that, in ns.
pub fn rates(modes: &mut [Mode], quanta: u64) -> f64 {
    let mins = modes.iter().map(|mode| mode.all.min);
    let least = mins.fold(f64::INFINITY, f64::min);
    for mode in modes {
        mode.worked_seconds = quanta as f64 * least * 1e-9;
        let all = mode.interruptions.all();
        mode.per_second = all.map(|all| all as f64 / mode.worked_seconds.max(1e-9));
    }
    least
}

/// Holds the rates of all against the first.
pub fn against_first(modes: &mut [Mode]) {
    let Some(base) = modes.first().and_then(|first| first.per_second) else {
        return;
    };
    for mode in modes {
        mode.at_least = mode.interruptions.all() == Some(0);
        let one = if mode.at_least {
            1.0 / mode.worked_seconds.max(1e-9)
        } else {
            0.0
        };
        mode.times_fewer = mode.per_second.map(|rate| base / (rate + one).max(1e-9));
    }
}

/// The comparison in words and columns.
pub fn text(of: &Compared) -> String {
    let service: Vec<String> = of.service.iter().map(u32::to_string).collect();
    let mut out = format!(
        "core {}, service {}: fixed work, {} quanta of {} in each of {}\n",
        of.core,
        service.join(","),
        of.samples,
        time(of.quantum_ns as f64),
        count(u64::from(of.rounds), "turn"),
    );
    match &of.load {
        None => out.push_str("no load of its own\n"),
        Some(load) => {
            let _ = writeln!(
                out,
                "under a load of {} of daemons, {}, {}, {} KiB written",
                count(load.bursts, "burst"),
                count(load.timers, "timer"),
                count(load.packets, "packet"),
                load.bytes >> 10
            );
        }
    }
    let _ = writeln!(
        out,
        "\n{:<14} {:>9} {:>9} {:>9} {:>9} {:>10}  interruptions in a second of work",
        "PROTECTION", "SWITCHES", "INTERR.", "SOFTIRQS", "ALL", "FEWER"
    );
    for mode in &of.modes {
        let each =
            |count: Option<u64>| rate(count.map(|all| all as f64 / mode.worked_seconds.max(1e-9)));
        let sign = if mode.at_least { ">=" } else { "" };
        let _ = writeln!(
            out,
            "{:<14} {:>9} {:>9} {:>9} {:>9} {:>10}",
            mode.name,
            each(Some(mode.interruptions.switches)),
            each(mode.interruptions.interrupts),
            each(mode.interruptions.softirqs),
            rate(mode.per_second),
            mode.times_fewer
                .map_or("?".into(), |times| format!("{sign}{times:.1} x")),
        );
    }
    percentiles(&mut out, of);
    for (name, why) in &of.skipped {
        let _ = writeln!(out, "not measured: {name}: {why}");
    }
    for note in &of.notes {
        let _ = writeln!(out, "note: {note}");
    }
    if let Some(text) = &of.osnoise {
        let _ = writeln!(out, "\nrtla osnoise, unprotected:\n{}", text.trim_end());
    }
    out.trim_end().to_owned()
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or("?".to_owned(), |rate| format!("{rate:.1}"))
}

/// Two rows for each protection: all quanta, and those that the kernel did not interrupt.
fn percentiles(out: &mut String, of: &Compared) {
    let _ = write!(out, "\n{:<14} {:<9} {:>7}", "PROTECTION", "QUANTA", "COUNT");
    for at in stats::PERCENTILES {
        let _ = write!(out, " {:>9}", format!("p{}", f64::from(at) / 100.0));
    }
    let _ = writeln!(out, " {:>8}  percent over {}", "STOLEN", time(of.least_ns));
    let row = |out: &mut String, head: String, summary: &Summary, stolen: String| {
        let _ = write!(out, "{head}");
        for (_, value) in &summary.percentiles {
            let _ = write!(out, " {:>9.3}", over_percent(*value, of.least_ns));
        }
        let _ = writeln!(out, " {stolen:>8}");
    };
    for mode in &of.modes {
        let share = |ns: u64| format!("{:.2} %", ns as f64 / (mode.seconds.max(1e-9) * 1e7));
        let all = of.samples * u64::from(of.rounds);
        let head = format!("{:<14} {:<9} {all:>7}", mode.name, "all");
        row(
            out,
            head,
            &mode.all,
            mode.stolen_ns.map_or("?".into(), share),
        );
        if let (Some(summary), Some(samples)) = (&mode.untouched, mode.untouched_samples) {
            let head = format!("{:<14} {:<9} {samples:>7}", "", "untouched");
            row(out, head, summary, String::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(times: &[f64], hit: &[bool], counts: [u64; 3]) -> Part {
        Part {
            times_ns: times.to_vec(),
            hit: Some(hit.to_vec()),
            seconds: 2.0,
            interruptions: Interruptions {
                switches: counts[0],
                interrupts: Some(counts[1]),
                softirqs: Some(counts[2]),
            },
            stolen_ns: Some(10),
            unseen: None,
        }
    }

    #[test]
    fn turns_add_up_and_what_the_kernel_did_not_touch_stands_apart() {
        let first = part(&[100.0, 150.0], &[false, true], [3, 4, 5]);
        let second = part(&[110.0, 900.0], &[false, true], [0, 8, 0]);
        let of = mode("normal", &[first.clone(), second.clone()]).unwrap();
        assert_eq!((of.seconds, of.interruptions.all()), (4.0, Some(20)));
        assert_eq!((of.all.max, of.stolen_ns), (900.0, Some(20)));
        let calm = of.untouched.unwrap();
        assert_eq!(
            (calm.min, calm.max, of.untouched_samples),
            (100.0, 110.0, Some(2))
        );
        // One turn that only /proc counted: not known, and not guessed.
        let mut blind = second;
        blind.hit = None;
        blind.interruptions.softirqs = None;
        let of = mode("normal", &[first, blind]).unwrap();
        assert_eq!(
            (of.interruptions.all(), of.untouched, of.untouched_samples),
            (None, None, None)
        );
        assert_eq!(of.interruptions.interrupts, Some(12));
        assert_eq!(mode("none", &[]), None);
    }

    #[test]
    fn all_are_held_against_the_first_and_none_is_a_bound() {
        let of = |name, counts| mode(name, &[part(&[1.0], &[false], counts)]).unwrap();
        let mut modes = vec![
            of("a", [100, 200, 100]),
            of("b", [1, 2, 1]),
            of("c", [0, 0, 0]),
        ];
        // The first was kept from its core for most of the time: that does not count for it.
        modes[0].seconds = 100.0;
        assert_eq!(rates(&mut modes, 2_000_000_000), 1.0);
        assert_eq!(modes[0].per_second, Some(200.0));
        against_first(&mut modes);
        let fewer: Vec<_> = modes.iter().map(|mode| mode.times_fewer.unwrap()).collect();
        for (is, wanted) in fewer.iter().zip([1.0, 100.0, 400.0]) {
            assert!((is - wanted).abs() < 1e-9, "{fewer:?}");
        }
        assert_eq!(
            modes.iter().map(|mode| mode.at_least).collect::<Vec<_>>(),
            [false, false, true]
        );
        // Without a base there is nothing to be fewer than.
        modes[0].per_second = None;
        modes[1].times_fewer = None;
        against_first(&mut modes);
        assert_eq!(modes[1].times_fewer, None);
    }
}

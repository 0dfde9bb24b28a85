//! A measurement in words and columns.

use std::fmt::Write as _;

use outlive_base::count;

use crate::model::{Benchmark, Core, Noise, Variation};
use crate::trace;

/// Sources that are listed.
const LISTED: usize = 8;

/// A time with the unit that suits it.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.3} ms", ns / 1e6),
        ns => format!("{:.3} s", ns / 1e9),
    }
}

/// The name of a kind of event.
pub fn kind(kind: trace::Activity) -> &'static str {
    match kind {
        trace::Activity::Interrupt => "interrupt",
        trace::Activity::Vector => "vector",
        trace::Activity::Softirq => "softirq",
        trace::Activity::Timer => "timer",
        trace::Activity::Thread => "thread",
    }
}

/// What a measurement of noise found.
pub fn noise(of: &Noise) -> String {
    let what = match of.kind {
        Benchmark::Fwq => "fixed work",
        Benchmark::Ftq => "fixed time",
    };
    let quantum = time(of.quantum_ns as f64);
    let mut out = format!("{what}, {} quanta of {quantum} on each core\n", of.samples);
    for core in &of.cores {
        one(&mut out, core, of.long_percent);
    }
    for note in &of.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out.trim_end().to_owned()
}

fn one(out: &mut String, of: &Core, long_percent: f64) {
    let s = &of.summary;
    let _ = writeln!(
        out,
        "\ncore {}\n  least {}, mean {} (noise {:.3} %), most {}",
        of.core,
        time(s.min),
        time(s.mean),
        s.noise_percent,
        time(s.max)
    );
    let over = |value: f64| crate::stats::over_percent(value, s.min);
    let shown = s
        .percentiles
        .iter()
        .map(|(at, value)| format!("p{at} {:.3} %", over(*value)));
    let _ = writeln!(
        out,
        "  over the least: {}",
        shown.collect::<Vec<_>>().join(", ")
    );
    if let Some(spectrum) = &of.spectrum {
        let peaks = spectrum.peaks.iter().take(4);
        let peaks = peaks.map(|(hz, power)| format!("{hz:.1} Hz ({power:.0} times the mean)"));
        let _ = writeln!(out, "  periods: {}", peaks.collect::<Vec<_>>().join(", "));
    }
    let _ = writeln!(
        out,
        "  long: {} more than {long_percent} % over the least, by {} together",
        count(of.long_samples, "sample"),
        time(of.long_excess_ns)
    );
    if let Some(all) = &of.attribution {
        for source in all.sources.iter().take(LISTED) {
            let (name, total) = (&source.name, time(source.total_ns));
            let kind = kind(source.kind);
            let _ = writeln!(
                out,
                "    {kind} {name}: in {}, {total}",
                count(source.samples, "sample")
            );
        }
        let _ = writeln!(
            out,
            "    not attributed: {}; unexplained time {}",
            count(all.unattributed, "sample"),
            time(all.unexplained_ns)
        );
    }
    let counted = &of.counted;
    let optional = |ns: Option<u64>| ns.map_or("unknown".to_owned(), |ns| time(ns as f64));
    let _ = writeln!(
        out,
        "  counted in {:.2} s: {} involuntary switches, {} page faults, waited {}, stolen {}",
        counted.seconds,
        counted.involuntary_switches,
        counted.page_faults,
        optional(counted.waited_ns),
        optional(counted.stolen_ns)
    );
    for (name, count) in counted.sources.iter().take(LISTED) {
        let each = *count as f64 / counted.seconds.max(1e-9);
        let _ = writeln!(out, "    {name}: {count} ({each:.1}/s)");
    }
    let _ = writeln!(out, "  a bulk-synchronous job of ranks like this core:");
    for scale in &of.extrapolation {
        let bound = if scale.lower_bound { ", at least" } else { "" };
        let (ranks, step) = (scale.ranks, time(scale.step_ns));
        let _ = writeln!(
            out,
            "    {}: {step} a step, +{:.2} %{bound}",
            outlive_base::count(ranks, "rank"),
            scale.slowdown_percent
        );
    }
}

/// What a measurement of variation found.
pub fn variation(of: &Variation) -> String {
    let mut out = format!(
        "working sets of {} % of the data cache of level {}\n",
        of.fill_percent, of.level
    );
    for kernel in &of.kernels {
        let (name, bytes) = (&kernel.name, kernel.bytes);
        let between = kernel.between_cores_percent;
        let _ = writeln!(out, "{name} ({bytes} bytes): between cores {between:.3} %");
        for runs in &kernel.cores {
            let _ = writeln!(
                out,
                "  core {}: least {}, most/least {:.3} %, mean {} +- {:.3} %",
                runs.core,
                time(runs.summary.min),
                runs.variation_percent,
                time(runs.summary.mean),
                runs.error_percent
            );
        }
    }
    for note in &of.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out.trim_end().to_owned()
}

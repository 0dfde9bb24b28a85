//! A measurement of an MPI job in words and pictures.

use std::fmt::Write as _;

use outlive_base::count;

use super::{Mode, Phase, Rank, Ranks};
use crate::picture::{DRAWN_MAX, Panel, add, bars_of, whole};
use crate::stats::{Summary, over_percent};
use crate::text::time;

/// Ranks that are listed: those with the most noise.
const LISTED: usize = 16;

/// What was found.
pub fn text(of: &Ranks) -> String {
    let job = &of.job;
    let mode = match of.mode {
        Mode::Start => "StartSync",
        Mode::Step => "StepSync",
    };
    let mut out = format!(
        "{mode}: {} quanta of {} on each of {}, {} ({})\n",
        of.steps,
        time(of.quantum_ns as f64),
        count(job.ranks, "rank"),
        count(job.hosts, "host"),
        library(&of.mpi)
    );
    if let Some(daemon) = &of.daemon {
        let (burst, period) = (time(daemon.burst_ns as f64), time(daemon.period_ns as f64));
        let phase = match daemon.phase {
            Phase::Same => "at the same time on all ranks",
            Phase::Random => "on each rank at a time of its own",
        };
        let _ = writeln!(out, "disturbed for {burst} each {period}, {phase}");
    }
    let _ = writeln!(out, "\nquanta of all ranks\n  {}", line(&job.quanta));
    if let (Some(steps), Some(lost)) = (&job.steps, &job.lost) {
        let _ = writeln!(out, "steps, with waiting\n  {}", line(steps));
        let most = lost
            .percentiles
            .iter()
            .map(|(at, ns)| format!("p{at} {}", time(*ns)));
        let _ = writeln!(
            out,
            "lost to the slowest rank in a step\n  mean {}; {}",
            time(lost.mean),
            most.collect::<Vec<_>>().join(", ")
        );
    }
    parts(&mut out, of);
    listed(&mut out, of);
    let _ = writeln!(out, "a bulk-synchronous job of ranks like these:");
    for scale in &job.extrapolation {
        let bound = if scale.lower_bound { ", at least" } else { "" };
        let (ranks, step) = (count(scale.ranks, "rank"), time(scale.step_ns));
        let more = scale.slowdown_percent;
        let _ = writeln!(out, "  {ranks}: {step} a step, +{more:.2} %{bound}");
    }
    for note in &of.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out.trim_end().to_owned()
}

fn line(of: &Summary) -> String {
    let shown = of.percentiles.iter();
    let shown = shown.map(|(at, ns)| format!("p{at} {:.3} %", over_percent(*ns, of.min)));
    format!(
        "least {}, mean {} (+{:.3} %), most {}\n  over the least: {}",
        time(of.min),
        time(of.mean),
        of.noise_percent,
        time(of.max),
        shown.collect::<Vec<_>>().join(", ")
    )
}

/// Name and number of an MPI library: some go on with who built it.
fn library(said: &str) -> String {
    let first = said.split(',').next().unwrap_or_default();
    first.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The job's time and its parts.
fn parts(out: &mut String, of: &Ranks) {
    let job = &of.job;
    let _ = writeln!(
        out,
        "\nthe job took {}, +{:.2} % over {} without any noise",
        time(job.total_ns),
        job.slowdown_percent,
        time(job.ideal_ns)
    );
    let slowest = match of.mode {
        Mode::Start => "the slowest rank at the end",
        Mode::Step => "waiting for the slowest rank of each step",
    };
    let parts = [
        (Some(job.own_ns), "noise of a rank alone, mean over ranks"),
        (Some(job.slowest_ns), slowest),
        (job.barrier_ns, "barriers, and what hits ranks in them"),
    ];
    for (ns, what) in parts {
        let Some(ns) = ns else { continue };
        let percent = 100.0 * ns / job.ideal_ns.max(f64::MIN_POSITIVE);
        let _ = writeln!(out, "  {percent:+7.2} %  {:>10}  {what}", time(ns.max(0.0)));
    }
    let independent = time(job.independent_ns);
    let _ = match &job.slowest {
        Some(slowest) => writeln!(
            out,
            "  slowest quantum of a step: {} on average; {independent} if ranks were hit \
             independently of each other",
            time(slowest.mean)
        ),
        None => writeln!(
            out,
            "  in steps, the slowest quantum would be {independent} on average if ranks were hit \
             independently of each other"
        ),
    };
}

/// The noisiest ranks.
fn listed(out: &mut String, of: &Ranks) {
    let mut ranks: Vec<&Rank> = of.ranks.iter().collect();
    ranks.sort_by(|a, b| {
        b.quanta
            .mean
            .total_cmp(&a.quanta.mean)
            .then(a.rank.cmp(&b.rank))
    });
    let least = of.job.quanta.min;
    let ranked = match ranks.len() > LISTED {
        true => format!("the {LISTED} ranks with the most noise"),
        false => "ranks, those with the most noise first".to_owned(),
    };
    let _ = writeln!(out, "\n{ranked}");
    for rank in ranks.into_iter().take(LISTED) {
        let p99 = rank.quanta.percentiles.iter().find(|pair| pair.0 == 99.0);
        let _ = write!(
            out,
            "  rank {} ({}, core {}): mean +{:.3} %, p99 +{:.3} %, most {}",
            rank.rank,
            rank.host,
            rank.core_first,
            over_percent(rank.quanta.mean, least),
            p99.map_or(0.0, |pair| over_percent(pair.1, least)),
            time(rank.quanta.max)
        );
        if let (Some(waited), Some(slowest)) = (rank.waited_ns, rank.slowest_steps) {
            let (waited, slowest) = (time(waited), count(slowest, "step"));
            let _ = write!(out, "; waited {waited}, slowest in {slowest}");
        }
        if let Some(bursts) = rank.daemon_bursts {
            let _ = write!(out, "; daemon ran {}", count(bursts, "time"));
        }
        out.push('\n');
    }
    out.push('\n');
}

/// Slowest quanta by step, all quanta by excess, and ranks by their noise.
pub fn picture(of: &Ranks) -> String {
    let (mut body, mut top) = (String::new(), 24.0);
    let job = &of.job;
    let least = job.quanta.min;
    let percent = |value: f64| format!("{value:.3} %");
    let series: Vec<(f64, f64)> = job
        .series
        .iter()
        .map(|&(at, ns)| (at as f64, over_percent(ns, least)))
        .collect();
    let last = series.last().map_or(0.0, |point| point.0);
    let high = over_percent(job.quanta.max, least);
    add(
        &mut body,
        &mut top,
        &Panel {
            title: "slowest quantum over the least, by step".into(),
            axes: ["0".into(), format!("{last}"), "0".into(), percent(high)],
            points: &series,
            bars: false,
        },
    );
    let (axes, points) = bars_of(&job.histogram);
    add(
        &mut body,
        &mut top,
        &Panel {
            title: "quanta by time over the least (both axes logarithmic)".into(),
            axes,
            points: &points,
            bars: true,
        },
    );
    let each = of.ranks.iter().take(DRAWN_MAX).enumerate();
    let points: Vec<(f64, f64)> = each
        .map(|(at, rank)| (at as f64 + 1.0, over_percent(rank.quanta.mean, least)))
        .collect();
    let most = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let end = format!("rank {}", points.len().saturating_sub(1));
    add(
        &mut body,
        &mut top,
        &Panel {
            title: "mean quantum of each rank over the least".into(),
            axes: ["rank 0".into(), end, "0".into(), percent(most)],
            points: &points,
            bars: true,
        },
    );
    let ranks = count(job.ranks, "rank");
    let title = format!("{ranks}, +{:.2} % over no noise", job.slowdown_percent);
    whole(&title, top, &body)
}

#[cfg(test)]
mod tests {
    use super::super::judge::{Asked, judge};
    use super::super::record::{parse, tests::bytes};
    use super::*;
    use crate::page;

    fn found(mode: Mode, marks: &[u64], steps: u64) -> Ranks {
        let read = |rank| {
            let bytes = bytes(rank, 2, mode, steps, marks);
            let mut record = parse("x", &bytes, mode, steps).unwrap();
            record.host = "<b>&".into();
            record.library = "Some  MPI 5,  built by <x>".into();
            record
        };
        let asked = Asked {
            mode,
            quantum_ns: 10_000,
            steps,
            daemon: Some(crate::ranks::Daemon {
                burst_ns: 1_000,
                period_ns: 50_000,
                phase: Phase::Same,
            }),
            seed: 1, // fixed seed: any will do, the page is looked at
        };
        judge(&asked, vec![read(1), read(0)]).unwrap()
    }

    #[test]
    fn what_is_written_is_read_again_and_shown_escaped() {
        let step = found(Mode::Step, &[10, 10_010, 12_010, 32_010, 33_010], 2);
        let start = found(Mode::Start, &[10, 10_010, 32_010], 2);
        for (of, parts) in [
            (&step, "waiting for the slowest rank"),
            (&start, "the slowest rank at"),
        ] {
            let said = text(of);
            assert!(
                said.contains(parts) && said.contains("(Some MPI 5)"),
                "{said}"
            );
            assert!(said.contains("daemons of 2 ranks never ran"), "{said}");
            let json = serde_json::to_string(of).unwrap();
            let read = page::parse("x", &json).unwrap();
            assert_eq!(read, page::Measured::Ranks(Box::new(of.clone())));
            let html = page::html(&[("name".into(), read)]);
            assert!(
                html.contains("&lt;b&gt;&amp;") && !html.contains("<b>"),
                "{html}"
            );
            assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
            assert_eq!(html.matches("<polyline").count(), 1, "the slowest by step");
        }
        // 33 us for two quanta of which none need take more than 10: 10 of noise, 3 of barriers.
        let said = text(&step);
        for part in [
            "took 33.00 us, +65.00 % over 20.00 us",
            "+50.00 %",
            "+15.00 %",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

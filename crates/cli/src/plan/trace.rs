//! Failures that were recorded: read, fitted, and replayed under every plan.
//!
//! The file is CSV with a header that names `start` and `node`, and may name `end` and
//! `kind` (`fatal`, the default, or `light`). Moments are RFC 3339 with their offset from
//! UTC, or seconds from any beginning: a local time without offset is twice the same when
//! clocks are set back.

use std::path::Path;

use outlive_base::{Code, Entity, Error, Result};
use outlive_launch::input;
use outlive_planner::fit::{self, Distribution, Fit, Neighbours};
use outlive_planner::units::duration;
use serde::Serialize;

use super::Found;
use crate::output;

pub(super) mod replay;

use replay::Replayed;

/// No longer traces.
const TRACE_BYTES_MAX: u64 = 1 << 30;
/// Windows of the dispersion.
const WINDOW: f64 = 86_400.0;
/// Failures on neighbouring nodes within this time count as pairs.
const CLOSE: f64 = 600.0;
/// No longer records: a mistaken moment, not a machine's life. A hundred years.
const RECORD_MAX: f64 = 100.0 * 31_557_600.0;
/// A record of failures.
#[derive(Debug)]
pub(super) struct Trace {
    /// Seconds from the first, node, whether the node was lost, seconds until it was back.
    pub(super) failures: Vec<(f64, u32, bool, Option<f64>)>,
}

/// Reads a record; nodes are below `nodes`.
pub(super) fn read(path: &Path, nodes: u32) -> Result<Trace> {
    let text = input::read_text(path, TRACE_BYTES_MAX)?;
    parse(&text, &path.display().to_string(), nodes)
}

fn parse(text: &str, file: &str, nodes: u32) -> Result<Trace> {
    let refuse = |line: usize, seen: String, remedy: &str| {
        Error::new(
            Code::Config,
            Entity::File(file.into()),
            format!("line {line}: {seen}"),
            remedy,
        )
    };
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.trim()));
    let (_, header) = lines.next().unwrap_or((1, ""));
    let names: Vec<&str> = header.split(',').map(str::trim).collect();
    let column = |name: &str| names.iter().position(|&other| other == name);
    let (Some(start), Some(node)) = (column("start"), column("node")) else {
        let seen = format!("the header '{header}' lacks start or node");
        return Err(refuse(
            1,
            seen,
            "begin the file with start,node or start,node,end,kind",
        ));
    };
    let (end, kind) = (column("end"), column("kind"));
    let mut failures: Vec<(f64, u32, bool, Option<f64>)> = Vec::new();
    for (line, row) in lines.filter(|(_, row)| !row.is_empty()) {
        let cells: Vec<&str> = row.split(',').map(str::trim).collect();
        if cells.len() > names.len() {
            let seen = format!(
                "{} cells, and the header names {}",
                cells.len(),
                names.len()
            );
            return Err(refuse(
                line,
                seen,
                "give each cell its name in the header, or remove it",
            ));
        }
        let cell = |at: Option<usize>| at.and_then(|at| cells.get(at)).copied().unwrap_or_default();
        let at = |text: &str| moment(text).map_err(|(seen, remedy)| refuse(line, seen, remedy));
        let began = at(cell(Some(start)))?;
        let number = cell(Some(node))
            .parse::<u32>()
            .ok()
            .filter(|&node| node < nodes);
        let Some(number) = number else {
            let seen = format!(
                "node '{}' is none of the machine's {nodes}",
                cell(Some(node))
            );
            return Err(refuse(
                line,
                seen,
                "number nodes from 0, or raise the machine's count",
            ));
        };
        if failures.last().is_some_and(|last| last.0 > began) {
            let seen = format!("{} is before the line above", cell(Some(start)));
            return Err(refuse(line, seen, "sort the lines by their start"));
        }
        if failures
            .first()
            .is_some_and(|first| began - first.0 > RECORD_MAX)
        {
            let seen = format!("{} is over 100 years after the first", cell(Some(start)));
            let remedy = "write all moments in the same way: with their date, or in seconds from one beginning";
            return Err(refuse(line, seen, remedy));
        }
        let down = match cell(end) {
            "" => None,
            text => Some(at(text)? - began),
        };
        if down.is_some_and(|down| !(0.0..=RECORD_MAX).contains(&down)) {
            let seen = "it ends before it starts, or over 100 years later".into();
            return Err(refuse(line, seen, "give the end of the repair"));
        }
        let fatal = match cell(kind) {
            "" | "fatal" => true,
            "light" => false,
            other => {
                return Err(refuse(
                    line,
                    format!("kind '{other}'"),
                    "write fatal or light",
                ));
            }
        };
        failures.push((began, number, fatal, down));
    }
    let sound = match failures.len() {
        0 | 1 => Err((1, outlive_base::count(failures.len() as u64, "failure"))),
        _ => from_the_first(&mut failures).ok_or((2, "all failures are at one moment".into())),
    };
    sound.map_err(|(line, seen)| {
        refuse(line, seen, "give a record of at least 2, over some time")
    })?;
    Ok(Trace { failures })
}

/// Counts from the first of them; none if nothing is counted.
fn from_the_first(failures: &mut [(f64, u32, bool, Option<f64>)]) -> Option<()> {
    let first = failures.first()?.0;
    failures.iter_mut().for_each(|failure| failure.0 -= first);
    (failures.last()?.0 > 0.0).then_some(())
}

fn moment(text: &str) -> std::result::Result<f64, (String, &'static str)> {
    if let Ok(seconds) = text.parse::<f64>()
        && seconds.is_finite()
    {
        return Ok(seconds);
    }
    if let Ok(moment) = text.parse::<jiff::Timestamp>() {
        return Ok(moment.as_millisecond() as f64 / 1e3);
    }
    if text.parse::<jiff::civil::DateTime>().is_ok() {
        let remedy = "add the offset from UTC, for example 2001-10-28T01:30:00-07:00: a local hour comes twice when clocks are set back";
        return Err((format!("'{text}' is a local time"), remedy));
    }
    Err((
        format!("'{text}' is no time"),
        "write 2001-10-28T01:30:00Z, or seconds",
    ))
}

/// What the record says, and what each plan would have lost.
#[derive(Serialize)]
pub(super) struct Told {
    failures: usize,
    days: f64,
    machine_mtbf_seconds: f64,
    between: Vec<Fitted>,
    repair: Vec<Fitted>,
    dispersion_per_day: Option<f64>,
    neighbour_pairs: u32,
    neighbour_pairs_expected: f64,
    neighbour_p: f64,
    replayed_days: f64,
    replay: Vec<Replayed>,
}

#[derive(Serialize)]
struct Fitted {
    distribution: &'static str,
    parameters: [f64; 2],
    log_likelihood: f64,
    distance: f64,
    p: f64,
}

fn fitted(fits: &[Fit]) -> Vec<Fitted> {
    let of = |fit: &Fit| Fitted {
        distribution: fit.distribution.name(),
        parameters: match fit.distribution {
            Distribution::Exponential { mean } => [mean, 0.0],
            Distribution::Weibull { shape, scale } => [shape, scale],
            Distribution::Lognormal { mu, sigma } => [mu, sigma],
        },
        log_likelihood: fit.log_likelihood,
        distance: fit.distance,
        p: fit.p,
    };
    fits.iter().map(of).collect()
}

/// Fits the record and replays it, from this share of its time on, under the plans that were
/// found.
pub(super) fn tell(trace: &Trace, found: &Found, from: f64, seed: u64) -> Told {
    let times: Vec<f64> = trace.failures.iter().map(|failure| failure.0).collect();
    let between: Vec<f64> = times
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .filter(|&gap| gap > 0.0)
        .collect();
    let repair: Vec<f64> = trace
        .failures
        .iter()
        .filter_map(|failure| failure.3)
        .filter(|&down| down > 0.0)
        .collect();
    let on: Vec<(f64, u32)> = trace
        .failures
        .iter()
        .map(|failure| (failure.0, failure.1))
        .collect();
    let span = times.last().copied().unwrap_or(0.0);
    let Neighbours { pairs, expected, p } =
        fit::neighbours(&on, found.machine.nodes.count, CLOSE, seed);
    Told {
        failures: times.len(),
        days: span / 86_400.0,
        machine_mtbf_seconds: span / (times.len() - 1) as f64,
        between: fitted(&fit::fits(&between, seed)),
        repair: fitted(&fit::fits(&repair, seed)),
        dispersion_per_day: fit::dispersion(&times, WINDOW),
        neighbour_pairs: pairs,
        neighbour_pairs_expected: expected,
        neighbour_p: p,
        replayed_days: span * (1.0 - from) / 86_400.0,
        replay: replay::all(trace, found, from * span),
    }
}

/// The same in words.
pub(super) fn describe(told: &Told) -> String {
    let mut out = format!(
        "\n\nThe record: {} failures in {:.0} days, one every {}\n",
        told.failures,
        told.days,
        duration(told.machine_mtbf_seconds)
    );
    let mut rows = vec![
        ["", "distribution", "parameters", "distance", "p"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (what, fits) in [
        ("  time between failures", &told.between),
        ("  time of repair", &told.repair),
    ] {
        for fit in fits {
            let [a, b] = fit.parameters;
            let parameters = match fit.distribution {
                "exponential" => format!("mean {}", duration(a)),
                "Weibull" => format!("shape {a:.2}, scale {}", duration(b)),
                _ => format!("median {}, sigma {b:.2}", duration(a.exp())),
            };
            rows.push(vec![
                what.into(),
                fit.distribution.into(),
                parameters,
                format!("{:.3}", fit.distance),
                format!("{:.3}", fit.p),
            ]);
        }
    }
    out += &output::table(&rows);
    if let Some(dispersion) = told.dispersion_per_day {
        out += &format!(
            "\n  variance over mean of the failures per day: {dispersion:.2} (1: independent)"
        );
    }
    out += &format!(
        "\n  pairs on neighbouring nodes within {}: {}, by chance {:.1} (p {:.3})\n",
        duration(CLOSE),
        told.neighbour_pairs,
        told.neighbour_pairs_expected,
        told.neighbour_p
    );
    let mut rows = vec![
        [
            &*format!("Replayed, {:.0} days", told.replayed_days),
            "node-hours lost",
            "95 %",
            "share",
            "more than this plan",
            "95 %",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for one in &told.replay {
        rows.push(vec![
            format!("  {}", one.name),
            format!("{:.0}", one.node_hours_lost),
            format!("+- {:.0}", one.half_width),
            format!("{:.2} %", 100.0 * one.share),
            format!("{:+.1} %", 100.0 * one.more),
            format!("+- {:.1} %", 100.0 * one.more_half_width),
        ]);
    }
    out + &output::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_failures_of_all_kinds_are_understood_or_refused_with_a_remedy() {
        let bounds = (3 << 20, 4_000);
        crate::fuzzed::run("failures", Vec::new(), 3_000, bounds, |bytes| {
            match parse(&String::from_utf8_lossy(bytes), "trace.csv", 8) {
                Ok(trace) => {
                    let sound = |it: &(f64, u32, bool, Option<f64>)| {
                        it.0.is_finite() && it.1 < 8 && it.3.is_none_or(f64::is_finite)
                    };
                    assert!(trace.failures.iter().all(sound), "{trace:?}");
                }
                Err(error) => {
                    assert_eq!(error.code(), Code::Config);
                    assert!(!error.reason().is_empty() && !error.remedy().is_empty());
                }
            }
        });
    }

    #[test]
    fn a_record_is_read() {
        let text = "start,node,end,kind\n2001-10-28T01:30:00-06:00,3,2001-10-28T01:40:00-06:00,\n2001-10-28T01:30:00-07:00,0,,light\n";
        let trace = parse(text, "t.csv", 4).expect("good");
        assert_eq!(
            trace.failures,
            [(0.0, 3, true, Some(600.0)), (3600.0, 0, false, None)]
        );
        let trace = parse("node,start\n1,5\n2,7.5\n", "t.csv", 4).expect("good");
        assert_eq!(trace.failures, [(0.0, 1, true, None), (2.5, 2, true, None)]);
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (text, seen) in [
            ("", "line 1: the header '' lacks start or node"),
            ("start,host\n", "line 1: the header"),
            (
                "start,node\n5,1\n4,1\n",
                "line 3: 4 is before the line above",
            ),
            (
                "start,node\n2001-10-28T01:30:00,1\n",
                "line 2: '2001-10-28T01:30:00' is a local time",
            ),
            (
                "start,node\n10/28/2001 1:30,1\n",
                "line 2: '10/28/2001 1:30' is no time",
            ),
            (
                "start,node\n100,1\n9000000000000,1\n",
                "line 3: 9000000000000 is over 100 years after the first",
            ),
            (
                "start,node,end\n1,1,9e12\n2,1,\n",
                "line 2: it ends before it starts, or over 100 years later",
            ),
            (
                "start,node\n1,1,light\n2,1\n",
                "line 2: 3 cells, and the header names 2",
            ),
            (
                "start,node\n7,1\n7,2\n",
                "line 2: all failures are at one moment",
            ),
            (
                "start,node\n5,9\n",
                "line 2: node '9' is none of the machine's 4",
            ),
            (
                "start,node,end\n5,1,4\n",
                "line 2: it ends before it starts",
            ),
            ("start,node,kind\n5,1,bad\n", "line 2: kind 'bad'"),
            ("start,node\n5,1\n", "line 1: 1 failure"),
        ] {
            let error = parse(text, "t.csv", 4).expect_err(text);
            assert!(error.reason().starts_with(seen), "{error}");
            assert!(error.remedy().len() > 10, "{error}");
        }
    }
}

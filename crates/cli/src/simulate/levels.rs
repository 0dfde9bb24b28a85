//! `outlive simulate levels`: plans for a large machine beside those of the known methods.
//!
//! FFMK 2020, section 3.5: 50,000 nodes, three to five levels, 6 to 240 GB a node; what a
//! model of components, groups and background writes gains over the best known method.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use outlive_base::{Error, Result};
use outlive_planner::classes::{Classes, classes};
use outlive_planner::lifetime::{Pattern, Question, lifetime};
use outlive_planner::machine::{self, Job, Level, Machine};
use outlive_planner::methods::{self, Method};
use outlive_planner::optimise;
use outlive_simulator::jobs;
use serde::Serialize;

use crate::output;

#[derive(Args, Debug)]
pub struct LevelsOptions {
    /// Also simulate both plans of each case, in 64 runs of so many intervals; 0: do not
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    intervals: u64,
    /// Gigabytes of a checkpoint on each node
    #[arg(long, value_name = "GB", value_delimiter = ',', default_values_t = SIZES, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sizes: Vec<u32>,
    /// Draw the overhead saved over the size as SVG [default: not drawn]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Of what is simulated
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// 50,000 nodes and five levels.
const MACHINE: &str = include_str!("../bench/plan.toml");
/// Gigabytes of a checkpoint on each node.
const SIZES: [u32; 5] = [6, 30, 60, 120, 240];
/// The levels in use, by their place in the machine.
const LEVELS: [&[usize]; 3] = [&[0, 2, 4], &[0, 2, 3, 4], &[0, 1, 2, 3, 4]];
/// Groups that cut across the racks: a row of 16 nodes in 16 racks.
const POWER: &str =
    "[[groups]]\nname = \"power supply\"\nsize = 16\nstride = 64\nmtbf = \"300000 h\"\n";

#[derive(Serialize)]
struct Answer {
    schema: &'static str,
    seed: u64,
    cases: Vec<Case>,
}

#[derive(Serialize)]
struct Case {
    levels: u32,
    gigabytes: u32,
    groups: bool,
    background: bool,
    overhead: f64,
    plan_seconds: f64,
    /// The known method whose plan costs least, and what it costs; null: none ends.
    best_known: Option<&'static str>,
    best_known_overhead: Option<f64>,
    /// Methods whose plans have more states than can be evaluated.
    left_out: Vec<&'static str>,
    /// Of the best known method's overhead.
    saved: Option<f64>,
    /// Both simulated, with half the 99.9 % interval; null: not simulated.
    simulated: Option<[f64; 2]>,
    best_known_simulated: Option<[f64; 2]>,
}

/// The machine with some of its levels.
fn machine_of(used: &[usize], groups: bool, background: bool) -> Result<Machine> {
    let text = if groups {
        format!("{MACHINE}{POWER}")
    } else {
        MACHINE.to_owned()
    };
    let mut machine = machine::machine(&text, "plan.toml")?;
    if !groups {
        machine.groups.clear();
    }
    machine.levels = used
        .iter()
        .map(|&level| machine.levels[level].clone())
        .collect();
    for level in machine.levels.iter_mut().skip(1) {
        level.asynchronous = background;
    }
    Ok(machine)
}

/// A plan: levels, pattern, overhead.
type Planned = (Vec<usize>, Pattern, f64);

struct Asked<'a> {
    machine: &'a Machine,
    job: &'a Job,
    levels: &'a [Level],
    rates: &'a Classes,
}

impl Asked<'_> {
    /// The known method whose plan costs least, and those of which that cannot be said.
    fn best_known(&self) -> (Option<(Method, Planned)>, Vec<&'static str>) {
        let all: Vec<usize> = (0..self.levels.len()).collect();
        let whole = Question::new(self.job, self.levels, self.rates, &all);
        let mut best: Option<(Method, Planned)> = None;
        let mut left_out = Vec::new();
        for method in Method::ALL {
            let Some((used, pattern)) = methods::plan(method, &whole) else {
                continue;
            };
            let question = Question::new(self.job, self.levels, self.rates, &used);
            let Ok(found) = lifetime(&question, &pattern) else {
                left_out.push(method.name());
                continue;
            };
            let overhead = found.overhead();
            let least = best.as_ref().map_or(f64::INFINITY, |best| best.1.2);
            if overhead < least {
                best = Some((method, (used, pattern, overhead)));
            }
        }
        (best, left_out)
    }

    fn simulate(&self, plan: &Planned, options: &LevelsOptions) -> Option<[f64; 2]> {
        if options.intervals == 0 {
            return None;
        }
        let used: Vec<Level> = plan
            .0
            .iter()
            .map(|&level| self.levels[level].clone())
            .collect();
        let length = plan.1.length();
        let intervals = options.intervals.div_ceil(length) * length;
        let found = jobs::estimate(
            self.machine,
            self.job,
            &used,
            &plan.1,
            intervals,
            options.seed,
        );
        Some([found.overhead, found.half_width()])
    }
}

fn case(
    used: &[usize],
    gigabytes: u32,
    groups: bool,
    background: bool,
    options: &LevelsOptions,
) -> Result<Case> {
    let machine = machine_of(used, groups, background)?;
    let text = format!(
        "nodes = 50000\nwork = \"100 h\"\ncheckpoint = \"{gigabytes} GB\"\nrestart = \"60 s\""
    );
    let job = machine::job(&text, "job", &machine)?;
    let levels = machine::priced(&machine, &job);
    let rates = classes(&machine, &job, &levels, options.seed);
    let begun = Instant::now();
    let plan = optimise::best(&job, &levels, &rates)?;
    let plan_seconds = begun.elapsed().as_secs_f64();
    let asked = Asked {
        machine: &machine,
        job: &job,
        levels: &levels,
        rates: &rates,
    };
    let (known, left_out) = asked.best_known();
    let overhead = plan.lifetime.overhead();
    let ours = (plan.levels, plan.pattern, overhead);
    Ok(Case {
        levels: used.len() as u32,
        gigabytes,
        groups,
        background,
        overhead,
        plan_seconds,
        best_known: known.as_ref().map(|known| known.0.name()),
        best_known_overhead: known.as_ref().map(|known| known.1.2),
        left_out,
        saved: known.as_ref().map(|known| 1.0 - overhead / known.1.2),
        simulated: asked.simulate(&ours, options),
        best_known_simulated: known
            .as_ref()
            .and_then(|known| asked.simulate(&known.1, options)),
    })
}

/// All cases; 0 whatever comes out, for a figure is no failure.
pub fn run(options: &LevelsOptions) -> Result<u8> {
    let mut answer = Answer {
        schema: "outlive.simulate.levels/1",
        seed: options.seed,
        cases: Vec::new(),
    };
    for groups in [false, true] {
        for background in [false, true] {
            for used in LEVELS {
                for &gigabytes in &options.sizes {
                    answer
                        .cases
                        .push(case(used, gigabytes, groups, background, options)?);
                }
            }
        }
    }
    if let Some(path) = &options.plot {
        std::fs::write(path, draw(&answer.cases, &options.sizes))
            .map_err(|error| Error::io(path, "write the picture", &error))?;
    }
    if options.json {
        return output::json(&answer);
    }
    output::text(&words(&answer.cases, options.intervals > 0))
}

fn words(cases: &[Case], simulated: bool) -> String {
    let mut head = vec![
        "fails together",
        "writes",
        "levels",
        "GB",
        "overhead",
        "best known",
        "",
        "saved",
        "planned in",
    ];
    if simulated {
        head.extend(["simulated", "best known", "saved"]);
    }
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    let percent = |value: f64| format!("{:.2} %", 100.0 * value);
    let with = |of: Option<[f64; 2]>| {
        of.map_or(String::new(), |[value, half]| {
            format!("{:.2} +- {:.2} %", 100.0 * value, 100.0 * half)
        })
    };
    for case in cases {
        let mut row = vec![
            if case.groups {
                "racks, power"
            } else {
                "nothing"
            }
            .to_owned(),
            if case.background {
                "background"
            } else {
                "waiting"
            }
            .to_owned(),
            case.levels.to_string(),
            case.gigabytes.to_string(),
            percent(case.overhead),
            case.best_known_overhead
                .map_or("none ends".to_owned(), percent),
            match case.left_out.is_empty() {
                true => case.best_known.unwrap_or_default().to_owned(),
                false => format!(
                    "{} (without {})",
                    case.best_known.unwrap_or_default(),
                    case.left_out.join(", ")
                ),
            },
            case.saved.map_or(String::new(), percent),
            format!("{:.2} s", case.plan_seconds),
        ];
        if simulated {
            row.push(with(case.simulated));
            row.push(with(case.best_known_simulated));
            let both = case.simulated.zip(case.best_known_simulated);
            row.push(both.map_or(String::new(), |(ours, known)| {
                percent(1.0 - ours[0] / known[0])
            }));
        }
        rows.push(row);
    }
    output::table(&rows)
}

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 50.0;
const COLOURS: [&str; 3] = ["#2b7bba", "#e0a030", "#c0392b"];

/// What is saved over the size, a curve for each number of levels, a field for each kind of
/// machine.
fn draw(cases: &[Case], sizes: &[u32]) -> String {
    let most = cases
        .iter()
        .filter_map(|case| case.saved)
        .fold(0.1, f64::max);
    let mut out = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {}' font-family='sans-serif' font-size='11'>\n\
         <rect width='100%' height='100%' fill='white'/>\n\
         <text x='{LEFT}' y='18' font-size='13'>Overhead saved, relative to the best known method; 50,000 nodes</text>\n",
        LEFT + 2.0 * (WIDTH + 60.0),
        TOP + 2.0 * (HEIGHT + 60.0),
    );
    for (field, (groups, background)) in
        [(false, false), (false, true), (true, false), (true, true)]
            .into_iter()
            .enumerate()
    {
        let left = LEFT + (field % 2) as f64 * (WIDTH + 60.0);
        let top = TOP + (field / 2) as f64 * (HEIGHT + 60.0);
        let x = |gigabytes: u32| {
            let (least, most) = (sizes.iter().min(), sizes.iter().max());
            let (least, most) = (
                f64::from(*least.unwrap_or(&1)),
                f64::from(*most.unwrap_or(&2)),
            );
            let share = (f64::from(gigabytes) / least).ln() / (most / least).ln().max(0.1);
            left + share * WIDTH
        };
        let y = |saved: f64| top + HEIGHT * (1.0 - (saved / most).clamp(0.0, 1.0));
        let _ = writeln!(
            out,
            "<text x='{left}' y='{}'>{}, {}</text>\n<rect x='{left}' y='{top}' width='{WIDTH}' height='{HEIGHT}' fill='none' stroke='#999'/>",
            top - 6.0,
            if groups {
                "racks and power supplies"
            } else {
                "nodes fail alone"
            },
            if background {
                "background writes"
            } else {
                "the program waits"
            },
        );
        for part in 0..=4 {
            let saved = most * f64::from(part) / 4.0;
            let _ = writeln!(
                out,
                "<text x='{}' y='{}' text-anchor='end'>{:.0} %</text>",
                left - 4.0,
                y(saved) + 4.0,
                100.0 * saved
            );
        }
        for &gigabytes in sizes {
            let _ = writeln!(
                out,
                "<text x='{}' y='{}' text-anchor='middle'>{gigabytes} GB</text>",
                x(gigabytes),
                top + HEIGHT + 14.0
            );
        }
        for (curve, (levels, colour)) in (3..=5).zip(COLOURS).enumerate() {
            let here = |case: &&Case| {
                (case.groups, case.background, case.levels) == (groups, background, levels)
            };
            let points: Vec<String> = cases
                .iter()
                .filter(here)
                .filter_map(|case| Some(format!("{:.1},{:.1}", x(case.gigabytes), y(case.saved?))))
                .collect();
            let _ = writeln!(
                out,
                "<polyline fill='none' stroke='{colour}' stroke-width='2' points='{}'/>",
                points.join(" ")
            );
            let _ = writeln!(
                out,
                "<text x='{}' y='{}' fill='{colour}'>{levels} levels</text>",
                left + 8.0,
                top + 16.0 + 14.0 * curve as f64
            );
        }
    }
    out + "</svg>\n"
}

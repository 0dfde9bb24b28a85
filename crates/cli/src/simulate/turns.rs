//! `outlive simulate turns`: jobs that share storage, coordinated and not.

use clap::Args;
use outlive_base::Result;
use outlive_simulator::jobs::shared::mixes::{self, Beside};
use outlive_simulator::jobs::shared::{Mix, mixes::bound};
use serde::Serialize;

use crate::output;

#[derive(Args, Debug)]
pub struct TurnsOptions {
    /// Random mixes of jobs, beside those of the literature
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    mixes: u64,
    /// Runs of each mix, with and without a coordinator
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    runs: u64,
    /// Days of each run
    #[arg(long, value_name = "DAYS", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    days: u32,
    /// Of the mixes, the queues and the failures
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Bandwidths of the literature's mixes in GB/s, and MTBFs of a node in years.
const PUBLISHED: [(f64, f64); 6] = [
    (40.0, 5.0),
    (40.0, 20.0),
    (80.0, 5.0),
    (80.0, 20.0),
    (160.0, 5.0),
    (160.0, 20.0),
];
/// Jobs of the workload of Cielo at a time, rounded.
const CIELO: [u32; 4] = [8, 11, 2, 1];
/// Half of the 99.9 % interval in standard errors, for many runs.
const WIDE: f64 = 3.29;
/// Student's t for few runs: quantile 0.9995 with so many degrees of freedom.
const STUDENT: [(u64, f64); 6] = [
    (1, 636.6),
    (3, 12.92),
    (7, 5.41),
    (15, 4.07),
    (31, 3.63),
    (63, 3.45),
];

#[derive(Serialize)]
struct Answer {
    schema: &'static str,
    seed: u64,
    runs: u64,
    days: u32,
    mixes: Vec<MixAnswer>,
    random: u64,
    random_worse: u64,
    random_better: u64,
    random_saved_mean: f64,
    random_saved_least: f64,
}

#[derive(Serialize)]
struct MixAnswer {
    name: String,
    overhead_alone: f64,
    overhead_coordinated: f64,
    /// Of the overhead, with half the 99.9 % interval.
    saved: f64,
    half_width: f64,
    /// Herault's bound on the waste, and the waste with a coordinator; null where the bound
    /// does not apply.
    bound: Option<f64>,
    waste: f64,
    waste_error: f64,
    longest_interval: f64,
}

fn half_width(found: &Beside, runs: u64) -> f64 {
    let known = STUDENT.iter().rev().find(|(degrees, _)| runs > *degrees);
    let student = if runs > 64 {
        WIDE
    } else {
        known.map_or(636.6, |one| one.1)
    };
    student * found.error
}

fn answer(mix: &Mix, counts: Option<&[u32]>, options: &TurnsOptions) -> MixAnswer {
    let found = mixes::beside(
        mix,
        counts,
        options.runs,
        f64::from(options.days),
        options.seed,
    );
    let steady = if counts.is_some() {
        ", the same jobs for ever"
    } else {
        ""
    };
    MixAnswer {
        name: format!("{}{steady}", mix.name),
        overhead_alone: found.alone,
        overhead_coordinated: found.together,
        saved: found.gain / found.alone,
        half_width: half_width(&found, options.runs) / found.alone,
        bound: counts.map(|counts| bound(mix, counts)),
        waste: found.waste.0,
        waste_error: found.waste.1,
        longest_interval: found.longest,
    }
}

/// Compares; 0 whatever comes out, for a figure is no failure.
pub fn run(options: &TurnsOptions) -> Result<u8> {
    let mut found = Vec::new();
    for (bandwidth, years) in PUBLISHED {
        let mix = mixes::cielo(bandwidth, years);
        found.push(answer(&mix, None, options));
        found.push(answer(&mix, Some(&CIELO), options));
    }
    let (mut worse, mut better, mut sum, mut least) = (0, 0, 0.0, f64::INFINITY);
    for number in 0..options.mixes {
        let one = answer(&mixes::random(options.seed, number), None, options);
        worse += u64::from(one.saved + one.half_width < 0.0);
        better += u64::from(one.saved - one.half_width > 0.0);
        sum += one.saved / options.mixes as f64;
        least = least.min(one.saved);
    }
    let answer = Answer {
        schema: "outlive.simulate.turns/1",
        seed: options.seed,
        runs: options.runs,
        days: options.days,
        mixes: found,
        random: options.mixes,
        random_worse: worse,
        random_better: better,
        random_saved_mean: sum,
        random_saved_least: if least.is_finite() { least } else { 0.0 },
    };
    if options.json {
        return output::json(&answer);
    }
    let head = [
        "",
        "overhead alone",
        "in turns",
        "saved",
        "99.9 %",
        "waste",
        "bound",
        "over it",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let percent = |value: f64| format!("{:.2} %", 100.0 * value);
    for one in &answer.mixes {
        rows.push(vec![
            one.name.clone(),
            percent(one.overhead_alone),
            percent(one.overhead_coordinated),
            percent(one.saved),
            format!("+- {}", percent(one.half_width)),
            percent(one.waste),
            one.bound.map_or(String::new(), percent),
            one.bound.map_or(String::new(), |bound| {
                format!("{:+.1} %", 100.0 * (one.waste / bound - 1.0))
            }),
        ]);
    }
    let random = format!(
        "{} random mixes: {:.1} % less overhead on average, {} better and {worse} worse beyond their 99.9 % interval, the worst {:+.1} %",
        answer.random,
        100.0 * answer.random_saved_mean,
        answer.random_better,
        -100.0 * answer.random_saved_least
    );
    output::text(&format!("{}\n{random}", output::table(&rows)))
}

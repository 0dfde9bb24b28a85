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
    /// Only the random mix of this number [default: the first of them]
    #[arg(long, value_name = "NUMBER", conflicts_with = "mixes",
          value_parser = clap::value_parser!(u64).range(0..=u64::MAX - 1))]
    mix: Option<u64>,
    /// Tiers of storage to which the jobs of a random mix write, each kind of them to one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
    tiers: u8,
    /// Runs of each mix, with and without a coordinator
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    runs: u64,
    /// Days of each run
    #[arg(long, value_name = "DAYS", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    days: u32,
    /// Of the mixes, the queues and the failures
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Of the queues and the failures, if others are wanted for the same mixes [default: the seed]
    #[arg(long, value_name = "N")]
    failures: Option<u64>,
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
/// Random mixes that are listed: those that are worst.
const LISTED: usize = 5;
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
    failures: u64,
    /// Of random mixes.
    tiers: u8,
    runs: u64,
    days: u32,
    mixes: Vec<MixAnswer>,
    random: u64,
    random_worse: u64,
    random_better: u64,
    random_saved_mean: f64,
    random_saved_least: f64,
    /// Those that are worse beyond their interval, and some that are worst beside their error.
    random_worst: Vec<RandomAnswer>,
}

/// A random mix, by the number with which it can be had again.
#[derive(Clone, Copy, PartialEq, Serialize)]
struct RandomAnswer {
    number: u64,
    overhead_alone: f64,
    saved: f64,
    half_width: f64,
}

impl RandomAnswer {
    fn worse(&self) -> bool {
        self.saved + self.half_width < 0.0
    }

    /// What is saved in half widths of its interval: the least first.
    fn beside_its_error(&self) -> f64 {
        self.saved / self.half_width.max(f64::MIN_POSITIVE)
    }
}

/// The worst of them, beside their errors: some, and all that are worse beyond their interval.
fn worst(mut all: Vec<RandomAnswer>) -> Vec<RandomAnswer> {
    all.sort_by(|a, b| a.beside_its_error().total_cmp(&b.beside_its_error()));
    let worse = all.iter().filter(|one| one.worse()).count();
    all.truncate(worse.max(LISTED));
    all
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
        options.failures.unwrap_or(options.seed),
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

/// The mixes of the literature.
fn published(options: &TurnsOptions) -> Vec<MixAnswer> {
    let mut found = Vec::new();
    for (bandwidth, years) in PUBLISHED {
        let mix = mixes::cielo(bandwidth, years);
        found.push(answer(&mix, None, options));
        found.push(answer(&mix, Some(&CIELO), options));
    }
    found
}

/// Compares; 0 whatever comes out, for a figure is no failure.
pub fn run(options: &TurnsOptions) -> Result<u8> {
    let numbers = match options.mix {
        Some(number) => number..number.saturating_add(1),
        None => 0..options.mixes,
    };
    let random = |number: u64| {
        let one = answer(
            &mixes::random(options.seed, number, usize::from(options.tiers)),
            None,
            options,
        );
        RandomAnswer {
            number,
            overhead_alone: one.overhead_alone,
            saved: one.saved,
            half_width: one.half_width,
        }
    };
    let all: Vec<RandomAnswer> = numbers.map(random).collect();
    let count = all.len() as u64;
    let of = |which: &dyn Fn(&RandomAnswer) -> bool| all.iter().filter(|one| which(one)).count();
    let least = all.iter().map(|one| one.saved).reduce(f64::min);
    let answer = Answer {
        schema: "outlive.simulate.turns/1",
        seed: options.seed,
        failures: options.failures.unwrap_or(options.seed),
        tiers: options.tiers,
        runs: options.runs,
        days: options.days,
        mixes: match options.mix {
            Some(_) => Vec::new(),
            None => published(options),
        },
        random: count,
        random_worse: of(&RandomAnswer::worse) as u64,
        random_better: of(&|one| one.saved - one.half_width > 0.0) as u64,
        random_saved_mean: all.iter().map(|one| one.saved).sum::<f64>() / count.max(1) as f64,
        random_saved_least: least.unwrap_or(0.0),
        random_worst: worst(all),
    };
    if options.json {
        return output::json(&answer);
    }
    output::text(&text(&answer))
}

fn text(answer: &Answer) -> String {
    let percent = |value: f64| format!("{:.2} %", 100.0 * value);
    let mut text = String::new();
    if !answer.mixes.is_empty() {
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
        text = output::table(&rows) + "\n";
    }
    if answer.random == 0 {
        return text.trim_end().to_owned();
    }
    text += &format!(
        "{} random {}: {:.1} % less overhead on average, {} better and {} worse beyond their 99.9 % interval, the worst {:+.1} %",
        answer.random,
        if answer.random == 1 { "mix" } else { "mixes" },
        100.0 * answer.random_saved_mean,
        answer.random_better,
        answer.random_worse,
        -100.0 * answer.random_saved_least
    );
    for one in &answer.random_worst {
        text += &format!(
            "\n  --mix {}: saved {} +- {} of {}",
            one.number,
            percent(one.saved),
            percent(one.half_width),
            percent(one.overhead_alone)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that are worse beyond their interval are listed, and some more; the worst first.
    #[test]
    fn the_worst_mixes_are_listed() {
        let mix = |(number, saved): (u64, f64)| RandomAnswer {
            number,
            overhead_alone: 0.1,
            saved,
            half_width: 0.02 * (1 + number % 2) as f64,
        };
        let of = |saved: &[f64]| -> Vec<u64> {
            let all = (0..).zip(saved.iter().copied()).map(mix).collect();
            worst(all).iter().map(|one| one.number).collect()
        };
        assert_eq!(of(&[0.5, -0.01]), [1, 0]);
        let many = [0.1, 0.3, -0.03, 0.4, 0.19, 0.5, -0.05, 0.6];
        assert_eq!(of(&many), [6, 2, 0, 1, 4]);
        assert_eq!(of(&[-0.1; 7]), [0, 2, 4, 6, 1, 3, 5]);
    }
}

//! Mixes of jobs, and coordinated beside uncoordinated.

use outlive_base::rng::Sequence;
use outlive_planner::coordinate::{Coordinator, Uncoordinated};
use outlive_planner::methods::herault::{self, JobClass};

use super::{JobKind, Mix, Platform, Used, unit};

/// Seconds of a year of 365.25 days.
const YEAR: f64 = 31_557_600.0;
const HOUR: f64 = 3_600.0;

/// The workload of Cielo that Herault et al. 2018 use, with the numbers of their script
/// (github.com/SMURFSorg/InterferingCheckpoints, maple/celio.mpl): nodes, and checkpoints as
/// seconds at 40 GB/s; `bandwidth` in GB/s, MTBF of a node in years. Jobs run as long as the
/// workflows report says (APEX Workflows, LANL, NERSC, SNL, 2016): 262.4, 64, 128 and 157.2 h.
pub fn cielo(bandwidth: f64, years: f64) -> Mix {
    let kind = |jobs: f64, nodes: f64, seconds: f64, hours: f64| JobKind {
        nodes,
        bytes: seconds * 40e9,
        speed: f64::INFINITY,
        work: hours * HOUR,
        restart: 60.0,
        // Jobs at a time, by how long each takes.
        weight: jobs / hours,
        tier: 0,
    };
    Mix {
        name: format!("Cielo, {bandwidth} GB/s, a node fails in {years} years"),
        nodes: 17_784.0,
        tiers: vec![bandwidth * 1e9],
        mtbf: years * YEAR,
        kinds: vec![
            kind(8.166_648_934_072_823, 1024.0, 1310.72, 262.4),
            kind(11.161_086_876_566_191, 256.0, 378.88, 64.0),
            kind(1.965_873_256_667_908_5, 2048.0, 5734.4, 128.0),
            kind(1.353_602_571_441_391_3, 1875.0, 1275.0, 157.2),
        ],
    }
}

/// The least waste of so many jobs of each kind on one tier, by Herault et al.
pub fn bound(mix: &Mix, counts: &[u32]) -> f64 {
    let used: f64 = counts
        .iter()
        .zip(&mix.kinds)
        .map(|(&n, kind)| f64::from(n) * kind.nodes)
        .sum();
    let class = |(&jobs, kind): (&u32, &JobKind)| {
        let cost = kind.bytes / mix.speed(kind);
        JobClass {
            jobs: f64::from(jobs),
            nodes: kind.nodes,
            cost,
            restart: kind.restart + cost,
        }
    };
    let classes: Vec<JobClass> = counts.iter().zip(&mix.kinds).map(class).collect();
    herault::best(&classes, used, mix.mtbf).waste
}

/// A mix that is drawn: 2 to 6 kinds, from storage that is hardly used to storage that is
/// busy half of the time and more. With several tiers the kinds write to one after the other, and
/// each has the bandwidth.
pub fn random(seed: u64, number: u64, tiers: usize) -> Mix {
    let mut random = Sequence::new(seed, number);
    let mut between = |low: f64, high: f64| {
        let share = unit(&mut random);
        low * libm::pow(high / low, share)
    };
    let nodes = libm::round(between(500.0, 20_000.0));
    let bandwidth = between(10e9, 1e12);
    let mtbf = between(1.0, 20.0) * YEAR;
    let count = libm::floor(between(2.0, 6.99)) as usize;
    let kinds: Vec<JobKind> = (0..count)
        .map(|place| {
            let size = libm::round((nodes * between(0.01, 0.3)).max(1.0));
            let work = between(12.0, 300.0) * HOUR;
            JobKind {
                nodes: size,
                // Alone on the storage: from some seconds to half an hour.
                bytes: bandwidth * between(5.0, 1_800.0),
                speed: bandwidth * between(0.25, 4.0).min(1.0),
                work,
                restart: between(10.0, 300.0),
                weight: between(0.1, 1.0) / size / work,
                tier: place % tiers,
            }
        })
        .collect();
    Mix {
        name: format!("mix {number}"),
        nodes,
        tiers: vec![bandwidth; tiers],
        mtbf,
        kinds,
    }
}

/// Coordinated beside uncoordinated, over runs with the same queue and failures.
#[derive(Clone, Debug)]
pub struct Beside {
    /// Mean overhead of jobs at Daly's intervals, each for itself.
    pub alone: f64,
    /// Mean overhead with a coordinator.
    pub together: f64,
    /// Mean difference: above 0 the coordinator is better.
    pub gain: f64,
    /// Standard error of it (paired).
    pub error: f64,
    /// Mean waste with a coordinator, and its standard error.
    pub waste: (f64, f64),
    /// The longest between two writes, over Young's interval, with a coordinator.
    pub longest: f64,
}

/// Mean and standard error.
fn mean(of: &[f64]) -> (f64, f64) {
    let n = of.len() as f64;
    let mean = of.iter().sum::<f64>() / n;
    let squares: f64 = of.iter().map(|one| (one - mean) * (one - mean)).sum();
    (mean, (squares / (n - 1.0).max(1.0) / n).sqrt())
}

/// So many runs of so many days. `counts`: these jobs for ever, instead of a queue.
pub fn beside(mix: &Mix, counts: Option<&[u32]>, runs: u64, days: f64, seed: u64) -> Beside {
    let seconds = days * 86_400.0;
    let of = |run: u64| -> (Used, Used) {
        // Streams of a run are those of its own seed.
        let seed = Sequence::new(seed, run).u64();
        match counts {
            Some(counts) => (
                Platform::<Uncoordinated>::steady(mix, counts, seed).run(seconds),
                Platform::<Coordinator>::steady(mix, counts, seed).run(seconds),
            ),
            None => (
                Platform::<Uncoordinated>::new(mix, seed).run(seconds),
                Platform::<Coordinator>::new(mix, seed).run(seconds),
            ),
        }
    };
    let found: Vec<(Used, Used)> = (0..runs).map(of).collect();
    let pick =
        |value: &dyn Fn(&(Used, Used)) -> f64| mean(&found.iter().map(value).collect::<Vec<f64>>());
    let (gain, error) = pick(&|one| one.0.overhead() - one.1.overhead());
    Beside {
        alone: pick(&|one| one.0.overhead()).0,
        together: pick(&|one| one.1.overhead()).0,
        gain,
        error,
        waste: pick(&|one| one.1.waste()),
        longest: found.iter().map(|one| one.1.longest).fold(0.0, f64::max),
    }
}

//! What a comparison of normal and huge pages found.

use outlive_base::{Code, Entity, Error, Result};
use serde::Serialize;

use super::kernels::{Run, about};
use crate::stats;

/// The form of [`Comparison`].
pub const BENCH: &str = "outlive.pages-bench/1";

/// How a process got its memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Transparent huge pages are forbidden to it.
    Normal,
    /// As `outlive pages run` has it.
    Huge,
    /// It has its memory collapsed itself, once all is there: the most that transparent huge
    /// pages can give.
    Collapsed,
    /// malloc takes reserved pages.
    Hugetlbfs,
}

impl Way {
    /// In words.
    pub const fn word(self) -> &'static str {
        match self {
            Way::Normal => "normal",
            Way::Huge => "huge",
            Way::Collapsed => "collapsed",
            Way::Hugetlbfs => "hugetlbfs",
        }
    }
}

/// A comparison.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// [`BENCH`].
    pub schema: String,
    /// Memory of each kernel, MiB.
    pub mib: u64,
    /// Rounds that count.
    pub rounds: u32,
    /// Calls in each process.
    pub calls: u32,
    /// Whether misses of the TLB were counted.
    pub misses_counted: bool,
    /// What was missing or is to be known.
    pub notes: Vec<String>,
    /// Each kernel.
    pub kernels: Vec<Kernel>,
}

/// A kernel or a command, in all ways.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// What `unit_ns` is the time of.
    pub unit: String,
    /// Each way.
    pub ways: Vec<Figures>,
    /// Processor time with normal over that with huge pages: how many times as fast these are;
    /// median over rounds.
    pub ratio: f64,
    /// The least and the most of a round.
    pub ratio_min: f64,
    /// See above.
    pub ratio_max: f64,
    /// The same by the clock, median.
    pub ratio_wall: f64,
}

/// One way.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figures {
    /// Which.
    pub way: Way,
    /// Processor time of a unit, ns: median over rounds of the medians over calls.
    pub unit_ns: f64,
    /// The least and the most of a round.
    pub unit_ns_min: f64,
    /// See above.
    pub unit_ns_max: f64,
    /// Its time by the clock, the same medians.
    pub wall_ns: f64,
    /// Memory at the end, bytes, median.
    pub resident_bytes: u64,
    /// What of it was huge.
    pub huge_bytes: u64,
    /// Page faults while it was measured, median.
    pub faults: u64,
    /// Misses of the TLB for data in a unit; null: not counted.
    pub misses: Option<f64>,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let sorted = stats::sorted(&values.collect::<Vec<f64>>());
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

fn bounds(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(0.0, f64::max))
}

/// Judges the runs of one kernel: each round has a run of every way, in the order of `ways`.
///
/// # Errors
/// [`Code::Corrupt`] if the ways computed different results.
pub fn judge(name: &str, ways: &[Way], rounds: &[Vec<Run>]) -> Result<Kernel> {
    let mut results = rounds.iter().flatten().map(|run| run.result);
    let first = results.next();
    if results.any(|result| Some(result) != first) {
        let entity = Entity::Option(format!("kernels {name}"));
        let reason = "the ways computed different results";
        let remedy =
            "take the machine out of use: it computes wrongly; or report this with the log";
        return Err(Error::new(Code::Corrupt, entity, reason, remedy));
    }
    let time = |run: &Run| median(run.unit_ns.iter().copied());
    let wall = |run: &Run| median(run.wall_ns.iter().copied());
    let figures = |at: usize| {
        let runs = || rounds.iter().filter_map(|round| round.get(at));
        let times: Vec<f64> = runs().map(time).collect();
        let (unit_ns_min, unit_ns_max) = bounds(&times);
        let whole = |of: fn(&Run) -> u64| median(runs().map(|run| of(run) as f64)) as u64;
        let misses: Option<Vec<f64>> = runs().map(|run| run.misses).collect();
        Figures {
            way: ways[at],
            unit_ns: median(times.into_iter()),
            unit_ns_min,
            unit_ns_max,
            wall_ns: median(runs().map(wall)),
            resident_bytes: whole(|run| run.resident_bytes),
            huge_bytes: whole(|run| run.huge_bytes),
            faults: whole(|run| run.faults),
            misses: misses.map(|all| median(all.into_iter())),
        }
    };
    let place = |way| ways.iter().position(|one| *one == way);
    let (normal, huge) = (place(Way::Normal), place(Way::Huge));
    let ratios = |of: &dyn Fn(&Run) -> f64| -> Vec<f64> {
        let ratio = |round: &Vec<Run>| Some(of(round.get(normal?)?) / of(round.get(huge?)?));
        rounds.iter().filter_map(ratio).collect()
    };
    let (ratios, walls) = (ratios(&time), ratios(&wall));
    let (ratio_min, ratio_max) = bounds(&ratios);
    Ok(Kernel {
        name: name.to_owned(),
        unit: about(name).1.to_owned(),
        ways: (0..ways.len()).map(figures).collect(),
        ratio: median(ratios.into_iter()),
        ratio_min,
        ratio_max,
        ratio_wall: median(walls.into_iter()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(unit_ns: &[f64], result: u64, misses: Option<f64>) -> Run {
        Run {
            unit_ns: unit_ns.to_vec(),
            wall_ns: vec![result as f64],
            result,
            resident_bytes: 100,
            huge_bytes: 50,
            faults: 3,
            misses,
            why: None,
        }
    }

    #[test]
    fn ratios_are_taken_within_rounds_and_results_must_be_the_same() {
        let ways = [Way::Normal, Way::Huge];
        let round = |normal: f64, huge: f64| {
            vec![
                run(&[normal, 99.0, 1.0], 7, Some(2.0)),
                run(&[huge; 2], 7, None),
            ]
        };
        // All of the machine was slower in the second round.
        let rounds = [round(4.0, 2.0), round(30.0, 10.0), round(10.0, 4.0)];
        let kernel = judge("is", &ways, &rounds).unwrap();
        assert_eq!(
            (kernel.ratio, kernel.ratio_min, kernel.ratio_max),
            (2.5, 2.0, 3.0)
        );
        assert_eq!(kernel.ratio_wall, 1.0);
        let normal = &kernel.ways[0];
        assert_eq!((normal.unit_ns, normal.unit_ns_max), (10.0, 30.0));
        assert_eq!((normal.misses, kernel.ways[1].misses), (Some(2.0), None));
        let mut wrong = rounds;
        wrong[1][1].result = 8;
        let error = judge("is", &ways, &wrong).unwrap_err();
        assert_eq!(error.code(), Code::Corrupt);
    }

    #[test]
    fn medians_of_even_counts_lie_between() {
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert_eq!(median([].into_iter()), 0.0);
    }
}

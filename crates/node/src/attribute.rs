//! Which interval of a trace hit which long sample.
//!
//! Invariant: explained and unexplained time of a sample add up to its excess; time that
//! several intervals share (a timer inside an interrupt) is counted once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::trace::{Activity, Interval};

/// Long samples that are kept one by one, the longest first.
pub const LONG_MAX: usize = 200;
/// Sources that are named for all samples together.
const SOURCES_MAX: usize = 50;
/// The trace's clock tells microseconds: an interval may lie this far outside of its sample.
pub const TOLERANCE_NS: u64 = 2_000;

/// A sample that took long. Times in nanoseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Long {
    /// Its place in the series.
    pub index: u64,
    /// Its begin by the trace's clock.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
    /// Its time over the least.
    pub excess_ns: f64,
}

/// What hit a sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Hit {
    /// What it was.
    pub kind: Activity,
    /// Its name.
    pub name: String,
    /// How long it lay over the sample, ns.
    pub overlap_ns: f64,
}

/// A long sample and what hit it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Explained {
    /// The sample's place in the series.
    pub index: u64,
    /// Its time over the least, ns.
    pub excess_ns: f64,
    /// Of that what intervals cover, ns.
    pub explained_ns: f64,
    /// What hit it.
    pub hits: Vec<Hit>,
}

/// What one source did to all long samples.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Source {
    /// What it is.
    pub kind: Activity,
    /// Its name.
    pub name: String,
    /// Long samples that it hit.
    pub samples: u64,
    /// Its time in them, ns.
    pub total_ns: f64,
}

/// All long samples together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Attribution {
    /// Long samples.
    pub samples: u64,
    /// Those that nothing hit which the trace shows.
    pub unattributed: u64,
    /// Their time over the least, ns.
    pub excess_ns: f64,
    /// Of that what the trace does not show: the hypervisor, firmware, caches, ns.
    pub unexplained_ns: f64,
    /// By time, the largest first.
    pub sources: Vec<Source>,
    /// The longest samples.
    pub longest: Vec<Explained>,
}

/// Matches long samples, ascending and apart, with intervals in any order.
pub fn attribute(long: &[Long], intervals: &[Interval]) -> Attribution {
    let mut sorted: Vec<&Interval> = intervals.iter().collect();
    sorted.sort_by_key(|one| one.start_ns);
    // Ends that ascend: from where on an interval may still reach into a sample.
    let mut reach = 0;
    let reaches: Vec<u64> = sorted
        .iter()
        .map(|one| {
            reach = reach.max(one.end_ns);
            reach
        })
        .collect();
    let mut sources: BTreeMap<(Activity, &str), (u64, f64)> = BTreeMap::new();
    let mut all: Vec<Explained> = Vec::new();
    for sample in long {
        let (from, to) = (
            sample.start_ns.saturating_sub(TOLERANCE_NS),
            sample.end_ns.saturating_add(TOLERANCE_NS),
        );
        let first = reaches.partition_point(|&end| end <= from);
        let last = sorted.partition_point(|one| one.start_ns < to);
        let over = sorted[first.min(last)..last]
            .iter()
            .filter(|one| one.end_ns > from);
        let over: Vec<&Interval> = over.copied().collect();
        let mut hits: BTreeMap<(Activity, &str), f64> = BTreeMap::new();
        for one in &over {
            let shared = one.end_ns.min(to) - one.start_ns.max(from);
            *hits.entry((one.kind, &one.name)).or_default() += shared as f64;
        }
        for (&key, &time) in &hits {
            let entry = sources.entry(key).or_default();
            entry.0 += 1;
            entry.1 += time;
        }
        all.push(Explained {
            index: sample.index,
            excess_ns: sample.excess_ns,
            explained_ns: covered(&over, from, to).min(sample.excess_ns),
            hits: named(hits),
        });
    }
    total(all, sources)
}

/// Time between `from` and `to` under intervals with ascending begins, each moment once.
fn covered(over: &[&Interval], from: u64, to: u64) -> f64 {
    let (mut time, mut until) = (0, from);
    for one in over {
        let (start, end) = (one.start_ns.max(until), one.end_ns.min(to));
        time += end.saturating_sub(start);
        until = until.max(end);
    }
    time as f64
}

fn named(hits: BTreeMap<(Activity, &str), f64>) -> Vec<Hit> {
    let mut hits: Vec<Hit> = hits
        .into_iter()
        .map(|((kind, name), overlap_ns)| Hit {
            kind,
            name: name.to_owned(),
            overlap_ns,
        })
        .collect();
    hits.sort_by(|a, b| b.overlap_ns.total_cmp(&a.overlap_ns));
    hits
}

fn total(mut all: Vec<Explained>, sources: BTreeMap<(Activity, &str), (u64, f64)>) -> Attribution {
    let mut sources: Vec<Source> = sources
        .into_iter()
        .map(|((kind, name), (samples, total_ns))| Source {
            kind,
            name: name.to_owned(),
            samples,
            total_ns,
        })
        .collect();
    sources.sort_by(|a, b| b.total_ns.total_cmp(&a.total_ns));
    sources.truncate(SOURCES_MAX);
    let excess_ns: f64 = all.iter().map(|one| one.excess_ns).sum();
    let explained_ns: f64 = all.iter().map(|one| one.explained_ns).sum();
    let (samples, unattributed) = (
        all.len() as u64,
        all.iter().filter(|one| one.hits.is_empty()).count() as u64,
    );
    all.sort_by(|a, b| b.excess_ns.total_cmp(&a.excess_ns));
    all.truncate(LONG_MAX);
    Attribution {
        samples,
        unattributed,
        excess_ns,
        unexplained_ns: excess_ns - explained_ns,
        sources,
        longest: all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::rng::Sequence;

    fn interval(kind: Activity, name: &str, start_ns: u64, end_ns: u64) -> Interval {
        let name = name.to_owned();
        Interval {
            kind,
            name,
            start_ns,
            end_ns,
        }
    }

    /// Samples of 1 ms apart; one of them is hit by a planted thread of 300 us among
    /// thousands of short timers, and one by nothing that a trace shows.
    #[test]
    fn a_planted_event_is_found_in_its_sample_alone() {
        for seed in outlive_base::seeds!(20) {
            let mut random = Sequence::new(seed, 0);
            let planted = 10 + random.below(900);
            let silent = planted + 5;
            let long: Vec<Long> = (0..1_000)
                .filter(|at| at % 3 == 0 || [planted, silent].contains(at))
                .map(|index| Long {
                    index,
                    start_ns: index * 2_000_000,
                    end_ns: index * 2_000_000 + 1_000_000,
                    excess_ns: if index == planted { 310_000.0 } else { 5_000.0 },
                })
                .collect();
            let mut intervals: Vec<Interval> = (0..1_000)
                .filter(|&at| at != silent)
                .map(|at| {
                    let start = at * 2_000_000 + 10_000 + random.below(900_000);
                    interval(Activity::Vector, "local_timer", start, start + 3_000)
                })
                .collect();
            let start = planted * 2_000_000 + 100_000 + random.below(500_000);
            intervals.push(interval(
                Activity::Thread,
                "kworker",
                start,
                start + 300_000,
            ));
            // Between two samples: it hit none.
            intervals.push(interval(
                Activity::Thread,
                "elsewhere",
                1_200_000,
                1_900_000,
            ));
            let found = attribute(&long, &intervals);
            let top = &found.longest[0];
            assert_eq!(top.index, planted);
            assert_eq!(
                (top.hits[0].name.as_str(), top.hits[0].overlap_ns),
                ("kworker", 300_000.0)
            );
            assert!((300_000.0..=303_000.0).contains(&top.explained_ns));
            let kworker = found.sources.iter().find(|s| s.name == "kworker").unwrap();
            assert_eq!(kworker.samples, 1);
            assert!(found.sources.iter().all(|s| s.name != "elsewhere"));
            assert_eq!(found.unattributed, 1);
            assert_eq!(found.samples, long.len() as u64);
        }
    }

    #[test]
    fn what_nests_is_counted_once_and_never_beyond_the_excess() {
        let long = [Long {
            index: 0,
            start_ns: 100_000,
            end_ns: 200_000,
            excess_ns: 9_000.0,
        }];
        let outer = interval(Activity::Vector, "local_timer", 120_000, 128_000);
        let inner = interval(Activity::Timer, "tick", 122_000, 126_000);
        let found = attribute(&long, &[inner, outer.clone()]);
        assert_eq!((found.excess_ns, found.unexplained_ns), (9_000.0, 1_000.0));
        let wide = interval(Activity::Thread, "x", 0, 1_000_000);
        assert_eq!(attribute(&long, &[wide, outer]).unexplained_ns, 0.0);
        assert_eq!(attribute(&long, &[]).unexplained_ns, 9_000.0);
    }
}

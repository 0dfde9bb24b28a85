//! Statistics of samples: percentiles, a histogram of what exceeds the least, an envelope.
//!
//! Invariant: nothing here is larger than its stated bound, however many samples there are.

use serde::{Deserialize, Serialize};

/// Percentiles that are shown, in hundredths of a percent.
pub const PERCENTILES: [u32; 6] = [5_000, 9_000, 9_900, 9_990, 9_999, 10_000];
/// The most points of an envelope.
pub const POINTS_MAX: usize = 800;

/// What a set of samples is like. All times in nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// The least.
    pub min: f64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The largest.
    pub max: f64,
    /// Mean over least, minus 1, in percent: what the noise costs one core.
    pub noise_percent: f64,
    /// Percent of samples at or below, and the sample there (nearest rank).
    pub percentiles: Vec<(f64, f64)>,
}

/// The summary of samples, which must not be empty; `None` if they are.
pub fn summary(samples: &[f64]) -> Option<Summary> {
    let sorted = sorted(samples);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let percentiles = PERCENTILES.iter().map(|&hundredths| {
        let at = nearest_rank(sorted.len(), hundredths);
        (f64::from(hundredths) / 100.0, sorted[at])
    });
    Some(Summary {
        min,
        mean,
        max,
        noise_percent: over_percent(mean, min),
        percentiles: percentiles.collect(),
    })
}

/// The samples in ascending order.
pub fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The place of a percentile among `count` sorted samples by the nearest-rank rule.
pub fn nearest_rank(count: usize, hundredths: u32) -> usize {
    let rank = (count as u128 * u128::from(hundredths)).div_ceil(10_000);
    (rank.max(1) as usize - 1).min(count.saturating_sub(1))
}

/// How far `value` lies over `least`, in percent of it; 0 if that is not positive.
pub fn over_percent(value: f64, least: f64) -> f64 {
    if least > 0.0 {
        (value / least - 1.0) * 100.0
    } else {
        0.0
    }
}

/// One class of a histogram.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Class {
    /// Excess over the least from here on, in percent of it.
    pub from_percent: f64,
    /// Excess below this; the last class has no end.
    pub below_percent: Option<f64>,
    /// Samples in it.
    pub count: u64,
}

/// Where the classes begin: decades in three steps, as noise spans many orders.
const EDGES: [f64; 19] = [
    0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0,
    1_000.0, 10_000.0, 100_000.0,
];

/// How many samples exceed the least by how much. Every sample is in exactly one class.
pub fn histogram(samples: &[f64]) -> Vec<Class> {
    let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let mut counts = [0u64; EDGES.len()];
    for &sample in samples {
        let over = over_percent(sample, least).max(0.0);
        counts[EDGES.partition_point(|&edge| edge <= over) - 1] += 1;
    }
    let classes = counts.iter().enumerate().map(|(at, &count)| Class {
        from_percent: EDGES[at],
        below_percent: EDGES.get(at + 1).copied(),
        count,
    });
    classes.collect()
}

/// A series thinned to at most [`POINTS_MAX`] points: the place of each run of samples and
/// the largest in it, so that no peak is lost.
pub fn envelope(samples: &[f64]) -> Vec<(u64, f64)> {
    let run = samples.len().div_ceil(POINTS_MAX).max(1);
    let points = samples.chunks(run).enumerate().map(|(at, chunk)| {
        let largest = chunk.iter().copied().fold(f64::MIN, f64::max);
        ((at * run) as u64, largest)
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::rng::Sequence;

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let of = summary(&samples).unwrap();
        assert_eq!((of.min, of.mean, of.max), (1.0, 50.5, 100.0));
        assert_eq!(
            of.percentiles[..3],
            [(50.0, 50.0), (90.0, 90.0), (99.0, 99.0)]
        );
        assert_eq!(of.percentiles[5], (100.0, 100.0));
        assert_eq!(summary(&[]), None);
        assert_eq!(summary(&[3.0]).unwrap().percentiles[0], (50.0, 3.0));
    }

    #[test]
    fn every_sample_is_in_the_class_of_its_excess() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        let mut samples = vec![1_000.0];
        samples.extend((0..5_000).map(|_| 1_000.0 + random.below(1 << 24) as f64));
        let classes = histogram(&samples);
        for class in &classes {
            let inside = |&&s: &&f64| {
                let over = over_percent(s, 1_000.0);
                over >= class.from_percent && class.below_percent.is_none_or(|end| over < end)
            };
            assert_eq!(samples.iter().filter(inside).count() as u64, class.count);
        }
        assert_eq!(classes.iter().map(|c| c.count).sum::<u64>(), 5_001);
        assert_eq!(classes[0].count, 1, "only the least is below 0.01 percent");
    }

    #[test]
    fn an_envelope_keeps_the_peak() {
        let mut samples = vec![1.0; 100_000];
        samples[77_777] = 9.0;
        let points = envelope(&samples);
        assert!(points.len() <= POINTS_MAX);
        let (at, peak) = points[points.iter().position(|p| p.1 > 1.0).unwrap()];
        assert!(peak == 9.0 && at <= 77_777 && 77_777 < at + 125, "{at}");
        assert!(envelope(&[]).is_empty());
    }
}

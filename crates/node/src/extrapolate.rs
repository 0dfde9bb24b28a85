//! What the noise of one core costs a bulk-synchronous job of many ranks: every step takes as
//! long as its slowest rank.
//!
//! Ranks are taken as independent and alike, each step of a rank as drawn from what was
//! measured. The largest of N independent draws from n sorted samples is x_i with probability
//! (i/n)^N - ((i-1)/n)^N; for samples of which a share p is hit this is the 1 - (1 - p)^N of
//! Hoefler, Schneider, Lumsdaine (SC 2010). More ranks than samples ask for delays that are
//! rarer than any that could be seen: the result is then a lower bound and says so.

use outlive_base::rng::Sequence;
use serde::{Deserialize, Serialize};

use crate::stats::{over_percent, sorted};

/// Numbers of ranks that are shown.
pub const RANKS: [u64; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];
/// Steps that are replayed.
pub const STEPS: u32 = 1_000;

/// A job of so many ranks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Scale {
    /// Ranks.
    pub ranks: u64,
    /// The expected time of a step, ns: exact for the measured samples.
    pub step_ns: f64,
    /// The same over a step without noise, in percent.
    pub slowdown_percent: f64,
    /// The mean of replayed steps, ns, each the largest of as many draws; checks the above.
    pub replayed_ns: f64,
    /// The standard error of that mean, ns.
    pub replayed_error_ns: f64,
    /// More ranks than samples: the true cost may be higher.
    pub lower_bound: bool,
}

/// Steps of `quanta` consecutive samples: delays that come in bursts stay together. A rest
/// that fills no step is left out.
pub fn steps(samples: &[f64], quanta: usize) -> Vec<f64> {
    let whole = samples.chunks_exact(quanta.max(1));
    whole.map(|step| step.iter().sum()).collect()
}

/// The cost for each number of ranks; empty without steps. `least` is a step without noise.
pub fn extrapolate(steps: &[f64], least: f64, ranks: &[u64], seed: u64) -> Vec<Scale> {
    let sorted = sorted(steps);
    if sorted.is_empty() {
        return Vec::new();
    }
    let scale = |&ranks: &u64| {
        let step_ns = expected_largest(&sorted, ranks);
        let (replayed_ns, replayed_error_ns) = replay(&sorted, ranks, seed);
        Scale {
            ranks,
            step_ns,
            slowdown_percent: over_percent(step_ns, least),
            replayed_ns,
            replayed_error_ns,
            lower_bound: ranks > sorted.len() as u64,
        }
    };
    ranks.iter().map(scale).collect()
}

/// The expected largest of `ranks` draws from ascending samples; 0 without samples.
pub fn expected_largest(sorted: &[f64], ranks: u64) -> f64 {
    let n = sorted.len() as f64;
    // x_n minus the sum of the gaps, each weighted by the chance that all draws lie below it.
    let gaps = sorted.windows(2).enumerate().map(|(at, pair)| {
        let below = (at + 1) as f64 / n;
        (pair[1] - pair[0]) * below.powf(ranks as f64)
    });
    sorted.last().copied().unwrap_or(0.0) - gaps.sum::<f64>()
}

/// Mean and standard error of replayed steps. The largest of N uniform draws is distributed
/// as one draw to the power 1/N, so a step costs one draw however many ranks there are.
fn replay(sorted: &[f64], ranks: u64, seed: u64) -> (f64, f64) {
    let mut random = Sequence::new(seed, ranks);
    let (mut sum, mut squares) = (0.0, 0.0);
    for _ in 0..STEPS {
        let uniform = (random.u64() >> 11) as f64 / (1u64 << 53) as f64;
        let place = uniform.powf(1.0 / ranks.max(1) as f64) * sorted.len() as f64;
        let value = sorted[(place as usize).min(sorted.len() - 1)];
        sum += value;
        squares += value * value;
    }
    let count = f64::from(STEPS);
    let mean = sum / count;
    let variance = (squares / count - mean * mean).max(0.0);
    (mean, (variance / (count - 1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quantiles of the exponential distribution of mean 1 stand for a series.
    fn exponential(count: usize) -> Vec<f64> {
        let quantile = |at: usize| -(1.0 - (at as f64 + 0.5) / count as f64).ln();
        (0..count).map(quantile).collect()
    }

    #[test]
    fn the_largest_of_exponential_delays_is_the_harmonic_number() {
        let series = exponential(1_000_000);
        for ranks in [1, 2, 10, 100, 1_000] {
            let harmonic: f64 = (1..=ranks).map(|k| 1.0 / k as f64).sum();
            let found = expected_largest(&series, ranks);
            assert!(
                (found / harmonic - 1.0).abs() < 2e-3,
                "{ranks}: {found} {harmonic}"
            );
        }
    }

    #[test]
    fn a_rare_delay_hits_as_the_closed_form_says() {
        // One sample of ten thousand takes twice as long.
        let mut series = vec![1.0; 10_000];
        series[1_234] = 2.0;
        for of in extrapolate(&series, 1.0, &RANKS, outlive_base::seed!()) {
            let hit = 1.0 - (1.0 - 1e-4f64).powf(of.ranks as f64);
            assert!((of.step_ns - 1.0 - hit).abs() < 1e-9, "{of:?}");
            // The replay agrees: six errors, and one delay in a thousand steps more or less.
            let margin = 6.0 * of.replayed_error_ns + 4e-3;
            assert!((of.replayed_ns - of.step_ns).abs() < margin, "{of:?}");
            assert_eq!(of.lower_bound, of.ranks > 10_000);
        }
    }

    #[test]
    fn bursts_stay_together_and_costs_rise_with_ranks() {
        assert_eq!(steps(&[1.0, 2.0, 3.0, 4.0, 5.0], 2), [3.0, 7.0]);
        assert_eq!(steps(&[1.0, 2.0], 0), [1.0, 2.0]);
        let seed = outlive_base::seed!();
        let all = extrapolate(&exponential(1_000), 1.0, &RANKS, seed);
        assert!(
            all.windows(2)
                .all(|pair| pair[0].step_ns <= pair[1].step_ns)
        );
        assert_eq!(all, extrapolate(&exponential(1_000), 1.0, &RANKS, seed));
        assert!(extrapolate(&[], 1.0, &RANKS, seed).is_empty());
    }
}

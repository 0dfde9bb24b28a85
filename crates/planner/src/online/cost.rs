//! What a write takes, learned from those that were made.
//!
//! The logarithm of the cost walks at random: a Kalman filter for a level that drifts (R. E.
//! Kalman 1960; the local level model of structural time series). Two measurements after a
//! change by ten, three quarters of it are known; single ones that are far off pass away.

use serde::{Deserialize, Serialize};

/// A cost as it is believed before anything is measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CostPrior {
    /// Seconds.
    pub seconds: f64,
    /// Standard deviation of the logarithm: 0.7 is about a factor of 2 either way.
    pub spread: f64,
}

/// Standard deviation of the logarithm from one measurement to the next: of the cost itself
/// and of its measurement.
const DRIFT: f64 = 0.15;
const NOISE: f64 = 0.2;
/// Beyond so many standard deviations it is taken for a change, not for noise.
const SURPRISE: f64 = 3.0;
/// More variance than this no sum needs: moments of wider ones are beyond all numbers.
const SPREAD_MAX: f64 = 100.0;
/// So many measurements' time ago the last one is supposed to be at most.
const AGE_MAX: f64 = 100.0;
/// A write takes at least this: times of 0 have no logarithm.
const SECONDS_MIN: f64 = 1e-6;

/// A cost that is learned.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cost {
    log: f64,
    variance: f64,
    seen: u64,
}

impl Cost {
    /// A cost of which only the prior is known.
    pub fn new(prior: CostPrior) -> Cost {
        Cost {
            log: libm::log(prior.seconds.max(SECONDS_MIN)),
            variance: prior.spread * prior.spread,
            seen: 0,
        }
    }

    /// It took so many seconds.
    pub fn measure(&mut self, seconds: f64) {
        let log = libm::log(seconds.max(SECONDS_MIN));
        let apart = log - self.log;
        let mut variance = self.variance + DRIFT * DRIFT;
        let expected = variance + NOISE * NOISE;
        if apart * apart > SURPRISE * SURPRISE * expected {
            // So far off that the cost itself has changed by about as much.
            variance += apart * apart / 4.0;
        }
        let gain = variance / (variance + NOISE * NOISE);
        self.log += gain * apart;
        self.variance = (1.0 - gain) * variance;
        self.seen += 1;
    }

    /// Somebody who knows it says so: believed as what it is, beside what was measured. What was
    /// measured last may be many measurements' time ago (`age`), in which it may have drifted.
    pub fn told(&mut self, claim: CostPrior, age: f64) {
        let log = libm::log(claim.seconds.max(SECONDS_MIN));
        let apart = log - self.log;
        let noise = claim.spread * claim.spread;
        let mut variance = self.variance + DRIFT * DRIFT * age.clamp(0.0, AGE_MAX);
        if apart * apart > SURPRISE * SURPRISE * (variance + noise) {
            variance += apart * apart / 4.0;
        }
        let gain = variance / (variance + noise);
        self.log += gain * apart;
        self.variance = (1.0 - gain) * variance;
    }

    /// Seconds that are expected.
    pub fn mean(&self) -> f64 {
        match self.log <= libm::log(2.0 * SECONDS_MIN) {
            true => 0.0,
            false => libm::exp(self.log),
        }
    }

    /// Seconds that the next one stays below with a probability of about 97.5 %.
    pub fn high(&self) -> f64 {
        let spread = libm::sqrt(self.variance + DRIFT * DRIFT + NOISE * NOISE);
        match self.mean() {
            0.0 => 0.0,
            mean => mean * libm::exp(2.0 * spread),
        }
    }

    /// Measurements.
    pub const fn seen(&self) -> u64 {
        self.seen
    }

    /// Standard deviation of the logarithm of what is expected.
    pub fn spread(&self) -> f64 {
        libm::sqrt(self.variance)
    }
}

/// The probability that these together take longer than so many seconds: the sum of log-normal
/// costs is taken for log-normal with the same two moments (L. F. Fenton, *The Sum of Log-Normal
/// Probability Distributions in Scatter Transmission Systems*, IRE Trans. Commun. Syst. 8, 1960).
pub fn late(costs: &[&Cost], seconds: f64) -> f64 {
    let (mut mean, mut variance) = (0.0, 0.0);
    for cost in costs {
        let middle = cost.mean();
        if middle > 0.0 {
            let spread = (cost.variance + DRIFT * DRIFT + NOISE * NOISE).min(SPREAD_MAX);
            let expected = middle * libm::exp(0.5 * spread);
            mean += expected;
            variance += expected * expected * libm::expm1(spread);
        }
    }
    if mean <= 0.0 || seconds <= 0.0 {
        return if seconds <= 0.0 { 1.0 } else { 0.0 };
    }
    let spread = libm::log1p(variance / (mean * mean));
    let middle = libm::log(mean) - 0.5 * spread;
    let apart = (libm::log(seconds) - middle) / libm::sqrt(spread);
    0.5 * libm::erfc(apart / core::f64::consts::SQRT_2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_by_ten_is_known_after_two() {
        let mut cost = Cost::new(CostPrior {
            seconds: 5.0,
            spread: 1.0,
        });
        for _ in 0..10 {
            cost.measure(20.0);
        }
        assert!((cost.mean() / 20.0 - 1.0).abs() < 0.05, "{cost:?}");
        for (seconds, factor) in [(200.0, 10.0), (20.0, 1.0)] {
            cost.measure(seconds);
            cost.measure(seconds);
            let ratio = cost.mean() / (20.0 * factor);
            assert!((0.6..1.7).contains(&ratio), "{cost:?}");
        }
    }

    /// One cost exactly; two against drawing them.
    #[test]
    fn how_likely_a_sum_of_costs_is_late() {
        use outlive_base::rng::Sequence;
        let cost = |seconds: f64, spread: f64| Cost::new(CostPrior { seconds, spread });
        let one = cost(20.0, 0.4);
        let sd = libm::sqrt(0.4 * 0.4 + DRIFT * DRIFT + NOISE * NOISE);
        assert!((late(&[&one], 20.0) - 0.5).abs() < 1e-12);
        assert!((late(&[&one], 20.0 * libm::exp(2.0 * sd)) - 0.022_750_132).abs() < 1e-8);
        assert_eq!((late(&[&one], 0.0), late(&[], 1.0)), (1.0, 0.0));
        let seed = outlive_base::seed!();
        let mut random = Sequence::new(seed, 0);
        let mut unit = || ((random.u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        let other = cost(5.0, 0.6);
        let other_sd = libm::sqrt(0.6 * 0.6 + DRIFT * DRIFT + NOISE * NOISE);
        let (draws, mut above) = (20_000, 0);
        for _ in 0..draws {
            // Box and Muller: two normal numbers.
            let radius = libm::sqrt(-2.0 * libm::log(unit()));
            let (a, b) = libm::sincos(2.0 * core::f64::consts::PI * unit());
            let sum = 20.0 * libm::exp(sd * radius * a) + 5.0 * libm::exp(other_sd * radius * b);
            above += u32::from(sum > 35.0);
        }
        let (found, drawn) = (
            late(&[&one, &other], 35.0),
            f64::from(above) / f64::from(draws),
        );
        assert!((found - drawn).abs() < 0.03, "seed {seed}: {found} {drawn}");
    }

    #[test]
    fn what_is_said_counts_by_how_sure_it_is_and_how_old_what_was_measured() {
        let claim = |seconds| CostPrior {
            seconds,
            spread: 0.3,
        };
        let mut measured = Cost::new(claim(2.0));
        for _ in 0..10 {
            measured.measure(9.0);
        }
        let told = |seconds, age| {
            let mut cost = measured;
            cost.told(claim(seconds), age);
            assert_eq!(cost.seen(), measured.seen());
            cost.mean()
        };
        let (at_once, later) = (told(7.0, 0.0), told(7.0, 50.0));
        assert!(
            7.0 < later && later < at_once && at_once < 9.0,
            "{later} {at_once}"
        );
        assert!(at_once > 8.3 && later < 7.3, "{later} {at_once}");
        // So far off that it has changed, and no longer ago than it can have drifted.
        assert!(told(90.0, 0.0) > 50.0, "{}", told(90.0, 0.0));
        assert!((told(7.0, 1e12) - told(7.0, AGE_MAX)).abs() < 1e-12);
        // It has been said, and is measured otherwise.
        let mut cost = Cost::new(claim(1.0));
        cost.told(claim(8.0), 0.0);
        cost.measure(2.0);
        cost.measure(2.0);
        assert!((1.5..3.0).contains(&cost.mean()), "{cost:?}");
    }

    #[test]
    fn noise_is_smoothed_and_nothing_is_free_of_sense() {
        let mut cost = Cost::new(CostPrior {
            seconds: 1.0,
            spread: 1.0,
        });
        for round in 0..40 {
            cost.measure(if round % 2 == 0 { 8.0 } else { 12.0 });
        }
        assert!((8.0..12.0).contains(&cost.mean()) && cost.high() > 12.0);
        let mut nothing = Cost::new(CostPrior {
            seconds: 0.0,
            spread: 1.0,
        });
        assert_eq!((nothing.mean(), nothing.high()), (0.0, 0.0));
        nothing.measure(0.0);
        assert_eq!(nothing.mean(), 0.0);
    }
}

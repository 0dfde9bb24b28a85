//! What a write takes, learned from those that were made.
//!
//! The logarithm of the cost walks at random: a Kalman filter for a level that drifts (R. E.
//! Kalman 1960; the local level model of structural time series). Two measurements after a
//! change by ten, three quarters of it are known; single ones that are far off pass away.

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
/// A write takes at least this: times of 0 have no logarithm.
const SECONDS_MIN: f64 = 1e-6;

/// A cost that is learned.
#[derive(Clone, Copy, PartialEq, Debug)]
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

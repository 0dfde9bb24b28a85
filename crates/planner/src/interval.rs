//! How often to checkpoint at one level.
//!
//! The model (J. T. Daly, *A higher order estimate of the optimum checkpoint interval for
//! restart dumps*, FGCS 22, 2006): failures come independently at a constant rate, also
//! during checkpoints and restarts; after `interval` of computing a checkpoint of length
//! `cost` follows; a failure loses what was done since the last one that was complete, and
//! costs `restart` before the job computes again. All times are in one unit.

use outlive_base::{Code, Entity, Error, Result};

/// What checkpoints of one level cost, and how often they are needed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// For how long a checkpoint keeps the program from computing.
    pub cost: f64,
    /// From a failure until the program computes again.
    pub restart: f64,
    /// Mean time between two failures of the job.
    pub mtbf: f64,
}

impl Costs {
    /// Costs that make sense.
    ///
    /// # Errors
    /// [`Code::Config`] if `cost` or `mtbf` is not positive, `restart` is negative, or one
    /// of them is not finite.
    pub fn new(cost: f64, restart: f64, mtbf: f64) -> Result<Self> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let checks = [
            ("cost of a checkpoint", cost, positive(cost)),
            (
                "cost of a restart",
                restart,
                restart.is_finite() && restart >= 0.0,
            ),
            ("mean time between failures", mtbf, positive(mtbf)),
        ];
        for (what, value, good) in checks {
            if !good {
                return Err(Error::new(
                    Code::Config,
                    Entity::Option(what.into()),
                    value.to_string(),
                    "give a positive number of seconds",
                ));
            }
        }
        Ok(Self {
            cost,
            restart,
            mtbf,
        })
    }

    /// Young's interval, sqrt(2 C M): good where C is far below M (J. W. Young, *A first
    /// order approximation to the optimum checkpoint interval*, CACM 17, 1974).
    pub fn young(&self) -> f64 {
        libm::sqrt(2.0 * self.cost * self.mtbf)
    }

    /// Daly's estimate of the best interval (2006, equation 37): M from C = 2 M on.
    pub fn daly(&self) -> f64 {
        if self.cost >= 2.0 * self.mtbf {
            return self.mtbf;
        }
        let ratio = self.cost / (2.0 * self.mtbf);
        self.young() * (1.0 + libm::sqrt(ratio) / 3.0 + ratio / 9.0) - self.cost
    }

    /// The interval for which [`Costs::overhead`] is least.
    ///
    /// Its derivative is zero where e^x (1 - x) = e^(-C/M), x = interval / M; the left side
    /// falls from 1 to 0 as x goes from 0 to 1. What is missing from 1, x e^x - (e^x - 1), is
    /// convex and at least x^2 / 2: from a start above the solution Newton's method comes down
    /// to it in few steps, without ever passing it but for rounding.
    pub fn best(&self) -> f64 {
        // Near 0 both sides are close to 1: compare what is missing from it.
        let wanted = -libm::expm1(-self.cost / self.mtbf);
        let mut x = libm::sqrt(2.0 * wanted).min(1.0);
        for _ in 0..60 {
            let above = libm::expm1(x);
            let slope = x * (above + 1.0);
            let next = x - (slope - above - wanted) / slope;
            // Below this the difference is rounding.
            if !(next > 0.0 && next < x * (1.0 - 1e-15)) {
                break;
            }
            x = next;
        }
        x * self.mtbf
    }

    /// The expected time of a run over the time of its computation, minus 1, with a
    /// checkpoint after each `interval` of it (Daly 2006, equation 20; for long runs).
    /// Infinite where no run ends.
    pub fn overhead(&self, interval: f64) -> f64 {
        let again = libm::exp(self.restart / self.mtbf);
        let segment = libm::expm1((interval + self.cost) / self.mtbf);
        self.mtbf * again * segment / interval - 1.0
    }

    /// The interval at which checkpoints themselves take `share` of the time that the
    /// program computes (MPC 2019, section 5.4: an overhead budget gives the period).
    ///
    /// # Errors
    /// [`Code::Config`] if `share` is not positive and finite.
    pub fn within_budget(&self, share: f64) -> Result<f64> {
        if !(share.is_finite() && share > 0.0) {
            return Err(Error::new(
                Code::Config,
                Entity::Option("overhead budget".into()),
                share.to_string(),
                "give a share above 0, for example 0.01",
            ));
        }
        Ok(self.cost / share)
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::rng::Sequence;

    use super::*;

    fn costs(cost: f64, restart: f64, mtbf: f64) -> Costs {
        Costs::new(cost, restart, mtbf).expect("good")
    }

    #[test]
    fn the_best_is_at_least_as_good_as_any_other() {
        for exponent in -60..=15 {
            // C/M from 1e-6 to 32.
            let costs = costs(libm::pow(10.0, f64::from(exponent) / 10.0), 0.3, 1.0);
            let best = costs.overhead(costs.best());
            assert!(costs.overhead(costs.young()) >= best * (1.0 - 1e-12));
            assert!(costs.overhead(costs.daly()) >= best * (1.0 - 1e-12));
            for factor in [0.5, 0.9, 0.99, 1.01, 1.1, 2.0] {
                let other = costs.overhead(costs.best() * factor);
                assert!(other >= best * (1.0 - 1e-12), "{costs:?} {factor}");
            }
        }
    }

    #[test]
    fn dalys_estimate_is_near() {
        // While C < M/2 a run with it takes at most 0.2 % longer than the best.
        for percent in 1..50 {
            let costs = costs(f64::from(percent) / 100.0, 0.0, 1.0);
            let (found, best) = (costs.overhead(costs.daly()), costs.overhead(costs.best()));
            assert!((1.0 + found) / (1.0 + best) < 1.002, "C/M = 0.{percent:02}");
        }
    }

    #[test]
    fn known_intervals() {
        // C = 1 s, M = 1 day: about 7 minutes (docs/how-to/levels.md).
        let day = costs(1.0, 0.0, 86_400.0);
        assert!((day.young() - 415.7).abs() < 0.1);
        assert!((day.best() - day.daly()).abs() < 0.01);
        // A budget of 1 % for a checkpoint of one minute: 100 minutes (MPC 2019, 5.4).
        let minute = costs(60.0, 0.0, 86_400.0);
        assert!((minute.within_budget(0.01).expect("good") - 6_000.0).abs() < 1e-9);
    }

    /// Daly 2006, figures 3 to 5: the interval that the model predicts for M = 24 h, 6 h and
    /// 15 min with dumps of 5 min is 117, 57 and 9.1 min.
    #[test]
    fn dalys_figures() {
        for (mtbf, want, digits) in [(1440.0, 117.0, 0.5), (360.0, 57.0, 0.5), (15.0, 9.1, 0.05)] {
            let found = costs(5.0, 10.0, mtbf).daly();
            assert!(
                (found - want).abs() <= digits,
                "{mtbf}: {found}, not {want}"
            );
        }
    }

    /// The time of one segment: computing and its checkpoint, until both were whole.
    fn segment(costs: &Costs, interval: f64, random: &mut Sequence) -> f64 {
        let mut life = || {
            let unit = (random.u64() >> 11) as f64 / (1_u64 << 53) as f64;
            -costs.mtbf * libm::log1p(-unit)
        };
        let (work, mut spent) = (interval + costs.cost, 0.0);
        loop {
            let until = life();
            if until >= work {
                return spent + work;
            }
            spent += until;
            loop {
                let until = life();
                if until >= costs.restart {
                    spent += costs.restart;
                    break;
                }
                spent += until;
            }
        }
    }

    /// Fresh draws each time; seven standard errors leave a chance of 1e-11 to be wrong.
    #[test]
    fn the_expected_overhead_is_that_of_simulated_runs() {
        let seed = outlive_base::seed!();
        let mut random = Sequence::new(seed, 0);
        for (cost, restart, mtbf) in [(1.0, 2.0, 100.0), (5.0, 0.0, 20.0), (1.0, 10.0, 5.0)] {
            let costs = costs(cost, restart, mtbf);
            for interval in [costs.best(), 0.5 * costs.young()] {
                let runs = 40_000;
                let (mut sum, mut squares) = (0.0, 0.0);
                for _ in 0..runs {
                    let overhead = segment(&costs, interval, &mut random) / interval - 1.0;
                    sum += overhead;
                    squares += overhead * overhead;
                }
                let n = f64::from(runs);
                let mean = sum / n;
                let error = libm::sqrt((squares / n - mean * mean) / n);
                let expected = costs.overhead(interval);
                assert!(
                    (mean - expected).abs() < 7.0 * error,
                    "seed {seed}: {costs:?}, interval {interval}: {mean} +- {error}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn impossible_costs_are_refused() {
        for (cost, restart, mtbf) in [
            (0.0, 1.0, 1.0),
            (1.0, -1.0, 1.0),
            (1.0, 1.0, 0.0),
            (f64::NAN, 1.0, 1.0),
            (1.0, 1.0, f64::INFINITY),
        ] {
            let error = Costs::new(cost, restart, mtbf).expect_err("no sense");
            assert_eq!(error.code(), Code::Config);
        }
        assert!(costs(1.0, 1.0, 1.0).within_budget(0.0).is_err());
    }
}

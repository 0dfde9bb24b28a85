//! What can be learned of a change: all is known but when the failures change, and how.
//!
//! The Bayesian filter of that very question. Costs, how often what fails at first, and in which
//! shares are known; once, at a time that is unknown, the rate of all may become another, of which
//! the logarithm is uniform between factors. What a checkpoint is worth is linear in the rate and what
//! is seen does not depend on what is saved. So on average over such changes no policy that is told no
//! more can do better than this one by more than what its intervals miss. In a single scenario one may
//! that expects just that one sooner.

use outlive_planner::classes::Mask;
use outlive_planner::online::{Adaptive, Decision, Policy, Seen};

use super::{Scenario, Truth};

/// The rate may become so many times what it was, and be divided by as much.
const FACTOR: f64 = 30.0;
/// Rates that are compared.
const POINTS: i32 = 31;
/// A rate that differs by less is told no anew.
const SAME: f64 = 0.02;

/// The filter, and the policy that is told what it finds.
pub(super) struct Filter {
    inner: Adaptive,
    /// What is known; rates before anything changes.
    truth: Truth,
    total: f64,
    /// A change in a second.
    hazard: f64,
    /// The probability that nothing has changed yet, and for each factor that it has.
    same: f64,
    changed: Vec<(f64, f64)>,
    until: f64,
    told: f64,
}

impl Filter {
    pub(super) fn new(scenario: &Scenario) -> Filter {
        let truth = scenario.truth(false);
        let factor = |n| libm::pow(FACTOR, 2.0 * f64::from(n) / f64::from(POINTS - 1) - 1.0);
        Filter {
            inner: Adaptive::new(scenario.settings(None)),
            total: truth.1.iter().map(|level| level.2).sum(),
            truth,
            hazard: 1.0 / scenario.seconds,
            same: 1.0,
            changed: (0..POINTS).map(|n| (factor(n), 0.0)).collect(),
            until: 0.0,
            told: 1.0,
        }
    }

    fn pass(&mut self, at: f64) {
        let seconds = (at - self.until).max(0.0);
        self.until = at.max(self.until);
        let into = self.same * -libm::expm1(-self.hazard * seconds) / f64::from(POINTS);
        let rate = self.total;
        for (factor, weight) in &mut self.changed {
            *weight = *weight * libm::exp(-rate * *factor * seconds) + into;
        }
        self.same *= libm::exp(-(rate + self.hazard) * seconds);
        self.normalise();
        let mean = self.same + self.changed.iter().map(|(f, w)| f * w).sum::<f64>();
        if (mean / self.told - 1.0).abs() > SAME {
            self.told = mean;
            let levels = self.truth.1.iter();
            let levels: Vec<(f64, f64, f64)> = levels
                .map(|&(cost, background, rate)| (cost, background, rate * mean))
                .collect();
            self.inner.told(self.truth.0, &levels);
        }
    }

    fn fail(&mut self, at: f64) {
        self.pass(at);
        let each = self.changed.iter_mut();
        each.for_each(|(factor, weight)| *weight *= *factor);
        self.normalise();
    }

    fn normalise(&mut self) {
        let sum = self.same + self.changed.iter().map(|one| one.1).sum::<f64>();
        self.same /= sum;
        self.changed.iter_mut().for_each(|one| one.1 /= sum);
    }
}

impl Policy for Filter {
    fn see(&mut self, at: f64, seen: Seen) {
        match seen {
            Seen::Stopped { .. } => self.fail(at),
            _ => self.pass(at),
        }
        self.inner.see(at, seen);
    }
    fn decide(&mut self, at: f64, busy: Mask) -> Decision {
        self.pass(at);
        self.inner.decide(at, busy)
    }
    fn due(&mut self, at: f64) -> Option<f64> {
        self.pass(at);
        self.inner.due(at)
    }
}

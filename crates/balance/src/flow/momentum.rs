//! The coefficients of an iteration: orders, momentum, and the eigenvalue that the
//! best of them hang on.

use crate::flow::link_weight;
use crate::links::Links;

/// Which diffusion.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scheme {
    /// First order.
    First,
    /// Second order with a fixed b in 1..2.
    Second {
        /// The b.
        beta: f64,
    },
    /// Second order with the best fixed b for the second eigenvalue `gamma`.
    Best {
        /// The second-largest absolute eigenvalue.
        gamma: f64,
    },
    /// The module's adaptive schedule, for the second eigenvalue `gamma` or an
    /// estimate from above.
    Adaptive {
        /// The second-largest absolute eigenvalue.
        gamma: f64,
    },
}

/// The coefficients of successive iterations of one phase.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Schedule {
    scheme: Scheme,
    iteration: u32,
    chebyshev: f64,
    gamma: f64,
    step: f64,
}

impl Schedule {
    /// The schedule for a graph of at most `degree_max` neighbours (0: unknown).
    pub fn new(scheme: Scheme, degree_max: u32) -> Schedule {
        let (step, gamma) = match scheme {
            Scheme::Adaptive { gamma } => {
                let degree = f64::from(degree_max);
                let reach = match degree_max {
                    0 => 2.0,
                    _ => 2.0 * degree / (degree + 1.0),
                };
                let step = 2.0 / ((1.0 - gamma) + reach).max(1.0);
                (step, 1.0 - step * (1.0 - gamma))
            }
            Scheme::Best { gamma } => (1.0, gamma),
            _ => (1.0, 0.0),
        };
        Schedule {
            scheme,
            iteration: 0,
            chebyshev: 1.0,
            gamma,
            step,
        }
    }

    /// The same schedule from its first iteration.
    pub fn restarted(self) -> Schedule {
        Schedule {
            iteration: 0,
            chebyshev: 1.0,
            ..self
        }
    }

    /// The (momentum, step) of the next iteration: y = momentum y + step a (ui - uj).
    pub fn advance(&mut self) -> (f64, f64) {
        self.iteration += 1;
        let beta = self.beta();
        (beta - 1.0, beta * self.step)
    }

    fn beta(&mut self) -> f64 {
        let k = f64::from(self.iteration);
        let square = self.gamma * self.gamma;
        self.chebyshev = match self.iteration {
            1 => 1.0,
            2 => 2.0 / (2.0 - square),
            _ => 1.0 / (1.0 - square * self.chebyshev / 4.0),
        };
        match self.scheme {
            _ if self.iteration == 1 => 1.0,
            Scheme::First => 1.0,
            Scheme::Second { beta } => beta,
            Scheme::Best { .. } => 2.0 / (1.0 + libm::sqrt(1.0 - square)),
            Scheme::Adaptive { .. } => self.chebyshev.min(1.0 + (k - 1.0) / (k + 2.0)),
        }
    }
}

/// The second-largest absolute eigenvalue of the diffusion matrix of `links`
/// with equal speeds, by `steps` steps of the power method on a start vector
/// without the constant component; from below, exact as the steps grow.
pub fn gamma(links: &Links, steps: u32) -> f64 {
    let count = links.count();
    let mut x: Vec<f64> = (0..count)
        .map(|i| {
            i as f64 + outlive_base::rng::below(outlive_base::rng::draw(1, 0, i as u64), 8) as f64
        })
        .collect();
    let mut value = 0.0;
    for _ in 0..steps {
        let mean = x.iter().sum::<f64>() / count as f64;
        x.iter_mut().for_each(|v| *v -= mean);
        let norm = libm::sqrt(x.iter().map(|v| v * v).sum());
        if norm <= 0.0 {
            return 0.0;
        }
        x.iter_mut().for_each(|v| *v /= norm);
        let mut next = x.clone();
        for i in 0..count as u32 {
            for link in links.of(i) {
                let j = links.to(link);
                let girths = (links.girth(i), links.girth(j));
                let weight = link_weight(links.contact(link), (1.0, 1.0), girths);
                next[i as usize] -= weight * (x[i as usize] - x[j as usize]);
            }
        }
        value = x.iter().zip(&next).map(|(a, b)| a * b).sum::<f64>();
        x = next;
    }
    value.abs().min(1.0)
}

/// An estimate of [`gamma`] from above that needs no communication: that of a
/// cube of `count` processes with face neighbours.
pub fn gamma_estimate(count: usize) -> f64 {
    let side = libm::cbrt(count.max(8) as f64);
    1.0 - 2.0 * (1.0 - libm::cos(core::f64::consts::PI / side)) / 7.0
}

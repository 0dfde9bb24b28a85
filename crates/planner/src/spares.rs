//! Whether spare nodes suffice, and what one more is worth.
//!
//! Nodes that fail are repaired side by side, each for a lognormal time. Those that fall together
//! come in batches: of a batch j are in repair still with a probability that depends on its age
//! alone, so batches with j left come at a Poisson rate, and the number in repair is their sum, a
//! compound Poisson distribution (batches as in M^X/G/infinity; for batches of one M/G/infinity,
//! C. Palm, 1938). Its probabilities follow by Panjer's recursion (1981). No approximation but
//! the numerical integral over ages.
//!
//! A job that needs all its nodes waits while more are in repair than there are spares. That share
//! of the time is what spares cost or save: the rest of the time is as [`crate::lifetime`] says,
//! for failures come at random whether it waits or not. Left out: that a place without a node
//! cannot fail again, and versions that are lost during a wait.

use std::collections::BTreeMap;

use crate::machine::{Job, Machine, Repair};

/// Points of the integral over the age of a batch, in the normal score of the lognormal time.
const POINTS: u32 = 2_000;
/// Half their range: of a lognormal time nothing is left beyond.
const RANGE: f64 = 12.0;
/// More spares than any machine has; with more, nobody waits.
const SPARES_MAX: u32 = 20_000;
/// Beyond this, probabilities are scaled down while they are summed.
const LARGE: f64 = 1e200;

/// Nodes in repair.
#[derive(Clone, PartialEq, Debug)]
pub struct InRepair {
    /// On average.
    pub mean: f64,
    repair: Repair,
    /// Batches of so many nodes, each of which is lost with a probability; and their rate.
    batches: Vec<Batch>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Batch {
    nodes: u32,
    hits: f64,
    rate: f64,
}

impl InRepair {
    /// For a job on a machine; none without a time of repair.
    pub fn of(machine: &Machine, job: &Job) -> Option<InRepair> {
        let repair = machine.nodes.repair?;
        let mut batches = Vec::new();
        if let Some(life) = machine.nodes.fatal {
            batches.push(Batch {
                nodes: 1,
                hits: 1.0,
                rate: f64::from(job.nodes) / life.mtbf,
            });
        }
        for group in &machine.groups {
            let mut sizes: BTreeMap<usize, f64> = BTreeMap::new();
            for set in 0..group.sets(job.nodes) {
                *sizes.entry(group.set(set, job.nodes).len()).or_default() += 1.0;
            }
            let sizes = sizes.into_iter().filter(|(nodes, _)| *nodes > 0);
            batches.extend(sizes.map(|(nodes, sets)| Batch {
                nodes: nodes as u32,
                hits: group.hits,
                rate: sets / group.life.mtbf,
            }));
        }
        let nodes = |batch: &Batch| f64::from(batch.nodes) * batch.hits * batch.rate;
        let mean = batches.iter().map(nodes).sum::<f64>() * repair.mean();
        Some(InRepair {
            mean,
            repair,
            batches,
        })
    }

    /// The share of the time in which more nodes are in repair than so many spares: a job on all
    /// nodes waits.
    pub fn waits(&self, spares: u32) -> f64 {
        if spares >= SPARES_MAX {
            return 0.0;
        }
        let (left, all) = self.left(spares);
        // P(0) is e^-all; the sum of P(0) to P(spares), over a factor that keeps it in range.
        let mut terms: Vec<f64> = vec![1.0];
        let (mut sum, mut factor) = (1.0, -all);
        for n in 1..=spares as usize {
            let of = |j: usize| j as f64 * left[j] * terms[n - j];
            let next = (1..=n).map(of).sum::<f64>() / n as f64;
            terms.push(next);
            sum += next;
            if sum > LARGE {
                terms.iter_mut().for_each(|term| *term /= LARGE);
                sum /= LARGE;
                factor += libm::log(LARGE);
            }
        }
        (1.0 - sum * libm::exp(factor)).clamp(0.0, 1.0)
    }

    /// The expected number of batches of which j are in repair, for j up to `most`, and of all
    /// that have any.
    fn left(&self, most: u32) -> (Vec<f64>, f64) {
        let mut left = vec![0.0; most as usize + 1];
        let mut all = 0.0;
        let Repair { median, sigma } = self.repair;
        // (weight, probability to be in repair still) over the ages.
        let mut ages = Vec::new();
        if sigma > 0.0 {
            let step = 2.0 * RANGE / f64::from(POINTS);
            let begin = sigma - RANGE;
            // Before that none is repaired yet.
            ages.push((median * libm::exp(sigma * begin), 1.0));
            for point in 0..=POINTS {
                let score = begin + step * f64::from(point);
                let half = if point == 0 || point == POINTS {
                    0.5
                } else {
                    1.0
                };
                let age = median * libm::exp(sigma * score);
                let still = 0.5 * libm::erfc(score / core::f64::consts::SQRT_2);
                ages.push((half * step * sigma * age, still));
            }
        } else {
            ages.push((median, 1.0));
        }
        for batch in &self.batches {
            let nodes = f64::from(batch.nodes);
            for &(seconds, still) in &ages {
                let (p, weight) = (batch.hits * still, batch.rate * seconds);
                if p <= 0.0 {
                    continue;
                }
                // Any of them: 1 - (1 - p)^n, also for a tiny p.
                let none = match p < 1.0 {
                    true => nodes * libm::log1p(-p),
                    false => f64::NEG_INFINITY,
                };
                all -= weight * libm::expm1(none);
                // The binomial distribution, by logarithms: of large batches (1 - p)^n is 0.
                for j in 1..=most.min(batch.nodes) {
                    let chosen = f64::from(j);
                    let log = libm::lgamma(nodes + 1.0)
                        - libm::lgamma(chosen + 1.0)
                        - libm::lgamma(nodes - chosen + 1.0);
                    let rest = match batch.nodes == j {
                        true => 0.0,
                        false => (nodes - chosen) * libm::log1p(-p),
                    };
                    let log = log + chosen * libm::log(p) + rest;
                    if log > -745.0 {
                        left[j as usize] += weight * libm::exp(log);
                    }
                }
            }
        }
        (left, all)
    }

    /// Seconds for which a job that takes so many otherwise waits for nodes; infinite where
    /// there are never enough.
    pub fn waiting(&self, total: f64, spares: u32) -> f64 {
        let waits = self.waits(spares);
        total * waits / (1.0 - waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine;

    fn of(nodes: &str, groups: &str) -> InRepair {
        let text = format!(
            "[nodes]\ncount = 100\n{nodes}\n{groups}\n\
             [[levels]]\nkind = \"local\"\ncost = \"1 s\"\nrestart = \"1 s\""
        );
        let machine = machine::machine(&text, "m").expect("good");
        let job = "nodes = 100\nwork = \"1 h\"\ncheckpoint = \"1 GB\"";
        let job = machine::job(job, "j", &machine).expect("good");
        InRepair::of(&machine, &job).expect("repaired")
    }

    const RACKS: &str = "[[groups]]\nname = \"rack\"\nsize = 10\nmtbf = \"10000 h\"\nhits = 0.5";

    #[test]
    fn the_mean_is_littles_law() {
        for sigma in ["0", "1.3"] {
            let repair = format!("repair = {{ median = \"10 h\", sigma = {sigma} }}");
            let found = of(&format!("mtbf = \"1000 h\"\n{repair}"), RACKS);
            // 0.1 nodes an hour alone and 10 racks of 10, half of each, every 10,000 h.
            let hours = found.repair.mean() / 3600.0;
            assert!((found.mean - hours * (0.1 + 0.005)).abs() < 1e-9);
            // The same from the probabilities.
            let tail: f64 = (0..60).map(|spares| found.waits(spares)).sum();
            assert!(
                (tail / found.mean - 1.0).abs() < 1e-6,
                "{tail} {}",
                found.mean
            );
        }
    }

    #[test]
    fn nodes_that_fail_alone_are_poissons() {
        // A mean of 1; tables: P(N > 2) = 0.0803, P(N > 0) = 1 - 1/e.
        for repair in [
            "median = \"10 h\", sigma = 0",
            "median = \"6.0653066 h\", sigma = 1",
        ] {
            let one = of(&format!("mtbf = \"1000 h\"\nrepair = {{ {repair} }}"), "");
            assert!((one.mean - 1.0).abs() < 1e-6, "{}", one.mean);
            assert!(
                (one.waits(2) - 0.080_301_4).abs() < 1e-6,
                "{}",
                one.waits(2)
            );
            assert!((one.waits(0) - 0.632_120_6).abs() < 1e-6);
            assert!(one.waits(60) < 1e-12);
            let waiting = one.waiting(100.0, 2);
            assert!((waiting - 100.0 * 0.080_301_4 / 0.919_698_6).abs() < 1e-3);
        }
    }

    #[test]
    fn many_in_repair_are_summed_without_overflow() {
        // 100 nodes of 1 h, repaired for 20 h: 2,000 on average, and the median nearly so.
        let many = of(
            "mtbf = \"1 h\"\nrepair = { median = \"20 h\", sigma = 0 }",
            "",
        );
        assert!(
            (many.waits(1_999) - 0.5).abs() < 0.02,
            "{}",
            many.waits(1_999)
        );
        assert!(many.waits(2_400) < 1e-9 && many.waits(1_600) > 1.0 - 1e-9);
    }

    #[test]
    fn a_rack_that_falls_needs_as_many_spares_at_once() {
        // Only racks, of constant time of repair: any nodes are missing for 10 h after each of the
        // events, 10 in 10,000 h, and at least k of 10 with the binomial distribution.
        let found = of("repair = { median = \"10 h\", sigma = 0 }", RACKS);
        let mean = 10.0 * 10.0 / 10_000.0;
        // One batch or more; the chance of two at once is that of the Poisson distribution.
        let any = 1.0 - 0.5_f64.powi(10);
        assert!((found.waits(0) - (1.0 - (-mean * any).exp())).abs() < 1e-12);
        let two: f64 = mean * mean / 2.0;
        let above_4: f64 = [252.0, 210.0, 120.0, 45.0, 10.0, 1.0].iter().sum::<f64>() / 1024.0;
        assert!(
            (found.waits(4) - mean * above_4).abs() < two * 1.1,
            "{}",
            found.waits(4)
        );
        // Taken apart they would seem to need no more than two.
        assert!(found.waits(4) > 0.005 && found.waits(10) < 1e-4);
    }
}

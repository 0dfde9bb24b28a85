//! S. Di, M. S. Bouguerra, L. Bautista-Gomez, F. Cappello, *Optimization of Multi-level
//! Checkpoint Model for Large Scale HPC Applications*, IPDPS 2014: for level i the number of
//! checkpoints x_i that makes the expected time least, by iteration of
//!
//! x_i^2 = mu_i (T_e + sum_{j<i} C_j x_j) / (C_i (2 + sum_{k>i} mu_k / x_k)),
//!
//! mu_i the failures of level i that are expected in the time.

use super::Ladder;

const ROUNDS_MAX: usize = 1000;

/// The expected time under counts of checkpoints, in first order: T_e + sum C_i x_i +
/// sum mu_i ((T_e + sum_{j<i} C_j x_j) / (2 x_i) + R_i).
pub fn time(ladder: &Ladder, work: f64, failures: &[f64], counts: &[f64]) -> f64 {
    let mut below = work;
    let mut all = work;
    for (level, &count) in counts.iter().enumerate() {
        all += ladder.costs[level] * count;
        all += failures[level] * (below / (2.0 * count) + ladder.restarts[level]);
        below += ladder.costs[level] * count;
    }
    all
}

/// The counts for given expected numbers of failures.
pub fn counts(ladder: &Ladder, work: f64, failures: &[f64]) -> Vec<f64> {
    let levels = ladder.costs.len();
    let mut x: Vec<f64> = (0..levels)
        .map(|i| libm::sqrt(failures[i] * work / (2.0 * ladder.costs[i])).max(1.0))
        .collect();
    for _ in 0..ROUNDS_MAX {
        let mut change = 0.0_f64;
        for i in 0..levels {
            let below: f64 = (0..i).map(|j| ladder.costs[j] * x[j]).sum();
            let above: f64 = (i + 1..levels).map(|k| failures[k] / x[k]).sum();
            let next = libm::sqrt(failures[i] * (work + below) / (ladder.costs[i] * (2.0 + above)));
            let next = next.max(1.0);
            change = change.max((next / x[i] - 1.0).abs());
            x[i] = next;
        }
        if change < 1e-12 {
            break;
        }
    }
    x
}

/// Seconds of computing between two checkpoints of each level. The failures are those of
/// the time that results, found by iteration; it is kept below ten times the work.
pub fn periods(ladder: &Ladder, work: f64) -> Vec<f64> {
    let mut total = work;
    let mut x = Vec::new();
    for _ in 0..50 {
        let failures: Vec<f64> = ladder.rates.iter().map(|rate| rate * total).collect();
        x = counts(ladder, work, &failures);
        total = time(ladder, work, &failures, &x).min(10.0 * work);
    }
    x.into_iter().map(|count| work / count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fixed point is the least of the time that is minimised.
    #[test]
    fn no_other_counts_take_less() {
        let ladder = super::super::tests::three();
        let (work, failures) = (1e6, [100.0, 20.0, 3.0]);
        let x = counts(&ladder, work, &failures);
        let least = time(&ladder, work, &failures, &x);
        for level in 0..3 {
            for factor in [0.8, 0.99, 1.01, 1.25] {
                let mut other = x.clone();
                other[level] *= factor;
                assert!(time(&ladder, work, &failures, &other) > least);
            }
        }
    }

    /// One level is Young's interval.
    #[test]
    fn one_level_is_young() {
        let ladder = Ladder {
            costs: vec![60.0],
            restarts: vec![0.0],
            rates: vec![1e-4],
        };
        let x = counts(&ladder, 1e6, &[100.0]);
        assert!((1e6 / x[0] - libm::sqrt(2.0 * 60.0 * 1e4)).abs() < 1e-6);
    }
}

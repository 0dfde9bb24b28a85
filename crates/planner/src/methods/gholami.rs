//! M. Gholami, F. Schintke, *Multilevel Checkpoint/Restart for Large Computational Jobs on
//! Distributed Computing Resources*, SRDS 2019 (the model of FFMK 2020, section 3.5): Daly's
//! expected time level by level, the time of a level being the work of the next; the best
//! subset of levels by trying all. Tested against the formulas of the authors' program
//! (github.com/gongotar/mlcp, level_selection.py).

use super::Ladder;
use crate::interval::Costs;

/// The expected time: level by level, `rates[i]` being that of the failures for which a
/// level is needed, and `beyond` the rate of those that the last does not restore.
pub fn time(work: f64, levels: &[(f64, f64, f64)], beyond: f64) -> f64 {
    let mut total = work;
    let mut last = 0.0;
    for &(cost, restart, rate) in levels {
        let Ok(costs) = Costs::new(cost, restart, 1.0 / rate) else {
            return f64::INFINITY;
        };
        total *= 1.0 + costs.overhead(costs.daly());
        last = restart;
    }
    match beyond > 0.0 {
        true => libm::exp(last * beyond) * libm::expm1(total * beyond) / beyond,
        false => total,
    }
}

/// The levels to use, each with its period in seconds of work.
pub fn periods(ladder: &Ladder) -> Vec<(usize, f64)> {
    let count = ladder.rates.len();
    let used = |subset: u32| (0..count).filter(move |bit| subset & (1 << bit) != 0);
    let levels = |subset: u32| {
        let mut from = 0;
        used(subset)
            .map(|level| {
                // The failures that no level below restores; all of those below the first.
                let rate: f64 = ladder.rates[from..=level].iter().sum();
                from = level + 1;
                (ladder.costs[level], ladder.restarts[level], rate)
            })
            .collect::<Vec<_>>()
    };
    let top = 1_u32 << (count - 1);
    let subsets = (0..top).map(|rest| rest | top);
    let value = |subset: u32| time(1.0, &levels(subset), 0.0);
    let best = subsets
        .min_by(|&a, &b| value(a).total_cmp(&value(b)))
        .unwrap_or(top);
    let period = |(cost, restart, rate): (f64, f64, f64)| {
        Costs::new(cost, restart, 1.0 / rate).map_or(1.0, |costs| costs.daly())
    };
    used(best)
        .zip(levels(best))
        .map(|(level, of)| (level, period(of)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// multilevel_expected_lifetime of level_selection.py with its rates over 100 (those of
    /// the file make the job endless), lifetime 100, costs 0.7, 2, c, 55, 100, restarts twice.
    #[test]
    fn the_formulas_of_the_authors_program() {
        let rates = [4e-3, 2e-3, 5e-4, 5e-5, 5e-6, 1e-6];
        for (c, used, want) in [
            (3.0, vec![1, 2, 3, 4, 5], 142.205_465_083_488_16),
            (3.0, vec![2, 3, 5], 137.088_311_806_143_7),
            (3.0, vec![5], 636.375_405_503_217_6),
            (20.0, vec![1, 2, 3, 4, 5], 158.196_643_693_649_04),
            (20.0, vec![2, 3, 5], 152.504_016_405_400_65),
        ] {
            let costs = [0.7, 2.0, c, 55.0, 100.0];
            let mut before = 0;
            let levels: Vec<(f64, f64, f64)> = used
                .iter()
                .map(|&level: &usize| {
                    let of = (costs[level - 1], 2.0 * costs[level - 1], rates[before]);
                    before = level;
                    of
                })
                .collect();
            let found = time(100.0, &levels, rates[before]);
            assert!(
                (found / want - 1.0).abs() < 1e-12,
                "{c} {used:?}: {found}, not {want}"
            );
        }
    }
}

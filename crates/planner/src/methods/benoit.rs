//! A. Benoit, A. Cavelan, V. Le Fevre, Y. Robert, H. Sun, *Towards Optimal Multi-Level
//! Checkpointing*, IEEE Transactions on Computers 66 (2017): in first order the least
//! overhead of levels in use is sum_l sqrt(2 lambda_l C_l), reached with a checkpoint of
//! level l after each sqrt(2 C_l / lambda_l) of work; failures of a level that is not used
//! count to the next that is, and dynamic programming finds the best levels.

use super::Ladder;

/// The first-order overhead of the levels in use, ascending; they end with the top level.
pub fn overhead(ladder: &Ladder, used: &[usize]) -> f64 {
    let mut from = 0;
    let mut sum = 0.0;
    for &level in used {
        let rate: f64 = ladder.rates[from..=level].iter().sum();
        sum += libm::sqrt(2.0 * rate * ladder.costs[level]);
        from = level + 1;
    }
    sum
}

/// The levels with the least overhead, ascending, with the top level.
pub fn best(ladder: &Ladder) -> Vec<usize> {
    // least[l]: the best selection that ends with level l.
    let mut least: Vec<(f64, Vec<usize>)> = Vec::new();
    for level in 0..ladder.rates.len() {
        let alone = (overhead(ladder, &[level]), vec![level]);
        let longer = (0..level).map(|before| {
            let (_, used) = &least[before];
            let mut used = used.clone();
            used.push(level);
            (overhead(ladder, &used), used)
        });
        let best = longer.fold(
            alone,
            |best, other| if other.0 < best.0 { other } else { best },
        );
        least.push(best);
    }
    least.pop().map_or_else(Vec::new, |(_, used)| used)
}

/// The levels to use, each with its period in seconds of work.
pub fn periods(ladder: &Ladder) -> Vec<(usize, f64)> {
    let mut from = 0;
    let mut found = Vec::new();
    for level in best(ladder) {
        let rate: f64 = ladder.rates[from..=level].iter().sum();
        found.push((level, libm::sqrt(2.0 * ladder.costs[level] / rate)));
        from = level + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use outlive_base::rng::Sequence;

    use super::*;

    #[test]
    fn dynamic_programming_finds_the_best_of_all_subsets() {
        let seed = outlive_base::seed!();
        let mut random = Sequence::new(seed, 0);
        for _ in 0..200 {
            let mut draw = |scale: f64| (random.below(1_000_000) + 1) as f64 * scale;
            let ladder = Ladder {
                costs: (0..5).map(|_| draw(1e-3)).collect(),
                restarts: vec![0.0; 5],
                rates: (0..5).map(|_| draw(1e-10)).collect(),
            };
            let found = overhead(&ladder, &best(&ladder));
            for subset in 0..16_u32 {
                let mut used: Vec<usize> = (0..4).filter(|bit| subset & (1 << bit) != 0).collect();
                used.push(4);
                assert!(
                    found <= overhead(&ladder, &used) * (1.0 + 1e-12),
                    "seed {seed}"
                );
            }
        }
    }

    /// One level: sqrt(2 lambda C) and Young's interval (the paper's abstract: "extends the
    /// classical formula"). C = 60 s, MTBF 1 day: 3.73 % and 53 min 40 s.
    #[test]
    fn one_level_is_young() {
        let ladder = Ladder {
            costs: vec![60.0],
            restarts: vec![0.0],
            rates: vec![1.0 / 86_400.0],
        };
        assert!((overhead(&ladder, &[0]) - 0.037_27).abs() < 1e-5);
        assert!((periods(&ladder)[0].1 - 3_219.9).abs() < 0.1);
    }
}

//! The Markov model of A. Moody, G. Bronevetsky, K. Mohror, B. R. de Supinski, *Design,
//! Modeling, and Evaluation of a Scalable Multi-level Checkpointing System*, SC 2010.
//!
//! A checkpoint is written at one level and restored from it; a failure of the level of a
//! recovery under way moves the recovery one level up. Tested against the results that LLNL
//! publishes with its program (SCR Model Code 0.1, LLNL-CODE-817266).

use super::Ladder;

/// How a block of the pattern ends: probabilities, and their products with the mean times.
#[derive(Clone, Debug)]
struct Block {
    /// Without failure.
    good: (f64, f64),
    /// With a failure of each level.
    bad: Vec<(f64, f64)>,
}

fn base(seconds: f64, rates: &[f64]) -> Block {
    let total: f64 = rates.iter().sum();
    let good = libm::exp(-total * seconds);
    let fails = -libm::expm1(-total * seconds);
    // The mean of the exponential below `seconds`, times its probability.
    let time = fails / total - seconds * good;
    Block {
        good: (good, seconds * good),
        bad: rates
            .iter()
            .map(|rate| (rate / total * fails, rate / total * time))
            .collect(),
    }
}

/// One block, then another.
fn then(first: &Block, second: &Block) -> Block {
    let ((p, t), (q, u)) = (first.good, second.good);
    let both = first.bad.iter().zip(&second.bad);
    Block {
        good: (p * q, t * q + p * u),
        bad: both
            .map(|(a, b)| (a.0 + p * b.0, a.1 + t * b.0 + p * b.1))
            .collect(),
    }
}

struct Model<'a> {
    ladder: &'a Ladder,
    /// Seconds of a checkpoint at each level.
    costs: Vec<f64>,
    interval: f64,
    /// For each level: its checkpoints between two of the next.
    counts: &'a [u32],
}

impl Model<'_> {
    /// Recovery from level k, with its own retries: success, and exits to higher levels.
    fn recovery(&self, k: usize) -> Block {
        let once = base(self.ladder.restarts[k], &self.ladder.rates);
        let top = self.ladder.rates.len() - 1;
        let again = if k == top { k + 1 } else { k };
        let (s, t) = once.bad[..again]
            .iter()
            .fold((0.0, 0.0), |sum, b| (sum.0 + b.0, sum.1 + b.1));
        let after = |(p, u): (f64, f64)| {
            (
                p / (1.0 - s),
                u / (1.0 - s) + p * t / ((1.0 - s) * (1.0 - s)),
            )
        };
        let mut bad = vec![(0.0, 0.0); once.bad.len()];
        for level in again..once.bad.len() {
            // A failure of the level itself counts as one of the next.
            let to = level.max(k + 1);
            bad[to].0 += once.bad[level].0;
            bad[to].1 += once.bad[level].1;
        }
        Block {
            good: after(once.good),
            bad: bad.into_iter().map(after).collect(),
        }
    }

    /// State X of the paper: a block that ends with a checkpoint at level c, with recoveries
    /// of levels up to k.
    fn x(&self, k: usize, c: usize) -> Block {
        let run = self.y(k, c);
        let recovery = self.recovery(k);
        let (a, t) = run.bad[..=k]
            .iter()
            .fold((0.0, 0.0), |sum, b| (sum.0 + b.0, sum.1 + b.1));
        let (r, u) = recovery.good;
        let (g, h) = (a * r, t * r + a * u);
        let after = |(p, v): (f64, f64)| {
            (
                p / (1.0 - g),
                v / (1.0 - g) + p * h / ((1.0 - g) * (1.0 - g)),
            )
        };
        let exit = |level: usize| match level <= k {
            true => (0.0, 0.0),
            false => {
                let ((p, v), (q, w)) = (run.bad[level], recovery.bad[level]);
                after((p + a * q, v + t * q + a * w))
            }
        };
        Block {
            good: after(run.good),
            bad: (0..run.bad.len()).map(exit).collect(),
        }
    }

    fn y(&self, k: usize, c: usize) -> Block {
        let Some(below) = k.checked_sub(1) else {
            return base(self.interval + self.costs[c], &self.ladder.rates);
        };
        match self.counts[below] {
            0 => self.y(below, c),
            count => {
                let mut all = self.y(below, below);
                if count > 1 {
                    let one = self.x(below, below);
                    all = then(&all, &repeated(&one, count - 1));
                }
                then(&all, &self.x(below, c))
            }
        }
    }
}

/// A block so many times, at least once.
fn repeated(one: &Block, mut times: u32) -> Block {
    let mut power = one.clone();
    let mut all: Option<Block> = None;
    loop {
        if times % 2 == 1 {
            all = Some(all.map_or_else(|| power.clone(), |all| then(&all, &power)));
        }
        times /= 2;
        match (times, all) {
            (0, Some(all)) => return all,
            (_, rest) => all = rest,
        }
        power = then(&power, &power);
    }
}

/// Efficiency, the share of time that computes and is kept: `counts[l]` checkpoints of level
/// l lie between two of the level above, `costs[l]` is that of a checkpoint at level l.
pub fn efficiency(ladder: &Ladder, costs: &[f64], interval: f64, counts: &[u32]) -> f64 {
    let top = ladder.rates.len() - 1;
    let model = Model {
        ladder,
        costs: costs.to_vec(),
        interval,
        counts,
    };
    let (p, time) = model.x(top, top).good;
    let intervals: f64 = counts[..top]
        .iter()
        .map(|&count| f64::from(count) + 1.0)
        .product();
    match p > 0.0 {
        true => intervals * interval / (time / p),
        false => 0.0,
    }
}

/// The interval and the multiples of the levels with the greatest efficiency, by a search
/// over each in turn.
pub fn best(ladder: &Ladder) -> (f64, Vec<u32>) {
    let costs: Vec<f64> = (0..ladder.costs.len())
        .map(|level| ladder.whole(level))
        .collect();
    let top = costs.len() - 1;
    let value = |interval: f64, counts: &[u32]| {
        let found = efficiency(ladder, &costs, interval, counts);
        if found.is_nan() { 0.0 } else { found }
    };
    let total: f64 = ladder.rates.iter().sum();
    let mut interval = libm::sqrt(2.0 * costs[0] / total);
    let mut counts = vec![1_u32; top + 1];
    let mut found = value(interval, &counts);
    let mut step = 2.0;
    while step > 1.002 {
        let before = found;
        for factor in [step, 1.0 / step] {
            if value(interval * factor, &counts) > found {
                interval *= factor;
                found = value(interval, &counts);
            }
        }
        for level in 0..top {
            for next in [
                libm::round(f64::from(counts[level] + 1) * step) as u32,
                counts[level] + 2,
                counts[level],
                (f64::from(counts[level] + 1) / step) as u32,
            ] {
                let mut other = counts.clone();
                other[level] = next.clamp(1, 1000) - 1;
                if value(interval, &other) > found {
                    counts = other;
                    found = value(interval, &counts);
                }
            }
        }
        if found <= before * (1.0 + 1e-9) {
            step = libm::sqrt(step);
        }
    }
    let mut multiples = vec![1_u32];
    for level in 0..top {
        let before = multiples[level];
        multiples.push((before * (counts[level] + 1)).min(10_000 / before * before));
    }
    (interval, multiples)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// regressionFiles of SCR Model Code 0.1: test_intervalTime_0_40000_500_3_1.0_V1_V2_O_1.0
    /// (machine made_up) and maxes.k3.o1.0.f1.0.
    #[test]
    fn the_figures_of_llnls_program() {
        for (v1, v2, interval, top, want) in [
            (0, 0, 500.0, 438.0, 0.529_035_999_856),
            (0, 0, 1500.0, 438.0, 0.764_968_085_259),
            (0, 0, 10_000.0, 438.0, 0.913_657_083_774),
            (0, 200, 2500.0, 438.0, 0.961_310_619_586),
            (0, 200, 1000.0, 21_900.0, 0.846_443_519_173),
            (200, 400, 500.0, 438.0, 0.473_727_343_32),
            (200, 400, 1000.0, 438.0, 0.197_179_868_824),
            (200, 400, 500.0, 876.0, 0.473_711_342_538),
        ] {
            let costs = vec![9.0, 50.0, top];
            let rates = vec![7.78e-6, 5.19e-7, 3e-8];
            let ladder = Ladder {
                costs: costs.clone(),
                restarts: costs.clone(),
                rates,
            };
            let found = efficiency(&ladder, &costs, interval, &[v1, v2, 1]);
            assert!(
                (found / want - 1.0).abs() < 1e-6,
                "{v1} {v2} {interval} {top}: {found}, not {want}"
            );
        }
    }

    #[test]
    fn the_best_has_no_better_neighbour() {
        let ladder = super::super::tests::three();
        let (interval, multiples) = best(&ladder);
        let costs = [2.0, 22.0, 322.0];
        let counts = |m: &[u32]| vec![m[1] - 1, m[2] / m[1] - 1, 1];
        let found = efficiency(&ladder, &costs, interval, &counts(&multiples));
        for factor in [0.5, 0.9, 1.1, 2.0] {
            assert!(efficiency(&ladder, &costs, interval * factor, &counts(&multiples)) < found);
        }
        for level in 0..2 {
            let mut other = counts(&multiples);
            other[level] += 1;
            assert!(efficiency(&ladder, &costs, interval, &other) <= found * (1.0 + 1e-6));
        }
    }
}

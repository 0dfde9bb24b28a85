//! Servers that lose what they held and cannot be written until they are repaired.
//!
//! A level's servers are there or away. They go at a constant rate and come back after a time
//! whose mean and variance are given: a mixture of two exponential times has both where the
//! variance is at least the squared mean (balanced means: H. C. Tijms, *Stochastic Models*, 1994,
//! appendix B); where it is less, one exponential time has the mean, and is more spread. So
//! where they are is a Markov chain of at most three states, whose probabilities after any time
//! are sums of exponentials.
//!
//! Invariant: for each state at the beginning the probabilities of all that can have become of
//! the servers add up to 1 at any time.

use crate::classes::Outage;

/// A sum of c e^(-x t): pairs of c and x.
pub(super) type Terms = Vec<(f64, f64)>;

/// What can become of a level's servers.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Fate {
    /// Whether what lay there is lost.
    pub lost: bool,
    /// Where they are then: 0, there; else a state of being away.
    pub to: u8,
    /// How likely, as a function of the time.
    pub terms: Terms,
}

/// A level's servers.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Service {
    /// By the state at the beginning, if something lies there.
    fates: Vec<Vec<Fate>>,
    /// The same for the state in which they are there and hold nothing.
    empty: Vec<Fate>,
    /// The state after a loss, and how likely it is.
    pub gone: Vec<(u8, f64)>,
}

/// Beyond, `f64` has no reciprocal of the differences of roots.
const APART: f64 = 1e-12;

impl Service {
    /// Servers that lose what they hold `loss` times a second.
    pub fn new(loss: f64, outage: Option<Outage>) -> Service {
        let phases = outage.map_or(Vec::new(), phases);
        if phases.is_empty() {
            let mut there = vec![fate(false, 0, vec![(1.0, loss)])];
            if loss > 0.0 {
                there.push(fate(true, 0, vec![(1.0, 0.0), (-1.0, loss)]));
            }
            return Service {
                fates: vec![there],
                empty: vec![fate(false, 0, vec![(1.0, 0.0)])],
                gone: vec![(0, 1.0)],
            };
        }
        let table = transitions(loss, &phases);
        let ends = |from: usize, lost: bool| {
            let to = table[from].iter().enumerate();
            to.map(move |(to, terms)| fate(lost, to as u8, terms.clone()))
        };
        let mut fates: Vec<Vec<Fate>> = (0..table.len())
            .map(|from| ends(from, true).collect())
            .collect();
        // There all the time, or lost and back.
        let mut back = table[0][0].clone();
        back.push((-1.0, loss));
        let there = &mut fates[0];
        there[0].terms = back;
        there.insert(0, fate(false, 0, vec![(1.0, loss)]));
        let gone = phases.iter().enumerate();
        Service {
            empty: ends(0, true).collect(),
            gone: gone
                .map(|(place, &(share, _))| (place as u8 + 1, share))
                .collect(),
            fates,
        }
    }

    /// What can become of them in a while.
    pub fn fates(&self, from: u8, holds: bool) -> &[Fate] {
        match (from, holds) {
            (0, false) => &self.empty,
            _ => &self.fates[usize::from(from)],
        }
    }
}

fn fate(lost: bool, to: u8, terms: Terms) -> Fate {
    Fate { lost, to, terms }
}

/// The shares and rates of the exponential times that stand for an outage.
fn phases(outage: Outage) -> Vec<(f64, f64)> {
    let Outage { mean, variation } = outage;
    if variation <= 1.0 + 1e-6 {
        return vec![(1.0, 1.0 / mean)];
    }
    let p = 0.5 * (1.0 + libm::sqrt((variation - 1.0) / (variation + 1.0)));
    vec![(p, 2.0 * p / mean), (1.0 - p, 2.0 * (1.0 - p) / mean)]
}

/// From each state to each: sum over the roots x of the generator Q of e^(-x t) times
/// prod (Q + y) / (y - x) over the other roots y.
fn transitions(loss: f64, phases: &[(f64, f64)]) -> Vec<Vec<Terms>> {
    let size = phases.len() + 1;
    let mut generator = vec![vec![0.0; size]; size];
    generator[0][0] = -loss;
    for (place, &(share, rate)) in phases.iter().enumerate() {
        generator[0][place + 1] = loss * share;
        generator[place + 1][place + 1] = -rate;
        generator[place + 1][0] = rate;
    }
    let roots = match *phases {
        [(p, a), (q, b)] => {
            // x^2 - (a + b + loss) x + a b + loss (p b + q a): real, for the chain is reversible.
            let half = (a + b + loss) / 2.0;
            let product = a * b + loss * (p * b + q * a);
            let large = half + libm::sqrt((half * half - product).max(0.0));
            let large = large.max(product / large * (1.0 + APART));
            vec![0.0, product / large, large]
        }
        _ => vec![0.0, loss + phases[0].1],
    };
    let mut table = vec![vec![Terms::new(); size]; size];
    for &x in &roots {
        let mut projection: Vec<Vec<f64>> = (0..size)
            .map(|i| (0..size).map(|j| f64::from(u8::from(i == j))).collect())
            .collect();
        for &y in roots.iter().filter(|&&y| y != x) {
            let entry = |i: usize, j: usize| {
                let of = |k: usize| {
                    let shift = if k == j { y } else { 0.0 };
                    projection[i][k] * (generator[k][j] + shift)
                };
                (0..size).map(of).sum::<f64>() / (y - x)
            };
            projection = (0..size)
                .map(|i| (0..size).map(|j| entry(i, j)).collect())
                .collect();
        }
        for (i, row) in table.iter_mut().enumerate() {
            for (j, terms) in row.iter_mut().enumerate() {
                terms.push((projection[i][j], x));
            }
        }
    }
    table
}

/// The product of two sums of exponentials.
pub(super) fn product(a: &[(f64, f64)], b: &[(f64, f64)]) -> Terms {
    let all = |&(c, x): &(f64, f64)| b.iter().map(move |&(d, y)| (c * d, x + y));
    a.iter().flat_map(all).collect()
}

/// What is found at a time, if a stop has not come, which come at this rate; and for how many
/// seconds up to then.
pub(super) fn until(terms: &[(f64, f64)], rate: f64, seconds: f64) -> (f64, f64) {
    let (mut found, mut passed) = (0.0, 0.0);
    for &(c, x) in terms {
        let x = x + rate;
        let left = -libm::expm1(-x * seconds);
        passed += c * (1.0 - left);
        found += c * if x > 0.0 { left / x } else { seconds };
    }
    (passed.max(0.0), found.max(0.0))
}

#[cfg(test)]
mod tests {
    use outlive_base::rng::Sequence;

    use super::*;

    fn at(terms: &[(f64, f64)], seconds: f64) -> f64 {
        terms.iter().map(|(c, x)| c * libm::exp(-x * seconds)).sum()
    }

    /// Probabilities by small steps of the chain itself.
    fn stepped(loss: f64, phases: &[(f64, f64)], from: usize, seconds: f64) -> Vec<f64> {
        let mut now = vec![0.0; phases.len() + 1];
        now[from] = 1.0;
        let steps = 100_000;
        let dt = seconds / f64::from(steps);
        for _ in 0..steps {
            let mut next = now.clone();
            next[0] -= now[0] * loss * dt;
            for (place, &(share, rate)) in phases.iter().enumerate() {
                next[place + 1] += dt * (now[0] * loss * share - now[place + 1] * rate);
                next[0] += now[place + 1] * rate * dt;
            }
            now = next;
        }
        now
    }

    #[test]
    fn what_becomes_of_servers_is_what_small_steps_make_of_them() {
        let seed = outlive_base::seed!();
        let mut random = Sequence::new(seed, 0);
        let mut between =
            |from: f64, to: f64| from * libm::pow(to / from, random.below(1_000_000) as f64 / 1e6);
        for _ in 0..10 {
            let loss = between(1e-4, 1e-2);
            let outage = Outage {
                mean: between(10.0, 5e3),
                variation: between(0.2, 30.0),
            };
            let (of, seconds) = (Service::new(loss, Some(outage)), between(10.0, 1e4));
            let phases = phases(outage);
            for from in 0..=phases.len() {
                let want = stepped(loss, &phases, from, seconds);
                let fates = of.fates(from as u8, true);
                for (to, want) in want.iter().enumerate() {
                    let there = fates.iter().filter(|fate| usize::from(fate.to) == to);
                    let got: f64 = there.map(|fate| at(&fate.terms, seconds)).sum();
                    let said = format!("seed {seed}: {outage:?} {loss} {from} {to}");
                    assert!((got - want).abs() < 2e-3, "{said}: {got}, not {want}");
                }
                let all: f64 = fates.iter().map(|fate| at(&fate.terms, seconds)).sum();
                assert!((all - 1.0).abs() < 1e-9, "seed {seed}: {all}");
            }
            // What was never lost is what no loss has met.
            let kept = of.fates(0, true).iter().filter(|fate| !fate.lost);
            let kept: f64 = kept.map(|fate| at(&fate.terms, seconds)).sum();
            assert!((kept - libm::exp(-loss * seconds)).abs() < 1e-12);
            let all: f64 = of.gone.iter().map(|gone| gone.1).sum();
            assert!((all - 1.0).abs() < 1e-12);
        }
    }

    /// Mean and variance of the time that stands for an outage; and in the long run the share of
    /// the time is that of a renewal process.
    #[test]
    fn an_outage_has_its_mean_and_variance() {
        for (mean, variation) in [(100.0, 1.0), (100.0, 4.4), (7.0, 53.6)] {
            let found = phases(Outage { mean, variation });
            let first: f64 = found.iter().map(|(p, rate)| p / rate).sum();
            let second: f64 = found.iter().map(|(p, rate)| 2.0 * p / rate / rate).sum();
            assert!((first / mean - 1.0).abs() < 1e-12, "{found:?}");
            let squared = second / mean / mean - 1.0;
            assert!((squared / variation - 1.0).abs() < 1e-9, "{found:?}");
            let service = Service::new(0.01, Some(Outage { mean, variation }));
            let there = service.fates(0, true).iter().filter(|fate| fate.to == 0);
            let there: f64 = there.map(|fate| at(&fate.terms, 1e9)).sum();
            assert!((there - 1.0 / (1.0 + 0.01 * mean)).abs() < 1e-9, "{there}");
        }
        assert_eq!(
            phases(Outage {
                mean: 5.0,
                variation: 0.0
            }),
            [(1.0, 0.2)]
        );
    }

    /// Servers that are back at once: kept or lost, and nothing else.
    #[test]
    fn without_repair_they_are_always_there() {
        let of = Service::new(0.1, None);
        assert_eq!(of.fates(0, true).len(), 2);
        assert!((at(&of.fates(0, true)[1].terms, 10.0) - 0.632_120_6).abs() < 1e-6);
        assert_eq!(of.fates(0, false).len(), 1);
        let (passed, found) = until(&product(&[(1.0, 0.1)], &[(2.0, 0.2)]), 0.7, 3.0);
        assert!((passed - 2.0 * libm::exp(-3.0)).abs() < 1e-12);
        assert!((found - 2.0 * (1.0 - libm::exp(-3.0))).abs() < 1e-12);
    }
}

//! What a record of failures says: distributions of the times between them, with tests of
//! fit, and how they cluster in time and over neighbouring nodes.

use outlive_base::rng::Sequence;

/// A distribution of positive times.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Distribution {
    /// By its mean.
    Exponential {
        /// Seconds.
        mean: f64,
    },
    /// By shape and scale.
    Weibull {
        /// Below 1: the longer nothing failed, the longer nothing will.
        shape: f64,
        /// Seconds.
        scale: f64,
    },
    /// By mean and standard deviation of the logarithm.
    Lognormal {
        /// Of the seconds.
        mu: f64,
        /// Of the seconds.
        sigma: f64,
    },
}

/// A distribution that was fitted, and how well.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fit {
    /// The most likely of its kind.
    pub distribution: Distribution,
    /// Logarithm of the likelihood.
    pub log_likelihood: f64,
    /// Largest distance of the distribution functions (Kolmogorov and Smirnov).
    pub distance: f64,
    /// The share of samples of the fitted distribution, each fitted again, whose distance is
    /// at least as large (parametric bootstrap). Small: the times are not of that kind.
    pub p: f64,
}

/// Fewer times are not fitted.
pub const TIMES_MIN: usize = 10;
/// Samples of the bootstrap.
const SAMPLES: u32 = 199;
/// No more times in a sample of the bootstrap.
const SAMPLE_MAX: usize = 2_000;

impl Distribution {
    /// Its name.
    pub const fn name(&self) -> &'static str {
        match self {
            Distribution::Exponential { .. } => "exponential",
            Distribution::Weibull { .. } => "Weibull",
            Distribution::Lognormal { .. } => "lognormal",
        }
    }
    /// Probability of a time up to `x`.
    pub fn below(&self, x: f64) -> f64 {
        match *self {
            Distribution::Exponential { mean } => -libm::expm1(-x / mean),
            Distribution::Weibull { shape, scale } => -libm::expm1(-libm::pow(x / scale, shape)),
            Distribution::Lognormal { mu, sigma } => {
                0.5 * libm::erfc(-(libm::log(x) - mu) / (sigma * core::f64::consts::SQRT_2))
            }
        }
    }
    /// Logarithm of the density.
    fn log_density(&self, x: f64) -> f64 {
        match *self {
            Distribution::Exponential { mean } => -libm::log(mean) - x / mean,
            Distribution::Weibull { shape, scale } => {
                let y = x / scale;
                libm::log(shape / scale) + (shape - 1.0) * libm::log(y) - libm::pow(y, shape)
            }
            Distribution::Lognormal { mu, sigma } => {
                let z = (libm::log(x) - mu) / sigma;
                -libm::log(x * sigma) - 0.5 * libm::log(core::f64::consts::TAU) - 0.5 * z * z
            }
        }
    }
    fn draw(&self, random: &mut Sequence) -> f64 {
        let mut unit = || ((random.u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        match *self {
            Distribution::Exponential { mean } => -mean * libm::log(unit()),
            Distribution::Weibull { shape, scale } => {
                scale * libm::pow(-libm::log(unit()), 1.0 / shape)
            }
            Distribution::Lognormal { mu, sigma } => {
                let normal = libm::sqrt(-2.0 * libm::log(unit()))
                    * libm::cos(core::f64::consts::TAU * unit());
                libm::exp(mu + sigma * normal)
            }
        }
    }
    /// The most likely distribution of the same kind.
    fn fitted(&self, times: &[f64]) -> Distribution {
        let n = times.len() as f64;
        match self {
            Distribution::Exponential { .. } => Distribution::Exponential {
                mean: times.iter().sum::<f64>() / n,
            },
            Distribution::Weibull { .. } => weibull(times),
            Distribution::Lognormal { .. } => {
                let mu = times.iter().map(|&x| libm::log(x)).sum::<f64>() / n;
                let squares: f64 = times
                    .iter()
                    .map(|&x| (libm::log(x) - mu) * (libm::log(x) - mu))
                    .sum();
                Distribution::Lognormal {
                    mu,
                    sigma: libm::sqrt(squares / n).max(1e-9),
                }
            }
        }
    }
}

/// The most likely Weibull distribution: the shape solves
/// sum x^k ln x / sum x^k - 1/k = mean of ln x, whose left side rises with k.
fn weibull(times: &[f64]) -> Distribution {
    let n = times.len() as f64;
    let most = times.iter().copied().fold(0.0, f64::max);
    let logs: Vec<f64> = times.iter().map(|&x| libm::log(x / most)).collect();
    let mean = logs.iter().sum::<f64>() / n;
    let (mut low, mut high) = (1e-3, 1e3);
    for _ in 0..60 {
        let k = libm::sqrt(low * high);
        let (mut sum, mut weighted) = (0.0, 0.0);
        for &log in &logs {
            let power = libm::exp(k * log);
            sum += power;
            weighted += power * log;
        }
        match weighted / sum - 1.0 / k < mean {
            true => low = k,
            false => high = k,
        }
    }
    let shape = high;
    let sum: f64 = logs.iter().map(|log| libm::exp(shape * log)).sum();
    Distribution::Weibull {
        shape,
        scale: most * libm::pow(sum / n, 1.0 / shape),
    }
}

/// Largest distance of the empirical distribution function of ascending times from another.
fn distance(sorted: &[f64], of: &Distribution) -> f64 {
    let n = sorted.len() as f64;
    let apart = sorted.iter().enumerate().map(|(place, &x)| {
        let below = of.below(x);
        (below - place as f64 / n).max((place as f64 + 1.0) / n - below)
    });
    apart.fold(0.0, f64::max)
}

/// Exponential, Weibull and lognormal fits of positive times; none of fewer than
/// [`TIMES_MIN`]. `seed` is for the bootstrap.
pub fn fits(times: &[f64], seed: u64) -> Vec<Fit> {
    if times.len() < TIMES_MIN || times.iter().any(|&x| !(x.is_finite() && x > 0.0)) {
        return Vec::new();
    }
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let kinds = [
        Distribution::Exponential { mean: 1.0 },
        Distribution::Weibull {
            shape: 1.0,
            scale: 1.0,
        },
        Distribution::Lognormal {
            mu: 0.0,
            sigma: 1.0,
        },
    ];
    let fit = |(stream, kind): (usize, &Distribution)| {
        let fitted = kind.fitted(times);
        let apart = distance(&sorted, &fitted);
        let mut random = Sequence::new(seed, stream as u64);
        // A sample that is smaller has larger distances, in proportion to 1 / sqrt(n).
        let size = times.len().min(SAMPLE_MAX);
        let scaled = apart * libm::sqrt(times.len() as f64 / size as f64);
        let as_large = (0..SAMPLES).filter(|_| {
            let mut sample: Vec<f64> = (0..size)
                .map(|_| fitted.draw(&mut random).max(1e-300))
                .collect();
            sample.sort_by(f64::total_cmp);
            distance(&sample, &kind.fitted(&sample)) >= scaled
        });
        Fit {
            distribution: fitted,
            log_likelihood: times.iter().map(|&x| fitted.log_density(x)).sum(),
            distance: apart,
            p: (as_large.count() as f64 + 1.0) / f64::from(SAMPLES + 1),
        }
    };
    kinds.iter().enumerate().map(fit).collect()
}

/// Variance over mean of the numbers of failures in windows of so many seconds, from the
/// first to the last: 1 for failures that come independently, more if they cluster.
pub fn dispersion(ascending: &[f64], window: f64) -> Option<f64> {
    let (first, last) = (ascending.first()?, ascending.last()?);
    let windows = libm::floor((last - first) / window);
    if !(2.0..1e7).contains(&windows) {
        return None;
    }
    let mut counts = vec![0.0_f64; windows as usize];
    for at in ascending {
        if let Some(count) = counts.get_mut(((at - first) / window) as usize) {
            *count += 1.0;
        }
    }
    let mean = counts.iter().sum::<f64>() / windows;
    let squares: f64 = counts
        .iter()
        .map(|count| (count - mean) * (count - mean))
        .sum();
    Some(squares / (windows - 1.0) / mean)
}

/// How failures that are close in time are spread over node numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Neighbours {
    /// Pairs of failures within the time, on nodes whose numbers differ by 1.
    pub pairs: u32,
    /// The mean of their number if node numbers are exchanged at random.
    pub expected: f64,
    /// The share of exchanges with at least as many pairs.
    pub p: f64,
}

/// Permutations of node numbers.
const EXCHANGES: u32 = 199;

/// Failures (ascending seconds, node below `nodes`) within `seconds` of each other on
/// neighbouring nodes, against node numbers that are exchanged at random: every node keeps
/// its failures, under another number.
pub fn neighbours(failures: &[(f64, u32)], nodes: u32, seconds: f64, seed: u64) -> Neighbours {
    let mut close = Vec::new();
    for (place, &(at, node)) in failures.iter().enumerate() {
        let later = failures[place + 1..]
            .iter()
            .take_while(|(other, _)| other - at <= seconds);
        close.extend(
            later
                .filter(|&&(_, other)| other != node)
                .map(|&(_, other)| (node, other)),
        );
    }
    let count = |number: &[u32]| {
        let next = |&&(a, b): &&(u32, u32)| number[a as usize].abs_diff(number[b as usize]) == 1;
        close.iter().filter(next).count() as u32
    };
    let mut number: Vec<u32> = (0..nodes).collect();
    let pairs = count(&number);
    let mut random = Sequence::new(seed, 0);
    let (mut sum, mut as_many) = (0.0, 0);
    for _ in 0..EXCHANGES {
        for place in (1..nodes as usize).rev() {
            let other = random.below(place as u64 + 1) as usize;
            number.swap(place, other);
        }
        let found = count(&number);
        sum += f64::from(found);
        as_many += u32::from(found >= pairs);
    }
    let p = f64::from(as_many + 1) / f64::from(EXCHANGES + 1);
    Neighbours {
        pairs,
        expected: sum / f64::from(EXCHANGES),
        p,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits_find_what_was_drawn() {
        let seed = outlive_base::seed!();
        for (stream, drawn) in [
            Distribution::Exponential { mean: 50.0 },
            Distribution::Weibull {
                shape: 0.7,
                scale: 300.0,
            },
            Distribution::Lognormal {
                mu: 4.0,
                sigma: 1.5,
            },
        ]
        .into_iter()
        .enumerate()
        {
            let mut random = Sequence::new(seed, 100 + stream as u64);
            let times: Vec<f64> = (0..1_500).map(|_| drawn.draw(&mut random)).collect();
            let found = fits(&times, seed);
            let fit = found[stream];
            match (drawn, fit.distribution) {
                (Distribution::Exponential { mean: a }, Distribution::Exponential { mean: b }) => {
                    assert!((b / a - 1.0).abs() < 0.2, "seed {seed}: {fit:?}");
                }
                (
                    Distribution::Weibull { shape: a, scale: c },
                    Distribution::Weibull { shape: b, scale: d },
                ) => {
                    assert!(
                        (b / a - 1.0).abs() < 0.15 && (d / c - 1.0).abs() < 0.3,
                        "seed {seed}: {fit:?}"
                    );
                }
                (
                    Distribution::Lognormal { mu: a, sigma: c },
                    Distribution::Lognormal { mu: b, sigma: d },
                ) => {
                    assert!(
                        (b - a).abs() < 0.3 && (d / c - 1.0).abs() < 0.15,
                        "seed {seed}: {fit:?}"
                    );
                }
                other => panic!("{other:?}"),
            }
            // The true kind fits, and what is far from it does not. The true one's p is
            // uniform: its least value, 1/200, is not asked for.
            let wrong = if stream == 0 { 2 } else { 0 };
            assert!(
                found[wrong].p <= 0.01,
                "seed {seed}: {drawn:?}: {:?}",
                found[wrong]
            );
            assert!(fit.distance < found[wrong].distance, "seed {seed}");
            assert!(
                fit.log_likelihood > found[wrong].log_likelihood,
                "seed {seed}"
            );
        }
        assert!(fits(&[1.0, 2.0], 1).is_empty() && fits(&[0.0; 20], 1).is_empty());
    }

    /// P values of the true kind are uniform: not nearly all are small.
    #[test]
    fn the_test_of_fit_has_its_level() {
        let seed = outlive_base::seed!();
        let of = Distribution::Weibull {
            shape: 0.7,
            scale: 10.0,
        };
        let small = (0..60).filter(|&stream| {
            let mut random = Sequence::new(seed, 1_000 + stream);
            let times: Vec<f64> = (0..60).map(|_| of.draw(&mut random)).collect();
            fits(&times, stream)[1].p <= 0.1
        });
        // Binomial of 60 and 0.1: above 20 with probability 1e-7.
        assert!(small.count() <= 20, "seed {seed}");
    }

    #[test]
    fn clusters_in_time_and_over_nodes_are_seen() {
        let seed = outlive_base::seed!();
        let mut random = Sequence::new(seed, 7);
        let mut alone = Vec::new();
        let mut together = Vec::new();
        for _ in 0..400 {
            let (at, node) = (random.below(10_000_000) as f64, random.below(99) as u32);
            alone.push((at, node));
            alone.push((random.below(10_000_000) as f64, random.below(99) as u32));
            together.extend([(at, node), (at + 5.0, node + 1)]);
        }
        alone.sort_by(|a, b| a.0.total_cmp(&b.0));
        together.sort_by(|a, b| a.0.total_cmp(&b.0));
        let times = |of: &[(f64, u32)]| of.iter().map(|one| one.0).collect::<Vec<f64>>();
        let (calm, wild) = (
            dispersion(&times(&alone), 20_000.0),
            dispersion(&times(&together), 20_000.0),
        );
        assert!(
            (calm.expect("enough") - 1.0).abs() < 0.5,
            "seed {seed}: {calm:?}"
        );
        assert!(wild.expect("enough") > 1.5, "seed {seed}: {wild:?}");
        let found = neighbours(&together, 100, 60.0, seed);
        assert!(
            found.pairs >= 400 && found.p <= 0.01,
            "seed {seed}: {found:?}"
        );
        let found = neighbours(&alone, 100, 60.0, seed);
        assert!(
            f64::from(found.pairs) < found.expected + 12.0,
            "seed {seed}: {found:?}"
        );
        assert_eq!(dispersion(&[], 1.0), None);
    }
}

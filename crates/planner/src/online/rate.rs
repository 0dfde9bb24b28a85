//! How often something fails, learned while the job runs, when the rate itself may change.
//!
//! R. P. Adams, D. J. C. MacKay, *Bayesian Online Changepoint Detection*, arXiv:0710.3742
//! (2007), for a Poisson process in continuous time: since an unknown change the rate is
//! constant, with a gamma distribution as prior. Each *run* supposes a moment of the last
//! change; its weight is the probability of all that was seen. A burst of failures gives
//! weight to a change just now, and so does a long silence.
//!
//! What checkpoints cost is linear in the rate, so that its posterior mean is what the best
//! decision needs.

/// A rate as it is believed before anything is seen: a gamma distribution.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RatePrior {
    /// As if so many failures had been seen ...
    pub events: f64,
    /// ... in so many seconds.
    pub seconds: f64,
}

impl RatePrior {
    /// One failure in `mtbf` seconds, known as badly as from a single failure.
    pub const fn guess(mtbf: f64) -> RatePrior {
        RatePrior {
            events: 1.0,
            seconds: mtbf,
        }
    }
    /// A rate that is known, and does not change.
    pub const fn known(rate: f64) -> RatePrior {
        const SURE: f64 = 1e9;
        RatePrior {
            events: SURE,
            seconds: SURE / rate,
        }
    }
}

/// A guess of a rate is worth so many failures, in a running job and in simulation.
pub const EVENTS: f64 = 1.0;

/// The rate changes once in so many failures: a prior.
const CHANGE_EVERY: f64 = 20.0;
/// After a change the rate is known as from so many failures at the mean of before.
const AFTER_CHANGE: f64 = 0.2;
/// A moment is taken for a change once in so much of the mean time between failures.
const GRID: f64 = 0.25;
/// No more runs are followed.
const RUNS_MAX: usize = 48;
/// Runs with less weight are forgotten.
const WEIGHT_MIN: f64 = 1e-5;
/// Surer than this from the beginning: changes are not looked for.
const FIRM: f64 = 1e6;

#[derive(Clone, Copy, PartialEq, Debug)]
struct Run {
    weight: f64,
    /// Gamma distribution of the rate: shape and rate.
    shape: f64,
    seconds: f64,
}

/// A rate that is learned.
#[derive(Clone, PartialEq, Debug)]
pub struct Rate {
    runs: Vec<Run>,
    until: f64,
    /// When a change was last taken into account, and when it will be next.
    changed: f64,
    next: f64,
    /// Failures seen.
    seen: u64,
    firm: bool,
    /// Logarithm of the probability of all that was seen.
    evidence: f64,
}

impl Rate {
    /// A rate of which only the prior is known, at the time 0.
    pub fn new(prior: RatePrior) -> Rate {
        let run = Run {
            weight: 1.0,
            shape: prior.events,
            seconds: prior.seconds,
        };
        Rate {
            runs: vec![run],
            until: 0.0,
            changed: 0.0,
            next: GRID * prior.seconds / prior.events,
            seen: 0,
            firm: prior.events >= FIRM,
            evidence: 0.0,
        }
    }

    /// Posterior mean, in failures per second.
    pub fn mean(&self) -> f64 {
        let each = self
            .runs
            .iter()
            .map(|run| run.weight * run.shape / run.seconds);
        each.sum()
    }

    /// Failures seen.
    pub const fn seen(&self) -> u64 {
        self.seen
    }

    /// Nothing failed until then.
    pub fn pass(&mut self, at: f64) {
        // In steps, so that a change can be put into a long silence.
        while self.until < at {
            let next = if self.firm { at } else { at.min(self.next) };
            let seconds = (next - self.until).max(0.0);
            for run in &mut self.runs {
                // The probability that nothing fails: (b / (b + t))^a. A power takes
                // longer, and most of the time of a policy goes here.
                run.weight *= libm::exp(-run.shape * libm::log1p(seconds / run.seconds));
                run.seconds += seconds;
            }
            self.until = next;
            self.normalise();
            if !self.firm && self.until >= self.next {
                self.change();
            }
        }
    }

    /// Something failed.
    pub fn fail(&mut self, at: f64) {
        self.pass(at);
        self.change();
        for run in &mut self.runs {
            run.weight *= run.shape / run.seconds;
            run.shape += 1.0;
        }
        self.seen += 1;
        self.normalise();
    }

    /// Perhaps the rate changed since this was last asked.
    fn change(&mut self) {
        if self.firm {
            return;
        }
        let mean = self.mean();
        let seconds = (self.until - self.changed).max(0.0);
        self.changed = self.until;
        self.next = self.until + GRID / mean;
        let p = -libm::expm1(-seconds * mean / CHANGE_EVERY);
        if p <= 0.0 {
            return;
        }
        self.runs.iter_mut().for_each(|run| run.weight *= 1.0 - p);
        self.runs.push(Run {
            weight: p,
            shape: AFTER_CHANGE,
            seconds: AFTER_CHANGE / mean,
        });
    }

    fn normalise(&mut self) {
        // Weights added up to 1 before this was seen.
        let likely: f64 = self.runs.iter().map(|run| run.weight).sum();
        self.evidence += libm::log(likely);
        let most = self.runs.iter().map(|run| run.weight).fold(0.0, f64::max);
        self.runs.retain(|run| run.weight >= most * WEIGHT_MIN);
        while self.runs.len() > RUNS_MAX {
            let least = (0..self.runs.len())
                .min_by(|&a, &b| self.runs[a].weight.total_cmp(&self.runs[b].weight));
            if let Some(least) = least {
                self.runs.remove(least);
            }
        }
        let sum: f64 = self.runs.iter().map(|run| run.weight).sum();
        self.runs.iter_mut().for_each(|run| run.weight /= sum);
    }

    /// The probability that the rate is at most so many failures per second.
    pub fn below(&self, rate: f64) -> f64 {
        let each = self
            .runs
            .iter()
            .map(|run| run.weight * gamma_below(run.shape, rate * run.seconds));
        each.sum::<f64>().clamp(0.0, 1.0)
    }

    /// The rate below which it lies with probability `p`.
    pub fn quantile(&self, p: f64) -> f64 {
        quantile(self.mean(), p, |rate| self.below(rate))
    }
}

/// Rates of kinds of failures that may change each by itself, or all together.
///
/// Two models are followed: each kind has a rate of its own; or all have one rate and fixed
/// shares of it (Dirichlet). What each says counts by the probability that it gave to what was
/// seen (Bayesian model averaging), of late more than long ago.
#[derive(Clone, PartialEq, Debug)]
pub struct Rates {
    own: Vec<Rate>,
    all: Rate,
    /// Of the Dirichlet distribution of shares.
    shares: Vec<f64>,
    /// Logarithm of the probability of all that was seen, own over common rates; and its value
    /// before the last event that was counted.
    odds: f64,
    counted: f64,
}

/// Shares are known as from so many times the failures of the rates' prior: guesses are mostly
/// wrong by one factor, of the machine's age or of its size, and less in what fails more often.
const SHARES: f64 = 20.0;
/// The odds of the two models before anything is seen, as a logarithm: e^2 to 1 for the common
/// rate, of which a failure of any kind says something.
const ODDS: f64 = -2.0;
/// What is older by one failure counts so much less.
const ODDS_FADE: f64 = 0.97;

impl Rates {
    /// Rates of which only the priors are known, at the time 0.
    pub fn new(priors: &[RatePrior]) -> Rates {
        let rate = |prior: &RatePrior| prior.events / prior.seconds;
        let total: f64 = priors.iter().map(rate).sum();
        // As badly as the worst of them.
        let events = priors.iter().map(|prior| prior.events);
        let events = events.fold(f64::INFINITY, f64::min);
        let all = RatePrior {
            events,
            seconds: events / total,
        };
        let share = |prior: &RatePrior| SHARES * events * rate(prior) / total;
        Rates {
            own: priors.iter().copied().map(Rate::new).collect(),
            all: Rate::new(all),
            shares: priors.iter().map(share).collect(),
            odds: ODDS,
            counted: 0.0,
        }
    }

    /// Nothing failed until then.
    pub fn pass(&mut self, at: f64) {
        self.own.iter_mut().for_each(|rate| rate.pass(at));
        self.all.pass(at);
    }

    /// Something of this kind failed.
    pub fn fail(&mut self, kind: usize, at: f64) {
        self.pass(at);
        let share = self.share(kind);
        self.own[kind].fail(at);
        self.all.fail(at);
        self.shares[kind] += 1.0;
        let own: f64 = self.own.iter().map(|rate| rate.evidence).sum();
        let both = own - self.all.evidence;
        self.odds = self.odds * ODDS_FADE + both - self.counted - libm::log(share);
        self.counted = both;
    }

    fn share(&self, kind: usize) -> f64 {
        self.shares[kind] / self.shares.iter().sum::<f64>()
    }

    /// The probability that each kind has a rate of its own.
    fn apart(&self) -> f64 {
        let own: f64 = self.own.iter().map(|rate| rate.evidence).sum();
        let since = own - self.all.evidence - self.counted;
        1.0 / (1.0 + libm::exp(-(self.odds + since).clamp(-30.0, 30.0)))
    }

    /// Posterior mean of a kind, in failures per second.
    pub fn mean(&self, kind: usize) -> f64 {
        let apart = self.apart();
        apart * self.own[kind].mean() + (1.0 - apart) * self.all.mean() * self.share(kind)
    }

    /// The probability that a kind's rate is at most so many failures per second.
    pub fn below(&self, kind: usize, rate: f64) -> f64 {
        let apart = self.apart();
        apart * self.own[kind].below(rate) + (1.0 - apart) * self.all.below(rate / self.share(kind))
    }

    /// The rate below which that of a kind lies with probability `p`.
    pub fn quantile(&self, kind: usize, p: f64) -> f64 {
        quantile(self.mean(kind), p, |rate| self.below(kind, rate))
    }

    /// Failures of a kind that were seen.
    pub fn seen(&self, kind: usize) -> u64 {
        self.own[kind].seen()
    }

    /// This kind's rate is known, and no other model is asked any more.
    pub fn told(&mut self, rates: &[f64]) {
        let prior = |rate: &f64| RatePrior::known(rate.max(f64::MIN_POSITIVE));
        let mut priors: Vec<RatePrior> = rates.iter().map(prior).collect();
        let rest = self.own.iter().skip(priors.len());
        priors.extend(rest.map(|rate| RatePrior::known(rate.mean())));
        *self = Rates::new(&priors);
    }
}

/// Where a distribution function reaches `p`, by bisection around a mean.
fn quantile(mean: f64, p: f64, below: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (mean * 1e-9, mean * 1e3);
    for _ in 0..80 {
        let middle = libm::sqrt(low * high);
        match below(middle) < p {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

/// The regularised lower incomplete gamma function P(a, x): by its series below a + 1, by the
/// continued fraction of its complement above (Abramowitz and Stegun, 6.5.29 and 6.5.31).
pub(crate) fn gamma_below(a: f64, x: f64) -> f64 {
    const TERMS: usize = 400;
    if x <= 0.0 {
        return 0.0;
    }
    // Beyond some thousand events it is as good as normal (Wilson and Hilferty 1931).
    if a > 4_000.0 {
        let cube = libm::cbrt(x / a) - (1.0 - 1.0 / (9.0 * a));
        return 0.5 * libm::erfc(-cube * libm::sqrt(9.0 * a) / core::f64::consts::SQRT_2);
    }
    let front = libm::exp(a * libm::log(x) - x - libm::lgamma(a));
    if x < a + 1.0 {
        let (mut term, mut sum) = (1.0 / a, 1.0 / a);
        for n in 1..TERMS {
            term *= x / (a + n as f64);
            sum += term;
            if term < sum * 1e-15 {
                break;
            }
        }
        return (front * sum).min(1.0);
    }
    // Lentz's method for 1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - ...)).
    const TINY: f64 = 1e-300;
    let mut b = x + 1.0 - a;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / b;
    let mut fraction = d;
    for n in 1..TERMS {
        let n = n as f64;
        let factor = -n * (n - a);
        b += 2.0;
        d = factor * d + b;
        d = 1.0 / if d.abs() < TINY { TINY } else { d };
        c = b + factor / c;
        c = if c.abs() < TINY { TINY } else { c };
        fraction *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    (1.0 - front * fraction).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use outlive_base::rng::Sequence;

    use super::*;

    fn life(random: &mut Sequence, mean: f64) -> f64 {
        let unit = ((random.u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -mean * libm::log(unit)
    }

    /// P(1, x) = 1 - e^-x; P(1/2, x) = erf(sqrt x); P(n, x) by Poisson probabilities.
    #[test]
    fn the_incomplete_gamma_function() {
        for x in [0.01, 0.3, 1.0, 2.5, 10.0, 40.0] {
            assert!((gamma_below(1.0, x) + libm::expm1(-x)).abs() < 1e-13);
            assert!((gamma_below(0.5, x) - libm::erf(libm::sqrt(x))).abs() < 1e-13);
            let mut term = libm::exp(-x);
            let mut sum = 0.0;
            for n in 1..=12 {
                sum += term;
                term *= x / f64::from(n);
                assert!((gamma_below(f64::from(n), x) - (1.0 - sum)).abs() < 1e-12);
            }
        }
        // Normal for large shapes: both ways agree at the border.
        for z in [-2.0, 0.0, 2.0] {
            let (a, b) = (3_999.0, 4_001.0);
            let at = |a: f64| gamma_below(a, a + z * libm::sqrt(a));
            assert!((at(a) - at(b)).abs() < 1e-4);
        }
    }

    /// A bad guess is overcome, and what it says of itself holds: over many rates the true
    /// one lies below its 90 % quantile in about 90 % (the prior of changes makes it wider).
    #[test]
    fn a_rate_is_learned_and_its_confidence_is_honest() {
        let seed = outlive_base::seed!();
        let (mut inside, mut relative) = (0, 0.0);
        let runs = 300;
        for stream in 0..runs {
            let mut random = Sequence::new(seed, stream);
            let mut rate = Rate::new(RatePrior::guess(4_000.0));
            // At a moment that has nothing to do with failures.
            let mut at = life(&mut random, 100.0);
            while at < 6_000.0 {
                rate.fail(at);
                at += life(&mut random, 100.0);
            }
            rate.pass(6_000.0);
            relative += rate.mean() * 100.0 / runs as f64;
            let (low, high) = (rate.quantile(0.05), rate.quantile(0.95));
            inside += u32::from((low..high).contains(&0.01));
        }
        assert!((relative - 1.0).abs() < 0.15, "seed {seed}: {relative}");
        // Binomial of 300 and 0.9 has a standard deviation of 5.2.
        assert!(inside >= 240, "seed {seed}: {inside} of {runs}");
    }

    #[test]
    fn changes_by_ten_are_noticed_both_ways() {
        let seed = outlive_base::seed!();
        for (before, after) in [(100.0, 10.0), (100.0, 1_000.0)] {
            let mut near = 0;
            for stream in 0..100 {
                let mut random = Sequence::new(seed, stream);
                let mut rate = Rate::new(RatePrior::guess(100.0));
                let mut at = 0.0;
                for _ in 0..50 {
                    at += life(&mut random, before);
                    rate.fail(at);
                }
                // Eight failures later, or eight times the old mean.
                let end = if after < before {
                    8.0 * after
                } else {
                    8.0 * before
                };
                let mut next = at + life(&mut random, after);
                while next < at + end {
                    rate.fail(next);
                    next += life(&mut random, after);
                }
                rate.pass(at + end);
                let ratio = rate.mean() * after;
                near += u32::from((0.2..5.0).contains(&ratio));
            }
            assert!(
                near >= 70,
                "seed {seed}: {before} to {after}: {near} of 100"
            );
        }
    }

    /// How often silence is asked about changes nothing that matters.
    #[test]
    fn it_does_not_matter_how_often_time_is_told() {
        let (mut once, mut often) = (
            Rate::new(RatePrior::guess(50.0)),
            Rate::new(RatePrior::guess(50.0)),
        );
        for failure in 1..20 {
            let at = f64::from(failure) * 40.0;
            for part in 1..40 {
                often.pass(at - 40.0 + f64::from(part));
            }
            once.fail(at);
            often.fail(at);
        }
        assert!((once.mean() / often.mean() - 1.0).abs() < 1e-6);
        assert_eq!(once.seen(), 19);
    }

    /// Kinds that change together: one that is rare is known from the others. Kinds of which one
    /// changes alone: the others stay.
    #[test]
    fn what_changes_together_is_learned_together() {
        let seed = outlive_base::seed!();
        let priors = [RatePrior::guess(100.0), RatePrior::guess(2_000.0)];
        let (mut together, mut apart) = (0.0, 0.0);
        let runs = 40;
        for stream in 0..runs {
            let mut random = Sequence::new(seed, stream);
            for alone in [false, true] {
                let mut rates = Rates::new(&priors);
                let means = if alone {
                    [10.0, 2_000.0]
                } else {
                    [10.0, 200.0]
                };
                let mut next = means.map(|mean| life(&mut random, mean));
                loop {
                    let kind = usize::from(next[1] < next[0]);
                    if next[kind] > 3_000.0 {
                        break;
                    }
                    rates.fail(kind, next[kind]);
                    next[kind] += life(&mut random, means[kind]);
                }
                rates.pass(3_000.0);
                let found = libm::log(rates.mean(1) * means[1]) / runs as f64;
                match alone {
                    true => apart += found,
                    false => together += found,
                }
            }
        }
        assert!(
            together.abs() < 0.4 && apart.abs() < 0.8,
            "seed {seed}: {together} {apart}"
        );
    }

    #[test]
    fn what_is_known_stays() {
        let mut rate = Rate::new(RatePrior::known(0.25));
        for at in 1..1_000 {
            rate.fail(f64::from(at));
        }
        assert!((rate.mean() / 0.25 - 1.0).abs() < 1e-5);
    }
}

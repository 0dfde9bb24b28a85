//! What a policy has learned, as it is kept between the runs of a job: few numbers with names,
//! that are understood by a later version whatever its learners are like.
//!
//! Failures are kept one by one, the newest [`FAILURES_MAX`], and are told again to the policy
//! of the next run; costs are kept as what is believed and how surely.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cost::{Cost, CostPrior};

/// Failures that are remembered.
pub const FAILURES_MAX: usize = 256;
/// Longer than this no job is watched, in seconds: 1,000 years.
const SECONDS_MAX: f64 = 3.2e10;
/// Levels that are remembered.
const LEVELS_MAX: usize = 64;

/// What a failure took.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lost {
    /// Processes of the program.
    Process,
    /// Also what a node kept in memory.
    Memory,
    /// Also what a node kept in its storage.
    Storage,
}

/// A failure of the past.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Seconds of watching before it.
    pub at: f64,
    /// What it took.
    pub lost: Lost,
}

/// A cost as it is known.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Known {
    /// Seconds.
    pub seconds: f64,
    /// Standard deviation of its logarithm.
    pub spread: f64,
    /// Measurements.
    pub seen: u64,
}

impl Known {
    /// Of a cost that was measured; none: it was not.
    pub fn of(cost: &Cost) -> Option<Known> {
        (cost.seen() > 0).then(|| Known {
            seconds: cost.mean(),
            spread: cost.spread(),
            seen: cost.seen(),
        })
    }

    /// For the next run, which may meet another machine: less sure by `more`.
    pub fn prior(&self, more: f64) -> CostPrior {
        CostPrior {
            seconds: self.seconds,
            spread: libm::sqrt(self.spread * self.spread + more * more),
        }
    }

    fn is_sound(&self) -> bool {
        (0.0..=SECONDS_MAX).contains(&self.seconds) && (0.0..=100.0).contains(&self.spread)
    }
}

/// What is known of a level.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct KnownLevel {
    /// From the capture until the level keeps the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<Known>,
    /// From a failure until the program computes again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Known>,
}

/// What was learned of a job.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Learned {
    /// Seconds for which the job was watched, in all runs.
    pub seconds: f64,
    /// All failures before this are forgotten.
    #[serde(default)]
    pub since: f64,
    /// Failures after that, oldest first.
    #[serde(default)]
    pub failures: Vec<Failure>,
    /// Preemptions that were announced after that, in seconds of watching, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preemptions: Vec<f64>,
    /// For how long a checkpoint blocks the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture: Option<Known>,
    /// Levels by name.
    #[serde(default)]
    pub levels: BTreeMap<String, KnownLevel>,
}

impl Learned {
    /// One more failure; the oldest is forgotten where there are too many.
    pub fn fail(&mut self, at: f64, lost: Lost) {
        self.failures.push(Failure { at, lost });
        self.forget();
    }

    /// One more preemption that was announced; likewise.
    pub fn preempt(&mut self, at: f64) {
        self.preemptions.push(at);
        self.forget();
    }

    /// Both are known for the same time, so that no rate seems to fall.
    fn forget(&mut self) {
        while self.failures.len() + self.preemptions.len() > FAILURES_MAX {
            let failed = self
                .failures
                .first()
                .map_or(f64::INFINITY, |first| first.at);
            let preempted = self.preemptions.first().copied().unwrap_or(f64::INFINITY);
            self.since = failed.min(preempted);
            match failed <= preempted {
                true => drop(self.failures.remove(0)),
                false => drop(self.preemptions.remove(0)),
            }
        }
    }

    /// What is wrong with it, if it cannot have been written by a policy: then it is not used.
    pub fn fault(&self) -> Option<&'static str> {
        if !(0.0..=SECONDS_MAX).contains(&self.seconds) {
            return Some("the time for which the job was watched is none");
        }
        if self.failures.len() + self.preemptions.len() > FAILURES_MAX
            || self.levels.len() > LEVELS_MAX
        {
            return Some("there is too much of it");
        }
        let mut before = self.since;
        let mut last = self.since;
        for &at in &self.preemptions {
            if !(last..=self.seconds).contains(&at) {
                return Some("preemptions are out of order");
            }
            last = at;
        }
        if !(0.0..=self.seconds).contains(&before) {
            return Some("it begins after its end");
        }
        for failure in &self.failures {
            if !(before..=self.seconds).contains(&failure.at) {
                return Some("failures are out of order");
            }
            before = failure.at;
        }
        let levels = self.levels.values();
        let each = levels.flat_map(|level| [level.background, level.restart]);
        let mut costs = each.chain([self.capture]).flatten();
        costs
            .any(|cost| !cost.is_sound())
            .then_some("a cost is none")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_is_kept_and_nonsense_is_named() {
        let mut learned = Learned {
            seconds: 1e4,
            ..Learned::default()
        };
        for n in 0..FAILURES_MAX + 3 {
            learned.fail(n as f64, Lost::Process);
        }
        assert_eq!((learned.failures.len(), learned.since), (FAILURES_MAX, 2.0));
        assert_eq!(learned.fault(), None);
        let text = toml::to_string(&learned).expect("plain numbers");
        assert_eq!(toml::from_str::<Learned>(&text), Ok(learned.clone()));
        let bad = |change: fn(&mut Learned)| {
            let mut learned = learned.clone();
            change(&mut learned);
            learned.fault().is_some()
        };
        assert!(bad(|it| it.seconds = f64::NAN));
        assert!(bad(|it| it.seconds = -1.0));
        assert!(bad(|it| it.since = 3.5));
        assert!(bad(|it| it.failures[7].at = 1e9));
        assert!(bad(|it| it.failures.swap(1, 5)));
        assert!(bad(|it| it.preemptions = vec![1.0]));
        assert!(bad(|it| it.preemptions = vec![9.0, 8.0]));
        let mut both = learned.clone();
        both.preempt(5_000.0);
        assert_eq!((both.failures.len(), both.since), (FAILURES_MAX - 1, 3.0));
        for n in 0..FAILURES_MAX {
            both.preempt(6_000.0 + n as f64);
        }
        assert_eq!(
            (both.failures.len(), both.preemptions.len()),
            (0, FAILURES_MAX)
        );
        assert_eq!((both.since, both.fault()), (5_000.0, None));
        let cost = |seconds, spread| Known {
            seconds,
            spread,
            seen: 1,
        };
        let mut odd = learned.clone();
        for known in [
            cost(-1.0, 0.1),
            cost(1.0, f64::INFINITY),
            cost(f64::NAN, 0.1),
        ] {
            odd.capture = Some(known);
            assert!(odd.fault().is_some(), "{known:?}");
        }
    }
}

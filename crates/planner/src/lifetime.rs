//! The expected time of a job that saves at several levels, without simulation.
//!
//! The model. Work is done in intervals of equal length. The checkpoint after the i-th
//! interval goes to the levels whose multiple divides i, stops the program for the capture
//! and for what each of them costs, and is then written in the background where a level has
//! a background time; until that has ended the level has not got the version, and refuses
//! further ones. Stops come at constant rates, at any time; they end background writes and
//! destroy the versions of the levels that do not survive. The job goes on from the newest
//! version that is left (of equal ones, the one with the least restart time), after its
//! restart time; a stop meanwhile begins this anew, and if only that version is lost
//! meanwhile, the next is taken. A restart leaves the version that it read on its level and
//! on the node-local level, complete; other levels on nodes lack the replaced node's part
//! until they are written again ([`crate::classes::Outcome::also`]). Losses of storage that
//! do not stop the job take the level's versions and end its write; until its servers are repaired
//! the level refuses further ones. Where no version is left, the job begins anew.
//!
//! This is a Markov chain: `chain` has its transitions, `solve` its expected times from
//! one end of the pattern to the next. Nothing is approximated but that the pattern is short
//! compared with the job, and that versions enter a cycle as in the long run. (Old versions have
//! few ages, in which nothing shows; see `ages`.)

mod ages;
mod chain;
mod follow;
mod graph;
mod outages;
#[cfg(test)]
mod reference;
mod solve;

use ages::Grid;
use solve::Trouble;

use outlive_base::{Code, Entity, Error, Result};

use crate::classes::Classes;
use crate::machine::{Job, Level};

/// No longer patterns, in intervals.
pub const PATTERN_MAX: u64 = 20_000;

/// Probability that is neglected per state: nothing that shows in the first ten digits.
const EXACT: f64 = 1e-9;

/// How closely the chain is looked at.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Effort {
    /// Probability below which a state is left out, and another stands for it.
    pub slack: f64,
    /// Probability that may be left on its way: what it would still take is estimated.
    pub left: f64,
    /// So often a job may go on from a state that stands for another, for each stop: more is
    /// no result.
    pub stood: f64,
    /// No more states, and in addition so many for each interval of the pattern: the least
    /// likely are left out.
    pub states: usize,
    /// See `states`.
    pub states_each: usize,
    /// No more steps along the chain, and in addition so many for each interval.
    pub steps: u64,
    /// See `steps`.
    pub steps_each: u64,
    /// Ages of versions that are told apart.
    pub grid: Grid,
}

impl Effort {
    /// All that shows in the first ten digits, as far as the bounds allow.
    pub const FULL: Effort = Effort {
        slack: EXACT,
        left: 1e-8,
        stood: f64::INFINITY,
        states: 6_000,
        states_each: 5,
        steps: 20_000_000,
        steps_each: 10_000,
        grid: Grid { exact: 4, parts: 4 },
    };
    /// For the result of a search.
    pub const LAST: Effort = Effort {
        slack: 1e-8,
        left: 1e-8,
        stood: f64::INFINITY,
        states: 4_000,
        states_each: 3,
        steps: 6_000_000,
        steps_each: 3_000,
        grid: Grid { exact: 2, parts: 2 },
    };
    /// For telling plans apart that differ much.
    pub const COARSE: Effort = Effort {
        slack: 1e-5,
        left: 1e-6,
        stood: 0.02,
        states: 2_500,
        states_each: 4,
        steps: 400_000,
        steps_each: 2_500,
        grid: Grid { exact: 1, parts: 1 },
    };
    /// For telling neighbours apart.
    pub const CLOSE: Effort = Effort {
        slack: 1e-6,
        left: 1e-7,
        stood: 0.02,
        states: 4_000,
        states_each: 5,
        steps: 1_000_000,
        steps_each: 3_000,
        grid: Grid { exact: 2, parts: 2 },
    };
    /// The same with more left out.
    pub const fn with_slack(self, slack: f64) -> Effort {
        Effort { slack, ..self }
    }
}

/// When to save where.
#[derive(Clone, PartialEq, Debug)]
pub struct Pattern {
    /// Seconds of computing from one checkpoint to the next.
    pub interval: f64,
    /// For each level: every so many-th checkpoint goes there.
    pub multiples: Vec<u32>,
}

impl Pattern {
    /// The number of intervals after which it repeats: the least common multiple.
    pub fn length(&self) -> u64 {
        let lcm = |a: u64, b: u64| a / gcd(a, b) * b;
        self.multiples
            .iter()
            .fold(1, |all, &one| lcm(all, u64::from(one)).min(u64::MAX >> 33))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

/// What a plan is for: the job, and the levels that it uses with their classes.
#[derive(Clone, Debug)]
pub struct Question {
    /// Levels in use.
    pub levels: Vec<Level>,
    /// How often they are left, for exactly these levels (see [`Classes::of`]).
    pub classes: Classes,
    /// Seconds of computing.
    pub work: f64,
    /// Seconds that each checkpoint stops the program whatever its levels.
    pub capture: f64,
    /// Seconds until a job that begins anew computes.
    pub anew: f64,
}

impl Question {
    /// A job on some of its levels.
    pub fn new(job: &Job, levels: &[Level], classes: &Classes, chosen: &[usize]) -> Question {
        Question {
            levels: chosen.iter().map(|&level| levels[level].clone()).collect(),
            classes: classes.of(chosen),
            work: job.work,
            capture: job.capture,
            anew: job.restart,
        }
    }
}

/// What a job takes, in seconds that are expected.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lifetime {
    /// All of it.
    pub total: f64,
    /// Without failures and checkpoints.
    pub work: f64,
    /// Of it, stopped by checkpoints.
    pub checkpoint: f64,
    /// Of it, from failures until the program computes again.
    pub restart: f64,
    /// Of it, computing that was lost.
    pub lost: f64,
    /// How often the job begins anew.
    pub anew: f64,
    /// States of the chain.
    pub states: usize,
}

impl Lifetime {
    /// Time beyond the work, as a share of the work.
    pub fn overhead(&self) -> f64 {
        self.total / self.work - 1.0
    }
    /// A job that makes no headway.
    fn never(work: f64) -> Lifetime {
        let all = f64::INFINITY;
        Lifetime {
            total: all,
            work,
            checkpoint: 0.0,
            restart: 0.0,
            lost: all,
            anew: 0.0,
            states: 0,
        }
    }
}

/// The expected time of a job under a pattern. Infinite if it makes no headway: if less than
/// one try in a thousand of a step of the pattern ends without a stop.
///
/// # Errors
/// [`Code::Config`] for patterns that cannot be: no level, a multiple of 0 or a length above
/// [`PATTERN_MAX`], an interval that is not positive; too many states.
pub fn lifetime(question: &Question, pattern: &Pattern) -> Result<Lifetime> {
    with_effort(question, pattern, Effort::FULL, &mut 0)
}

/// The same with less effort; `work` grows by what was done, in steps along the chain.
pub(crate) fn with_effort(
    question: &Question,
    pattern: &Pattern,
    effort: Effort,
    work: &mut u64,
) -> Result<Lifetime> {
    let refuse = |what: String, remedy: &str| {
        Err(Error::new(
            Code::Config,
            Entity::Option("pattern".into()),
            what,
            remedy,
        ))
    };
    if !(pattern.interval.is_finite() && pattern.interval > 0.0) {
        return refuse(
            format!("an interval of {} s", pattern.interval),
            "give a positive interval",
        );
    }
    let levels = question.levels.len();
    if levels == 0 || levels != pattern.multiples.len() || levels > chain::LEVELS_MAX {
        let what = format!("{} multiples for {levels} levels", pattern.multiples.len());
        return refuse(what, "give one multiple per level, for 1 to 8 levels");
    }
    if pattern.multiples.contains(&0) || pattern.length() > PATTERN_MAX {
        let what = format!("multiples {:?}", pattern.multiples);
        return refuse(
            what,
            "give multiples of at least 1 that repeat within 20000 intervals",
        );
    }
    let rate = question.classes.total();
    if rate == 0.0 {
        return Ok(solve::undisturbed(question, pattern));
    }
    let costs: f64 = question.levels.iter().map(|level| level.cost).sum();
    let longest = pattern.interval + question.capture + costs;
    let restarts = question.levels.iter().map(|level| level.restart);
    if rate * restarts.fold(longest, f64::max) > 7.0 {
        return Ok(Lifetime::never(question.work));
    }
    let (found, steps) = solve::expected(question, pattern, effort);
    *work += steps;
    match found {
        Ok(found) => Ok(found),
        Err(Trouble::TooMany) => refuse(
            format!("multiples {:?} take too many steps", pattern.multiples),
            "write more often to the levels that survive more, or use multiples that divide each other",
        ),
    }
}

#[cfg(test)]
mod tests;

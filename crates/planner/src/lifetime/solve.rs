//! Expected times of the chain from one end of the pattern to the next.
//!
//! A cycle goes from the first time at one end of the pattern to the first time at the next.
//! Cycles that begin with the usual versions are followed until one ends so: the time from one
//! such beginning to the next, over the cycles in it, is the time of a cycle in the long run
//! (renewal reward theorem). The expected visits of each state are found by pushing
//! probability along the chain ([`super::graph`]) until next to nothing is left; what returns
//! too seldom for that is extrapolated ([`super::follow`]).
//!
//! States become known from the likely ones to the unlikely ones, so that a bound on their
//! number leaves out the least; another stands for each that is left out, and no probability
//! is lost.

use super::chain::{Chain, Held};
use super::follow::{Followed, Sums};
use super::graph::Graph;
use super::{Effort, Lifetime, Pattern, Question};
use crate::classes::Mask;

/// Cycles from versions on all levels to what is usual at the end of one.
const CYCLES_FIRST: u64 = 4;
/// The first states that become known have so much probability; then ever less, by this
/// factor.
const SLACK_FIRST: f64 = 1e-3;
const SLACK_STEP: f64 = 0.03;
/// Meanwhile so much may be left on its way: it is pushed on with what follows.
const ROUGHLY: f64 = 3e-2;

/// A background write is ended by a stop so often, or less: then the usual versions are
/// those of the last few cycles.
const OFTEN_ENDED: f64 = 0.5;
/// No older versions at the beginning, in intervals.
const AGE_MAX: f64 = 1e6;

/// Why there is no expected time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trouble {
    /// Too many steps along the chain.
    TooMany,
}

/// Without failures.
pub(super) fn undisturbed(question: &Question, pattern: &Pattern) -> Lifetime {
    let length = pattern.length() as f64;
    let mut writes = 0.0;
    let mut checkpoints = 0.0_f64;
    for (level, &multiple) in question.levels.iter().zip(&pattern.multiples) {
        // A level in the background refuses what comes meanwhile.
        let apart = f64::from(multiple) * pattern.interval;
        let skipped = libm::ceil(level.background / apart).max(1.0);
        writes += level.cost * length / f64::from(multiple) / skipped;
        checkpoints = checkpoints.max(length / f64::from(multiple));
    }
    let cycles = question.work / (length * pattern.interval);
    let checkpoint = (writes + checkpoints * question.capture) * cycles;
    let (work, total) = (question.work, question.work + checkpoint);
    Lifetime {
        total,
        work,
        checkpoint,
        restart: 0.0,
        lost: 0.0,
        anew: 0.0,
        states: 0,
    }
}

/// With failures: states of less than `effort.slack` of probability are left out. Also what
/// was done for it, in steps along the chain.
pub(super) fn expected(
    question: &Question,
    pattern: &Pattern,
    effort: Effort,
) -> (Result<Lifetime, Trouble>, u64) {
    let length = pattern.length();
    let states_max = effort.states + effort.states_each * length as usize;
    let pushed_max = effort.steps + effort.steps_each * length;
    let chain = Chain::new(question, pattern, (effort.slack * 1e-2).clamp(1e-15, 1e-9));
    let mut graph = Graph::new(chain, effort.grid, length as i64, states_max);
    let left = effort.left;
    let mut slack = SLACK_FIRST.max(effort.slack);
    graph.refine(slack);
    let mut number = graph.start(&Held::aged(&usual_ages(question, pattern)));
    for cycle in 1..=CYCLES_FIRST {
        graph.begin(number, 1.0);
        let ended = graph.drain(ROUGHLY, pushed_max * cycle / (8 * CYCLES_FIRST));
        number = graph.usual_end().unwrap_or(number);
        graph.forget();
        if !ended {
            break;
        }
    }
    graph.begin(number, 1.0);
    let mut followed = Followed::new();
    loop {
        graph.refine(slack);
        let ended = graph.drain(ROUGHLY, pushed_max / 2);
        followed.wrap(&mut graph, number);
        if !ended || graph.is_full() || slack <= effort.slack {
            break;
        }
        slack = (slack * SLACK_STEP).max(effort.slack);
    }
    if !graph.is_full() {
        followed.until_returned(&mut graph, number, left, pushed_max / 2);
    }
    graph.freeze();
    followed.until_returned(&mut graph, number, left, pushed_max);
    let stops = question.classes.total() * graph.sums.seconds.iter().sum::<f64>();
    let stood = graph.sums.stood > effort.stood * stops;
    let found = match followed.sums(&graph) {
        Some(sums) if !stood => Ok(whole(question, pattern, sums, graph.states)),
        _ => Err(Trouble::TooMany),
    };
    (found, graph.work())
}

/// About how old the versions are, in intervals, where background writes are mostly ended
/// by stops before they are over: what is usual there is reached only after many cycles. A
/// guess; how old they are follows from the chain.
fn usual_ages(question: &Question, pattern: &Pattern) -> Vec<u32> {
    let (rate, length) = (question.classes.total(), pattern.length() as f64);
    let restarts = question.levels.iter().map(|level| level.restart);
    let restart = restarts.fold(f64::INFINITY, f64::min);
    let age = |place: usize| {
        let background = question.levels[place].background;
        if rate * background < OFTEN_ENDED {
            return 0;
        }
        let younger = question.levels.iter().enumerate();
        let younger: Mask = younger
            .filter(|(_, level)| level.background < background)
            .map(|(bit, _)| 1 << bit)
            .sum();
        let needed = question.classes.stops.iter().filter(|(outcome, _)| {
            outcome.survive & younger == 0 && outcome.survive & (1 << place) != 0
        });
        let needed: f64 = needed.map(|(_, rate)| rate.rate).sum();
        // From one version to the next, or to a stop that needs it.
        let waits = f64::from(pattern.multiples[place]) * pattern.interval / 2.0;
        let tries = libm::expm1((rate * (background + waits)).min(500.0));
        let seconds = 1.0 / (rate / tries + needed);
        let computing = 1.0 / (1.0 + rate * restart);
        let cycles = seconds * computing / (length * pattern.interval);
        (libm::floor(cycles.min(AGE_MAX / length)) * length) as u32
    };
    (0..question.levels.len()).map(age).collect()
}

/// A job of many cycles, each of which may end with a new beginning.
fn whole(question: &Question, pattern: &Pattern, sums: Sums, states: usize) -> Lifetime {
    let cycles = question.work / (pattern.length() as f64 * pattern.interval);
    let ended = sums.ended;
    if ended.is_nan() || ended <= 0.0 {
        return Lifetime::never(question.work);
    }
    let fails = (sums.anew / ended).min(1.0);
    let tries = match fails {
        f if f * cycles < 1e-12 => cycles,
        // A run of `cycles` successes in a row: (q^-n - 1) / (1 - q) tries, q = 1 - f.
        f => libm::expm1(-cycles * libm::log1p(-f)) / f,
    };
    let [compute, checkpoint, restart] = sums.seconds.map(|seconds| seconds / ended * tries);
    let anew = fails * tries;
    let restart = restart + anew * question.anew;
    let work = question.work;
    let total = compute + checkpoint + restart;
    Lifetime {
        total,
        work,
        checkpoint,
        restart,
        lost: (compute - work).max(0.0),
        anew,
        states,
    }
}

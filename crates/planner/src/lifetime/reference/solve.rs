//! Expected times of the chain from one end of the pattern to the next.
//!
//! A cycle goes from the first time at one end of the pattern to the first time at the next.
//! The expected visits of each state in a cycle are found by pushing probability along the
//! chain, in sweeps over ascending positions, until next to nothing is left; what is stored
//! when a cycle ends is where the next begins, and cycles are repeated until that no longer
//! changes.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{Lifetime, Pattern, Question};
use super::chain::{Chain, Held, State};

/// Cycles until what is stored at their ends settles. Background writes that outlast a cycle keep
/// its phase until a failure ends them: that takes as many cycles as lie between failures.
const CYCLES_MAX: usize = 20_000;
/// No more states, and no more steps along the chain,
/// in addition to so many for each interval of the pattern.
const STATES_MAX: usize = 40_000;
const STEPS_MAX: u64 = 3_000_000;
const STATES_EACH: usize = 8;
const STEPS_EACH: u64 = 1_000;

/// A step with numbers in place of states.
struct Known {
    to: Vec<(u32, f64)>,
    /// To the end of the cycle.
    end: Vec<(Held, f64)>,
    anew: f64,
    seconds: [f64; 3],
}

struct Solver<'a> {
    /// Probability that may be left at a state.
    slack: f64,
    chain: Chain<'a>,
    length: i64,
    numbers: BTreeMap<(i64, State), u32>,
    places: Vec<(i64, State)>,
    steps: Vec<Option<Known>>,
    residue: Vec<f64>,
    /// States with a residue, by position.
    pending: BTreeMap<i64, BTreeSet<u32>>,
    pushed: u64,
    states_max: usize,
    steps_max: u64,
}

/// Why there is no expected time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Trouble {
    /// The chain has too many states that matter, or does not settle.
    TooMany,
    /// The end of the pattern is not reached.
    Endless,
}

/// A cycle's result.
#[derive(Default)]
struct Cycle {
    seconds: [f64; 3],
    anew: f64,
    ends: BTreeMap<Held, f64>,
}

impl Solver<'_> {
    fn number(&mut self, position: i64, state: State) -> u32 {
        let key = (position, state);
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let number = self.places.len() as u32;
        self.numbers.insert(key.clone(), number);
        self.places.push(key);
        self.steps.push(None);
        self.residue.push(0.0);
        number
    }

    fn give(&mut self, number: u32, mass: f64) {
        let at = number as usize;
        let before = self.residue[at];
        self.residue[at] += mass;
        if before < self.slack && self.residue[at] >= self.slack {
            let position = self.places[at].0;
            self.pending.entry(position).or_default().insert(number);
        }
    }

    fn know(&mut self, number: u32) {
        let (position, state) = self.places[number as usize].clone();
        let step = self.chain.step(position, &state);
        let mut known = Known {
            to: Vec::new(),
            end: Vec::new(),
            anew: step.anew,
            seconds: step.seconds,
        };
        for (by, next, p) in step.to {
            match next {
                State::Run(held) if position + by >= self.length => known.end.push((held, p)),
                next => {
                    let to = self.number(position + by, next);
                    known.to.push((to, p));
                }
            }
        }
        self.steps[number as usize] = Some(known);
    }

    /// From the stored versions at the beginning of a cycle to its end. None if there are
    /// too many states or steps.
    fn cycle(&mut self, from: &BTreeMap<Held, f64>) -> Option<Cycle> {
        let mut cycle = Cycle::default();
        for (held, &p) in from {
            let number = self.number(0, State::Run(held.clone()));
            self.give(number, p);
        }
        let mut position = i64::MIN;
        while !self.pending.is_empty() {
            // The next position from here on, or the lowest of all.
            let next = self.pending.range(position..).next().map(|(&at, _)| at);
            position = next.or_else(|| self.pending.keys().next().copied())?;
            while let Some(&number) = self.pending.get(&position).and_then(BTreeSet::first) {
                self.push(number, &mut cycle);
                if self.pushed > self.steps_max || self.places.len() > self.states_max {
                    return None;
                }
            }
            self.pending.remove(&position);
            position += 1;
        }
        Some(cycle)
    }

    fn push(&mut self, number: u32, cycle: &mut Cycle) {
        let at = number as usize;
        if let Some(set) = self.pending.get_mut(&self.places[at].0) {
            set.remove(&number);
        }
        let mass = std::mem::take(&mut self.residue[at]);
        if self.steps[at].is_none() {
            self.know(number);
        }
        let Some(known) = self.steps[at].take() else {
            return;
        };
        self.pushed += known.to.len() as u64 + 1;
        for (sum, seconds) in cycle.seconds.iter_mut().zip(known.seconds) {
            *sum += mass * seconds;
        }
        cycle.anew += mass * known.anew;
        for (held, p) in &known.end {
            match cycle.ends.get_mut(held) {
                Some(sum) => *sum += mass * p,
                None => {
                    cycle.ends.insert(held.clone(), mass * p);
                }
            }
        }
        for &(to, p) in &known.to {
            self.give(to, mass * p);
        }
        self.steps[at] = Some(known);
    }
}

/// With failures, up to `slack` of probability per state.
///
/// What is left at states when a cycle ends is pushed on in the next: no probability is lost.
pub(in super::super) fn expected(
    question: &Question,
    pattern: &Pattern,
    slack: f64,
) -> Result<Lifetime, Trouble> {
    let mut solver = Solver {
        slack,
        chain: Chain::new(question, pattern),
        length: pattern.length() as i64,
        numbers: BTreeMap::new(),
        places: Vec::new(),
        steps: Vec::new(),
        residue: Vec::new(),
        pending: BTreeMap::new(),
        pushed: 0,
        states_max: STATES_MAX + STATES_EACH * pattern.length() as usize,
        steps_max: STEPS_MAX + STEPS_EACH * pattern.length(),
    };
    let mut from = BTreeMap::from([(Held::everywhere(question.levels.len()), 1.0)]);
    for _ in 0..CYCLES_MAX {
        let cycle = solver.cycle(&from).ok_or(Trouble::TooMany)?;
        let ended: f64 = cycle.ends.values().sum();
        if ended <= 0.0 {
            return Err(Trouble::Endless);
        }
        let next: BTreeMap<Held, f64> = cycle
            .ends
            .iter()
            .map(|(held, p)| (held.clone(), p / ended))
            .collect();
        let keys: BTreeSet<&Held> = next.keys().chain(from.keys()).collect();
        let p = |of: &BTreeMap<Held, f64>, held: &Held| of.get(held).copied().unwrap_or(0.0);
        let change: f64 = keys
            .iter()
            .map(|held| (p(&next, held) - p(&from, held)).abs())
            .sum();
        from = next;
        from.retain(|_, p| *p > slack);
        if change < 1e5 * slack {
            return Ok(whole(question, pattern, &cycle, solver.places.len()));
        }
    }
    Err(Trouble::TooMany)
}

/// A job of many cycles, each of which may end with a new beginning.
fn whole(question: &Question, pattern: &Pattern, cycle: &Cycle, states: usize) -> Lifetime {
    let cycles = question.work / (pattern.length() as f64 * pattern.interval);
    let fails = cycle.anew.min(1.0);
    let tries = match fails {
        f if f * cycles < 1e-12 => cycles,
        // A run of `cycles` successes in a row: (q^-n - 1) / (1 - q) tries, q = 1 - f.
        f => libm::expm1(-cycles * libm::log1p(-f)) / f,
    };
    let [compute, checkpoint, restart] = cycle.seconds.map(|seconds| seconds * tries);
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

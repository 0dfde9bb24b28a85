//! States of the chain and what follows each.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::ages::{Grid, NONE};
use super::outages::{self, Fate, Service, Terms};
use super::{Pattern, Question};
use crate::classes::{Mask, Outcome};
use crate::machine::Scheme;

/// No more levels.
pub(super) const LEVELS_MAX: usize = 8;
const NANOS: f64 = 1e9;
/// How far from each other it is whether a level's servers are there.
const AWAY: f64 = 5.0;

/// What is stored where. Ages are in intervals before the state's position.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Held {
    /// Age of the newest version of each level.
    age: [u32; LEVELS_MAX],
    /// Age of the version that is written in the background.
    flight: [u32; LEVELS_MAX],
    /// Nanoseconds of that which are left; whole numbers, so that equal states are equal.
    left: [u64; LEVELS_MAX],
    /// Levels that lack the part of a node that was replaced.
    degraded: Mask,
    /// Where each level's servers are: 0, there; else away.
    away: [u8; LEVELS_MAX],
}

impl Held {
    /// The version of now on all levels.
    pub fn everywhere(levels: usize) -> Held {
        let mut age = [NONE; LEVELS_MAX];
        age[..levels].fill(0);
        Held {
            age,
            flight: [NONE; LEVELS_MAX],
            left: [0; LEVELS_MAX],
            degraded: 0,
            away: [0; LEVELS_MAX],
        }
    }
    /// Versions on all levels, of these ages.
    pub fn aged(ages: &[u32]) -> Held {
        let mut held = Held::everywhere(ages.len());
        held.age[..ages.len()].copy_from_slice(ages);
        held
    }
    /// A number that equal ones share.
    pub fn digest(&self) -> u64 {
        let ages = self.age.iter().zip(&self.flight);
        let words = ages.map(|(&age, &flight)| u64::from(age) << 32 | u64::from(flight));
        let away = u64::from_le_bytes(self.away);
        let words = words
            .chain(self.left)
            .chain([u64::from(self.degraded), away]);
        words.fold(0, |sum: u64, word| {
            (sum.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95)
        })
    }
    /// How far two are from each other: what a failure at each level would lose, as a factor.
    pub fn distance(&self, other: &Held) -> f64 {
        let far = |a: u32, b: u32| match (a == NONE, b == NONE) {
            (true, true) => 0.0,
            (false, false) => libm::fabs(libm::log(f64::from(a + 1) / f64::from(b + 1))),
            _ => 20.0,
        };
        let levels = 0..LEVELS_MAX;
        let ages: f64 = levels
            .map(|level| {
                let flights = far(self.flight[level], other.flight[level]);
                far(self.age[level], other.age[level]) + flights
            })
            .sum();
        let away = self.away.iter().zip(&other.away);
        let differ = away.filter(|(a, b)| a != b).count() as f64;
        ages + f64::from((self.degraded ^ other.degraded).count_ones()) + AWAY * differ
    }
    fn lose(&mut self, level: usize) {
        self.age[level] = NONE;
        self.degraded &= !(1 << level);
        self.end_flight(level);
    }
    fn end_flight(&mut self, level: usize) {
        (self.flight[level], self.left[level]) = (NONE, 0);
    }
    fn keep(&mut self, level: usize, age: u32) {
        self.age[level] = age;
        self.degraded &= !(1 << level);
    }
    /// Time until the first background write ends.
    fn next_end(&self) -> Option<u64> {
        self.left.iter().copied().filter(|&left| left > 0).min()
    }
    /// Lets time pass; writes whose time is up give their level the version.
    fn pass(&mut self, nanos: u64) {
        for level in 0..LEVELS_MAX {
            if self.left[level] > 0 {
                self.left[level] -= nanos.min(self.left[level]);
                if self.left[level] == 0 {
                    let age = self.flight[level];
                    self.keep(level, age);
                    self.flight[level] = NONE;
                }
            }
        }
    }
    /// The same with ages on a grid, each with its share.
    fn spread(&self, grid: Grid, length: u32) -> Vec<(Held, f64)> {
        let spread = grid.spread(self.age, &self.flight, length).into_iter();
        spread
            .map(|(age, share)| {
                (
                    Held {
                        age,
                        ..self.clone()
                    },
                    share,
                )
            })
            .collect()
    }
    fn older(&mut self, by: u32) {
        for age in self.age.iter_mut().chain(&mut self.flight) {
            if *age != NONE {
                *age = age.saturating_add(by).min(NONE - 1);
            }
        }
    }
}

/// Where the job is. The order of states at one position is that of this type.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum State {
    /// Restarting from the level's version.
    Restart(u8, Held),
    /// At the beginning of an interval.
    Run(Held),
}

impl State {
    /// The same with the ages of versions on a grid, each with its share.
    pub fn spread(&self, grid: Grid, length: u32) -> Vec<(State, f64)> {
        let state = |held| match self {
            State::Restart(level, _) => State::Restart(*level, held),
            State::Run(_) => State::Run(held),
        };
        let (State::Restart(_, held) | State::Run(held)) = self;
        let spread = held.spread(grid, length).into_iter();
        spread.map(|(held, share)| (state(held), share)).collect()
    }
}

/// What follows a state.
#[derive(Default, Debug)]
pub(super) struct Step {
    /// Position relative to this one, state and probability.
    pub to: Vec<(i64, State, f64)>,
    /// Probability to begin anew.
    pub anew: f64,
    /// Expected seconds of computing, of checkpoints and of restarts.
    pub seconds: [f64; 3],
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Compute,
    Write,
    Restart,
}

/// A branch within a step.
#[derive(Clone)]
struct Branch {
    held: Held,
    phase: Phase,
    /// Nanoseconds of the phase that are left.
    left: u64,
    /// Levels that this checkpoint is written to.
    writing: Mask,
    weight: f64,
}

/// Levels that survive a stop, whether a node is replaced, levels whose servers are lost, and the
/// rate of such stops.
type Ending = (Mask, bool, Mask, f64);

/// What became of levels that can lose their versions without a stop.
struct Loss {
    /// Those that did.
    lost: Mask,
    /// Where their servers are then.
    away: [u8; LEVELS_MAX],
    /// The seconds during which a stop finds it so: times the rate of a stop, its probability.
    stopped: f64,
    /// The probability that no stop comes and it is so at the end.
    passed: f64,
}

pub(super) struct Chain<'a> {
    question: &'a Question,
    pattern: &'a Pattern,
    rate: f64,
    /// Stops, merged where they do the same.
    stops: Vec<(Outcome, f64)>,
    redundant: Mask,
    local: Mask,
    /// What can become of each level's servers.
    services: Vec<Service>,
    /// No storage is ever lost without a stop, nor away.
    safe: bool,
    /// Branches within a step that are less likely are neglected.
    negligible: f64,
    /// Stops that do the same to what is held, by the levels that have a version and those
    /// of them that lack a part: few, and asked for by every state.
    endings: BTreeMap<(Mask, Mask), Rc<[Ending]>>,
    /// Of the step that is made: what is held, and for how many seconds a stop finds it so.
    stopped: Vec<(Held, f64)>,
}

fn nanos(seconds: f64) -> u64 {
    libm::round(seconds * NANOS).max(0.0) as u64
}

impl<'a> Chain<'a> {
    /// The chain of a question under a pattern; less likely branches are neglected.
    pub fn new(question: &'a Question, pattern: &'a Pattern, negligible: f64) -> Chain<'a> {
        let mask = |is: fn(&Scheme) -> bool| {
            let bits = question.levels.iter().enumerate();
            bits.filter(|(_, level)| is(&level.scheme))
                .map(|(bit, _)| 1 << bit)
                .sum()
        };
        let stops = question.classes.stops.iter();
        let classes = &question.classes;
        let services = classes.losses.iter().zip(&classes.outages);
        let always = |(&loss, outage): (&f64, &Option<_>)| loss == 0.0 && outage.is_none();
        let safe = services.clone().all(always);
        Chain {
            safe,
            services: services
                .map(|(&loss, &outage)| Service::new(loss, outage))
                .collect(),
            question,
            pattern,
            rate: question.classes.total(),
            stops: stops.map(|(outcome, rate)| (*outcome, rate.rate)).collect(),
            redundant: mask(Scheme::is_redundant),
            local: mask(|scheme| *scheme == Scheme::Local),
            negligible,
            endings: BTreeMap::new(),
            stopped: Vec::new(),
        }
    }

    /// What follows `state` at `position`.
    pub fn step(&mut self, position: i64, state: &State) -> Step {
        let mut step = Step::default();
        let first = match state {
            State::Run(held) => self.branch(held, Phase::Compute, self.pattern.interval),
            State::Restart(level, held) => {
                let restart = self.question.levels[usize::from(*level)].restart;
                self.branch(held, Phase::Restart, restart)
            }
        };
        let mut branches = vec![first];
        while let Some(branch) = branches.pop() {
            if branch.weight >= self.negligible {
                self.advance(position, state, branch, &mut branches, &mut step);
            }
        }
        for (held, seconds) in std::mem::take(&mut self.stopped) {
            self.stop(&held, seconds, &mut step);
        }
        step
    }

    fn branch(&self, held: &Held, phase: Phase, seconds: f64) -> Branch {
        let (held, left) = (held.clone(), nanos(seconds));
        Branch {
            held,
            phase,
            left,
            writing: 0,
            weight: 1.0,
        }
    }

    /// To the end of the phase or of the next background write.
    fn advance(
        &mut self,
        position: i64,
        state: &State,
        branch: Branch,
        more: &mut Vec<Branch>,
        step: &mut Step,
    ) {
        let ends = branch.held.next_end().unwrap_or(u64::MAX);
        let took = branch.left.min(ends);
        let seconds = took as f64 / NANOS;
        let alive = -libm::expm1(-self.rate * seconds) / self.rate;
        step.seconds[branch.phase as usize] += branch.weight * alive;
        for loss in self.losses(&branch, seconds) {
            let mut held = branch.held.clone();
            let lost = loss.lost;
            let bits = (0..self.question.levels.len()).filter(|bit| lost & (1 << bit) != 0);
            bits.for_each(|level| held.lose(level));
            held.away = loss.away;
            self.find(&held, branch.weight * loss.stopped);
            held.pass(took);
            let next = Branch {
                held,
                left: branch.left - took,
                writing: branch.writing & !lost,
                weight: branch.weight * loss.passed,
                ..branch
            };
            match next.left {
                0 => self.end(position, state, next, more, step),
                _ => more.push(next),
            }
        }
    }

    /// Which storage is lost without a stop in so many seconds, and which comes back: all that
    /// can be, levels being independent.
    fn losses(&self, branch: &Branch, seconds: f64) -> Vec<Loss> {
        let held = &branch.held;
        if self.safe {
            let (passed, stopped) = outages::until(&[(1.0, 0.0)], self.rate, seconds);
            let (lost, away) = (0, held.away);
            return vec![Loss {
                lost,
                away,
                stopped,
                passed,
            }];
        }
        let mut all = vec![(0, held.away, vec![(1.0, 0.0)])];
        for (level, service) in self.services.iter().enumerate() {
            let stored = held.age[level] != NONE || held.flight[level] != NONE;
            let holds = stored || branch.writing & (1 << level) != 0;
            let fates = service.fates(held.away[level], holds);
            if let [only] = fates
                && only.terms == [(1.0, 0.0)]
            {
                continue;
            }
            let with = |(lost, away, terms): &(Mask, [u8; LEVELS_MAX], Terms), fate: &Fate| {
                let mut away = *away;
                away[level] = fate.to;
                let lost = lost | Mask::from(fate.lost) << level;
                (lost, away, outages::product(terms, &fate.terms))
            };
            all = all
                .iter()
                .flat_map(|before| fates.iter().map(move |fate| with(before, fate)))
                .collect();
        }
        let loss = |(lost, away, terms): (Mask, [u8; LEVELS_MAX], Terms)| {
            let (passed, stopped) = outages::until(&terms, self.rate, seconds);
            Loss {
                lost,
                away,
                stopped,
                passed,
            }
        };
        all.into_iter().map(loss).collect()
    }

    /// Notes for how long a stop finds this held. It ends background writes: what differs
    /// in them only is the same.
    fn find(&mut self, held: &Held, seconds: f64) {
        let mut held = held.clone();
        (0..self.question.levels.len()).for_each(|level| held.end_flight(level));
        match self.stopped.iter_mut().find(|(known, _)| *known == held) {
            Some((_, sum)) => *sum += seconds,
            None => self.stopped.push((held, seconds)),
        }
    }

    /// Stops that do the same to what is held by `present` levels, of which `degraded` lack
    /// a part.
    fn endings(&mut self, present: Mask, degraded: Mask) -> Rc<[Ending]> {
        if let Some(known) = self.endings.get(&(present, degraded)) {
            return Rc::clone(known);
        }
        let mut merged: BTreeMap<(Mask, bool, Mask), f64> = BTreeMap::new();
        for (outcome, rate) in &self.stops {
            let survive = outcome.survive & !(outcome.also & degraded) & present;
            let replaces = outcome.replaces && survive & self.redundant != 0;
            *merged.entry((survive, replaces, outcome.away)).or_default() += rate;
        }
        let all: Rc<[Ending]> = merged
            .into_iter()
            .map(|((survive, replaces, away), rate)| (survive, replaces, away, rate))
            .collect();
        self.endings.insert((present, degraded), Rc::clone(&all));
        all
    }

    /// All stops, from what is held without background writes; `seconds` times a stop's
    /// rate is its probability.
    fn stop(&mut self, held: &Held, seconds: f64, step: &mut Step) {
        let count = self.question.levels.len();
        let with = (0..count).filter(|&level| held.age[level] != NONE);
        let present = with.map(|level| 1 << level).sum();
        for &(survive, replaces, away, rate) in self.endings(present, held.degraded).iter() {
            let weight = seconds * rate;
            if weight < self.negligible {
                continue;
            }
            let mut left = held.clone();
            (0..count)
                .filter(|level| survive & (1 << level) == 0)
                .for_each(|level| left.lose(level));
            if replaces {
                left.degraded |= survive & self.redundant;
            }
            for (left, share) in self.gone(left, away) {
                self.restart(left, weight * share, step);
            }
        }
    }

    /// The servers of these levels are away, if they are not yet: for a short time, or a long one.
    fn gone(&self, held: Held, levels: Mask) -> Vec<(Held, f64)> {
        let mut all = vec![(held, 1.0)];
        for level in 0..self.services.len() {
            if levels & (1 << level) == 0 || all[0].0.away[level] != 0 {
                continue;
            }
            let to = &self.services[level].gone;
            let with = |(held, share): (Held, f64), &(state, of): &(u8, f64)| {
                let mut held = held;
                held.away[level] = state;
                (held, share * of)
            };
            all = all
                .into_iter()
                .flat_map(|before| to.iter().map(move |to| with(before.clone(), to)))
                .collect();
        }
        all
    }

    /// From the newest version that is left.
    fn restart(&self, mut held: Held, weight: f64, step: &mut Step) {
        let levels = &self.question.levels;
        let with = (0..levels.len()).filter(|&level| held.age[level] != NONE);
        let best = with.min_by(|&a, &b| {
            let times = levels[a].restart.total_cmp(&levels[b].restart);
            held.age[a].cmp(&held.age[b]).then(times)
        });
        let Some(level) = best else {
            step.anew += weight;
            return;
        };
        let back = held.age[level];
        for age in &mut held.age {
            if *age != NONE {
                *age -= back;
            }
        }
        step.to
            .push((-i64::from(back), State::Restart(level as u8, held), weight));
    }

    /// The end of a phase.
    fn end(
        &self,
        position: i64,
        state: &State,
        mut branch: Branch,
        more: &mut Vec<Branch>,
        step: &mut Step,
    ) {
        let count = self.question.levels.len();
        match (branch.phase, state) {
            (Phase::Restart, State::Restart(level, _)) => {
                let level = usize::from(*level);
                if branch.held.age[level] == NONE {
                    return self.restart(branch.held, branch.weight, step);
                }
                branch.held.keep(level, 0);
                let local = (0..count).filter(|bit| self.local & (1 << bit) != 0);
                local.for_each(|level| branch.held.keep(level, 0));
                step.to.push((0, State::Run(branch.held), branch.weight));
            }
            (Phase::Compute, _) => {
                let due = |&level: &usize| {
                    let multiple = i64::from(self.pattern.multiples[level]);
                    let free = branch.held.flight[level] == NONE && branch.held.away[level] == 0;
                    (position + 1).rem_euclid(multiple) == 0 && free
                };
                let levels: Vec<usize> = (0..count).filter(due).collect();
                branch.phase = Phase::Write;
                branch.writing = levels.iter().map(|level| 1 << level).sum();
                let costs: f64 = levels
                    .iter()
                    .map(|&level| self.question.levels[level].cost)
                    .sum();
                let seconds = if levels.is_empty() {
                    0.0
                } else {
                    costs + self.question.capture
                };
                branch.left = nanos(seconds);
                more.push(branch);
            }
            _ => {
                branch.held.older(1);
                for level in (0..count).filter(|bit| branch.writing & (1 << bit) != 0) {
                    match nanos(self.question.levels[level].background) {
                        0 => branch.held.keep(level, 0),
                        left => (branch.held.flight[level], branch.held.left[level]) = (0, left),
                    }
                }
                step.to.push((1, State::Run(branch.held), branch.weight));
            }
        }
    }
}

//! The best levels and intervals for a job, and what would make the job faster still.
//!
//! Every subset of levels gets a first-order estimate; for the few best, intervals and
//! multiples are improved step by step with the expected time of [`crate::lifetime`] as the
//! goal. The number of steps is bounded, so that an answer takes about as long for five
//! levels on any number of nodes.

use std::collections::BTreeMap;

use outlive_base::{Code, Entity, Error, Result};

use crate::classes::Classes;
use crate::lifetime::{Effort, Lifetime, Pattern, Question, with_effort};
use crate::machine::{Job, Level};
use crate::methods;

/// Subsets that are looked at closely.
const CLOSELY: usize = 4;
/// For the worth of inputs, which are differences: states of less probability are left out.
const FINE: f64 = 1e-9;
/// Patterns of more intervals are not tried.
const LENGTH_MAX: u64 = 2_000;
/// The few best subsets are told apart with larger steps ...
const STEP_COARSE: f64 = 1.1;
/// ... by so many evaluations each; then the best is improved by so many.
const TRIES_COARSE: usize = 16;
const TRIES_FINE: usize = 80;
const STEP_FINE: f64 = 1.015;
/// Checkpoints are at least half of the fastest write apart.
const WRITES_APART: f64 = 2.0;
/// A first interval without a result is doubled at most so often.
const LONGER_MAX: usize = 5;
/// Large enough to leave a valley: where writes are refused, cost is not smooth in multiples.
const STEP_FIRST: f64 = 2.0;
/// Before that each has so many tries; those that take longer than the best by more than this
/// factor have no more.
const TRIES_PROBE: usize = 8;
const PROMISING: f64 = 1.1;
/// None makes more steps along the chain: this bounds the time, whatever the job.
const WORK_PROBE: u64 = 4_000_000;
const WORK_COARSE: u64 = 8_000_000;
const WORK_FINE: u64 = 40_000_000;

/// Levels, intervals, and what they cost.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The levels in use: places in the list that was asked about, ascending.
    pub levels: Vec<usize>,
    /// When to save at each.
    pub pattern: Pattern,
    /// What is expected.
    pub lifetime: Lifetime,
}

/// A first-order estimate of the overhead of all levels of a question, and a pattern to
/// begin with. None if a level of it is of no use.
fn estimate(question: &Question) -> Option<(f64, Vec<usize>, Vec<f64>)> {
    let rungs = methods::rungs(question);
    if rungs.len() != question.levels.len() {
        return None;
    }
    let rates = question.classes.severities(&rungs);
    let mut sum = 0.0;
    let mut periods = Vec::new();
    for (place, &rung) in rungs.iter().enumerate() {
        let level = &question.levels[rung];
        let capture = if place == 0 { question.capture } else { 0.0 };
        let (cost, rate) = ((level.cost + capture).max(1e-9), rates[place]);
        let period = libm::sqrt(2.0 * cost / rate).max(level.background);
        let period = period.max(periods.last().copied().unwrap_or(0.0));
        sum += cost / period + rate * (period / 2.0 + level.background + level.restart);
        periods.push(period);
    }
    // What nothing restores costs half the job on average, and more if it comes often.
    let beyond = rates.last().copied().unwrap_or(0.0) * question.work;
    sum += if beyond > 0.0 {
        libm::expm1(beyond.min(500.0)) / beyond - 1.0
    } else {
        0.0
    };
    Some((sum, rungs, periods))
}

/// What was asked, the bits of the interval and the ratios, and what was found.
type Asked = BTreeMap<(u64, Vec<u32>), f64>;

/// A search: ratios[i] is the multiple of rung i over that of rung i - 1; ratios[0] is 1.
struct Search<'a> {
    question: &'a Question,
    rungs: Vec<usize>,
    tries: usize,
    effort: Effort,
    /// No shorter intervals: a level that is written in the background ends it at
    /// most half a write before the next checkpoint.
    shortest: f64,
    /// Steps along the chain that were made, and how many may be.
    work: u64,
    work_max: u64,
    known: Asked,
}

impl Search<'_> {
    fn pattern(&self, interval: f64, ratios: &[u32]) -> Pattern {
        let mut multiples = vec![1; self.rungs.len()];
        let mut multiple = 1_u32;
        for (&rung, &ratio) in self.rungs.iter().zip(ratios) {
            multiple = multiple.saturating_mul(ratio);
            multiples[rung] = multiple;
        }
        Pattern {
            interval,
            multiples,
        }
    }

    fn value(&mut self, interval: f64, ratios: &[u32]) -> f64 {
        let pattern = self.pattern(interval, ratios);
        let asked = (interval.to_bits(), ratios.to_vec());
        if let Some(&value) = self.known.get(&asked) {
            return value;
        }
        if interval < self.shortest
            || pattern.length() > LENGTH_MAX
            || self.tries == 0
            || self.work > self.work_max
        {
            return f64::INFINITY;
        }
        self.tries -= 1;
        let found = with_effort(self.question, &pattern, self.effort, &mut self.work);
        let value = found.map_or(f64::INFINITY, |found| found.total);
        self.known.insert(asked, value);
        value
    }

    /// From a first guess to where no step helps, from the first size of step to the last.
    fn improve(
        &mut self,
        mut interval: f64,
        mut ratios: Vec<u32>,
        (mut step, last): (f64, f64),
    ) -> (f64, f64, Vec<u32>) {
        let mut found = self.value(interval, &ratios);
        // Too long a way to the upper levels, or intervals that are too short to be looked
        // at closely: begin where there is a result.
        while found.is_infinite() && ratios.iter().any(|&ratio| ratio > 1) {
            ratios
                .iter_mut()
                .for_each(|ratio| *ratio = ratio.div_ceil(2));
            found = self.value(interval, &ratios);
        }
        for _ in 0..LONGER_MAX {
            if found.is_infinite() {
                interval *= 2.0;
                found = self.value(interval, &ratios);
            }
        }
        while step > last && self.tries > 0 {
            let mut better = false;
            for (next, other) in neighbours(interval, &ratios, step) {
                let value = self.value(next, &other);
                if value < found * (1.0 - 1e-9) {
                    (found, interval, ratios, better) = (value, next, other, true);
                    break;
                }
            }
            if !better {
                step = libm::sqrt(step);
            }
        }
        (found, interval, ratios)
    }
}

/// Other intervals and ratios, by a factor: each alone, and the interval with the next ratio
/// adapted so that the other levels stay where they are.
fn neighbours(interval: f64, ratios: &[u32], step: f64) -> Vec<(f64, Vec<u32>)> {
    let mut found = Vec::new();
    for factor in [step, 1.0 / step] {
        found.push((interval * factor, ratios.to_vec()));
    }
    let scaled =
        |ratio: u32, factor: f64| libm::round(f64::from(ratio) * factor).clamp(1.0, 1e4) as u32;
    for at in 1..ratios.len() {
        for factor in [step, 1.0 / step] {
            let mut next = scaled(ratios[at], factor);
            if next == ratios[at] {
                next = if factor > 1.0 {
                    next + 1
                } else {
                    next.saturating_sub(1).max(1)
                };
            }
            let mut other = ratios.to_vec();
            other[at] = next;
            if next == ratios[at] {
                continue;
            }
            found.push((interval, other.clone()));
            if at == 1 {
                found.push((interval * f64::from(ratios[1]) / f64::from(next), other));
            } else {
                let mut shifted = other;
                shifted[at - 1] = scaled(ratios[at - 1], f64::from(ratios[at]) / f64::from(next));
                found.push((interval, shifted));
            }
        }
    }
    found
}

/// The shortest interval that is worth a try, in seconds: half of the fastest write.
fn shortest(question: &Question) -> f64 {
    let write = |level: &Level| question.capture + level.cost + level.background;
    question
        .levels
        .iter()
        .map(write)
        .fold(f64::INFINITY, f64::min)
        / WRITES_APART
}

/// A subset of levels, its first-order estimate, the order of its levels and their periods.
type Estimated = (f64, Vec<usize>, Question, Vec<usize>, Vec<f64>);

/// A subset of levels and the best that was found for it.
struct Candidate {
    /// Seconds.
    found: f64,
    chosen: Vec<usize>,
    question: Question,
    rungs: Vec<usize>,
    interval: f64,
    ratios: Vec<u32>,
    known: Asked,
}

impl Candidate {
    /// A few tries from the first-order optimum: enough to see which subsets are worth more.
    fn probed((_, chosen, question, rungs, periods): Estimated) -> Candidate {
        let mut ratios = vec![1_u32];
        for pair in periods.windows(2) {
            ratios.push(libm::round(pair[1] / pair[0]).clamp(1.0, 1000.0) as u32);
        }
        let length = |ratios: &[u32]| ratios.iter().map(|&one| u64::from(one)).product::<u64>();
        while length(&ratios) > LENGTH_MAX {
            ratios
                .iter_mut()
                .for_each(|ratio| *ratio = ratio.div_ceil(2));
        }
        let begun = Candidate {
            found: f64::INFINITY,
            chosen,
            question,
            rungs,
            interval: periods[0],
            ratios,
            known: BTreeMap::new(),
        };
        begun.searched(TRIES_PROBE, WORK_PROBE)
    }

    /// More of the same.
    fn tried(self) -> Candidate {
        self.searched(TRIES_COARSE, WORK_COARSE)
    }

    fn searched(self, tries: usize, work_max: u64) -> Candidate {
        let mut search = Search {
            question: &self.question,
            rungs: self.rungs.clone(),
            tries,
            effort: Effort::COARSE,
            shortest: shortest(&self.question),
            work: 0,
            work_max,
            known: self.known,
        };
        let steps = (1.6, STEP_COARSE);
        let (found, interval, ratios) = search.improve(self.interval, self.ratios, steps);
        let known = search.known;
        Candidate {
            found,
            interval,
            ratios,
            known,
            ..self
        }
    }
}

/// The best plan for a job, among all subsets of `levels`.
///
/// # Errors
/// [`Code::Config`] if no plan makes headway; the remedy says what could help.
pub fn best(job: &Job, levels: &[Level], classes: &Classes) -> Result<Plan> {
    let mut candidates = Vec::new();
    for subset in 1..1_u32 << levels.len() {
        let chosen: Vec<usize> = (0..levels.len())
            .filter(|bit| subset & (1 << bit) != 0)
            .collect();
        let question = Question::new(job, levels, classes, &chosen);
        if let Some((value, rungs, periods)) = estimate(&question) {
            candidates.push((value, chosen, question, rungs, periods));
        }
    }
    candidates.sort_by(|a, b| a.0.total_cmp(&b.0));
    candidates.truncate(CLOSELY);
    let probed = candidates.into_iter().map(Candidate::probed);
    let mut probed: Vec<Candidate> = probed.collect();
    probed.sort_by(|a, b| a.found.total_cmp(&b.found));
    let most = probed.first().map_or(0.0, |first| first.found * PROMISING);
    let promising = probed.into_iter().filter(|one| one.found <= most);
    let tried = promising
        .map(Candidate::tried)
        .filter(|one| one.found.is_finite());
    let best = tried.min_by(|a, b| a.found.total_cmp(&b.found));
    let Some(best) = best else {
        return Err(hopeless(job, levels, classes));
    };
    let all = levels;
    let (levels, question) = (best.chosen, best.question);
    let mut search = Search {
        question: &question,
        rungs: best.rungs,
        tries: TRIES_FINE,
        effort: Effort::CLOSE,
        shortest: shortest(&question),
        work: 0,
        work_max: WORK_FINE,
        known: BTreeMap::new(),
    };
    let steps = (STEP_FIRST, STEP_FINE);
    let (_, interval, ratios) = search.improve(best.interval, best.ratios.clone(), steps);
    let improved = search.pattern(interval, &ratios);
    let first = search.pattern(best.interval, &best.ratios);
    // The search looks less closely, and may have been led astray.
    let last = |pattern: Pattern| {
        let efforts = [Effort::LAST, Effort::CLOSE, Effort::COARSE];
        let mut found = efforts
            .iter()
            .map(|&effort| with_effort(&question, &pattern, effort, &mut 0));
        Some((found.find_map(Result::ok)?, pattern))
    };
    let both = [last(improved), last(first)].into_iter().flatten();
    let (lifetime, pattern) = both
        .min_by(|a, b| a.0.total.total_cmp(&b.0.total))
        .ok_or_else(|| hopeless(job, all, classes))?;
    if lifetime.total > ENDLESS * lifetime.work {
        return Err(endless(job, all, classes, &lifetime));
    }
    Ok(Plan {
        levels,
        pattern,
        lifetime,
    })
}

/// A plan under which a job takes so many times its computing is none.
const ENDLESS: f64 = 1e4;

/// Why no plan makes headway, and what could help.
fn hopeless(job: &Job, levels: &[Level], classes: &Classes) -> Error {
    let mtbf = 1.0 / classes.total();
    if (0..levels.len()).all(|level| classes.restores_nothing(level)) {
        return Error::new(
            Code::Config,
            Entity::Job(job.name.clone()),
            format!(
                "it is stopped every {} on average, and no level survives any of these failures: {}",
                crate::units::duration(mtbf),
                named(levels)
            ),
            "add a level that does: a partner, xor or rs against the loss of nodes, shared storage against all",
        );
    }
    let fastest = levels
        .iter()
        .map(|level| level.cost + level.background)
        .fold(f64::INFINITY, f64::min);
    let time = crate::units::duration;
    Error::new(
        Code::Config,
        Entity::Job(job.name.clone()),
        format!(
            "it is stopped every {} on average, and no level saves it often enough: the fastest write takes {}",
            time(mtbf),
            time(fastest)
        ),
        "use fewer nodes, save fewer bytes per node, or add a level that is faster than the failures",
    )
}

fn named(levels: &[Level]) -> String {
    let names: Vec<&str> = levels.iter().map(|level| level.name.as_str()).collect();
    names.join(", ")
}

/// Why the best plan is none: the job ends, but nobody waits for that.
fn endless(job: &Job, levels: &[Level], classes: &Classes, found: &Lifetime) -> Error {
    let times = found.total / found.work;
    let often = |times: f64| match times < 1e6 {
        true => format!("{times:.0}"),
        false => format!("{times:.0e}"),
    };
    let mut reason = format!(
        "by the best plan it takes {} times as long as its computing",
        often(times)
    );
    let all = (0..levels.len()).all(|level| classes.fails(level).rate > 0.0);
    let remedy = match all && found.anew >= 1.0 {
        true => {
            reason += &format!(
                ": none of its levels ({}) survives every failure, and it begins anew {} times",
                named(levels),
                often(found.anew)
            );
            "add a level that survives more, such as one on shared storage, or split the job"
        }
        false => {
            "use fewer nodes, save fewer bytes per node, or add a level that is faster than the failures"
        }
    };
    Error::new(Code::Config, Entity::Job(job.name.clone()), reason, remedy)
}

/// What a better input is worth.
#[derive(Clone, PartialEq, Debug)]
pub struct Sensitivity {
    /// The input, in words.
    pub input: String,
    /// Seconds of the job's expected time that are saved if it is 10 % better.
    pub saved: f64,
}

/// What each input is worth under a plan, the most valuable first. The plan stays as it is:
/// near the best one, to adapt it changes little (envelope theorem).
///
/// # Errors
/// As [`crate::lifetime::lifetime`].
pub fn sensitivity(question: &Question, plan: &Pattern) -> Result<Vec<Sensitivity>> {
    let now = with_effort(question, plan, Effort::FULL.with_slack(FINE), &mut 0)?.total;
    let mut found = Vec::new();
    let mut ask = |input: String, change: &dyn Fn(&mut Question)| -> Result<()> {
        let mut other = question.clone();
        change(&mut other);
        let saved = now - with_effort(&other, plan, Effort::FULL.with_slack(FINE), &mut 0)?.total;
        found.push(Sensitivity { input, saved });
        Ok(())
    };
    ask("failures 10 % rarer".into(), &|q| {
        q.classes
            .stops
            .values_mut()
            .for_each(|rate| rate.rate /= 1.1);
    })?;
    if question.capture > 0.0 {
        ask("captures 10 % faster".into(), &|q| q.capture /= 1.1)?;
    }
    for (place, level) in question.levels.iter().enumerate() {
        ask(format!("writes to {} 10 % faster", level.name), &|q| {
            q.levels[place].cost /= 1.1;
            q.levels[place].background /= 1.1;
        })?;
        ask(format!("restarts from {} 10 % faster", level.name), &|q| {
            q.levels[place].restart /= 1.1
        })?;
        if question.classes.losses[place] > 0.0 {
            ask(format!("losses of {} 10 % rarer", level.name), &|q| {
                q.classes.losses[place] /= 1.1
            })?;
        }
        if question.classes.away(place) > 0.0 {
            ask(format!("repairs of {} 10 % faster", level.name), &|q| {
                if let Some(outage) = &mut q.classes.outages[place] {
                    outage.mean /= 1.1;
                }
            })?;
        }
    }
    found.sort_by(|a, b| b.saved.total_cmp(&a.saved));
    Ok(found)
}

#[cfg(test)]
mod tests;

//! A policy that learns what checkpoints cost and how often what fails.
//!
//! What a failure of a level's kind would cost now is the computing since the newest version
//! on that level or a more stable one: its *exposure*. A level is due when its exposure
//! reaches the level's interval; intervals come from [`schedule`] with what has been learned.
//! So a burst of failures shortens the intervals by itself, and a slow store lengthens them.

use serde::{Deserialize, Serialize};

use super::cost::{Cost, CostPrior, late};
use super::rate::{Rate, RatePrior, Rates};
use super::schedule::{Limits, Rung, Schedule, schedule};
use super::{Decision, Policy, Seen, Why};
use crate::classes::Mask;
use crate::lifetime::Question;
use crate::machine::Level;

/// A level as it is known before the job runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LevelPrior {
    /// Seconds for which a write there stops the program, in addition to the capture.
    pub cost: CostPrior,
    /// Seconds of writing in the background.
    pub background: CostPrior,
    /// Seconds of a restart from it.
    pub restart: CostPrior,
    /// How often what this level survives, and none before it, fails.
    pub failures: RatePrior,
}

/// Powers, for jobs that shall take little energy.
///
/// G. Aupy, A. Benoit, T. Herault, Y. Robert, J. Dongarra, *Optimal Checkpointing Period: Time
/// vs. Energy*, PMBS 2013: a second of checkpointing and one of computing differ in power.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Energy {
    /// Watts of the job's nodes while they compute.
    pub compute: f64,
    /// Watts while the program waits for a checkpoint, storage included.
    pub checkpoint: f64,
}

impl Energy {
    /// A power that nodes can have, in watts.
    pub fn is_power(watts: f64) -> bool {
        (1e-3..=1e12).contains(&watts)
    }

    /// Both can be.
    pub fn is_sound(&self) -> bool {
        Energy::is_power(self.compute) && Energy::is_power(self.checkpoint)
    }
}

/// Preemptions that are announced: the job is ended some time later, and goes on elsewhere.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Notice {
    /// Seconds from the announcement to the end.
    pub seconds: f64,
    /// How often that happens.
    pub rate: RatePrior,
}

/// What a job asks for.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Levels, from the one that survives least to the one that survives most (at most
    /// [`super::schedule::RUNGS_MAX`]).
    pub levels: Vec<LevelPrior>,
    /// Seconds for which every checkpoint stops the program.
    pub capture: CostPrior,
    /// How often something fails that no level survives.
    pub beyond: RatePrior,
    /// Levels that outlast the job's nodes: what is wanted when the job is about to be ended.
    pub outlasting: Mask,
    /// Checkpoints shall take at most this share of the computing time.
    pub budget: Option<f64>,
    /// No failure that a level survives shall cost more seconds of computing.
    pub lost_max: Option<f64>,
    /// When the job will be ended, if that is known.
    pub ends_at: Option<f64>,
    /// If it may be preempted. What a preemption costs beyond the notice's own time depends on
    /// whether a version fits into it: only that shortens intervals.
    pub notice: Option<Notice>,
    /// If given, energy is saved rather than time.
    pub energy: Option<Energy>,
    /// The share of background writing by which the program is slower.
    pub interference: f64,
    /// No level is written more often, in seconds.
    pub least: f64,
    /// [`Policy::decide`] is asked when it is due, and what it wants is captured at the next
    /// offer; else it is asked at each offer.
    pub ahead: bool,
}

/// Standard deviation of the logarithm of costs that were estimated, not measured.
const ESTIMATED: f64 = 0.4;

impl Settings {
    /// What a planner expects of the levels of a question, in its order (of
    /// [`crate::methods::rungs`]); rates are known as from so many failures. The last level
    /// outlasts the job.
    pub fn expected(question: &Question, events: f64) -> Settings {
        let count = question.levels.len();
        let order: Vec<usize> = (0..count).collect();
        let rates = question.classes.severities(&order);
        let total = question.classes.total();
        // What never fails by the plan may fail yet: once in ten thousand.
        let prior = |rate: f64| {
            let rate = rate.max(1e-4 * total).max(f64::MIN_POSITIVE);
            RatePrior {
                events,
                seconds: events / rate,
            }
        };
        let cost = |seconds: f64| CostPrior {
            seconds,
            spread: ESTIMATED,
        };
        let level = |(level, &rate): (&Level, &f64)| LevelPrior {
            cost: cost(level.cost),
            background: cost(level.background),
            restart: cost(level.restart),
            failures: prior(rate),
        };
        Settings {
            levels: question.levels.iter().zip(&rates).map(level).collect(),
            capture: cost(question.capture),
            beyond: prior(rates.last().copied().unwrap_or(0.0)),
            outlasting: 1 << (count.max(1) - 1),
            budget: None,
            lost_max: None,
            ends_at: None,
            notice: None,
            energy: None,
            interference: 0.0,
            least: 0.0,
            ahead: false,
        }
    }
}

/// What is known about a level.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LevelAdvice {
    /// Seconds of computing between two versions; none: it is not used.
    pub period: Option<f64>,
    /// Seconds that a write there stops the program, and of writing in the background.
    pub cost: f64,
    /// The same in the background.
    pub background: f64,
    /// Failures per second that it is needed for.
    pub rate: f64,
    /// With a probability of 90 % that rate lies between these.
    pub rate_between: (f64, f64),
    /// The probability that its interval costs at most 10 % more than the best would.
    pub confidence: f64,
    /// Failures that were seen, and writes that were measured.
    pub seen: (u64, u64),
}

/// What a policy does and how sure it is.
#[derive(Clone, PartialEq, Debug)]
pub struct Advice {
    /// Each level.
    pub levels: Vec<LevelAdvice>,
    /// Expected overhead as a share of the computing time: checkpoints, computing that is
    /// lost, restarts.
    pub overhead: (f64, f64, f64),
    /// The bound on lost work needs more than the budget; the bound is kept.
    pub over_budget: bool,
}

/// An interval that is wrong by a factor x costs (x + 1/x) / 2 times the best (Young's model):
/// 10 % more for x = 1.558, which is a rate that is wrong by x^2.
const WRONG: f64 = 2.428;
/// The intervals are computed again after so much of the shortest, if nothing is seen.
const FRESH: f64 = 1.0;
/// Of the time between two offers, the longest counts, and is forgotten by this per offer.
const GAP_FADES: f64 = 0.98;

/// The policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Adaptive {
    settings: Settings,
    capture: Cost,
    costs: Vec<Cost>,
    backgrounds: Vec<Cost>,
    restarts: Vec<Cost>,
    /// For each level, and last for what none survives.
    rates: Rates,
    /// Of preemptions.
    preempted: Option<Rate>,
    /// Seconds of computing that the state of the program stands for, up to `resumed`.
    position: f64,
    resumed: f64,
    /// The position of each level's version, and of that which is being written.
    held: Vec<Option<f64>>,
    writing: Vec<Option<f64>>,
    /// Asked ahead: levels that were wanted and not captured yet, and the position of the last
    /// capture.
    wanted: Mask,
    captured: f64,
    ends_at: f64,
    /// Between offers: the last, and the longest of late, in seconds.
    offered: Option<f64>,
    gap: f64,
    plan: Option<(f64, Schedule)>,
    /// Nothing can be due before, as long as nothing is seen.
    wake: f64,
}

impl Adaptive {
    /// A policy that knows the priors.
    pub fn new(settings: Settings) -> Adaptive {
        let levels = settings.levels.len();
        let of = |pick: fn(&LevelPrior) -> CostPrior| -> Vec<Cost> {
            settings
                .levels
                .iter()
                .map(|level| Cost::new(pick(level)))
                .collect()
        };
        let failures = settings.levels.iter().map(|level| level.failures);
        Adaptive {
            capture: Cost::new(settings.capture),
            costs: of(|level| level.cost),
            backgrounds: of(|level| level.background),
            restarts: of(|level| level.restart),
            rates: Rates::new(&failures.chain([settings.beyond]).collect::<Vec<_>>()),
            preempted: settings.notice.map(|notice| Rate::new(notice.rate)),
            position: 0.0,
            resumed: 0.0,
            held: vec![None; levels],
            writing: vec![None; levels],
            wanted: 0,
            captured: 0.0,
            ends_at: settings.ends_at.unwrap_or(f64::INFINITY),
            offered: None,
            gap: 0.0,
            plan: None,
            wake: 0.0,
            settings,
        }
    }

    /// The true values, for a policy that knows: costs of the capture and of each level
    /// (stopping the program, in the background) and rates, from now on.
    pub fn told(&mut self, capture: f64, levels: &[(f64, f64, f64)]) {
        let sure = |seconds: f64| {
            Cost::new(CostPrior {
                seconds,
                spread: 0.0,
            })
        };
        self.capture = sure(capture);
        let rates: Vec<f64> = levels.iter().map(|level| level.2).collect();
        self.rates.told(&rates);
        for (level, &(cost, background, _)) in levels.iter().enumerate() {
            self.costs[level] = sure(cost);
            self.backgrounds[level] = sure(background);
        }
        self.plan = None;
        self.wake = f64::NEG_INFINITY;
    }

    fn limits(&self) -> Limits {
        Limits {
            capture: self.capture.mean() * self.dearness(),
            budget: self.settings.budget,
            lost_max: self.settings.lost_max,
            gap: self.gap,
            least: self.settings.least,
        }
    }

    /// What a second of checkpointing counts in seconds of computing.
    fn dearness(&self) -> f64 {
        let energy = self.settings.energy;
        energy.map_or(1.0, |energy| energy.checkpoint / energy.compute)
    }

    /// Until when the intervals that were computed are good, if nothing is seen.
    fn plan_until(&self) -> f64 {
        let shortest = |plan: &Schedule| {
            let periods = plan.periods.iter().flatten();
            periods.copied().fold(f64::INFINITY, f64::min)
        };
        let until = |(made, plan): &(f64, Schedule)| made + FRESH * shortest(plan);
        self.plan.as_ref().map_or(f64::NEG_INFINITY, until)
    }

    /// The intervals by what is known at `at`.
    fn plan(&mut self, at: f64) -> Schedule {
        if at < self.plan_until()
            && let Some((_, plan)) = &self.plan
        {
            return plan.clone();
        }
        self.rates.pass(at);
        if let Some(rate) = &mut self.preempted {
            rate.pass(at);
        }
        let found = schedule(&self.rungs(), &self.limits());
        self.plan = Some((at, found.clone()));
        found
    }

    fn rungs(&self) -> Vec<Rung> {
        let dearness = self.dearness();
        let rung = |level: usize| {
            let background = self.backgrounds[level].mean();
            let slower = self.settings.interference * background;
            Rung {
                cost: (self.costs[level].mean() + slower) * dearness,
                background,
                rate: self.rates.mean(level),
            }
        };
        let mut rungs: Vec<Rung> = (0..self.costs.len()).map(rung).collect();
        // What outlasts the job restores it after a preemption, as the least stable of them.
        let outlasting = self.settings.outlasting.trailing_zeros() as usize;
        if let (Some(rate), Some(rung)) = (self.surprises(), rungs.get_mut(outlasting)) {
            rung.rate += rate;
        }
        rungs
    }

    /// How often a preemption takes what was computed since the newest version that outlasts
    /// it, because none can be written within its notice: per second. One for which that can be
    /// done costs the same whatever the interval.
    fn surprises(&self) -> Option<f64> {
        let (notice, rate) = (self.settings.notice?, self.preempted.as_ref()?);
        let level = self.refuge()?;
        let costs = [&self.capture, &self.costs[level], &self.backgrounds[level]];
        // The next offer comes somewhere between now and the longest time between two.
        Some(rate.mean() * late(&costs, notice.seconds - 0.5 * self.gap))
    }

    /// Computing that a failure for which `level` is needed would cost, if all writes under
    /// way end well.
    fn exposure(&self, level: usize) -> f64 {
        let newest = (level..self.held.len())
            .flat_map(|level| [self.held[level], self.writing[level]])
            .flatten()
            .fold(0.0, f64::max);
        self.position - newest
    }

    /// Seconds that a write to this level surely takes, all in all.
    fn surely(&self, level: usize) -> f64 {
        self.capture.high() + self.costs[level].high() + self.backgrounds[level].high()
    }

    /// True if a write to this level is worth a try before the end: if it will surely be whole; and
    /// if it will as likely as not, where more than such a write would be lost without.
    fn fits(&self, level: usize, at: f64) -> bool {
        let likely =
            self.capture.mean() + self.costs[level].mean() + self.backgrounds[level].mean();
        let surely = self.surely(level);
        let lost = self.exposure(level) + (at - self.resumed).max(0.0);
        at + surely <= self.ends_at || (at + likely <= self.ends_at && lost > surely)
    }

    /// True if the job is about to be ended and no version that outlasts it can be had before:
    /// what it computes on is lost. `busy` as in [`Policy::decide`].
    pub fn is_spent(&self, at: f64, busy: Mask) -> bool {
        let refuge = self.refuge().filter(|_| self.ends_at.is_finite());
        refuge.is_some_and(|level| busy & (1 << level) == 0 && !self.fits(level, at))
    }

    /// Preemptions that were announced, and how often they come, per second.
    pub fn preemptions(&self) -> Option<(u64, f64)> {
        let rate = self.preempted.as_ref()?;
        Some((rate.seen(), rate.mean()))
    }

    /// Of the levels that outlast the job, the one that is written soonest.
    fn refuge(&self) -> Option<usize> {
        let outlasting =
            (0..self.costs.len()).filter(|bit| self.settings.outlasting & (1 << bit) != 0);
        outlasting.min_by(|&a, &b| self.surely(a).total_cmp(&self.surely(b)))
    }

    /// When the last checkpoint before the end must begin at the latest.
    fn last_call(&self) -> Option<(usize, f64)> {
        let level = self.refuge().filter(|_| self.ends_at.is_finite())?;
        Some((level, self.ends_at - self.surely(level) - self.gap))
    }

    fn compute_until(&mut self, at: f64) {
        self.position += (at - self.resumed).max(0.0);
        self.resumed = self.resumed.max(at);
    }

    /// The program was stopped, and these levels survive.
    fn stop(&mut self, survive: Mask) {
        self.wanted = 0;
        for level in 0..self.costs.len() {
            self.writing[level] = None;
            if survive & (1 << level) == 0 {
                self.held[level] = None;
            }
        }
    }

    /// The program offers a checkpoint so long after the last.
    fn offered_after(&mut self, seconds: f64) -> bool {
        let longer = seconds > self.gap;
        self.gap = seconds.max(self.gap * GAP_FADES);
        longer
    }

    /// What was wanted ahead is captured now, or what others wanted.
    fn captured_at(&mut self, at: f64) {
        self.compute_until(at);
        self.captured = self.position;
        for level in 0..self.writing.len() {
            if self.wanted & (1 << level) != 0 {
                self.writing[level] = Some(self.position);
            }
        }
        self.wanted = 0;
    }

    fn save(&mut self, levels: Mask, why: Why) -> Decision {
        for level in 0..self.writing.len() {
            if levels & (1 << level) != 0 {
                self.writing[level] = Some(self.position);
            }
        }
        self.wanted |= levels;
        Decision { levels, why }
    }

    /// What is known of costs: of the capture, and for each level of a write in the background
    /// and of a restart.
    pub fn costs(&self) -> (Cost, Vec<(Cost, Cost)>) {
        let levels = self.backgrounds.iter().zip(&self.restarts);
        (self.capture, levels.map(|(a, b)| (*a, *b)).collect())
    }

    /// What it does and how sure it is of it, at `at`.
    pub fn advice(&mut self, at: f64) -> Advice {
        self.plan = None;
        let plan = self.plan(at);
        let level = |level: usize| {
            let rates = &self.rates;
            let mean = rates.mean(level);
            let writes = self.costs[level].seen();
            LevelAdvice {
                period: plan.periods[level],
                cost: self.capture.mean() + self.costs[level].mean(),
                background: self.backgrounds[level].mean(),
                rate: mean,
                rate_between: (rates.quantile(level, 0.05), rates.quantile(level, 0.95)),
                confidence: rates.below(level, mean * WRONG) - rates.below(level, mean / WRONG),
                seen: (
                    rates.seen(level),
                    writes.max(self.backgrounds[level].seen()),
                ),
            }
        };
        let levels: Vec<LevelAdvice> = (0..self.costs.len()).map(level).collect();
        let restarts = levels.iter().zip(&self.restarts);
        let restart = restarts
            .map(|(level, restart)| level.rate * restart.mean())
            .sum();
        Advice {
            overhead: (plan.checkpoint, plan.lost, restart),
            over_budget: plan.over_budget,
            levels,
        }
    }
}

impl Policy for Adaptive {
    fn see(&mut self, at: f64, seen: Seen) {
        match seen {
            Seen::Captured { seconds } => {
                self.capture.measure(seconds);
                if self.settings.ahead {
                    self.captured_at(at - seconds);
                }
            }
            Seen::Gap { seconds } => {
                self.offered_after(seconds);
            }
            Seen::Waited { level, seconds } => self.costs[level].measure(seconds),
            Seen::Resumed => {
                self.resumed = at;
                self.offered = Some(at);
                self.wake = at;
                return;
            }
            Seen::Stored { level, seconds } => {
                if seconds > 0.0 {
                    self.backgrounds[level].measure(seconds);
                }
                // A version that others wanted goes to levels of which this one did not know.
                let unasked = self.settings.ahead.then_some(self.captured);
                if let Some(position) = self.writing[level].take().or(unasked) {
                    self.held[level] = Some(position);
                }
            }
            Seen::Failed { level } => {
                self.writing[level] = None;
                self.wanted &= !(1 << level);
            }
            Seen::Lost { level } => (self.held[level], self.writing[level]) = (None, None),
            Seen::Stopped { survive } => {
                let levels = self.costs.len();
                let needed = (0..levels).find(|&level| survive & (1 << level) != 0);
                self.rates.fail(needed.unwrap_or(levels), at);
                self.stop(survive);
            }
            Seen::Preempted => {
                if let Some(rate) = &mut self.preempted {
                    rate.fail(at);
                }
            }
            Seen::Ended { survive } => {
                self.stop(survive);
                self.ends_at = self.settings.ends_at.unwrap_or(f64::INFINITY);
            }
            Seen::Restarted {
                from,
                holds,
                seconds,
            } => {
                if let Some(level) = from.filter(|_| seconds > 0.0) {
                    self.restarts[level].measure(seconds);
                }
                self.position = from.and_then(|level| self.held[level]).unwrap_or(0.0);
                for (level, held) in self.held.iter_mut().enumerate() {
                    *held = match from.is_some() && holds & (1 << level) != 0 {
                        true => Some(self.position),
                        // Newer ones belong to a future that will not be.
                        false => held.filter(|&position| position <= self.position),
                    };
                }
                self.captured = self.position;
                self.resumed = at;
                self.offered = None;
            }
            Seen::EndsBy { at } => {
                let given = self.settings.ends_at.unwrap_or(f64::INFINITY);
                self.ends_at = if at.is_finite() {
                    at.min(self.ends_at)
                } else {
                    given
                };
            }
        }
        self.plan = None;
        self.wake = f64::NEG_INFINITY;
    }

    fn decide(&mut self, at: f64, busy: Mask) -> Decision {
        self.compute_until(at);
        if let Some(before) = self.offered.replace(at)
            && !self.settings.ahead
            && self.offered_after(at - before)
        {
            self.wake = at;
        }
        if at < self.wake {
            return Decision::skip(Why::Early);
        }
        if let Some((level, latest)) = self.last_call()
            && at >= latest
        {
            let fits = self.fits(level, at);
            let idle = busy & (1 << level) == 0;
            if fits && idle && self.exposure(level) > 0.0 {
                return self.save(1 << level, Why::Ending);
            }
        }
        let plan = self.plan(at);
        let Some(base) = plan.periods.iter().flatten().copied().next() else {
            return Decision::skip(Why::Early);
        };
        let half = 0.5 * self.gap;
        let used: Vec<(usize, f64)> = plan
            .periods
            .iter()
            .enumerate()
            .filter_map(|(level, period)| Some((level, (*period)?)))
            .collect();
        let fires = |&&(level, period): &&(usize, f64)| self.exposure(level) >= period - half;
        if !used.iter().any(|one| fires(&one)) {
            let due = self.due(at).unwrap_or(f64::INFINITY);
            self.wake = due.min(self.plan_until());
            return Decision::skip(Why::Early);
        }
        // Those that would be due before the next time go now, and the lower ones with them. Asked
        // ahead, it is asked again and again while one is busy: that makes no other one due.
        let is_idle = |level: usize| busy & (1 << level) == 0;
        if self.settings.ahead && !used.iter().any(|one| fires(&one) && is_idle(one.0)) {
            return Decision::skip(Why::Busy);
        }
        let most = used
            .iter()
            .filter(|(level, _)| !self.settings.ahead || is_idle(*level))
            .filter(|(level, period)| self.exposure(*level) + 0.5 * base.min(*period) >= *period)
            .map(|(level, _)| *level)
            .max();
        let levels: Mask = used
            .iter()
            .filter(|(level, _)| most.is_some_and(|most| *level <= most))
            .filter(|(level, _)| busy & (1 << level) == 0)
            .map(|(level, _)| 1 << level)
            .sum();
        match levels {
            0 => Decision::skip(Why::Busy),
            levels => {
                let bound = self.settings.lost_max.is_some_and(|bound| {
                    used.iter().any(|&(level, period)| {
                        let rung = self.backgrounds[level].mean();
                        levels & (1 << level) != 0 && period + rung >= bound * 0.9
                    })
                });
                self.save(levels, if bound { Why::Bound } else { Why::Due })
            }
        }
    }

    fn due(&mut self, at: f64) -> Option<f64> {
        let position = self.position + (at - self.resumed).max(0.0);
        let later = position - self.position;
        let plan = self.plan(at);
        let each = plan
            .periods
            .iter()
            .enumerate()
            .filter_map(|(level, period)| {
                let left = (*period)? - 0.5 * self.gap - self.exposure(level) - later;
                Some(at + left.max(0.0))
            });
        let last = self.last_call().map(|(_, latest)| latest.max(at));
        each.chain(last)
            .filter(|at| at.is_finite())
            .min_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests;

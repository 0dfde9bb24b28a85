//! Jobs on a machine that fails: components, lost nodes and stored versions, one by one.
//!
//! It shares with the planner the description of the machine and what a redundancy scheme
//! survives, and nothing else: no rates of outcomes, no classes, no formula. So it checks
//! the planner's analysis ([`outlive_planner::lifetime`]), and it shows what the analysis
//! leaves out: Weibull lives, several replaced nodes at a time. What is saved when is decided
//! by a [`Policy`], the code that also runs in a job.
//!
//! Invariants: same seed, same history (P8); time never runs back; a version is used only if
//! its level survives the loss of all nodes that have lacked their part since it was written.

pub mod failures;
pub mod grid;
mod servers;
pub mod shared;
pub mod spares;
pub mod steered;

use outlive_base::rng::Sequence;
use outlive_planner::classes::Mask;
use outlive_planner::lifetime::Pattern;
use outlive_planner::machine::{Job, Level, Machine, Scheme};
use outlive_planner::online::{Every, Policy, Seen};

use failures::{Event, Failing, Failures, Source};
use servers::Away;
use spares::Pool;

/// What a run took, in seconds.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Spent {
    /// All of it.
    pub total: f64,
    /// Computing that was kept.
    pub work: f64,
    /// Stopped by checkpoints.
    pub checkpoint: f64,
    /// From failures until the program computes again.
    pub restart: f64,
    /// Until there were nodes enough to restart on.
    pub waiting: f64,
    /// How often the job was stopped.
    pub stops: u64,
    /// How often it was preempted.
    pub preemptions: u64,
    /// How often it began anew.
    pub anew: u64,
}

impl Spent {
    /// Time beyond the work, as a share of the work.
    pub fn overhead(&self) -> f64 {
        self.total / self.work - 1.0
    }
}

/// A level's versions.
#[derive(Clone, Debug)]
struct Store {
    /// The newest, in intervals done.
    version: Option<u64>,
    /// Nodes that lack their part of it, ascending.
    missing: Vec<u32>,
    /// What is written in the background, since when, and when that ends.
    flight: Option<(u64, f64, f64)>,
}

/// A job that a policy steers.
pub struct JobRun<'a, F, P> {
    job: &'a Job,
    levels: &'a [Level],
    /// Seconds of computing from one offer to the next.
    step: f64,
    policy: P,
    failures: F,
    /// From when on writes take so many times as long.
    slower: Option<(f64, f64)>,
    /// Nodes in repair; none: there is always a spare.
    pool: Option<Pool>,
    /// Servers in repair; none: they are back at once.
    away: Option<Away>,
    /// Intervals of one job, after which the next begins.
    whole: u64,
    /// From when on, and after how many intervals, is counted.
    begun: (f64, u64),
    stores: Vec<Store>,
    now: f64,
    done: u64,
    spent: Spent,
}

enum Phase {
    /// The phase ended.
    Over,
    /// The job was stopped.
    Stopped,
}

impl<'a, F: Failing> JobRun<'a, F, Every> {
    /// A job under a pattern, whose version 0 lies on all levels, and the failures that it
    /// meets.
    pub fn new(
        job: &'a Job,
        levels: &'a [Level],
        pattern: &Pattern,
        failures: F,
    ) -> JobRun<'a, F, Every> {
        let policy = Every::new(&pattern.multiples);
        JobRun::steered(job, levels, pattern.interval, policy, failures)
    }
}

impl<'a, F: Failing, P: Policy> JobRun<'a, F, P> {
    /// A job that offers a checkpoint after every `step` seconds of computing, of which
    /// `policy` takes what it wants.
    pub fn steered(
        job: &'a Job,
        levels: &'a [Level],
        step: f64,
        policy: P,
        failures: F,
    ) -> JobRun<'a, F, P> {
        let store = Store {
            version: Some(0),
            missing: Vec::new(),
            flight: None,
        };
        JobRun {
            job,
            levels,
            step,
            policy,
            failures,
            slower: None,
            pool: None,
            away: None,
            whole: u64::MAX,
            begun: (0.0, 0),
            stores: vec![store; levels.len()],
            now: 0.0,
            done: 0,
            spent: Spent::default(),
        }
    }

    /// From `at` on captures and writes take so many times as long.
    pub fn slower(mut self, at: f64, times: f64) -> JobRun<'a, F, P> {
        self.slower = Some((at, times));
        self
    }

    /// Lost nodes are repaired, and there are only so many spares, as the machine says.
    pub fn with_spares(mut self, machine: &Machine, seed: u64, stream: u64) -> JobRun<'a, F, P> {
        self.pool = Pool::of(machine, seed, stream);
        self
    }

    /// Lost servers of shared storage are repaired, as the machine says.
    pub fn with_repairs(mut self, machine: &Machine, seed: u64, stream: u64) -> JobRun<'a, F, P> {
        self.away = Some(Away::new(machine, seed, stream));
        self
    }

    /// A row of jobs of so many intervals: one that no level restores begins anew, those before it
    /// stay done.
    pub fn jobs_of(mut self, intervals: u64) -> JobRun<'a, F, P> {
        self.whole = intervals.max(1);
        self
    }

    /// What happens in the first so many seconds is not counted.
    pub fn after(mut self, seconds: f64) -> JobRun<'a, F, P> {
        self.advance(u64::MAX, seconds, false);
        self.spent = Spent::default();
        self.begun = (self.now, self.done);
        self
    }

    fn price(&self, seconds: f64) -> f64 {
        match self.slower {
            Some((at, times)) if self.now >= at => seconds * times,
            _ => seconds,
        }
    }

    /// Until so many intervals of work are done, or that moment is reached.
    pub fn run(mut self, intervals: u64, seconds_max: f64) -> Spent {
        let (since, before) = self.begun;
        self.advance(before.saturating_add(intervals), seconds_max, true);
        self.spent.total = self.now.min(seconds_max) - since;
        self.spent.work = self.done.saturating_sub(before) as f64 * self.step;
        self.spent
    }

    /// Seconds of work that were kept by each of these moments, ascending.
    pub fn kept_by(mut self, moments: &[f64]) -> Vec<f64> {
        let mut found = Vec::new();
        for &moment in moments {
            self.advance(u64::MAX, moment, false);
            found.push(self.done as f64 * self.step);
        }
        found
    }

    /// `last`: what is saved after the end is not kept.
    fn advance(&mut self, intervals: u64, seconds_max: f64, last: bool) {
        while self.done < intervals && self.now < seconds_max {
            let before = self.done;
            match self.interval() {
                Phase::Over if last && self.now > seconds_max => self.done = before,
                Phase::Over => {}
                Phase::Stopped => self.recover(if last { seconds_max } else { f64::INFINITY }),
            }
        }
    }

    fn interval(&mut self) -> Phase {
        let Phase::Over = self.pass(self.step, &mut Vec::new()) else {
            return Phase::Stopped;
        };
        let next = self.done + 1;
        let flying = |(bit, store): (usize, &Store)| match store.flight.is_some() || self.away(bit)
        {
            true => 1 << bit,
            false => 0,
        };
        let busy: Mask = self.stores.iter().enumerate().map(flying).sum();
        let wanted = self.policy.decide(self.now, busy).levels & !busy;
        if wanted == 0 {
            self.done = next;
            return Phase::Over;
        }
        let mut writing: Vec<usize> = (0..self.levels.len())
            .filter(|level| wanted & (1 << level) != 0)
            .collect();
        let capture = self.price(self.job.capture);
        let cost = |level: &usize| self.price(self.levels[*level].cost);
        let costs: Vec<f64> = writing.iter().map(cost).collect();
        let paid = writing.clone();
        let begun = self.now;
        let phase = self.pass(capture + costs.iter().sum::<f64>(), &mut writing);
        self.spent.checkpoint += self.now - begun;
        if let Phase::Stopped = phase {
            return Phase::Stopped;
        }
        self.done = next;
        self.policy
            .see(self.now, Seen::Captured { seconds: capture });
        for (level, seconds) in paid.into_iter().zip(costs) {
            if self.levels[level].background == 0.0 {
                self.policy.see(self.now, Seen::Waited { level, seconds });
            }
        }
        for level in writing {
            let background = self.price(self.levels[level].background);
            match background > 0.0 {
                true => self.stores[level].flight = Some((next, self.now, self.now + background)),
                false => self.stored(level, next, self.now, 0.0),
            }
        }
        self.policy.see(self.now, Seen::Resumed);
        Phase::Over
    }

    /// Whether servers of a level are in repair.
    fn away(&self, level: usize) -> bool {
        match (self.levels[level].scheme, &self.away) {
            (Scheme::Shared { servers }, Some(away)) => away.is(self.now, servers),
            _ => false,
        }
    }

    /// A level has a version.
    fn stored(&mut self, level: usize, version: u64, at: f64, seconds: f64) {
        self.holds(level, version);
        self.policy.see(at, Seen::Stored { level, seconds });
    }

    fn holds(&mut self, level: usize, version: u64) {
        let store = &mut self.stores[level];
        (store.version, store.flight) = (Some(version), None);
        store.missing.clear();
    }

    /// Lets so many seconds pass, unless the job is stopped. `writing`: levels that are
    /// being written; those whose storage is lost leave it.
    fn pass(&mut self, seconds: f64, writing: &mut Vec<usize>) -> Phase {
        let end = self.now + seconds;
        while self.failures.next_at() < end {
            let (at, event) = self.failures.take();
            self.background(at);
            self.now = at;
            if self.happens(&event, writing) {
                return Phase::Stopped;
            }
        }
        self.background(end);
        self.now = end;
        Phase::Over
    }

    /// Background writes that have ended by then, the first first.
    fn background(&mut self, until: f64) {
        loop {
            let ends = self.stores.iter().enumerate();
            let ended = ends
                .filter_map(|(level, store)| Some((level, store.flight?)))
                .filter(|(_, (_, _, end))| *end <= until)
                .min_by(|a, b| a.1.2.total_cmp(&b.1.2));
            let Some((level, (version, begun, end))) = ended else {
                return;
            };
            self.stored(level, version, end, end - begun);
        }
    }

    /// True if it stops the job.
    fn happens(&mut self, event: &Event, writing: &mut Vec<usize>) -> bool {
        let there;
        let (lost, stops): (&[u32], bool) = match event {
            Event::Light => (&[], true),
            Event::Nodes(nodes) => {
                let lost = match &mut self.pool {
                    Some(pool) => {
                        there = pool.lose(self.now, nodes);
                        &there
                    }
                    None => nodes,
                };
                (lost, !lost.is_empty())
            }
            Event::Announced { seconds } => {
                let at = self.now + seconds;
                self.policy.see(self.now, Seen::Preempted);
                self.policy.see(self.now, Seen::EndsBy { at });
                return false;
            }
            Event::Preempted => {
                self.preempted();
                return true;
            }
            Event::Servers { place, stops } => {
                if let Some(away) = &mut self.away {
                    away.lose(self.now, *place);
                }
                for level in 0..self.levels.len() {
                    if self.levels[level].scheme == (Scheme::Shared { servers: *place }) {
                        (self.stores[level].version, self.stores[level].flight) = (None, None);
                        writing.retain(|&other| other != level);
                        self.policy.see(self.now, Seen::Lost { level });
                    }
                }
                (&[], *stops)
            }
        };
        if !stops {
            return false;
        }
        self.spent.stops += 1;
        let bits = self.levels.iter().enumerate();
        let alive = |level: &Level| level.scheme.survives(lost, self.job.nodes);
        let survive: Mask = bits
            .filter(|(_, level)| alive(level))
            .map(|(bit, _)| 1 << bit)
            .sum();
        self.policy.see(self.now, Seen::Stopped { survive });
        for (store, level) in self.stores.iter_mut().zip(self.levels) {
            store.flight = None;
            if store.version.is_none() {
                continue;
            }
            for node in lost {
                if let Err(place) = store.missing.binary_search(node) {
                    store.missing.insert(place, *node);
                }
            }
            if !level.scheme.survives(&store.missing, self.job.nodes) {
                store.version = None;
                store.missing.clear();
            }
            if matches!(level.scheme, Scheme::Shared { .. }) {
                store.missing.clear();
            }
        }
        true
    }

    /// The job goes on elsewhere, from what lies on no machine of its own.
    fn preempted(&mut self) {
        self.spent.preemptions += 1;
        let shared = |level: &Level| matches!(level.scheme, Scheme::Shared { .. });
        let mut survive: Mask = 0;
        for (bit, level) in self.levels.iter().enumerate() {
            let store = &mut self.stores[bit];
            (store.flight, store.missing) = (None, Vec::new());
            match shared(level) {
                true => survive |= 1 << bit,
                false => store.version = None,
            }
        }
        self.policy.see(self.now, Seen::Ended { survive });
    }

    /// The level with the newest version; of equal ones that with the least restart time.
    fn newest(&self) -> Option<usize> {
        let with = (0..self.levels.len()).filter(|&level| self.stores[level].version.is_some());
        with.max_by(|&a, &b| {
            let versions = self.stores[a].version.cmp(&self.stores[b].version);
            versions.then(self.levels[b].restart.total_cmp(&self.levels[a].restart))
        })
    }

    fn recover(&mut self, seconds_max: f64) {
        let begun = self.now;
        let mut waited = 0.0;
        while self.now < seconds_max {
            let lacks = self.pool.as_mut().map_or(0.0, |pool| pool.wait(self.now));
            if lacks > 0.0 {
                let since = self.now;
                let _ = self.pass(lacks, &mut Vec::new());
                waited += self.now - since;
                continue;
            }
            let level = self.newest();
            let seconds = level.map_or(self.job.restart, |level| self.levels[level].restart);
            if let Phase::Stopped = self.pass(seconds, &mut Vec::new()) {
                continue;
            }
            let Some(level) = level else {
                self.spent.anew += 1;
                self.done -= self.done % self.whole;
                self.restarted(None, 0, 0.0);
                break;
            };
            let Some(version) = self.stores[level].version else {
                continue;
            };
            self.done = version;
            self.holds(level, version);
            let mut holds: Mask = 1 << level;
            for local in 0..self.levels.len() {
                if self.levels[local].scheme == Scheme::Local {
                    self.holds(local, version);
                    holds |= 1 << local;
                }
            }
            self.restarted(Some(level), holds, seconds);
            break;
        }
        self.spent.waiting += waited;
        self.spent.restart += self.now - begun - waited;
    }

    fn restarted(&mut self, from: Option<usize>, holds: Mask, seconds: f64) {
        let seen = Seen::Restarted {
            from,
            holds,
            seconds,
        };
        self.policy.see(self.now, seen);
    }
}

/// Of the standard normal distribution (Box and Muller 1958).
fn normal(random: &mut Sequence) -> f64 {
    let mut unit = || ((random.u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    let (one, other) = (unit(), unit());
    let radius = libm::sqrt(-2.0 * libm::log(one));
    radius * libm::cos(2.0 * core::f64::consts::PI * other)
}

/// An estimate from independent runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// Mean overhead.
    pub overhead: f64,
    /// Its standard error.
    pub error: f64,
    /// All runs together.
    pub sum: Spent,
}

impl Estimate {
    /// Half the width of the 99.9 % interval (Student's t for [`RUNS`] runs).
    pub fn half_width(&self) -> f64 {
        STUDENT * self.error
    }
}

/// Independent runs of an estimate.
pub const RUNS: u64 = 64;
/// Quantile 0.9995 of Student's t with 63 degrees of freedom.
const STUDENT: f64 = 3.454;

/// The overhead of jobs under a pattern, one after the other, from [`RUNS`] runs of `intervals`
/// intervals each.
pub fn estimate(
    machine: &Machine,
    job: &Job,
    levels: &[Level],
    pattern: &Pattern,
    intervals: u64,
    seed: u64,
) -> Estimate {
    let mut sum = Spent::default();
    let mut overheads = Vec::new();
    // As the analysis has it: where all is lost, one job's work is, however long the run.
    let whole = (job.work / pattern.interval).round() as u64;
    for run in 0..RUNS {
        let failures = Failures::new(Source::new(machine, job.nodes), seed, run);
        let jobs = JobRun::new(job, levels, pattern, failures).jobs_of(whole);
        let jobs = jobs.with_repairs(machine, seed, run);
        let spent = jobs.run(intervals, f64::INFINITY);
        overheads.push(spent.overhead());
        sum.total += spent.total;
        sum.work += spent.work;
        sum.checkpoint += spent.checkpoint;
        sum.restart += spent.restart;
        sum.waiting += spent.waiting;
        sum.stops += spent.stops;
        sum.anew += spent.anew;
    }
    let n = RUNS as f64;
    let mean = overheads.iter().sum::<f64>() / n;
    let squares: f64 = overheads
        .iter()
        .map(|one| (one - mean) * (one - mean))
        .sum();
    Estimate {
        overhead: mean,
        error: (squares / (n - 1.0) / n).sqrt(),
        sum,
    }
}

#[cfg(test)]
mod tests;

//! Whose turn it is: jobs that share storage, and when each writes its checkpoint.
//!
//! A job of n nodes whose checkpoints take C and whose failures come every mu loses
//! C / P + P / (2 mu) per second at the interval P. To write at a time that is off by d from
//! where P is best costs n d^2 / (2 mu) node-seconds, early or late (exact in this model: the
//! first-order terms cancel at Young's P). Two writes at a time only make both longer. So the
//! coordinator predicts when each job will want to write, and moves the writes apart such that
//! the sum of these costs is least (FFMK 2020, section 3.4: non-overlapping slots from an
//! optimisation problem). For a given order that is a weighted isotonic regression, solved by
//! pooling adjacent violators; orders are improved by exchanging neighbours.
//!
//! A job that has failed reads its version, and a write that goes on meanwhile makes both
//! longer: all nodes of both jobs stand still. So no write is begun while a job that has just
//! failed is likely to read (`READING`): a job that is put off goes on computing, and loses
//! little by it.
//!
//! Where one write lasts longer than another job's whole interval, not to overlap is wrong: what
//! the other loses while it waits is more than what both lose by a brief write beside a long one. So
//! a write begins beside others where that is cheaper than to wait, and the writes that are brief
//! beside the longest are not ordered among the others.
//!
//! A job whose versions are captured into memory computes on while they are written ([`Size::background`]).
//! Then it computes for P from one capture to the next, the write is part of that, and a write that
//! takes x longer costs nothing but that a failure meanwhile loses P more: x P / mu, not x. Two
//! writes at a time are no better for that: one after the other, the first is there sooner and the
//! second is newer.
//!
//! Where all writes together take more than the storage can give, the intervals are those of
//! Herault et al. ([`crate::methods::herault`]): the multiplier of the constraint makes every
//! write dearer.
//!
//! Invariants: what is planned does not overlap beyond the storage's bandwidth, but for writes that
//! lose more by waiting; a job that has
//! waited [`PATIENCE`] of its interval goes before all that have not, and waits for no reader,
//! so that none starves, not even beside a job that fails again and again;
//! no answer blocks a job: it computes on, and by its own interval when nobody answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::interval::Costs;
use crate::online::cost::{Cost, CostPrior};

/// A job, by number.
pub type JobId = u64;

/// What a job says of itself when it announces itself.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Size {
    /// Its nodes.
    pub nodes: f64,
    /// Seconds between two of its failures.
    pub mtbf: f64,
    /// Seconds of a write, alone on the storage.
    pub write: f64,
    /// The share of the storage's bandwidth that it uses then.
    pub share: f64,
    /// It computes on while it writes.
    pub background: bool,
}

impl Size {
    /// The best interval of computing between two writes, if a write is dearer by this factor.
    fn best(&self, dearer: f64) -> f64 {
        let costs = Costs {
            cost: self.write * dearer,
            restart: 0.0,
            mtbf: self.mtbf,
        };
        match self.background {
            // Exactly: no time is spent in writes.
            true => costs.young(),
            false => costs.best(),
        }
    }

    /// The part of the time in which it writes at that interval. Daly's intervals are near enough
    /// for a sum.
    fn busy(&self, dearer: f64) -> f64 {
        let costs = Costs {
            cost: self.write * dearer,
            restart: 0.0,
            mtbf: self.mtbf,
        };
        match self.background {
            true => (self.write / costs.young()).min(1.0),
            // A cycle is its computing and its write.
            false => self.write / (costs.daly() + self.write),
        }
    }

    /// The node-seconds that are lost for each second that a write is longer, if it writes at this
    /// interval.
    fn dear(&self, period: f64) -> f64 {
        match self.background {
            true => self.nodes * period / self.mtbf,
            false => self.nodes,
        }
    }
}

/// Why a job is not served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It has not announced itself.
    Unknown,
    /// More jobs than [`JOBS_MAX`].
    TooMany,
    /// A size that cannot be: not finite, not positive, a share above 1.
    Impossible,
}

/// The answer to an offer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Answer {
    /// Write now.
    Accept,
    /// Compute on; it will be its turn at about this time.
    Later {
        /// Seconds.
        at: f64,
    },
    /// Go on by its own plan.
    Deny(Refused),
}

/// Who writes when.
pub trait Turns {
    /// A job computes from now on.
    ///
    /// # Errors
    /// Why it is not served.
    fn join(&mut self, at: f64, job: JobId, size: Size) -> Result<(), Refused>;
    /// A job has ended.
    fn leave(&mut self, job: JobId);
    /// A job has failed and does not compute; it will read its version.
    fn paused(&mut self, at: f64, job: JobId);
    /// Nothing is heard of a job: nobody waits for it until it joins or is resumed.
    fn lost(&mut self, job: JobId);
    /// It computes again, from its newest version.
    fn resumed(&mut self, at: f64, job: JobId);
    /// A job begins to write.
    fn began(&mut self, at: f64, job: JobId);
    /// It has written, in so many seconds.
    fn ended(&mut self, at: f64, job: JobId);
    /// A job offers a checkpoint.
    fn offer(&mut self, at: f64, job: JobId) -> Answer;
    /// The next job that may begin, and when; none: not before something happens.
    fn next(&mut self, at: f64) -> Option<(JobId, f64)>;
}

/// No more jobs.
pub const JOBS_MAX: usize = 4_096;
/// So much of its interval may a job wait before it goes first.
pub const PATIENCE: f64 = 1.0;
/// A job that has failed is supposed to read for so many times what it writes, from its failure
/// on. When it reads is not known, only that it has failed and that it computes again; longer
/// than this no write waits for it. More gains nothing: what is held up is one write.
const READING: f64 = 2.0;
/// So many of the next writes are ordered.
const AHEAD: usize = 6;
/// Times that differ by less are the same.
const SAME: f64 = 1e-6;
/// Intervals are computed again when a cost has changed by so much.
const OTHER: f64 = 0.05;
/// A size that is said is believed up to a factor of about this (logarithm).
const BELIEVED: f64 = 0.3;

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
struct Entry {
    size: Size,
    cost: Cost,
    /// The cost for which the interval was computed.
    planned: f64,
    /// Best interval of computing between two writes.
    period: f64,
    /// From when on its computing would be lost: since its last write, or since that began if it
    /// is done in the background.
    since: f64,
    writing: Option<f64>,
    /// Since when it is down.
    paused: Option<f64>,
    /// Its write is so short beside the longest that it waits for none of those ([`brief`]).
    brief: bool,
}

impl Entry {
    /// What its writes cost where it announces itself again: as they were measured, and by what it
    /// says only as far as it says something else than before. One that comes back with the words
    /// that were wrong before is not believed anew.
    fn cost_again(&self, at: f64, claim: CostPrior) -> Cost {
        let mut cost = self.cost;
        if (claim.seconds / self.size.write - 1.0).abs() > OTHER {
            // Measured once an interval, as far as that is known.
            let age = (at - self.since) / self.period;
            cost.told(claim, if age.is_finite() { age } else { 0.0 });
        }
        cost
    }

    /// Until when it is supposed to read, if it has failed.
    fn reads_until(&self) -> Option<f64> {
        self.paused.map(|since| since + READING * self.cost.mean())
    }

    /// It has waited longer than it should.
    fn late(&self, at: f64) -> bool {
        at > self.since + (1.0 + PATIENCE) * self.period
    }
}

/// Jobs on one store.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
struct Table {
    jobs: BTreeMap<JobId, Entry>,
}

impl Table {
    fn join(&mut self, at: f64, job: JobId, size: Size) -> Result<(), Refused> {
        let good = |value: f64| value.is_finite() && value > 0.0;
        let all = [size.nodes, size.mtbf, size.write, size.share];
        if !all.into_iter().all(good) || size.share > 1.0 {
            return Err(Refused::Impossible);
        }
        if self.jobs.len() >= JOBS_MAX && !self.jobs.contains_key(&job) {
            return Err(Refused::TooMany);
        }
        let prior = CostPrior {
            seconds: size.write,
            spread: BELIEVED,
        };
        // Until it is computed anew, the interval is what it was.
        let (cost, period) = match self.jobs.get(&job) {
            Some(known) => (known.cost_again(at, prior), known.period),
            None => (Cost::new(prior), f64::INFINITY),
        };
        let entry = Entry {
            size,
            cost,
            planned: cost.mean(),
            period,
            since: at,
            writing: None,
            paused: None,
            brief: false,
        };
        self.jobs.insert(job, entry);
        Ok(())
    }

    fn with(&mut self, job: JobId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            change(entry);
        }
    }

    fn paused(&mut self, at: f64, job: JobId) {
        self.with(job, |entry| {
            (entry.paused, entry.writing) = (Some(at), None)
        });
    }

    fn lost(&mut self, job: JobId) {
        // Down for so long that it reads no more.
        self.paused(f64::NEG_INFINITY, job);
    }

    fn resumed(&mut self, at: f64, job: JobId) {
        self.with(job, |entry| (entry.paused, entry.since) = (None, at));
    }

    fn ended(&mut self, at: f64, job: JobId) {
        self.with(job, |entry| {
            let begun = entry.writing.take();
            if let Some(begun) = begun {
                entry.cost.measure(at - begun);
            }
            entry.since = match (begun, entry.size.background) {
                (Some(begun), true) => begun,
                // Of which it is not known when that was captured.
                (None, true) => entry.since,
                (_, false) => at,
            };
        });
    }

    /// Jobs that compute, with the time at which each wants to write.
    fn wanted(&self) -> impl Iterator<Item = (JobId, f64, &Entry)> {
        let computing = self.jobs.iter();
        let computing =
            computing.filter(|(_, entry)| entry.paused.is_none() && entry.writing.is_none());
        computing.map(|(&job, entry)| (job, entry.since + entry.period, entry))
    }
}

/// The best intervals of jobs, such that the storage can serve them: P = Young's for a write
/// that is dearer by 1 + lambda share / nodes, lambda >= 0 the least for which the sum of
/// share C / P is at most 1 (Herault et al. 2018, equations 6 to 8, for shares below 1 too).
pub fn periods(jobs: &[Size]) -> (Vec<f64>, f64) {
    let dearer = |job: &Size, lambda: f64| 1.0 + lambda * job.share / job.nodes;
    let load = |lambda: f64| {
        let each = jobs.iter();
        each.map(|job| job.share * job.busy(dearer(job, lambda)))
            .sum::<f64>()
    };
    let mut lambda = 0.0;
    if load(0.0) > LOAD_MAX {
        let (mut low, mut high) = (0.0, 1.0);
        // Intervals are at most the MTBF: more than this cannot be helped by them.
        while load(high) > LOAD_MAX && high < 1e12 {
            high *= 4.0;
        }
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            match load(middle) > LOAD_MAX {
                true => low = middle,
                false => high = middle,
            }
        }
        lambda = high;
    }
    let periods = jobs.iter().map(|job| job.best(dearer(job, lambda)));
    (periods.collect(), lambda)
}

/// The storage is not planned to be busier. Reads of restarts are not counted: while a job is
/// down it does not write either, and intervals that leave time for all reads lose more computing
/// than they save (`docs/measured/plan.md`).
const LOAD_MAX: f64 = 1.0;

/// Each job by itself, at the interval that Daly gives for a write that has the storage alone.
#[derive(Clone, Default, Debug)]
pub struct Uncoordinated(Table);

impl Turns for Uncoordinated {
    fn join(&mut self, at: f64, job: JobId, size: Size) -> Result<(), Refused> {
        self.0.join(at, job, size)?;
        self.0.with(job, |entry| {
            entry.period = Costs {
                cost: size.write,
                restart: 0.0,
                mtbf: size.mtbf,
            }
            .daly();
        });
        Ok(())
    }
    fn leave(&mut self, job: JobId) {
        self.0.jobs.remove(&job);
    }
    fn paused(&mut self, at: f64, job: JobId) {
        self.0.paused(at, job);
    }
    fn lost(&mut self, job: JobId) {
        self.0.lost(job);
    }
    fn resumed(&mut self, at: f64, job: JobId) {
        self.0.resumed(at, job);
    }
    fn began(&mut self, at: f64, job: JobId) {
        self.0.with(job, |entry| entry.writing = Some(at));
    }
    fn ended(&mut self, at: f64, job: JobId) {
        self.0.ended(at, job);
    }
    fn offer(&mut self, at: f64, job: JobId) -> Answer {
        match self.0.wanted().find(|wanted| wanted.0 == job) {
            Some((_, due, _)) if due <= at + SAME => Answer::Accept,
            Some((_, due, _)) => Answer::Later { at: due },
            None => Answer::Deny(Refused::Unknown),
        }
    }
    fn next(&mut self, at: f64) -> Option<(JobId, f64)> {
        let next = self.0.wanted().min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some((next.0, next.1.max(at)))
    }
}

/// The coordinator of one store. What is kept of it, floats bit for bit, goes on as this would.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Coordinator {
    table: Table,
    /// Sizes or costs have changed since intervals were computed.
    stale: bool,
}

/// A write that is planned: job, target, length, weight.
#[derive(Clone, Copy, Debug)]
struct Planned {
    job: JobId,
    target: f64,
    length: f64,
    /// The part of the bandwidth that it uses.
    share: f64,
    weight: f64,
    /// It has waited longer than it should.
    first: bool,
}

impl Coordinator {
    /// The storage's jobs, and the bound on its load, as intervals.
    fn refresh(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let now = |entry: &Entry| Size {
            write: entry.cost.mean().max(1e-3),
            ..entry.size
        };
        let sizes: Vec<Size> = self.table.jobs.values().map(now).collect();
        let (periods, _) = periods(&sizes);
        let entries = self.table.jobs.values_mut();
        let all = sizes.iter().copied().zip(periods.iter().copied());
        let longest = all.max_by(|a, b| a.0.write.total_cmp(&b.0.write));
        for (entry, (size, period)) in entries.zip(sizes.iter().zip(periods)) {
            (entry.period, entry.planned) = (period, size.write);
            entry.brief = longest.is_some_and(|longest| brief((*size, period), longest));
        }
    }

    /// The next writes in the order and at the times that cost least, none before `free`.
    fn planned(&self, at: f64, free: f64) -> Vec<(JobId, f64)> {
        let slot = |(job, target, entry): (JobId, f64, &Entry)| Planned {
            job,
            target,
            length: entry.cost.mean() * entry.size.share,
            share: entry.size.share,
            weight: entry.size.nodes / entry.size.mtbf,
            first: entry.late(at),
        };
        // Those that are brief go when they are due: to order the others around them would put
        // off a long write by one brief one after the other, for each alone is the less evil.
        let wanted = self.table.wanted().filter(|wanted| !wanted.2.brief);
        let mut slots: Vec<Planned> = wanted.map(slot).collect();
        slots.sort_by(|a, b| b.first.cmp(&a.first).then(a.target.total_cmp(&b.target)));
        let aside = roomy(&slots, free, self.load(at).shares());
        slots.truncate(AHEAD);
        slots.retain(|slot| !aside.contains(&slot.job));
        let (mut best, mut starts) = placed(&slots, free);
        // Neighbours change places as long as that helps; each time the sum falls.
        let mut again = true;
        while std::mem::take(&mut again) {
            for place in 1..slots.len() {
                if slots[place - 1].first != slots[place].first {
                    continue;
                }
                slots.swap(place - 1, place);
                let (cost, other) = placed(&slots, free);
                if cost < best * (1.0 - 1e-9) - 1e-12 {
                    (best, starts, again) = (cost, other, true);
                } else {
                    slots.swap(place - 1, place);
                }
            }
        }
        let brief = self.table.wanted().filter(|wanted| wanted.2.brief);
        let aside = self
            .table
            .wanted()
            .filter(|wanted| aside.contains(&wanted.0));
        let brief = brief.chain(aside);
        let brief = brief.map(|(job, target, _)| (job, target.max(free)));
        let slots = slots.iter().map(|slot| slot.job).zip(starts);
        let mut found: Vec<(JobId, f64)> = brief.chain(slots).collect();
        found.sort_by(|a, b| a.1.total_cmp(&b.1));
        found
    }

    /// A write that is due while others have the storage until `free`, and so short beside them
    /// that it costs less to begin it at its target, beside them, than to wait.
    ///
    /// Beside k others of N nodes, a write of n nodes that takes C alone takes about C for each of
    /// them longer, and each of them C: C (k n + N) node-seconds, or what of them counts where
    /// writes are in the background ([`Size::dear`]). To wait for d costs n d^2 / (2 mu).
    fn joins(&self, entry: &Entry, load: &Load, free: f64) -> bool {
        let wait = (free - entry.since - entry.period).max(0.0);
        let nodes = entry.size.nodes;
        let waiting = 0.5 * nodes / entry.size.mtbf * wait * wait;
        let own = entry.size.dear(entry.period);
        waiting > entry.cost.mean() * (load.users * own + load.dear)
    }

    /// What uses the storage.
    fn load(&self, at: f64) -> Load {
        let mut load = Load {
            writes: 0.0,
            written: f64::INFINITY,
            reads: 0.0,
            read: f64::INFINITY,
            users: 0.0,
            dear: 0.0,
        };
        for entry in self.table.jobs.values() {
            if let Some(begun) = entry.writing {
                load.writes += entry.size.share;
                load.users += 1.0;
                load.dear += entry.size.dear(entry.period);
                load.written = load.written.min((begun + entry.cost.mean()).max(at));
            }
            if let Some(until) = entry.reads_until().filter(|&until| at < until) {
                load.reads += entry.size.share;
                load.users += 1.0;
                // It stands still.
                load.dear += entry.size.nodes;
                load.read = load.read.min(until);
            }
        }
        load
    }
}

/// A write for which it costs more to wait for another than to be done beside it: as in
/// [`Coordinator::joins`], for the whole of the other. Each with its interval.
fn brief(one: (Size, f64), other: (Size, f64)) -> bool {
    let ((one, period), (other, others)) = (one, other);
    let waiting = 0.5 * one.nodes / one.mtbf * other.write * other.write;
    waiting > one.write * (one.dear(period) + other.dear(others))
}

/// Of the next writes, those that have room at their targets beside all that may come near them,
/// however these are moved: they need no place in the order. To move one apart from another beside which
/// the storage could serve it costs a little and gains nothing. `used`: what is in use now.
fn roomy(slots: &[Planned], free: f64, used: f64) -> Vec<JobId> {
    let next = &slots[..slots.len().min(AHEAD)];
    // None is moved by more than what all that are ordered take.
    let moved: f64 = next.iter().map(|slot| slot.length).sum();
    let begins = |slot: &Planned| slot.target.max(free);
    let lasts = |slot: &Planned| slot.length / slot.share;
    let near = |one: &Planned, other: &Planned| {
        begins(other) - moved < begins(one) + lasts(one)
            && begins(one) < begins(other) + lasts(other) + moved
    };
    let has_room = |one: &&Planned| {
        let others = slots.iter().filter(|other| near(one, other));
        used + others.map(|other| other.share).sum::<f64>() <= 1.0 + SAME
    };
    next.iter().filter(has_room).map(|slot| slot.job).collect()
}

/// What uses the storage: the parts of the bandwidth, and when the first of its users ends.
#[derive(Clone, Copy, Debug)]
struct Load {
    writes: f64,
    written: f64,
    reads: f64,
    read: f64,
    /// How many they are, and the node-seconds that each second costs them which they take longer.
    users: f64,
    dear: f64,
}

impl Load {
    fn shares(&self) -> f64 {
        self.writes + self.reads
    }

    /// Until when a write of this share must wait; none: there is room. A job that is late waits
    /// for no reader.
    fn full_until(&self, share: f64, late: bool) -> Option<f64> {
        let room = 1.0 - share + SAME;
        match self.writes > room {
            true => Some(self.written),
            false if late || self.writes + self.reads <= room => None,
            false => Some(self.read.min(self.written)),
        }
    }
}

/// The least cost of writes in this order, and their starts: weighted isotonic regression by
/// pooling adjacent violators, after what precedes each is taken off its target.
fn placed(slots: &[Planned], free: f64) -> (f64, Vec<f64>) {
    // Blocks of writes without a pause: start, weight, how many.
    let mut blocks: Vec<(f64, f64, usize)> = Vec::new();
    let mut before = 0.0;
    for slot in slots {
        let mut block = (slot.target - before, slot.weight, 1);
        while let Some(last) = blocks.last().filter(|last| last.0 >= block.0) {
            let weight = last.1 + block.1;
            let start = (last.0 * last.1 + block.0 * block.1) / weight;
            block = (start, weight, last.2 + block.2);
            blocks.pop();
        }
        blocks.push(block);
        before += slot.length;
    }
    let mut starts = Vec::with_capacity(slots.len());
    let (mut cost, mut before) = (0.0, 0.0);
    let mut place = 0;
    for (start, _, count) in blocks {
        for _ in 0..count {
            let slot = &slots[place];
            let at = start.max(free) + before;
            cost += 0.5 * slot.weight * (at - slot.target) * (at - slot.target);
            starts.push(at);
            before += slot.length;
            place += 1;
        }
    }
    (cost, starts)
}

impl Turns for Coordinator {
    fn join(&mut self, at: f64, job: JobId, size: Size) -> Result<(), Refused> {
        self.stale = true;
        self.table.join(at, job, size)
    }
    fn leave(&mut self, job: JobId) {
        self.stale = true;
        self.table.jobs.remove(&job);
    }
    fn paused(&mut self, at: f64, job: JobId) {
        self.table.paused(at, job);
    }
    fn lost(&mut self, job: JobId) {
        self.table.lost(job);
    }
    fn resumed(&mut self, at: f64, job: JobId) {
        self.table.resumed(at, job);
    }
    fn began(&mut self, at: f64, job: JobId) {
        self.table.with(job, |entry| entry.writing = Some(at));
    }
    fn ended(&mut self, at: f64, job: JobId) {
        self.table.ended(at, job);
        let other = |entry: &Entry| (entry.cost.mean() / entry.planned - 1.0).abs() > OTHER;
        self.stale |= self.table.jobs.get(&job).is_some_and(other);
    }
    fn offer(&mut self, at: f64, job: JobId) -> Answer {
        self.refresh();
        let Some(entry) = self.table.jobs.get(&job) else {
            return Answer::Deny(Refused::Unknown);
        };
        let load = self.load(at);
        let full = load.full_until(entry.size.share, entry.late(at));
        if full.is_some_and(|free| self.joins(entry, &load, free)) {
            let due = entry.since + entry.period;
            return match due <= at + SAME {
                true => Answer::Accept,
                false => Answer::Later { at: due },
            };
        }
        let room = full.is_none();
        let free = full.unwrap_or(at);
        let planned = self.planned(at, free);
        // Beyond those that are ordered: after them.
        let last = planned.last().map_or(at, |last| last.1);
        let start = planned
            .iter()
            .find(|one| one.0 == job)
            .map_or(last, |one| one.1);
        match room && start <= at + SAME {
            true => Answer::Accept,
            false => Answer::Later { at: start.max(at) },
        }
    }
    fn next(&mut self, at: f64) -> Option<(JobId, f64)> {
        self.refresh();
        let load = self.load(at);
        let beside = || {
            let due = self.table.wanted().filter(|(_, _, entry)| {
                let full = load.full_until(entry.size.share, entry.late(at));
                full.is_some_and(|free| self.joins(entry, &load, free))
            });
            let first = due.min_by(|a, b| a.1.total_cmp(&b.1))?;
            Some((first.0, first.1.max(at)))
        };
        if load.writes >= 1.0 - SAME {
            return beside();
        }
        let (job, start) = self.planned(at, at).into_iter().next()?;
        let entry = self.table.jobs.get(&job)?;
        let next = match load.full_until(entry.size.share, entry.late(at)) {
            None => return Some((job, start.max(at))),
            // A write says that it has ended, and then it is asked again; a reader may not.
            Some(until) => (until < load.written).then_some((job, start.max(until))),
        };
        let both = next.into_iter().chain(beside());
        both.min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

#[cfg(test)]
mod tests;

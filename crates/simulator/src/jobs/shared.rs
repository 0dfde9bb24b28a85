//! Several jobs on shared storage: a queue, nodes that fail, and bandwidth that is shared
//! fairly by those who write and read at a time.
//!
//! Storage is one tier or several, as two file systems are: each job writes to one, each has a
//! bandwidth of its own, and [`Turns`] of its own, as the coordinator keeps them.
//!
//! A job computes; when the planner's [`Turns`] say so, it stops to write; what it computed
//! since its last write is lost when one of its nodes fails, then it is down for its restart,
//! reads, and goes on. A job that has ended makes room for the next ones of the queue that fit.
//! Failures of a job are a Poisson process of its own, drawn from its number: the same
//! whatever is decided (common random numbers).
//!
//! Invariants: nobody gets more than its own speed, together no more than the storage has;
//! time never runs back; same seed, same history (P8).

pub mod mixes;

use outlive_base::rng::Sequence;
use outlive_planner::coordinate::{Size, Turns};

/// Jobs of one kind.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct JobKind {
    /// Nodes of each.
    pub nodes: f64,
    /// Bytes of a checkpoint.
    pub bytes: f64,
    /// Bytes per second that one job can write or read.
    pub speed: f64,
    /// Seconds of computing of a job.
    pub work: f64,
    /// Seconds from a failure until it reads.
    pub restart: f64,
    /// Weight in the queue: how often it comes.
    pub weight: f64,
    /// The tier to which it writes: its place in [`Mix::tiers`].
    pub tier: usize,
}

/// A platform and what runs on it.
#[derive(Clone, PartialEq, Debug)]
pub struct Mix {
    /// What it is.
    pub name: String,
    /// Nodes.
    pub nodes: f64,
    /// Bytes per second of each tier of storage.
    pub tiers: Vec<f64>,
    /// Seconds between two failures of a node.
    pub mtbf: f64,
    /// Kinds of jobs.
    pub kinds: Vec<JobKind>,
}

/// Node-seconds of a run.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Used {
    /// That jobs had.
    pub all: f64,
    /// Computing that was not lost.
    pub work: f64,
    /// Of jobs that waited for their write to end.
    pub writing: f64,
    /// Writes.
    pub writes: u64,
    /// Failures.
    pub failures: u64,
    /// The longest that a job computed between two writes, over the best interval that it
    /// has alone.
    pub longest: f64,
}

impl Used {
    /// Node-seconds that were not work, over those that were.
    pub fn overhead(&self) -> f64 {
        self.all / self.work - 1.0
    }
    /// Node-seconds that were not work, over all.
    pub fn waste(&self) -> f64 {
        1.0 - self.work / self.all
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    Compute,
    /// Bytes that are left.
    Write(f64),
    /// Until then.
    Down(f64),
    /// Bytes that are left.
    Read(f64),
}

struct Running {
    id: u64,
    kind: usize,
    phase: Phase,
    /// Seconds of computing done, and of them saved.
    done: f64,
    saved: f64,
    work: f64,
    fails_at: f64,
    random: Sequence,
    wrote_at: f64,
}

/// A share of a checkpoint that is as good as nothing: more than rounding makes of it.
const NOTHING: f64 = 1e-9;

/// A run.
pub struct Platform<'a, T> {
    mix: &'a Mix,
    /// Of each tier.
    turns: Vec<T>,
    running: Vec<Running>,
    /// Kinds of the next jobs of the queue, and the source of more.
    queue: Vec<usize>,
    next_id: u64,
    free: f64,
    /// No more jobs come.
    closed: bool,
    seed: u64,
    queued: Sequence,
    now: f64,
    used: Used,
}

/// Jobs of the queue that are looked at for a place: first fit.
const WINDOW: usize = 16;
/// Streams of a seed: of the queue, and of jobs.
const QUEUE: u64 = 0;

fn unit(random: &mut Sequence) -> f64 {
    ((random.u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

fn exponential(random: &mut Sequence, mean: f64) -> f64 {
    -mean * libm::log(unit(random))
}

impl Mix {
    /// Bytes per second that a job of this kind can have alone.
    fn speed(&self, kind: &JobKind) -> f64 {
        kind.speed.min(self.tiers[kind.tier])
    }
}

impl<'a, T: Turns + Default> Platform<'a, T> {
    /// An empty platform.
    pub fn new(mix: &'a Mix, seed: u64) -> Platform<'a, T> {
        Platform {
            mix,
            turns: mix.tiers.iter().map(|_| T::default()).collect(),
            running: Vec::new(),
            queue: Vec::new(),
            next_id: 1,
            free: mix.nodes,
            closed: false,
            seed,
            queued: Sequence::new(seed, QUEUE),
            now: 0.0,
            used: Used::default(),
        }
    }

    /// A platform on which so many jobs of each kind run for ever, and no others.
    pub fn steady(mix: &'a Mix, counts: &[u32], seed: u64) -> Platform<'a, T> {
        let mut platform = Platform::new(mix, seed);
        platform.closed = true;
        for (kind, &count) in counts.iter().enumerate() {
            for _ in 0..count {
                platform.start(kind);
            }
        }
        let running = platform.running.iter_mut();
        running.for_each(|running| running.work = f64::INFINITY);
        platform
    }

    /// So many seconds.
    pub fn run(mut self, seconds: f64) -> Used {
        self.fill();
        while self.now < seconds {
            let at = self.next_at().min(seconds);
            self.advance(at);
            self.happen();
        }
        for running in &self.running {
            let kind = &self.mix.kinds[running.kind];
            self.used.work += running.done * kind.nodes;
        }
        self.used
    }

    fn fill(&mut self) {
        let total: f64 = self.mix.kinds.iter().map(|kind| kind.weight).sum();
        while !self.closed {
            while self.queue.len() < WINDOW {
                let mut left = unit(&mut self.queued) * total;
                let mut kind = 0;
                while kind + 1 < self.mix.kinds.len() && left >= self.mix.kinds[kind].weight {
                    left -= self.mix.kinds[kind].weight;
                    kind += 1;
                }
                self.queue.push(kind);
            }
            let fits = |&kind: &usize| self.mix.kinds[kind].nodes <= self.free;
            let Some(place) = self.queue.iter().position(fits) else {
                return;
            };
            let kind = self.queue.remove(place);
            self.start(kind);
        }
    }

    fn start(&mut self, kind: usize) {
        let of = &self.mix.kinds[kind];
        let id = self.next_id;
        self.next_id += 1;
        self.free -= of.nodes;
        let mut random = Sequence::new(self.seed, id);
        let mtbf = self.mix.mtbf / of.nodes;
        let speed = self.mix.speed(of);
        let size = Size {
            nodes: of.nodes,
            mtbf,
            write: of.bytes / speed,
            share: (speed / self.mix.tiers[of.tier]).min(1.0),
            background: false,
        };
        // The first ones are met somewhere in their middle and of an interval: what they
        // computed before is no work of this run.
        let first = self.now == 0.0;
        let share = if first { unit(&mut random) } else { 1.0 };
        let young = (2.0 * size.write * mtbf).sqrt();
        let before = if first {
            young * unit(&mut random)
        } else {
            0.0
        };
        let fails_at = self.now + exponential(&mut random, mtbf);
        // Those that the coordinator has no room for would go on without a turn.
        let turns = &mut self.turns[of.tier];
        let _ = turns.join(self.now, id, size);
        turns.resumed(self.now - before, id);
        self.used.work -= before * of.nodes;
        self.running.push(Running {
            id,
            kind,
            phase: Phase::Compute,
            done: before,
            saved: 0.0,
            work: (of.work * share).max(1.0) + before,
            fails_at,
            random,
            wrote_at: self.now - before,
        });
    }

    /// Bytes per second of each job that writes or reads: fair on each tier, up to its own speed.
    fn rates(&self) -> Vec<f64> {
        let mut rates = vec![0.0; self.running.len()];
        let kind = |at: usize| &self.mix.kinds[self.running[at].kind];
        let moving = |running: &Running| matches!(running.phase, Phase::Write(_) | Phase::Read(_));
        for (tier, bandwidth) in self.mix.tiers.iter().enumerate() {
            let mut open: Vec<usize> = (0..rates.len())
                .filter(|&at| moving(&self.running[at]) && kind(at).tier == tier)
                .collect();
            let mut left = *bandwidth;
            open.sort_by(|&a, &b| kind(a).speed.total_cmp(&kind(b).speed).then(a.cmp(&b)));
            // The slowest first: what it cannot take the others share.
            for (place, &at) in open.iter().enumerate() {
                let fair = left / (open.len() - place) as f64;
                rates[at] = fair.min(kind(at).speed);
                left -= rates[at];
            }
        }
        rates
    }

    /// The next turn on any tier: its job, and when.
    fn next_turn(&mut self) -> Option<(u64, f64)> {
        let now = self.now;
        let turns = self.turns.iter_mut().filter_map(|turns| turns.next(now));
        turns.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn next_at(&mut self) -> f64 {
        let rates = self.rates();
        let mut next = f64::INFINITY;
        for (running, rate) in self.running.iter().zip(rates) {
            let ends = match running.phase {
                Phase::Compute => self.now + (running.work - running.done),
                Phase::Write(left) | Phase::Read(left) => self.now + left / rate,
                Phase::Down(until) => until,
            };
            next = next.min(ends).min(running.fails_at);
        }
        let turn = self.next_turn().map_or(f64::INFINITY, |(_, at)| at);
        next.min(turn).max(self.now)
    }

    fn advance(&mut self, at: f64) {
        let rates = self.rates();
        let seconds = at - self.now;
        for (running, rate) in self.running.iter_mut().zip(rates) {
            let nodes = self.mix.kinds[running.kind].nodes;
            self.used.all += seconds * nodes;
            match &mut running.phase {
                Phase::Compute => running.done += seconds,
                Phase::Write(left) => {
                    *left -= rate * seconds;
                    self.used.writing += seconds * nodes;
                }
                Phase::Read(left) => *left -= rate * seconds,
                Phase::Down(_) => {}
            }
        }
        self.now = at;
    }

    /// What is due now.
    fn happen(&mut self) {
        let mut ended = false;
        let mut place = 0;
        while place < self.running.len() {
            match self.change(place) {
                true => {
                    let over = self.running.remove(place);
                    let kind = &self.mix.kinds[over.kind];
                    let nodes = kind.nodes;
                    self.turns[kind.tier].leave(over.id);
                    self.used.work += over.work * nodes;
                    self.free += nodes;
                    ended = true;
                }
                false => place += 1,
            }
        }
        if ended {
            self.fill();
        }
        while let Some((id, at)) = self.next_turn() {
            if at > self.now {
                break;
            }
            self.begin(id);
        }
    }

    /// True if the job has ended.
    fn change(&mut self, place: usize) -> bool {
        const CLOSE: f64 = 1e-6;
        let running = &mut self.running[place];
        let kind = &self.mix.kinds[running.kind];
        if running.fails_at <= self.now {
            running.fails_at =
                self.now + exponential(&mut running.random, self.mix.mtbf / kind.nodes);
            running.done = running.saved;
            running.phase = Phase::Down(self.now + kind.restart);
            self.used.failures += 1;
            self.turns[kind.tier].paused(self.now, running.id);
            return false;
        }
        match running.phase {
            Phase::Compute => return running.done >= running.work - CLOSE,
            Phase::Write(left) if left <= kind.bytes * NOTHING => {
                running.saved = running.done;
                running.phase = Phase::Compute;
                running.wrote_at = self.now;
                self.used.writes += 1;
                self.turns[kind.tier].ended(self.now, running.id);
            }
            Phase::Down(until) if until <= self.now => {
                running.phase = match running.saved > 0.0 {
                    true => Phase::Read(kind.bytes),
                    false => Phase::Read(0.0),
                };
            }
            _ => {}
        }
        if let Phase::Read(left) = running.phase
            && left <= kind.bytes * NOTHING
        {
            running.phase = Phase::Compute;
            running.wrote_at = self.now;
            self.turns[kind.tier].resumed(self.now, running.id);
        }
        false
    }

    fn begin(&mut self, id: u64) {
        if let Some(running) = self.running.iter_mut().find(|running| running.id == id) {
            let kind = &self.mix.kinds[running.kind];
            self.turns[kind.tier].began(self.now, id);
            let speed = self.mix.speed(kind);
            let alone = (2.0 * kind.bytes / speed * self.mix.mtbf / kind.nodes).sqrt();
            self.used.longest = self.used.longest.max((self.now - running.wrote_at) / alone);
            running.phase = Phase::Write(kind.bytes);
        }
    }
}

#[cfg(test)]
mod tests;

//! From what can fail to what a plan needs: how often the job stops with which levels left.
//!
//! Sources of failures are independent and an event has one source, so that rates of
//! different sources add up exactly. Within an event that takes each member of a group with
//! a probability, what is left is computed by `partial`: exactly where feasible, by seeded
//! Monte Carlo with its error else.
//!
//! A set of levels is a mask: bit i is level i.

mod partial;

use std::collections::BTreeMap;

use crate::machine::{Job, Level, Machine, Repair, Scheme};

/// A set of levels, one bit each.
pub type Mask = u16;

/// What an event that stops the job leaves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Outcome {
    /// Levels that can restore the job.
    pub survive: Mask,
    /// Levels that cannot, if in addition a node was replaced since they were last written:
    /// disjoint parts of the rate have different sets, averaged over which node.
    pub also: Mask,
    /// Whether a node is lost, so that a new one lacks its part of what survives.
    pub replaces: bool,
    /// Levels whose servers are lost, so that they cannot be written until these are repaired.
    pub away: Mask,
}

/// How long a level cannot be written after its servers were lost.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outage {
    /// On average, in seconds.
    pub mean: f64,
    /// Variance over squared mean.
    pub variation: f64,
}

/// Above, the servers are as good as never there.
const IN_REPAIR_MAX: f64 = 50.0;

impl Outage {
    /// Of servers of which any is lost `rate` times a second. Each is repaired by itself, so that
    /// the time in which any of them is away is the busy period of an M/G/infinity queue: its mean
    /// is (e^(rate r) - 1) / rate, r the mean time of a repair, whatever its distribution
    /// (C. Palm, 1938). Its variation is taken for that of one repair, as it is where repairs
    /// rarely overlap.
    pub fn new(repair: Repair, rate: f64) -> Outage {
        let together = (rate * repair.mean()).min(IN_REPAIR_MAX);
        Outage {
            mean: libm::expm1(together) / rate,
            variation: libm::expm1(repair.sigma * repair.sigma),
        }
    }
}

/// Events per second, with the standard error where it was estimated.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Rate {
    /// Events per second.
    pub rate: f64,
    /// Standard error of it; 0: exact.
    pub error: f64,
}

impl Rate {
    fn add(&mut self, rate: f64, error: f64) {
        self.rate += rate;
        self.error = libm::hypot(self.error, error);
    }
}

/// How often what is lost, for a job on its levels.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Classes {
    /// Events that stop the job.
    pub stops: BTreeMap<Outcome, Rate>,
    /// Losses of the versions of each level that do not stop the job, per second.
    pub losses: Vec<f64>,
    /// For how long each level is away after a loss; none: it can be written at once.
    pub outages: Vec<Option<Outage>>,
}

impl Classes {
    /// Stops per second.
    pub fn total(&self) -> f64 {
        self.stops.values().map(|rate| rate.rate).sum()
    }
    /// Stops per second that level `index` cannot restore, with the standard error.
    pub fn fails(&self, index: usize) -> Rate {
        let mut sum = Rate::default();
        for (outcome, rate) in &self.stops {
            if outcome.survive & (1 << index) == 0 {
                sum.add(rate.rate, rate.error);
            }
        }
        sum
    }
    /// The share of the time in which level `index` cannot be written, its servers being away.
    pub fn away(&self, index: usize) -> f64 {
        let Some(outage) = self.outages[index] else {
            return 0.0;
        };
        let with = |outcome: &&Outcome| outcome.away & (1 << index) != 0;
        let stops = self.stops.keys().filter(with);
        let stops: f64 = stops.map(|outcome| self.stops[outcome].rate).sum();
        let times = (self.losses[index] + stops) * outage.mean;
        times / (1.0 + times)
    }
    /// True if level `index` is left after none of the stops.
    pub fn restores_nothing(&self, index: usize) -> bool {
        let mut outcomes = self.stops.keys();
        outcomes.all(|outcome| outcome.survive & (1 << index) == 0)
    }
    /// Stops per second whose cheapest level left among `levels`, in that order, is each of
    /// them; the last entry counts those that none restores.
    pub fn severities(&self, levels: &[usize]) -> Vec<f64> {
        let mut rates = vec![0.0; levels.len() + 1];
        for (outcome, rate) in &self.stops {
            let left = levels
                .iter()
                .position(|&level| outcome.survive & (1 << level) != 0);
            rates[left.unwrap_or(levels.len())] += rate.rate;
        }
        rates
    }
    /// The same for a subset of levels, which become levels 0, 1, ...
    pub fn of(&self, levels: &[usize]) -> Classes {
        let pick = |mask: Mask| {
            let bits = levels.iter().enumerate();
            bits.filter(|&(_, &level)| mask & (1 << level) != 0)
                .map(|(bit, _)| 1 << bit)
                .sum()
        };
        let mut stops: BTreeMap<Outcome, Rate> = BTreeMap::new();
        for (outcome, rate) in &self.stops {
            let (survive, also) = (pick(outcome.survive), pick(outcome.also));
            let key = Outcome {
                survive,
                also,
                replaces: outcome.replaces,
                away: pick(outcome.away),
            };
            stops.entry(key).or_default().add(rate.rate, rate.error);
        }
        Classes {
            stops,
            losses: levels.iter().map(|&level| self.losses[level]).collect(),
            outages: levels.iter().map(|&level| self.outages[level]).collect(),
        }
    }
}

/// Up to so many pairs of a failing node and one that is related to it are looked at one by
/// one; with more, failing nodes are taken at equal distances.
const PAIRS_MAX: u64 = 20_000_000;

/// The rates at which a job is stopped on `machine`, for its `levels` (at most 16).
/// `seed` is for events whose outcome can only be estimated.
pub fn classes(machine: &Machine, job: &Job, levels: &[Level], seed: u64) -> Classes {
    let count = job.nodes;
    let all: Mask = ((1_u32 << levels.len()) - 1) as Mask;
    let mut found = Classes {
        stops: BTreeMap::new(),
        losses: vec![0.0; levels.len()],
        outages: vec![None; levels.len()],
    };
    let mut add = |survive, also, replaces, rate: f64, error: f64| {
        if rate > 0.0 {
            let key = Outcome {
                survive,
                also,
                replaces,
                away: 0,
            };
            found.stops.entry(key).or_default().add(rate, error);
        }
    };
    if let Some(life) = machine.nodes.light {
        add(all, 0, false, f64::from(count) / life.mtbf, 0.0);
    }
    let world = World { levels, count };
    if let Some(life) = machine.nodes.fatal {
        let related: u64 = levels.iter().map(|level| world.relations(level)).sum();
        let step = (u64::from(count) * related.max(1))
            .div_ceil(PAIRS_MAX)
            .max(1);
        let sample: Vec<u32> = (0..count).step_by(step as usize).collect();
        let each = f64::from(count) / sample.len() as f64 / life.mtbf;
        for &node in &sample {
            world.whole(&[node], each, &mut add);
        }
    }
    for (place, group) in machine.groups.iter().enumerate() {
        for set in 0..group.sets(count) {
            let members = group.set(set, count);
            if members.is_empty() {
                continue;
            }
            let rate = 1.0 / group.life.mtbf;
            if group.hits >= 1.0 {
                world.whole(&members, rate, &mut add);
                continue;
            }
            let stream = (place as u64) << 32 | u64::from(set);
            for (survive, p) in partial::outcomes(&world, &members, group.hits, (seed, stream)) {
                add(survive, 0, true, rate * p.rate, rate * p.error);
            }
        }
    }
    for (place, servers) in machine.servers.iter().enumerate() {
        let Some(life) = servers.life else { continue };
        let on = |level: &Level| level.scheme == Scheme::Shared { servers: place };
        let rate = f64::from(servers.count) / life.mtbf;
        let bits = levels.iter().enumerate().filter(|(_, level)| on(level));
        let hit: Vec<usize> = bits.map(|(bit, _)| bit).collect();
        for &bit in &hit {
            found.outages[bit] = servers.repair.map(|repair| Outage::new(repair, rate));
        }
        if servers.stops_jobs {
            let gone: Mask = hit.iter().map(|bit| 1 << bit).sum();
            let key = Outcome {
                survive: all & !gone,
                also: 0,
                replaces: false,
                away: if servers.repair.is_some() { gone } else { 0 },
            };
            found.stops.entry(key).or_default().add(rate, 0.0);
        } else {
            for bit in hit {
                found.losses[bit] += rate;
            }
        }
    }
    found
}

/// A job's nodes and the levels on them.
pub(crate) struct World<'a> {
    pub levels: &'a [Level],
    pub count: u32,
}

impl World<'_> {
    /// Levels that survive the loss of these nodes, ascending.
    pub fn survive(&self, lost: &[u32]) -> Mask {
        let left = |level: &Level| level.scheme.survives(lost, self.count);
        let bits = self
            .levels
            .iter()
            .enumerate()
            .filter(|(_, level)| left(level));
        bits.map(|(bit, _)| 1 << bit).sum()
    }

    /// How many nodes complete a failure of one node.
    fn relations(&self, level: &Level) -> u64 {
        match level.scheme {
            Scheme::Partner { .. } => 2,
            Scheme::Erasure { layout, parity: 1 } => u64::from(layout.size),
            _ => 0,
        }
    }

    /// An event that takes exactly these nodes, ascending.
    fn whole(&self, lost: &[u32], rate: f64, add: &mut impl FnMut(Mask, Mask, bool, f64, f64)) {
        let survive = self.survive(lost);
        let mut shares: BTreeMap<Mask, u32> = BTreeMap::new();
        for also in self.completing(lost).into_values() {
            *shares.entry(also & survive).or_default() += 1;
        }
        shares.remove(&0);
        let all = f64::from(self.count);
        let completed: u32 = shares.values().sum();
        for (also, nodes) in shares {
            add(survive, also, true, rate * f64::from(nodes) / all, 0.0);
        }
        add(
            survive,
            0,
            true,
            rate * (1.0 - f64::from(completed) / all),
            0.0,
        );
    }

    /// Nodes outside `lost` whose earlier replacement makes it worse, and for which levels.
    fn completing(&self, lost: &[u32]) -> BTreeMap<u32, Mask> {
        let mut found: BTreeMap<u32, Mask> = BTreeMap::new();
        let mut mark = |node: u32, bit: usize| {
            if lost.binary_search(&node).is_err() {
                *found.entry(node).or_default() |= 1 << bit;
            }
        };
        for (bit, level) in self.levels.iter().enumerate() {
            match level.scheme {
                Scheme::Partner { distance } => {
                    let (n, d) = (u64::from(self.count), u64::from(distance));
                    for &node in lost {
                        mark(((u64::from(node) + d) % n) as u32, bit);
                        mark(((u64::from(node) + n - d) % n) as u32, bit);
                    }
                }
                Scheme::Erasure { layout, parity } => {
                    let mut sets: BTreeMap<u32, u32> = BTreeMap::new();
                    for &node in lost {
                        *sets.entry(layout.set_of(node)).or_default() += 1;
                    }
                    let full = sets.into_iter().filter(|&(_, hit)| hit == parity);
                    for (set, _) in full {
                        layout
                            .members(set, self.count)
                            .for_each(|node| mark(node, bit));
                    }
                }
                Scheme::Local | Scheme::Shared { .. } => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;

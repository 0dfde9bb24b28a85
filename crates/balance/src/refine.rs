//! Refinement of the border between two processes: Fiduccia-Mattheyses with
//! roll-back to the best prefix (Fiduccia and Mattheyses 1982; in parallel by
//! disjoint pairs as in Schamberger 2004 and Holtgrewe, Sanders, Schulz 2010;
//! FFMK 2020, section 2.5, phase 4).
//!
//! The aim is the cut plus a price for every task away from home; at ragged processes
//! ([`crate::outline`]) cut edges are weighed, and what sticks out counts. While a process
//! of the pair is above the limit, balance comes first. Invariants: a pass never
//! ends worse than it began in (excess over the limit, cost, larger level), in
//! this order; a task moves at most once a pass; a present process keeps its last
//! task; the outcome depends on the arguments only.

use std::collections::BinaryHeap;

use crate::band::Band;
use crate::outline::pulls;
use crate::select::Move;

/// Moves without progress after which a pass gives up.
const STALL_MAX: usize = 24;
/// At a ragged process more, if they are less than one in so many tasks of the bands: a step
/// in a border has to be moved over all of a face before it is gone.
const STALL_PART: usize = 10;
/// Differences below this part of an average edge, or of the limit, are rounding.
const EPSILON: f64 = 1e-9;

/// What refinement aims at.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Goal {
    /// The largest load per speed that is in balance.
    pub level_max: f64,
    /// The average edge weight: what costs are measured by, so that the unit of the
    /// weights does not matter.
    pub edge: f64,
    /// Edge weight that a task away from home is worth.
    pub price: f64,
    /// Passes at most.
    pub passes: u32,
    /// Edge weight that it is worth to smooth the border of a ragged process by the
    /// length of an edge.
    pub shape: f64,
}

/// What refinement did.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Refined {
    /// The tasks that change sides.
    pub moves: Vec<Move>,
    /// Edges seen and candidates handled.
    pub operations: u64,
}

/// Refines the border between the processes `(a, b)` with these bands.
pub fn refine((a, b): (u32, u32), bands: (&Band, &Band), goal: &Goal) -> Refined {
    let mut pair = Pair::join((a, b), bands, goal);
    let before = pair.side.clone();
    for _ in 0..goal.passes {
        if !pair.pass() {
            break;
        }
    }
    let names = bands.0.tasks.iter().chain(&bands.1.tasks);
    let moves = names.zip(before.iter().zip(&pair.side));
    let moves = moves
        .filter(|(_, (was, is))| was != is)
        .map(|(&task, (_, &is))| Move {
            task,
            to: if is == 0 { a } else { b },
        });
    Refined {
        moves: moves.collect(),
        operations: pair.operations,
    }
}

/// How many places of a row have a seeker of their own.
const SEEKERS: usize = 32;

/// Finds numbers in an ascending list where the last one was found: the n-th neighbours
/// of successive tasks are mostly successive themselves.
#[derive(Clone, Copy, Default)]
struct Seeker {
    /// Where the last number is or would be.
    at: usize,
}

impl Seeker {
    fn find(&mut self, list: &[u32], number: u32) -> Option<usize> {
        // The first place whose number is not below: at the last one or a step on.
        let fits = |at: usize| {
            let above = list.get(at).is_none_or(|&here| here >= number);
            above && (at == 0 || list[at - 1] < number)
        };
        let near = (self.at..self.at + 3).find(|&at| at <= list.len() && fits(at));
        self.at = near.unwrap_or_else(|| list.partition_point(|&here| here < number));
        (list.get(self.at) == Some(&number)).then_some(self.at)
    }
}

#[derive(PartialEq)]
struct Entry {
    gain: f64,
    order: u32,
    task: u32,
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> core::cmp::Ordering {
        let gain = self.gain.total_cmp(&other.gain);
        gain.then(self.order.cmp(&other.order))
            .then(other.task.cmp(&self.task))
    }
}

struct Pair<'a> {
    goal: &'a Goal,
    weights: Vec<f64>,
    side: Vec<u8>,
    /// 0 or 1: at home on that side; 2: on neither.
    home: Vec<u8>,
    anchors: Vec<[f64; 2]>,
    /// What each is worth on side 1 rather than on side 0, beside its edges.
    pulls: Vec<f64>,
    offsets: Vec<u32>,
    to: Vec<u32>,
    edges: Vec<f64>,
    loads: [f64; 2],
    speeds: [f64; 2],
    counts: [usize; 2],
    gains: Vec<f64>,
    locked: Vec<bool>,
    heaps: [BinaryHeap<Entry>; 2],
    order: u32,
    stall_max: usize,
    operations: u64,
}

impl<'a> Pair<'a> {
    fn join((a, b): (u32, u32), bands: (&Band, &Band), goal: &'a Goal) -> Pair<'a> {
        let (left, right) = bands;
        let first = left.tasks.len();
        let total = first + right.tasks.len();
        let mut pair = Pair {
            goal,
            weights: left.weights.iter().chain(&right.weights).copied().collect(),
            side: vec![0; first],
            home: Vec::with_capacity(total),
            anchors: left.anchors.iter().map(|&w| [w, 0.0]).collect(),
            pulls: pulls(left, right, goal.shape),
            offsets: vec![0],
            to: Vec::with_capacity(left.to.len() + right.to.len()),
            edges: Vec::with_capacity(left.to.len() + right.to.len()),
            loads: [left.load, right.load],
            speeds: [left.speed, right.speed],
            counts: [left.count, right.count],
            gains: vec![0.0; total],
            locked: vec![false; total],
            heaps: [BinaryHeap::new(), BinaryHeap::new()],
            order: 0,
            stall_max: match left.outline {
                Some(_) => STALL_MAX.max(total / STALL_PART),
                None => STALL_MAX,
            },
            operations: total as u64,
        };
        pair.side.resize(total, 1);
        pair.anchors.extend(right.anchors.iter().map(|&w| [0.0, w]));
        for &home in left.homes.iter().chain(&right.homes) {
            pair.home.push(if home == a {
                0
            } else if home == b {
                1
            } else {
                2
            });
        }
        for band in [left, right] {
            let mut seekers = [[Seeker::default(); 2]; SEEKERS];
            for slot in 0..band.tasks.len() {
                let row = band.offsets[slot] as usize..band.offsets[slot + 1] as usize;
                let ends = band.to[row.clone()].iter().zip(&band.edges[row]);
                for (place, (name, &edge)) in ends.enumerate() {
                    let [in_left, in_right] = &mut seekers[place % SEEKERS];
                    let local = match in_left.find(&left.tasks, *name) {
                        None => in_right.find(&right.tasks, *name).map(|r| r + first),
                        found => found,
                    };
                    pair.operations += 1;
                    match local {
                        Some(local) => {
                            pair.to.push(local as u32);
                            pair.edges.push(edge);
                        }
                        // Over there, and not to be moved.
                        None => {
                            let here = pair.offsets.len() - 1;
                            pair.anchors[here][1 - pair.side[here] as usize] += edge;
                        }
                    }
                }
                pair.offsets.push(pair.to.len() as u32);
            }
        }
        pair
    }

    fn row(&self, task: usize) -> core::ops::Range<usize> {
        self.offsets[task] as usize..self.offsets[task + 1] as usize
    }

    fn gain(&self, task: usize) -> f64 {
        let own = self.side[task];
        let other = 1 - own;
        let mut gain = self.anchors[task][other as usize] - self.anchors[task][own as usize];
        for slot in self.row(task) {
            let edge = self.edges[slot];
            gain += if self.side[self.to[slot] as usize] == own {
                -edge
            } else {
                edge
            };
        }
        gain += match own {
            0 => self.pulls[task],
            _ => -self.pulls[task],
        };
        match self.home[task] {
            home if home == own => gain - self.goal.price,
            home if home == other => gain + self.goal.price,
            _ => gain,
        }
    }

    fn levels(&self, loads: [f64; 2]) -> f64 {
        let level = |side: usize| match self.speeds[side] > 0.0 {
            true => loads[side] / self.speeds[side],
            false if loads[side] > 0.0 => f64::INFINITY,
            false => 0.0,
        };
        level(0).max(level(1))
    }

    fn after(&self, task: usize) -> [f64; 2] {
        let (from, weight) = (self.side[task] as usize, self.weights[task]);
        let mut loads = self.loads;
        loads[from] -= weight;
        loads[1 - from] += weight;
        loads
    }

    fn push(&mut self, task: usize) {
        self.order += 1;
        self.operations += 1;
        let entry = Entry {
            gain: self.gains[task],
            order: self.order,
            task: task as u32,
        };
        self.heaps[self.side[task] as usize].push(entry);
    }

    /// One pass; true if it improved anything.
    fn pass(&mut self) -> bool {
        self.heaps.iter_mut().for_each(BinaryHeap::clear);
        self.locked.fill(false);
        for task in (0..self.side.len()).rev() {
            self.gains[task] = self.gain(task);
            self.operations += self.row(task).len() as u64;
            let own = self.side[task];
            let cut = self.anchors[task][1 - own as usize] > 0.0
                || self
                    .row(task)
                    .any(|s| self.side[self.to[s] as usize] != own);
            if cut {
                self.push(task);
            }
        }
        let start = (self.excess(self.loads), 0.0, self.levels(self.loads));
        let (mut best, mut best_length) = (start, 0);
        let mut trail: Vec<u32> = Vec::new();
        let mut cost = 0.0;
        while trail.len() - best_length < self.stall_max {
            let Some(task) = self.choose() else { break };
            cost -= self.gains[task];
            self.apply(task);
            trail.push(task as u32);
            let key = (self.excess(self.loads), cost, self.levels(self.loads));
            if self.better(key, best) {
                best = key;
                best_length = trail.len();
            }
        }
        for &task in trail[best_length..].iter().rev() {
            self.flip(task as usize);
        }
        best_length > 0
    }

    /// Lexicographic, with room for rounding.
    fn better(&self, a: (f64, f64, f64), b: (f64, f64, f64)) -> bool {
        let (level, cost) = (EPSILON * self.goal.level_max, EPSILON * self.goal.edge);
        if (a.0 - b.0).abs() > level {
            return a.0 < b.0;
        }
        if (a.1 - b.1).abs() > cost {
            return a.1 < b.1;
        }
        a.2 < b.2 - level
    }

    fn excess(&self, loads: [f64; 2]) -> f64 {
        (self.levels(loads) - self.goal.level_max).max(0.0)
    }

    /// The best move that keeps or restores balance, taken off its heap.
    fn choose(&mut self) -> Option<usize> {
        let level = self.levels(self.loads);
        let over = level > self.goal.level_max;
        let mut tops: [Option<Entry>; 2] = [None, None];
        for (side, top) in tops.iter_mut().enumerate() {
            while let Some(entry) = self.heaps[side].pop() {
                self.operations += 1;
                let task = entry.task as usize;
                let stale = self.side[task] as usize != side || self.gains[task] != entry.gain;
                if self.locked[task] || stale {
                    continue;
                }
                let after = self.levels(self.after(task));
                let allowed = if over {
                    after < level
                } else {
                    after <= self.goal.level_max
                };
                let keeps = self.counts[side] > 1 || self.speeds[side] <= 0.0;
                if allowed && keeps && self.speeds[1 - side] > 0.0 {
                    *top = Some(entry);
                    break;
                }
            }
        }
        let [left, right] = tops;
        let (chosen, other) = match (left, right) {
            (Some(l), Some(r)) if l >= r => (l, Some(r)),
            (Some(l), Some(r)) => (r, Some(l)),
            (Some(one), None) | (None, Some(one)) => (one, None),
            (None, None) => return None,
        };
        if let Some(back) = other {
            self.heaps[self.side[back.task as usize] as usize].push(back);
        }
        Some(chosen.task as usize)
    }

    fn flip(&mut self, task: usize) {
        let from = self.side[task] as usize;
        self.loads = self.after(task);
        self.counts[from] -= 1;
        self.counts[1 - from] += 1;
        self.side[task] = 1 - self.side[task];
    }

    fn apply(&mut self, task: usize) {
        self.flip(task);
        self.locked[task] = true;
        let side = self.side[task];
        for slot in self.row(task) {
            self.operations += 1;
            let near = self.to[slot] as usize;
            let edge = self.edges[slot];
            self.gains[near] += if self.side[near] == side {
                -2.0 * edge
            } else {
                2.0 * edge
            };
            if !self.locked[near] {
                self.push(near);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::band::{Marks, band};
    use crate::graph::Graph;
    use crate::metrics::measure;
    use crate::processes::Processes;

    fn run(graph: &Graph, parts: &mut [u32], goal: &Goal) {
        let home = parts.to_vec();
        let loads = Processes::uniform(2).unwrap().loads(graph, parts);
        let mut marks = Marks::new(parts.len());
        let mut side = |me: u32, other: u32| {
            let own: Vec<u32> = (0..parts.len() as u32)
                .filter(|&t| parts[t as usize] == me)
                .collect();
            let (mut half, _) = band(graph, parts, &home, (me, other), &own, 3, &mut marks);
            half.load = loads[me as usize];
            half.speed = 1.0;
            half.count = own.len();
            half
        };
        let (left, right) = (side(0, 1), side(1, 0));
        for moved in refine((0, 1), (&left, &right), goal).moves {
            parts[moved.task as usize] = moved.to;
        }
    }

    #[test]
    fn a_seeker_finds_what_a_search_finds() {
        let mut random = outlive_base::rng::Sequence::new(outlive_base::seed!(), 0);
        for length in 0..40 {
            let mut list: Vec<u32> = (0..length).map(|_| random.below(60) as u32).collect();
            list.sort_unstable();
            list.dedup();
            let mut seeker = Seeker::default();
            for _ in 0..300 {
                let number = random.below(64) as u32;
                let found = seeker.find(&list, number);
                assert_eq!(found, list.binary_search(&number).ok(), "{list:?} {number}");
            }
        }
    }

    #[test]
    fn a_ragged_border_becomes_straight_and_stays_in_balance() {
        let graph = Graph::mesh(12, 8, 1);
        let ragged = |t: u32| u32::from(t % 12 >= 6) ^ u32::from((t % 12) / 2 == 2 + t / 12 % 2);
        let mut parts: Vec<u32> = (0..96).map(ragged).collect();
        let two = Processes::uniform(2).unwrap();
        let before = measure(&graph, &two, &parts, &parts);
        let goal = Goal {
            level_max: 50.0,
            edge: 1.0,
            price: 0.0,
            passes: 4,
            shape: 0.0,
        };
        for _ in 0..3 {
            run(&graph, &mut parts, &goal);
        }
        let after = measure(&graph, &two, &parts, &parts);
        assert!(after.edge_cut_total <= 10.0, "{before:?} {after:?}");
        assert!(after.imbalance <= 50.0 / 48.0 - 1.0);
    }

    #[test]
    fn above_the_limit_balance_comes_first() {
        let graph = Graph::mesh(12, 8, 1);
        let mut parts: Vec<u32> = (0..96).map(|t| u32::from(t % 12 >= 8)).collect();
        let goal = Goal {
            level_max: 49.0,
            edge: 1.0,
            price: 0.5,
            passes: 8,
            shape: 0.0,
        };
        for _ in 0..4 {
            run(&graph, &mut parts, &goal);
        }
        let two = Processes::uniform(2).unwrap();
        assert!(measure(&graph, &two, &parts, &parts).imbalance <= 49.0 / 48.0 - 1.0 + 1e-12);
    }
}

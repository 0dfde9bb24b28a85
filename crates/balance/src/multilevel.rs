//! A partition from nothing, by a multilevel method: the graph is coarsened, the coarsest one
//! cut by recursive bisection, the cut refined on the way back (Karypis and Kumar 1998).
//!
//! Where there was a partition before, the parts are named, on the coarsest graph, after the
//! processes that most of their tasks come from, and refinement weighs cut edges against
//! tasks away from home (Schloegel, Karypis and Kumar 2000, "scratch-remap").
//!
//! Invariants: the result depends on the arguments only; while there are tasks enough, no part
//! stays empty.

mod coarse;
mod fm;
mod initial;

use outlive_base::rng;

use crate::graph::Graph;
use crate::relabel;
use coarse::{Level, coarsen};
use fm::{Aim, refine};

/// Vertices of the coarsest graph for each part.
const COARSEST: usize = 24;
/// Levels at most: each is at least a twentieth smaller than the one before.
const LEVELS_MAX: usize = 64;
/// Partitions of the coarsest graph, of which the best is taken.
const TRIES: u64 = 8;
/// Passes of refinement on each level.
const PASSES: u32 = 6;

/// A part before that is none any more.
pub const NOWHERE: u32 = u32::MAX;

/// What a partition is made for.
#[derive(Clone, PartialEq, Debug)]
pub struct Goal<'a> {
    /// The load that each part should have; any unit.
    pub shares: &'a [f64],
    /// How far above its share a part may be: 0.02 is two per cent.
    pub tolerance: f64,
    /// The part of each task before, or [`NOWHERE`]; empty if there was none.
    pub homes: &'a [u32],
    /// Edge weight that it is worth to leave a task at home.
    pub price: f64,
    /// Chance.
    pub seed: u64,
}

/// The part of each task.
pub fn partition(graph: &Graph, goal: &Goal) -> Vec<u32> {
    let total: f64 = graph.weights().iter().sum();
    let sum: f64 = goal.shares.iter().sum();
    let shares: Vec<f64> = goal.shares.iter().map(|s| s / sum * total).collect();
    let labels = goal.homes.iter().map(|&home| u64::from(home)).collect();
    let finest = Level::finest(graph, goal.homes, labels);
    let (levels, maps) = hierarchy(finest, shares.len(), goal.seed);
    let mut parts = match levels.last() {
        Some(coarsest) => first(coarsest, maps.len(), &shares, goal),
        None => Vec::new(),
    };
    let Some(finest) = levels.first() else {
        return parts;
    };
    let over = upwards(&levels, &maps, &mut parts, &shares, goal);
    let (better, left) = again(graph, &parts, &shares, goal);
    let judge = |over: f64, parts: &[u32]| (over, finest.cost(parts, goal.price));
    match judge(left, &better) < judge(over, &parts) {
        true => better,
        false => parts,
    }
}

/// Once more, from a partition: what is merged is of one part and of one home, so that the
/// coarse graphs have this partition too, and refinement on them moves whole pieces of a
/// border (Walshaw 2004, "iterated multilevel"). With the load above the limits.
fn again(graph: &Graph, parts: &[u32], shares: &[f64], goal: &Goal) -> (Vec<u32>, f64) {
    let home = |task: usize| goal.homes.get(task).map_or(0, |&home| u64::from(home));
    let label = |(task, &part): (usize, &u32)| home(task) << 32 | u64::from(part);
    let labels = parts.iter().enumerate().map(label).collect();
    let finest = Level::finest(graph, goal.homes, labels);
    let (levels, maps) = hierarchy(finest, shares.len(), rng::draw(goal.seed, 8, 0));
    let mut coarse = parts.to_vec();
    for (map, level) in maps.iter().zip(&levels[1..]) {
        let mut next = vec![0; level.count()];
        for (&vertex, &part) in map.iter().zip(&coarse) {
            next[vertex as usize] = part;
        }
        coarse = next;
    }
    let over = upwards(&levels, &maps, &mut coarse, shares, goal);
    (coarse, over)
}

/// From the coarsest graph, which `parts` is of, to the finest, refining on each; returns the
/// load that is left above the limits.
fn upwards(
    levels: &[Level],
    maps: &[Vec<u32>],
    parts: &mut Vec<u32>,
    shares: &[f64],
    goal: &Goal,
) -> f64 {
    let mut over = 0.0;
    for (depth, level) in levels.iter().enumerate().rev() {
        if let Some(map) = maps.get(depth) {
            *parts = map.iter().map(|&v| parts[v as usize]).collect();
        }
        over = polish(level, parts, depth, shares, goal);
    }
    over
}

/// Refines on one level; returns the load above the limits.
fn polish(level: &Level, parts: &mut [u32], depth: usize, shares: &[f64], goal: &Goal) -> f64 {
    // Coarse vertices do not fit exactly: the finest level ends within the tolerance.
    let room = if depth > 0 {
        level.heaviest() / 2.0
    } else {
        0.0
    };
    let limit = |share: &f64| share * (1.0 + goal.tolerance) + room;
    let enough = level.count() >= shares.len();
    let aim = Aim {
        limits: &shares.iter().map(limit).collect::<Vec<f64>>(),
        least: &vec![usize::from(enough); shares.len()],
        price: goal.price,
        passes: PASSES,
    };
    refine(level, parts, &aim)
}

/// The graph and coarser ones, and the maps from each to the next.
fn hierarchy(finest: Level, count: usize, seed: u64) -> (Vec<Level>, Vec<Vec<u32>>) {
    let enough = COARSEST * count;
    let heaviest = 1.5 * finest.weight() / enough as f64;
    let (mut levels, mut maps) = (vec![finest], Vec::new());
    for depth in 0..LEVELS_MAX {
        let Some(fine) = levels.last().filter(|level| level.count() > enough) else {
            break;
        };
        let (coarse, map) = coarsen(fine, heaviest, rng::draw(seed, 5, depth as u64));
        if coarse.count() * 20 > fine.count() * 19 {
            break;
        }
        levels.push(coarse);
        maps.push(map);
    }
    (levels, maps)
}

/// The best of a few partitions of the coarsest graph, refined.
fn first(level: &Level, depth: usize, shares: &[f64], goal: &Goal) -> Vec<u32> {
    let mut best: Option<((f64, f64), Vec<u32>)> = None;
    for attempt in 0..TRIES {
        let seed = rng::draw(goal.seed, 6, attempt);
        let parts = initial::recursive(level, shares, goal.tolerance / 2.0, seed);
        let mut parts = named(level, parts, shares, goal);
        let over = polish(level, &mut parts, depth, shares, goal);
        let key = (over, level.cost(&parts, goal.price));
        if best.as_ref().is_none_or(|(least, _)| key < *least) {
            best = Some((key, parts));
        }
    }
    best.map_or_else(Vec::new, |found| found.1)
}

/// The parts under the names that keep most tasks at home.
fn named(level: &Level, parts: Vec<u32>, shares: &[f64], goal: &Goal) -> Vec<u32> {
    if level.homes.is_empty() {
        return parts;
    }
    let kept = parts.iter().zip(&level.homes).zip(&level.sizes);
    let kept = kept.filter(|((_, home), _)| **home != NOWHERE);
    let kept = kept.map(|((&part, &home), &size)| (part, home, size));
    let names = relabel::names(kept.collect(), shares, goal.tolerance);
    parts.iter().map(|&part| names[part as usize]).collect()
}

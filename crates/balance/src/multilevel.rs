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
    let enough = graph.tasks() >= shares.len();
    let least = vec![usize::from(enough); shares.len()];
    let (levels, maps) = hierarchy(Level::finest(graph, goal.homes), shares.len(), goal.seed);
    let mut parts = Vec::new();
    for (depth, level) in levels.iter().enumerate().rev() {
        match maps.get(depth) {
            None => parts = first(level, &shares, goal),
            Some(map) => parts = map.iter().map(|&v| parts[v as usize]).collect(),
        }
        // Coarse vertices do not fit exactly: the finest level ends within the tolerance.
        let room = if depth > 0 {
            level.heaviest() / 2.0
        } else {
            0.0
        };
        let limit = |share: &f64| share * (1.0 + goal.tolerance) + room;
        let aim = Aim {
            limits: &shares.iter().map(limit).collect::<Vec<f64>>(),
            least: &least,
            price: goal.price,
            passes: PASSES,
        };
        refine(level, &mut parts, &aim);
    }
    parts
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

/// The partition of the coarsest graph, under the names that keep most tasks at home.
fn first(level: &Level, shares: &[f64], goal: &Goal) -> Vec<u32> {
    let seed = rng::draw(goal.seed, 6, 0);
    let parts = initial::recursive(level, shares, goal.tolerance / 2.0, seed);
    if level.homes.is_empty() {
        return parts;
    }
    let kept = parts.iter().zip(&level.homes).zip(&level.sizes);
    let kept = kept.filter(|((_, home), _)| **home != NOWHERE);
    let kept = kept.map(|((&part, &home), &size)| (part, home, size));
    let names = relabel::names(kept.collect(), shares, goal.tolerance);
    parts.iter().map(|&part| names[part as usize]).collect()
}

//! A load that is large and in one place: a tenth of the tasks, those nearest to a place that
//! is drawn for each step, become so heavy that a process which holds nothing else has three
//! times the average load. On graphs of several kinds.

use outlive_base::rng::{self, Sequence};

use crate::error::BalanceError;
use crate::graph::Graph;

/// The part of the tasks that is heavy.
const PART: f64 = 0.1;
/// The load of a process with heavy tasks only, over the average.
const PEAK: f64 = 3.0;

/// Weights of `step`; at step 0 all are alike.
pub(super) fn weights(graph: &Graph, step: u32, seed: u64) -> Vec<f64> {
    let all = graph.coordinates().unwrap_or(&[]);
    let mut weights = vec![1.0; all.len()];
    if step == 0 || all.is_empty() {
        return weights;
    }
    let place = rng::below(rng::draw(seed, 31, u64::from(step)), all.len() as u64);
    let middle = all[place as usize];
    let distance = |at: &[f64; 3]| {
        let gaps = [0, 1, 2].map(|axis| at[axis] - middle[axis]);
        gaps.iter().map(|gap| gap * gap).sum::<f64>()
    };
    let mut order: Vec<(f64, usize)> = all.iter().map(distance).zip(0..).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    // Heavy over the average: w / (1 - p + p w) = peak.
    let heavy = PEAK * (1.0 - PART) / (1.0 - PEAK * PART);
    let count = (PART * all.len() as f64) as usize;
    for &(_, task) in &order[..count] {
        weights[task] = heavy;
    }
    weights
}

/// Points drawn in a square, each tied to those within a distance at which it has about
/// `degree` of them: a random geometric graph, as the `rgg` graphs of the tenth DIMACS
/// challenge.
///
/// # Errors
/// None: the checks are those of [`Graph::from_edges`].
pub fn random_geometric(tasks: usize, degree: f64, seed: u64) -> Result<Graph, BalanceError> {
    let mut random = Sequence::new(seed, 32);
    let mut unit = || random.below(1 << 40) as f64 / (1u64 << 40) as f64;
    let points: Vec<[f64; 2]> = (0..tasks).map(|_| [unit(), unit()]).collect();
    let reach_squared = degree / (core::f64::consts::PI * tasks.max(1) as f64);
    let cells = ((1.0 / libm::sqrt(reach_squared)) as usize).clamp(1, 4096);
    let cell = |value: f64| ((value * cells as f64) as usize).min(cells - 1);
    let mut rows: Vec<Vec<u32>> = vec![Vec::new(); cells * cells];
    for (task, at) in points.iter().enumerate() {
        rows[cell(at[1]) * cells + cell(at[0])].push(task as u32);
    }
    let mut edges = Vec::new();
    for (task, at) in points.iter().enumerate() {
        let (x, y) = (cell(at[0]), cell(at[1]));
        for row in y.saturating_sub(1)..(y + 2).min(cells) {
            for column in x.saturating_sub(1)..(x + 2).min(cells) {
                for &other in &rows[row * cells + column] {
                    let there = points[other as usize];
                    let (dx, dy) = (at[0] - there[0], at[1] - there[1]);
                    if other > task as u32 && dx * dx + dy * dy <= reach_squared {
                        edges.push((task as u32, other, 1.0));
                    }
                }
            }
        }
    }
    let places = points.iter().map(|at| [at[0], at[1], 0.0]).collect();
    Graph::from_edges(tasks, &edges, vec![1.0; tasks])?.with_coordinates(places)
}

/// A mesh of triangles, as of finite elements: a grid whose points are displaced, with one
/// diagonal in each cell, drawn, and a round hole.
///
/// # Errors
/// None: the checks are those of [`Graph::from_edges`].
pub fn triangles(x: usize, y: usize, seed: u64) -> Result<Graph, BalanceError> {
    let mut random = Sequence::new(seed, 33);
    let (hole_x, hole_y) = (0.6 * x as f64, 0.4 * y as f64);
    let reach = 0.15 * x.min(y) as f64;
    let mut names = vec![None; x * y];
    let mut places = Vec::new();
    for j in 0..y {
        for i in 0..x {
            let (dx, dy) = (i as f64 - hole_x, j as f64 - hole_y);
            if dx * dx + dy * dy >= reach * reach {
                names[j * x + i] = Some(places.len() as u32);
                let mut jitter = || random.below(1 << 20) as f64 / f64::from(1 << 20) * 0.6 - 0.3;
                places.push([i as f64 + jitter(), j as f64 + jitter(), 0.0]);
            }
        }
    }
    let mut edges = Vec::new();
    for j in 0..y {
        for i in 0..x {
            let at = |i: usize, j: usize| (i < x && j < y).then(|| names[j * x + i]).flatten();
            let diagonal = match random.chance(500_000) {
                true => (at(i, j), at(i + 1, j + 1)),
                false => (at(i + 1, j), at(i, j + 1)),
            };
            let right = (at(i, j), at(i + 1, j));
            let down = (at(i, j), at(i, j + 1));
            for pair in [right, down, diagonal] {
                if let (Some(a), Some(b)) = pair {
                    edges.push((a, b, 1.0));
                }
            }
        }
    }
    let count = places.len();
    Graph::from_edges(count, &edges, vec![1.0; count])?.with_coordinates(places)
}

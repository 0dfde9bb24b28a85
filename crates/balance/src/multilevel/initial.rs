//! The first partition of a coarse graph: recursive bisection, each half found on a graph
//! coarsened still further, by growing from a few places (Karypis and Kumar 1998).
//!
//! Invariants: while there are vertices enough, no part stays empty.

use outlive_base::rng;

use super::coarse::{Level, coarsen};
use super::fm::{Aim, refine};

/// Vertices of the graph in which a half is grown.
const SMALL: usize = 80;
/// Places from which a half is grown.
const TRIES: u64 = 16;
const PASSES: u32 = 8;

/// Cuts `level` into parts of these shares of the weight.
pub(super) fn recursive(level: &Level, shares: &[f64], slack: f64, seed: u64) -> Vec<u32> {
    let mut parts = vec![0; level.count()];
    let own: Vec<u32> = (0..level.count() as u32).collect();
    split(level, &own, shares, 0, (slack, seed), &mut parts);
    parts
}

fn split(
    level: &Level,
    own: &[u32],
    shares: &[f64],
    first: u32,
    (slack, seed): (f64, u64),
    parts: &mut [u32],
) {
    if shares.len() < 2 || own.is_empty() {
        own.iter().for_each(|&v| parts[v as usize] = first);
        return;
    }
    let part = level.part(own);
    let middle = shares.len() / 2;
    let (left, right) = shares.split_at(middle);
    let sums = [left.iter().sum::<f64>(), right.iter().sum::<f64>()];
    let least = match own.len() >= shares.len() {
        true => [left.len(), right.len()],
        false => [0, 0],
    };
    let half = bisect(&part, sums, least, (slack, seed));
    for (side, (some, base)) in [(left, first), (right, first + middle as u32)]
        .into_iter()
        .enumerate()
    {
        let chosen = own.iter().zip(&half).filter(|(_, s)| **s == side as u32);
        let chosen: Vec<u32> = chosen.map(|(&vertex, _)| vertex).collect();
        let seed = rng::draw(seed, 7, side as u64);
        split(level, &chosen, some, base, (slack, seed), parts);
    }
}

/// The side of each vertex.
fn bisect(
    level: &Level,
    shares: [f64; 2],
    least: [usize; 2],
    (slack, seed): (f64, u64),
) -> Vec<u32> {
    let total = level.weight();
    let shares = shares.map(|share| share / (shares[0] + shares[1]));
    let limits = |level: &Level| {
        let room = level.heaviest() / 2.0;
        shares.map(|share| total * share * (1.0 + slack) + room)
    };
    if level.count() > SMALL.max(2 * (least[0] + least[1])) {
        let heaviest = 2.0 * total / SMALL as f64;
        let (coarse, map) = coarsen(level, heaviest, rng::draw(seed, 2, 0));
        if coarse.count() * 20 < level.count() * 19 {
            let next = (slack, rng::draw(seed, 3, 0));
            let half = bisect(&coarse, shares, least, next);
            let mut half: Vec<u32> = map.iter().map(|&v| half[v as usize]).collect();
            let aim = Aim {
                limits: &limits(level),
                least: &least,
                price: 0.0,
                passes: PASSES,
            };
            refine(level, &mut half, &aim);
            return half;
        }
    }
    let aim = Aim {
        limits: &limits(level),
        least: &least,
        price: 0.0,
        passes: PASSES,
    };
    let mut best: Option<((f64, f64), Vec<u32>)> = None;
    for attempt in 0..TRIES {
        let mut half = grow(level, shares[0] * total, least, rng::draw(seed, 4, attempt));
        let over = refine(level, &mut half, &aim);
        let key = (over, level.cost(&half, 0.0));
        if best.as_ref().is_none_or(|(least, _)| key < *least) {
            best = Some((key, half));
        }
    }
    best.map_or_else(Vec::new, |found| found.1)
}

/// Grows side 0 from a place that is drawn: always by the vertex that adds least to the cut.
fn grow(level: &Level, goal: f64, least: [usize; 2], seed: u64) -> Vec<u32> {
    let count = level.count();
    let mut side = vec![1; count];
    let order = level.shuffled(seed);
    // What the cut would fall by; only of vertices that touch side 0.
    let mut gains: Vec<Option<f64>> = vec![None; count];
    let (mut load, mut taken, mut drawn) = (0.0, 0, 0);
    while taken < count.saturating_sub(least[1]) {
        let touching = (0..count).filter(|&v| side[v] == 1 && gains[v].is_some());
        let best = touching.max_by(|&a, &b| {
            let (x, y) = (gains[a].unwrap_or(0.0), gains[b].unwrap_or(0.0));
            x.total_cmp(&y).then(b.cmp(&a))
        });
        let next = best.or_else(|| {
            // A piece of its own, or the first one.
            while drawn < count && side[order[drawn] as usize] == 0 {
                drawn += 1;
            }
            order.get(drawn).map(|&v| v as usize)
        });
        let Some(vertex) = next else { break };
        let weight = level.weights[vertex];
        if taken >= least[0] && load + weight / 2.0 > goal {
            break;
        }
        side[vertex] = 0;
        load += weight;
        taken += 1;
        for (near, edge) in level.adjacent(vertex) {
            if side[near] == 1 && gains[near].is_none() {
                gains[near] = Some(-level.adjacent(near).map(|end| end.1).sum::<f64>());
            }
            gains[near] = gains[near].map(|gain| gain + 2.0 * edge);
        }
    }
    side
}

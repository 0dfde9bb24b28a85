//! Events that take each member of a group with a probability.
//!
//! Members fall into components: nodes of one component share a redundancy set or are
//! partners, nodes of different ones do not. A level survives if it survives in every
//! component, and components are independent, so P(all levels of T survive) is a product
//! over components, each enumerated over all its subsets; inclusion and exclusion over T
//! gives the probability that exactly T survives. Where a component is too large, the event
//! is drawn [`DRAWS`] times.

use std::collections::BTreeMap;

use outlive_base::rng::Sequence;

use super::{Mask, Rate, World};
use crate::machine::Scheme;

/// Components of so many nodes are enumerated.
const NODES_MAX: usize = 16;
/// So many subsets in one event; more are drawn instead.
const SUBSETS_MAX: u64 = 1 << 22;
/// Draws of an event.
const DRAWS: u32 = 20_000;

/// The probability of each set of levels that survive, given the event, if it takes at least
/// one node. What it takes no node of stops nothing and is left out.
pub(super) fn outcomes(
    world: &World,
    members: &[u32],
    hits: f64,
    (seed, stream): (u64, u64),
) -> BTreeMap<Mask, Rate> {
    let components = components(world, members);
    let small = components.iter().all(|nodes| nodes.len() <= NODES_MAX);
    let subsets: u64 = match small {
        true => components.iter().map(|nodes| 1_u64 << nodes.len()).sum(),
        false => u64::MAX,
    };
    match subsets <= SUBSETS_MAX {
        true => exact(world, &components, hits),
        false => drawn(world, members, hits, Sequence::new(seed, stream)),
    }
}

/// Members that share a redundancy set or are partners, directly or through others.
fn components(world: &World, members: &[u32]) -> Vec<Vec<u32>> {
    let mut parent: Vec<usize> = (0..members.len()).collect();
    fn root(parent: &mut [usize], mut at: usize) -> usize {
        while parent[at] != at {
            parent[at] = parent[parent[at]];
            at = parent[at];
        }
        at
    }
    for level in world.levels {
        let mut first: BTreeMap<u32, usize> = BTreeMap::new();
        for (place, &node) in members.iter().enumerate() {
            let other = match level.scheme {
                Scheme::Partner { distance } => {
                    let n = u64::from(world.count);
                    let partner = ((u64::from(node) + u64::from(distance)) % n) as u32;
                    members.binary_search(&partner).ok()
                }
                Scheme::Erasure { layout, .. } => {
                    Some(*first.entry(layout.set_of(node)).or_insert(place))
                }
                Scheme::Local | Scheme::Shared { .. } => None,
            };
            if let Some(other) = other {
                let (a, b) = (root(&mut parent, place), root(&mut parent, other));
                parent[a] = b;
            }
        }
    }
    let mut found: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for (place, &node) in members.iter().enumerate() {
        found
            .entry(root(&mut parent, place))
            .or_default()
            .push(node);
    }
    found.into_values().collect()
}

fn exact(world: &World, components: &[Vec<u32>], hits: f64) -> BTreeMap<Mask, Rate> {
    let size = 1_usize << world.levels.len();
    // at_least[T]: P(all levels of T survive), a product over components.
    let mut at_least = vec![1.0_f64; size];
    let mut none = 1.0;
    for nodes in components {
        let mut here = vec![0.0_f64; size];
        for subset in 0..1_u32 << nodes.len() {
            let bits = (0..nodes.len()).filter(|bit| subset & (1 << bit) != 0);
            let lost: Vec<u32> = bits.map(|bit| nodes[bit]).collect();
            let (hit, missed) = (lost.len() as f64, (nodes.len() - lost.len()) as f64);
            let p = libm::pow(hits, hit) * libm::pow(1.0 - hits, missed);
            here[world.survive(&lost) as usize] += p;
        }
        none *= libm::pow(1.0 - hits, nodes.len() as f64);
        // Sums over supersets.
        for bit in (0..world.levels.len()).map(|level| 1_usize << level) {
            for set in (0..size).filter(|set| set & bit == 0) {
                here[set] += here[set | bit];
            }
        }
        at_least
            .iter_mut()
            .zip(&here)
            .for_each(|(all, one)| *all *= one);
    }
    // Inclusion and exclusion.
    for bit in (0..world.levels.len()).map(|level| 1_usize << level) {
        for set in (0..size).filter(|set| set & bit == 0) {
            at_least[set] -= at_least[set | bit];
        }
    }
    // What takes no node stops nothing.
    at_least[world.survive(&[]) as usize] -= none;
    let whole = at_least.iter().enumerate().filter(|(_, p)| **p > 1e-15);
    whole
        .map(|(set, &rate)| (set as Mask, Rate { rate, error: 0.0 }))
        .collect()
}

fn drawn(world: &World, members: &[u32], hits: f64, mut random: Sequence) -> BTreeMap<Mask, Rate> {
    let mut counts: BTreeMap<Mask, u32> = BTreeMap::new();
    let mut lost = Vec::new();
    // From one hit to the next: geometric.
    let log_missed = libm::log1p(-hits);
    for _ in 0..DRAWS {
        lost.clear();
        let mut place = 0.0;
        loop {
            let unit = ((random.u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            place += libm::floor(libm::log(unit) / log_missed);
            let Some(&node) = members.get(place as usize) else {
                break;
            };
            lost.push(node);
            place += 1.0;
        }
        if !lost.is_empty() {
            *counts.entry(world.survive(&lost)).or_default() += 1;
        }
    }
    let draws = f64::from(DRAWS);
    let rate = |count: u32| {
        let rate = f64::from(count) / draws;
        Rate {
            rate,
            error: libm::sqrt(rate * (1.0 - rate) / draws),
        }
    };
    counts
        .into_iter()
        .map(|(mask, count)| (mask, rate(count)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Layout, Level};

    fn level(scheme: Scheme) -> Level {
        let name = format!("{scheme:?}");
        Level {
            name,
            scheme,
            cost: 1.0,
            background: 0.0,
            restart: 1.0,
        }
    }

    /// All subsets of the members, without components.
    fn enumerated(world: &World, members: &[u32], hits: f64) -> BTreeMap<Mask, f64> {
        let mut found = BTreeMap::new();
        for subset in 1..1_u32 << members.len() {
            let bits = (0..members.len()).filter(|bit| subset & (1 << bit) != 0);
            let lost: Vec<u32> = bits.map(|bit| members[bit]).collect();
            let missed = (members.len() - lost.len()) as f64;
            let p = libm::pow(hits, lost.len() as f64) * libm::pow(1.0 - hits, missed);
            *found.entry(world.survive(&lost)).or_default() += p;
        }
        found
    }

    #[test]
    fn components_and_draws_agree_with_all_subsets() {
        let seed = outlive_base::seed!();
        let levels = [
            level(Scheme::Local),
            level(Scheme::Partner { distance: 5 }),
            level(Scheme::Erasure {
                layout: Layout { size: 4, stride: 4 },
                parity: 1,
            }),
            level(Scheme::Erasure {
                layout: Layout { size: 5, stride: 1 },
                parity: 2,
            }),
            level(Scheme::Shared { servers: 0 }),
        ];
        let members: Vec<u32> = (0..32).filter(|n| n % 3 != 1).take(14).collect();
        for chosen in [0b11111_usize, 0b00010, 0b10101, 0b11010] {
            let some: Vec<Level> = (0..5)
                .filter(|b| chosen & (1 << b) != 0)
                .map(|b| levels[b].clone())
                .collect();
            let world = World {
                levels: &some,
                count: 32,
            };
            for hits in [0.02, 0.3, 0.9] {
                let want = enumerated(&world, &members, hits);
                let found = exact(&world, &components(&world, &members), hits);
                for (mask, p) in &want {
                    let got = found.get(mask).map_or(0.0, |rate| rate.rate);
                    assert!(
                        (got - p).abs() < 1e-12,
                        "{chosen:b} {hits} {mask:b}: {got}, not {p}"
                    );
                }
                let drawn = drawn(&world, &members, hits, Sequence::new(seed, 1));
                for (mask, p) in &want {
                    let got = drawn.get(mask).copied().unwrap_or_default();
                    // Six standard errors of the true value, and a count of few.
                    let error = 6.0 * libm::sqrt(p * (1.0 - p) / f64::from(DRAWS)) + 3e-4;
                    assert!(
                        (got.rate - p).abs() < error,
                        "seed {seed}: {mask:b}: {got:?}, not {p}"
                    );
                }
            }
        }
    }
}

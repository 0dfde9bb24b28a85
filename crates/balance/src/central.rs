//! Balancing by one process that sees all loads, as a baseline: greedy, refine
//! and greedy-refine, as users of Charm++ know them (Zheng 2005, chapter 3).
//!
//! Invariants: absent processes end up empty; ties go to the lower number; a
//! present process keeps its last task in [`refine`] and [`greedy_refine`].

use core::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::graph::Graph;
use crate::processes::Processes;

/// A float as an ordered key.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Key(pub f64);
impl Eq for Key {}
impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Key {
    fn cmp(&self, other: &Key) -> core::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Heaviest task first, each to the process that is then the least loaded
/// (Graham 1969). Ignores where tasks are: nearly all of them move.
pub fn greedy(graph: &Graph, processes: &Processes) -> Vec<u32> {
    let tasks: Vec<u32> = (0..graph.tasks() as u32).collect();
    let mut loads = processes.background().to_vec();
    let mut parts = vec![0; graph.tasks()];
    place(graph, processes.speeds(), &mut loads, tasks, |task, to| {
        parts[task as usize] = to;
    });
    parts
}

/// Places tasks greedily onto loads.
pub(crate) fn place(
    graph: &Graph,
    speeds: &[f64],
    loads: &mut [f64],
    mut tasks: Vec<u32>,
    mut put: impl FnMut(u32, u32),
) {
    tasks.sort_by(|&a, &b| graph.weight(b).total_cmp(&graph.weight(a)).then(a.cmp(&b)));
    let present = (0..loads.len() as u32).filter(|&p| speeds[p as usize] > 0.0);
    let level = |loads: &[f64], p: u32| Key(loads[p as usize] / speeds[p as usize]);
    let mut heap: BinaryHeap<Reverse<(Key, u32)>> =
        present.map(|p| Reverse((level(loads, p), p))).collect();
    for task in tasks {
        let Some(Reverse((_, to))) = heap.pop() else {
            return;
        };
        put(task, to);
        loads[to as usize] += graph.weight(task);
        heap.push(Reverse((level(loads, to), to)));
    }
}

/// Moves tasks off overloaded processes only, until all are within the tolerance
/// or nothing fits: from the most loaded, the heaviest task that the least loaded
/// process can take.
pub fn refine(graph: &Graph, processes: &Processes, parts: &[u32], tolerance: f64) -> Vec<u32> {
    let mut parts = parts.to_vec();
    let mut loads = processes.loads(graph, &parts);
    let speeds = processes.speeds();
    let limit = processes.ideal(&loads) * (1.0 + tolerance);
    let mut own: Vec<BTreeSet<(Key, u32)>> = vec![BTreeSet::new(); processes.count()];
    for (task, &part) in parts.iter().enumerate() {
        own[part as usize].insert((Key(graph.weights()[task]), task as u32));
    }
    let level = |loads: &[f64], p: u32| match speeds[p as usize] {
        0.0 if loads[p as usize] > 0.0 => f64::INFINITY,
        0.0 => 0.0,
        speed => loads[p as usize] / speed,
    };
    let all = 0..processes.count() as u32;
    let mut light: BTreeSet<(Key, u32)> = all
        .clone()
        .filter(|&p| processes.present(p))
        .map(|p| (Key(level(&loads, p)), p))
        .collect();
    let mut heavy: Vec<u32> = all.filter(|&p| level(&loads, p) > limit).collect();
    heavy.sort_by(|&a, &b| {
        level(&loads, b)
            .total_cmp(&level(&loads, a))
            .then(a.cmp(&b))
    });
    for from in heavy {
        let leaving = !processes.present(from);
        while level(&loads, from) > limit && (leaving || own[from as usize].len() > 1) {
            let Some(&(lightest, to)) = light.iter().find(|entry| entry.1 != from) else {
                break;
            };
            let room = (limit - lightest.0) * speeds[to as usize];
            let tasks = &own[from as usize];
            let fits = tasks.range(..=(Key(room), u32::MAX)).next_back().copied();
            let Some(task) = fits.or_else(|| tasks.first().copied().filter(|_| leaving)) else {
                break;
            };
            own[from as usize].remove(&task);
            own[to as usize].insert(task);
            light.remove(&(Key(level(&loads, to)), to));
            light.remove(&(Key(level(&loads, from)), from));
            loads[from as usize] -= task.0.0;
            loads[to as usize] += task.0.0;
            light.insert((Key(level(&loads, to)), to));
            if !leaving {
                light.insert((Key(level(&loads, from)), from));
            }
            parts[task.1 as usize] = to;
        }
    }
    parts
}

/// Greedy that leaves a task where it is as long as its process stays within the
/// tolerance of the level that plain greedy reaches.
pub fn greedy_refine(
    graph: &Graph,
    processes: &Processes,
    parts: &[u32],
    tolerance: f64,
) -> Vec<u32> {
    let best = processes.loads(graph, &greedy(graph, processes));
    let speeds = processes.speeds();
    let present = |p: &usize| speeds[*p] > 0.0;
    let reached = (0..best.len())
        .filter(present)
        .map(|p| best[p] / speeds[p])
        .fold(0.0, f64::max);
    let limit = reached.max(processes.ideal(&best) * (1.0 + tolerance));
    let mut loads = processes.background().to_vec();
    let mut order: Vec<u32> = (0..graph.tasks() as u32).collect();
    order.sort_by(|&a, &b| graph.weight(b).total_cmp(&graph.weight(a)).then(a.cmp(&b)));
    let mut kept = parts.to_vec();
    let mut spilled = Vec::new();
    for task in order {
        let home = parts[task as usize] as usize;
        let weight = graph.weight(task);
        if speeds[home] > 0.0 && (loads[home] + weight) / speeds[home] <= limit {
            loads[home] += weight;
        } else {
            spilled.push(task);
        }
    }
    place(graph, speeds, &mut loads, spilled, |task, to| {
        kept[task as usize] = to
    });
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::measure;
    use crate::scenario::random_graph;

    #[test]
    fn all_balance_and_only_greedy_moves_everything() {
        for seed in outlive_base::seeds!(20) {
            let graph = random_graph(600, 6, seed).unwrap();
            let mut ten = Processes::uniform(10).unwrap();
            ten.set_speed(3, 2.0).unwrap();
            ten.remove(7).unwrap();
            let before: Vec<u32> = (0..600).map(|task| (task * task / 7) % 10).collect();
            let check = |parts: &[u32], migration_max: f64| {
                let m = measure(&graph, &ten, &before, parts);
                assert!(m.imbalance < 0.06, "{m:?}");
                assert!(m.migration_total <= migration_max, "{m:?}");
                assert!(!parts.contains(&7));
            };
            check(&greedy(&graph, &ten), 1.0);
            check(&refine(&graph, &ten, &before, 0.05), 0.5);
            check(&greedy_refine(&graph, &ten, &before, 0.05), 0.5);
        }
    }
}

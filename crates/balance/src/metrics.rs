//! The measures of the seed (FFMK 2020, section 2.5, figure 9), of one
//! assignment and of the step from one assignment to the next.

use serde::Serialize;

use crate::graph::Graph;
use crate::processes::Processes;

/// What an assignment is worth. All are "lower is better".
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Metrics {
    /// Largest load per speed over the ideal one, minus 1.
    pub imbalance: f64,
    /// Largest number of tasks that a process imports and exports, over the
    /// average number of tasks of a process.
    pub migration: f64,
    /// Tasks that changed their process, over all tasks.
    pub migration_total: f64,
    /// What no method that reaches this imbalance from there can go below in
    /// `migration`: see [`migration_least`].
    pub migration_least: f64,
    /// The same for `migration_total`.
    pub migration_total_least: f64,
    /// Largest weight of cut edges at a process, over the average weight of
    /// edges of a process (all edges, each counted once, over processes).
    pub edge_cut_max: f64,
    /// Weight of all cut edges, each counted once.
    pub edge_cut_total: f64,
    /// Communication volume: over all tasks, the number of other processes that
    /// its neighbours live on (Hendrickson and Kolda 2000).
    pub volume_total: f64,
    /// The largest number of neighbour processes.
    pub neighbours_max: usize,
}

/// The measures of `parts`, reached from `before`.
pub fn measure(graph: &Graph, processes: &Processes, before: &[u32], parts: &[u32]) -> Metrics {
    let present = processes.speeds().iter().filter(|&&s| s > 0.0).count();
    let loads = processes.loads(graph, parts);
    let (moved_max, moved_total) = migration(processes.count(), before, parts);
    let cut = cuts(graph, processes.count(), parts);
    let per_process = |total: f64| total / present as f64;
    let tasks = graph.tasks() as f64;
    let reached = imbalance(processes, &loads);
    let (least_max, least_total) = migration_least(graph, processes, before, reached);
    Metrics {
        imbalance: reached,
        migration_least: ratio(least_max as f64, per_process(tasks)),
        migration_total_least: ratio(least_total as f64, tasks),
        migration: ratio(moved_max as f64, per_process(tasks)),
        migration_total: ratio(moved_total as f64, tasks),
        edge_cut_max: ratio(cut.weight_max, per_process(graph.edge_weight_total())),
        edge_cut_total: cut.weight_total,
        volume_total: cut.volume,
        neighbours_max: cut.neighbours_max,
    }
}

/// Largest load per speed over the ideal one, minus 1; 0 without load; infinite
/// if an absent process has load.
pub fn imbalance(processes: &Processes, loads: &[f64]) -> f64 {
    let ideal = processes.ideal(loads);
    if ideal <= 0.0 {
        return 0.0;
    }
    let level = |(load, speed): (&f64, &f64)| if *load > 0.0 { load / speed } else { 0.0 };
    let max = loads
        .iter()
        .zip(processes.speeds())
        .map(level)
        .fold(0.0, f64::max);
    max / ideal - 1.0
}

/// The largest number of tasks imported and exported by a process, and the
/// number of tasks moved.
pub fn migration(processes: usize, before: &[u32], parts: &[u32]) -> (u64, u64) {
    let mut moved = vec![0u64; processes];
    let mut total = 0;
    for (&from, &to) in before.iter().zip(parts) {
        if from != to {
            total += 1;
            moved[to as usize] += 1;
            if let Some(out) = moved.get_mut(from as usize) {
                *out += 1;
            }
        }
    }
    (moved.into_iter().max().unwrap_or(0), total)
}

/// A bound from below, for any method: the most tasks that one process, and the
/// number that all together, must give away so that no load per speed is above the
/// ideal by more than `imbalance`. A process above the limit must give at least as
/// many tasks as it takes of its heaviest to get below; imports, borders and who
/// could take them are left out, so that the truth is higher.
pub fn migration_least(
    graph: &Graph,
    processes: &Processes,
    parts: &[u32],
    imbalance: f64,
) -> (u64, u64) {
    let loads = processes.loads(graph, parts);
    let level = processes.ideal(&loads) * (1.0 + imbalance);
    let limits = processes.speeds().iter().map(|speed| level * speed);
    let mut excess: Vec<f64> = loads.iter().zip(limits).map(|(w, l)| w - l).collect();
    let mut own: Vec<Vec<f64>> = vec![Vec::new(); processes.count()];
    for (task, &part) in parts.iter().enumerate() {
        if excess.get(part as usize).is_some_and(|over| *over > 0.0) {
            own[part as usize].push(graph.weight(task as u32));
        }
    }
    let (mut most, mut total) = (0, 0);
    for (weights, over) in own.iter_mut().zip(&mut excess) {
        weights.sort_by(|a, b| b.total_cmp(a));
        // Rounding must not make a task necessary that is not.
        let enough = 1e-9 * level;
        let mut given = 0;
        for weight in weights {
            if *over <= enough {
                break;
            }
            *over -= *weight;
            given += 1;
        }
        most = most.max(given);
        total += given;
    }
    (most, total)
}

struct Cuts {
    weight_max: f64,
    weight_total: f64,
    volume: f64,
    neighbours_max: usize,
}

fn cuts(graph: &Graph, processes: usize, parts: &[u32]) -> Cuts {
    let mut weight = vec![0.0; processes];
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    let mut volume = 0usize;
    let mut others: Vec<u32> = Vec::new();
    let mut pairs_max = 1usize << 22;
    for task in 0..graph.tasks() as u32 {
        let own = parts[task as usize];
        others.clear();
        for (to, edge) in graph.adjacent(task) {
            let part = parts[to as usize];
            if part != own {
                weight[own as usize] += edge;
                if !others.contains(&part) {
                    others.push(part);
                }
            }
        }
        volume += others.len();
        pairs.extend(others.iter().map(|&other| (own, other)));
        if pairs.len() > pairs_max {
            pairs.sort_unstable();
            pairs.dedup();
            pairs_max = pairs_max.max(pairs.len() * 2);
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    let runs = pairs.chunk_by(|a, b| a.0 == b.0).map(<[_]>::len);
    Cuts {
        weight_max: weight.iter().copied().fold(0.0, f64::max),
        weight_total: weight.iter().sum::<f64>() / 2.0,
        volume: volume as f64,
        neighbours_max: runs.max().unwrap_or(0),
    }
}

fn ratio(value: f64, base: f64) -> f64 {
    if base > 0.0 { value / base } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_by_hand_on_a_row_of_four() {
        let graph = Graph::mesh(4, 1, 1);
        let two = Processes::uniform(2).unwrap();
        let m = measure(&graph, &two, &[0, 0, 1, 1], &[0, 0, 0, 1]);
        assert_eq!(m.imbalance, 0.5);
        assert_eq!(m.migration, 0.5);
        assert_eq!(m.migration_total, 0.25);
        assert_eq!(m.migration_least, 0.0);
        assert_eq!(m.edge_cut_total, 1.0);
        assert_eq!(m.edge_cut_max, 1.0 / 1.5);
        assert_eq!(m.volume_total, 2.0);
        assert_eq!(m.neighbours_max, 1);
        // From 3 and 1 to 2 and 2 one task must go, whoever decides.
        let m = measure(&graph, &two, &[0, 0, 0, 1], &[0, 0, 1, 1]);
        assert_eq!((m.migration, m.migration_least), (0.5, 0.5));
        assert_eq!(m.migration_total_least, 0.25);
        let uneven = Processes::new(vec![1.0, 3.0], vec![0.0, 2.0]).unwrap();
        let m = measure(&graph, &uneven, &[0, 1, 1, 1], &[0, 1, 1, 1]);
        assert_eq!(m.imbalance, (5.0 / 3.0) / 1.5 - 1.0);
    }
}

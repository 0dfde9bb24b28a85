//! Balancing by coordinates, as a baseline and to begin with: recursive
//! coordinate bisection (Berger and Bokhari 1987) and a Hilbert space-filling
//! curve (Skilling 2004, "Programming the Hilbert curve").
//!
//! Invariants: processes are filled in order of their number, in proportion to
//! their speeds less their backgrounds; absent ones get nothing; while there are
//! tasks enough, no present process stays empty.

use crate::error::BalanceError;
use crate::graph::Graph;
use crate::processes::Processes;

/// Bits of a curve's key per axis.
const BITS: u32 = 20;

/// Recursive coordinate bisection: cuts the longest side of the bounding box of
/// the tasks where the loads of the two halves of the processes are reached.
///
/// # Errors
/// Without coordinates.
pub fn bisection(graph: &Graph, processes: &Processes) -> Result<Vec<u32>, BalanceError> {
    let coordinates = graph.coordinates().ok_or(BalanceError::NoCoordinates)?;
    let mut tasks: Vec<u32> = (0..graph.tasks() as u32).collect();
    let shares = shares(graph, processes);
    let mut parts = vec![0; graph.tasks()];
    bisect(graph, coordinates, &shares, &mut tasks, &mut parts);
    Ok(parts)
}

/// Cuts a Hilbert curve through the bounding box of the tasks into pieces of
/// equal load.
///
/// # Errors
/// Without coordinates.
pub fn curve(graph: &Graph, processes: &Processes) -> Result<Vec<u32>, BalanceError> {
    let coordinates = graph.coordinates().ok_or(BalanceError::NoCoordinates)?;
    let mut low = [f64::INFINITY; 3];
    let mut high = [f64::NEG_INFINITY; 3];
    for at in coordinates {
        for axis in 0..3 {
            low[axis] = low[axis].min(at[axis]);
            high[axis] = high[axis].max(at[axis]);
        }
    }
    let side = (0..3)
        .map(|axis| high[axis] - low[axis])
        .fold(0.0, f64::max);
    let scale = if side > 0.0 {
        f64::from((1u32 << BITS) - 1) / side
    } else {
        0.0
    };
    let mut order: Vec<(u64, u32)> = coordinates
        .iter()
        .zip(0u32..)
        .map(|(at, task)| {
            let cell = [0, 1, 2].map(|axis| ((at[axis] - low[axis]) * scale) as u32);
            (hilbert(cell), task)
        })
        .collect();
    order.sort_unstable();
    let shares = shares(graph, processes);
    let order: Vec<u32> = order.into_iter().map(|entry| entry.1).collect();
    Ok(cut(graph, &order, &shares))
}

/// The load that each present process should take, in order of number.
pub(crate) fn shares(graph: &Graph, processes: &Processes) -> Vec<(u32, f64)> {
    let tasks: f64 = graph.weights().iter().sum();
    let ideal = (tasks + processes.background().iter().sum::<f64>())
        / processes.speeds().iter().sum::<f64>();
    let present = (0..processes.count() as u32).filter(|&p| processes.present(p));
    let floor = ideal * 1e-6;
    let share = |p: u32| {
        let speed = processes.speeds()[p as usize];
        (ideal * speed - processes.background()[p as usize]).max(floor * speed)
    };
    present.map(|p| (p, share(p))).collect()
}

fn cut(graph: &Graph, order: &[u32], shares: &[(u32, f64)]) -> Vec<u32> {
    let mut parts = vec![0; graph.tasks()];
    let load: f64 = order.iter().map(|&task| graph.weight(task)).sum();
    let total: f64 = shares.iter().map(|share| share.1).sum();
    let (mut slot, mut given, mut goal, mut here) = (0, 0.0, 0.0, 0usize);
    if let Some(first) = shares.first() {
        goal = first.1 / total * load;
    }
    for (done, &task) in order.iter().enumerate() {
        let weight = graph.weight(task);
        let left = order.len() - done;
        let behind = shares.len() - slot - 1;
        // Go on to the next process when half of this task lies beyond the goal,
        // or when each later process can only just get a task of its own.
        let full = here > 0 && (given + weight / 2.0 > goal || left <= behind);
        if full && behind > 0 {
            slot += 1;
            here = 0;
            goal += shares[slot].1 / total * load;
        }
        parts[task as usize] = shares[slot].0;
        given += weight;
        here += 1;
    }
    parts
}

fn bisect(
    graph: &Graph,
    coordinates: &[[f64; 3]],
    shares: &[(u32, f64)],
    tasks: &mut [u32],
    parts: &mut [u32],
) {
    if shares.len() <= 1 {
        for &task in tasks.iter() {
            parts[task as usize] = shares.first().map_or(0, |share| share.0);
        }
        return;
    }
    if tasks.is_empty() {
        return;
    }
    let axis = longest_axis(coordinates, tasks);
    let key = |task: u32| {
        let at = coordinates[task as usize];
        (at[axis], at[(axis + 1) % 3], at[(axis + 2) % 3], task)
    };
    let compare = |a: &u32, b: &u32| {
        let (x, y) = (key(*a), key(*b));
        let by = x.0.total_cmp(&y.0).then(x.1.total_cmp(&y.1));
        by.then(x.2.total_cmp(&y.2)).then(x.3.cmp(&y.3))
    };
    tasks.sort_unstable_by(compare);
    let half = shares.len() / 2;
    let total: f64 = shares.iter().map(|share| share.1).sum();
    let lower: f64 = shares[..half].iter().map(|share| share.1).sum();
    let load: f64 = tasks.iter().map(|&task| graph.weight(task)).sum();
    let goal = load * lower / total;
    let (mut split, mut sum) = (0, 0.0);
    while split < tasks.len() && sum + graph.weight(tasks[split]) / 2.0 <= goal {
        sum += graph.weight(tasks[split]);
        split += 1;
    }
    // Every process of both halves gets a task while there are enough.
    let upper = shares.len() - half;
    split = split
        .max(half.min(tasks.len()))
        .min(tasks.len().saturating_sub(upper).max(half));
    split = split.min(tasks.len());
    let (left, right) = tasks.split_at_mut(split);
    bisect(graph, coordinates, &shares[..half], left, parts);
    bisect(graph, coordinates, &shares[half..], right, parts);
}

fn longest_axis(coordinates: &[[f64; 3]], tasks: &[u32]) -> usize {
    let mut low = [f64::INFINITY; 3];
    let mut high = [f64::NEG_INFINITY; 3];
    for &task in tasks {
        for axis in 0..3 {
            low[axis] = low[axis].min(coordinates[task as usize][axis]);
            high[axis] = high[axis].max(coordinates[task as usize][axis]);
        }
    }
    let side = |axis: usize| high[axis] - low[axis];
    (1..3).fold(
        0,
        |best, axis| if side(axis) > side(best) { axis } else { best },
    )
}

/// The place of a cell on the curve, `3 * BITS` bits.
fn hilbert(mut x: [u32; 3]) -> u64 {
    let top = 1u32 << (BITS - 1);
    let mut q = top;
    while q > 1 {
        let low = q - 1;
        for axis in 0..3 {
            if x[axis] & q != 0 {
                x[0] ^= low;
            } else {
                let swap = (x[0] ^ x[axis]) & low;
                x[0] ^= swap;
                x[axis] ^= swap;
            }
        }
        q >>= 1;
    }
    for axis in 1..3 {
        x[axis] ^= x[axis - 1];
    }
    let mut twist = 0;
    let mut q = top;
    while q > 1 {
        if x[2] & q != 0 {
            twist ^= q - 1;
        }
        q >>= 1;
    }
    let mut key = 0u64;
    for bit in (0..BITS).rev() {
        for value in x {
            key = (key << 1) | u64::from(((value ^ twist) >> bit) & 1);
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::measure;

    #[test]
    fn both_balance_a_box_and_keep_boundaries_short() {
        let graph = Graph::mesh(16, 16, 16);
        for count in [1, 3, 8, 27, 64] {
            let processes = Processes::uniform(count).unwrap();
            for parts in [bisection(&graph, &processes), curve(&graph, &processes)] {
                let parts = parts.unwrap();
                let m = measure(&graph, &processes, &parts, &parts);
                assert!(m.imbalance < 0.02, "{count} {m:?}");
                assert!(m.edge_cut_total < 0.4 * graph.edge_weight_total(), "{m:?}");
            }
        }
    }

    #[test]
    fn cells_of_the_curve_are_neighbours() {
        let step = |n: u32| n << (BITS - 2);
        let mut cells: Vec<(u64, [u32; 3])> = (0..64)
            .map(|n| [step(n & 3), step(n >> 2 & 3), step(n >> 4)])
            .map(|cell| (hilbert(cell), cell))
            .collect();
        cells.sort_unstable();
        for pair in cells.windows(2) {
            let far: u32 = (0..3).map(|a| pair[0].1[a].abs_diff(pair[1].1[a])).sum();
            assert_eq!(far, step(1));
        }
    }

    #[test]
    fn few_tasks_absent_processes_and_no_coordinates() {
        let graph = Graph::mesh(5, 1, 1);
        let mut eight = Processes::uniform(8).unwrap();
        eight.remove(1).unwrap();
        for parts in [bisection(&graph, &eight), curve(&graph, &eight)] {
            let mut parts = parts.unwrap();
            assert!(!parts.contains(&1));
            parts.sort_unstable();
            parts.dedup();
            assert_eq!(parts.len(), 5);
        }
        let bare = Graph::from_edges(2, &[(0, 1, 1.0)], vec![]).unwrap();
        assert_eq!(bisection(&bare, &eight), Err(BalanceError::NoCoordinates));
    }
}

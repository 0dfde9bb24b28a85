//! Processes that join, leave and fail between balancings, on graphs in several pieces:
//! nothing is lost, who is gone is empty, who came gets its share, and load passes
//! between pieces that no edge joins.

#![allow(clippy::unwrap_used)] // a panic is how a test reports

use outlive_balance::diffusion::{Options, balance};
use outlive_balance::{Graph, Processes, metrics};
use outlive_base::rng::Sequence;

/// `pieces` grids of 6 x 6 without edges between them.
fn islands(pieces: usize) -> Graph {
    let grid = Graph::mesh(6, 6, 1);
    let mut edges = Vec::new();
    for piece in 0..pieces as u32 {
        for task in 0..36 {
            let higher = grid.adjacent(task).filter(|end| end.0 > task);
            edges.extend(higher.map(|(to, weight)| (36 * piece + task, 36 * piece + to, weight)));
        }
    }
    Graph::from_edges(36 * pieces, &edges, vec![]).unwrap()
}

fn counts(parts: &[u32], processes: usize) -> Vec<usize> {
    let mut all = vec![0; processes];
    parts.iter().for_each(|&part| all[part as usize] += 1);
    all
}

#[test]
fn load_passes_between_pieces_that_no_edge_joins() {
    for pieces in 2..6 {
        let graph = islands(pieces);
        // Everything at the first process of each piece; as many again are empty.
        let all = Processes::uniform(2 * pieces).unwrap();
        let parts: Vec<u32> = (0..36 * pieces as u32).map(|task| task / 36 * 2).collect();
        let done = balance(&graph, &all, &parts, &Options::default()).unwrap();
        assert!(done.imbalance <= 0.12, "{pieces} {}", done.imbalance);
        // And from one process to all the others.
        let parts = vec![0; 36 * pieces];
        let done = balance(&graph, &all, &parts, &Options::default()).unwrap();
        assert!(done.imbalance <= 0.35, "{pieces} {}", done.imbalance);
        assert!(
            counts(&done.parts, 2 * pieces)
                .iter()
                .all(|&count| count > 0)
        );
    }
}

#[test]
fn processes_come_and_go_and_every_task_stays() {
    let (mut joined, mut left) = (0, 0);
    for seed in outlive_base::seeds!(150) {
        let mut random = Sequence::new(seed, 9);
        let graph = islands(1 + random.below(4) as usize);
        let count = 3 + random.below(6) as usize;
        let mut speeds = vec![1.0; count];
        let mut parts: Vec<u32> = (0..graph.tasks() as u32)
            .map(|task| (u64::from(task) * count as u64 / graph.tasks() as u64) as u32)
            .collect();
        let total: f64 = graph.weights().iter().sum();
        for step in 0..8 {
            let who = random.below(count as u64) as usize;
            let others = (0..count).any(|p| p != who && speeds[p] > 0.0);
            let was = speeds[who];
            speeds[who] = if was > 0.0 && others {
                0.0
            } else {
                1.0 + random.below(2) as f64
            };
            let all = Processes::new(speeds.clone(), vec![0.0; count]).unwrap();
            let context = format!("seed {seed}, step {step}");
            let done = balance(&graph, &all, &parts, &Options::default()).unwrap();
            let loads = all.loads(&graph, &done.parts);
            assert_eq!(loads.iter().sum::<f64>(), total, "{context}");
            let has = counts(&done.parts, count);
            for process in 0..count {
                assert!(
                    speeds[process] > 0.0 || has[process] == 0,
                    "{context}: {process}"
                );
            }
            let level = metrics::imbalance(&all, &loads);
            assert!((level - done.imbalance).abs() < 1e-9, "{context}");
            if speeds[who] == 0.0 {
                left += 1;
            } else if was == 0.0 {
                joined += 1;
                assert!(has[who] > 0, "{context}: who joined got nothing");
            }
            parts = done.parts;
        }
    }
    assert!(joined > 200 && left > 400, "{joined} {left}");
}

//! Properties on 10,000 random graphs: no load lost or doubled, an end, no
//! process emptied against the rules, the same result for the same seed.

#![allow(clippy::unwrap_used)] // a panic is how a test reports

use outlive_balance::replay::{Method, Settings, balance};
use outlive_balance::scenario::random_graph;
use outlive_balance::{Graph, Processes, metrics};
use outlive_base::rng::Sequence;

/// Graphs that may be empty, disconnected or smaller than their processes, with or
/// without coordinates.
fn case(seed: u64) -> (Graph, Processes, Vec<u32>) {
    let mut random = Sequence::new(seed, 3);
    let tasks = match random.below(10) {
        0 => random.below(4) as usize,
        1 => 1 + random.below(300) as usize,
        _ => 1 + random.below(80) as usize,
    };
    let graph = if random.chance(300_000) {
        let edges = (0..random.below(2 * tasks as u64 + 1)).map(|_| {
            let end = |r: &mut Sequence| r.below(tasks.max(1) as u64) as u32;
            (
                end(&mut random),
                end(&mut random),
                1.0 + random.below(3) as f64,
            )
        });
        let edges: Vec<_> = edges.filter(|edge| edge.0 != edge.1).collect();
        let weights = (0..tasks).map(|t| [0.25, 1.0, 7.0, 1e6][(seed as usize + t) % 4]);
        Graph::from_edges(tasks, &edges, weights.collect()).unwrap()
    } else {
        random_graph(tasks, 2 + random.below(6) as usize, seed).unwrap()
    };
    // Half of them are somewhere: there the shape of borders counts.
    let graph = match seed % 2 {
        0 => graph,
        _ => graph.with_coordinates(places(tasks, seed)).unwrap(),
    };
    let count = 1 + random.below(12) as usize;
    let mut speeds: Vec<f64> = (0..count).map(|_| random.below(4) as f64 / 2.0).collect();
    speeds[random.below(count as u64) as usize] = 1.0;
    let background = speeds
        .iter()
        .map(|&c| if c > 0.0 { random.below(3) as f64 } else { 0.0 })
        .collect();
    let parts = (0..tasks)
        .map(|_| random.below(count as u64) as u32)
        .collect();
    (graph, Processes::new(speeds, background).unwrap(), parts)
}

/// Along a line, scattered in a plane, or all at one place, in several units.
fn places(tasks: usize, seed: u64) -> Vec<[f64; 3]> {
    let mut random = Sequence::new(seed, 4);
    let unit = [1.0, 1e-6, 1e200][(seed / 2 % 3) as usize];
    let place = |task| match seed / 6 % 3 {
        0 => [unit * task as f64, 0.0, 0.0],
        1 => [0.0, 1.0, 2.0].map(|axis| axis * unit * random.below(50) as f64),
        _ => [unit; 3],
    };
    (0..tasks).map(place).collect()
}

fn check(seed: u64, method: Method) {
    let (graph, processes, parts) = case(seed);
    let settings = Settings::default();
    let done = balance(method, &graph, &processes, &parts, &settings).unwrap();
    let context = format!("seed {seed}, {}", method.name());
    assert_eq!(done.parts.len(), graph.tasks(), "{context}");
    let before = processes.loads(&graph, &parts);
    let after = processes.loads(&graph, &done.parts);
    let (had, has): (f64, f64) = (before.iter().sum(), after.iter().sum());
    assert!((had - has).abs() <= 1e-9 * had, "{context}: {had} {has}");
    let mut counts = vec![0; processes.count()];
    for &part in &done.parts {
        counts[part as usize] += 1;
    }
    for process in 0..processes.count() as u32 {
        if !processes.present(process) {
            assert_eq!(counts[process as usize], 0, "{context}: {process}");
        } else if method == Method::Diffusion && parts.contains(&process) {
            assert!(
                counts[process as usize] > 0,
                "{context}: {process} was emptied"
            );
        }
    }
    if method == Method::Diffusion && !parts.iter().any(|&p| !processes.present(p)) {
        let level = |loads: &[f64]| metrics::imbalance(&processes, loads);
        assert!(
            level(&after) <= level(&before) + 1e-9 + settings.diffusion.tolerance,
            "{context}"
        );
    }
    if method == Method::Diffusion {
        // Termination: every loop has a bound. Of the rounds beyond the usual ones one in
        // three takes a tenth off the imbalance, which is below 12 times the load.
        let options = &settings.diffusion;
        let extra = 3.0 * (12.0f64 / options.tolerance).log(1.0 / 0.9);
        let rounds = f64::from(options.rounds_max) + extra;
        let most = rounds * f64::from(options.flow.iterations_max);
        let cost = done.cost.unwrap();
        assert!((cost.iterations as f64) < most, "{context}: {cost:?}");
    }
    let again = balance(method, &graph, &processes, &parts, &settings).unwrap();
    assert_eq!(again, done, "{context}");
}

#[test]
fn diffusion_on_ten_thousand_random_graphs() {
    for seed in outlive_base::seeds!(10_000) {
        check(seed, Method::Diffusion);
    }
}

#[test]
fn the_other_methods_on_two_thousand_random_graphs() {
    for seed in outlive_base::seeds!(2_000) {
        for method in [
            Method::Hybrid,
            Method::Greedy,
            Method::Refine,
            Method::GreedyRefine,
        ] {
            check(seed, method);
        }
    }
}

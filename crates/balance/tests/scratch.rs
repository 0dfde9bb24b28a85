//! The fresh partition and the choice: valid, balanced, repeatable; the choice never worse
//! than one of the two in both measures; and what they are for, a load that is large and in
//! one place. Seeds are fresh: `OUTLIVE_SEED` repeats a run.

#![allow(clippy::unwrap_used)] // a panic is how a test reports

use outlive_balance::diffusion::{self, Options};
use outlive_balance::metrics::{Metrics, measure};
use outlive_balance::replay::initial;
use outlive_balance::scenario::{Pattern, Scenario, random_geometric, random_graph, triangles};
use outlive_balance::{Graph, Processes, scratch};
use outlive_base::rng::Sequence;

/// Small graphs of many kinds on processes that differ, from any assignment.
fn case(seed: u64) -> (Graph, Processes, Vec<u32>, Options) {
    let mut random = Sequence::new(seed, 1);
    let tasks = 1 + random.below(400) as usize;
    let mut graph = match random.below(5) {
        0 => random_graph(tasks, 2 + random.below(6) as usize, seed).unwrap(),
        1 => Graph::mesh(
            1 + random.below(20) as usize,
            1 + random.below(20) as usize,
            1,
        ),
        2 => random_geometric(tasks, 8.0, seed).unwrap(),
        3 => triangles(
            3 + random.below(16) as usize,
            3 + random.below(16) as usize,
            seed,
        )
        .unwrap(),
        // Without an edge, and a star: nothing to match.
        _ => {
            let star = random.chance(500_000);
            let edges = (1..tasks as u32)
                .filter(|_| star)
                .map(|leaf| (0, leaf, 1.0));
            let edges: Vec<_> = edges.collect();
            Graph::from_edges(tasks, &edges, vec![1.0; tasks]).unwrap()
        }
    };
    let heavy = [1.0, 4.0, 100.0][random.below(3) as usize];
    let border = random.below(graph.tasks() as u64 + 1) as usize;
    let weight = |task: usize| if task < border { heavy } else { 1.0 };
    let weights: Vec<f64> = (0..graph.tasks()).map(weight).collect();
    graph.set_weights(&weights).unwrap();
    let count = 1 + random.below(12) as usize;
    let mut processes = Processes::uniform(count).unwrap();
    if random.chance(400_000) {
        let mut speeds: Vec<f64> = (0..count).map(|_| random.below(4) as f64 / 2.0).collect();
        speeds[random.below(count as u64) as usize] = 1.0;
        let carries = |&speed: &f64| if speed > 0.0 { 3.0 } else { 0.0 };
        let background = speeds.iter().map(carries).collect();
        processes = Processes::new(speeds, background).unwrap();
    }
    let parts = match random.chance(500_000) {
        true => (0..graph.tasks())
            .map(|_| random.below(count as u64) as u32)
            .collect(),
        false => {
            let uniform = Processes::uniform(count).unwrap();
            initial(&graph, &uniform).unwrap()
        }
    };
    let options = Options {
        migration_price: [0.0, 0.1, 1.0, 10.0][random.below(4) as usize],
        seed,
        ..Options::default()
    };
    (graph, processes, parts, options)
}

fn valid(processes: &Processes, graph: &Graph, parts: &[u32], context: &str) {
    processes.check(graph, parts).unwrap();
    let mut counts = vec![0; processes.count()];
    parts.iter().for_each(|&part| counts[part as usize] += 1);
    let present = (0..processes.count() as u32).filter(|&p| processes.present(p));
    for process in 0..processes.count() as u32 {
        let is_empty = counts[process as usize] == 0;
        if !processes.present(process) {
            assert!(is_empty, "{context}: {process} is gone and has tasks");
        } else if graph.tasks() >= present.clone().count() {
            assert!(!is_empty, "{context}: {process} is empty");
        }
    }
}

#[test]
fn both_are_valid_and_repeatable_and_the_choice_is_never_worse_in_both_measures() {
    let first = outlive_base::seed!();
    let mut taken = [0, 0];
    for seed in first..first + 300 {
        let (graph, processes, parts, options) = case(seed);
        let context = format!("seed {seed}");
        let fresh = scratch::balance(&graph, &processes, &parts, &options).unwrap();
        valid(&processes, &graph, &fresh, &context);
        let again = scratch::balance(&graph, &processes, &parts, &options).unwrap();
        assert_eq!(again, fresh, "{context}");
        let spread = diffusion::balance(&graph, &processes, &parts, &options)
            .unwrap()
            .parts;
        let chosen = scratch::choose(&graph, &processes, &parts, &options).unwrap();
        let judge = |after: &[u32]| measure(&graph, &processes, &parts, after);
        let (ours, all) = (judge(&chosen.parts), [judge(&spread), judge(&fresh)]);
        // Not far from either in balance, where that can be had.
        let best = all[0]
            .imbalance
            .min(all[1].imbalance)
            .max(options.tolerance);
        let nothing_to_do = judge(&parts).imbalance <= options.tolerance;
        assert!(
            ours.imbalance <= best + 1e-12 || nothing_to_do,
            "{context}: {ours:?} {all:?}"
        );
        for other in all {
            let balanced = other.imbalance <= options.tolerance;
            let worse = ours.edge_cut_total > other.edge_cut_total
                && ours.migration_total > other.migration_total;
            assert!(!(balanced && worse), "{context}: {ours:?} {other:?}");
        }
        taken[usize::from(chosen.is_fresh)] += 1;
    }
    // The choice is one.
    assert!(taken[0] > 10 && taken[1] > 10, "{taken:?}");
}

/// Equal tasks, many for each process: the bound is reached.
#[test]
fn a_fresh_partition_is_within_the_tolerance() {
    let first = outlive_base::seed!();
    for seed in first..first + 20 {
        let mut random = Sequence::new(seed, 2);
        let graph = match random.below(3) {
            0 => Graph::mesh(60, 50, 1),
            1 => random_geometric(3000, 10.0, seed).unwrap(),
            _ => triangles(50, 60, seed).unwrap(),
        };
        let processes = Processes::uniform(2 + random.below(20) as usize).unwrap();
        let options = Options {
            seed,
            ..Options::default()
        };
        let parts = vec![0; graph.tasks()];
        let fresh = scratch::balance(&graph, &processes, &parts, &options).unwrap();
        let found = measure(&graph, &processes, &parts, &fresh);
        let per_process = graph.tasks() as f64 / processes.count() as f64;
        let bound = options.tolerance.max(1.0 / per_process);
        assert!(found.imbalance <= bound + 1e-9, "seed {seed}: {found:?}");
    }
}

fn surge(kind: Pattern, seed: u64) -> [Metrics; 3] {
    let mut scenario = Scenario::new(kind, 32, 2, seed).unwrap();
    let parts = initial(&scenario.graph, &scenario.processes).unwrap();
    scenario.go_to(1).unwrap();
    let (graph, processes) = (&scenario.graph, &scenario.processes);
    let options = Options::default();
    let judge = |after: &[u32]| measure(graph, processes, &parts, after);
    [
        judge(
            &diffusion::balance(graph, processes, &parts, &options)
                .unwrap()
                .parts,
        ),
        judge(&scratch::balance(graph, processes, &parts, &options).unwrap()),
        judge(
            &scratch::choose(graph, processes, &parts, &options)
                .unwrap()
                .parts,
        ),
    ]
}

/// A load three times the average in one place: over the kinds of graph, a fresh partition cuts
/// less and moves far less than diffusion, and it is taken. A single graph may be otherwise: of
/// 40 seeds, three had one on which it moves a tenth to a quarter more.
#[test]
fn a_surge_in_one_place_is_for_a_fresh_partition() {
    let first = outlive_base::seed!();
    let surges: Vec<Pattern> = Pattern::ALL.into_iter().filter(|k| k.is_surge()).collect();
    let mut logs = [0.0; 3];
    for &kind in &surges {
        let (mut cut, mut moved) = ([0.0; 3], [0.0; 3]);
        for seed in first..first + 2 {
            for (slot, found) in surge(kind, seed).into_iter().enumerate() {
                assert!(found.imbalance <= 0.021, "{kind:?} {seed}: {found:?}");
                cut[slot] += found.edge_cut_total;
                moved[slot] += found.migration_total;
            }
        }
        println!("{:16} cut {cut:.0?} moved {moved:.3?}", kind.name());
        let taken = cut[2] / cut[0].min(cut[1]);
        for (sum, ratio) in [cut[1] / cut[0], moved[1] / moved[0], taken]
            .into_iter()
            .enumerate()
        {
            assert!(ratio < 1.5, "{kind:?} {cut:?} {moved:?}");
            logs[sum] += f64::ln(ratio);
        }
    }
    // Geometric means; that of 40 seeds' medians: 0.78, 0.67 and 1.00.
    let [less, fewer, taken] = logs.map(|sum| (sum / surges.len() as f64).exp());
    assert!(less < 0.93 && fewer < 0.9, "{less} {fewer}");
    assert!(taken < 1.05, "{taken}");
}

/// Parts that any partitioner made: only their names change, and no fewer tasks stay.
#[test]
fn names_alone_keep_more_tasks_at_home() {
    let first = outlive_base::seed!();
    for seed in first..first + 50 {
        let (graph, _, parts, _) = case(seed);
        let count = parts.iter().max().map_or(1, |&part| part as usize + 1);
        let processes = Processes::uniform(count).unwrap();
        let fresh = initial(&graph, &processes).unwrap();
        let named = scratch::remap(&graph, &processes, &parts, &fresh, 0.02).unwrap();
        let before = measure(&graph, &processes, &parts, &fresh);
        let after = measure(&graph, &processes, &parts, &named);
        assert_eq!(before.edge_cut_total, after.edge_cut_total, "seed {seed}");
        assert_eq!(before.imbalance, after.imbalance, "seed {seed}");
        assert!(
            after.migration_total <= before.migration_total,
            "seed {seed}"
        );
    }
}

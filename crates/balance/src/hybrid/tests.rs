use super::*;
use crate::scenario::colony;

#[test]
fn memory_is_bounded_and_flat_from_8192_to_131072() {
    let mut seen = Vec::new();
    for processes in [8_192, 16_384, 131_072] {
        let (graph, all, parts) = colony(processes).unwrap();
        let outcome = balance(&graph, &all, &parts, &Options::default()).unwrap();
        assert!(
            outcome.imbalance < 0.15,
            "{processes} {}",
            outcome.imbalance
        );
        seen.push((outcome.memory_bytes_max, outcome.memory_bytes_central));
    }
    let least = seen.iter().map(|s| s.0).min().unwrap();
    let most = seen.iter().map(|s| s.0).max().unwrap();
    assert!(most * 100 < least * 125, "{seen:?}");
    assert!(seen[2].1 > 64 * seen[2].0, "{seen:?}");
}

#[test]
fn within_the_tolerance_nothing_moves_and_absent_leaves_empty() {
    let graph = Graph::mesh(16, 16, 1);
    let mut all = Processes::uniform(16).unwrap();
    let parts: Vec<u32> = (0..256).map(|task| task / 16).collect();
    let small = Options {
        group: 4,
        fan_out: 2,
        ..Options::default()
    };
    assert_eq!(balance(&graph, &all, &parts, &small).unwrap().parts, parts);
    for gone in 4..8 {
        all.remove(gone).unwrap();
    }
    let outcome = balance(&graph, &all, &parts, &small).unwrap();
    assert!(outcome.parts.iter().all(|part| !(4..8).contains(part)));
    assert!(outcome.imbalance < 0.1, "{}", outcome.imbalance);
    assert_eq!(outcome.levels, 3);
}

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

/// Tasks go to leaves that they talk to, so fewer edges are cut than where surplus
/// meets room anywhere; the balance is the same.
#[test]
fn diffusion_between_and_within_domains_cuts_less() {
    let graph = Graph::mesh(64, 64, 1);
    let all = Processes::uniform(64).unwrap();
    let mut heavy = graph.clone();
    let weight = |t: usize| if t / 64 < 16 && t % 64 < 32 { 4.0 } else { 1.0 };
    heavy
        .set_weights(&(0..4096).map(weight).collect::<Vec<_>>())
        .unwrap();
    // Blocks of 8 x 8, numbered so that four leaves of 16 are quadrants.
    let place = |t: u32| {
        let (x, y) = (t % 64 / 8, t / 64 / 8);
        (y / 4 * 2 + x / 4) * 16 + y % 4 * 4 + x % 4
    };
    let parts: Vec<u32> = (0..4096).map(place).collect();
    let run = |leaf, upper| {
        let options = Options {
            group: 16,
            fan_out: 2,
            levels: Levels::new(leaf, &[upper]),
            tolerance: 0.05,
        };
        let done = balance(&heavy, &all, &parts, &options).unwrap();
        assert!(
            done.imbalance < 0.1,
            "{leaf:?} {upper:?} {}",
            done.imbalance
        );
        metrics::measure(&heavy, &all, &parts, &done.parts)
    };
    let plain = run(Leaf::Refine, Upper::Refine);
    let between = run(Leaf::Refine, Upper::Diffusion);
    let both = run(Leaf::Diffusion, Upper::Diffusion);
    assert!(
        both.edge_cut_total < between.edge_cut_total,
        "{both:?} {between:?}"
    );
    assert!(
        both.edge_cut_total * 10.0 < plain.edge_cut_total * 8.0,
        "{both:?} {plain:?}"
    );
}

#[test]
fn levels_are_named_from_the_leaf_up_and_each_is_obeyed() {
    assert_eq!(Levels::named(&[]), Ok(Levels::default()));
    assert_eq!(Levels::named(&["diffusion", "middling"]), Err("middling"));
    assert_eq!(Levels::named(&["shuffle"]), Err("shuffle"));
    assert_eq!(Levels::named(&["refine", "greedy"]), Err("greedy"));
    let levels = Levels::named(&["greedy", "diffusion", "refine"]).unwrap();
    assert_eq!(levels.leaf, Leaf::Greedy);
    let upper = |level| levels.upper(level);
    assert_eq!(
        (upper(0), upper(1), upper(40)),
        (Upper::Diffusion, Upper::Refine, Upper::Refine)
    );
    // Three levels; the surplus of the first leaf has room in the last one only, so the
    // top level moves it: next to its neighbours if it diffuses, across if not.
    let mut graph = Graph::mesh(64, 4, 1);
    let weight = |t: usize| if t % 64 < 8 { 3.0 } else { 1.0 };
    graph
        .set_weights(&(0..256).map(weight).collect::<Vec<_>>())
        .unwrap();
    let all = Processes::uniform(16).unwrap();
    let parts: Vec<u32> = (0..256).map(|task| task % 64 / 4).collect();
    let far = |names: &[&str]| {
        let options = Options {
            group: 4,
            fan_out: 2,
            levels: Levels::named(names).unwrap(),
            ..Options::default()
        };
        let done = balance(&graph, &all, &parts, &options).unwrap();
        let both = parts.iter().zip(&done.parts);
        both.filter(|(a, b)| *b / 4 > *a / 4 + 1).count()
    };
    assert!(far(&["refine"]) > 0);
    assert_eq!(far(&["refine", "diffusion"]), 0);
    assert!(far(&["refine", "diffusion", "refine"]) > 0);
}

#[test]
fn no_level_loses_a_task_or_leaves_one_on_an_absent_process() {
    for seed in outlive_base::seeds!(60) {
        let graph = crate::scenario::random_graph(200, 5, seed).unwrap();
        let mut all = Processes::uniform(24).unwrap();
        for gone in 0..seed as u32 % 9 {
            all.remove(gone).unwrap();
        }
        let parts: Vec<u32> = (0..200).map(|task| task * 24 / 200).collect();
        for names in [
            &["diffusion", "diffusion"][..],
            &["greedy", "diffusion", "refine"],
        ] {
            let options = Options {
                group: 5,
                fan_out: 2,
                levels: Levels::named(names).unwrap(),
                ..Options::default()
            };
            let done = balance(&graph, &all, &parts, &options).unwrap();
            let before: f64 = all.loads(&graph, &parts).iter().sum();
            let after: f64 = all.loads(&graph, &done.parts).iter().sum();
            assert!((before - after).abs() < 1e-9 * before);
            assert!(done.parts.iter().all(|&part| all.present(part)), "{seed}");
            assert_eq!(balance(&graph, &all, &parts, &options).unwrap(), done);
        }
    }
}

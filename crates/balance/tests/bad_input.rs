//! What bad and what extreme input gets, by the interface that the command line and
//! Python use: a coded error that names the place, or a defined result.

#![allow(clippy::unwrap_used)] // a panic is how a test reports

use outlive_balance::command::{balance, graph, method};
use outlive_balance::processes::PROCESSES_MAX;
use outlive_balance::replay::{Method, Settings};
use outlive_balance::{Graph, Processes, diffusion, metrics, replay};
use outlive_base::{Code, Entity};

fn refused(name: &str, text: &str) -> (Code, String) {
    let error = graph(name, text.as_bytes()).unwrap_err();
    assert_eq!(error.entity(), &Entity::File(name.into()));
    assert!(!error.remedy().is_empty());
    (error.code(), error.to_string())
}

#[test]
fn files_that_make_no_sense_are_refused_with_the_place() {
    let cases = [
        // Weights: zero, negative, not a number, infinite.
        ("2 1 010\n0 2\n1 1\n", Code::InvalidArgument, "task 0"),
        ("2 1 010\n1 2\n-3 1\n", Code::InvalidArgument, "task 1"),
        ("2 1 010\nNaN 2\n1 1\n", Code::InvalidArgument, "task 0"),
        ("2 1 010\ninf 2\n1 1\n", Code::InvalidArgument, "task 0"),
        ("2 1 001\n2 0\n1 0\n", Code::InvalidArgument, "task 0"),
        ("2 1 001\n2 -1\n1 -1\n", Code::InvalidArgument, "task 0"),
        ("2 1 001\n2 nan\n1 nan\n", Code::InvalidArgument, "task 0"),
        // Asymmetric, by presence and by weight; a loop; twice.
        ("3 1\n2\n\n1\n", Code::InvalidArgument, "other end"),
        ("2 1 001\n2 1\n1 5\n", Code::InvalidArgument, "other end"),
        ("1 1\n1 1\n", Code::InvalidArgument, "own neighbour"),
        ("2 2\n2 2\n1 1\n", Code::InvalidArgument, "twice"),
        // Cut off, and numbers beyond what is there or beyond 64 bits.
        ("3 2\n2\n1 3\n", Code::Truncated, "line"),
        ("3 2 001\n2 1\n1 1 3\n2 1\n", Code::Truncated, "line 3"),
        ("4294967297 1\n2\n1\n", Code::Truncated, "4294967297"),
        ("18446744073709551616 1\n", Code::Corrupt, "line 1"),
        ("2 18446744073709551615\n2\n1\n", Code::Truncated, "of"),
        ("2 1\n4294967298\n1\n", Code::Corrupt, "4294967298"),
        ("", Code::Truncated, "header"),
    ];
    for (text, code, says) in cases {
        let (found, message) = refused("a.graph", text);
        assert_eq!(found, code, "{text:?}: {message}");
        assert!(message.contains(says), "{text:?}: {message}");
    }
    let banner = "%%MatrixMarket matrix coordinate pattern general\n";
    let (code, _) = refused("a.mtx", &format!("{banner}2 2 1\n1 2\n"));
    assert_eq!(code, Code::InvalidArgument, "asymmetric");
    let (code, _) = refused("a.mtx", &format!("{banner}2 2 2\n1 2\n"));
    assert_eq!(code, Code::Truncated);
}

#[test]
fn calls_that_make_no_sense_are_refused_before_anything_moves() {
    let mesh = Graph::mesh(4, 4, 1);
    let two = Processes::uniform(2).unwrap();
    let code = |error: outlive_balance::BalanceError| error.code();
    let options = diffusion::Options::default();
    for parts in [vec![0; 15], vec![0; 17], vec![2; 16]] {
        let error = diffusion::balance(&mesh, &two, &parts, &options).unwrap_err();
        assert_eq!(code(error), Code::InvalidArgument);
    }
    for bad in [-0.1, f64::NAN, f64::INFINITY] {
        for field in 0..6 {
            let mut options = options.clone();
            let place = [
                &mut options.tolerance,
                &mut options.migration_price,
                &mut options.slack,
                &mut options.shape,
                &mut options.ragged,
                &mut options.compact,
            ];
            *place.into_iter().nth(field).unwrap() = bad;
            let error = diffusion::balance(&mesh, &two, &[0; 16], &options).unwrap_err();
            assert_eq!(code(error), Code::InvalidArgument, "{field} {bad}");
        }
    }
    let eager = diffusion::Options {
        slack: 1.5,
        ..options
    };
    assert!(diffusion::balance(&mesh, &two, &[0; 16], &eager).is_err());
    for count in [0, PROCESSES_MAX + 1, u32::MAX as usize, usize::MAX] {
        assert_eq!(
            code(Processes::uniform(count).unwrap_err()),
            Code::InvalidArgument
        );
    }
    let start = Some(("p", &b"0\n1\n"[..]));
    let run = |count, start| {
        let settings = Settings::default();
        balance(
            &mesh,
            &Processes::uniform(count)?,
            method("refine").unwrap(),
            start,
            &settings,
            &|| 0.0,
        )
    };
    assert!(run(2, start).is_err(), "a partition that is too short");
    assert!(run(0, None).is_err());
}

/// One process, more parts than tasks, no task at all, processes without any: every
/// method that needs no coordinates gives every task one process.
#[test]
fn extremes_are_defined() {
    for method in [
        Method::Diffusion,
        Method::Hybrid,
        Method::Greedy,
        Method::Refine,
        Method::GreedyRefine,
    ] {
        for (tasks, count) in [(0, 1), (0, 7), (1, 1), (1, 9), (5, 40), (16, 1), (16, 16)] {
            let edges: Vec<(u32, u32, f64)> = (1..tasks as u32).map(|t| (t - 1, t, 1.0)).collect();
            let path = Graph::from_edges(tasks, &edges, vec![]).unwrap();
            let all = Processes::uniform(count).unwrap();
            // All at the last process: the others are empty.
            let parts = vec![count as u32 - 1; tasks];
            let settings = Settings::default();
            let done = replay::balance(method, &path, &all, &parts, &settings).unwrap();
            let context = format!("{} {tasks} {count}", method.name());
            assert_eq!(done.parts.len(), tasks, "{context}");
            assert!(
                done.parts.iter().all(|&part| (part as usize) < count),
                "{context}"
            );
            let level = |parts: &[u32]| metrics::imbalance(&all, &all.loads(&path, parts));
            assert!(level(&done.parts) <= level(&parts), "{context}");
        }
    }
}

/// Weights at both ends of what numbers can hold are neither lost nor doubled.
#[test]
fn huge_and_tiny_weights_are_kept() {
    for scale in [1e-300, 1e300] {
        let mut path = Graph::mesh(64, 1, 1);
        let weight = |t: usize| if t < 16 { 3.0 * scale } else { scale };
        path.set_weights(&(0..64).map(weight).collect::<Vec<_>>())
            .unwrap();
        let all = Processes::uniform(4).unwrap();
        let parts: Vec<u32> = (0..64).map(|t| t / 16).collect();
        let options = diffusion::Options::default();
        let done = diffusion::balance(&path, &all, &parts, &options).unwrap();
        assert!(done.imbalance < 0.2, "{scale} {}", done.imbalance);
        let sum = |parts: &[u32]| all.loads(&path, parts).iter().sum::<f64>();
        assert!((sum(&done.parts) / sum(&parts) - 1.0).abs() < 1e-12);
    }
}

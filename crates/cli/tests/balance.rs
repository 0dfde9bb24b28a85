//! `outlive balance` and its benchmarks as a user meets them: bad input has a code, a
//! status and a remedy, and extremes are defined.

#![allow(clippy::unwrap_used)] // a panic is how a test reports

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn outlive(dir: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outlive"))
        .args(words)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}

/// A ring of six tasks, and files that are wrong in one way each.
fn files() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let ring = "6 6\n2 6\n1 3\n2 4\n3 5\n4 6\n5 1\n";
    write(dir.path(), "ring.graph", ring);
    write(dir.path(), "cut.graph", &ring[..ring.len() - 6]);
    write(dir.path(), "nan.graph", "2 1 010\nnan 2\n1 1\n");
    write(dir.path(), "huge.graph", "2 1 010\n1e308 2\n1e308 1\n");
    write(dir.path(), "loop.graph", "2 1\n1\n2\n");
    write(dir.path(), "one-end.graph", "3 1\n2\n\n1\n");
    write(dir.path(), "wide.graph", "4294967297 1\n2\n1\n");
    write(dir.path(), "wider.graph", "2 1\n18446744073709551617\n1\n");
    write(dir.path(), "bytes.graph", "\u{0}\u{1}");
    write(dir.path(), "short", "0\n1\n");
    write(dir.path(), "far", "0\n0\n0\n1\n1\n9\n");
    write(dir.path(), "speeds", "2\n1 1\n0\n");
    write(dir.path(), "gone", "0\n0\n0\n");
    dir
}

#[test]
fn bad_input_is_coded_and_has_a_remedy() {
    let dir = files();
    for (words, status, says) in [
        ("--graph cut.graph --parts 2", 65, "OL-405"),
        ("--graph nan.graph --parts 2", 64, "task 0 has weight NaN"),
        (
            "--graph huge.graph --parts 2",
            64,
            "sum of the task weights",
        ),
        ("--graph loop.graph --parts 2", 64, "its own neighbour"),
        ("--graph one-end.graph --parts 2", 64, "at its other end"),
        (
            "--graph wide.graph --parts 2",
            65,
            "4294967297 tasks announced",
        ),
        (
            "--graph wider.graph --parts 2",
            65,
            "'18446744073709551617'",
        ),
        ("--graph bytes.graph --parts 2", 65, "OL-4"),
        ("--graph none.graph --parts 2", 74, "OL-404"),
        ("--graph short --parts 2", 65, "OL-406"),
        ("--graph ring.graph", 64, "option parts: missing"),
        ("--graph ring.graph --parts 0", 64, "no process"),
        ("--graph ring.graph --parts 4294967298", 64, "4294967298"),
        (
            "--graph ring.graph --parts 2 --parts-in short",
            65,
            "2 of 6",
        ),
        ("--graph ring.graph --parts 2 --parts-in far", 64, "part 9"),
        (
            "--graph ring.graph --parts 2 --capacities speeds",
            65,
            "more lines",
        ),
        (
            "--graph ring.graph --parts 4 --capacities speeds",
            65,
            "3 of 4",
        ),
        (
            "--graph ring.graph --parts 3 --capacities gone",
            64,
            "no process",
        ),
        (
            "--graph ring.graph --parts 2 --tolerance=-1",
            64,
            "tolerance",
        ),
        (
            "--graph ring.graph --parts 2 --method refine --tolerance nan",
            64,
            "tolerance",
        ),
        (
            "--graph ring.graph --parts 2 --migration-price inf",
            64,
            "price",
        ),
        ("--graph ring.graph --parts 2 --slack 2", 64, "slack"),
        ("--graph ring.graph --parts 2 --shape nan", 64, "shape"),
        ("--graph ring.graph --parts 2 --method metis", 64, "'metis'"),
        (
            "--graph ring.graph --parts 2 --method rcb",
            64,
            "coordinates",
        ),
        (
            "--graph ring.graph --parts 2 --method hybrid --group 0",
            64,
            "domain",
        ),
        (
            "--graph ring.graph --parts 2 --method hybrid --fan-out 1",
            64,
            "domain",
        ),
        (
            "--graph ring.graph --parts 2 --method hybrid --levels x",
            64,
            "'x'",
        ),
        (
            "--graph ring.graph --parts 2 --parts-out no/such/place",
            74,
            "OL-404",
        ),
        ("replay storm --processes 4", 64, "'storm'"),
        ("replay shock --processes 0 --shrink 8", 64, "no process"),
        (
            "replay shock --processes 4 --shrink 8 --steps 0",
            64,
            "number of steps",
        ),
        (
            "replay shock --processes 4 --shrink 8 --steps 169",
            64,
            "last step 169",
        ),
        (
            "replay shock --processes 4 --shrink 8 --first 4294967295",
            64,
            "first step",
        ),
        (
            "replay random --processes 4 --shrink 8 --steps 1 --method sfc",
            64,
            "coordinates",
        ),
    ] {
        let words: Vec<&str> = std::iter::once("balance").chain(words.split(' ')).collect();
        refused(dir.path(), &words, status, says);
    }
    for (words, says) in [
        ("balance --peers metix", "'metix'"),
        ("balance --scenario node-loss", "node-loss"),
        ("balance --prices 0", "0 is no price"),
        (
            "balance --peers none --shrink 8 --steps 1 --tolerance nan",
            "tolerance",
        ),
        ("balance --peers none --shrink 8 --first 200", "first step"),
        ("hybrid --processes 100", "multiple of 64"),
    ] {
        let words: Vec<&str> = std::iter::once("bench").chain(words.split(' ')).collect();
        refused(dir.path(), &words, 64, says);
    }
}

fn refused(dir: &Path, words: &[&str], status: i32, says: &str) {
    let done = outlive(dir, words);
    let text = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(status), "{words:?}: {text}");
    assert!(text.starts_with("outlive: OL-"), "{words:?}: {text}");
    assert!(text.contains(says), "{words:?}: {text}");
    assert!(text.contains("remedy: "), "{words:?}: {text}");
    assert!(done.stdout.is_empty(), "{words:?}");
}

fn balanced(dir: &Path, words: &str) -> serde_json::Value {
    let words = ["balance"].into_iter().chain(words.split(' '));
    let done = outlive(dir, &words.chain(["--json"]).collect::<Vec<_>>());
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{text}");
    serde_json::from_slice(&done.stdout).unwrap()
}

#[test]
fn the_better_of_two_methods_is_taken() {
    let dir = files();
    std::fs::write(dir.path().join("old"), "0\n0\n0\n0\n0\n1\n").unwrap();
    let run = |method: &str| {
        let words = format!("--graph ring.graph --parts 2 --parts-in old --method {method}");
        balanced(dir.path(), &words)
    };
    let cost = |found: &serde_json::Value| {
        let moved = found["migration_total"].as_f64().unwrap() * 6.0;
        found["edge_cut_total"].as_f64().unwrap() + 0.1 * moved
    };
    let (auto, fresh) = (run("auto"), run("scratch"));
    assert_eq!(auto["imbalance"], 0.0);
    assert_eq!(fresh["fresh"], 1.0);
    assert!(
        cost(&auto) <= cost(&fresh).min(cost(&run("diffusion"))) + 1e-9,
        "{auto}"
    );
}

#[test]
fn extremes_are_defined() {
    let dir = files();
    for parts in [1, 5, 6, 7, 40, 1 << 20] {
        let words = format!("--graph ring.graph --parts {parts} --parts-out parts");
        let found = balanced(dir.path(), &words);
        let text = std::fs::read_to_string(dir.path().join("parts")).unwrap();
        let of: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert!(
            of.len() == 6 && of.iter().all(|&part| part < parts),
            "{parts}"
        );
        let mut loads = vec![0; parts];
        of.iter().for_each(|&part| loads[part] += 1);
        let imbalance = *loads.iter().max().unwrap() as f64 * parts as f64 / 6.0 - 1.0;
        assert_eq!(found["imbalance"].as_f64(), Some(imbalance), "{parts}");
    }
}

#[test]
fn speeds_and_fixed_loads_come_from_a_file() {
    let dir = files();
    let words = "--graph ring.graph --parts 3 --capacities speeds --parts-out parts";
    let found = balanced(dir.path(), words);
    let text = std::fs::read_to_string(dir.path().join("parts")).unwrap();
    // Seven in all, two thirds of it for the fast one, nothing for the one that is gone.
    let count = |part: &str| text.lines().filter(|line| *line == part).count();
    assert_eq!((count("0"), count("1"), count("2")), (5, 1, 0), "{text}");
    assert_eq!(found["edge_cut_total"].as_f64(), Some(2.0));
}

#[test]
fn a_scenario_is_drawn_and_a_reader_may_go_away() {
    let dir = files();
    let words = "replay shock --processes 4 --shrink 8 --steps 3 --plot a.svg --curves b.svg \
                 --one-flow --depth 4294967295 --slack 1 --shape 0";
    let found = balanced(dir.path(), &words.replace("                 ", ""));
    assert_eq!(found["steps"].as_array().unwrap().len(), 3);
    assert!(found["converged"].as_f64().unwrap() <= 1.0);
    for (name, says) in [("a.svg", "<rect"), ("b.svg", "largest cut")] {
        let drawn = std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(
            drawn.contains(says) && drawn.ends_with("</svg>\n"),
            "{name}"
        );
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_outlive"))
        .args(["balance", "--graph", "ring.graph", "--parts", "2"])
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

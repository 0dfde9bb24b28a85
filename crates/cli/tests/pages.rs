//! `outlive pages` runs programs, and refuses what it cannot do with reason and remedy. No time is
//! asserted. What becomes huge is in `tests/e2e/test_pages.py`.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn pages(dir: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outlive"))
        .arg("pages")
        .args(words)
        .current_dir(dir)
        .env("NO_COLOR", "1")
        .env("TMPDIR", dir)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whatever happened, nothing is left.
fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn what_cannot_be_done_is_refused_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    for (words, status, text) in [
        (&["run"][..], 64, "COMMAND"),
        (&["run", "--", "no-such-program-here"], 127, "OL-505"),
        (&["run", "--", "/etc/passwd"], 127, "no such program"),
        (
            &["run", "--least", "5B", "--", "true"],
            64,
            "less than a page",
        ),
        (&["run", "--least", "x", "--", "true"], 64, "OL-100"),
        (&["run", "--sample", "1ms", "--", "true"], 64, "give 10ms"),
        (&["run", "--text", "x", "--", "true"], 64, "collapse"),
        (&["bench", "--mib", "7"], 64, "give 8 to"),
        (&["bench", "--rounds", "0"], 64, "give 1 to 1000"),
        (&["bench", "--calls", "10001"], 64, "give 1 to 10000"),
        (
            &["bench", "--kernels", "linpack"],
            64,
            "no kernel 'linpack'",
        ),
        (&["bench", "--mib", "1048576"], 64, "of memory"),
        (&["bench", "--rounds", "1", "--", "false"], 127, "status 1"),
        (&["bench", "--mib", "9", "--", "true"], 64, "OL-100"),
        (&["status", "--pid", "0"], 64, "pid"),
        (&["status", "--pid", "4194305"], 74, "OL-404"),
        (&["library", "/no/such/place.so"], 74, "OL-404"),
    ] {
        let output = pages(dir.path(), words);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
        assert!(said.contains(text), "{words:?}: {said}");
        assert!(is_empty(dir.path()), "{words:?}");
    }
}

#[test]
fn the_programs_output_and_status_are_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let output = pages(dir.path(), &["run", "--", "sh", "-c", "echo out; exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, b"out\n");
    assert!(
        said(&output).contains("outlive: pages: "),
        "{}",
        said(&output)
    );
    let output = pages(dir.path(), &["run", "-q", "--sample", "0s", "--", "true"]);
    assert_eq!(
        (output.status.code(), said(&output)),
        (Some(0), String::new())
    );
    // A report that cannot be written does not make another status of the program's.
    let words = [
        "run",
        "--report",
        "/no/such/place",
        "--",
        "sh",
        "-c",
        "exit 4",
    ];
    let output = pages(dir.path(), &words);
    assert_eq!(output.status.code(), Some(4));
    assert!(said(&output).contains("OL-404"), "{}", said(&output));
    assert!(is_empty(dir.path()));
}

#[test]
fn a_directory_that_the_loader_would_part_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let blank = dir.path().join("a b");
    std::fs::create_dir(&blank).unwrap();
    let output = pages(&blank, &["run", "--", "true"]);
    assert_eq!(output.status.code(), Some(64), "{}", said(&output));
    assert!(said(&output).contains("TMPDIR"), "{}", said(&output));
    assert!(is_empty(&blank));
}

#[test]
fn a_comparison_agrees_with_itself() {
    let dir = tempfile::tempdir().unwrap();
    let words = [
        "bench", "--mib", "8", "--rounds", "3", "--calls", "1", "--json",
    ];
    let output = pages(dir.path(), &words);
    assert!(output.status.success(), "{}", said(&output));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["schema"], "outlive.pages-bench/1");
    let kernels = value["kernels"].as_array().unwrap();
    assert_eq!(kernels.len(), 4);
    for kernel in kernels {
        let number = |key: &str| kernel[key].as_f64().unwrap();
        assert!(number("ratio_min") <= number("ratio") && number("ratio") <= number("ratio_max"));
        for (way, name) in
            kernel["ways"]
                .as_array()
                .unwrap()
                .iter()
                .zip(["normal", "huge", "collapsed"])
        {
            assert_eq!(way["way"], name);
            let number = |key: &str| way[key].as_f64().unwrap();
            assert!(number("unit_ns_min") > 0.0 && number("unit_ns") <= number("unit_ns_max"));
            assert!(number("huge_bytes") <= number("resident_bytes"));
            assert!(name != "normal" || number("huge_bytes") == 0.0, "{way}");
            assert_eq!(way["misses"].is_null(), value["misses_counted"] == false);
        }
    }
    assert!(is_empty(dir.path()));
    let output = pages(dir.path(), &["bench", "--rounds", "1", "--", "true"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("times as fast") && text.contains("true"),
        "{text}"
    );
}

//! `outlive noise compare`: protections side by side under its own load, and nothing that is left
//! of it. No time is asserted: these machines are noisy.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn compare(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlive"));
    command
        .args(["noise", "compare", "--dir"])
        .arg(dir)
        .arg("--disturb")
        .args(words)
        .env("NO_COLOR", "1");
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn cores() -> usize {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    set.count() as usize
}

/// Processes of a command line that holds `text`.
fn alive(text: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(text)).collect()
}

#[test]
fn what_needs_no_right_is_measured_under_a_load_that_did_something() {
    if cores() < 2 {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let words = ["--modes", "normal,taskset", "--rounds", "2", "--json"];
    let small = ["--samples", "400", "--quantum-us", "500"];
    let output = compare(dir.path(), &[&words[..], &small].concat())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["schema"], "outlive.noise-compare/1");
    for what in ["bursts", "timers", "packets", "bytes"] {
        assert!(
            value["load"][what].as_u64().unwrap() > 0,
            "{what}: {}",
            value["load"]
        );
    }
    let modes = value["modes"].as_array().unwrap();
    let names: Vec<_> = modes
        .iter()
        .map(|mode| mode["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["normal", "taskset"]);
    let least = value["least_ns"].as_f64().unwrap();
    for mode in modes {
        let number = |value: &Value| value.as_f64().unwrap();
        assert!(number(&mode["all"]["min"]) >= least);
        let counts = &mode["interruptions"];
        // Two daemons share its core: it is switched away.
        assert!(counts["switches"].as_u64().unwrap() > 0, "{mode}");
        let kinds = ["switches", "interrupts", "softirqs"].map(|kind| counts[kind].as_u64());
        let all: Option<u64> = kinds.into_iter().sum();
        let rate = all.map(|all| all as f64 / number(&mode["worked_seconds"]));
        assert_eq!(rate.is_none(), mode["per_second"].is_null());
        if let Some(rate) = rate {
            assert!((number(&mode["per_second"]) / rate - 1.0).abs() < 1e-9);
        }
        if let Some(samples) = mode["untouched_samples"].as_u64() {
            assert!(samples < 800, "timers hit some of them");
            assert_eq!(mode["untouched"].is_null(), samples == 0);
        }
    }
    let notes = value["notes"].to_string();
    let seen = !modes[0]["per_second"].is_null();
    assert_eq!(notes.contains("/proc counts"), !seen, "{notes}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn killed_at_any_moment_it_leaves_no_process_and_no_file() {
    if cores() < 2 {
        return;
    }
    for wait_ms in [0, 60, 250] {
        let dir = tempfile::tempdir().unwrap();
        let words = ["--modes", "taskset", "--rounds", "50", "--seed", "77"];
        let mut child = compare(dir.path(), &words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Whoever measures and whoever disturbs has it in its command line.
        let place = format!("--parent {} ", child.id());
        let until = Instant::now() + Duration::from_secs(60);
        let own = |line: &str| line.contains("part disturb");
        while !alive(&place).iter().any(|line| own(line)) {
            assert!(Instant::now() < until, "no load");
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(wait_ms));
        child.kill().unwrap();
        child.wait().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !alive(&place).is_empty() {
            assert!(Instant::now() < until, "left: {:?}", alive(&place));
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn bad_input_is_refused_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    for (words, text) in [
        (&["--quantum-us", "0"][..], "give 1 to 1000000 us"),
        (&["--samples", "9"], "give 10 to 1000000"),
        (&["--samples", "1000000"], "take more than 60 s"),
        (&["--rounds", "0"], "give 1 to 1000"),
        (
            &["--modes", "taskset,normal,taskset"],
            "taskset stands there twice",
        ),
        (&["--core", "1023"], "core 1023 does not exist"),
        (&["--modes", "nohz"], "nohz"),
    ] {
        let output = compare(dir.path(), words).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(64),
            "{words:?}: {}",
            said(&output)
        );
        assert!(said(&output).contains(text), "{words:?}: {}", said(&output));
    }
    let missing = dir.path().join("missing");
    let output = compare(&missing, &[]).output().unwrap();
    assert!(
        said(&output).contains("is no directory"),
        "{}",
        said(&output)
    );
}

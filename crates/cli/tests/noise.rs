//! `outlive noise` runs, and what it says agrees with itself. No time is asserted: these
//! machines are noisy.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn noise(dir: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outlive"))
        .arg("noise")
        .args(words)
        .current_dir(dir)
        .env("NO_COLOR", "1")
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A core that this process may use.
fn core() -> String {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    let mut cores = 0..rustix::thread::CpuSet::MAX_CPU;
    cores.find(|&core| set.is_set(core)).unwrap().to_string()
}

fn consistent(value: &Value, kind: &str) {
    assert_eq!(value["schema"], "outlive.noise/1");
    assert_eq!(
        (&value["kind"], &value["samples"]),
        (&kind.into(), &300.into())
    );
    let core = &value["cores"][0];
    let number = |value: &Value| value.as_f64().unwrap();
    let summary = &core["summary"];
    let (min, mean, max) = (
        number(&summary["min"]),
        number(&summary["mean"]),
        number(&summary["max"]),
    );
    assert!(0.0 < min && min <= mean && mean <= max, "{summary}");
    let mut before = min;
    for pair in summary["percentiles"].as_array().unwrap() {
        assert!(before <= number(&pair[1]) && number(&pair[1]) <= max);
        before = number(&pair[1]);
    }
    let classes = core["histogram"].as_array().unwrap();
    let counted: u64 = classes.iter().map(|c| c["count"].as_u64().unwrap()).sum();
    assert_eq!(counted, 300);
    assert_eq!(core["series"].as_array().unwrap().len(), 300);
    assert!(number(&core["cycles_per_second"]) > 0.0);
    assert_eq!(core["spectrum"].is_null(), kind == "fwq");
    // One rank costs what the core costs; more ranks never less.
    let scales = core["extrapolation"].as_array().unwrap();
    assert!((number(&scales[0]["step_ns"]) / mean - 1.0).abs() < 1e-6);
    let steps: Vec<f64> = scales.iter().map(|s| number(&s["step_ns"])).collect();
    assert!(
        steps
            .windows(2)
            .all(|pair| pair[0] <= pair[1] * (1.0 + 1e-12))
    );
    assert!(*steps.last().unwrap() <= max * (1.0 + 1e-12));
    let attribution = &core["attribution"];
    assert_eq!(attribution.is_null(), core["source"] == "counters");
    if !attribution.is_null() {
        assert_eq!(attribution["samples"], core["long_samples"]);
        let parts = number(&attribution["unexplained_ns"]);
        assert!((-1.0..=number(&attribution["excess_ns"]) + 1.0).contains(&parts));
    } else {
        let notes = value["notes"].to_string();
        assert!(notes.contains("no trace of events"), "{notes}");
    }
}

#[test]
fn quanta_are_measured_reported_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let core = core();
    let short = ["--cores", &core, "--samples", "300", "--quantum-us", "200"];
    for (kind, file) in [("fwq", "fwq.json"), ("ftq", "ftq.json")] {
        let words = [&[kind][..], &short, &["--json", "--svg", "x.svg"]].concat();
        let output = noise(dir.path(), &words);
        consistent(&json(&output), kind);
        std::fs::write(dir.path().join(file), &output.stdout).unwrap();
        let svg = std::fs::read_to_string(dir.path().join("x.svg")).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("<polyline"));
    }
    let words = [&["fwq"][..], &short, &["--events", "counters"]].concat();
    let output = noise(dir.path(), &words);
    let text = String::from_utf8_lossy(&output.stdout);
    for part in ["1000000 ranks", "involuntary", "counters tell"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let words = ["report", "--html", "out.html", "fwq.json", "ftq.json"];
    assert!(noise(dir.path(), &words).status.success());
    let page = std::fs::read_to_string(dir.path().join("out.html")).unwrap();
    assert_eq!(page.matches("<section>").count(), 2);
    // Nothing is loaded from elsewhere: only the pictures' namespaces have addresses.
    assert_eq!(page.matches("http").count(), 2);
}

#[test]
fn kernels_vary_between_their_own_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["variation", "--runs", "3", "--run-ms", "1", "--json"];
    let value = json(&noise(dir.path(), &words));
    let kernels = value["kernels"].as_array().unwrap();
    assert_eq!(kernels.len(), 9);
    for kernel in kernels {
        for runs in kernel["cores"].as_array().unwrap() {
            let number = |key: &str| runs["summary"][key].as_f64().unwrap();
            let ratio = (number("max") / number("min") - 1.0) * 100.0;
            let said = runs["variation_percent"].as_f64().unwrap();
            assert!(said >= 0.0 && (said - ratio).abs() < 1e-6, "{kernel}");
        }
        assert!(kernel["between_cores_percent"].as_f64().unwrap() >= 0.0);
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("bad.json"), "{}").unwrap();
    for (words, status, text) in [
        (&["fwq", "--cores", "99999"][..], 64, "'99999' is no core"),
        (&["fwq", "--cores", "1023"], 64, "core 1023 does not exist"),
        (&["ftq", "--cores", "x"], 64, "option cores"),
        (&["fwq", "--quantum-us", "0"], 64, "give 1 to 1000000 us"),
        (
            &["fwq", "--quantum-us", "18446744073709551615"],
            64,
            "quantum-us",
        ),
        (&["ftq", "--samples", "0"], 64, "option samples"),
        (&["fwq", "--samples", "100000000"], 64, "at most 3600 s"),
        (&["fwq", "--long", "NaN"], 64, "above 0"),
        (
            &["variation", "--kernels", "linpack"],
            64,
            "no kernel 'linpack'",
        ),
        (&["variation", "--fill", "0"], 64, "option fill"),
        (
            &["mpi", "--quantum", "0", "--", "true"],
            64,
            "give 1us to 1s",
        ),
        (
            &["mpi", "--quantum", "2s", "--", "true"],
            64,
            "option quantum",
        ),
        (
            &["mpi", "--quantum", "1", "--", "true"],
            64,
            "no unit of time",
        ),
        (&["mpi", "--steps", "1", "--", "true"], 64, "option steps"),
        (
            &["mpi", "--steps", "9999999", "--", "true"],
            64,
            "at most 3600 s",
        ),
        (
            &["mpi", "--daemon", "1ms", "--", "true"],
            64,
            "no BURST/PERIOD",
        ),
        (
            &["mpi", "--daemon", "2ms/3ms", "--", "true"],
            64,
            "out of bounds",
        ),
        (
            &["mpi", "--phase", "same", "--", "true"],
            64,
            "option daemon",
        ),
        (&["mpi", "--cores", "x", "--", "true"], 64, "option cores"),
        (
            &["mpi", "--timeout", "x", "--", "true"],
            64,
            "option timeout",
        ),
        (
            &["mpi", "--mpicc", "./none", "--", "true"],
            74,
            "option mpicc",
        ),
        (&["mpi", "--", "./none"], 127, "no such program"),
        (&["mpi"], 64, "LAUNCHER"),
        (
            &["report", "--html", "o.html", "none.json"],
            74,
            "none.json",
        ),
        (&["report", "--html", "o.html", "bad.json"], 65, "bad.json"),
    ] {
        let output = noise(dir.path(), words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
        assert!(
            said.contains(text) && said.contains("remedy: "),
            "{words:?}: {said}"
        );
    }
}

/// More samples than there is memory for: refused before anything is allocated.
#[test]
fn samples_beyond_the_memory_are_refused() {
    let binary = env!("CARGO_BIN_EXE_outlive");
    let script =
        format!("ulimit -v 1000000; exec {binary} noise fwq --quantum-us 1 --samples 100000000");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("would take about"), "{said}");
}

/// Without permission to lock memory it goes on, and says so.
#[test]
fn memory_that_cannot_be_locked_is_told() {
    let (binary, core) = (env!("CARGO_BIN_EXE_outlive"), core());
    // Root may lock whatever the limit is, unless that right is taken away.
    let inner = format!("ulimit -l 0; exec {binary} noise fwq --cores {core} --samples 50 --json");
    let command = match rustix::process::geteuid().is_root() {
        false => Command::new("sh").args(["-c", &inner]).output(),
        true => Command::new("setpriv")
            .args(["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"])
            .args(["sh", "-c", &inner])
            .output(),
    };
    let value = json(&command.unwrap());
    assert_eq!(value["cores"][0]["memory_locked"], false);
    assert!(
        value["notes"].to_string().contains("could not be locked"),
        "{value}"
    );
}

/// Without a compiler, with one that fails, and with launchers that start nothing. What stands
/// for the compiler makes a program that is never run.
#[test]
fn what_starts_no_ranks_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        // Written by a process of its own: one that another test forks here at that moment would
        // have the file open for writing, and nobody could execute it.
        let write = "printf '#!/bin/sh\n%s\n' \"$2\" >\"$1\" && chmod 700 \"$1\"";
        let words = ["-c", write, "sh", name, text];
        let done = Command::new("sh")
            .args(words)
            .current_dir(dir.path())
            .status();
        assert!(done.unwrap().success());
    };
    script("good", "while [ $# -gt 1 ]; do shift; done; : >$1");
    script("bad", "echo ===== >&2; echo no stdio.h here >&2; exit 1");
    script("fails", "exit 7");
    script("ends", "exit 0");
    script("stays", "sleep 1000 & echo $! >child; wait");
    script("begins", "touch $2/rank-0.begun; kill -9 $$");
    script("twice", "touch $2/twice; exit 3");
    let temporary = dir.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    for (compiler, launcher, more, status, code, text) in [
        (
            "./bad",
            "./ends",
            "",
            127,
            "OL-505",
            "cannot compile: no stdio.h",
        ),
        (
            "./good",
            "./fails",
            "",
            127,
            "OL-505",
            "exit code 7 before any rank",
        ),
        ("./good", "./ends", "", 74, "OL-404", "0 ranks began"),
        (
            "./good",
            "./begins",
            "",
            69,
            "OL-202",
            "1 rank began, 0 have a result",
        ),
        ("./good", "./twice", "", 64, "OL-100", "another MPI"),
        (
            "./good",
            "./stays",
            "--timeout=1s",
            69,
            "OL-106",
            "no end within 1 s",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_outlive"))
            .args(["noise", "mpi", "--dir", "tmp", "--mpicc", compiler])
            .args((!more.is_empty()).then_some(more))
            .args(["--", launcher])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{launcher}: {said}");
        assert!(
            said.contains(code) && said.contains(text),
            "{launcher}: {said}"
        );
        assert!(output.stdout.is_empty(), "{launcher}");
        let left = std::fs::read_dir(&temporary).unwrap().count();
        assert_eq!(left, 0, "{launcher}: its directory is gone");
    }
    // Nothing that the launcher started is left, though it would have stayed.
    let child = std::fs::read_to_string(dir.path().join("child")).unwrap();
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", child.trim()));
    assert_ne!(comm.unwrap_or_default().trim(), "sleep");
    // Beside the launcher, or in PATH: nowhere.
    let output = Command::new(env!("CARGO_BIN_EXE_outlive"))
        .args(["noise", "mpi", "--", "./ends"])
        .current_dir(dir.path())
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(74), "{said}");
    assert!(said.contains("no mpicc beside ./ends"), "{said}");
}

//! `outlive health` over machines made of files, with planted faults.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn health(root: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlive"));
    command.args(["health", "--interval", "100ms", "--root"]);
    command.arg(root).args(words);
    // What whoever runs the tests has set is not what is tested.
    for name in ["OUTLIVE_HEALTH_LIMITS", "OUTLIVE_HEALTH_INTERVAL"] {
        command.env_remove(name);
    }
    command.env("XDG_CONFIG_HOME", root.join("no-settings"));
    command.output().unwrap()
}

fn plant(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A machine on which all is well.
fn machine() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    plant(
        root,
        "proc/stat",
        "cpu  1 0 0 9 0 0 0 5 0 0\ncpu0 1 0 0 9 0 0 0 5 0 0\n",
    );
    plant(
        root,
        "proc/meminfo",
        "MemTotal: 1000 kB\nMemAvailable: 500 kB\n",
    );
    plant(root, "proc/vmstat", "pgmajfault 7\noom_kill 3\n");
    plant(root, "sys/devices/system/edac/mc/mc0/ue_count", "0\n");
    dir
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_planted_fault_is_shown_and_decides_the_exit_status() {
    let dir = machine();
    let well = health(dir.path(), &["--json"]);
    assert_eq!(well.status.code(), Some(0), "{well:?}");
    let answer = json(&well);
    assert_eq!(answer["schema"], "outlive.health/1");
    assert_eq!(answer["verdict"], "ok");
    let sensors: Vec<&str> = answer["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["sensor"].as_str().unwrap())
        .collect();
    assert!(sensors.contains(&"oom-kills") && sensors.contains(&"cpu-steal"));
    let missing = answer["not_offered"].as_array().unwrap();
    assert!(missing.contains(&"temperature".into()) && !missing.contains(&"cpu-steal".into()));

    plant(dir.path(), "sys/devices/system/edac/mc/mc0/ue_count", "1\n");
    let bad = health(dir.path(), &[]);
    assert_eq!(bad.status.code(), Some(69));
    assert!(
        said(&bad).contains("failing  ecc-uncorrected  mc0  1"),
        "{}",
        said(&bad)
    );
    assert!(
        !said(&bad).contains("cpu-steal"),
        "what is well is not shown"
    );
    let all = said(&health(dir.path(), &["--all"]));
    assert!(
        all.contains("cpu-steal") && all.contains("not offered here: "),
        "{all}"
    );
}

#[test]
fn limits_are_set_by_option_and_file_and_bad_ones_are_refused() {
    let dir = machine();
    let warned = health(
        dir.path(),
        &["--json", "--limits", "memory-available=60/10"],
    );
    assert_eq!(
        (warned.status.code(), &json(&warned)["verdict"]),
        (Some(0), &"warning".into())
    );
    let file = dir.path().join("settings.toml");
    let set = |text: &str| fs::write(&file, text).unwrap();
    let named = ["--json", "--config", file.to_str().unwrap()];
    set("health-limits = [\"memory-available=90/60\", \"cpu-steal=off\"]\n");
    let failing = health(dir.path(), &named);
    assert_eq!(failing.status.code(), Some(69));
    for (text, word) in [
        (
            "health-limits = \"memory=1\"\n",
            "there is no sensor 'memory'",
        ),
        ("health-limits = \"cpu-steal=5/1\"\n", "before it warns"),
    ] {
        set(text);
        let refused = health(dir.path(), &named);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(78), "{error}");
        assert!(error.contains("OL-600") && error.contains(word), "{error}");
        assert!(
            error.contains("settings.toml") && error.contains("remedy: "),
            "{error}"
        );
    }
    for words in [&["--limits", "x"][..], &["--interval", "1ms"]] {
        assert_eq!(
            health(dir.path(), words).status.code(),
            Some(64),
            "{words:?}"
        );
    }
    assert_eq!(
        health(&dir.path().join("none"), &[]).status.code(),
        Some(74)
    );
}

#[test]
fn damaged_files_are_unknown_and_not_well() {
    let dir = machine();
    plant(dir.path(), "proc/stat", "damaged\n");
    plant(dir.path(), "proc/meminfo", "");
    fs::remove_file(dir.path().join("proc/vmstat")).unwrap();
    fs::create_dir(dir.path().join("proc/vmstat")).unwrap();
    let answer = json(&health(dir.path(), &["--json"]));
    let findings = answer["findings"].as_array().unwrap();
    let unknown = findings.iter().filter(|it| it["verdict"] == "unknown");
    assert_eq!(unknown.count(), 5, "{findings:?}");
    assert!(
        findings
            .iter()
            .all(|it| it["verdict"] == "ok" || it["reason"].is_string())
    );
}

#[test]
fn watching_gives_a_line_for_each_report_until_nobody_reads() {
    let dir = machine();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlive"));
    command.args([
        "health",
        "--watch",
        "--json",
        "--interval",
        "100ms",
        "--root",
    ]);
    command.arg(dir.path()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    for _ in 0..2 {
        let line = lines.next().unwrap().unwrap();
        let answer: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["schema"], "outlive.health/1");
    }
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn this_machine_can_be_read() {
    let command = ["health", "--json", "--interval", "100ms", "--storage", "/"];
    let done = Command::new(env!("CARGO_BIN_EXE_outlive"))
        .args(command)
        .output();
    let answer = json(&done.unwrap());
    let findings = answer["findings"].as_array().unwrap();
    let of = |name: &str| findings.iter().any(|it| it["sensor"] == name);
    assert!(of("memory-available") && of("cpu-steal") && of("storage-free") && of("clock-jump"));
}

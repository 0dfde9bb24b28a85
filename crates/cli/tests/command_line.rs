//! What the command says and with which status it ends. Real recoveries with real
//! agents are in the tests of the whole.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn outlive(dir: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outlive"))
        .args(words)
        .current_dir(dir)
        .env_remove("OUTLIVE_LOG")
        .env("HOME", dir)
        .env("XDG_CONFIG_HOME", dir.join("config"))
        .env("NO_COLOR", "1")
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every mistake has a code, a remedy and a status.
#[test]
fn mistakes_are_coded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for (words, status, code, text) in [
        (
            &["run", "--evry", "3", "--", "true"][..],
            64,
            "OL-100",
            "'--evry'",
        ),
        (&["rum"], 64, "OL-100", "'rum'"),
        (&["run"], 64, "OL-100", "COMMAND"),
        (
            &["run", "--", "no-such-program"],
            127,
            "OL-505",
            "no such program",
        ),
        (
            &["run", "--collectives", "corrected", "--", "true"],
            64,
            "OL-100",
            "corrected-gossip",
        ),
        (
            &[
                "run",
                "--collectives",
                "ftco",
                "--collectives-failures",
                "2",
                "--",
                "true",
            ],
            64,
            "OL-100",
            "ftco tolerates any",
        ),
        (
            &[
                "run",
                "--collectives",
                "ftco",
                "--collectives-trees",
                "2",
                "--",
                "true",
            ],
            64,
            "OL-100",
            "keep spanning trees",
        ),
        (
            &[
                "run",
                "--collectives",
                "corrected-tree",
                "--collectives-mtbf",
                "3600",
                "--",
                "true",
            ],
            64,
            "OL-100",
            "--collectives-duration",
        ),
        (
            &["run", "--job", "a/b", "--", "true"],
            64,
            "OL-100",
            "cannot name a job",
        ),
        (
            &["run", "--every", "x", "--", "true"],
            64,
            "OL-100",
            "option every",
        ),
        (
            &["run", "--inject", "node:9@1s", "--", "true"],
            64,
            "OL-100",
            "names node 9",
        ),
        (
            &["run", "--levels", "tape", "--", "true"],
            64,
            "OL-100",
            "'tape'",
        ),
        (
            &["run", "--memory", "1K", "--", "true"],
            64,
            "OL-100",
            "too little",
        ),
        (
            &["run", "--store", "file/x", "--", "true"],
            74,
            "OL-4",
            "file",
        ),
        (
            &["run", "--config", "none", "--", "true"],
            78,
            "OL-600",
            "none",
        ),
        (&["status"], 74, "OL-404", "outlive-store"),
        (&["status", "--job", "x"], 74, "OL-404", "no job"),
        (&["checkpoints", "list"], 74, "OL-404", "outlive-store"),
        (&["keeper"], 64, "OL-100", "OUTLIVE_AGENT_SPEC"),
        (&["agent"], 64, "OL-100", "OUTLIVE_AGENT_SPEC"),
    ] {
        let output = outlive(dir.path(), words);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
        assert!(
            said.starts_with("outlive: ") && said.contains(code),
            "{words:?}: {said}"
        );
        assert!(said.contains(text), "{words:?}: {said}");
        assert!(said.contains("\n  remedy: "), "{words:?}: {said}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn a_configuration_that_is_not_understood_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config/outlive");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config.toml"), "every = 5\nspares = \"many\"\n").unwrap();
    let output = outlive(dir.path(), &["run", "--emulate-nodes", "2", "--", "true"]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(78), "{text}");
    assert!(
        text.contains("OL-600") && text.contains("config.toml"),
        "{text}"
    );
    let output = outlive(
        dir.path(),
        &["config", "explain", "--json", "--spares", "3"],
    );
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["schema"], "outlive.config/2");
    let values = answer["values"].as_array().unwrap();
    let of = |key: &str| values.iter().find(|value| value["option"] == key).unwrap();
    assert_eq!(
        (&of("spares")["value"], &of("spares")["origin"]),
        (&"3".into(), &"command line".into())
    );
    assert!(
        of("every")["origin"]
            .as_str()
            .unwrap()
            .ends_with("config.toml")
    );
    assert_eq!(of("keep")["origin"], "default");
    // What nothing decides in words alone has its value too.
    for value in values {
        assert!(
            value["value"] != "" && value["value"] != "(decided)",
            "{value}"
        );
        let decided = value["origin"] == "decided";
        assert_eq!(value["decided_by"].is_string(), decided, "{value}");
    }
    assert_eq!(of("levels")["value"], "memory,disk");
    assert!(
        of("interval")["value"].is_null(),
        "every = 5 stands in the file"
    );
}

#[test]
fn help_names_every_command_and_hides_the_inner_ones() {
    let dir = tempfile::tempdir().unwrap();
    let output = outlive(dir.path(), &["--help"]);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for command in [
        "run",
        "checkpoints",
        "status",
        "doctor",
        "config",
        "simulate",
        "bench",
        "completions",
    ] {
        assert!(
            text.contains(&format!("\n  {command}")),
            "{command}: {text}"
        );
    }
    for hidden in ["keeper", "  agent", "  man "] {
        assert!(!text.contains(hidden), "{hidden}");
    }
    let run = outlive(dir.path(), &["run", "--help"]);
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    for option in [
        "--inject",
        "--emulate-nodes",
        "--dead-timeout",
        "--report",
        "--spares",
    ] {
        assert!(text.contains(option), "{option}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    for (part, why) in [
        ("\nBounds:\n", "a heading"),
        ("\nCheckpoints:\n", "a heading"),
        ("[default: 250ms]", "a default"),
        ("[variable: OUTLIVE_EVERY]", "its variable"),
        ("[key: max-restarts]", "its key"),
    ] {
        assert!(text.contains(part), "{why}: {part}");
    }
    // Every option that takes a value says what holds without it.
    for option in text.split("\n      --").skip(1) {
        let takes = option.lines().next().unwrap().contains('<');
        assert!(!takes || option.contains("[default:"), "{option}");
    }
    every_command_says_its_defaults(dir.path(), &[]);
    for words in [&["completions", "bash"][..], &["man"]] {
        let output = outlive(dir.path(), words);
        assert!(
            output.status.success() && output.stdout.len() > 500,
            "{words:?}"
        );
    }
    let pages = dir.path().join("man");
    let output = outlive(dir.path(), &["man", "--out-dir", pages.to_str().unwrap()]);
    assert!(output.status.success());
    for page in ["outlive.1", "outlive-run.1", "outlive-checkpoints-verify.1"] {
        assert!(pages.join(page).is_file(), "{page}");
    }
}

/// Every option that takes a value says what holds without it, of every command below these
/// words; and many options stand in groups.
fn every_command_says_its_defaults(dir: &Path, words: &[&str]) {
    let asked: Vec<&str> = words.iter().copied().chain(["--help"]).collect();
    let help = outlive(dir, &asked);
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.status.success(), "{words:?}");
    let wide = |line: &&str| line.chars().count() > 80;
    assert_eq!(text.lines().find(wide), None, "{words:?}");
    let usage = text
        .lines()
        .find(|line| line.starts_with("Usage:"))
        .unwrap();
    let mut options = 0;
    for option in text.split("\n      --").skip(1) {
        options += 1;
        let first = option.lines().next().unwrap();
        let name = first.split([' ', '.']).next().unwrap();
        let needed = usage.contains(&format!("--{name} "));
        let default = option.contains("[default:") || option.contains("[default\n");
        assert!(
            !first.contains('<') || needed || default,
            "{words:?}: --{option}"
        );
    }
    let groups = text
        .lines()
        .filter(|line| line.ends_with(':') && !line.starts_with(' '));
    assert!(options < 9 || groups.count() > 2, "{words:?}: no groups");
    let Some((_, below)) = text.split_once("\nCommands:\n") else {
        return;
    };
    for line in below.lines().take_while(|line| line.starts_with("  ")) {
        let name = line
            .split_whitespace()
            .next()
            .filter(|_| line.chars().nth(2) != Some(' '));
        if let Some(name) = name.filter(|name| *name != "help") {
            let deeper: Vec<&str> = words.iter().copied().chain([name]).collect();
            every_command_says_its_defaults(dir, &deeper);
        }
    }
}

#[test]
fn doctor_checks_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let output = outlive(dir.path(), &["doctor", "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["schema"], "outlive.doctor/1");
    let checks = answer["checks"].as_array().unwrap();
    assert!(checks.len() >= 12);
    for check in checks {
        let good = check["grade"] == "ok";
        assert_eq!(
            check["remedy"].as_str().unwrap().is_empty(),
            good,
            "{check}"
        );
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn simulations_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let output = outlive(
        dir.path(),
        &[
            "simulate", "commit", "--seeds", "3", "--seed", "7", "--json",
        ],
    );
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&answer["histories"], &answer["first_seed"]),
        (&3.into(), &7.into())
    );
    let failed = answer["failed"].as_array().unwrap();
    assert_eq!(
        output.status.code(),
        Some(if failed.is_empty() { 0 } else { 70 })
    );
}

/// Trees that are grown once and used by many broadcasts, with a failure on the way.
#[test]
fn spanning_trees_are_simulated() {
    let dir = tempfile::tempdir().unwrap();
    let words = "simulate broadcast --processes 60 --dissemination spanning-trees:3 --broadcasts \
                 5 --faults 2 --fault-time during --runs 20 --plot picture.svg --json";
    let output = outlive(dir.path(), &words.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{}", said(&output));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["schema"], "outlive.simulate.spanning-trees/1");
    assert_eq!(answer["parameters"]["correction"], "checked");
    assert_eq!(answer["summary"]["guaranteed"], true);
    assert_eq!(answer["summary"]["violations"], 0);
    assert!(answer["summary"]["switches"]["max"].as_u64().unwrap() > 0);
    for run in answer["runs"].as_array().unwrap() {
        assert_eq!(run["broadcasts"].as_array().unwrap().len(), 5);
        assert_eq!(run["heights"].as_array().unwrap().len(), 3);
        assert_eq!(run["uncoloured_live"], 0);
    }
    let picture = std::fs::read_to_string(dir.path().join("picture.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    for wrong in [
        "--dissemination spanning-trees:0",
        "--dissemination spanning-trees:33",
        "--dissemination spanning-trees",
        "--dissemination spanning-trees:2 --correction opportunistic:2",
        "--dissemination spanning-trees:2 --start overlapped",
        "--dissemination spanning-trees:2 --broadcasts 0",
        "--dissemination spanning-trees:2 --timeout 0",
        "--dissemination spanning-trees:2 --dead 0",
    ] {
        let mut words = vec!["simulate", "broadcast", "--processes", "8"];
        words.extend(wrong.split(' '));
        let output = outlive(dir.path(), &words);
        assert_eq!(output.status.code(), Some(64), "{wrong}");
        assert!(said(&output).contains("OL-100"), "{}", said(&output));
    }
}

/// Real processes, one of them killed: the rest have the result after one time-out.
#[test]
fn killed_processes_cost_time_outs() {
    let dir = tempfile::tempdir().unwrap();
    let words = "bench collectives --ranks 8 --rounds 1 --timeout-ms 400 --json";
    let output = outlive(dir.path(), &words.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{}", said(&output));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let median = |what: &str| {
        let rows = answer["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["what"] == what).unwrap();
        row["ours"]["median"].as_f64().unwrap()
    };
    // Never less: nobody is told of a death. More is the machine's load.
    assert!(median("8 processes, 1 fault") > 390.0);
    assert!(median("8 processes, 2 serial faults") > 790.0);
    assert!(median("8 processes, 2 parallel faults") > 390.0);
    for wrong in [["--ranks", "4"], ["--ranks", "129"], ["--timeout-ms", "0"]] {
        let output = outlive(
            dir.path(),
            &[&["bench", "collectives"][..], &wrong].concat(),
        );
        assert_eq!(output.status.code(), Some(64), "{wrong:?}");
    }
    let output = outlive(
        dir.path(),
        &[
            "bench",
            "collectives-cost",
            "--log2-processes",
            "3",
            "--json",
        ],
    );
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["schema"], "outlive.bench.collectives-cost/1");
    assert_eq!(answer["lines"].as_array().unwrap().len(), 5 * 11);
}

/// The published figure, named dead, and the form of the answer.
#[test]
fn broadcasts_are_simulated() {
    let dir = tempfile::tempdir().unwrap();
    let answer = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let output = outlive(dir.path(), &words);
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let calm = answer(
        "simulate broadcast --processes 1024 --latency 2 --overhead 1 --gap 1 --tree lame:2 \
         --order interleaved --dissemination tree --correction checked --start synchronized \
         --plot picture.svg --json",
    );
    assert_eq!(calm["schema"], "outlive.simulate.broadcast/1");
    assert_eq!(calm["runs"][0]["quiescence"], 37);
    assert_eq!(calm["runs"][0]["messages"], 6143);
    assert_eq!(calm["summary"]["guaranteed"], true);
    assert!(calm["events"].as_u64().unwrap() > 6143);
    assert!(calm["peak_bytes"].as_u64().unwrap() > 1 << 20);
    let picture = std::fs::read_to_string(dir.path().join("picture.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    let dead = answer("simulate broadcast --processes 500 --dead 7,400,401 --runs 3 --json");
    for run in dead["runs"].as_array().unwrap() {
        assert_eq!(run["dead"], serde_json::json!([7, 400, 401]));
        assert_eq!(run["uncoloured_live"], 0);
    }
    let gossip = answer(
        "simulate broadcast --processes 200 --dissemination gossip --gossip-time auto \
         --correction failure-proof:2 --faults 1% --fault-time during --seed 9 --json",
    );
    assert!(gossip["parameters"]["gossip_time"].as_u64().unwrap() > 0);
    assert_eq!(gossip["runs"][0]["seed"], 9);
    let one = answer("simulate broadcast --processes 1 --json");
    assert_eq!(one["runs"][0]["quiescence"], 0);
    for bad in [
        "--processes 0",
        "--processes 8 --gap 0",
        "--processes 8 --overhead 3 --gap 2",
        "--processes 8 --tree kary:0",
        "--processes 8 --latency -1",
        "--processes 8 --gossip-time -3 --dissemination gossip",
        "--processes 8 --dead 0",
        "--processes 8 --dead 8",
        "--processes 8 --faults 8",
        "--processes 8 --faults 101%",
        "--processes 8 --correction opportunistic:0",
        "--processes 8 --correction checked --dissemination acknowledged-tree",
        "--processes 8 --runs 0",
        "--processes 8 --root 8",
    ] {
        let mut words = vec!["simulate", "broadcast"];
        words.extend(bad.split(' '));
        let output = outlive(dir.path(), &words);
        assert_eq!(output.status.code(), Some(64), "{bad}");
        assert!(said(&output).contains("OL-100"), "{bad}: {}", said(&output));
    }
}

/// A program that does not know Outlive, under real agents: undisturbed, and with a
/// node lost.
#[test]
fn a_plain_program_is_supervised() {
    let dir = tempfile::tempdir().unwrap();
    let script = "echo start $OUTLIVE_INCARNATION $OUTLIVE_JOB; sleep 1";
    let words = [
        "run",
        "--job",
        "plain",
        "--emulate-nodes",
        "2",
        "--inject",
        "node:1@300ms",
        "--memory",
        "16MiB",
        "--report",
        "report.json",
        "--",
        "/bin/sh",
        "-c",
        script,
    ];
    let output = outlive(dir.path(), &words);
    assert!(output.status.success(), "{}", said(&output));
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(out, "start 1 plain\nstart 2 plain\n");
    let text = std::fs::read(dir.path().join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(report["schema"], "outlive.report/1");
    assert_eq!(report["failures"][0]["place"], "node:1");
    assert_eq!(report["restarts"], 1);
    let status = outlive(dir.path(), &["status", "--job", "plain", "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(
        (&answer["running"], &answer["job"]["incarnation"]),
        (&false.into(), &2.into())
    );
    let list = outlive(dir.path(), &["checkpoints", "list", "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(
        (&answer["kind"], &answer["job"]),
        (&"list".into(), &"plain".into())
    );
    let rehearsal = outlive(dir.path(), &["checkpoints", "rehearse", "--lose", "node:0"]);
    assert_eq!(rehearsal.status.code(), Some(80), "nothing was saved");
    // Another number of nodes is another job.
    let words = ["run", "--job", "plain", "--", "true"];
    assert_eq!(outlive(dir.path(), &words).status.code(), Some(64));
}

/// Collectives with failures: the value, who contributed, and what is no use.
#[test]
fn collectives_are_simulated() {
    let dir = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let all: Vec<&str> = ["simulate"].iter().chain(words).copied().collect();
        outlive(dir.path(), &all)
    };
    let output = run(&[
        "allreduce",
        "--processes",
        "8",
        "--dead",
        "3,5",
        "--timeout",
        "1000",
        "--json",
    ]);
    assert!(output.status.success(), "{}", said(&output));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let one = &answer["runs"][0];
    // 1 + ... + 8 without 4 and 6.
    assert_eq!(one["value"], 26);
    assert_eq!(one["contributors"], serde_json::json!([0, 1, 2, 4, 6, 7]));
    assert_eq!(one["absent"], serde_json::json!([3, 5]));
    assert_eq!(
        (&one["uncoloured_live"], &one["by"]),
        (&0.into(), &0.into())
    );
    assert_eq!(one["violation"], serde_json::Value::Null);
    for (words, text) in [
        (&["barrier", "--processes", "0"][..], "processes"),
        (&["reduce", "--processes", "4", "--root", "4"], "root"),
        (&["allreduce", "--processes", "4", "--dead", "4"], "dead"),
        (&["barrier", "--processes", "4", "--faults", "4"], "faults"),
        (
            &["reduce", "--processes", "4", "--algorithm", "magic"],
            "algorithm",
        ),
        (
            &["barrier", "--processes", "4", "--timeout", "0"],
            "timeout",
        ),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(64), "{words:?}");
        assert!(said(&output).contains("OL-100"), "{}", said(&output));
        assert!(said(&output).contains(text), "{}", said(&output));
    }
}

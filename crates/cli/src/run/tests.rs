use clap::Parser;
use outlive_control::steering::{Energy, Powers};

use super::*;
use crate::args::{Cli, Command};

fn planned(words: &[&str]) -> Result<Run> {
    let words = ["outlive", "run"]
        .iter()
        .chain(words)
        .chain(&["--", "./app", "x"]);
    let Command::Run(options) = Cli::try_parse_from(words).unwrap().command else {
        panic!("not run");
    };
    let config = Config::load(&options.settings, None).unwrap();
    plan(&config, *options)
}

#[test]
fn defaults_suit_one_machine() {
    let run = planned(&[]).unwrap();
    let set = &run.settings;
    assert_eq!(
        (set.nodes, set.spares, set.policy, set.auto.is_some()),
        (1, 0, Policy::default(), true)
    );
    let levels: Vec<_> = set.levels.iter().map(|setting| setting.level).collect();
    assert_eq!(levels, [Level::MEMORY, Level::DISK]);
    assert!(set.job.as_str().starts_with("app-"));
    assert_eq!(run.words, ["./app", "x"]);
    assert_eq!(set.bounds, Bounds::default());
}

#[test]
fn options_are_understood() {
    let run = planned(&[
        "--job",
        "heat",
        "--emulate-nodes",
        "4",
        "--spares=2",
        "--every",
        "20",
        "--levels",
        "shared/4,memory,partner",
        "--memory",
        "64MiB",
        "--backoff",
        "0",
        "--inject",
        "node:2@version=60",
        "--inject",
        "rank:1@5s",
        "--encrypt",
    ])
    .unwrap();
    let set = &run.settings;
    assert_eq!((set.nodes, set.spares, set.injections.len()), (4, 2, 2));
    assert_eq!(
        set.policy,
        Policy {
            every: Some(20),
            interval_ms: None
        }
    );
    let levels: Vec<_> = set.levels.iter().map(|s| (s.level, s.every)).collect();
    assert_eq!(
        levels,
        [(Level::MEMORY, 1), (Level::PARTNER, 1), (Level::SHARED, 4)]
    );
    assert_eq!(
        (run.memory_bytes, run.encrypt, set.backoff_ms),
        (64 << 20, true, 0)
    );
}

#[test]
fn failure_domains_are_the_owners_or_nobodys() {
    let domains = |given: &[&str]| {
        let words = [&["--emulate-nodes", "3"], given].concat();
        planned(&words).unwrap().settings.domains
    };
    assert_eq!(domains(&["--domains", "0,0,1"]), [0, 0, 1]);
    // Said, and not left to what a source of machines may know.
    assert_eq!(domains(&["--domains", "own"]), [0, 1, 2]);
    assert_eq!(domains(&[]), Vec::<u32>::new());
}

#[test]
fn what_is_asked_of_the_policy_is_understood() {
    let limits = ["--overhead-max", "1.5%", "--redo-max", "10min"];
    let limits = [&limits[..], &["--time-limit", "12h", "--notice", "2min"]].concat();
    let auto = planned(&limits).unwrap().settings.auto.unwrap();
    assert_eq!(auto.overhead_max, Some(0.015));
    assert_eq!(auto.lost_max_ms, Some(600_000));
    assert_eq!(auto.ends_after_ms, Some(43_200_000));
    assert_eq!(auto.notice_ms, Some(120_000));
    assert_eq!((auto.preempts, auto.powers), (false, Powers::AsBefore));
    let spot = ["--notice", "30s", "--preempt-signal", "TERM"];
    let powers = ["--watts-compute", "90kW", "--watts-checkpoint", "65000"];
    let set = planned(&[&spot[..], &powers].concat()).unwrap().settings;
    assert_eq!(set.preempt_signal, Some(outlive_control::ended::SIGTERM));
    let auto = set.auto.unwrap();
    let (compute, checkpoint) = (90e3, 65e3);
    let energy = Energy {
        compute,
        checkpoint,
    };
    assert_eq!(auto.powers, Powers::Given(energy));
    assert!(auto.preempts);
    for off in [
        &["--watts-compute", "off"][..],
        &["--watts-checkpoint", "off"],
    ] {
        let auto = planned(off).unwrap().settings.auto.unwrap();
        assert_eq!(auto.powers, Powers::Off);
    }
    assert!(
        planned(&["--interval", "auto"])
            .unwrap()
            .settings
            .auto
            .is_some()
    );
    // Whoever says which versions go to a level has a plan.
    let by_hand = planned(&["--levels", "memory,disk/4"]).unwrap().settings;
    assert_eq!(
        (by_hand.auto, by_hand.policy.interval_ms),
        (None, Some(10_000))
    );
}

#[test]
fn nonsense_is_refused() {
    for words in [
        &["--emulate-nodes", "0"][..],
        &["--emulate-nodes", "many"],
        &["--job", "../x"],
        &["--levels", "memory,memory"],
        &["--levels", "tape"],
        &["--preempt-signal", "TERM"],
        &["--preempt-signal", "KILL", "--notice", "30s"],
        &["--watts-compute", "90kW"],
        &["--watts-checkpoint", "90kW"],
        &["--watts-checkpoint", "90kW", "--watts-compute", "off"],
        &["--watts-compute", "0", "--watts-checkpoint", "1"],
        &["--watts-compute", "nan", "--watts-checkpoint", "1"],
        &[
            "--every",
            "3",
            "--watts-compute",
            "1",
            "--watts-checkpoint",
            "1",
        ],
        &["--levels", "partner"],
        &["--levels", "shared/0"],
        &["--memory", "10"],
        &["--dead-timeout", "500ms"],
        &["--suspect-timeout", "150ms"],
        &["--interval", "10"],
        &["--inject", "node:4@5s"],
        &["--encrypt=maybe"],
        &["--keep", "0"],
        &["--partners", "0"],
        &["--on-nothing-usable", "wait"],
        &["--on-hang", "wait"],
        &["--hang-timeout", "900ms"],
        &["--join-timeout", "900ms"],
        &[
            "--hang-timeout",
            "3s",
            "--heartbeat",
            "900ms",
            "--suspect-timeout",
            "2s",
        ],
        &["--interval", "auto", "--every", "5"],
        &["--interval", "auto", "--levels", "memory,disk/4"],
        &["--interval", "5s", "--redo-max", "1min"],
        &["--every", "5", "--overhead-max", "1%"],
        &["--overhead-max", "0%"],
        &["--overhead-max", "0.01"],
        &["--overhead-max", "101%"],
        &["--time-limit", "10"],
        &["--notice", "10"],
        &["--emulate-nodes", "2", "--domains", "own,own"],
        &["--emulate-nodes", "2", "--domains", "0"],
        &["--emulate-nodes", "2", "--domains", "1,1"],
    ] {
        let error = planned(words).expect_err(&format!("{words:?}"));
        assert_eq!(error.code(), Code::InvalidArgument, "{words:?}");
    }
}

//! Health of nodes in simulated jobs: a planted fault reaches people once, and the same seed gives
//! the same history.

use outlive_base::Time;
use outlive_control::health::{Sensor, Verdict};
use outlive_simulator::job::{Options, Unwell, Weights, run_history};
use outlive_simulator::network::LossyOptions;

/// A history without faults but for what a node's sensor says from the fifth second on.
fn unwell(seed: u64, until: Time) -> Options {
    let mut options = Options::from_seed(seed);
    options.weights = Weights::default();
    options.net = LossyOptions::CALM;
    options.faults.crash = 0;
    options.faults.refuse = 0;
    options.torn = 0;
    options.slow = 0;
    options.breaks = 0;
    options.end = Time::from_secs(40);
    options.last = options.end;
    options.late_restarts = 0;
    options.unwell = Some(Unwell {
        node: 1,
        from: Time::from_secs(5),
        until,
        sensor: Sensor::EccUncorrected,
        value: 1.0,
    });
    options
}

#[test]
fn a_planted_fault_is_told_once_and_the_same_each_time() {
    for seed in outlive_base::seeds!(3) {
        let options = unwell(seed, Time::from_secs(1_000));
        let first = run_history(seed, options.clone(), false);
        assert!(first.violations.is_empty(), "{:?}", first.violations);
        let told: Vec<_> = first.health.iter().collect();
        assert_eq!(told.len(), 1, "seed {seed}: {told:?}");
        let (node, finding) = told[0];
        assert_eq!((*node, finding.verdict), (1, Verdict::Failing));
        assert_eq!(finding.source, "planted");
        let second = run_history(seed, options, false);
        assert_eq!(
            (first.trace, first.happenings),
            (second.trace, second.happenings)
        );
        assert_eq!(first.health, second.health);
    }
}

#[test]
fn what_sensors_say_decides_nothing_yet() {
    for seed in outlive_base::seeds!(2) {
        let planted = run_history(seed, unwell(seed, Time::from_secs(1_000)), false);
        let mut options = unwell(seed, Time::from_secs(1_000));
        options.unwell = None;
        let well = run_history(seed, options, false);
        assert!(well.health.is_empty());
        assert!(planted.violations.is_empty() && well.violations.is_empty());
        assert_eq!(planted.opened, well.opened, "seed {seed}");
    }
}

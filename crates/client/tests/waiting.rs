//! Waiting until a version survives something, against an agent over a real socket.

#![allow(clippy::unwrap_used)] // helpers of tests

mod support;

use outlive::{Code, Job, Level, Options, Outcome, Survives, Waited};
use outlive_base::Version;
use outlive_capture::control::ControlWords;
use std::time::{Duration, Instant};
use support::{TestAgent, XOR};

fn open(agent: &TestAgent) -> Job {
    agent.open(0, 10_000).unwrap()
}

fn protect(job: &mut Job, data: &mut [u8]) {
    // SAFETY: the tests keep the memory, unmoved, as long as the job uses it.
    unsafe { job.protect("u", data.as_mut_ptr(), data.len()) }.unwrap();
}

#[test]
fn a_bound_beyond_all_bounds_is_cut() {
    let agent = TestAgent::start(1);
    let environment = agent.environment(0);
    let options = Options {
        timeout: Duration::MAX,
        ..Options::default()
    };
    let mut job = Job::open_with(&options, &|name| {
        let found = environment.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.clone())
    })
    .unwrap();
    let mut u = vec![1; 10];
    protect(&mut job, &mut u);
    assert_eq!(job.checkpoint_now(1).unwrap(), Outcome::Taken);
    let waited = job.wait(1, Survives::Process, Some(Duration::MAX));
    assert_eq!(waited.unwrap(), Waited::Committed);
    job.close().unwrap();
}

#[test]
fn a_wait_is_for_what_must_be_survived() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut u = vec![1; 10];
    protect(&mut job, &mut u);
    assert_eq!(job.checkpoint_now(5).unwrap(), Outcome::Taken);
    let soon = Some(Duration::from_millis(20));
    let hour = Some(Duration::from_secs(3600));
    job.wait(5, Survives::Process, hour).unwrap();
    let error = job.wait(5, Survives::NodeLoss, soon).unwrap_err();
    assert_eq!(error.code(), Code::TimedOut);
    assert!(error.reason().contains("survives 'node-loss'"), "{error}");
    // What no level of the job survives is not waited for.
    let error = job.wait(5, Survives::AllNodes, hour).unwrap_err();
    assert_eq!(error.code(), Code::CommitAborted);
    assert!(error.to_string().contains("--levels"), "{error}");
    agent.control(0, |control| control.set_committed(XOR, Version(6)));
    for survives in [Survives::NodeCrash, Survives::NodeLoss, Survives::Domain] {
        let waited = job.wait(5, survives, hour).unwrap();
        assert_eq!(waited, Waited::Committed, "a newer one takes its place");
    }
    let told = |name, survives, version| Level {
        name,
        survives,
        version,
    };
    let levels = [
        told("memory", Survives::Process, Some(5)),
        told("xor:4", Survives::Domain, Some(6)),
    ];
    assert_eq!(job.levels(), levels);
    assert_eq!(
        job.status().version_surviving,
        [Some(6), Some(6), Some(6), Some(6), None]
    );
    job.close().unwrap();
}

#[test]
fn waiting_for_a_version_that_was_skipped_ends_at_once() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut u = vec![2; 10_000];
    protect(&mut job, &mut u);
    agent.arm(0, 5).unwrap();
    assert_eq!(job.checkpoint(5).unwrap(), Outcome::Taken);
    assert_eq!(job.checkpoint(6).unwrap(), Outcome::Skipped);
    let start = Instant::now();
    let hour = Some(Duration::from_secs(3600));
    let error = job.wait(6, Survives::Process, hour).unwrap_err();
    assert_eq!(error.code(), Code::CommitAborted);
    assert!(error.reason().contains("skipped"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(60));
    job.wait(5, Survives::Process, hour).unwrap();
    // Not offered yet: another thread may still offer it.
    let soon = Some(Duration::from_millis(20));
    let error = job.wait(7, Survives::Process, soon).unwrap_err();
    assert_eq!(error.code(), Code::TimedOut);
    job.close().unwrap();
}

//! Files that the program writes by itself, against an agent over a real socket.

#![allow(clippy::unwrap_used)] // helpers of tests

mod support;

use outlive::{Code, Job, Outcome, RegionKind, Restored};
use std::os::unix::fs::PermissionsExt;
use support::TestAgent;

fn memory(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes)
        .map(|i| outlive_base::rng::draw(seed, 0, i as u64 / 8).to_le_bytes()[i % 8])
        .collect()
}

fn open(agent: &TestAgent, u: &mut [u8]) -> Job {
    let mut job = agent.open(0, 10_000).unwrap();
    // SAFETY: the tests keep the memory, unmoved, as long as the job uses it.
    unsafe { job.protect("u", u.as_mut_ptr(), u.len()) }.unwrap();
    job
}

#[test]
fn routed_files_are_captured_and_come_back() {
    let agent = TestAgent::start(1);
    let mut u = memory(100, 2);
    let mut job = open(&agent, &mut u);
    agent.arm(0, 3).unwrap();
    let path = job.route(3, "out.h5").unwrap();
    std::fs::write(&path, memory(5_000, 8)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(job.route(3, "out.h5").unwrap(), path);
    assert_eq!(job.checkpoint(3).unwrap(), Outcome::Taken);
    let content = agent.content(0, 3);
    assert_eq!(
        (content[1].0.kind, &content[1].1),
        (RegionKind::File, &memory(5_000, 8))
    );

    agent.arm(0, 4).unwrap();
    job.route(4, "missing").unwrap();
    assert_eq!(job.checkpoint(4).unwrap_err().code(), Code::RouteMissing);
    assert_eq!(agent.failed(4), Code::RouteMissing);
    assert_eq!(job.route(4, "late").unwrap_err().code(), Code::VersionOrder);
    for name in ["", "a/b", "..", "u"] {
        assert_eq!(
            job.route(5, name).unwrap_err().code(),
            Code::InvalidArgument,
            "{name}"
        );
    }
    agent.arm(0, 5).unwrap();
    assert_eq!(
        job.checkpoint(5).unwrap(),
        Outcome::Taken,
        "files belong to their version"
    );
    assert_eq!(agent.content(0, 5).len(), 1);

    assert!(!path.exists(), "its version has passed");
    drop(job);
    agent.next_incarnation();
    agent.offer(0, 3, &content);
    let mut job = open(&agent, &mut u);
    assert_eq!(job.restore().unwrap(), Restored::Version(3));
    let path = job.route(3, "out.h5").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), memory(5_000, 8));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

#[test]
fn files_of_versions_that_have_passed_do_not_fill_the_storage() {
    let agent = TestAgent::start(1);
    let mut u = memory(100, 2);
    let mut job = open(&agent, &mut u);
    let skipped: Vec<_> = [(6, "a"), (6, "b"), (7, "a")]
        .map(|(version, name)| {
            let path = job.route(version, name).unwrap();
            std::fs::write(&path, b"x").unwrap();
            path
        })
        .into();
    assert_eq!(job.checkpoint(6).unwrap(), Outcome::Skipped);
    assert_eq!(job.checkpoint(7).unwrap(), Outcome::Skipped);
    job.route(8, "a").unwrap();
    assert!(skipped.iter().all(|path| !path.parent().unwrap().exists()));
    // The next version's file may be asked for before this one's checkpoint.
    agent.arm(0, 8).unwrap();
    assert!(job.wanted(8).unwrap());
    std::fs::write(job.route(8, "a").unwrap(), b"eight").unwrap();
    std::fs::write(job.route(9, "a").unwrap(), b"nine").unwrap();
    assert_eq!(job.checkpoint(8).unwrap(), Outcome::Taken);
    let kept = agent.content(0, 8);
    assert_eq!((kept.len(), kept[1].1.as_slice()), (2, &b"eight"[..]));
}

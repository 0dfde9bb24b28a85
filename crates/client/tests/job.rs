//! The Rust API against an agent over a real socket.

#![allow(clippy::unwrap_used)] // helpers of tests

mod support;

use outlive::{Code, Job, Options, Outcome, Region, Restored, Source, Survives, Waited};
use outlive_base::Version;
use outlive_capture::control::{ControlBlock, ControlWords};
use outlive_capture::ipc::ToAgent;
use std::time::{Duration, Instant};
use support::TestAgent;

const TIMEOUT_MS: u64 = 10_000;

/// Memory that stays where it is.
fn memory(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes)
        .map(|i| outlive_base::rng::draw(seed, 0, i as u64 / 8).to_le_bytes()[i % 8])
        .collect()
}

fn protect(job: &mut Job, name: &str, data: &mut [u8]) {
    // SAFETY: the tests keep the vectors, unmoved, as long as the job uses them.
    unsafe { job.protect(name, data.as_mut_ptr(), data.len()) }.unwrap();
}

fn open(agent: &TestAgent) -> Job {
    agent.open(0, TIMEOUT_MS).unwrap()
}

#[test]
fn skipped_taken_and_restored() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    let (mut u, mut empty) = (memory(1_000_003, 1), Vec::new());
    protect(&mut job, "u", &mut u);
    protect(&mut job, "empty", &mut empty);
    assert_eq!(job.restore().unwrap(), Restored::Fresh);
    assert_eq!(job.checkpoint(0).unwrap(), Outcome::Skipped);
    for version in [1, 5, 9, 10] {
        agent.arm(0, version).unwrap();
        u[7] = version as u8;
        assert_eq!(
            job.checkpoint(version).unwrap(),
            Outcome::Taken,
            "{:?}",
            job.last_error()
        );
        let content = agent.content(0, version);
        assert_eq!(content[0], (Region::memory("u", u.len() as u64), u.clone()));
        assert_eq!(content[1], (Region::memory("empty", 0), vec![]));
        assert_eq!(
            job.wait(version, Survives::Process, None).unwrap(),
            Waited::Committed
        );
    }
    // Both slots are mapped now: no more requests for memory.
    assert_eq!(agent.count(|m| matches!(m, ToAgent::Slab { .. })), 2);
    let status = job.status();
    assert_eq!(
        (status.taken, status.failed, status.version_taken),
        (4, 0, Some(10))
    );
    assert_eq!((status.regions, status.bytes), (2, 1_000_003));
    assert_eq!(status.version_surviving, [Some(10), None, None, None, None]);
    assert!(status.is_protected && status.blocked_ns > 0 && status.incarnation == 1);
    let content = agent.content(0, 10);
    let wanted = u.clone();
    drop(job);

    agent.next_incarnation();
    agent.offer(0, 10, &content);
    let mut job = open(&agent);
    assert_eq!(job.query("u").unwrap(), Some(1_000_003));
    assert_eq!(job.query("v").unwrap_err().code(), Code::RegionMissing);
    let mut u = vec![0u8; 1_000_003];
    protect(&mut job, "u", &mut u);
    protect(&mut job, "empty", &mut empty);
    assert_eq!(job.restore().unwrap(), Restored::Version(10));
    assert_eq!(u, wanted);
    assert_eq!(job.status().version_restored, Some(10));
    agent.wait_for("RESTORED", |m| {
        matches!(m, ToAgent::Restored { code: None, .. })
    });
    assert_eq!(job.checkpoint(9).unwrap_err().code(), Code::VersionOrder);
    assert_eq!(
        job.checkpoint(10).unwrap(),
        Outcome::Skipped,
        "go on from the version itself"
    );
    job.close().unwrap();
    agent.wait_for("CLOSE", |m| matches!(m, ToAgent::Close));
}

#[test]
fn a_restore_changes_all_or_nothing() {
    let agent = TestAgent::start(1);
    let content: Vec<(Region, Vec<u8>)> = [("a", 10), ("b", 5000)]
        .map(|(n, b)| (Region::memory(n, b), memory(b as usize, b)))
        .into();
    agent.offer(0, 3, &content);
    let mut job = open(&agent);
    let (mut a, mut b, mut c) = (vec![0u8; 10], vec![0u8; 5000], vec![0u8; 1]);
    let refused = |job: &mut Job, code: Code, name: &str| {
        let error = job.restore().unwrap_err();
        assert_eq!(error.code(), code);
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(job.last_error(), Some(&error));
    };
    protect(&mut job, "a", &mut a);
    refused(&mut job, Code::RegionUnclaimed, "'b'");
    protect(&mut job, "b", &mut b[..4999]);
    refused(&mut job, Code::RegionSize, "'b'");
    protect(&mut job, "b", &mut b);
    protect(&mut job, "c", &mut c);
    refused(&mut job, Code::RegionMissing, "'c'");
    assert!(a.iter().chain(&b).all(|&byte| byte == 0), "nothing changed");
    job.unprotect("c").unwrap();
    assert_eq!(job.unprotect("c").unwrap_err().code(), Code::RegionMissing);
    assert_eq!(job.restore().unwrap(), Restored::Version(3));
    assert_eq!((&a, &b), (&content[0].1, &content[1].1));
}

#[test]
fn a_slab_of_another_rank_count_version_or_job_is_refused() {
    let agent = TestAgent::start(2);
    let content = [(Region::memory("a", 1), vec![1])];
    type Change = fn(&mut outlive_capture::slab::SlabId);
    let changes: [(Change, Code); 3] = [
        (|id| id.ranks = 3, Code::RankCount),
        (|id| id.rank.0 = 1, Code::Corrupt),
        (|id| id.incarnation.0 = 9, Code::Corrupt),
    ];
    for (change, code) in changes {
        agent.offer_with(0, 3, &content, change);
        let mut job = open(&agent);
        let mut a = [0u8];
        protect(&mut job, "a", &mut a);
        assert_eq!(job.restore().unwrap_err().code(), code);
        assert_eq!(a, [0]);
    }
    let wrong = Options {
        rank: Some(0),
        ranks: Some(5),
        ..Options::default()
    };
    let environment = agent.environment(0);
    let error = Job::open_with(&wrong, &|name| {
        environment
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.clone())
    });
    assert_eq!(error.unwrap_err().code(), Code::RankCount);
}

#[test]
fn regions_may_grow_shrink_move_come_and_go() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut random = outlive_base::rng::Sequence::new(outlive_base::seed!(), 0);
    let mut held: std::collections::BTreeMap<String, Vec<u8>> = Default::default();
    for version in 0..30 {
        for _ in 0..3 {
            let name = format!("r{}", random.below(6));
            if random.chance(200_000) && held.remove(&name).is_some() {
                job.unprotect(&name).unwrap();
            } else {
                let mut fresh = memory(random.below(300_000) as usize, random.u64());
                protect(&mut job, &name, &mut fresh);
                held.insert(name, fresh);
            }
        }
        agent.arm(0, version).unwrap();
        assert_eq!(job.checkpoint(version).unwrap(), Outcome::Taken);
        let found = agent.content(0, version);
        assert_eq!(found.len(), held.len());
        assert!(
            found
                .iter()
                .all(|(region, bytes)| held[&region.name] == *bytes)
        );
    }
}

#[test]
fn ten_thousand_regions() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut all = memory(70_000, 9);
    for (number, piece) in all.chunks_mut(7).enumerate() {
        protect(&mut job, &format!("piece/{number}"), piece);
    }
    assert_eq!(job.status().regions, 10_000);
    agent.arm(0, 1).unwrap();
    assert_eq!(job.checkpoint(1).unwrap(), Outcome::Taken);
    let content = agent.content(0, 1);
    assert!(
        content
            .iter()
            .map(|(_, bytes)| bytes.as_slice())
            .eq(all.chunks(7))
    );
    agent.offer(0, 1, &content);
    drop(job);
    agent.next_incarnation();
    let mut job = open(&agent);
    let mut again = vec![0u8; 70_000];
    for (number, piece) in again.chunks_mut(7).enumerate() {
        protect(&mut job, &format!("piece/{number}"), piece);
    }
    assert_eq!(job.restore().unwrap(), Restored::Version(1));
    assert!(again == all);
}

#[test]
fn a_slab_that_is_too_small_is_exchanged() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut u = memory(100_000, 2);
    protect(&mut job, "u", &mut u);
    agent.arm_with(0, 4, 8192).unwrap();
    assert_eq!(job.checkpoint(4).unwrap(), Outcome::Taken);
    assert_eq!(agent.content(0, 4)[0].1, u);
    let asked = agent.wait_for("SLAB", |m| matches!(m, ToAgent::Slab { .. }));
    assert!(matches!(asked, ToAgent::Slab { bytes, .. } if bytes == 4096 + 4096 + 102_400));
}

#[test]
fn refused_memory_fails_the_capture_and_the_program_goes_on() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut u = memory(10_000, 2);
    protect(&mut job, "u", &mut u);
    agent.state().refuse_memory = true;
    agent.arm(0, 4).unwrap();
    assert_eq!(job.checkpoint(4).unwrap_err().code(), Code::MemoryBudget);
    assert_eq!(agent.failed(4), Code::MemoryBudget);
    assert_eq!(agent.control(0, |control| control.entered()), None);
    assert_eq!(
        job.checkpoint_now(5).unwrap_err().code(),
        Code::MemoryBudget
    );
    agent.state().refuse_memory = false;
    agent.arm(0, 6).unwrap();
    assert_eq!(job.checkpoint(6).unwrap(), Outcome::Taken);
    assert_eq!((job.status().taken, job.status().failed), (1, 2));
}

#[test]
fn an_agent_that_dies_comes_back_to_the_same_control_block() {
    let mut agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut u = memory(10_000, 2);
    protect(&mut job, "u", &mut u);
    for version in [1, 2] {
        agent.arm(0, version).unwrap();
        assert_eq!(job.checkpoint(version).unwrap(), Outcome::Taken);
        agent.captured(version);
    }
    agent.die();
    assert_eq!(
        job.checkpoint(3).unwrap(),
        Outcome::Skipped,
        "nobody is needed to skip"
    );
    // Armed before its death, and the slab is mapped: the capture needs no agent.
    agent.arm(0, 4).unwrap();
    let back = std::thread::scope(|scope| {
        let back = scope.spawn(|| {
            let (begun, offered) = (Instant::now(), ControlBlock::called);
            while agent.control(0, offered) <= 4 {
                assert!(begun.elapsed() < support::PATIENCE, "not offered");
                std::thread::yield_now();
            }
            agent.revive();
            agent
        });
        assert_eq!(job.checkpoint(4).unwrap(), Outcome::Taken);
        back.join().unwrap()
    });
    let agent = back;
    assert_eq!(agent.content(0, 4)[0].1, u, "told after the new greeting");
    assert_eq!(agent.state().connections, 2);
    agent.arm(0, 5).unwrap();
    assert_eq!(job.checkpoint(5).unwrap(), Outcome::Taken);
    agent.captured(5);
}

/// The agent that answered may be gone before its launcher has heard; the next waits for the same
/// version.
#[test]
fn a_rank_asks_again_at_the_version_of_an_injection_that_still_waits() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut u = memory(100, 2);
    protect(&mut job, "u", &mut u);
    let asked = || agent.count(|message| matches!(message, ToAgent::Inject { .. }));
    let waits = |version| agent.control(0, |control| control.set_inject(version));
    assert_eq!(job.checkpoint(1).unwrap(), Outcome::Skipped);
    for (version, times) in [(2, 1), (3, 2)] {
        waits(Some(Version(2)));
        assert_eq!(job.checkpoint(version).unwrap(), Outcome::Skipped);
        assert_eq!(asked(), times);
    }
    assert_eq!(job.checkpoint(4).unwrap(), Outcome::Skipped);
    assert_eq!(asked(), 2);
}

#[test]
fn a_control_block_that_was_lost_is_replaced() {
    let mut agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut u = memory(10_000, 2);
    protect(&mut job, "u", &mut u);
    assert_eq!(job.checkpoint(7).unwrap(), Outcome::Skipped);
    agent.die();
    agent.lose_control(0);
    agent.revive();
    job.route(8, "any").unwrap();
    assert_eq!(
        agent
            .control(0, |control| (control.called(), control.bytes_needed()))
            .0,
        8
    );
    assert!(agent.arm(0, 7).is_err(), "already offered");
    agent.arm(0, 9).unwrap();
    assert_eq!(job.checkpoint(9).unwrap(), Outcome::Taken);
    agent.captured(9);
}

#[test]
fn an_agent_of_another_start_is_refused() {
    let mut agent = TestAgent::start(1);
    let mut job = agent.open(0, 300).unwrap();
    agent.die();
    agent.next_incarnation();
    agent.revive();
    assert_eq!(
        job.route(1, "any").unwrap_err().code(),
        Code::AgentUnreachable
    );
}

#[test]
fn an_agent_that_never_answers_costs_a_bounded_time() {
    let mut agent = TestAgent::start(1);
    let mut job = agent.open(0, 200).unwrap();
    let mut u = memory(10_000, 2);
    protect(&mut job, "u", &mut u);
    agent
        .state()
        .mute
        .extend(["slab", "force", "wait", "route", "close", "hello"]);
    agent.arm(0, 1).unwrap();
    let bounded = |job: &mut Job, code: Code, call: &dyn Fn(&mut Job) -> outlive::Error| {
        let start = Instant::now();
        let error = call(job);
        let took = start.elapsed();
        assert_eq!(error.code(), code, "{error}");
        assert!(
            took >= Duration::from_millis(199) && took < Duration::from_secs(5),
            "{took:?}"
        );
        assert!(error.to_string().contains("timeout_ms"), "{error}");
    };
    bounded(&mut job, Code::AgentTimeout, &|job| {
        job.checkpoint(1).unwrap_err()
    });
    bounded(&mut job, Code::AgentTimeout, &|job| {
        job.checkpoint_now(2).unwrap_err()
    });
    bounded(&mut job, Code::AgentTimeout, &|job| {
        job.route(3, "x").unwrap_err()
    });
    bounded(&mut job, Code::TimedOut, &|job| {
        job.wait(4, Survives::NodeCrash, None).unwrap_err()
    });
    let error = agent.open(0, 200).unwrap_err();
    assert_eq!(error.code(), Code::AgentUnreachable);
    agent.die();
    bounded(&mut job, Code::AgentUnreachable, &|job| {
        job.route(3, "x").unwrap_err()
    });
    let start = Instant::now();
    assert!(job.close().is_err());
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn versions_rise() {
    let agent = TestAgent::start(1);
    for mut job in [
        open(&agent),
        Job::open_with(&Options::default(), &|_| None).unwrap(),
    ] {
        assert_eq!(job.checkpoint(0).unwrap(), Outcome::Skipped);
        assert_eq!(job.checkpoint(0).unwrap_err().code(), Code::VersionOrder);
        assert_eq!(job.checkpoint(5).unwrap(), Outcome::Skipped);
        assert_eq!(job.checkpoint(4).unwrap_err().code(), Code::VersionOrder);
        assert_eq!(
            job.checkpoint_now(5).unwrap_err().code(),
            Code::VersionOrder
        );
        for version in [u64::MAX, u64::MAX - 1] {
            assert_eq!(
                job.checkpoint(version).unwrap_err().code(),
                Code::InvalidArgument
            );
        }
        assert_eq!(job.checkpoint(u64::MAX - 2).unwrap(), Outcome::Skipped);
        assert_eq!(
            job.checkpoint(u64::MAX - 2).unwrap_err().code(),
            Code::VersionOrder
        );
    }
}

#[test]
fn the_first_version_past_an_armed_one_is_captured_in_its_place() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut u = memory(10_000, 2);
    protect(&mut job, "u", &mut u);
    agent.arm(0, 500).unwrap();
    for (version, outcome) in [
        (400, Outcome::Skipped),
        (600, Outcome::Taken),
        (800, Outcome::Skipped),
        (1000, Outcome::Skipped),
    ] {
        assert_eq!(job.checkpoint(version).unwrap(), outcome, "{version}");
    }
    let captured = |m: &ToAgent| matches!(m, ToAgent::Captured { version, .. } if version.0 == 600);
    agent.wait_for("CAPTURED", captured);
    job.close().unwrap();
    assert_eq!(agent.count(|m| matches!(m, ToAgent::Captured { .. })), 1);
}

#[test]
fn wanted_and_checkpoint_agree() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut u = memory(10_000, 2);
    protect(&mut job, "u", &mut u);
    assert!(!job.wanted(1).unwrap());
    assert!(
        agent.arm(0, 1).is_err(),
        "the answer stands: too late to arm"
    );
    assert!(!job.wanted(1).unwrap());
    assert_eq!(job.checkpoint(1).unwrap(), Outcome::Skipped);
    assert_eq!(job.checkpoint(1).unwrap_err().code(), Code::VersionOrder);
    agent.arm(0, 2).unwrap();
    assert!(job.wanted(2).unwrap() && job.wanted(2).unwrap());
    assert_eq!(
        agent.disarm(0),
        Some(Version(2)),
        "the agent sees that the rank is inside"
    );
    assert_eq!(
        job.checkpoint(2).unwrap(),
        Outcome::Taken,
        "the answer stands"
    );
    agent.captured(2);
    assert_eq!(agent.control(0, |control| control.entered()), None);
    assert!(!job.wanted(3).unwrap());
    assert_eq!(
        job.checkpoint(4).unwrap(),
        Outcome::Skipped,
        "3 was not offered after all"
    );
    for late in [
        job.checkpoint(3).unwrap_err(),
        job.checkpoint_now(3).unwrap_err(),
        job.wanted(3).unwrap_err(),
    ] {
        assert_eq!(late.code(), Code::VersionOrder, "4 has passed it");
    }
    assert!(!job.wanted(5).unwrap());
    agent.arm(0, 6).unwrap();
    assert!(job.wanted(6).unwrap());
    assert_eq!(job.checkpoint(7).unwrap(), Outcome::Skipped);
    assert_eq!(agent.failed(6), Code::VersionOrder);
    assert_eq!(agent.control(0, |control| control.entered()), None);
    assert_eq!(job.wanted(6).unwrap_err().code(), Code::VersionOrder);
    agent.arm(0, 8).unwrap();
    assert!(job.wanted(8).unwrap());
    job.close().unwrap();
    assert_eq!(agent.failed(8), Code::NotOpen);
}

#[test]
fn forced_checkpoints_are_taken_unarmed() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut u = memory(10_000, 2);
    protect(&mut job, "u", &mut u);
    assert_eq!(job.checkpoint_now(3).unwrap(), Outcome::Taken);
    assert!(matches!(
        agent.captured(3),
        ToAgent::Captured { forced: true, .. }
    ));
    assert_eq!(agent.content(0, 3)[0].1, u);
    assert!(!job.wanted(4).unwrap());
    assert_eq!(
        job.checkpoint_now(4).unwrap(),
        Outcome::Taken,
        "forced after a no"
    );
    assert_eq!(job.checkpoint(4).unwrap_err().code(), Code::VersionOrder);
}

#[test]
fn state_is_walked_only_when_it_is_wanted() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut u = memory(1_000, 2);
    protect(&mut job, "u", &mut u);
    let state = memory(50_000, 3);
    let source = |name: &str| Source {
        region: Region::memory(name, state.len() as u64),
        data: state.as_ptr(),
    };
    // SAFETY: never called.
    let skipped = unsafe { job.capture_with(1, || panic!("not wanted")) };
    assert_eq!(skipped.unwrap(), Outcome::Skipped);
    agent.arm(0, 2).unwrap();
    // SAFETY: `state` lives on.
    let taken = unsafe { job.capture_with(2, || Ok(vec![source("state")])) };
    assert_eq!(taken.unwrap(), Outcome::Taken);
    let content = agent.content(0, 2);
    assert_eq!((&content[0].1, &content[1].1), (&u, &state));
    agent.arm(0, 3).unwrap();
    // SAFETY: `state` lives on.
    let twice = unsafe { job.capture_with(3, || Ok(vec![source("u")])) };
    assert_eq!(twice.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(agent.failed(3), Code::InvalidArgument);
    agent.arm(0, 4).unwrap();
    let refuse = || Err(outlive::Error::internal("cannot be stored"));
    // SAFETY: no sources.
    assert!(unsafe { job.capture_with(4, refuse) }.is_err());
    agent.failed(4);
    agent.arm(0, 5).unwrap();
    // SAFETY: no sources.
    let panicked = unsafe { job.capture_with(5, || std::panic::resume_unwind(Box::new(()))) };
    assert_eq!(panicked.unwrap_err().code(), Code::Internal);
    assert_eq!(agent.failed(5), Code::Internal);
    assert_eq!(agent.control(0, |control| control.entered()), None);

    agent.next_incarnation();
    agent.offer(0, 2, &content);
    drop(job);
    let mut job = open(&agent);
    let (version, regions) = job.restored_regions().unwrap().unwrap();
    assert_eq!((version, regions.len()), (2, 2));
    assert_eq!(
        (regions[1].region.name.as_str(), regions[1].data),
        ("state", state.as_slice())
    );
    job.finish_restore(Err(Code::RegionSize)).unwrap();
    agent.wait_for("RESTORED", |m| {
        matches!(m, ToAgent::Restored { code: Some(_), .. })
    });
    let (mut a, mut b) = (vec![0; 1_000], vec![0; 50_000]);
    let wrong = job.restore_slices(&mut [("u", &mut a)]).unwrap_err();
    assert_eq!(wrong.code(), Code::RegionUnclaimed);
    let mut c = [0];
    let wrong = job.restore_slices(&mut [("u", &mut a), ("state", &mut b), ("c", &mut c)]);
    assert_eq!(wrong.unwrap_err().code(), Code::RegionMissing);
    assert!(a.iter().all(|&byte| byte == 0));
    let restored = job
        .restore_slices(&mut [("u", &mut a), ("state", &mut b)])
        .unwrap();
    assert_eq!((restored, &a, &b), (Restored::Version(2), &u, &state));
}

#[test]
fn an_injected_failure_asks_and_survives_if_it_is_another_that_dies() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    agent.control(0, |control| control.set_inject(Some(Version(3))));
    for version in 0..6 {
        assert_eq!(job.checkpoint(version).unwrap(), Outcome::Skipped);
        let asked = agent.count(|m| matches!(m, ToAgent::Inject { .. }));
        assert_eq!(
            asked,
            usize::from(version >= 3),
            "asked once, when it is reached"
        );
    }
}

#[test]
fn a_forked_child_is_not_the_rank() {
    let agent = TestAgent::start(1);
    let mut job = open(&agent);
    let mut u = memory(100, 2);
    protect(&mut job, "u", &mut u);
    assert_eq!(job.checkpoint(1).unwrap(), Outcome::Skipped);
    // SAFETY: the child only calls the library and leaves by _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let not_open = |code: Code| code == Code::NotOpen;
        let good = not_open(job.checkpoint(9).unwrap_err().code())
            && not_open(job.checkpoint_now(9).unwrap_err().code())
            && not_open(job.wanted(9).unwrap_err().code())
            && not_open(job.restore().unwrap_err().code())
            && not_open(job.route(9, "x").unwrap_err().code())
            && not_open(job.wait(1, Survives::Process, None).unwrap_err().code())
            && not_open(job.close().unwrap_err().code());
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child's calls were refused");
    assert_eq!(agent.control(0, |control| control.called()), 2);
    agent.arm(0, 2).unwrap();
    assert_eq!(
        job.checkpoint(2).unwrap(),
        Outcome::Taken,
        "the parent goes on"
    );
}

#[test]
fn every_rank_has_its_own_block_and_slabs() {
    let agent = TestAgent::start(4);
    let mut jobs: Vec<Job> = (0..4).map(|r| agent.open(r, TIMEOUT_MS).unwrap()).collect();
    let mut data: Vec<Vec<u8>> = (0..4).map(|r| memory(1_000 * (r + 1), r as u64)).collect();
    for (job, bytes) in jobs.iter_mut().zip(&mut data) {
        protect(job, "u", bytes);
    }
    for rank in 0..4 {
        agent.arm(rank, 1).unwrap();
    }
    std::thread::scope(|scope| {
        for job in &mut jobs {
            scope.spawn(|| assert_eq!(job.checkpoint(1).unwrap(), Outcome::Taken));
        }
    });
    for rank in 0..4 {
        assert_eq!(agent.content(rank, 1)[0].1, data[rank as usize]);
    }
}

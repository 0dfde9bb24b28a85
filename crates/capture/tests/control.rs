//! The control block between two mappings, as between two processes.
#![allow(clippy::unwrap_used)] // helpers of tests

use outlive_base::{Incarnation, Level, Levels, NodeId, Rank, Survives, Version};
use outlive_capture::control::{CONTROL_ABI, CONTROL_BYTES, ControlBlock, ControlWords, Side};
use outlive_capture::{ShareError, slab::Slab};
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, SealFlags};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

fn pair() -> (ControlBlock, ControlBlock) {
    let (agent, fd) = ControlBlock::create(Rank(3), 8, NodeId(1), Incarnation(2)).unwrap();
    let rank = ControlBlock::map(fd.as_fd(), Side::Rank).unwrap();
    (agent, rank)
}

#[test]
fn words_written_on_one_side_are_read_on_the_other() {
    let (agent, rank) = pair();
    let identity = rank.identity();
    assert_eq!((identity.rank, identity.ranks), (Rank(3), 8));
    assert_eq!(
        (identity.node, identity.incarnation),
        (NodeId(1), Incarnation(2))
    );
    assert_eq!(
        (rank.attention(), rank.armed(), rank.inject()),
        (u64::MAX, None, None)
    );
    assert_eq!(
        (rank.committed(Level::SHARED), rank.aborted()),
        (None, None)
    );
    assert_eq!(rank.levels(), Levels::NONE);
    let xor = Level::xor(4).unwrap();
    agent.set_levels(Levels::of(&[Level::SHARED, xor, Level::MEMORY]));
    assert_eq!(rank.offer(4), u64::MAX);
    assert_eq!(agent.called(), 5);
    agent.try_arm(Version(5), 1, 7, 8192).unwrap();
    assert_eq!(rank.offer(5), 5);
    let armed = rank.enter(Version(5), None).unwrap();
    assert_eq!((armed.version, armed.slot), (Version(5), 1));
    assert_eq!((armed.generation, armed.capacity), (7, 8192));
    assert_eq!(agent.disarm(), Some(Version(5)), "the rank is inside");
    rank.leave();
    assert_eq!(agent.entered(), None);
    assert_eq!(rank.enter(Version(5), None), None, "disarmed");
    agent.arm(Version(7), 0, 8, 8192);
    assert_eq!(rank.enter(Version(6), None), None, "armed is a later one");
    let past = rank.enter(Version(9), Some(Version(5))).unwrap();
    assert_eq!(past.version, Version(7), "the first past it");
    rank.leave();
    let again = rank.enter(Version(10), Some(Version(9)));
    assert_eq!(again, None, "an arming is answered once");
    assert_eq!(agent.disarm(), None);
    assert_eq!(agent.entered(), None);
    let refused = agent.try_arm(Version(5), 0, 8, 8192).unwrap_err();
    assert_eq!((refused.called, refused.entered), (6, None));
    assert_eq!(rank.attention(), u64::MAX);
    agent.set_inject(Some(Version(9)));
    agent.arm(Version(12), 0, 9, 8192);
    assert_eq!(rank.attention(), 9, "the smaller of the two");
    agent.set_inject(None);
    assert_eq!(rank.attention(), 12);
    agent.set_committed(Level::DISK, Version(8));
    agent.set_committed(Level::MEMORY, Version(7));
    agent.set_committed(xor, Version(5));
    agent.set_aborted(Version(6));
    assert_eq!(rank.committed(xor), Some(Version(5)));
    assert_eq!(
        (rank.committed(Level::SHARED), rank.aborted()),
        (None, Some(Version(6)))
    );
    assert_eq!(rank.committed(Level::DISK), None, "no level of the job");
    let surviving = Survives::ALL.map(|what| rank.surviving(what).map(|version| version.0));
    assert_eq!(surviving, [Some(7), Some(5), Some(5), Some(5), None]);
    rank.set_bytes_needed(77);
    rank.count_taken(2, 99);
    assert_eq!(
        (agent.bytes_needed(), agent.taken(), agent.blocked_ns()),
        (77, 2, 99)
    );
}

#[test]
fn foreign_short_and_unsealed_files_are_refused() {
    let short = rustix::fs::memfd_create("short", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&short, 100).unwrap();
    let map = |fd: &rustix::fd::OwnedFd| ControlBlock::map(fd.as_fd(), Side::Rank).unwrap_err();
    assert!(matches!(map(&short), ShareError::NotSealed));
    rustix::fs::fcntl_add_seals(&short, SealFlags::SHRINK).unwrap();
    assert!(matches!(map(&short), ShareError::Size { found: 100, .. }));
    let zero = rustix::fs::memfd_create("zero", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&zero, CONTROL_BYTES as u64).unwrap();
    rustix::fs::fcntl_add_seals(&zero, SealFlags::SHRINK).unwrap();
    assert!(matches!(map(&zero), ShareError::Magic(_)));
    let (_slab, slab) = Slab::create(CONTROL_BYTES as u64).unwrap();
    assert!(matches!(map(&slab), ShareError::Magic(_)));
    let (_, block) = ControlBlock::create(Rank(0), 1, NodeId(0), Incarnation(1)).unwrap();
    rustix::io::pwrite(&block, &9u32.to_le_bytes(), 8).unwrap();
    assert!(matches!(map(&block), ShareError::Abi(9)));
    rustix::io::pwrite(&block, &CONTROL_ABI.to_le_bytes(), 8).unwrap();
    rustix::io::pwrite(&block, &5u32.to_le_bytes(), 12).unwrap();
    assert!(matches!(map(&block), ShareError::Field(_)), "rank 5 of 1");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(matches!(
        ControlBlock::map(file.as_fd(), Side::Rank).unwrap_err(),
        ShareError::NotSealed
    ));
    assert!(ControlBlock::create(Rank(1), 1, NodeId(0), Incarnation(1)).is_err());
}

/// Ends the other thread's loops, also if this one fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Both handshakes at full speed. The agent arms just ahead of the rank and at
/// times disarms; the rank offers every version. What must never happen: an armed
/// version that the agent believes to come and the rank passed by unseen; a slot
/// that is used while a capture into it still runs.
#[test]
fn never_neither_and_no_slot_is_used_while_it_is_filled() {
    const VERSIONS: u64 = 10_000_000;
    let (agent, rank) = pair();
    let stop = AtomicBool::new(false);
    // Who owns the only slot: 0 nobody, 1 the rank.
    let filling = AtomicU64::new(0);
    let captured = AtomicU64::new(0);
    let (mut armed, mut refused, mut inside) = (0u64, 0u64, 0u64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _stop = StopAtEnd(&stop);
            let mut answered = None;
            for version in 0..VERSIONS {
                if version < rank.offer(version) {
                    continue;
                }
                if rank.enter(Version(version), answered).is_none() {
                    continue;
                }
                answered = Some(Version(version));
                assert_eq!(filling.swap(1, SeqCst), 0, "slot reused while being filled");
                std::hint::spin_loop();
                assert_eq!(filling.swap(0, SeqCst), 1, "slot reused while being filled");
                captured.store(version + 1, SeqCst);
                rank.leave();
            }
        });
        let mut random = outlive_base::rng::Sequence::new(outlive_base::seed!(), 0);
        while !stop.load(SeqCst) {
            let target = agent.called() + random.below(4);
            match agent.try_arm(Version(target), 0, 0, 4096) {
                Ok(()) if random.chance(300_000) => {}
                Ok(()) => {
                    // Accepted: the rank must capture exactly this version.
                    armed += 1;
                    while agent.called() <= target && !stop.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                    if target < VERSIONS {
                        while captured.load(SeqCst) <= target && !stop.load(SeqCst) {
                            assert!(
                                agent.called() <= target + 1 || captured.load(SeqCst) > target,
                                "rank passed version {target} by unseen"
                            );
                            std::hint::spin_loop();
                        }
                    }
                }
                Err(_) => refused += 1,
            }
            // Disarmed, the slot is the agent's as soon as the rank is outside.
            if agent.disarm().is_some() {
                inside += 1;
                while agent.entered().is_some() && !stop.load(SeqCst) {
                    std::hint::spin_loop();
                }
            }
            assert_eq!(
                filling.swap(2, SeqCst),
                0,
                "the rank fills a slot that is not armed"
            );
            assert_eq!(
                filling.swap(0, SeqCst),
                2,
                "the rank fills a slot that is not armed"
            );
        }
    });
    assert!(
        armed > 0,
        "armed {armed}, refused {refused}, inside {inside}"
    );
}

/// The second handshake alone, without an offer before each entry: rank and agent
/// take turns on one slot as fast as they can. A wrong order fails at once; an
/// ordering that is only too weak is found in most runs, not in all.
#[test]
fn entering_and_disarming_exclude_each_other() {
    const TURNS: u64 = 600_000;
    const VERSION: Version = Version(7);
    let (agent, rank) = pair();
    let stop = AtomicBool::new(false);
    // Relaxed on purpose: a fence here would hide a missing one there.
    let owner = AtomicU64::new(0);
    let hold = |who: u64| {
        owner.store(who, Relaxed);
        for _ in 0..30 {
            std::hint::spin_loop();
            assert_eq!(owner.load(Relaxed), who, "two owners at once");
        }
        owner.store(0, Relaxed);
    };
    let mut random = outlive_base::rng::Sequence::new(outlive_base::seed!(), 0);
    let mut both = (0u64, 0u64);
    std::thread::scope(|scope| {
        let entries = scope.spawn(|| {
            let mut entries = 0u64;
            while !stop.load(Relaxed) {
                if rank.enter(VERSION, None).is_some() {
                    assert_eq!(owner.load(Relaxed), 0, "entered after a disarming");
                    hold(1);
                    rank.leave();
                    entries += 1;
                }
            }
            entries
        });
        for _ in 0..TURNS {
            agent.arm(VERSION, 0, 0, 4096);
            // Long enough, at times, for the rank to see it.
            for _ in 0..random.below(12) {
                std::hint::spin_loop();
            }
            if agent.disarm().is_some() {
                while agent.entered().is_some() && !entries.is_finished() {
                    std::hint::spin_loop();
                }
                both.1 += 1;
            }
            // A rank that tries in vain shows itself for a moment; it does no harm.
            assert_eq!(owner.load(Relaxed), 0, "used while the rank is inside");
            hold(2);
            if entries.is_finished() {
                break;
            }
        }
        stop.store(true, Relaxed);
        both.0 = entries.join().unwrap();
    });
    assert!(both.0 > 0 && both.1 > 0, "{both:?}: the two never met");
}

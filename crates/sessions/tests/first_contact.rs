//! Ranks meet when they first need each other: few in use cost little, whoever comes late or
//! calls at the same time is heard, and whoever does not come, or forgot, is an error.
#![allow(clippy::unwrap_used)] // a panic is how a test reports

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use outlive_base::{Code, Time};
use outlive_sessions::{ANY_SOURCE, ANY_TAG, Comm, Setup, Status};
use support::setups;

/// Joins alone; the others come when they like.
fn join(setup: Setup) -> Comm {
    Comm::join(setup).unwrap()
}

fn get(comm: &Comm, from: u32) -> (Status, Vec<u8>) {
    let mut out = [0; 64];
    let status = comm.recv(&mut out, from, ANY_TAG).unwrap();
    (status, out[..status.bytes].to_vec())
}

/// Two bytes from `from`, which are on their way.
fn get_soon(comm: &Comm, from: u32) -> [u8; 2] {
    let mut out = [0; 2];
    // SAFETY: `out` stays until the request is complete, or the test has failed.
    let request = unsafe { comm.irecv(out.as_mut_ptr(), 2, from, ANY_TAG) }.unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while comm.test(request).unwrap().is_none() {
        assert!(Instant::now() < end, "lost");
        thread::yield_now();
    }
    out
}

/// What this process has mapped, in bytes: windows count before they are used.
fn mapped() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn of_3000_ranks_those_that_talk_are_met_and_no_others() {
    const LISTED: u32 = 3000;
    let used = [0, 1500, 2999];
    let real = setups(3, |_| ());
    let mut addresses: Vec<SocketAddr> = (0..LISTED)
        .map(|rank| SocketAddr::from(([127, 9, (rank >> 8) as u8, rank as u8], 9)))
        .collect();
    for (setup, rank) in real.iter().zip(used) {
        addresses[rank as usize] = setup.options.addresses[setup.options.rank as usize];
    }
    let before = mapped();
    let place = |(mut setup, rank): (Setup, u32)| {
        setup.options.rank = rank;
        setup.options.addresses = addresses.clone();
        setup.options.session.window_bytes = 4 << 20;
        join(setup)
    };
    let ranks: Vec<Comm> = real.into_iter().zip(used).map(place).collect();
    assert!(ranks.iter().all(|comm| comm.size() == LISTED));
    assert!(ranks.iter().all(|comm| comm.peers() == 0));
    thread::scope(|scope| {
        let [first, middle, last] = &ranks[..] else {
            panic!("three");
        };
        scope.spawn(|| {
            last.send(b"up", 0, 1).unwrap();
            assert_eq!(get(last, 0).1, b"down");
        });
        scope.spawn(|| middle.send(b"and I", 0, 2).unwrap());
        // Neither was named, nor met, before it sent.
        let heard = [get(first, ANY_SOURCE), get(first, ANY_SOURCE)];
        assert!(
            heard
                .iter()
                .any(|(status, _)| (status.source, status.tag) == (1500, 2))
        );
        assert!(
            heard
                .iter()
                .any(|(status, _)| (status.source, status.tag) == (2999, 1))
        );
        first.send(b"down", 2999, 1).unwrap();
    });
    let met: Vec<usize> = ranks.iter().map(Comm::peers).collect();
    assert_eq!(met, [2, 1, 1]);
    // Windows for all would be 12 GB for each of the three; the tests beside this one, and the
    // stacks of their threads, are in it.
    let grown = mapped().saturating_sub(before);
    assert!(grown < 6 << 30, "{grown} bytes");
}

#[test]
fn opening_waits_for_all_and_meets_few() {
    const RANKS: usize = 20;
    let opened = AtomicUsize::new(0);
    thread::scope(|scope| {
        for setup in setups(RANKS as u32, |_| ()) {
            let opened = &opened;
            scope.spawn(move || {
                opened.fetch_add(1, Ordering::SeqCst);
                let comm = Comm::open(setup).unwrap();
                assert_eq!(opened.load(Ordering::SeqCst), RANKS, "it waits for all");
                // Five rounds of the barrier, in each one to tell and one to hear.
                assert!((5..=10).contains(&comm.peers()), "{}", comm.peers());
                comm.close().unwrap();
            });
        }
    });
}

#[test]
fn first_contact_from_both_sides_at_once_is_one_conversation() {
    // Bare connections have nothing to send again what went over the one that is given up.
    for (round, reliable) in (0..40u8).map(|round| (round, round % 2 == 0)) {
        let setups = setups(2, |setup| setup.options.reliable = reliable);
        let mut both: Vec<Comm> = setups.into_iter().map(join).collect();
        let (two, one) = (both.pop().unwrap(), both.pop().unwrap());
        let talk = |comm: &Comm, other: u32| {
            for number in 0..10 {
                comm.send(&[round, number], other, 0).unwrap();
            }
            for number in 0..10 {
                assert_eq!(
                    get_soon(comm, other),
                    [round, number],
                    "reliable: {reliable}"
                );
            }
            assert!(comm.totals().links <= 2, "{:?}", comm.totals());
        };
        thread::scope(|scope| {
            scope.spawn(|| talk(&two, 0));
            talk(&one, 1);
        });
    }
}

#[test]
fn whoever_comes_later_finds_what_was_sent_and_is_heard() {
    // The lower one is there first, and then the higher one; it sends, or it waits.
    for (me, sends) in [(0, true), (0, false), (1, true), (1, false)] {
        let other = 1 - me;
        let mut both = setups(2, |_| ());
        let late = both.remove(other as usize);
        let early = join(both.remove(0));
        thread::scope(|scope| {
            scope.spawn(move || {
                // Not to wait for anything: so that the other one is alone for a while.
                thread::sleep(Duration::from_millis(300));
                let late = join(late);
                if !sends {
                    late.send(b"here", me, 4).unwrap();
                }
                assert_eq!(get(&late, me).1, b"welcome");
                late.close().unwrap();
            });
            if !sends {
                assert_eq!(get(&early, other).1, b"here");
            }
            early.send(b"welcome", other, 5).unwrap();
            early.close().unwrap();
        });
    }
}

#[test]
fn who_sends_first_is_not_left_waiting_for_the_others_call() {
    // The lower rank would be called by the higher one, which has nothing to say.
    let mut both: Vec<Comm> = setups(2, |setup| {
        setup.options.session.backoff_max = Time::from_secs(20);
    })
    .into_iter()
    .map(join)
    .collect();
    let (two, one) = (both.pop().unwrap(), both.pop().unwrap());
    let begin = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| get(&two, ANY_SOURCE));
        one.send(b"now", 1, 0).unwrap();
    });
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_rank_that_never_comes_is_an_error_to_whoever_waits_for_it() {
    for lower in [true, false] {
        let mut both = setups(2, |setup| {
            setup.options.session.give_up = Time::from_secs(2);
        });
        let comm = join(both.remove(usize::from(!lower)));
        let other = 1 - comm.rank();
        let error = comm.recv(&mut [0; 8], other, ANY_TAG).unwrap_err();
        assert_eq!(error.code(), Code::NodeLost);
        // What is sent to it is an error by now, too, and does not wait again.
        assert_eq!(comm.send(b"", other, 0).unwrap_err().code(), Code::NodeLost);
    }
}

#[test]
fn a_rank_that_was_started_again_is_told_apart_at_once() {
    // Whoever calls after that, the lower or the higher rank, both learn of it.
    for again in 0..2usize {
        let all = setups(2, |_| ());
        let fresh = all[again].clone();
        let mut both: Vec<Comm> = all.into_iter().map(join).collect();
        thread::scope(|scope| {
            scope.spawn(|| both[1].barrier().unwrap());
            both[0].barrier().unwrap();
        });
        drop(both.remove(again));
        let (old, new) = (both.remove(0), join(fresh));
        let begin = Instant::now();
        let lost = |comm: &Comm| {
            let error = comm
                .recv(&mut [0; 8], 1 - comm.rank(), ANY_TAG)
                .unwrap_err();
            assert_eq!(error.code(), Code::RankLost, "{error}");
        };
        thread::scope(|scope| {
            scope.spawn(|| lost(&new));
            lost(&old);
        });
        assert!(begin.elapsed() < Duration::from_secs(20), "give_up is 60 s");
    }
}

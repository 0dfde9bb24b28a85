//! Ranks as threads of one process, over loopback: what arrives is what was
//! sent, whatever happens to the connections.
#![allow(clippy::unwrap_used)] // a panic is how a test reports

mod support;

use outlive_base::rng::Sequence;
use outlive_base::{Code, Time};
use outlive_network::JobKey;
use outlive_sessions::{ANY_SOURCE, ANY_TAG, Comm, ElementKind, Operator, Setup};
use support::setups;

fn run<T: Send>(setups: Vec<Setup>, body: impl Fn(&Comm) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = setups
            .into_iter()
            .map(|setup| {
                let body = &body;
                scope.spawn(move || {
                    let comm = Comm::open(setup).unwrap();
                    let result = body(&comm);
                    comm.close().unwrap();
                    result
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn block(from: u32, to: u32, round: u64, bytes: usize) -> Vec<u8> {
    let mut random = Sequence::new(u64::from(from) << 32 | u64::from(to), round);
    (0..bytes).map(|_| random.u64() as u8).collect()
}

/// Everybody to everybody in many sizes, with connections broken in between where a seed
/// says when.
fn exchange(comm: &Comm, rounds: u64, broken: Option<u64>) -> f64 {
    let (me, size) = (comm.rank(), comm.size());
    let mut random = broken.map(|seed| Sequence::new(seed, u64::from(me)));
    let mut sum = 0.0;
    for round in 0..rounds {
        let bytes = [0, 1, 100, 40_000, 700_000][round as usize % 5];
        if let Some(random) = &mut random
            && random.below(3) == 0
        {
            comm.break_link(random.below(u64::from(size)) as u32)
                .unwrap();
        }
        let right = (me + 1) % size;
        let left = (me + size - 1) % size;
        let mut got = vec![0; bytes];
        let sent = block(me, right, round, bytes);
        let status = comm.sendrecv(&sent, right, &mut got, left, 5).unwrap();
        assert_eq!((status.source, status.tag, status.bytes), (left, 5, bytes));
        assert_eq!(got, block(left, me, round, bytes), "round {round}");
        let mut value = f64::from(me + 1) / 3.0 + round as f64;
        let mut word = value.to_le_bytes();
        comm.allreduce(ElementKind::F64, Operator::Sum, &mut word)
            .unwrap();
        value = f64::from_le_bytes(word);
        sum += value;
        let part = bytes / 7;
        let parts: Vec<_> = (0..size as usize).map(|r| (r * part, part)).collect();
        let body: Vec<u8> = (0..size)
            .flat_map(|to| block(me, to, round + 1000, part))
            .collect();
        let mut out = vec![0; body.len()];
        comm.alltoallv(&body, &parts, &mut out, &parts).unwrap();
        for from in 0..size {
            let (at, length) = parts[from as usize];
            let expected = block(from, me, round + 1000, part);
            assert_eq!(out[at..at + length], expected);
        }
    }
    sum
}

#[test]
fn broken_connections_change_nothing() {
    let seed = outlive_base::seed!();
    let calm = run(setups(4, |_| ()), |comm| exchange(comm, 10, None));
    let broken = run(setups(4, |_| ()), |comm| {
        let sum = exchange(comm, 30, Some(seed));
        (sum, comm.totals())
    });
    assert!(
        broken.iter().any(|(_, totals)| totals.links > 6),
        "nothing broke"
    );
    assert!(broken.windows(2).all(|pair| pair[0].0 == pair[1].0));
    assert!(calm.windows(2).all(|pair| pair[0] == pair[1]));
    let plain = run(setups(4, |s| s.options.reliable = false), |comm| {
        exchange(comm, 10, None)
    });
    assert_eq!(calm, plain);
}

#[test]
fn an_odd_number_of_ranks_reduces_and_broadcasts_too() {
    let results = run(setups(3, |_| ()), |comm| {
        let mut numbers = [i64::from(comm.rank()), -5].map(i64::to_le_bytes).concat();
        comm.allreduce(ElementKind::I64, Operator::Max, &mut numbers)
            .unwrap();
        let mut one = (comm.rank() as i32 + 1).to_le_bytes();
        comm.reduce(ElementKind::I32, Operator::Sum, &mut one, 2)
            .unwrap();
        let mut all = *b"....";
        if comm.rank() == 1 {
            all = *b"here";
        }
        comm.broadcast(&mut all, 1).unwrap();
        (numbers, i32::from_le_bytes(one), all)
    });
    for (rank, (numbers, one, all)) in results.into_iter().enumerate() {
        assert_eq!(numbers, [2i64, -5].map(i64::to_le_bytes).concat());
        assert!(rank != 2 || one == 6);
        assert_eq!(&all, b"here");
    }
}

#[test]
fn tags_and_sources_are_matched_and_requests_end_once() {
    run(setups(2, |_| ()), |comm| {
        if comm.rank() == 0 {
            comm.send(b"second", 1, 2).unwrap();
            comm.send(b"first", 1, 1).unwrap();
            comm.send(b"too long", 1, 3).unwrap();
            comm.send(b"me", 0, 9).unwrap();
            let mut own = [0; 2];
            comm.recv(&mut own, 0, ANY_TAG).unwrap();
            assert_eq!(&own, b"me");
        } else {
            let mut out = [0; 6];
            // SAFETY: `out` stays until the wait below.
            let request = unsafe { comm.irecv(out.as_mut_ptr(), 6, ANY_SOURCE, 1) }.unwrap();
            let status = comm.wait(request).unwrap();
            assert_eq!((status.bytes, &out[..5]), (5, &b"first"[..]));
            assert_eq!(comm.wait(request).unwrap_err().code(), Code::NotOpen);
            comm.recv(&mut out, 0, 2).unwrap();
            assert_eq!(&out, b"second");
            let long = comm.recv(&mut out, 0, 3).unwrap_err();
            assert_eq!(long.code(), Code::InvalidArgument);
            let far = comm.send(b"", 2, 0).unwrap_err();
            assert_eq!(far.code(), Code::InvalidArgument);
        }
    });
}

#[test]
fn a_peer_that_never_comes_and_one_with_another_key_are_coded() {
    let mut both = setups(2, |setup| {
        setup.options.session.give_up = Time::from_secs(2);
    });
    let alone = Comm::open(both.swap_remove(0)).err().unwrap();
    assert_eq!(alone.code(), Code::NodeLost);

    let mut both = setups(2, |_| ());
    both[1].key = JobKey::from_bytes([8; 32]);
    both[0].options.session.give_up = Time::from_secs(3);
    let codes: Vec<_> = std::thread::scope(|scope| {
        let ranks: Vec<_> = both
            .into_iter()
            .map(|setup| scope.spawn(|| Comm::open(setup).err().unwrap().code()))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    // The caller learns of it; whoever is called keeps waiting for the right one.
    assert!(codes.contains(&Code::KeyMismatch), "{codes:?}");
}

#[test]
fn a_bare_connection_that_breaks_is_an_error() {
    let results = std::thread::scope(|scope| {
        let ranks: Vec<_> = setups(2, |s| s.options.reliable = false)
            .into_iter()
            .map(|setup| {
                scope.spawn(|| {
                    let comm = Comm::open(setup).unwrap();
                    comm.break_link(1 - comm.rank()).unwrap();
                    let error = (0..100).find_map(|_| comm.barrier().err());
                    error.map(|error| error.code())
                })
            })
            .collect();
        let codes: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        codes
    });
    assert_eq!(results, [Some(Code::Network); 2]);
}

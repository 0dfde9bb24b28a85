use super::*;
use crate::rail::frame::Content;
use std::net::{Ipv4Addr, SocketAddr};

const BOUND: Duration = Duration::from_secs(60);

fn two() -> (Ucx, Ucx) {
    let door = || {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = Listener::bind(any).expect("listens");
        Door::open(listener, Options::default()).expect("UCX")
    };
    let (one, two) = (door(), door());
    let cards = [one.card(), two.card()];
    let rail = |door, me| Ucx::new(door, me, &cards, [1; 32]).expect("a rail");
    (rail(one, 0), rail(two, 1))
}

fn frame(number: u32, bytes: usize) -> Frame {
    let key = Key {
        comm: 1,
        sequence: number,
        incarnation: 0,
        protocol: 1,
    };
    let body = Some(Content::new(vec![number as u8; bytes]));
    let msg = [0; 32];
    Frame { key, msg, body }
}

/// Turns both rails until `two` has heard the frame of this number; all that it hears.
fn until(one: &mut Ucx, two: &mut Ucx, last: u32) -> Vec<u32> {
    let mut got = Vec::new();
    let end = Instant::now() + BOUND;
    while got.last() != Some(&last) {
        assert!(Instant::now() < end, "heard {got:?}");
        assert!(one.receive().is_none());
        one.wait(one.now() + Time::from_ms(1));
        two.wait(two.now() + Time::from_ms(1));
        while let Some((from, frame)) = two.receive() {
            assert_eq!(from, 0);
            got.push(frame.key.sequence);
        }
        assert_eq!((one.news(), two.news()), (None, None), "both live");
    }
    got
}

#[test]
fn a_connection_that_breaks_between_the_living_is_made_anew() {
    let (mut one, mut two) = two();
    for number in 0..10 {
        one.send(1, frame(number, 100));
    }
    assert_eq!(until(&mut one, &mut two, 9), (0..10).collect::<Vec<_>>());
    for turn in 1..4 {
        let first = turn * 10;
        // Long ones, which UCX still has when it is told to give up; they come again.
        one.send(1, frame(first, 8 << 20));
        one.send(1, frame(first + 1, 8 << 20));
        one.broke(1);
        one.send(1, frame(first + 2, 10));
        let got = until(&mut one, &mut two, first + 2);
        assert_eq!(got, [first, first + 1, first + 2], "in order, and once");
    }
    let end = Instant::now() + BOUND;
    while !one.flushed() {
        two.wait(two.now() + Time::from_ms(1));
        assert!(Instant::now() < end, "all has left");
    }
    assert_eq!(one.queued, 0);
    assert!(one.flights.is_empty() && one.links.len() == 1);
}

#[test]
fn what_ucx_says_of_a_link_that_was_replaced_is_not_heard() {
    let (mut one, mut two) = two();
    one.send(1, frame(0, 100));
    until(&mut one, &mut two, 0);
    let old = one.outgoing[&1].token;
    one.broke(1);
    one.send(1, frame(1, 100));
    until(&mut one, &mut two, 1);
    let new = one.outgoing[&1].token;
    assert_ne!(old, new);
    let news = |broken| ffi::News {
        arrivals: Vec::new(),
        sent: Vec::new(),
        fetched: Vec::new(),
        broken: vec![broken],
    };
    one.take(news(old));
    assert!(one.outgoing[&1].link.is_some(), "the new one stays");
    one.take(news(new));
    assert!(one.outgoing[&1].link.is_none());
    one.send(1, frame(2, 100));
    assert_eq!(until(&mut one, &mut two, 2), [2]);
}

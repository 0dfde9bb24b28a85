//! An endpoint that its caller drives, beside one with a thread.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{Node, node, options};
use outlive_base::NodeId;
use outlive_network::{Driver, Endpoint, Event, Identity, JobKey};

const PATIENCE: Duration = Duration::from_secs(20);

fn driven(id: u32) -> (Endpoint, Driver) {
    let identity = Identity {
        peer: NodeId(id),
        epoch: 1,
    };
    Endpoint::bind_driven(identity, 1, JobKey::from_bytes([1; 32]), options()).unwrap()
}

fn next(driver: &mut Driver) -> Event {
    let event = driver.event_until(Instant::now() + PATIENCE);
    event.expect("an event in time")
}

/// The driven node 1 has called node 2, which lives on a thread.
fn beside() -> (Endpoint, Driver, Node) {
    let (a, mut driver) = driven(1);
    let b = node(2);
    a.set_address(NodeId(2), b.addr());
    a.post(NodeId(2), b"first").unwrap();
    assert!(matches!(next(&mut driver), Event::Up { .. }));
    b.up();
    assert_eq!(b.message(), b"first");
    (a, driver, b)
}

#[test]
fn messages_pass_in_order_and_leave_with_a_flush() {
    let (a, mut driver, b) = beside();
    for number in 0..100u8 {
        a.post(NodeId(2), &[number]).unwrap();
        b.send(1, &[number, number]);
    }
    driver.flush();
    for number in 0..100u8 {
        assert_eq!(b.message(), [number], "without a wait");
    }
    for number in 0..100u8 {
        match next(&mut driver) {
            Event::Message { from, bytes } => {
                assert_eq!((from.peer, bytes), (NodeId(2), vec![number; 2]));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(!driver.has_event());
}

#[test]
fn a_wait_ends_for_who_wakes_it_and_for_duties_of_its_own() {
    let (_a, mut driver) = driven(1);
    let (began, mut waits) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_millis(300) {
        driver.wait(Duration::from_millis(100));
        waits += 1;
    }
    assert!(waits <= 6, "it spins: {waits}");
    let waker = driver.waker();
    // What is told before the waking is there when the wait ends, each time.
    let (sender, receiver) = mpsc::channel();
    let teller = std::thread::spawn(move || {
        for number in 0..20_000u32 {
            sender.send(number).unwrap();
            waker.wake();
        }
    });
    let mut heard = 0;
    while heard < 20_000 {
        let began = Instant::now();
        driver.wait(PATIENCE);
        assert!(began.elapsed() < PATIENCE, "a waking was lost");
        while let Ok(number) = receiver.try_recv() {
            assert_eq!(number, heard);
            heard += 1;
        }
    }
    teller.join().unwrap();
}

#[test]
fn streams_are_opened_and_kept_while_their_endpoint_is_driven() {
    let (a, mut driver, b) = beside();
    let a = std::sync::Arc::new(a);
    let (addr, opener) = (a.local_addr(), b);
    opener.endpoint.set_address(NodeId(1), addr);
    let thread = std::thread::spawn(move || {
        let mut mine = opener.endpoint.open_stream(NodeId(1), b"wish").unwrap();
        mine.write_all(b"x").unwrap();
        (mine, opener)
    });
    let take = |driver: &mut Driver| loop {
        if let Event::Stream { header, stream, .. } = next(driver) {
            return (header, stream);
        }
    };
    let (header, mut theirs) = take(&mut driver);
    assert_eq!(header, b"wish");
    let (mut mine, _opener) = thread.join().unwrap();
    let mut got = [0];
    theirs.read_exact(&mut got).unwrap();
    a.park(theirs);
    mine.write_all(b"y").unwrap();
    let (header, mut theirs) = take(&mut driver);
    assert!(header.is_empty());
    theirs.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"y");
}

#[test]
fn what_is_forgotten_says_nothing_more() {
    let (a, mut driver, b) = beside();
    b.send(1, b"late");
    // It has arrived, and nobody has taken it.
    common::eventually("it is here", || {
        driver.wait(Duration::from_millis(1));
        driver.has_event()
    });
    a.forget(NodeId(2));
    driver.flush();
    assert!(!driver.has_event());
}

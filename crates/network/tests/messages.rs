//! Control messages between well-behaved peers.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::{PATIENCE, connect, eventually, node, node_with, options, pair};
use crossbeam_channel::bounded;
use outlive_base::{Code, NodeId};
use outlive_network::{DownReason, Endpoint, Event, Identity, JobKey, Options};

#[test]
fn a_round_trip_with_addresses_and_empty_messages() {
    let (a, b) = (node(1), node_with(u32::MAX, 1, 1, 1, options()));
    a.knows(&b);
    a.endpoint.send(NodeId::LAUNCHER, b"ping").unwrap();
    a.endpoint.send(NodeId::LAUNCHER, b"").unwrap();
    let Event::Up { identity, addr } = a.next() else {
        panic!("Up first")
    };
    assert_eq!((identity.peer, addr), (NodeId::LAUNCHER, b.addr()));
    let Event::Up { identity, addr } = b.next() else {
        panic!("Up first")
    };
    assert_eq!(
        (identity.peer, addr),
        (NodeId(1), a.addr()),
        "the announced port"
    );
    assert_eq!(b.message(), b"ping");
    assert_eq!(b.message(), b"");
    // The launcher never set an address: it answers on the same connection.
    b.endpoint.send(NodeId(1), b"pong").unwrap();
    assert_eq!(a.message(), b"pong");
}

#[test]
fn ten_thousand_messages_arrive_in_order_both_ways() {
    let (a, b) = pair();
    let text = |n: u32| format!("{n}-{}", "x".repeat(n as usize % 97)).into_bytes();
    std::thread::scope(|scope| {
        for (from, to) in [(&a, 2), (&b, 1)] {
            scope.spawn(move || (0..10_000).for_each(|n| from.send(to, &text(n))));
        }
        for node in [&a, &b] {
            for n in 0..10_000 {
                assert_eq!(node.message(), text(n));
            }
        }
    });
}

#[test]
fn the_largest_message_passes_and_one_byte_more_is_refused() {
    let (a, b) = pair();
    let big: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
    for _ in 0..3 {
        a.send(2, &big);
        assert_eq!(b.message(), big);
    }
    let error = a
        .endpoint
        .send(NodeId(2), &vec![0; (1 << 20) + 1])
        .unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(
        a.endpoint.send(NodeId(1), b"self").unwrap_err().code(),
        Code::InvalidArgument
    );
    let unknown = a.endpoint.send(NodeId(9), b"x").unwrap_err();
    assert_eq!(unknown.code(), Code::AgentUnreachable);
}

#[test]
fn a_peer_with_a_larger_bound_cannot_push_a_message_above_ours() {
    let a = node_with(
        1,
        1,
        1,
        1,
        Options {
            message_bytes_max: 2000,
            ..options()
        },
    );
    let b = node_with(
        2,
        1,
        1,
        1,
        Options {
            message_bytes_max: 1000,
            ..options()
        },
    );
    connect(&a, &b);
    a.endpoint.send(NodeId(2), &[0; 1001]).unwrap();
    assert_eq!(b.down().1, DownReason::Protocol);
}

#[test]
fn both_calling_at_once_end_with_one_connection_and_lose_nothing() {
    for _ in 0..30 {
        let (a, b) = (node(1), node(2));
        a.knows(&b);
        b.knows(&a);
        std::thread::scope(|scope| {
            scope.spawn(|| a.endpoint.send(NodeId(2), b"from a").unwrap());
            scope.spawn(|| b.endpoint.send(NodeId(1), b"from b").unwrap());
        });
        a.up();
        b.up();
        assert_eq!(a.message(), b"from b");
        assert_eq!(b.message(), b"from a");
        a.send(2, b"still");
        assert_eq!(b.message(), b"still");
    }
}

#[test]
fn a_peer_that_ends_is_down_within_milliseconds_and_comes_back() {
    let (a, b) = pair();
    let addr = b.addr();
    let before = Instant::now();
    drop(b);
    let (peer, reason) = a.down();
    let took = before.elapsed();
    assert_eq!((peer.peer, reason), (NodeId(2), DownReason::Closed));
    assert!(
        took < Duration::from_secs(1),
        "{took:?}; usually below 5 ms"
    );
    // Calls in vain are told once.
    assert_eq!(a.refused().code(), Code::AgentUnreachable);
    let b = node_with(
        2,
        2,
        1,
        1,
        Options {
            bind: addr,
            ..options()
        },
    );
    assert_eq!(a.up().epoch, 2);
    assert_eq!(b.up().peer, NodeId(1));
}

#[test]
fn a_newer_epoch_replaces_and_an_older_one_is_refused() {
    let (a, old) = pair();
    a.endpoint.send(NodeId(2), b"to the old one").unwrap();
    assert_eq!(old.message(), b"to the old one");
    let new = node_with(2, 7, 1, 1, options());
    new.knows(&a);
    new.endpoint.send(NodeId(1), b"hello").unwrap();
    assert_eq!(
        a.down(),
        (
            Identity {
                peer: NodeId(2),
                epoch: 1
            },
            DownReason::Replaced
        )
    );
    assert_eq!(a.up().epoch, 7);
    assert_eq!(a.message(), b"hello");
    assert_eq!(new.up().peer, NodeId(1));
    assert_eq!(old.down().0.peer, NodeId(1));
    // The old life calls again by itself, and is told why it may not.
    old.knows(&a);
    old.send(1, b"am I not node 2?");
    let error = old.refused();
    assert!(error.reason().contains("newer epoch"), "{error}");
    a.send(2, b"to the new one");
    assert_eq!(new.message(), b"to the new one");
}

#[test]
fn a_forgotten_peer_is_refused_until_its_address_is_set_again() {
    let (a, b) = pair();
    a.endpoint.forget(NodeId(2));
    let (peer, _) = b.down();
    assert_eq!(peer.peer, NodeId(1));
    b.knows(&a);
    b.send(1, b"let me in");
    assert!(b.refused().reason().contains("newer epoch"));
    assert!(a.events.is_empty(), "nothing is told of a forgotten peer");
    assert_eq!(
        a.endpoint.send(NodeId(2), b"x").unwrap_err().code(),
        Code::AgentUnreachable
    );
    a.knows(&b);
    a.send(2, b"welcome back");
    assert_eq!(a.up().peer, NodeId(2));
    assert_eq!(a.message(), b"let me in");
}

#[test]
fn the_queue_is_bounded_and_never_blocks() {
    let a = node_with(
        1,
        1,
        1,
        1,
        Options {
            queue_messages_max: 10,
            queue_bytes_max: 5000,
            ..options()
        },
    );
    // Nobody listens: a port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    a.endpoint.set_address(NodeId(2), free);
    for _ in 0..10 {
        a.endpoint.send(NodeId(2), b"x").unwrap();
    }
    let error = a.endpoint.send(NodeId(2), b"x").unwrap_err();
    assert!(error.reason().contains("queue_messages_max"), "{error}");
    assert_eq!(a.endpoint.queued(NodeId(2)), 10);
    a.endpoint.set_address(NodeId(3), free);
    a.endpoint.send(NodeId(3), &[0; 4000]).unwrap();
    assert_eq!(
        a.endpoint.send(NodeId(3), &[0; 1001]).unwrap_err().code(),
        Code::Network
    );
    a.endpoint.forget(NodeId(2));
    assert_eq!(a.endpoint.queued(NodeId(2)), 0);
}

#[test]
fn a_full_channel_pushes_back_and_loses_nothing() {
    let (sender, events) = bounded(1);
    let identity = Identity {
        peer: NodeId(2),
        epoch: 1,
    };
    let key = JobKey::from_bytes([1; 32]);
    let b = Endpoint::bind(identity, 1, key, options(), sender).unwrap();
    let a = node(1);
    a.endpoint.set_address(NodeId(2), b.local_addr());
    std::thread::scope(|scope| {
        scope.spawn(|| (0..3000u32).for_each(|n| a.send(2, &n.to_le_bytes())));
        let up = events.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(up, Event::Up { .. }));
        for n in 0..3000u32 {
            match events.recv_timeout(PATIENCE).unwrap() {
                Event::Message { bytes, .. } => assert_eq!(bytes, n.to_le_bytes()),
                other => panic!("{other:?}"),
            }
        }
    });
    // Ending does not wait for a caller who has stopped listening.
    (0..100).for_each(|_| a.send(2, b"unheard"));
    eventually("the channel is full", || events.is_full());
    let before = Instant::now();
    b.shutdown();
    assert!(before.elapsed() < Duration::from_secs(5));
}

#[test]
fn shutdown_sends_what_is_queued() {
    let (a, b) = pair();
    (0..200u32).for_each(|n| a.endpoint.send(NodeId(2), &[n as u8; 1000]).unwrap());
    a.endpoint.shutdown();
    for n in 0..200u32 {
        assert_eq!(b.message(), [n as u8; 1000]);
    }
    assert_eq!(b.down().1, DownReason::Closed);
}

#[test]
fn a_partition_drops_messages_and_ends_its_connections_when_it_heals() {
    let (a, b) = pair();
    a.endpoint.isolate(true);
    for n in 0..50u8 {
        a.endpoint.send(NodeId(2), &[n]).unwrap();
        b.endpoint.send(NodeId(1), &[n]).unwrap();
    }
    // A third node cannot reach it either, and b sees messages taken by the kernel.
    eventually("b has sent", || b.endpoint.queued(NodeId(1)) == 0);
    let c = node_with(
        3,
        1,
        1,
        1,
        Options {
            handshake_timeout: Duration::from_millis(100),
            ..options()
        },
    );
    c.knows(&a);
    c.send(1, b"anybody there?");
    assert_eq!(c.refused().code(), Code::AgentTimeout);
    assert!(a.events.is_empty() && b.events.is_empty());
    a.endpoint.isolate(false);
    // Both hear that what they have said may be lost.
    let (peer, reason) = a.down();
    assert_eq!((peer.peer, reason), (NodeId(2), DownReason::Reset));
    let (peer, reason) = b.down();
    assert_eq!(peer.peer, NodeId(1));
    assert!(matches!(reason, DownReason::Closed | DownReason::Reset));
    a.send(2, b"healed");
    assert!(matches!(b.next(), Event::Up { .. }));
    assert_eq!(b.message(), b"healed");
    b.send(1, b"me too");
    // The third node's call was under way: it arrives now or its next does.
    let mut heard = Vec::new();
    while heard.len() < 2 {
        if let Event::Message { bytes, .. } = a.next() {
            heard.push(bytes);
        }
    }
    heard.sort();
    assert_eq!(heard, [b"anybody there?".to_vec(), b"me too".to_vec()]);
}

#[test]
fn the_end_of_a_peer_during_a_partition_is_told_afterwards() {
    let (a, b) = pair();
    a.endpoint.isolate(true);
    b.endpoint.shutdown();
    assert!(a.events.is_empty());
    a.endpoint.isolate(false);
    assert_eq!(a.down().1, DownReason::Closed);
}

#[test]
fn a_port_in_use_and_bad_bounds_have_their_codes() {
    let a = node(1);
    let bind = |options: Options| {
        let (sender, _events) = bounded(1);
        let identity = Identity {
            peer: NodeId(2),
            epoch: 1,
        };
        Endpoint::bind(identity, 1, JobKey::generate().unwrap(), options, sender)
            .err()
            .map(|error| error.code())
    };
    assert_eq!(
        bind(Options {
            bind: a.addr(),
            ..options()
        }),
        Some(Code::AddressInUse)
    );
    let never = Options {
        handshake_timeout: Duration::ZERO,
        ..options()
    };
    assert_eq!(bind(never), Some(Code::InvalidArgument));
    assert_eq!(bind(options()), None);
}

#[test]
fn what_is_sent_to_a_new_holder_of_a_place_arrives_there_alone() {
    let (a, old) = pair();
    a.send(2, b"to the old");
    assert_eq!(old.message(), b"to the old");
    let new = node_with(2, 2, 1, 1, options());
    a.endpoint.replace(NodeId(2), 2, new.addr());
    // Both call: what was queued for the newer epoch survives its coming.
    new.knows(&a);
    new.send(1, b"hello");
    for n in 0..100u8 {
        a.send(2, &[n]);
    }
    assert_eq!(new.up().epoch, 1);
    for n in 0..100u8 {
        assert_eq!(new.message(), [n]);
    }
    // One that was there before it was announced keeps its connection.
    let newest = node_with(2, 3, 1, 1, options());
    newest.knows(&a);
    newest.send(1, b"first");
    assert_eq!(newest.up().epoch, 1);
    eventually("the newest is heard", || {
        let next = a.events.try_recv();
        matches!(next, Ok(Event::Message { bytes, .. }) if bytes == b"first")
    });
    a.endpoint.replace(NodeId(2), 3, newest.addr());
    a.send(2, b"answer");
    assert_eq!(
        newest.message(),
        b"answer",
        "no Down and no second Up before it"
    );
}

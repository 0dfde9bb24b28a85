//! Wrong keys, wrong versions, garbage, floods, cut connections (P7, P9).
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Node, PATIENCE, connect, node, node_with, options, pair};
use crossbeam_channel::unbounded;
use outlive_base::rng::Sequence;
use outlive_base::{Code, NodeId};
use outlive_network::{DownReason, Endpoint, Event, Guest, Identity, JobKey, Options};

/// A caller's HEAD with this version, and the length of what follows.
fn head(version: u16, length: u16) -> Vec<u8> {
    let mut bytes = b"OLNW".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(length.to_le_bytes());
    bytes
}

#[test]
fn another_key_or_job_is_refused_on_both_sides() {
    for (key, job) in [(2, 1), (1, 2)] {
        let (a, b) = (node(1), node_with(2, 1, key, job, options()));
        a.knows(&b);
        a.endpoint.send(NodeId(2), b"secret").unwrap();
        assert_eq!(a.refused().code(), Code::KeyMismatch);
        assert_eq!(b.refused().code(), Code::KeyMismatch);
        let error = a.endpoint.open_stream(NodeId(2), b"").unwrap_err();
        assert_eq!(error.code(), Code::KeyMismatch);
    }
}

const SERVICE: u64 = 5;

fn key_of(claim: &str) -> JobKey {
    JobKey::from_bytes([9; 32]).derived("test", claim).unwrap()
}

/// A caller of a service, with this claim and key, that says it is `peer`.
fn guest(peer: u32, claim: &str, key: JobKey, of: &Node) -> Node {
    let (sender, events) = unbounded();
    let identity = Identity {
        peer: NodeId(peer),
        epoch: 1,
    };
    let bound = Endpoint::bind_guest(identity, SERVICE, (claim, key), options(), sender);
    let node = Node {
        endpoint: bound.unwrap(),
        events,
    };
    node.knows(of);
    node.send(of.endpoint.identity().peer.0, claim.as_bytes());
    node
}

#[test]
fn a_guest_of_a_service_cannot_speak_for_another() {
    let (sender, events) = unbounded();
    let identity = Identity {
        peer: NodeId::LAUNCHER,
        epoch: 1,
    };
    let withdrawn = Arc::new(AtomicBool::new(false));
    let look = Arc::clone(&withdrawn);
    let guests = move |claim: &str| {
        let peer = match claim {
            "a" => NodeId(1),
            "b" if !look.load(Ordering::SeqCst) => NodeId(2),
            _ => return None,
        };
        let key = key_of(claim);
        Some(Guest { key, peer })
    };
    let bound = Endpoint::bind_service(identity, SERVICE, Arc::new(guests), options(), sender);
    let service = Node {
        endpoint: bound.unwrap(),
        events,
    };
    let b = guest(2, "b", key_of("b"), &service);
    assert_eq!(service.up().peer, NodeId(2));
    assert_eq!(service.message(), b"b");
    assert_eq!(b.up(), identity);
    // With a's key: under b's name, as b, and as somebody whom nobody has invited.
    for (peer, claim) in [(2, "b"), (2, "a"), (7, "a"), (3, "c"), (2, "")] {
        let thief = guest(peer, claim, key_of("a"), &service);
        let error = thief.refused();
        assert_eq!(error.code(), Code::KeyMismatch, "{peer} {claim}: {error}");
        let error = service.refused();
        assert_eq!(error.code(), Code::KeyMismatch, "{peer} {claim}: {error}");
        let stream = thief.endpoint.open_stream(NodeId::LAUNCHER, b"");
        assert_eq!(stream.unwrap_err().code(), Code::KeyMismatch);
        thief.endpoint.shutdown();
        // It may have tried again by then.
        while let Ok(event) = service.events.try_recv() {
            assert!(matches!(event, Event::Refused { .. }), "{event:?}");
        }
    }
    // A peer of a job under the service's own number, with no claim.
    let old = node_with(2, 1, 9, SERVICE, options());
    old.knows(&service);
    old.send(NodeId::LAUNCHER.0, b"old");
    assert_eq!(old.refused().code(), Code::KeyMismatch);
    drop(old);
    // The true ones were not disturbed.
    let a = guest(1, "a", key_of("a"), &service);
    let quiet = |event: &Event| !matches!(event, Event::Refused { .. });
    let next = || {
        std::iter::repeat_with(|| service.next())
            .find(quiet)
            .unwrap()
    };
    assert!(matches!(next(), Event::Up { identity, .. } if identity.peer == NodeId(1)));
    assert!(matches!(next(), Event::Message { bytes, .. } if bytes == b"a"));
    service.endpoint.send(NodeId(2), b"go").unwrap();
    assert_eq!(b.message(), b"go");
    // One that is no guest any more is closed, and refused from then on.
    withdrawn.store(true, Ordering::SeqCst);
    service.endpoint.forget(NodeId(2));
    assert_eq!(b.down().0, identity);
    b.send(NodeId::LAUNCHER.0, b"again");
    assert_eq!(b.refused().code(), Code::KeyMismatch);
    a.send(NodeId::LAUNCHER.0, b"still");
    assert!(matches!(next(), Event::Message { bytes, .. } if bytes == b"still"));
    // It calls nobody, not even to open a stream.
    assert!(service.endpoint.open_stream(NodeId(1), b"").is_err());
}

#[test]
fn another_version_is_refused_on_both_sides() {
    let a = node(1);
    let mut caller = TcpStream::connect(a.addr()).unwrap();
    caller.write_all(&head(1, 100)).unwrap();
    caller.write_all(&[0; 100]).unwrap();
    assert_eq!(a.refused().code(), Code::PeerVersion);
    let mut answer = [0; 10];
    caller.set_read_timeout(Some(PATIENCE)).unwrap();
    caller.read_exact(&mut answer).unwrap();
    assert_eq!(
        &answer[..6],
        &head(2, 0)[..6],
        "it says which version it speaks"
    );

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    a.endpoint
        .set_address(NodeId(2), listener.local_addr().unwrap());
    a.endpoint.send(NodeId(2), b"x").unwrap();
    let (mut socket, _) = listener.accept().unwrap();
    socket.write_all(&head(9, 0)).unwrap();
    let error = a.refused();
    assert_eq!(error.code(), Code::PeerVersion);
    assert!(error.reason().contains("version 9"), "{error}");
}

#[test]
fn a_handshake_that_never_ends_is_ended() {
    let bound = Duration::from_millis(50);
    let a = node_with(
        1,
        1,
        1,
        1,
        Options {
            handshake_timeout: bound,
            ..options()
        },
    );
    for bytes in [&b""[..], b"OL", &head(2, 90)] {
        let mut caller = TcpStream::connect(a.addr()).unwrap();
        caller.write_all(bytes).unwrap();
        assert_eq!(a.refused().code(), Code::AgentTimeout);
        caller.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(caller.read(&mut [0; 10]).unwrap(), 0, "closed");
    }
    // A listener that never answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    a.endpoint
        .set_address(NodeId(2), listener.local_addr().unwrap());
    a.endpoint.send(NodeId(2), b"x").unwrap();
    assert_eq!(a.refused().code(), Code::AgentTimeout);
    let error = a.endpoint.open_stream(NodeId(2), b"").unwrap_err();
    assert_eq!(error.code(), Code::AgentTimeout);
}

#[test]
fn a_flood_of_strangers_does_not_keep_a_peer_out() {
    let a = node_with(
        1,
        1,
        1,
        1,
        Options {
            handshakes_max: 8,
            ..options()
        },
    );
    let flood: Vec<TcpStream> = (0..300)
        .map(|n| {
            let mut socket = TcpStream::connect(a.addr()).unwrap();
            if n % 2 == 0 {
                let _ = socket.write_all(&head(2, 90));
            }
            socket
        })
        .collect();
    let b = node(2);
    b.knows(&a);
    b.endpoint.send(NodeId(1), b"through").unwrap();
    assert_eq!(a.up().peer, NodeId(2));
    assert_eq!(a.message(), b"through");
    // All but handshakes_max of them were closed.
    let mut open = 0;
    for mut socket in flood {
        socket.set_nonblocking(true).unwrap();
        match socket.read(&mut [0; 16]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => open += 1,
            _ => {}
        }
    }
    assert!(open <= 8, "{open}");
}

#[test]
fn garbage_hurts_nobody_else() {
    let (a, b) = pair();
    let mut random = Sequence::new(outlive_base::seed!(), 0);
    for round in 0..100u32 {
        let mut bytes: Vec<u8> = (0..random.below(400)).map(|_| random.u64() as u8).collect();
        if round % 3 == 0 {
            bytes.splice(0..0, head(2, 96));
        }
        let mut socket = TcpStream::connect(a.addr()).unwrap();
        let _ = socket.write_all(&bytes);
        drop(socket);
        b.send(1, &round.to_le_bytes());
        loop {
            match a.next() {
                Event::Refused { .. } => {}
                Event::Message { bytes, .. } => break assert_eq!(bytes, round.to_le_bytes()),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Passes bytes between a caller and `target`; `damage` sees what the caller
/// sends, with its offset, and ends the connection by returning false.
fn proxy(
    target: SocketAddr,
    mut damage: impl FnMut(usize, &mut [u8]) -> bool + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut caller, _) = listener.accept().unwrap();
        // One connection only: later calls find nobody.
        drop(listener);
        let mut callee = TcpStream::connect(target).unwrap();
        let (mut back_from, mut back_to) =
            (callee.try_clone().unwrap(), caller.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
        let (mut offset, mut bytes) = (0, [0; 4096]);
        while let Ok(count @ 1..) = caller.read(&mut bytes) {
            let go_on = damage(offset, &mut bytes[..count]);
            offset += count;
            if callee.write_all(&bytes[..count]).is_err() || !go_on {
                break;
            }
        }
        let _ = caller.shutdown(std::net::Shutdown::Both);
        let _ = callee.shutdown(std::net::Shutdown::Both);
    });
    addr
}

#[test]
fn a_peer_that_dies_in_the_middle_of_a_message_is_down_and_delivers_no_part() {
    let (a, b) = (node(1), node(2));
    let addr = proxy(b.addr(), |offset, _| offset < 300_000);
    a.endpoint.set_address(NodeId(2), addr);
    a.endpoint.send(NodeId(2), b"whole").unwrap();
    a.endpoint.send(NodeId(2), &vec![7; 1 << 20]).unwrap();
    a.up();
    b.up();
    assert_eq!(b.message(), b"whole");
    let (peer, reason) = b.down();
    assert_eq!(peer.peer, NodeId(1));
    assert!(matches!(reason, DownReason::Closed | DownReason::Reset));
    assert_eq!(a.down().0.peer, NodeId(2));
}

#[test]
fn a_flipped_bit_ends_the_connection_and_is_never_delivered() {
    // Offsets within the handshake and within records.
    for flip in [3usize, 30, 120, 150, 400, 5000] {
        let (a, b) = (node(1), node(2));
        let addr = proxy(b.addr(), move |offset, bytes| {
            if let Some(byte) = flip.checked_sub(offset).and_then(|at| bytes.get_mut(at)) {
                *byte ^= 4;
            }
            true
        });
        a.endpoint.set_address(NodeId(2), addr);
        a.endpoint.send(NodeId(2), &[9; 8000]).unwrap();
        loop {
            match b.next() {
                Event::Up { .. } => {}
                Event::Refused { .. } => break,
                Event::Down { reason, .. } => break assert_eq!(reason, DownReason::Protocol),
                other => panic!("flip at {flip}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_peer_that_takes_nothing_is_down_after_the_bound() {
    let bound = Duration::from_millis(200);
    let a = node_with(
        1,
        1,
        1,
        1,
        Options {
            write_timeout: bound,
            ..options()
        },
    );
    let b = node(2);
    // The proxy stops passing bytes, and the kernel's buffers fill.
    let (release, held) = std::sync::mpsc::channel::<()>();
    let addr = proxy(b.addr(), move |offset, _| {
        offset < 5000 || held.recv().is_ok()
    });
    a.endpoint.set_address(NodeId(2), addr);
    a.endpoint.send(NodeId(2), b"first").unwrap();
    a.up();
    (0..14).for_each(|_| a.send(2, &vec![0; 1 << 20]));
    assert_eq!(a.down().1, DownReason::Timeout);
    drop(release);
}

#[test]
fn another_peer_at_the_address_is_noticed() {
    let (a, b) = (node(1), node(2));
    a.endpoint.set_address(NodeId(3), b.addr());
    a.endpoint.send(NodeId(3), b"for node 3 only").unwrap();
    let error = a.refused();
    assert!(error.reason().contains("node 2 answers"), "{error}");
    assert!(b.events.is_empty());
    connect(&a, &b);
}

//! What the tests of the network share.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use outlive_base::{Code, Error, NodeId};
use outlive_network::{DownReason, Endpoint, Event, Identity, JobKey, Options, Stream};

/// No test waits longer for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Node {
    pub endpoint: Endpoint,
    pub events: Receiver<Event>,
}

pub fn options() -> Options {
    Options {
        backoff_min: Duration::from_millis(2),
        ..Options::default()
    }
}

pub fn node_with(id: u32, epoch: u64, key: u8, job: u64, options: Options) -> Node {
    let (sender, events) = unbounded();
    let identity = Identity {
        peer: NodeId(id),
        epoch,
    };
    let key = JobKey::from_bytes([key; 32]);
    Node {
        endpoint: Endpoint::bind(identity, job, key, options, sender).unwrap(),
        events,
    }
}

pub fn node(id: u32) -> Node {
    node_with(id, 1, 1, 1, options())
}

impl Node {
    pub fn addr(&self) -> SocketAddr {
        self.endpoint.local_addr()
    }
    pub fn knows(&self, other: &Node) {
        self.endpoint
            .set_address(other.endpoint.identity().peer, other.addr());
    }
    pub fn next(&self) -> Event {
        self.events
            .recv_timeout(PATIENCE)
            .expect("an event in time")
    }
    pub fn up(&self) -> Identity {
        match self.next() {
            Event::Up { identity, .. } => identity,
            other => panic!("expected Up, got {other:?}"),
        }
    }
    pub fn message(&self) -> Vec<u8> {
        match self.next() {
            Event::Message { bytes, .. } => bytes,
            other => panic!("expected Message, got {other:?}"),
        }
    }
    pub fn down(&self) -> (Identity, DownReason) {
        match self.next() {
            Event::Down { peer, reason } => (peer, reason),
            other => panic!("expected Down, got {other:?}"),
        }
    }
    pub fn refused(&self) -> Error {
        match self.next() {
            Event::Refused { error, .. } => error,
            other => panic!("expected Refused, got {other:?}"),
        }
    }
    pub fn stream(&self) -> (Vec<u8>, Stream) {
        match self.next() {
            Event::Stream { header, stream, .. } => (header, stream),
            other => panic!("expected Stream, got {other:?}"),
        }
    }
    /// Sends, waiting for room in the queue.
    pub fn send(&self, peer: u32, message: &[u8]) {
        eventually("room in the queue", || {
            match self.endpoint.send(NodeId(peer), message) {
                Ok(()) => true,
                Err(error) if error.code() == Code::Network => false,
                Err(error) => panic!("{error}"),
            }
        });
    }
}

/// Two connected nodes, 1 and 2.
pub fn pair() -> (Node, Node) {
    let (a, b) = (node(1), node(2));
    connect(&a, &b);
    (a, b)
}

pub fn connect(a: &Node, b: &Node) {
    a.knows(b);
    a.send(b.endpoint.identity().peer.0, b"first");
    assert_eq!(a.up(), b.endpoint.identity());
    assert_eq!(b.up(), a.endpoint.identity());
    assert_eq!(b.message(), b"first");
}

/// Gives way until the condition holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

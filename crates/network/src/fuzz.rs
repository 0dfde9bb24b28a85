//! The parsers of bytes from outside, for fuzz targets: none may panic or hold
//! more than its bounds, whatever the input. Not meant for other use.

use std::sync::Arc;

use outlive_base::NodeId;

use crate::handshake::{Door, Guest, Handshake, Secret};
use crate::identity::Identity;
use crate::key::JobKey;
use crate::wire::{self, Assembler, Confirm, Head, Hello};

/// The cleartext head of a connection.
pub fn head(bytes: &[u8]) {
    let _ = Head::parse(bytes);
}

/// What stands inside handshake messages.
pub fn handshake_payloads(bytes: &[u8]) {
    let _ = wire::claim(bytes);
    let _ = Hello::parse(bytes);
    let _ = Confirm::parse(bytes);
}

/// The frames inside records; the first byte cuts the rest into pieces.
pub fn messages(bytes: &[u8]) {
    let Some((cut, rest)) = bytes.split_first() else {
        return;
    };
    let mut assembler = Assembler::new(1 << 20);
    for piece in rest.chunks(usize::from(*cut).max(1)) {
        if assembler.feed(piece, &mut drop).is_err() {
            return;
        }
    }
}

/// A whole connection from a stranger, up to the record that proves the key, with one that has one
/// key for all and with one that has a key for each.
pub fn stranger(bytes: &[u8]) {
    let key = JobKey::from_bytes([7; 32]);
    let guest = key.clone();
    knock(Door::One(Secret::shared(key, 1)), bytes);
    let guests = move |claim: &str| {
        let peer = NodeId(claim.len() as u32);
        let key = guest.clone();
        (claim.len() > 2).then_some(Guest { key, peer })
    };
    let (job_hash, guests) = (1, Arc::new(guests));
    knock(Door::Each { job_hash, guests }, bytes);
}

fn knock(door: Door, bytes: &[u8]) {
    let identity = Identity {
        peer: NodeId(1),
        epoch: 1,
    };
    let mut side = Handshake::listen_at(
        door,
        Hello {
            identity,
            wanted: NodeId(0),
            port: 1,
        },
    );
    let (mut rest, mut out) = (bytes, Vec::new());
    while !rest.is_empty() && side.wants() > 0 {
        let (now, later) = rest.split_at(side.wants().min(rest.len()));
        rest = later;
        if side.feed(now, &mut out).is_err() {
            return;
        }
    }
}

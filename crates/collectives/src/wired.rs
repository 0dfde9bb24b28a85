//! The protocols' machines on a rail.

use outlive_base::machine::{Body, MESSAGE_BYTES_MAX, Peer};
use outlive_protocols::collective::{Command, Event};
use outlive_protocols::corrected;
use outlive_protocols::ftco::{self, Msg};

use crate::engine::Wired;

impl Wired for ftco::Machine {
    fn encode(msg: Msg) -> [u8; MESSAGE_BYTES_MAX] {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        bytes[..Msg::BYTES].copy_from_slice(&msg.encode());
        bytes
    }
    fn decode(bytes: &[u8; MESSAGE_BYTES_MAX]) -> Option<Msg> {
        let (head, _) = bytes.split_first_chunk::<{ Msg::BYTES }>()?;
        Msg::decode(*head)
    }
    fn death(peer: Peer) -> Option<Command> {
        Some(Command::Dead { peer })
    }
    fn call(msg: Msg) -> u32 {
        msg.seq
    }
    fn absent(event: &Event) -> Option<(Body, Peer)> {
        absent(event)
    }
    fn result(event: &Event) -> Option<Body> {
        result(event)
    }
}

/// Bytes of corrections and copies that may be on their way out: more wait until the
/// rail has taken some, and are decided anew then.
const CORRECTED_WINDOW: usize = 256 << 10;

impl Wired for corrected::Machine {
    const WINDOW: usize = CORRECTED_WINDOW;

    fn encode(msg: corrected::Msg) -> [u8; MESSAGE_BYTES_MAX] {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        bytes[..corrected::Msg::BYTES].copy_from_slice(&msg.encode());
        bytes
    }
    fn decode(bytes: &[u8; MESSAGE_BYTES_MAX]) -> Option<corrected::Msg> {
        let (head, _) = bytes.split_first_chunk::<{ corrected::Msg::BYTES }>()?;
        corrected::Msg::decode(*head)
    }
    fn death(peer: Peer) -> Option<Command> {
        Some(Command::Dead { peer })
    }
    fn call(msg: corrected::Msg) -> u32 {
        msg.seq
    }
    fn absent(event: &Event) -> Option<(Body, Peer)> {
        absent(event)
    }
    fn result(event: &Event) -> Option<Body> {
        result(event)
    }
}

fn absent(event: &Event) -> Option<(Body, Peer)> {
    match event {
        Event::Absent { body, peer } => Some((*body, *peer)),
        _ => None,
    }
}

fn result(event: &Event) -> Option<Body> {
    match event {
        Event::Done { value, .. } => *value,
        _ => None,
    }
}

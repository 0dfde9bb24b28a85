//! What goes to one process: its link, and the frames that are not all gone.

use std::collections::BTreeMap;
use std::time::Instant;

use super::envelope::{ENVELOPE_BYTES, Position};
use super::ffi::Link;
use crate::rail::STALL;
use crate::rail::frame::{Bytes, Frame, HEADER_BYTES};
use crate::rail::tcp::proof::ANSWER_BYTES;

/// A frame as UCX reads it; a clone shares the data.
#[derive(Clone)]
pub(super) struct Sending {
    pub(super) header: [u8; HEADER_BYTES],
    /// Body and list of the absent.
    pub(super) data: Bytes,
}

impl Sending {
    pub(super) fn new(frame: Frame) -> Sending {
        let header = frame.header();
        let data = match frame.body {
            None => Bytes::default(),
            Some(body) if body.absent.is_empty() => body.bytes,
            // Rare, and then one copy: UCX is given one piece.
            Some(body) => Bytes::new([&body.bytes[..], &body.absent_bytes()].concat()),
        };
        Sending { header, data }
    }
    pub(super) fn bytes(&self) -> usize {
        ENVELOPE_BYTES + self.data.len()
    }
}

pub(super) struct Outgoing {
    /// The connection; none while UCX cannot reach the process.
    pub(super) link: Option<Link>,
    /// Names the connection in what UCX tells.
    pub(super) token: u64,
    /// Proves this process to that one.
    pub(super) answer: [u8; ANSWER_BYTES],
    /// The number of the connection, and the first frame that may come on it.
    number: u32,
    base: u64,
    next: u64,
    /// Frames that wait for a connection.
    pub(super) pending: BTreeMap<u64, Sending>,
    /// How many frames UCX has on its hands.
    pub(super) flying: usize,
    /// Bytes of both.
    pub(super) queued: usize,
    /// When the connection is tried again.
    pub(super) retry: Option<Instant>,
    moved: Instant,
}

impl Outgoing {
    pub(super) fn new(answer: [u8; ANSWER_BYTES]) -> Outgoing {
        Outgoing {
            link: None,
            token: 0,
            answer,
            number: 0,
            base: 0,
            next: 0,
            pending: BTreeMap::new(),
            flying: 0,
            queued: 0,
            retry: None,
            moved: Instant::now(),
        }
    }

    /// Takes a frame; it waits until it is posted.
    pub(super) fn queue(&mut self, sending: Sending) {
        if self.queued == 0 {
            self.moved = Instant::now();
        }
        self.queued += sending.bytes();
        self.pending.insert(self.next, sending);
        self.next += 1;
    }

    /// There is a connection: frames from the first that waits on go over it.
    pub(super) fn connected(&mut self, link: Link, token: u64) {
        self.base = self
            .pending
            .first_key_value()
            .map_or(self.next, |(first, _)| *first);
        self.link = Some(link);
        self.token = token;
        self.retry = None;
    }

    /// The connection is gone; the next one has another number.
    pub(super) fn disconnected(&mut self, retry: Instant) -> Option<Link> {
        self.retry = Some(retry);
        let link = self.link.take()?;
        self.number += 1;
        Some(link)
    }

    pub(super) fn place(&self, sequence: u64) -> Position {
        Position {
            link: self.number,
            base: self.base,
            sequence,
        }
    }

    /// A frame is gone.
    pub(super) fn gone(&mut self, bytes: usize) {
        self.queued -= bytes;
        self.moved = Instant::now();
    }

    /// What waits has not moved for long.
    pub(super) fn stalled(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.moved) > STALL
    }
}

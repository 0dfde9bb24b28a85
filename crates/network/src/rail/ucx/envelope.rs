//! What stands before a frame on this rail: who sends it, proved, and its place among
//! that process's frames.
//!
//! Layout (little-endian): the sender's answer to the receiver's challenge, 36 bytes
//! ([`crate::rail::tcp::proof`]); link u32, a number that grows with each new connection between
//! the two; base u64, the first frame that may come on that link; sequence u64; then the
//! frame's header. The body is UCX's data.
//!
//! UCX delivers a long message (rendezvous) later than a short one that was sent after it,
//! so order is restored here. What a broken link lost is passed over as soon as the next
//! link's base tells that it will not come.

use std::collections::BTreeMap;

use outlive_base::wire::{Reader, WireError, Writer};

use crate::rail::frame::{Frame, HEADER_BYTES, Header};
use crate::rail::tcp::proof::{
    ANSWER_BYTES, CHALLENGE_BYTES, KEY_BYTES, UCX_LABEL, answer_as, equal,
};

/// Bytes before the body.
pub(super) const ENVELOPE_BYTES: usize = ANSWER_BYTES + 4 + 8 + 8 + HEADER_BYTES;

/// A frame's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Position {
    pub(super) link: u32,
    pub(super) base: u64,
    pub(super) sequence: u64,
}

/// What process `me` answers to a receiver's challenge.
pub(super) fn answer(
    key: &[u8; KEY_BYTES],
    challenge: &[u8; CHALLENGE_BYTES],
    me: u32,
) -> Option<[u8; ANSWER_BYTES]> {
    answer_as(UCX_LABEL, key, challenge, me)
}

/// The bytes before a body.
pub(super) fn seal(
    answer: &[u8; ANSWER_BYTES],
    place: Position,
    header: &[u8; HEADER_BYTES],
) -> [u8; ENVELOPE_BYTES] {
    let mut writer = Writer::new();
    writer.raw(answer).u32(place.link);
    writer.u64(place.base).u64(place.sequence).raw(header);
    let mut bytes = [0; ENVELOPE_BYTES];
    bytes.copy_from_slice(writer.as_slice());
    bytes
}

/// Who may send to this process: those who answer its challenge with the job's key.
pub(super) struct Gate {
    key: [u8; KEY_BYTES],
    challenge: [u8; CHALLENGE_BYTES],
    /// The right answers, by rank, once they were wanted.
    answers: Vec<Option<[u8; ANSWER_BYTES]>>,
}

impl Gate {
    /// Nobody may yet.
    pub(super) fn shut() -> Gate {
        Gate {
            key: [0; KEY_BYTES],
            challenge: [0; CHALLENGE_BYTES],
            answers: Vec::new(),
        }
    }
    pub(super) fn open(
        key: [u8; KEY_BYTES],
        challenge: [u8; CHALLENGE_BYTES],
        size: usize,
    ) -> Gate {
        Gate {
            key,
            challenge,
            answers: vec![None; size],
        }
    }

    /// The sender, the frame's place and its header; `None` from strangers.
    pub(super) fn unseal(&mut self, bytes: &[u8]) -> Option<(u32, Position, Header)> {
        let mut reader = Reader::new(bytes);
        let given: [u8; ANSWER_BYTES] = reader.array().ok()?;
        let rank = u32::from_le_bytes([given[0], given[1], given[2], given[3]]);
        let known = self.answers.get_mut(rank as usize)?;
        if known.is_none() {
            *known = answer_as(UCX_LABEL, &self.key, &self.challenge, rank);
        }
        if !equal(known.as_ref()?, &given) {
            return None;
        }
        let (place, header) = rest(&mut reader).ok()?;
        reader.finish().ok()?;
        Some((rank, place, header))
    }
}

fn rest(reader: &mut Reader<'_>) -> Result<(Position, Header), WireError> {
    let place = Position {
        link: reader.u32()?,
        base: reader.u64()?,
        sequence: reader.u64()?,
    };
    Ok((place, Header::parse(&reader.array()?)?))
}

/// The frames of one sender, put in order.
#[derive(Default)]
pub(super) struct Order {
    link: u32,
    next: u64,
    held: BTreeMap<u64, Frame>,
}

impl Order {
    /// A frame with this place has begun to arrive: frames that this tells lost are
    /// waited for no longer.
    pub(super) fn note(&mut self, place: Position, mut give: impl FnMut(Frame)) {
        if place.link <= self.link {
            return;
        }
        self.link = place.link;
        if place.base > self.next {
            let later = self.held.split_off(&place.base);
            std::mem::replace(&mut self.held, later)
                .into_values()
                .for_each(&mut give);
            self.next = place.base;
            self.run(give);
        }
    }

    /// A frame is all here. One that was here before is dropped.
    pub(super) fn put(&mut self, sequence: u64, frame: Frame, mut give: impl FnMut(Frame)) {
        if sequence < self.next {
            return;
        }
        if sequence == self.next {
            self.next += 1;
            give(frame);
            self.run(give);
        } else {
            self.held.insert(sequence, frame);
        }
    }

    fn run(&mut self, mut give: impl FnMut(Frame)) {
        while let Some(frame) = self.held.remove(&self.next) {
            self.next += 1;
            give(frame);
        }
    }

    /// No more will come: what is here goes on, in order.
    pub(super) fn end(&mut self, give: impl FnMut(Frame)) {
        let held = std::mem::take(&mut self.held);
        self.next = held
            .last_key_value()
            .map_or(self.next, |(last, _)| last + 1);
        held.into_values().for_each(give);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rail::frame::Key;
    use proptest::prelude::*;

    fn frame(number: u32) -> Frame {
        let key = Key {
            comm: 1,
            sequence: number,
            incarnation: 0,
            protocol: 0,
        };
        let (msg, body) = ([0; 32], None);
        Frame { key, msg, body }
    }

    const PLACE: Position = Position {
        link: 1,
        base: 2,
        sequence: 3,
    };

    #[test]
    fn only_the_key_and_its_own_receiver_open() {
        let (key, challenge) = ([7; KEY_BYTES], [1; CHALLENGE_BYTES]);
        let answer = answer_as(UCX_LABEL, &key, &challenge, 2).expect("hash");
        let bytes = seal(&answer, PLACE, &frame(9).header());
        let mut gate = Gate::open(key, challenge, 3);
        let (rank, place, header) = gate.unseal(&bytes).expect("opens");
        assert_eq!((rank, place, header.key.sequence), (2, PLACE, 9));
        assert!(Gate::shut().unseal(&bytes).is_none());
        assert!(Gate::open(key, challenge, 2).unseal(&bytes).is_none());
        assert!(
            Gate::open([8; KEY_BYTES], challenge, 3)
                .unseal(&bytes)
                .is_none()
        );
        let other = [2; CHALLENGE_BYTES];
        assert!(Gate::open(key, other, 3).unseal(&bytes).is_none());
        for cut in [0, 3, ANSWER_BYTES, ENVELOPE_BYTES - 1] {
            assert!(gate.unseal(&bytes[..cut]).is_none());
        }
        assert!(gate.unseal(&[&bytes[..], &[0]].concat()).is_none());
        let mut rank = bytes;
        rank[0] = 1;
        assert!(gate.unseal(&rank).is_none(), "another's rank");
    }

    #[test]
    fn what_a_broken_link_lost_is_passed_over_and_nothing_comes_twice() {
        let mut order = Order::default();
        let mut got = Vec::new();
        let mut give = |frame: Frame| got.push(frame.key.sequence);
        order.put(0, frame(0), &mut give);
        order.put(2, frame(2), &mut give); // 1 is lost
        order.put(4, frame(4), &mut give);
        let second = Position {
            link: 1,
            base: 3,
            sequence: 3,
        };
        order.note(second, &mut give);
        order.put(3, frame(3), &mut give);
        order.put(4, frame(4), &mut give);
        order.put(1, frame(1), &mut give);
        order.put(7, frame(7), &mut give);
        order.put(6, frame(6), &mut give);
        order.end(&mut give);
        order.put(6, frame(6), &mut give);
        assert_eq!(got, [0, 2, 3, 4, 6, 7]);
    }

    proptest! {
        #[test]
        fn frames_come_out_in_order(arrivals in Just((0..40u32).collect::<Vec<_>>()).prop_shuffle()) {
            let mut order = Order::default();
            let mut got = Vec::new();
            for number in arrivals {
                order.put(u64::from(number), frame(number), |frame| got.push(frame.key.sequence));
            }
            prop_assert_eq!(got, (0..40).collect::<Vec<_>>());
        }

        #[test]
        fn any_envelope_is_opened_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Gate::open([1; 32], [2; 32], 4).unseal(&bytes).is_none());
        }
    }
}

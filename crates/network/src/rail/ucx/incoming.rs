//! What comes in: long messages are fetched, and each sender's frames put in order.

use std::collections::BTreeMap;

use super::envelope::Order;
use super::ffi::{Arrival, Begun, Data, Worker};
use crate::rail::frame::{Frame, Header};

/// A long message whose data UCX brings.
struct Fetch {
    from: u32,
    sequence: u64,
    header: Header,
    /// Written by UCX until the fetch is over; its length is set then.
    buffer: Vec<u8>,
}

#[derive(Default)]
pub(super) struct Incoming {
    orders: BTreeMap<u32, Order>,
    fetches: BTreeMap<u64, Fetch>,
    next: u64,
}

impl Incoming {
    /// A message arrived; `give` gets the frames that are next of its sender.
    pub(super) fn arrived(
        &mut self,
        worker: &mut Worker,
        arrival: Arrival,
        give: &mut impl FnMut(u32, Frame),
    ) {
        let Arrival {
            from,
            place,
            header,
            data,
        } = arrival;
        let order = self.orders.entry(from).or_default();
        order.note(place, |frame| give(from, frame));
        let (descriptor, length) = match data {
            Data::Here(bytes) => {
                order.put(place.sequence, header.with(bytes), |frame| {
                    give(from, frame)
                });
                return;
            }
            Data::There(descriptor, length) => (descriptor, length),
        };
        let mut buffer: Vec<u8> = Vec::new();
        // Without memory for it the fetch fails, and the call that waits for it ends at its bound.
        let room = if buffer.try_reserve_exact(length).is_ok() {
            length
        } else {
            0
        };
        let token = self.next;
        self.next += 1;
        let place_of = buffer.as_mut_ptr();
        self.fetches.insert(
            token,
            Fetch {
                from,
                sequence: place.sequence,
                header,
                buffer,
            },
        );
        // SAFETY: room for that many bytes, kept in `fetches` until the fetch is over; the
        // worker ends before them.
        match unsafe { worker.fetch(descriptor, place_of, room, token) } {
            Begun::Later => {}
            Begun::Done => self.fetched(token, Some(room), give),
            Begun::Failed => self.fetched(token, None, give),
        }
    }

    /// A fetch is over: with that many bytes, or it failed.
    pub(super) fn fetched(
        &mut self,
        token: u64,
        length: Option<usize>,
        give: &mut impl FnMut(u32, Frame),
    ) {
        let Some(mut fetch) = self.fetches.remove(&token) else {
            return;
        };
        if length.map(|length| length as u64) != Some(fetch.header.tail_bytes()) {
            return; // its sender sends it again, or is dead
        }
        // SAFETY: the capacity is at least the tail's length, and UCX wrote so many.
        unsafe { fetch.buffer.set_len(length.unwrap_or(0)) };
        let frame = fetch.header.with(fetch.buffer);
        let order = self.orders.entry(fetch.from).or_default();
        order.put(fetch.sequence, frame, |frame| give(fetch.from, frame));
    }

    /// Of whom something came.
    pub(super) fn senders(&self) -> impl Iterator<Item = u32> {
        self.orders.keys().copied()
    }

    /// True while UCX may write to a buffer.
    pub(super) fn fetching(&self) -> bool {
        !self.fetches.is_empty()
    }

    /// A process is gone: what is here of its frames goes on.
    pub(super) fn end(&mut self, peer: u32, mut give: impl FnMut(u32, Frame)) {
        if let Some(order) = self.orders.get_mut(&peer) {
            order.end(|frame| give(peer, frame));
        }
    }
}

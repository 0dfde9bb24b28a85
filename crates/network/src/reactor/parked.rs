//! Streams that wait for their next use: nobody reads them until something comes.
//!
//! Invariants: at most one of a peer; none of an epoch that was forgotten or replaced.

use outlive_base::NodeId;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::Reactor;
use crate::event::Event;
use crate::stream::Stream;

impl Reactor {
    /// Watches a stream until its peer says something or ends it.
    pub(super) fn park(&mut self, stream: Stream) {
        let from = stream.peer();
        self.drop_parked(from.peer, u64::MAX);
        let newest = self.peers.entry(from.peer).or_default().epoch;
        let forgotten = self.is_forgotten(from.peer, from.epoch);
        if newest > Some(from.epoch) || forgotten || self.stopping.is_some() {
            return;
        }
        let token = self.fresh_token();
        let flags = EventFlags::IN | EventFlags::RDHUP;
        match epoll::add(
            &self.epoll,
            stream.socket(),
            EventData::new_u64(token),
            flags,
        ) {
            Ok(()) => drop(self.parked.insert(token, stream)),
            Err(error) => tracing::warn!(%error, "a stream cannot be watched"),
        }
    }

    /// Closes what is parked of a peer's epochs before this one.
    pub(super) fn drop_parked(&mut self, peer: NodeId, before: u64) {
        self.parked.retain(|_, stream| {
            let from = stream.peer();
            from.peer != peer || from.epoch >= before && before != u64::MAX
        });
    }

    /// Something came on a parked stream, or its end: the caller has it again.
    pub(super) fn unpark(&mut self, stream: Stream) {
        if let Err(error) = epoll::delete(&self.epoll, stream.socket()) {
            tracing::error!(%error, "a stream cannot be unwatched");
        }
        self.pending.push_back(Event::Stream {
            from: stream.peer(),
            header: Vec::new(),
            stream,
        });
    }
}

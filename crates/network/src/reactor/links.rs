//! Open control connections: reading, sending, ending, partition.

use std::time::Instant;

use rustix::event::epoll::{self, EventFlags};

use super::{Conversation, PENDING_MAX, Reactor};
use crate::event::{DownReason, Event};
use crate::handshake::Failure;
use crate::identity::Identity;
use crate::link::{Link, OUT_BYTES_LOW};

impl Reactor {
    pub(super) fn on_link(&mut self, token: u64, mut link: Box<Link>, flags: EventFlags) {
        let readable = EventFlags::IN | EventFlags::ERR | EventFlags::HUP | EventFlags::RDHUP;
        if flags.intersects(readable) && self.pending.len() < PENDING_MAX {
            let (pending, faults) = (&mut self.pending, &self.faults);
            let from = link.identity;
            let deaf = self.stopping.is_some();
            let mut sink = |bytes: Vec<u8>| {
                if !deaf && !faults.isolated() {
                    pending.push_back(Event::Message { from, bytes });
                }
            };
            if let Err(reason) = link.read(&mut self.scratch, &mut sink) {
                return self.link_ended(token, link, reason);
            }
        }
        if flags.contains(EventFlags::OUT) {
            return self.pump(token, link);
        }
        self.slots.insert(token, Conversation::Link(link));
    }

    /// Sends what is queued, as far as the kernel takes it.
    pub(super) fn pump(&mut self, token: u64, mut link: Box<Link>) {
        let Identity { peer, epoch } = link.identity;
        let mut sent = Ok(());
        while sent.is_ok() && !self.faults.isolated() && link.ended.is_none() {
            if link.hungry() {
                let mut desk = self.shared.desk();
                let taken = desk
                    .peers
                    .get_mut(&peer)
                    .map(|desk| desk.take(OUT_BYTES_LOW, epoch));
                drop(desk);
                sent = link.push(&taken.unwrap_or_default());
            }
            if link.drained() {
                break;
            }
            sent = sent.and_then(|()| link.write());
            if !link.drained() {
                break;
            }
        }
        if let Err(reason) = sent {
            return self.link_ended(token, link, reason);
        }
        if let Some(since) = link.stalled {
            self.soon(since + self.options.write_timeout);
        }
        let writing = !link.drained() && !self.isolated;
        if link.ended.is_none() && link.watched.replace(writing) != Some(writing) {
            self.watch(token, &link.socket, writing);
        }
        self.slots.insert(token, Conversation::Link(link));
    }

    /// The end of a connection; during a partition it is kept for later.
    fn link_ended(&mut self, token: u64, mut link: Box<Link>, reason: DownReason) {
        if self.faults.isolated() {
            link.ended = Some(reason);
            if let Err(error) = epoll::delete(&self.epoll, &link.socket) {
                tracing::error!(%error, "a connection cannot be unwatched");
            }
            self.slots.insert(token, Conversation::Link(link));
        } else {
            self.link_down(&link, reason);
        }
    }

    /// Its time is over: a handshake not finished, output not taken.
    pub(super) fn on_late(&mut self, token: u64) {
        match self.slots.remove(&token) {
            Some(Conversation::Shake(shake)) => self.shake_failed(token, &shake, Failure::Timeout),
            Some(Conversation::Link(mut link)) if self.isolated => {
                // The peer could not take anything.
                link.stalled = Some(Instant::now());
                self.slots.insert(token, Conversation::Link(link));
            }
            // A busy loop may be late to notice that the kernel takes bytes again.
            Some(Conversation::Link(mut link)) => match link.write() {
                Ok(())
                    if link
                        .stalled
                        .is_none_or(|s| s.elapsed() < self.options.write_timeout) =>
                {
                    self.pump(token, link);
                }
                Ok(()) => self.link_down(&link, DownReason::Timeout),
                Err(reason) => self.link_down(&link, reason),
            },
            None => {}
        }
    }

    /// The partition begins or ends.
    pub(super) fn on_isolation(&mut self) {
        let isolated = self.faults.isolated();
        if isolated == self.isolated {
            return;
        }
        self.isolated = isolated;
        self.watch_listener();
        let tokens: Vec<u64> = self.slots.keys().copied().collect();
        for token in tokens {
            match self.slots.remove(&token) {
                Some(Conversation::Shake(shake)) => {
                    self.strangers.remove(&token);
                    if let Some(peer) = shake.calls {
                        self.peers.entry(peer).or_default().call = None;
                        self.plan_call(peer);
                    }
                }
                Some(Conversation::Link(mut link)) => {
                    link.stalled = link.stalled.map(|_| Instant::now());
                    if isolated {
                        self.pump(token, link);
                    } else {
                        // Messages were dropped, and on a connection that lives none is ever lost: those who say
                        // something once, and again on a new connection, rely on that.
                        self.link_down(&link, link.ended.unwrap_or(DownReason::Reset));
                    }
                }
                None => {}
            }
        }
        if !isolated {
            let peers: Vec<_> = self.peers.keys().copied().collect();
            peers.into_iter().for_each(|peer| self.look_after(peer));
        }
    }
}

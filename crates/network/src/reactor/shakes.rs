//! Connections in the making: accepting, calling, the handshake.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, NodeId};
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{Conversation, PENDING_MAX, Reactor, Shake};
use crate::endpoint::{entity, read_failure};
use crate::event::Event;
use crate::handshake::{Established, Failure, Handshake, Progress};
use crate::link::Link;
use crate::socket;
use crate::stream::{Permit, Stream};
use crate::wire::{Hello, Purpose, Verdict};

/// Callers accepted at a time.
const ACCEPTS_IN_A_ROW: usize = 32;
/// Pause of accepting when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a step of the handshake leads to.
enum Step {
    /// Wait for the socket.
    Wait,
    Failed(Failure),
    /// Turned away in good order; nothing to tell.
    Closed,
    Done(Box<Established>, Option<Permit>),
}

impl Reactor {
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_IN_A_ROW {
            if self.isolated || self.stopping.is_some() || self.pending.len() >= PENDING_MAX {
                return;
            }
            match self.listener.accept() {
                Ok((socket, addr)) => self.meet(socket, addr),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The caller has gone again.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept; pausing");
                    let again = Instant::now() + ACCEPT_PAUSE;
                    self.accept_again = Some(again);
                    self.soon(again);
                    return self.watch_listener();
                }
            }
        }
    }

    fn meet(&mut self, socket: TcpStream, addr: SocketAddr) {
        if self.strangers.len() >= self.options.handshakes_max {
            self.evict();
        }
        let good = socket
            .set_nonblocking(true)
            .and_then(|()| socket::tune(&socket, &self.options));
        if good.is_err() {
            return;
        }
        let handshake = Handshake::listen_at(self.door.clone(), self.me);
        let deadline = Instant::now() + self.options.handshake_timeout;
        let shake = Shake {
            socket,
            addr,
            calls: None,
            connecting: false,
            handshake,
            output: Vec::new(),
            deadline,
        };
        if let Some(token) = self.add(shake, EventFlags::IN) {
            self.strangers.insert(token);
        }
    }

    /// Makes room for another caller: whoever has waited longest without showing
    /// the key goes, and if all have shown it, whoever has waited longest. A
    /// correct peer is through within milliseconds.
    fn evict(&mut self) {
        let idle = |token: &&u64| match self.slots.get(token) {
            Some(Conversation::Shake(shake)) => !shake.handshake.shown_key(),
            _ => true,
        };
        let victim = self
            .strangers
            .iter()
            .find(idle)
            .or(self.strangers.first())
            .copied();
        if let Some(token) = victim {
            self.strangers.remove(&token);
            self.slots.remove(&token);
        }
    }

    /// Watches a new connection.
    fn add(&mut self, shake: Shake, flags: EventFlags) -> Option<u64> {
        let token = self.fresh_token();
        let data = EventData::new_u64(token);
        if let Err(error) = epoll::add(&self.epoll, &shake.socket, data, flags) {
            tracing::error!(%error, "a connection cannot be watched");
            return None;
        }
        self.soon(shake.deadline);
        self.slots
            .insert(token, Conversation::Shake(Box::new(shake)));
        Some(token)
    }

    /// Begins a call. None if it failed at once.
    pub(super) fn call(&mut self, peer: NodeId, addr: SocketAddr) -> Option<u64> {
        // A service answers those that call it, and calls nobody.
        let secret = self.door.own()?.clone();
        let mut output = Vec::new();
        let mine = Hello {
            wanted: peer,
            ..self.me
        };
        let begun = Handshake::call(secret, mine, Purpose::Control, &[], &mut output);
        let handshake = match begun {
            Ok(handshake) => handshake,
            Err(failure) => {
                tracing::error!(?failure, "a call cannot begin");
                return None;
            }
        };
        let socket = socket::call(addr)
            .and_then(|socket| socket::tune(&socket, &self.options).map(|()| socket));
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                self.call_failed(peer, addr, read_failure(&error));
                return None;
            }
        };
        let deadline = Instant::now() + self.options.connect_timeout;
        let shake = Shake {
            socket,
            addr,
            calls: Some(peer),
            connecting: true,
            handshake,
            output,
            deadline,
        };
        self.add(shake, EventFlags::OUT)
    }

    pub(super) fn on_shake(&mut self, token: u64, mut shake: Box<Shake>, flags: EventFlags) {
        if shake.connecting {
            if !flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
                self.slots.insert(token, Conversation::Shake(shake));
                return;
            }
            if let Err(error) = socket::call_outcome(&shake.socket) {
                return self.shake_failed(token, &shake, read_failure(&error));
            }
            shake.connecting = false;
            shake.deadline = Instant::now() + self.options.handshake_timeout;
        }
        match self.step(&mut shake) {
            Step::Wait => {
                self.watch(token, &shake.socket, !shake.output.is_empty());
                self.slots.insert(token, Conversation::Shake(shake));
            }
            Step::Failed(failure) => self.shake_failed(token, &shake, failure),
            Step::Closed => {
                self.strangers.remove(&token);
                close_gently(&shake.socket);
            }
            Step::Done(done, permit) => self.established(token, *shake, *done, permit),
        }
    }

    fn step(&mut self, shake: &mut Shake) -> Step {
        let mut input = [0; 512];
        loop {
            if let Err(failure) = flush(shake) {
                return Step::Failed(failure);
            }
            let wants = shake.handshake.wants().min(input.len());
            let count = match shake.socket.read(&mut input[..wants]) {
                Ok(0) => return Step::Failed(Failure::Closed),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Wait,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Step::Failed(read_failure(&error)),
            };
            if let Some(peer) = shake.calls {
                let last = self.peers.get(&peer).map_or(0, |peer| peer.last);
                shake.handshake.set_last(last);
            }
            match shake.handshake.feed(&input[..count], &mut shake.output) {
                Ok(Progress::More) => {}
                Ok(Progress::Decide) => return self.decide(shake),
                Ok(Progress::Done(done)) => return Step::Done(done, None),
                Err(failure) => {
                    // The refusal names the reason, if the caller still listens.
                    let _ = flush(shake);
                    return Step::Failed(failure);
                }
            }
        }
    }

    fn decide(&mut self, shake: &mut Shake) -> Step {
        let Some((remote, purpose, last)) = shake.handshake.asked() else {
            return Step::Failed(Failure::Ours("nothing to decide"));
        };
        let mut permit = None;
        let mut verdict = match shake.handshake.is_anothers() {
            // Nothing is looked up or kept of the peer that it is not.
            true => Verdict::NotYours,
            false => self.verdict(&remote, purpose, last),
        };
        if purpose == Purpose::Session {
            verdict = Verdict::WrongPeer; // Ranks with sessions listen elsewhere.
        }
        if verdict == Verdict::Accept && purpose != Purpose::Control {
            permit = Permit::take(&self.faults, self.options.streams_max);
            if permit.is_none() {
                verdict = Verdict::Busy;
            }
        }
        let answered = shake.handshake.answer(verdict, &mut shake.output);
        // A few bytes into an empty socket: they fit, or the connection is of no use.
        match (answered, flush(shake)) {
            (Ok(done), Ok(())) if shake.output.is_empty() => match done {
                Some(done) => Step::Done(Box::new(done), permit),
                None if verdict == Verdict::NotYours => Step::Failed(Failure::Turned(verdict)),
                None => Step::Closed,
            },
            (Err(failure), _) | (_, Err(failure)) => Step::Failed(failure),
            _ => Step::Failed(Failure::Timeout),
        }
    }

    fn established(&mut self, token: u64, shake: Shake, done: Established, permit: Option<Permit>) {
        self.strangers.remove(&token);
        let Shake {
            socket,
            addr,
            calls,
            ..
        } = shake;
        if done.purpose == Purpose::Control {
            let announced = done.remote.port;
            let message_bytes_max = self.options.message_bytes_max;
            let link = Link::new(socket, addr, calls.is_some(), done, message_bytes_max);
            self.watch(token, &link.socket, false);
            return self.install(token, link, announced);
        }
        let Some(permit) = permit else { return };
        let from = done.identity();
        let cipher = (done.purpose == Purpose::SealedStream).then_some(done.cipher);
        let stream = epoll::delete(&self.epoll, &socket)
            .map_err(std::io::Error::from)
            .and_then(|()| socket.set_nonblocking(false))
            .and_then(|()| Stream::new(socket, from, addr, cipher, permit, &self.options));
        match stream {
            Ok(stream) => {
                self.pending.push_back(Event::Stream {
                    from,
                    header: done.confirm.header,
                    stream,
                });
            }
            Err(error) => tracing::warn!(%error, "a stream cannot be set up"),
        }
    }

    pub(super) fn shake_failed(&mut self, token: u64, shake: &Shake, failure: Failure) {
        self.strangers.remove(&token);
        close_gently(&shake.socket);
        match shake.calls {
            Some(peer) => self.call_failed(peer, shake.addr, failure),
            // A stranger that leaves: a port scan, a health check, a peer whose
            // other call was quicker.
            None if matches!(failure, Failure::Closed | Failure::Unreachable(_)) => {}
            None => {
                let error = failure.error(Entity::Address(shake.addr.to_string()));
                self.tell_refused(shake.addr, error);
            }
        }
    }

    /// A call failed: tells the caller and plans the next.
    pub(super) fn call_failed(&mut self, peer: NodeId, addr: SocketAddr, failure: Failure) {
        let error = failure.error(entity(peer));
        let entry = self.peers.entry(peer).or_default();
        entry.call = None;
        let silence = matches!(error.code(), Code::AgentUnreachable | Code::AgentTimeout);
        let told = silence && core::mem::replace(&mut entry.told_unreachable, true);
        match failure {
            Failure::Turned(Verdict::Duplicate) => {}
            Failure::Timeout | Failure::Closed | Failure::Unreachable(_) => {}
            // Trying soon again would change nothing.
            _ => entry.attempts = u32::MAX,
        }
        if failure != Failure::Turned(Verdict::Duplicate) && !told {
            self.tell_refused(addr, error);
        }
        self.plan_call(peer);
    }
}

/// Sends what the kernel takes.
fn flush(shake: &mut Shake) -> Result<(), Failure> {
    while !shake.output.is_empty() {
        match shake.socket.write(&shake.output) {
            Ok(count) => drop(shake.output.drain(..count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(read_failure(&error)),
        }
    }
    Ok(())
}

/// Ends a connection so that what was sent arrives: unread bytes would make
/// the kernel reset it.
fn close_gently(mut socket: &TcpStream) {
    let _ = socket.shutdown(Shutdown::Write);
    let _ = socket.read(&mut [0; 4096]);
}

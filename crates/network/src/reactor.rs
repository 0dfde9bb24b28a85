//! The event loop: one thread, non-blocking sockets, level-triggered epoll.
//!
//! Invariants: nothing here blocks except waiting for events and, while the
//! caller's channel is full, for room in it (in slices of [`BACKLOG_SLICE`]);
//! every connection in the making has a deadline; a peer has at most one control
//! connection and at most one call in the making; events of a peer are told in
//! the order `Up`, `Message`..., `Down`.

mod links;
mod parked;
mod peers;
mod shakes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{SendTimeoutError, Sender, TrySendError};
use outlive_base::{Error, NodeId};
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::event::Event;
use crate::faults::Faults;
use crate::handshake::{Door, Handshake};
use crate::link::Link;
use crate::options::Options;
use crate::shared::Shared;
use crate::stream::Stream;
use crate::wire::Hello;
use peers::Peer;

const TOKEN_WAKE: u64 = 0;
const TOKEN_LISTENER: u64 = 1;
const TOKEN_FIRST: u64 = 2;
/// Readiness taken from the kernel at a time.
const READY_MAX: usize = 64;
/// Events untold above which no more is read.
const PENDING_MAX: usize = 4096;
/// Read at a time, in bytes.
const SCRATCH_BYTES: usize = 64 * 1024;
/// How long the loop waits for room in the caller's channel before it looks
/// after its other duties.
const BACKLOG_SLICE: Duration = Duration::from_millis(5);
/// Longest time between two looks at the clock's duties.
const TICK_MAX: Duration = Duration::from_secs(1);

enum Conversation {
    Shake(Box<Shake>),
    Link(Box<Link>),
}

/// A connection in the making.
struct Shake {
    socket: TcpStream,
    addr: SocketAddr,
    /// The peer that is called; None for a stranger that called.
    calls: Option<NodeId>,
    /// The TCP connection does not stand yet.
    connecting: bool,
    handshake: Handshake,
    output: Vec<u8>,
    deadline: Instant,
}

pub(crate) struct Reactor {
    me: Hello,
    door: Door,
    options: Options,
    listener: TcpListener,
    epoll: OwnedFd,
    shared: Arc<Shared>,
    faults: Arc<Faults>,
    /// Where events go; `None` if the caller takes them from `pending`.
    events: Option<Sender<Event>>,
    slots: BTreeMap<u64, Conversation>,
    /// Streams that wait for their next use.
    parked: BTreeMap<u64, Stream>,
    /// Callers in the handshake, oldest first.
    strangers: BTreeSet<u64>,
    peers: BTreeMap<NodeId, Peer>,
    next_token: u64,
    pending: VecDeque<Event>,
    /// What the kernel called ready, kept for its memory.
    ready: Vec<(u64, EventFlags)>,
    scratch: Vec<u8>,
    /// No duty of the clock is due before.
    next_check: Instant,
    /// The process is out of descriptors: no accepting before.
    accept_again: Option<Instant>,
    refusals: (Instant, u32),
    isolated: bool,
    /// The loop ends at this time at the latest.
    stopping: Option<Instant>,
    farewell: bool,
}

impl Reactor {
    pub(crate) fn new(
        me: Hello,
        door: Door,
        options: Options,
        listener: TcpListener,
        shared: Arc<Shared>,
        faults: Arc<Faults>,
        events: Option<Sender<Event>>,
    ) -> std::io::Result<Reactor> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let read = EventFlags::IN;
        epoll::add(
            &epoll,
            shared.wake_fd(),
            EventData::new_u64(TOKEN_WAKE),
            read,
        )?;
        epoll::add(&epoll, &listener, EventData::new_u64(TOKEN_LISTENER), read)?;
        let now = Instant::now();
        Ok(Reactor {
            me,
            door,
            options,
            listener,
            epoll,
            shared,
            faults,
            events,
            slots: BTreeMap::new(),
            parked: BTreeMap::new(),
            strangers: BTreeSet::new(),
            peers: BTreeMap::new(),
            next_token: TOKEN_FIRST,
            pending: VecDeque::new(),
            ready: Vec::with_capacity(READY_MAX),
            scratch: vec![0; SCRATCH_BYTES],
            next_check: now,
            accept_again: None,
            refusals: (now, 0),
            isolated: false,
            stopping: None,
            farewell: false,
        })
    }

    pub(crate) fn run(mut self) {
        while !self.over() {
            let room = self.wait_for_room();
            self.turn(if room { TICK_MAX } else { Duration::ZERO });
        }
    }

    /// Waits for something to happen, for at most `timeout`, and does what is due.
    pub(crate) fn turn(&mut self, timeout: Duration) {
        let mut ready = core::mem::take(&mut self.ready);
        self.wait(&mut ready, timeout);
        for (token, flags) in ready.drain(..) {
            self.on_ready(token, flags);
            self.tell();
        }
        self.ready = ready;
        self.on_desk();
        self.on_time();
        self.tell();
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn take_event(&mut self) -> Option<Event> {
        self.pending.pop_front()
    }

    pub(crate) fn has_event(&self) -> bool {
        !self.pending.is_empty()
    }

    fn wait(&mut self, ready: &mut Vec<(u64, EventFlags)>, timeout: Duration) {
        let due = self.next_check.saturating_duration_since(Instant::now());
        let timeout = match self.events.is_none() && self.has_event() {
            true => Duration::ZERO,
            false => due.min(TICK_MAX).min(timeout),
        };
        let timeout = rustix::event::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; READY_MAX];
        match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok(count) => {
                ready.extend(events[..count].iter().map(|e| (e.data.u64(), e.flags)));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "epoll failed");
                std::thread::sleep(BACKLOG_SLICE);
            }
        }
    }

    /// True if the caller has taken every event; else waits a little for that.
    fn wait_for_room(&mut self) -> bool {
        let (Some(events), Some(event)) = (&self.events, self.pending.pop_front()) else {
            return true;
        };
        match events.send_timeout(event, BACKLOG_SLICE) {
            Ok(()) => self.tell(),
            Err(SendTimeoutError::Timeout(event)) => self.pending.push_front(event),
            Err(SendTimeoutError::Disconnected(_)) => self.pending.clear(),
        }
        self.pending.is_empty()
    }

    /// Gives the caller the events that its channel takes now.
    fn tell(&mut self) {
        let Some(events) = &self.events else { return };
        while let Some(event) = self.pending.pop_front() {
            match events.try_send(event) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => return self.pending.push_front(event),
                Err(TrySendError::Disconnected(_)) => self.pending.clear(),
            }
        }
    }

    /// Refusals cost the caller attention: strangers must not flood it.
    fn tell_refused(&mut self, addr: SocketAddr, error: Error) {
        tracing::debug!(%addr, %error, "refused");
        let now = Instant::now();
        if now.duration_since(self.refusals.0) >= Duration::from_secs(1) {
            self.refusals = (now, 0);
        }
        if self.refusals.1 < self.options.refusals_per_second {
            self.refusals.1 += 1;
            self.pending.push_back(Event::Refused { addr, error });
        }
    }

    fn on_ready(&mut self, token: u64, flags: EventFlags) {
        match token {
            TOKEN_WAKE => self.shared.clear_wake(),
            TOKEN_LISTENER => self.accept(),
            // The slot may be gone: an earlier event of this batch closed it.
            _ if self.parked.contains_key(&token) => {
                if let Some(stream) = self.parked.remove(&token) {
                    self.unpark(stream);
                }
            }
            _ => match self.slots.remove(&token) {
                Some(Conversation::Shake(shake)) => self.on_shake(token, shake, flags),
                Some(Conversation::Link(link)) => self.on_link(token, link, flags),
                None => {}
            },
        }
    }

    /// Looks at what the callers' threads left.
    pub(crate) fn on_desk(&mut self) {
        let mut desk = self.shared.desk();
        let dirty = core::mem::take(&mut desk.dirty);
        let forgotten = core::mem::take(&mut desk.forgotten);
        let isolation = core::mem::take(&mut desk.isolation_changed);
        let stop = desk.stop.take();
        let parked = core::mem::take(&mut desk.parked);
        drop(desk);
        if isolation {
            self.on_isolation();
        }
        forgotten
            .into_iter()
            .for_each(|(peer, unless)| self.on_forget(peer, unless));
        for peer in dirty {
            self.look_after(peer);
        }
        parked.into_iter().for_each(|stream| self.park(stream));
        if let Some(linger) = stop {
            let time = if linger {
                self.options.linger
            } else {
                Duration::ZERO
            };
            self.stopping = Some(Instant::now() + time);
            self.next_check = Instant::now();
        }
    }

    /// Duties of the clock.
    fn on_time(&mut self) {
        let now = Instant::now();
        if now < self.next_check {
            return;
        }
        self.next_check = now + TICK_MAX;
        if let Some(end) = self.stopping {
            self.soon(end);
        }
        let mut late = Vec::new();
        for (token, slot) in &self.slots {
            let due = match slot {
                Conversation::Shake(shake) => Some(shake.deadline),
                Conversation::Link(link) => {
                    link.stalled.map(|since| since + self.options.write_timeout)
                }
            };
            match due {
                Some(due) if due <= now => late.push(*token),
                Some(due) => self.next_check = self.next_check.min(due),
                None => {}
            }
        }
        late.into_iter().for_each(|token| self.on_late(token));
        let mut calls = Vec::new();
        for (id, peer) in &self.peers {
            match peer.retry_at {
                Some(at) if at <= now => calls.push(*id),
                Some(at) => self.next_check = self.next_check.min(at),
                None => {}
            }
        }
        calls.into_iter().for_each(|peer| self.look_after(peer));
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            self.watch_listener();
        }
    }

    /// A duty of the clock is due at `at`.
    fn soon(&mut self, at: Instant) {
        self.next_check = self.next_check.min(at);
    }

    /// True once everything that can be sent was, and the peers have seen the
    /// end, or the time for it is over.
    fn over(&mut self) -> bool {
        let Some(end) = self.stopping else {
            return false;
        };
        if Instant::now() >= end {
            return true;
        }
        let desk = self.shared.desk();
        let queued = |peer: &NodeId| desk.peers.get(peer).is_some_and(|d| !d.queue.is_empty());
        let links: Vec<&Link> = self
            .slots
            .values()
            .filter_map(|slot| match slot {
                Conversation::Link(link) => Some(&**link),
                Conversation::Shake(_) => None,
            })
            .collect();
        if links.is_empty() {
            return true;
        }
        let done = links
            .iter()
            .all(|l| l.drained() && !queued(&l.identity.peer));
        if done && !self.farewell {
            self.farewell = true;
            for link in links {
                let _ = link.socket.shutdown(std::net::Shutdown::Write);
            }
        }
        false
    }

    fn watch_listener(&mut self) {
        let open = self.accept_again.is_none() && !self.isolated;
        let flags = if open {
            EventFlags::IN
        } else {
            EventFlags::empty()
        };
        let data = EventData::new_u64(TOKEN_LISTENER);
        if let Err(error) = epoll::modify(&self.epoll, &self.listener, data, flags) {
            tracing::error!(%error, "the listener cannot be watched");
        }
    }

    fn watch(&self, token: u64, socket: &TcpStream, writing: bool) {
        let flags = if writing {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        };
        if let Err(error) = epoll::modify(&self.epoll, socket, EventData::new_u64(token), flags) {
            tracing::error!(%error, "a connection cannot be watched");
        }
    }

    fn fresh_token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token - 1
    }
}

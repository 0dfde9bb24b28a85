//! A rail over TCP between processes: one connection for each direction that is
//! used, opened on demand, non-blocking, one epoll instance, no thread.
//!
//! How a death is known. A process listens from the start to the end of its rail,
//! so the kernel of its host answers for it: a broken or refused connection is only
//! a hint, upon which the listener is called (again). *Refused* means that the
//! process is gone; no answer at all within [`Options::silence`] means that the host
//! is. A process that computes for hours answers, since its kernel does: late is not
//! dead. Who leaves says goodbye first.
//!
//! A caller proves with a keyed hash over the listener's fresh challenge that it
//! holds the job's key (P7) before a byte of a frame is read; data are not encrypted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
#[cfg(feature = "ucx")]
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error, Ports, Result, Time};
use rustix::event::{Timespec, epoll};

use crate::rail::frame::{Frame, Key};
use crate::rail::{Can, News, Rail};
use crate::socket::listen_within;

mod incoming;
mod outgoing;
pub(crate) mod proof;

use incoming::{Incoming, Read};
use outgoing::{Outgoing, Progress};
pub use proof::KEY_BYTES;

/// Most bytes that wait for one peer before machines are no longer pulled.
const QUEUE_BYTES: usize = 64 << 20;
/// Most connections that have not proved the key yet.
const STRANGERS_MAX: usize = 256;
/// Events taken at once.
const EVENTS: usize = 64;
const LISTENER: u64 = u64::MAX;
/// Outgoing connections have the peer as their token, incoming ones from here on.
const INCOMING: u64 = 1 << 32;

/// What can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// A host that answers no call for so long is dead.
    pub silence: Duration,
    /// The incarnation of the job.
    pub incarnation: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            silence: Duration::from_secs(10),
            incarnation: 0,
        }
    }
}

/// See the module.
pub struct Tcp {
    me: u32,
    addresses: Vec<SocketAddr>,
    key: [u8; KEY_BYTES],
    options: Options,
    start: Instant,
    listener: TcpListener,
    epoll: OwnedFd,
    outgoing: BTreeMap<u32, Outgoing>,
    incoming: BTreeMap<u64, Incoming>,
    next: u64,
    /// Who died or left.
    gone: Vec<bool>,
    news: VecDeque<News>,
    arrived: VecDeque<(u32, Frame)>,
    queued: usize,
}

/// A listener whose address is told to the others before the rail is made.
pub struct Listener(TcpListener);

impl Listener {
    /// Listens at `address` (port 0: any).
    ///
    /// # Errors
    /// [`Code::Network`] if the address cannot be used.
    pub fn bind(address: SocketAddr) -> Result<Listener> {
        let made = TcpListener::bind(address).and_then(Listener::ready);
        made.map_err(|error| network(address, "listen", &error))
    }
    /// Listens at one of these ports of an address.
    ///
    /// # Errors
    /// [`Code::Network`] if the address cannot be used, or all of the ports are.
    pub fn within(address: IpAddr, ports: Ports) -> Result<Listener> {
        let made = listen_within(address, ports).and_then(Listener::ready);
        made.map_err(|error| network(SocketAddr::new(address, 0), "listen", &error))
    }
    fn ready(listener: TcpListener) -> io::Result<Listener> {
        listener.set_nonblocking(true)?;
        Ok(Listener(listener))
    }
    /// Where it listens.
    ///
    /// # Errors
    /// [`Code::Network`] if the kernel does not say.
    pub fn address(&self) -> Result<SocketAddr> {
        let local = self.0.local_addr();
        local.map_err(|error| Error::internal(format!("address of a listener: {error}")))
    }
}

fn network(address: SocketAddr, doing: &str, error: &io::Error) -> Error {
    Error::new(
        Code::Network,
        Entity::Address(address.to_string()),
        format!("{doing}: {error}"),
        "choose an address of this node that the others reach",
    )
}

/// The frame that says goodbye: no engine has this protocol number.
const GOODBYE: u8 = u8::MAX;

impl Tcp {
    /// The rail of process `me`; `addresses` are those of all processes, by rank.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if `me` has no address, [`Code::Network`] if the
    /// kernel refuses an epoll instance.
    pub fn new(
        listener: Listener,
        me: u32,
        addresses: Vec<SocketAddr>,
        key: [u8; KEY_BYTES],
        options: Options,
    ) -> Result<Tcp> {
        let Some(own) = addresses.get(me as usize).copied() else {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Rank(me),
                outlive_base::count(addresses.len() as u64, "address"),
                "give one address per process",
            ));
        };
        let failed = |error: rustix::io::Errno| network(own, "epoll", &error.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener.0, data, epoll::EventFlags::IN).map_err(failed)?;
        Ok(Tcp {
            me,
            gone: vec![false; addresses.len()],
            addresses,
            key,
            options,
            start: Instant::now(),
            listener: listener.0,
            epoll,
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            next: INCOMING,
            news: VecDeque::new(),
            arrived: VecDeque::new(),
            queued: 0,
        })
    }

    /// Calls every other process now, so that a death is noticed at once.
    pub fn call_all(&mut self) {
        for peer in 0..self.addresses.len() as u32 {
            self.outgoing_to(peer);
        }
    }

    /// Calls `peer` if that was not done yet, so that its death is noticed.
    #[cfg(feature = "ucx")]
    pub(crate) fn call(&mut self, peer: u32) {
        self.outgoing_to(peer);
    }

    /// False once it has left or is known to be dead.
    #[cfg(feature = "ucx")]
    pub(crate) fn alive(&self, peer: u32) -> bool {
        self.gone.get(peer as usize) == Some(&false)
    }

    /// True once the process has answered a call: it lived then, and served its rail.
    #[cfg(feature = "ucx")]
    pub(crate) fn answered(&self, peer: u32) -> bool {
        self.outgoing.get(&peer).is_some_and(Outgoing::answered)
    }

    /// [`Rail::wait`] ends when this descriptor can be read, too.
    #[cfg(feature = "ucx")]
    pub(crate) fn also(&self, descriptor: BorrowedFd<'_>) -> Result<()> {
        // A token that no connection gets: its events only wake.
        let data = epoll::EventData::new_u64(LISTENER - 1);
        let added = epoll::add(&self.epoll, descriptor, data, epoll::EventFlags::IN);
        added.map_err(|error| network(self.addresses[self.me as usize], "epoll", &error.into()))
    }

    fn outgoing_to(&mut self, peer: u32) -> Option<&mut Outgoing> {
        if peer == self.me || *self.gone.get(peer as usize)? {
            return None;
        }
        let address = self.addresses[peer as usize];
        if !self.outgoing.contains_key(&peer) {
            let end = Instant::now() + self.options.silence;
            let fresh = Outgoing::call(address, end);
            self.outgoing.insert(peer, fresh);
            self.watch(peer);
        }
        self.outgoing.get_mut(&peer)
    }

    fn watch(&mut self, peer: u32) {
        let Some(out) = self.outgoing.get_mut(&peer) else {
            return;
        };
        if let Some(socket) = out.fresh_socket() {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            let data = epoll::EventData::new_u64(u64::from(peer));
            // A socket that cannot be watched is tried at every progress instead.
            let _ = epoll::add(&self.epoll, socket, data, flags);
        }
    }

    fn push(&mut self, peer: u32) {
        let (me, key) = (self.me, self.key);
        let Some(out) = self.outgoing.get_mut(&peer) else {
            return;
        };
        let before = out.queued();
        let progress = out.progress(me, &key, &self.options);
        self.queued = self.queued + out.queued() - before;
        match progress {
            Progress::Fine => {}
            Progress::Recalled => self.watch(peer),
            Progress::Dead => {
                self.hear_out(peer);
                self.bury(peer, News::Dead(peer));
            }
        }
    }

    /// Reads what is here of `peer`, or of who has not said who it is: a goodbye counts more than a
    /// listener that is closed.
    fn hear_out(&mut self, peer: u32) {
        let may_be = |one: &Incoming| one.from.is_none_or(|from| from == peer);
        let callers = self.incoming.iter().filter(|(_, one)| may_be(one));
        for token in callers.map(|(token, _)| *token).collect::<Vec<u64>>() {
            self.read(token);
        }
    }

    fn bury(&mut self, peer: u32, news: News) {
        if std::mem::replace(&mut self.gone[peer as usize], true) {
            return;
        }
        if let Some(out) = self.outgoing.remove(&peer) {
            self.queued -= out.queued();
        }
        self.news.push_back(news);
    }

    fn accept(&mut self) {
        while let Ok((socket, _)) = self.listener.accept() {
            let strangers = self.incoming.values().filter(|one| one.from.is_none());
            if strangers.count() >= STRANGERS_MAX {
                continue;
            }
            let Ok(incoming) = Incoming::greet(socket) else {
                continue;
            };
            let data = epoll::EventData::new_u64(self.next);
            if epoll::add(&self.epoll, incoming.socket(), data, epoll::EventFlags::IN).is_ok() {
                self.incoming.insert(self.next, incoming);
                self.next += 1;
            }
        }
    }

    fn read(&mut self, token: u64) {
        loop {
            let Some(incoming) = self.incoming.get_mut(&token) else {
                return;
            };
            let size = self.addresses.len() as u32;
            match incoming.read(&self.key, size) {
                Read::Later => return,
                Read::Frame(from, frame) if frame.key.protocol == GOODBYE => {
                    if frame.key.incarnation == self.options.incarnation {
                        self.bury(from, News::Left(from));
                    }
                }
                Read::Frame(from, frame) => self.arrived.push_back((from, frame)),
                Read::Ended => {
                    let from = incoming.from;
                    self.incoming.remove(&token);
                    if let Some(from) = from {
                        self.doubt(from);
                    }
                    return;
                }
            }
        }
    }

    /// [`Rail::leave`], of which `others` are told as well: whoever knows this process by another
    /// way, whose call may not have been answered yet.
    pub(crate) fn leave_also(&mut self, others: BTreeSet<u32>, bound: Duration) {
        let key = Key {
            comm: 0,
            sequence: 0,
            incarnation: self.options.incarnation,
            protocol: GOODBYE,
        };
        let callers = self.incoming.values().filter_map(|one| one.from);
        let known = self.outgoing.keys().copied().chain(callers);
        let peers: BTreeSet<u32> = known.chain(others).collect();
        for peer in peers {
            let (msg, body) = ([0; 32], None);
            self.send(peer, Frame { key, msg, body });
        }
        let end = Instant::now() + bound;
        while !self.flushed() && Instant::now() < end {
            let until = self.now() + Time::from_ms(20);
            self.wait(until);
            self.progress();
        }
    }

    /// A connection from or to `peer` broke: its listener is asked.
    pub(crate) fn doubt(&mut self, peer: u32) {
        if let Some(out) = self.outgoing.get_mut(&peer) {
            out.recall(Instant::now() + self.options.silence);
            self.watch(peer);
        } else {
            self.outgoing_to(peer);
        }
        self.push(peer);
    }

    fn events(&mut self, timeout: Duration) {
        let mut events = Vec::with_capacity(EVENTS);
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(3600) as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let spare = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&self.epoll, spare, Some(&timeout)).is_err() {
            return;
        }
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(),
                token if token >= INCOMING => self.read(token),
                peer => self.push(peer as u32),
            }
        }
    }

    fn progress(&mut self) {
        self.events(Duration::ZERO);
        let now = Instant::now();
        let overdue = self.outgoing.iter().filter(|(_, out)| out.overdue(now));
        for peer in overdue.map(|(peer, _)| *peer).collect::<Vec<_>>() {
            self.push(peer);
        }
    }
}

impl Rail for Tcp {
    fn me(&self) -> u32 {
        self.me
    }
    fn size(&self) -> u32 {
        self.addresses.len() as u32
    }
    fn name(&self) -> &'static str {
        "TCP"
    }
    fn can(&self) -> Can {
        Can {
            tells_deaths: true,
            ..Can::default()
        }
    }
    fn now(&self) -> Time {
        Time::from(self.start.elapsed())
    }
    fn ready(&self) -> bool {
        self.queued < QUEUE_BYTES
    }
    fn waiting(&self) -> usize {
        if self.queued == 0 {
            return 0;
        }
        let now = Instant::now();
        let moving = self.outgoing.values().filter(|out| !out.stalled(now));
        moving.map(Outgoing::queued).sum()
    }
    fn send(&mut self, to: u32, frame: Frame) {
        if let Some(out) = self.outgoing_to(to) {
            let before = out.queued();
            out.queue(frame);
            self.queued = self.queued + self.outgoing.get(&to).map_or(0, Outgoing::queued) - before;
            self.push(to);
        }
    }
    fn receive(&mut self) -> Option<(u32, Frame)> {
        if self.arrived.is_empty() {
            self.progress();
        }
        self.arrived.pop_front()
    }
    fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }
    fn wait(&mut self, until: Time) {
        if !self.arrived.is_empty() || !self.news.is_empty() {
            return;
        }
        let mut left = Duration::from_nanos(until.since(self.now()).0);
        let now = Instant::now();
        for out in self.outgoing.values() {
            if let Some(at) = out.attention() {
                left = left.min(at.saturating_duration_since(now));
            }
        }
        self.events(left);
    }
    fn flushed(&mut self) -> bool {
        self.queued == 0
    }
    fn leave(&mut self, bound: Duration) {
        self.leave_also(BTreeSet::new(), bound);
    }
}

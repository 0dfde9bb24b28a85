//! A rail over UCX between processes: active messages on endpoints that report the
//! failure of their peer, opened on demand, non-blocking, no thread of ours.
//!
//! How a death is known: as on the rail over TCP, and by its code. Each process keeps a
//! control connection of [`Tcp`] to those it sends to; what UCX says of a connection is a
//! hint, upon which the kernel of the other host is asked. A connection that broke between
//! two live processes is made anew and what UCX did not take is sent again; what it took
//! and lost is lost, as with a broken TCP connection, and the collective's bound ends the
//! call that waits for it.
//!
//! A frame proves with a keyed hash over its receiver's challenge that its sender holds the
//! job's key (P7), before it is parsed or room is made for its body. UCX's own handshakes
//! are not proved, and nothing is encrypted: its ports belong on a network of the cluster.
//!
//! UCX is opened at run time ([`Options::library`]); see `c/ucx.c` for why.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error, Result, Time};

use crate::rail::frame::{Frame, Key};
use crate::rail::tcp::proof::{self, CHALLENGE_BYTES, KEY_BYTES};
use crate::rail::tcp::{self, Listener, Tcp};
use crate::rail::{Can, News, Rail};

mod card;
mod envelope;
mod ffi;
mod incoming;
mod outgoing;
#[cfg(test)]
mod tests;

pub use card::CARD_BYTES_MAX;
use card::Card;
use envelope::{Gate, answer, seal};
use ffi::{Begun, Worker};
use incoming::Incoming;
use outgoing::{Outgoing, Sending};

/// Most bytes that wait before machines are no longer pulled, as over TCP.
const QUEUE_BYTES: usize = 64 << 20;
/// Most frames that UCX has on its hands before machines are no longer pulled.
const FLYING_MAX: usize = 4096;
/// Pause between two connections to a process that UCX did not reach.
const RETRY: Duration = Duration::from_millis(100);
/// Receives without a look at the control connections, which costs a system call.
const POLLS: u32 = 16;
/// Rounds without news after which nothing is on its way from a process that died ...
const QUIET: u32 = 16;
/// ... and most rounds until then.
const SETTLE: u32 = 1 << 16;
/// How long connections may take to be given up at the end.
const CLOSE: Duration = Duration::from_millis(200);
/// The frame with which a process makes itself known: no engine has this number.
const HELLO: u8 = u8::MAX - 1;

/// What can be set.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// As over TCP.
    pub control: tcp::Options,
    /// UCX's library, `libucp.so.0`; `None`: the one that the process has already loaded,
    /// else the system's. One for all rails of a process.
    pub library: Option<PathBuf>,
}

/// A worker whose card is told to the others before the rail is made.
pub struct Door {
    worker: Worker,
    listener: Listener,
    card: Card,
    options: Options,
}

impl Door {
    /// Opens UCX, with the transports that its own variables (`UCX_TLS`,
    /// `UCX_NET_DEVICES`, ...) allow; `listener` is where control connections come in.
    ///
    /// # Errors
    /// [`Code::NotFound`] without UCX, [`Code::PeerVersion`] if it is older than 1.11,
    /// [`Code::Config`] if its variables leave no transport, else what UCX says.
    pub fn open(listener: Listener, options: Options) -> Result<Door> {
        ffi::load(options.library.as_deref())?;
        let worker = Worker::open()?;
        let challenge = proof::challenge();
        let card = Card {
            control: listener.address()?,
            challenge: challenge.ok_or_else(|| Error::internal("no random bytes"))?,
            worker: worker.address(),
        };
        Ok(Door {
            worker,
            listener,
            card,
            options,
        })
    }
    /// What the others need to know: at most [`CARD_BYTES_MAX`] bytes, no secret.
    pub fn card(&self) -> Vec<u8> {
        self.card.encode()
    }
    /// What UCX warned of, for example of a transport in `UCX_TLS` that does not exist;
    /// empty if of nothing.
    pub fn warning(&self) -> &str {
        &self.worker.warning
    }
}

struct Flight {
    peer: u32,
    sequence: u64,
    /// Read by UCX until the send is over.
    sending: Arc<Sealed>,
}

struct Sealed {
    envelope: [u8; envelope::ENVELOPE_BYTES],
    sending: Sending,
}

/// See the module.
pub struct Ucx {
    // First: its end ends all that reads or writes the fields below.
    worker: Worker,
    control: Tcp,
    me: u32,
    incarnation: u32,
    key: [u8; KEY_BYTES],
    cards: Vec<Card>,
    outgoing: BTreeMap<u32, Outgoing>,
    incoming: Incoming,
    flights: BTreeMap<u64, Flight>,
    /// The process behind each connection.
    links: BTreeMap<u64, u32>,
    next: u64,
    arrived: VecDeque<(u32, Frame)>,
    news: VecDeque<News>,
    met: BTreeSet<u32>,
    /// Why UCX made no connection to a process when it was last tried.
    unreached: BTreeMap<u32, Error>,
    queued: usize,
    unflushed: bool,
    /// Connections that are to be tried again.
    down: bool,
    polls: u32,
}

fn bad_card(rank: usize, reason: String) -> Error {
    Error::new(
        Code::InvalidArgument,
        Entity::Rank(rank as u32),
        reason,
        "give the card of each process, by rank, all of one version of Outlive",
    )
}

impl Ucx {
    /// The rail of process `me`; `cards` are those of all processes, by rank.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if a card is none or `me` has another one,
    /// [`Code::Network`] if the kernel refuses an epoll instance.
    pub fn new(door: Door, me: u32, cards: &[Vec<u8>], key: [u8; KEY_BYTES]) -> Result<Ucx> {
        let decode = |(rank, bytes): (usize, &Vec<u8>)| {
            Card::decode(bytes).map_err(|error| bad_card(rank, format!("its card: {error}")))
        };
        let cards = cards.iter().enumerate().map(decode);
        let cards = cards.collect::<Result<Vec<_>>>()?;
        if cards.get(me as usize) != Some(&door.card) {
            return Err(bad_card(me as usize, "another card than its own".into()));
        }
        let Door {
            mut worker,
            listener,
            card,
            options,
        } = door;
        let addresses = cards.iter().map(|card| card.control).collect();
        let incarnation = options.control.incarnation;
        let control = Tcp::new(listener, me, addresses, key, options.control)?;
        control.also(worker.descriptor())?;
        worker.open_gate(Gate::open(key, card.challenge, cards.len()));
        Ok(Ucx {
            worker,
            control,
            me,
            incarnation,
            key,
            cards,
            outgoing: BTreeMap::new(),
            incoming: Incoming::default(),
            flights: BTreeMap::new(),
            links: BTreeMap::new(),
            next: 1,
            arrived: VecDeque::new(),
            news: VecDeque::new(),
            met: BTreeSet::new(),
            unreached: BTreeMap::new(),
            queued: 0,
            unflushed: false,
            down: false,
            polls: 0,
        })
    }

    /// Opens the control connections to every other process now, so that a death is noticed
    /// at once.
    pub fn call_all(&mut self) {
        self.control.call_all();
    }

    /// Connects to all others and hears of each, for at most `bound`: a process that is
    /// busy later need not be waited for then. Who is late or dead is not waited for
    /// longer. Called by all at about one time.
    ///
    /// # Errors
    /// [`Code::Config`] if UCX has no transport to a process that lives.
    pub fn meet(&mut self, bound: Duration) -> Result<()> {
        let size = self.size();
        self.greet((0..size).collect(), bound)
    }

    /// As [`Ucx::meet`], with the two neighbours alone: what is wrong with the transports
    /// shows, and the others are connected to when there is something for them.
    ///
    /// # Errors
    /// As for [`Ucx::meet`].
    pub fn meet_neighbours(&mut self, bound: Duration) -> Result<()> {
        let (me, size) = (self.me, self.size());
        self.greet(vec![(me + 1) % size, (me + size - 1) % size], bound)
    }

    fn greet(&mut self, mut peers: Vec<u32>, bound: Duration) -> Result<()> {
        peers.retain(|peer| *peer != self.me);
        let hello = self.sign(HELLO);
        for peer in &peers {
            self.send(*peer, hello.clone());
        }
        let end = Instant::now() + bound;
        loop {
            peers.retain(|peer| self.control.alive(*peer));
            let met = peers.iter().all(|peer| self.met.contains(peer));
            let flushed = self.flushed();
            if met && flushed {
                return Ok(());
            }
            // Both lived when that was tried: it is not their death.
            let refused = peers.iter().find_map(|peer| self.unreached.get(peer));
            let unfit = refused.filter(|error| error.code() == Code::Config);
            if let Some(error) = unfit.filter(|_| self.asked_again()) {
                return Err(error.clone());
            }
            if Instant::now() >= end {
                return Ok(());
            }
            let until = self.now() + Time::from_ms(20);
            self.sleep(until);
            self.listen();
        }
    }

    /// True if everyone who UCX did not reach has answered on the control connection since.
    fn asked_again(&self) -> bool {
        let mut peers = self.unreached.keys();
        peers.all(|peer| self.control.answered(*peer))
    }

    /// Messages that came from strangers, who do not hold the job's key.
    pub fn refused(&self) -> u64 {
        self.worker.refused()
    }

    fn sign(&self, protocol: u8) -> Frame {
        let key = Key {
            comm: 0,
            sequence: 0,
            incarnation: self.incarnation,
            protocol,
        };
        let (msg, body) = ([0; 32], None);
        Frame { key, msg, body }
    }

    fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Makes the connection to `peer` if there is none and one may be tried.
    fn connect(&mut self, peer: u32) {
        let token = self.token();
        let Some(out) = self.outgoing.get_mut(&peer) else {
            return;
        };
        // What a broken connection still held comes back first, to keep its place.
        let tried = out.retry.is_some_and(|at| at > Instant::now());
        // UCX is not asked to reach who may be dead: 1.13 ends the process if the other one
        // dies at the wrong moment of a set-up. Who has answered lives, or did a moment ago.
        if out.link.is_some() || out.flying > 0 || tried || !self.control.answered(peer) {
            self.down |= out.link.is_none();
            return;
        }
        let address = &self.cards[peer as usize].worker;
        match self.worker.connect(peer, address, token) {
            Ok(link) => {
                out.connected(link, token);
                self.links.insert(token, peer);
                self.unreached.remove(&peer);
            }
            // It may be gone: its host is asked.
            Err(error) => {
                self.unreached.insert(peer, error);
                self.broke(peer);
            }
        }
    }

    /// Hands frames that wait to UCX.
    fn post(&mut self, peer: u32) {
        loop {
            let token = self.token();
            let Some(out) = self.outgoing.get_mut(&peer) else {
                return;
            };
            let Some(link) = &out.link else {
                return;
            };
            let Some((sequence, sending)) = out.pending.pop_first() else {
                return;
            };
            let envelope = seal(&out.answer, out.place(sequence), &sending.header);
            let sealed = Arc::new(Sealed { envelope, sending });
            let data = &sealed.sending.data[..];
            let sending = Arc::clone(&sealed);
            self.flights.insert(
                token,
                Flight {
                    peer,
                    sequence,
                    sending,
                },
            );
            // SAFETY: the flight keeps both until UCX says that the send is over, and the
            // worker ends before the flights do.
            let begun = unsafe { self.worker.send(link, &sealed.envelope, data, token) };
            out.flying += 1;
            match begun {
                Begun::Later => {}
                Begun::Done => self.landed(token, true),
                Begun::Failed => {
                    self.landed(token, false);
                    return;
                }
            }
        }
    }

    /// A send is over.
    fn landed(&mut self, token: u64, taken: bool) {
        let Some(flight) = self.flights.remove(&token) else {
            return;
        };
        let bytes = flight.sending.sending.bytes();
        let Some(out) = self.outgoing.get_mut(&flight.peer) else {
            return; // of a process that is gone
        };
        out.flying -= 1;
        if taken {
            out.gone(bytes);
            self.queued -= bytes;
        } else {
            let sending = flight.sending.sending.clone();
            out.pending.insert(flight.sequence, sending);
            self.broke(flight.peer);
        }
    }

    /// The connection to `peer` is no good: it is given up, and its host is asked.
    fn broke(&mut self, peer: u32) {
        let Some(out) = self.outgoing.get_mut(&peer) else {
            return;
        };
        if out.link.is_none() && out.retry.is_some_and(|at| at > Instant::now()) {
            return;
        }
        self.links.remove(&out.token);
        if let Some(link) = out.disconnected(Instant::now() + RETRY) {
            self.unflushed = true;
            self.worker.disconnect(link);
        }
        self.down = true;
        self.control.doubt(peer);
    }

    /// One round of UCX, and what it told. True if something moved.
    fn turn(&mut self) -> bool {
        let mut moved = self.worker.progress();
        // What is told may be answered, which may tell more.
        while let Some(news) = self.worker.news() {
            self.take(news);
            moved = true;
        }
        if self.down {
            self.reconnect();
        }
        moved
    }

    fn take(&mut self, news: ffi::News) {
        for (token, taken) in news.sent {
            self.landed(token, taken);
        }
        for token in news.broken {
            if let Some(peer) = self.links.get(&token) {
                self.broke(*peer);
            }
        }
        let Ucx {
            incoming,
            worker,
            arrived,
            met,
            ..
        } = self;
        let mut give = |from, frame: Frame| {
            if frame.key.protocol == HELLO {
                met.insert(from);
            } else {
                arrived.push_back((from, frame));
            }
        };
        for arrival in news.arrivals {
            incoming.arrived(worker, arrival, &mut give);
        }
        for (token, length) in news.fetched {
            incoming.fetched(token, length, &mut give);
        }
    }

    fn reconnect(&mut self) {
        let now = Instant::now();
        let due = |out: &Outgoing| out.link.is_none() && out.retry.is_none_or(|at| at <= now);
        let due: Vec<u32> = self
            .outgoing
            .iter()
            .filter(|(_, out)| due(out))
            .map(|(peer, _)| *peer)
            .collect();
        for peer in due {
            self.connect(peer);
            self.post(peer);
        }
        self.down = self.outgoing.values().any(|out| out.link.is_none());
    }

    /// Looks at the control connections: who died, who left.
    fn listen(&mut self) {
        // Nothing but goodbyes travels there, which the rail below keeps.
        while self.control.receive().is_some() {}
        while let Some(news) = self.control.news() {
            let (News::Dead(peer) | News::Left(peer)) = news;
            self.settle(peer);
            self.news.push_back(news);
        }
    }

    /// What a process sent before it went is taken in; then its connection is given up.
    fn settle(&mut self, peer: u32) {
        let mut quiet = 0;
        for _ in 0..SETTLE {
            quiet = if self.turn() { 0 } else { quiet + 1 };
            if quiet > QUIET {
                break;
            }
        }
        let arrived = &mut self.arrived;
        self.incoming.end(peer, |from, frame| {
            if frame.key.protocol != HELLO {
                arrived.push_back((from, frame));
            }
        });
        if let Some(mut out) = self.outgoing.remove(&peer) {
            self.queued -= out.queued;
            self.links.remove(&out.token);
            if let Some(link) = out.disconnected(Instant::now()) {
                self.unflushed = true;
                self.worker.disconnect(link);
            }
        }
    }

    /// Waits until connections are closed and nothing is on its way, handshakes that others
    /// began included: UCX says so of a flush that is over as it begins.
    fn calm(&mut self, end: Instant) -> bool {
        loop {
            let moved = self.turn();
            if !self.worker.closing() && !self.worker.flushing() {
                self.worker.flush();
                if !self.worker.flushing() {
                    return true;
                }
            }
            if Instant::now() >= end {
                return false;
            }
            if !moved {
                std::thread::yield_now(); // to who has to answer
            }
        }
    }

    /// Sleeps until something may have happened.
    fn sleep(&mut self, until: Time) {
        let mut until = until;
        if self.down {
            let now = (self.now(), Instant::now());
            let retries = self.outgoing.values().filter_map(|out| out.retry);
            if let Some(next) = retries.min() {
                until = until.min(now.0 + Time::from(next.saturating_duration_since(now.1)));
            }
        }
        if self.worker.arm() {
            self.control.wait(until);
        }
        self.turn();
    }
}

impl Rail for Ucx {
    fn me(&self) -> u32 {
        self.me
    }
    fn size(&self) -> u32 {
        self.cards.len() as u32
    }
    fn name(&self) -> &'static str {
        "UCX"
    }
    fn can(&self) -> Can {
        self.control.can()
    }
    fn now(&self) -> Time {
        self.control.now()
    }
    fn ready(&self) -> bool {
        self.queued < QUEUE_BYTES && self.flights.len() < FLYING_MAX
    }
    fn waiting(&self) -> usize {
        if self.queued == 0 {
            return 0;
        }
        let now = Instant::now();
        let moving = self.outgoing.values().filter(|out| !out.stalled(now));
        moving.map(|out| out.queued).sum()
    }
    fn send(&mut self, to: u32, frame: Frame) {
        if to == self.me || !self.control.alive(to) {
            return;
        }
        if !self.outgoing.contains_key(&to) {
            self.control.call(to);
            let challenge: &[u8; CHALLENGE_BYTES] = &self.cards[to as usize].challenge;
            let Some(answer) = answer(&self.key, challenge, self.me) else {
                return; // the hash is compiled in
            };
            self.outgoing.insert(to, Outgoing::new(answer));
        }
        if let Some(out) = self.outgoing.get_mut(&to) {
            let sending = Sending::new(frame);
            self.queued += sending.bytes();
            out.queue(sending);
            self.unflushed = true;
            self.connect(to);
            self.post(to);
        }
    }
    fn receive(&mut self) -> Option<(u32, Frame)> {
        if self.arrived.is_empty() {
            self.turn();
            self.polls += 1;
            if self.polls >= POLLS {
                self.polls = 0;
                self.listen();
            }
        }
        self.arrived.pop_front()
    }
    fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }
    fn look(&mut self) {
        self.turn();
        self.listen();
    }
    fn wait(&mut self, until: Time) {
        if self.arrived.is_empty() && self.news.is_empty() {
            self.sleep(until);
            self.listen();
        }
    }
    fn flushed(&mut self) -> bool {
        if self.queued > 0 || self.worker.flushing() {
            self.turn();
            if self.down {
                self.listen();
            }
        }
        if self.queued > 0 || self.worker.flushing() {
            return false;
        }
        if std::mem::take(&mut self.unflushed) {
            self.worker.flush();
        }
        !self.worker.flushing()
    }
    fn leave(&mut self, bound: Duration) {
        let end = Instant::now() + bound;
        while !self.flushed() && Instant::now() < end {
            let until = self.now() + Time::from_ms(20);
            self.sleep(until);
            self.listen();
        }
        // The goodbye needs its time, too: without it they would take this for a death.
        let left = end.saturating_duration_since(Instant::now());
        let known = self.outgoing.keys().copied().chain(self.incoming.senders());
        let known = known.collect();
        self.control.leave_also(known, left.max(bound / 2));
    }
}

impl Drop for Ucx {
    fn drop(&mut self) {
        for out in std::mem::take(&mut self.outgoing).values_mut() {
            if let Some(link) = out.disconnected(Instant::now()) {
                self.worker.disconnect(link);
            }
        }
        let calm = self.calm(Instant::now() + CLOSE);
        if !calm || !self.flights.is_empty() || self.incoming.fetching() {
            // UCX 1.13 ends the process if a worker is closed with a rendezvous that its
            // sender gave up, or with an answer to a handshake that has not left. A guest
            // leaves such a worker open, and what it may touch.
            self.worker.keep();
            std::mem::forget(std::mem::take(&mut self.flights));
            std::mem::forget(std::mem::take(&mut self.incoming));
        }
    }
}

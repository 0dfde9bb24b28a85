//! A session with each rank that there is something to say to or to hear from, over TCP: it
//! is made when either of the two first needs it ([`Mesh::meet`]), and stays. Memory follows
//! the ranks in use, not those on the list.
//!
//! Invariants: no thread and no descriptor but sockets; every call is bounded
//! by the time given (P5); what arrives unasked is bounded by
//! [`MeshOptions::inbox_bytes_max`] for each peer; a connection that breaks, or
//! all of them at once because the kernel was replaced, is never an error, a
//! session that failed always is.

mod offer;
mod serve;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use outlive_base::{Code, Entity, Error, Time};

use super::conn::{Conn, End, Incomplete, MESSAGE_HEAD_BYTES, Stage};
use super::machine::{Config, Link, Session};
use super::sock::Sock;
use crate::handshake::Secret;
use crate::key::JobKey;
use crate::rail::frame::RANKS_MAX;

/// What a mesh needs to know.
#[derive(Clone, Debug)]
pub struct MeshOptions {
    /// This process.
    pub rank: u32,
    /// Where each rank listens, this one among them; at most [`RANKS_MAX`].
    pub addresses: Vec<SocketAddr>,
    /// The bounds of the sessions.
    pub session: Config,
    /// False for bare messages over TCP that end with the first broken
    /// connection: for comparison.
    pub reliable: bool,
    /// Bytes of complete messages that wait for a receiver, from each peer:
    /// beyond it the peer is read only while the program waits for it, and at
    /// four times as many the wait ends with an error. Default 256 MiB.
    pub inbox_bytes_max: usize,
    /// Bound of a call with its handshake. Default 3 s.
    pub call_timeout: Time,
}

/// A complete message.
#[derive(Debug)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// What kind of traffic it belongs to.
    pub fn context(&self) -> u32 {
        self.word(4)
    }
    /// The sender's tag.
    pub fn tag(&self) -> u32 {
        self.word(0)
    }
    /// The sender's bytes.
    pub fn body(&self) -> &[u8] {
        &self.bytes[MESSAGE_HEAD_BYTES..]
    }
    fn word(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.bytes[at..at + 4]);
        u32::from_le_bytes(word)
    }
}

/// What has happened so far, over all peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Links taken up.
    pub links: u64,
    /// Payloads that came again and were dropped.
    pub again: u64,
    /// Links cut for silence.
    pub silences: u64,
    /// Times that this process found it had been away.
    pub absences: u64,
    /// Times that all descriptors were found dead.
    pub rebirths: u64,
    /// Acknowledgements and signs of life sent alone.
    pub alive: u64,
}

struct Peer {
    session: Session,
    incomplete: Incomplete,
    inbox: VecDeque<Message>,
    inbox_bytes: usize,
    /// Plain only: the link that broke.
    broken: bool,
    /// What its address says that cannot be the peer: another key, or another version.
    refused: Option<Error>,
}

/// Bytes read from one connection before others have their turn.
const READ_BUDGET_BYTES: usize = 1 << 20;
/// No kernel is replaced in less.
const LOOK_EVERY: Time = Time(200_000);
/// Callers at once that have not shown who they are.
const STRANGERS_MAX: usize = 64;

/// What has come from a rank that was never met.
static NOTHING: VecDeque<Message> = VecDeque::new();

/// See the module.
pub struct Mesh {
    options: MeshOptions,
    secret: Secret,
    incarnation: u64,
    listener: Option<Sock>,
    peers: BTreeMap<u32, Peer>,
    conns: Vec<Conn>,
    links: u64,
    clock: Time,
    looked: Time,
    rebirths: u64,
}

/// The kernel's monotonic clock. It may jump when the kernel was replaced.
fn clock() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Time::from_secs(seconds) + Time(u64::try_from(now.tv_nsec).unwrap_or(0))
}

impl Mesh {
    /// Listens. `job_hash` keeps jobs apart that share a key.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for impossible options, [`Code::RankUnknown`]
    /// for a rank without an address, and what listening says.
    pub fn new(options: MeshOptions, key: JobKey, job_hash: u64) -> Result<Mesh, Error> {
        options.session.check()?;
        let address = options.addresses.get(options.rank as usize).copied();
        let address = address.ok_or_else(|| {
            Error::new(
                Code::RankUnknown,
                Entity::Rank(options.rank),
                format!(
                    "given for {} only",
                    outlive_base::count(options.addresses.len() as u64, "rank")
                ),
                "give every rank its line",
            )
        })?;
        if options.addresses.len() > RANKS_MAX as usize {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Call,
                format!("{} ranks", options.addresses.len()),
                format!("make it {RANKS_MAX} at most"),
            ));
        }
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::internal(format!("no random bytes: {error}")))?;
        let incarnation = u64::from_le_bytes(bytes).max(1);
        let now = clock();
        let alone = options.addresses.len() == 1;
        let listener = (!alone).then(|| Sock::listen(address)).transpose()?;
        Ok(Mesh {
            secret: Secret::shared(key, job_hash),
            incarnation,
            listener,
            peers: BTreeMap::new(),
            conns: Vec::new(),
            links: 0,
            clock: now,
            looked: now,
            rebirths: 0,
            options,
        })
    }

    /// The kernel's monotonic clock, which a new kernel sets back.
    pub(crate) fn clock(&self) -> Time {
        clock()
    }

    /// This process.
    pub fn rank(&self) -> u32 {
        self.options.rank
    }

    /// How many processes there are.
    pub fn size(&self) -> u32 {
        self.options.addresses.len() as u32
    }

    /// The ranks that were met, ascending.
    pub fn met(&self) -> impl Iterator<Item = u32> {
        self.peers.keys().copied()
    }

    /// The first one met from `rank` on.
    fn met_from(&self, rank: u32) -> Option<u32> {
        self.peers.range(rank..).next().map(|(rank, _)| *rank)
    }

    /// Makes the session with `peer`, a rank of the job, if there is none. To wait for its
    /// messages is to meet it first: whether it comes is watched from then on.
    pub fn meet(&mut self, peer: u32) {
        self.peer(peer);
    }

    fn peer(&mut self, peer: u32) -> &mut Peer {
        let Mesh {
            options,
            incarnation,
            peers,
            ..
        } = self;
        peers.entry(peer).or_insert_with(|| {
            let mut config = options.session.clone();
            if peer == options.rank || !options.reliable {
                config.window_bytes = 2 * (config.frame_bytes_max + super::frame::HEAD_BYTES);
            }
            Peer {
                session: Session::new(config, options.rank, peer, *incarnation, clock()),
                incomplete: Incomplete::default(),
                inbox: VecDeque::new(),
                inbox_bytes: 0,
                broken: false,
                refused: None,
            }
        })
    }

    /// Messages of `from` that wait, in order.
    pub fn inbox(&self, from: u32) -> &VecDeque<Message> {
        self.peers.get(&from).map_or(&NOTHING, |peer| &peer.inbox)
    }

    /// Takes the `index`-th waiting message of `from`.
    pub fn take(&mut self, from: u32, index: usize) -> Option<Message> {
        let peer = self.peers.get_mut(&from)?;
        let message = peer.inbox.remove(index)?;
        peer.inbox_bytes -= message.bytes.len();
        Some(message)
    }

    fn deliver(&mut self, from: u32, bytes: Vec<u8>) {
        let peer = self.peer(from);
        peer.inbox_bytes += bytes.len();
        peer.inbox.push_back(Message { bytes });
    }

    /// The error of a session that failed, if one did.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self, peer: u32) -> Result<(), Error> {
        let Some(state) = self.peers.get(&peer) else {
            return Ok(());
        };
        if let Some(error) = state.session.failed().or_else(|| state.refused.clone()) {
            return Err(error);
        }
        if state.broken && !state.session.bye_heard() {
            return Err(Error::new(
                Code::Network,
                Entity::Rank(peer),
                "the connection broke, and sessions are switched off",
                "run with sessions",
            ));
        }
        Ok(())
    }

    /// Reads, writes, calls and answers, and waits at most `wait` for something
    /// to do. `wanted` are the peers whose messages the program waits for.
    ///
    /// # Errors
    /// That of the first session that failed.
    pub fn progress(&mut self, wait: Time, wanted: impl Fn(u32) -> bool) -> Result<(), Error> {
        self.begin();
        for (peer, state) in &self.peers {
            // A bare connection may end once nobody needs it.
            if *peer != self.options.rank && (self.options.reliable || wanted(*peer)) {
                self.check(*peer)?;
            }
            if state.inbox_bytes / 4 > self.options.inbox_bytes_max && wanted(*peer) {
                return Err(Error::new(
                    Code::MemoryBudget,
                    Entity::Rank(*peer),
                    format!("{} bytes that nobody receives", state.inbox_bytes),
                    "receive in the order of sending, or raise inbox_bytes_max",
                ));
            }
        }
        self.turn(wait, wanted);
        Ok(())
    }

    /// Meets all ranks, so that it is noticed who does not come: of two the higher one calls.
    pub(crate) fn meet_all(&mut self) {
        let me = self.options.rank;
        for peer in (0..self.size()).filter(|peer| *peer != me) {
            let session = &mut self.peer(peer).session;
            if peer < me {
                session.hurry();
            }
        }
    }

    /// Bytes for `peer` that no link has taken yet.
    pub(crate) fn unsent_bytes(&self, peer: u32) -> usize {
        let peer = self.peers.get(&peer);
        peer.map_or(0, |peer| peer.session.unsent_bytes())
    }

    /// True once `peer` has said goodbye, and what it sent before has come.
    pub(crate) fn parted(&self, peer: u32) -> bool {
        let peer = self.peers.get(&peer);
        peer.is_some_and(|peer| peer.session.bye_heard())
    }

    /// Says goodbye to `peer` once it has everything.
    pub(crate) fn part(&mut self, peer: u32) {
        self.peer(peer).session.finish();
    }

    /// [`Mesh::progress`] where a session that failed holds up no other.
    pub(crate) fn go_on(&mut self, wait: Time) {
        self.begin();
        self.turn(wait, |_| true);
    }

    fn begin(&mut self) {
        self.clock = clock();
        self.tick();
        let mut next = self.met_from(0);
        while let Some(peer) = next {
            if peer != self.options.rank {
                self.write(peer);
            }
            next = self.met_from(peer + 1);
        }
    }

    fn turn(&mut self, wait: Time, wanted: impl Fn(u32) -> bool) {
        let events = self.wait(wait, &wanted);
        self.clock = clock();
        self.serve(&events);
    }

    /// Descriptors die together, and their numbers may name other files soon:
    /// one is looked at before any is used.
    fn look(&mut self) {
        let now = clock();
        if now >= self.looked && now.since(self.looked) < LOOK_EVERY {
            return;
        }
        self.looked = now;
        let one = self.listener.as_ref();
        let one = one.or_else(|| self.conns.first().map(|conn| &conn.sock));
        if one.is_some_and(|sock| !sock.ours()) {
            self.reborn();
        }
    }

    fn tick(&mut self) {
        let now = self.clock;
        self.look();
        if self.listener.is_none() && self.size() > 1 {
            let own = self.options.addresses[self.options.rank as usize];
            // The network may not be up yet: try again at the next tick.
            self.listener = Sock::listen(own).ok();
        }
        let (mut silent, mut uncalled) = (Vec::new(), Vec::new());
        for (rank, peer) in &mut self.peers {
            let settled = !self.options.reliable && peer.session.current().is_some();
            if *rank == self.options.rank || settled || peer.broken {
                continue;
            }
            silent.extend(peer.session.tick(now));
            if peer.session.wants_call() {
                uncalled.push(*rank);
            }
        }
        silent.into_iter().for_each(|link| self.close(link));
        uncalled.into_iter().for_each(|peer| self.call(peer));
        let mut at = 0;
        while at < self.conns.len() {
            let conn = &self.conns[at];
            let open = matches!(conn.stage, Stage::Open);
            // A clock that jumped back makes deadlines lie far ahead.
            let late = now >= conn.deadline || conn.deadline > now + self.options.call_timeout;
            if !open && late {
                self.end(at, End::Broken);
            } else {
                at += 1;
            }
        }
    }

    /// Calls `peer` now if there is something for it and no call was made yet.
    fn call_first(&mut self, peer: u32) {
        if self.peer(peer).session.wants_call() {
            self.clock = clock();
            self.look();
            self.call(peer);
        }
    }

    fn call(&mut self, peer: u32) {
        let link = self.new_link();
        let address = self.options.addresses[peer as usize];
        let session = &mut self.peer(peer).session;
        // The proof is made when the call stands: what it tells must be fresh.
        let _ = session.call(link);
        let Some(sock) = Sock::call(address) else {
            session.cut(link);
            return;
        };
        let deadline = self.clock + self.options.call_timeout;
        let plain = !self.options.reliable;
        let conn = Conn::new(sock, link, Some(peer), Stage::Connecting, deadline, plain);
        self.conns.push(conn);
    }

    fn new_link(&mut self) -> Link {
        self.links += 1;
        Link(self.links)
    }

    /// All descriptors are gone, or name what is not ours.
    fn reborn(&mut self) {
        self.rebirths += 1;
        self.listener = None;
        while !self.conns.is_empty() {
            self.end(0, End::Broken);
        }
    }

    fn close(&mut self, link: Link) {
        if let Some(at) = self.conns.iter().position(|conn| conn.link == link) {
            self.end(at, End::Broken);
        }
    }

    fn end(&mut self, at: usize, why: End) {
        let conn = self.conns.swap_remove(at);
        if let Some(peer) = conn.peer
            && let Some(state) = self.peers.get_mut(&peer)
        {
            if state.session.current() == Some(conn.link) {
                state.broken |= !self.options.reliable;
            }
            state.session.cut(conn.link);
            // What refuses is not authenticated: once met, a peer is only called again.
            if let End::Refused(failure) = why
                && state.session.counts().links == 0
            {
                state.refused = Some(failure.error(Entity::Rank(peer)));
            }
        }
        drop(conn);
        if why == End::Dead {
            self.reborn();
        }
    }

    /// Sends what the session with `peer` has.
    fn write(&mut self, peer: u32) {
        if !self.peer(peer).session.has_output() {
            return;
        }
        self.look();
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        let (Some(link), true) = (state.session.current(), state.session.has_output()) else {
            return;
        };
        let Some(at) = self.conns.iter().position(|conn| conn.link == link) else {
            return;
        };
        if let Err(end) = self.conns[at].write(&mut state.session) {
            self.end(at, end);
        }
    }

    /// Says goodbye to all peers and waits, at most `linger`, until they have
    /// everything and say so too.
    pub fn finish(&mut self, linger: Time) {
        let begin = clock();
        for peer in self.peers.values_mut() {
            peer.session.finish();
        }
        let open = |mesh: &Mesh| {
            mesh.peers.iter().any(|(peer, Peer { session, .. })| {
                // To whom there was never a connection, and nothing to say, nothing is said.
                let silent = session.bye_heard() || session.counts().links == 0;
                let through = session.ended() || (silent && session.drained());
                *peer != mesh.options.rank && !through && session.failed().is_none()
            })
        };
        if !self.options.reliable {
            return;
        }
        while open(self) && clock().since(begin) < linger {
            self.go_on(Time::from_ms(5));
        }
        // The last goodbyes are in the sockets or about to be.
        self.go_on(Time::ZERO);
    }

    /// What has happened so far.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            rebirths: self.rebirths,
            ..Totals::default()
        };
        for peer in self.peers.values() {
            let counts = peer.session.counts();
            totals.links += counts.links;
            totals.again += counts.again;
            totals.silences += counts.silences;
            totals.absences += counts.absences;
            totals.alive += counts.alive;
        }
        totals
    }

    /// Fault injection: ends the connection with `peer` as a broken network
    /// would, without telling this end's session first.
    pub fn break_link(&self, peer: u32) {
        let link = self.peers.get(&peer).map(|peer| peer.session.current());
        if let Some(conn) = self.conns.iter().find(|conn| Some(Some(conn.link)) == link) {
            conn.sock.shutdown();
        }
    }

    /// Fault injection: closes every descriptor under the library, as a new
    /// kernel does to a process whose memory survives.
    pub fn lose_descriptors(&self) {
        for conn in &self.conns {
            conn.sock.lose();
        }
        self.listener.iter().for_each(Sock::lose);
    }
}

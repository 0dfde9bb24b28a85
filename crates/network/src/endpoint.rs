//! The endpoint: one listening address, one thread, any number of peers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::Sender;
use outlive_base::{Code, Entity, Error, NodeId};

use crate::driven::Driver;
use crate::event::Event;
use crate::faults::Faults;
use crate::handshake::{Door, Established, Failure, Guests, Handshake, Progress, Secret};
use crate::identity::Identity;
use crate::key::JobKey;
use crate::options::Options;
use crate::reactor::Reactor;
use crate::shared::Shared;
use crate::socket;
use crate::stream::{Permit, Stream};
use crate::wire::{CLAIM_BYTES_MAX, Hello, Purpose, STREAM_HEADER_BYTES_MAX};

/// An agent's or launcher's place on the network. All methods may be called
/// from any thread; only [`Endpoint::open_stream`] and [`Endpoint::shutdown`]
/// block, within bounds.
pub struct Endpoint {
    identity: Identity,
    local: SocketAddr,
    door: Door,
    options: Options,
    shared: Arc<Shared>,
    faults: Arc<Faults>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Listens at `options.bind` and starts the endpoint's thread. `job_hash`
    /// and `key` must be the same at all peers.
    ///
    /// # Errors
    /// [`Code::AddressInUse`], [`Code::Permission`] or [`Code::Network`] if the
    /// address cannot be had; [`Code::InvalidArgument`] for a bound out of
    /// range; [`Code::Internal`] if the kernel refuses a descriptor or thread.
    pub fn bind(
        identity: Identity,
        job_hash: u64,
        key: JobKey,
        options: Options,
        events: Sender<Event>,
    ) -> Result<Endpoint, Error> {
        let door = Door::One(Secret::shared(key, job_hash));
        Endpoint::start(identity, door, options, events)
    }

    /// [`Endpoint::bind`] of one that calls a service ([`Endpoint::bind_service`]): `claim` says
    /// whose key it holds, in the clear, and is at most 64 bytes long.
    ///
    /// # Errors
    /// Those of [`Endpoint::bind`]; [`Code::InvalidArgument`] for a longer claim.
    pub fn bind_guest(
        identity: Identity,
        service: u64,
        (claim, key): (&str, JobKey),
        options: Options,
        events: Sender<Event>,
    ) -> Result<Endpoint, Error> {
        if claim.len() > CLAIM_BYTES_MAX {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Call,
                format!("a claim of {} bytes", claim.len()),
                format!("use at most {CLAIM_BYTES_MAX} bytes"),
            ));
        }
        let secret = Secret {
            claim: claim.into(),
            ..Secret::shared(key, service)
        };
        Endpoint::start(identity, Door::One(secret), options, events)
    }

    /// [`Endpoint::bind`] of a service, numbered `service`, that many call, each under a key of
    /// its own: `guests` says who makes a claim. It is asked in the endpoint's thread, for
    /// strangers too, and must not wait. A caller that speaks as another peer than its own is
    /// turned away with [`Code::KeyMismatch`]; a claim that nobody may make is answered as a wrong
    /// key is. The service sends to those that have called it, and calls nobody.
    ///
    /// # Errors
    /// Those of [`Endpoint::bind`].
    pub fn bind_service(
        identity: Identity,
        service: u64,
        guests: Guests,
        options: Options,
        events: Sender<Event>,
    ) -> Result<Endpoint, Error> {
        let job_hash = service;
        let door = Door::Each { job_hash, guests };
        Endpoint::start(identity, door, options, events)
    }

    fn start(
        identity: Identity,
        door: Door,
        options: Options,
        events: Sender<Event>,
    ) -> Result<Endpoint, Error> {
        let (mut endpoint, reactor) = Endpoint::prepare(identity, door, options, Some(events))?;
        let thread = std::thread::Builder::new()
            .name("outlive-network".into())
            .spawn(move || reactor.run())
            .map_err(|error| kernel("thread", &error))?;
        endpoint.thread = Some(thread);
        Ok(endpoint)
    }

    /// [`Endpoint::bind`] without a thread: the caller drives it, and takes the events
    /// from the driver.
    ///
    /// # Errors
    /// Those of [`Endpoint::bind`].
    pub fn bind_driven(
        identity: Identity,
        job_hash: u64,
        key: JobKey,
        options: Options,
    ) -> Result<(Endpoint, Driver), Error> {
        let door = Door::One(Secret::shared(key, job_hash));
        let (endpoint, reactor) = Endpoint::prepare(identity, door, options, None)?;
        Ok((endpoint, Driver::new(reactor)))
    }

    fn prepare(
        identity: Identity,
        door: Door,
        options: Options,
        events: Option<Sender<Event>>,
    ) -> Result<(Endpoint, Reactor), Error> {
        options.check()?;
        let listener = socket::listen(options.bind, options.ports)?;
        let local = listener
            .local_addr()
            .map_err(|error| kernel("local address", &error))?;
        let shared = Arc::new(Shared::new().map_err(|error| kernel("eventfd", &error))?);
        let faults = Arc::new(Faults::default());
        let me = Hello {
            identity,
            wanted: NodeId(0),
            port: local.port(),
        };
        let reactor = Reactor::new(
            me,
            door.clone(),
            options.clone(),
            listener,
            shared.clone(),
            faults.clone(),
            events,
        )
        .map_err(|error| kernel("epoll", &error))?;
        let endpoint = Endpoint {
            identity,
            local,
            door,
            options,
            shared,
            faults,
            thread: None,
        };
        Ok((endpoint, reactor))
    }

    /// Where it listens, with the port that the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Who it speaks as.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Says where a peer listens. The first [`Endpoint::send`] connects; a lost
    /// connection is made again, with growing delays, until
    /// [`Endpoint::forget`]. Takes a forgotten peer back.
    pub fn set_address(&self, peer: NodeId, addr: SocketAddr) {
        let mut desk = self.shared.desk();
        let entry = desk.peers.entry(peer).or_default();
        entry.address = Some(addr);
        entry.address_given = true;
        entry.forgotten = false;
        desk.dirty.insert(peer);
        drop(desk);
        self.shared.wake();
    }

    /// Closes connections with a peer that is dead or replaced, drops what is
    /// queued, does not connect again and refuses the same epoch from now on; a
    /// newer epoch may come. No [`Event::Down`] is told. Messages that had
    /// arrived before may still be in the channel.
    pub fn forget(&self, peer: NodeId) {
        let mut desk = self.shared.desk();
        let entry = desk.peers.entry(peer).or_default();
        entry.clear_queue();
        entry.address = None;
        entry.address_given = false;
        entry.wanted = false;
        entry.linked = None;
        entry.renewed = true;
        entry.meant_for = 0;
        entry.forgotten = true;
        desk.forgotten.insert(peer, u64::MAX);
        drop(desk);
        self.shared.wake();
    }

    /// A peer of epoch `epoch` or newer takes the place of an older one and listens at
    /// `addr`: [`Endpoint::forget`] and [`Endpoint::set_address`] in one, but a
    /// connection that the newer one has made already stays, and messages sent from
    /// now on are for it alone.
    pub fn replace(&self, peer: NodeId, epoch: u64, addr: SocketAddr) {
        let mut desk = self.shared.desk();
        let entry = desk.peers.entry(peer).or_default();
        let there = entry.linked.is_some_and(|linked| linked >= epoch);
        if !there {
            entry.clear_queue();
            entry.wanted = false;
            entry.linked = None;
            entry.renewed = true;
        }
        entry.meant_for = entry.meant_for.max(epoch);
        entry.address = Some(addr);
        entry.address_given = true;
        entry.forgotten = false;
        if !there {
            desk.forgotten.insert(peer, epoch);
        }
        desk.dirty.insert(peer);
        drop(desk);
        self.shared.wake();
    }

    /// Queues a message; never blocks. Delivered at most once and in order while
    /// a connection lasts. Messages still queued when it breaks wait for the
    /// next one, unless a newer epoch of the peer comes: it gets none of them.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if the message is longer than
    /// `message_bytes_max` or for the peer itself; [`Code::AgentUnreachable`] if
    /// there is neither a connection nor an address; [`Code::Network`] if the
    /// queue is full (`queue_messages_max`, `queue_bytes_max`).
    pub fn send(&self, peer: NodeId, message: &[u8]) -> Result<(), Error> {
        self.post(peer, message)?;
        self.shared.wake();
        Ok(())
    }

    /// [`Endpoint::send`], but the message may wait for the next one that is sent, or for
    /// [`Endpoint::flush`]: messages that are posted together wake the endpoint's thread
    /// once, and those for one peer leave together.
    ///
    /// # Errors
    /// Those of [`Endpoint::send`].
    pub fn post(&self, peer: NodeId, message: &[u8]) -> Result<(), Error> {
        if message.len() > self.options.message_bytes_max || peer == self.identity.peer {
            return Err(Error::new(
                Code::InvalidArgument,
                entity(peer),
                format!(
                    "a message of {} bytes, of at most {} (message_bytes_max) to another peer",
                    message.len(),
                    self.options.message_bytes_max
                ),
                "use a stream for bulk data",
            ));
        }
        let mut desk = self.shared.desk();
        let entry = match desk.peers.get_mut(&peer) {
            Some(entry) if entry.linked.is_some() || entry.address.is_some() => entry,
            _ => return Err(unknown(peer)),
        };
        if self.faults.isolated() {
            return Ok(());
        }
        if entry.queue.len() >= self.options.queue_messages_max
            || entry.queued_bytes + message.len() > self.options.queue_bytes_max
        {
            return Err(Error::new(
                Code::Network,
                entity(peer),
                format!(
                    "{} messages wait already (queue_messages_max)",
                    entry.queue.len()
                ),
                "wait until the peer takes them, or forget the peer",
            ));
        }
        entry.wanted = true;
        entry.queued_bytes += message.len();
        entry.queue.push_back(message.to_vec());
        desk.dirty.insert(peer);
        desk.posted = true;
        Ok(())
    }

    /// Lets messages that were posted leave.
    pub fn flush(&self) {
        if std::mem::take(&mut self.shared.desk().posted) {
            self.shared.wake();
        }
    }

    /// How many messages wait for this peer: what `send` is bounded by.
    pub fn queued(&self, peer: NodeId) -> usize {
        self.shared
            .desk()
            .peers
            .get(&peer)
            .map_or(0, |entry| entry.queue.len())
    }

    /// How many control connections stand.
    pub fn connections(&self) -> usize {
        let desk = self.shared.desk();
        let standing = desk.peers.values().filter(|peer| peer.linked.is_some());
        standing.count()
    }

    /// Opens a bulk connection of its own; blocks at most `connect_timeout` +
    /// `handshake_timeout`. Returns once the peer has accepted it; the peer
    /// meets it as [`Event::Stream`].
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if the header is longer than
    /// [`STREAM_HEADER_BYTES_MAX`]; [`Code::AgentUnreachable`],
    /// [`Code::AgentTimeout`], [`Code::KeyMismatch`], [`Code::PeerVersion`] or
    /// [`Code::Network`] as in [`Event::Refused`].
    pub fn open_stream(&self, peer: NodeId, header: &[u8]) -> Result<Stream, Error> {
        if header.len() > STREAM_HEADER_BYTES_MAX {
            return Err(Error::new(
                Code::InvalidArgument,
                entity(peer),
                format!("a stream header of {} bytes", header.len()),
                format!("use at most {STREAM_HEADER_BYTES_MAX} bytes"),
            ));
        }
        let addr = self
            .shared
            .desk()
            .peers
            .get(&peer)
            .and_then(|entry| entry.address);
        let addr = addr.ok_or_else(|| unknown(peer))?;
        let permit = Permit::take(&self.faults, self.options.streams_max).ok_or_else(|| {
            Error::new(
                Code::Network,
                entity(peer),
                format!(
                    "{} streams are open (streams_max)",
                    self.options.streams_max
                ),
                "close streams first",
            )
        })?;
        let (socket, done) = self
            .call(peer, addr, header)
            .map_err(|failure| failure.error(Entity::Address(addr.to_string())))?;
        let peer = done.identity();
        let cipher = (done.purpose == Purpose::SealedStream).then_some(done.cipher);
        Stream::new(socket, peer, addr, cipher, permit, &self.options)
            .map_err(|error| kernel("socket options", &error))
    }

    /// Leaves a stream, of which everything was read, until the peer uses it again or ends
    /// it: then it comes as [`Event::Stream`] with an empty header. One of a peer is kept,
    /// the newest, until the peer is forgotten or replaced.
    pub fn park(&self, stream: Stream) {
        self.park_later(stream);
        self.shared.wake();
    }

    /// [`Endpoint::park`], which wakes nobody: it is watched from the next turn of the loop on.
    pub fn park_later(&self, stream: Stream) {
        self.shared.desk().parked.push(stream);
    }

    /// A whole handshake with blocking reads, each bounded by what is left of
    /// the time.
    fn call(
        &self,
        peer: NodeId,
        addr: SocketAddr,
        header: &[u8],
    ) -> Result<(TcpStream, Established), Failure> {
        let own = self.door.own().cloned();
        let secret = own.ok_or(Failure::Ours("a service calls nobody"))?;
        if !self.faults.wait_healed(self.options.connect_timeout) {
            return Err(Failure::Timeout);
        }
        let mut socket = TcpStream::connect_timeout(&addr, self.options.connect_timeout)
            .map_err(|error| read_failure(&error))?;
        socket::tune(&socket, &self.options).map_err(|_| Failure::Ours("socket options"))?;
        let purpose = if self.options.encrypt_streams {
            Purpose::SealedStream
        } else {
            Purpose::Stream
        };
        let mine = Hello {
            identity: self.identity,
            wanted: peer,
            port: self.local.port(),
        };
        let deadline = Instant::now() + self.options.handshake_timeout;
        let mut out = Vec::new();
        let mut handshake = Handshake::call(secret, mine, purpose, header, &mut out)?;
        let mut input = [0; 512];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::Timeout);
            }
            socket
                .set_read_timeout(Some(left))
                .and_then(|()| socket.set_write_timeout(Some(left)))
                .map_err(|_| Failure::Ours("socket time-outs"))?;
            // A handshake message is far smaller than a socket's buffer.
            socket
                .write_all(&out)
                .map_err(|error| read_failure(&error))?;
            out.clear();
            let wants = handshake.wants().min(input.len());
            let count = match socket.read(&mut input[..wants]) {
                Ok(0) => return Err(Failure::Closed),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(read_failure(&error)),
            };
            if let Progress::Done(done) = handshake.feed(&input[..count], &mut out)? {
                return Ok((socket, *done));
            }
        }
    }

    /// Fault injection: while on, nothing comes in or goes out. Messages sent or
    /// arriving meanwhile are lost, streams and calls wait within their bounds,
    /// TCP connections stay open, and the end of one is told only afterwards.
    pub fn isolate(&self, on: bool) {
        self.faults.isolate(on);
        let mut desk = self.shared.desk();
        desk.isolation_changed = true;
        if on {
            desk.peers
                .values_mut()
                .for_each(crate::shared::PeerDesk::clear_queue);
        }
        drop(desk);
        self.shared.wake();
    }

    /// Fault injection: every stream of this endpoint moves at most this many
    /// bytes per second in each direction; `None` for full speed.
    pub fn slow(&self, bytes_per_second: Option<u64>) {
        self.faults.set_rate(bytes_per_second);
    }

    /// How many streams are open.
    pub fn streams_open(&self) -> usize {
        self.faults.streams.load(Ordering::Relaxed)
    }

    /// Hands queued messages to the kernel, for at most `linger`, closes every
    /// connection and ends the thread. Dropping does the same without lingering.
    /// Open streams belong to their holders and stay. Of an endpoint that is driven, the
    /// connections end with the driver.
    pub fn shutdown(mut self) {
        self.stop(true);
    }

    fn stop(&mut self, linger: bool) {
        if let Some(thread) = self.thread.take() {
            self.shared.desk().stop = Some(linger);
            self.shared.wake();
            // The loop never blocks, so this is bounded by `linger`.
            if thread.join().is_err() {
                tracing::error!("the network thread has panicked");
            }
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop(false);
    }
}

/// The peer as an error's entity.
pub(crate) fn entity(peer: NodeId) -> Entity {
    if peer == NodeId::LAUNCHER {
        Entity::Address("launcher".into())
    } else {
        Entity::Node(peer.0)
    }
}

fn unknown(peer: NodeId) -> Error {
    Error::new(
        Code::AgentUnreachable,
        entity(peer),
        "no connection and no address",
        "wait until the peer has connected, or set its address",
    )
}

fn kernel(what: &str, error: &std::io::Error) -> Error {
    Error::new(
        Code::Network,
        Entity::Call,
        format!("{what}: {error}"),
        "check the limits of the process (ulimit -a)",
    )
}

/// An error of a socket during the handshake.
pub(crate) fn read_failure(error: &std::io::Error) -> Failure {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::Timeout,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Failure::Closed,
        kind => Failure::Unreachable(kind),
    }
}

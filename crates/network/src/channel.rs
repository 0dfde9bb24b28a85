//! A connection between a client and a service that many jobs share: over TCP or, on one machine,
//! over a Unix socket. Each job's key lets in its own clients alone.
//!
//! The caller names its job in the clear, then both ends prove to each other that they hold that
//! job's key, by the handshake of all connections. A job that the service does not know is
//! answered like a wrong key: strangers learn nothing of who is served.
//!
//! ```text
//! caller                                            service
//!   "OLCH" version:u16 length:u8 job       ---->
//!   handshake                              <--->    handshake
//!   record {message}, bytes, ...           <--->    record {message}, bytes, ...
//! ```
//!
//! A *message* is one sealed record. *Bytes* that a message announces follow it as they are, or
//! in sealed records if the caller wanted that. One thread at a time uses a channel.
//!
//! Invariants: nothing is read beyond what was asked for, so that a descriptor arrives with the
//! byte that carries it; no call waits without asking its [`Patience`]; what is held for a
//! stranger is bounded.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outlive_base::wire::Writer;
use outlive_base::{Entity, Error, NodeId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::handshake::{Cipher, Established, FIRST_NONCE, Failure, Handshake, Progress, Secret};
use crate::identity::Identity;
use crate::key::JobKey;
use crate::options::Options;
use crate::socket;
use crate::wire::{Hello, Purpose, RECORD_BYTES_MAX, TAG_BYTES, Verdict};

/// Longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = RECORD_BYTES_MAX - TAG_BYTES;
/// Longest name of a job, in bytes.
pub const JOB_BYTES_MAX: usize = 255;

const MAGIC: [u8; 4] = *b"OLCH";
const VERSION: u16 = 1;
/// Plain bytes in one record, where bytes are sealed.
const SEALED_CHUNK_BYTES: usize = 32 * 1024;
/// A wait asks its patience at least this often.
const SLICE: Duration = Duration::from_millis(250);

/// Decides how long a wait lasts: it is asked at least four times a second, with the time since a
/// byte moved last, and ends the wait by an error.
pub type Patience<'a> = &'a mut dyn FnMut(Duration) -> io::Result<()>;

/// The patience that gives up after `bound` without a byte.
pub fn within(bound: Duration) -> impl FnMut(Duration) -> io::Result<()> {
    move |idle| {
        if idle < bound {
            return Ok(());
        }
        Err(io::Error::new(
            ErrorKind::TimedOut,
            format!("silent for {} ms", bound.as_millis()),
        ))
    }
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        }
    }
}

/// One end of an authenticated connection.
pub struct Channel {
    socket: Socket,
    cipher: Cipher,
    seal_nonce: u64,
    open_nonce: u64,
    /// Bytes travel in sealed records too.
    sealed: bool,
    record: Vec<u8>,
    plain: Vec<u8>,
}

impl core::fmt::Debug for Channel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Channel").finish_non_exhaustive()
    }
}

/// The number that binds a handshake to a job's name and to this kind of connection (FNV-1a): a
/// message of an agent's connection under the same key is none of these.
fn hash_of(job: &str) -> u64 {
    let bytes = b"outlive-channel\0".iter().chain(job.as_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn hello() -> Hello {
    let identity = Identity {
        peer: NodeId(0),
        epoch: 1,
    };
    Hello {
        identity,
        wanted: NodeId(0),
        port: 0,
    }
}

fn secret(job: &str, key: &JobKey) -> Secret {
    // The job was named before the handshake begins, and its number stands for the name.
    Secret::shared(key.clone(), hash_of(job))
}

impl Channel {
    /// Connects over TCP and proves the key, all within `bound`. With `sealed`, bytes are
    /// encrypted as messages always are.
    ///
    /// # Errors
    /// Those of a connection between agents: [`outlive_base::Code::KeyMismatch`],
    /// [`outlive_base::Code::PeerVersion`], [`outlive_base::Code::AgentTimeout`],
    /// [`outlive_base::Code::AgentUnreachable`], [`outlive_base::Code::Network`].
    pub fn call(
        addr: SocketAddr,
        job: &str,
        key: &JobKey,
        sealed: bool,
        bound: Duration,
    ) -> Result<Channel, Error> {
        let until = Instant::now() + bound;
        let made = TcpStream::connect_timeout(&addr, bound)
            .map_err(|error| Failure::Unreachable(error.kind()))
            .and_then(|socket| Channel::shake(tcp(socket)?, job, key, sealed, until));
        made.map_err(|failure| failure.error(Entity::Address(addr.to_string())))
    }

    /// As [`Channel::call`], over a Unix socket that is connected already.
    ///
    /// # Errors
    /// Those of [`Channel::call`].
    pub fn call_unix(
        socket: UnixStream,
        job: &str,
        key: &JobKey,
        bound: Duration,
    ) -> Result<Channel, Error> {
        let until = Instant::now() + bound;
        let made = unix(socket).and_then(|it| Channel::shake(it, job, key, false, until));
        made.map_err(|failure| failure.error(Entity::Address("the Unix socket".into())))
    }

    fn shake(
        socket: Socket,
        job: &str,
        key: &JobKey,
        sealed: bool,
        until: Instant,
    ) -> Result<Channel, Failure> {
        let length = u8::try_from(job.len()).map_err(|_| Failure::Ours("name above its bound"))?;
        let purpose = if sealed {
            Purpose::SealedStream
        } else {
            Purpose::Stream
        };
        let mut out = Writer::new();
        out.raw(&MAGIC).u16(VERSION).u8(length).raw(job.as_bytes());
        let mut out = out.into_vec();
        let mut shake = Handshake::call(secret(job, key), hello(), purpose, &[], &mut out)?;
        send(&socket, &out, &mut before(until)).map_err(told)?;
        loop {
            out.clear();
            let input = wanted(&socket, &shake, until)?;
            if let Progress::Done(done) = shake.feed(&input, &mut out)? {
                return Ok(Channel::new(socket, *done));
            }
            send(&socket, &out, &mut before(until)).map_err(told)?;
        }
    }

    /// Hears a caller over TCP: its job is looked up by `key_of`, and it must prove that job's
    /// key, all within `bound`. Gives the channel and the job's name.
    ///
    /// # Errors
    /// Those of [`Channel::call`].
    pub fn accept(
        socket: TcpStream,
        addr: SocketAddr,
        key_of: &dyn Fn(&str) -> Option<Arc<JobKey>>,
        bound: Duration,
    ) -> Result<(Channel, String), Error> {
        let until = Instant::now() + bound;
        let heard = tcp(socket).and_then(|socket| Channel::hear(socket, key_of, until));
        heard.map_err(|failure| failure.error(Entity::Address(addr.to_string())))
    }

    /// As [`Channel::accept`], over a Unix socket.
    ///
    /// # Errors
    /// Those of [`Channel::call`].
    pub fn accept_unix(
        socket: UnixStream,
        key_of: &dyn Fn(&str) -> Option<Arc<JobKey>>,
        bound: Duration,
    ) -> Result<(Channel, String), Error> {
        let until = Instant::now() + bound;
        let heard = unix(socket).and_then(|socket| Channel::hear(socket, key_of, until));
        heard.map_err(|failure| failure.error(Entity::Address("the Unix socket".into())))
    }

    fn hear(
        socket: Socket,
        key_of: &dyn Fn(&str) -> Option<Arc<JobKey>>,
        until: Instant,
    ) -> Result<(Channel, String), Failure> {
        let mut head = [0; MAGIC.len() + 3];
        receive(&socket, &mut head, &mut before(until)).map_err(told)?;
        let [version_low, version_high, length] = head[MAGIC.len()..] else {
            return Err(Failure::NotOurs);
        };
        let version = u16::from_le_bytes([version_low, version_high]);
        if head[..MAGIC.len()] != MAGIC {
            return Err(Failure::NotOurs);
        }
        if version != VERSION {
            return Err(Failure::Version(version));
        }
        let mut name = vec![0; usize::from(length)];
        receive(&socket, &mut name, &mut before(until)).map_err(told)?;
        let job = String::from_utf8(name).map_err(|_| Failure::NotOurs)?;
        let key = match key_of(&job) {
            Some(key) => key,
            // Nobody holds it: the handshake fails as it does with a wrong key.
            None => Arc::new(
                JobKey::generate()
                    .map_err(|_| Failure::Ours("the kernel gives no random bytes"))?,
            ),
        };
        let mut shake = Handshake::listen(secret(&job, &key), hello());
        let mut out = Vec::new();
        loop {
            out.clear();
            let input = wanted(&socket, &shake, until)?;
            let fed = shake.feed(&input, &mut out);
            let done = match fed {
                Ok(Progress::Decide) => shake.answer(Verdict::Accept, &mut out)?,
                Ok(_) => None,
                Err(failure) => {
                    // A refusal that names the reason goes as far as it gets.
                    let _ = send(&socket, &out, &mut before(until));
                    return Err(failure);
                }
            };
            send(&socket, &out, &mut before(until)).map_err(told)?;
            match done {
                // Both stand for what travels after them; the others are another protocol's.
                Some(done) if matches!(done.purpose, Purpose::Stream | Purpose::SealedStream) => {
                    return Ok((Channel::new(socket, done), job));
                }
                Some(_) => return Err(Failure::NotOurs),
                None => {}
            }
        }
    }

    fn new(socket: Socket, done: Established) -> Channel {
        Channel {
            socket,
            sealed: done.purpose == Purpose::SealedStream,
            cipher: done.cipher,
            seal_nonce: FIRST_NONCE,
            open_nonce: FIRST_NONCE,
            record: Vec::new(),
            plain: Vec::new(),
        }
    }

    /// Whether bytes travel encrypted, as messages always do.
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// True if the other end has closed, or sent what nobody reads now: for one that waits for
    /// something else.
    pub fn is_over(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = rustix::net::recv(&self.socket, &mut [0; 1][..], flags);
        !matches!(peeked, Err(Errno::AGAIN | Errno::INTR))
    }

    /// Sends one message, of at most [`MESSAGE_BYTES_MAX`].
    ///
    /// # Errors
    /// What the kernel or the patience says; the channel is of no use after that.
    pub fn send(&mut self, message: &[u8], patience: Patience<'_>) -> io::Result<()> {
        self.record.clear();
        self.cipher
            .seal(self.seal_nonce, message, &mut self.record)
            .map_err(|_| io::Error::other("a message above its bound"))?;
        self.seal_nonce += 1;
        send(&self.socket, &self.record, patience)
    }

    /// Receives one message.
    ///
    /// # Errors
    /// As [`Channel::send`]; [`ErrorKind::UnexpectedEof`] if the other end has closed.
    pub fn receive(&mut self, patience: Patience<'_>) -> io::Result<Vec<u8>> {
        self.open_record(patience)?;
        Ok(std::mem::take(&mut self.plain))
    }

    fn open_record(&mut self, patience: Patience<'_>) -> io::Result<()> {
        let mut length = [0; 2];
        receive(&self.socket, &mut length, patience)?;
        self.record.clear();
        self.record
            .resize(usize::from(u16::from_le_bytes(length)), 0);
        receive(&self.socket, &mut self.record, patience)?;
        self.plain.clear();
        let opened = self
            .cipher
            .open(self.open_nonce, &self.record, &mut self.plain);
        self.open_nonce += 1;
        opened.map_err(|_| io::Error::new(ErrorKind::InvalidData, "a record was damaged"))
    }

    /// Sends bytes that a message has announced.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn send_bytes(&mut self, bytes: &[u8], patience: Patience<'_>) -> io::Result<()> {
        if !self.sealed {
            return send(&self.socket, bytes, patience);
        }
        bytes
            .chunks(SEALED_CHUNK_BYTES)
            .try_for_each(|chunk| self.send(chunk, patience))
    }

    /// Receives as many bytes as `out` is long.
    ///
    /// # Errors
    /// As [`Channel::receive`].
    pub fn receive_bytes(&mut self, out: &mut [u8], patience: Patience<'_>) -> io::Result<()> {
        if !self.sealed {
            return receive(&self.socket, out, patience);
        }
        for chunk in out.chunks_mut(SEALED_CHUNK_BYTES) {
            self.open_record(patience)?;
            if self.plain.len() != chunk.len() {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    "a record of another length",
                ));
            }
            chunk.copy_from_slice(&self.plain);
        }
        Ok(())
    }

    /// Hands a descriptor over, with a byte of its own. Unix sockets only.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn send_descriptor(
        &mut self,
        fd: BorrowedFd<'_>,
        patience: Patience<'_>,
    ) -> io::Result<()> {
        let fds = [fd];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        moved(&self.socket, PollFlags::OUT, patience, || {
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&fds));
            rustix::net::sendmsg(&self.socket, &[IoSlice::new(&[0])], &mut control, flags)
        })
        .map(drop)
    }

    /// Takes a descriptor that the other end hands over.
    ///
    /// # Errors
    /// As [`Channel::receive`]; [`ErrorKind::InvalidData`] if none came.
    pub fn receive_descriptor(&mut self, patience: Patience<'_>) -> io::Result<OwnedFd> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut byte = [0; 1];
        let mut taken = None;
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let count = moved(&self.socket, PollFlags::IN, patience, || {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut byte)];
            let got = rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags)?;
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = part {
                    fds.for_each(|fd| {
                        taken.get_or_insert(fd);
                    });
                }
            }
            Ok(got.bytes)
        })?;
        match taken {
            Some(fd) if count == 1 => Ok(fd),
            _ if count == 0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Err(io::Error::new(ErrorKind::InvalidData, "no descriptor came")),
        }
    }
}

fn tcp(socket: TcpStream) -> Result<Socket, Failure> {
    let tuned = socket::tune(&socket, &Options::default());
    tuned
        .and_then(|()| socket.set_nonblocking(true))
        .map_err(|error| Failure::Unreachable(error.kind()))?;
    Ok(Socket::Tcp(socket))
}

fn unix(socket: UnixStream) -> Result<Socket, Failure> {
    socket
        .set_nonblocking(true)
        .map_err(|error| Failure::Unreachable(error.kind()))?;
    Ok(Socket::Unix(socket))
}

/// The patience of a handshake: it ends at a point in time, whatever moves.
fn before(until: Instant) -> impl FnMut(Duration) -> io::Result<()> {
    move |_| {
        if Instant::now() < until {
            Ok(())
        } else {
            Err(ErrorKind::TimedOut.into())
        }
    }
}

fn told(error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::TimedOut => Failure::Timeout,
        _ => Failure::Closed,
    }
}

fn wanted(socket: &Socket, shake: &Handshake, until: Instant) -> Result<Vec<u8>, Failure> {
    let mut input = vec![0; shake.wants()];
    // One byte a second is no progress: the bound holds for the whole.
    before(until)(Duration::ZERO).map_err(told)?;
    receive(socket, &mut input, &mut before(until)).map_err(told)?;
    Ok(input)
}

/// Repeats a call that does not block until it has moved something or the patience ends.
fn moved(
    socket: &Socket,
    flags: PollFlags,
    patience: Patience<'_>,
    mut call: impl FnMut() -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    let since = Instant::now();
    let slice = Timespec {
        tv_sec: 0,
        tv_nsec: SLICE.as_nanos() as _,
    };
    loop {
        match call() {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
        match poll(&mut [PollFd::new(socket, flags)], Some(&slice)) {
            Ok(0) => patience(since.elapsed())?,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Asks the patience of one whose bytes trickle, too.
fn now_and_then(asked: &mut Instant, patience: Patience<'_>) -> io::Result<()> {
    if asked.elapsed() >= SLICE {
        patience(Duration::ZERO)?;
        *asked = Instant::now();
    }
    Ok(())
}

fn send(socket: &Socket, mut bytes: &[u8], patience: Patience<'_>) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut asked = Instant::now();
    while !bytes.is_empty() {
        now_and_then(&mut asked, patience)?;
        let count = moved(socket, PollFlags::OUT, patience, || {
            rustix::net::send(socket, bytes, flags)
        })?;
        bytes = &bytes[count..];
    }
    Ok(())
}

fn receive(socket: &Socket, mut out: &mut [u8], patience: Patience<'_>) -> io::Result<()> {
    let mut asked = Instant::now();
    while !out.is_empty() {
        now_and_then(&mut asked, patience)?;
        let count = moved(socket, PollFlags::IN, patience, || {
            rustix::net::recv(socket, &mut *out, RecvFlags::DONTWAIT).map(|(count, _)| count)
        })?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        out = &mut out[count..];
    }
    Ok(())
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;

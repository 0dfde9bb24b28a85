//! Buffers of this process that servers of its job may read: the sources of sums.
//!
//! Invariants: they are read, never written; a caller must show the job's key; at most
//! [`CALLERS_MAX`] at once.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Ports, Result};
use outlive_network::channel::{Channel, within};
use outlive_network::{JobKey, listen_within};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::fault::{invalid, no_region};
use crate::stream::{Outgoing, hear, next_length, say, unexpected};
use crate::wire::{Message, Part};

/// Callers at once.
const CALLERS_MAX: usize = 64;
const HANDSHAKE: Duration = Duration::from_secs(3);
const SILENCE: Duration = Duration::from_secs(10);
const SLICE: Duration = Duration::from_millis(200);

/// Bytes that can be read at an offset.
pub trait ReadAt: Send + Sync {
    /// How many there are.
    fn bytes(&self) -> u64;
    /// Fills `out` from `offset`; both lie within the bytes.
    ///
    /// # Errors
    /// What keeps it from that.
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()>;
    /// Shows the bytes from `offset` on, as many as `spare` is long, to `take`: where they lie if they lie
    /// somewhere, else read into `spare`.
    ///
    /// # Errors
    /// Those of [`ReadAt::read_at`]; then nothing was shown.
    fn show(&self, offset: u64, spare: &mut [u8], take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.read_at(spare, offset)?;
        take(spare);
        Ok(())
    }
}

impl ReadAt for Vec<u8> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).ok().and_then(|at| self.get(at..));
        let from = from.and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl ReadAt for std::fs::File {
    fn bytes(&self) -> u64 {
        self.metadata().map_or(0, |meta| meta.len())
    }
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, out, offset)
    }
}

type Buffers = Mutex<BTreeMap<String, Arc<dyn ReadAt>>>;

struct Shared {
    job: String,
    key: Arc<JobKey>,
    buffers: Buffers,
    ending: AtomicBool,
    callers: AtomicUsize,
}

/// Buffers that are served until it is dropped.
pub struct Exposure {
    shared: Arc<Shared>,
    address: SocketAddr,
    listener: Option<JoinHandle<()>>,
}

impl core::fmt::Debug for Exposure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Exposure")
            .field("address", &self.address)
            .finish()
    }
}

impl Exposure {
    /// Listens at one of these ports of an address of this machine.
    ///
    /// # Errors
    /// [`Code::Network`] if that is none, or all of the ports are taken.
    pub fn new((listen, ports): (IpAddr, Ports), job: &str, key: &JobKey) -> Result<Exposure> {
        let failed = |error: io::Error| {
            let entity = Entity::Address(listen.to_string());
            let reason = format!("listen: {error}");
            Error::new(
                Code::Network,
                entity,
                reason,
                "choose a free address of this node",
            )
        };
        let listener = listen_within(listen, ports).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            job: job.to_owned(),
            key: Arc::new(key.clone()),
            buffers: Mutex::default(),
            ending: AtomicBool::new(false),
            callers: AtomicUsize::new(0),
        });
        let theirs = shared.clone();
        let run = move || accept(&theirs, &listener);
        let started = thread::Builder::new()
            .name("memory-expose".into())
            .spawn(run);
        Ok(Exposure {
            shared,
            address,
            listener: Some(started.map_err(failed)?),
        })
    }

    /// Where it listens: what a [`crate::Source`] names.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves a buffer under a name, instead of the one that had it. It must not change while a
    /// server reads it.
    pub fn add(&self, name: &str, buffer: Arc<dyn ReadAt>) {
        lock(&self.shared.buffers).insert(name.to_owned(), buffer);
    }

    /// Serves a buffer no longer, to those who ask from now on.
    pub fn remove(&self, name: &str) {
        lock(&self.shared.buffers).remove(name);
    }
}

impl Drop for Exposure {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

fn lock(buffers: &Buffers) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<dyn ReadAt>>> {
    buffers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts while it lives, also if a buffer panics.
struct Caller<'a>(&'a AtomicUsize);

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    let slice = Timespec {
        tv_sec: 0,
        tv_nsec: SLICE.as_nanos() as _,
    };
    while !shared.ending.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((socket, from)) => {
                if shared.callers.fetch_add(1, Ordering::SeqCst) >= CALLERS_MAX {
                    shared.callers.fetch_sub(1, Ordering::SeqCst);
                    continue;
                }
                let theirs = shared.clone();
                let run = move || {
                    let _caller = Caller(&theirs.callers);
                    if let Err(error) = serve(&theirs, socket, from) {
                        tracing::debug!(%error, "a reader of exposed memory was lost");
                    }
                };
                if thread::Builder::new()
                    .name("memory-reader".into())
                    .spawn(run)
                    .is_err()
                {
                    shared.callers.fetch_sub(1, Ordering::SeqCst);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&slice));
            }
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn serve(shared: &Shared, socket: TcpStream, from: SocketAddr) -> io::Result<()> {
    let key_of = |job: &str| (job == shared.job).then(|| shared.key.clone());
    let heard = Channel::accept(socket, from, &key_of, HANDSHAKE);
    let (mut channel, _) = heard.map_err(|error| io::Error::other(error.to_string()))?;
    let mut silent = within(SILENCE);
    let patience = &mut |idle| match shared.ending.load(Ordering::Relaxed) {
        true => Err(io::ErrorKind::ConnectionAborted.into()),
        false => silent(idle),
    };
    loop {
        let (part, digest) = match hear(&mut channel, patience) {
            Ok(Message::Get(part, _, digest)) => (part, digest),
            Ok(_) => return Err(unexpected()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        let buffer = lock(&shared.buffers).get(&part.name).cloned();
        let given = match &buffer {
            Some(buffer) => give(&mut channel, &**buffer, &part, digest, patience)?,
            None => Err(no_region(&part.name)),
        };
        if let Err(error) = given {
            say(&mut channel, &Message::Failed(error), patience)?;
        }
    }
}

/// Why a buffer cannot be read, as it says it.
fn why(error: io::Error, name: &str) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::io(format!("exposed buffer {name}"), "read", &error),
    }
}

/// The inner error is told to the caller.
fn give(
    channel: &mut Channel,
    buffer: &dyn ReadAt,
    part: &Part,
    digest: bool,
    patience: outlive_network::channel::Patience<'_>,
) -> io::Result<Result<()>> {
    let end = part.offset.checked_add(part.length);
    if end.is_none_or(|end| end > buffer.bytes()) {
        let reason = format!("the exposed buffer has {} bytes", buffer.bytes());
        return Ok(Err(invalid(&part.name, reason)));
    }
    let mut stream = Outgoing::new(digest);
    let mut piece = vec![0; next_length(part.length)];
    let mut at = 0;
    while at < part.length {
        let piece = &mut piece[..next_length(part.length - at)];
        let count = piece.len() as u64;
        let mut sent = Ok(());
        let shown = buffer.show(part.offset + at, piece, &mut |bytes| {
            sent = stream.send(channel, bytes, patience);
        });
        if let Err(error) = shown {
            return Ok(Err(why(error, &part.name)));
        }
        sent?;
        at += count;
    }
    stream.end(channel, patience)?;
    Ok(Ok(()))
}

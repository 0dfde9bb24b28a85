//! The server: who is listened to, and how many at once.
//!
//! Invariants: strangers cost one thread and a socket each, at most [`STRANGERS_MAX`] of them and
//! no longer than [`HANDSHAKE`]; each job has its share of connections, so that none keeps the
//! others out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error, Result};
use outlive_network::JobKey;
use outlive_network::channel::{Channel, JOB_BYTES_MAX};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, getrlimit};

use crate::pool::{PAGE_BYTES, Pool};
use crate::session::{Desk, Session};
use crate::store::Store;

/// Callers that have not shown a key yet, at once.
const STRANGERS_MAX: usize = 64;
/// Bound of showing it.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// A thread looks at least this often whether the server ends.
const SLICE: Duration = Duration::from_millis(200);
/// How long the end of the server waits for its clients to be told.
const FAREWELL: Duration = Duration::from_secs(2);

/// Where the key of a job comes from.
#[derive(Clone, Debug)]
pub enum Key {
    /// This one.
    Known(Arc<JobKey>),
    /// What the file holds when a caller comes: a job that never ran has no key yet, and one
    /// that was deleted and runs again has another.
    File(PathBuf),
}

impl Key {
    fn now(&self) -> Option<Arc<JobKey>> {
        match self {
            Key::Known(key) => Some(Arc::clone(key)),
            Key::File(path) => match JobKey::load(path) {
                Ok(key) => Some(Arc::new(key)),
                Err(error) => {
                    tracing::info!(%error, "a job's key cannot be read");
                    None
                }
            },
        }
    }
}

impl From<JobKey> for Key {
    fn from(key: JobKey) -> Key {
        Key::Known(Arc::new(key))
    }
}

/// A job that the server works for.
#[derive(Clone, Debug)]
pub struct Rights {
    /// Its name.
    pub job: String,
    /// Who holds it reaches the job's regions.
    pub key: Key,
    /// Memory that it may have, in bytes; `None`: all.
    pub quota: Option<u64>,
}

/// What a server is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Memory that it owns, in bytes.
    pub memory: u64,
    /// Take the memory now, and not when a region needs it. Default true.
    pub reserved: bool,
    /// Where to listen. Port 0 takes a free one. Default 127.0.0.1:0.
    pub listen: SocketAddr,
    /// Give clients of the same machine direct access. Default true.
    pub shared: bool,
    /// The jobs.
    pub jobs: Vec<Rights>,
    /// Connections at once, in equal shares for all jobs; fewer if the process may not have as
    /// many descriptors. Default 1024.
    pub connections_max: usize,
    /// A peer that moves no byte for this long, where it should, is lost. Default 10 s.
    pub silence: Duration,
    /// How long a part of a region may be held by one who reads or writes it, and a second more
    /// for each mebibyte. Default 30 s.
    pub hold: Duration,
}

impl Options {
    /// The defaults for a server of so much memory.
    pub fn new(memory: u64) -> Options {
        Options {
            memory,
            reserved: true,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            shared: true,
            jobs: Vec::new(),
            connections_max: 1024,
            silence: Duration::from_secs(10),
            hold: Duration::from_secs(30),
        }
    }
}

#[derive(Debug)]
struct Shared {
    desk: Desk,
    keys: BTreeMap<String, Key>,
    /// Connections of each job.
    open: Mutex<BTreeMap<String, usize>>,
    of_each: usize,
    most: usize,
    strangers: AtomicUsize,
    sessions: AtomicUsize,
}

/// A server that runs, in threads of its own. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    listeners: Vec<JoinHandle<()>>,
}

/// Counts while it lives.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Server {
    /// Takes the memory and listens.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if the machine has less memory, no job is named, one is twice or
    /// has an impossible name; [`Code::NoSpace`] if the memory cannot be had now;
    /// [`Code::AddressInUse`], [`Code::Permission`] or [`Code::Network`] of the address.
    pub fn start(options: &Options) -> Result<Server> {
        check(options)?;
        let listener = listen(options.listen)?;
        let address = listener
            .local_addr()
            .map_err(|error| Error::internal(format!("address: {error}")))?;
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| Error::internal(format!("no random bytes: {error}")))?;
        let instance = u128::from_le_bytes(random);
        let unix = format!("outlive-memory-{instance:032x}");
        let local = options.shared.then(|| listen_unix(&unix)).transpose()?;
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
        let memory = options.memory / PAGE_BYTES * PAGE_BYTES;
        let pool = Pool::new(memory, options.reserved)?;
        let store = Store::new(pool, memory, (descriptors / 2).min(1 << 16), options.hold);
        let mut keys = BTreeMap::new();
        for rights in &options.jobs {
            store.admit(&rights.job, rights.quota.unwrap_or(memory));
            keys.insert(rights.job.clone(), rights.key.clone());
        }
        let most = options.connections_max.min(descriptors / 4);
        let shared = Arc::new(Shared {
            desk: Desk {
                store,
                instance,
                unix: local.as_ref().map(|_| unix).unwrap_or_default(),
                ending: false.into(),
                silence: options.silence,
            },
            of_each: (most / keys.len().max(1)).max(1),
            most,
            keys,
            open: Mutex::default(),
            strangers: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
        });
        let mut server = Server {
            shared,
            address,
            listeners: Vec::new(),
        };
        let shared = server.shared.clone();
        server.spawn("memory-tcp", move || {
            accept(&shared, &listener, || {
                listener
                    .accept()
                    .map(|(socket, from)| Caller::Tcp(socket, from))
            });
        })?;
        if let Some(local) = local {
            let shared = server.shared.clone();
            server.spawn("memory-unix", move || {
                accept(&shared, &local, || {
                    local.accept().map(|(socket, _)| Caller::Unix(socket))
                });
            })?;
        }
        Ok(server)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
        let started = thread::Builder::new().name(name.into()).spawn(run);
        let thread = started.map_err(|error| Error::internal(format!("no thread: {error}")))?;
        self.listeners.push(thread);
        Ok(())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tells all clients that it ends, and ends.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.desk.ending.store(true, Ordering::SeqCst);
        for listener in self.listeners.drain(..) {
            let _ = listener.join();
        }
        let until = Instant::now() + FAREWELL;
        while self.shared.sessions.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn check(options: &Options) -> Result<()> {
    let refuse = |option: &str, reason: String, remedy: &str| {
        let entity = Entity::Option(option.into());
        Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
    };
    if options.memory < PAGE_BYTES {
        let reason = format!("{} bytes are less than a page", options.memory);
        return refuse("memory", reason, "give at least 4096");
    }
    if options.jobs.is_empty() {
        let remedy = "name the jobs that may use the server, each with its key";
        return refuse("job", "nobody could use the server".into(), remedy);
    }
    for (nth, rights) in options.jobs.iter().enumerate() {
        let job = &rights.job;
        if !(1..=JOB_BYTES_MAX).contains(&job.len()) || job.chars().any(char::is_control) {
            let reason = format!("'{job}' cannot name a job");
            return refuse(
                "job",
                reason,
                "use 1 to 255 bytes without control characters",
            );
        }
        if options.jobs[..nth].iter().any(|other| other.job == *job) {
            return refuse("job", format!("'{job}' is named twice"), "name it once");
        }
    }
    Ok(())
}

fn listen(addr: SocketAddr) -> Result<TcpListener> {
    let failed = |error: std::io::Error| {
        let (code, remedy) = match error.kind() {
            ErrorKind::AddrInUse => (
                Code::AddressInUse,
                "stop the program that listens there, or choose another port",
            ),
            ErrorKind::PermissionDenied => (Code::Permission, "choose a port above 1023"),
            _ => (Code::Network, "choose an address of this node"),
        };
        let entity = Entity::Address(addr.to_string());
        Error::new(code, entity, format!("listen: {error}"), remedy)
    };
    let listener = TcpListener::bind(addr).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// In the abstract name space no file is left behind by a server that is killed. Who may connect
/// is decided by the key, as over TCP.
fn listen_unix(name: &str) -> Result<UnixListener> {
    let made = std::os::unix::net::SocketAddr::from_abstract_name(name)
        .and_then(|address| UnixListener::bind_addr(&address))
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    made.map_err(|error| {
        Error::new(
            Code::Network,
            Entity::Address(format!("@{name}")),
            format!("listen: {error}"),
            "start it with --transport tcp, without direct access",
        )
    })
}

/// Somebody who called.
enum Caller {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

fn accept(
    shared: &Arc<Shared>,
    listener: &impl std::os::fd::AsFd,
    next: impl Fn() -> std::io::Result<Caller>,
) {
    let slice = Timespec {
        tv_sec: 0,
        tv_nsec: SLICE.as_nanos() as _,
    };
    while !shared.desk.ending.load(Ordering::Relaxed) {
        match next() {
            Ok(caller) => {
                let before = shared.strangers.fetch_add(1, Ordering::SeqCst);
                let all = shared.sessions.load(Ordering::SeqCst);
                // Those that are told that there are too many are there for a moment, too.
                if before >= STRANGERS_MAX || all >= shared.most + 2 * STRANGERS_MAX {
                    shared.strangers.fetch_sub(1, Ordering::SeqCst);
                    continue;
                }
                shared.sessions.fetch_add(1, Ordering::SeqCst);
                let theirs = shared.clone();
                let serve = move || meet(&theirs, caller);
                let started = thread::Builder::new()
                    .name("memory-client".into())
                    .spawn(serve);
                if let Err(error) = started {
                    tracing::warn!(%error, "no thread for a client");
                    shared.strangers.fetch_sub(1, Ordering::SeqCst);
                    shared.sessions.fetch_sub(1, Ordering::SeqCst);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&slice));
            }
            // Too many descriptors, or a caller that went away at once.
            Err(error) => {
                tracing::debug!(%error, "accept");
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn meet(shared: &Shared, caller: Caller) {
    let _session = Counted(&shared.sessions);
    // The session has the key that was shown, whatever the file holds by then.
    let shown = RefCell::new(None);
    let key_of = |job: &str| {
        let key = shared.keys.get(job)?.now();
        shown.replace(key.clone());
        key
    };
    let local = matches!(caller, Caller::Unix(_));
    let heard = {
        let _stranger = Counted(&shared.strangers);
        match caller {
            Caller::Tcp(socket, from) => Channel::accept(socket, from, &key_of, HANDSHAKE),
            Caller::Unix(socket) => Channel::accept_unix(socket, &key_of, HANDSHAKE),
        }
    };
    let (channel, job) = match heard {
        Ok(heard) => heard,
        Err(error) => {
            tracing::debug!(%error, "a caller was refused");
            return;
        }
    };
    let Some(key) = shown.take() else {
        return;
    };
    let session = Session::new(&shared.desk, channel, &job, key, local);
    let ended = match OpenConnection::take(shared, &job) {
        Some(_place) => session.serve(),
        None => session.refuse(Error::new(
            Code::NoSpace,
            Entity::Job(job.clone()),
            format!("it has {} connections already, its share", shared.of_each),
            "close some, or raise --connections of the server",
        )),
    };
    if let Err(error) = ended {
        tracing::debug!(job, %error, "a client was lost");
    }
}

/// A job's connection while it lives.
struct OpenConnection<'a> {
    shared: &'a Shared,
    job: &'a str,
}

impl<'a> OpenConnection<'a> {
    fn take(shared: &'a Shared, job: &'a str) -> Option<OpenConnection<'a>> {
        let mut open = shared.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(job.to_owned()).or_default();
        if *count >= shared.of_each {
            return None;
        }
        *count += 1;
        Some(OpenConnection { shared, job })
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        let mut open = self
            .shared
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(self.job) {
            *count -= 1;
        }
    }
}

//! Turns on shared storage, carried out: the service `outlive coordinator`, and a job's
//! connection to it.
//!
//! Both find each other in `STORE/.coordinator`, which only the store's owner can read: the key
//! without which nobody is heard (P7), and the address of the service that runs. A service that
//! is started anew has another address; jobs look for it there.

use std::fs::OpenOptions;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, bounded};
use outlive_base::{Code, Entity, Error, NodeId, Ports, Result, Time};
use outlive_control::orders;
use outlive_control::supervisor::Said;
use outlive_control::turns::{Answer, Ask, Counts, Service};
use outlive_network::{Endpoint, Event, Identity, JobKey, Options};
use serde::{Deserialize, Serialize};

use crate::layout;
use crate::{files, input};

/// The directory in a store; no job has such a name.
const DIR: &str = ".coordinator";
/// The schemas of what lies there.
const ADDRESS_SCHEMA: &str = "outlive.coordinator/1";
/// What stands for a job's hash in the handshake.
const HASH: u64 = 0x6f75_746c_6976_6531;
/// A job looks so often for a service.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The service looks so often at what has lasted too long, and writes what it knows.
const TURN: Duration = Duration::from_secs(1);
/// Messages that may wait.
const QUEUE: usize = 4_096;

/// Where the service is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Address {
    schema: String,
    address: SocketAddr,
    epoch: u64,
    pid: u32,
}

/// What the service knows, for people and programs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct State {
    schema: &'static str,
    pid: u32,
    jobs: Vec<StateJob>,
    turns: Counts,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct StateJob {
    name: String,
    writing: bool,
}

fn epoch() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |since| since.as_millis() as u64)
}

/// The epoch of a service that begins: larger than that of the one before, also if the clock
/// went back since, or jobs that have met that one would take this for the older.
fn next_epoch(address: &Path) -> u64 {
    let text = input::read(address, input::TEXT_BYTES_MAX).ok();
    let before = text.and_then(|text| serde_json::from_slice::<Address>(&text).ok());
    let least = before.map_or(0, |before| before.epoch.saturating_add(1));
    epoch().max(least)
}

/// The key of a store's coordinator; made by who comes first.
fn key(dir: &Path) -> Result<JobKey> {
    files::make_private(dir)?;
    let path = dir.join(layout::KEY);
    match JobKey::load(&path) {
        Err(error) if error.code() == Code::NotFound => match JobKey::create(&path) {
            Err(error) if error.code() == Code::JobBusy => JobKey::load(&path),
            made => made,
        },
        loaded => loaded,
    }
}

/// Serves the jobs of a store, at one of these ports of an address, until the process is ended.
///
/// # Errors
/// [`Code::JobBusy`] if another service does already; those of the file system and network.
pub fn serve(store: &Path, (bind, ports): (IpAddr, Ports), said: impl Fn(&str)) -> Result<u8> {
    let dir = store.join(DIR);
    let key = key(&dir)?;
    let path = dir.join(layout::LOCK);
    let mut open = OpenOptions::new();
    let lock = open.create(true).write(true).truncate(false).mode(0o600);
    let lock = lock
        .open(&path)
        .map_err(|error| Error::io(&path, "open", &error))?;
    if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(Error::new(
            Code::JobBusy,
            Entity::File(store.display().to_string()),
            "another coordinator serves this store",
            "one is enough; end it first, if this one shall take its place",
        ));
    }
    let (to, events) = bounded(QUEUE);
    let options = Options {
        bind: SocketAddr::new(bind, 0),
        ports,
        ..Options::default()
    };
    let me = Identity {
        peer: NodeId::LAUNCHER,
        epoch: next_epoch(&dir.join("address.json")),
    };
    let endpoint = Endpoint::bind(me, HASH, key, options, to)?;
    let pid = std::process::id();
    let address = Address {
        schema: ADDRESS_SCHEMA.to_owned(),
        address: endpoint.local_addr(),
        epoch: me.epoch,
        pid,
    };
    write(&dir.join("address.json"), &address)?;
    said(&format!(
        "coordinating {} at {}",
        store.display(),
        address.address
    ));
    let begun = Instant::now();
    let mut service = Service::default();
    let mut written = None;
    let mut turn = Instant::now();
    loop {
        let event = events.recv_timeout(TURN).ok();
        let now = Time::from(begun.elapsed());
        if let Some(event) = event {
            hear(&mut service, &endpoint, now, event);
        }
        if turn.elapsed() >= TURN {
            turn = Instant::now();
            service.on_time(now);
            let state = state(&service, pid);
            if written.as_ref() != Some(&state) {
                if let Err(error) = write(&dir.join("state.json"), &state) {
                    tracing::warn!(%error, "state not written");
                }
                said(&service.words());
                written = Some(state);
            }
        }
    }
}

fn hear(service: &mut Service, endpoint: &Endpoint, now: Time, event: Event) {
    match event {
        Event::Message { from, bytes } => match orders::decode::<Ask>(&bytes) {
            Ok(ask) => {
                tracing::debug!(?from, ?ask, "asked");
                if let Some(answer) = service.on(now, u64::from(from.peer.0), ask) {
                    let sent =
                        orders::encode(&answer).and_then(|bytes| endpoint.send(from.peer, &bytes));
                    if let Err(error) = sent {
                        tracing::info!(%error, "not answered");
                    }
                }
            }
            Err(error) => tracing::warn!(%error, ?from, "not understood"),
        },
        Event::Down { peer, .. } => service.gone(u64::from(peer.peer.0)),
        Event::Refused { addr, error } => tracing::warn!(%addr, %error, "refused"),
        Event::Up { .. } | Event::Stream { .. } => {}
    }
}

fn state(service: &Service, pid: u32) -> State {
    let job = |(name, writing): (&outlive_base::JobName, bool)| StateJob {
        name: name.to_string(),
        writing,
    };
    State {
        schema: "outlive.coordinator-state/1",
        pid,
        jobs: service.jobs().map(job).collect(),
        turns: service.counts(),
    }
}

fn write(path: &Path, what: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec_pretty(what)
        .map_err(|error| Error::internal(format!("{}: {error}", path.display())))?;
    files::write_atomic(path, &text)
}

/// A job's connection to the coordinator of its store, if there is one.
pub(crate) struct Link {
    dir: PathBuf,
    me: Identity,
    to: Sender<Event>,
    events: Receiver<Event>,
    endpoint: Option<Endpoint>,
    known: Option<Address>,
    looked: Option<Instant>,
    up: bool,
    told: bool,
}

impl Link {
    /// Of the job with this number ([`crate::job_hash`]).
    pub fn new(store: &Path, job_hash: u64) -> Link {
        let (to, events) = bounded(QUEUE);
        // Bits of a good hash; the largest number is the coordinator's.
        let number = (job_hash >> 32) as u32 & (u32::MAX >> 1);
        Link {
            dir: store.join(DIR),
            me: Identity {
                peer: NodeId(number),
                epoch: epoch(),
            },
            to,
            events,
            endpoint: None,
            known: None,
            looked: None,
            up: false,
            told: false,
        }
    }

    pub const fn events(&self) -> &Receiver<Event> {
        &self.events
    }

    /// Looks for a service, now and then; an error that should be told, once.
    pub fn look(&mut self) -> Option<Error> {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return None;
        }
        self.looked = Some(Instant::now());
        let found = self.find();
        let error = found.err().filter(|error| error.code() != Code::NotFound)?;
        (!std::mem::replace(&mut self.told, true)).then_some(error)
    }

    fn find(&mut self) -> Result<()> {
        let path = self.dir.join("address.json");
        let text = input::read(&path, input::TEXT_BYTES_MAX)?;
        let unknown = |reason: String| {
            Error::new(
                Code::FormatUnknown,
                Entity::File(path.display().to_string()),
                reason,
                "start outlive coordinator again, of the same version as the job",
            )
        };
        let address: Address =
            serde_json::from_slice(&text).map_err(|error| unknown(error.to_string()))?;
        if address.schema != ADDRESS_SCHEMA {
            return Err(unknown(format!("schema {}", address.schema)));
        }
        if self.known.as_ref() == Some(&address) {
            return Ok(());
        }
        if self.endpoint.is_none() {
            let key = JobKey::load(self.dir.join(layout::KEY))?;
            let options = Options::default();
            let endpoint = Endpoint::bind(self.me, HASH, key, options, self.to.clone())?;
            self.endpoint = Some(endpoint);
        }
        if let Some(endpoint) = &self.endpoint {
            endpoint.replace(NodeId::LAUNCHER, address.epoch, address.address);
            // The first word connects.
            endpoint.send(NodeId::LAUNCHER, &orders::encode(&Ask::Alive)?)?;
        }
        self.known = Some(address);
        Ok(())
    }

    /// What the supervisor hears of it.
    pub fn on_event(&mut self, event: Event) -> Option<Result<Said>> {
        match event {
            Event::Up { .. } => {
                self.up = true;
                Some(Ok(Said::Up))
            }
            Event::Down { .. } => {
                let was = std::mem::replace(&mut self.up, false);
                was.then_some(Ok(Said::Down))
            }
            Event::Message { bytes, .. } => Some(match orders::decode::<Answer>(&bytes) {
                Ok(answer) => Ok(Said::Answer(answer)),
                Err(error) => Err(error),
            }),
            Event::Refused { addr, error } => {
                tracing::info!(%addr, %error, "no coordinator");
                None
            }
            Event::Stream { .. } => None,
        }
    }

    pub fn send(&self, ask: &Ask) {
        let Some(endpoint) = self.endpoint.as_ref().filter(|_| self.up) else {
            return;
        };
        let sent = orders::encode(ask).and_then(|bytes| endpoint.send(NodeId::LAUNCHER, &bytes));
        if let Err(error) = sent {
            tracing::info!(%error, "not said to the coordinator");
        }
    }

    /// Says what is left to be said.
    pub fn shutdown(self) {
        if let Some(endpoint) = self.endpoint {
            endpoint.shutdown();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_newer_than_the_one_before_whatever_the_clock_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("address.json");
        let now = next_epoch(&path);
        assert!(now > 1_600_000_000_000, "of the clock: {now}");
        let ahead = now + 1_000_000_000;
        let known = Address {
            schema: ADDRESS_SCHEMA.to_owned(),
            address: SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 1),
            epoch: ahead,
            pid: 1,
        };
        write(&path, &known).unwrap();
        assert_eq!(next_epoch(&path), ahead + 1);
        std::fs::write(&path, b"no address").unwrap();
        assert!(next_epoch(&path) < ahead, "what is damaged is of no use");
    }
}

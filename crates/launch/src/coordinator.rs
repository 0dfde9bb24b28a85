//! Turns on shared storage: a job's connection to `outlive coordinator`, and where both find each
//! other.
//!
//! That is `STORE/.coordinator`, which only the store's owner can read: the key
//! without which nobody is heard (P7), and the address of the service that runs. A service that
//! is started anew, or takes over, has another address; jobs look for it there.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, bounded};
use outlive_base::{Code, Entity, Error, NodeId, Result};
use outlive_control::orders;
use outlive_control::supervisor::Said;
use outlive_control::turns::{Answer, Ask};
use outlive_network::{Endpoint, Event, Identity, JobKey, Options};
use serde::{Deserialize, Serialize};

use crate::layout;
use crate::{files, input};

/// The directory in a store; no job has such a name.
pub const DIR: &str = ".coordinator";
/// The file with an [`Address`].
pub const ADDRESS: &str = "address.json";
/// What stands for a job's hash in the handshake.
pub const HASH: u64 = 0x6f75_746c_6976_6531;
/// The schema of an address.
const ADDRESS_SCHEMA: &str = "outlive.coordinator/1";
/// A job looks so often for a service.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Messages that may wait.
const QUEUE: usize = 4_096;

/// Where a service, or one of its members, is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Address {
    schema: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Larger than that of the one before.
    pub epoch: u64,
    /// Its process.
    pub pid: u32,
}

impl Address {
    /// Of this process.
    pub fn new(address: SocketAddr, epoch: u64) -> Address {
        Address {
            schema: ADDRESS_SCHEMA.to_owned(),
            address,
            epoch,
            pid: std::process::id(),
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`Code::FormatUnknown`] if it is none or of another version; those of the file system.
    pub fn load(path: &Path) -> Result<Address> {
        let text = input::read(path, input::TEXT_BYTES_MAX)?;
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
            return Err(unknown(format!(
                "schema {}, expected {ADDRESS_SCHEMA}",
                address.schema
            )));
        }
        Ok(address)
    }

    /// Writes it, whole.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::internal(format!("{}: {error}", path.display())))?;
        files::write_atomic(path, &text)
    }
}

fn epoch() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |since| since.as_millis() as u64)
}

/// The epoch of a service that begins: larger than that of the one before, also if the clock
/// went back since, or jobs that have met that one would take this for the older.
pub fn next_epoch(address: &Path) -> u64 {
    let text = input::read(address, input::TEXT_BYTES_MAX).ok();
    let before = text.and_then(|text| serde_json::from_slice::<Address>(&text).ok());
    let least = before.map_or(0, |before| before.epoch.saturating_add(1));
    epoch().max(least)
}

/// The key of a store's coordinator; made by who comes first.
///
/// # Errors
/// Those of the file system; [`Code::Permission`] if others can read it.
pub fn key(dir: &Path) -> Result<JobKey> {
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
        let path = self.dir.join(ADDRESS);
        let address = Address::load(&path)?;
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
        let path = dir.path().join(ADDRESS);
        let now = next_epoch(&path);
        assert!(now > 1_600_000_000_000, "of the clock: {now}");
        let ahead = now + 1_000_000_000;
        let mut known = Address::new(SocketAddr::from(([127, 0, 0, 1], 1)), ahead);
        known.save(&path).unwrap();
        assert_eq!(next_epoch(&path), ahead + 1);
        assert_eq!(Address::load(&path).unwrap(), known);
        // Of another version: named, with what to do.
        known.schema = "outlive.coordinator/99".to_owned();
        known.save(&path).unwrap();
        let error = Address::load(&path).unwrap_err();
        assert_eq!(error.code(), Code::FormatUnknown);
        assert!(error.to_string().contains("same version"), "{error}");
        std::fs::write(&path, b"no address").unwrap();
        assert!(next_epoch(&path) < ahead, "what is damaged is of no use");
    }
}

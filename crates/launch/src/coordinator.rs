//! Turns on shared storage: a job's connection to `outlive coordinator`, and where both find each
//! other.
//!
//! That is `STORE/.coordinator`, which only the store's owner can read: the key from which that
//! of each job follows ([`Keys`]), without which it is not heard (P7), and the address of the
//! service that runs. A service that is started anew, or takes over, has another address; jobs
//! look for it there. A job of another store has an [`Invitation`], and finds the address in
//! `STORE/.coordinator.json`, which holds no secret.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, bounded};
use outlive_base::{Code, Entity, Error, JobName, NodeId, Result};
use outlive_control::orders;
use outlive_control::supervisor::Said;
use outlive_control::turns::{Answer, Ask};
use outlive_network::{Endpoint, Event, Identity, JobKey, Options};
use serde::{Deserialize, Serialize};

use crate::run::Run;
use crate::sealed::Unsound;
use crate::{files, input, sealed};
use tiers::Looks;

mod invitation;
mod keys;
mod tiers;

pub use invitation::Invitation;
pub use keys::{Keys, number, withdraw};
pub(crate) use tiers::Sources;
pub use tiers::{of_bucket, of_directory};

/// The directory in a store; no job has such a name.
pub const DIR: &str = ".coordinator";
/// The file with an [`Address`].
pub const ADDRESS: &str = "address.json";
/// The same in the store itself, for jobs of other stores: everybody may read it.
pub const PUBLIC: &str = ".coordinator.json";
/// The number of this service in the handshake.
pub const HASH: u64 = 0x6f75_746c_6976_6531;
/// The schema of an address.
const ADDRESS_SCHEMA: &str = "outlive.coordinator/2";
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
    /// [`Code::FormatUnknown`] if it is none or of another version; [`Code::Corrupt`]; those of the
    /// file system.
    pub fn load(path: &Path) -> Result<Address> {
        let text = input::read(path, input::TEXT_BYTES_MAX)?;
        sealed::parse(&text, ADDRESS_SCHEMA).map_err(|why| {
            why.of(
                path,
                "start outlive coordinator again, of the same version as the job",
            )
        })
    }

    /// Writes it, whole.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, path: &Path) -> Result<()> {
        files::write_atomic(path, &sealed::text(self)?)
    }

    /// Writes it where everybody may read it, if another or a damaged one lies there; true if it did.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn publish_again(&self, path: &Path) -> Result<bool> {
        let differs = Address::load(path).ok().as_ref() != Some(self);
        if differs {
            self.publish(path)?;
        }
        Ok(differs)
    }

    /// Writes it where everybody may read it.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn publish(&self, path: &Path) -> Result<()> {
        files::replace(path, &sealed::text(self)?, 0o644)
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
    let before = text.and_then(|text| match sealed::parse(&text, ADDRESS_SCHEMA) {
        // Of another version, perhaps: it was met all the same.
        Err(Unsound::Unknown(_)) => serde_json::from_slice::<Address>(&text).ok(),
        read => read.ok(),
    });
    let least = before.map_or(0, |before| before.epoch.saturating_add(1));
    epoch().max(least)
}

/// By what a job takes part.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Right {
    /// The coordinator's files, in this directory of the job's own store.
    Store(PathBuf),
    /// This invitation.
    Invited(PathBuf),
}

/// A job's connection to the coordinator of its shared storage, if there is one.
pub(crate) struct Link {
    right: Right,
    /// Under this name the coordinator knows it.
    job: JobName,
    epoch: u64,
    to: Sender<Event>,
    events: Receiver<Event>,
    endpoint: Option<Endpoint>,
    known: Option<Address>,
    looked: Option<Instant>,
    up: bool,
    told: bool,
    /// That it is refused was said.
    refused: bool,
    /// What it writes to: looked at from the first coordinator on.
    sources: Sources,
    looks: Option<Looks>,
}

impl Link {
    /// Of a job of this store, which writes there.
    pub fn new(store: &Path, run: &Run, sources: Sources) -> Link {
        let own = || Right::Store(store.join(DIR));
        let right = run.coordinator.clone().map_or_else(own, Right::Invited);
        Link {
            sources,
            ..Link::with(right, run.settings.job.clone())
        }
    }

    fn with(right: Right, job: JobName) -> Link {
        let (to, events) = bounded(QUEUE);
        Link {
            right,
            job,
            epoch: epoch(),
            to,
            events,
            endpoint: None,
            known: None,
            looked: None,
            up: false,
            told: false,
            refused: false,
            sources: Sources::default(),
            looks: None,
        }
    }

    pub const fn events(&self) -> &Receiver<Event> {
        &self.events
    }

    /// Looks for a service, now and then; an error that should be told, once.
    pub fn look(&mut self) -> Option<Error> {
        // One that is refused is a rare one's trouble, and takes the service's time.
        let every = LOOK_EVERY * if self.refused { 10 } else { 1 };
        if self.looked.is_some_and(|at| at.elapsed() < every) {
            return None;
        }
        self.looked = Some(Instant::now());
        // No coordinator is needed, unless there is an invitation.
        let missing = |error: &Error| error.code() == Code::NotFound;
        let own = matches!(self.right, Right::Store(_));
        let error = self.find().err().filter(|error| !own || !missing(error))?;
        (!std::mem::replace(&mut self.told, true)).then_some(error)
    }

    /// What the supervisor hears of the tiers on which the job writes, if they have changed.
    pub fn tiers(&self) -> Option<Said> {
        self.looks.as_ref()?.news().map(Said::Tiers)
    }

    /// Looks at the tiers, now and from now on.
    fn look_at_tiers(&mut self) {
        match &self.looks {
            Some(looks) => looks.again(),
            None => match Looks::start(self.sources.clone()) {
                Ok(looks) => self.looks = Some(looks),
                Err(error) => tracing::warn!(%error, "no tiers are known, and there are no turns"),
            },
        }
    }

    /// The address of the service that runs.
    fn address(&self) -> Result<Address> {
        match &self.right {
            Right::Store(dir) => Address::load(&dir.join(ADDRESS)),
            Right::Invited(path) => {
                let at = Invitation::load(path)?.address;
                Address::load(&at).map_err(|error| match error.code() {
                    Code::NotFound | Code::Permission => Error::new(
                        error.code(),
                        Entity::File(at.display().to_string()),
                        format!("no address of a coordinator ({})", error.reason()),
                        "have outlive coordinator started, and its store's path opened to this \
                         user (chmod 711); all machines must see it at this path",
                    ),
                    _ => error,
                })
            }
        }
    }

    /// What the job shows, and under which name.
    fn key(&self) -> Result<(JobName, JobKey)> {
        match &self.right {
            Right::Store(dir) => Ok((self.job.clone(), Keys::load(dir)?.of(&self.job)?)),
            Right::Invited(path) => {
                let Invitation { job, key, .. } = Invitation::load(path)?;
                Ok((job, key))
            }
        }
    }

    fn find(&mut self) -> Result<()> {
        let address = self.address()?;
        if self.known.as_ref() == Some(&address) {
            return Ok(());
        }
        if self.endpoint.is_none() {
            let (job, key) = self.key()?;
            let me = Identity {
                peer: NodeId(number(&key)?),
                epoch: self.epoch,
            };
            let (options, claim) = (Options::default(), (job.as_str(), key));
            let endpoint = Endpoint::bind_guest(me, HASH, claim, options, self.to.clone())?;
            self.endpoint = Some(endpoint);
            self.job = job;
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
                (self.up, self.refused) = (true, false);
                self.look_at_tiers();
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
                self.on_refused(addr, &error).map(Err)
            }
            Event::Stream { .. } => None,
        }
    }

    /// The service that runs does not take this job: said once. The next look takes the key anew,
    /// for it may have been exchanged.
    fn on_refused(&mut self, addr: SocketAddr, error: &Error) -> Option<Error> {
        let gone = matches!(error.code(), Code::AgentUnreachable | Code::AgentTimeout);
        let called = self.known.as_ref().filter(|known| known.address == addr)?;
        // Another may listen at the address of one that has ended.
        if gone || self.up || self.address().ok().as_ref() != Some(called) {
            return None;
        }
        (self.endpoint, self.known) = (None, None);
        if std::mem::replace(&mut self.refused, true) {
            return None;
        }
        let reason = format!(
            "no turns on shared storage: its coordinator refuses this job ({}); the job goes on by \
             its own plan",
            error.reason()
        );
        let (entity, remedy) = match &self.right {
            Right::Store(dir) => (
                Entity::File(dir.display().to_string()),
                "end outlive coordinator and start it again, of the same version as the job",
            ),
            Right::Invited(path) => (
                Entity::File(path.display().to_string()),
                "ask for another invitation (outlive coordinator --issue), one for each job",
            ),
        };
        Some(Error::new(error.code(), entity, reason, remedy))
    }

    pub fn send(&self, ask: &Ask) {
        let Some(endpoint) = self.endpoint.as_ref().filter(|_| self.up) else {
            return;
        };
        let mut ask = ask.clone();
        if let Ask::Join { job, .. } = &mut ask {
            job.clone_from(&self.job);
        }
        let sent = orders::encode(&ask).and_then(|bytes| endpoint.send(NodeId::LAUNCHER, &bytes));
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

    #[test]
    fn each_damage_to_an_address_is_found_and_mended_by_the_next_that_serves() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(ADDRESS);
        let own = Address::new(SocketAddr::from(([10, 0, 0, 1], 17_001)), epoch());
        let mut random = outlive_base::rng::Sequence::new(outlive_base::seed!(), 0);
        let good = sealed::text(&own).unwrap();
        for bytes in crate::harms::harms(&good, &mut random) {
            std::fs::write(&path, &bytes).unwrap();
            let error = Address::load(&path).unwrap_err();
            let known = [Code::Corrupt, Code::FormatUnknown].contains(&error.code());
            assert!(known && error.remedy().contains("start"), "{error}");
            assert!(next_epoch(&path) >= own.epoch);
        }
        own.save(&path).unwrap();
        assert_eq!(Address::load(&path).unwrap(), own);
        std::fs::write(&path, &good[..40]).unwrap();
        assert!(own.publish_again(&path).unwrap());
        assert_eq!(Address::load(&path).unwrap(), own);
        assert!(!own.publish_again(&path).unwrap());
    }

    /// A service at `store`, whose guests follow what is withdrawn.
    fn service(store: &Path) -> (Endpoint, Receiver<Event>) {
        let dir = store.join(DIR);
        let guests = {
            let dir = dir.clone();
            move |claim: &str| Keys::load(&dir).ok()?.guest(claim)
        };
        let (to, events) = bounded(QUEUE);
        let me = Identity {
            peer: NodeId::LAUNCHER,
            epoch: next_epoch(&dir.join(ADDRESS)),
        };
        let guests = std::sync::Arc::new(guests);
        let made = Endpoint::bind_service(me, HASH, guests, Options::default(), to).unwrap();
        let address = Address::new(made.local_addr(), me.epoch);
        address.save(&dir.join(ADDRESS)).unwrap();
        address.publish(&store.join(PUBLIC)).unwrap();
        (made, events)
    }

    /// What comes of looking for a service: it is there, or an error that is told.
    fn found(link: &mut Link) -> Result<()> {
        link.find().unwrap();
        loop {
            let event = link.events.recv_timeout(Duration::from_secs(20)).unwrap();
            match link.on_event(event) {
                Some(Ok(Said::Up)) => return Ok(()),
                Some(Err(error)) => return Err(error),
                _ => {}
            }
        }
    }

    /// The job that the service hears next, and its number.
    fn heard(events: &Receiver<Event>) -> (JobName, NodeId) {
        loop {
            let event = events.recv_timeout(Duration::from_secs(20)).unwrap();
            if let Event::Message { from, bytes } = event
                && let Ok(Ask::Join { job, .. }) = orders::decode::<Ask>(&bytes)
            {
                return (job, from.peer);
            }
        }
    }

    fn join(link: &Link) {
        link.send(&Ask::Join {
            job: JobName::new("as-its-store-calls-it").unwrap(),
            tier: outlive_control::turns::Tier::of("files"),
            need: outlive_control::turns::Need {
                nodes: 1,
                mtbf_ms: 1_000,
                write_ms: 100,
            },
            since_ms: 0,
            writing_ms: None,
        });
    }

    #[test]
    fn jobs_of_the_store_and_guests_are_heard_each_under_its_own_name() {
        let store = tempfile::tempdir().unwrap();
        let dir = store.path().join(DIR);
        let keys = Keys::make(&dir).unwrap();
        let (endpoint, events) = service(store.path());
        let name = |text: &str| JobName::new(text).unwrap();
        let mut own = Link::with(Right::Store(dir.clone()), name("own"));
        found(&mut own).unwrap();
        join(&own);
        let number_of = |job: &JobName| NodeId(number(&keys.of(job).unwrap()).unwrap());
        let own_name = (name("own"), number_of(&name("own")));
        assert_eq!(heard(&events), own_name);
        // One of another store, whatever it is called there.
        let invite = |file: &str, job: &str, key_of: &str| {
            let made = Invitation {
                job: name(job),
                key: Keys::load(&dir).unwrap().of(&name(key_of)).unwrap(),
                address: store.path().join(PUBLIC),
            };
            let path = store.path().join(file);
            made.save(&path).unwrap();
            path
        };
        let path = invite("b", "b", "b");
        let mut guest = Link::with(Right::Invited(path.clone()), name("own"));
        found(&mut guest).unwrap();
        join(&guest);
        assert_eq!(heard(&events), (name("b"), number_of(&name("b"))));
        // One that has a key, and takes the name of another.
        let stolen = invite("stolen", "own", "b");
        let mut thief = Link::with(Right::Invited(stolen.clone()), name("own"));
        let error = found(&mut thief).unwrap_err();
        assert_eq!(error.code(), Code::KeyMismatch);
        assert!(error.to_string().contains("refuses this job"), "{error}");
        join(&thief);
        join(&own);
        assert_eq!(heard(&events), own_name, "it was not disturbed");
        // Withdrawn: closed, and refused until there is another invitation at the same place.
        withdraw(&dir, &name("b")).unwrap();
        endpoint.forget(number_of(&name("b")));
        let error = loop {
            match guest.on_event(guest.events.recv_timeout(Duration::from_secs(20)).unwrap()) {
                Some(Err(error)) => break error,
                said => assert!(matches!(said, None | Some(Ok(Said::Down))), "{said:?}"),
            }
        };
        assert_eq!(error.code(), Code::KeyMismatch);
        std::fs::remove_file(&path).unwrap();
        invite("b", "b", "b");
        found(&mut guest).unwrap();
        join(&guest);
        let (job, peer) = heard(&events);
        assert_eq!(job, name("b"));
        assert_ne!(peer, number_of(&name("b")), "keys as they were");
        // A service that nobody can find is named, with its file.
        std::fs::remove_file(store.path().join(PUBLIC)).unwrap();
        let mut lost = Link::with(Right::Invited(path), name("own"));
        let error = lost.look().unwrap();
        assert_eq!(error.code(), Code::NotFound);
        assert!(error.to_string().contains(PUBLIC), "{error}");
    }
}

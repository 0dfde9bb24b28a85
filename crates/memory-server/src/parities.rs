//! The parities of a job's checkpoints at a server that has made them (level `memory-server`): a
//! [`Store`] that is read, and in which nothing but the server itself writes.
//!
//! Invariants: the header of a parity is put when its bytes have come whole and have been read
//! back, so that what was begun and not ended is none; a server that was lost is left alone for
//! [`AGAIN`], so that whoever asks next does not wait for it.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use outlive_base::{Code, ContainerId, Error, Level, Result};
use outlive_ledger::Parity;
use outlive_network::JobKey;
use outlive_vault::{
    Draft, Item, Key, Object, ObjectKind, PAGE, ParityHead, Put, Store, Unappended, WriteError,
};

use crate::client::{Client, Options};
use crate::wire::{RegionKind, Source};

/// How long a server that was lost is not asked again.
pub const AGAIN: Duration = Duration::from_secs(3);
/// What precedes the name of a parity in that of its region: a job may have others.
const PREFIX: &str = "checkpoint/";
/// Bytes of the header.
const HEAD: u64 = PAGE as u64;

/// See the module.
#[derive(Debug)]
pub struct Parities {
    address: String,
    job: String,
    key: JobKey,
    options: Options,
    lost: Mutex<Option<(Instant, Error)>>,
}

impl Parities {
    /// Of a job, at the server at `address` (`host:port`). Nothing is connected yet.
    pub fn new(address: &str, job: &str, key: JobKey, options: Options) -> Parities {
        Parities {
            address: address.to_owned(),
            job: job.to_owned(),
            key,
            options,
            lost: Mutex::default(),
        }
    }

    /// Where the server is.
    pub fn address(&self) -> &str {
        &self.address
    }

    fn lost(&self) -> MutexGuard<'_, Option<(Instant, Error)>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with a connection of its own.
    fn with<T>(&self, act: impl FnOnce(&Client) -> Result<T>) -> Result<T> {
        let lost = self.lost().clone();
        if let Some((_, error)) = lost.filter(|(since, _)| since.elapsed() < AGAIN) {
            return Err(error);
        }
        let options = self.options.clone();
        let connected = Client::connect(&self.address, &self.job, &self.key, options);
        let result = connected.and_then(|client| act(&client));
        let gone = |error: &&Error| error.code() == Code::ServerLost;
        let gone = result.as_ref().err().filter(gone);
        *self.lost() = gone.map(|error| (Instant::now(), error.clone()));
        result
    }

    /// All parities that are there, whole or not.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub fn found(&self) -> Result<Vec<(ContainerId, Level)>> {
        let keys = self.items()?.into_iter();
        Ok(keys.filter_map(|item| item.key.parity_of()).collect())
    }

    fn items(&self) -> Result<Vec<Item>> {
        let regions = self.with(Client::list)?;
        let item = |region: crate::Stat| {
            let name = region.name.strip_prefix(PREFIX)?;
            Some(Item {
                key: Key::new(ObjectKind::Parity, name)?,
                tag: region.puts,
                length: Some(region.bytes),
            })
        };
        Ok(regions.into_iter().filter_map(item).collect())
    }

    /// True if a parity is there, whole or not.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub fn has(&self, level: Level, id: ContainerId) -> Result<bool> {
        let name = region(&Key::parity(level, id));
        match self.with(|client| client.stat(&name)) {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Code::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Changes one bit in the middle of a parity: for tests of jobs that must notice.
    ///
    /// # Errors
    /// If it is not there whole, or the server is lost.
    pub fn damage(&self, level: Level, id: ContainerId) -> Result<()> {
        let name = region(&Key::parity(level, id));
        self.with(|client| {
            let middle = client.stat(&name)?.bytes / 2;
            let mut byte = [0];
            client.get(&name, middle, &mut byte)?;
            client.put(&name, middle, &[byte[0] ^ 0x10])
        })
    }

    /// Has the server make the parity of `length` bytes of what it pulls from `sources`, read it
    /// back, and keep it under `head`; what is made again must be what was recorded.
    ///
    /// # Errors
    /// [`Code::Corrupt`] if it is another. [`Code::NoSpace`] beyond the job's quota, [`Code::Network`] if a source is lost and what a
    /// source says itself, [`Code::ServerLost`]. Then nothing is left there, as far as the server
    /// can be reached.
    pub fn make(
        &self,
        head: &ParityHead,
        (length, recorded): (u64, Option<Parity>),
        sources: &[Source],
    ) -> Result<Parity> {
        let name = region(&Key::parity(head.level, head.id));
        self.with(|client| {
            // One that was begun before, and not ended.
            absent(client.delete(&name))?;
            client.allocate(&name, HEAD.saturating_add(length), RegionKind::Plain)?;
            let made = || {
                client.sum(&name, HEAD, length, sources)?;
                let digest = client.digest(&name, HEAD, length)?;
                let parity = Parity { length, digest };
                if recorded.is_some_and(|recorded| recorded != parity) {
                    let what = "what was made for it is not the parity that was recorded";
                    return Err(other(&name, what));
                }
                client.put(&name, 0, &head.page(parity)?)?;
                Ok(parity)
            };
            let made = made();
            if made.is_err() {
                let _ = client.delete(&name);
            }
            made
        })
    }

    /// Has the server read a parity.
    ///
    /// # Errors
    /// [`Code::NotFound`] or [`Code::Incomplete`] if it is not there, [`Code::Corrupt`] if it is
    /// another.
    pub fn check(&self, level: Level, id: ContainerId, parity: Parity) -> Result<()> {
        let name = region(&Key::parity(level, id));
        let digest = self.with(|client| client.digest(&name, HEAD, parity.length))?;
        match digest == parity.digest {
            true => Ok(()),
            false => Err(other(&name, "not the parity that was recorded")),
        }
    }

    /// Removes parities; those that are not there are no error.
    ///
    /// # Errors
    /// [`Code::ServerLost`].
    pub fn forget(&self, parities: &[(ContainerId, Level)]) -> Result<()> {
        if parities.is_empty() {
            return Ok(());
        }
        self.with(|client| {
            let mut names = parities
                .iter()
                .map(|(id, level)| region(&Key::parity(*level, *id)));
            names.try_for_each(|name| absent(client.delete(&name)))
        })
    }

    fn refused(&self, key: &Key, doing: &'static str) -> WriteError {
        WriteError::Io {
            path: self.locate(key),
            doing,
            source: io::ErrorKind::ReadOnlyFilesystem.into(),
        }
    }
}

fn region(key: &Key) -> String {
    format!("{PREFIX}{}", key.name())
}

fn other(name: &str, what: &str) -> Error {
    let remedy = "it is not used; the next version makes a new one";
    crate::fault::of_region(Code::Corrupt, name, what, remedy)
}

/// What is not there need not be removed.
fn absent(removed: Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.code() == Code::NotFound => Ok(()),
        removed => removed,
    }
}

/// The error as one of the system, which says the same: what is wrong with the bytes is told from what
/// hinders who asks for them.
fn io_error(error: Error) -> io::Error {
    let kind = match error.code() {
        Code::NotFound => io::ErrorKind::NotFound,
        Code::Corrupt | Code::Incomplete => io::ErrorKind::Other,
        _ => io::ErrorKind::NotConnected,
    };
    io::Error::new(kind, error)
}

impl Store for Parities {
    fn name(&self) -> String {
        format!("memory server {}", self.address)
    }

    fn locate(&self, key: &Key) -> String {
        format!("memory server {}: {}", self.address, region(key))
    }

    fn begin(&self, key: &Key, _: u64, _: bool) -> std::result::Result<Box<dyn Draft>, WriteError> {
        Err(self.refused(key, "begin"))
    }

    fn put_all(&self, small: &[Put<'_>]) -> Vec<std::result::Result<u64, WriteError>> {
        let refuse = |put: &Put<'_>| Err(self.refused(&put.key, "put"));
        small.iter().map(refuse).collect()
    }

    fn create(&self, key: &Key, _: &[u8]) -> std::result::Result<bool, WriteError> {
        Err(self.refused(key, "create"))
    }

    fn append(
        &self,
        key: &Key,
        _: u64,
        _: &mut [IoSlice<'_>],
    ) -> std::result::Result<(), Unappended> {
        let error = self.refused(key, "append");
        Err(Unappended { error, cut: true })
    }

    fn open(&self, key: &Key, _: bool) -> io::Result<Box<dyn Object>> {
        let name = region(key);
        let options = self.options.clone();
        let opened = self.with(|client| {
            let bytes = client.stat(&name)?.bytes;
            Ok((
                bytes,
                Client::connect(&self.address, &self.job, &self.key, options)?,
            ))
        });
        let (bytes, client) = opened.map_err(io_error)?;
        Ok(Box::new(Served {
            client: client.into(),
            name,
            bytes,
        }))
    }

    fn get(&self, key: &Key, most: u64) -> io::Result<Vec<u8>> {
        let object = self.open(key, false)?;
        let mut bytes = vec![0; usize::try_from(object.length()?.min(most)).unwrap_or(usize::MAX)];
        let count = object.read_at(0, &mut [IoSliceMut::new(&mut bytes)])?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn get_still(&self, key: &Key, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.get(key, most).map(Some)
    }

    fn tag(&self, key: &Key) -> Option<u64> {
        let stat = self.with(|client| client.stat(&region(key)));
        stat.ok().map(|stat| stat.puts)
    }

    fn written(&self, _: &Key) -> io::Result<SystemTime> {
        // Regions have no time.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn list(&self, kind: ObjectKind) -> io::Result<Vec<Item>> {
        match kind {
            ObjectKind::Parity => self.items().map_err(io_error),
            // There is nothing else, whoever asks.
            _ => Ok(Vec::new()),
        }
    }

    fn remove(&self, keys: &[Key]) -> std::result::Result<(), WriteError> {
        let parities: Vec<_> = keys.iter().filter_map(Key::parity_of).collect();
        self.forget(&parities).map_err(|error| WriteError::Io {
            path: self.name(),
            doing: "remove parities at",
            source: io_error(error),
        })
    }

    fn settle(&self, _: ObjectKind, _: &[Key]) -> std::result::Result<(), WriteError> {
        // Memory is as durable as it ever will be.
        Ok(())
    }

    fn room(&self) -> io::Result<u64> {
        let about = self.with(Client::about).map_err(io_error)?;
        Ok(about.free.min(about.quota.saturating_sub(about.used)))
    }
}

/// A region that is read.
struct Served {
    client: std::sync::Arc<Client>,
    name: String,
    bytes: u64,
}

impl Object for Served {
    fn length(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn read_at(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut done = 0;
        for slice in into {
            let here = at.saturating_add(done as u64);
            let left = usize::try_from(self.bytes.saturating_sub(here)).unwrap_or(usize::MAX);
            let count = slice.len().min(left);
            if count == 0 {
                break;
            }
            let got = self.client.get(&self.name, here, &mut slice[..count]);
            got.map_err(io_error)?;
            done += count;
        }
        Ok(done)
    }

    fn again(&self, _: bool) -> io::Result<Box<dyn Object>> {
        Ok(Box::new(Served {
            client: self.client.clone(),
            name: self.name.clone(),
            bytes: self.bytes,
        }))
    }
}

//! A job's memory server, and what it may read here.
//!
//! Invariants: of a container no byte leaves before the frame that it lies in was checked; who asks
//! a server waits for it in a thread of its own, so that one that is silent costs its level and
//! nothing else.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use outlive_base::{ContainerId, Error, Level, Ports, Result};
use outlive_control::orders::AgentSpec;
use outlive_memory::{Exposure, Options, Parities, ReadAt};
use outlive_network::JobKey;
use outlive_vault::{Bytes, Key, Vault};

use crate::workers::Pool;

/// Containers that are shown to the server at once; the oldest go.
const SHOWN_MAX: usize = 8;

/// A job's memory server, as one of its nodes sees it.
pub struct Served {
    parities: Parities,
    job: String,
    key: JobKey,
    bind: (IpAddr, Ports),
    /// This node tells of what concerns all.
    pub tells: bool,
    /// What asks the server, which may be silent for a while.
    pub pool: Pool,
    shown: Mutex<Option<Shown>>,
}

/// What the server may read here.
struct Shown {
    exposure: Exposure,
    names: VecDeque<String>,
}

impl Served {
    /// The server that the job has been given, if it has.
    pub fn of(spec: &AgentSpec, key: &JobKey) -> Result<Option<Served>> {
        let options = Options {
            encrypt: spec.encrypt,
            ..Options::default()
        };
        let Some(address) = &spec.memory_server else {
            return Ok(None);
        };
        Ok(Some(Served {
            parities: Parities::new(address, spec.job.as_str(), key.clone(), options),
            job: spec.job.to_string(),
            key: key.clone(),
            bind: (spec.bind, spec.ports),
            tells: spec.node == spec.coordinator,
            pool: Pool::start("server", 1)?,
            shown: Mutex::default(),
        }))
    }

    /// What it keeps.
    pub const fn parities(&self) -> &Parities {
        &self.parities
    }

    /// Lets the server read this node's container of a version; where.
    ///
    /// # Errors
    /// [`outlive_base::Code::Network`] if nothing can listen here.
    pub fn show(&self, store: &Arc<Vault>, id: ContainerId, length: u64) -> Result<SocketAddr> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.is_none() {
            *shown = Some(Shown {
                exposure: Exposure::new(self.bind, &self.job, &self.key)?,
                names: VecDeque::new(),
            });
        }
        let Some(Shown { exposure, names }) = &mut *shown else {
            return Err(Error::internal("nothing listens for the memory server"));
        };
        let name = id.to_string();
        let container = Container {
            store: Arc::clone(store),
            id,
            length,
            open: Mutex::default(),
        };
        exposure.add(&name, Arc::new(container));
        if !names.contains(&name) {
            names.push_back(name);
        }
        while names.len() > SHOWN_MAX {
            names
                .pop_front()
                .into_iter()
                .for_each(|name| exposure.remove(&name));
        }
        Ok(exposure.address())
    }

    /// Bytes of a parity.
    ///
    /// # Errors
    /// If it is not there whole, or the server is lost.
    pub fn read(&self, level: Level, id: ContainerId, range: Range<u64>) -> Result<Bytes> {
        Ok(Bytes::of_parity(
            &self.parities,
            &Key::parity(level, id),
            range,
        )?)
    }
}

/// A container of this node that the server reads from its beginning to its end.
struct Container {
    store: Arc<Vault>,
    id: ContainerId,
    length: u64,
    /// Where the last reading ended, and what goes on there.
    open: Mutex<Option<(u64, Bytes)>>,
}

impl ReadAt for Container {
    fn bytes(&self) -> u64 {
        self.length
    }

    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = match open.take() {
            Some((at, bytes)) if at == offset => bytes,
            _ => {
                let key = self.store.container_key(self.id);
                let bytes = Bytes::of_container(&**self.store.store(), &key, offset..self.length);
                bytes.map_err(|error| io::Error::other(Error::from(error)))?
            }
        };
        bytes.read_exact(out)?;
        let at = offset + out.len() as u64;
        // A file that was read to its end is closed.
        *open = (at < self.length).then_some((at, bytes));
        Ok(())
    }
}

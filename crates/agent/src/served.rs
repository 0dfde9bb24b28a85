//! The level `memory-server`: a server pulls the containers of a group from its nodes and keeps
//! their parity.
//!
//! Invariants: of a container no byte leaves before the frame that it lies in was checked; who asks
//! a server waits for it in threads of its own, so that one that is silent costs its level and
//! nothing else; a server's loss is told by one node.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use outlive_base::{Code, ContainerId, Entity, Error, Level, Result};
use outlive_control::node::shell::Making;
use outlive_control::orders::AgentSpec;
use outlive_ledger::{GcPolicy, Parity, Part, Rules};
use outlive_memory::{Exposure, Options, Parities, ReadAt, Source};
use outlive_network::JobKey;
use outlive_vault::{Bytes, Key, ParityHead, Vault};

use crate::parity::odd;
use crate::peers::{StreamReply, StreamRequest, open_stream, read_reply};
use crate::places::Places;
use crate::world::World;

/// Containers that are shown to the server at once; the oldest go.
const SHOWN_MAX: usize = 8;

/// A job's memory server, as one of its nodes sees it.
pub struct Served {
    parities: Parities,
    job: String,
    key: JobKey,
    bind: IpAddr,
    /// This node tells of what concerns all.
    tells: bool,
    shown: Mutex<Option<Shown>>,
}

/// What the server may read here.
struct Shown {
    exposure: Exposure,
    names: VecDeque<String>,
}

/// The memory server of the job.
///
/// # Errors
/// [`Code::Config`] if it has none.
pub fn served_at(places: &Places) -> Result<&Served> {
    places.served.as_ref().ok_or_else(|| {
        Error::new(
            Code::Config,
            Entity::Option("memory-server".into()),
            "the job has no memory server",
            "say where it is: --memory-server HOST:PORT",
        )
    })
}

impl Served {
    /// The server that the job has been given.
    pub fn of(spec: &AgentSpec, key: &JobKey) -> Option<Served> {
        let options = Options {
            encrypt: spec.encrypt,
            ..Options::default()
        };
        let address = spec.memory_server.as_ref()?;
        Some(Served {
            parities: Parities::new(address, spec.job.as_str(), key.clone(), options),
            job: spec.job.to_string(),
            key: key.clone(),
            bind: spec.bind,
            tells: spec.node == spec.coordinator,
            shown: Mutex::default(),
        })
    }

    /// What it keeps.
    pub const fn parities(&self) -> &Parities {
        &self.parities
    }

    /// Lets the server read this node's container of a version; where.
    ///
    /// # Errors
    /// [`Code::Network`] if nothing can listen here.
    pub fn show(&self, store: &Arc<Vault>, id: ContainerId, length: u64) -> Result<SocketAddr> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.is_none() {
            let listen = SocketAddr::new(self.bind, 0);
            *shown = Some(Shown {
                exposure: Exposure::new(listen, &self.job, &self.key)?,
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
                let key = self.store.key(Level::DISK, self.id);
                let bytes =
                    Bytes::of_container(&**self.store.store(), &key, offset..self.length);
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

/// Has the server make the parity of a group.
pub fn make(places: &Arc<Places>, making: &Making) -> Result<Parity> {
    let served = served_at(places)?;
    let source = |part: &Part| {
        let address = match part.node == places.node {
            true => served.show(&places.store, part.id, part.length)?,
            false => shown_by(places, part)?,
        };
        Ok(Source {
            at: Some(address),
            name: part.id.to_string(),
            offset: 0,
            length: part.length,
        })
    };
    let sources = making.parts.iter().map(source);
    let sources = sources.collect::<Result<Vec<Source>>>()?;
    let head = ParityHead {
        job_hash: places.job_hash,
        id: ContainerId {
            incarnation: making.source,
            version: making.version,
            node: places.node,
        },
        level: making.group.level,
        members: making.parts.iter().map(Part::sealed).collect(),
    };
    let parities = served.parities();
    parities.make(&head, making.group.parity_bytes(), &sources)
}

/// Where another member of the group shows its container.
fn shown_by(places: &Places, part: &Part) -> Result<SocketAddr> {
    let (node, id, length) = (part.node, part.id, part.length);
    let request = StreamRequest::Show { id, length };
    let mut stream = open_stream(&places.endpoint, node, &request)?;
    match read_reply(&mut stream, node)? {
        StreamReply::Shown { address } => Ok(address),
        StreamReply::Refused(error) => Err(error),
        _ => Err(odd()),
    }
}

/// The parities at the server that bear this node's name; why it cannot be asked, if it is this
/// node that tells.
pub fn look(places: &Places) -> (Vec<(ContainerId, Level)>, Option<Error>) {
    let Some(served) = &places.served else {
        return (Vec::new(), None);
    };
    match served.parities().found() {
        Ok(mut found) => {
            found.retain(|(id, _)| id.node == places.node);
            (found, None)
        }
        Err(error) => {
            tracing::info!(%error, "the memory server is not looked at");
            (Vec::new(), served.tells.then_some(error))
        }
    }
}

/// Removes what may go of this node's at the server.
fn collect(places: &Places, policy: &GcPolicy) -> Result<()> {
    let served = served_at(places)?;
    let mut found = served.parities().found()?;
    found.retain(|(id, _)| id.node == places.node);
    if found.is_empty() {
        return Ok(());
    }
    let records = places.store.records().scan()?.records;
    let rules = Rules::new(records.iter(), policy);
    found.retain(|(id, level)| rules.may_go((id.incarnation, id.version), *level));
    served.parities().forget(&found)
}

impl World {
    /// Removes at the memory server what newer versions have replaced.
    pub fn collect_served(&self, policy: &GcPolicy) {
        let Some(server) = &self.server else {
            return;
        };
        let (places, policy) = (Arc::clone(&self.places), policy.clone());
        let collected = server.run(move || {
            // What stays is found the next time; a server that is lost has nothing.
            if let Err(error) = collect(&places, &policy) {
                tracing::info!(%error, "nothing is removed at the memory server");
            }
        });
        if let Err(error) = collected {
            tracing::info!(%error, "nothing is removed at the memory server");
        }
    }
}

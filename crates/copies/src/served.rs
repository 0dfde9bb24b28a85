//! A job's memory server, and what it may read here.
//!
//! Invariants: of a container no byte leaves before the frame that it lies in was checked; who asks
//! a server waits for it in a thread of its own, so that one that is silent costs its level and
//! nothing else.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
        let mut bytes = self.at(offset)?;
        bytes.read_exact(out)?;
        self.leave(offset + out.len() as u64, bytes);
        Ok(())
    }

    fn show(&self, offset: u64, spare: &mut [u8], take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let mut bytes = self.at(offset)?;
        let count = spare.len();
        // Most lie in one frame; who takes them may have to wait, and nobody else does for that.
        match bytes.at_hand()?.get(..count) {
            Some(part) => {
                take(part);
                bytes.pass(count);
            }
            None => {
                bytes.read_exact(spare)?;
                take(spare);
            }
        }
        self.leave(offset + count as u64, bytes);
        Ok(())
    }
}

impl Container {
    fn open(&self) -> MutexGuard<'_, Option<(u64, Bytes)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes from there on.
    fn at(&self, offset: u64) -> io::Result<Bytes> {
        let open = self.open().take();
        match open {
            Some((at, bytes)) if at == offset => Ok(bytes),
            _ => {
                let key = self.store.container_key(self.id);
                let bytes = Bytes::of_container(&**self.store.store(), &key, offset..self.length);
                bytes.map_err(|error| io::Error::other(Error::from(error)))
            }
        }
    }

    /// For whoever goes on there. A file that was read to its end is closed.
    fn leave(&self, at: u64, bytes: Bytes) {
        *self.open() = (at < self.length).then_some((at, bytes));
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::rng::Sequence;
    use outlive_base::{Incarnation, NodeId, Rank, Version, seed};
    use outlive_capture::region::{Region, encode};
    use outlive_vault::{
        Buffer, ContainerHead, Layout, Memory, RankImage, WriteOptions, damage, write_container,
    };

    use super::*;

    const FRAME: u32 = 64 << 10;

    /// A container of several frames, and its bytes.
    fn container(random: &mut Sequence) -> (Container, Vec<u8>) {
        let id = ContainerId {
            incarnation: Incarnation(1),
            version: Version(7),
            node: NodeId(0),
        };
        let store = Arc::new(Vault::own(Arc::new(Memory::new(1 << 24)), 5));
        let mut data = Buffer::new(1 << 20);
        data.fill_with(|| random.below(256) as u8);
        let table = encode(&[Region::memory("r", 1 << 20)]);
        let image = RankImage {
            rank: Rank(0),
            table: &table,
            data: &data,
        };
        let head = ContainerHead {
            job_hash: 5,
            id,
            ranks_total: 1,
        };
        let layout = Layout::with_frame_bytes(head, vec![image], FRAME).unwrap();
        let (kept, key) = (&**store.store(), store.container_key(id));
        let sealed = write_container(kept, &key, &layout, &WriteOptions::default()).unwrap();
        let bytes = kept.get(&key, u64::MAX).unwrap();
        let container = Container {
            store,
            id,
            length: sealed.length,
            open: Mutex::default(),
        };
        (container, bytes)
    }

    /// Chunks within a frame and over its end, one after the other and anywhere.
    #[test]
    fn what_is_shown_is_the_file_wherever_it_is_cut() {
        let mut random = Sequence::new(seed!(), 0);
        let (container, bytes) = container(&mut random);
        let mut at = 0;
        for _ in 0..400 {
            let left = bytes.len() - at;
            let count = 1 + random.below(left.min(2 * FRAME as usize) as u64) as usize;
            let (mut spare, mut shown) = (vec![0; count], Vec::new());
            let mut take = |part: &[u8]| shown.extend_from_slice(part);
            container.show(at as u64, &mut spare, &mut take).unwrap();
            assert_eq!(shown, bytes[at..at + count], "{count} bytes from {at}");
            container.read_at(&mut spare, at as u64).unwrap();
            assert_eq!(spare, shown, "{count} bytes from {at}");
            at += count;
            if at == bytes.len() || random.below(8) == 0 {
                at = random.below(bytes.len() as u64) as usize;
            }
        }
    }

    #[test]
    fn nothing_is_shown_of_a_frame_that_has_rotted() {
        let mut random = Sequence::new(seed!(), 0);
        let (container, bytes) = container(&mut random);
        let key = container.store.container_key(container.id);
        damage(&**container.store.store(), &key).unwrap();
        let rotten = bytes.len() / 2;
        let mut spare = vec![0; 4096];
        let (mut at, mut failed) = (0, false);
        while at < bytes.len() && !failed {
            let mut shown = Vec::new();
            let mut take = |part: &[u8]| shown.extend_from_slice(part);
            failed = container.show(at as u64, &mut spare, &mut take).is_err();
            assert!(shown == bytes[at..at + shown.len()] && failed == shown.is_empty());
            at += spare.len();
        }
        let frame = 2 * FRAME as usize;
        assert!(
            failed && (rotten - frame..rotten + frame).contains(&at),
            "{at}"
        );
    }
}

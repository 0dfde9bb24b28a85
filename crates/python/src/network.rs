//! The client of a memory server: what `outlive.memory` stands on.
//!
//! No call holds the interpreter lock while it waits for the server.

use std::sync::{Arc, Mutex, PoisonError};

use outlive::{Code, Entity, Error};
use outlive_memory::{Client, Options, RegionKind, Source, Stat, Transport, resolve};
use outlive_network::JobKey;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::errors::{raise, seconds};

/// Name, kind, bytes, puts, waiting bytes, writers, incomplete ranges.
type StatTuple = (String, &'static str, u64, u64, u64, u32, Vec<(u64, u64)>);

/// A connection to a memory server.
#[pyclass(frozen, module = "outlive._native")]
pub struct NetworkMemory {
    client: Mutex<Option<Arc<Client>>>,
}

fn tuple(stat: Stat) -> StatTuple {
    let kind = match stat.kind {
        RegionKind::Plain => "plain",
        RegionKind::Ring => "ring",
    };
    (
        stat.name,
        kind,
        stat.bytes,
        stat.puts,
        stat.waiting,
        stat.writers,
        stat.torn,
    )
}

fn option(name: &str, reason: impl Into<String>, remedy: &str) -> Error {
    let entity = Entity::Option(name.to_owned());
    Error::new(Code::InvalidArgument, entity, reason, remedy)
}

fn transport(name: &str) -> outlive::Result<Transport> {
    match name {
        "auto" => Ok(Transport::Auto),
        "shared" => Ok(Transport::Shared),
        "tcp" => Ok(Transport::Tcp),
        other => Err(option(
            "transport",
            format!("'{other}' is none"),
            "choose auto, shared or tcp",
        )),
    }
}

impl NetworkMemory {
    /// Runs a call of the client without the interpreter lock.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Client) -> outlive::Result<T> + Send,
    ) -> PyResult<T> {
        let client = self
            .client
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let done = match client {
            Some(client) => py.detach(|| call(&client)),
            None => Err(Error::new(
                Code::NotOpen,
                Entity::Call,
                "the connection was closed",
                "connect anew, or close later",
            )),
        };
        done.map_err(|error| raise(py, &error))
    }
}

#[pymethods]
impl NetworkMemory {
    #[new]
    fn new(
        py: Python<'_>,
        address: &str,
        job: &str,
        key: std::path::PathBuf,
        way: &str,
        bounds: (f64, f64),
        encrypt: bool,
    ) -> PyResult<NetworkMemory> {
        let connect = || {
            let options = Options {
                transport: transport(way)?,
                bound: seconds("timeout", bounds.0)?,
                silence: seconds("silence", bounds.1)?,
                encrypt,
                ..Options::default()
            };
            Client::connect(address, job, &JobKey::load(&key)?, options)
        };
        let client = py.detach(connect).map_err(|error| raise(py, &error))?;
        Ok(NetworkMemory {
            client: Mutex::new(Some(Arc::new(client))),
        })
    }

    /// Closes the connection; calls of other threads end first.
    fn close(&self) {
        self.client
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    /// Whether bytes are accessed directly.
    fn is_direct(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |client| Ok(client.is_direct()))
    }

    /// Memory, free, quota, used.
    fn about(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        let about = self.run(py, Client::about)?;
        Ok((about.memory, about.free, about.quota, about.used))
    }

    fn allocate(&self, py: Python<'_>, name: &str, size: u64, ring: bool) -> PyResult<bool> {
        let kind = if ring {
            RegionKind::Ring
        } else {
            RegionKind::Plain
        };
        self.run(py, |client| client.allocate(name, size, kind))
    }

    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |client| client.delete(name))
    }

    fn put(&self, py: Python<'_>, name: &str, data: PyBackedBytes, offset: u64) -> PyResult<()> {
        self.run(py, |client| client.put(name, offset, &data))
    }

    fn get<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        offset: u64,
        length: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.run(py, |client| {
            let mut out = Vec::new();
            let room = usize::try_from(length).is_ok_and(|it| out.try_reserve_exact(it).is_ok());
            if !room {
                let reason = format!("{length} bytes are more than there is memory here");
                return Err(option("length", reason, "get less at once"));
            }
            out.resize(length as usize, 0);
            client.get(name, offset, &mut out).map(|()| out)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn stat(&self, py: Python<'_>, name: &str) -> PyResult<StatTuple> {
        self.run(py, |client| client.stat(name)).map(tuple)
    }

    fn regions(&self, py: Python<'_>) -> PyResult<Vec<StatTuple>> {
        let all = self.run(py, Client::list)?;
        Ok(all.into_iter().map(tuple).collect())
    }

    fn wait(&self, py: Python<'_>, name: &str, after: u64, timeout: f64) -> PyResult<u64> {
        self.run(py, |client| {
            client.wait(name, after, seconds("timeout", timeout)?)
        })
    }

    fn push(&self, py: Python<'_>, name: &str, data: PyBackedBytes, timeout: f64) -> PyResult<()> {
        self.run(py, |client| {
            client.push(name, &data, seconds("timeout", timeout)?)
        })
    }

    fn pop<'py>(&self, py: Python<'py>, name: &str, timeout: f64) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.run(py, |client| client.pop(name, seconds("timeout", timeout)?))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Sources: address or None, name, offset, length.
    fn sum(
        &self,
        py: Python<'_>,
        name: &str,
        offset: u64,
        length: u64,
        sources: Vec<(Option<String>, String, u64, u64)>,
    ) -> PyResult<()> {
        self.run(py, |client| {
            let known = sources.into_iter().map(|(at, name, offset, length)| {
                let none = || option("sources", "an address has no number", "write HOST:PORT");
                let first = |at: String| resolve(&at)?.first().copied().ok_or_else(none);
                Ok(Source {
                    at: at.map(first).transpose()?,
                    name,
                    offset,
                    length,
                })
            });
            let known = known.collect::<outlive::Result<Vec<_>>>()?;
            client.sum(name, offset, length, &known)
        })
    }
}

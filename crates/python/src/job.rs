//! The class `outlive.Job`.
//!
//! Locks: a thread takes the job's lock either at once or without the interpreter lock
//! (`lock`), and no Python code runs under it, because that code might call the job.
//! A thread may wait for the interpreter lock while it holds the job's lock, but never
//! the other way round, so there is no circle.

use outlive::{Code, Error, Job as Client, Kind, Level, Outcome, Source};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::errors::{closed, forked, from_exception, raise, seconds};
use crate::memory::{Spot, fill};

/// The region of the tree: the plain values and the structure. No key of a state makes
/// this name, because `~` is written `~0`.
const TREE: &str = "~tree";

/// A rank's handle on its job, from ``outlive.open``.
///
/// May be used by any thread; a call waits for the one before.
#[pyclass(frozen, weakref, module = "outlive", name = "Job")]
pub struct Job {
    inner: Mutex<Inner>,
    rank: u32,
    ranks: u32,
    pid: u32,
}

/// Order matters: the client forgets its addresses before the memory is released.
struct Inner {
    client: Option<Client>,
    /// By name, what keeps the declared regions in memory.
    declared: HashMap<String, Py<PyAny>>,
    /// Of the state last walked.
    regions: u64,
    bytes: u64,
}

/// A state as `outlive._state.capture` describes it.
#[derive(Default)]
struct Walked {
    tree: Option<Py<PyBytes>>,
    spots: Vec<Spot>,
    /// Keeps all of them in memory.
    _holds: Option<Py<PyAny>>,
}

fn walk(py: Python<'_>, state: Option<&Bound<'_, PyAny>>) -> PyResult<Walked> {
    let Some(state) = state else {
        return Ok(Walked::default());
    };
    let (tree, spots, holds) = py
        .import("outlive._state")?
        .call_method1("capture", (state,))?
        .extract::<(Bound<'_, PyBytes>, Vec<(String, usize, usize)>, Py<PyAny>)>()?;
    let mut spots: Vec<Spot> = spots.into_iter().map(Spot::new).collect();
    spots.push(Spot::of(TREE, tree.as_bytes()));
    Ok(Walked {
        tree: Some(tree.unbind()),
        spots,
        _holds: Some(holds),
    })
}

#[cold]
fn no_version(version: &Bound<'_, PyAny>) -> PyErr {
    let py = version.py();
    if version.extract::<i128>().is_ok() {
        let error = Error::new(
            Code::InvalidArgument,
            outlive::Entity::Call,
            format!("{version} is no version"),
            "count versions from 0",
        );
        return raise(py, &error);
    }
    PyTypeError::new_err("a version is an int, 0 or more")
}

fn number(version: &Bound<'_, PyAny>) -> PyResult<u64> {
    version
        .extract::<u64>()
        .map_err(|_error| no_version(version))
}

impl Inner {
    fn client(&mut self) -> outlive::Result<&mut Client> {
        self.client.as_mut().ok_or_else(closed)
    }
}

impl Job {
    /// Wraps a job.
    pub fn new(client: Client) -> Job {
        let status = client.status();
        Job {
            inner: Mutex::new(Inner {
                client: Some(client),
                declared: HashMap::new(),
                regions: 0,
                bytes: 0,
            }),
            rank: status.rank,
            ranks: status.ranks,
            pid: std::process::id(),
        }
    }

    /// The lock may be held, for ever, by a thread that a fork left behind: a child is
    /// refused before it waits.
    #[inline]
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Inner>> {
        match self.inner.try_lock() {
            Ok(guard) => Ok(guard),
            Err(_) => self.lock_slowly(py),
        }
    }

    #[cold]
    fn lock_slowly(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Inner>> {
        if std::process::id() != self.pid {
            return Err(raise(py, &forked(self.rank)));
        }
        // A panic under the lock leaves nothing half done that a later call relies on.
        Ok(self
            .inner
            .lock_py_attached(py)
            .unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Runs `work` on the client with the interpreter lock released.
    fn detached<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Client) -> outlive::Result<T> + Send,
    ) -> PyResult<T> {
        let mut inner = self.lock(py)?;
        let client = inner.client().map_err(|error| raise(py, &error))?;
        py.detach(|| work(client))
            .map_err(|error| raise(py, &error))
    }

    /// Makes an exception of the walk the last error, and an `outlive.Error`.
    fn noted(&self, py: Python<'_>, exception: PyErr) -> PyErr {
        if !exception.is_instance_of::<PyException>(py) {
            return exception; // Ctrl-C and the like
        }
        let error = from_exception(py, &exception);
        match self.lock(py) {
            Err(refused) => refused,
            Ok(mut inner) => {
                if let Some(client) = inner.client.as_mut() {
                    client.note(error);
                }
                exception
            }
        }
    }

    /// Walks the state and captures it. A capture that fails raises nothing (P4).
    fn capture(
        &self,
        py: Python<'_>,
        version: u64,
        state: Option<&Bound<'_, PyAny>>,
        now: bool,
    ) -> PyResult<bool> {
        let (walked, failed, fatal) = match walk(py, state) {
            Ok(walked) => (walked, None, None),
            Err(e) => {
                let error = from_exception(py, &e);
                let fatal = (!e.is_instance_of::<PyException>(py)).then_some(e);
                (Walked::default(), Some(error), fatal)
            }
        };
        let (regions, bytes) = (
            walked.spots.len() as u64,
            walked.spots.iter().map(Spot::bytes).sum::<u64>(),
        );
        let mut inner = self.lock(py)?;
        let client = inner.client().map_err(|error| raise(py, &error))?;
        let spots = &walked.spots;
        // Until the sources are asked for, an error is the caller's: not a capture.
        let mut admitted = false;
        let result = py.detach(|| {
            let sources = || {
                admitted = true;
                match failed {
                    Some(error) => Err(error),
                    None => Ok(spots.iter().map(Spot::source).collect::<Vec<Source>>()),
                }
            };
            // SAFETY: `walked` holds the memory of every source until the call is over;
            // that no thread writes to it meanwhile is what `checkpoint` asks of its
            // caller.
            unsafe {
                if now {
                    client.capture_now_with(version, sources)
                } else {
                    client.capture_with(version, sources)
                }
            }
        });
        if matches!(result, Ok(Outcome::Taken)) {
            (inner.regions, inner.bytes) = (regions, bytes);
        }
        drop(inner);
        drop(walked.tree);
        match (result, fatal) {
            (_, Some(exception)) => Err(exception),
            (Ok(outcome), None) => Ok(outcome == Outcome::Taken),
            (Err(error), None) if now && !admitted => self.refused(py, &error),
            (Err(_), None) => Ok(false),
        }
    }

    /// Errors in the program are raised; everything else is a save that failed.
    #[cold]
    fn refused(&self, py: Python<'_>, error: &Error) -> PyResult<bool> {
        match error.code() {
            Code::InvalidArgument | Code::NotOpen | Code::VersionOrder => Err(raise(py, error)),
            _ => Ok(false),
        }
    }

    /// The checkpoint to restore: its version, the tree and the sizes of the regions
    /// that are not declared.
    fn look(&self, py: Python<'_>) -> PyResult<Option<Found>> {
        let mut inner = self.lock(py)?;
        let Inner {
            client, declared, ..
        } = &mut *inner;
        let client = client.as_mut().ok_or_else(|| raise(py, &closed()))?;
        let names: std::collections::HashSet<&str> = declared.keys().map(String::as_str).collect();
        let found = py.detach(|| {
            let Some((version, regions)) = client.restored_regions()? else {
                return Ok(None);
            };
            let mut found = Found {
                version,
                tree: None,
                regions: Vec::new(),
            };
            for one in regions {
                let name = one.region.name.as_str();
                if name == TREE {
                    found.tree = Some(one.data.to_vec());
                } else if one.region.kind != Kind::File && !names.contains(name) {
                    found.regions.push((name.to_owned(), one.region.bytes));
                }
            }
            Ok(Some(found))
        });
        found.map_err(|error| raise(py, &error))
    }

    fn first_start(&self, py: Python<'_>, state: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Some(state) = state else {
            return Ok(());
        };
        let (regions, bytes, needed) = py
            .import("outlive._state")?
            .call_method1("check", (state,))?
            .extract::<(u64, u64, u64)>()?;
        let mut inner = self.lock(py)?;
        (inner.regions, inner.bytes) = (regions, bytes);
        if let Some(client) = inner.client.as_mut() {
            client.expect_bytes(needed);
        }
        Ok(())
    }

    /// Fills the state and gives the version; what is left to do is `Plan.finish`.
    fn take_over(
        &self,
        py: Python<'_>,
        state: Option<&Bound<'_, PyAny>>,
        found: &Found,
    ) -> PyResult<()> {
        let plan = match (state, &found.tree) {
            (None, None) => None,
            (None, Some(_)) => {
                return Err(raise(
                    py,
                    &Error::new(
                        Code::RegionUnclaimed,
                        outlive::Entity::Region(TREE.into()),
                        format!("version {} holds a state", found.version),
                        "pass the state to restore, as it was passed to checkpoint",
                    ),
                ));
            }
            (Some(_), None) => {
                return Err(raise(
                    py,
                    &Error::new(
                        Code::RegionMissing,
                        outlive::Entity::Region(TREE.into()),
                        format!("version {} holds no state", found.version),
                        "restore what was saved, or start the job under another name (--job)",
                    ),
                ));
            }
            (Some(state), Some(tree)) => {
                let regions = PyDict::new(py);
                for (name, bytes) in &found.regions {
                    regions.set_item(name, bytes)?;
                }
                let module = py.import("outlive._state")?;
                let tree = PyBytes::new(py, tree);
                Some(module.call_method1("Plan", (state, tree, regions, found.version))?)
            }
        };
        let spots: Vec<Spot> = match &plan {
            None => Vec::new(),
            Some(plan) => plan
                .call_method0("targets")?
                .extract::<Vec<(String, usize, usize)>>()?
                .into_iter()
                .map(Spot::new)
                .collect(),
        };
        self.detached(py, |client| {
            client.restore_with(|version, rest| {
                if version != found.version {
                    return Err(Error::internal("the version to restore has changed"));
                }
                // SAFETY: the plan holds the memory, which it has found writable; that no
                // thread touches it meanwhile is what `restore` asks of its caller.
                unsafe { fill(version, rest, &spots, TREE) }
            })
        })?;
        plan.map_or(Ok(()), |plan| plan.call_method0("finish").map(drop))
    }
}

/// A checkpoint that can be restored.
struct Found {
    version: u64,
    tree: Option<Vec<u8>>,
    regions: Vec<(String, u64)>,
}

#[pymethods]
impl Job {
    /// Offer a checkpoint; True if ``state`` was captured, False if skipped.
    ///
    /// Only looks at ``state`` when the checkpoint is wanted. ``state=None`` uses the
    /// regions declared by :meth:`protect` alone. ``now=True`` forces it, on all ranks.
    /// A failed save does not raise: see :meth:`status` and :attr:`last_error`.
    #[pyo3(signature = (version, state=None, *, now=false))]
    fn checkpoint(
        &self,
        py: Python<'_>,
        version: &Bound<'_, PyAny>,
        state: Option<&Bound<'_, PyAny>>,
        now: bool,
    ) -> PyResult<bool> {
        let version = number(version)?;
        if now {
            return self.capture_now(py, version, state);
        }
        let begun = match self.lock(py)?.client() {
            Ok(client) => client.begin(version),
            Err(error) => Err(error),
        };
        match begun {
            Ok(false) => Ok(false),
            Ok(true) => self.capture(py, version, state, false),
            Err(error) => self.refused(py, &error),
        }
    }

    /// True if ``checkpoint(version)`` will capture.
    fn wanted(&self, py: Python<'_>, version: &Bound<'_, PyAny>) -> PyResult<bool> {
        let version = number(version)?;
        let wanted = match self.lock(py)?.client() {
            Ok(client) => client.wanted(version),
            Err(error) => Err(error),
        };
        match wanted {
            Ok(wanted) => Ok(wanted),
            Err(error) => self.refused(py, &error),
        }
    }

    /// Fill ``state`` in place with the newest version that can be rebuilt.
    #[pyo3(signature = (state=None, *, default=0))]
    fn restore<'py>(
        &self,
        py: Python<'py>,
        state: Option<&Bound<'py, PyAny>>,
        default: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let done = match self.look(py)? {
            None => self.first_start(py, state).map(|()| None),
            Some(found) => self
                .take_over(py, state, &found)
                .map(|()| Some(found.version)),
        };
        match done {
            Ok(Some(version)) => Ok(version.into_pyobject(py)?.into_any()),
            Ok(None) => Ok(default.into_pyobject(py)?.into_any()),
            Err(exception) => Err(self.noted(py, exception)),
        }
    }

    /// Restore, then count: each turn offers a checkpoint and yields the step.
    #[pyo3(signature = (state, stop, *, start=0))]
    fn steps<'py>(
        slf: &Bound<'py, Self>,
        state: &Bound<'py, PyAny>,
        stop: i64,
        start: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let first = slf.get().restore(py, Some(state), start)?;
        py.import("outlive._state")?
            .call_method1("steps", (slf, first, state, stop))
    }

    /// Declare one buffer under a name; the same name again replaces it.
    fn protect(&self, py: Python<'_>, name: &str, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let declared = py
            .import("outlive._leaf")?
            .call_method1("declared", (name, buffer))
            .and_then(|found| found.extract::<(usize, usize, Py<PyAny>)>());
        let (address, bytes, hold) = declared.map_err(|exception| self.noted(py, exception))?;
        let mut inner = self.lock(py)?;
        let client = inner.client().map_err(|error| raise(py, &error))?;
        let data = if bytes == 0 {
            core::ptr::null_mut()
        } else {
            core::ptr::with_exposed_provenance_mut(address)
        };
        // SAFETY: `hold` keeps the writable memory in its place until the region is
        // replaced, forgotten or the client is gone. That no thread writes to it during
        // a checkpoint or touches it during a restore is asked of the caller.
        unsafe { client.protect(name, data, bytes) }.map_err(|error| raise(py, &error))?;
        let old = inner.declared.insert(name.to_owned(), hold);
        drop(inner); // what is released below may run Python code
        drop(old);
        Ok(())
    }

    /// Forget a declared buffer.
    fn unprotect(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let mut inner = self.lock(py)?;
        let client = inner.client().map_err(|error| raise(py, &error))?;
        client.unprotect(name).map_err(|error| raise(py, &error))?;
        let old = inner.declared.remove(name);
        drop(inner);
        drop(old);
        Ok(())
    }

    /// Wait until ``version`` is committed at ``level``; raises Error 501 or 106.
    #[pyo3(signature = (version, level="memory", timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        version: &Bound<'_, PyAny>,
        level: &str,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let version = number(version)?;
        let asked = level.parse::<Level>().and_then(|level| {
            let bound = timeout.map(|value| seconds("timeout", value)).transpose()?;
            Ok((level, bound))
        });
        let (level, bound) = asked.map_err(|error| raise(py, &error))?;
        self.detached(py, |client| client.wait(version, level, bound))
            .map(drop)
    }

    /// A path in node storage for a file that the program writes by itself.
    fn route(&self, py: Python<'_>, version: &Bound<'_, PyAny>, name: &str) -> PyResult<String> {
        let version = number(version)?;
        let path = self.detached(py, |client| client.route(version, name))?;
        Ok(path.to_string_lossy().into_owned())
    }

    /// What is known without waiting.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (status, regions, bytes) = {
            let mut inner = self.lock(py)?;
            let status = inner.client().map_err(|error| raise(py, &error))?.status();
            (status, inner.regions, inner.bytes)
        };
        let committed = PyDict::new(py);
        for (level, version) in Level::ALL.iter().zip(status.version_committed) {
            committed.set_item(level.name(), version)?;
        }
        let fields = PyDict::new(py);
        fields.set_item("is_protected", status.is_protected)?;
        fields.set_item("rank", status.rank)?;
        fields.set_item("ranks", status.ranks)?;
        fields.set_item("node", status.node)?;
        fields.set_item("incarnation", status.incarnation)?;
        fields.set_item("regions", status.regions + regions)?;
        fields.set_item("bytes", status.bytes + bytes)?;
        fields.set_item("taken", status.taken)?;
        fields.set_item("failed", status.failed)?;
        fields.set_item("blocked_ns", status.blocked_ns)?;
        fields.set_item("version_taken", status.version_taken)?;
        fields.set_item("version_committed", committed)?;
        fields.set_item("version_restored", status.version_restored)?;
        let class = py.import("outlive._types")?.getattr("Status")?;
        class.call((), Some(&fields))
    }

    /// The last error on this job, or None.
    #[getter]
    fn last_error<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let error = {
            let inner = self.lock(py)?;
            let client = inner.client.as_ref();
            client.and_then(|client| client.last_error().cloned())
        };
        Ok(error.map(|error| raise(py, &error).into_value(py).into_bound(py).into_any()))
    }

    /// The rank of this process.
    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    #[getter]
    fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Leave the job. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let (client, declared) = {
            let mut inner = self.lock(py)?;
            (inner.client.take(), std::mem::take(&mut inner.declared))
        };
        let result = match client {
            None => Ok(()),
            Some(client) => py.detach(|| client.close()),
        };
        drop(declared);
        result.map_err(|error| raise(py, &error))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (value, trace);
        let closed = self.close(py);
        // The exception that is on its way says more than one from leaving.
        if kind.is_none() { closed } else { Ok(()) }
    }

    fn __repr__(&self) -> String {
        format!("<outlive.Job rank {} of {}>", self.rank, self.ranks)
    }
}

impl Job {
    fn capture_now(
        &self,
        py: Python<'_>,
        version: u64,
        state: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let is_protected = {
            let mut inner = self.lock(py)?;
            let client = inner.client().map_err(|error| raise(py, &error))?;
            client.status().is_protected
        };
        self.capture(py, version, state.filter(|_| is_protected), true)
    }
}

impl Drop for Job {
    /// A job that is dropped has ended well as far as anybody can tell: it is closed,
    /// so that it does not look like a lost rank. In a forked child it is only forgotten.
    fn drop(&mut self) {
        let inner = self
            .inner
            .get_mut()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(client) = inner.client.take()
            && std::process::id() == self.pid
        {
            let _ = client.close();
        }
    }
}

//! The class `outlive.Job`.
//!
//! Locks: a thread takes the job's lock either at once or without the interpreter lock
//! (`lock`), and no Python code runs under it, because that code might call the job.
//! A thread may wait for the interpreter lock while it holds the job's lock, but never
//! the other way round, so there is no circle.

use outlive::{Code, Element, Error, Job as Client, Survives};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::errors::{closed, forked, from_exception, raise, seconds};

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
pub(crate) struct Inner {
    pub(crate) client: Option<Client>,
    /// By name, what keeps the declared regions in memory.
    pub(crate) declared: HashMap<String, Py<PyAny>>,
    /// Of the state last walked.
    pub(crate) regions: u64,
    pub(crate) bytes: u64,
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
    pub(crate) fn client(&mut self) -> outlive::Result<&mut Client> {
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
    pub(crate) fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Inner>> {
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
    pub(crate) fn detached<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Client) -> outlive::Result<T> + Send,
    ) -> PyResult<T> {
        self.under(py, |inner| {
            let client = inner.client()?;
            py.detach(|| work(client))
        })
    }

    /// Runs `work` under the lock. Errors become exceptions only after it: making one may
    /// collect garbage, and so run code of the program.
    pub(crate) fn under<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Inner) -> outlive::Result<T>,
    ) -> PyResult<T> {
        let mut inner = self.lock(py)?;
        let result = work(&mut inner);
        drop(inner);
        result.map_err(|error| raise(py, &error))
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

    /// Errors in the program are raised; everything else is a save that failed.
    #[cold]
    pub(crate) fn refused(&self, py: Python<'_>, error: &Error) -> PyResult<bool> {
        match error.code() {
            Code::InvalidArgument | Code::NotOpen | Code::VersionOrder => Err(raise(py, error)),
            _ => Ok(false),
        }
    }
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
            Some(found) => self.take_over_or_refuse(py, state, &found),
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
            .and_then(|found| found.extract::<(usize, usize, u32, Py<PyAny>)>());
        let (address, bytes, element, hold) =
            declared.map_err(|exception| self.noted(py, exception))?;
        let data = if bytes == 0 {
            core::ptr::null_mut()
        } else {
            core::ptr::with_exposed_provenance_mut(address)
        };
        let (old, described) = self.under(py, |inner| {
            // SAFETY: `hold` keeps the writable memory in its place until the region is
            // replaced, forgotten or the client is gone. That no thread writes to it
            // during a checkpoint or touches it during a restore is asked of the caller.
            unsafe { inner.client()?.protect(name, data, bytes) }?;
            // First, so that the memory is held whatever comes next.
            let old = inner.declared.insert(name.to_owned(), hold);
            let client = inner.client()?;
            let described = Element::of(element).map(|element| client.describe(name, element));
            Ok((old, described.unwrap_or(Ok(()))))
        })?;
        drop(old); // not under the lock: it may run code of the program
        described.map_err(|error| raise(py, &error))
    }

    /// Forget a declared buffer.
    fn unprotect(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let old = self.under(py, |inner| {
            inner.client()?.unprotect(name)?;
            Ok(inner.declared.remove(name))
        })?;
        drop(old);
        Ok(())
    }

    /// Wait until ``version`` survives this; raises Error 501 or 106.
    #[pyo3(signature = (version, survives="process", timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        version: &Bound<'_, PyAny>,
        survives: &str,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let version = number(version)?;
        let asked = survives.parse::<Survives>().and_then(|survives| {
            let bound = timeout.map(|value| seconds("timeout", value)).transpose()?;
            Ok((survives, bound))
        });
        let (survives, bound) = asked.map_err(|error| raise(py, &error))?;
        self.detached(py, |client| client.wait(version, survives, bound))
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
        let (status, told, regions, bytes) = self.under(py, |inner| {
            let client = inner.client()?;
            Ok((client.status(), client.levels(), inner.regions, inner.bytes))
        })?;
        let types = py.import("outlive._types")?;
        let surviving = PyDict::new(py);
        for (what, version) in Survives::ALL.iter().zip(status.version_surviving) {
            surviving.set_item(what.name(), version)?;
        }
        let (levels, class) = (PyDict::new(py), types.getattr("Level")?);
        for level in told {
            let made = class.call1((level.name, level.survives.name(), level.version))?;
            levels.set_item(level.name, made)?;
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
        fields.set_item("version_surviving", surviving)?;
        fields.set_item("version_restored", status.version_restored)?;
        fields.set_item("levels", levels)?;
        types.getattr("Status")?.call((), Some(&fields))
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

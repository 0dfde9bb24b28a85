//! What a job does with a state: captures it, and restores it.

use outlive::{Code, Entity, Error, Outcome, RegionKind, Source};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::collections::HashSet;

use crate::errors::{closed, from_exception, raise};
use crate::job::Job;
use crate::memory::{Spot, fill};

/// The region of the tree: the plain values and the structure. No key of a state makes
/// this name, because `~` is written `~0`.
const TREE: &str = "~tree";

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
        .extract::<(
            Bound<'_, PyBytes>,
            Vec<(String, usize, usize, u32)>,
            Py<PyAny>,
        )>()?;
    let mut spots: Vec<Spot> = spots.into_iter().map(Spot::described).collect();
    spots.push(Spot::of(TREE, tree.as_bytes()));
    Ok(Walked {
        tree: Some(tree.unbind()),
        spots,
        _holds: Some(holds),
    })
}

/// A checkpoint that can be restored.
pub(crate) struct Found {
    pub(crate) version: u64,
    tree: Option<Vec<u8>>,
    regions: Vec<(String, u64)>,
}

impl Job {
    pub(crate) fn capture_now(
        &self,
        py: Python<'_>,
        version: u64,
        state: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let is_protected = self.under(py, |inner| Ok(inner.client()?.status().is_protected))?;
        self.capture(py, version, state.filter(|_| is_protected), true)
    }

    /// Walks the state and captures it. A capture that fails raises nothing (P4).
    pub(crate) fn capture(
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
        let spots = &walked.spots;
        // Until the sources are asked for, an error is the caller's: not a capture.
        let mut admitted = false;
        let result = self.under(py, |inner| {
            let client = inner.client()?;
            let result = py.detach(|| {
                let sources = || {
                    admitted = true;
                    match failed {
                        Some(error) => Err(error),
                        None => Ok(spots.iter().map(Spot::source).collect::<Vec<Source>>()),
                    }
                };
                // SAFETY: `walked` holds the memory of every source until the call is
                // over; that no thread writes to it meanwhile is what `checkpoint` asks
                // of its caller.
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
            Ok(result)
        })?;
        drop(walked.tree);
        match (result, fatal) {
            (_, Some(exception)) => Err(exception),
            (Ok(outcome), None) => Ok(outcome == Outcome::Taken),
            (Err(error), None) if now && !admitted => self.refused(py, &error),
            (Err(_), None) => Ok(false),
        }
    }

    /// The checkpoint to restore: its version, the tree and the sizes of the regions
    /// that are not declared.
    pub(crate) fn look(&self, py: Python<'_>) -> PyResult<Option<Found>> {
        self.under(py, |inner| {
            let client = inner.client.as_mut().ok_or_else(closed)?;
            let names: HashSet<&str> = inner.declared.keys().map(String::as_str).collect();
            py.detach(|| {
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
                    } else if one.region.kind != RegionKind::File && !names.contains(name) {
                        found.regions.push((name.to_owned(), one.region.bytes));
                    }
                }
                Ok(Some(found))
            })
        })
    }

    pub(crate) fn first_start(
        &self,
        py: Python<'_>,
        state: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
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

    /// Fills the state and gives the version. If it does not fit, the agent is told why:
    /// the report names it, and the same is not tried again and again.
    pub(crate) fn take_over_or_refuse(
        &self,
        py: Python<'_>,
        state: Option<&Bound<'_, PyAny>>,
        found: &Found,
    ) -> PyResult<Option<u64>> {
        let plan = match self.plan(py, state, found) {
            Ok(plan) => plan,
            Err(exception) => {
                if exception.is_instance_of::<PyException>(py) {
                    let code = from_exception(py, &exception).code();
                    // Whether or not it can be told, the exception is what counts.
                    let _ = self.detached(py, |client| {
                        client.refuse_restore(code);
                        Ok(())
                    });
                }
                return Err(exception);
            }
        };
        self.take_over(py, plan.as_ref(), found)?;
        Ok(Some(found.version))
    }

    /// How the state is going to be filled; an exception if it does not fit.
    fn plan<'py>(
        &self,
        py: Python<'py>,
        state: Option<&Bound<'py, PyAny>>,
        found: &Found,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(match (state, &found.tree) {
            (None, None) => None,
            (None, Some(_)) => {
                return Err(raise(
                    py,
                    &Error::new(
                        Code::RegionUnclaimed,
                        Entity::Region(TREE.into()),
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
                        Entity::Region(TREE.into()),
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
        })
    }

    fn take_over(
        &self,
        py: Python<'_>,
        plan: Option<&Bound<'_, PyAny>>,
        found: &Found,
    ) -> PyResult<()> {
        let spots: Vec<Spot> = match plan {
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

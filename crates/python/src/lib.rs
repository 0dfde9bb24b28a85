//! The Python package outlive.
//!
//! Here is what needs speed (a skipped checkpoint), the interpreter lock released (a
//! capture, a wait, a restore) or the client. The walk over a nested state is Python,
//! `outlive._state`: it runs only when something is captured or restored.

mod balance;
mod errors;
mod job;
mod memory;
mod network;
mod state;

use pyo3::prelude::*;

/// The compiled part; private. `outlive` is the public face.
#[pymodule(name = "_native")]
mod native {
    use super::{errors, job};
    use core::time::Duration;
    use outlive::{Code, Options};
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::balance::{balance, balance_over, balance_refused};
    #[pymodule_export]
    use super::job::Job;
    #[pymodule_export]
    use super::network::NetworkMemory;

    /// The version of the package.
    #[pyfunction]
    fn version() -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// The short phrase of an error code; empty for an unknown one.
    #[pyfunction]
    fn code_text(code: u16) -> &'static str {
        Code::from_number(code).map_or("", Code::text)
    }

    /// Joins the job; see `outlive.open`.
    #[pyfunction]
    fn open(
        py: Python<'_>,
        rank: Option<u32>,
        ranks: Option<u32>,
        timeout: f64,
    ) -> PyResult<job::Job> {
        let timeout = errors::seconds("timeout", timeout).map_err(|e| errors::raise(py, &e))?;
        let options = Options {
            rank,
            ranks,
            timeout,
            ..Options::default()
        };
        debug_assert!(timeout > Duration::ZERO);
        let opened = py.detach(|| outlive::Job::open(&options));
        opened
            .map(job::Job::new)
            .map_err(|error| errors::raise(py, &error))
    }
}

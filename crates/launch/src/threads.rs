//! Threads that nobody waits for: they end with what they read from, or with the process.

use outlive_base::{Error, Result};

/// Starts one; `name` is what debuggers and the kernel call it.
///
/// # Errors
/// That of the kernel, with the name.
pub(crate) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(body)
        .map(drop)
        .map_err(|error| Error::internal(format!("thread {name}: {error}")))
}

//! Errors on their way between Rust and Python.

use core::time::Duration;
use outlive::{Code, Entity, Error};
use pyo3::prelude::*;

/// Longest bound of a wait that can be asked for.
const SECONDS_MAX: f64 = 4_000_000.0;

/// `outlive.Error` for an error of the client.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let made = py
        .import("outlive._types")
        .and_then(|module| module.getattr("Error"))
        .and_then(|class| {
            class.call1((
                error.code().number(),
                error.entity().to_string(),
                error.reason(),
                error.remedy(),
            ))
        });
    match made {
        Ok(value) => PyErr::from_value(value),
        Err(other) => other,
    }
}

/// An exception as an error of ours: an `outlive.Error` as it is, anything else as a
/// state that cannot be stored.
pub fn from_exception(py: Python<'_>, exception: &PyErr) -> Error {
    let value = exception.value(py);
    let text = |name| {
        value
            .getattr(name)
            .and_then(|found| found.extract::<String>())
    };
    let ours = || -> PyResult<Option<Error>> {
        let code = Code::from_number(value.getattr("code")?.extract()?);
        let entity = text("entity")?;
        let entity = entity
            .strip_prefix("region '")
            .and_then(|rest| rest.strip_suffix('\''))
            .map_or(Entity::Call, |name| Entity::Region(name.to_owned()));
        let (reason, remedy) = (text("reason")?, text("remedy")?);
        Ok(code.map(|code| Error::new(code, entity, reason, remedy)))
    };
    if let Ok(Some(error)) = ours() {
        return error;
    }
    Error::new(
        Code::Unserializable,
        Entity::Call,
        format!("the state cannot be walked: {exception}"),
        "keep arrays, buffers and plain values in the state",
    )
}

/// A bound in seconds; infinity and other large ones become the largest.
pub fn seconds(name: &str, value: f64) -> outlive::Result<Duration> {
    if value.is_nan() || value < 0.0 {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Option(name.to_owned()),
            format!("{value} is no time"),
            "give seconds, 0 or more",
        ));
    }
    let bounded = Duration::from_secs_f64(value.min(SECONDS_MAX));
    Ok(bounded.max(Duration::from_millis(1)))
}

/// The job was closed before.
pub fn closed() -> Error {
    Error::new(
        Code::NotOpen,
        Entity::Call,
        "the job was closed",
        "call outlive.open() again, or close later",
    )
}

/// The call is made in another process than `open`.
pub fn forked(rank: u32) -> Error {
    Error::new(
        Code::NotOpen,
        Entity::Rank(rank),
        "the job was opened by the parent process, this is a forked child",
        "use the job in the process that opened it",
    )
}

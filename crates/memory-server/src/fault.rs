//! How an operation of the server ends badly: by an error that its client is told, or because
//! nobody is left to be told.

use std::io;

use outlive_base::{Code, Entity, Error};

/// Why an operation ended.
#[derive(Debug)]
pub enum Fault {
    /// The client is told; the connection goes on.
    Told(Error),
    /// The connection is of no use.
    Gone(io::Error),
}

/// What an operation of the server gives.
pub type Outcome<T> = core::result::Result<T, Fault>;

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Told(error)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Gone(error)
    }
}

/// Asked at least four times a second by whatever takes long; an error ends it.
pub type Tick<'a> = &'a mut dyn FnMut() -> io::Result<()>;

/// An error about a region.
pub fn of_region(
    code: Code,
    name: &str,
    reason: impl Into<String>,
    remedy: impl Into<String>,
) -> Error {
    Error::new(code, Entity::Region(name.to_owned()), reason, remedy)
}

/// There is no such region.
pub fn no_region(name: &str) -> Error {
    of_region(
        Code::NotFound,
        name,
        "this job has no such region on the server, or it was deleted meanwhile",
        "allocate it first; see outlive memory list",
    )
}

/// An argument that cannot be.
pub fn invalid(name: &str, reason: impl Into<String>) -> Error {
    of_region(
        Code::InvalidArgument,
        name,
        reason,
        "see the size and kind of the region: outlive memory stat",
    )
}

/// The bound that the client gave has passed.
pub fn late(name: &str, what: &str) -> Error {
    of_region(
        Code::TimedOut,
        name,
        format!("{what} within the bound"),
        "wait again, or give more time (--timeout)",
    )
}

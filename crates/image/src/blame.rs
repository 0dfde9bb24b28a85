//! Errors that concern some processes of an image only.

use std::io;

/// Processes that cannot be brought up, by their numbers in the image. Comes as an
/// [`io::Error`] of the kind of its cause.
#[derive(Debug)]
pub struct Blamed {
    /// The processes.
    pub pids: Vec<i32>,
    cause: io::Error,
}

impl std::fmt::Display for Blamed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.cause.fmt(f)
    }
}

impl std::error::Error for Blamed {}

impl Blamed {
    /// Which processes an error concerns, if not all.
    pub fn of(error: &io::Error) -> Option<&Blamed> {
        error.get_ref()?.downcast_ref()
    }
}

/// The error concerns these processes, unless it is known already whom it does.
pub(crate) fn blame(pids: &[i32], cause: io::Error) -> io::Error {
    if pids.is_empty() || Blamed::of(&cause).is_some() {
        return cause;
    }
    let (kind, pids) = (cause.kind(), pids.to_vec());
    io::Error::new(kind, Blamed { pids, cause })
}

/// True if a later attempt may do better as the machine is then: a file system that is not yet
/// mounted, memory that is short. So may one with other rights.
pub(crate) fn may_pass(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::OutOfMemory
            | io::ErrorKind::WouldBlock
            | io::ErrorKind::PermissionDenied
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_blamed_first_stays_so() {
        let taken = io::Error::from(io::ErrorKind::AlreadyExists);
        let error = blame(&[8], blame(&[7], taken));
        assert_eq!(Blamed::of(&error).unwrap().pids, [7]);
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(!may_pass(&error));
        let error = blame(&[], io::ErrorKind::NotFound.into());
        assert!(Blamed::of(&error).is_none() && may_pass(&error));
    }
}

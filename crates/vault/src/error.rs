//! Why a container or record could not be written or read. Each converts into
//! [`outlive_base::Error`] with its stable code.

use std::io;
use std::path::Path;

use outlive_base::{Code, Entity, Error, Rank};
use thiserror::Error as ThisError;

const OTHER_COPY: &str =
    "another copy or an older version is used; see `outlive checkpoints verify`";

/// A failed write. Nothing is left under the final name.
#[derive(Debug, ThisError)]
pub enum WriteError {
    /// The system refused an operation.
    #[error("{doing} {path}: {source}")]
    Io {
        /// The file or directory.
        path: String,
        /// What was attempted, as a verb.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The connection over which the bytes came ended.
    #[error("{path}: {found} of {expected} bytes came: {source}")]
    Lost {
        /// What was to be written.
        path: String,
        /// The length announced.
        expected: u64,
        /// So many bytes had come.
        found: u64,
        /// What was seen.
        source: io::Error,
    },
    /// The caller's flag was raised.
    #[error("{0}: cancelled")]
    Cancelled(String),
    /// What was to be written contradicts itself.
    #[error("{0}")]
    Input(String),
    /// A record of this name says something else and must not be replaced.
    #[error("{0}: another record stands here")]
    Conflict(String),
    /// A record that must not be replaced stands here, damaged.
    #[error("{0}: a damaged record stands here")]
    Damaged(String),
}

impl WriteError {
    /// True if there is no room: of bytes, of files, or of a quota.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, WriteError::Io { source, .. }
            if matches!(source.kind(), StorageFull | QuotaExceeded))
    }

    /// True if what was to be used is not there.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, WriteError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// True if this storage cannot do that at all.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self, WriteError::Io { source, .. } if source.kind() == io::ErrorKind::Unsupported)
    }

    /// True if the storage refuses to be written to, for lack of room or of permission.
    pub fn is_refusal(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        let refused = matches!(self, WriteError::Io { source, .. }
            if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem));
        refused || self.is_full()
    }

    /// The same, for another record that it hit.
    pub(crate) fn again(&self) -> WriteError {
        match self {
            WriteError::Io {
                path,
                doing,
                source,
            } => {
                let source = source.raw_os_error().map(io::Error::from_raw_os_error);
                WriteError::io(
                    path,
                    doing,
                    source.unwrap_or_else(|| io::Error::other(self.to_string())),
                )
            }
            error => WriteError::Input(error.to_string()),
        }
    }

    pub(crate) fn io(
        path: impl AsRef<Path>,
        doing: &'static str,
        source: impl Into<io::Error>,
    ) -> WriteError {
        WriteError::Io {
            path: path.as_ref().display().to_string(),
            doing,
            source: source.into(),
        }
    }
}

impl From<WriteError> for Error {
    fn from(error: WriteError) -> Error {
        match error {
            WriteError::Io {
                path,
                doing,
                source,
            } => Error::io(path, doing, &source),
            WriteError::Lost {
                path,
                expected,
                found,
                source,
            } => lost(&path, expected, found, &source),
            WriteError::Cancelled(path) => Error::new(
                Code::CommitAborted,
                Entity::File(path),
                "the write was cancelled",
                "nothing to do: the next checkpoint is written anew",
            ),
            WriteError::Input(reason) => Error::new(
                Code::InvalidArgument,
                Entity::Call,
                reason,
                "check the region table against the data",
            ),
            WriteError::Conflict(path) => Error::new(
                Code::JobBusy,
                Entity::File(path),
                "another supervisor has recorded something else here",
                "make sure that only one run uses this job's store",
            ),
            WriteError::Damaged(path) => Error::new(
                Code::Corrupt,
                Entity::File(path),
                "the record that stands here is damaged, and nobody can tell what it said",
                "the next version is committed under another name; see `outlive checkpoints verify`",
            ),
        }
    }
}

/// The connection ended over which a container came or went.
fn lost(path: &str, expected: u64, found: u64, source: &io::Error) -> Error {
    Error::new(
        Code::Network,
        Entity::File(path.to_owned()),
        format!("the connection ended after {found} of {expected} bytes: {source}"),
        "nothing, if a node was lost: it is sent or read again; else check the network",
    )
}

/// Where in a container damage was found. Absent parts are unknown or do not apply.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DamagedAt {
    /// The rank.
    pub rank: Option<Rank>,
    /// The region's name.
    pub region: Option<String>,
    /// The frame's index in the region.
    pub frame: Option<u32>,
}

impl std::fmt::Display for DamagedAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(rank) = self.rank {
            write!(f, "{rank}, ")?;
        }
        if let Some(region) = &self.region {
            write!(f, "region '{region}', ")?;
        }
        if let Some(frame) = self.frame {
            write!(f, "frame {frame}, ")?;
        }
        Ok(())
    }
}

/// A failed read. The file is not changed.
#[derive(Debug, ThisError)]
pub enum ReadError {
    /// The system refused an operation.
    #[error("{doing} {path}: {source}")]
    Io {
        /// The file or directory.
        path: String,
        /// What was attempted, as a verb.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Bytes do not match their checksum, or contradict others.
    #[error("{path}: {place}{what}")]
    Corrupt {
        /// The file.
        path: String,
        /// Where in it.
        place: DamagedAt,
        /// What does not match.
        what: String,
    },
    /// The file ends early.
    #[error("{path}: {found} of {expected} bytes")]
    Truncated {
        /// The file.
        path: String,
        /// Length by its header or the record.
        expected: u64,
        /// Length found.
        found: u64,
    },
    /// The connection over which the bytes came ended.
    #[error("{path}: {found} of {expected} bytes came: {source}")]
    Lost {
        /// What came, or the file that was sent.
        path: String,
        /// Its length.
        expected: u64,
        /// So many bytes had come.
        found: u64,
        /// What was seen.
        source: io::Error,
    },
    /// The file is of a later or unknown format.
    #[error("{path}: {what}")]
    Format {
        /// The file.
        path: String,
        /// What is unknown.
        what: String,
    },
    /// A sound file, but not the one that the record speaks of.
    #[error("{path}: sealed as {found}, the record says {expected}")]
    Other {
        /// The file.
        path: String,
        /// By the record.
        expected: String,
        /// By the file.
        found: String,
    },
    /// The caller's argument does not fit.
    #[error("{0}")]
    Input(String),
    /// The caller's sink refused.
    #[error(transparent)]
    Sink(Error),
}

impl ReadError {
    pub(crate) fn io(path: &str, doing: &'static str, source: impl Into<io::Error>) -> ReadError {
        ReadError::Io {
            path: path.to_owned(),
            doing,
            source: source.into(),
        }
    }
    pub(crate) fn corrupt(path: &str, what: impl Into<String>) -> ReadError {
        ReadError::Corrupt {
            path: path.to_owned(),
            place: DamagedAt::default(),
            what: what.into(),
        }
    }
    /// True if another look at the same bytes cannot help: use another copy.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            ReadError::Corrupt { .. } | ReadError::Truncated { .. } | ReadError::Other { .. }
        )
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Error {
        match error {
            ReadError::Io {
                path,
                doing,
                source,
            } => Error::io(path, doing, &source),
            ReadError::Corrupt { path, place, what } => Error::new(
                Code::Corrupt,
                Entity::File(path),
                format!("{place}{what}"),
                OTHER_COPY,
            ),
            ReadError::Truncated {
                path,
                expected,
                found,
            } => Error::new(
                Code::Truncated,
                Entity::File(path),
                format!("{found} of {expected} bytes are there"),
                OTHER_COPY,
            ),
            ReadError::Lost {
                path,
                expected,
                found,
                source,
            } => lost(&path, expected, found, &source),
            ReadError::Format { path, what } => Error::new(
                Code::FormatUnknown,
                Entity::File(path),
                what,
                "use the version of Outlive that wrote it, or a later one",
            ),
            ReadError::Other {
                path,
                expected,
                found,
            } => Error::new(
                Code::Corrupt,
                Entity::File(path),
                format!("sealed as {found}, but the record says {expected}"),
                OTHER_COPY,
            ),
            ReadError::Input(reason) => Error::new(
                Code::InvalidArgument,
                Entity::Call,
                reason,
                "give memory of exactly the size that the container states",
            ),
            ReadError::Sink(error) => error,
        }
    }
}

//! Identifiers. Each is a distinct type, so that a rank is never taken for a node.

use core::fmt;
use serde::{Deserialize, Serialize};

use crate::error::{Code, Entity, Error, Result};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $shown:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($shown, "{}"), self.0)
            }
        }
    };
}

number!(
    /// A process of the job, 0-based, as its launcher numbers it.
    Rank(u32), "rank "
);
number!(
    /// A node *slot* of the job, 0-based. When a spare replaces a lost node it
    /// takes the slot over, so partners and placement keep their meaning.
    NodeId(u32), "node "
);
number!(
    /// The caller's number of a checkpoint; strictly increasing within an
    /// incarnation. At most [`Version::MAX`].
    Version(u64), "version "
);
number!(
    /// One start of a job's ranks, from 1. Versions of an older incarnation that
    /// come after the version chosen at a restart are void.
    Incarnation(u32), "incarnation "
);

impl Version {
    /// The largest version: the two values above it mean "never" and "none" in
    /// the words shared between a rank and its agent.
    pub const MAX: Version = Version(u64::MAX - 2);
}

impl NodeId {
    /// The supervisor that `outlive run` is, seen as a peer.
    pub const LAUNCHER: NodeId = NodeId(u32::MAX);
    /// The memory server of a job, where places of copies are named.
    pub const SERVER: NodeId = NodeId(u32::MAX - 1);
}

/// One container file: the bytes of all ranks of one node at one version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ContainerId {
    /// The incarnation in which it was captured.
    pub incarnation: Incarnation,
    /// The version it belongs to.
    pub version: Version,
    /// The node whose ranks it holds.
    pub node: NodeId,
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "i{}-v{}-n{}",
            self.incarnation.0, self.version.0, self.node.0
        )
    }
}

/// The name of a job: 1 to 64 characters out of `A-Z a-z 0-9 . _ -`, not
/// starting with a dot or a dash, so that it is safe as a directory name and as
/// an argument everywhere.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName(String);

impl JobName {
    /// Longest name, in bytes.
    pub const BYTES_MAX: usize = 64;

    /// Checks and wraps a name.
    pub fn new(text: impl Into<String>) -> Result<JobName> {
        let text = text.into();
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let good = (1..=Self::BYTES_MAX).contains(&text.len())
            && text.bytes().all(allowed)
            && !text.starts_with(['.', '-']);
        if good {
            return Ok(JobName(text));
        }
        Err(Error::new(
            Code::InvalidArgument,
            Entity::Option("job".into()),
            format!(
                "'{}' cannot name a job",
                text.chars().take(80).collect::<String>()
            ),
            "use 1 to 64 letters, digits, dots, dashes or underscores; begin with a letter or digit",
        ))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for JobName {
    type Error = Error;
    fn try_from(text: String) -> Result<JobName> {
        JobName::new(text)
    }
}

impl From<JobName> for String {
    fn from(name: JobName) -> String {
        name.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_names_are_safe_as_paths() {
        for good in ["a", "heat2d", "run-7_b.2", &"x".repeat(64)] {
            assert!(JobName::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "-rf",
            "a/b",
            "a b",
            "ü",
            "a\0",
            &"x".repeat(65),
        ] {
            assert_eq!(
                JobName::new(bad).unwrap_err().code(),
                Code::InvalidArgument,
                "{bad}"
            );
        }
    }
}

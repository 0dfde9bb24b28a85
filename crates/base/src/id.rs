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

/// Where a version is kept, from the cheapest to the most stable (ffmk, section
/// 3.5; deep-er, section III-D). The order of the variants is the order of
/// tolerance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Level {
    /// Staging memory that the keeper owns. Survives ranks and agents.
    Memory = 0,
    /// A container on the node's own storage. Survives the keeper too.
    Disk = 1,
    /// A second container on the partner node (Buddy). Survives a lost node.
    Partner = 2,
    /// A container in the directory that all nodes share. Survives all nodes.
    Shared = 3,
}

impl Level {
    /// All levels, cheapest first.
    pub const ALL: [Level; 4] = [Level::Memory, Level::Disk, Level::Partner, Level::Shared];

    /// The name used on the command line, in records and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Memory => "memory",
            Level::Disk => "disk",
            Level::Partner => "partner",
            Level::Shared => "shared",
        }
    }

    /// How many failure domains may be lost, whichever they are, without losing
    /// a version committed at this level: the `f` of the commit rule.
    pub const fn domains_tolerated(self, nodes: u32) -> u32 {
        match self {
            Level::Memory | Level::Disk => 0,
            Level::Partner => 1,
            Level::Shared => nodes,
        }
    }

    /// The inverse of `self as u8`.
    pub const fn from_u8(value: u8) -> Option<Level> {
        match value {
            0 => Some(Level::Memory),
            1 => Some(Level::Disk),
            2 => Some(Level::Partner),
            3 => Some(Level::Shared),
            _ => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::str::FromStr for Level {
    type Err = Error;
    fn from_str(text: &str) -> Result<Level> {
        Level::ALL
            .into_iter()
            .find(|level| level.name() == text)
            .ok_or_else(|| {
                Error::new(
                    Code::InvalidArgument,
                    Entity::Option("level".into()),
                    format!("'{text}' is no checkpoint level"),
                    "use memory, disk, partner or shared",
                )
            })
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

    #[test]
    fn levels_are_ordered_by_tolerance_and_round_trip() {
        for (i, level) in Level::ALL.into_iter().enumerate() {
            assert_eq!(Level::from_u8(i as u8), Some(level));
            assert_eq!(level.name().parse::<Level>().unwrap(), level);
        }
        for pair in Level::ALL.windows(2) {
            assert!(pair[0] < pair[1]);
            assert!(pair[0].domains_tolerated(8) <= pair[1].domains_tolerated(8));
        }
        assert_eq!(Level::from_u8(4), None);
    }
}

//! What the runner says to its members: a line of JSON each.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// From SIGTERM to SIGKILL when one has failed or is told to end.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// The status of a member that was given up: EX_UNAVAILABLE.
pub(super) const MEMBER_GONE: u8 = 69;
/// To a member.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum ToMember {
    Start(Box<Start>),
    /// Nothing is new.
    Alive,
    /// A signal for the command.
    Signal(i32),
}

/// What to start, and how.
#[derive(Serialize, Deserialize, Debug, Default)]
pub(super) struct Start {
    pub words: Vec<OsString>,
    pub variables: Vec<(OsString, OsString)>,
    /// The working directory; `None`: as it is.
    pub dir: Option<OsString>,
    /// Where the process that stands for the launcher here says that it lives.
    pub host: Option<PathBuf>,
    /// Silence after which everything here ends.
    pub lease_ms: u64,
}

//! A run as its user asked for it.

use std::ffi::OsString;
use std::path::PathBuf;

use outlive_control::supervisor::Settings;

use crate::timeline::Timeline;

/// A run as it was asked for.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the supervisor needs.
    pub settings: Settings,
    /// The directory of all jobs.
    pub store: PathBuf,
    /// Where the nodes' directories go; `None`: in the job's.
    pub node_storage: Option<PathBuf>,
    /// The name was made up for this run: nothing of the job stays when it ends well.
    pub unnamed: bool,
    /// Bound of the staging memory of each node, in bytes.
    pub memory_bytes: u64,
    /// Encrypt bulk data.
    pub encrypt: bool,
    /// Where the report goes besides the job's directory.
    pub report: Option<PathBuf>,
    /// The program that has the subcommands `keeper` and `agent`.
    pub executable: PathBuf,
    /// Program and arguments of the command.
    pub words: Vec<OsString>,
    /// Further variables of the command's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// What is shown.
    pub timeline: Timeline,
}

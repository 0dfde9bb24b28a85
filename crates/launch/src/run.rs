//! A run as its user asked for it.

use std::ffi::OsString;
use std::path::PathBuf;

use outlive_base::Ports;
use outlive_control::health;
use outlive_control::slots::ServiceSettings;
use outlive_control::steering::Powers;
use outlive_control::supervisor::Settings;
use outlive_objects::ObjectStoreUrl;

use crate::command::Prepare;
use crate::hosts::address::Subnet;
use crate::hosts::source::Source;
use crate::store::Wanted;
use crate::timeline::Timeline;

/// Machines of their own, a node on each.
#[derive(Debug)]
pub struct Machines {
    /// Where they come from.
    pub source: Box<dyn Source>,
    /// The network between them, where there are several.
    pub network: Option<Subnet>,
    /// The ports at which launcher and agents listen.
    pub ports: Ports,
    /// The program's path on each; `None`: as here.
    pub executable: Option<PathBuf>,
}

/// A run as it was asked for.
#[derive(Debug)]
pub struct Run {
    /// What the supervisor needs.
    pub settings: Settings,
    /// The directory of all jobs.
    pub store: PathBuf,
    /// Machines on which the nodes live; `None`: parts of this one.
    pub hosts: Option<Machines>,
    /// Where the nodes' directories go; `None`: in the job's.
    pub node_storage: Option<PathBuf>,
    /// Where the level shared lies, if not in the job's directory.
    pub object_store: Option<ObjectStoreUrl>,
    /// Where the memory server is: `HOST:PORT`.
    pub memory_server: Option<String>,
    /// What lets it take part in turns of another store's coordinator.
    pub coordinator: Option<PathBuf>,
    /// The name was made up for this run: nothing of the job stays when it ends well.
    pub unnamed: bool,
    /// Bound of the staging memory of each node, in bytes; 0: half of what its host has.
    pub memory_bytes: u64,
    /// Encrypt bulk data.
    pub encrypt: bool,
    /// How the machines' sensors are read and judged.
    pub health: health::Settings,
    /// When work is done that need not be done at once, and the user's own.
    pub service: ServiceSettings,
    /// Where the report goes besides the job's directory.
    pub report: Option<PathBuf>,
    /// Where numbers for a monitoring system go: a file, or a directory of such files.
    pub metrics: Option<PathBuf>,
    /// The program that has the subcommands `keeper` and `agent`.
    pub executable: PathBuf,
    /// Program and arguments of the command.
    pub words: Vec<OsString>,
    /// The command is started on each node, instead of once on this machine.
    pub each: bool,
    /// Further variables of the command's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// What is done to the command before it is started.
    pub prepare: Option<Prepare>,
    /// What is shown.
    pub timeline: Timeline,
}

impl Run {
    /// What it wants of the job's store.
    pub(crate) fn wanted(&self) -> Wanted<'_> {
        Wanted {
            nodes: self.settings.nodes,
            node_storage: self.node_storage.as_deref(),
            object_store: self.object_store.as_ref(),
            memory_server: self.memory_server.as_deref(),
            powers: self
                .settings
                .auto
                .as_ref()
                .map_or(Powers::AsBefore, |auto| auto.powers),
            fresh: self.settings.fresh,
        }
    }
}

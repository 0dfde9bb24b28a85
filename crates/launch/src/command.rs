//! The user's command: started verbatim, ended with everything it started.
//!
//! The launcher is the subreaper of all its descendants, so nothing that the
//! command started can leave the tree: neither a double fork nor a new session
//! hides a process. What is not below a keeper is the command's.
//!
//! On a terminal the command shares the launcher's process group, so that the
//! shell's job control (interrupt, suspend, continue) works on both as on one
//! program; otherwise it has a group of its own.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use outlive_base::{Code, Entity, Error, Incarnation, JobName, Result, Time};
use rustix::process::{Pid, Signal};

use crate::process::{self, Group, Process};
use outlive_control::ended::Ended;

/// The variables by which a rank finds its place in the job.
pub(crate) const VARIABLES: [&str; 4] = [
    "OUTLIVE_AGENT",
    "OUTLIVE_NODES",
    "OUTLIVE_INCARNATION",
    "OUTLIVE_JOB",
];

/// What is done to the command before it is started, each time.
#[derive(Clone)]
pub struct Prepare(Arc<dyn Fn(&mut Command) + Send + Sync>);

impl Prepare {
    /// This.
    pub fn new(what: impl Fn(&mut Command) + Send + Sync + 'static) -> Prepare {
        Prepare(Arc::new(what))
    }
}

impl fmt::Debug for Prepare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepare").finish_non_exhaustive()
    }
}

/// How the command is started.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Program and arguments.
    pub words: Vec<OsString>,
    /// The job's name.
    pub job: JobName,
    /// Number of nodes.
    pub nodes: u32,
    /// Further variables of its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// What is done to it before.
    pub prepare: Option<Prepare>,
}

#[derive(Debug)]
struct Ending {
    kill_at: Time,
    quiet_scans: u32,
}

/// The command's processes.
#[derive(Debug)]
pub struct Tree {
    recipe: Recipe,
    group: Group,
    root: Option<Process>,
    ending: Option<Ending>,
}

/// Scans in a row that must find nothing: a process that forks while it is being
/// looked for is found by the next.
const QUIET_SCANS: u32 = 2;

impl Tree {
    /// Makes this process the subreaper of everything it will start.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if there is no command.
    pub fn new(recipe: Recipe) -> Result<Tree> {
        if recipe.words.is_empty() {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Call,
                "no command is given",
                "write it after --, for example: outlive run -- mpirun -n 8 ./app",
            ));
        }
        let me = rustix::process::getpid();
        rustix::process::set_child_subreaper(Some(me))
            .map_err(|error| Error::internal(format!("subreaper: {error}")))?;
        let shared = std::io::stdin().is_terminal();
        Ok(Tree {
            recipe,
            group: if shared { Group::Shared } else { Group::Own },
            root: None,
            ending: None,
        })
    }

    /// Starts the command for an incarnation; `places` are variables that say where agents and
    /// machines are.
    ///
    /// # Errors
    /// [`Code::CommandFailed`] if it cannot be executed.
    pub fn start(
        &mut self,
        incarnation: Incarnation,
        places: Vec<(OsString, OsString)>,
    ) -> Result<()> {
        let mut command = Command::new(&self.recipe.words[0]);
        command
            .args(&self.recipe.words[1..])
            .env("OUTLIVE_NODES", self.recipe.nodes.to_string())
            .env("OUTLIVE_INCARNATION", incarnation.0.to_string())
            .env("OUTLIVE_JOB", self.recipe.job.as_str())
            .envs(self.recipe.environment.iter().cloned())
            .envs(places);
        if let Some(Prepare(prepare)) = &self.recipe.prepare {
            prepare(&mut command);
        }
        self.ending = None;
        // Without its supervisor it would run unprotected, and beside the next one.
        self.root = Some(process::spawn(command, self.group, true)?);
        Ok(())
    }

    /// If this child was the command itself: true.
    pub fn ended(&mut self, pid: u32, _ended: Ended) -> bool {
        let was = self.root.as_ref().is_some_and(|root| root.pid == pid);
        if was {
            self.root = None;
        }
        was
    }

    /// Sends a signal to the command: to its group, or to its process where the
    /// group is shared.
    pub fn signal(&self, number: i32) {
        let Some(root) = &self.root else { return };
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        let group = i32::try_from(root.pid).ok().and_then(Pid::from_raw);
        match (self.group, group) {
            // Not yet reaped, so the number is still the group's.
            (Group::Own, Some(group)) => {
                let _ = rustix::process::kill_process_group(group, signal);
            }
            _ => process::signal(&root.fd, signal),
        }
    }

    /// True if the terminal's signals reach the command too.
    pub fn shares_terminal(&self) -> bool {
        self.group == Group::Shared
    }

    /// Begins to end everything: `first` now, SIGKILL at `kill_at`.
    pub fn end(&mut self, first: Option<i32>, kill_at: Time) {
        if let Some(number) = first {
            self.signal(number);
        }
        self.ending = Some(Ending {
            kill_at,
            quiet_scans: 0,
        });
    }

    /// True while [`Tree::press`] should be called often.
    pub const fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Goes on ending; true when no process is left.
    pub fn press(&mut self, now: Time, keepers: &BTreeSet<u32>) -> bool {
        let Some(ending) = &mut self.ending else {
            return false;
        };
        let me = std::process::id();
        let left = match now >= ending.kill_at {
            true => process::signal_descendants(me, keepers, Signal::KILL),
            false => process::descendants(me, keepers).map(|pids| pids.len()),
        };
        let quiet = matches!(left, Ok(0));
        ending.quiet_scans = if quiet { ending.quiet_scans + 1 } else { 0 };
        // The command's own end must have been reaped, so that its status is known.
        if ending.quiet_scans < QUIET_SCANS || self.root.is_some() {
            return false;
        }
        self.ending = None;
        true
    }

    /// SIGKILL to everything, at once.
    pub fn kill_all(&self, keepers: &BTreeSet<u32>) {
        let me = std::process::id();
        for _ in 0..100 {
            if matches!(
                process::signal_descendants(me, keepers, Signal::KILL),
                Ok(0)
            ) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// Looks for the command as execvp(3) will, so that a mistake costs no time.
///
/// # Errors
/// [`Code::CommandFailed`], with what is wrong with it.
pub(crate) fn find(words: &[OsString]) -> Result<PathBuf> {
    let refuse = |entity: Entity, reason: &str, remedy: &str| {
        Err(Error::new(Code::CommandFailed, entity, reason, remedy))
    };
    let Some(program) = words.first() else {
        return refuse(
            Entity::Call,
            "no command is given",
            "write it after --, for example: outlive run -- mpirun -n 8 ./app",
        );
    };
    let entity = Entity::File(program.to_string_lossy().into_owned());
    let path = Path::new(program);
    let candidates: Vec<PathBuf> = match path.components().count() > 1 {
        true => vec![path.to_owned()],
        false => {
            let dirs = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
            std::env::split_paths(&dirs)
                .map(|dir| dir.join(path))
                .collect()
        }
    };
    let mut seen = false;
    for candidate in candidates {
        if candidate.is_file() {
            seen = true;
            if rustix::fs::access(&candidate, rustix::fs::Access::EXEC_OK).is_ok() {
                return Ok(candidate);
            }
        }
    }
    match seen {
        true => refuse(
            entity,
            "it may not be executed",
            "chmod +x, or name its interpreter",
        ),
        false => refuse(
            entity,
            "there is no such program",
            "check the spelling and PATH, or give the full path",
        ),
    }
}

//! `outlive quiet`: a command on cores that are kept free of everything else. The work is in the
//! crate `node`.

pub(crate) mod cores;
mod decoupled;
mod locked;
mod start;
mod status;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Args, Subcommand};
use outlive_base::{Code, Entity, Error, Result};
use outlive_launch::Run;
use outlive_launch::command::Prepare;
use outlive_node::decouple;
use outlive_node::quiet::act::Undone;
use outlive_node::quiet::journal::Head;
use rustix::process::{Pid, Signal, geteuid};

use self::cores::{Cores, Quieted};
use crate::output;
use crate::pages::job::Watch;
use crate::pages::library;

/// Groups of options.
const OUTPUT: &str = "Output";
/// Where root's journals lie.
const JOURNALS: &str = "/var/lib/outlive/quiet";
/// For tests: the point at which this process ends as by SIGKILL.
const DIE_AT: &str = "OUTLIVE_QUIET_DIE_AT";

#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  outlive quiet --compute 1 --dry-run
  outlive quiet --compute 1 --service 0 -- ./app input
  outlive quiet --compute 2-7 --class fifo:10 -- mpirun -n 6 ./app
  outlive quiet --compute 1 --decouple -- ./app input
  outlive quiet restore

The exit status is the command's own, 128 + n for signal n. When it has ended,
all settings are as before; what a killed outlive quiet has left is undone by
restore, or by the next outlive quiet."
)]
pub struct QuietOptions {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    start: start::StartOptions,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Tell which cores are kept quiet, by whom, and what was changed for it
    Status(status::StatusOptions),
    /// Undo what was left by runs that were killed
    Restore(status::RestoreOptions),
    /// Write the library that --decouple preloads, for launchers and settings of your own
    Library {
        /// Where to
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Runs the command; the exit status.
///
/// # Errors
/// Options out of bounds, cores that cannot be had (OL-100) or belong to another run (OL-502); a
/// program that is not there (OL-505); journals that cannot be written (OL-4xx); settings that
/// cannot be brought back (OL-400).
pub fn run(options: QuietOptions) -> Result<u8> {
    match options.what {
        Some(What::Status(options)) => status::run(&options),
        Some(What::Restore(options)) => status::restore(&options),
        Some(What::Library { file }) => {
            library::write(&file, decouple::LIBRARY)?;
            output::note(&format!(
                "to preload it, with partners on core 0: LD_PRELOAD={} OUTLIVE_DECOUPLE_SERVICE=0",
                std::path::absolute(&file).unwrap_or(file).display()
            ));
            Ok(0)
        }
        None => start::run(options.start),
    }
}

/// Runs a job; on quiet cores if they are wanted: its command on compute cores, all that is
/// Outlive's on service cores.
///
/// # Errors
/// As those of [`run`], and of the job.
pub(crate) fn within(cores: &Cores, silent: bool, mut run: Run) -> Result<u8> {
    if !cores.are_wanted() {
        return outlive_launch::run(run);
    }
    if run.hosts.is_some() {
        let reason = "cores are kept quiet on this machine alone, and the job's nodes are others";
        let remedy = "leave it out, or write outlive quiet before the command on each host";
        return Err(refuse("compute", reason, remedy));
    }
    start::find(&run.words)?;
    // From here on signals wait for the launcher.
    let _waiting = Watch::new()?;
    let say = |what: &str| {
        if !silent {
            output::warn(what);
        }
    };
    let mut quieted = Quieted::begin(cores, &run.words, &say)?;
    if !silent {
        output::note(&quieted.line());
    }
    let entry = quieted.entry()?;
    run.prepare = Some(Prepare::new(move |command| entry.apply(command)));
    let ended = outlive_launch::run(run);
    if !silent {
        quieted.told().iter().for_each(|line| output::note(line));
    }
    quieted.undo();
    ended
}

fn refuse(option: &str, reason: impl Into<String>, remedy: impl Into<String>) -> Error {
    let entity = Entity::Option(option.into());
    Error::new(Code::InvalidArgument, entity, reason, remedy)
}

/// Where journals lie: given, root's, or an ordinary user's own.
fn journals(given: Option<&PathBuf>) -> PathBuf {
    let user = geteuid();
    match given {
        Some(path) => path.clone(),
        None if user.is_root() => JOURNALS.into(),
        None => match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(base) => PathBuf::from(base).join("outlive-quiet"),
            None => std::env::temp_dir().join(format!("outlive-quiet-{}", user.as_raw())),
        },
    }
}

/// Counts points where a run may be cut short, on the way there and back, and ends at the one that a
/// test asks for.
fn trip() -> impl FnMut() -> Result<()> {
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let at = std::env::var(DIE_AT).ok();
    let at = at.and_then(|text| text.parse::<u64>().ok());
    move || {
        let passed = PASSED.fetch_add(1, Ordering::Relaxed) + 1;
        if at == Some(passed) {
            let own = std::process::id() as i32;
            if let Some(own) = Pid::from_raw(own) {
                let _ = rustix::process::kill_process(own, Signal::KILL);
            }
        }
        Ok(())
    }
}

/// Says what undoing has found besides what went well.
fn tell(head: &Head, undone: &Undone) {
    for what in &undone.foreign {
        output::warn(&format!("somebody else has changed it, left alone: {what}"));
    }
    if undone.handed > 0 {
        output::note(&format!(
            "quiet: settings that another run still needs: {}; it undoes them",
            undone.handed
        ));
    }
    for what in &undone.stuck {
        output::warn(&format!("run {} could not be undone: {what}", head.id));
    }
}

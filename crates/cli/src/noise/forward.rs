//! `outlive noise forward`: what a system call costs, direct and forwarded, in processes of their own.

use std::path::Path;
use std::process::{Command, Stdio};

use clap::Args;
use outlive_base::{Code, Entity, Error, Result};
use outlive_node::cpus::Cpus;
use outlive_node::decouple::cost::{self, Cost, FORWARDING, Forwarding};
use outlive_node::decouple::{environment, offered};
use outlive_node::placement;

use super::OUTPUT;
use crate::output;
use crate::pages::library::{DECOUPLE, Folder};

/// Calls of a kind at most.
const CALLS: (u64, u64) = (100, 10_000_000);

#[derive(Args, Debug)]
pub(super) struct ForwardOptions {
    /// The core of the caller [default: the last that this process may use]
    #[arg(long, value_name = "CORE")]
    core: Option<u32>,
    /// Cores of its partner, as in 0 or 0,2-3 [default: the first that is not the caller's]
    #[arg(long, value_name = "CORES")]
    service: Option<String>,
    /// Calls of each kind, 100 to 10000000
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    calls: u64,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Only time them in this process (started by this command)
    #[arg(long, hide = true)]
    here: bool,
}

/// Runs the command.
///
/// # Errors
/// Options out of bounds, one core alone, no dispatch of system calls (OL-100); a process that
/// fails (OL-505).
pub(super) fn run(options: &ForwardOptions) -> Result<u8> {
    let (least, most) = CALLS;
    if !(least..=most).contains(&options.calls) {
        let reason = format!("{} calls", options.calls);
        return Err(refuse("calls", &reason, &format!("give {least} to {most}")));
    }
    if options.here {
        return output::json(&cost::measure(options.calls as usize)?);
    }
    if let Err(why) = offered() {
        return Err(refuse("service", why, "measure where there is one"));
    }
    let (core, service) = super::compare::chosen(options.core, options.service.as_deref())?;
    let folder = Folder::new(&DECOUPLE)?;
    let preload = std::env::var_os("LD_PRELOAD");
    let (here, by): (Cpus, Cpus) = (
        [core].into_iter().collect(),
        service.iter().copied().collect(),
    );
    let nodes = placement::nodes(Path::new(placement::SYSFS));
    let variables = environment(
        &folder.library,
        (&here, &by),
        &nodes,
        &folder.account,
        preload,
    );
    let time = |decoupled: bool| {
        let mut command = command(core, options.calls)?;
        if decoupled {
            command.envs(variables.clone());
        }
        timed(command)
    };
    let result = Forwarding {
        schema: FORWARDING.to_owned(),
        core,
        service,
        calls: options.calls,
        direct: time(false)?,
        forwarded: time(true)?,
    };
    // Times of calls that nobody forwarded would be a lie.
    let told = outlive_launch::input::read_text(&folder.account, 1 << 20).unwrap_or_default();
    if outlive_node::decouple::account(&told).forwarded < 4 * options.calls {
        let entity = Entity::File(folder.library.display().to_string());
        let remedy = "see whether that directory is mounted noexec; TMPDIR names another";
        let reason = "the library forwarded no calls";
        return Err(Error::new(Code::CommandFailed, entity, reason, remedy));
    }
    match options.json {
        true => output::json(&result),
        false => output::text(&cost::text(&result)),
    }
}

fn refuse(option: &str, reason: &str, remedy: &str) -> Error {
    let entity = Entity::Option(option.into());
    Error::new(Code::InvalidArgument, entity, reason, remedy)
}

/// This program, bound to the core, timing calls.
fn command(core: u32, calls: u64) -> Result<Command> {
    use std::os::unix::process::CommandExt;
    let own = std::env::current_exe();
    let own = own.map_err(|error| Error::internal(format!("own program: {error}")))?;
    let one = [core].into_iter().collect::<Cpus>().affinity();
    let mut command = Command::new(own);
    command.args(["noise", "forward", "--here", "--calls", &calls.to_string()]);
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let bind = move || one.apply(0);
    // SAFETY: it makes one system call and allocates nothing.
    unsafe { command.pre_exec(bind) };
    Ok(command)
}

fn timed(mut command: Command) -> Result<Vec<Cost>> {
    let failed = |reason: String| {
        let entity = Entity::File(Path::new("outlive").display().to_string());
        let remedy = "see what it said; another --core may help";
        Error::new(Code::CommandFailed, entity, reason, remedy)
    };
    let done = command
        .output()
        .map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&done.stdout).map_err(|_| {
        failed(format!(
            "the process that times calls ended with {}",
            done.status
        ))
    })
}

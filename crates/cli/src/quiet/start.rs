//! `outlive quiet -- COMMAND`: changes, the command, and back.

use std::ffi::OsString;
use std::process::Command;

use clap::Args;
use outlive_base::{Code, Entity, Error, Result};
use outlive_node::pages::program;
use outlive_node::quiet::plan::{self, Plan, Request};
use outlive_node::quiet::step::Rule;
use outlive_node::quiet::store::{self, Here, Owner};
use outlive_node::quiet::tree::Machine;

use super::cores::{Cores, Quieted, kind, living, request};
use super::{OUTPUT, refuse};
use crate::output;
use crate::pages::job::Watch;

/// What would end this process without a chance to undo, besides the usual ones.
const SIGNALS: [i32; 3] = [libc::SIGQUIT, libc::SIGUSR2, libc::SIGALRM];

#[derive(Args, Debug)]
pub(super) struct StartOptions {
    #[command(flatten)]
    cores: Cores,
    /// Print every change, and make none
    #[arg(long, help_heading = OUTPUT)]
    dry_run: bool,
    /// Say only what could not be undone
    #[arg(short, long, help_heading = OUTPUT)]
    quiet: bool,
    /// The command, started as it is written
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn run(options: StartOptions) -> Result<u8> {
    if !options.cores.are_wanted() {
        let remedy = "name the cores for the command, for example --compute 1";
        return Err(refuse("compute", "is missing", remedy));
    }
    if options.dry_run {
        return dry_run(&options.cores);
    }
    find(&options.command)?;
    let say = |what: &str| {
        if !options.quiet {
            output::warn(what);
        }
    };
    // From here on signals wait for the command, or for the end.
    let watch = Watch::and(&SIGNALS)?;
    let mut quieted = Quieted::begin(&options.cores, &options.command, &say)?;
    // One of the terminal came when there was no command that could get it too.
    if let Some(signal) = watch.told_to_end() {
        quieted.undo();
        return Ok(128 + signal as u8);
    }
    if !options.quiet {
        output::note(&quieted.line());
    }
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    quieted.entry()?.apply(&mut command);
    let outcome = watch.run(command, None);
    if !options.quiet {
        quieted.told().iter().for_each(|line| output::note(line));
    }
    quieted.undo();
    Ok(outcome?.ended.exit_status())
}

fn dry_run(cores: &Cores) -> Result<u8> {
    let (directory, here) = (cores.journals(), Here::of(&Machine));
    let request = request(cores, &living(&directory, &here)?)?;
    let mut plan = plan::plan(&Machine, &request);
    let dead = store::look(&directory)?
        .into_iter()
        .filter(|account| store::owner(&Machine, &account.head, &here) == Owner::Dead);
    let dead = dead.count();
    if dead > 0 {
        plan.notes.push(format!(
            "runs that were killed have left changes ({dead}): they would be undone first; \
             outlive quiet status shows them"
        ));
    }
    output::text(&text(&request, &plan))
}

/// Whether the command is there.
///
/// # Errors
/// [`Code::CommandFailed`] if it is not.
pub(super) fn find(command: &[OsString]) -> Result<()> {
    let Some(name) = command.first() else {
        let remedy = "write it behind --, for example: outlive quiet --compute 1 -- ./app";
        return Err(refuse("COMMAND", "is missing", remedy));
    };
    let found = program::find(name).map(drop);
    found.ok_or_else(|| {
        let entity = Entity::File(name.display().to_string());
        let remedy = "check the spelling and PATH, or give the full path; it must be executable";
        let reason = "there is no such program";
        Error::new(Code::CommandFailed, entity, reason, remedy)
    })
}

/// What a dry run prints.
fn text(request: &Request, plan: &Plan) -> String {
    let mut lines = vec![format!(
        "cores {} for the command ({}), all else on {}; nothing was changed",
        request.compute,
        kind(plan),
        request.service
    )];
    let mut rows = vec![
        ["SETTING", "BEFORE", "AFTER", "WHY"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(plan.items.iter().map(|item| {
        let shown = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
        let (before, after) = (shown(&item.step.before), shown(&item.step.after));
        let why = match item.rule {
            Rule::IfRefused => format!("{} (if the one before is refused)", item.why),
            _ => item.why.to_owned(),
        };
        vec![item.step.what.shown(), before, after, why]
    }));
    lines.push(output::table(&rows));
    lines.extend(plan.notes.iter().map(|note| format!("note: {note}")));
    lines.join("\n")
}

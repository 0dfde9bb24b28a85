//! `outlive quiet status` and `restore`: what journals say.

use std::path::PathBuf;

use clap::Args;
use outlive_base::{Code, Entity, Error, Result, count};
use outlive_node::quiet::journal::Account;
use outlive_node::quiet::store::{Here, Owner, Store, look, owner};
use outlive_node::quiet::tree::Machine;
use serde::Serialize;

use super::{OUTPUT, journals, tell, trip};
use crate::output;

#[derive(Args, Debug)]
pub(super) struct StatusOptions {
    /// Where journals lie [default: /var/lib/outlive/quiet for root, else the user's own]
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
}

#[derive(Args, Debug)]
pub(super) struct RestoreOptions {
    /// Where journals lie [default: /var/lib/outlive/quiet for root, else the user's own]
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// Say only what could not be undone
    #[arg(short, long, help_heading = OUTPUT)]
    quiet: bool,
}

#[derive(Serialize)]
struct Status {
    schema: &'static str,
    journals: PathBuf,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Run {
    id: String,
    pid: u32,
    owner: &'static str,
    compute: String,
    service: String,
    command: String,
    changes: Vec<Change>,
}

#[derive(Serialize)]
struct Change {
    setting: String,
    before: String,
    after: String,
    now: Option<String>,
}

fn word(owner: Owner) -> &'static str {
    match owner {
        Owner::Alive => "alive",
        Owner::Dead => "dead",
        Owner::Rebooted => "rebooted",
        Owner::Elsewhere => "elsewhere",
    }
}

fn of(account: &Account, here: &Here) -> Run {
    let changes = account.entries.iter().map(|entry| Change {
        setting: entry.step.what.shown(),
        before: entry.step.before.clone(),
        after: entry.ours().to_owned(),
        now: entry.step.what.now(&Machine).ok(),
    });
    let head = &account.head;
    Run {
        id: head.id.clone(),
        pid: head.pid,
        owner: word(owner(&Machine, head, here)),
        compute: head.compute.clone(),
        service: head.service.clone(),
        command: head.command.clone(),
        changes: changes.collect(),
    }
}

pub(super) fn run(options: &StatusOptions) -> Result<u8> {
    let directory = journals(options.journal.as_ref());
    let here = Here::of(&Machine);
    let accounts = look(&directory)?;
    let status = Status {
        schema: "outlive.quiet/1",
        runs: accounts.iter().map(|account| of(account, &here)).collect(),
        journals: directory,
    };
    match options.json {
        true => output::json(&status),
        false => output::text(&text(&status)),
    }
}

fn text(status: &Status) -> String {
    if status.runs.is_empty() {
        return "no core is kept quiet, and nothing is left to undo".to_owned();
    }
    let mut parts = Vec::new();
    for run in &status.runs {
        let owner = match run.owner {
            "alive" => format!("process {} lives", run.pid),
            "dead" => "its process was killed: outlive quiet restore undoes it".to_owned(),
            "rebooted" => "of an earlier boot: nothing of it is left".to_owned(),
            _ => format!("process {} in another container", run.pid),
        };
        parts.push(format!(
            "cores {} quiet, all else on {}: {} ({owner})",
            run.compute, run.service, run.command
        ));
        let mut rows = vec![
            ["SETTING", "BEFORE", "AFTER", "NOW"]
                .map(str::to_owned)
                .to_vec(),
        ];
        rows.extend(run.changes.iter().map(|change| {
            let now = change.now.clone().unwrap_or_else(|| "gone".to_owned());
            let words = [&change.setting, &change.before, &change.after, &now];
            words
                .map(|word| {
                    if word.is_empty() {
                        "-".into()
                    } else {
                        word.clone()
                    }
                })
                .to_vec()
        }));
        parts.push(output::table(&rows));
    }
    parts.join("\n")
}

pub(super) fn restore(options: &RestoreOptions) -> Result<u8> {
    let directory = journals(options.journal.as_ref());
    let say = |text: &str| {
        if !options.quiet {
            output::note(text);
        }
    };
    if !directory.exists() {
        say("quiet: nothing to undo");
        return Ok(0);
    }
    let store = Store::open(&directory)?;
    let here = Here::of(&Machine);
    let done = store.restore(&Machine, &here, &mut trip())?;
    let mut stuck = 0;
    for (head, owner, undone) in &done {
        let settings = count(undone.restored as u64, "setting");
        match owner {
            Owner::Rebooted => say(&format!(
                "quiet: run {} was of an earlier boot; nothing of it was left",
                head.id
            )),
            _ => say(&format!(
                "quiet: cores {} of run {} ({}): {settings} restored",
                head.compute, head.id, head.command
            )),
        }
        tell(head, undone);
        stuck += undone.stuck.len();
    }
    let accounts = store.accounts()?;
    for account in &accounts {
        let head = &account.head;
        if matches!(
            owner(&Machine, head, &here),
            Owner::Alive | Owner::Elsewhere
        ) {
            say(&format!(
                "quiet: cores {} are in use by process {} ({}); it undoes its changes when it ends",
                head.compute, head.pid, head.command
            ));
        }
    }
    if done.is_empty() && accounts.is_empty() {
        say("quiet: nothing to undo");
    }
    match stuck {
        0 => Ok(0),
        _ => Err(Error::new(
            Code::Io,
            Entity::File(directory.display().to_string()),
            format!("settings that could not be restored: {stuck}; their journal is kept"),
            "see the warnings above; run outlive quiet restore again, as root",
        )),
    }
}

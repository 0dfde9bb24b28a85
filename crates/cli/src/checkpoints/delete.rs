//! `outlive checkpoints delete`: removes a job and all that it keeps, after a question.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use outlive_base::{Code, Entity, Error, JobName, Result};
use outlive_control::units::show_bytes;
use outlive_launch::delete::Deletion;
use outlive_launch::jobs::{Job, State};
use outlive_launch::versions;
use serde::Serialize;

use crate::config::Config;
use crate::options::Settings;
use crate::{jobs, output};

#[derive(Args, Debug)]
pub struct DeleteOptions {
    /// Name of the job
    #[arg(
        value_name = "JOB",
        required_unless_present = "job",
        conflicts_with = "job"
    )]
    pub name: Option<String>,
    /// Name of the job, said as to the other commands [default: JOB]
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Directory of all jobs [default: from the configuration]
    #[arg(long, value_name = "DIR")]
    pub store: Option<String>,
    /// Where the nodes keep their data, if the job's own files cannot tell
    /// [default: what the job's files say]
    #[arg(long, value_name = "DIR")]
    pub node_storage: Option<String>,
    /// Configuration file, read after the system's and the user's [default: only those]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Delete without a question
    #[arg(short, long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What the question was answered with if not by yes.
pub const DECLINED: u8 = 1;

#[derive(Serialize)]
struct Deleted {
    schema: &'static str,
    kind: &'static str,
    job: String,
    disk_bytes: u64,
    directories: Vec<PathBuf>,
    left: Vec<PathBuf>,
}

/// Runs the subcommand.
pub fn run(options: &DeleteOptions) -> Result<u8> {
    let flags = Settings {
        store: options.store.clone(),
        node_storage: options.node_storage.clone(),
        ..Settings::default()
    };
    let config = Config::load(&flags, options.config.as_deref())?;
    let name = options.name.as_ref().or(options.job.as_ref());
    let name = JobName::new(name.cloned().unwrap_or_default())?;
    let store = PathBuf::from(config.get("store"));
    let nodes = Some(config.get("node-storage")).filter(|path| !path.is_empty());
    let deletion = Deletion::prepare(&store, &name, nodes.map(Path::new))?;
    let directories = deletion.directories();
    let job = Job::at(&directories[0], name);
    if let Some(outside) = directories.get(1) {
        refuse_others(&job, outside)?;
    }
    let disk_bytes = job.disk_bytes();
    let objects = deletion.objects_shown()?;
    let kept = deletion.objects_left()?;
    if !options.yes && !agreed(&job, disk_bytes, &directories, objects.as_deref())? {
        output::warn("nothing was deleted");
        return Ok(DECLINED);
    }
    let file = job.file.as_ref().ok().filter(|file| !file.hosts.is_empty());
    let hosts = file.map(|file| {
        (
            versions::some(&file.hosts),
            file.node_storage.join(job.name.as_str()),
        )
    });
    let left = deletion.carry_out()?;
    if let Some((hosts, dir)) = hosts {
        output::warn(&format!(
            "its nodes were other machines ({hosts}): what they keep in {} is left there",
            dir.display()
        ));
    }
    if let Some(kept) = kept {
        output::warn(&format!(
            "another store may have run the job since: what lies in {kept} is left there"
        ));
    }
    if let Some(error) = &left.served {
        output::warn(&format!(
            "what it had at its memory server may be there until that ends: {error}"
        ));
    }
    for path in &left.files {
        output::warn(&format!("{} is not the job's and was left", path.display()));
    }
    if options.json {
        return output::json(&Deleted {
            schema: super::SCHEMA,
            kind: "delete",
            job: job.name.to_string(),
            disk_bytes,
            directories,
            left: left.files,
        });
    }
    let size = show_bytes(disk_bytes);
    output::text(&format!("job {} deleted, {size} freed", job.name))
}

/// Two stores may share the nodes' storage, and then jobs of one name a directory.
fn refuse_others(job: &Job, outside: &Path) -> Result<()> {
    let Ok(catalogue) = versions::on_this_machine(job) else {
        return match std::fs::read_dir(outside).map(|mut entries| entries.next()) {
            Ok(Some(_)) if job.state != State::BeingDeleted => Err(Error::new(
                Code::KeyMismatch,
                Entity::File(outside.display().to_string()),
                "the job's key or job.json cannot be read, so whether this is the job's is \
                 unknown; nothing was deleted",
                "if it is, remove it by rm -r and delete the job again",
            )),
            _ => Ok(()),
        };
    };
    let others = |error: &&Error| {
        let theirs =
            matches!(error.entity(), Entity::File(path) if Path::new(path).starts_with(outside));
        error.code() == Code::KeyMismatch && theirs
    };
    match catalogue.errors.iter().find(others) {
        None => Ok(()),
        Some(error) => Err(Error::new(
            Code::KeyMismatch,
            error.entity().clone(),
            "records of another job of this name, or of this one under another key, lie there; \
             nothing was deleted",
            "if nobody needs them, remove that directory by rm -r and delete the job again",
        )),
    }
}

/// Asks on the terminal.
fn agreed(
    job: &Job,
    disk_bytes: u64,
    directories: &[PathBuf],
    objects: Option<&str>,
) -> Result<bool> {
    let newest = jobs::known(job).ok().and_then(|known| known.newest);
    let newest = newest.map_or_else(
        || "no version that it could go on from".to_owned(),
        |newest| newest.to_string(),
    );
    let mut text = format!("job {}: {newest}, {}", job.name, show_bytes(disk_bytes));
    for directory in directories {
        text += &format!("\n  {}", directory.display());
    }
    if let Some(objects) = objects {
        text += &format!("\n  {objects}");
    }
    ask(&format!("delete job {}", job.name), &text, "Delete it?")
}

/// Asks on the terminal whether to do what cannot be undone, after saying what that is.
///
/// # Errors
/// [`Code::InvalidArgument`] if there is no terminal.
pub fn ask(what: &str, text: &str, question: &str) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Option("yes".into()),
            format!("nobody can be asked whether to {what}"),
            "add --yes to do it without a question",
        ));
    }
    let mut to = std::io::stderr().lock();
    let _ = write!(to, "{text}\n{question} It cannot be brought back. [y/N] ");
    let _ = to.flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Error::io("standard input", "read", &error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}

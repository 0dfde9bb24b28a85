//! `outlive status`: what the store says of a job, and which jobs there are.

use std::path::{Path, PathBuf};

use clap::Args;
use outlive_base::{Code, Entity, Error, JobName, Result, Version};
use outlive_control::health::NodeHealth;
use outlive_control::processes;
use outlive_control::report::{HangEntry, Report};
use outlive_control::slots::Offset;
use outlive_control::units::{show_bytes, show_ms};
use outlive_launch::delete;
use outlive_launch::jobs::{Job, State, utc};
use outlive_launch::record::live::{Live, LiveNode};
use outlive_launch::store::JobFile;
use serde::Serialize;

use crate::config::Config;
use crate::jobs::{self, Known, Newest};
use crate::options::{JobChoice, Settings};
use crate::output;
use crate::scrub;
use crate::transfers;

#[derive(Args, Debug)]
pub struct StatusOptions {
    #[command(flatten)]
    pub choice: JobChoice,
}

#[derive(Serialize)]
struct Status {
    schema: &'static str,
    job: JobFile,
    directory: PathBuf,
    state: State,
    running: bool,
    /// Process of the launcher, if it runs.
    pid: Option<u32>,
    /// The newest version that the job could go on from.
    newest: Option<Newest>,
    /// Versions that stay whatever is newer, newest first.
    pinned: Vec<Version>,
    disk_bytes: u64,
    changed: String,
    /// The running report, or that of the last run.
    report: Option<Report>,
    /// How the machines of its nodes are, while it runs.
    health: Vec<OfNode>,
    /// How well nodes know the coordinator's clock, by which slots go, while it runs.
    clocks: Vec<ClockOf>,
    /// Copies on their way to shared storage, while it runs.
    transfers: Vec<transfers::OfNode>,
    /// Why the next run would be refused, if it would.
    refusal: Option<Error>,
}

/// What a node knows of the coordinator's clock.
#[derive(Serialize)]
struct ClockOf {
    node: u32,
    #[serde(flatten)]
    offset: Offset,
}

impl ClockOf {
    fn of(node: &LiveNode) -> Option<ClockOf> {
        let (node, offset) = (node.node, node.clock?);
        Some(ClockOf { node, offset })
    }
}

#[derive(Serialize)]
struct OfNode {
    node: u32,
    host: Option<String>,
    #[serde(flatten)]
    health: NodeHealth,
}

impl From<LiveNode> for OfNode {
    fn from(node: LiveNode) -> OfNode {
        OfNode {
            node: node.node,
            host: node.host,
            health: node.health,
        }
    }
}

/// Letters of the column of names at least: scripts may cut lines there.
const NAME_WIDTH: usize = 12;

/// The directory of all jobs.
///
/// # Errors
/// Those of the configuration.
pub fn store(choice: &JobChoice) -> Result<PathBuf> {
    let flags = Settings {
        store: choice.store.clone(),
        ..Settings::default()
    };
    let config = Config::load(&flags, choice.config.as_deref())?;
    Ok(PathBuf::from(config.get("store")))
}

/// Finds the job that is meant: the one that is named, else the one that changed last.
///
/// # Errors
/// [`Code::NotFound`] if there is none; [`Code::JobBusy`] if it is being deleted; those of
/// reading `job.json`.
pub fn choose(choice: &JobChoice) -> Result<Job> {
    let store = store(choice)?;
    let name = match &choice.job {
        Some(name) => JobName::new(name.clone())?,
        None => newest(&store)?,
    };
    let dir = std::fs::canonicalize(&store)
        .unwrap_or(store)
        .join(name.as_str());
    delete::refuse_begun(&dir, &name)?;
    let job = Job::at(&dir, name);
    match &job.file {
        Ok(_) => Ok(job),
        Err(error) => Err(error.clone()),
    }
}

fn newest(store: &Path) -> Result<JobName> {
    let mut jobs = jobs::of_store(store)?.into_iter();
    let newest = jobs.find(|job| job.state != State::BeingDeleted);
    newest.map(|job| job.name).ok_or_else(|| {
        Error::new(
            Code::NotFound,
            Entity::File(store.display().to_string()),
            "no job is stored there",
            "check --store, or start one with outlive run",
        )
    })
}

/// `outlive status`.
pub fn run(options: &StatusOptions) -> Result<u8> {
    let choice = &options.choice;
    if choice.job.is_none() {
        return jobs::list(&store(choice)?, choice.json);
    }
    let mut job = choose(choice)?;
    let known = jobs::known(&job).unwrap_or_else(|error| Known {
        refusal: Some(error).filter(|_| job.state != State::NeverRan),
        ..Known::default()
    });
    let report = job.report.take();
    let live = Live::read(&job.dir).filter(|_| job.state == State::Running);
    let transfers = live.as_ref().map_or_else(Vec::new, transfers::of);
    let nodes = live.map_or_else(Vec::new, |live| live.nodes);
    let status = Status {
        transfers,
        clocks: nodes.iter().filter_map(ClockOf::of).collect(),
        health: nodes.into_iter().map(OfNode::from).collect(),
        refusal: known.refusal,
        schema: "outlive.status/1",
        newest: known.newest,
        pinned: known.pinned,
        state: job.state,
        running: job.state == State::Running,
        pid: job.pid,
        disk_bytes: job.disk_bytes(),
        changed: utc(job.changed),
        report,
        directory: job.dir,
        job: job.file?,
    };
    match choice.json {
        true => output::json(&status),
        false => output::text(&describe(&status)),
    }
}

fn describe(status: &Status) -> String {
    let job = &status.job;
    let state = match (status.state, status.pid, &status.report) {
        (State::Running, Some(pid), _) => format!("running (process {pid})"),
        (State::Failed, _, Some(report)) => {
            format!(
                "not running; the last run failed with exit status {}",
                report.exit_status
            )
        }
        (State::Running | State::NeverRan, ..) => status.state.text().to_owned(),
        (state, ..) => format!("not running; the last run {}", last_run(state)),
    };
    let newest = status
        .newest
        .map_or_else(|| "none".to_owned(), |newest| newest.to_string());
    // The file learns of them with the next start.
    let ranks = job
        .ranks
        .or_else(|| status.report.as_ref()?.ranks)
        .map_or_else(|| "?".to_owned(), |ranks| ranks.to_string());
    let mut lines = Vec::new();
    let mut say = |name: &str, text: String| lines.push((name.to_owned(), text));
    say("job", job.name.to_string());
    say("state", state);
    say("directory", status.directory.display().to_string());
    say("nodes", job.nodes.to_string());
    say("ranks", ranks);
    say("incarnation", job.incarnation.to_string());
    say("created", job.created.clone());
    say("changed", status.changed.clone());
    say("size", show_bytes(status.disk_bytes));
    say("newest", newest);
    if !status.pinned.is_empty() {
        let pinned = status.pinned.iter().map(|version| version.0.to_string());
        say("pinned", pinned.collect::<Vec<_>>().join(", "));
    }
    for OfNode { node, health, .. } in &status.health {
        if health.verdict.is_bad() {
            say("health", format!("node {node} {}", health.words()));
        }
    }
    let worst = status.clocks.iter().max_by_key(|it| it.offset.error_ns);
    if let Some(ClockOf { node, offset }) = worst {
        let error = show_ms(offset.error_ns as f64 / 1e6);
        let words = format!("clocks are known to {error} (node {node}) or better");
        say("slots", words);
    }
    for transfer in &status.transfers {
        say("transfer", transfer.describe());
    }
    if let Some(error) = &status.refusal {
        say("next run", format!("would be refused: {error}"));
    }
    if let Some(report) = &status.report {
        reported(report, &mut say);
    }
    aligned(&lines)
}

/// What the report says.
fn reported(report: &Report, say: &mut dyn FnMut(&str, String)) {
    say("restarts", report.restarts.to_string());
    if let Some(policy) = &report.policy {
        say("checkpoints", policy.why.clone());
    }
    for (level, version) in &report.checkpoints.last {
        say(level, format!("version {version} is stable"));
    }
    for (nth, text) in scrub::describe(report).into_iter().enumerate() {
        say(if nth == 0 { "scrub" } else { "" }, text);
    }
    for failure in &report.failures {
        say("failure", format!("{}: {}", failure.place, failure.cause));
    }
    for hang in &report.hangs {
        say("hang", hung(hang));
    }
    for error in &report.errors {
        let text = format!("{} {}: {}", error.code, error.entity, error.reason);
        say("error", text);
    }
}

/// A time in which the ranks came no further, or did not come.
fn hung(hang: &HangEntry) -> String {
    let since = match (hang.joining, hang.version) {
        (true, _) => format!("incarnation {}", hang.incarnation),
        (false, None) => "before the first version".to_owned(),
        (false, Some(version)) => format!("after version {version}"),
    };
    let still = show_ms(hang.still_seconds * 1e3);
    let then = match (hang.resumed_seconds, hang.joining) {
        (Some(seconds), false) => format!("went on after {}", show_ms(seconds * 1e3)),
        (Some(seconds), true) => format!("a rank joined after {}", show_ms(seconds * 1e3)),
        (None, false) => format!("no progress for {still}"),
        (None, true) => {
            let does = processes::line(&hang.processes);
            format!("ranks did not join for {still}, {does}")
        }
    };
    format!("{since}, {then}: {}", hang.file)
}

/// Names, and what is said of them in a column of its own.
fn aligned(lines: &[(String, String)]) -> String {
    let names = lines.iter().map(|(name, _)| name.len());
    let width = names.max().unwrap_or(0).max(NAME_WIDTH);
    let line = |(name, text): &(String, String)| format!("{name:<width$} {text}");
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn last_run(state: State) -> &'static str {
    match state {
        State::Interrupted => "was interrupted",
        State::CutOff => "was cut off",
        other => other.text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_of_a_level_moves_the_whole_column() {
        let lines = |level: &str| {
            let line = |name: &str, text: &str| (name.to_owned(), text.to_owned());
            let lines = [line("job", "x"), line(level, "version 4"), line("", "more")];
            aligned(&lines)
        };
        assert_eq!(
            lines("disk"),
            "job          x\ndisk         version 4\n             more"
        );
        let text = lines("memory-server:16");
        let columns = [("x", 0), ("version", 1), ("more", 2)].map(|(word, nth)| {
            let line = text.lines().nth(nth).unwrap();
            line.find(word).unwrap()
        });
        assert_eq!(columns, [17; 3], "{text}");
    }
}

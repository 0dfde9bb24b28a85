//! `outlive checkpoints`: what is stored, whether it is sound, what a loss would cost.
//!
//! Only reads, except `rehearse`, which rebuilds into a directory of its own. The job
//! may be running.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use outlive_base::{Code, Entity, Error, NodeId, Result, Version, count};
use outlive_control::units::show_bytes;
use outlive_launch::jobs::Job;
use outlive_launch::prune::REHEARSAL;
use outlive_launch::versions;
use outlive_vault::{Catalogue, Entry, Part, Rehearsal};
use serde::Serialize;

use crate::options::{JobChoice, NamedChoice};
use crate::{jobs, output, status};

mod delete;
mod diff;
mod pins;
mod prune;
mod values;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct CheckpointsOptions {
    /// Without one: list all jobs of the store, or the versions of --job
    #[command(subcommand)]
    pub action: Option<CheckpointsAction>,
    #[command(flatten)]
    pub choice: JobChoice,
}

#[derive(Subcommand, Debug)]
pub enum CheckpointsAction {
    /// List versions with their levels and state
    List {
        /// List also versions that newer ones have replaced
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        choice: NamedChoice,
    },
    /// Show one version: its containers, copies and records
    Show {
        /// The version [default: the newest]
        version: Option<u64>,
        #[command(flatten)]
        choice: JobChoice,
    },
    /// Read and compare stored bytes with their checksums
    Verify {
        /// Check only headers and records, not the data
        #[arg(long)]
        shallow: bool,
        #[command(flatten)]
        choice: NamedChoice,
    },
    /// Tell which regions changed from one version to another, and how much
    Diff(diff::DiffOptions),
    /// Count NaN and infinity in stored versions: which is the last one without?
    Values(values::ValuesOptions),
    /// Pin a version: it stays whatever is newer, in this run and in later ones
    Pin {
        /// The version
        version: u64,
        #[command(flatten)]
        choice: JobChoice,
    },
    /// Take a pin away: newer versions may replace the version again
    Unpin {
        /// The version
        version: u64,
        #[command(flatten)]
        choice: JobChoice,
    },
    /// Remove versions that newer ones have replaced, and what killed processes left, of a job that
    /// does not run
    Prune(prune::PruneOptions),
    /// Delete a job: all its versions and whatever else it keeps, on its nodes too
    Delete(delete::DeleteOptions),
    /// Would the job survive this loss now? Tried by rebuilding into a scratch directory
    Rehearse {
        /// What is lost, for example node:2 or node:2,node:3; may be given often
        /// [default: nothing]
        #[arg(long, value_name = "NODES", value_delimiter = ',')]
        lose: Vec<String>,
        /// Where to rebuild [default: a temporary directory in the job's]
        #[arg(long, value_name = "DIR")]
        scratch: Option<PathBuf>,
        #[command(flatten)]
        choice: NamedChoice,
    },
}

/// The schema of all answers; `kind` tells them apart.
pub const SCHEMA: &str = "outlive.checkpoints/1";

#[derive(Serialize)]
struct Answer<'a, T: Serialize> {
    schema: &'static str,
    kind: &'static str,
    job: &'a str,
    #[serde(flatten)]
    body: T,
}

/// Runs a subcommand.
pub fn run(options: CheckpointsOptions) -> Result<u8> {
    let Some(action) = options.action else {
        return match options.choice.job {
            Some(_) => list(false, &options.choice),
            None => jobs::list(&status::store(&options.choice)?, options.choice.json),
        };
    };
    match action {
        CheckpointsAction::Delete(options) => delete::run(&options),
        CheckpointsAction::Diff(options) => diff::run(&options),
        CheckpointsAction::Prune(options) => prune::run(&options),
        CheckpointsAction::Values(options) => values::run(&options),
        CheckpointsAction::Pin { version, choice } => pins::pin(version, &choice),
        CheckpointsAction::Unpin { version, choice } => pins::unpin(version, &choice),
        CheckpointsAction::List { all, choice } => list(all, &choice.chosen()),
        CheckpointsAction::Show { version, choice } => show(version, &choice),
        CheckpointsAction::Verify { shallow, choice } => verify(!shallow, &choice.chosen()),
        CheckpointsAction::Rehearse {
            lose,
            scratch,
            choice,
        } => rehearse(&lose, scratch, &choice.chosen()),
    }
}

/// Finds the job and reads its versions; what is wrong with it is shown.
pub fn open(choice: &JobChoice) -> Result<(Job, Catalogue)> {
    let found = status::choose(choice)?;
    let catalogue = versions::all(&found)?;
    for error in &catalogue.errors {
        output::error(error);
    }
    if let Some(error) = jobs::refusal(&found, &catalogue) {
        output::error(&error);
    }
    Ok((found, catalogue))
}

/// Prints an answer as JSON.
pub fn answer<T: Serialize>(found: &Job, kind: &'static str, body: T) -> Result<u8> {
    let job = found.name.as_str();
    output::json(&Answer {
        schema: SCHEMA,
        kind,
        job,
        body,
    })
}

fn list(all: bool, choice: &JobChoice) -> Result<u8> {
    #[derive(Serialize)]
    struct Body<'a> {
        versions: Vec<&'a Entry>,
        damaged: &'a [String],
    }
    let (found, catalogue) = open(choice)?;
    let entries = catalogue.entries.iter();
    // One that was given up before anything was captured is nothing that is stored.
    let stored = |entry: &&Entry| entry.captured && !entry.is_gone();
    let versions: Vec<&Entry> = entries.filter(|entry| all || stored(entry)).collect();
    if choice.json {
        let body = Body {
            versions,
            damaged: &catalogue.damaged,
        };
        return answer(&found, "list", body);
    }
    let heading = ["VERSION", "INCARNATION", "RANKS", "SIZE", "LEVELS", "STATE"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for entry in &versions {
        rows.push(vec![
            entry.version.0.to_string(),
            entry.incarnation.0.to_string(),
            entry.ranks.to_string(),
            show_bytes(entry.bytes),
            levels(entry),
            state(entry).to_owned(),
        ]);
    }
    // Which job that is was not said by the user.
    let mut text = match choice.job {
        Some(_) => String::new(),
        None => format!("job {}\n", found.name),
    };
    text += &match versions.is_empty() {
        true => "no version is stored".to_owned(),
        false => output::table(&rows),
    };
    output::text(&text)
}

fn levels(entry: &Entry) -> String {
    let committed = entry
        .levels
        .iter()
        .filter(|level| level.committed.is_some());
    let name = |level: &outlive_vault::LevelState| match level.stable {
        true => level.level.name().to_owned(),
        false => format!("{} (weak)", level.level.name()),
    };
    committed.map(name).collect::<Vec<_>>().join(",")
}

/// What a version is, in words.
pub fn state(entry: &Entry) -> &'static str {
    match (entry.committed().is_some(), entry.void, entry.pinned) {
        (false, _, _) if !entry.captured => "given up",
        (false, _, _) => "not committed",
        (_, true, true) => "void, pinned",
        (_, true, _) => "void",
        (_, _, true) if entry.half_pinned => "half pinned",
        (_, _, true) => "pinned",
        _ if entry.superseded => "superseded",
        _ => "committed",
    }
}

fn show(version: Option<u64>, choice: &JobChoice) -> Result<u8> {
    #[derive(Serialize)]
    struct Body<'a> {
        versions: Vec<&'a Entry>,
    }
    let (found, catalogue) = open(choice)?;
    let entries = catalogue.entries.iter();
    let mut captured = entries.clone().filter(|entry| entry.captured);
    let newest = captured
        .clone()
        .find(|entry| entry.committed().is_some() && !entry.void)
        .or_else(|| captured.next());
    let newest = newest.map(|entry| entry.version.0);
    let Some(version) = version.or(newest) else {
        return Err(Error::new(
            Code::NotFound,
            Entity::Job(found.name.to_string()),
            "no version is stored",
            "outlive checkpoints list --all shows what was given up",
        ));
    };
    let versions: Vec<&Entry> = entries.filter(|entry| entry.version.0 == version).collect();
    if versions.is_empty() {
        return Err(versions::no_record(Version(version)));
    }
    if choice.json {
        return answer(&found, "show", Body { versions });
    }
    let mut lines = Vec::new();
    for entry in versions {
        lines.push(format!(
            "version {} of {}: {}, {}, {}",
            entry.version.0,
            entry.incarnation,
            state(entry),
            count(entry.ranks, "rank"),
            show_bytes(entry.bytes)
        ));
        for level in &entry.levels {
            let what = match (&level.committed, &level.aborted) {
                (Some(_), _) => format!(
                    "committed, recorded in {}{}",
                    count(level.recorded, "place"),
                    if level.stable { ", stable" } else { "" }
                ),
                // A record does not say why.
                (None, Some(reason)) if reason.is_empty() => "aborted".to_owned(),
                (None, Some(reason)) => format!("aborted: {reason}"),
                (None, None) => "not committed".to_owned(),
            };
            lines.push(format!("  {:<8} {what}", level.level.name()));
        }
        for part in &entry.parts {
            for copy in &part.copies {
                let path = copy.path.as_deref().unwrap_or("missing");
                lines.push(format!(
                    "  {} at {}: {path}",
                    part.part.node,
                    place(copy.place)
                ));
            }
        }
    }
    output::text(&lines.join("\n"))
}

fn place(node: NodeId) -> String {
    match node {
        Part::SHARED => "shared".to_owned(),
        NodeId::SERVER => "the memory server".to_owned(),
        node => node.to_string(),
    }
}

fn verify(deep: bool, choice: &JobChoice) -> Result<u8> {
    #[derive(Serialize)]
    struct Body {
        deep: bool,
        sound: usize,
        checks: Vec<outlive_vault::CopyCheck>,
        damaged_records: Vec<String>,
    }
    let (found, catalogue) = open(choice)?;
    let checks = catalogue.verify(deep);
    let bad = checks.iter().filter(|check| check.error.is_some()).count();
    let sound = checks.len() - bad;
    let damaged = catalogue.damaged.len();
    let status = if bad + damaged == 0 {
        0
    } else {
        Code::Corrupt.exit_status()
    };
    if choice.json {
        let body = Body {
            deep,
            sound,
            checks,
            damaged_records: catalogue.damaged,
        };
        answer(&found, "verify", body)?;
        return Ok(status);
    }
    let mut lines = Vec::new();
    for check in &checks {
        if let Some(error) = &check.error {
            lines.push(format!(
                "{} of {} at {}: {error}",
                check.node,
                check.version,
                place(check.copy.place)
            ));
        }
    }
    lines.extend(
        catalogue
            .damaged
            .iter()
            .map(|path| format!("record damaged: {path}")),
    );
    lines.push(format!(
        "{} sound, {bad} not, {} damaged",
        count(sound as u64, "copy"),
        count(damaged as u64, "record")
    ));
    output::text(&lines.join("\n"))?;
    Ok(status)
}

fn rehearse(lose: &[String], scratch: Option<PathBuf>, choice: &JobChoice) -> Result<u8> {
    #[derive(Serialize)]
    struct Body<'a> {
        lost: Vec<u32>,
        survives: bool,
        #[serde(flatten)]
        rehearsal: &'a Rehearsal,
    }
    let (found, catalogue) = open(choice)?;
    let lost = parse_lost(lose, found.file.as_ref().map_or(0, |file| file.nodes))?;
    let own = scratch.is_none();
    let scratch =
        scratch.unwrap_or_else(|| found.dir.join(format!("{REHEARSAL}{}", std::process::id())));
    if scratch.exists() {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::File(scratch.display().to_string()),
            "exists already",
            "give a --scratch directory that does not exist yet",
        ));
    }
    let result = catalogue.rehearse(&lost, &scratch);
    if own {
        let _ = std::fs::remove_dir_all(&scratch);
    }
    let rehearsal = result?;
    let survives = rehearsal.rebuilt.is_some();
    let status = if survives {
        0
    } else {
        Code::NoValidCheckpoint.exit_status()
    };
    if choice.json {
        let body = Body {
            lost: lost.iter().map(|node| node.0).collect(),
            survives,
            rehearsal: &rehearsal,
        };
        answer(&found, "rehearse", body)?;
    } else {
        let begun = jobs::refusal(&found, &catalogue).is_some()
            || !catalogue
                .entries
                .iter()
                .all(|entry| entry.committed().is_none());
        output::text(&describe(&rehearsal, &lost, begun))?;
    }
    Ok(status)
}

fn describe(rehearsal: &Rehearsal, lost: &BTreeSet<NodeId>, begun: bool) -> String {
    let names: Vec<String> = lost.iter().map(ToString::to_string).collect();
    let without = match names.is_empty() {
        true => "without a loss".to_owned(),
        false => format!("without {}", names.join(", ")),
    };
    let mut lines = Vec::new();
    for (node, copy, error) in &rehearsal.damaged {
        lines.push(format!("{node} at {}: {error}", place(copy.place)));
    }
    for rejected in &rehearsal.rejected {
        lines.push(format!(
            "{} not used: {}",
            rejected.version, rejected.reason
        ));
    }
    lines.push(match rehearsal.rebuilt {
        None if !begun => {
            format!("{without}: no version was ever committed: the job would begin at its start")
        }
        None => format!("{without}: nothing can be rebuilt: the job would end with OL-500"),
        Some((incarnation, version)) => {
            let bytes = rehearsal.ranks.iter().map(|rank| rank.bytes).sum();
            let level = rehearsal.level.map_or("", |level| level.name());
            format!(
                "{without}: {version} of {incarnation} was rebuilt and verified, {}, {}, \
                 strongest level needed: {level}",
                count(rehearsal.ranks.len() as u64, "rank"),
                show_bytes(bytes)
            )
        }
    });
    lines.join("\n")
}

/// `node:2,node:3`.
fn parse_lost(words: &[String], nodes: u32) -> Result<BTreeSet<NodeId>> {
    let words = words.iter().map(|word| word.trim());
    words
        .map(|word| {
            let number = word.strip_prefix("node:").and_then(|n| n.parse().ok());
            let node = number.filter(|n| *n < nodes).map(NodeId);
            node.ok_or_else(|| {
                Error::new(
                    Code::InvalidArgument,
                    Entity::Option("lose".into()),
                    format!(
                        "'{}' is no node of a job of {}",
                        word.chars().take(40).collect::<String>(),
                        count(nodes, "node")
                    ),
                    "write for example --lose node:0 or --lose node:0,node:1",
                )
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_understood() {
        assert!(parse_lost(&[], 4).unwrap().is_empty());
        let two: BTreeSet<_> = [NodeId(2), NodeId(3)].into();
        assert_eq!(
            parse_lost(&["node:2", " node:3", "node:2"].map(String::from), 4).unwrap(),
            two
        );
        for bad in ["2", "node:4", "node:", "rank:1", "node:-1"] {
            assert_eq!(
                parse_lost(&[bad.to_owned()], 4).unwrap_err().code(),
                Code::InvalidArgument
            );
        }
    }
}

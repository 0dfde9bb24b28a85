//! All jobs of a store: what `outlive status` and `outlive checkpoints` say of no job in
//! particular.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use outlive_base::level::StoreKind;
use outlive_base::{Code, Entity, Error, Level, Result, Version};
use outlive_control::units;
use outlive_launch::history;
use outlive_launch::jobs::{self, Job, State};
use outlive_launch::versions;
use outlive_vault::Catalogue;
use serde::Serialize;

use crate::output;

/// Longest name that stands in the table; a longer one has a line of its own, so that the
/// table fits 80 columns.
const NAME_MAX: usize = 22;

/// The newest version that a job could go on from.
#[derive(Clone, Copy, Serialize)]
pub struct Newest {
    pub version: Version,
    /// Where it is, if that is seen from here.
    pub level: Option<Level>,
}

impl std::fmt::Display for Newest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.level {
            Some(level) => write!(f, "{} on {}", self.version, level.name()),
            None => write!(f, "{}", self.version),
        }
    }
}

#[derive(Serialize)]
struct Listing {
    schema: &'static str,
    store: PathBuf,
    jobs: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    name: String,
    state: State,
    pid: Option<u32>,
    exit_status: Option<u8>,
    nodes: Option<u32>,
    ranks: Option<u32>,
    version: Option<Version>,
    level: Option<Level>,
    disk_bytes: u64,
    changed: String,
    directory: PathBuf,
    problem: Option<Error>,
}

/// All jobs of a store, the one that changed last first.
///
/// # Errors
/// [`Code::NotFound`] if there is no such store.
pub fn of_store(store: &Path) -> Result<Vec<Job>> {
    if !store.exists() {
        return Err(Error::new(
            Code::NotFound,
            Entity::File(store.display().to_string()),
            "there is no such store",
            "check --store (a relative path begins in the current directory), or start a job \
             with outlive run",
        ));
    }
    jobs::all(store)
}

/// The newest version of a job that is worth going on from. What lies in memory alone
/// counts while the job runs.
pub fn newest(job: &Job, catalogue: &Catalogue) -> Option<Newest> {
    let entry = catalogue.newest(job.state == State::Running)?;
    Some(Newest {
        version: entry.version,
        level: Some(entry.committed()?),
    })
}

/// What is known of a job without a word of its processes.
#[derive(Default)]
pub struct Known {
    /// The newest version that it could go on from.
    pub newest: Option<Newest>,
    /// Why its next run would be refused, if it would.
    pub refusal: Option<Error>,
    /// Versions that stay, newest first.
    pub pinned: Vec<Version>,
}

/// What is known of a job. Of one whose nodes are other machines its last run's word counts.
///
/// # Errors
/// Those of [`versions::all`] for other jobs.
pub fn known(job: &Job) -> Result<Known> {
    if job.file.as_ref().is_ok_and(|file| !file.hosts.is_empty()) {
        return Ok(Known {
            newest: told(job),
            ..Known::default()
        });
    }
    let catalogue = versions::all(job)?;
    let pinned = catalogue.entries.iter().filter(|entry| entry.pinned);
    Ok(Known {
        newest: newest(job, &catalogue),
        refusal: refusal(job, &catalogue),
        pinned: pinned.map(|entry| entry.version).collect(),
    })
}

/// The newest version of a report that outlives what has ended since.
fn told(job: &Job) -> Option<Newest> {
    let entry = |(level, version): (&String, &u64)| {
        let level: Level = level.parse().ok()?;
        let lasts = level.store() != StoreKind::Keeper || job.state == State::Running;
        lasts.then_some((Version(*version), level))
    };
    let last = job
        .report
        .iter()
        .flat_map(|report| &report.checkpoints.last);
    let newest = last.filter_map(entry).max();
    let known = job.file.as_ref().ok().and_then(|file| file.history);
    match (newest, known) {
        (Some((version, level)), _) => Some(Newest {
            version,
            level: Some(level),
        }),
        // It took none of its own.
        (None, known) => known.map(|known| Newest {
            version: known.version,
            level: None,
        }),
    }
}

/// Why the next run of the job would be refused, if it would. Of a job that runs nothing is
/// said: its directories change while they are looked at.
pub fn refusal(job: &Job, catalogue: &Catalogue) -> Option<Error> {
    let file = job
        .file
        .as_ref()
        .ok()
        .filter(|_| job.state != State::Running)?;
    history::would_refuse(file, catalogue)
}

/// `outlive status` and `outlive checkpoints` without a job.
pub fn list(store: &Path, json: bool) -> Result<u8> {
    let lines: Vec<(Line, SystemTime)> = of_store(store)?.into_iter().map(line).collect();
    if json {
        return output::json(&Listing {
            schema: "outlive.jobs/1",
            store: std::fs::canonicalize(store).unwrap_or_else(|_| store.to_owned()),
            jobs: lines.into_iter().map(|(line, _)| line).collect(),
        });
    }
    if lines.is_empty() {
        return output::text(&format!("no job is stored in {}", store.display()));
    }
    output::text(&table(&lines))
}

fn line(job: Job) -> (Line, SystemTime) {
    // Of a job that is being deleted nothing can be said that will still hold.
    let found = match job.state {
        State::BeingDeleted => Ok(None),
        State::NeverRan if !job.dir.join(outlive_launch::layout::KEY).exists() => Ok(None),
        _ => known(&job).and_then(|known| match known.refusal {
            Some(error) => Err(error),
            None => Ok(known.newest),
        }),
    };
    let file = job.file.as_ref().ok();
    let line = Line {
        disk_bytes: job.disk_bytes(),
        changed: jobs::utc(job.changed),
        pid: job.pid,
        exit_status: ended(&job),
        nodes: file.map(|file| file.nodes),
        ranks: file.and_then(|file| file.ranks),
        version: found.as_ref().ok().and_then(|it| Some((*it)?.version)),
        level: found.as_ref().ok().and_then(|it| (*it)?.level),
        problem: found.err(),
        state: job.state,
        name: job.name.to_string(),
        directory: job.dir,
    };
    (line, job.changed)
}

/// The exit status of the last run, if it came to its end.
pub fn ended(job: &Job) -> Option<u8> {
    let ended = [State::EndedWell, State::Failed, State::Interrupted];
    let report = job.report.as_ref().filter(|_| ended.contains(&job.state));
    report.map(|report| report.exit_status)
}

fn table(lines: &[(Line, SystemTime)]) -> String {
    let heading = ["JOB", "STATE", "VERSION", "LEVEL", "SIZE", "AGE"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let short = |name: &str| name.len() <= NAME_MAX;
    for (line, changed) in lines {
        let name = if short(&line.name) { &*line.name } else { "" };
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        rows.push(vec![
            name.to_owned(),
            state(line.state, line.exit_status),
            or_none(line.version.map(|version| version.0.to_string())),
            or_none(line.level.map(|level| level.name().to_owned())),
            units::show_bytes(line.disk_bytes),
            age(*changed),
        ]);
    }
    let table = output::table(&rows);
    let mut shown = table.lines();
    let mut text: Vec<String> = shown.by_ref().take(1).map(str::to_owned).collect();
    for ((line, _), row) in lines.iter().zip(shown) {
        if !short(&line.name) {
            text.push(line.name.clone());
        }
        text.push(row.to_owned());
        if let Some(problem) = &line.problem {
            text.push(format!("  {}: {}", problem.code(), problem.reason()));
        }
    }
    text.join("\n")
}

/// The state, with the exit status where that says more.
pub fn state(state: State, exit_status: Option<u8>) -> String {
    match (state, exit_status) {
        (State::Failed, Some(status)) => format!("failed ({status})"),
        _ => state.text().to_owned(),
    }
}

/// How long ago that was, in the unit that suits it.
pub fn age(changed: SystemTime) -> String {
    let seconds = changed.elapsed().map_or(0, |passed| passed.as_secs());
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_eighty_columns() {
        let line = |name: &str| Line {
            name: name.to_owned(),
            state: State::BeingDeleted,
            pid: None,
            exit_status: None,
            nodes: Some(4),
            ranks: None,
            version: Some(Version(1_234_567_890)),
            level: Some(Level::PARTNER),
            disk_bytes: 1023 << 30,
            changed: String::new(),
            directory: PathBuf::new(),
            problem: None,
        };
        let names = ["a".repeat(NAME_MAX), "b".repeat(64)];
        let lines = names.map(|name| (line(&name), SystemTime::UNIX_EPOCH));
        let text = table(&lines);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        for (line, _) in &lines {
            assert!(text.contains(&line.name), "{text}");
        }
        assert!(age(SystemTime::UNIX_EPOCH).ends_with(" d"));
        assert_eq!(
            age(SystemTime::now() + std::time::Duration::from_secs(60)),
            "0 s"
        );
    }
}

//! What a store knows of its jobs without opening them: state, last change, size.
//!
//! Only reads; the jobs may be running, or being deleted, meanwhile.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use outlive_base::{Error, JobName, Result};
use serde::Serialize;

use crate::input;
use crate::job_file::{self, JobFile};
use crate::layout;
use crate::{history, marks, store};
use outlive_control::report::Report;

/// Largest report that is read, in bytes.
const REPORT_BYTES_MAX: u64 = 64 << 20;
/// Directories below each other that are looked at to find a size.
const DEPTH_MAX: u32 = 16;

/// What a job does, or how its last run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// A launcher runs it.
    Running,
    /// The last run finished with status 0.
    EndedWell,
    /// The last run failed.
    Failed,
    /// A signal ended the last run in order.
    Interrupted,
    /// The last run ended without a word: its launcher was killed, or the machine stopped.
    CutOff,
    /// There is no report of a run.
    NeverRan,
    /// Its deletion was begun and has not ended.
    BeingDeleted,
    /// `job.json` cannot be read.
    Unreadable,
}

impl State {
    /// For people.
    pub const fn text(self) -> &'static str {
        match self {
            State::Running => "running",
            State::EndedWell => "ended well",
            State::Failed => "failed",
            State::Interrupted => "interrupted",
            State::CutOff => "cut off",
            State::NeverRan => "never ran",
            State::BeingDeleted => "being deleted",
            State::Unreadable => "unreadable",
        }
    }
}

/// A job of a store.
#[derive(Debug)]
pub struct Job {
    /// Its name.
    pub name: JobName,
    /// `STORE/JOB`.
    pub dir: PathBuf,
    /// What it does.
    pub state: State,
    /// The launcher's process, where it is known.
    pub pid: Option<u32>,
    /// Of the last run, or of the one under way.
    pub report: Option<Report>,
    /// When its files `job.json` and `report.json` were last written.
    pub changed: SystemTime,
    /// What `job.json` says, or why it cannot be read.
    pub file: Result<JobFile>,
}

impl Job {
    /// Looks at the job in `dir`.
    pub fn at(dir: &Path, name: JobName) -> Job {
        let pid = store::running(dir);
        let file = history::job_of(dir, &name);
        let report = read_report(&dir.join(layout::REPORT));
        let result = report.as_ref().map(|report| report.result.as_str());
        let state = match (pid, &file, result) {
            _ if marks::is_begun(dir) => State::BeingDeleted,
            (Some(_), ..) => State::Running,
            (_, Err(_), _) => State::Unreadable,
            (.., None) => State::NeverRan,
            (.., Some("finished")) => State::EndedWell,
            (.., Some("interrupted")) => State::Interrupted,
            // The lock tells the truth: a report that says "running" is of a killed launcher.
            (.., Some("running")) => State::CutOff,
            (.., Some(_)) => State::Failed,
        };
        let written = |name| fs::metadata(dir.join(name)).ok()?.modified().ok();
        let changed = written(layout::REPORT).max(written(layout::JOB));
        Job {
            name,
            dir: dir.to_owned(),
            state,
            pid: pid.filter(|pid| *pid != 0),
            report,
            changed: changed
                .or_else(|| written("."))
                .unwrap_or(SystemTime::UNIX_EPOCH),
            file,
        }
    }

    /// Bytes on disk, of the job's directory and of its nodes' where they lie elsewhere.
    pub fn disk_bytes(&self) -> u64 {
        let nodes = self.file.as_ref().ok().map(|job| &job.node_storage);
        let outside = nodes.filter(|path| !path.starts_with(&self.dir));
        let outside = outside.map_or(0, |path| disk_bytes(&path.join(self.name.as_str()), 0));
        disk_bytes(&self.dir, 0) + outside
    }
}

/// All jobs of a store, the one that changed last first. A directory that holds none of a
/// job's files is none.
///
/// # Errors
/// If the store cannot be listed.
pub fn all(store: &Path) -> Result<Vec<Job>> {
    let store = fs::canonicalize(store).unwrap_or_else(|_| store.to_owned());
    let entries = fs::read_dir(&store).map_err(|error| Error::io(&store, "list", &error))?;
    let job = |entry: fs::DirEntry| {
        let name = JobName::new(entry.file_name().into_string().ok()?).ok()?;
        let dir = entry.path();
        let real = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let known = [layout::JOB, layout::KEY, layout::REPORT]
            .iter()
            .any(|file| dir.join(file).exists());
        (real && (known || marks::is_begun(&dir))).then(|| Job::at(&dir, name))
    };
    let mut jobs: Vec<Job> = entries.flatten().filter_map(job).collect();
    jobs.sort_by(|a, b| (b.changed, &a.name).cmp(&(a.changed, &b.name)));
    Ok(jobs)
}

/// The number of a job that stands in its containers and records.
///
/// # Errors
/// If its key cannot be read.
pub fn hash(job: &Job) -> Result<u64> {
    job_file::job_hash(job.name.as_str(), &job.dir.join(layout::KEY))
}

/// A moment in UTC, to the second.
pub fn utc(at: SystemTime) -> String {
    let known = jiff::Timestamp::try_from(at).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    known.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn read_report(path: &Path) -> Option<Report> {
    let text = input::read(path, REPORT_BYTES_MAX).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Blocks that are in use, links by themselves.
pub(crate) fn disk_bytes(path: &Path, depth: u32) -> u64 {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return 0;
    };
    let own = meta.blocks() * 512;
    if !meta.is_dir() || depth > DEPTH_MAX {
        return own;
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    own + entries
        .map(|entry| disk_bytes(&entry.path(), depth + 1))
        .sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    #[test]
    fn every_state_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let name = |name: &str| JobName::new(name).unwrap();
        let make = |job: &str, result: Option<&str>| {
            let store = Store::open_plain(dir.path(), &name(job), 1, None, false).unwrap();
            if let Some(result) = result {
                let mut report = Report::new(&name(job), 1);
                report.result = result.to_owned();
                fs::write(store.dir().join("report.json"), report.to_json()).unwrap();
            }
            store
        };
        for (job, result) in [
            ("well", Some("finished")),
            ("failed", Some("failed")),
            ("stopped", Some("interrupted")),
            ("cut", Some("running")),
            ("never", None),
            ("bad", None),
            ("half", Some("finished")),
        ] {
            drop(make(job, result));
        }
        let held = make("runs", Some("finished"));
        fs::write(dir.path().join("bad/job.json"), "{").unwrap();
        fs::write(dir.path().join("half/deleting"), "").unwrap();
        fs::create_dir(dir.path().join("no-job")).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink(dir.path().join("well"), dir.path().join("link")).unwrap();
        let mut found: Vec<(String, State)> = all(dir.path())
            .unwrap()
            .into_iter()
            .map(|job| (job.name.to_string(), job.state))
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let wanted = [
            ("bad", State::Unreadable),
            ("cut", State::CutOff),
            ("failed", State::Failed),
            ("half", State::BeingDeleted),
            ("never", State::NeverRan),
            ("runs", State::Running),
            ("stopped", State::Interrupted),
            ("well", State::EndedWell),
        ];
        assert_eq!(found, wanted.map(|(name, state)| (name.to_owned(), state)));
        drop(held);
        assert_eq!(utc(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00Z");
    }
}

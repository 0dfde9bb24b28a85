//! `outlive status`: what the store says of a job, and which jobs there are.

use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, JobName, Result};
use outlive_launch::report::Report;
use outlive_launch::store::{self, JobFile};
use serde::Serialize;

use crate::args::{JobChoice, Settings, StatusOptions};
use crate::config::Config;
use crate::output;

/// Largest report that is read, in bytes.
const REPORT_BYTES_MAX: u64 = 64 << 20;

/// A job that was found.
#[derive(Debug)]
pub struct Found {
    /// `STORE/JOB`.
    pub dir: PathBuf,
    /// What `job.json` says.
    pub job: JobFile,
}

#[derive(Serialize)]
struct Status {
    schema: &'static str,
    job: JobFile,
    directory: PathBuf,
    running: bool,
    /// Process of the launcher, if it runs.
    pid: Option<u32>,
    /// The running report, or that of the last run.
    report: Option<Report>,
}

/// Finds the job that is meant: the one that is named, else the newest.
///
/// # Errors
/// [`Code::NotFound`] if there is none.
pub fn choose(choice: &JobChoice) -> Result<Found> {
    let flags = Settings {
        store: choice.store.clone(),
        ..Settings::default()
    };
    let config = Config::load(&flags, choice.config.as_deref())?;
    let store = PathBuf::from(config.get("store"));
    let name = match &choice.job {
        Some(name) => JobName::new(name.clone())?,
        None => newest(&store)?,
    };
    let dir = std::fs::canonicalize(&store)
        .unwrap_or(store)
        .join(name.as_str());
    let job = store::read_job_of(&dir)?;
    Ok(Found { dir, job })
}

/// The job whose `job.json` was written last.
fn newest(store: &Path) -> Result<JobName> {
    let entries = std::fs::read_dir(store).map_err(|error| Error::io(store, "list", &error))?;
    let job = |entry: std::fs::DirEntry| {
        let name = JobName::new(entry.file_name().to_string_lossy()).ok()?;
        let changed = std::fs::metadata(entry.path().join("job.json"))
            .ok()?
            .modified()
            .ok()?;
        Some((changed, name))
    };
    let newest = entries.flatten().filter_map(job).max();
    newest.map(|(_, name)| name).ok_or_else(|| {
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
    let Found { dir, job } = choose(&options.choice)?;
    let pid = store::running(&dir);
    let status = Status {
        schema: "outlive.status/1",
        report: read_report(&dir.join("report.json")),
        running: pid.is_some(),
        pid: pid.filter(|pid| *pid != 0),
        directory: dir,
        job,
    };
    match options.choice.json {
        true => output::json(&status),
        false => output::text(&describe(&status)),
    }
}

fn read_report(path: &Path) -> Option<Report> {
    let small = std::fs::metadata(path).ok()?.len() <= REPORT_BYTES_MAX;
    let text = small.then(|| std::fs::read(path).ok()).flatten()?;
    serde_json::from_slice(&text).ok()
}

fn describe(status: &Status) -> String {
    let job = &status.job;
    let state = match (status.running, status.pid, &status.report) {
        (true, Some(pid), _) => format!("running (process {pid})"),
        (true, None, _) => "running".to_owned(),
        // The lock tells the truth: a report that says "running" is of a killed launcher.
        (false, _, Some(report)) if report.result == "running" => {
            "not running; the last run was cut off".to_owned()
        }
        (false, _, Some(report)) => format!("not running; the last run {}", ended(report)),
        (false, _, None) => "not running".to_owned(),
    };
    let ranks = job
        .ranks
        .map_or_else(|| "?".to_owned(), |ranks| ranks.to_string());
    let mut lines = vec![
        format!("job          {}", job.name),
        format!("state        {state}"),
        format!("directory    {}", status.directory.display()),
        format!("nodes        {}", job.nodes),
        format!("ranks        {ranks}"),
        format!("incarnation  {}", job.incarnation),
        format!("created      {}", job.created),
    ];
    if let Some(report) = &status.report {
        lines.push(format!("restarts     {}", report.restarts));
        for (level, version) in &report.checkpoints.last {
            lines.push(format!("{:<12} version {version} is stable", level));
        }
        for failure in &report.failures {
            lines.push(format!("failure      {}: {}", failure.place, failure.cause));
        }
        for error in &report.errors {
            lines.push(format!(
                "error        {} {}: {}",
                error.code, error.entity, error.reason
            ));
        }
    }
    lines.join("\n")
}

fn ended(report: &Report) -> String {
    match report.result.as_str() {
        "finished" => "ended well".to_owned(),
        other => format!("{other} with exit status {}", report.exit_status),
    }
}

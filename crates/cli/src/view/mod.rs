//! Seeing a job: what its launcher has taken down, for people and their tools.

pub mod history;
pub mod logs;
mod nodes;
mod page;
mod paint;
mod picture;
pub mod report;
mod screen;
mod terminal;
pub mod top;
pub mod trace;

use std::path::{Path, PathBuf};

use clap::Args;
use outlive_base::{Code, Entity, Error, Result};
use outlive_control::report::{self as reports, Report};
use outlive_launch::input;
use outlive_launch::record::{self, Run};

use crate::options::JobChoice;
use crate::status;

/// Largest report that is read, in bytes.
const REPORT_BYTES_MAX: u64 = 64 << 20;

/// Which job, for commands that have no JSON.
#[derive(Args, Debug, Clone)]
pub struct Which {
    /// Name of the job [default: the only one, or the one used last]
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    /// Directory of all jobs [default: from the configuration]
    #[arg(long, value_name = "DIR")]
    pub store: Option<String>,
    /// Configuration file, read after the system's and the user's [default: only those]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl Which {
    fn choice(&self) -> JobChoice {
        JobChoice {
            job: self.job.clone(),
            store: self.store.clone(),
            config: self.config.clone(),
            json: false,
        }
    }
}

/// A run with what is known of it.
pub struct Seen {
    /// Its report; of a run that has just begun there may be none yet.
    pub report: Report,
    /// What was taken down of it, if anything was.
    pub run: Option<Run>,
}

/// The last run of a job.
///
/// # Errors
/// [`Code::NotFound`] if there is no such job or it never ran; those of reading.
fn of_job(which: &Which) -> Result<Seen> {
    let job = status::choose(&which.choice())?;
    let runs = record::read(&job.dir)?;
    match job.report {
        Some(report) => Ok(paired(report, runs)),
        None => match runs.into_iter().next_back() {
            Some(run) => Ok(Seen {
                report: Report::new(&job.name, run.header.nodes),
                run: Some(run),
            }),
            None => Err(Error::new(
                Code::NotFound,
                Entity::Job(job.name.to_string()),
                "it never ran, so that there is nothing to show",
                "start it with outlive run",
            )),
        },
    }
}

/// A report in a file, with what was taken down beside it if it lies in its job's directory.
///
/// # Errors
/// Those of reading; [`Code::FormatUnknown`] or [`Code::Corrupt`] if it is no report.
fn of_file(path: &Path) -> Result<Seen> {
    let file = || Entity::File(path.display().to_string());
    let remedy = "give a file that outlive run --report wrote, or report.json of a job";
    let text = input::read_text(path, REPORT_BYTES_MAX)?;
    let damaged =
        |error: serde_json::Error| Error::new(Code::Corrupt, file(), error.to_string(), remedy);
    let value: serde_json::Value = serde_json::from_str(&text).map_err(damaged)?;
    if value["schema"].as_str() != Some(reports::SCHEMA) {
        let reason = format!("is not {}", reports::SCHEMA);
        return Err(Error::new(Code::FormatUnknown, file(), reason, remedy));
    }
    let report: Report = serde_json::from_value(value).map_err(damaged)?;
    let beside = path.parent().map(record::read).transpose()?;
    Ok(paired(report, beside.unwrap_or_default()))
}

/// A report and the run that it is of: a new run may have begun, and not have written its own yet.
fn paired(report: Report, mut runs: Vec<Run>) -> Seen {
    let opened = |run: &Run| history::incarnations(run);
    let of_it = |run: &Run| {
        let theirs = opened(run);
        run.header.job == report.job && theirs.iter().any(|one| report.incarnations.contains(one))
    };
    let at = match report.incarnations.is_empty() {
        // Neither came so far.
        true => runs
            .len()
            .checked_sub(1)
            .filter(|at| opened(&runs[*at]).is_empty()),
        false => runs.iter().rposition(of_it),
    };
    Seen {
        run: at.map(|at| runs.swap_remove(at)),
        report,
    }
}

/// Seconds in words, in at most two units.
fn show_seconds(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0 if seconds > 0.0 && seconds < 1e-3 => format!("{:.0} us", seconds * 1e6),
        0..60 => outlive_control::units::show_ms(seconds.max(0.0) * 1e3),
        60..3_600 => format!("{} min {:02} s", whole / 60, whole % 60),
        3_600..86_400 => format!("{} h {:02} min", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_at_most_two_units() {
        for (seconds, text) in [
            (0.000_042, "42 us"),
            (0.0042, "4.2 ms"),
            (12.34, "12.3 s"),
            (59.99, "60.0 s"),
            (62.0, "1 min 02 s"),
            (7_260.0, "2 h 01 min"),
            (90_000.0, "1 d 1 h"),
            (-1.0, "0.0 ms"),
        ] {
            assert_eq!(show_seconds(seconds), text);
        }
    }
}

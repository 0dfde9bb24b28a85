//! Numbers of a coordinator in the text format of Prometheus, version 0.0.4, as `outlive run` writes
//! those of a job.
//!
//! Invariants: each member writes what it knows, which is what all agreed on, perhaps a little
//! later than the one that serves; what only rises ends in `_total`, and goes on when another serves.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use outlive_base::{Error, Result};
use outlive_control::turns::Service;
use outlive_launch::files;

/// Another user reads it: the one whom the monitoring system runs as.
const MODE: u32 = 0o644;

/// What a member is besides what it knows.
pub(crate) struct About<'a> {
    pub(crate) store: &'a str,
    pub(crate) member: u64,
    pub(crate) members: u8,
    /// It serves the jobs.
    pub(crate) serves: bool,
}

/// The file in which the numbers are.
pub(crate) struct Metrics {
    path: PathBuf,
    /// Told once, until it works again.
    failed: bool,
}

impl Metrics {
    /// Begins it: that it cannot be written is better known now than after days. In a directory
    /// it is `outlive-coordinator.prom`.
    pub(crate) fn begin(path: &Path) -> Result<Metrics> {
        let path = match path.is_dir() {
            true => path.join("outlive-coordinator.prom"),
            false => path.to_owned(),
        };
        files::replace(&path, b"", MODE)?;
        let failed = false;
        Ok(Metrics { path, failed })
    }

    /// Writes it; an error that should be told.
    pub(crate) fn write(&mut self, about: &About<'_>, service: &Service) -> Option<Error> {
        let written = files::replace(&self.path, text(about, service).as_bytes(), MODE);
        let before = std::mem::replace(&mut self.failed, written.is_err());
        written.err().filter(|_| !before)
    }
}

fn text(about: &About<'_>, service: &Service) -> String {
    let store = about.store.replace('\\', "\\\\");
    let store = store.replace('"', "\\\"").replace('\n', "\\n");
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, value: u64| {
        let name = format!("outlive_coordinator_{name}");
        let member = about.member;
        let _ = writeln!(out, "# HELP {name} {help}");
        let _ = writeln!(out, "# TYPE {name} {kind}");
        let _ = writeln!(
            out,
            "{name}{{store=\"{store}\",member=\"{member}\"}} {value}"
        );
    };
    let writing = service.jobs().filter(|(_, writes)| *writes).count() as u64;
    let counts = service.counts();
    let members = u64::from(about.members);
    family(
        "members",
        "gauge",
        "Members that keep what is known.",
        members,
    );
    let serves = u64::from(about.serves);
    family(
        "serves",
        "gauge",
        "1 if this member serves the jobs.",
        serves,
    );
    let jobs = service.jobs().count() as u64;
    family("jobs", "gauge", "Jobs that take turns.", jobs);
    family("jobs_writing", "gauge", "Jobs whose turn it is.", writing);
    family(
        "turns_given_total",
        "counter",
        "Turns that were given.",
        counts.accepted,
    );
    family(
        "offers_put_off_total",
        "counter",
        "Offers that were put off.",
        counts.later,
    );
    family(
        "offers_refused_total",
        "counter",
        "Offers that were refused.",
        counts.denied,
    );
    family(
        "turns_taken_back_total",
        "counter",
        "Turns of jobs that did not say in time that they had written.",
        counts.expired,
    );
    family(
        "jobs_lost_total",
        "counter",
        "Jobs that were not heard any more.",
        counts.lost,
    );
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use outlive_control::turns::Kept;

    use super::*;
    use crate::testing::entry;

    #[test]
    fn numbers_are_those_of_the_service_and_an_error_is_told_once() {
        let mut kept = Kept::default();
        for index in 0..2 {
            if let openraft::EntryPayload::Normal(batch) = entry(1, index).payload {
                kept.apply(&batch);
            }
        }
        let about = About {
            store: "/a \"store\"",
            member: 2,
            members: 3,
            serves: true,
        };
        let dir = tempfile::tempdir().unwrap();
        let mut metrics = Metrics::begin(dir.path()).unwrap();
        assert!(metrics.write(&about, kept.service()).is_none());
        let path = dir.path().join("outlive-coordinator.prom");
        let found = std::fs::read_to_string(&path).unwrap();
        let labels = "{store=\"/a \\\"store\\\"\",member=\"2\"}";
        for line in [
            "jobs{} 1",
            "jobs_writing{} 1",
            "turns_given_total{} 1",
            "serves{} 1",
        ] {
            let line = format!("outlive_coordinator_{}", line.replace("{}", labels));
            assert!(found.lines().any(|it| it == line), "{line} of {found}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(metrics.write(&about, kept.service()).is_some());
        assert!(metrics.write(&about, kept.service()).is_none());
        std::fs::remove_dir(&path).unwrap();
        assert!(metrics.write(&about, kept.service()).is_none());
        assert!(path.is_file());
    }
}

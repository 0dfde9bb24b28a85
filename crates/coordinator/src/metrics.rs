//! Numbers of a coordinator in the text format of Prometheus, version 0.0.4, as `outlive run` writes
//! those of a job.
//!
//! Invariants: each member writes what it knows, which is what all agreed on, perhaps a little
//! later than the one that serves; what only rises ends in `_total`, and goes on when another serves.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use outlive_base::{Error, Result};
use outlive_control::turns::{JobSeen, Service, Tier, TierSeen};
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
    pub(crate) fn write(&mut self, page: &str) -> Option<Error> {
        let written = files::replace(&self.path, page.as_bytes(), MODE);
        let before = std::mem::replace(&mut self.failed, written.is_err());
        written.err().filter(|_| !before)
    }
}

/// A family: its name, what it is, what it says, and its samples, each with the tier that it is of.
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    help: &'a str,
    samples: Vec<(Option<&'a Tier>, u64)>,
}

/// The page: all numbers of a member.
pub(crate) fn page(about: &About<'_>, service: &Service) -> String {
    let store = about.store.replace('\\', "\\\\");
    let store = store.replace('"', "\\\"").replace('\n', "\\n");
    let member = about.member;
    let mut out = String::new();
    for family in of_all(about, service).into_iter().chain(of_tiers(service)) {
        let name = format!("outlive_coordinator_{}", family.name);
        let _ = writeln!(out, "# HELP {name} {}", family.help);
        let _ = writeln!(out, "# TYPE {name} {}", family.kind);
        for (tier, value) in family.samples {
            // A tier's name is of visible ASCII.
            let tier = tier.map_or(String::new(), |tier| {
                let tier = tier.as_str().replace('\\', "\\\\").replace('"', "\\\"");
                format!(",tier=\"{tier}\"")
            });
            let _ = writeln!(
                out,
                "{name}{{store=\"{store}\",member=\"{member}\"{tier}}} {value}"
            );
        }
    }
    out
}

/// Of the member, and of all tiers together.
fn of_all<'a>(about: &About<'_>, service: &Service) -> [Family<'a>; 9] {
    let family = |name, kind, help, value: u64| Family {
        name,
        kind,
        help,
        samples: vec![(None, value)],
    };
    let gauge = |name, help, value| family(name, "gauge", help, value);
    let counter = |name, help, value| family(name, "counter", help, value);
    let writing = service.jobs().filter(JobSeen::writes).count() as u64;
    let jobs = service.jobs().count() as u64;
    let counts = service.counts();
    [
        gauge(
            "members",
            "Members that keep what is known.",
            u64::from(about.members),
        ),
        gauge(
            "serves",
            "1 if this member serves the jobs.",
            u64::from(about.serves),
        ),
        gauge("jobs", "Jobs that take turns.", jobs),
        gauge("jobs_writing", "Jobs whose turn it is.", writing),
        counter(
            "turns_given_total",
            "Turns that were given.",
            counts.accepted,
        ),
        counter(
            "offers_put_off_total",
            "Offers that were put off.",
            counts.later,
        ),
        counter(
            "offers_refused_total",
            "Offers that were refused.",
            counts.denied,
        ),
        counter(
            "turns_taken_back_total",
            "Turns of jobs that did not say in time that they had written.",
            counts.expired,
        ),
        counter(
            "jobs_lost_total",
            "Jobs that were not heard any more.",
            counts.lost,
        ),
    ]
}

/// Of each tier.
fn of_tiers(service: &Service) -> impl Iterator<Item = Family<'_>> {
    type Value = fn(&TierSeen<'_>) -> u64;
    let families: [(&str, &str, &str, Value); 6] = [
        (
            "tier_jobs",
            "gauge",
            "Jobs that take turns on a tier.",
            |seen| seen.jobs,
        ),
        (
            "tier_jobs_writing",
            "gauge",
            "Jobs whose turn it is on a tier.",
            |seen| seen.writing,
        ),
        (
            "tier_turns_given_total",
            "counter",
            "Turns that were given on a tier.",
            |seen| seen.counts.accepted,
        ),
        (
            "tier_offers_put_off_total",
            "counter",
            "Offers that were put off on a tier.",
            |seen| seen.counts.later,
        ),
        (
            "tier_offers_refused_total",
            "counter",
            "Offers that were refused on a tier.",
            |seen| seen.counts.denied,
        ),
        (
            "tier_turns_taken_back_total",
            "counter",
            "Turns on a tier of jobs that did not say in time that they had written.",
            |seen| seen.counts.expired,
        ),
    ];
    let made = |(name, kind, help, value): (_, _, _, Value)| Family {
        name,
        kind,
        help,
        samples: service
            .tiers()
            .map(|seen| (Some(seen.tier), value(&seen)))
            .collect(),
    };
    families.into_iter().map(made)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use outlive_control::turns::Kept;

    use super::*;
    use crate::testing::{TIER, entry};

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
        assert!(metrics.write(&page(&about, kept.service())).is_none());
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
        let labels = labels.replace('}', &format!(",tier=\"{TIER}\"}}"));
        for line in [
            "tier_jobs 1",
            "tier_jobs_writing 1",
            "tier_turns_given_total 1",
        ] {
            let (name, value) = line.split_once(' ').unwrap();
            let line = format!("outlive_coordinator_{name}{labels} {value}");
            assert!(found.lines().any(|it| it == line), "{line} of {found}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(metrics.write(&page(&about, kept.service())).is_some());
        assert!(metrics.write(&page(&about, kept.service())).is_none());
        std::fs::remove_dir(&path).unwrap();
        assert!(metrics.write(&page(&about, kept.service())).is_none());
        assert!(path.is_file());
    }
}

//! What was found.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::sensors::{Judged, Sensor};

/// Findings that travel with a node's status.
pub const FINDINGS_MAX: usize = 8;

/// Changes that are told of one reading; the rest is seen in the status.
pub const CHANGES_MAX: usize = 16;

/// What is to be thought of something. The greater, the worse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// No limit is reached.
    Ok,
    /// It cannot be read, or has not been.
    #[default]
    Unknown,
    /// Worth a look.
    Warning,
    /// About to fail, or failing.
    Failing,
}

impl Verdict {
    /// True for what people are told of.
    pub const fn is_bad(self) -> bool {
        matches!(self, Verdict::Warning | Verdict::Failing)
    }

    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Unknown => "unknown",
            Verdict::Warning => "warning",
            Verdict::Failing => "failing",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A sensor of one part of the machine, judged.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Which sensor.
    pub sensor: Sensor,
    /// Of which part of the machine; empty: there is only one.
    pub source: String,
    /// What is to be thought of it.
    pub verdict: Verdict,
    /// What was compared with the limits, in the sensor's unit. `None`: it is not known, or
    /// takes another reading.
    pub judged: Option<f64>,
    /// What was read: of a counter as it stands.
    pub value: Option<f64>,
    /// Of a counter: what is added in a second.
    pub per_second: Option<f64>,
    /// The limit that is reached.
    pub limit: Option<f64>,
    /// Why it is not known.
    pub reason: Option<String>,
}

impl Finding {
    /// What was found, in words: `cpu-steal: 12 %, limit 10 %`.
    pub fn words(&self) -> String {
        let name = match self.source.as_str() {
            "" => self.sensor.to_string(),
            source => format!("{} of {source}", self.sensor),
        };
        match (&self.reason, self.judged, self.limit) {
            (Some(reason), ..) => format!("{name}: {reason}"),
            (None, Some(judged), Some(limit)) => {
                format!("{name}: {}, limit {}", self.figure(judged), show(limit))
            }
            (None, Some(judged), None) => format!("{name}: {}", self.figure(judged)),
            (None, None, _) => format!("{name}: not known yet"),
        }
    }

    /// A figure with its unit.
    pub fn figure(&self, value: f64) -> String {
        let kind = self.sensor.kind();
        let text = match kind.judged {
            // What was added is whole.
            Judged::Added(_) => format!("{value:.0} {}", kind.unit),
            _ => format!("{} {}", show(value), kind.unit),
        };
        text.trim_end().to_owned()
    }
}

/// With as many digits as a person wants to read.
fn show(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        large if large >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// A finding that is worse than before, or well again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Change {
    /// What it was.
    pub before: Verdict,
    /// What it is.
    pub now: Finding,
}

/// All that was read at one moment, judged.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// In the order of the sensors, then of their sources.
    pub findings: Vec<Finding>,
    /// Sensors that this machine does not have.
    pub not_offered: Vec<Sensor>,
    /// So many samples are not among the findings: there were too many.
    pub left_out: usize,
}

impl Report {
    /// The worst of all; what is unknown beside something that is well counts as well: few
    /// machines let everything be read.
    pub fn worst(&self) -> Verdict {
        let known = self.findings.iter().map(|finding| finding.verdict);
        let known = known.filter(|verdict| *verdict != Verdict::Unknown);
        known.max().unwrap_or(Verdict::Unknown)
    }

    /// What travels.
    pub fn summary(&self) -> NodeHealth {
        let mut bad: Vec<&Finding> = self.findings.iter().collect();
        bad.retain(|finding| finding.verdict.is_bad());
        bad.sort_by_key(|finding| core::cmp::Reverse(finding.verdict));
        let unknown = self.findings.iter();
        let unknown = unknown.filter(|it| it.verdict == Verdict::Unknown).count();
        NodeHealth {
            verdict: self.worst(),
            age_ms: 0,
            findings: bad.iter().take(FINDINGS_MAX).copied().cloned().collect(),
            more: bad.len().saturating_sub(FINDINGS_MAX) as u32,
            read: (self.findings.len() - unknown) as u32,
            unknown: unknown as u32,
            reason: None,
        }
    }
}

/// How a node is: the worst of what its sensors say. This is what monitoring and evacuation go
/// by.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct NodeHealth {
    /// The worst; unknown if nothing could be read, or nothing has been for too long.
    pub verdict: Verdict,
    /// How long ago the sensors were read, in milliseconds.
    pub age_ms: u64,
    /// Those that are failing, then those that warn, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// So many more warn or are failing.
    pub more: u32,
    /// So many could be read.
    pub read: u32,
    /// So many are there and could not be read.
    pub unknown: u32,
    /// Why nothing is known.
    pub reason: Option<String>,
}

impl NodeHealth {
    /// One of which nothing is known, for a reason.
    pub fn unknown(reason: impl Into<String>) -> NodeHealth {
        NodeHealth {
            reason: Some(reason.into()),
            ..NodeHealth::default()
        }
    }

    /// In words: the worst finding and how many more there are.
    pub fn words(&self) -> String {
        let rest = self.findings.len().saturating_sub(1) as u32 + self.more;
        match (self.findings.first(), &self.reason) {
            (Some(first), _) if rest > 0 => {
                format!("{}: {}; {rest} more", self.verdict, first.words())
            }
            (Some(first), _) => format!("{}: {}", self.verdict, first.words()),
            (None, Some(reason)) => format!("{}: {reason}", self.verdict),
            (None, None) => self.verdict.to_string(),
        }
    }
}

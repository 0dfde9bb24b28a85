//! The report of a run: schema `outlive.report/1`.
//!
//! Fields are only ever added; a reader that meets another number after the slash
//! must refuse. Times are in milliseconds unless a name says otherwise.

use std::collections::BTreeMap;

use outlive_base::{Error, JobName};
use serde::{Deserialize, Serialize};

use crate::processes::Alike;
use crate::scrubbing::ScrubEntry;
use crate::standstill::OnHang;
use crate::whereabouts::Group;

/// The schema's name and number.
pub const SCHEMA: &str = "outlive.report/1";

/// Everything that is worth keeping of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// The job's name.
    pub job: String,
    /// `running`, `finished`, `failed` or `interrupted`.
    pub result: String,
    /// Exit status of `outlive run`.
    pub exit_status: u8,
    /// Number of nodes.
    pub nodes: u32,
    /// The failure domain of each node, in order; empty: each is its own.
    #[serde(default)]
    pub domains: Vec<u32>,
    /// Number of ranks, once known.
    pub ranks: Option<u32>,
    /// How often the command was started again.
    pub restarts: u32,
    /// Agents that were started anew without stopping the job.
    pub agent_restarts: u32,
    /// Numbers of the incarnations of this run.
    pub incarnations: Vec<u32>,
    /// What failed, oldest first.
    pub failures: Vec<FailureEntry>,
    /// Standstills, oldest first.
    #[serde(default)]
    pub hangs: Vec<HangEntry>,
    /// Faults that were asked for and carried out, as written.
    pub injected: Vec<String>,
    /// Failures asked for that were not, as far as is known, as written.
    #[serde(default)]
    pub not_injected: Vec<String>,
    /// Checkpoints of this run.
    pub checkpoints: Checkpoints,
    /// What was read before it was needed, and what was found.
    #[serde(default)]
    pub scrub: ScrubEntry,
    /// When a checkpoint is wanted, and why; `None`: the run did not begin.
    #[serde(default)]
    pub policy: Option<PolicyEntry>,
    /// What went wrong without stopping anything.
    pub warnings: Vec<ErrorEntry>,
    /// What ended the job.
    pub errors: Vec<ErrorEntry>,
    /// Wall-clock time of the run.
    pub seconds: f64,
}

/// One failure and what became of it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct FailureEntry {
    /// `node`, `rank` or `command`.
    pub kind: String,
    /// For example `node:2`, `rank:3`.
    pub place: String,
    /// What was seen.
    pub cause: String,
    /// An `--inject` caused it.
    pub injected: bool,
    /// Newest version that the ranks had offered.
    pub at_version: Option<u64>,
    /// Seconds since the run began when it was found.
    pub at_seconds: f64,
    /// From the same moment until the silence of a node was noticed; `None` if it was
    /// found otherwise.
    #[serde(default)]
    pub suspected_ms: Option<f64>,
    /// From the kill (where known) or the last sign of life to the detection.
    pub detect_ms: Option<f64>,
    /// From the detection until every old process was gone.
    pub fence_ms: Option<f64>,
    /// Finding and rebuilding the version.
    pub rebuild_ms: Option<f64>,
    /// From then until all ranks had registered again.
    pub relaunch_ms: Option<f64>,
    /// The most stable level that was needed.
    pub level: Option<String>,
    /// The version restored; `None`: a fresh start (or no restart at all).
    pub version: Option<u64>,
    /// `at_version - version`: what the program computes again.
    pub versions_lost: Option<u64>,
    /// Computing that is done again: from the version restored to the kill or the last sign of
    /// life. Of failures of one recovery the first has it all. `None`: it is not known.
    #[serde(default)]
    pub lost_ms: Option<f64>,
    /// Newer committed versions that could not be used, each with the reason.
    pub rejected: Vec<RejectedEntry>,
    /// A newer version may have existed on nodes that are gone.
    pub uncertain: bool,
}

/// A time in which the ranks lived and came no further.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct HangEntry {
    /// Its number in the job's life, from 1.
    pub number: u32,
    /// The file with the stacks of all ranks.
    pub file: String,
    /// The incarnation.
    pub incarnation: u32,
    /// The newest version that the ranks had offered; `None`: none yet.
    pub version: Option<u64>,
    /// Seconds since the run began when it was found.
    pub at_seconds: f64,
    /// So long the ranks had come no further by then, in seconds of work.
    pub still_seconds: f64,
    /// So long they may, in seconds.
    pub bound_seconds: f64,
    /// That was learnt from the job's pace; else it was given.
    pub learnt: bool,
    /// What was done: `report`, `restart` or `kill`.
    pub action: OnHang,
    /// Where the ranks were: the few before the many.
    pub places: Vec<Group>,
    /// Nodes that have not said where their ranks are.
    pub silent_nodes: Vec<u32>,
    /// The ranks came forward again after so many seconds of work; `None`: they did not.
    pub resumed_seconds: Option<f64>,
    /// Not all ranks had joined: `places` is empty, and [`HangEntry::processes`] says more.
    #[serde(default)]
    pub joining: bool,
    /// Processes of the command on the launcher's machine, those that are alike together.
    #[serde(default)]
    pub processes: Vec<Alike>,
}

/// A version that was not used.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RejectedEntry {
    /// The version.
    pub version: u64,
    /// Why.
    pub reason: String,
}

/// Checkpoints of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Checkpoints {
    /// Versions that all ranks captured.
    pub taken: u64,
    /// Stable versions per level.
    pub stable: BTreeMap<String, u64>,
    /// Versions given up, at a level or at all.
    pub aborted: u64,
    /// Last stable version per level.
    pub last: BTreeMap<String, u64>,
    /// Bytes captured by all nodes.
    pub bytes: u64,
    /// Longest time a rank was blocked.
    pub blocked_ms_max: f64,
    /// Over all versions, the longest time that each has blocked a rank.
    #[serde(default)]
    pub blocked_ms_sum: f64,
    /// Per level, over its stable versions that this run has captured: from the capture until the
    /// level kept it.
    #[serde(default)]
    pub kept_ms: BTreeMap<String, f64>,
}

/// When a checkpoint is wanted, and why.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PolicyEntry {
    /// `auto`: decided by costs and failures; `interval`, `every` or `interval,every`: given.
    pub mode: String,
    /// What is in force and why, in words.
    pub why: String,
    /// The levels in use.
    pub levels: Vec<PolicyLevel>,
    /// For how long the last version blocked the ranks.
    #[serde(default)]
    pub blocked_ms: Option<f64>,
    /// `auto`: for so long the job was watched, in this run and those before.
    #[serde(default)]
    pub watched_seconds: Option<f64>,
    /// `auto`: failures in that time.
    #[serde(default)]
    pub failures: Option<u64>,
    /// `auto`: expected shares of the computing time: for checkpoints, computing that is lost,
    /// restarts.
    #[serde(default)]
    pub overhead: Option<[f64; 3]>,
}

/// A level in use.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PolicyLevel {
    /// Its name.
    pub level: String,
    /// Computing between two versions there; `None`: by versions, or it is not used now.
    pub seconds: Option<f64>,
    /// From the capture until the level keeps it; `None`: not measured.
    #[serde(default)]
    pub background_ms: Option<f64>,
    /// Mean time between failures that need this level, as far as it is known.
    #[serde(default)]
    pub mtbf_seconds: Option<f64>,
    /// It is longer than this with a probability of 95 %.
    #[serde(default)]
    pub mtbf_low_seconds: Option<f64>,
    /// It is shorter than this with a probability of 95 %.
    #[serde(default)]
    pub mtbf_high_seconds: Option<f64>,
    /// The probability that its interval costs at most a tenth more than the best.
    #[serde(default)]
    pub confidence: Option<f64>,
    /// Failures that needed it.
    #[serde(default)]
    pub failures: Option<u64>,
}

/// An error in its parts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ErrorEntry {
    /// For example `OL-503`.
    pub code: String,
    /// What the code means.
    pub text: String,
    /// What is affected.
    pub entity: String,
    /// What was seen.
    pub reason: String,
    /// What to do.
    pub remedy: String,
    /// So many more like it were met after it: the same words of the same node, about
    /// other versions, files or addresses.
    #[serde(default)]
    pub more: u64,
}

impl From<&Error> for ErrorEntry {
    fn from(error: &Error) -> ErrorEntry {
        ErrorEntry {
            code: error.code().to_string(),
            text: error.code().text().to_owned(),
            entity: error.entity().to_string(),
            reason: error.reason().to_owned(),
            remedy: error.remedy().to_owned(),
            more: 0,
        }
    }
}

impl Report {
    /// True if it finished and nothing failed on the way.
    pub fn is_uneventful(&self) -> bool {
        self.failures.is_empty() && self.errors.is_empty() && self.result == "finished"
    }

    /// The report of a run that could not begin: `job` as it was given, 0 nodes if that
    /// was not understood.
    pub fn refused(job: &str, nodes: u32, error: &Error) -> Report {
        Report {
            result: "failed".to_owned(),
            exit_status: error.code().exit_status(),
            errors: vec![error.into()],
            ..Report::named(job, nodes)
        }
    }

    /// The report of a run that begins.
    pub fn new(job: &JobName, nodes: u32) -> Report {
        Report::named(job.as_str(), nodes)
    }

    fn named(job: &str, nodes: u32) -> Report {
        Report {
            schema: SCHEMA.to_owned(),
            job: job.to_owned(),
            result: "running".to_owned(),
            exit_status: 0,
            nodes,
            domains: Vec::new(),
            ranks: None,
            restarts: 0,
            agent_restarts: 0,
            incarnations: Vec::new(),
            failures: Vec::new(),
            hangs: Vec::new(),
            injected: Vec::new(),
            not_injected: Vec::new(),
            checkpoints: Checkpoints::default(),
            scrub: ScrubEntry::default(),
            policy: None,
            warnings: Vec::new(),
            errors: Vec::new(),
            seconds: 0.0,
        }
    }

    /// As JSON with a final line feed.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_else(|_| "{}".to_owned());
        text.push('\n');
        text
    }
}

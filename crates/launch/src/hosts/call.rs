//! One line to a host and what it is for.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use outlive_base::NodeId;
use outlive_control::ended::Ended;
use outlive_control::supervisor::{Input, Storage};

use super::clock::ClockOffset;
use super::line::Line;
use super::looks;
use crate::site::{self, Check, Grade};

/// How long a host whose line broke has to let itself be reached, though its lease is over.
pub(super) const REACHED_WITHIN: Duration = Duration::from_secs(3);

/// How far a line is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The program connects.
    Connecting,
    /// The host's process answers.
    Met,
    /// The keeper runs.
    Up,
    /// The keeper was told to end.
    Stopping,
}

/// Why a line was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// To run a node.
    Serve,
    /// To end what is left of one.
    Evict,
}

#[derive(Debug)]
pub(super) struct Call {
    pub node: NodeId,
    pub epoch: u64,
    pub host: usize,
    pub storage: Storage,
    pub dir: PathBuf,
    pub purpose: Purpose,
    pub stage: Stage,
    pub begun: Instant,
    pub line: Line,
    /// When its lease was lengthened last.
    pub leased: Option<Instant>,
    /// The program's end, and that of what it says: both are waited for.
    pub exited: Option<Ended>,
    pub silent: bool,
    /// Its end is known to the supervisor, or of no interest.
    pub told: bool,
}

impl Stage {
    /// A keeper that was told to end meanwhile stays told.
    pub const fn max_up(self) -> Stage {
        match self {
            Stage::Stopping => Stage::Stopping,
            _ => Stage::Up,
        }
    }
}

impl Call {
    /// What is told of a host's look at itself beside its start, and of its clock.
    pub fn falls_short(&self, name: &str, mut found: Vec<Check>, unix_ms: f64) -> Vec<Input> {
        let clock = looks::clock(ClockOffset::within(unix_ms, self.begun.elapsed()));
        found.extend(Some(clock).filter(|check| check.grade != Grade::Ok));
        let note = |check| Input::Note {
            error: site::told(name, check),
        };
        found.iter().map(note).collect()
    }

    /// What the supervisor hears of its end.
    pub fn gone(&self, cause: String, storage: Storage) -> Input {
        Input::NodeGone {
            node: self.node,
            epoch: self.epoch,
            cause,
            storage,
        }
    }
}

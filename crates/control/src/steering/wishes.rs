//! What the owner asks of a policy that decides by itself.

use outlive_planner::online::Energy;
use outlive_planner::online::learned::Learned;

use super::{FIRST_MS, LEAST_MS};
use crate::orders::Bounds;

/// What the owner asks of a policy that decides by itself.
#[derive(Clone, PartialEq, Debug)]
pub struct Wishes {
    /// Checkpoints shall take at most this share of the computing time.
    pub overhead_max: Option<f64>,
    /// No failure that a level survives shall cost more milliseconds of computing.
    pub lost_max_ms: Option<u64>,
    /// The run will be ended so many milliseconds after its beginning.
    pub ends_after_ms: Option<u64>,
    /// So many milliseconds after a warning the run is ended.
    pub notice_ms: Option<u64>,
    /// The warning is that of a preemption: the run ends itself before, and its machines are lost
    /// with what they store.
    pub preempts: bool,
    /// What is said of powers.
    pub powers: Powers,
    /// The powers, if energy is to be saved rather than time: those that are said, or those of
    /// the last run that said any.
    pub energy: Option<Energy>,
    /// Within so many milliseconds after its capture a version is kept at a level, or not.
    pub commit_ms: u64,
    /// Between two checkpoints at all levels, while their costs are not known, in milliseconds.
    pub first_ms: u64,
    /// No level is written more often, in milliseconds.
    pub least_ms: u64,
    /// What earlier runs have learned.
    pub learned: Learned,
}

/// What a run says of the powers of the job's nodes.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub enum Powers {
    /// Nothing: as the last run that said something.
    #[default]
    AsBefore,
    /// Energy is to be saved rather than time.
    Given(Energy),
    /// Time is to be saved, whatever was said before.
    Off,
}

impl Default for Wishes {
    fn default() -> Wishes {
        Wishes {
            overhead_max: None,
            lost_max_ms: None,
            ends_after_ms: None,
            notice_ms: None,
            preempts: false,
            powers: Powers::AsBefore,
            energy: None,
            commit_ms: Bounds::default().commit_ms,
            first_ms: FIRST_MS,
            least_ms: LEAST_MS,
            learned: Learned::default(),
        }
    }
}

//! When to checkpoint and at which level, decided while the job runs.
//!
//! A [`Policy`] is told what happens and is asked at each checkpoint that the program offers.
//! It owns no clock: every call says the time. The agent asks it in a job, and
//! `outlive_simulator::jobs` in simulation: the same code.
//!
//! - [`Adaptive`] learns costs and failure rates and decides by them;
//! - [`Fixed`] saves at equal intervals, [`Every`] at every offer, with multiples for the
//!   levels;
//! - [`rate`], [`cost`]: what is learned; [`schedule`]: the intervals that follow.
//!
//! Times are seconds since the job began, checkpoints and restarts included.

mod adaptive;
pub mod cost;
mod fixed;
pub mod learned;
pub mod rate;
pub mod schedule;

pub use adaptive::{Adaptive, Advice, Energy, LevelAdvice, LevelPrior, Notice, Settings};
pub use fixed::{Every, Fixed};

use crate::classes::Mask;

/// What a policy is told. Events come in the order of time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Seen {
    /// A checkpoint stopped the program for so many seconds, whatever its levels.
    Captured {
        /// Seconds.
        seconds: f64,
    },
    /// The program waited for a level to be written, in addition.
    Waited {
        /// Which.
        level: usize,
        /// Seconds.
        seconds: f64,
    },
    /// The program was seen to offer checkpoints so far apart. Only for a policy that is asked
    /// ahead of them ([`Settings::ahead`]); any other sees it from the questions.
    Gap {
        /// Seconds.
        seconds: f64,
    },
    /// The program computes again after a checkpoint.
    Resumed,
    /// A level has the version of the last checkpoint that went there.
    Stored {
        /// Which.
        level: usize,
        /// Seconds of writing in the background; 0: the program waited for it.
        seconds: f64,
    },
    /// A write came to nothing: the level lacks that version.
    Failed {
        /// Which.
        level: usize,
    },
    /// A level lost what it held, and the job goes on.
    Lost {
        /// Which.
        level: usize,
    },
    /// A failure stopped the job.
    Stopped {
        /// Levels that survive it, whether they hold a version or not.
        survive: Mask,
    },
    /// The job computes again.
    Restarted {
        /// From the newest version of this level; none: it began anew.
        from: Option<usize>,
        /// Levels that hold that version now, this one among them.
        holds: Mask,
        /// Seconds that reading it took; 0: not known.
        seconds: f64,
    },
    /// It was announced that the job will be taken off its machine ([`Seen::EndsBy`] says when):
    /// no failure, and as often as it is announced.
    Preempted,
    /// The job was ended as announced.
    Ended {
        /// Levels that survive it, whether they hold a version or not.
        survive: Mask,
    },
    /// The job will be ended by then: a limit of its wall-time, a scheduler's warning, the
    /// notice of a preemption. The earliest counts; `f64::INFINITY` takes all back.
    EndsBy {
        /// Seconds.
        at: f64,
    },
}

/// Why a checkpoint is made or skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Its time has come.
    Due,
    /// More work than the bound would be lost.
    Bound,
    /// The job ends soon: this is the last that is sure to be written.
    Ending,
    /// Its time has not come.
    Early,
    /// All that is due is still being written.
    Busy,
}

/// What to do with an offered checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Levels to write; 0: skip it.
    pub levels: Mask,
    /// Why.
    pub why: Why,
}

impl Decision {
    /// Not now.
    pub const fn skip(why: Why) -> Decision {
        Decision { levels: 0, why }
    }
}

/// Decides when to save where.
pub trait Policy {
    /// Something happened.
    fn see(&mut self, at: f64, seen: Seen);
    /// The program offers a checkpoint. `busy`: levels whose last write has not ended; they
    /// refuse another.
    fn decide(&mut self, at: f64, busy: Mask) -> Decision;
    /// From when on [`Policy::decide`] would save, if the program computes on and nothing
    /// is seen; none: not before something is seen.
    fn due(&mut self, at: f64) -> Option<f64>;
}

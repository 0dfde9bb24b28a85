//! Servers of shared storage in repair: until then nothing can be written there.
//!
//! Each lost server is repaired for a lognormal time of its own. While any of a kind is away, the
//! levels on them refuse checkpoints; another loss meanwhile lasts for its own time.
//!
//! Invariant: same seed, same times of repair (P8).

use outlive_base::rng::Sequence;
use outlive_planner::machine::{Machine, Repair};

use super::normal;

/// Streams of these repairs, apart from those of failures and of nodes.
const STREAM: u64 = 1 << 41;

/// The servers of a machine that are in repair.
#[derive(Clone, Debug)]
pub(super) struct Away {
    random: Sequence,
    repairs: Vec<Option<Repair>>,
    /// When the last of each kind is back.
    until: Vec<f64>,
}

impl Away {
    pub(super) fn new(machine: &Machine, seed: u64, stream: u64) -> Away {
        let repairs = machine.servers.iter().map(|servers| servers.repair);
        Away {
            random: Sequence::new(seed, STREAM + stream),
            repairs: repairs.collect(),
            until: vec![0.0; machine.servers.len()],
        }
    }

    /// One of these is lost now.
    pub(super) fn lose(&mut self, now: f64, place: usize) {
        if let Some(Some(repair)) = self.repairs.get(place) {
            let seconds = repair.median * libm::exp(repair.sigma * normal(&mut self.random));
            self.until[place] = self.until[place].max(now + seconds);
        }
    }

    /// Whether one of these is away.
    pub(super) fn is(&self, now: f64, place: usize) -> bool {
        self.until.get(place).is_some_and(|&until| now < until)
    }
}

//! Diffusion balancing as a whole (FFMK 2020, section 2.5): neighbours, flow,
//! task selection, refinement, in rounds until the loads are within the
//! tolerance.
//!
//! This is the sequential reference: it does, process by process, what the
//! processes would do at once, each from its own tasks and what neighbours tell
//! it, and counts their work in a [`Ledger`](crate::cost::Ledger).
//!
//! Invariants: every task keeps exactly one process (checked at the end of every
//! call by number and weight); a present process that has tasks keeps at least
//! one; an absent one ends up empty; loads within the tolerance move nothing; the
//! imbalance never ends above what it was once absent processes are empty.

use crate::cost::Cost;
use crate::error::BalanceError;
use crate::flow::FlowOptions;
use crate::graph::Graph;
use crate::metrics;
use crate::outline::{COMPACT, RAGGED};
use crate::processes::Processes;

mod run;
mod sweep;

use run::Run;

/// Which methods are tried where the caller may choose: over a transport. [`balance`] below is
/// one of them, [`crate::scratch`] the other and the choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Approach {
    /// Diffusion between neighbours.
    #[default]
    Diffusion,
    /// A fresh partition under names that keep tasks at home.
    Scratch,
    /// Both, and the better is taken.
    Auto,
}

/// How to balance.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// For drivers over a transport; the functions of this crate are told by their names.
    pub approach: Approach,
    /// Imbalance (max over ideal, minus 1) that is good enough. Larger values
    /// trade balance for fewer migrations and a smaller edge-cut.
    pub tolerance: f64,
    /// Edge weight that keeping a task at home is worth: larger values trade
    /// edge-cut for fewer migrations. In units of the average edge weight.
    pub migration_price: f64,
    /// The part of the tolerance that flows leave alone, from 0 to 1: larger values
    /// move less and end nearer to the tolerance.
    pub slack: f64,
    /// Layers of tasks that refinement may move.
    pub band_depth: u32,
    /// Passes of refinement over all pairs after each round.
    pub sweeps: u32,
    /// Passes within a pair.
    pub passes: u32,
    /// Rounds of flow and selection at most; more only while they take tenth by tenth
    /// off the imbalance ([`Progress`]): where load must pass through processes that
    /// have little, a round moves it one process further.
    pub rounds_max: u32,
    /// A second flow that keeps to the links of the first that carry much
    /// ([`crate::flow::narrowed`]): moves less, and takes the iterations twice.
    pub narrow: bool,
    /// What it is worth to smooth the border of a process that cuts far more than others
    /// by the length of an edge, if the tasks have coordinates ([`crate::outline`]). In
    /// units of the average edge weight.
    pub shape: f64,
    /// Above how many times the mean cut the borders of a process are refined whole and
    /// smoothed ([`crate::outline`]); 0: those of all, which takes twice the operations and
    /// keeps borders shorter over many balancings.
    pub ragged: f64,
    /// The same above so many times what a cube of as many tasks would cut, where tasks
    /// have coordinates and there are many for each process.
    pub compact: f64,
    /// The diffusion; its tolerance is a part of the one above.
    pub flow: FlowOptions,
    /// Chance: only the order of the pairs hangs on it.
    pub seed: u64,
}

/// Whether another round follows. Every process comes to the same answer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Progress {
    best: f64,
    /// Rounds since the best was bettered by a tenth.
    idle: u32,
    rounds: u32,
}

/// Rounds beyond the usual ones in which the imbalance may stand still: load that
/// passes through processes does not lower the highest level in every one.
const IDLE_MAX: u32 = 3;

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            best: f64::INFINITY,
            idle: 0,
            rounds: 0,
        }
    }
}

impl Progress {
    /// True if another round follows, after those so far led to `imbalance`.
    pub fn goes_on(&mut self, imbalance: f64, options: &Options) -> bool {
        self.idle += 1;
        if imbalance < 0.9 * self.best {
            (self.best, self.idle) = (imbalance, 0);
        }
        let more = self.rounds < options.rounds_max || self.idle < IDLE_MAX;
        let goes_on = imbalance > options.tolerance && more;
        self.rounds += u32::from(goes_on);
        goes_on
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            approach: Approach::Diffusion,
            tolerance: 0.02,
            migration_price: 0.1,
            slack: 0.5,
            band_depth: 1,
            sweeps: 1,
            passes: 1,
            rounds_max: 6,
            narrow: true,
            shape: 0.2,
            ragged: RAGGED,
            compact: COMPACT,
            flow: FlowOptions {
                tolerance: 0.25,
                ..FlowOptions::default()
            },
            seed: 1,
        }
    }
}

impl Options {
    /// Refuses what makes no sense; every method that is told a tolerance begins with it.
    ///
    /// # Errors
    /// A number that is below zero, infinite or none.
    pub fn check(&self) -> Result<(), BalanceError> {
        for (what, value) in [
            ("the tolerance", self.tolerance),
            ("the price of a migration", self.migration_price),
            ("the slack", self.slack),
            ("the shape", self.shape),
            ("the limit of ragged processes", self.ragged),
            ("the limit of compact processes", self.compact),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(BalanceError::Value { what, value });
            }
        }
        match self.slack <= 1.0 {
            true => Ok(()),
            // What flows leave alone would be above the tolerance.
            false => Err(BalanceError::Value {
                what: "the slack",
                value: self.slack,
            }),
        }
    }
}

/// What a balancing did.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The process of each task.
    pub parts: Vec<u32>,
    /// What it would cost.
    pub cost: Cost,
    /// Imbalance that is left.
    pub imbalance: f64,
    /// Rounds of flow and selection.
    pub rounds: u32,
}

/// Balances `graph` over `processes` from `parts`.
///
/// # Errors
/// Parts of another length or out of range; options out of their range.
pub fn balance(
    graph: &Graph,
    processes: &Processes,
    parts: &[u32],
    options: &Options,
) -> Result<Outcome, BalanceError> {
    processes.check(graph, parts)?;
    options.check()?;
    let loads = processes.loads(graph, parts);
    let start = metrics::imbalance(processes, &loads);
    if start <= options.tolerance {
        return Ok(Outcome {
            parts: parts.to_vec(),
            cost: run::cost_of_looking(processes.count(), parts),
            imbalance: start,
            rounds: 0,
        });
    }
    let mut run = Run::new(graph, processes, parts, options);
    run.count_sums();
    if run.is_stuck() {
        return Ok(Outcome {
            parts: run.owner,
            cost: run.ledger.cost(),
            imbalance: start,
            rounds: 0,
        });
    }
    run.evacuate();
    let mut rounds = 0;
    let mut best: Option<(f64, Vec<u32>)> = None;
    let mut progress = Progress::default();
    while progress.goes_on(run.imbalance(), options) {
        rounds += 1;
        let before = run.imbalance();
        if best.as_ref().is_none_or(|best| before < best.0) {
            best = Some((before, run.owner.clone()));
        }
        let moved = run.round();
        let refined = run.sweep(rounds);
        run.count_sums();
        if !moved && !refined {
            break;
        }
    }
    run.verify()?;
    let cost = run.ledger.cost();
    let reached = run.imbalance();
    let (imbalance, parts) = match best {
        // Coarse tasks can make a round worse than what it began with.
        Some(best) if best.0 < reached => best,
        _ => (reached, run.owner),
    };
    Ok(Outcome {
        imbalance,
        cost,
        parts,
        rounds,
    })
}

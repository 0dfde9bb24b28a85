//! A fresh partition under names that keep tasks at home, and the choice between it and
//! diffusion (Schloegel, Karypis and Kumar, "A Unified Algorithm for Load-balancing Adaptive
//! Scientific Simulations", SC 2000: scratch-remap and diffusion, judged by
//! |edge cut| + alpha |migration|).
//!
//! One process computes; it sees the whole graph. Invariants: the choice is never worse than
//! one of the two in edge cut and in migration both, where both are within the tolerance, and
//! never less balanced than the better of the two where one is not.

use crate::diffusion::{self, Options};
use crate::error::BalanceError;
use crate::geometric::shares;
use crate::graph::Graph;
use crate::metrics::{self, measure};
use crate::multilevel::{self, NOWHERE};
use crate::processes::Processes;
use crate::relabel;

/// Partitions the graph anew and names the parts so that tasks stay. The tolerance, the price
/// of a migration and the seed are those of diffusion. Unlike diffusion this may leave the
/// imbalance above what it was: see [`choose`].
///
/// # Errors
/// Parts of another length or out of range; options out of their range.
pub fn balance(
    graph: &Graph,
    processes: &Processes,
    parts: &[u32],
    options: &Options,
) -> Result<Vec<u32>, BalanceError> {
    processes.check(graph, parts)?;
    options.check()?;
    let present = shares(graph, processes);
    let mut slots = vec![NOWHERE; processes.count()];
    for (slot, &(process, _)) in present.iter().enumerate() {
        slots[process as usize] = slot as u32;
    }
    let homes: Vec<u32> = parts.iter().map(|&part| slots[part as usize]).collect();
    let goal = multilevel::Goal {
        shares: &present.iter().map(|share| share.1).collect::<Vec<f64>>(),
        tolerance: options.tolerance,
        homes: &homes,
        price: price(graph, options),
        seed: options.seed,
    };
    let fresh = multilevel::partition(graph, &goal);
    let fresh: Vec<u32> = fresh.iter().map(|&slot| present[slot as usize].0).collect();
    let loads = processes.loads(graph, &fresh);
    if metrics::imbalance(processes, &loads) <= options.tolerance {
        return Ok(fresh);
    }
    // What no single task could mend, a flow through several processes may.
    Ok(diffusion::balance(graph, processes, &fresh, options)?.parts)
}

/// Edge weight that it is worth to leave a task at home.
fn price(graph: &Graph, options: &Options) -> f64 {
    options.migration_price * graph.edge_weight_total() / graph.edges().max(1) as f64
}

/// Names the parts of `fresh`, any partition, so that as many tasks as possible stay where
/// `parts` has them.
///
/// # Errors
/// Parts of another length or out of range, of either.
pub fn remap(
    graph: &Graph,
    processes: &Processes,
    parts: &[u32],
    fresh: &[u32],
    tolerance: f64,
) -> Result<Vec<u32>, BalanceError> {
    processes.check(graph, parts)?;
    processes.check(graph, fresh)?;
    let mut goals = vec![0.0; processes.count()];
    for (process, share) in shares(graph, processes) {
        goals[process as usize] = share;
    }
    let kept = fresh.iter().zip(parts).map(|(&new, &old)| (new, old, 1.0));
    let names = relabel::names(kept.collect(), &goals, tolerance);
    Ok(fresh.iter().map(|&part| names[part as usize]).collect())
}

/// What both methods led to.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// The process of each task.
    pub parts: Vec<u32>,
    /// True if they are those of [`balance`], false if those of diffusion.
    pub is_fresh: bool,
}

/// Balances by diffusion and by [`balance`], and takes the better: who is within the tolerance
/// before who is not, then the lower cost, the weight of all cut edges plus the price of a
/// migration for each task that moves. Does nothing if nothing is to be done.
///
/// # Errors
/// As [`balance`].
pub fn choose(
    graph: &Graph,
    processes: &Processes,
    parts: &[u32],
    options: &Options,
) -> Result<Choice, BalanceError> {
    let spread = diffusion::balance(graph, processes, parts, options)?;
    if spread.rounds == 0 && spread.imbalance <= options.tolerance {
        return Ok(Choice {
            parts: spread.parts,
            is_fresh: false,
        });
    }
    let fresh = balance(graph, processes, parts, options)?;
    Ok(better(
        graph,
        processes,
        parts,
        (spread.parts, fresh),
        options,
    ))
}

/// The better of two partitions, as [`choose`] takes it; the first if they are alike.
pub fn better(
    graph: &Graph,
    processes: &Processes,
    before: &[u32],
    (spread, fresh): (Vec<u32>, Vec<u32>),
    options: &Options,
) -> Choice {
    let judge = |parts: &[u32]| {
        let found = measure(graph, processes, before, parts);
        // Within the tolerance all are alike.
        let over = found.imbalance.max(options.tolerance);
        let moved = found.migration_total * graph.tasks() as f64;
        (over, found.edge_cut_total + price(graph, options) * moved)
    };
    let is_fresh = judge(&fresh) < judge(&spread);
    Choice {
        parts: if is_fresh { fresh } else { spread },
        is_fresh,
    }
}

//! How much load should flow between which neighbours: diffusion on the process
//! graph, as a sequential reference. [`crate::machine`] computes the same bits
//! as a protocol.
//!
//! With u = w / c (load over speed), the flow of iteration k over the link ij is
//! y1 = a (ui - uj) and then y = (b - 1) y + b a (ui - uj), with a = s min(ci,
//! cj) / (max(di, dj) + 1); w loses the y of all its links (Muthukrishnan, Ghosh,
//! Schultz 1998; speeds as in Elsaesser, Monien, Preis 2002). b = 1 is the first
//! order. Where the links have contacts k (the edge weight between two processes),
//! a = s min(ci, cj) kij / max(gi, gj) with the girth g = (1 + 1/d) sum k, which is
//! the same where all k are equal: little load then passes through a small border,
//! where it would have to leave as a tentacle. The whole flow is computed before
//! anything moves: it is then minimal in the l2 norm, and a virtual load may pass
//! below zero on the way.
//!
//! [`Scheme::Adaptive`] needs no choice of b. Its b rises as 1 + (k - 1)/(k + 2),
//! the fixed schedule of accelerated gossip in two dimensions, which clears rough
//! imbalance first (Berthier, Bach, Gaillard 2020), and is capped by the
//! Chebyshev sequence for the second eigenvalue, which clears the smooth rest
//! (Golub and Varga 1961). Its step s centres the spectrum, which the +1 in a
//! leaves lopsided: the smallest eigenvalue is above 1 - 2 d / (d + 1).
//!
//! Invariants: flows are exactly antisymmetric, so the sum of the loads changes
//! by rounding only; sums run in the order of the links; at most
//! `iterations_max` iterations run.
//!
//! Stopping. A pair stops on its own when its flow stayed below a threshold for
//! [`QUIET`] iterations; both ends see the same number, so nothing is said. At
//! every `check_every`-th iteration the largest u is compared with the ideal;
//! the verdict takes effect `check_lag` iterations later, so that it can be
//! gathered while the iteration goes on. If all pairs have stopped before the
//! goal is reached, a new phase opens them with a finer threshold.

use crate::links::Links;

mod integers;
mod momentum;

pub use integers::integer_finish;
pub use momentum::{Schedule, Scheme, gamma, gamma_estimate};

/// For how many iterations in a row a pair's flow must stay below the threshold.
pub const QUIET: u32 = 4;
/// Phases at most; in the last one no pair stops on its own.
pub const PHASES_MAX: u32 = 4;

/// How far diffusion goes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowOptions {
    /// Which diffusion.
    pub scheme: Scheme,
    /// The goal: largest u over the ideal, minus 1.
    pub tolerance: f64,
    /// A pair stops below this flow an iteration, as a fraction of the ideal
    /// load; 0: never.
    pub pair_threshold: f64,
    /// Iterations between global checks; at least 1.
    pub check_every: u32,
    /// Iterations from a check to its verdict; at most `check_every`.
    pub check_lag: u32,
    /// Iterations at most.
    pub iterations_max: u32,
    /// A bound on the number of neighbours of a process, for the step of the
    /// adaptive scheme; 0: none is known, which costs a few more iterations.
    pub degree_max: u32,
}

impl Default for FlowOptions {
    fn default() -> FlowOptions {
        FlowOptions {
            scheme: Scheme::Adaptive { gamma: 0.99 },
            tolerance: 0.005,
            pair_threshold: 1e-4,
            check_every: 8,
            check_lag: 8,
            iterations_max: 20_000,
            degree_max: 0,
        }
    }
}

/// The weight a of a link, without the step of the schedule.
pub fn link_weight(contact: f64, speeds: (f64, f64), girths: (f64, f64)) -> f64 {
    speeds.0.min(speeds.1) * contact / girths.0.max(girths.1)
}

/// What diffusion found.
#[derive(Clone, PartialEq, Debug)]
pub struct Flow {
    /// Load that should leave over each directed link of the [`Links`];
    /// antisymmetric.
    pub amounts: Vec<f64>,
    /// The virtual loads after the flow.
    pub loads: Vec<f64>,
    /// Iterations run.
    pub iterations: u32,
    /// Phases opened.
    pub phases: u32,
    /// True if the goal was reached.
    pub converged: bool,
    /// Messages that each process would have sent to neighbours.
    pub messages: Vec<u32>,
}

/// Diffuses `loads` over `links`. Absent processes (speed 0) must have no links
/// and no load.
pub fn diffuse(links: &Links, loads: &[f64], speeds: &[f64], options: &FlowOptions) -> Flow {
    let mut run = Run::new(links, loads, speeds, options);
    let lag = options.check_lag.min(options.check_every.max(1));
    let mut pending: Option<(u32, Verdict)> = None;
    loop {
        let done = run.iterations;
        if let Some((at, verdict)) = pending
            && at == done
        {
            pending = None;
            if run.obey(verdict) {
                break;
            }
        }
        if done >= options.iterations_max {
            break;
        }
        if done.is_multiple_of(options.check_every.max(1)) {
            let verdict = judge(
                run.level_max(),
                run.active(),
                run.ideal,
                run.phases,
                options,
            );
            if lag == 0 {
                if run.obey(verdict) {
                    break;
                }
            } else {
                pending = Some((done + lag, verdict));
            }
        }
        run.iterate();
    }
    Flow {
        amounts: run.amounts,
        loads: run.loads,
        iterations: run.iterations,
        phases: run.phases,
        converged: run.converged,
        messages: run.messages,
    }
}

/// What a global check decides; it takes effect `check_lag` iterations later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Go on.
    Continue,
    /// Every pair has stopped and the goal is not reached: open a new phase.
    Open,
    /// The goal is reached.
    Reached,
    /// It cannot be reached.
    Spent,
}

/// The verdict on the largest level and whether any pair is open.
pub fn judge(
    level_max: f64,
    active: bool,
    ideal: f64,
    phases: u32,
    options: &FlowOptions,
) -> Verdict {
    if level_max <= ideal * (1.0 + options.tolerance) {
        Verdict::Reached
    } else if active {
        Verdict::Continue
    } else if phases >= PHASES_MAX {
        Verdict::Spent
    } else {
        Verdict::Open
    }
}

/// The part of the contact that a link without flow keeps in [`narrowed`].
const NARROW_FLOOR: f64 = 0.02;

/// The contact of a link for a second flow, from the `amount` of a first one: where little
/// flowed, less will. The first flow is minimal in the l2 norm, which spreads it over many
/// links and through processes that neither give nor take; what a migration costs is the
/// l1 norm, and weights of 1 over the last solution lead from the one to the other
/// (iteratively reweighted least squares: Daubechies, DeVore, Fornasier, Guentuerk 2010).
/// One step is enough: further ones move the same and take longer. Both ends see the same
/// amount but for its sign, so they come to the same bits.
pub fn narrowed(contact: f64, amount: f64, ideal: f64) -> f64 {
    match ideal > 0.0 {
        true => contact * (amount.abs() / ideal + NARROW_FLOOR),
        false => contact,
    }
}

/// A load with a dead band around its share: nearer to the share by up to `slack`
/// of it. Flows of such loads leave a process up to `slack` above the ideal, and
/// what is within the band moves nothing.
pub fn with_slack(load: f64, share: f64, slack: f64) -> f64 {
    let band = slack * share;
    share + (load - share - band).max(0.0) + (load - share + band).min(0.0)
}

/// Children of a process in the tree of global checks. Few levels, because each is a
/// message to wait for; no more children than a process has neighbours anyway.
pub const TREE_FAN_OUT: usize = 8;

/// Levels below the root of the tree of global checks over so many processes: a check
/// takes twice as many messages in a row.
pub fn tree_depth(processes: usize) -> u32 {
    let (mut depth, mut level, mut reached) = (0, 1, 1);
    while reached < processes {
        level *= TREE_FAN_OUT;
        reached += level;
        depth += 1;
    }
    depth
}

/// The sum over the present processes in the order of the tree of global checks: each
/// adds its own value, then those of its children, at the [`TREE_FAN_OUT`] places from
/// TREE_FAN_OUT p + 1.
pub fn tree_sum(values: &[f64], speeds: &[f64]) -> f64 {
    let present = values.iter().zip(speeds).filter(|(_, c)| **c > 0.0);
    let mut sums: Vec<f64> = present.map(|(value, _)| *value).collect();
    for place in (0..sums.len()).rev() {
        let first = TREE_FAN_OUT * place + 1;
        for child in first..(first + TREE_FAN_OUT).min(sums.len()) {
            sums[place] += sums[child];
        }
    }
    sums.first().copied().unwrap_or(0.0)
}

struct Run<'a> {
    links: &'a Links,
    speeds: &'a [f64],
    schedule: Schedule,
    threshold: f64,
    ideal: f64,
    weights: Vec<f64>,
    loads: Vec<f64>,
    levels: Vec<f64>,
    last: Vec<f64>,
    quiet: Vec<u32>,
    amounts: Vec<f64>,
    messages: Vec<u32>,
    open: usize,
    iterations: u32,
    phases: u32,
    converged: bool,
}

impl<'a> Run<'a> {
    fn new(links: &'a Links, loads: &[f64], speeds: &'a [f64], options: &FlowOptions) -> Run<'a> {
        let ideal = tree_sum(loads, speeds) / tree_sum(speeds, speeds);
        let mut weights = vec![0.0; links.len()];
        for i in 0..links.count() as u32 {
            for link in links.of(i) {
                let j = links.to(link);
                let pair = (speeds[i as usize], speeds[j as usize]);
                weights[link] =
                    link_weight(links.contact(link), pair, (links.girth(i), links.girth(j)));
            }
        }
        Run {
            links,
            speeds,
            schedule: Schedule::new(options.scheme, options.degree_max),
            threshold: options.pair_threshold * ideal,
            ideal,
            weights,
            loads: loads.to_vec(),
            levels: vec![0.0; loads.len()],
            last: vec![0.0; links.len()],
            quiet: vec![0; links.len()],
            amounts: vec![0.0; links.len()],
            messages: vec![0; loads.len()],
            open: links.len(),
            iterations: 0,
            phases: 1,
            converged: false,
        }
    }

    fn active(&self) -> bool {
        self.open > 0
    }

    fn level_max(&self) -> f64 {
        let present = self
            .loads
            .iter()
            .zip(self.speeds)
            .filter(|(_, c)| **c > 0.0);
        present.map(|(w, c)| w / c).fold(0.0, f64::max)
    }

    /// Carries a verdict out; true if the iteration ends.
    fn obey(&mut self, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Continue => return false,
            Verdict::Open => {
                self.open_phase();
                return false;
            }
            Verdict::Reached => self.converged = true,
            Verdict::Spent => {}
        }
        true
    }

    /// Opens all pairs again; the momentum starts anew.
    fn open_phase(&mut self) {
        self.phases += 1;
        self.threshold = phase_threshold(self.threshold, self.phases);
        self.schedule = self.schedule.restarted();
        self.last.fill(0.0);
        self.quiet.fill(0);
        self.open = self.links.len();
    }

    fn iterate(&mut self) {
        let (momentum, step) = self.schedule.advance();
        for (level, (w, c)) in self
            .levels
            .iter_mut()
            .zip(self.loads.iter().zip(self.speeds))
        {
            *level = if *c > 0.0 { w / c } else { 0.0 };
        }
        for i in 0..self.links.count() as u32 {
            for link in self.links.of(i) {
                if self.quiet[link] >= QUIET {
                    continue;
                }
                let j = self.links.to(link);
                let gap = self.levels[i as usize] - self.levels[j as usize];
                let y = momentum * self.last[link] + step * self.weights[link] * gap;
                self.last[link] = y;
                self.amounts[link] += y;
                self.loads[i as usize] -= y;
                self.messages[i as usize] += 1;
                self.quiet[link] = if y.abs() < self.threshold {
                    self.quiet[link] + 1
                } else {
                    0
                };
                self.open -= usize::from(self.quiet[link] >= QUIET);
            }
        }
        self.iterations += 1;
    }
}

/// The threshold of a phase from that of the one before: finer, and 0 (no pair
/// stops on its own) in the last.
pub fn phase_threshold(before: f64, phase: u32) -> f64 {
    if phase >= PHASES_MAX {
        0.0
    } else {
        before / 16.0
    }
}

#[cfg(test)]
mod tests;

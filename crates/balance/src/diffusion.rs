//! Diffusion balancing as a whole (FFMK 2020, section 2.5): neighbours, flow,
//! task selection, refinement, in rounds until the loads are within the
//! tolerance.
//!
//! This is the sequential reference: it does, process by process, what the
//! processes would do at once, each from its own tasks and what neighbours tell
//! it, and counts their work in a [`Ledger`].
//!
//! Invariants: every task keeps exactly one process (checked at the end of every
//! call by number and weight); a present process that has tasks keeps at least
//! one; an absent one ends up empty; loads within the tolerance move nothing; the
//! imbalance never ends above what it was once absent processes are empty.

use std::collections::BTreeSet;

use crate::band::{Band, Marks, band};
use crate::cost::{Cost, Ledger};
use crate::error::BalanceError;
use crate::flow::{self, FlowOptions, Scheme};
use crate::graph::Graph;
use crate::links::Links;
use crate::metrics;
use crate::processes::Processes;
use crate::refine::{Goal, refine};
use crate::schedule;
use crate::select::{Move, Outflow, Scratch, View, centre, select};

/// Bytes of one message of the flow protocol.
const FLOW_BYTES: u64 = 32;

/// How to balance.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
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
    /// Rounds of flow and selection at most.
    pub rounds_max: u32,
    /// The diffusion; `tolerance` in it is overwritten.
    pub flow: FlowOptions,
    /// Chance: only the order of the pairs hangs on it.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            tolerance: 0.02,
            migration_price: 0.1,
            slack: 0.25,
            band_depth: 3,
            sweeps: 1,
            passes: 2,
            rounds_max: 6,
            flow: FlowOptions::default(),
            seed: 1,
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
    check(options)?;
    let mut run = Run::new(graph, processes, parts, options);
    run.evacuate();
    let mut rounds = 0;
    let mut best: Option<(f64, Vec<u32>)> = None;
    while rounds < options.rounds_max && run.imbalance() > options.tolerance {
        rounds += 1;
        let before = run.imbalance();
        if best.as_ref().is_none_or(|best| before < best.0) {
            best = Some((before, run.owner.clone()));
        }
        let links = Links::of_tasks(graph, processes, &run.owner);
        let moved = run.round(&links);
        let refined = run.sweep(rounds);
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

fn check(options: &Options) -> Result<(), BalanceError> {
    for (what, value) in [
        ("the tolerance", options.tolerance),
        ("the price of a migration", options.migration_price),
        ("the slack", options.slack),
    ] {
        if !(value.is_finite() && value >= 0.0) {
            return Err(BalanceError::Value { what, value });
        }
    }
    Ok(())
}

struct Run<'a> {
    graph: &'a Graph,
    processes: &'a Processes,
    options: &'a Options,
    home: Vec<u32>,
    owner: Vec<u32>,
    loads: Vec<f64>,
    /// The tasks of each process, ascending.
    tasks: Vec<Vec<u32>>,
    /// Pairs whose border changed since it was refined, the lower first.
    changed: BTreeSet<(u32, u32)>,
    price: f64,
    scratch: Scratch,
    marks: Marks,
    ledger: Ledger,
}

impl<'a> Run<'a> {
    fn new(
        graph: &'a Graph,
        processes: &'a Processes,
        parts: &[u32],
        options: &'a Options,
    ) -> Run<'a> {
        let mut tasks = vec![Vec::new(); processes.count()];
        for (task, &part) in parts.iter().enumerate() {
            tasks[part as usize].push(task as u32);
        }
        let average = graph.edge_weight_total() / graph.edges().max(1) as f64;
        Run {
            graph,
            processes,
            options,
            home: parts.to_vec(),
            owner: parts.to_vec(),
            loads: processes.loads(graph, parts),
            tasks,
            changed: BTreeSet::new(),
            price: options.migration_price * average,
            scratch: Scratch::new(graph.tasks()),
            marks: Marks::new(graph.tasks()),
            ledger: Ledger::new(processes.count()),
        }
    }

    fn imbalance(&self) -> f64 {
        metrics::imbalance(self.processes, &self.loads)
    }

    /// Gives the tasks of absent processes to present ones: to the neighbour
    /// that a task is tied to most; what has no such neighbour goes to the next
    /// present process in number. Layer by layer, from the border inwards.
    fn evacuate(&mut self) {
        for process in 0..self.processes.count() as u32 {
            if self.processes.present(process) || self.tasks[process as usize].is_empty() {
                continue;
            }
            while !self.tasks[process as usize].is_empty() {
                let mut moves = Vec::new();
                for &task in &self.tasks[process as usize] {
                    self.ledger.work(process, self.graph.degree(task) as u64);
                    if let Some(to) = self.strongest(task) {
                        moves.push(Move { task, to });
                    }
                }
                if moves.is_empty() {
                    let Some(to) = self.next_present(process) else {
                        return;
                    };
                    let all = self.tasks[process as usize].iter();
                    moves = all.map(|&task| Move { task, to }).collect();
                }
                self.apply(process, &moves);
            }
        }
    }

    /// The present process that most edge weight of a task leads to.
    fn strongest(&self, task: u32) -> Option<u32> {
        let mut ties: Vec<(u32, f64)> = Vec::new();
        for (near, edge) in self.graph.adjacent(task) {
            let process = self.owner[near as usize];
            if !self.processes.present(process) {
                continue;
            }
            match ties.iter_mut().find(|tie| tie.0 == process) {
                Some(tie) => tie.1 += edge,
                None => ties.push((process, edge)),
            }
        }
        let best = ties
            .into_iter()
            .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        best.map(|tie| tie.0)
    }

    fn next_present(&self, process: u32) -> Option<u32> {
        let count = self.processes.count() as u32;
        let after = (1..count).map(|step| (process + step) % count);
        after.into_iter().find(|&p| self.processes.present(p))
    }

    /// Flow and selection. True if a task moved.
    fn round(&mut self, links: &Links) -> bool {
        let goal = FlowOptions {
            tolerance: self.options.tolerance / 4.0,
            scheme: match self.options.flow.scheme {
                Scheme::Adaptive { .. } => Scheme::Adaptive {
                    gamma: flow::gamma_estimate(self.processes.count()),
                },
                other => other,
            },
            ..self.options.flow
        };
        let ideal = self.processes.ideal(&self.loads);
        let speeds = self.processes.speeds();
        let slack = self.options.tolerance * self.options.slack;
        let loads: Vec<f64> = self
            .loads
            .iter()
            .zip(speeds)
            .map(|(&load, speed)| flow::with_slack(load, ideal * speed, slack))
            .collect();
        let flow = flow::diffuse(links, &loads, speeds, &goal);
        self.count_flow(links, &flow);
        let centres: Vec<Option<[f64; 3]>> = self
            .tasks
            .iter()
            .map(|own| centre(self.graph, own))
            .collect();
        let mut all = Vec::new();
        for me in 0..links.count() as u32 {
            let out: Vec<Outflow> = links
                .of(me)
                .filter(|&link| flow.amounts[link] > 0.0)
                .map(|link| Outflow {
                    to: links.to(link),
                    amount: flow.amounts[link],
                    centre: centres[links.to(link) as usize],
                })
                .collect();
            if out.is_empty() {
                continue;
            }
            let view = View {
                graph: self.graph,
                owner: &self.owner,
                home: &self.home,
                price: self.price,
                me,
                leaving: !self.processes.present(me),
            };
            let own = &self.tasks[me as usize];
            let (moves, operations) = select(&view, own, out, &mut self.scratch);
            self.ledger.work(me, operations);
            all.push((me, moves));
        }
        self.ledger.rounds += 2;
        let moved = all.iter().any(|(_, moves)| !moves.is_empty());
        for (me, moves) in all {
            self.announce(me, links.degree(me) as u64, &moves);
            self.apply(me, &moves);
        }
        moved
    }

    fn count_flow(&mut self, links: &Links, flow: &flow::Flow) {
        let checks = u64::from(flow.iterations / self.options.flow.check_every.max(1)) + 1;
        for process in 0..links.count() as u32 {
            let sent = u64::from(flow.messages[process as usize]);
            // A flow message in and out is a handful of operations; two messages
            // of each global check go up and down a binary tree.
            self.ledger.work(process, 2 * sent);
            let hello = links.degree(process) as u64;
            self.ledger.send(
                process,
                sent + hello + 3 * checks,
                FLOW_BYTES * (sent + hello + 3 * checks),
            );
        }
        self.ledger.iterations += u64::from(flow.iterations);
        // The greeting, the sums up and down the tree, the iterations.
        let tree = u64::from(u32::BITS - (links.count() as u32).leading_zeros());
        self.ledger.rounds += u64::from(flow.iterations) + 1 + 2 * tree;
    }

    /// Counts the messages that tell neighbours of moved tasks.
    fn announce(&mut self, me: u32, neighbours: u64, moves: &[Move]) {
        let edges: usize = moves.iter().map(|m| self.graph.degree(m.task)).sum();
        let bytes = 32 * moves.len() as u64 + 16 * edges as u64;
        self.ledger
            .send(me, neighbours, 16 * neighbours + 2 * bytes);
    }

    /// Moves tasks of `from`, keeping the lists sorted.
    fn apply(&mut self, from: u32, moves: &[Move]) {
        if moves.is_empty() {
            return;
        }
        let mut receivers = Vec::new();
        for moved in moves {
            let weight = self.graph.weight(moved.task);
            self.owner[moved.task as usize] = moved.to;
            for (near, _) in self.graph.adjacent(moved.task) {
                let other = self.owner[near as usize];
                for end in [from, moved.to] {
                    if end != other {
                        self.changed.insert((end.min(other), end.max(other)));
                    }
                }
            }
            self.changed
                .insert((from.min(moved.to), from.max(moved.to)));
            self.loads[from as usize] -= weight;
            self.loads[moved.to as usize] += weight;
            self.tasks[moved.to as usize].push(moved.task);
            if !receivers.contains(&moved.to) {
                receivers.push(moved.to);
            }
        }
        let owner = &self.owner;
        self.tasks[from as usize].retain(|&task| owner[task as usize] == from);
        for to in receivers {
            self.tasks[to as usize].sort_unstable();
        }
    }

    /// One or more sweeps of refinement over the pairs whose border changed, or of
    /// which one is above the limit. True if a task moved.
    fn sweep(&mut self, round: u32) -> bool {
        let mut any = false;
        for sweep in 0..self.options.sweeps {
            let links = Links::of_tasks(self.graph, self.processes, &self.owner);
            let seed = self.options.seed ^ u64::from(round * 64 + sweep);
            let ideal = self.processes.ideal(&self.loads);
            let goal = Goal {
                level_max: ideal * (1.0 + self.options.tolerance),
                price: self.price,
                passes: self.options.passes,
            };
            let changed = core::mem::take(&mut self.changed);
            let (mut pairs, depth) = schedule::order(&links, seed);
            pairs.retain(|pair| {
                let over = |p: u32| self.level(p) > goal.level_max;
                changed.contains(pair) || over(pair.0) || over(pair.1)
            });
            let mut borders = self.borders();
            let mut moved = false;
            for pair in pairs {
                moved |= self.refine_pair(pair, &mut borders, &goal);
            }
            self.ledger.rounds += 2 * depth;
            any |= moved;
            if !moved {
                break;
            }
        }
        any
    }

    fn level(&self, process: u32) -> f64 {
        self.loads[process as usize] / self.processes.speeds()[process as usize]
    }

    /// For each process its (neighbour process, own task at that border), sorted.
    fn borders(&mut self) -> Vec<Vec<(u32, u32)>> {
        let mut borders = vec![Vec::new(); self.tasks.len()];
        for task in 0..self.graph.tasks() as u32 {
            let me = self.owner[task as usize];
            for (near, _) in self.graph.adjacent(task) {
                let other = self.owner[near as usize];
                if other != me {
                    borders[me as usize].push((other, task));
                }
            }
            self.ledger.work(me, self.graph.degree(task) as u64);
        }
        for border in &mut borders {
            border.sort_unstable();
            border.dedup();
        }
        borders
    }

    fn refine_pair(
        &mut self,
        (a, b): (u32, u32),
        borders: &mut [Vec<(u32, u32)>],
        goal: &Goal,
    ) -> bool {
        let left = self.half((a, b), &borders[a as usize]);
        let right = self.half((b, a), &borders[b as usize]);
        if left.tasks.is_empty() || right.tasks.is_empty() {
            return false;
        }
        let refined = refine((a, b), (&left, &right), goal);
        self.ledger.work_together((a, b), refined.operations);
        self.ledger.send(a, 1, left.bytes());
        self.ledger.send(b, 1, 16 + 8 * refined.moves.len() as u64);
        for from in [a, b] {
            let leaving = refined
                .moves
                .iter()
                .filter(|m| self.owner[m.task as usize] == from);
            let leaving: Vec<Move> = leaving.filter(|m| m.to != from).copied().collect();
            self.announce(from, 1, &leaving);
            self.apply(from, &leaving);
        }
        for moved in &refined.moves {
            for (near, _) in self.graph.adjacent(moved.task) {
                let other = self.owner[near as usize];
                if other != moved.to {
                    insert(&mut borders[moved.to as usize], (other, moved.task));
                    insert(&mut borders[other as usize], (moved.to, near));
                }
            }
        }
        !refined.moves.is_empty()
    }

    fn half(&mut self, (me, other): (u32, u32), border: &[(u32, u32)]) -> Band {
        let first = border.partition_point(|entry| entry.0 < other);
        let end = border.partition_point(|entry| entry.0 <= other);
        let border: Vec<u32> = border[first..end].iter().map(|entry| entry.1).collect();
        let (mut half, operations) = band(
            self.graph,
            &self.owner,
            &self.home,
            (me, other),
            &border,
            self.options.band_depth,
            &mut self.marks,
        );
        half.load = self.loads[me as usize];
        half.speed = self.processes.speeds()[me as usize];
        half.count = self.tasks[me as usize].len();
        self.ledger.work(me, operations);
        half
    }

    /// No load lost or doubled: the lists and the owners agree, and the kept
    /// loads are those of the tasks.
    fn verify(&self) -> Result<(), BalanceError> {
        let listed: usize = self.tasks.iter().map(Vec::len).sum();
        if listed != self.graph.tasks() {
            return Err(BalanceError::Invariant("a task was lost or doubled"));
        }
        let loads = self.processes.loads(self.graph, &self.owner);
        let total: f64 = loads.iter().sum();
        let off = |(a, b): (&f64, &f64)| (a - b).abs() > 1e-6 * total.max(1.0);
        if loads.iter().zip(&self.loads).any(off) {
            return Err(BalanceError::Invariant("the load of a process is wrong"));
        }
        Ok(())
    }
}

fn insert(sorted: &mut Vec<(u32, u32)>, entry: (u32, u32)) {
    if let Err(place) = sorted.binary_search(&entry) {
        sorted.insert(place, entry);
    }
}

//! Hierarchical balancing on a tree of domains (after HybridLB: Zheng 2005; HPC
//! Colony annual report 2006, section 2.4, tables 2 and 3).
//!
//! Processes are grouped by number into leaf domains of `group` processes, these
//! into domains of `fan_out`, and so on. Up the tree go sums only. Down the tree
//! go *quotas*: how much load each child should give or take, so that a domain
//! that is within the tolerance moves nothing (the refinement of the upper
//! levels). A leaf's leader then chooses the tasks it gives away: those that talk
//! most to the receiving domain and least to their own first; what it received,
//! and what is overloaded, it places with the leaf's method. Each level has its own
//! method: [`Levels`].
//!
//! Invariants: a leader holds its own domain only: one leaf's tasks, or one sum a
//! child; the largest such database is reported in bytes and does not grow with
//! the number of processes as long as a leaf does not. No task is lost: each is
//! given to exactly one leaf.

use crate::central::{Key, place};
use crate::cost::{Cost, Ledger};
use crate::error::BalanceError;
use crate::graph::Graph;
use crate::metrics;
use crate::processes::Processes;

/// Bytes of a task in a leader's database: number, weight, process, and the two
/// connections that its choice hangs on.
const TASK_BYTES: u64 = 8 + 8 + 4 + 8 + 8;
/// Bytes of a child's or a process's sum: load, speed, quota.
const SUM_BYTES: u64 = 24;
/// Bytes of a link between two leaves: both, and the contact.
const PAIR_BYTES: u64 = 16;

/// What a leaf does with its own tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaf {
    /// Everything anew, heaviest first.
    Greedy,
    /// Only what an overloaded process has too much.
    Refine,
    /// Diffusion between the processes of the leaf, along the edges of its tasks.
    Diffusion,
}

/// How load passes between the children of a domain, whose leader knows sums only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Upper {
    /// The largest surplus meets the largest room, wherever they are: greedy on the
    /// sums, and only what is too much moves.
    Refine,
    /// Diffusion along the edges between the leaves, which the leader must know; a
    /// domain with a leaf without a present process falls back to [`Upper::Refine`].
    Diffusion,
}

/// The method of each level of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Levels {
    /// Within the leaves.
    pub leaf: Leaf,
    /// Bit k: the k-th level above the leaves, from 0, diffuses; the last bit stands
    /// for all levels above as well.
    diffusing: u32,
}

impl Levels {
    /// The leaf's method, then those above it from below; the last holds for all
    /// levels above it, and refinement if there is none.
    pub fn new(leaf: Leaf, uppers: &[Upper]) -> Levels {
        let last = uppers.last().copied().unwrap_or(Upper::Refine);
        let at = |level: u32| uppers.get(level as usize).copied().unwrap_or(last);
        let bits = (0..u32::BITS).filter(|&level| at(level) == Upper::Diffusion);
        Levels {
            leaf,
            diffusing: bits.fold(0, |all, level| all | 1 << level),
        }
    }

    /// From names: that of the leaf (greedy, refine or diffusion), then those of the
    /// levels above (refine or diffusion).
    ///
    /// # Errors
    /// The name that is none of these.
    pub fn named<'a>(names: &[&'a str]) -> Result<Levels, &'a str> {
        let leaf = match names.first() {
            Some(&"greedy") => Leaf::Greedy,
            None | Some(&"refine") => Leaf::Refine,
            Some(&"diffusion") => Leaf::Diffusion,
            Some(name) => return Err(name),
        };
        let upper = |name: &&'a str| match *name {
            "refine" => Ok(Upper::Refine),
            "diffusion" => Ok(Upper::Diffusion),
            _ => Err(*name),
        };
        let uppers: Result<Vec<Upper>, &str> = names.iter().skip(1).map(upper).collect();
        Ok(Levels::new(leaf, &uppers?))
    }

    /// The method of a level above the leaves, from 0.
    pub fn upper(&self, level: u32) -> Upper {
        match self.diffusing >> level.min(u32::BITS - 1) & 1 {
            0 => Upper::Refine,
            _ => Upper::Diffusion,
        }
    }

    fn any_diffuses(&self) -> bool {
        self.diffusing != 0
    }
}

impl Default for Levels {
    fn default() -> Levels {
        Levels::new(Leaf::Refine, &[])
    }
}

/// The shape of the tree and its methods.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// Processes in a leaf domain.
    pub group: usize,
    /// Children of an upper domain.
    pub fan_out: usize,
    /// Imbalance that moves nothing.
    pub tolerance: f64,
    /// The method of each level.
    pub levels: Levels,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            group: 1024,
            fan_out: 1024,
            tolerance: 0.02,
            levels: Levels::default(),
        }
    }
}

/// What a hierarchical balancing did.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The process of each task.
    pub parts: Vec<u32>,
    /// What it would cost.
    pub cost: Cost,
    /// The largest database of a leader, in bytes.
    pub memory_bytes_max: u64,
    /// What one central leader would hold, in bytes.
    pub memory_bytes_central: u64,
    /// Levels of the tree, leaves included.
    pub levels: u32,
    /// Imbalance that is left.
    pub imbalance: f64,
}

/// Balances from `parts`.
///
/// # Errors
/// Parts that do not fit; a group or fan-out of zero; a tolerance below zero.
pub fn balance(
    graph: &Graph,
    processes: &Processes,
    parts: &[u32],
    options: &Options,
) -> Result<Outcome, BalanceError> {
    processes.check(graph, parts)?;
    if options.group == 0 || options.fan_out < 2 {
        let value = options.group.min(options.fan_out) as f64;
        let what = "the size of a domain";
        return Err(BalanceError::Value { what, value });
    }
    if !(options.tolerance.is_finite() && options.tolerance >= 0.0) {
        let (what, value) = ("the tolerance", options.tolerance);
        return Err(BalanceError::Value { what, value });
    }
    let mut tree = Tree::new(graph, processes, parts, options);
    let (transfers, levels) = tree.transfers();
    tree.exchange(&transfers);
    tree.settle_leaves();
    let loads = processes.loads(graph, &tree.parts);
    Ok(Outcome {
        imbalance: metrics::imbalance(processes, &loads),
        memory_bytes_max: tree.memory,
        memory_bytes_central: graph.tasks() as u64 * TASK_BYTES
            + processes.count() as u64 * SUM_BYTES,
        cost: tree.ledger.cost(),
        parts: tree.parts,
        levels,
    })
}

/// Load to move from a leaf to a leaf.
struct Transfer {
    from: usize,
    to: usize,
    load: f64,
}

struct Tree<'a> {
    graph: &'a Graph,
    processes: &'a Processes,
    options: &'a Options,
    parts: Vec<u32>,
    /// The tasks of each leaf.
    tasks: Vec<Vec<u32>>,
    loads: Vec<f64>,
    memory: u64,
    ledger: Ledger,
}

impl<'a> Tree<'a> {
    fn new(
        graph: &'a Graph,
        processes: &'a Processes,
        parts: &[u32],
        options: &'a Options,
    ) -> Tree<'a> {
        let leaves = processes.count().div_ceil(options.group);
        let mut tasks = vec![Vec::new(); leaves];
        for (task, &part) in parts.iter().enumerate() {
            tasks[part as usize / options.group].push(task as u32);
        }
        let mut ledger = Ledger::new(processes.count());
        for process in 0..processes.count() as u32 {
            ledger.send(process, 1, SUM_BYTES);
        }
        for (leaf, own) in tasks.iter().enumerate() {
            ledger.work((leaf * options.group) as u32, own.len() as u64);
        }
        Tree {
            loads: processes.loads(graph, parts),
            parts: parts.to_vec(),
            graph,
            processes,
            options,
            tasks,
            memory: 0,
            ledger,
        }
    }

    fn members(&self, leaf: usize) -> core::ops::Range<usize> {
        let first = leaf * self.options.group;
        first..(first + self.options.group).min(self.processes.count())
    }

    /// Matches surplus with deficit, domain by domain from the lowest level up, so
    /// that load travels no higher than it must.
    fn transfers(&mut self) -> (Vec<Transfer>, u32) {
        let leaves = self.tasks.len();
        let ideal = self.processes.ideal(&self.loads);
        let speeds = self.processes.speeds();
        let mut surplus: Vec<f64> = Vec::with_capacity(leaves);
        for leaf in 0..leaves {
            let load: f64 = self.members(leaf).map(|p| self.loads[p]).sum();
            let speed: f64 = self.members(leaf).map(|p| speeds[p]).sum();
            let excess = load - ideal * speed;
            // Within the tolerance nothing is offered; room is always announced.
            let slack = ideal * speed * self.options.tolerance * 0.5;
            surplus.push(if excess > slack {
                excess
            } else {
                excess.min(0.0)
            });
        }
        let diffuses = leaves > 1 && self.options.levels.any_diffuses();
        let contacts = diffuses.then(|| self.leaf_contacts());
        let mut all = Vec::new();
        let (mut span, mut levels) = (1usize, 1u32);
        while span < leaves {
            span = span.saturating_mul(self.options.fan_out);
            let upper = self.options.levels.upper(levels - 1);
            levels += 1;
            self.ledger.wait_all(2);
            for first in (0..leaves).step_by(span) {
                let domain = first..(first + span).min(leaves);
                let leader = (first * self.options.group) as u32;
                self.ledger.work(leader, domain.len() as u64);
                let children = domain.len().div_ceil(span / self.options.fan_out);
                self.memory = self.memory.max(children as u64 * SUM_BYTES);
                self.ledger
                    .send(leader, children as u64, children as u64 * SUM_BYTES);
                match &contacts {
                    Some(contacts)
                        if upper == Upper::Diffusion && self.can_diffuse(domain.clone()) =>
                    {
                        let pairs = self.diffuse_domain(domain, contacts, &mut surplus, &mut all);
                        self.memory = self.memory.max(pairs * PAIR_BYTES);
                    }
                    _ => match_domain(domain, &mut surplus, &mut all),
                }
            }
        }
        self.ledger.wait_all(3);
        self.empty_absent(&mut all);
        (all, levels)
    }

    /// A leaf without a present process gives everything, whatever rounding
    /// would leave: its last transfer takes the rest.
    fn empty_absent(&self, all: &mut Vec<Transfer>) {
        let able = |leaf: usize| self.members(leaf).any(|p| self.processes.present(p as u32));
        let leaves = self.tasks.len();
        for from in (0..leaves).filter(|&leaf| !able(leaf) && !self.tasks[leaf].is_empty()) {
            if let Some(last) = all.iter_mut().rev().find(|transfer| transfer.from == from) {
                last.load = f64::INFINITY;
                continue;
            }
            let after = (1..leaves).map(|step| (from + step) % leaves);
            if let Some(to) = after.into_iter().find(|&leaf| able(leaf)) {
                let load = f64::INFINITY;
                all.push(Transfer { from, to, load });
            }
        }
    }

    /// Each leaf chooses the tasks it gives away.
    fn exchange(&mut self, transfers: &[Transfer]) {
        let mut arrivals: Vec<Vec<u32>> = vec![Vec::new(); self.tasks.len()];
        for by_leaf in transfers.chunk_by(|a, b| a.from == b.from) {
            let from = by_leaf[0].from;
            for transfer in by_leaf {
                let given = self.choose(transfer);
                let leader = (from * self.options.group) as u32;
                self.ledger.send(leader, 1, given.len() as u64 * TASK_BYTES);
                arrivals[transfer.to].extend(given);
            }
            let graph = self.graph;
            let members = self.members(from);
            let parts = &self.parts;
            self.tasks[from].retain(|&task| members.contains(&(parts[task as usize] as usize)));
            for process in self.members(from) {
                self.loads[process] = self.processes.background()[process];
            }
            for &task in &self.tasks[from] {
                self.loads[self.parts[task as usize] as usize] += graph.weight(task);
            }
        }
        for (leaf, new) in arrivals.into_iter().enumerate() {
            if new.is_empty() {
                continue;
            }
            self.tasks[leaf].extend(&new);
            let new = match self.options.levels.leaf {
                Leaf::Diffusion => self.settle_beside(leaf, new),
                _ => new,
            };
            let members = self.members(leaf);
            let mut loads: Vec<f64> = members.clone().map(|p| self.loads[p]).collect();
            let speeds = &self.processes.speeds()[members.clone()];
            let (parts, first) = (&mut self.parts, members.start as u32);
            place(self.graph, speeds, &mut loads, new, |task, to| {
                parts[task as usize] = first + to;
            });
            self.loads[members].copy_from_slice(&loads);
        }
    }

    /// Tasks for one transfer: by connection to the receiver minus connection to
    /// their own leaf, from processes above the ideal first. Marks them with a
    /// process of the receiver; the receiver places them.
    fn choose(&mut self, transfer: &Transfer) -> Vec<u32> {
        let group = self.options.group;
        let mut ranked: Vec<(Key, Key, u32)> = Vec::new();
        for &task in &self.tasks[transfer.from] {
            let process = self.parts[task as usize] as usize;
            if process / group != transfer.from {
                continue;
            }
            let mut gain = 0.0;
            for (near, edge) in self.graph.adjacent(task) {
                let domain = self.parts[near as usize] as usize / group;
                gain += if domain == transfer.to { edge } else { 0.0 };
                gain -= if domain == transfer.from { edge } else { 0.0 };
            }
            let level = self.loads[process] / self.processes.speeds()[process];
            ranked.push((Key(gain), Key(level), task));
        }
        let leader = (transfer.from * group) as u32;
        self.ledger.work(leader, ranked.len() as u64);
        ranked.sort_by(|a, b| (b.0, b.1).cmp(&(a.0, a.1)).then(a.2.cmp(&b.2)));
        let mut left = transfer.load;
        let mut given = Vec::new();
        for (_, _, task) in ranked {
            let weight = self.graph.weight(task);
            if left < weight / 2.0 {
                continue;
            }
            left -= weight;
            self.parts[task as usize] = (transfer.to * group) as u32;
            given.push(task);
        }
        given
    }

    fn settle_leaves(&mut self) {
        let ideal = self
            .processes
            .ideal(&self.processes.loads(self.graph, &self.parts));
        for leaf in 0..self.tasks.len() {
            let members = self.members(leaf);
            let own = core::mem::take(&mut self.tasks[leaf]);
            let database = own.len() as u64 * TASK_BYTES + members.len() as u64 * SUM_BYTES;
            self.memory = self.memory.max(database);
            let leader = members.start as u32;
            let diffuses = self.options.levels.leaf == Leaf::Diffusion;
            if diffuses && self.diffuse_leaf(leaf, &own, ideal) {
                continue;
            }
            let depth = u64::from(usize::BITS - own.len().leading_zeros());
            self.ledger.work(leader, own.len() as u64 * depth);
            self.ledger
                .send(leader, members.len() as u64, own.len() as u64 * 12);
            let speeds = &self.processes.speeds()[members.clone()];
            let mut loads = self.processes.background()[members.clone()].to_vec();
            let limit = ideal * (1.0 + self.options.tolerance);
            let (parts, first) = (&mut self.parts, leader);
            let mut spilled = own;
            if self.options.levels.leaf != Leaf::Greedy {
                // Heaviest first stay, one above the limit too: light tasks can
                // fill the gaps elsewhere, heavy ones cannot.
                let graph = self.graph;
                spilled.sort_by(|&a, &b| {
                    let heavier = graph.weight(b).total_cmp(&graph.weight(a));
                    heavier.then(a.cmp(&b))
                });
                spilled.retain(|&task| {
                    let slot = (parts[task as usize] - first) as usize;
                    let weight = graph.weight(task);
                    let fits = loads[slot] <= 0.0 || (loads[slot] + weight) / speeds[slot] <= limit;
                    let stays = speeds[slot] > 0.0 && fits;
                    loads[slot] += if stays { weight } else { 0.0 };
                    !stays
                });
            }
            place(self.graph, speeds, &mut loads, spilled, |task, to| {
                parts[task as usize] = first + to;
            });
        }
    }
}

/// Within one domain: the largest surplus to the largest room, until one side is
/// used up.
fn match_domain(domain: core::ops::Range<usize>, surplus: &mut [f64], all: &mut Vec<Transfer>) {
    let mut give: Vec<usize> = domain.clone().filter(|&leaf| surplus[leaf] > 0.0).collect();
    let mut take: Vec<usize> = domain.filter(|&leaf| surplus[leaf] < 0.0).collect();
    give.sort_by(|&a, &b| surplus[b].total_cmp(&surplus[a]).then(a.cmp(&b)));
    take.sort_by(|&a, &b| surplus[a].total_cmp(&surplus[b]).then(a.cmp(&b)));
    let (mut g, mut t) = (0, 0);
    while g < give.len() && t < take.len() {
        let load = surplus[give[g]].min(-surplus[take[t]]);
        all.push(Transfer {
            from: give[g],
            to: take[t],
            load,
        });
        surplus[give[g]] -= load;
        surplus[take[t]] += load;
        if surplus[give[g]] <= 0.0 {
            g += 1;
        } else {
            t += 1;
        }
    }
}

mod diffusive;
#[cfg(test)]
mod tests;

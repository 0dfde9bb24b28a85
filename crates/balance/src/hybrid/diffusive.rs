//! Diffusion in a tree of domains: between leaves along the edges of their tasks,
//! and between the processes of a leaf.

use std::collections::{BTreeMap, BTreeSet};

use super::{Transfer, Tree};
use crate::diffusion;
use crate::flow::{self, FlowOptions, Scheme};
use crate::links::{Links, merge};
use crate::processes::Processes;

impl Tree<'_> {
    /// The edge weight between any two leaves that tasks tie, ascending.
    pub(super) fn leaf_contacts(&self) -> Vec<(u32, u32, f64)> {
        let leaf = |task: u32| self.parts[task as usize] / self.options.group as u32;
        let mut pairs = Vec::new();
        for task in 0..self.graph.tasks() as u32 {
            let ends = self
                .graph
                .adjacent(task)
                .map(|(near, edge)| (leaf(near), edge));
            let higher = ends.filter(|end| end.0 > leaf(task));
            pairs.extend(higher.map(|(other, edge)| (leaf(task), other, edge)));
        }
        merge(&mut pairs);
        pairs
    }

    pub(super) fn can_diffuse(&self, domain: core::ops::Range<usize>) -> bool {
        let present = |leaf| self.members(leaf).any(|p| self.processes.speeds()[p] > 0.0);
        domain.into_iter().all(present)
    }

    /// Levels the leaves of a domain by diffusion; returns the links that its leader
    /// holds.
    pub(super) fn diffuse_domain(
        &mut self,
        domain: core::ops::Range<usize>,
        contacts: &[(u32, u32, f64)],
        surplus: &mut [f64],
        all: &mut Vec<Transfer>,
    ) -> u64 {
        let base = domain.start as u32;
        let within = contacts
            .iter()
            .filter(|(a, b, _)| domain.contains(&(*a as usize)) && domain.contains(&(*b as usize)));
        let pairs: Vec<_> = within.map(|&(a, b, w)| (a - base, b - base, w)).collect();
        let speeds = domain.clone().map(|leaf| {
            let all = self.members(leaf).map(|p| self.processes.speeds()[p]);
            all.sum::<f64>()
        });
        let speeds: Vec<f64> = speeds.collect();
        let Ok(leaves) = Processes::new(speeds.clone(), vec![0.0; speeds.len()]) else {
            return 0;
        };
        let count = pairs.len() as u64;
        let links = Links::bridged(&leaves, pairs);
        // Surplus over a load that is level already: diffusion wants loads.
        let ideal = self.processes.ideal(&self.loads);
        let loads: Vec<f64> = domain
            .clone()
            .zip(&speeds)
            .map(|(leaf, speed)| ideal * speed + surplus[leaf])
            .collect();
        let options = FlowOptions {
            tolerance: self.options.tolerance / 4.0,
            scheme: Scheme::Adaptive {
                gamma: flow::gamma_estimate(speeds.len()),
            },
            ..FlowOptions::default()
        };
        let flow = flow::diffuse(&links, &loads, &speeds, &options);
        let leader = (domain.start * self.options.group) as u32;
        self.ledger
            .work(leader, u64::from(flow.iterations) * links.len() as u64);
        for from in 0..links.count() as u32 {
            for link in links.of(from) {
                let load = flow.amounts[link];
                if load > 0.0 {
                    let (from, to) = ((base + from) as usize, (base + links.to(link)) as usize);
                    surplus[from] -= load;
                    surplus[to] += load;
                    all.push(Transfer { from, to, load });
                }
            }
        }
        count
    }

    /// Gives tasks that came to the process of the leaf that they talk to most, from
    /// those that touch it inwards; returns those that talk to none.
    pub(super) fn settle_beside(&mut self, leaf: usize, mut new: Vec<u32>) -> Vec<u32> {
        let members = self.members(leaf);
        let mut waiting: BTreeSet<u32> = new.iter().copied().collect();
        loop {
            let before = waiting.len();
            for &task in &new {
                let mut ties: BTreeMap<u32, f64> = BTreeMap::new();
                for (near, edge) in self.graph.adjacent(task) {
                    let process = self.parts[near as usize];
                    let speed = self.processes.speeds()[process as usize];
                    let inside = members.contains(&(process as usize)) && speed > 0.0;
                    if inside && !waiting.contains(&near) {
                        *ties.entry(process).or_insert(0.0) += edge;
                    }
                }
                let best = ties.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
                if let Some((process, _)) = best {
                    self.parts[task as usize] = process;
                    self.loads[process as usize] += self.graph.weight(task);
                    waiting.remove(&task);
                }
            }
            new.retain(|task| waiting.contains(task));
            if waiting.is_empty() || waiting.len() == before {
                return new;
            }
        }
    }

    /// Balances a leaf by diffusion between its processes, computed by its leader.
    /// False if the leaf has no present process.
    pub(super) fn diffuse_leaf(&mut self, leaf: usize, own: &[u32], ideal: f64) -> bool {
        let (members, first) = (self.members(leaf), (leaf * self.options.group) as u32);
        let speeds = self.processes.speeds()[members.clone()].to_vec();
        let background = self.processes.background()[members].to_vec();
        let Ok(processes) = Processes::new(speeds, background) else {
            return false;
        };
        let mut own = own.to_vec();
        own.sort_unstable();
        let Ok(graph) = self.graph.part(&own) else {
            return false;
        };
        let inner = own.iter().map(|&task| self.parts[task as usize] - first);
        let inner: Vec<u32> = inner.collect();
        // The leaf as a whole may be above the ideal by what coarse tasks left.
        let level = processes.ideal(&processes.loads(&graph, &inner));
        let limit = ideal * (1.0 + self.options.tolerance);
        let options = diffusion::Options {
            tolerance: (limit / level.max(f64::MIN_POSITIVE) - 1.0)
                .max(self.options.tolerance / 4.0),
            ..diffusion::Options::default()
        };
        let Ok(done) = diffusion::balance(&graph, &processes, &inner, &options) else {
            return false;
        };
        self.ledger.work(first, done.cost.operations_total);
        for (task, part) in own.into_iter().zip(done.parts) {
            self.parts[task as usize] = first + part;
        }
        true
    }
}

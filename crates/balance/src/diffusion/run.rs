//! The state of one balancing: owners, lists, borders, and what moves them.

use crate::band::Marks;
use crate::borders::Borders;
use crate::cost::{Cost, Ledger, Phase};
use crate::diffusion::Options;
use crate::error::BalanceError;
use crate::flow::{self, Flow, FlowOptions, Scheme, TREE_FAN_OUT, tree_depth};
use crate::graph::Graph;
use crate::links::Links;
use crate::metrics;
use crate::outline::{Cuts, Ground};
use crate::processes::Processes;
use crate::select::{Move, Outflow, Scratch, View, centre, select};

/// Bytes of one message of the flow protocol, which takes cuts and numbers of tasks along.
const FLOW_BYTES: u64 = 48;

/// What it costs to find that nothing is to be done: each looks at its tasks, and all
/// learn the sums.
pub(super) fn cost_of_looking(processes: usize, parts: &[u32]) -> Cost {
    let mut ledger = Ledger::new(processes);
    for &part in parts {
        ledger.work(part, 1);
    }
    count_sums(&mut ledger, processes);
    ledger.cost()
}

/// All learn the sum of the loads and the largest.
fn count_sums(ledger: &mut Ledger, processes: usize) {
    ledger.begin(Phase::Flow);
    ledger.wait_all(2 * u64::from(tree_depth(processes)));
    let messages = TREE_FAN_OUT as u64 + 1;
    for process in 0..processes as u32 {
        ledger.send(process, messages, FLOW_BYTES * messages);
    }
}

/// A balancing under way.
pub(super) struct Run<'a> {
    pub(super) graph: &'a Graph,
    pub(super) processes: &'a Processes,
    pub(super) options: &'a Options,
    pub(super) home: Vec<u32>,
    pub(super) owner: Vec<u32>,
    pub(super) loads: Vec<f64>,
    /// How many tasks each process has.
    pub(super) counts: Vec<usize>,
    pub(super) borders: Borders,
    /// Pairs whose border changed since it was refined, the lower first; may repeat.
    pub(super) changed: Vec<(u32, u32)>,
    /// The sweep before or in which a task last moved, or a neighbour of it did: there a
    /// border is refined. The sweeps count from 1.
    pub(super) touched: Vec<u32>,
    /// The sweep that moves are for now.
    pub(super) stamp: u32,
    /// The average edge weight.
    pub(super) edge: f64,
    pub(super) price: f64,
    /// The space that the tasks lie in.
    ground: Ground,
    /// What each cut when the round began.
    pub(super) cuts: Cuts,
    /// The centre of the tasks of each when the round began, if known.
    pub(super) centres: Vec<Option<[f64; 3]>>,
    pub(super) marks: Marks,
    pub(super) ledger: Ledger,
    /// The tasks of each process: once [`Run::list`] was called ascending and true,
    /// until then with tasks that left, and those that came at the end.
    tasks: Vec<Vec<u32>>,
    stale: Vec<bool>,
    scratch: Scratch,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        processes: &'a Processes,
        parts: &[u32],
        options: &'a Options,
    ) -> Run<'a> {
        let mut tasks = vec![Vec::new(); processes.count()];
        for (task, &part) in parts.iter().enumerate() {
            tasks[part as usize].push(task as u32);
        }
        let mut ledger = Ledger::new(processes.count());
        for (task, &part) in parts.iter().enumerate() {
            ledger.work(part, graph.degree(task as u32) as u64);
        }
        let average = graph.edge_weight_total() / graph.edges().max(1) as f64;
        Run {
            graph,
            processes,
            options,
            home: parts.to_vec(),
            owner: parts.to_vec(),
            loads: processes.loads(graph, parts),
            counts: tasks.iter().map(Vec::len).collect(),
            borders: Borders::new(graph, processes.count(), parts),
            changed: Vec::new(),
            touched: vec![0; graph.tasks()],
            stamp: 1,
            edge: average,
            price: options.migration_price * average,
            ground: Ground::of(graph, processes.count()),
            cuts: Cuts::none(processes.count()),
            centres: vec![None; processes.count()],
            marks: Marks::new(graph.tasks()),
            ledger,
            stale: vec![false; tasks.len()],
            tasks,
            scratch: Scratch::new(graph.tasks()),
        }
    }

    pub(super) fn imbalance(&self) -> f64 {
        metrics::imbalance(self.processes, &self.loads)
    }

    /// True if nobody above the limit may give anything: a process keeps its last task.
    /// With more processes than tasks this spares a flow along the chain of the empty.
    pub(super) fn is_stuck(&self) -> bool {
        let ideal = self.processes.ideal(&self.loads);
        let limit = ideal * (1.0 + self.options.tolerance);
        let mut all = self.processes.speeds().iter().enumerate();
        all.all(|(process, speed)| match *speed > 0.0 {
            true => self.counts[process] < 2 || self.loads[process] <= limit * speed,
            false => self.counts[process] == 0,
        })
    }

    /// Gives the tasks of absent processes to present ones: to the neighbour
    /// that a task is tied to most; what has no such neighbour goes to the next
    /// present process in number. Layer by layer, from the border inwards.
    pub(super) fn evacuate(&mut self) {
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
                self.list(process);
            }
        }
    }

    /// Makes the list of a process's tasks true again.
    fn list(&mut self, process: u32) {
        if core::mem::take(&mut self.stale[process as usize]) {
            let (own, owner) = (&mut self.tasks[process as usize], &self.owner);
            own.retain(|&task| owner[task as usize] == process);
            own.sort_unstable();
            own.dedup();
        }
    }

    /// The neighbours, from the borders; and who cuts how much.
    fn links(&mut self) -> Links {
        let mut pairs = Vec::new();
        let mut cuts = vec![0.0; self.processes.count()];
        for me in 0..self.processes.count() as u32 {
            let (contacts, operations) = self.borders.settle(self.graph, &self.owner, me);
            self.ledger.work(me, operations);
            cuts[me as usize] = contacts.iter().map(|entry| entry.1).sum();
            let present = |p: u32| self.processes.present(p);
            let higher = contacts.into_iter().filter(|entry| entry.0 > me);
            let both = higher.filter(|entry| present(me) && present(entry.0));
            pairs.extend(both.map(|(other, contact)| (me, other, contact)));
        }
        let cubes = self.counts.iter().map(|&count| self.ground.cube(count));
        let cubes: Vec<f64> = cubes.collect();
        let limits = (self.options.ragged, self.options.compact);
        self.cuts = Cuts::new(cuts, &cubes, limits);
        Links::bridged(self.processes, pairs)
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
    pub(super) fn round(&mut self) -> bool {
        self.ledger.begin(Phase::Borders);
        let links = self.links();
        self.ledger.begin(Phase::Flow);
        let mut flow = self.flow(&links);
        self.count_flow(&links, &flow);
        if self.options.narrow {
            let ideal = self.processes.ideal(&self.loads);
            let narrow = |link| flow::narrowed(links.contact(link), flow.amounts[link], ideal);
            flow = self.flow(&links.with_contacts(narrow));
            self.count_flow(&links, &flow);
        }
        self.ledger.begin(Phase::Select);
        for process in 0..links.count() as u32 {
            self.list(process);
        }
        let graph = self.graph;
        let centres = self.tasks.iter().map(|own| centre(graph, own));
        self.centres = centres.collect();
        let mut all = Vec::new();
        for me in 0..links.count() as u32 {
            let out = links.of(me).filter(|&link| flow.amounts[link] > 0.0);
            let out: Vec<Outflow> = out
                .map(|link| Outflow {
                    to: links.to(link),
                    amount: flow.amounts[link],
                    centre: self.centres[links.to(link) as usize],
                    lean: self.cuts.lean(me, links.to(link)),
                    shape: match self.cuts.ragged_pair(me, links.to(link)) {
                        true => self.options.shape * self.edge,
                        false => 0.0,
                    },
                })
                .collect();
            self.ledger.work(me, self.tasks[me as usize].len() as u64);
            if out.is_empty() {
                continue;
            }
            let view = View {
                graph,
                owner: &self.owner,
                home: &self.home,
                border: self.borders.of(me),
                centre: self.centres[me as usize],
                edge: self.edge,
                price: self.price,
                me,
                leaving: !self.processes.present(me),
            };
            let (moves, operations) =
                select(&view, &self.tasks[me as usize], out, &mut self.scratch);
            self.ledger.work(me, operations);
            all.push((me, moves));
        }
        self.ledger.wait_neighbours(&links);
        let moved = all.iter().any(|(_, moves)| !moves.is_empty());
        for (me, moves) in all {
            self.announce(me, links.degree(me) as u64, &moves);
            self.apply(me, &moves);
        }
        moved
    }

    fn flow(&self, links: &Links) -> Flow {
        let goal = FlowOptions {
            tolerance: self.options.tolerance * self.options.flow.tolerance,
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
        let both = self.loads.iter().zip(speeds);
        let loads: Vec<f64> = both
            .map(|(&load, speed)| flow::with_slack(load, ideal * speed, slack))
            .collect();
        flow::diffuse(links, &loads, speeds, &goal)
    }

    fn count_flow(&mut self, links: &Links, flow: &Flow) {
        let every = self.options.flow.check_every.max(1);
        let lag = self.options.flow.check_lag.min(every);
        // The iteration goes on while a verdict is on its way, and waits where it takes
        // effect.
        let verdicts = match flow.iterations.checked_sub(lag) {
            Some(after) => u64::from(after / every) + 1,
            None => 0,
        };
        let check = 2 * u64::from(tree_depth(self.processes.count()));
        let wait = check.saturating_sub(u64::from(lag));
        for process in 0..links.count() as u32 {
            let sent = u64::from(flow.messages[process as usize]);
            // A flow message in and out is a handful of operations.
            self.ledger.work(process, 2 * sent);
            let hello = links.degree(process) as u64;
            let all = sent + hello + (TREE_FAN_OUT as u64 + 1) * verdicts;
            self.ledger.send(process, all, FLOW_BYTES * all);
        }
        self.ledger.iterations += u64::from(flow.iterations);
        // The greeting, and an iteration a message.
        self.ledger
            .wait_all(1 + u64::from(flow.iterations) + verdicts * wait);
    }

    /// All learn whether another round follows.
    pub(super) fn count_sums(&mut self) {
        count_sums(&mut self.ledger, self.processes.count());
    }

    /// Counts the messages that tell neighbours of moved tasks.
    pub(super) fn announce(&mut self, me: u32, neighbours: u64, moves: &[Move]) {
        let edges: usize = moves.iter().map(|m| self.graph.degree(m.task)).sum();
        let bytes = 32 * moves.len() as u64 + 16 * edges as u64;
        self.ledger
            .send(me, neighbours, 16 * neighbours + 2 * bytes);
    }

    /// Moves tasks of `from`.
    pub(super) fn apply(&mut self, from: u32, moves: &[Move]) {
        for moved in moves {
            let (task, to) = (moved.task, moved.to);
            let weight = self.graph.weight(task);
            self.owner[task as usize] = to;
            self.borders.moved(self.graph, &self.owner, task);
            self.touched[task as usize] = self.stamp;
            for &near in self.graph.near(task) {
                self.touched[near as usize] = self.stamp;
                let other = self.owner[near as usize];
                for end in [from, to] {
                    if end != other {
                        self.changed.push((end.min(other), end.max(other)));
                    }
                }
            }
            self.changed.push((from.min(to), from.max(to)));
            self.loads[from as usize] -= weight;
            self.loads[to as usize] += weight;
            self.counts[from as usize] -= 1;
            self.counts[to as usize] += 1;
            self.tasks[to as usize].push(task);
            self.stale[from as usize] = true;
            self.stale[to as usize] = true;
        }
    }

    /// No load lost or doubled: the lists and the owners agree, and the kept
    /// loads are those of the tasks.
    pub(super) fn verify(&mut self) -> Result<(), BalanceError> {
        for process in 0..self.processes.count() as u32 {
            self.list(process);
        }
        let lists = self.tasks.iter().map(Vec::len);
        let listed: usize = lists.clone().sum();
        if listed != self.graph.tasks() || !lists.eq(self.counts.iter().copied()) {
            return Err(BalanceError::Invariant("a task was lost or doubled"));
        }
        let loads = self.processes.loads(self.graph, &self.owner);
        let total: f64 = loads.iter().sum();
        let off = |(a, b): (&f64, &f64)| (a - b).abs() > 1e-6 * total;
        if loads.iter().zip(&self.loads).any(off) {
            return Err(BalanceError::Invariant("the load of a process is wrong"));
        }
        Ok(())
    }
}

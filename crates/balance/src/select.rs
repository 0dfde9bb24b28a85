//! Which tasks realise a flow (FFMK 2020, section 2.5, phase 3; criteria of
//! Kernighan-Lin type as in Diekmann, Preis, Schlimbach, Walshaw 2000).
//!
//! A process decides alone, from its own tasks and the owners of their
//! neighbours: neighbours in order of falling flow; for each, tasks at the border
//! by what a unit of load costs that leaves with them, then the heavier, then by
//! shape (nearer to the receiver's centre than to one's own), then the one found
//! first. A task costs an average edge minus its gain (edge weight to the receiver
//! minus edge weight to own tasks, minus the price of a task that leaves its home
//! for the first time; more where a process is ragged, see [`crate::outline`]), over its weight: heavy tasks carry a flow in few moves; a task is taken while what remains of the flow is at
//! least half its weight. What is left over passes to the next neighbour, so that
//! rounding does not add up over a process.
//!
//! Invariants: a process selects own tasks only, each at most once, and never
//! its last one unless it is absent; the outcome depends on the arguments only.

use std::collections::BinaryHeap;

use crate::borders::towards;
use crate::graph::Graph;
use crate::outline::{Lengths, Plane, square_distance};

/// A flow out of a process.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outflow {
    /// The receiver.
    pub to: u32,
    /// Load that should go there; above zero.
    pub amount: f64,
    /// The centre of the receiver's tasks, if known.
    pub centre: Option<[f64; 3]>,
    /// What it is worth to give edges to third processes away with a task
    /// ([`crate::outline::Cuts::lean`]).
    pub lean: f64,
    /// Edge weight that a task is worth that sticks out by the length of an edge; above
    /// 0 only if one of the two processes is ragged.
    pub shape: f64,
}

/// A task that changes its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The task.
    pub task: u32,
    /// Its new process.
    pub to: u32,
}

const NOT_TAKEN: u32 = u32::MAX;

/// Working memory that is kept between processes: one entry a task of the graph.
#[derive(Debug)]
pub struct Scratch {
    /// Connection to the receiver and to own tasks, valid where `stamp` matches.
    gain: Vec<f64>,
    stamp: Vec<u32>,
    /// Where a task goes that was taken, else [`NOT_TAKEN`].
    taken: Vec<u32>,
    round: u32,
}

impl Scratch {
    /// For a graph of so many tasks.
    pub fn new(tasks: usize) -> Scratch {
        Scratch {
            gain: vec![0.0; tasks],
            stamp: vec![0; tasks],
            taken: vec![NOT_TAKEN; tasks],
            round: 0,
        }
    }
}

/// What a process knows when it selects.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The tasks, at least all own ones with their edges.
    pub graph: &'a Graph,
    /// The process of every task.
    pub owner: &'a [u32],
    /// The process of every task before this balancing began.
    pub home: &'a [u32],
    /// The border of this process.
    pub border: &'a [(u32, u32)],
    /// The centre of this process's tasks, if known.
    pub centre: Option<[f64; 3]>,
    /// The average edge weight: what any move costs beside its gain.
    pub edge: f64,
    /// Edge weight that a first move from home is worth.
    pub price: f64,
    /// This process.
    pub me: u32,
    /// True if this process is absent and may give its last task.
    pub leaving: bool,
}

#[derive(PartialEq)]
struct Candidate {
    /// Minus the cost of a unit of load that leaves with this task; above zero if
    /// the move earns.
    worth: f64,
    gain: f64,
    shape: f64,
    weight: f64,
    order: u32,
    task: u32,
}

impl Eq for Candidate {}
impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> core::cmp::Ordering {
        let by = |a: f64, b: f64| a.total_cmp(&b);
        by(self.worth, other.worth)
            .then(by(self.weight, other.weight))
            .then(by(self.shape, other.shape))
            .then(other.order.cmp(&self.order))
            .then(other.task.cmp(&self.task))
    }
}

/// Selects tasks of `view.me`, whose tasks are `own`, for `flows`. Returns the
/// operations (edges seen and candidates handled) next to the moves.
pub fn select(
    view: &View<'_>,
    own: &[u32],
    mut flows: Vec<Outflow>,
    scratch: &mut Scratch,
) -> (Vec<Move>, u64) {
    flows.retain(|flow| flow.amount > 0.0);
    flows.sort_by(|a, b| b.amount.total_cmp(&a.amount).then(a.to.cmp(&b.to)));
    let mut run = Run {
        view,
        scratch,
        moves: Vec::new(),
        left: own.len() - usize::from(!view.leaving && !own.is_empty()),
        plane: None,
        operations: flows.len() as u64,
    };
    let mut carry = 0.0;
    for flow in flows {
        carry = run.serve(own, flow, carry);
    }
    for moved in &run.moves {
        run.scratch.taken[moved.task as usize] = NOT_TAKEN;
    }
    (run.moves, run.operations)
}

/// The mean of the coordinates of `tasks`, if the graph has any.
pub fn centre(graph: &Graph, tasks: &[u32]) -> Option<[f64; 3]> {
    let coordinates = graph.coordinates()?;
    if tasks.is_empty() {
        return None;
    }
    let mut sum = [0.0; 3];
    for &task in tasks {
        for (total, value) in sum.iter_mut().zip(coordinates[task as usize]) {
            *total += value;
        }
    }
    Some(sum.map(|total| total / tasks.len() as f64))
}

struct Run<'a, 'b> {
    view: &'a View<'a>,
    scratch: &'b mut Scratch,
    moves: Vec<Move>,
    left: usize,
    /// Where the border should be that is being served.
    plane: Option<Plane>,
    operations: u64,
}

impl Run<'_, '_> {
    /// Serves one flow; returns what is left of it (below zero: given too much).
    fn serve(&mut self, own: &[u32], flow: Outflow, carry: f64) -> f64 {
        let mut remaining = flow.amount + carry;
        let mut heap = BinaryHeap::new();
        let mut order = 0;
        self.scratch.round += 1;
        self.plane = self.plane(&flow);
        for &(_, task) in towards(self.view.border, flow.to) {
            if self.scratch.taken[task as usize] == NOT_TAKEN {
                self.push(&mut heap, task, &flow, &mut order);
            }
        }
        if heap.is_empty() && remaining > 0.0 {
            // No border with the receiver (it is empty, or a bridge): start at the
            // task that one's own others hold least.
            let seed = own
                .iter()
                .copied()
                .filter(|&t| self.scratch.taken[t as usize] == NOT_TAKEN);
            let held = |task: u32| -> f64 {
                let mine = |n: &(u32, f64)| self.view.owner[n.0 as usize] == self.view.me;
                self.view
                    .graph
                    .adjacent(task)
                    .filter(mine)
                    .map(|n| n.1)
                    .sum()
            };
            let seed = seed.min_by(|&a, &b| held(a).total_cmp(&held(b)).then(a.cmp(&b)));
            if let Some(task) = seed {
                self.push(&mut heap, task, &flow, &mut order);
            }
        }
        while self.left > 0 && remaining > 0.0 {
            let Some(best) = heap.pop() else { break };
            self.operations += 1;
            let slot = best.task as usize;
            let stale = self.scratch.gain[slot] != best.gain;
            if self.scratch.taken[slot] != NOT_TAKEN || stale || remaining < best.weight / 2.0 {
                continue;
            }
            remaining -= best.weight;
            self.scratch.taken[slot] = flow.to;
            self.left -= 1;
            self.moves.push(Move {
                task: best.task,
                to: flow.to,
            });
            let view = self.view;
            for (near, edge) in view.graph.adjacent(best.task) {
                self.operations += 1;
                if view.owner[near as usize] != view.me
                    || self.scratch.taken[near as usize] != NOT_TAKEN
                {
                    continue;
                }
                if self.scratch.stamp[near as usize] == self.scratch.round {
                    // Own before, the receiver's now: both terms change.
                    self.scratch.gain[near as usize] += 2.0 * edge;
                    let gain = self.scratch.gain[near as usize];
                    let again = self.candidate(near, gain, &flow, &mut order);
                    heap.push(again);
                } else {
                    self.push(&mut heap, near, &flow, &mut order);
                }
            }
        }
        remaining
    }

    /// Where the border with a receiver should be, if shape counts there.
    fn plane(&mut self, flow: &Outflow) -> Option<Plane> {
        if flow.shape <= 0.0 {
            return None;
        }
        let view = self.view;
        let all = view.graph.coordinates()?;
        let border = towards(view.border, flow.to);
        let mut lengths = Lengths::default();
        for &(_, task) in border {
            self.operations += view.graph.degree(task) as u64;
            for &near in view.graph.near(task) {
                if view.owner[near as usize] == view.me {
                    lengths.add(all[task as usize], all[near as usize]);
                }
            }
        }
        let at: Vec<[f64; 3]> = border.iter().map(|entry| all[entry.1 as usize]).collect();
        Plane::new((view.centre?, flow.centre?), &at, lengths, flow.shape)
    }

    fn push(
        &mut self,
        heap: &mut BinaryHeap<Candidate>,
        task: u32,
        flow: &Outflow,
        order: &mut u32,
    ) {
        let view = self.view;
        let mut gain = match view.home[task as usize] {
            home if home == flow.to => view.price,
            home if home == view.me => -view.price,
            _ => 0.0,
        };
        for (near, edge) in view.graph.adjacent(task) {
            self.operations += 1;
            let owner = view.owner[near as usize];
            let taken = self.scratch.taken[near as usize];
            if taken != NOT_TAKEN {
                gain += if taken == flow.to { edge } else { 0.0 };
            } else if owner == flow.to {
                gain += edge;
            } else if owner == view.me {
                gain -= edge;
            } else {
                gain += flow.lean * edge;
            }
        }
        self.scratch.gain[task as usize] = gain;
        self.scratch.stamp[task as usize] = self.scratch.round;
        let candidate = self.candidate(task, gain, flow, order);
        heap.push(candidate);
    }

    fn candidate(&self, task: u32, gain: f64, flow: &Outflow, order: &mut u32) -> Candidate {
        let view = self.view;
        let shape = match (view.graph.coordinates(), view.centre, flow.centre) {
            (Some(all), Some(own), Some(other)) => {
                let at = all[task as usize];
                square_distance(at, own) - square_distance(at, other)
            }
            _ => 0.0,
        };
        *order += 1;
        let weight = view.graph.weight(task);
        let bulge = match (&self.plane, view.graph.coordinates()) {
            (Some(plane), Some(all)) => plane.pull(all[task as usize]),
            _ => 0.0,
        };
        let cost = view.edge - gain - bulge;
        Candidate {
            worth: if cost > 0.0 { -cost / weight } else { -cost },
            gain,
            shape,
            weight,
            order: *order,
            task,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::borders::border;

    fn view<'a>(graph: &'a Graph, owner: &'a [u32], border: &'a [(u32, u32)]) -> View<'a> {
        View {
            graph,
            owner,
            home: owner,
            border,
            centre: None,
            edge: 1.0,
            price: 0.5,
            me: 0,
            leaving: false,
        }
    }

    #[test]
    fn whole_columns_leave_over_a_straight_border() {
        // 8 x 4: process 0 has columns 0..6, process 1 the rest.
        let graph = Graph::mesh(8, 4, 1);
        let owner: Vec<u32> = (0..32).map(|t| u32::from(t % 8 >= 6)).collect();
        let own: Vec<u32> = (0..32).filter(|&t| owner[t as usize] == 0).collect();
        let flow = Outflow {
            to: 1,
            amount: 8.0,
            centre: None,
            lean: 0.0,
            shape: 0.0,
        };
        let mut scratch = Scratch::new(32);
        let border = border(&graph, &owner, &own);
        let view = view(&graph, &owner, &border);
        let (moves, _) = select(&view, &own, vec![flow], &mut scratch);
        let mut columns: Vec<u32> = moves.iter().map(|m| m.task % 8).collect();
        columns.sort_unstable();
        assert_eq!(columns, [4, 4, 4, 4, 5, 5, 5, 5]);
        assert!(scratch.taken.iter().all(|taken| *taken == NOT_TAKEN));
    }

    #[test]
    fn half_weights_round_and_the_last_task_stays() {
        let graph = Graph::from_edges(3, &[(0, 1, 1.0), (1, 2, 1.0)], vec![4.0, 4.0, 1.0]).unwrap();
        let flow = |amount| Outflow {
            to: 1,
            amount,
            centre: None,
            lean: 0.0,
            shape: 0.0,
        };
        let owner = [0, 0, 1];
        let mut scratch = Scratch::new(3);
        let mut moved = |amount, leaving| {
            let view = View {
                leaving,
                ..view(&graph, &owner, &[(1, 1)])
            };
            select(&view, &[0, 1], vec![flow(amount)], &mut scratch)
                .0
                .len()
        };
        assert_eq!(moved(1.9, false), 0);
        assert_eq!(moved(2.0, false), 1);
        assert_eq!(moved(100.0, false), 1);
        assert_eq!(moved(100.0, true), 2);
    }
}

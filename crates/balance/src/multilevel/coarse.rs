//! Coarser and coarser graphs: heavy-edge matching (Karypis and Kumar 1998) and contraction.
//!
//! Invariants: the sums of weights and of sizes are those of the finest graph; rows have no
//! vertex itself and no neighbour twice; only vertices of one label are merged: with homes as
//! labels ("local matching", Schloegel, Karypis and Kumar 1997) every coarse vertex has one.

use outlive_base::rng;

use crate::graph::Graph;

/// A graph of merged tasks.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Level {
    pub offsets: Vec<usize>,
    pub to: Vec<u32>,
    pub edges: Vec<f64>,
    pub weights: Vec<f64>,
    /// Tasks in each vertex: what it costs to move it.
    pub sizes: Vec<f64>,
    /// The process of each vertex before; empty where that does not count.
    pub homes: Vec<u32>,
    /// Vertices of different labels are not merged; empty: all are alike.
    pub labels: Vec<u64>,
}

impl Level {
    /// The task graph itself.
    pub fn finest(graph: &Graph, homes: &[u32], labels: Vec<u64>) -> Level {
        Level {
            offsets: graph.offsets().to_vec(),
            to: graph.neighbours().to_vec(),
            edges: graph.edge_weights().to_vec(),
            weights: graph.weights().to_vec(),
            sizes: vec![1.0; graph.tasks()],
            homes: homes.to_vec(),
            labels,
        }
    }

    pub fn count(&self) -> usize {
        self.weights.len()
    }

    pub fn adjacent(&self, vertex: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        let row = self.offsets[vertex]..self.offsets[vertex + 1];
        let ends = self.to[row.clone()].iter().map(|&to| to as usize);
        ends.zip(self.edges[row].iter().copied())
    }

    pub fn weight(&self) -> f64 {
        self.weights.iter().sum()
    }

    pub fn heaviest(&self) -> f64 {
        self.weights.iter().copied().fold(0.0, f64::max)
    }

    fn label(&self, vertex: usize) -> u64 {
        self.labels.get(vertex).copied().unwrap_or(0)
    }

    /// The weight of the cut edges, and the price of all tasks that are not at home.
    pub fn cost(&self, parts: &[u32], price: f64) -> f64 {
        let mut twice = 0.0;
        let mut away = 0.0;
        for vertex in 0..self.count() {
            let ends = self.adjacent(vertex);
            let other = ends.filter(|end| parts[end.0] != parts[vertex]);
            twice += other.map(|end| end.1).sum::<f64>();
            if self
                .homes
                .get(vertex)
                .is_some_and(|&home| home != parts[vertex])
            {
                away += self.sizes[vertex];
            }
        }
        twice / 2.0 + price * away
    }

    /// The vertices in an order that is drawn.
    pub fn shuffled(&self, seed: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.count() as u32).collect();
        for last in (1..order.len()).rev() {
            let other = rng::below(rng::draw(seed, 1, last as u64), last as u64 + 1);
            order.swap(last, other as usize);
        }
        order
    }

    /// The part of the vertices in `own`, ascending, with the edges between them.
    pub fn part(&self, own: &[u32]) -> Level {
        let mut place = vec![u32::MAX; self.count()];
        for (slot, &vertex) in own.iter().enumerate() {
            place[vertex as usize] = slot as u32;
        }
        let (mut offsets, mut to, mut edges) = (vec![0], Vec::new(), Vec::new());
        for &vertex in own {
            for (near, edge) in self.adjacent(vertex as usize) {
                if place[near] != u32::MAX {
                    to.push(place[near]);
                    edges.push(edge);
                }
            }
            offsets.push(to.len());
        }
        let pick = |all: &[f64]| own.iter().map(|&v| all[v as usize]).collect();
        Level {
            offsets,
            to,
            edges,
            weights: pick(&self.weights),
            sizes: pick(&self.sizes),
            homes: Vec::new(),
            labels: Vec::new(),
        }
    }
}

/// A coarser graph, and which of its vertices each vertex of the finer one is in. `heaviest`:
/// the weight above which nothing is merged.
pub(super) fn coarsen(fine: &Level, heaviest: f64, seed: u64) -> (Level, Vec<u32>) {
    let mates = matching(fine, heaviest, seed);
    let mut map = vec![u32::MAX; fine.count()];
    let mut members = Vec::new();
    for vertex in 0..fine.count() {
        let mate = mates[vertex] as usize;
        if map[vertex] == u32::MAX {
            map[vertex] = members.len() as u32;
            map[mate] = members.len() as u32;
            members.push((vertex, mate));
        }
    }
    (contract(fine, &map, &members), map)
}

/// The partner of every vertex, or itself. In an order that is drawn each takes the
/// neighbour with the heaviest edge, of those the lightest; who finds none waits at its
/// strongest neighbour for another one that found none, so that a hub does not end the
/// coarsening.
fn matching(fine: &Level, heaviest: f64, seed: u64) -> Vec<u32> {
    const FREE: u32 = u32::MAX;
    let mut mates = vec![FREE; fine.count()];
    let mut waiting = vec![FREE; fine.count()];
    for &vertex in &fine.shuffled(seed) {
        let vertex = vertex as usize;
        if mates[vertex] != FREE {
            continue;
        }
        let fits = |other: usize| {
            let light = fine.weights[vertex] + fine.weights[other] <= heaviest;
            light && fine.label(other) == fine.label(vertex)
        };
        let mut best: Option<(f64, f64, usize)> = None;
        let mut strongest: Option<(f64, usize)> = None;
        for (near, edge) in fine.adjacent(vertex) {
            if strongest.is_none_or(|(most, _)| edge > most) {
                strongest = Some((edge, near));
            }
            if mates[near] == FREE && fits(near) {
                let weight = fine.weights[near];
                let better = |(e, w, _)| edge > e || (edge == e && weight < w);
                if best.is_none_or(better) {
                    best = Some((edge, weight, near));
                }
            }
        }
        let mut other = best.map(|found| found.2);
        if let (None, Some((_, hub))) = (other, strongest) {
            let earlier = waiting[hub];
            let free = earlier != FREE && mates[earlier as usize] == FREE;
            if free && fits(earlier as usize) {
                other = Some(earlier as usize);
            } else {
                waiting[hub] = vertex as u32;
            }
        }
        if let Some(other) = other {
            mates[vertex] = other as u32;
            mates[other] = vertex as u32;
        }
    }
    for (vertex, mate) in mates.iter_mut().enumerate() {
        if *mate == FREE {
            *mate = vertex as u32;
        }
    }
    mates
}

fn contract(fine: &Level, map: &[u32], members: &[(usize, usize)]) -> Level {
    let mut coarse = Level {
        offsets: Vec::with_capacity(members.len() + 1),
        to: Vec::with_capacity(fine.to.len() / 2),
        edges: Vec::with_capacity(fine.to.len() / 2),
        weights: Vec::with_capacity(members.len()),
        sizes: Vec::with_capacity(members.len()),
        homes: Vec::new(),
        labels: Vec::new(),
    };
    coarse.offsets.push(0);
    // Where the row that is being made lists a neighbour.
    let mut places = vec![usize::MAX; members.len()];
    for (name, &(first, second)) in members.iter().enumerate() {
        let start = coarse.to.len();
        let both = [first, second];
        let own = &both[..if first == second { 1 } else { 2 }];
        for &vertex in own {
            for (near, edge) in fine.adjacent(vertex) {
                let near = map[near] as usize;
                if near == name {
                    continue;
                }
                let place = places[near];
                if place != usize::MAX && place >= start {
                    coarse.edges[place] += edge;
                } else {
                    places[near] = coarse.to.len();
                    coarse.to.push(near as u32);
                    coarse.edges.push(edge);
                }
            }
        }
        coarse.offsets.push(coarse.to.len());
        let sum = |all: &[f64]| own.iter().map(|&v| all[v]).sum();
        coarse.weights.push(sum(&fine.weights));
        coarse.sizes.push(sum(&fine.sizes));
        if !fine.homes.is_empty() {
            coarse.homes.push(fine.homes[first]);
        }
        if !fine.labels.is_empty() {
            coarse.labels.push(fine.labels[first]);
        }
    }
    coarse
}

//! Refinement of all parts together: Fiduccia-Mattheyses with one queue, and roll-back to the
//! best prefix (Fiduccia and Mattheyses 1982; for many parts Sanders and Schulz 2011).
//!
//! The aim is first the load above the limits, then the cut plus the price of every task away
//! from home. Invariants: a pass never ends worse than it began; a vertex moves at most once a
//! pass; no part falls below its least number of vertices; the outcome depends on the
//! arguments only.

use std::collections::BinaryHeap;

use super::coarse::Level;

/// Differences below this part of what is compared are rounding.
const EPSILON: f64 = 1e-9;
/// Moves without progress after which a pass gives up: so many, and one for each of so many
/// vertices.
const STALL: usize = 100;
const STALL_PART: usize = 100;

/// What refinement aims at.
pub(super) struct Aim<'a> {
    /// The largest weight of each part.
    pub limits: &'a [f64],
    /// The least number of vertices of each part.
    pub least: &'a [usize],
    /// Edge weight that a task away from home is worth.
    pub price: f64,
    /// Passes at most.
    pub passes: u32,
}

#[derive(PartialEq)]
struct Entry {
    gain: f64,
    order: u64,
    vertex: u32,
    version: u32,
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> core::cmp::Ordering {
        let gain = self.gain.total_cmp(&other.gain);
        gain.then(self.order.cmp(&other.order))
    }
}

struct Search<'a> {
    level: &'a Level,
    aim: &'a Aim<'a>,
    parts: &'a mut [u32],
    loads: Vec<f64>,
    counts: Vec<usize>,
    versions: Vec<u32>,
    locked: Vec<bool>,
    heap: BinaryHeap<Entry>,
    order: u64,
    /// Edge weight from the vertex at hand to each part; those that are not zero.
    ties: Vec<f64>,
    tied: Vec<u32>,
    weight: f64,
    edge: f64,
}

/// Refines `parts` in place; returns the load that is left above the limits.
pub(super) fn refine(level: &Level, parts: &mut [u32], aim: &Aim) -> f64 {
    let count = aim.limits.len();
    let mut search = Search {
        level,
        aim,
        loads: vec![0.0; count],
        counts: vec![0; count],
        versions: vec![0; parts.len()],
        locked: vec![false; parts.len()],
        heap: BinaryHeap::new(),
        order: 0,
        ties: vec![0.0; count],
        tied: Vec::new(),
        weight: level.weight(),
        edge: level.edges.iter().sum::<f64>() / level.edges.len().max(1) as f64,
        parts,
    };
    for vertex in 0..level.count() {
        let part = search.parts[vertex] as usize;
        search.loads[part] += level.weights[vertex];
        search.counts[part] += 1;
    }
    for _ in 0..aim.passes {
        if !search.pass() {
            break;
        }
    }
    search.excess()
}

impl Search<'_> {
    fn excess(&self) -> f64 {
        let over = self.loads.iter().zip(self.aim.limits);
        over.map(|(load, limit)| (load - limit).max(0.0)).sum()
    }

    fn excess_of(&self, part: usize, change: f64) -> f64 {
        (self.loads[part] + change - self.aim.limits[part]).max(0.0)
    }

    fn away(&self, vertex: usize, part: u32) -> f64 {
        match self.level.homes.get(vertex) {
            Some(&home) if home != part => self.aim.price * self.level.sizes[vertex],
            _ => 0.0,
        }
    }

    /// Fills the ties of a vertex; true if it has an edge to another part.
    fn tie(&mut self, vertex: usize) -> bool {
        for part in self.tied.drain(..) {
            self.ties[part as usize] = 0.0;
        }
        let own = self.parts[vertex];
        let mut cut = false;
        for (near, edge) in self.level.adjacent(vertex) {
            let part = self.parts[near];
            if self.ties[part as usize] == 0.0 {
                self.tied.push(part);
            }
            self.ties[part as usize] += edge;
            cut |= part != own;
        }
        cut
    }

    /// The best move of a vertex that is allowed: gain and part.
    fn best(&mut self, vertex: usize) -> Option<(f64, u32)> {
        let own = self.parts[vertex];
        if !self.tie(vertex) || self.counts[own as usize] <= self.aim.least[own as usize] {
            return None;
        }
        let weight = self.level.weights[vertex];
        let here = self.ties[own as usize] - self.away(vertex, own);
        let relief = self.excess_of(own as usize, 0.0) - self.excess_of(own as usize, -weight);
        let mut best: Option<(f64, f64, u32)> = None;
        for &part in &self.tied {
            if part == own {
                continue;
            }
            let to = part as usize;
            let more = self.excess_of(to, weight) - self.excess_of(to, 0.0);
            // Nobody is driven above the limit but to relieve one who is farther above it.
            let allowed = more <= 0.0
                || (relief > 0.0 && self.excess_of(to, weight) < self.excess_of(own as usize, 0.0));
            if !allowed {
                continue;
            }
            let gain = self.ties[to] - self.away(vertex, part) - here;
            let room = self.aim.limits[to] - self.loads[to];
            let better = |&(g, r, p): &(f64, f64, u32)| {
                gain > g || (gain == g && (room > r || (room == r && part < p)))
            };
            if best.as_ref().is_none_or(better) {
                best = Some((gain, room, part));
            }
        }
        best.map(|(gain, _, part)| (gain, part))
    }

    fn push(&mut self, vertex: usize) {
        self.versions[vertex] += 1;
        if let Some((gain, _)) = self.best(vertex) {
            self.order += 1;
            self.heap.push(Entry {
                gain,
                order: self.order,
                vertex: vertex as u32,
                version: self.versions[vertex],
            });
        }
    }

    /// The next move and its gain, as things stand now.
    fn next(&mut self) -> Option<(usize, u32, f64)> {
        while let Some(entry) = self.heap.pop() {
            let vertex = entry.vertex as usize;
            if self.locked[vertex] || self.versions[vertex] != entry.version {
                continue;
            }
            match self.best(vertex) {
                // Loads have changed since: it waits for its turn.
                Some((gain, _)) if gain < entry.gain => self.push(vertex),
                Some((gain, part)) => return Some((vertex, part, gain)),
                None => {}
            }
        }
        None
    }

    fn shift(&mut self, vertex: usize, to: u32) {
        let from = self.parts[vertex] as usize;
        let weight = self.level.weights[vertex];
        self.loads[from] -= weight;
        self.counts[from] -= 1;
        self.loads[to as usize] += weight;
        self.counts[to as usize] += 1;
        self.parts[vertex] = to;
    }

    /// One pass; true if it improved anything.
    fn pass(&mut self) -> bool {
        self.heap.clear();
        self.locked.fill(false);
        for vertex in (0..self.parts.len()).rev() {
            self.push(vertex);
        }
        let stall = STALL + self.parts.len() / STALL_PART;
        let mut trail: Vec<(u32, u32)> = Vec::new();
        let (mut excess, mut cost) = (self.excess(), 0.0);
        let (mut best, mut length) = ((excess, cost), 0);
        while trail.len() - length < stall {
            let Some((vertex, to, gain)) = self.next() else {
                break;
            };
            let (from, weight) = (self.parts[vertex], self.level.weights[vertex]);
            excess -= self.excess_of(from as usize, 0.0) - self.excess_of(from as usize, -weight);
            excess += self.excess_of(to as usize, weight) - self.excess_of(to as usize, 0.0);
            cost -= gain;
            self.shift(vertex, to);
            self.locked[vertex] = true;
            trail.push((vertex as u32, from));
            if self.better((excess, cost), best) {
                best = (excess, cost);
                length = trail.len();
            }
            for slot in self.level.offsets[vertex]..self.level.offsets[vertex + 1] {
                let near = self.level.to[slot] as usize;
                if !self.locked[near] {
                    self.push(near);
                }
            }
        }
        for (vertex, from) in trail.drain(length..).rev() {
            self.shift(vertex as usize, from);
        }
        length > 0
    }

    fn better(&self, a: (f64, f64), b: (f64, f64)) -> bool {
        if (a.0 - b.0).abs() > EPSILON * self.weight {
            return a.0 < b.0;
        }
        a.1 < b.1 - EPSILON * self.edge
    }
}

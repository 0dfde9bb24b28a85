//! The borders of all processes: which own tasks touch which other process, kept
//! up to date while tasks move, so that a balancing looks at borders and not at
//! all tasks.
//!
//! Invariants: every task that touches another process is listed for it; an entry
//! may have become wrong by later moves, and is dropped the next time that its
//! process is [settled](Borders::settle); lists ascend by (other process, task).

use crate::graph::Graph;

/// A process's border: (other process, own task), ascending.
pub type Border = Vec<(u32, u32)>;

/// The borders of all processes.
#[derive(Clone, Debug)]
pub struct Borders {
    of: Vec<Border>,
}

impl Borders {
    /// The borders of `parts`, by one look at every edge.
    pub fn new(graph: &Graph, processes: usize, parts: &[u32]) -> Borders {
        let mut of = vec![Vec::new(); processes];
        for (task, &me) in parts.iter().enumerate() {
            list(graph, parts, task as u32, &mut of[me as usize]);
        }
        for border in &mut of {
            finish(border);
        }
        Borders { of }
    }

    /// All entries of a process.
    pub fn of(&self, me: u32) -> &[(u32, u32)] {
        &self.of[me as usize]
    }

    /// The entries of `me` towards `other`.
    pub fn towards(&self, me: u32, other: u32) -> &[(u32, u32)] {
        towards(&self.of[me as usize], other)
    }

    /// A task has moved to the process that now owns it: lists it there, and its
    /// neighbours at theirs.
    pub fn moved(&mut self, graph: &Graph, owner: &[u32], task: u32) {
        let me = owner[task as usize];
        for &near in graph.near(task) {
            let other = owner[near as usize];
            if other != me {
                insert(&mut self.of[me as usize], (other, task));
                insert(&mut self.of[other as usize], (me, near));
            }
        }
    }

    /// Drops what is no longer true of `me`, and returns its neighbours with the
    /// edge weight to each, ascending, and the edges seen.
    pub fn settle(&mut self, graph: &Graph, owner: &[u32], me: u32) -> (Vec<(u32, f64)>, u64) {
        let mut contacts: Vec<(u32, f64)> = Vec::new();
        let mut operations = 0;
        self.of[me as usize].retain(|&(other, task)| {
            operations += graph.degree(task) as u64;
            if owner[task as usize] != me {
                return false;
            }
            let mut touches = false;
            for (near, edge) in graph.adjacent(task) {
                if owner[near as usize] == other {
                    touches = true;
                    match contacts.last_mut() {
                        Some(last) if last.0 == other => last.1 += edge,
                        _ => contacts.push((other, edge)),
                    }
                }
            }
            touches
        });
        (contacts, operations)
    }
}

/// The border of one process with these tasks.
pub fn border(graph: &Graph, owner: &[u32], own: &[u32]) -> Border {
    let mut border = Vec::new();
    for &task in own {
        list(graph, owner, task, &mut border);
    }
    finish(&mut border);
    border
}

/// The part of a border towards one process.
pub fn towards(border: &[(u32, u32)], other: u32) -> &[(u32, u32)] {
    let first = border.partition_point(|entry| entry.0 < other);
    let end = border.partition_point(|entry| entry.0 <= other);
    &border[first..end]
}

fn list(graph: &Graph, owner: &[u32], task: u32, border: &mut Border) {
    for &near in graph.near(task) {
        let other = owner[near as usize];
        if other != owner[task as usize] {
            border.push((other, task));
        }
    }
}

fn finish(border: &mut Border) {
    border.sort_unstable();
    border.dedup();
}

fn insert(sorted: &mut Border, entry: (u32, u32)) {
    if let Err(place) = sorted.binary_search(&entry) {
        sorted.insert(place, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::rng::Sequence;

    #[test]
    fn after_any_moves_a_settled_border_is_that_of_a_fresh_look() {
        let graph = Graph::mesh(9, 8, 2);
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        let mut owner: Vec<u32> = (0..144).map(|t| t / 24).collect();
        let mut borders = Borders::new(&graph, 6, &owner);
        for _ in 0..300 {
            let task = random.below(144) as u32;
            owner[task as usize] = random.below(6) as u32;
            borders.moved(&graph, &owner, task);
        }
        for me in 0..6 {
            let own: Vec<u32> = (0..144).filter(|&t| owner[t as usize] == me).collect();
            let (contacts, _) = borders.settle(&graph, &owner, me);
            assert_eq!(borders.of(me), border(&graph, &owner, &own));
            for &(other, contact) in &contacts {
                let mut back = 0.0;
                for &(_, task) in borders.towards(other, me) {
                    let ends = graph.adjacent(task);
                    back += ends
                        .filter(|e| owner[task as usize] == other && owner[e.0 as usize] == me)
                        .map(|e| e.1)
                        .sum::<f64>();
                }
                assert_eq!(back, contact, "{me} {other}");
            }
        }
    }
}

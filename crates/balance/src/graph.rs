//! The task graph: who computes how much and talks to whom.
//!
//! Invariants of a [`Graph`], checked when it is made: offsets ascend and end at
//! the number of neighbour entries; neighbours of a task ascend, without the
//! task itself and without repetition; each edge is listed at both ends with one
//! weight; all weights are finite and above zero. Tasks are numbered by `u32`
//! within one process's view; offsets are `usize`, so edges may exceed 2^32.

use crate::error::BalanceError;

/// The largest number of tasks in one graph.
pub const TASKS_MAX: usize = u32::MAX as usize - 1;

/// An undirected weighted graph of tasks in compressed rows.
#[derive(Clone, PartialEq, Debug)]
pub struct Graph {
    offsets: Vec<usize>,
    neighbours: Vec<u32>,
    edge_weights: Vec<f64>,
    weights: Vec<f64>,
    coordinates: Option<Vec<[f64; 3]>>,
}

impl Graph {
    /// From compressed rows: task `t`'s neighbours are
    /// `neighbours[offsets[t]..offsets[t + 1]]`, in any order. An empty
    /// `edge_weights` means 1 everywhere, an empty `weights` likewise.
    ///
    /// # Errors
    /// Whatever breaks an invariant of the module's comment.
    pub fn new(
        offsets: Vec<usize>,
        neighbours: Vec<u32>,
        edge_weights: Vec<f64>,
        weights: Vec<f64>,
    ) -> Result<Graph, BalanceError> {
        let graph = Graph::directed(offsets, neighbours, edge_weights, weights)?;
        graph.check_symmetry()?;
        Ok(graph)
    }

    /// Like [`Graph::new`] without the check for symmetry: the view of one
    /// process, in which tasks of others (ghosts) may list no edges of their own.
    ///
    /// # Errors
    /// As [`Graph::new`], but for symmetry.
    pub fn directed(
        offsets: Vec<usize>,
        neighbours: Vec<u32>,
        mut edge_weights: Vec<f64>,
        mut weights: Vec<f64>,
    ) -> Result<Graph, BalanceError> {
        let tasks = offsets.len().saturating_sub(1);
        bounded(tasks)?;
        if edge_weights.is_empty() {
            edge_weights = vec![1.0; neighbours.len()];
        }
        if weights.is_empty() {
            weights = vec![1.0; tasks];
        }
        length("edge weights", edge_weights.len(), neighbours.len())?;
        length("task weights", weights.len(), tasks)?;
        let ends = offsets.last().copied().unwrap_or(0);
        length("neighbours", neighbours.len(), ends)?;
        if offsets.first().is_some_and(|&first| first != 0)
            || offsets.windows(2).any(|pair| pair[0] > pair[1])
        {
            return Err(BalanceError::Invariant("offsets must ascend from 0"));
        }
        let mut graph = Graph {
            offsets,
            neighbours,
            edge_weights,
            weights,
            coordinates: None,
        };
        graph.check_and_sort_rows()?;
        Ok(graph)
    }

    /// From a list of undirected edges `(a, b, weight)`, each given once; edges
    /// given several times, in either direction, add up.
    ///
    /// # Errors
    /// Self loops, numbers out of range, weights that are not above zero.
    pub fn from_edges(
        tasks: usize,
        edges: &[(u32, u32, f64)],
        weights: Vec<f64>,
    ) -> Result<Graph, BalanceError> {
        bounded(tasks)?;
        let mut both = Vec::with_capacity(edges.len() * 2);
        for &(a, b, weight) in edges {
            check_edge(a as usize, b as usize, weight, tasks)?;
            both.push((a, b, weight));
            both.push((b, a, weight));
        }
        both.sort_by_key(|&(a, b, _)| (a, b));
        let mut offsets = Vec::with_capacity(tasks + 1);
        let (mut neighbours, mut edge_weights) = (Vec::new(), Vec::new());
        offsets.push(0);
        let mut last = None;
        for (a, b, weight) in both {
            if last == Some((a, b)) {
                if let Some(sum) = edge_weights.last_mut() {
                    *sum += weight;
                }
                continue;
            }
            while offsets.len() <= a as usize {
                offsets.push(neighbours.len());
            }
            neighbours.push(b);
            edge_weights.push(weight);
            last = Some((a, b));
        }
        offsets.resize(tasks + 1, neighbours.len());
        Graph::new(offsets, neighbours, edge_weights, weights)
    }

    /// A box of `x` by `y` by `z` tasks, each talking to its 6 face neighbours
    /// (fewer at the sides), with unit weights and coordinates. Task
    /// `(i, j, k)` has number `(k * y + j) * x + i`.
    pub fn mesh(x: usize, y: usize, z: usize) -> Graph {
        let tasks = x * y * z;
        let mut offsets = Vec::with_capacity(tasks + 1);
        let mut neighbours = Vec::with_capacity(tasks * 6);
        let mut coordinates = Vec::with_capacity(tasks);
        offsets.push(0);
        for k in 0..z {
            for j in 0..y {
                for i in 0..x {
                    let task = (k * y + j) * x + i;
                    let near = [
                        (k > 0, task.wrapping_sub(x * y)),
                        (j > 0, task.wrapping_sub(x)),
                        (i > 0, task.wrapping_sub(1)),
                        (i + 1 < x, task + 1),
                        (j + 1 < y, task + x),
                        (k + 1 < z, task + x * y),
                    ];
                    neighbours.extend(near.iter().filter(|n| n.0).map(|n| n.1 as u32));
                    offsets.push(neighbours.len());
                    coordinates.push([i as f64, j as f64, k as f64]);
                }
            }
        }
        Graph {
            edge_weights: vec![1.0; neighbours.len()],
            weights: vec![1.0; tasks],
            offsets,
            neighbours,
            coordinates: Some(coordinates),
        }
    }

    /// The graph with coordinates, one triple a task (unused axes 0).
    ///
    /// # Errors
    /// Another number of triples than tasks, or a coordinate that is not finite.
    pub fn with_coordinates(mut self, coordinates: Vec<[f64; 3]>) -> Result<Graph, BalanceError> {
        length("coordinates", coordinates.len(), self.tasks())?;
        for value in coordinates.iter().flatten() {
            if !value.is_finite() {
                return Err(BalanceError::Value {
                    what: "a coordinate",
                    value: *value,
                });
            }
        }
        self.coordinates = Some(coordinates);
        Ok(self)
    }

    /// Replaces the task weights.
    ///
    /// # Errors
    /// Another number of weights than tasks, or one that is not above zero; the
    /// graph is then unchanged.
    pub fn set_weights(&mut self, weights: &[f64]) -> Result<(), BalanceError> {
        length("task weights", weights.len(), self.tasks())?;
        check_weights(weights)?;
        self.weights.copy_from_slice(weights);
        Ok(())
    }

    /// The number of tasks.
    pub fn tasks(&self) -> usize {
        self.weights.len()
    }
    /// The number of edges, each counted once.
    pub fn edges(&self) -> usize {
        self.neighbours.len() / 2
    }
    /// The sum of the edge weights, each edge counted once.
    pub fn edge_weight_total(&self) -> f64 {
        self.edge_weights.iter().sum::<f64>() / 2.0
    }
    /// The weight (load) of every task.
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }
    /// The weight of one task.
    pub fn weight(&self, task: u32) -> f64 {
        self.weights[task as usize]
    }
    /// The coordinates, if there are any.
    pub fn coordinates(&self) -> Option<&[[f64; 3]]> {
        self.coordinates.as_deref()
    }
    /// The graph of some tasks, ascending, with the edges between them; numbers are
    /// places in `own`.
    ///
    /// # Errors
    /// None if the tasks ascend: the checks are those of [`Graph::new`].
    pub fn part(&self, own: &[u32]) -> Result<Graph, BalanceError> {
        let (mut offsets, mut to, mut edges) = (vec![0], Vec::new(), Vec::new());
        for &task in own {
            for (near, edge) in self.adjacent(task) {
                if let Ok(place) = own.binary_search(&near) {
                    to.push(place as u32);
                    edges.push(edge);
                }
            }
            offsets.push(to.len());
        }
        let weights = own.iter().map(|&task| self.weight(task)).collect();
        let part = Graph::new(offsets, to, edges, weights)?;
        match self.coordinates() {
            Some(all) => part.with_coordinates(own.iter().map(|&t| all[t as usize]).collect()),
            None => Ok(part),
        }
    }

    /// The neighbours of a task without the weights, which are not touched.
    pub fn near(&self, task: u32) -> &[u32] {
        let task = task as usize;
        &self.neighbours()[self.offsets()[task]..self.offsets()[task + 1]]
    }

    /// The number of neighbours of a task.
    pub fn degree(&self, task: u32) -> usize {
        self.offsets[task as usize + 1] - self.offsets[task as usize]
    }
    /// The neighbours of a task, ascending, with the weights of the edges.
    pub fn adjacent(&self, task: u32) -> impl Iterator<Item = (u32, f64)> + '_ {
        let range = self.offsets[task as usize]..self.offsets[task as usize + 1];
        self.neighbours[range.clone()]
            .iter()
            .copied()
            .zip(self.edge_weights[range].iter().copied())
    }
    /// The offsets of the rows: `tasks + 1` entries.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }
    /// The neighbour entries of all rows.
    pub fn neighbours(&self) -> &[u32] {
        &self.neighbours
    }
    /// The edge weights, parallel to [`Graph::neighbours`].
    pub fn edge_weights(&self) -> &[f64] {
        &self.edge_weights
    }

    fn check_and_sort_rows(&mut self) -> Result<(), BalanceError> {
        check_weights(&self.weights)?;
        let tasks = self.tasks();
        for task in 0..tasks {
            let range = self.offsets[task]..self.offsets[task + 1];
            let row = &mut self.neighbours[range.clone()];
            let row_weights = &mut self.edge_weights[range];
            if row.windows(2).any(|pair| pair[0] > pair[1]) {
                let mut order: Vec<(u32, f64)> = row
                    .iter()
                    .copied()
                    .zip(row_weights.iter().copied())
                    .collect();
                order.sort_by_key(|entry| entry.0);
                for (slot, (to, weight)) in order.into_iter().enumerate() {
                    row[slot] = to;
                    row_weights[slot] = weight;
                }
            }
            for (slot, (&to, &weight)) in row.iter().zip(row_weights.iter()).enumerate() {
                check_edge(task, to as usize, weight, tasks)?;
                if slot > 0 && row[slot - 1] == to {
                    return Err(BalanceError::Duplicate {
                        from: task,
                        to: to as usize,
                    });
                }
            }
        }
        finite(
            "the sum of the edge weights",
            self.edge_weights.iter().sum(),
        )
    }

    fn check_symmetry(&self) -> Result<(), BalanceError> {
        for task in 0..self.tasks() as u32 {
            for (to, weight) in self.adjacent(task) {
                let range = self.offsets[to as usize]..self.offsets[to as usize + 1];
                let found = self.neighbours[range.clone()]
                    .binary_search(&task)
                    .map(|slot| self.edge_weights[range.start + slot]);
                if found != Ok(weight) {
                    return Err(BalanceError::Asymmetric {
                        from: task as usize,
                        to: to as usize,
                    });
                }
            }
        }
        Ok(())
    }
}

fn bounded(tasks: usize) -> Result<(), BalanceError> {
    match tasks {
        0..=TASKS_MAX => Ok(()),
        _ => Err(BalanceError::Range {
            what: "number of tasks",
            value: tasks as u64,
            bound: TASKS_MAX as u64 + 1,
        }),
    }
}

fn length(what: &'static str, found: usize, expected: usize) -> Result<(), BalanceError> {
    if found == expected {
        return Ok(());
    }
    Err(BalanceError::Length {
        what,
        found,
        expected,
    })
}

fn check_weights(weights: &[f64]) -> Result<(), BalanceError> {
    match weights.iter().position(|w| !(w.is_finite() && *w > 0.0)) {
        None => finite("the sum of the task weights", weights.iter().sum()),
        Some(task) => Err(BalanceError::TaskWeight {
            task,
            weight: weights[task],
        }),
    }
}

/// Sums must be numbers, too: with an infinite one nothing is above average, and a
/// balancing would silently do nothing.
pub(crate) fn finite(what: &'static str, value: f64) -> Result<(), BalanceError> {
    match value.is_finite() {
        true => Ok(()),
        false => Err(BalanceError::Value { what, value }),
    }
}

fn check_edge(from: usize, to: usize, weight: f64, tasks: usize) -> Result<(), BalanceError> {
    if from.max(to) >= tasks {
        return Err(BalanceError::Range {
            what: "task",
            value: from.max(to) as u64,
            bound: tasks as u64,
        });
    }
    if from == to {
        return Err(BalanceError::SelfLoop { task: from });
    }
    if !(weight.is_finite() && weight > 0.0) {
        return Err(BalanceError::EdgeWeight { from, to, weight });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_has_the_edges_of_a_box_and_is_symmetric() {
        let mesh = Graph::mesh(4, 3, 2);
        assert_eq!(mesh.tasks(), 24);
        assert_eq!(mesh.edges(), 3 * 3 * 2 + 4 * 2 * 2 + 4 * 3);
        assert_eq!(mesh.check_symmetry(), Ok(()));
        assert_eq!(
            mesh.adjacent(0).map(|n| n.0).collect::<Vec<_>>(),
            [1, 4, 12]
        );
    }

    #[test]
    fn bad_graphs_are_refused_with_what_is_wrong() {
        let refuse = |offsets: &[usize], to: &[u32], edge: &[f64], task: &[f64]| {
            Graph::new(offsets.into(), to.into(), edge.into(), task.into()).unwrap_err()
        };
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = refuse(&[0, 1, 2], &[1, 0], &[], &[1.0, bad]);
            assert!(matches!(error, BalanceError::TaskWeight { task: 1, .. }));
            let error = refuse(&[0, 1, 2], &[1, 0], &[bad, 1.0], &[]);
            assert!(matches!(error, BalanceError::EdgeWeight { .. }), "{error}");
        }
        assert_eq!(
            refuse(&[0, 1, 1], &[1], &[], &[]),
            BalanceError::Asymmetric { from: 0, to: 1 }
        );
        assert_eq!(
            refuse(&[0, 1, 2], &[1, 0], &[1.0, 2.0], &[]),
            BalanceError::Asymmetric { from: 0, to: 1 }
        );
        assert_eq!(
            refuse(&[0, 1], &[0], &[], &[]),
            BalanceError::SelfLoop { task: 0 }
        );
        assert_eq!(
            refuse(&[0, 2, 3], &[1, 1, 0], &[], &[]),
            BalanceError::Duplicate { from: 0, to: 1 }
        );
        assert!(matches!(
            refuse(&[0, 1, 2], &[7, 0], &[], &[]),
            BalanceError::Range { .. }
        ));
        assert!(matches!(
            refuse(&[0, 3, 2], &[1, 0], &[], &[]),
            BalanceError::Invariant(_)
        ));
        assert!(matches!(
            refuse(&[0, 1, 2], &[1, 0], &[], &[1.0]),
            BalanceError::Length { .. }
        ));
        for (edge, task) in [(f64::MAX, 1.0), (1.0, f64::MAX)] {
            let error = refuse(&[0, 1, 2], &[1, 0], &[edge; 2], &[task; 2]);
            assert!(matches!(error, BalanceError::Value { .. }), "{error}");
        }
        let many = Graph::from_edges(TASKS_MAX + 1, &[], vec![]);
        assert!(matches!(many, Err(BalanceError::Range { .. })));
        let error = outlive_base::Error::from(refuse(&[0, 1], &[0], &[], &[]));
        assert_eq!(error.code(), outlive_base::Code::InvalidArgument);
    }

    #[test]
    fn edges_given_twice_add_up_and_an_empty_graph_is_a_graph() {
        let graph = Graph::from_edges(4, &[(2, 0, 1.0), (0, 2, 2.0), (3, 2, 1.0)], vec![]).unwrap();
        assert_eq!(graph.adjacent(2).collect::<Vec<_>>(), [(0, 3.0), (3, 1.0)]);
        assert_eq!(graph.degree(1), 0);
        assert_eq!(graph.edge_weight_total(), 4.0);
        assert_eq!(Graph::from_edges(0, &[], vec![]).unwrap().tasks(), 0);
    }
}

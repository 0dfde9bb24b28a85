//! Processes that cut far more than they need to: who they are, and what keeps the next
//! moves from making them worse.
//!
//! Loads that wander leave ragged borders behind, and what counts is the process that
//! cuts most. A process is *ragged* if it cuts more than
//! - [`RAGGED`] times the mean ([`crate::diffusion::Options::ragged`]), or
//! - [`COMPACT`] times what a cube of as many tasks would ([`Ground`],
//!   [`crate::diffusion::Options::compact`]), where tasks have coordinates and there are
//!   [`COARSE`] of them for each process. The mean cannot see that all have become ragged.
//!
//! For borders of ragged processes
//! - cut edges are weighed by the sixth power of what their processes cut: a task with
//!   edges to third processes rather belongs to the one that cuts less;
//! - where there are coordinates, a task that sticks out is worth something: the border
//!   is drawn towards a plane between the two centres (shape as in Diekmann, Preis,
//!   Schlimbach, Walshaw 2000). The plane is square to the axis along which the centres
//!   are farthest apart: on meshes a slanted border cuts up to 1.7 times as much as one
//!   along the cells. And it lies where two cubes of these sizes would meet, so that who
//!   has become flat gives at its far ends.
//!
//! Invariants: between processes of which none is ragged nothing changes; both ends of a
//! border come to the same bits; the unit of the coordinates does not matter.

use crate::band::{Band, Outline};
use crate::graph::Graph;

/// A process is ragged above so many times the mean cut, unless told otherwise.
pub const RAGGED: f64 = 1.5;
/// What cuts less than this part of the mean counts as that much: ratios stay numbers.
const LEAST: f64 = 0.1;

/// A process is ragged above so many times what a cube would cut, unless told otherwise. A
/// fresh bisection of a mesh is below.
pub const COMPACT: f64 = 1.1;
/// So many tasks a process are coarse enough for the comparison with a cube: with fewer,
/// what smoothing moves costs more than its shorter borders are worth.
pub const COARSE: f64 = 500.0;
/// A border is drawn an edge's length at most towards where two cubes would meet: so far
/// where a process cuts this part more than makes it ragged, less where less.
const FLAT: f64 = 0.1;

/// What all processes together know of the space in which the tasks lie.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Ground {
    /// Edge weight at a task, on average.
    pub edges: f64,
    /// The axes along which tasks differ; 0 if they have no coordinates.
    pub axes: u32,
    /// Tasks for each process, on average.
    pub tasks: f64,
}

impl Ground {
    /// Of tasks with this sum of edge weights over all tasks, on so many processes.
    pub fn new(edges: f64, axes: u32, tasks: usize, processes: usize) -> Ground {
        Ground {
            edges: edges / tasks.max(1) as f64,
            axes,
            tasks: tasks as f64 / processes.max(1) as f64,
        }
    }

    /// Of a graph.
    pub fn of(graph: &Graph, processes: usize) -> Ground {
        let all = graph.coordinates().unwrap_or_default();
        let differs = |axis: &usize| all.iter().any(|at| at[*axis] != all[0][*axis]);
        let axes = (0..3).filter(differs).count() as u32;
        let edges = 2.0 * graph.edge_weight_total();
        Ground::new(edges, axes, graph.tasks(), processes)
    }

    /// What a cube of so many tasks cuts: as many tasks lie at each of its faces as a cut
    /// through its middle has, and of the edges of a task an equal part leads through each
    /// face. Infinite if that is not known, or there are few tasks for each process.
    pub fn cube(&self, tasks: usize) -> f64 {
        if self.axes == 0 || self.tasks < COARSE {
            return f64::INFINITY;
        }
        let face = f64::from(self.axes - 1) / f64::from(self.axes);
        self.edges * libm::pow(tasks as f64, face)
    }
}

/// The cuts of all processes when a round began.
#[derive(Clone, PartialEq, Debug)]
pub struct Cuts {
    of: Vec<f64>,
    mean: f64,
    /// Who is ragged.
    ragged: Vec<bool>,
    /// How far borders are drawn to where cubes would meet, in lengths of an edge.
    reach: Vec<f64>,
}

impl Cuts {
    /// Of processes that cut so much each, where cubes of their sizes would cut `cubes`;
    /// those that cut nothing (alone, or absent) do not lower the mean. Ragged is who cuts
    /// more than `ragged` times the mean, or `compact` times its cube.
    pub fn new(of: Vec<f64>, cubes: &[f64], (ragged, compact): (f64, f64)) -> Cuts {
        let some = of.iter().filter(|cut| **cut > 0.0).count();
        let mean = of.iter().sum::<f64>() / some.max(1) as f64;
        let both = of.iter().zip(cubes);
        let ragged = both
            .map(|(&cut, cube)| cut > ragged * mean || cut > compact * cube)
            .collect();
        let excess = of.iter().zip(cubes).map(|(cut, cube)| cut - compact * cube);
        let full = cubes.iter().map(|cube| FLAT * compact * cube);
        let reach = excess.zip(full).map(|(excess, full)| excess / full);
        // Nothing over nothing, and what nobody knows, are no reason to move anything.
        let reach = reach.map(|reach| if reach > 0.0 { reach.min(1.0) } else { 0.0 });
        Cuts {
            reach: reach.collect(),
            of,
            mean,
            ragged,
        }
    }

    /// Of so many processes that cut nothing.
    pub fn none(processes: usize) -> Cuts {
        Cuts::new(vec![0.0; processes], &vec![0.0; processes], (0.0, 0.0))
    }

    /// True if the process cuts far more than it needs to.
    pub fn ragged(&self, process: u32) -> bool {
        self.ragged[process as usize]
    }

    /// True if one of the two is ragged.
    pub fn ragged_pair(&self, a: u32, b: u32) -> bool {
        self.ragged(a) || self.ragged(b)
    }

    /// What a cut edge at the process weighs where one of the two is ragged.
    pub fn weight(&self, process: u32) -> f64 {
        let times = match self.mean > 0.0 {
            true => (self.of[process as usize] / self.mean).max(LEAST),
            false => LEAST,
        };
        let square = times * times;
        square * square * square
    }

    /// How far the border of a process may be drawn to where cubes would meet, in lengths
    /// of an edge: from 0 to 1.
    pub fn reach(&self, process: u32) -> f64 {
        self.reach[process as usize]
    }

    /// What it is worth to give an edge to third processes from `a` to `b`, in units of
    /// the edge between the two: from -1 to 1; 0 if none of the two is ragged.
    pub fn lean(&self, a: u32, b: u32) -> f64 {
        match self.ragged_pair(a, b) {
            true => lean(self.weight(a), self.weight(b)),
            false => 0.0,
        }
    }
}

fn lean(a: f64, b: f64) -> f64 {
    (a - b) / (a + b)
}

/// The outline of the band with these `tasks` of `me` towards `other`, and the
/// operations. `weight`, `reach` and `centre` are left for the caller to fill.
pub fn outline(
    graph: &Graph,
    owner: &[u32],
    (me, other): (u32, u32),
    tasks: &[u32],
) -> (Outline, u64) {
    let mut out = Outline::default();
    let mut operations = 0;
    for &task in tasks {
        let third = |near: &(u32, f64)| ![me, other].contains(&owner[near.0 as usize]);
        let edges = graph.adjacent(task).filter(third).map(|near| near.1);
        out.thirds.push(edges.sum());
        operations += graph.degree(task) as u64;
    }
    if let Some(all) = graph.coordinates() {
        out.at = tasks.iter().map(|&task| all[task as usize]).collect();
    }
    (out, operations)
}

/// How much each task of two bands, the left one's first, is drawn to the right side, as
/// edge weight; `shape` is what it is worth to move a task by the length of an edge
/// towards the plane. Nothing where a band has no outline.
pub fn pulls(left: &Band, right: &Band, shape: f64) -> Vec<f64> {
    let count = left.tasks.len() + right.tasks.len();
    let (Some(a), Some(b)) = (&left.outline, &right.outline) else {
        return vec![0.0; count];
    };
    let lean = lean(a.weight, b.weight);
    let thirds = a.thirds.iter().chain(&b.thirds);
    let mut pulls: Vec<f64> = thirds.map(|third| lean * third).collect();
    pulls.resize(count, 0.0);
    let (Some(from), Some(to)) = (a.centre, b.centre) else {
        return pulls;
    };
    let mut lengths = Lengths::default();
    for (band, at) in [(left, &a.at), (right, &b.at)] {
        for (slot, &here) in at.iter().enumerate() {
            let row = band.offsets[slot] as usize..band.offsets[slot + 1] as usize;
            for near in &band.to[row] {
                if let Ok(there) = band.tasks.binary_search(near) {
                    lengths.add(here, at[there]);
                }
            }
        }
    }
    let at: Vec<[f64; 3]> = a.at.iter().chain(&b.at).copied().collect();
    if let Some(plane) = Plane::new((from, to), &at, lengths, shape) {
        let plane = plane.towards_cubes((left.count, right.count), a.reach.max(b.reach), shape);
        for (pull, here) in pulls.iter_mut().zip(at) {
            *pull += plane.pull(here);
        }
    }
    pulls
}

/// The mean length of edges.
#[derive(Clone, Copy, Default, Debug)]
pub struct Lengths {
    sum: f64,
    count: usize,
}

impl Lengths {
    /// One more edge.
    pub fn add(&mut self, from: [f64; 3], to: [f64; 3]) {
        self.sum += libm::sqrt(square_distance(from, to));
        self.count += 1;
    }
}

/// The plane that a border should be: square to the axis along which two centres are
/// farthest apart, at the mean place of the border.
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    centres: ([f64; 3], [f64; 3]),
    axis: usize,
    /// What a unit of length is worth; below zero if the second centre lies below.
    scale: f64,
    /// Where along the axis a task is drawn to neither side.
    place: f64,
}

impl Plane {
    /// Between two centres, for a border with tasks `at` these places; none if there is
    /// no length to measure by.
    pub fn new(
        centres: ([f64; 3], [f64; 3]),
        at: &[[f64; 3]],
        lengths: Lengths,
        shape: f64,
    ) -> Option<Plane> {
        let apart = libm::sqrt(square_distance(centres.0, centres.1));
        let length = lengths.sum / lengths.count.max(1) as f64;
        let is_known = apart > 0.0 && length > 0.0 && shape > 0.0 && !at.is_empty();
        let along = |axis: usize| centres.1[axis] - centres.0[axis];
        let farther = |best, axis: usize| {
            let is_farther = along(axis).abs() > along(best).abs();
            if is_farther { axis } else { best }
        };
        let axis = (1..3).fold(0, farther);
        let sum: f64 = at.iter().map(|at| at[axis]).sum();
        let plane = Plane {
            centres,
            axis,
            // Where no axis stands out the border is a corner, and the plane says less.
            scale: shape * along(axis) / (apart * length),
            place: sum / at.len().max(1) as f64,
        };
        (is_known && plane.scale.is_finite() && plane.place.is_finite()).then_some(plane)
    }

    /// The plane, drawn to where cubes of these `counts` of tasks would meet, by `reach`
    /// lengths of an edge at most.
    fn towards_cubes(self, counts: (usize, usize), reach: f64, shape: f64) -> Plane {
        let side = |count: usize| libm::cbrt(count as f64);
        let part = side(counts.0) / (side(counts.0) + side(counts.1));
        let (from, to) = (self.centres.0[self.axis], self.centres.1[self.axis]);
        let meet = from + (to - from) * part;
        let reach = reach * shape / self.scale.abs();
        let step = meet - self.place;
        match step.is_finite() {
            // What comes over the wire need not be a number, so no `clamp`.
            true => Plane {
                place: self.place + step.min(reach).max(-reach),
                ..self
            },
            false => self,
        }
    }

    /// What it is worth that a task here goes over to the second process.
    pub fn pull(&self, at: [f64; 3]) -> f64 {
        self.scale * (at[self.axis] - self.place)
    }
}

/// The square of the distance.
pub fn square_distance(a: [f64; 3], b: [f64; 3]) -> f64 {
    (0..3)
        .map(|axis| (a[axis] - b[axis]) * (a[axis] - b[axis]))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_cuts_far_more_is_ragged_and_gives_corners_away() {
        let unknown = [f64::INFINITY; 5];
        let limits = (RAGGED, COMPACT);
        let cuts = Cuts::new(vec![10.0, 12.0, 30.0, 8.0, 0.0], &unknown, limits);
        let ragged: Vec<bool> = (0..5).map(|p| cuts.ragged(p)).collect();
        assert_eq!(ragged, [false, false, true, false, false]);
        assert_eq!(cuts.lean(0, 1), 0.0);
        assert!(cuts.lean(2, 0) > 0.3 && cuts.lean(0, 2) == -cuts.lean(2, 0));
        let nothing = Cuts::none(3);
        assert!(!nothing.ragged(1) && nothing.lean(0, 1) == 0.0);
        assert!(nothing.reach(1) == 0.0 && cuts.reach(2) == 0.0);
        let all = Cuts::new(vec![10.0, 1e-300, 0.0], &unknown[..3], (0.0, COMPACT));
        assert!(all.ragged(0) && all.ragged(1) && !all.ragged(2));
        assert!(all.lean(1, 2) == 0.0 && all.lean(0, 2) > 0.9);
    }

    #[test]
    fn who_cuts_more_than_a_cube_is_ragged_though_all_do() {
        // A cube of 20 x 20 x 20 among others cuts 2400 edges.
        let graph = Graph::mesh(100, 100, 100);
        let ground = Ground::of(&graph, 125);
        let cube = ground.cube(8000);
        assert!((2340.0..2400.0).contains(&cube), "{cube}");
        let cut = |cut: f64| Cuts::new(vec![cut; 125], &[cube; 125], (RAGGED, COMPACT));
        assert!(!cut(2400.0).ragged(7) && cut(2800.0).ragged(7));
        assert!(cut(2400.0).reach(7) == 0.0 && cut(4800.0).reach(7) == 1.0);
        assert!((0.1..0.9).contains(&cut(2800.0).reach(7)));
        // Few tasks a process, or nobody knows where: only the mean is known.
        assert_eq!(Ground::of(&graph, 2001).cube(499), f64::INFINITY);
        let nowhere = Graph::from_edges(600, &[(0, 1, 1.0)], vec![1.0; 600]).unwrap();
        assert_eq!(Ground::of(&nowhere, 1).cube(600), f64::INFINITY);
        // A square of 30 x 30 cuts 120, a run of a chain 2.
        let plate = Ground::of(&Graph::mesh(90, 90, 1), 9).cube(900);
        assert!((115.0..120.0).contains(&plate), "{plate}");
        let chain = Ground::of(&Graph::mesh(9000, 1, 1), 9).cube(1000);
        assert!((1.9..2.0).contains(&chain), "{chain}");
    }

    #[test]
    fn a_border_is_drawn_to_where_two_cubes_would_meet_and_no_farther_than_an_edge() {
        let at: Vec<[f64; 3]> = (0..9).map(|t| [6.0, f64::from(t), 0.0]).collect();
        let mut lengths = Lengths::default();
        lengths.add(at[0], at[1]);
        let centres = ([1.0, 4.0, 0.0], [9.0, 4.0, 0.0]);
        let plane = Plane::new(centres, &at, lengths, 0.2).unwrap();
        assert!(at.iter().all(|&at| plane.pull(at).abs() < 1e-12));
        // Equal ones meet at 5: what lies at 6 is drawn over.
        let pull = |counts, x| plane.towards_cubes(counts, 1.0, 0.2).pull([x, 0.0, 0.0]);
        assert!((pull((100, 100), 6.0) - 0.2).abs() < 1e-12);
        assert!(pull((100, 100), 5.0).abs() < 1e-12);
        // One of a third of the side meets the other at 3: too far for one time.
        assert!((pull((100, 2700), 6.0) - 0.2).abs() < 1e-12);
        assert!((pull((2700, 100), 6.0) + 0.2).abs() < 1e-12);
        assert!(pull((0, 0), 6.0).abs() < 1e-12);
        assert!(plane.towards_cubes((9, 9), 0.0, 0.2).pull([6.0, 0.0, 0.0]) == 0.0);
    }

    #[test]
    fn a_plane_draws_in_what_sticks_out_in_any_unit() {
        let pull = |unit: f64| {
            let place = |x: f64, y: f64| [x * unit, y * unit, 0.0];
            let at: Vec<[f64; 3]> = vec![place(3.0, 0.0), place(3.0, 1.0), place(4.0, 2.0)];
            let mut lengths = Lengths::default();
            lengths.add(at[0], at[1]);
            let centres = (place(0.0, 1.0), place(7.0, 1.0));
            let plane = Plane::new(centres, &at, lengths, 0.3).unwrap();
            at.iter().map(|&at| plane.pull(at)).collect::<Vec<_>>()
        };
        let (cells, metres) = (pull(1.0), pull(1000.0));
        // The second centre is 7 edges away, all along the first axis.
        assert!((cells[2] - cells[0] - 0.3).abs() < 1e-12, "{cells:?}");
        assert!(cells.iter().sum::<f64>().abs() < 1e-12);
        assert!(cells.iter().zip(&metres).all(|(a, b)| (a - b).abs() < 1e-9));
        let at = [[0.0; 3]];
        assert!(Plane::new(([0.0; 3], [0.0; 3]), &at, Lengths::default(), 0.3).is_none());
    }
}

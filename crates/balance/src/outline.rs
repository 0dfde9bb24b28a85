//! Processes that cut far more than others: who they are, and what keeps the next moves
//! from making them worse.
//!
//! Loads that wander leave ragged borders behind, and what counts is the process that
//! cuts most. A process is *ragged* if its cut is above [`RAGGED`] times the mean. For
//! borders of ragged processes
//! - cut edges are weighed by the third power of what their processes cut: a task with
//!   edges to third processes rather belongs to the one that cuts less;
//! - where there are coordinates, a task that sticks out is worth something: the border
//!   is drawn towards a plane between the two centres (shape as in Diekmann, Preis,
//!   Schlimbach, Walshaw 2000).
//!
//! Invariants: between processes of which none is ragged nothing changes; both ends of a
//! border come to the same bits; the unit of the coordinates does not matter.

use crate::band::Band;
use crate::graph::Graph;

/// A process is ragged above so many times the mean cut.
pub const RAGGED: f64 = 1.5;

/// The cuts of all processes when a round began.
#[derive(Clone, PartialEq, Debug)]
pub struct Cuts {
    of: Vec<f64>,
    mean: f64,
}

impl Cuts {
    /// Of processes that cut so much each; those that cut nothing (alone, or absent) do
    /// not lower the mean.
    pub fn new(of: Vec<f64>) -> Cuts {
        let some = of.iter().filter(|cut| **cut > 0.0).count();
        let mean = of.iter().sum::<f64>() / some.max(1) as f64;
        Cuts { of, mean }
    }

    /// True if the process cuts far more than the others.
    pub fn ragged(&self, process: u32) -> bool {
        self.of[process as usize] > RAGGED * self.mean
    }

    /// True if one of the two is ragged.
    pub fn ragged_pair(&self, a: u32, b: u32) -> bool {
        self.ragged(a) || self.ragged(b)
    }

    /// What a cut edge at the process weighs; the same at all that are not ragged.
    pub fn weight(&self, process: u32) -> f64 {
        let times = match self.mean > 0.0 {
            true => (self.of[process as usize] / self.mean).max(RAGGED),
            false => RAGGED,
        };
        times * times * times
    }

    /// What it is worth to give an edge to third processes from `a` to `b`, in units of
    /// the edge between the two: from -1 to 1.
    pub fn lean(&self, a: u32, b: u32) -> f64 {
        lean(self.weight(a), self.weight(b))
    }
}

fn lean(a: f64, b: f64) -> f64 {
    (a - b) / (a + b)
}

/// What a band tells in addition if one of the two processes is ragged.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outline {
    /// What a cut edge at the process weighs.
    pub weight: f64,
    /// The centre of all tasks of the process, if known.
    pub centre: Option<[f64; 3]>,
    /// Edge weight from each task of the band to third processes.
    pub thirds: Vec<f64>,
    /// Where the tasks are; empty if that is not known.
    pub at: Vec<[f64; 3]>,
}

impl Outline {
    /// The bytes on the wire: 8 a task, 24 a place, 33 for the rest.
    pub fn bytes(&self) -> u64 {
        33 + 8 * self.thirds.len() as u64 + 24 * self.at.len() as u64
    }
}

/// The outline of the band with these `tasks` of `me` towards `other`, and the
/// operations. `weight` and `centre` are left for the caller to fill.
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

/// The plane that a border should be: square to the line between two centres, at the
/// mean place of the border.
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    centres: ([f64; 3], [f64; 3]),
    scale: f64,
    mean: f64,
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
        let mut plane = Plane {
            centres,
            scale: shape / (2.0 * apart * length),
            mean: 0.0,
        };
        plane.mean = at.iter().map(|&at| plane.pull(at)).sum::<f64>() / at.len().max(1) as f64;
        (is_known && plane.mean.is_finite()).then_some(plane)
    }

    /// What it is worth that a task here goes over to the second process.
    pub fn pull(&self, at: [f64; 3]) -> f64 {
        let (from, to) = self.centres;
        self.scale * (square_distance(at, from) - square_distance(at, to)) - self.mean
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
        let cuts = Cuts::new(vec![10.0, 12.0, 30.0, 8.0, 0.0]);
        let ragged: Vec<bool> = (0..5).map(|p| cuts.ragged(p)).collect();
        assert_eq!(ragged, [false, false, true, false, false]);
        assert_eq!(cuts.lean(0, 1), 0.0);
        assert!(cuts.lean(2, 0) > 0.3 && cuts.lean(0, 2) == -cuts.lean(2, 0));
        let nothing = Cuts::new(vec![0.0; 3]);
        assert!(!nothing.ragged(1) && nothing.lean(0, 1) == 0.0);
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
        assert!((cells[2] - cells[0] - 0.3).abs() < 1e-12, "{cells:?}");
        assert!(cells.iter().sum::<f64>().abs() < 1e-12);
        assert!(cells.iter().zip(&metres).all(|(a, b)| (a - b).abs() < 1e-9));
        let at = [[0.0; 3]];
        assert!(Plane::new(([0.0; 3], [0.0; 3]), &at, Lengths::default(), 0.3).is_none());
    }
}

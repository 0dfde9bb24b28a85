//! Loads that change with time: a fixed task graph, and weights, speeds and
//! absent processes of each step.
//!
//! Invariants: a step is a pure function of (scenario, step, seed); weights stay
//! finite and above zero.

use outlive_base::rng::{self, Sequence};

use crate::error::BalanceError;
use crate::graph::Graph;
use crate::processes::Processes;

mod surge;

pub use surge::{random_geometric, triangles};

/// Half the thickness of the shock front, in cells.
const FRONT_HALF: f64 = 2.0;

/// A kind of drifting load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// The synthetic Shock of FFMK 2020, section 2.5: 160 x 80 x 80 cells, weight
    /// 4 at a spherical front, else 1; 169 steps. Where the front starts and how
    /// thick it is was not published; here it starts at the middle of the face x
    /// = 0, from where the farthest corner is 169.7 cells away, and moves a cell
    /// a step; it is 4 cells thick.
    Shock,
    /// Like the Cloud of the same source: 36 x 36 x 48 columns of cells, 100
    /// steps. The measured data is not public; here 24 convective cells drift
    /// with a sheared wind, rise, grow and decay, and a task costs 1 plus 8 times
    /// the sum of their Gaussian concentrations there, with 10% noise.
    Cloud,
    /// A random geometric-like graph of 20,000 tasks with random weights, of
    /// which a twentieth is drawn anew each step; 50 steps.
    Random,
    /// A box of 64 x 64 tasks with a spot of 20-fold weight that circles; 64
    /// steps.
    HotSpot,
    /// 48 x 48 equal tasks on processes whose speeds wander (noise of the
    /// machine); 60 steps.
    Drift,
    /// 32 x 32 x 8 equal tasks; every tenth step a process is lost, and its tasks
    /// fall to others; 50 steps.
    NodeLoss,
    /// A surge of load in one place, elsewhere at each step: a process there has three times
    /// the average. 256 x 256 cells; 20 steps.
    Surge2d,
    /// The same in 40 x 40 x 40 cells.
    Surge3d,
    /// The same on a random geometric graph of 50,000 tasks.
    SurgeGeometric,
    /// The same on a mesh of triangles with a hole, of nearly 224 x 224 points.
    SurgeTriangles,
}

impl Pattern {
    /// All kinds.
    pub const ALL: [Pattern; 10] = [
        Pattern::Shock,
        Pattern::Cloud,
        Pattern::Random,
        Pattern::HotSpot,
        Pattern::Drift,
        Pattern::NodeLoss,
        Pattern::Surge2d,
        Pattern::Surge3d,
        Pattern::SurgeGeometric,
        Pattern::SurgeTriangles,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Pattern::Shock => "shock",
            Pattern::Cloud => "cloud",
            Pattern::Random => "random",
            Pattern::HotSpot => "hot-spot",
            Pattern::Drift => "drift",
            Pattern::NodeLoss => "node-loss",
            Pattern::Surge2d => "surge-2d",
            Pattern::Surge3d => "surge-3d",
            Pattern::SurgeGeometric => "surge-geometric",
            Pattern::SurgeTriangles => "surge-triangles",
        }
    }

    /// True for loads that are large and in one place.
    pub const fn is_surge(self) -> bool {
        matches!(
            self,
            Pattern::Surge2d | Pattern::Surge3d | Pattern::SurgeGeometric | Pattern::SurgeTriangles
        )
    }

    /// The number of steps of the full scenario.
    pub const fn steps(self) -> u32 {
        match self {
            Pattern::Shock => 169,
            Pattern::Cloud => 100,
            Pattern::HotSpot => 64,
            Pattern::Drift => 60,
            Pattern::Random | Pattern::NodeLoss => 50,
            Pattern::Surge2d
            | Pattern::Surge3d
            | Pattern::SurgeGeometric
            | Pattern::SurgeTriangles => 20,
        }
    }
}

/// A scenario, ready to be stepped through.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its kind.
    pub kind: Pattern,
    /// The task graph with the weights of the current step.
    pub graph: Graph,
    /// The processes of the current step.
    pub processes: Processes,
    seed: u64,
    /// Extent along each axis, for the mesh kinds.
    size: [usize; 3],
}

impl Scenario {
    /// A scenario on `processes` processes, at step 0. `shrink` divides the
    /// extent of the graph along each axis (1: full size), for quick runs.
    ///
    /// # Errors
    /// Without processes.
    pub fn new(
        kind: Pattern,
        processes: usize,
        shrink: usize,
        seed: u64,
    ) -> Result<Scenario, BalanceError> {
        let full = match kind {
            Pattern::Shock => [160, 80, 80],
            Pattern::Cloud => [36, 36, 48],
            Pattern::Random => [20_000, 1, 1],
            Pattern::HotSpot => [64, 64, 1],
            Pattern::Drift => [48, 48, 1],
            Pattern::NodeLoss => [32, 32, 8],
            Pattern::Surge2d => [256, 256, 1],
            Pattern::Surge3d => [40, 40, 40],
            Pattern::SurgeGeometric => [50_000, 1, 1],
            Pattern::SurgeTriangles => [224, 224, 1],
        };
        let size = full.map(|extent: usize| (extent / shrink.max(1)).max(1));
        let graph = match kind {
            Pattern::Random => random_graph(size[0], 6, seed)?,
            Pattern::SurgeGeometric => random_geometric(size[0], 12.0, seed)?,
            Pattern::SurgeTriangles => triangles(size[0], size[1], seed)?,
            _ => Graph::mesh(size[0], size[1], size[2]),
        };
        let mut scenario = Scenario {
            kind,
            graph,
            processes: Processes::uniform(processes)?,
            seed,
            size,
        };
        scenario.go_to(0)?;
        Ok(scenario)
    }

    /// Sets weights and processes to those of a step.
    ///
    /// # Errors
    /// None for the scenarios here; the checks are those of the setters.
    pub fn go_to(&mut self, step: u32) -> Result<(), BalanceError> {
        let weights: Vec<f64> = match self.kind {
            Pattern::Shock => self.over_cells(|at| shock(at, self.size, step)),
            Pattern::Cloud => self.cloud(step),
            Pattern::HotSpot => self.over_cells(|at| hot_spot(at, self.size, step)),
            Pattern::Random => self.drawn(step),
            Pattern::Drift | Pattern::NodeLoss => vec![1.0; self.graph.tasks()],
            _ => surge::weights(&self.graph, step, self.seed),
        };
        self.graph.set_weights(&weights)?;
        let count = self.processes.count() as u32;
        if self.kind == Pattern::Drift {
            for process in 0..count {
                let speed = drifting_speed(self.seed, process, step);
                self.processes.set_speed(process, speed)?;
            }
        }
        if self.kind == Pattern::NodeLoss {
            // All losses up to this step, whatever step was shown before.
            self.processes = Processes::uniform(self.processes.count())?;
            for at in (10..=step).step_by(10) {
                let lost = rng::below(rng::draw(self.seed, 77, u64::from(at)), u64::from(count));
                // The last process cannot be lost; the scenario then goes on with it.
                let _ = self.processes.remove(lost as u32);
            }
        }
        Ok(())
    }

    fn over_cells(&self, weight: impl Fn([f64; 3]) -> f64) -> Vec<f64> {
        let all = self.graph.coordinates().unwrap_or(&[]);
        all.iter().map(|&at| weight(at)).collect()
    }

    fn drawn(&self, step: u32) -> Vec<f64> {
        let weight = |task: u64| {
            // A twentieth of the tasks changes at each step: in turn.
            let epoch = (u64::from(step) + task % 20) / 20;
            1.0 + rng::below(rng::draw(self.seed, task, epoch), 8) as f64
        };
        (0..self.graph.tasks() as u64).map(weight).collect()
    }

    fn cloud(&self, step: u32) -> Vec<f64> {
        let [x, y, z] = self.size.map(|extent| extent as f64);
        let time = f64::from(step);
        let cells: Vec<([f64; 3], f64, f64)> = (0..24u64)
            .map(|cell| {
                let mut random = Sequence::new(self.seed, 1000 + cell);
                let mut unit = || random.below(1 << 30) as f64 / f64::from(1 << 30);
                let (x0, y0, z0, life, birth) =
                    (unit(), unit(), unit(), 20.0 + 40.0 * unit(), unit());
                let age = (time + birth * life) % life;
                let height = z * (0.1 + 0.3 * z0) + 0.5 * z * age / life;
                let wind = 0.1 + 0.25 * height / z;
                let at = [
                    (x * x0 + wind * time) % x,
                    (y * y0 + 0.08 * time) % y,
                    height,
                ];
                let strength = libm::sin(core::f64::consts::PI * age / life);
                (at, strength, 2.0 + 3.0 * strength)
            })
            .collect();
        let noise =
            |task: u64| rng::below(rng::draw(self.seed, task, u64::from(step)), 1 << 20) as f64;
        let weight = |(at, task): (&[f64; 3], u64)| {
            let mut sum = 0.0;
            for (centre, strength, radius) in &cells {
                let mut square = 0.0;
                for axis in 0..3 {
                    let mut gap = (at[axis] - centre[axis]).abs();
                    if axis < 2 {
                        gap = gap.min([x, y, z][axis] - gap);
                    }
                    square += gap * gap;
                }
                sum += strength * libm::exp(-square / (2.0 * radius * radius));
            }
            (1.0 + 8.0 * sum) * (0.95 + 0.1 * noise(task) / f64::from(1 << 20))
        };
        let all = self.graph.coordinates().unwrap_or(&[]);
        all.iter().zip(0..).map(weight).collect()
    }
}

fn shock(at: [f64; 3], size: [usize; 3], step: u32) -> f64 {
    let (y, z) = (
        at[1] - (size[1] as f64 - 1.0) / 2.0,
        at[2] - (size[2] as f64 - 1.0) / 2.0,
    );
    let radius = libm::sqrt(at[0] * at[0] + y * y + z * z);
    if (radius - f64::from(step)).abs() <= FRONT_HALF {
        4.0
    } else {
        1.0
    }
}

fn hot_spot(at: [f64; 3], size: [usize; 3], step: u32) -> f64 {
    let angle = f64::from(step) * core::f64::consts::PI / 32.0;
    let (x, y) = (size[0] as f64 / 2.0, size[1] as f64 / 2.0);
    let (dx, dy) = (
        at[0] - x - 0.6 * x * libm::cos(angle),
        at[1] - y - 0.6 * y * libm::sin(angle),
    );
    if dx * dx + dy * dy < 0.02 * x * y {
        20.0
    } else {
        1.0
    }
}

fn drifting_speed(seed: u64, process: u32, step: u32) -> f64 {
    let mut random = Sequence::new(seed, 5_000_000 + u64::from(process));
    let phase = random.below(1 << 20) as f64 / f64::from(1 << 20);
    let period = 20.0 + random.below(40) as f64;
    let turn = 2.0 * core::f64::consts::PI * (f64::from(step) / period + phase);
    1.0 + 0.25 * libm::sin(turn)
}

/// A connected random graph: a ring, and chords to tasks not far away so that
/// partitions with small cuts exist; about `degree` neighbours a task, weights
/// 1 to 8, edge weights 1 to 4.
///
/// # Errors
/// None: the checks are those of [`Graph::from_edges`].
pub fn random_graph(tasks: usize, degree: usize, seed: u64) -> Result<Graph, BalanceError> {
    let mut random = Sequence::new(seed, 9);
    let mut edges = Vec::new();
    let count = tasks as u64;
    for task in 0..count {
        if task + 1 < count {
            edges.push((task as u32, task as u32 + 1, 1.0 + random.below(4) as f64));
        }
        for _ in 0..degree.saturating_sub(2) / 2 {
            let reach = 1 + random.below((count / 8).max(2));
            let to = (task + 1 + random.below(reach)) % count.max(1);
            if to != task {
                edges.push((task as u32, to as u32, 1.0 + random.below(4) as f64));
            }
        }
    }
    let weights = (0..tasks).map(|_| 1.0 + random.below(8) as f64).collect();
    Graph::from_edges(tasks, &edges, weights)
}

/// Work like that of tables 2 and 3 of HPC Colony 2006, section 2.4, with 8,192 and
/// 16,384 processors there: eight tasks a processor in a two-dimensional mesh, a
/// fifth of them twice as heavy, and where they are.
///
/// # Errors
/// Processes that are no multiple of 64: the mesh has rows of 512 tasks.
pub fn colony(processes: usize) -> Result<(Graph, Processes, Vec<u32>), BalanceError> {
    if processes == 0 || !processes.is_multiple_of(64) {
        return Err(BalanceError::Value {
            what: "the number of processes, which must be a multiple of 64,",
            value: processes as f64,
        });
    }
    let rows = processes / 64;
    let mut graph = Graph::mesh(512, rows, 1);
    let weight = |t: usize| if (t / 512) * 5 < rows { 2.0 } else { 1.0 };
    graph.set_weights(&(0..graph.tasks()).map(weight).collect::<Vec<_>>())?;
    let parts = (0..graph.tasks() as u32).map(|task| task / 8).collect();
    Ok((graph, Processes::uniform(processes)?, parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_every_scenario_is_defined_and_repeats() {
        for kind in Pattern::ALL {
            let mut a = Scenario::new(kind, 9, 4, 3).unwrap();
            for step in 0..kind.steps() {
                a.go_to(step).unwrap();
            }
            let mut b = Scenario::new(kind, 9, 4, 3).unwrap();
            b.go_to(kind.steps() - 1).unwrap();
            assert_eq!(
                (&a.graph, &a.processes),
                (&b.graph, &b.processes),
                "{kind:?}"
            );
            let start = Scenario::new(kind, 9, 4, 3).unwrap();
            a.go_to(0).unwrap();
            assert_eq!((a.graph, a.processes), (start.graph, start.processes));
        }
    }

    #[test]
    fn the_front_crosses_the_whole_box_in_169_steps() {
        let size = [160, 80, 80];
        assert_eq!(shock([0.0, 39.5, 39.5], size, 0), 4.0);
        assert_eq!(shock([159.0, 0.0, 0.0], size, 168), 4.0);
        assert_eq!(shock([159.0, 0.0, 0.0], size, 100), 1.0);
    }
}

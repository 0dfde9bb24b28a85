//! The strip of tasks on one side of a border between two processes: all that a
//! process tells its neighbour so that one of them can refine the border, or the part
//! of the border that changed.
//!
//! Invariants: tasks ascend; every edge leads to a task of this band or to one of the
//! other process, in its band or not (edges into the process behind the band are summed
//! up in `anchor`, edges to third processes stay cut whatever happens and are left out).

use crate::graph::Graph;

/// One side of a border.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Band {
    /// The tasks, ascending.
    pub tasks: Vec<u32>,
    /// Their weights.
    pub weights: Vec<f64>,
    /// The process of each before this balancing began.
    pub homes: Vec<u32>,
    /// Edge weight from each into its process behind the band.
    pub anchors: Vec<f64>,
    /// Rows of `to` and `edges`: one more than tasks.
    pub offsets: Vec<u32>,
    /// Neighbours in this band or across the border.
    pub to: Vec<u32>,
    /// The weights of these edges.
    pub edges: Vec<f64>,
    /// More about the border, if one of the two processes is ragged.
    pub outline: Option<Outline>,
    /// Load of the whole process, background included.
    pub load: f64,
    /// Its speed.
    pub speed: f64,
    /// Tasks of the whole process.
    pub count: usize,
}

impl Band {
    /// The bytes of the band on the wire: 28 a task, 12 an edge, 24 for the rest; those
    /// of the outline.
    pub fn bytes(&self) -> u64 {
        let outline = self.outline.as_ref().map_or(0, Outline::bytes);
        outline + 24 + 28 * self.tasks.len() as u64 + 12 * self.to.len() as u64
    }
}

/// What a band tells in addition if one of the two processes is ragged.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outline {
    /// What a cut edge at the process weighs.
    pub weight: f64,
    /// How far the border may be drawn to where cubes would meet ([`crate::outline::Cuts::reach`]).
    pub reach: f64,
    /// The centre of all tasks of the process, if known.
    pub centre: Option<[f64; 3]>,
    /// Edge weight from each task of the band to third processes.
    pub thirds: Vec<f64>,
    /// Where the tasks are; empty if that is not known.
    pub at: Vec<[f64; 3]>,
}

impl Outline {
    /// The bytes on the wire: 8 a task, 24 a place, 41 for the rest.
    pub fn bytes(&self) -> u64 {
        41 + 8 * self.thirds.len() as u64 + 24 * self.at.len() as u64
    }
}

/// Marks for breadth-first search, one entry a task.
#[derive(Debug)]
pub struct Marks {
    stamp: Vec<u32>,
    round: u32,
}

impl Marks {
    /// For so many tasks.
    pub fn new(tasks: usize) -> Marks {
        Marks {
            stamp: vec![0; tasks],
            round: 0,
        }
    }
    fn begin(&mut self) {
        self.round += 1;
    }
    fn mark(&mut self, task: u32) -> bool {
        let fresh = self.stamp[task as usize] != self.round;
        self.stamp[task as usize] = self.round;
        fresh
    }
    fn has(&self, task: u32) -> bool {
        self.stamp[task as usize] == self.round
    }
}

/// The band of `me` towards `other`, `depth` layers deep (at least the border).
/// `border` holds tasks of `me` that touch `other`; entries that no longer are that are
/// skipped, and the border tasks that it does not hold stay where they are unless they
/// are in another layer. Returns the operations too. `load`, `speed`, `count` and
/// `outline` are left for the caller to fill.
pub fn band(
    graph: &Graph,
    owner: &[u32],
    home: &[u32],
    (me, other): (u32, u32),
    border: &[u32],
    depth: u32,
    marks: &mut Marks,
) -> (Band, u64) {
    marks.begin();
    let mut operations = 0;
    let mut tasks = Vec::with_capacity(border.len());
    // The border: what touches the other process, and what it leads to behind itself.
    let mut behind = Vec::new();
    for &task in border {
        if owner[task as usize] != me || marks.has(task) {
            continue;
        }
        let start = behind.len();
        let mut touches = false;
        for &near in graph.near(task) {
            let process = owner[near as usize];
            touches |= process == other;
            if process == me && depth > 1 {
                behind.push(near);
            }
        }
        operations += graph.degree(task) as u64;
        if touches {
            marks.mark(task);
            tasks.push(task);
        } else {
            behind.truncate(start);
        }
    }
    for layer in 1..depth.max(1) {
        let first = tasks.len();
        tasks.extend(behind.drain(..).filter(|&near| marks.mark(near)));
        if layer + 1 == depth || tasks.len() == first {
            break;
        }
        for &task in &tasks[first..] {
            operations += graph.degree(task) as u64;
            let near = graph.near(task).iter().copied();
            behind.extend(near.filter(|&near| owner[near as usize] == me));
        }
    }
    tasks.sort_unstable();
    let (count, ends) = (
        tasks.len(),
        tasks.iter().map(|&task| graph.degree(task)).sum(),
    );
    let mut out = Band {
        offsets: Vec::with_capacity(count + 1),
        to: Vec::with_capacity(ends),
        edges: Vec::with_capacity(ends),
        anchors: Vec::with_capacity(count),
        weights: Vec::with_capacity(count),
        homes: Vec::with_capacity(count),
        ..Band::default()
    };
    out.offsets.push(0);
    for &task in &tasks {
        let mut anchor = 0.0;
        for (near, edge) in graph.adjacent(task) {
            let process = owner[near as usize];
            if process == other || (process == me && marks.has(near)) {
                out.to.push(near);
                out.edges.push(edge);
            } else if process == me {
                anchor += edge;
            }
        }
        operations += graph.degree(task) as u64;
        out.offsets.push(out.to.len() as u32);
        out.anchors.push(anchor);
        out.weights.push(graph.weight(task));
        out.homes.push(home[task as usize]);
    }
    out.tasks = tasks;
    (out, operations)
}

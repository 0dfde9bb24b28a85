//! Cycles that are followed until one ends as the first began, and what is to come when that
//! takes too long.
//!
//! What has not returned soon goes its way in nearly fixed proportions, and becomes less by
//! nearly the same factor in as many cycles. So the sums of all cycles follow from those of two
//! stretches of as many cycles: the tail is a geometric series.

use super::graph::Graph;

/// Cycles until one ends as the first began, which nearly all do; what is left then is so
/// little that where it begins does not matter.
const CYCLES_MAX: usize = 2_000;
/// Within a cycle so much of what is on its way may wait for the next: it is not lost.
const WAITS: f64 = 0.2;
/// What has not returned may be so much more than what is on its way: it differs from what
/// has in little.
const RETURNED: f64 = 1e3;
const RETURNED_MAX: f64 = 1e-3;
/// If more of the cycles that have begun is not over, and fewer than three cycles are, there is
/// no result. What is not over goes about as fast as what is, so that this is far more than the
/// error that it leaves.
const UNFINISHED_MAX: f64 = 1e-2;
/// Above, nothing has returned that would tell how long it takes: the last stretch is what will
/// always be.
const NOTHING_RETURNS: f64 = 0.999;

/// What cycles took.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Sums {
    /// Of computing, of checkpoints and of restarts.
    pub seconds: [f64; 3],
    /// New beginnings.
    pub anew: f64,
    /// Cycles that were gone forward, less those that were thrown back.
    pub ended: f64,
}

impl Sums {
    fn with(self, other: Sums, factor: f64) -> Sums {
        let seconds = [0, 1, 2].map(|part| self.seconds[part] + factor * other.seconds[part]);
        Sums {
            seconds,
            anew: self.anew + factor * other.anew,
            ended: self.ended + factor * other.ended,
        }
    }
}

/// The cycles so far.
pub(super) struct Followed {
    /// Cycles that have begun.
    begun: f64,
    /// At the end of each cycle: the sums, and how many cycles had begun.
    marks: Vec<(Sums, f64)>,
    returned: bool,
}

impl Followed {
    /// One cycle has begun.
    pub fn new() -> Followed {
        Followed {
            begun: 1.0,
            marks: Vec::new(),
            returned: false,
        }
    }

    fn so_far(&self, graph: &Graph) -> Sums {
        let sums = graph.sums;
        Sums {
            seconds: sums.seconds,
            anew: sums.anew,
            ended: self.begun - sums.again,
        }
    }

    /// Lets the next cycle begin; how much of it does.
    pub fn wrap(&mut self, graph: &mut Graph, usual: u32) -> f64 {
        let more = graph.wrap(usual);
        self.begun += more;
        more
    }

    /// Cycles until one ends where the first began, or so many edges have been followed.
    pub fn until_returned(&mut self, graph: &mut Graph, usual: u32, left: f64, pushed_max: u64) {
        // Other states stand for some now, or more are known: other proportions.
        self.marks.clear();
        let mut more = 0.0_f64;
        for _ in 0..CYCLES_MAX {
            if !graph.drain(left.max(WAITS * more), pushed_max) {
                break;
            }
            more = self.wrap(graph, usual);
            self.marks.push((self.so_far(graph), self.begun));
            self.returned = more <= (left * RETURNED).min(RETURNED_MAX);
            if self.returned {
                break;
            }
        }
    }

    /// Of all cycles until all have returned. None if too few were followed.
    pub fn sums(&self, graph: &Graph) -> Option<Sums> {
        let (now, unfinished) = (self.so_far(graph), graph.unfinished());
        let count = self.marks.len();
        if self.returned || count < 3 {
            let ended = now.ended - unfinished;
            let over = unfinished <= UNFINISHED_MAX * self.begun;
            return over.then_some(Sums { ended, ..now });
        }
        // Means over thirds, in which what swings goes out.
        let third = count / 3;
        let mean = |back: usize| {
            let from = count - (back + 1) * third;
            let marks = &self.marks[from..from + third];
            let all = (Sums::default(), 0.0);
            marks.iter().fold(all, |(sums, begun), mark| {
                let share = 1.0 / third as f64;
                (sums.with(mark.0, share), begun + share * mark.1)
            })
        };
        let (first, middle, last) = (mean(2), mean(1), mean(0));
        let stretch = last.0.with(middle.0, -1.0);
        let remains = (last.1 - middle.1) / (middle.1 - first.1);
        Some(match remains < NOTHING_RETURNS {
            true => last.0.with(stretch, remains / (1.0 - remains)),
            false => stretch,
        })
    }
}

//! Refinement of the borders, two processes at a time.

use crate::band::{Band, band};
use crate::cost::Phase;
use crate::diffusion::run::Run;
use crate::outline::outline;
use crate::refine::{Goal, refine};
use crate::schedule;
use crate::select::Move;

impl Run<'_> {
    /// One or more sweeps of refinement over the pairs whose border changed, or of
    /// which one is above the limit. True if a task moved.
    pub(super) fn sweep(&mut self, round: u32) -> bool {
        self.ledger.begin(Phase::Refine);
        let mut any = false;
        for sweep in 0..self.options.sweeps {
            let seed = self.options.seed ^ u64::from(round * 64 + sweep);
            let ideal = self.processes.ideal(&self.loads);
            let goal = Goal {
                level_max: ideal * (1.0 + self.options.tolerance),
                edge: self.edge,
                price: self.price,
                passes: self.options.passes,
                shape: self.options.shape * self.edge,
            };
            let pairs = self.active(goal.level_max);
            let (pairs, _) = schedule::order(self.counts.len(), pairs, seed);
            let mut moved = false;
            // What moves from now on is for this sweep and for the next.
            let since = self.stamp;
            self.stamp += 1;
            for pair in pairs {
                moved |= self.refine_pair(pair, since, &goal);
            }
            any |= moved;
            if !moved {
                break;
            }
        }
        any
    }

    /// The pairs to refine, ascending: those that share a border that changed, or
    /// of which one is above the limit, or ragged. Both ends know: moves and loads are told to
    /// the neighbours.
    fn active(&mut self, level_max: f64) -> Vec<(u32, u32)> {
        let mut pairs = core::mem::take(&mut self.changed);
        let processes = 0..self.counts.len() as u32;
        for me in processes.filter(|&p| self.processes.present(p)) {
            if self.level(me) > level_max || self.cuts.ragged(me) {
                let near = self.borders.of(me).iter().map(|entry| entry.0);
                pairs.extend(near.map(|other| (me.min(other), me.max(other))));
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        let borders = &self.borders;
        pairs.retain(|&(a, b)| !borders.towards(a, b).is_empty());
        pairs
    }

    fn level(&self, process: u32) -> f64 {
        self.loads[process as usize] / self.processes.speeds()[process as usize]
    }

    fn refine_pair(&mut self, (a, b): (u32, u32), since: u32, goal: &Goal) -> bool {
        // In balance only what changed is looked at; else, and at ragged processes, any
        // task may help.
        let over = self.level(a).max(self.level(b)) > goal.level_max;
        let whole = over || self.cuts.ragged_pair(a, b);
        let since = if whole { 0 } else { since };
        let left = self.half((a, b), since);
        let right = self.half((b, a), since);
        if left.tasks.is_empty() && right.tasks.is_empty() {
            return false;
        }
        let refined = refine((a, b), (&left, &right), goal);
        let gives = refined.moves.iter().any(|moved| moved.to == b);
        self.ledger.work_together((a, b), refined.operations, gives);
        self.ledger.send(a, 1, left.bytes());
        self.ledger.send(b, 1, 16 + 8 * refined.moves.len() as u64);
        for from in [a, b] {
            let leaving = refined
                .moves
                .iter()
                .filter(|m| self.owner[m.task as usize] == from);
            let leaving: Vec<Move> = leaving.filter(|m| m.to != from).copied().collect();
            self.announce(from, 1, &leaving);
            self.apply(from, &leaving);
        }
        !refined.moves.is_empty()
    }

    fn half(&mut self, (me, other): (u32, u32), since: u32) -> Band {
        let near = self.borders.towards(me, other).iter();
        let near = near.map(|entry| entry.1);
        let border: Vec<u32> = near
            .filter(|&task| self.touched[task as usize] >= since)
            .collect();
        let seen = self.borders.towards(me, other).len() as u64;
        self.ledger.work(me, seen);
        let (mut half, operations) = band(
            self.graph,
            &self.owner,
            &self.home,
            (me, other),
            &border,
            self.options.band_depth,
            &mut self.marks,
        );
        if self.cuts.ragged_pair(me, other) {
            let (mut outline, operations) =
                outline(self.graph, &self.owner, (me, other), &half.tasks);
            outline.weight = self.cuts.weight(me);
            outline.reach = self.cuts.reach(me);
            outline.centre = self.centres[me as usize];
            half.outline = Some(outline);
            self.ledger.work(me, operations);
        }
        half.load = self.loads[me as usize];
        half.speed = self.processes.speeds()[me as usize];
        half.count = self.counts[me as usize];
        self.ledger.work(me, operations);
        half
    }
}

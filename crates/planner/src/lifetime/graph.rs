//! States by position, and the probability that is pushed along them.
//!
//! A state is *known* once its step has been made; before that it only collects what comes
//! to it. Known steps are flat lists of numbers, so that pushing, which is most of the work,
//! touches nothing else.
//!
//! Invariant: `rows[p].mass` is at least what the states of position p hold that will be
//! pushed; the end of the cycle holds what it was given.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::ages::Grid;
use super::chain::{Chain, Held, State};

/// What failed behind the front is fetched when it is more than this share of the front.
const BEHIND_MAX: f64 = 0.3;
/// A return fetches so much of what is behind: the rest lies too far back to be worth it.
const FETCHED: f64 = 0.9;
/// So many states of a position are looked at for one that stands for another: those that
/// were known first, which are visited most.
const STAND_INS: usize = 24;
/// A state keeps what is less than the tolerance over the number of states and this: to push
/// it takes as long as to push much.
const LITTLE: f64 = 32.0;
/// To make a state known takes about as long as to follow so many edges.
const STEP_WORK: u64 = 100;
/// It is looked for so many positions around.
const NEAR: i64 = 128;
/// Unknown.
const NO: u32 = u32::MAX;

/// A step with numbers in place of states.
#[derive(Clone, Copy)]
struct Known {
    /// Its edges: from here on, so many.
    from: u32,
    count: u32,
    /// Probability to begin anew; expected further cycles.
    anew: f64,
    again: f64,
    seconds: [f64; 3],
    /// Probability that goes to a state that stands for another.
    stood: f64,
    /// How often the state follows itself, all told.
    turns: f64,
}

/// What pushing touches of a state.
#[derive(Clone, Copy)]
struct Cell {
    /// Probability that waits here.
    residue: f64,
    position: i32,
    known: bool,
}

/// States of a position.
#[derive(Default)]
struct Row {
    /// Digest and number.
    states: Vec<(u64, u32)>,
    /// Known ones, or about to be, in the order in which they are pushed: restarts come
    /// first, for computing at the same position follows them.
    known: Vec<u32>,
    restarts: usize,
    mass: f64,
}

impl Row {
    fn add(&mut self, number: u32, restart: bool) {
        if self.known.contains(&number) {
            return;
        }
        match restart {
            true => {
                self.known.insert(self.restarts, number);
                self.restarts += 1;
            }
            false => self.known.push(number),
        }
    }
}

/// What a cycle takes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Sums {
    pub seconds: [f64; 3],
    /// Expected new beginnings.
    pub anew: f64,
    /// Probability that went to states which stand for others.
    pub stood: f64,
    /// Expected further cycles, from versions of long ago.
    pub again: f64,
}

pub(super) struct Graph<'a> {
    chain: Chain<'a>,
    /// Which ages versions may have.
    grid: Grid,
    length: i64,
    /// Probability that makes a state known.
    slack: f64,
    /// The states at the beginning of a cycle that are those at the end of the one before.
    starts: BTreeMap<u32, (u32, f64)>,
    /// What a state may keep.
    little: f64,
    /// No more states become known.
    frozen: bool,
    rows: Vec<Row>,
    places: Vec<(i64, State)>,
    cells: Vec<Cell>,
    steps: Vec<Known>,
    edges: Vec<(u32, f64)>,
    /// Known states, and how many there may be.
    pub states: usize,
    states_max: usize,
    /// Edges that were followed.
    pub pushed: u64,
    pub sums: Sums,
}

impl<'a> Graph<'a> {
    /// No states yet; at most so many will be known.
    pub fn new(chain: Chain<'a>, grid: Grid, length: i64, states_max: usize) -> Graph<'a> {
        Graph {
            chain,
            grid,
            length,
            slack: 1.0,
            starts: BTreeMap::new(),
            little: 0.0,
            frozen: false,
            rows: Vec::new(),
            places: Vec::new(),
            cells: Vec::new(),
            steps: Vec::new(),
            edges: Vec::new(),
            states: 0,
            states_max,
            pushed: 0,
            sums: Sums::default(),
        }
    }

    fn row(&mut self, position: i64) -> &mut Row {
        let at = position as usize;
        while at >= self.rows.len() {
            self.rows.push(Row::default());
        }
        &mut self.rows[at]
    }

    fn number(&mut self, position: i64, state: State) -> u32 {
        let (kind, held) = match &state {
            State::Restart(level, held) => (u64::from(*level), held),
            State::Run(held) => (u64::MAX, held),
        };
        let digest = held.digest() ^ kind;
        let at = self.row(position).states.len();
        let index = position as usize;
        for place in 0..at {
            let (other, number) = self.rows[index].states[place];
            if other == digest && self.places[number as usize].1 == state {
                return number;
            }
        }
        let number = self.places.len() as u32;
        self.rows[index].states.push((digest, number));
        self.places.push((position, state));
        self.cells.push(Cell {
            residue: 0.0,
            position: position as i32,
            known: false,
        });
        self.steps.push(Known {
            from: NO,
            count: 0,
            anew: 0.0,
            again: 0.0,
            stood: 0.0,
            seconds: [0.0; 3],
            turns: 1.0,
        });
        number
    }

    /// The state at the beginning of a cycle.
    pub fn start(&mut self, held: &Held) -> u32 {
        self.number(0, State::Run(held.clone()))
    }

    /// Probability at the beginning of the cycle.
    pub fn begin(&mut self, number: u32, mass: f64) {
        self.give(number, mass);
    }

    /// States at the end of the cycle that were reached.
    fn ends(&self) -> Vec<u32> {
        let at = usize::try_from(self.length).unwrap_or(usize::MAX);
        let states = self.rows.get(at).map_or(&[][..], |row| &row.states);
        let reached = states.iter().map(|&(_, number)| number);
        reached
            .filter(|&number| self.cells[number as usize].residue != 0.0)
            .collect()
    }

    /// The beginning of a cycle that goes on where most have ended.
    pub fn usual_end(&mut self) -> Option<u32> {
        let mass = |number: &u32| self.cells[*number as usize].residue;
        let most = self
            .ends()
            .into_iter()
            .max_by(|a, b| mass(a).total_cmp(&mass(b)))?;
        Some(self.next_start(most).0)
    }

    /// Where a cycle goes on from the end of the one before, and how many cycles later.
    fn next_start(&mut self, end: u32) -> (u32, f64) {
        if let Some(&start) = self.starts.get(&end) {
            return start;
        }
        let state = self.places[end as usize].1.clone();
        let mut start = (self.number(0, state), 0.0);
        if self.frozen && !self.cells[start.0 as usize].known {
            start = self.stand_in(start.0 as usize).unwrap_or(start);
        }
        self.starts.insert(end, start);
        start
    }

    /// Begins the next cycle with what has ended, unless it would begin at `usual`; returns
    /// how much that is.
    pub fn wrap(&mut self, usual: u32) -> f64 {
        let mut more = 0.0;
        for end in self.ends() {
            let mass = std::mem::take(&mut self.cells[end as usize].residue);
            let (start, cycles) = self.next_start(end);
            self.sums.again += cycles * mass;
            if start != usual {
                self.give(start, mass);
                more += mass;
            }
        }
        more
    }

    /// Begins again, with the states that are known.
    pub fn forget(&mut self) {
        self.cells.iter_mut().for_each(|cell| cell.residue = 0.0);
        self.rows.iter_mut().for_each(|row| row.mass = 0.0);
        self.sums = Sums::default();
    }

    fn give(&mut self, number: u32, mass: f64) {
        let cell = &mut self.cells[number as usize];
        let before = cell.residue;
        let now = before + mass;
        cell.residue = now;
        let position = i64::from(cell.position);
        if !cell.known && (now < self.slack || position >= self.length) {
            return;
        }
        let first = !cell.known && before < self.slack;
        let row = &mut self.rows[position as usize];
        row.mass += if first { now } else { mass };
        if first {
            let restart = matches!(self.places[number as usize].1, State::Restart(..));
            row.add(number, restart);
        }
    }

    /// Lets states of so much probability become known.
    pub fn refine(&mut self, slack: f64) {
        self.slack = slack;
        for number in 0..self.places.len() {
            let (position, mass) = (self.places[number].0, self.cells[number].residue);
            if position < self.length && !self.cells[number].known && mass >= slack {
                let row = &mut self.rows[position as usize];
                row.mass += mass;
                let restart = matches!(self.places[number].1, State::Restart(..));
                row.add(number as u32, restart);
            }
        }
    }

    /// What was done so far, in edges that were followed.
    pub fn work(&self) -> u64 {
        self.pushed + STEP_WORK * self.states as u64
    }
    /// Whether no further states may become known.
    pub fn is_full(&self) -> bool {
        self.frozen || self.states >= self.states_max
    }

    fn know(&mut self, number: u32) {
        let (position, state) = self.places[number as usize].clone();
        let step = self.chain.step(position, &state);
        let mut to: Vec<(u32, f64)> = Vec::with_capacity(step.to.len());
        let (mut again, mut itself) = (0.0, 0.0);
        for (by, next, p) in step.to {
            // Before the cycle all is as one or more cycles later.
            let cycles = (-(position + by))
                .max(0)
                .unsigned_abs()
                .div_ceil(self.length.unsigned_abs());
            let place = position + by + cycles as i64 * self.length;
            again += cycles as f64 * p;
            for (next, share) in next.spread(self.grid, self.length as u32) {
                let (next, p) = (self.number(place, next), p * share);
                match to.iter_mut().find(|(known, _)| *known == next) {
                    _ if next == number => itself += p,
                    Some((_, sum)) => *sum += p,
                    None => to.push((next, p)),
                }
            }
        }
        self.steps[number as usize] = Known {
            from: self.edges.len() as u32,
            count: to.len() as u32,
            anew: step.anew,
            again,
            stood: 0.0,
            seconds: step.seconds,
            turns: 1.0 / (1.0 - itself).max(1e-9),
        };
        self.edges.extend(to);
        self.cells[number as usize].known = true;
        self.states += 1;
    }

    /// Pushes what the states of a position hold, but for what is next to nothing: what of it
    /// then waits here or before, and beyond.
    fn push_row(&mut self, position: i64) -> (f64, f64) {
        let index = position as usize;
        let (mut behind, mut forward) = (0.0, 0.0);
        let mut place = 0;
        while let Some(&number) = self.rows[index].known.get(place) {
            place += 1;
            let (back, on) = self.push(number, position);
            (behind, forward) = (behind + back, forward + on);
        }
        let cells = &self.cells;
        let row = &mut self.rows[index];
        let known = row.known.iter().map(|&number| &cells[number as usize]);
        let known = known.filter(|cell| cell.known);
        row.mass = known.map(|cell| cell.residue).sum();
        (behind + row.mass, forward)
    }

    /// What goes before the position, and beyond.
    fn push(&mut self, number: u32, position: i64) -> (f64, f64) {
        let at = number as usize;
        if self.cells[at].residue <= self.little {
            return (0.0, 0.0);
        }
        if !self.cells[at].known {
            if self.is_full() {
                return (0.0, 0.0);
            }
            self.know(number);
        }
        let known = self.steps[at];
        let mass = std::mem::take(&mut self.cells[at].residue) * known.turns;
        for (sum, seconds) in self.sums.seconds.iter_mut().zip(known.seconds) {
            *sum += mass * seconds;
        }
        self.sums.anew += mass * known.anew;
        self.sums.again += mass * known.again;
        self.sums.stood += mass * known.stood;
        self.pushed += u64::from(known.count) + 1;
        let (mut behind, mut forward) = (0.0, 0.0);
        for edge in known.from..known.from + known.count {
            let (to, p) = self.edges[edge as usize];
            self.give(to, mass * p);
            match i64::from(self.cells[to as usize].position).cmp(&position) {
                Ordering::Less => behind += mass * p,
                Ordering::Equal => {}
                Ordering::Greater => forward += mass * p,
            }
        }
        (behind, forward)
    }

    /// Pushes until so little is left, or so many edges have been followed: then false.
    ///
    /// The front moves up. What failures throw back waits until it is worth a return: then
    /// the front begins again where most of it lies. So a short way back, which is common,
    /// is made up for at once, and a long one, which is rare, by few sweeps over the whole.
    pub fn drain(&mut self, tolerance: f64, pushed_max: u64) -> bool {
        // All states together may keep a part of the tolerance.
        self.little = tolerance / (LITTLE * self.states_max as f64);
        let Some(at) = self.rows.iter().position(|row| row.mass > 0.0) else {
            return true;
        };
        let mut position = at as i64;
        // What has been thrown back since the front last went back, and what is ahead of it.
        let (mut thrown, mut ahead) = (0.0, self.masses(position, self.length));
        loop {
            if self.pushed > pushed_max {
                return false;
            }
            let (behind, forward) = self.push_row(position);
            position += 1;
            thrown += behind;
            ahead += forward;
            if position < self.length && thrown <= BEHIND_MAX * ahead {
                ahead -= self.row(position).mass;
                continue;
            }
            ahead = self.masses(position, self.length);
            let behind = self.masses(0, position);
            if ahead + behind <= tolerance {
                return true;
            }
            // Back to where most of it lies; of all, if nothing is ahead.
            let wanted = FETCHED
                * if ahead > 0.0 {
                    thrown.min(behind)
                } else {
                    behind
                };
            let mut fetched = 0.0;
            while position > 0 && fetched < wanted {
                position -= 1;
                fetched += self.row(position).mass;
            }
            thrown = 0.0;
            ahead += fetched - self.row(position).mass;
        }
    }

    /// Cycles that have begun and are not over, by the part of the pattern that is before
    /// what waits.
    pub fn unfinished(&self) -> f64 {
        let waits = self.cells.iter().filter(|cell| cell.residue > 0.0);
        let left = |cell: &Cell| (self.length - i64::from(cell.position)).max(0) as f64;
        let all: f64 = waits.map(|cell| cell.residue * left(cell)).sum();
        all / self.length as f64
    }

    fn masses(&self, from: i64, to: i64) -> f64 {
        let to = (to as usize).min(self.rows.len());
        let from = (from as usize).min(to);
        self.rows[from..to].iter().map(|row| row.mass).sum()
    }

    /// No more states: what comes to one that is not known goes to the one that stands for
    /// it, which is known, and holds nearly the same at the same position of the pattern.
    pub fn freeze(&mut self) {
        self.frozen = true;
        self.starts.clear();
        let mut stand_ins = vec![(NO, 0.0); self.places.len()];
        for (number, stand_in) in stand_ins.iter_mut().enumerate() {
            let unknown = !self.cells[number].known;
            if unknown && self.places[number].0 < self.length {
                *stand_in = self.stand_in(number).unwrap_or((NO, 0.0));
            }
        }
        for number in 0..self.places.len() {
            let Known { from, count, .. } = self.steps[number];
            if from == NO {
                continue;
            }
            for edge in from..from + count {
                let (to, p) = self.edges[edge as usize];
                let (other, cycles) = stand_ins[to as usize];
                if other != NO {
                    self.edges[edge as usize].0 = other;
                    self.steps[number].again += cycles * p;
                    self.steps[number].stood += p;
                }
            }
        }
        for row in &mut self.rows {
            let cells = &self.cells;
            let restarts = row.known[..row.restarts].iter();
            row.restarts = restarts
                .filter(|&&known| cells[known as usize].known)
                .count();
            row.known.retain(|&known| cells[known as usize].known);
            let held = row.known.iter().map(|&known| cells[known as usize].residue);
            row.mass = held.sum();
        }
        for (number, &(other, cycles)) in stand_ins.iter().enumerate() {
            if other != NO {
                let mass = std::mem::take(&mut self.cells[number].residue);
                self.sums.again += cycles * mass;
                self.sums.stood += mass;
                self.give(other, mass);
            }
        }
    }

    /// The known state that stands for another, and how many cycles later it is: one of the
    /// same kind, at the same position of the pattern or as near to it as there is one.
    fn stand_in(&self, number: usize) -> Option<(u32, f64)> {
        let (position, state) = (self.places[number].0, &self.places[number].1);
        for cycle in [0, 1] {
            for off in 0..NEAR.min(self.length) {
                for at in [position + off, position - off] {
                    let at = at + cycle * self.length;
                    if let Some(other) = self.nearest(at, state) {
                        return Some((other, (at - position) as f64 / self.length as f64));
                    }
                }
            }
        }
        None
    }

    /// The known state of a position that is most like another.
    fn nearest(&self, position: i64, state: &State) -> Option<u32> {
        if position < 0 || position >= self.length {
            return None;
        }
        let row = self.rows.get(position as usize)?;
        let distance = |other: &State| match (state, other) {
            (State::Run(a), State::Run(b)) => Some(a.distance(b)),
            (State::Restart(x, a), State::Restart(y, b)) if x == y => Some(a.distance(b)),
            _ => None,
        };
        row.known
            .iter()
            .filter(|&&other| self.cells[other as usize].known)
            .take(STAND_INS)
            .filter_map(|&other| Some((other, distance(&self.places[other as usize].1)?)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(other, _)| other)
    }
}

//! What a method would cost on a real machine: the busiest process's operations,
//! messages and bytes, and the rounds in which everyone waits for a message.
//!
//! The ledger keeps a logical clock per process, of messages and operations: who waits
//! for another goes on from where the later of the two is. So the longest chain of
//! dependent work and messages is counted, not the busiest process, and not the most
//! messages of one chain with the most operations of another.

use serde::Serialize;

use crate::links::Links;

/// LogGP parameters and the speed of the processor.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Network {
    /// Latency L of a message, in microseconds.
    pub latency_us: f64,
    /// Overhead o at each end, in microseconds.
    pub overhead_us: f64,
    /// Gap G, in nanoseconds a byte.
    pub gap_ns: f64,
}

impl Default for Network {
    fn default() -> Network {
        Network {
            latency_us: 1.5,
            overhead_us: 0.2,
            gap_ns: 0.1,
        }
    }
}

/// What a method does at the time, for the account of where the time goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Each looks at its own tasks: loads, borders, neighbours.
    Borders,
    /// Sums over all processes, and the iteration that finds the flow.
    Flow,
    /// Tasks are chosen and handed over.
    Select,
    /// Borders are refined in pairs.
    Refine,
}

const PHASES: usize = 4;

/// Operations that take about as long as a round. Only the answer to which of two chains
/// is the longer one hangs on it.
const ROUND_OPERATIONS: u64 = 500;

/// The cost of one balancing: that of its critical path, the longest chain of work and
/// messages that wait for each other.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Cost {
    /// Iterations of the diffusion, all rounds together.
    pub iterations: u64,
    /// Messages on the critical path, one after the other.
    pub rounds: u64,
    /// Those of them in which the flow was found, sums over all processes included.
    pub rounds_flow: u64,
    /// Those of them that refinement waited for.
    pub rounds_refine: u64,
    /// Messages sent by the busiest process.
    pub messages_max: u64,
    /// Bytes sent by the busiest process.
    pub bytes_max: u64,
    /// Operations on the critical path.
    pub operations_max: u64,
    /// Those of them that looked at each task, and found borders and neighbours.
    pub operations_borders: u64,
    /// Those of them that refined.
    pub operations_refine: u64,
    /// Operations of all processes.
    pub operations_total: u64,
}

impl Cost {
    /// Modelled seconds: rounds x (L + 2o) + bytes x G + operations x
    /// `operation_ns`.
    pub fn seconds(&self, network: &Network, operation_ns: f64) -> f64 {
        let waits = self.rounds as f64 * (network.latency_us + 2.0 * network.overhead_us) * 1e-6;
        let bytes = self.bytes_max as f64 * network.gap_ns * 1e-9;
        waits + bytes + self.operations_max as f64 * operation_ns * 1e-9
    }
}

/// What the chain that ends at a process was made of, by phase.
#[derive(Clone, Copy, Debug, Default)]
struct Chain {
    rounds: [u64; PHASES],
    operations: [u64; PHASES],
}

impl Chain {
    fn length(&self) -> u64 {
        let sum = |all: &[u64; PHASES]| all.iter().sum::<u64>();
        sum(&self.rounds) * ROUND_OPERATIONS + sum(&self.operations)
    }

    fn longer(self, other: Chain) -> Chain {
        if other.length() > self.length() {
            other
        } else {
            self
        }
    }
}

/// Counts per process while a method runs.
#[derive(Clone, Debug)]
pub struct Ledger {
    phase: usize,
    clock: Vec<Chain>,
    messages: Vec<u64>,
    bytes: Vec<u64>,
    /// Iterations so far.
    pub iterations: u64,
    operations: u64,
}

impl Ledger {
    /// For so many processes.
    pub fn new(processes: usize) -> Ledger {
        Ledger {
            phase: Phase::Borders as usize,
            clock: vec![Chain::default(); processes],
            messages: vec![0; processes],
            bytes: vec![0; processes],
            iterations: 0,
            operations: 0,
        }
    }
    /// What follows belongs to this phase.
    pub fn begin(&mut self, phase: Phase) {
        self.phase = phase as usize;
    }
    /// Work of one process.
    pub fn work(&mut self, process: u32, operations: u64) {
        self.clock[process as usize].operations[self.phase] += operations;
        self.operations += operations;
    }
    /// Everyone waits for the last one, and then for so many messages in a row.
    pub fn wait_all(&mut self, rounds: u64) {
        let mut last = Chain::default();
        for chain in &self.clock {
            last = last.longer(*chain);
        }
        last.rounds[self.phase] += rounds;
        self.clock.fill(last);
    }
    /// Everyone waits for a message of each neighbour.
    pub fn wait_neighbours(&mut self, links: &Links) {
        let before = self.clock.clone();
        for process in 0..links.count() as u32 {
            let near = links.neighbours(process).iter();
            let told = near.map(|&other| before[other as usize]);
            if let Some(mut last) = told.reduce(Chain::longer) {
                last.rounds[self.phase] += 1;
                let clock = &mut self.clock[process as usize];
                *clock = clock.longer(last);
            }
        }
    }
    /// `at` works on what `of` tells it, and tells `of` what came out, who then gives
    /// tasks back or does not.
    pub fn work_together(&mut self, (of, at): (u32, u32), operations: u64, gives: bool) {
        let mut told = self.clock[of as usize];
        told.rounds[self.phase] += 1;
        let mut done = self.clock[at as usize].longer(told);
        done.operations[self.phase] += operations;
        let mut answered = done;
        answered.rounds[self.phase] += 1;
        self.clock[of as usize] = answered;
        if gives {
            answered.rounds[self.phase] += 1;
            done = answered;
        }
        self.clock[at as usize] = done;
        self.operations += operations;
    }
    /// Messages that a process sends.
    pub fn send(&mut self, process: u32, messages: u64, bytes: u64) {
        self.messages[process as usize] += messages;
        self.bytes[process as usize] += bytes;
    }
    /// The totals.
    pub fn cost(&self) -> Cost {
        let max = |all: &[u64]| all.iter().copied().max().unwrap_or(0);
        let mut last = Chain::default();
        for chain in &self.clock {
            last = last.longer(*chain);
        }
        Cost {
            iterations: self.iterations,
            rounds: last.rounds.iter().sum(),
            rounds_flow: last.rounds[Phase::Flow as usize],
            rounds_refine: last.rounds[Phase::Refine as usize],
            messages_max: max(&self.messages),
            bytes_max: max(&self.bytes),
            operations_max: last.operations.iter().sum(),
            operations_borders: last.operations[Phase::Borders as usize],
            operations_refine: last.operations[Phase::Refine as usize],
            operations_total: self.operations,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_chain_counts_and_not_the_busiest_of_each_kind() {
        let mut ledger = Ledger::new(3);
        ledger.work(0, 100);
        ledger.begin(Phase::Refine);
        // 1 works on what 0 tells; 2 has nothing to wait for.
        ledger.work_together((0, 1), 1000, false);
        ledger.work(2, 800);
        let cost = ledger.cost();
        assert_eq!((cost.rounds, cost.operations_max), (2, 1100));
        assert_eq!(
            (cost.operations_borders, cost.operations_refine),
            (100, 1000)
        );
        assert_eq!(cost.operations_total, 1900);
        // Given back, the tasks take another message.
        ledger.work_together((1, 2), 10, true);
        assert_eq!(ledger.cost().rounds, 1 + 3);
        ledger.begin(Phase::Flow);
        ledger.wait_all(5);
        assert_eq!((ledger.cost().rounds, ledger.cost().rounds_flow), (9, 5));
        let before = ledger.cost().rounds;
        ledger.work(0, 4);
        ledger.wait_neighbours(&Links::from_pairs(3, [(0, 1)]));
        assert_eq!(ledger.cost().rounds, before + 1);
        assert_eq!(ledger.cost().operations_max, 1114);
    }
}

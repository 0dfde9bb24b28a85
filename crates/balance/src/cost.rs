//! What a method would cost on a real machine: the busiest process's operations,
//! messages and bytes, and the rounds in which everyone waits for a message.
//!
//! The ledger keeps a logical clock per process: a pair that works together
//! starts when both are free, so the longest chain of dependent work is counted,
//! not only the busiest process.

use serde::Serialize;

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

/// The cost of one balancing.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Cost {
    /// Iterations of the diffusion, all rounds together.
    pub iterations: u64,
    /// Steps in which a process waits for a message.
    pub rounds: u64,
    /// Messages sent by the busiest process.
    pub messages_max: u64,
    /// Bytes sent by the busiest process.
    pub bytes_max: u64,
    /// Operations on the longest chain of dependent work.
    pub operations_max: u64,
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

/// Counts per process while a method runs.
#[derive(Clone, Debug)]
pub struct Ledger {
    clock: Vec<u64>,
    messages: Vec<u64>,
    bytes: Vec<u64>,
    /// Iterations so far.
    pub iterations: u64,
    /// Rounds so far.
    pub rounds: u64,
    operations: u64,
}

impl Ledger {
    /// For so many processes.
    pub fn new(processes: usize) -> Ledger {
        Ledger {
            clock: vec![0; processes],
            messages: vec![0; processes],
            bytes: vec![0; processes],
            iterations: 0,
            rounds: 0,
            operations: 0,
        }
    }
    /// Work of one process.
    pub fn work(&mut self, process: u32, operations: u64) {
        self.clock[process as usize] += operations;
        self.operations += operations;
    }
    /// Work of `a` alone that `b` waits for.
    pub fn work_together(&mut self, (a, b): (u32, u32), operations: u64) {
        let start = self.clock[a as usize].max(self.clock[b as usize]);
        self.clock[a as usize] = start + operations;
        self.clock[b as usize] = start + operations;
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
        Cost {
            iterations: self.iterations,
            rounds: self.rounds,
            messages_max: max(&self.messages),
            bytes_max: max(&self.bytes),
            operations_max: max(&self.clock),
            operations_total: self.operations,
        }
    }
}

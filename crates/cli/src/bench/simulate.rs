//! `outlive bench simulate`: what a large simulation costs.

use std::time::Instant;

use outlive_base::Result;
use outlive_protocols::broadcast::tree::Shape;
use outlive_simulator::broadcast::{Broadcasts, Parameters};

use super::machine::{self, Machine};
use super::table::{Goal, Row, Table};
use crate::args::BenchOptions;
use crate::simulate::options::peak_bytes;

/// Processes of the simulated broadcast.
const PROCESSES: u32 = 1 << 20;
/// Goals on a machine of two cores.
const SECONDS_MAX: f64 = 1.0;
const MIB_MAX: f64 = 400.0;

/// Runs the benchmark: each round prepares and runs one fault-free broadcast over a
/// binomial tree with synchronized checked correction.
pub fn measure(options: &BenchOptions) -> Result<Table> {
    let mut table = Table::new("simulate", Machine::here());
    let (mut seconds, mut rates) = (Vec::new(), Vec::new());
    let mut last = None;
    for round in 0..options.rounds.max(1) {
        let start = Instant::now();
        let parameters = Parameters::new(PROCESSES, Shape::Binomial);
        let run = Broadcasts::new(parameters)?.run(round as u64)?;
        let took = start.elapsed().as_secs_f64();
        seconds.push(took);
        rates.push(run.events as f64 / took / 1e6);
        last = Some(run);
    }
    let peak = peak_bytes() as f64 / f64::from(1 << 20);
    table.rows = vec![
        Row::new("one broadcast over 2^20 processes", "s", &seconds)
            .goal(Goal::AtMost(SECONDS_MAX)),
        Row::new("events", "million/s", &rates),
        Row::new("peak memory of the process", "MiB", &[peak]).goal(Goal::AtMost(MIB_MAX)),
    ];
    if let Some(run) = last {
        table.notes.push(format!(
            "simulate: binomial tree, synchronized checked correction, L=2 o=g=1: quiescence {}, \
             {} messages, {} events",
            run.quiescence, run.messages, run.events
        ));
    }
    let note = format!("simulate: load {} at the end", machine::load());
    table.notes.push(note);
    Ok(table)
}

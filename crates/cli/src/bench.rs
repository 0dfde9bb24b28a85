//! `outlive bench save|skip|recovery|simulate`: what checkpoints and simulations cost on
//! this machine.
//!
//! What checkpoints cost is measured on a real job: `outlive run` with keepers and agents, and
//! ranks that are this program again ([`rank`]). Each figure stands beside a limit
//! that was measured in the same run, in turns with it, on memory that is held and
//! touched before; medians, with least and most.

mod machine;
mod rank;
mod recovery;
mod save;
mod session;
mod simulate;
mod skip;
mod table;

use outlive_base::Result;

use crate::args::{BenchOptions, Benchmark};

/// Runs a measurement; 0 even if a goal is missed, for a figure is no failure.
pub fn run(options: &BenchOptions) -> Result<u8> {
    if let Some(role) = &options.role {
        return rank::run(role);
    }
    let table = match options.what {
        Benchmark::Save => save::measure(options)?,
        Benchmark::Skip => skip::measure(options)?,
        Benchmark::Recovery => recovery::measure(options)?,
        Benchmark::Simulate => simulate::measure(options)?,
        Benchmark::All => {
            let mut all = save::measure(options)?;
            all.append(skip::measure(options)?);
            all.append(recovery::measure(options)?);
            all
        }
    };
    table.print(options.json)
}

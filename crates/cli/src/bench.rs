//! `outlive bench save|small|skip|recovery|idle|simulate`: what checkpoints cost on this machine;
//! `outlive bench agents`: see [`agents`]; `outlive bench levels`: see [`levels`], `tiers`: see
//! [`tiers`];
//! `outlive bench balance|hybrid`: see [`balance`]; `outlive bench collectives`: see
//! [`collectives`].
//!
//! What checkpoints cost is measured on a real job: `outlive run` with keepers and agents, and
//! ranks that are this program again ([`rank`]). Each figure stands beside a limit
//! that was measured in the same run, in turns with it, on memory that is held and
//! touched before; medians, with least and most.

mod agents;
mod balance;
mod bytes;
mod collectives;
mod floors;
mod idle;
mod levels;
mod machine;
mod plan;
mod rank;
mod recovery;
mod save;
mod session;
mod simulate;
mod skip;
mod small;
mod table;
mod tiers;

pub use agents::AgentsBench;
use outlive_base::Result;

use crate::args::{BenchOptions, Benchmark};
use crate::memory;

/// Runs a measurement; 0 even if a goal is missed, for a figure is no failure.
pub fn run(options: &BenchOptions) -> Result<u8> {
    if let Some(role) = &options.role {
        if role == session::REMOVE {
            return Ok(session::remove(options.dir.as_deref()));
        }
        let words: Vec<&str> = role.split(':').collect();
        return match words[..] {
            ["collective", ..] => collectives::process::run(&words),
            _ => rank::run(role),
        };
    }
    if let Benchmark::Save | Benchmark::Recovery | Benchmark::All = options.what {
        // The program's memory and two slots for it.
        let what = format!("a program of {} MiB and two slots for it", options.mib);
        memory::fits("mib", &what, (3 * options.mib) << 20)?;
    }
    let table = match options.what {
        Benchmark::Save => save::measure(options)?,
        Benchmark::Skip => skip::measure(options)?,
        Benchmark::Small => small::measure(options)?,
        Benchmark::Recovery => recovery::measure(options)?,
        Benchmark::Idle => idle::measure(options)?,
        Benchmark::Agents => agents::measure(options)?,
        Benchmark::Simulate => simulate::measure(options)?,
        Benchmark::Plan => plan::measure(options)?,
        Benchmark::Collectives => collectives::measure(options)?,
        Benchmark::All => {
            let mut all = save::measure(options)?;
            all.append(skip::measure(options)?);
            all.append(small::measure(options)?);
            all.append(recovery::measure(options)?);
            all.append(idle::measure(options)?);
            all
        }
        Benchmark::Levels => return levels::run(options),
        Benchmark::Tiers => return tiers::run(options),
        Benchmark::Balance => return balance::run(options),
        Benchmark::CollectivesCost => return collectives::cost::print(options),
        Benchmark::Hybrid => return balance::hybrid::run(options),
    };
    table.print(options.json)
}

//! Corrected collectives under failures, one scenario a seed:
//!
//!     cargo run --release -p outlive-simulator --example corrected_sweep -- FIRST COUNT
//!
//! First those that spread and correct each result, then series of calls over trees that
//! are kept. Prints what came of the seeds; ends with 1 if one of them broke the guarantee.

use std::process::ExitCode;

use outlive_simulator::ftco::{corrected, kept, sweep};

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let (Some(Ok(first)), Some(Ok(count))) = (numbers.next(), numbers.next()) else {
        eprintln!("corrected_sweep FIRST COUNT");
        return ExitCode::from(64);
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let seeds = first..first.saturating_add(count);
    let mut broken = false;
    for (name, summary) in [
        (
            "corrected",
            sweep::sweep_of(corrected::one, seeds.clone(), threads, None),
        ),
        (
            "trees kept",
            sweep::sweep_of(kept::one, seeds.clone(), threads, None),
        ),
    ] {
        println!("{name}: {summary}");
        broken |= !summary.failed.is_empty();
    }
    ExitCode::from(u8::from(broken))
}

//! Sweeps the fault-tolerant collectives over seeds: `collectives_sweep FIRST COUNT`.
//! Ends with 1 and the first broken seeds if a guarantee is broken.

use outlive_simulator::ftco::sweep;

fn main() -> std::process::ExitCode {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let (Some(Ok(first)), Some(Ok(count))) = (words.next(), words.next()) else {
        eprintln!("usage: collectives_sweep FIRST COUNT");
        return std::process::ExitCode::from(64);
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let summary = sweep::sweep(first..first.saturating_add(count), threads, None);
    println!(
        "{} runs, {} deaths ({} of rank 0), {} messages, {} broken",
        summary.runs,
        summary.deaths,
        summary.roots,
        summary.messages,
        summary.failed.len()
    );
    for (seed, violation) in summary.failed.iter().take(20) {
        println!("seed {seed}: {violation}");
    }
    std::process::ExitCode::from(u8::from(!summary.failed.is_empty()))
}

//! Sweeps the fault-tolerant collectives over seeds: `collectives_sweep FIRST COUNT`.
//! Ends with 1 and the first broken seeds if a guarantee is broken.

use outlive_simulator::ftco::{check, sweep};

/// With a process that is wrongly called dead, two results may meet, or the data of one
/// and the others' end without: nothing is promised then but that everyone ends and that each result
/// is whole. How often is told.
fn late(seeds: std::ops::Range<u64>, threads: u64) -> sweep::Summary {
    let mut summary = sweep::sweep_late(seeds, threads, None);
    let all = summary.failed.len();
    summary.failed.retain(|(_, what)| what != sweep::DIVERGED);
    let said = all - summary.failed.len();
    summary.failed.retain(|(_, what)| {
        !what.ends_with(check::DIFFERENT) && !what.ends_with(check::LATE_ALONE)
    });
    let unsaid = all - said - summary.failed.len();
    println!("late: {said} runs diverged and said so, {unsaid} unnoticed");
    summary
}

fn main() -> std::process::ExitCode {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let (Some(Ok(first)), Some(Ok(count))) = (words.next(), words.next()) else {
        eprintln!("usage: collectives_sweep FIRST COUNT");
        return std::process::ExitCode::from(64);
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let seeds = first..first.saturating_add(count);
    let mut broken = false;
    for (name, summary) in [
        ("collectives", sweep::sweep(seeds.clone(), threads, None)),
        ("late", late(seeds.clone(), threads)),
        (
            "up-correction",
            sweep::sweep_corrected(seeds, threads, None),
        ),
    ] {
        println!("{name}: {summary}");
        broken |= !summary.failed.is_empty();
    }
    std::process::ExitCode::from(u8::from(broken))
}

//! Many histories of whole jobs:
//! `cargo run -p outlive-simulator --example sweep -- FIRST COUNT [THREADS]`. Ends with 1 if
//! one breaks a promise.

use outlive_simulator::job::sweep;

fn main() -> std::process::ExitCode {
    let arguments: Vec<u64> = std::env::args()
        .skip(1)
        .map(|text| text.parse().unwrap_or(0))
        .collect();
    let at = |index: usize, default: u64| arguments.get(index).copied().unwrap_or(default);
    let (first, count, threads) = (at(0, 0), at(1, 100), at(2, cores()));
    let summary = sweep(first..first + count, threads, |_| {});
    for (seed, violation) in &summary.failed {
        println!("seed {seed}: {violation}");
    }
    println!(
        "{} histories, {} failed, {} stable, {} incarnations, {} injections, {} mended, {} transferred, \
         {} happenings",
        summary.histories,
        summary.failed.len(),
        summary.stable,
        summary.opened,
        summary.injected,
        summary.mended,
        summary.transfers,
        summary.happenings
    );
    std::process::ExitCode::from(u8::from(!summary.failed.is_empty()))
}

fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

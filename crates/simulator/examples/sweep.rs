//! Many histories of the commit protocol:
//! `cargo run -p outlive-simulator --example sweep -- FIRST COUNT [THREADS]`.

use outlive_simulator::commit::sweep;

fn main() {
    let arguments: Vec<u64> = std::env::args()
        .skip(1)
        .map(|text| text.parse().unwrap_or(0))
        .collect();
    let at = |index: usize, default: u64| arguments.get(index).copied().unwrap_or(default);
    let (first, count, threads) = (at(0, 0), at(1, 100), at(2, 1));
    let summary = sweep(first..first + count, threads, |_| {});
    for (seed, violation) in &summary.failed {
        println!("seed {seed}: {violation}");
    }
    println!(
        "{} histories, {} failed, {} stable, {} incarnations, {} happenings",
        summary.histories,
        summary.failed.len(),
        summary.stable,
        summary.opened,
        summary.happenings
    );
}

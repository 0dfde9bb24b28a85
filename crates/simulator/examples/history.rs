//! Replays one history of a job and prints it:
//! `cargo run -p outlive-simulator --example history -- SEED [TAIL_LINES]`.

use outlive_simulator::job::{Options, explain};

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|text| text.parse::<u64>().unwrap_or(0));
    let seed = arguments.next().unwrap_or(0);
    let tail = arguments.next().unwrap_or(u64::MAX) as usize;
    let outcome = explain(seed, Options::from_seed(seed));
    for line in &outcome.lines[outcome.lines.len().saturating_sub(tail)..] {
        println!("{line}");
    }
    println!("{:#?}", outcome.options);
    println!(
        "seed {seed}: {} happenings, {} stable, {} incarnations, trace {:016x}",
        outcome.happenings, outcome.stable, outcome.opened, outcome.trace
    );
    for violation in &outcome.violations {
        println!("VIOLATION {violation}");
    }
}

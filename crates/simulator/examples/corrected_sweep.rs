//! Corrected collectives under failures, one scenario a seed:
//!
//!     cargo run --release -p outlive-simulator --example corrected_sweep -- FIRST COUNT
//!
//! Prints what came of the seeds; ends with 1 if one of them broke the guarantee.

use std::process::ExitCode;

use outlive_simulator::ftco::corrected;

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let (Some(Ok(first)), Some(Ok(count))) = (numbers.next(), numbers.next()) else {
        eprintln!("corrected_sweep FIRST COUNT");
        return ExitCode::from(2);
    };
    let (mut deaths, mut messages, mut failed) = (0, 0, 0);
    for seed in first..first + count {
        match corrected::one(seed, None) {
            Ok(report) => {
                deaths += report.dead.len();
                messages += report.outcome.messages;
            }
            Err(what) => {
                failed += 1;
                println!("seed {seed}: {what}");
            }
        }
    }
    println!("{count} runs, {deaths} deaths, {messages} messages, {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}

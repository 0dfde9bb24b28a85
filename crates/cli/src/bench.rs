//! `outlive bench save|skip|recovery`: what checkpoints cost on this machine.

use outlive_base::{Code, Entity, Error, Result};

use crate::args::{BenchOptions, Benchmark};

/// Runs a measurement.
pub fn run(options: &BenchOptions) -> Result<u8> {
    let what = match options.what {
        Benchmark::Save => "save",
        Benchmark::Skip => "skip",
        Benchmark::Recovery => "recovery",
    };
    Err(Error::new(
        Code::InvalidArgument,
        Entity::Call,
        format!("this build cannot measure {what}"),
        "use a build with the benchmarks",
    ))
}

//! `outlive simulate commit`: whole histories of a job's checkpoints.

use clap::Args;
use outlive_base::{Code, Entity, Error, Result, count};
use outlive_simulator::job;
use serde::Serialize;

use crate::output;

/// Most failed seeds that are listed.
const LISTED_MAX: usize = 20;

#[derive(Args, Debug)]
pub struct CommitOptions {
    /// Number of histories
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    schema: &'static str,
    what: &'static str,
    first_seed: u64,
    histories: u64,
    stable_versions: u64,
    incarnations: u64,
    happenings: u64,
    failed: Vec<Failed>,
}

#[derive(Serialize)]
struct Failed {
    seed: u64,
    violation: String,
}

/// Runs histories; 0 if none breaks a promise, else 70.
pub fn run(options: &CommitOptions) -> Result<u8> {
    let end = options.seed.checked_add(options.seeds).ok_or_else(|| {
        Error::new(
            Code::InvalidArgument,
            Entity::Option("seeds".into()),
            "the last seed would be above 2^64",
            "give a smaller --seed",
        )
    })?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let summary = job::sweep(options.seed..end, threads, |_| {});
    let status = if summary.failed.is_empty() {
        0
    } else {
        Code::Internal.exit_status()
    };
    if options.json {
        let failed = |(seed, violation)| Failed { seed, violation };
        output::json(&Answer {
            schema: "outlive.simulate/1",
            what: "commit",
            first_seed: options.seed,
            histories: summary.histories,
            stable_versions: summary.stable,
            incarnations: summary.opened,
            happenings: summary.happenings,
            failed: summary.failed.into_iter().map(failed).collect(),
        })?;
        return Ok(status);
    }
    let mut lines = vec![format!(
        "{}: {}, {}, {}, {}",
        count(summary.histories, "history"),
        count(summary.stable, "stable version"),
        count(summary.opened, "incarnation"),
        count(summary.happenings, "happening"),
        count(summary.failed.len() as u64, "broken promise")
    )];
    let failed = summary.failed.iter().take(LISTED_MAX);
    lines.extend(failed.map(|(seed, violation)| format!("seed {seed}: {violation}")));
    output::text(&lines.join("\n"))?;
    Ok(status)
}

//! What trees that are kept save: messages a process of a Bcast without failures, over
//! LogP with L = 2, o = g = 1.
//!
//!     cargo run --release -p outlive-simulator --example kept_trees -- PROCESSES
//!
//! A line for each f: by corrected gossip each time, and over f + 2 trees; what it took to
//! grow them; and the calls after which that is saved.

use outlive_protocols::corrected::Machine;
use outlive_simulator::ftco::{kept, run_any};

/// Calls after which the trees are grown.
const GROWN: usize = 8;

fn messages(processes: u32, failures: u32, trees: u32, calls: usize) -> outlive_base::Result<f64> {
    let scenario = kept::series(processes, failures, trees, calls)?;
    let report = run_any::<Machine>(&scenario, 1)?;
    Ok(report.outcome.messages as f64 / f64::from(processes))
}

fn main() -> outlive_base::Result<()> {
    let word = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let processes = word.unwrap_or(1024);
    println!("f  trees  corrected  kept  growing  saved after");
    for failures in 0..=4 {
        let trees = failures + 2;
        let once = messages(processes, failures, 0, 1)?;
        let first = messages(processes, failures, trees, GROWN)?;
        let more = messages(processes, failures, trees, 2 * GROWN)?;
        let each = (more - first) / GROWN as f64;
        // The first two are corrected; trees serve from the third on.
        let growing = first - 2.0 * once - (GROWN - 2) as f64 * each;
        let after = 2.0 + (growing / (once - each)).ceil();
        println!("{failures}  {trees:5}  {once:9.1}  {each:4.1}  {growing:7.1}  {after:11}");
    }
    Ok(())
}

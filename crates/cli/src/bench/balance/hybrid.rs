//! `outlive bench hybrid`: trees of domains against one central leader that knows
//! all tasks, on the work of HPC Colony 2006, section 2.4, tables 2 and 3.
//!
//! The central leader is charged its measured processor time, without what it costs
//! to gather all tasks; a tree the modelled time of `outlive balance`.

use outlive_balance::replay::{Figures, Method, Settings, step};
use outlive_balance::scenario::colony;
use outlive_base::{Error, Result};
use serde::Serialize;

use crate::args::BenchOptions;
use crate::balance::cpu_seconds;

const METHODS: [Method; 3] = [Method::Hybrid, Method::Greedy, Method::Refine];

#[derive(Serialize)]
struct Line {
    processes: usize,
    method: &'static str,
    #[serde(flatten)]
    figures: Figures,
}

/// Runs the benchmark; processes are 8,192, 16,384 and 131,072 unless asked.
pub fn run(options: &BenchOptions) -> Result<u8> {
    let asked = options.balance.processes.clone();
    let mut settings = Settings::default();
    settings.diffusion.tolerance = options.balance.tolerance;
    let mut lines = Vec::new();
    if !options.json {
        println!(
            "{:>10}  {:18}{:>12}{:>12}{:>11}{:>11}{:>12}",
            "processes", "method", "ms", "leader kB", "imbalance", "of all", "cut"
        );
    }
    for processes in asked.unwrap_or_else(|| vec![8_192, 16_384, 131_072]) {
        let (graph, all, parts) = colony(processes)?;
        for method in METHODS {
            let (_, mut figures) = step(method, &graph, &all, &parts, &settings, &cpu_seconds)?;
            if figures.memory_bytes_max == 0.0 {
                // A central leader holds every task and every process.
                figures.memory_bytes_max = (graph.tasks() * 36 + processes * 24) as f64;
            }
            if !options.json {
                println!(
                    "{processes:>10}  {:18}{:12.2}{:12.0}{:11.4}{:11.4}{:12.0}",
                    method.name(),
                    figures.seconds_max_per_process * 1e3,
                    figures.memory_bytes_max / 1e3,
                    figures.imbalance,
                    figures.migration_total,
                    figures.edge_cut_total,
                );
            }
            lines.push(Line {
                processes,
                method: method.name(),
                figures,
            });
        }
    }
    if options.json {
        let text = serde_json::to_string(&lines).map_err(|e| Error::internal(e.to_string()))?;
        println!("{text}");
    }
    Ok(0)
}

//! `outlive bench hybrid`: trees of domains against one central leader that knows
//! all tasks, on the work of HPC Colony 2006, section 2.4, tables 2 and 3.
//!
//! Levels are named from the leaves up. The central leader is charged its measured
//! processor time, without what it costs to gather all tasks; a tree the modelled time of
//! `outlive balance`.

use outlive_balance::command;
use outlive_balance::replay::{Figures, Method, Settings, step};
use outlive_balance::scenario::colony;
use outlive_base::Result;
use serde::Serialize;

use crate::args::BenchOptions;
use crate::balance::cpu_seconds;

/// Name, method, and the methods of a tree's levels from the leaves up.
const METHODS: [(&str, Method, &[&str]); 7] = [
    ("refine", Method::Hybrid, &["refine"]),
    ("greedy, refine", Method::Hybrid, &["greedy", "refine"]),
    (
        "refine, diffusion",
        Method::Hybrid,
        &["refine", "diffusion"],
    ),
    ("central greedy", Method::Greedy, &[]),
    ("central refine", Method::Refine, &[]),
    // Minutes with many processes, so they come last.
    (
        "diffusion, refine",
        Method::Hybrid,
        &["diffusion", "refine"],
    ),
    ("diffusion", Method::Hybrid, &["diffusion"]),
];

#[derive(Serialize)]
struct Line {
    processes: usize,
    method: &'static str,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Serialize)]
struct Answer {
    schema: &'static str,
    lines: Vec<Line>,
}

/// Runs the benchmark; processes are 8,192, 16,384 and 131,072 unless asked.
pub fn run(options: &BenchOptions) -> Result<u8> {
    let asked = options.balance.processes.clone();
    let mut settings = Settings::default();
    settings.diffusion.tolerance = options.balance.tolerance;
    let mut lines = Vec::new();
    for processes in asked.unwrap_or_else(|| vec![8_192, 16_384, 131_072]) {
        let (graph, all, parts) = colony(processes)?;
        if !options.json && lines.is_empty() {
            println!(
                "{:>10}  {:18}{:>12}{:>12}{:>11}{:>11}{:>12}",
                "processes", "levels", "ms", "leader kB", "imbalance", "of all", "cut"
            );
        }
        for (name, method, levels) in METHODS {
            let levels: Vec<String> = levels.iter().map(|&name| name.to_owned()).collect();
            settings.hybrid.levels = command::levels(&levels)?;
            let (_, mut figures) = step(method, &graph, &all, &parts, &settings, &cpu_seconds)?;
            if figures.memory_bytes_max == 0.0 {
                // A central leader holds every task and every process.
                figures.memory_bytes_max = (graph.tasks() * 36 + processes * 24) as f64;
            }
            if !options.json {
                println!(
                    "{processes:>10}  {:18}{:12.2}{:12.0}{:11.4}{:11.4}{:12.0}",
                    name,
                    figures.seconds_max_per_process * 1e3,
                    figures.memory_bytes_max / 1e3,
                    figures.imbalance,
                    figures.migration_total,
                    figures.edge_cut_total,
                );
            }
            lines.push(Line {
                processes,
                method: name,
                figures,
            });
        }
    }
    if options.json {
        let schema = "outlive.bench.hybrid/1";
        return crate::output::json(&Answer { schema, lines });
    }
    Ok(0)
}

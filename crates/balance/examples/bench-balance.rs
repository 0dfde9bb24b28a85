//! Helper of `bench/balance/run.py`: exports scenarios for other partitioners,
//! runs ours, and judges what any of them wrote, all by the same measures.
//!
//! Files are little-endian: `graph.bin` holds u64 tasks, u64 entries, u64
//! offsets, u32 neighbours, f64 x 3 coordinates; `weights-N.bin` f64 a task;
//! `parts-N.bin` u32 a task.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use outlive_balance::replay::{Figures, Settings, replay};
use outlive_balance::scenario::Scenario;
use outlive_balance::{command, geometric};

#[derive(Parser)]
struct Options {
    /// Where the files are.
    #[arg(long)]
    folder: PathBuf,
    /// shock or cloud.
    #[arg(long)]
    scenario: String,
    #[arg(long)]
    processes: usize,
    #[arg(long)]
    first: u32,
    #[arg(long)]
    steps: u32,
    #[arg(long, default_value_t = 1)]
    shrink: usize,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Writes the graph, the weights of all steps and the first partition (RCB).
    Export,
    /// Runs one of our methods and prints its mean figures.
    Ours {
        #[arg(long, default_value = "diffusion")]
        method: String,
        #[arg(long, default_value_t = 0.02)]
        tolerance: f64,
        #[arg(long, default_value_t = 0.1)]
        migration_price: f64,
    },
    /// Judges the partitions of a folder and prints the mean figures.
    Judge {
        #[arg(long)]
        parts: PathBuf,
    },
}

type Any = Box<dyn std::error::Error>;

fn main() -> Result<(), Any> {
    let options = Options::parse();
    let kind = command::kind(&options.scenario)?;
    let mut scenario = Scenario::new(kind, options.processes, options.shrink, 1)?;
    match &options.what {
        What::Export => export(&options, &mut scenario),
        What::Ours {
            method,
            tolerance,
            migration_price,
        } => {
            let mut settings = Settings::default();
            settings.diffusion.tolerance = *tolerance;
            settings.diffusion.migration_price = *migration_price;
            let method = command::method(method)?;
            let range = (options.first, options.steps);
            let steps = replay(
                method,
                &mut scenario,
                range,
                &settings,
                &cpu_seconds,
                |_, _, _, _| {},
            )?;
            println!("{}", serde_json::to_string(&Figures::mean(&steps))?);
            Ok(())
        }
        What::Judge { parts } => judge(&options, &mut scenario, parts),
    }
}

fn export(options: &Options, scenario: &mut Scenario) -> Result<(), Any> {
    fs::create_dir_all(&options.folder)?;
    let graph = &scenario.graph;
    let mut out = Vec::new();
    out.extend((graph.tasks() as u64).to_le_bytes());
    out.extend((graph.neighbours().len() as u64).to_le_bytes());
    graph
        .offsets()
        .iter()
        .for_each(|&o| out.extend((o as u64).to_le_bytes()));
    graph
        .neighbours()
        .iter()
        .for_each(|n| out.extend(n.to_le_bytes()));
    let coordinates = graph.coordinates().ok_or("no coordinates")?;
    coordinates
        .iter()
        .flatten()
        .for_each(|x| out.extend(x.to_le_bytes()));
    fs::write(options.folder.join("graph.bin"), &out)?;
    for step in options.first..=options.first + options.steps {
        scenario.go_to(step)?;
        let bytes: Vec<u8> = scenario
            .graph
            .weights()
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        fs::write(options.folder.join(format!("weights-{step}.bin")), bytes)?;
        if step == options.first {
            let parts = geometric::bisection(&scenario.graph, &scenario.processes)?;
            let bytes: Vec<u8> = parts.iter().flat_map(|p| p.to_le_bytes()).collect();
            fs::write(
                options
                    .folder
                    .join(format!("start-{}.bin", options.processes)),
                bytes,
            )?;
        }
    }
    Ok(())
}

fn judge(options: &Options, scenario: &mut Scenario, folder: &Path) -> Result<(), Any> {
    let start = options
        .folder
        .join(format!("start-{}.bin", options.processes));
    let mut before = read_parts(&start)?;
    let mut all = Vec::new();
    for step in options.first + 1..=options.first + options.steps {
        scenario.go_to(step)?;
        let parts = read_parts(&folder.join(format!("parts-{step}.bin")))?;
        all.push(command::judge(
            &scenario.graph,
            options.processes,
            &before,
            &parts,
        )?);
        before = parts;
    }
    println!("{}", serde_json::to_string(&Figures::mean(&all))?);
    Ok(())
}

fn read_parts(path: &Path) -> Result<Vec<u32>, Any> {
    let bytes = fs::read(path)?;
    let word = |four: &[u8]| {
        four.iter()
            .rev()
            .fold(0u32, |all, &byte| all << 8 | u32::from(byte))
    };
    Ok(bytes.chunks_exact(4).map(word).collect())
}

fn cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

//! `outlive pages status`: what the machine offers, and what of a process is huge.

use std::path::{Path, PathBuf};

use clap::Args;
use outlive_base::Result;
use outlive_control::units::show_bytes;
use outlive_node::pages::machine::{self, MEMORY_ROOT, Machine};
use outlive_node::pages::process::{self, Amount, Part};
use serde::Serialize;

use super::{OUTPUT, library};
use crate::output;

#[derive(Args, Debug)]
pub(super) struct StatusOptions {
    /// A process, by number [default: the machine alone]
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
}

#[derive(Serialize)]
struct Status {
    schema: &'static str,
    machine: Machine,
    /// The library that was installed with this command.
    library: Option<PathBuf>,
    process: Option<Process>,
}

#[derive(Serialize)]
struct Process {
    pid: u32,
    total: Amount,
    parts: Vec<Part>,
}

pub(super) fn run(options: &StatusOptions) -> Result<u8> {
    let process = options.pid.map(|pid| -> Result<Process> {
        let parts = process::look(pid)?;
        let amounts = parts.iter().map(|part| part.amount);
        let total = amounts.fold(Amount::default(), Amount::and);
        Ok(Process { pid, total, parts })
    });
    let status = Status {
        schema: "outlive.pages/1",
        machine: machine::look(Path::new(MEMORY_ROOT)),
        library: library::installed(&library::PAGES),
        process: process.transpose()?,
    };
    match options.json {
        true => output::json(&status),
        false => output::text(&text(&status)),
    }
}

fn row(name: &str, value: impl Into<String>) -> Vec<String> {
    vec![name.to_owned(), value.into()]
}

fn text(status: &Status) -> String {
    let machine = &status.machine;
    let transparent = &machine.transparent;
    let word = |word: &Option<String>| word.clone().unwrap_or_else(|| "not there".to_owned());
    let size = transparent
        .huge_bytes
        .map_or("not there".to_owned(), show_bytes);
    let library = status.library.as_ref();
    let mut rows = vec![
        row("kernel", machine.kernel.clone()),
        row("normal page", show_bytes(machine.page_bytes)),
        row("transparent huge page", size),
        row("transparent, enabled", word(&transparent.enabled)),
        row("transparent, defrag", word(&transparent.defrag)),
        row("transparent, shared memory", word(&transparent.shmem)),
    ];
    let background = transparent.khugepaged.iter();
    let background: Vec<String> = background
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    rows.push(row("khugepaged", background.join(", ")));
    for pool in &machine.pools {
        let name = format!("reserved, {}", show_bytes(pool.bytes));
        let added = match pool.overcommit {
            0 => String::new(),
            more => format!(", {more} more when needed"),
        };
        let value = format!("{} pages, {} free{added}", pool.total, pool.available());
        rows.push(row(&name, value));
    }
    let place = library.map_or("carried by the command".to_owned(), |path| {
        path.display().to_string()
    });
    rows.push(row("library", place));
    let mut text = output::table(&rows);
    for remedy in &machine.remedies {
        text += &format!("\n{remedy}");
    }
    if let Some(process) = &status.process {
        let heading = ["memory", "resident", "huge", "percent", "reserved"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        let mut add = |name: String, amount: &Amount| {
            let percent = 100.0 * amount.huge_bytes as f64 / amount.resident_bytes.max(1) as f64;
            rows.push(vec![
                name,
                show_bytes(amount.resident_bytes),
                show_bytes(amount.huge_bytes),
                format!("{percent:.0}"),
                show_bytes(amount.hugetlbfs_bytes),
            ]);
        };
        for part in &process.parts {
            add(format!("{:?}", part.kind).to_lowercase(), &part.amount);
        }
        add("all".to_owned(), &process.total);
        text += &format!("\n\nprocess {}\n{}", process.pid, output::table(&rows));
    }
    text
}

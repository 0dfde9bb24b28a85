//! `outlive pages run`: a program with its memory on huge pages.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::{Args, ValueEnum};
use outlive_base::{Code, Entity, Error, Result, count};
use outlive_control::units::{duration_ms, show_bytes, size_bytes};
use outlive_launch::input;
use outlive_node::pages::journal::{self, Fate, Told};
use outlive_node::pages::launch::{Before, Settings, Text, environment};
use outlive_node::pages::machine::{self, MEMORY_ROOT, Machine, Pool};
use outlive_node::pages::program::{Refusal, find, refusal};
use serde::Serialize;

use super::job::{Outcome, Peak, Watch};
use super::library::{Folder, PAGES};
use super::{OUTPUT, refuse};
use crate::output;

/// The form of [`Report`].
const RUN: &str = "outlive.pages-run/1";
/// The longest account: the library stops a little earlier.
const ACCOUNT_BYTES_MAX: u64 = 4 << 20;
/// The shortest and the longest time between two looks, ms.
const SAMPLE_MS: (u64, u64) = (10, 86_400_000);
/// How it becomes huge.
const HOW: &str = "What becomes huge";

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outlive pages run -- ./app input
  outlive pages run --report pages.json -- mpirun -n 4 ./app

The exit status is the program's own, 128 + n for signal n.")]
pub(super) struct StartOptions {
    #[command(flatten)]
    pub(super) how: How,
    /// How often the memory of all processes is looked at; 0s: only what they tell at their end
    #[arg(long, value_name = "TIME", default_value = "1s", help_heading = OUTPUT)]
    sample: String,
    /// Write what came to lie on huge pages, and what did not and why, as JSON
    /// [default: a line on standard error]
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    report: Option<PathBuf>,
    /// Say nothing of the program's memory
    #[arg(short, long, help_heading = OUTPUT)]
    quiet: bool,
    /// The command, started as it is written
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(super) struct How {
    /// Heap, data and bss on pages that were reserved (hugetlbfs) instead of transparent ones
    #[arg(long, help_heading = HOW)]
    pub(super) hugetlbfs: bool,
    /// The program's text: collapsed where it lies if the kernel can, copied (debuggers and
    /// profilers then find no functions in it), or left alone
    #[arg(long, value_name = "HOW", value_enum, default_value_t = TextChoice::Collapse)]
    #[arg(help_heading = HOW)]
    pub(super) text: TextChoice,
    /// Shorter mappings of the program stay on normal pages [default: a huge page]
    #[arg(long, value_name = "SIZE", help_heading = HOW)]
    pub(super) least: Option<String>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TextChoice {
    Collapse,
    Copy,
    No,
}

/// What is known at the end.
#[derive(Serialize)]
struct Report {
    schema: &'static str,
    /// The command.
    command: Vec<String>,
    exit_status: u8,
    seconds: f64,
    /// Looks at its memory.
    samples: u64,
    /// Programs that began with the library.
    begun: u64,
    peak: Peak,
    text: Fate,
    data: Fate,
    bss: Fate,
    /// Names of programs, and how often each began.
    programs: Vec<(String, u64)>,
    notes: Vec<String>,
}

/// A command under huge pages, ready to start.
pub(super) struct Ready {
    pub(super) folder: Folder,
    pub(super) variables: Vec<(OsString, OsString)>,
    /// What keeps some of its memory on normal pages.
    pub(super) notes: Vec<String>,
}

impl How {
    fn settings(&self) -> Result<Settings> {
        let least_bytes = match &self.least {
            Some(text) => size_bytes("least", text)?,
            None => 0,
        };
        let page = rustix::param::page_size() as u64;
        if self.least.is_some() && least_bytes < page {
            let reason = format!("{} is less than a page", show_bytes(least_bytes));
            return Err(refuse("least", reason, format!("give {page}B or more")));
        }
        Ok(Settings {
            hugetlbfs: self.hugetlbfs,
            text: match self.text {
                TextChoice::Collapse => Text::Collapse,
                TextChoice::Copy => Text::Copy,
                TextChoice::No => Text::No,
            },
            least_bytes,
        })
    }

    /// Prepares a command.
    ///
    /// # Errors
    /// OL-100, OL-404 (no reserved pages), OL-505 (no such program), those of the files.
    pub(super) fn ready(&self, command: &[OsString]) -> Result<Ready> {
        let settings = self.settings()?;
        let program = program(command)?;
        let machine = machine::look(Path::new(MEMORY_ROOT));
        let mut notes = match self.hugetlbfs {
            true => pool(&machine).map(|_| Vec::new())?,
            false => machine.remedies.clone(),
        };
        let refused = refusal(&program);
        if let Some(refused) = &refused {
            notes.push(format!(
                "{} runs with normal pages (what it starts may not): {refused}",
                program.display()
            ));
        }
        let folder = Folder::new(&PAGES)?;
        let variables = match refused {
            // A library of this machine's glibc would be an error to their loaders.
            Some(Refusal::OtherLibrary(_) | Refusal::OtherMachine) => Vec::new(),
            _ => {
                let account = Some(folder.account.as_path());
                environment(&settings, &folder.library, account, &Before::here())
            }
        };
        Ok(Ready {
            folder,
            variables,
            notes,
        })
    }
}

/// The program that a command starts.
pub(super) fn program(command: &[OsString]) -> Result<PathBuf> {
    let name = command.first().cloned().unwrap_or_default();
    find(&name).ok_or_else(|| {
        let entity = Entity::File(name.display().to_string());
        let remedy = "check the spelling and PATH, or give the full path; it must be executable";
        Error::new(
            Code::CommandFailed,
            entity,
            "there is no such program",
            remedy,
        )
    })
}

/// The pool that malloc takes pages from: that of the default size.
///
/// # Errors
/// [`Code::NotFound`], with the line that reserves pages, if none can be had.
pub(super) fn pool(machine: &Machine) -> Result<Pool> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let size = text
        .lines()
        .find_map(|line| line.strip_prefix("Hugepagesize:"));
    let kib = size.and_then(|size| size.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let bytes = kib.unwrap_or(2048) * 1024;
    let mut pools = machine.pools.iter().filter(|pool| pool.bytes == bytes);
    let found = pools.find(|pool| pool.available() > 0 || pool.overcommit > 0);
    found.copied().ok_or_else(|| {
        let entity = Entity::Option("hugetlbfs".into());
        let reason = format!("no huge page of {} is reserved and free", show_bytes(bytes));
        let line = machine::reserving(1 << 30, bytes);
        let remedy = format!("for 1 GiB, {line}; or leave the option out");
        Error::new(Code::NotFound, entity, reason, remedy)
    })
}

/// What the library told.
pub(super) fn told(folder: &Folder) -> Told {
    let text = input::read_text(&folder.account, ACCOUNT_BYTES_MAX);
    journal::read(&text.unwrap_or_default())
}

/// The peak, with what processes told at their ends: one may have been too short to be seen.
pub(super) fn peak(outcome: &Outcome, told: &Told) -> Peak {
    let ends = told.ends.iter().map(|&(_, amount)| Peak {
        processes: 1,
        amount,
    });
    ends.fold(outcome.peak, Peak::or)
}

/// Runs the command.
pub(super) fn run(options: &StartOptions) -> Result<u8> {
    let period = match duration_ms("sample", &options.sample)? {
        0 => None,
        ms if (SAMPLE_MS.0..=SAMPLE_MS.1).contains(&ms) => Some(Duration::from_millis(ms)),
        _ => {
            let reason = format!("{} is out of range", options.sample);
            return Err(refuse("sample", reason, "give 10ms to 1d, or 0s"));
        }
    };
    let mut ready = options.how.ready(&options.command)?;
    if !options.quiet {
        ready.notes.iter().for_each(|note| output::warn(note));
    }
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    command.envs(ready.variables.iter().map(|(name, value)| (name, value)));
    let outcome = Watch::new()?.run(command, period)?;
    let told = told(&ready.folder);
    let known = ready.notes.len();
    if told.begun == 0 && !ready.variables.is_empty() && known == 0 && !outcome.told_to_end {
        ready.notes.push(
            "no program told that it had the library: it may not have been loaded (see above what \
             its loader said; a file system mounted noexec, another C library), or runs as \
             another user"
                .to_owned(),
        );
    }
    let words = options.command.iter();
    let report = Report {
        schema: RUN,
        command: words
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        exit_status: outcome.ended.exit_status(),
        seconds: outcome.seconds,
        samples: outcome.samples,
        begun: told.begun,
        peak: peak(&outcome, &told),
        text: told.text,
        data: told.data,
        bss: told.bss,
        programs: told.programs,
        notes: ready.notes,
    };
    if !options.quiet {
        report.notes[known..]
            .iter()
            .for_each(|note| output::warn(note));
        output::note(&line(&report));
    }
    if let Some(path) = &options.report {
        // What the program did is done: its status counts, not that of the report.
        if let Err(error) = write(path, &report) {
            output::error(&error);
        }
    }
    Ok(report.exit_status)
}

fn write(path: &Path, report: &Report) -> Result<()> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|error| Error::internal(format!("JSON: {error}")))?;
    output::to(path, (text + "\n").as_bytes()).map(|_| ())
}

/// One line for people.
fn line(report: &Report) -> String {
    let amount = &report.peak.amount;
    let mut parts = vec![match report.peak.processes {
        0 => "nothing seen of its memory".to_owned(),
        processes => format!(
            "{} of {} on huge pages at the peak ({})",
            show_bytes(amount.huge_bytes),
            show_bytes(amount.resident_bytes),
            count(processes, "process")
        ),
    }];
    for (name, fate) in [
        ("data", &report.data),
        ("bss", &report.bss),
        ("text", &report.text),
    ] {
        // What is smaller than a huge page is not worth a word.
        if fate.fits_bytes > 0 {
            let reasons = match fate.reasons.is_empty() {
                true => String::new(),
                false => format!(" ({})", fate.reasons.join("; ")),
            };
            parts.push(format!(
                "{name} {} of {}{reasons}",
                show_bytes(fate.done_bytes),
                show_bytes(fate.bytes)
            ));
        }
    }
    format!("pages: {}", parts.join(", "))
}

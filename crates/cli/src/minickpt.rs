//! `outlive minickpt`: programs that outlive their kernel.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use outlive_base::{Code, Entity, Error, Result};
use outlive_minickpt::device::Times;
use outlive_minickpt::filter::Special;
use outlive_minickpt::revive::{self, Ended, Next};
use outlive_minickpt::setup;
use outlive_minickpt::supervisor::files::Files;
use outlive_minickpt::supervisor::{Fork, Policy};
use outlive_node::placement::Placement;
use serde::Serialize;

use outlive_launch::input;

use crate::output;

/// Groups of options.
const DATA: &str = "Where data lies";
const PROGRAM: &str = "The program";
const KERNEL: &str = "The next kernel";

/// Programs that outlive a panic of their kernel.
#[derive(Args, Debug)]
pub struct Minickpt {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Run a program whose memory survives a panic.
    Run(Run),
    /// Bring back what ran when the kernel died.
    Restore(Restore),
    /// Check the machine and print the boot line that it needs.
    Setup(Setup),
    /// What the module knows and keeps.
    Status {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// What happened at the last panic, and how long each part took.
    Last {
        #[command(flatten)]
        memory: Memory,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
struct Memory {
    /// The directory for the memory of programs, on a DAX file system.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/outlive/minickpt", help_heading = DATA)]
    memory: PathBuf,
}

#[derive(Args, Debug)]
struct How {
    #[command(flatten)]
    memory: Memory,
    /// What a plain fork does: fail with a message, or give the child a copy
    #[arg(long, value_enum, default_value_t = ForkChoice::Refuse, help_heading = PROGRAM)]
    fork: ForkChoice,
    /// What happens when the program makes a descriptor that cannot be kept (inotify, pidfd,
    /// ...): the call fails with a message, or the descriptor is lost at a panic
    #[arg(long, value_enum, default_value_t = SpecialChoice::Refuse, help_heading = PROGRAM)]
    special: SpecialChoice,
    /// What happens to files that the program writes to: each call is durable when it returns,
    /// and files in memory are refused with a message, or what was not synced may be lost
    #[arg(long, value_enum, default_value_t = FilesChoice::Through, help_heading = PROGRAM)]
    files: FilesChoice,
    /// The kernel to start after a panic: the same build as the running one
    /// [default: the one that is loaded already]
    #[arg(long, value_name = "FILE", requires = "initrd", help_heading = KERNEL)]
    kernel: Option<PathBuf>,
    /// Its initramfs, which runs `outlive minickpt restore`
    /// [default: the one that is loaded already]
    #[arg(long, value_name = "FILE", requires = "kernel", help_heading = KERNEL)]
    initrd: Option<PathBuf>,
    /// Take its boot line from a file [default: computed from that of this kernel]
    #[arg(long, value_name = "FILE", help_heading = KERNEL)]
    line_from: Option<PathBuf>,
    /// Write how it ended and how often the supervisor was called, as JSON
    /// [default: not written]
    #[arg(long, value_name = "FILE", help_heading = DATA)]
    report: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ForkChoice {
    Refuse,
    Copy,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum SpecialChoice {
    Refuse,
    Lose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FilesChoice {
    Through,
    Lose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum PlacementChoice {
    Auto,
    Near,
    Any,
}

#[derive(Args, Debug)]
struct Run {
    #[command(flatten)]
    how: How,
    /// On which CPUs of a machine with several NUMA nodes the program runs: near its memory, on
    /// any, or near if OMP_NUM_THREADS says that its threads fit there.
    #[arg(long, value_enum, default_value_t = PlacementChoice::Auto, help_heading = PROGRAM)]
    placement: PlacementChoice,
    /// Without module and reboot: the same mappings and supervisor, for measurements.
    #[arg(long, help_heading = PROGRAM)]
    native: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    words: Vec<String>,
}

#[derive(Args, Debug)]
struct Restore {
    #[command(flatten)]
    how: How,
    /// Give the image up that waits to be restored, and restore nothing.
    #[arg(long)]
    discard: bool,
    /// Lose alone what cannot be brought up now, although a later attempt might do better (a file
    /// system that is not mounted): by default the whole image then waits.
    #[arg(long)]
    now: bool,
}

#[derive(Args, Debug)]
struct Setup {
    /// Memory for programs that the boot line is to reserve, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    reserve_mib: u64,
    /// Memory for the next kernel and its initramfs, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    crash_mib: u64,
    /// Check this directory too [default: none]
    #[arg(long, value_name = "DIR")]
    memory: Option<PathBuf>,
    /// Write the boot line as a file for GRUB, for example
    /// /etc/default/grub.d/outlive-minickpt.cfg [default: printed only]
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command; the exit status.
pub fn run(options: Minickpt) -> Result<u8> {
    match options.what {
        What::Run(options) => {
            let (policy, next) = prepare(&options.how)?;
            let placement = match options.placement {
                PlacementChoice::Auto => Placement::Auto,
                PlacementChoice::Near => Placement::Near,
                PlacementChoice::Any => Placement::Any,
            };
            let (native, words) = (options.native, &options.words);
            let ended = revive::run(&policy, placement, native, &next, words)?;
            finish(&options.how, &ended)
        }
        What::Restore(options) if options.discard => {
            let generation = revive::discard()?;
            output::text(&format!("image {generation} was given up"))
        }
        What::Restore(options) => restore(&options.how, options.now),
        What::Setup(options) => set_up(&options),
        What::Status { json } => status(json),
        What::Last { memory, json } => last(&memory.memory, json),
    }
}

fn prepare(how: &How) -> Result<(Policy, Next)> {
    let fork = match how.fork {
        ForkChoice::Refuse => Fork::Refuse,
        ForkChoice::Copy => Fork::Copy,
    };
    let special = match how.special {
        SpecialChoice::Refuse => Special::Refuse,
        SpecialChoice::Lose => Special::Lose,
    };
    let files = match how.files {
        FilesChoice::Through => Files::Through,
        FilesChoice::Lose => Files::Lose,
    };
    let policy = revive::policy(&how.memory.memory, (fork, special, files))?;
    let line = match &how.line_from {
        Some(path) => Some(input::read_text(path, input::TEXT_BYTES_MAX)?),
        None => None,
    };
    let files = how.kernel.clone().zip(how.initrd.clone());
    let now = false;
    Ok((policy, Next { files, line, now }))
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::internal(format!("JSON: {error}")))?;
    std::fs::write(path, text + "\n").map_err(|error| Error::io(path, "write", &error))
}

fn finish(how: &How, ended: &Ended) -> Result<u8> {
    if let Some(path) = &how.report {
        write_json(path, ended)?;
    }
    Ok(ended.exit_code())
}

fn restore(how: &How, now: bool) -> Result<u8> {
    let (policy, mut next) = prepare(how)?;
    next.now = now;
    let last = policy.memory.join("last.json");
    let ended = revive::restore(&policy, &next, |report| {
        // The report must not stop a program from coming back.
        if let Err(error) = write_json(&last, report) {
            output::error(&error);
        }
    })?;
    finish(how, &ended)
}

#[derive(Serialize)]
struct SetupReport {
    schema: &'static str,
    ready: bool,
    checks: Vec<setup::Check>,
    boot_line: Option<String>,
    /// Whose memory the boot line takes, on a machine with several NUMA nodes.
    node: Option<u32>,
    /// It can lie on several of them.
    straddles: bool,
}

fn set_up(options: &Setup) -> Result<u8> {
    const MIB: u64 = 1 << 20;
    let checks = setup::checks(options.memory.as_deref());
    let bytes = |mib: u64| {
        mib.checked_mul(MIB).ok_or_else(|| {
            Error::new(
                Code::InvalidArgument,
                Entity::Option("--reserve-mib".into()),
                "more than there can be",
                "give MiB",
            )
        })
    };
    let (reserve, crash) = (bytes(options.reserve_mib)?, bytes(options.crash_mib)?);
    let line = setup::reserve_here(reserve, crash);
    if let Some(path) = &options.write {
        let words = line.as_ref().ok_or_else(|| {
            Error::new(
                Code::KernelUnready,
                Entity::Option("--reserve-mib".into()),
                "no range of memory has room for that",
                "reserve less",
            )
        })?;
        let text = setup::grub_file(&words.words);
        std::fs::write(path, text).map_err(|error| Error::io(path, "write", &error))?;
    }
    let ready = checks.iter().all(|check| check.good);
    let report = SetupReport {
        schema: "outlive.minickpt.setup/1",
        ready,
        checks,
        node: line.as_ref().and_then(|line| line.node),
        straddles: line.as_ref().is_some_and(|line| line.straddles),
        boot_line: line.map(|line| line.words),
    };
    if options.json {
        output::json(&report)?;
    } else {
        let rows = report.checks.iter().map(|check| {
            let mark = if check.good { "ok" } else { "MISSING" };
            vec![check.name.clone(), mark.to_owned(), check.seen.clone()]
        });
        let heading = ["what", "state", "seen"].map(str::to_owned).to_vec();
        let rows: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
        output::text(&output::table(&rows))?;
        let line = report.boot_line.unwrap_or_else(|| {
            "none fits: no range of memory is large enough, reserve less".to_owned()
        });
        output::text(&format!("\nadd to the boot line:\n  {line}"))?;
        if let Some(node) = report.node {
            output::text(&format!("\nthis is memory of NUMA node {node}"))?;
        } else if report.straddles {
            output::text(
                "\nthis can lie on several NUMA nodes, and programs cannot run near all of it: \
                 reserve less",
            )?;
        }
    }
    Ok(if ready {
        0
    } else {
        Code::KernelUnready.exit_status()
    })
}

/// The status with its name and version.
#[derive(Serialize)]
struct StatusReport {
    schema: &'static str,
    #[serde(flatten)]
    status: setup::Status,
}

/// The last survival with its name and version.
#[derive(Serialize)]
struct LastReport {
    schema: &'static str,
    report: serde_json::Value,
    times_ms: Option<Times>,
}

fn status(json: bool) -> Result<u8> {
    let status = setup::status()?;
    if json {
        return output::json(&StatusReport {
            schema: "outlive.minickpt.status/1",
            status,
        });
    }
    let module = status.module;
    let state = serde_json::to_string(&module.state).unwrap_or_default();
    let rows = [
        (
            "newest image",
            format!("{} ({})", module.generation, state.trim_matches('"')),
        ),
        ("processes kept", module.registered.to_string()),
        (
            "panics caught",
            match (module.armed, module.blind) {
                (true, false) => "yes",
                (true, true) => "not of what runs: kprobes are switched off",
                (false, _) => "no",
            }
            .to_owned(),
        ),
        (
            "next kernel loaded",
            if status.next_loaded { "yes" } else { "no" }.to_owned(),
        ),
        ("panics so far", module.panics.to_string()),
    ];
    let rows: Vec<Vec<String>> = rows
        .map(|(name, value)| vec![name.to_owned(), value])
        .to_vec();
    output::text(&output::table(&rows))
}

fn last(memory: &Path, json: bool) -> Result<u8> {
    let path = memory.join("last.json");
    let text = input::read_text(&path, input::TEXT_BYTES_MAX)?;
    let report: serde_json::Value = serde_json::from_str(&text).map_err(|error| {
        Error::new(
            Code::Corrupt,
            Entity::File(path.display().to_string()),
            error.to_string(),
            "remove it: the next restore writes a new one",
        )
    })?;
    // Without the module there are no times, but still what happened.
    let times = setup::status().ok().and_then(|status| status.times);
    if json {
        return output::json(&LastReport {
            schema: "outlive.minickpt.last/1",
            report,
            times_ms: times,
        });
    }
    let field = |name: &str| {
        report["death"][name]
            .to_string()
            .trim_matches('"')
            .to_owned()
    };
    let mut rows = vec![
        vec!["image".to_owned(), field("generation")],
        vec![
            "cause".to_owned(),
            format!("{}: {}", field("cause"), field("message")),
        ],
        vec!["processes".to_owned(), report["processes"].to_string()],
        vec!["threads".to_owned(), report["threads"].to_string()],
    ];
    if let Some(missing @ 1..) = report["death"]["cpus_missing"].as_u64() {
        rows.push(vec!["silent processors".to_owned(), missing.to_string()]);
    }
    for lost in report["death"]["lost"].as_array().into_iter().flatten() {
        let why = lost[1].as_str().unwrap_or_default();
        rows.push(vec![format!("process {} lost", lost[0]), why.to_owned()]);
    }
    for gone in report["gone"].as_array().into_iter().flatten() {
        let what = gone.as_str().unwrap_or_default();
        rows.push(vec!["lost".to_owned(), what.to_owned()]);
    }
    if let Some(error) = report["error"].as_str() {
        rows.push(vec!["not restored".to_owned(), error.to_owned()]);
        let waits = report["waits"].as_bool() == Some(true);
        let image = if waits { "waits" } else { "given up" };
        rows.push(vec!["the image".to_owned(), image.to_owned()]);
    }
    if let Some(times) = times {
        let parts = [
            ("panic to image saved", times.saved_ms),
            ("panic to next kernel", times.kernel_ms),
            ("panic to module", times.module_ms),
            ("panic to file system", times.files_ms),
            ("panic to processes rebuilt", times.restored_ms),
            ("panic to armed again", times.armed_ms),
            ("panic to resumed", times.resumed_ms),
        ];
        rows.extend(parts.map(|(name, ms)| vec![name.to_owned(), format!("{ms:.1} ms")]));
    }
    output::text(&output::table(&rows))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use outlive_minickpt::device::{Query, State};

    use super::*;

    const PAGE: &str = include_str!("../../../docs/reference/json.md");

    fn names(value: &serde_json::Value, path: &str, all: &mut Vec<String>) {
        for (key, below) in value.as_object().into_iter().flatten() {
            let name = format!("{path}{key}");
            names(below, &format!("{name}."), all);
            all.push(name);
        }
    }

    /// What only a machine with the module answers is what the page says.
    #[test]
    fn what_the_module_answers_is_documented() {
        let times = Some(Times::default());
        let status = serde_json::to_value(StatusReport {
            schema: "outlive.minickpt.status/1",
            status: setup::Status {
                module: Query {
                    state: State::Empty,
                    generation: 0,
                    image_at: 0,
                    image_bytes: 0,
                    registered: 0,
                    armed: false,
                    blind: false,
                    retries: 0,
                    panics: 0,
                },
                next_loaded: false,
                times,
            },
        });
        let last = serde_json::to_value(LastReport {
            schema: "outlive.minickpt.last/1",
            report: serde_json::to_value(revive::Report::default()).unwrap(),
            times_ms: times,
        });
        for answer in [status.unwrap(), last.unwrap()] {
            let mark = format!("<!-- fields: {} -->", answer["schema"].as_str().unwrap());
            let (_, table) = PAGE.split_once(&mark).unwrap();
            let rows = table.lines().skip(4).take_while(|row| row.starts_with('|'));
            let cells: Vec<&str> = rows.filter_map(|row| row.split('|').nth(1)).collect();
            let cells = cells.join(",");
            let mut said: Vec<&str> = cells.split('`').skip(1).step_by(2).collect();
            let mut found = Vec::new();
            names(&answer, "", &mut found);
            said.sort_unstable();
            found.sort_unstable();
            assert_eq!(said, found);
        }
    }
}

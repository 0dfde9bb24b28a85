//! `outlive pages bench`: kernels, or a command of the user's, with normal and with huge pages in
//! turn, each run in a process of its own.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::Args;
use outlive_base::{Code, Entity, Error, Result, count};
use outlive_control::units::show_bytes;
use outlive_node::pages::compare::{BENCH, Comparison, Kernel, Way, judge};
use outlive_node::pages::kernels::{self, Run};
use outlive_node::pages::launch::{Before, Settings, Text, environment};
use outlive_node::pages::machine::{self, MEMORY_ROOT};
use outlive_node::pages::misses::Misses;

use super::job::Watch;
use super::library::{Folder, PAGES};
use super::start::{How, TextChoice, peak, pool, program, told};
use super::{OUTPUT, refuse, unknown};
use crate::{memory, output};

/// The most rounds, and calls in a round.
const ROUNDS_MAX: u32 = 1_000;
const CALLS_MAX: u32 = 10_000;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outlive pages bench --mib 1024
  outlive pages bench --rounds 3 -- ./app input")]
pub(super) struct BenchOptions {
    /// Kernels: chase, update, is, cg
    /// [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    kernels: Option<Vec<String>>,
    /// Memory of each kernel in MiB, 8 to 1048576
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    mib: u64,
    /// Rounds, 1 to 1000: each runs every way once
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// Calls of a kernel in each run, 1 to 10000, after one that is not counted
    #[arg(long, value_name = "N", default_value_t = 3)]
    calls: u32,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// A command instead of kernels; what it prints is thrown away, its errors are shown
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["kernels", "mib", "calls"])]
    command: Vec<OsString>,
}

pub(super) fn run(options: &BenchOptions) -> Result<u8> {
    check(options)?;
    let found = match options.command.is_empty() {
        true => of_kernels(options)?,
        false => of_command(options)?,
    };
    match options.json {
        true => output::json(&found),
        false => output::text(&text(&found)),
    }
}

fn check(options: &BenchOptions) -> Result<()> {
    let (rounds, calls) = (u64::from(options.rounds), u64::from(options.calls));
    for (option, value, (least, most)) in [
        ("mib", options.mib, kernels::MIB),
        ("rounds", rounds, (1, u64::from(ROUNDS_MAX))),
        ("calls", calls, (1, u64::from(CALLS_MAX))),
    ] {
        if !(least..=most).contains(&value) {
            let reason = format!("{value} is out of range");
            return Err(refuse(option, reason, format!("give {least} to {most}")));
        }
    }
    let mut names = options.kernels.iter().flatten();
    match names.find(|name| !kernels::NAMES.contains(&name.as_str())) {
        Some(name) => Err(unknown(name)),
        None => Ok(()),
    }
}

/// What cannot be compared, or only in part.
fn notes(machine: &machine::Machine, misses: Option<&str>) -> Vec<String> {
    let mut notes = machine.remedies.clone();
    if let Some(why) = misses {
        notes.push(format!(
            "misses of the TLB cannot be counted here ({why}): the time of a dependent load \
             (chase), page faults and huge memory stand for them"
        ));
    }
    notes
}

fn of_kernels(options: &BenchOptions) -> Result<Comparison> {
    // A quarter for what is needed while a kernel is built.
    let bytes = (options.mib << 20) / 4 * 5;
    memory::fits("mib", "a kernel", bytes)?;
    let machine = machine::look(Path::new(MEMORY_ROOT));
    let why = Misses::open(false).err().map(|error| error.to_string());
    let mut notes = notes(&machine, why.as_deref());
    let mut ways = vec![Way::Normal, Way::Huge, Way::Collapsed];
    match pool(&machine) {
        Ok(pool) if pool.available() * pool.bytes >= bytes => ways.push(Way::Hugetlbfs),
        Ok(pool) => notes.push(format!(
            "not on reserved pages: {} needed; {}",
            show_bytes(bytes),
            machine::reserving(bytes, pool.bytes)
        )),
        Err(error) => notes.push(format!("not on reserved pages: {}", error.reason())),
    }
    let folder = Folder::new(&PAGES)?;
    let all = || kernels::NAMES.map(str::to_owned).to_vec();
    let names = options.kernels.clone().unwrap_or_else(all);
    let mut found = Vec::new();
    for name in &names {
        let mut rounds = Vec::new();
        for round in 0..options.rounds as usize {
            let mut runs: Vec<Option<Run>> = vec![None; ways.len()];
            // Each round begins with another way: what comes first may find colder memory.
            for n in 0..ways.len() {
                let at = (round + n) % ways.len();
                runs[at] = Some(kernel(options, name, ways[at], &folder)?);
            }
            rounds.push(runs.into_iter().flatten().collect());
        }
        found.push(judge(name, &ways, &rounds)?);
    }
    Ok(comparison(options, why.is_none(), notes, found))
}

fn comparison(
    options: &BenchOptions,
    misses_counted: bool,
    notes: Vec<String>,
    kernels: Vec<Kernel>,
) -> Comparison {
    let of_command = !options.command.is_empty();
    Comparison {
        schema: BENCH.to_owned(),
        mib: if of_command { 0 } else { options.mib },
        rounds: options.rounds,
        calls: if of_command { 1 } else { options.calls },
        misses_counted,
        notes,
        kernels,
    }
}

/// The variables of a way; what the user set of them has no place in a comparison.
fn variables(way: Way, folder: &Folder) -> Vec<(OsString, OsString)> {
    let settings = |hugetlbfs| Settings {
        hugetlbfs,
        text: Text::Collapse,
        least_bytes: 0,
    };
    let set = |hugetlbfs, before: &Before| {
        let account = Some(folder.account.as_path());
        environment(&settings(hugetlbfs), &folder.library, account, before)
    };
    match way {
        Way::Normal | Way::Collapsed => Vec::new(),
        Way::Huge => set(false, &Before::here()),
        Way::Hugetlbfs => set(true, &Before::here()),
    }
}

/// Forbids transparent huge pages to what is started meanwhile, for the normal way.
struct Forbidden(bool);

impl Forbidden {
    fn during(way: Way) -> Result<Forbidden> {
        let forbids = way == Way::Normal;
        if forbids {
            let set = rustix::thread::disable_transparent_huge_pages(true);
            set.map_err(|error| Error::internal(format!("prctl: {error}")))?;
        }
        Ok(Forbidden(forbids))
    }
}

impl Drop for Forbidden {
    fn drop(&mut self) {
        if self.0 {
            let _ = rustix::thread::disable_transparent_huge_pages(false);
        }
    }
}

/// Runs a kernel in a process of its own.
fn kernel(options: &BenchOptions, name: &str, way: Way, folder: &Folder) -> Result<Run> {
    let own = std::env::current_exe().map_err(|error| Error::io("this command", "find", &error))?;
    let mut command = Command::new(own);
    command.args(["pages", "kernel", name, "--mib"]);
    command
        .arg(options.mib.to_string())
        .arg("--calls")
        .arg(options.calls.to_string());
    if way == Way::Collapsed {
        command.arg("--collapse");
    }
    command
        .envs(variables(way, folder))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let forbidden = Forbidden::during(way)?;
    let done = command.output();
    drop(forbidden);
    let failed = |reason: String| {
        let entity = Entity::Option(format!("kernels {name}"));
        let remedy = "give less memory (--mib)";
        Error::new(Code::CommandFailed, entity, reason, remedy)
    };
    let done = done.map_err(|error| failed(format!("its process does not start: {error}")))?;
    if !done.status.success() {
        return Err(failed(format!(
            "its process ended ({}): {}",
            way.word(),
            done.status
        )));
    }
    serde_json::from_slice(&done.stdout)
        .map_err(|error| Error::internal(format!("a kernel's process said: {error}")))
}

fn of_command(options: &BenchOptions) -> Result<Comparison> {
    program(&options.command)?;
    let how = How {
        hugetlbfs: false,
        text: TextChoice::Collapse,
        least: None,
    };
    let ready = how.ready(&options.command)?;
    let why = Misses::open(true).err().map(|error| error.to_string());
    let machine = machine::look(Path::new(MEMORY_ROOT));
    let mut all = notes(&machine, why.as_deref());
    all.extend(
        ready
            .notes
            .iter()
            .filter(|note| !machine.remedies.contains(*note))
            .cloned(),
    );
    let ways = [Way::Normal, Way::Huge];
    let watch = Watch::new()?;
    let mut rounds = Vec::new();
    for round in 0..options.rounds as usize {
        let mut runs: Vec<Option<Run>> = vec![None; ways.len()];
        for n in 0..ways.len() {
            let at = (round + n) % ways.len();
            let mut command = Command::new(&options.command[0]);
            command.args(&options.command[1..]).stdout(Stdio::null());
            if ways[at] == Way::Huge {
                command.envs(ready.variables.iter().map(|(name, value)| (name, value)));
            }
            match once(&watch, command, ways[at], &ready.folder)? {
                Ok(run) => runs[at] = Some(run),
                Err(status) => return Err(ended(options, ways[at], status)),
            }
        }
        rounds.push(runs.into_iter().flatten().collect());
    }
    let name = options.command[0].to_string_lossy();
    let mut kernel = judge(&name, &ways, &rounds)?;
    "run".clone_into(&mut kernel.unit);
    Ok(comparison(options, why.is_none(), all, vec![kernel]))
}

fn ended(options: &BenchOptions, way: Way, status: u8) -> Error {
    let entity = Entity::File(options.command[0].display().to_string());
    let reason = format!("it ended with status {status} ({} pages)", way.word());
    let remedy = "see above what it said; give a command that ends well";
    Error::new(Code::CommandFailed, entity, reason, remedy)
}

/// One run of the command; its status if it did not end well.
fn once(
    watch: &Watch,
    command: Command,
    way: Way,
    folder: &Folder,
) -> Result<std::result::Result<Run, u8>> {
    folder.clear()?;
    let (before, used) = (faults_of_children(), processor_ns_of_children());
    let forbidden = Forbidden::during(way)?;
    let period = Some(std::time::Duration::from_secs(1));
    let (outcome, misses) = match Misses::open(true) {
        Ok(mut misses) => misses.during(|| watch.run(command, period)),
        Err(_) => (watch.run(command, period), None),
    };
    drop(forbidden);
    let outcome = outcome?;
    let status = outcome.ended.exit_status();
    if status != 0 || outcome.told_to_end {
        return Ok(Err(status));
    }
    let amount = peak(&outcome, &told(folder)).amount;
    Ok(Ok(Run {
        unit_ns: vec![processor_ns_of_children().saturating_sub(used) as f64],
        wall_ns: vec![outcome.seconds * 1e9],
        // Nobody knows what it computed: its status stands for it.
        result: 0,
        resident_bytes: amount.resident_bytes,
        huge_bytes: amount.huge_bytes,
        faults: faults_of_children().saturating_sub(before),
        misses: misses.map(|count| count as f64),
        why: None,
    }))
}

/// Numbers of `/proc/self/stat` behind the name, added up.
fn of_own_stat(places: [usize; 2]) -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = text.rsplit_once(')').map_or("", |pair| pair.1);
    let words: Vec<&str> = rest.split_whitespace().collect();
    let number = |place: &usize| words.get(*place)?.parse::<u64>().ok();
    places.iter().filter_map(number).sum()
}

/// Page faults, minor and major, of all children that have ended.
fn faults_of_children() -> u64 {
    of_own_stat([8, 10])
}

/// Processor time, of programs and of the kernel for them, of all children that have ended, ns.
fn processor_ns_of_children() -> u64 {
    of_own_stat([13, 14]) * (1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
}

fn text(found: &Comparison) -> String {
    let heading = [
        "kernel", "pages", "time", "least", "most", "wall", "memory", "huge", "faults", "misses",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for kernel in &found.kernels {
        for figures in &kernel.ways {
            let of_command = kernel.unit == "run";
            let time = |ns: f64| match of_command {
                true => format!("{:.3} s", ns / 1e9),
                false => format!("{ns:.2} ns"),
            };
            let misses = |misses: f64| match of_command {
                true => format!("{misses:.0}"),
                false => format!("{misses:.3}"),
            };
            rows.push(vec![
                kernel.name.clone(),
                figures.way.word().to_owned(),
                time(figures.unit_ns),
                time(figures.unit_ns_min),
                time(figures.unit_ns_max),
                time(figures.wall_ns),
                show_bytes(figures.resident_bytes),
                show_bytes(figures.huge_bytes),
                figures.faults.to_string(),
                figures.misses.map_or("-".to_owned(), misses),
            ]);
        }
    }
    let mut lines = vec![output::table(&rows), String::new()];
    for kernel in &found.kernels {
        lines.push(format!(
            "{}: {:.2} times as fast with huge pages ({:.2} to {:.2}; {:.2} by the clock)",
            kernel.name, kernel.ratio, kernel.ratio_min, kernel.ratio_max, kernel.ratio_wall
        ));
    }
    lines.push(format!(
        "processor time of each load, update, key, entry or run; medians of {}",
        count(u64::from(found.rounds), "round")
    ));
    lines.extend(found.notes.iter().map(|note| format!("note: {note}")));
    lines.join("\n")
}

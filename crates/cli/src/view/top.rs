//! `outlive top`: a running job as it is now, or all jobs of a store.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use outlive_base::{JobName, Result};
use outlive_control::report::Report;
use outlive_launch::jobs::{Job, State};
use outlive_launch::record;
use outlive_launch::record::live::{self, Live};
use serde::Serialize;

use super::paint::Room;
use super::screen::{self, Subject};
use super::terminal::{Said, Terminal};
use crate::options::JobChoice;
use crate::{jobs, output, status};

/// Between two looks at the job: its launcher writes as often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Where no terminal says how wide it is.
const WIDTH: usize = 80;

#[derive(Args, Debug)]
#[command(after_help = "\
Keys: q ends it, up and down scroll the nodes.
Examples:
  outlive top
  outlive top --job heat
  ssh login outlive top --job heat --store /scratch/me/store --once")]
pub struct TopOptions {
    #[command(flatten)]
    choice: JobChoice,
    /// Show it once and end, as it is done where there is no terminal
    #[arg(long)]
    once: bool,
}

#[derive(Serialize)]
struct Top {
    schema: &'static str,
    jobs: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    state: State,
    pid: Option<u32>,
    exit_status: Option<u8>,
    /// How long ago `live` was written.
    age_seconds: Option<f64>,
    live: Option<Live>,
    report: Option<Report>,
}

/// What is looked at.
enum Target {
    Job(PathBuf, JobName),
    Store(PathBuf),
}

/// `outlive top`.
///
/// # Errors
/// If there is no such job or store; those of the terminal.
pub fn run(options: &TopOptions) -> Result<u8> {
    let target = target(&options.choice)?;
    if options.choice.json {
        let jobs = look(&target)?.into_iter().map(entry).collect();
        return output::json(&Top {
            schema: "outlive.top/1",
            jobs,
        });
    }
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let terminal = std::io::stdout().is_terminal() && !dumb;
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if options.once || !terminal {
        let width = match std::io::stdout().is_terminal() {
            true => Terminal::size().0,
            false => WIDTH,
        };
        let room = Room {
            width,
            height: usize::MAX,
            scroll: 0,
        };
        return output::text(&page(&target, room, terminal && !no_colour)?.join("\n"));
    }
    watch(&target, !no_colour)
}

/// The job that is named, or the only one that runs; else all of the store.
fn target(choice: &JobChoice) -> Result<Target> {
    if choice.job.is_some() {
        let job = status::choose(choice)?;
        return Ok(Target::Job(job.dir, job.name));
    }
    let store = status::store(choice)?;
    let mut running = jobs::of_store(&store)?;
    running.retain(|job| job.state == State::Running);
    match (running.pop(), running.is_empty()) {
        (Some(job), true) => Ok(Target::Job(job.dir, job.name)),
        _ => Ok(Target::Store(store)),
    }
}

fn watch(target: &Target, colour: bool) -> Result<u8> {
    let mut terminal = Terminal::enter()?;
    let mut scroll = 0usize;
    let mut next = Instant::now();
    loop {
        let (width, height) = Terminal::size();
        let room = Room {
            width,
            // The last row says which keys there are.
            height: height.saturating_sub(1),
            scroll,
        };
        let mut lines = page(target, room, colour)?;
        lines.resize(room.height, String::new());
        let keys: String = "q quit   up, down scroll".chars().take(width).collect();
        lines.push(if colour {
            format!("\x1b[2m{keys}\x1b[0m")
        } else {
            keys
        });
        if Terminal::show(&lines).is_err() {
            return Ok(0);
        }
        if next <= Instant::now() {
            next = Instant::now() + LOOK_EVERY;
        }
        match terminal.wait(next) {
            Said::Nothing => {}
            Said::Scroll(rows) => scroll = scroll.saturating_add_signed(rows).min(1 << 20),
            Said::Quit => return Ok(0),
            // As a shell tells that a signal ended a command.
            Said::Signal(signal) => return Ok(128u8.saturating_add(signal as u8)),
        }
    }
}

fn page(target: &Target, room: Room, colour: bool) -> Result<Vec<String>> {
    let found = look(target)?;
    let subjects: Vec<Subject> = found.into_iter().map(subject).collect();
    let lines = match (target, &subjects[..]) {
        (Target::Job(..), [one]) => screen::job(one, room),
        (Target::Store(store), all) => screen::list(all, &store.display().to_string(), room),
        (Target::Job(..), _) => Vec::new(),
    };
    Ok(lines
        .iter()
        .map(|line| line.show(room.width, colour))
        .collect())
}

fn look(target: &Target) -> Result<Vec<Job>> {
    match target {
        Target::Job(dir, name) => Ok(vec![Job::at(dir, name.clone())]),
        Target::Store(store) => {
            let mut all = jobs::of_store(store)?;
            all.sort_by_key(|job| job.state != State::Running);
            Ok(all)
        }
    }
}

/// What the launcher wrote last of what the job is doing, and how long ago that was.
fn live_of(job: &Job) -> Option<(Live, f64)> {
    let live = Live::read(&job.dir)?;
    Some((live, age(&record::directory(&job.dir).join(live::FILE))))
}

fn age(path: &Path) -> f64 {
    let written = fs::metadata(path).and_then(|meta| meta.modified());
    let age = written.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
    age.map_or(0.0, |age| age.as_secs_f64())
}

fn subject(job: Job) -> Subject {
    let (live, age) = live_of(&job).map_or((None, 0.0), |(live, age)| (Some(live), age));
    Subject {
        exit_status: jobs::ended(&job),
        name: job.name.to_string(),
        state: job.state,
        live,
        report: job.report,
        age,
    }
}

fn entry(job: Job) -> Entry {
    let live = live_of(&job);
    Entry {
        exit_status: jobs::ended(&job),
        name: job.name.to_string(),
        state: job.state,
        pid: job.pid,
        age_seconds: live.as_ref().map(|(_, age)| *age),
        live: live.map(|(live, _)| live),
        report: job.report,
    }
}

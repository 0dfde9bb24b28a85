//! `outlive bench save`: what a save costs the program, the machine and its memory.

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error, Result};
use outlive_vault::{Directory, ObjectKind};
use rustix::fs::inotify;

use super::machine::clock_ns;
use super::machine::{self, Buffer, Machine};
use super::session::{Scratch, Session, failed, odd, word};
use super::table::{Goal, Row, Table};
use crate::args::BenchOptions;

const RANKS: usize = 2;
/// Versions between two saves: only multiples are armed.
pub const STRIDE: u64 = 1_000_000;
/// Pairs of the run with and without a save.
const RUNS: usize = 5;
/// What may be used beyond two slots, in bytes.
const SPARE_BYTES: u64 = 64 << 20;
/// Time for the next version to be armed.
const PAUSE: Duration = Duration::from_millis(150);
const GIB: f64 = (1u64 << 30) as f64;

/// When a container file came up and when it got its name, in nanoseconds.
pub struct Files(Receiver<(u64, bool)>);

impl Files {
    pub fn watch(directory: &Path) -> Result<Files> {
        let wrong = |error: rustix::io::Errno| failed("watch a directory", &error.into());
        let events = inotify::init(inotify::CreateFlags::CLOEXEC).map_err(wrong)?;
        let what = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        inotify::add_watch(&events, directory, what).map_err(wrong)?;
        let (to, from) = channel();
        std::thread::spawn(move || {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = inotify::Reader::new(&events, &mut buffer);
            while let Ok(event) = reader.next() {
                let named = event.events().contains(inotify::ReadFlags::MOVED_TO);
                if to.send((clock_ns(), named)).is_err() {
                    break;
                }
            }
        });
        Ok(Files(from))
    }

    /// The last file since the last call: when it came up, when it got its name.
    pub fn last(&self) -> Option<(u64, u64)> {
        let (mut created, mut found) = (None, None);
        for (at, named) in self.0.try_iter() {
            match named {
                false => created = Some(at),
                true => found = created.map(|created| (created, at)),
            }
        }
        found
    }
}

/// The next save: versions are offered until one was armed; the answers of the
/// ranks, and the version.
pub fn save(session: &mut Session, version: &mut u64) -> Result<Vec<Vec<String>>> {
    let until = Instant::now() + Duration::from_secs(90);
    while Instant::now() < until {
        std::thread::sleep(PAUSE);
        *version += STRIDE;
        let answers = session.together(&format!("offer {version}"))?;
        if answers.iter().all(|answer| answer[0] == "taken") {
            return Ok(answers);
        }
    }
    Err(Error::new(
        Code::TimedOut,
        Entity::Version(*version),
        "nothing was saved for 90 seconds",
        "is there memory for two slots? See outlive doctor",
    ))
}

/// Where the first node writes its containers.
fn containers(session: &Session) -> PathBuf {
    Directory::of_kind(&session.node_dir(0), ObjectKind::Container)
}

fn most(answers: &[Vec<String>], nth: usize) -> f64 {
    answers
        .iter()
        .map(|answer| word(answer, nth))
        .fold(0.0, f64::max)
}

fn total(answers: &[Vec<String>], nth: usize) -> f64 {
    answers.iter().map(|answer| word(answer, nth)).sum()
}

#[derive(Default)]
struct Figures {
    copy_ms: Vec<f64>,
    blocked_ms: Vec<f64>,
    first_ms: Vec<f64>,
    write: Vec<f64>,
    write_limit: Vec<f64>,
    verify: Vec<f64>,
    verify_limit: Vec<f64>,
    commit_ms: Vec<f64>,
}

struct Bench<'a> {
    session: Session,
    scratch: &'a Scratch,
    buffer: Buffer,
    files: Files,
    version: u64,
}

impl Bench<'_> {
    fn copy(&mut self) -> Result<f64> {
        Ok(most(&self.session.together("copy")?, 1) / 1e6)
    }

    /// One save beside a copy; then its background work beside the disk's own rates.
    fn round(&mut self, nth: usize, figures: &mut Figures) -> Result<()> {
        let before = match nth.is_multiple_of(2) {
            true => Some(self.copy()?),
            false => None,
        };
        let answers = save(&mut self.session, &mut self.version)?;
        let end = most(&answers, 3);
        let after = match before {
            Some(ms) => ms,
            // The background work has begun: the copy waits for its end.
            None => {
                self.session
                    .all(&format!("wait {} node-crash", self.version))?;
                self.copy()?
            }
        };
        let stable = self
            .session
            .all(&format!("wait {} node-crash", self.version))?;
        figures.copy_ms.push(after);
        figures.blocked_ms.push(most(&answers, 1) / 1e6);
        if before.is_some() {
            figures.commit_ms.push((most(&stable, 1) - end) / 1e6);
        }
        let Some((created, named)) = self.files.last() else {
            return Ok(());
        };
        let directory = containers(&self.session);
        let newest = std::fs::read_dir(&directory)
            .map_err(|error| Error::io(&directory, "list", &error))?
            .flatten()
            .max_by_key(|entry| entry.file_name());
        let Some(newest) = newest else { return Ok(()) };
        let wrong = |error: std::io::Error| failed("measure the storage", &error);
        let (seconds, bytes) =
            machine::read_direct(&newest.path(), &mut self.buffer).map_err(wrong)?;
        let gib = bytes as f64 / GIB;
        figures.verify_limit.push(gib / seconds);
        if before.is_some() {
            let verified = (most(&stable, 1) - named as f64) / 1e9;
            figures.verify.push(gib / verified);
        }
        let path = self.scratch.path().join("reference");
        let seconds = machine::write_direct(&path, bytes, &mut self.buffer).map_err(wrong)?;
        figures.write_limit.push(gib / seconds);
        figures.write.push(gib / ((named - created) as f64 / 1e9));
        Ok(())
    }

    /// The most memory in use beyond the program's own, while a save is written.
    fn memory(&mut self, before: f64) -> Result<f64> {
        save(&mut self.session, &mut self.version)?;
        let ranks = total(&self.session.all("memory")?, 1) - before;
        let mut peak = 0;
        for _ in 0..8 {
            let each = self.session.services();
            let now = each
                .iter()
                .map(|(pid, _)| machine::share_of_memory(&pid.to_string()));
            peak = peak.max(now.sum::<u64>());
        }
        self.session
            .all(&format!("wait {} node-crash", self.version))?;
        Ok(ranks + peak as f64)
    }

    /// Seconds that a run on all cores takes, without and with one save: after a third
    /// of it, so that its background work falls into the run.
    fn runs(&mut self, seconds: f64) -> Result<(Vec<f64>, Vec<f64>)> {
        self.session.all("calibrate 100")?;
        let units = (seconds * 1e4) as u64;
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for nth in 0..2 * RUNS {
            // Without, with, with, without: a drift of the machine hits both.
            if nth.div_ceil(2) % 2 == 0 {
                let answers = self.session.together(&format!("compute {units} -"))?;
                without.push(most(&answers, 1) / 1e9);
                continue;
            }
            std::thread::sleep(PAUSE);
            self.version += STRIDE;
            let first = self.version - units / 3;
            let answers = self.session.together(&format!("compute {units} {first}"))?;
            if answers.iter().all(|answer| word(answer, 3) == 1.0) {
                with.push(most(&answers, 1) / 1e9);
                self.session
                    .all(&format!("wait {} node-crash", self.version))?;
            }
        }
        if with.is_empty() {
            return Err(odd("no version was taken during a run on all cores"));
        }
        let pairs = with.len().min(without.len());
        with.truncate(pairs);
        without.truncate(pairs);
        Ok((without, with))
    }

    /// Thousandths of a core that agent and keeper, and the launcher, use while
    /// the job computes and offers nothing.
    fn idle(&mut self) -> (f64, f64) {
        const SECONDS: f64 = 5.0;
        let of = |session: &Session| -> (f64, f64) {
            session
                .services()
                .iter()
                .fold((0.0, 0.0), |sum, (pid, word)| {
                    let used = machine::core_seconds(*pid);
                    match word.as_str() {
                        "run" => (sum.0, sum.1 + used),
                        _ => (sum.0 + used, sum.1),
                    }
                })
        };
        std::thread::sleep(Duration::from_millis(500));
        let before = of(&self.session);
        std::thread::sleep(Duration::from_secs_f64(SECONDS));
        let after = of(&self.session);
        let share = |used: f64| used / SECONDS * 100.0;
        (share(after.0 - before.0), share(after.1 - before.1))
    }
}

/// Runs the benchmark.
pub fn measure(options: &BenchOptions) -> Result<Table> {
    let mut table = Table::new("save", Machine::here());
    let scratch = Scratch::new(options.dir.as_deref())?;
    let bytes = (options.mib << 20) / RANKS as u64;
    let budget = format!("{}MiB", options.mib * 2 + 16);
    let every = STRIDE.to_string();
    let settings = [
        "--emulate-nodes",
        "1",
        "--levels",
        "memory,disk",
        "--every",
        &every,
        "--memory",
        &budget,
        "--commit-timeout",
        "120s",
    ];
    let mut session = Session::start(&scratch, "save", RANKS, &settings)?;
    session.gather(RANKS)?;
    session.all(&format!("fill {bytes} 7"))?;
    session.all("target")?;
    let before = total(&session.all("memory")?, 1);
    session.all("open")?;
    session.all("offer 1 0")?;
    let mut bench = Bench {
        files: Files::watch(&containers(&session))?,
        session,
        scratch: &scratch,
        buffer: Buffer::new(),
        version: 0,
    };
    let mut figures = Figures::default();
    // The first use of each slot enters its pages: shown apart.
    for _ in 0..2 {
        let answers = save(&mut bench.session, &mut bench.version)?;
        figures.first_ms.push(most(&answers, 1) / 1e6);
        bench
            .session
            .all(&format!("wait {} node-crash", bench.version))?;
    }
    bench.copy()?;
    bench.files.last();
    for nth in 0..options.rounds.max(1) {
        bench.round(nth, &mut figures)?;
    }
    let memory = bench.memory(before)?;
    let (agent, launcher) = bench.idle();
    let background = 1.0 / super::table::Stat::of(&figures.write).median
        + 1.0 / super::table::Stat::of(&figures.verify).median;
    let gib = options.mib as f64 / 1024.0;
    let (without, with) = bench.runs((background * gib * 2.0).clamp(2.0, 6.0))?;
    bench.session.finish()?;
    rows(&mut table, options, &figures);
    let allowed = (2 * (options.mib << 20) + SPARE_BYTES) as f64;
    table.rows.push(
        Row::new(
            "memory beyond the program's",
            "MiB",
            &[memory / f64::from(1 << 20)],
        )
        .goal(Goal::AtMost(allowed / f64::from(1 << 20))),
    );
    let added: Vec<f64> = with
        .iter()
        .zip(&without)
        .map(|(w, o)| (w - o) * 1e3)
        .collect();
    table.rows.push(
        Row::new("run on all cores, with one save", "s", &with).beside("without", &with, &without),
    );
    table
        .rows
        .push(Row::new("  added to the run by one save", "ms", &added));
    table.rows.push(
        Row::new("keeper and agent when idle", "% of a core", &[agent]).goal(Goal::AtMost(0.1)),
    );
    table
        .rows
        .push(Row::new("launcher when idle", "% of a core", &[launcher]));
    table.notes.push(format!(
        "save: {RANKS} ranks, {} MiB in all, levels memory and disk; load {} at the end",
        options.mib,
        machine::load()
    ));
    Ok(table)
}

fn rows(table: &mut Table, options: &BenchOptions, figures: &Figures) {
    let mib = options.mib;
    table.rows.push(
        Row::new(
            format!("blocked by a save of {mib} MiB"),
            "ms",
            &figures.blocked_ms,
        )
        .beside("memcpy", &figures.blocked_ms, &figures.copy_ms)
        .goal(Goal::AtMost(1.2)),
    );
    table.rows.push(Row::new(
        "  first save into each slot",
        "ms",
        &figures.first_ms,
    ));
    table.rows.push(
        Row::new("background write, synced", "GiB/s", &figures.write)
            .beside("O_DIRECT write", &figures.write, &figures.write_limit)
            .goal(Goal::AtLeast(0.8)),
    );
    table.rows.push(
        Row::new("read back, verified, committed", "GiB/s", &figures.verify).beside(
            "O_DIRECT read",
            &figures.verify,
            &figures.verify_limit,
        ),
    );
    table.rows.push(Row::new(
        "from the end of the capture to stable",
        "ms",
        &figures.commit_ms,
    ));
}

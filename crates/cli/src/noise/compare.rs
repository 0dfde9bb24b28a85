//! `outlive noise compare`: what protections of a core are worth on this machine, measured in turn.
//!
//! This process changes nothing and disturbs nothing: it starts processes that do, and these end
//! when it ends, also by SIGKILL. Who isolates is `outlive quiet`, which outlives it to undo its changes.

mod disturb;
pub(super) mod part;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use clap::{Args, ValueEnum};
use outlive_base::{Code, Entity, Error, Result};
use outlive_node::compare::{self, COMPARED, Compared, Load};
use outlive_node::interruptions::{self, Part};
use outlive_node::measure::QUANTUM_NS;
use outlive_node::pages::program;
use outlive_node::{cores, text};

use super::OUTPUT;
use crate::output;
use crate::quiet::cores::AFFINITY_ALONE;

/// Turns and quanta of a turn at most, and how long the quanta of a turn are together, s.
const ROUNDS_MAX: u32 = 1_000;
const SAMPLES: (u64, u64) = (10, 1_000_000);
const TURN_SECONDS_MAX: u64 = 60;
/// Priority of those that are real time: the lowest is above all that are not.
const PRIORITY: &str = "1";
/// Group of options.
const LOAD: &str = "Load";

#[derive(Args, Debug)]
pub(super) struct CompareOptions {
    /// The core to measure [default: the last that this process may use]
    #[arg(long, value_name = "CORE")]
    core: Option<u32>,
    /// Cores for everything else, as in 0 or 0,2-3 [default: the first that is not the measured one]
    #[arg(long, value_name = "CORES")]
    service: Option<String>,
    /// Protections; the first is what the others are held against
    #[arg(long, value_name = "NAME,...", value_enum, value_delimiter = ',',
          default_values = ["normal", "taskset", "chrt", "isolated", "isolated-fifo"])]
    modes: Vec<Protection>,
    /// Length of a quantum in microseconds, 1 to 1000000
    #[arg(long, value_name = "US", default_value_t = 1_000)]
    quantum_us: u64,
    /// Quanta in a turn of each protection, 10 to 1000000; at most a minute of them
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    samples: u64,
    /// Turns of each protection, 1 to 1000; each begins with another one
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// What outlive quiet does with threads of other programs while it isolates
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Others::Move)]
    others: Others,
    /// Where outlive quiet keeps its journals [default: its own]
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// Disturb on purpose: daemons, timers, packets and writeback on the service cores, and
    /// on the measured one where nothing keeps them away
    #[arg(long, help_heading = LOAD)]
    disturb: bool,
    /// Where the file lies that is written back; it has no name [default: that of temporary files]
    #[arg(long, value_name = "DIR", help_heading = LOAD, requires = "disturb")]
    dir: Option<PathBuf>,
    /// Seed of the load's times
    #[arg(long, default_value_t = 1, help_heading = LOAD)]
    seed: u64,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Others {
    /// Moves them to service cores
    Move,
    /// Leaves them; the load begins on the service cores by itself then
    Leave,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Protection {
    /// May run on the measured core and the service cores
    Normal,
    /// Bound to the measured core
    Taskset,
    /// Real time (FIFO), and not bound
    Chrt,
    /// By outlive quiet
    Isolated,
    /// By outlive quiet, real time (FIFO)
    IsolatedFifo,
    /// By outlive quiet, system calls made on service cores
    Decoupled,
    /// The same, real time (FIFO)
    DecoupledFifo,
}

impl Protection {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or(String::new(), |value| value.get_name().to_owned())
    }

    const fn isolates(self) -> bool {
        self.decouples() || matches!(self, Protection::Isolated | Protection::IsolatedFifo)
    }

    const fn decouples(self) -> bool {
        matches!(self, Protection::Decoupled | Protection::DecoupledFifo)
    }

    const fn is_fifo(self) -> bool {
        matches!(self, Protection::IsolatedFifo | Protection::DecoupledFifo)
    }
}

/// What all turns have in common.
struct Plan<'a> {
    options: &'a CompareOptions,
    core: u32,
    service: Vec<u32>,
    steps: u64,
    directory: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// Options out of bounds, one core alone (OL-100); no protection could be measured, or the load
/// ended before it should (OL-505).
pub(super) fn run(options: &CompareOptions) -> Result<u8> {
    check(options)?;
    let (core, service) = chosen(options.core, options.service.as_deref())?;
    let plan = Plan {
        options,
        core,
        service,
        steps: interruptions::size(options.quantum_us * 1_000)?,
        directory: options.dir.clone().unwrap_or_else(std::env::temp_dir),
    };
    let compared = plan.measure()?;
    match options.json {
        true => output::json(&compared),
        false => output::text(&compare::text(&compared)),
    }
}

fn refuse(option: &str, reason: String, remedy: impl Into<String>) -> Error {
    Error::new(
        Code::InvalidArgument,
        Entity::Option(option.into()),
        reason,
        remedy,
    )
}

fn check(options: &CompareOptions) -> Result<()> {
    let (least, most) = QUANTUM_NS;
    if !(least / 1_000..=most / 1_000).contains(&options.quantum_us) {
        let reason = format!("a quantum of {} us cannot be measured", options.quantum_us);
        return Err(refuse("quantum-us", reason, "give 1 to 1000000 us"));
    }
    let (least, most) = SAMPLES;
    if !(least..=most).contains(&options.samples) {
        let reason = format!("{} quanta in a turn", options.samples);
        return Err(refuse("samples", reason, format!("give {least} to {most}")));
    }
    if options.samples * options.quantum_us > TURN_SECONDS_MAX * 1_000_000 {
        let reason = format!(
            "{} quanta take more than {TURN_SECONDS_MAX} s",
            options.samples
        );
        return Err(refuse("samples", reason, "give fewer, and more --rounds"));
    }
    if !(1..=ROUNDS_MAX).contains(&options.rounds) {
        let reason = format!("{} turns", options.rounds);
        return Err(refuse("rounds", reason, format!("give 1 to {ROUNDS_MAX}")));
    }
    let twice = |at: usize| options.modes[..at].contains(&options.modes[at]);
    if let Some(at) = (0..options.modes.len()).find(|at| twice(*at)) {
        let reason = format!("{} stands there twice", options.modes[at].name());
        return Err(refuse("modes", reason, "name each once"));
    }
    if let Some(directory) = options.dir.as_ref().filter(|directory| !directory.is_dir()) {
        let reason = format!("{} is no directory", directory.display());
        return Err(refuse("dir", reason, "name one that is there"));
    }
    Ok(())
}

/// The measured core and the service cores.
///
/// # Errors
/// OL-100 if they cannot be used, are the same, or there is one alone.
pub(super) fn chosen(core: Option<u32>, service: Option<&str>) -> Result<(u32, Vec<u32>)> {
    let root = Path::new(cores::CPU_ROOT);
    let allowed = cores::choose(root, None)?;
    let core = match core {
        Some(core) => cores::choose(root, Some(&core.to_string()))?
            .first()
            .copied(),
        None => allowed.last().copied(),
    };
    let core = core.ok_or_else(|| Error::internal("no core"))?;
    let service = match service {
        Some(list) => cores::choose(root, Some(list))?,
        None => allowed
            .iter()
            .copied()
            .filter(|other| *other != core)
            .take(1)
            .collect(),
    };
    if service.is_empty() {
        let reason = format!("core {core} is the only one that this process may use");
        return Err(refuse(
            "service",
            reason,
            "measure where there are two or more",
        ));
    }
    if service.contains(&core) {
        let reason = format!("core {core} is the measured one");
        return Err(refuse("service", reason, "name others"));
    }
    Ok((core, service))
}

pub(super) fn list(cores: &[u32]) -> String {
    let words: Vec<String> = cores.iter().map(u32::to_string).collect();
    words.join(",")
}

impl Plan<'_> {
    fn measure(&self) -> Result<Compared> {
        let options = self.options;
        let mut parts: Vec<Vec<Part>> = vec![Vec::new(); options.modes.len()];
        let mut refused: Vec<Option<String>> = vec![None; options.modes.len()];
        let mut notes = Vec::new();
        let mut load = options.disturb.then(Load::default);
        for round in 0..options.rounds as usize {
            for turn in 0..options.modes.len() {
                let at = (round + turn) % options.modes.len();
                if refused[at].is_some() {
                    continue;
                }
                let (measured, did) = self.turn(options.modes[at], &mut notes)?;
                load = load.map(|all| all.plus(did));
                match measured {
                    Ok(part) => parts[at].push(part),
                    Err(why) => refused[at] = Some(why),
                }
            }
        }
        let osnoise = self.osnoise(&mut notes)?;
        self.judge(&parts, refused, notes, load, osnoise)
    }

    fn judge(
        &self,
        parts: &[Vec<Part>],
        refused: Vec<Option<String>>,
        mut notes: Vec<String>,
        load: Option<Load>,
        osnoise: Option<String>,
    ) -> Result<Compared> {
        let options = self.options;
        let names: Vec<String> = options.modes.iter().map(|mode| mode.name()).collect();
        let (mut modes, mut skipped) = (Vec::new(), Vec::new());
        for ((name, parts), why) in names.iter().zip(parts).zip(refused) {
            match (why, compare::mode(name, parts)) {
                (Some(why), _) => skipped.push((name.clone(), why)),
                (None, Some(mode)) => modes.push(mode),
                (None, None) => skipped.push((name.clone(), "no quantum".to_owned())),
            }
        }
        let quanta = options.samples * u64::from(options.rounds);
        let least = compare::rates(&mut modes, quanta);
        // What the first could not give the others cannot be held against.
        if modes
            .first()
            .is_some_and(|mode| names.first() == Some(&mode.name))
        {
            compare::against_first(&mut modes);
        }
        if modes.is_empty() {
            let why = skipped.first().map_or("nothing was measured", |one| &one.1);
            let entity = Entity::Option("modes".into());
            let remedy = "see the reason; normal and taskset need no rights";
            return Err(Error::new(Code::CommandFailed, entity, why, remedy));
        }
        let unseen = parts.iter().flatten().find_map(|part| part.unseen.as_ref());
        if let Some(why) = unseen {
            notes.push(format!(
                "interruptions are those that /proc counts, of the whole time alone: {why}"
            ));
        }
        let limit = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/kernel/sched_rt_{name}_us"));
            text.ok()?.trim().parse::<i64>().ok()
        };
        let (runtime, period) = (limit("runtime"), limit("period"));
        if let (Some(runtime @ 0..), Some(period), true) =
            (runtime, period, options.modes.contains(&Protection::Chrt))
        {
            notes.push(format!(
                "chrt: real time may use a core that others want for {} of {} at most \
                 (sched_rt_runtime_us); isolated-fifo has no such limit",
                text::time(runtime as f64 * 1e3),
                text::time(period as f64 * 1e3)
            ));
        }
        Ok(Compared {
            schema: COMPARED.to_owned(),
            core: self.core,
            service: self.service.clone(),
            quantum_ns: options.quantum_us * 1_000,
            samples: options.samples,
            rounds: options.rounds,
            seed: options.seed,
            least_ns: least,
            rt_runtime_us: runtime,
            rt_period_us: period,
            load,
            modes,
            skipped,
            osnoise,
            notes,
        })
    }

    /// The service cores, and the measured one if something may run on both.
    fn all(&self) -> String {
        let mut all = self.service.clone();
        all.push(self.core);
        list(&all)
    }

    /// The load on its cores, if one is wanted.
    fn disturb(&self, isolates: bool) -> Result<Option<Disturber>> {
        if !self.options.disturb {
            return Ok(None);
        }
        // Whom nobody moves away keeps away by itself.
        let alone = isolates && self.options.others == Others::Leave;
        let cores = if alone {
            list(&self.service)
        } else {
            self.all()
        };
        let turn = self.options.samples * self.options.quantum_us / 1_000_000;
        Disturber::start(&cores, &self.directory, self.options.seed, 120 + 20 * turn).map(Some)
    }

    /// One turn of a protection: what it measured, or in words why it could not; what the load did.
    fn turn(
        &self,
        mode: Protection,
        notes: &mut Vec<String>,
    ) -> Result<(std::result::Result<Part, String>, Load)> {
        let load = self.disturb(mode.isolates())?;
        let done = self.command(mode)?.output();
        let did = load.map_or(Ok(Load::default()), Disturber::stop)?;
        let done = done.map_err(|error| Error::internal(format!("own program: {error}")))?;
        let said = String::from_utf8_lossy(&done.stderr);
        let said: Vec<&str> = said
            .lines()
            .map(|line| line.trim_start_matches("outlive: "))
            .collect();
        let part = serde_json::from_slice::<Part>(&done.stdout);
        // What is bound by affinity alone is what taskset shows, and no row of its own.
        let mut alone = said.iter().filter(|line| line.contains(AFFINITY_ALONE));
        let part = match (part, alone.next()) {
            (Ok(_), Some(line)) if mode.isolates() && !mode.decouples() => Err((*line).to_owned()),
            (Ok(part), _) if done.status.success() => {
                for line in said {
                    // Where settings go back stands in a line of its own for each run.
                    let note = format!("{}: {line}", mode.name());
                    if !notes.contains(&note) {
                        notes.push(note);
                    }
                }
                Ok(part)
            }
            _ if said.is_empty() => Err(format!("it ended with {}", done.status)),
            _ => Err(said.join("; ")),
        };
        Ok((part, did))
    }

    /// What measures under `mode`.
    fn command(&self, mode: Protection) -> Result<Command> {
        let own = std::env::current_exe();
        let own = own.map_err(|error| Error::internal(format!("own program: {error}")))?;
        let mut command = Command::new(&own);
        let core = self.core.to_string();
        if mode.isolates() {
            command.args([
                "quiet",
                "--compute",
                &core,
                "--service",
                &list(&self.service),
            ]);
            let others = match self.options.others {
                Others::Move => "move",
                Others::Leave => "leave",
            };
            command.args(["--others", others]);
            if mode.is_fifo() {
                command.args(["--class", &format!("fifo:{PRIORITY}")]);
            }
            if mode.decouples() {
                command.arg("--decouple");
            }
            if let Some(journal) = &self.options.journal {
                command.arg("--journal").arg(journal);
            }
            command.arg("--").arg(own);
            // It undoes its changes then, and its command ends with it.
            tie(&mut command, libc::SIGTERM);
        }
        command.args(["noise", "part", "measure"]);
        let may = match mode {
            Protection::Normal | Protection::Chrt => self.all(),
            _ => core,
        };
        command.args(["--cores", &may]);
        command.args(["--steps", &self.steps.to_string()]);
        command.args(["--samples", &self.options.samples.to_string()]);
        if mode == Protection::Chrt {
            command.args(["--fifo", PRIORITY]);
        }
        if !mode.isolates() {
            command.args(["--parent", &std::process::id().to_string()]);
        }
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// The kernel's own measurement of the core, unprotected under the same load.
    fn osnoise(&self, notes: &mut Vec<String>) -> Result<Option<String>> {
        let Some(path) = program::find("rtla".as_ref()) else {
            notes.push("rtla is not installed: nothing to hold this against".to_owned());
            return Ok(None);
        };
        let load = self.disturb(false)?;
        let seconds = (self.options.samples * self.options.quantum_us).div_ceil(1_000_000);
        let mut command = Command::new(path);
        command.args([
            "osnoise",
            "top",
            "--quiet",
            "--cpus",
            &self.core.to_string(),
        ]);
        command
            .args(["--duration", &format!("{seconds}s")])
            .stdin(Stdio::null());
        tie(&mut command, libc::SIGTERM);
        let done = command.output();
        load.map_or(Ok(Load::default()), Disturber::stop)?;
        match done {
            Ok(done) if done.status.success() => {
                Ok(Some(String::from_utf8_lossy(&done.stdout).into_owned()))
            }
            Ok(done) => {
                let said = String::from_utf8_lossy(&done.stderr);
                notes.push(format!(
                    "rtla osnoise ended with {}: {}",
                    done.status,
                    said.trim()
                ));
                Ok(None)
            }
            Err(error) => {
                notes.push(format!("rtla osnoise: {error}"));
                Ok(None)
            }
        }
    }
}

/// The kernel sends `signal` to what is started when this thread ends.
fn tie(command: &mut Command, signal: i32) {
    let own = std::process::id();
    let tie = move || {
        // SAFETY: prctl with plain numbers.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as u64, 0_u64, 0_u64, 0_u64) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32);
        // It may have ended before.
        match parent == Some(own) {
            true => Ok(()),
            false => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: it only makes system calls and allocates nothing.
    unsafe { command.pre_exec(tie) };
}

/// A load that runs; it ends when this goes.
struct Disturber {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Disturber {
    fn start(cores: &str, directory: &Path, seed: u64, seconds: u64) -> Result<Disturber> {
        let failed = |error: std::io::Error| Error::internal(format!("the load: {error}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command
            .args(["noise", "part", "disturb", "--cores", cores, "--dir"])
            .arg(directory);
        command.args([
            "--seed",
            &seed.to_string(),
            "--seconds",
            &seconds.to_string(),
        ]);
        command.args(["--parent", &std::process::id().to_string()]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let Some(output) = child.stdout.take() else {
            return Err(Error::internal("the load has no output"));
        };
        let mut started = Disturber {
            child,
            output: BufReader::new(output),
        };
        let mut line = String::new();
        started.output.read_line(&mut line).map_err(failed)?;
        match line.trim() {
            "ready" => Ok(started),
            _ => Err(ended("did not begin")),
        }
    }

    /// Ends it; what it did.
    fn stop(mut self) -> Result<Load> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        let read = self.output.read_to_string(&mut text);
        let read = read.map_err(|error| Error::internal(format!("the load: {error}")))?;
        match serde_json::from_str(&text) {
            Ok(load) if read > 0 => Ok(load),
            _ => Err(ended("ended before the measurement")),
        }
    }
}

impl Drop for Disturber {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ended(what: &str) -> Error {
    let remedy = "see what it said; fewer --samples in a turn take less time";
    let entity = Entity::Option("disturb".into());
    Error::new(
        Code::CommandFailed,
        entity,
        format!("the load {what}"),
        remedy,
    )
}

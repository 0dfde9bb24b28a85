//! `outlive noise mpi`: MPI-FWQ under any MPI. Its program is compiled by the MPI's own
//! compiler, started by the launcher that the user names, and leaves a file for each rank.

mod job;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::{Args, ValueEnum};
use outlive_base::{Code, Entity, Error, Result, count};
use outlive_control::units::{duration_ms, duration_ns};
use outlive_launch::input;
use outlive_node::cores;
use outlive_node::measure::{QUANTUM_NS, SAMPLES, SECONDS_MAX};
use outlive_node::pages::program::find;
use outlive_node::ranks::judge::{Asked, BYTES_A_STEP, judge};
use outlive_node::ranks::record::{self, HEAD};
use outlive_node::ranks::{Daemon, Mode, PROGRAM, Phase, show};

use self::job::{End, Watch};
use super::{EXTRAPOLATION, OUTPUT, draw};
use crate::{memory, output};

const STARTING: &str = "Starting the ranks";
const DISTURBING: &str = "Disturbing them on purpose";
/// What the compiler may take.
const COMPILING: Duration = Duration::from_secs(120);
/// What a job may take by default: this, and so many times its quanta.
const JOB_MS: u64 = 120_000;
const TIMES: u64 = 50;
/// Ranks end themselves this long after the tool would have ended them, s.
const LATER_S: u64 = 10;
/// The shortest and the longest period of a daemon, ns.
const PERIOD_NS: (u64, u64) = (10_000, 3_600_000_000_000);

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outlive noise mpi -- mpirun -n 4
  outlive noise mpi --steps 10000 --daemon 1ms/1s --phase same -- srun -n 64")]
pub(super) struct MpiOptions {
    /// When ranks wait for each other
    #[arg(long, value_name = "MODE", value_enum, default_value_t = When::Step)]
    mode: When,
    /// Length of a quantum on the quickest rank, 1us to 1s
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    quantum: String,
    /// Quanta of each rank, 2 to 100000000; at most an hour of them
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    steps: u64,
    /// Cores, as in 0-2,5: the ranks of each host take them in turn
    /// [default: where the launcher puts them]
    #[arg(long, value_name = "LIST", help_heading = STARTING)]
    cores: Option<String>,
    /// The compiler of the MPI that the launcher belongs to
    /// [default: mpicc beside the launcher, else in PATH]
    #[arg(long, value_name = "FILE", help_heading = STARTING)]
    mpicc: Option<PathBuf>,
    /// A directory that all hosts of the job see
    /// [default: the directory of temporary files]
    #[arg(long, value_name = "DIR", help_heading = STARTING)]
    dir: Option<PathBuf>,
    /// The job is ended after this time [default: 2min and 50 times the quanta]
    #[arg(long, value_name = "TIME", help_heading = STARTING)]
    timeout: Option<String>,
    /// On the core of each rank, compute for BURST once a PERIOD, as in 1ms/1s
    /// [default: disturb nothing]
    #[arg(long, value_name = "BURST/PERIOD", help_heading = DISTURBING)]
    daemon: Option<String>,
    /// When that is: at the same time on all ranks, or on each at a time of its own
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = At::Random)]
    #[arg(requires = "daemon", help_heading = DISTURBING)]
    phase: At,
    /// Seed of the steps that are replayed, and of random phases
    #[arg(long, default_value_t = 1, help_heading = EXTRAPOLATION)]
    seed: u64,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Draw the result as SVG [default: no picture]
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    svg: Option<PathBuf>,
    /// The launcher with its options; the program of the ranks is put behind them
    #[arg(last = true, required = true, value_name = "LAUNCHER")]
    launcher: Vec<OsString>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    /// StartSync: one barrier, then each rank alone
    Start,
    /// StepSync: a barrier before each quantum
    Step,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// Coordinated
    Same,
    /// Uncoordinated
    Random,
}

fn refuse(option: &str, reason: String, remedy: impl Into<String>) -> Error {
    let entity = Entity::Option(option.into());
    Error::new(Code::InvalidArgument, entity, reason, remedy)
}

/// Runs the command.
///
/// # Errors
/// Options out of bounds (OL-100); no compiler (OL-404), or one that fails (OL-505); a launcher
/// that starts no rank (OL-505, OL-404); a rank without a result (OL-202), ranks of different
/// jobs (OL-201), a job that does not end (OL-106); files that cannot be written or read, or
/// are not what ranks write.
pub(super) fn run(options: &MpiOptions) -> Result<u8> {
    let asked = asked(options)?;
    let work_ms = asked.quantum_ns * asked.steps / 1_000_000;
    let bound_ms = match &options.timeout {
        Some(text) => duration_ms("timeout", text)?.clamp(1, u64::from(u32::MAX)),
        None => JOB_MS + TIMES * work_ms,
    };
    let compiler = compiler(options)?;
    let watch = Watch::new()?;
    let folder = Folder::new(options.dir.as_deref())?;
    let program = match compile(&watch, &compiler, &folder.0)? {
        Ok(program) => program,
        Err(signal) => return Ok(signal),
    };
    let mut command = Command::new(&options.launcher[0]);
    command.args(&options.launcher[1..]).arg(&program);
    command.args(words(&asked, options, &folder.0, bound_ms));
    // What the launcher and its ranks say is no part of the result.
    let said = std::io::stderr().as_fd().try_clone_to_owned();
    let said = said.map_err(|error| Error::io("standard error", "duplicate", &error))?;
    command.stdin(Stdio::null()).stdout(Stdio::from(said));
    let end = watch.run(command, Duration::from_millis(bound_ms))?;
    if let End::Signal(number) = end {
        return Ok(128 + number as u8);
    }
    let left = Left::look(&folder.0)?;
    left.judge(end, options, &compiler, bound_ms)?;
    let what = format!(
        "{} of {}",
        count(asked.steps, "step"),
        count(left.done.len() as u64, "rank")
    );
    memory::fits(
        "steps",
        &what,
        BYTES_A_STEP * asked.steps * left.done.len() as u64,
    )?;
    let read = |&rank: &u32| {
        let path = folder.0.join(format!("rank-{rank}.done"));
        let bytes = input::read(&path, 8 * (HEAD as u64 + 2 * asked.steps + 2))?;
        record::parse(&path.display().to_string(), &bytes, asked.mode, asked.steps)
    };
    let records = left.done.iter().map(read).collect::<Result<_>>()?;
    drop((folder, watch));
    let found = judge(&asked, records)?;
    draw(options.svg.as_deref(), || show::picture(&found))?;
    match options.json {
        true => output::json(&found),
        false => output::text(&show::text(&found)),
    }
}

/// The options, within their bounds.
fn asked(options: &MpiOptions) -> Result<Asked> {
    let quantum_ns = duration_ns("quantum", &options.quantum)?;
    if !(QUANTUM_NS.0..=QUANTUM_NS.1).contains(&quantum_ns) {
        let reason = format!("a quantum of {} cannot be measured", options.quantum);
        return Err(refuse("quantum", reason, "give 1us to 1s"));
    }
    let (least, most) = SAMPLES;
    if !(least..=most).contains(&options.steps) {
        let reason = format!("{} cannot be judged", count(options.steps, "step"));
        return Err(refuse("steps", reason, format!("give {least} to {most}")));
    }
    let seconds = quantum_ns * options.steps / 1_000_000_000;
    if seconds > SECONDS_MAX {
        let reason = format!("{} quanta take {seconds} s", options.steps);
        let remedy = format!("give fewer or shorter ones: at most {SECONDS_MAX} s");
        return Err(refuse("steps", reason, remedy));
    }
    if let Some(list) = &options.cores {
        cores::parse(list)?;
    }
    let mode = match options.mode {
        When::Start => Mode::Start,
        When::Step => Mode::Step,
    };
    let daemon = options.daemon.as_deref();
    Ok(Asked {
        mode,
        quantum_ns,
        steps: options.steps,
        daemon: daemon
            .map(|text| daemon_of(text, options.phase))
            .transpose()?,
        seed: options.seed,
    })
}

/// `1ms/1s`.
fn daemon_of(text: &str, phase: At) -> Result<Daemon> {
    let wrong = |reason: &str| {
        let remedy = "write how long it computes and how often, as in 1ms/1s: a period of 10us \
                      to 1h, and at most half of it";
        refuse("daemon", format!("'{text}' {reason}"), remedy)
    };
    let (burst, period) = text
        .split_once('/')
        .ok_or_else(|| wrong("is no BURST/PERIOD"))?;
    let (burst_ns, period_ns) = (
        duration_ns("daemon", burst)?,
        duration_ns("daemon", period)?,
    );
    if !(PERIOD_NS.0..=PERIOD_NS.1).contains(&period_ns) || !(1..=period_ns / 2).contains(&burst_ns)
    {
        return Err(wrong("is out of bounds"));
    }
    let phase = match phase {
        At::Same => Phase::Same,
        At::Random => Phase::Random,
    };
    Ok(Daemon {
        burst_ns,
        period_ns,
        phase,
    })
}

/// What the program of the ranks is told; see the head of `ranks.c`.
fn words(asked: &Asked, options: &MpiOptions, folder: &Path, bound_ms: u64) -> Vec<OsString> {
    let (burst, period) = asked
        .daemon
        .map_or((0, 0), |of| (of.burst_ns, of.period_ns));
    let phase = match asked.daemon {
        Some(of) if of.phase == Phase::Random => asked.seed.to_string(),
        _ => "same".to_owned(),
    };
    let rest = [
        asked.mode.word().to_owned(),
        asked.quantum_ns.to_string(),
        asked.steps.to_string(),
        (bound_ms.div_ceil(1_000) + LATER_S).to_string(),
        options.cores.clone().unwrap_or_else(|| "-".to_owned()),
        burst.to_string(),
        period.to_string(),
        phase,
    ];
    let rest = rest.into_iter().map(OsString::from);
    [folder.as_os_str().to_owned()]
        .into_iter()
        .chain(rest)
        .collect()
}

/// The compiler beside a launcher: that of the same ending first, as in mpirun.openmpi.
fn beside(launcher: &Path) -> Option<PathBuf> {
    let name = launcher.file_name()?.to_str()?;
    let ending = name.split_once('.').map(|pair| format!("mpicc.{}", pair.1));
    let names = ending.into_iter().chain(["mpicc".to_owned()]);
    // Where it is called, and where it really lies.
    let dirs = [Some(launcher.to_owned()), launcher.canonicalize().ok()];
    let mut places = dirs.iter().flatten().flat_map(|path| {
        names
            .clone()
            .filter_map(|name| Some(path.parent()?.join(name)))
    });
    places.find_map(|path| find(path.as_os_str()))
}

fn compiler(options: &MpiOptions) -> Result<PathBuf> {
    let missing = |reason: String, remedy: &str| {
        let entity = Entity::Option("mpicc".into());
        Error::new(Code::NotFound, entity, reason, remedy)
    };
    if let Some(path) = &options.mpicc {
        let reason = || format!("{} is no program", path.display());
        return find(path.as_os_str())
            .ok_or_else(|| missing(reason(), "give the path of the MPI's compiler for C"));
    }
    let launcher = &options.launcher[0];
    let Some(place) = find(launcher) else {
        let entity = Entity::File(launcher.display().to_string());
        let remedy = "check the spelling and PATH, or give the full path";
        let reason = "there is no such program";
        return Err(Error::new(Code::CommandFailed, entity, reason, remedy));
    };
    beside(&place)
        .or_else(|| find(OsStr::new("mpicc")))
        .ok_or_else(|| {
            let reason = format!("no mpicc beside {} or in PATH", place.display());
            let remedy = "install the MPI's compiler (Debian: libopenmpi-dev or libmpich-dev; on \
                      clusters: load the module of the MPI), or name it with --mpicc";
            missing(reason, remedy)
        })
}

/// Compiles the program of the ranks; the status to end with if a signal came.
fn compile(
    watch: &Watch,
    compiler: &Path,
    folder: &Path,
) -> Result<std::result::Result<PathBuf, u8>> {
    let write = |path: &Path, text: &str| {
        fs::write(path, text).map_err(|error| Error::io(path, "write", &error))
    };
    let (source, program) = (folder.join("ranks.c"), folder.join("ranks"));
    write(&source, PROGRAM)?;
    let said = folder.join("compiler.txt");
    let file = fs::File::create(&said).map_err(|error| Error::io(&said, "create", &error))?;
    let mut command = Command::new(compiler);
    command.args(["-std=gnu11", "-O2", "-pthread"]);
    command.arg(&source).arg("-o").arg(&program);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file);
    match watch.run(command, COMPILING)? {
        End::Signal(number) => return Ok(Err(128 + number as u8)),
        End::Ended(ended) if ended.is_success() && program.is_file() => return Ok(Ok(program)),
        _ => {}
    }
    let said = input::read_text(&said, 1 << 20).unwrap_or_default();
    let words = |line: &&str| line.contains(char::is_alphabetic);
    let error = said.lines().find(|line| line.contains("error"));
    let line = error.or_else(|| said.lines().find(words));
    let reason = format!(
        "cannot compile: {}",
        line.unwrap_or("it said nothing").trim()
    );
    let remedy = "install a C compiler that it finds (gcc), or name another with --mpicc";
    let entity = Entity::File(compiler.display().to_string());
    Err(Error::new(Code::CommandFailed, entity, reason, remedy))
}

/// What the ranks left.
struct Left {
    begun: usize,
    done: Vec<u32>,
    /// Two processes had the same rank.
    twice: bool,
}

impl Left {
    fn look(folder: &Path) -> Result<Left> {
        let failed = |error: std::io::Error| Error::io(folder, "read", &error);
        let (mut begun, mut done) = (0, Vec::new());
        for entry in fs::read_dir(folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_string_lossy();
            let Some((rank, state)) = name.strip_prefix("rank-").and_then(|n| n.split_once('.'))
            else {
                continue;
            };
            match (rank.parse(), state) {
                (Ok(rank), "done") => done.push(rank),
                (Ok(_), "begun") => begun += 1,
                _ => {}
            }
        }
        done.sort_unstable();
        let twice = folder.join("twice").exists();
        Ok(Left { begun, done, twice })
    }

    /// Refuses a job that did not end well.
    fn judge(&self, end: End, options: &MpiOptions, compiler: &Path, bound_ms: u64) -> Result<()> {
        let launcher = options.launcher[0].display().to_string();
        let state = format!(
            "{} began, {} have a result",
            count(self.begun as u64, "rank"),
            self.done.len()
        );
        let about = || Entity::File(launcher.clone());
        if self.twice {
            let reason = format!(
                "{} compiles for another MPI than that of {launcher}: its ranks do not find each other",
                compiler.display()
            );
            let remedy = "name the compiler of the launcher's MPI with --mpicc";
            return Err(refuse("mpicc", reason, remedy));
        }
        let ended = match end {
            End::Late => {
                let reason = format!("no end within {} s; {state}", bound_ms.div_ceil(1_000));
                let remedy = "see above what it said; give fewer --steps, or a longer --timeout";
                return Err(Error::new(Code::TimedOut, about(), reason, remedy));
            }
            End::Signal(number) => outlive_control::ended::Ended::Signal(number),
            End::Ended(ended) => ended,
        };
        if !ended.is_success() && self.begun == 0 {
            let reason = format!("{ended} before any rank began");
            let remedy = "see above what it said; try the same launcher with a program of yours";
            return Err(Error::new(Code::CommandFailed, about(), reason, remedy));
        }
        if !ended.is_success() {
            let reason = format!("{ended}: a rank died or was ended; {state}");
            let remedy = "see above what the rank or its launcher said";
            return Err(Error::new(Code::RankLost, about(), reason, remedy));
        }
        if self.done.is_empty() {
            let reason = format!("it ended well, but {state}");
            let remedy = "start at least one rank; if they run on other hosts, give a --dir that \
                          all of them see";
            return Err(Error::new(Code::NotFound, about(), reason, remedy));
        }
        Ok(())
    }
}

/// A directory of this run, which goes when this does.
struct Folder(PathBuf);

impl Folder {
    fn new(within: Option<&Path>) -> Result<Folder> {
        let base = within.map_or_else(std::env::temp_dir, Path::to_owned);
        // Ranks may stand in another directory.
        let base = std::path::absolute(&base).map_err(|error| Error::io(&base, "find", &error))?;
        let path = base.join(format!("outlive-noise-{}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| Error::io(&path, "create", &error))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

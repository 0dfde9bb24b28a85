//! The other partitioners: compiled where their libraries are installed, run on the
//! same steps, judged by the same measures.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outlive_balance::replay::Figures;
use outlive_balance::scenario::Scenario;
use outlive_balance::{command, geometric, scratch};
use outlive_base::{Code, Entity, Error, Result};

/// The program that calls them.
const SOURCE: &str = include_str!("../../../../../bench/balance/peers.c");

/// A library, and how its caller is compiled.
struct Library {
    macro_name: &'static str,
    compilers: &'static [&'static str],
    flags: &'static [&'static str],
    /// The Debian package.
    package: &'static str,
}

const METIS: Library = Library {
    macro_name: "WITH_METIS",
    compilers: &["cc"],
    flags: &["-lmetis", "-lm"],
    package: "libmetis-dev",
};
const SCOTCH: Library = Library {
    macro_name: "WITH_SCOTCH",
    compilers: &["cc"],
    flags: &["-I/usr/include/scotch", "-lscotch", "-lscotcherr", "-lm"],
    package: "libscotch-dev",
};
const ZOLTAN: Library = Library {
    macro_name: "WITH_ZOLTAN",
    // Debian's Zoltan is linked with Open MPI.
    compilers: &["mpicc.openmpi", "mpicc"],
    flags: &["-I/usr/include/trilinos", "-ltrilinos_zoltan", "-lm"],
    package: "libtrilinos-zoltan-dev",
};

/// Another method.
pub struct Peer {
    pub name: &'static str,
    library: &'static Library,
    /// True if it starts from the partition there is, or its parts are named after it.
    pub repartitions: bool,
    /// True if it partitions anew, and its parts are then named so that most tasks stay.
    pub is_renamed: bool,
}

const fn peer(name: &'static str, library: &'static Library, repartitions: bool) -> Peer {
    Peer {
        name,
        library,
        repartitions,
        is_renamed: false,
    }
}

/// All of them.
pub const PEERS: [Peer; 8] = [
    peer("zoltan-rcb", &ZOLTAN, false),
    peer("zoltan-hsfc", &ZOLTAN, false),
    peer("zoltan-phg", &ZOLTAN, false),
    peer("zoltan-phg-repartition", &ZOLTAN, true),
    peer("scotch", &SCOTCH, false),
    peer("scotch-remap", &SCOTCH, true),
    peer("metis", &METIS, false),
    Peer {
        is_renamed: true,
        ..peer("metis-remap", &METIS, true)
    },
];

impl Peer {
    /// Compiles the caller of the library; an error says what is missing.
    pub fn build(&self, folder: &Path) -> Result<PathBuf> {
        let library = self.library;
        let program = folder.join(library.macro_name);
        if program.exists() {
            return Ok(program);
        }
        let source = folder.join("peers.c");
        std::fs::write(&source, SOURCE).map_err(|error| Error::io(&source, "write", &error))?;
        for compiler in library.compilers {
            let done = Command::new(compiler)
                .args(["-O2", "-D", library.macro_name])
                .arg(&source)
                .arg("-o")
                .arg(&program)
                .args(library.flags)
                .stderr(Stdio::null())
                .status();
            if done.is_ok_and(|status| status.success()) {
                return Ok(program);
            }
        }
        Err(self.lacking("its library or a C compiler is not installed"))
    }

    fn lacking(&self, reason: impl Into<String>) -> Error {
        let remedy = format!("install {}, or name other --peers", self.library.package);
        Error::new(
            Code::NotFound,
            Entity::Option(self.name.into()),
            reason,
            remedy,
        )
    }

    /// Runs it over the steps of `folder`, which [`export`] wrote, for at most `bound`
    /// of processor time: so the load of the machine does not decide who finishes.
    /// Returns the mean processor time of a step, in seconds.
    pub fn run(
        &self,
        program: &Path,
        folder: &Path,
        (first, steps): (u32, u32),
        (processes, tolerance, price): (usize, f64, f64),
        bound: Duration,
    ) -> Result<f64> {
        forget(folder)?;
        let child = Command::new(program)
            .arg(folder)
            .arg(self.name)
            .args([processes.to_string(), first.to_string(), steps.to_string()])
            .arg(tolerance.to_string())
            .arg(folder)
            .arg(price.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.map_err(|error| Error::io(program, "start", &error))?;
        if !ended(&mut child, bound) {
            let done = (first + 1..=first + steps).take_while(|&step| {
                // A step's parts are written whole before the next one begins.
                output(folder, step + 1).exists()
            });
            let (done, within) = (done.count(), bound.as_secs());
            let remedy = "allow a longer --timeout, or name other --peers";
            return Err(Error::new(
                Code::TimedOut,
                Entity::Option(self.name.into()),
                format!(
                    "{processes} processes, price {price}: no end within {within} s of \
                     processor time; at least {done} of {steps} steps were done"
                ),
                remedy,
            ));
        }
        let done = child.wait_with_output();
        let done = done.map_err(|error| Error::io(program, "read", &error))?;
        let text = String::from_utf8_lossy(&done.stdout);
        let seconds = text.split_whitespace().last().and_then(|w| w.parse().ok());
        match seconds {
            Some(seconds) if done.status.success() => Ok(seconds),
            _ => Err(self.lacking(format!("it ended with {}", done.status))),
        }
    }
}

/// Waits for the end, for at most `bound` of the child's processor time, and fifty
/// times that on the clock; kills it then.
fn ended(child: &mut Child, bound: Duration) -> bool {
    let start = Instant::now();
    loop {
        let clock = start.elapsed();
        let used = processor_time(child.id()).unwrap_or(clock);
        match child.try_wait() {
            Ok(Some(_)) => return true,
            Ok(None) if used < bound && clock < bound * 50 => {
                std::thread::sleep(Duration::from_millis(20));
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}

/// What a process has used, from /proc/PID/stat: fields 14 and 15, user and system, in
/// ticks.
fn processor_time(process: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let after = text.rsplit_once(')')?.1;
    let mut fields = after.split_whitespace().skip(11);
    let mut field = || fields.next()?.parse::<u64>().ok();
    let ticks = field()? + field()?;
    let a_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis(ticks * 1000 / a_second.max(1)))
}

/// Where a peer leaves the parts of a step.
fn output(folder: &Path, step: u32) -> PathBuf {
    folder.join(format!("parts-{step}.bin"))
}

/// Removes the parts that another peer left.
fn forget(folder: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::io(folder, "read", &error);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with("parts-")) {
            std::fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(|error| Error::io(path, "write", &error))
}

/// Writes what `peers.c` reads, little-endian: `graph.bin` (u64 tasks, u64 entries,
/// u64 offsets, u32 neighbours, f64 x 3 coordinates), `weights-N.bin` (f64 a task)
/// for every step, and the first partition, `start-P.bin` (u32 a task), by RCB.
pub fn export(scenario: &mut Scenario, range: (u32, u32), folder: &Path) -> Result<()> {
    let graph = &scenario.graph;
    let mut out = Vec::new();
    out.extend((graph.tasks() as u64).to_le_bytes());
    out.extend((graph.neighbours().len() as u64).to_le_bytes());
    for &offset in graph.offsets() {
        out.extend((offset as u64).to_le_bytes());
    }
    for near in graph.neighbours() {
        out.extend(near.to_le_bytes());
    }
    for value in graph.coordinates().unwrap_or_default().iter().flatten() {
        out.extend(value.to_le_bytes());
    }
    write(&folder.join("graph.bin"), &out)?;
    for step in range.0..=range.0 + range.1 {
        scenario.go_to(step)?;
        let weights = scenario.graph.weights().iter();
        let bytes: Vec<u8> = weights.flat_map(|w| w.to_le_bytes()).collect();
        write(&folder.join(format!("weights-{step}.bin")), &bytes)?;
        if step == range.0 {
            let parts = geometric::bisection(&scenario.graph, &scenario.processes)?;
            let bytes: Vec<u8> = parts.iter().flat_map(|p| p.to_le_bytes()).collect();
            write(&start(folder, scenario.processes.count()), &bytes)?;
        }
    }
    Ok(())
}

fn start(folder: &Path, processes: usize) -> PathBuf {
    folder.join(format!("start-{processes}.bin"))
}

/// The mean figures of the partitions that a peer wrote.
pub fn judge(
    peer: &Peer,
    scenario: &mut Scenario,
    range: (u32, u32),
    (folder, tolerance): (&Path, f64),
) -> Result<Figures> {
    let count = scenario.processes.count();
    let mut before = parts(&start(folder, count))?;
    let mut all = Vec::new();
    for step in range.0 + 1..=range.0 + range.1 {
        scenario.go_to(step)?;
        let mut after = parts(&output(folder, step))?;
        if peer.is_renamed {
            let (graph, processes) = (&scenario.graph, &scenario.processes);
            after = scratch::remap(graph, processes, &before, &after, tolerance)?;
        }
        all.push(command::judge(&scenario.graph, count, &before, &after)?);
        before = after;
    }
    Ok(Figures::mean(&all))
}

fn parts(path: &Path) -> Result<Vec<u32>> {
    let bytes = std::fs::read(path).map_err(|error| Error::io(path, "read", &error))?;
    let word = |four: &[u8]| {
        let bytes = four.iter().rev();
        bytes.fold(0u32, |all, &byte| all << 8 | u32::from(byte))
    };
    Ok(bytes.chunks_exact(4).map(word).collect())
}

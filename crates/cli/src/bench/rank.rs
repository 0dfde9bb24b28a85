//! A process of the measured job: a rank that does what the benchmark tells it, one
//! line at a time.
//!
//! Memory is allocated and touched before anything is timed. What is to happen on
//! all ranks at once starts at a time that the benchmark names.

use core::ffi::{c_int, c_void};
use core::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use outlive::{Job, Options, Outcome, Restored, Survives};
use outlive_base::{Code, Entity, Error, Result};

use super::machine::{clock_ns, ns, share_of_memory};
use super::session::{SOCKET_VARIABLE, failed};

/// Name of the protected region.
const REGION: &str = "state";
/// Bound of everything that a rank waits for.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Calls that are timed together.
const CALLS: u64 = 1_000_000;

unsafe extern "C" {
    // As include/outlive.h declares them; defined in the client library.
    fn outlive_open(options: *const c_void, job: *mut *mut c_void) -> c_int;
    fn outlive_checkpoint(job: *mut c_void, version: u64) -> c_int;
    fn outlive_close(job: *mut *mut c_void) -> c_int;
}

/// Runs a role: `ranks:N` starts N ranks, `rank` is one, `loop:VERSIONS:US:BYTES` is
/// one that goes on by itself.
pub fn run(role: &str) -> Result<u8> {
    let words: Vec<&str> = role.split(':').collect();
    let number = |nth: usize| words.get(nth).and_then(|word| word.parse::<u64>().ok());
    match (words.first().copied(), number(1), number(2)) {
        (Some("ranks"), Some(ranks), None) => start(ranks, "rank"),
        (Some("loops"), Some(ranks), Some(versions)) => start(ranks, &format!("loop:{versions}")),
        (Some("loop"), Some(versions), None) => go_on(versions),
        (Some("rank"), None, None) => obey(),
        _ => Err(Error::new(
            Code::InvalidArgument,
            Entity::Option("role".into()),
            "is not one that a benchmark gives",
            "leave the option away",
        )),
    }
}

/// Starts ranks and waits for them; the worst status.
fn start(ranks: u64, role: &str) -> Result<u8> {
    let me = std::env::current_exe().map_err(|error| failed("find itself", &error))?;
    let mut started = Vec::new();
    for rank in 0..ranks {
        let child = Command::new(&me)
            .args(["bench", "save", "--role", role])
            .env("OUTLIVE_RANK", rank.to_string())
            .env("OUTLIVE_SIZE", ranks.to_string())
            .spawn();
        started.push(child.map_err(|error| failed("start a rank", &error))?);
    }
    let mut worst = 0;
    for mut child in started {
        let status = child.wait();
        let status = status.map_err(|error| failed("wait for a rank", &error))?;
        worst = worst.max(status.code().map_or(1, |code| code.clamp(0, 255) as u8));
    }
    Ok(worst)
}

/// A small program that iterates and is restored: nothing of it is timed here.
fn go_on(versions: u64) -> Result<u8> {
    let mut job = Job::open(&Options::default())?;
    let mut state = vec![0u8; 64 << 10];
    let mut version = match job.restore_slices(&mut [(REGION, &mut state)])? {
        Restored::Version(version) => version,
        Restored::Fresh => 0,
    };
    while version < versions {
        let _ = job.checkpoint_slices(version, &[(REGION, &state)]);
        std::thread::sleep(Duration::from_millis(2));
        state[version as usize % (64 << 10)] ^= 1;
        version += 1;
    }
    job.close()?;
    Ok(0)
}

/// A rank and what it holds.
#[derive(Default)]
struct Rank {
    job: Option<Job>,
    data: Vec<u8>,
    target: Vec<u8>,
    /// Iterations of the loop that are one unit of work.
    unit: u64,
    /// The other ranks, if they meet.
    ring: Option<Ring>,
}

/// Ranks that wait for their neighbour after each unit of work, as those of a program on
/// a grid do.
struct Ring {
    socket: UnixDatagram,
    next: PathBuf,
}

impl Ring {
    fn open(directory: &Path, rank: u64, ranks: u64) -> std::io::Result<Ring> {
        let path = |rank: u64| directory.join(format!("ring-{rank}"));
        let socket = UnixDatagram::bind(path(rank))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        let next = path((rank + 1) % ranks.max(1));
        Ok(Ring { socket, next })
    }

    fn meet(&self) -> std::io::Result<()> {
        self.socket.send_to(&[1], &self.next)?;
        self.socket.recv(&mut [0]).map(drop)
    }
}

fn obey() -> Result<u8> {
    let path = std::env::var(SOCKET_VARIABLE).unwrap_or_default();
    let number = std::env::var("OUTLIVE_RANK").unwrap_or_default();
    let mut to =
        UnixStream::connect(&path).map_err(|error| failed("find the benchmark", &error))?;
    let from = to.try_clone().map_err(|error| failed("listen", &error))?;
    let mut rank = Rank::default();
    let mut say = |line: &str| writeln!(to, "{line}").is_ok();
    say(&format!("hello {number}"));
    for line in BufReader::new(from).lines() {
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first() == Some(&"close") {
            break;
        }
        let answer = rank.step(&words);
        if !say(
            &answer.unwrap_or_else(|error| format!("error {} {}", error.entity(), error.reason()))
        ) {
            break;
        }
    }
    if let Some(job) = rank.job.take() {
        job.close()?;
    }
    Ok(0)
}

/// Waits for the common start: asleep as long as it is far.
fn wait_for(at: u64) {
    let left = at.saturating_sub(clock_ns());
    std::thread::sleep(Duration::from_nanos(left.saturating_sub(300_000)));
    while clock_ns() < at {
        core::hint::spin_loop();
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let start = clock_ns();
    let result = work();
    (clock_ns() - start, result)
}

/// Work that stays in registers: what it takes depends on the core alone. One copy of
/// it, for where a loop lies in the cache costs more than a skipped call.
#[inline(never)]
fn work(iterations: u64) {
    let mut x = black_box(1.000_000_1f64);
    for _ in 0..iterations {
        x = x.mul_add(0.999_999_9, 1e-7);
    }
    black_box(x);
}

impl Rank {
    fn step(&mut self, words: &[&str]) -> Result<String> {
        let number = |nth: usize| -> u64 {
            words
                .get(nth)
                .and_then(|word| word.parse().ok())
                .unwrap_or(0)
        };
        match words.first().copied().unwrap_or_default() {
            "fill" => {
                let mut word = number(2) + 1;
                self.data = vec![0; number(1) as usize];
                for bytes in self.data.chunks_mut(8) {
                    word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
                }
                Ok("ok".into())
            }
            "target" => {
                self.target = vec![3; self.data.len()];
                Ok("ok".into())
            }
            "memory" => Ok(format!("ok {}", share_of_memory("self"))),
            "cpu" => Ok(format!("ok {}", ns(rustix::time::ClockId::ProcessCPUTime))),
            "open" => self.open(),
            "restore" => self.restore(),
            "copy" => {
                wait_for(number(1));
                let (ns, ()) = timed(|| self.target.copy_from_slice(&self.data));
                black_box(&mut self.target);
                Ok(format!("ok {ns}"))
            }
            "offer" => self.offer(number(1), number(2)),
            "wait" => {
                let survives: Survives = words.get(2).copied().unwrap_or("process").parse()?;
                let version = number(1);
                self.job()?.wait(version, survives, Some(TIMEOUT))?;
                Ok(format!("ok {}", clock_ns()))
            }
            "calibrate" => Ok(self.calibrate(number(1))),
            "compute" => self.compute(number(1), words.get(2).copied(), number(3)),
            "ring" => {
                let path = std::env::var(SOCKET_VARIABLE).unwrap_or_default();
                let directory = Path::new(&path).parent().unwrap_or(Path::new("."));
                let rank = std::env::var("OUTLIVE_RANK").ok();
                let rank = rank.and_then(|rank| rank.parse().ok()).unwrap_or(0);
                let ring = Ring::open(directory, rank, number(1));
                self.ring = Some(ring.map_err(|error| failed("meet the other ranks", &error))?);
                Ok("ok".into())
            }
            "turns" => self.turns(number(1), number(2), number(3), number(4)),
            "skip" => self.skip(number(1)),
            "skip-c" => skip_c(),
            other => Err(Error::internal(format!("'{other}' is no order"))),
        }
    }

    fn job(&mut self) -> Result<&mut Job> {
        self.job.as_mut().ok_or_else(|| Error::internal("not open"))
    }

    fn open(&mut self) -> Result<String> {
        let options = Options {
            timeout: TIMEOUT,
            ..Options::default()
        };
        let mut job = Job::open(&options)?;
        if !self.data.is_empty() {
            // SAFETY: the vector is neither moved, resized nor dropped while the job
            // is open, and this thread alone uses both.
            unsafe { job.protect(REGION, self.data.as_mut_ptr(), self.data.len()) }?;
        }
        self.job = Some(job);
        Ok("ok".into())
    }

    /// Answers the version and how long it took.
    fn restore(&mut self) -> Result<String> {
        let job = self.job()?;
        let (ns, restored) = timed(|| job.restore());
        Ok(match restored? {
            Restored::Fresh => format!("fresh {ns}"),
            Restored::Version(version) => format!("ok {ns} {version}"),
        })
    }

    fn offer(&mut self, version: u64, at: u64) -> Result<String> {
        let job = self.job()?;
        wait_for(at);
        let (ns, outcome) = timed(|| job.checkpoint(version));
        let end = clock_ns();
        let word = match outcome? {
            Outcome::Taken => "taken",
            Outcome::Skipped => "skipped",
        };
        let blocked = job.status().blocked_ns;
        Ok(format!("{word} {ns} {blocked} {end}"))
    }

    /// Finds how many iterations take so many microseconds.
    fn calibrate(&mut self, us: u64) -> String {
        let probe = 1_000_000;
        let best = (0..20).map(|_| timed(|| work(probe)).0).min();
        self.unit = (probe * us * 1000 / best.unwrap_or(1).max(1)).max(1);
        format!("ok {}", self.unit)
    }

    /// So many units of work with a call after each, or without (`-`). Answers time, time
    /// on a core, checkpoints taken, the last of them, and the longest wait in one.
    fn compute(&mut self, units: u64, first: Option<&str>, at: u64) -> Result<String> {
        let unit = self.unit;
        let first: Option<u64> = first.and_then(|word| word.parse().ok());
        let ring = self.ring.take();
        let step = || {
            work(unit);
            ring.as_ref().is_none_or(|ring| ring.meet().is_ok())
        };
        let mut met = true;
        wait_for(at);
        let cpu = ns(rustix::time::ClockId::ThreadCPUTime);
        let (mut taken, mut last, mut blocked) = (0, 0, 0);
        let (took, ()) = match (first, &mut self.job) {
            (Some(first), Some(job)) => timed(|| {
                for version in first..first + units {
                    met &= step();
                    if matches!(job.checkpoint(version), Ok(Outcome::Taken)) {
                        (taken, last) = (taken + 1, version);
                        blocked = job.status().blocked_ns.max(blocked);
                    }
                }
            }),
            _ => timed(|| {
                for _ in 0..units {
                    met &= step();
                }
            }),
        };
        let cpu = ns(rustix::time::ClockId::ThreadCPUTime) - cpu;
        self.ring = ring;
        if !met {
            return Err(Error::internal("a rank did not meet its neighbour"));
        }
        Ok(format!("ok {took} {cpu} {taken} {last} {blocked}"))
    }

    /// Pairs of short loops, without and with the call, in changing order; what each
    /// pair lost with the call, by time of the core, in parts per million.
    fn turns(&mut self, pairs: u64, units: u64, first: u64, at: u64) -> Result<String> {
        let unit = self.unit;
        let job = self.job()?;
        let mut version = first;
        let mut answer = "ok".to_owned();
        wait_for(at);
        for pair in 0..pairs {
            let mut cost = [0u64; 2];
            for leg in 0..2 {
                let with = (pair + leg) % 2;
                let start = ns(rustix::time::ClockId::ThreadCPUTime);
                if with == 1 {
                    for _ in 0..units {
                        work(unit);
                        let _ = black_box(job.checkpoint(version));
                        version += 1;
                    }
                } else {
                    for _ in 0..units {
                        work(unit);
                    }
                }
                cost[with as usize] = ns(rustix::time::ClockId::ThreadCPUTime) - start;
            }
            let lost = (cost[1] as f64 / cost[0] as f64 - 1.0) * 1e6;
            answer += &format!(" {lost:.1}");
        }
        Ok(answer)
    }

    /// Nanoseconds of a skipped call in Rust.
    fn skip(&mut self, first: u64) -> Result<String> {
        let job = self.job()?;
        let (ns, skipped) = timed(|| {
            let mut skipped = 0;
            for version in first..first + CALLS {
                skipped += u64::from(matches!(job.checkpoint(version), Ok(Outcome::Skipped)));
            }
            skipped
        });
        match skipped == CALLS {
            true => Ok(format!("ok {}", ns as f64 / CALLS as f64)),
            false => Err(Error::internal("a call was not skipped")),
        }
    }
}

/// Nanoseconds of skipped calls by the C functions, on a handle of its own.
fn skip_c() -> Result<String> {
    const SKIPPED: c_int = 2;
    const ROUNDS: u64 = 9;
    let mut job: *mut c_void = core::ptr::null_mut();
    // SAFETY: null options are the defaults; `job` is a place for the handle.
    if unsafe { outlive_open(core::ptr::null(), &raw mut job) } != 0 {
        return Err(Error::internal("outlive_open failed"));
    }
    let mut answer = "ok".to_owned();
    for round in 0..ROUNDS {
        let first = round * CALLS;
        let (ns, skipped) = timed(|| {
            let mut skipped = 0;
            for version in first..first + CALLS {
                // SAFETY: the handle is open and used by this thread alone.
                let code = unsafe { black_box(outlive_checkpoint)(job, version) };
                skipped += u64::from(code == SKIPPED);
            }
            skipped
        });
        if skipped != CALLS {
            return Err(Error::internal("a call was not skipped"));
        }
        answer += &format!(" {}", ns as f64 / CALLS as f64);
    }
    // SAFETY: as above; the handle is not used again.
    match unsafe { outlive_close(&raw mut job) } {
        0 => Ok(answer),
        _ => Err(Error::internal("outlive_close failed")),
    }
}

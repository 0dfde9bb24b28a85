//! `outlive bench collectives`: how long an Allreduce takes when processes are killed, as
//! in table 2 of the FFMK report (Weinhold et al., 2020, section 3.1) with fewer, but real
//! processes, over TCP on this machine and real SIGKILL; `outlive bench collectives-cost`:
//! see [`cost`].
//!
//! Each case starts processes of its own, joins them by an Allreduce without faults, kills
//! its victims, waits until the kernel has buried them, and lets the rest call Allreduce
//! at one time. The figure is the longest time of a process. In series are a child of the
//! root and a child of that; parallel is another child of the root.

pub mod cost;
pub mod process;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use outlive_base::{Code, Entity, Error, Result, count};

use super::machine::clock_ns;
use super::machine::{self, Machine};
use super::session::failed;
use super::table::{Row, Table};
use crate::args::BenchOptions;

/// From the word to the common start.
const LEAD_NS: u64 = 20_000_000;
/// A case is played so often at most until nobody was late.
const TRIES: u32 = 4;
/// Processes of a case at most.
const PROCESSES_MAX: u32 = 128;
/// Numbers of processes where none are given.
const RANKS: [u32; 3] = [8, 16, 32];

fn odd(reason: impl Into<String>) -> Error {
    let remedy = "look at what the processes said on standard error; on a loaded machine give \
                  a longer --timeout-ms";
    Error::new(Code::CommandFailed, Entity::Call, reason, remedy)
}

fn refuse<T>(option: &str, reason: String, remedy: &str) -> Result<T> {
    let entity = Entity::Option(option.into());
    Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
}

/// Whom a case kills.
struct Case {
    name: &'static str,
    dead: Vec<u32>,
    /// Time-outs that the published table has for it.
    serial: u32,
}

fn cases(processes: u32) -> Result<Vec<Case>> {
    let plan = process::plan(processes)?;
    let child = |of: u32, nth: usize| plan.children(of).nth(nth);
    let chain = child(0, 0).and_then(|above| Some((above, child(above, 0)?, child(0, 1)?)));
    let Some((above, below, beside)) = chain else {
        let reason = format!(
            "{} cannot fail twice in series",
            count(processes, "process")
        );
        return refuse("ranks", reason, "give numbers of 8 to 128");
    };
    let case = |name, dead: &[u32], serial| Case {
        name,
        dead: dead.to_vec(),
        serial,
    };
    Ok(vec![
        case("no fault", &[], 0),
        case("1 fault", &[above], 1),
        case("2 parallel faults", &[above, beside], 1),
        case("2 serial faults", &[above, below], 2),
        case("3 mixed faults", &[above, below, beside], 2),
    ])
}

/// Runs all cases.
///
/// # Errors
/// `CommandFailed` if a process of a case does not answer, or a result is wrong.
pub fn measure(options: &BenchOptions) -> Result<Table> {
    let timeout_ms = options.collectives.timeout_ms;
    if timeout_ms == 0 || timeout_ms > 60_000 {
        return refuse("timeout-ms", timeout_ms.to_string(), "give 1 to 60000");
    }
    let mut table = Table::new("collectives", Machine::here());
    let mut late = 0;
    for &processes in options.collectives.ranks.as_deref().unwrap_or(&RANKS) {
        if !(8..=PROCESSES_MAX).contains(&processes) {
            return refuse("ranks", processes.to_string(), "give numbers of 8 to 128");
        }
        for case in cases(processes)? {
            let (mut silent, mut again, mut known) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..options.rounds.max(1) {
                let times = Job::play((processes, timeout_ms, false), &case.dead, &mut late)?;
                silent.push(times.0);
                again.push(times.1);
                if !case.dead.is_empty() {
                    let times = Job::play((processes, timeout_ms, true), &case.dead, &mut late)?;
                    known.push(times.0);
                }
            }
            let what = |how: &str| format!("{processes} processes, {}{how}", case.name);
            let wait = f64::from(case.serial) * timeout_ms as f64;
            let row = Row::new(what(""), "ms", &silent);
            table.rows.push(match case.serial {
                0 => row,
                _ => row.beside("time-outs in series", &silent, &vec![wait; silent.len()]),
            });
            if !known.is_empty() {
                table.rows.push(Row::new(what(", next call"), "ms", &again));
                table
                    .rows
                    .push(Row::new(what(", deaths known"), "ms", &known));
            }
        }
    }
    table.notes.push(format!(
        "collectives: Allreduce of 8 bytes over TCP, binomial tree, time-out {timeout_ms} ms; \
         without more words nobody is told of a death, as in the published table; deaths \
         known: the kernel refuses the connection to a dead process"
    ));
    table.notes.push(format!(
        "collectives: {} repeated because a living process was silent for the whole time-out, \
         which the machine's load can cause; load {} at the end",
        count(late, "case"),
        machine::load()
    ));
    Ok(table)
}

/// Processes of one case; what is left of them is killed with it.
struct Job(Vec<Member>);

struct Member {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Drop for Job {
    fn drop(&mut self) {
        for member in &mut self.0 {
            // It may have ended already.
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

impl Member {
    fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.to, "{line}").map_err(|error| failed("tell a process", &error))
    }
    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.from.read_line(&mut line);
        match read.map_err(|error| failed("hear a process", &error))? {
            0 => Err(odd("a process ended early")),
            _ => Ok(line.trim().to_owned()),
        }
    }
}

impl Job {
    fn start(processes: u32, timeout_ms: u64, known: bool) -> Result<Job> {
        let me = std::env::current_exe().map_err(|error| failed("find itself", &error))?;
        let mut job = Job(Vec::new());
        for rank in 0..processes {
            let role = format!("collective:{rank}:{timeout_ms}:{}", u8::from(known));
            let child = Command::new(&me)
                .args(["bench", "collectives", "--role", &role])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn();
            let mut child = child.map_err(|error| failed("start a process", &error))?;
            let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
                return Err(Error::internal("a process without pipes".to_owned()));
            };
            let from = BufReader::new(from);
            job.0.push(Member { child, to, from });
        }
        let addresses: Result<Vec<String>> = job.0.iter_mut().map(Member::hear).collect();
        let addresses = addresses?.join(",");
        job.0
            .iter_mut()
            .try_for_each(|member| member.say(&addresses))?;
        for member in &mut job.0 {
            member.hear()?; // It listens to all from now on.
        }
        Ok(job)
    }

    /// The longest time of an Allreduce after these died, and of the next one, in ms, with
    /// nobody missing but them.
    fn play(
        (processes, timeout_ms, known): (u32, u64, bool),
        dead: &[u32],
        late: &mut u32,
    ) -> Result<(f64, f64)> {
        for _ in 0..TRIES {
            if let Some(times) = Job::start(processes, timeout_ms, known)?.once(dead)? {
                return Ok(times);
            }
            *late += 1;
        }
        Err(odd(format!(
            "in {TRIES} tries a process that lived was always missing from a result"
        )))
    }

    /// None if one that lives was missing.
    fn once(mut self, dead: &[u32]) -> Result<Option<(f64, f64)>> {
        let processes = self.0.len() as u32;
        // Connections are made.
        if self.call(&[], processes)?.is_none() {
            return Ok(None);
        }
        for &rank in dead {
            let child = &mut self.0[rank as usize].child;
            child.kill().map_err(|error| failed("kill", &error))?;
            child.wait().map_err(|error| failed("bury", &error))?;
        }
        let first = self.call(dead, processes)?;
        let second = self.call(dead, processes)?;
        Ok(first.zip(second))
    }

    /// The longest time; none if one that lives was missing.
    fn call(&mut self, dead: &[u32], processes: u32) -> Result<Option<f64>> {
        let start = clock_ns() + LEAD_NS;
        let live = |rank: usize| !dead.contains(&(rank as u32));
        let all = || (0..processes).filter(|rank| live(*rank as usize));
        let sum: u64 = all().map(|rank| u64::from(rank) + 1).sum();
        let living: Vec<usize> = all().map(|rank| rank as usize).collect();
        for &rank in &living {
            self.0[rank].say(&format!("{start}"))?;
        }
        let (mut longest, mut whole) = (0, true);
        for &rank in &living {
            let line = self.0[rank].hear()?;
            let words: Vec<u64> = line
                .split(' ')
                .filter_map(|word| word.parse().ok())
                .collect();
            let [end, got, absent] = words[..] else {
                return Err(odd(format!("rank {rank} said '{line}'")));
            };
            whole &= absent == dead.len() as u64;
            if absent == dead.len() as u64 && got != sum {
                return Err(odd(format!(
                    "rank {rank} got {got} without {absent}, not {sum} without {}",
                    dead.len()
                )));
            }
            longest = longest.max(end.saturating_sub(start));
        }
        Ok(whole.then_some(longest as f64 / 1e6))
    }
}

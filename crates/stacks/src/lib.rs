//! What the threads of a running process are doing: their stacks, with the names of functions,
//! files and lines; the system call in which a thread waits; where a Python program is.
//!
//! A thread is stopped only while its registers and the top of its stack are copied, some tens of
//! microseconds; everything else is done after it goes on. Nothing is written into the process,
//! and no debugger need be installed. Unwinding follows `.eh_frame`, which compilers write unless
//! they are told not to, and else frame pointers.
//!
//! Invariants: of a process that ends meanwhile, cannot be traced, or has a thread that the kernel
//! does not let stop, what is known is told, with the reason for the rest; each process takes a
//! bounded time; a thread that was stopped goes on, also if the caller dies.
//!
//! Linux on x86-64 only.

mod call;
mod held;
mod modules;
mod place;
mod python;
mod ranks;
mod text;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error, Result};
use outlive_image::procfs;
use serde::Serialize;

use held::Snapshot;
use modules::Modules;

pub use place::{Place, place_of};
pub use ranks::{below, rank_of};
pub use text::describe;

/// Most frames of a stack that are told; more is a recursion without end.
const FRAMES_MAX: usize = 256;
/// Most threads of a process that are looked at.
const THREADS_MAX: usize = 1024;
/// The time that stopping and copying all threads of a process may take.
const BOUND: Duration = Duration::from_secs(5);

/// A process and what its threads do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its command, words separated by blanks.
    pub command: String,
    /// Its threads, the first one first.
    pub threads: Vec<Thread>,
    /// Where its Python threads are, as Python tells it; only of a program that imports
    /// `outlive`.
    pub python: Option<String>,
    /// Why not all is told.
    pub incomplete: Vec<String>,
}

/// A thread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Thread {
    /// Its number.
    pub tid: i32,
    /// Its name.
    pub name: String,
    /// The kernel's letter for its state: R runs, S sleeps, D sleeps and cannot be
    /// interrupted, T is stopped, Z has ended.
    pub state: char,
    /// The system call that it is in, with what its first argument is, where it is a descriptor.
    pub call: Option<String>,
    /// Its frames, the innermost first.
    pub frames: Vec<Frame>,
}

/// A frame of a stack.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Frame {
    /// Where the frame is in its function.
    pub address: u64,
    /// The function; none: its object has no name for the place.
    pub function: Option<String>,
    /// The program or library.
    pub object: Option<PathBuf>,
    /// File and line; only with debug information.
    pub source: Option<Source>,
    /// It has no frame of its own: the compiler put it into the next one.
    pub inlined: bool,
}

/// A place in a program's text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Source {
    /// The file, as the compiler knew it.
    pub file: String,
    /// The line, from 1; 0: not known.
    pub line: u32,
}

/// Looks at a process.
///
/// # Errors
/// [`Code::NotFound`] if there is none of this number. That it cannot be traced is no error:
/// [`Process::incomplete`] says so.
pub fn of(pid: i32) -> Result<Process> {
    // A tracer is a thread: what it holds goes on when it ends, also what never stopped.
    let looked = std::thread::Builder::new()
        .name("outlive-stacks".into())
        .spawn(move || look(pid));
    let joined = looked.map(std::thread::JoinHandle::join);
    match joined {
        Ok(Ok(process)) => process,
        Ok(Err(_)) => Err(Error::internal("the thread that looks at a process ended")),
        Err(error) => Err(Error::internal(format!("no thread to look with: {error}"))),
    }
}

fn look(pid: i32) -> Result<Process> {
    let not_there = |error: io::Error| {
        Error::new(
            Code::NotFound,
            Entity::Call,
            format!("process {pid} is not there: {error}"),
            "give the number of a running process, or --job for the ranks of a job",
        )
    };
    let tids = procfs::threads(pid).map_err(not_there)?;
    let mut process = Process {
        pid,
        command: command(pid),
        threads: Vec::new(),
        python: None,
        incomplete: Vec::new(),
    };
    if tids.len() > THREADS_MAX {
        let said = format!("{} threads, {THREADS_MAX} are told", tids.len());
        process.incomplete.push(said);
    }
    let until = Instant::now() + BOUND;
    let mut held = Vec::new();
    for tid in tids.into_iter().take(THREADS_MAX) {
        let Ok(status) = procfs::status(pid, tid) else {
            continue;
        };
        let thread = Thread {
            tid,
            name: procfs::name(pid, tid).unwrap_or_default(),
            state: status.state,
            call: call::of(pid, tid),
            frames: Vec::new(),
        };
        let snapshot = match held::snapshot(pid, tid, until) {
            Ok(snapshot) => Some(snapshot),
            Err(why) => {
                // The same for all threads is said once.
                if !process.incomplete.contains(&why) {
                    process.incomplete.push(why);
                }
                None
            }
        };
        held.push((thread, snapshot));
    }
    let any = held.iter().any(|(_, snapshot)| snapshot.is_some());
    let mut modules = any.then(|| Modules::of(pid));
    for (mut thread, snapshot) in held {
        if let (Some(modules), Some(snapshot)) = (&mut modules, snapshot) {
            thread.frames = frames(modules, &snapshot);
        }
        process.threads.push(thread);
    }
    process.python = python::of(pid, until + BOUND);
    Ok(process)
}

fn frames(modules: &mut Modules, snapshot: &Snapshot) -> Vec<Frame> {
    let mut frames = Vec::new();
    for address in modules.unwind(snapshot, FRAMES_MAX) {
        modules.name(address, &mut frames);
    }
    frames.truncate(FRAMES_MAX);
    frames
}

fn command(pid: i32) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&words);
    text.trim_end_matches('\0').replace('\0', " ")
}

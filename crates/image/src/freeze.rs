//! Stopping a tree of processes, and letting it go again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use outlive_base::{Code, Entity, Error, Result};

use crate::calls;
use crate::procfs;
use crate::sys::{self, Change};

/// Rounds in which new threads and children may still appear.
const ROUNDS_MAX: usize = 100;

/// Processes whose threads are all stopped under ptrace by this thread.
#[derive(Debug, Default)]
pub struct Frozen {
    /// The processes, parents first, each with its threads, leader first.
    pub processes: Vec<(i32, Vec<i32>)>,
    /// Signals that were being delivered when a thread stopped: they come back with it.
    pub held: BTreeMap<i32, i32>,
}

fn failed(pid: i32, doing: &str, error: &io::Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM) => {
            "run as the same user, or with CAP_SYS_PTRACE; no debugger may be attached"
        }
        Some(libc::ESRCH) => "the process ended meanwhile",
        _ => "see the system log",
    };
    let what = format!("{doing} process {pid}: {error}");
    Error::new(Code::Permission, Entity::Call, what, remedy)
}

/// Stops `root` and its descendants. Threads in `attached` are traced already.
///
/// # Errors
/// [`Code::Permission`] if a process may not be traced; what was stopped goes on.
pub fn freeze(root: i32, attached: &BTreeSet<i32>) -> Result<Frozen> {
    let mut frozen = Frozen::default();
    match collect(root, attached, &mut frozen) {
        Ok(()) => Ok(frozen),
        Err(error) => {
            frozen.thaw(attached);
            Err(failed(root, "stop", &error))
        }
    }
}

fn collect(root: i32, attached: &BTreeSet<i32>, frozen: &mut Frozen) -> io::Result<()> {
    for _ in 0..ROUNDS_MAX {
        let mut new = false;
        let mut tree = vec![root];
        let mut next = 0;
        while let Some(&pid) = tree.get(next) {
            next += 1;
            if pid != root && is_over(pid) {
                continue;
            }
            new |= stop_threads(pid, attached, frozen)?;
            match procfs::children(pid) {
                Err(_) if pid != root && is_over(pid) => {}
                children => tree.extend(children?),
            }
        }
        if !new {
            // It may have ended while it was being stopped.
            frozen.processes.retain(|(_, tids)| !tids.is_empty());
            if !frozen.processes.iter().any(|(pid, _)| *pid == root) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            let order: BTreeMap<i32, usize> =
                tree.iter().enumerate().map(|(i, p)| (*p, i)).collect();
            frozen
                .processes
                .sort_by_key(|(pid, _)| order.get(pid).copied());
            return Ok(());
        }
    }
    Err(io::Error::other(
        "it makes threads or children faster than they can be stopped",
    ))
}

/// True for a process of which no thread is left; its leader may end before the others.
fn is_over(pid: i32) -> bool {
    match procfs::threads(pid) {
        Ok(tids) => tids.iter().all(|tid| has_ended(pid, *tid)),
        Err(error) => is_gone(&error),
    }
}

/// True for a thread that is gone, or nearly.
fn has_ended(pid: i32, tid: i32) -> bool {
    match procfs::status(pid, tid) {
        Ok(status) => matches!(status.state, 'Z' | 'X'),
        Err(error) => is_gone(&error),
    }
}

/// How /proc says that a process is not there any more.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Stops the threads of a process that are not stopped yet. True if there were any.
fn stop_threads(pid: i32, attached: &BTreeSet<i32>, frozen: &mut Frozen) -> io::Result<bool> {
    let place = frozen.processes.iter().position(|(p, _)| *p == pid);
    let place = place.unwrap_or_else(|| {
        frozen.processes.push((pid, Vec::new()));
        frozen.processes.len() - 1
    });
    let mut new = false;
    let threads = match procfs::threads(pid) {
        Err(_) if is_over(pid) => return Ok(false),
        threads => threads?,
    };
    for tid in threads {
        if frozen.processes[place].1.contains(&tid) {
            continue;
        }
        if !attached.contains(&tid) {
            match sys::seize(tid) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                // So says the kernel of one that is ending, too.
                Err(_) if has_ended(pid, tid) => continue,
                other => other?,
            }
        }
        if let Some(signal) = stop(tid)? {
            if signal != 0 {
                frozen.held.insert(tid, signal);
            }
            frozen.processes[place].1.push(tid);
            new = true;
        }
    }
    Ok(new)
}

/// Stops one seized thread. The signal that it was about to get; `None` if it ended.
fn stop(tid: i32) -> io::Result<Option<i32>> {
    match sys::interrupt(tid) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        other => other?,
    }
    loop {
        match sys::wait(tid, true)? {
            Some((_, Change::Ended(_))) => return Ok(None),
            Some((
                _,
                Change::Stopped {
                    event: libc::PTRACE_EVENT_STOP,
                    ..
                },
            )) => return Ok(Some(0)),
            // In the middle of a delivery: the signal is kept for later.
            Some((_, Change::Stopped { signal, event: 0 })) if signal < libc::SIGTRAP | 0x80 => {
                return Ok(Some(signal));
            }
            // Some other event: on to the stop that was asked for.
            Some(_) => sys::resume(tid, 0)?,
            None => {}
        }
    }
}

impl Frozen {
    /// All threads.
    pub fn threads(&self) -> impl Iterator<Item = i32> + '_ {
        self.processes
            .iter()
            .flat_map(|(_, tids)| tids.iter().copied())
    }

    /// Lets all go on: those in `attached` stay traced, the others are detached.
    pub fn thaw(&self, attached: &BTreeSet<i32>) {
        for tid in self.threads() {
            let signal = self.held.get(&tid).copied().unwrap_or(0);
            // A thread that has ended meanwhile needs nothing.
            let _ = if attached.contains(&tid) {
                sys::resume(tid, signal)
            } else {
                sys::detach(tid, signal)
            };
        }
    }

    /// Ends all processes at once, and takes their ends in.
    pub fn kill(&self) {
        for (pid, _) in &self.processes {
            let _ = sys::kill(*pid, libc::SIGKILL);
        }
        for (pid, tids) in &self.processes {
            for tid in tids.iter().rev().chain([pid]) {
                while let Ok(Some((_, Change::Stopped { .. }))) = sys::wait(*tid, true) {
                    let _ = sys::resume(*tid, 0);
                }
            }
        }
    }
}

/// Registers of a stopped thread, ready to run in user mode (see [`calls`]).
pub fn settled(tid: i32) -> io::Result<Vec<u64>> {
    let mut registers = sys::registers(tid)?;
    calls::settle(&mut registers);
    Ok(registers)
}

//! Nodes of an earlier run: a launcher that was killed leaves keepers and agents that
//! live for moments, or, frozen, for longer. Nothing is started beside them.
//!
//! All keepers and agents of a run inherit one lock (`nodes.lock`), so the kernel knows
//! when the last of them has ended, however the run ended. The next launcher waits for
//! that; those that do not go are woken, then killed.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error, JobName, Result};
use outlive_control::orders::{AgentSpec, SPEC_VARIABLE};
use rustix::fs::FlockOperation;
use rustix::process::Signal;

use crate::layout;
use crate::{files, process};

/// How long nodes may take to notice that their launcher is gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long they may take to end once they are killed.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// Takes the lock of the job's nodes, after those of an earlier run have ended. `dir` is the
/// job's directory, by which they are known. Those of `this_run` are never ended.
///
/// # Errors
/// [`Code::JobBusy`] if some do not end although they were killed, or are of this run; those
/// of the file system.
pub(crate) fn take(
    lock_dir: &Path,
    dir: &Path,
    name: &JobName,
    this_run: &dyn Fn(&AgentSpec) -> bool,
) -> Result<OwnedFd> {
    let path = lock_dir.join(layout::NODES_LOCK);
    if let Some(file) = acquire(&path, PATIENCE)? {
        return Ok(file.into());
    }
    // One that was frozen ends in order, with its ranks, when it goes on.
    let mut found = Vec::new();
    for (with, patience) in [(Signal::CONT, PATIENCE), (Signal::KILL, KILL_PATIENCE)] {
        found = evict(dir, with, this_run).ok_or_else(|| {
            Error::new(
                Code::JobBusy,
                Entity::Job(name.to_string()),
                "another node of this run is on this machine: two names mean one host",
                "name each machine once",
            )
        })?;
        tracing::warn!(?found, ?with, "nodes of an earlier run are ended");
        if let Some(file) = acquire(&path, patience)? {
            return Ok(file.into());
        }
    }
    Err(Error::new(
        Code::JobBusy,
        Entity::Job(name.to_string()),
        format!("nodes of an earlier run have not ended (processes {found:?})"),
        "end them, look for processes in state D, or choose another --job",
    ))
}

/// The file at `path`, locked, unless somebody holds it for longer than the bound.
fn acquire(path: &Path, patience: Duration) -> Result<Option<File>> {
    let until = Instant::now() + patience;
    loop {
        // Whoever held it may have removed it: then the lock is another file now.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|error| Error::io(path, "open", &error))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if files::is_at(&file, path) => return Ok(Some(file)),
            Ok(()) | Err(rustix::io::Errno::AGAIN) if Instant::now() < until => {
                std::thread::sleep(LOOK);
            }
            Ok(()) | Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(Error::io(path, "lock", &error.into())),
        }
    }
}

/// Signals keepers and agents of the job in `dir`; their numbers. `None` if one is of this run:
/// then none is signalled any more.
fn evict(dir: &Path, with: Signal, this_run: &dyn Fn(&AgentSpec) -> bool) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // The descriptor first: then the number cannot pass to another in between.
        let Some(fd) = process::open_pid(pid) else {
            continue;
        };
        if let Some(spec) = serves(&entry.path(), dir) {
            if this_run(&spec) {
                return None;
            }
            process::signal(&fd, with);
            found.push(pid);
        }
    }
    Some(found)
}

/// What the process at `proc` is, if it is a keeper or agent of the job in `dir`.
fn serves(proc: &Path, dir: &Path) -> Option<AgentSpec> {
    let words = std::fs::read(proc.join("cmdline")).unwrap_or_default();
    let role = words.split(|byte| *byte == 0).nth(1).unwrap_or_default();
    if role != b"keeper" && role != b"agent" {
        return None;
    }
    let environ = std::fs::read(proc.join("environ")).unwrap_or_default();
    let spec = environ.split(|byte| *byte == 0).find_map(|variable| {
        variable
            .strip_prefix(SPEC_VARIABLE.as_bytes())?
            .strip_prefix(b"=")
    });
    let spec = spec.and_then(|spec| serde_json::from_slice::<AgentSpec>(spec).ok());
    spec.filter(|spec| spec.job_dir.as_os_str().as_bytes() == dir.as_os_str().as_bytes())
}

/// Lets the child, and what it starts, inherit a descriptor.
pub(crate) fn inherit(command: &mut Command, fd: &OwnedFd) {
    let number = fd.as_raw_fd();
    let pass = move || {
        // SAFETY: between fork and exec the descriptor is open in the child if it was in
        // the parent; if it was not, the call below fails and the start with it.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_setfd(fd.as_fd(), rustix::io::FdFlags::empty())?;
        Ok(())
    };
    // SAFETY: `pass` only makes a system call and allocates nothing.
    unsafe { command.pre_exec(pass) };
}

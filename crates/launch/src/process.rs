//! Processes by descriptor: starting, watching, finding and ending them.
//!
//! Invariants. A process is only ever signalled through a pidfd whose process was
//! checked, after opening, to be the one that was meant: a number that the kernel
//! has given to somebody else is never hit. Nothing is ever found by name. Reaping
//! and starting exclude each other (`REAP`), so that a child that fails to
//! execute is not reaped under the hands of `Command::spawn`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use outlive_base::{Code, Entity, Error, Result};
use outlive_control::ended::Ended;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::sys;

/// Held while a child is being started and while children are being reaped.
static REAP: Mutex<()> = Mutex::new(());

fn reap_lock() -> MutexGuard<'static, ()> {
    REAP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that was started, and the descriptor that stands for it.
#[derive(Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its descriptor.
    pub fd: OwnedFd,
}

/// Lets the child of `command` be told to end (SIGTERM) when this thread does, even by SIGKILL.
pub fn tie(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: `follow` only makes system calls and allocates nothing.
    unsafe { command.pre_exec(move || follow(parent)) };
}

/// Lets the child of `command` have a session of its own: no terminal, and none of its signals.
pub(crate) fn detach(command: &mut Command) {
    // SAFETY: it only makes a system call and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        })
    };
}

/// In the child: it ends when its parent does.
fn follow(parent: Pid) -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    // The parent may have died before the line above took effect.
    match rustix::process::getppid() == Some(parent) {
        true => Ok(()),
        false => Err(std::io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// Starts `command` (see [`Group`]). The child dies with this thread if `tied`.
///
/// # Errors
/// [`Code::CommandFailed`] with the program's name.
pub fn spawn(mut command: Command, group: Group, tied: bool) -> Result<Process> {
    let program = command.get_program().to_string_lossy().into_owned();
    let parent = rustix::process::getpid();
    let prepare = move || {
        // Blocked signals are inherited: a shell without SIGCHLD waits for ever.
        sys::restore_mask()?;
        sys::restore_limit()?;
        match group {
            Group::Session => drop(rustix::process::setsid()?),
            Group::Own => rustix::process::setpgid(None, None)?,
            Group::Shared => {}
        }
        if tied {
            follow(parent)?;
        }
        Ok(())
    };
    // SAFETY: `prepare` only makes system calls and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    let guard = reap_lock();
    let mut child = command
        .spawn()
        .map_err(|error| start_failed(&program, &error))?;
    let pid = child.id();
    // Not reaped yet, so the number is the child's.
    let fd = find_pid(pid);
    let fd = fd.map_err(|error| {
        let _ = child.kill();
        let _ = child.wait();
        start_failed(&program, &error.into())
    })?;
    drop(guard);
    Ok(Process { pid, fd })
}

/// The group of processes that a child is put in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// A session of its own: no terminal, no signals of this one.
    Session,
    /// A process group of its own.
    Own,
    /// That of the launcher: job control of the terminal works on both.
    Shared,
}

fn start_failed(program: &str, error: &std::io::Error) -> Error {
    let remedy = match error.kind() {
        std::io::ErrorKind::NotFound => "check the spelling and PATH, or give the full path",
        std::io::ErrorKind::PermissionDenied => "make the file executable",
        _ => "check that it is a program for this machine and that limits allow it",
    };
    Error::new(
        Code::CommandFailed,
        Entity::File(program.to_owned()),
        error.to_string(),
        remedy,
    )
}

/// Opens the process with this number, if there is one and a descriptor can be had.
pub fn open_pid(pid: u32) -> Option<OwnedFd> {
    find_pid(pid).ok()
}

/// Opens the process with this number.
///
/// # Errors
/// `SRCH` if there is none; else no descriptor can be had, whatever the process does.
pub fn find_pid(pid: u32) -> rustix::io::Result<OwnedFd> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    rustix::process::pidfd_open(number.ok_or(Errno::SRCH)?, PidfdFlags::empty())
}

/// True if the process has ended.
pub fn has_ended(process: &Process) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let mut fds = [PollFd::new(&process.fd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(count) if count > 0)
}

/// Sends a signal; a process that has ended is no error.
pub fn signal(fd: &OwnedFd, signal: Signal) {
    if let Err(error) = rustix::process::pidfd_send_signal(fd, signal)
        && error != Errno::SRCH
    {
        tracing::warn!(%error, ?signal, "cannot signal a process");
    }
}

/// Reaps every child that has ended: number and status.
pub fn reap() -> Vec<(u32, Ended)> {
    let _guard = reap_lock();
    let mut ended = Vec::new();
    let options = rustix::process::WaitOptions::NOHANG;
    while let Ok(Some((pid, status))) = rustix::process::wait(options) {
        let pid = pid.as_raw_nonzero().get() as u32;
        ended.push((pid, Ended::from_wait_status(status.as_raw())));
    }
    ended
}

/// One line of /proc/PID/stat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stat {
    parent: u32,
    zombie: bool,
    exit: Option<i32>,
    started: u64,
}

/// The fields after the command name, which may hold spaces and parentheses.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Stat {
        zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        exit: fields.get(49).and_then(|code| code.parse().ok()),
    })
}

fn stat(pid: u32) -> Option<Stat> {
    read_stat(pid).ok().flatten()
}

/// `None`: there is no such process. An error: who knows.
fn read_stat(pid: u32) -> io::Result<Option<Stat>> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => Ok(parse_stat(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How a process that has ended but is not yet reaped by its parent ended.
pub fn exit_of_zombie(pid: u32) -> Option<Ended> {
    let stat = stat(pid)?;
    stat.zombie
        .then_some(stat.exit?)
        .map(Ended::from_wait_status)
}

/// When the process began, in clock ticks since boot: with its number, its identity.
pub fn started(pid: u32) -> Option<u64> {
    stat(pid).map(|stat| stat.started)
}

/// All processes below `root` that have not ended, except those at or below a
/// process in `spared`. Orphans count: `root` is their subreaper.
///
/// # Errors
/// If /proc cannot be read (no descriptor is left): that is not the same as nobody.
pub fn descendants(root: u32, spared: &BTreeSet<u32>) -> io::Result<Vec<u32>> {
    let mut children: BTreeMap<u32, Vec<(u32, bool)>> = BTreeMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if let Some(stat) = read_stat(pid)? {
            let siblings = children.entry(stat.parent).or_default();
            siblings.push((pid, stat.zombie));
        }
    }
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        // Each number has one parent, so this ends even if numbers were reused.
        for (pid, zombie) in children.remove(&parent).unwrap_or_default() {
            if !spared.contains(&pid) {
                open.push(pid);
                if !zombie {
                    found.push(pid);
                }
            }
        }
    }
    Ok(found)
}

/// Signals every process below `root` except `spared`; returns how many there were,
/// those included for which no descriptor could be had.
///
/// # Errors
/// Those of [`descendants`].
pub fn signal_descendants(root: u32, spared: &BTreeSet<u32>, with: Signal) -> io::Result<usize> {
    let pids = descendants(root, spared)?;
    let mut count = 0;
    for pid in pids {
        match find_pid(pid) {
            // The number may have been given away since the scan: look again, now that
            // the descriptor pins it.
            Ok(fd) if is_below(pid, root, spared) => signal(&fd, with),
            Ok(_) | Err(Errno::SRCH) => continue,
            Err(error) => tracing::warn!(pid, %error, "cannot signal a process"),
        }
        count += 1;
    }
    Ok(count)
}

/// Opens a process by number if it is the one that [`started`] then, or, where that is
/// not known, if it is below this one: the number may have passed to a stranger since.
pub fn open_same(pid: u32, then: Option<u64>) -> Option<OwnedFd> {
    let fd = open_pid(pid)?;
    let same = match then {
        Some(then) => started(pid) == Some(then),
        None => is_below(pid, std::process::id(), &BTreeSet::new()),
    };
    same.then_some(fd)
}

/// Follows parents from `pid` to `root` without meeting a spared process.
fn is_below(pid: u32, root: u32, spared: &BTreeSet<u32>) -> bool {
    let mut at = pid;
    for _ in 0..10_000 {
        if spared.contains(&at) {
            return false;
        }
        match stat(at) {
            Some(stat) if stat.parent == root => return true,
            Some(stat) if stat.parent > 1 => at = stat.parent,
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_with_a_nasty_name_is_understood() {
        let mut fields = vec!["0"; 50];
        fields[0] = "Z";
        fields[1] = "77";
        fields[19] = "4242";
        fields[49] = "9";
        let text = format!("12 (a) b (c) {}", fields.join(" "));
        let stat = parse_stat(&text).unwrap();
        assert_eq!(
            (stat.parent, stat.zombie, stat.started, stat.exit),
            (77, true, 4242, Some(9))
        );
        assert_eq!(parse_stat("12 (x"), None);
        assert_eq!(parse_stat("12 (x) R"), None);
    }

    #[test]
    fn statuses_are_shown_as_a_shell_would() {
        assert_eq!(Ended::from_wait_status(9), Ended::Signal(9));
        assert_eq!(Ended::from_wait_status(0x300), Ended::Code(3));
        assert_eq!(Ended::Signal(9).exit_status(), 137);
        assert!(Ended::Code(0).is_success());
    }

    #[test]
    fn a_command_that_does_not_exist_is_a_coded_error() {
        let error = spawn(Command::new("/no/such/program"), Group::Own, false).unwrap_err();
        assert_eq!(error.code(), Code::CommandFailed);
        assert_eq!(error.code().exit_status(), 127);
    }
}

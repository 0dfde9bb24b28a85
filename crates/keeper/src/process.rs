//! The keeper's dealings with processes and signals; all that needs `unsafe`.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, Resource, Rlimit, Signal};

use crate::{AGENT_RESTARTS, KEEPER_FD};

/// A running agent.
pub(crate) struct Agent {
    pub(crate) child: Child,
    /// Readable once the agent has ended.
    pub(crate) pidfd: OwnedFd,
    /// None once the agent has closed its end.
    pub(crate) line: Option<OwnedFd>,
}

/// A signal as a readable descriptor; the signal's mask is put back when dropped.
pub struct Caught {
    pub(crate) descriptor: OwnedFd,
    before: libc::sigset_t,
}

impl Caught {
    /// Blocks the signal in this thread, and in those that it starts.
    ///
    /// # Errors
    /// Of the system, which lacks descriptors.
    pub fn catch(signal: libc::c_int) -> io::Result<Caught> {
        // SAFETY: the sets are plain memory, filled before use by the calls
        // below; the calls only touch this thread's mask and memory given here.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, signal);
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let number = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if number < 0 {
                let error = io::Error::last_os_error();
                libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
                return Err(error);
            }
            // A new descriptor that nobody else owns.
            Ok(Caught {
                descriptor: OwnedFd::from_raw_fd(number),
                before,
            })
        }
    }
}

impl Caught {
    /// True if the signal has come since the last look.
    pub fn has_come(&self) -> bool {
        rustix::io::read(&self.descriptor, &mut [0; 128]).is_ok()
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        // A signal that was heard must not strike now.
        let _ = rustix::io::read(&self.descriptor, &mut [0; 128]);
        // SAFETY: `before` was filled by the call that blocked the signal.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut());
        }
    }
}

/// Starts the agent with a fresh socket pair. It dies with this thread.
pub(crate) fn start(command: &[OsString], restarts: u32) -> io::Result<Agent> {
    let [program, arguments @ ..] = command else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the agent's command is empty",
        ));
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (line, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let mut command = Command::new(program);
    command.arg0(outlive_control::orders::TITLE).args(arguments);
    command.env(KEEPER_FD, theirs.as_raw_fd().to_string());
    command.env(AGENT_RESTARTS, restarts.to_string());
    let keeper = rustix::process::getpid();
    let theirs_number = theirs.as_raw_fd();
    // SAFETY: runs in the child between fork and exec and makes system calls
    // only: no allocation, no lock. `theirs_number` is open: `theirs` lives until
    // after the spawn.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(keeper) {
                // The keeper died in between and will send no signal.
                libc::_exit(1);
            }
            let theirs = std::os::fd::BorrowedFd::borrow_raw(theirs_number);
            rustix::io::fcntl_setfd(theirs, FdFlags::empty())?;
            // SIGTERM reaches the agent, whatever the keeper blocks.
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            match libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()) {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        });
    }
    let mut child = command.spawn()?;
    let pid = rustix::process::Pid::from_child(&child);
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(Agent {
            child,
            pidfd,
            line: Some(line),
        }),
        Err(error) => {
            child.kill()?;
            child.wait()?;
            Err(error.into())
        }
    }
}

/// A descriptor that is readable once this process's parent has ended; None if
/// it has ended already.
pub(crate) fn watch_parent(expected: Option<u32>) -> io::Result<Option<OwnedFd>> {
    let Some(parent) = rustix::process::getppid() else {
        return Ok(None);
    };
    if expected.is_some_and(|id| i64::from(id) != i64::from(parent.as_raw_nonzero().get())) {
        return Ok(None);
    }
    let pidfd = match rustix::process::pidfd_open(parent, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // The id may have passed to another process before it was opened.
    Ok((rustix::process::getppid() == Some(parent)).then_some(pidfd))
}

/// Raises the limit of open files as far as allowed and gives it.
pub(crate) fn raise_descriptor_limit() -> usize {
    let Rlimit { current, maximum } = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let now = match rustix::process::setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => current,
    };
    now.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    })
}

impl Agent {
    pub(crate) fn signal(&self, signal: Signal) {
        // It fails only if the agent has ended, which the pidfd tells.
        let _ = rustix::process::pidfd_send_signal(self.pidfd.as_fd(), signal);
    }
}

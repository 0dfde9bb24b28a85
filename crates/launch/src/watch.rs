//! A thread that waits for what the kernel tells: signals, and processes that end.
//!
//! It alone reaps. Everything it sees goes into one channel, in the order seen.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::Sender;
use outlive_base::{Error, Rank, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags};

use outlive_control::ended::Ended;

use crate::process;
use crate::sys;

/// What the watcher saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// A child (or an orphan that became one) ended and was reaped.
    Child {
        /// Its number.
        pid: u32,
        /// How.
        ended: Ended,
    },
    /// A rank's process ended.
    Rank {
        /// The rank.
        rank: Rank,
        /// Its process.
        pid: u32,
        /// How, if the kernel tells.
        ended: Option<Ended>,
    },
    /// A signal for the launcher.
    Signal(sys::Caught),
}

#[derive(Debug)]
struct Shared {
    added: Mutex<Vec<(Rank, u32, OwnedFd)>>,
    wake: OwnedFd,
}

/// The handle of the thread. The thread lives as long as the process.
#[derive(Clone, Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
}

impl Watcher {
    /// Blocks the signals in this thread and starts the watcher. Call it before any
    /// other thread is started, so that all inherit the mask.
    ///
    /// # Errors
    /// If the kernel refuses a descriptor or a thread.
    pub fn start<T: From<Seen> + Send + 'static>(to: Sender<T>) -> Result<Watcher> {
        let failed = |error: std::io::Error| Error::internal(format!("watcher: {error}"));
        let signals = sys::signals().map_err(failed)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags).map_err(|error| failed(error.into()))?;
        let shared = Arc::new(Shared {
            added: Mutex::new(Vec::new()),
            wake,
        });
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("watcher".into())
            .spawn(move || watch(&signals, &theirs, &to))
            .map_err(failed)?;
        Ok(Watcher { shared })
    }

    /// Watches a rank's process; false if it is gone already. One for which no
    /// descriptor can be had is left to its agent, which watches it too.
    pub fn add(&self, rank: Rank, pid: u32) -> bool {
        let fd = match process::find_pid(pid) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return false,
            Err(error) => {
                tracing::warn!(%rank, pid, %error, "a rank is watched by its agent alone");
                return true;
            }
        };
        let mut added = self
            .shared
            .added
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        added.push((rank, pid, fd));
        drop(added);
        // The counter is far from its end; a failure here only delays.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        true
    }
}

fn watch<T: From<Seen>>(signals: &OwnedFd, shared: &Shared, to: &Sender<T>) {
    let mut ranks: BTreeMap<u64, (Rank, u32, OwnedFd)> = BTreeMap::new();
    let mut next = 0u64;
    loop {
        let mut added = shared.added.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in added.drain(..) {
            ranks.insert(next, entry);
            next += 1;
        }
        drop(added);
        let mut fds = vec![
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(&shared.wake, PollFlags::IN),
        ];
        fds.extend(
            ranks
                .values()
                .map(|(_, _, fd)| PollFd::new(fd, PollFlags::IN)),
        );
        if rustix::event::poll(&mut fds, None).is_err() {
            continue;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let gone: Vec<u64> = ranks
            .keys()
            .zip(&ready[2..])
            .filter_map(|(key, ready)| ready.then_some(*key))
            .collect();
        // Ranks first: how they ended is lost to old kernels once they are reaped.
        let mut ends: Vec<(Rank, u32, Option<Ended>)> = gone
            .iter()
            .filter_map(|key| ranks.remove(key))
            .map(|(rank, pid, fd)| {
                let ended = process::exit_of_zombie(pid).or_else(|| sys::exit_of(fd.as_fd()));
                (rank, pid, ended)
            })
            .collect();
        // Of those that ended together, the one that was not killed is the cause.
        ends.sort_by_key(|(_, _, ended)| ended.is_none_or(Ended::is_kill));
        for (rank, pid, ended) in ends {
            if to.send(Seen::Rank { rank, pid, ended }.into()).is_err() {
                return;
            }
        }
        if ready[1] {
            let _ = rustix::io::read(&shared.wake, &mut [0u8; 8]);
        }
        if !take_signals(signals, to) {
            return;
        }
    }
}

fn take_signals<T: From<Seen>>(signals: &OwnedFd, to: &Sender<T>) -> bool {
    let mut children = false;
    while let Some(caught) = sys::next_signal(signals.as_fd()) {
        match caught.signal {
            libc::SIGCHLD => children = true,
            _ if to.send(Seen::Signal(caught).into()).is_err() => return false,
            _ => {}
        }
    }
    if children {
        for (pid, ended) in process::reap() {
            if to.send(Seen::Child { pid, ended }.into()).is_err() {
                return false;
            }
        }
    }
    true
}

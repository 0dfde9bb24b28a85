//! A command that runs to its end, to its bound, or until a signal comes; nothing that it
//! started is left on this machine afterwards.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use outlive_base::{Error, Result};
use outlive_control::ended::Ended;
use outlive_launch::process::{self, Group};
use outlive_launch::sys;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

/// From SIGTERM to SIGKILL: launchers end their ranks in between.
const GRACE: Duration = Duration::from_secs(5);
/// How often what is left is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// How a command came to its end.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// By itself.
    Ended(Ended),
    /// It was ended after its bound.
    Late,
    /// It was ended because this signal came.
    Signal(i32),
}

/// Sees signals and children. Signals have their usual effect again when it goes.
pub(super) struct Watch {
    signals: OwnedFd,
}

impl Watch {
    /// Becomes the one that orphans of the command are given to.
    ///
    /// # Errors
    /// [`outlive_base::Code::Internal`] if the kernel refuses.
    pub(super) fn new() -> Result<Watch> {
        let me = rustix::process::getpid();
        let failed =
            |what: &str, error: std::io::Error| Error::internal(format!("{what}: {error}"));
        rustix::process::set_child_subreaper(Some(me))
            .map_err(|error| failed("subreaper", error.into()))?;
        let signals = sys::signals().map_err(|error| failed("signals", error))?;
        Ok(Watch { signals })
    }

    /// Runs a command for at most `bound`.
    ///
    /// # Errors
    /// [`outlive_base::Code::CommandFailed`] if it cannot be started.
    pub(super) fn run(&self, command: Command, bound: Duration) -> Result<End> {
        let started = process::spawn(command, Group::Shared, true)?;
        let end = self.wait(started.pid, bound);
        self.end_all();
        Ok(end)
    }

    fn wait(&self, pid: u32, bound: Duration) -> End {
        let until = Instant::now() + bound;
        loop {
            if let Some((_, ended)) = process::reap().into_iter().find(|of| of.0 == pid) {
                return End::Ended(ended);
            }
            if let Some(signal) = self.asked_to_end() {
                return End::Signal(signal);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return End::Late;
            }
            self.sleep(left);
        }
    }

    /// A signal that asks this process to end, if one came.
    fn asked_to_end(&self) -> Option<i32> {
        let caught = std::iter::from_fn(|| sys::next_signal(self.signals.as_fd()));
        let signals: Vec<i32> = caught.map(|caught| caught.signal).collect();
        let ends = |signal: &i32| [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].contains(signal);
        signals.into_iter().find(ends)
    }

    /// Until a signal comes, a child's end included, or for this long.
    fn sleep(&self, most: Duration) {
        let most = Timespec {
            tv_sec: most.as_secs() as i64,
            tv_nsec: i64::from(most.subsec_nanos()),
        };
        let _ = rustix::event::poll(
            &mut [PollFd::new(&self.signals, PollFlags::IN)],
            Some(&most),
        );
    }

    /// Ends whatever is left below this process.
    fn end_all(&self) {
        let me = std::process::id();
        let (nobody, begun) = (BTreeSet::new(), Instant::now());
        let mut told = false;
        // Two graces bound it: what does not go by SIGKILL is in the kernel's hands.
        while begun.elapsed() < 2 * GRACE {
            let late = begun.elapsed() >= GRACE;
            let left = match (told, late) {
                (_, true) => process::signal_descendants(me, &nobody, Signal::KILL),
                (false, false) => process::signal_descendants(me, &nobody, Signal::TERM),
                (true, false) => process::descendants(me, &nobody).map(|left| left.len()),
            };
            told = true;
            process::reap();
            if matches!(left, Ok(0)) {
                return;
            }
            self.sleep(LOOK);
            let _ = self.asked_to_end();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = sys::restore_mask();
    }
}

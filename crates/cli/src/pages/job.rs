//! A command that is watched until it ends. It is nobody's prisoner: it dies of no death of
//! ours, what it leaves running goes on, and signals that reach this process are passed on.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use outlive_base::{Error, Result};
use outlive_control::ended::Ended;
use outlive_launch::process::{self, Group};
use outlive_launch::sys;
use outlive_node::pages::process::{Amount, sum_of};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use serde::Serialize;

/// The first look at a command's memory; each next one waits twice as long, up to the period.
const FIRST: Duration = Duration::from_millis(20);
/// How long to wait for a signal where nothing is sampled.
const IDLE: Duration = Duration::from_secs(60);

/// The most memory on huge pages that was seen at one time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Peak {
    /// Processes.
    pub(crate) processes: u64,
    /// Their memory together.
    #[serde(flatten)]
    pub(crate) amount: Amount,
}

impl Peak {
    /// The larger one, by what is huge, then by what is there.
    pub(crate) fn or(self, other: Peak) -> Peak {
        let key = |peak: &Peak| (peak.amount.huge_bytes, peak.amount.resident_bytes);
        if key(&other) > key(&self) {
            other
        } else {
            self
        }
    }
}

/// What became of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) ended: Ended,
    pub(crate) seconds: f64,
    pub(crate) samples: u64,
    pub(crate) peak: Peak,
    /// A signal that was passed on and ends programs, if one was.
    pub(crate) told_to_end: bool,
}

/// Sees signals and children. Signals have their usual effect again when it goes.
pub(crate) struct Watch(OwnedFd);

impl Watch {
    pub(crate) fn new() -> Result<Watch> {
        Watch::and(&[])
    }

    /// Passes these signals on besides the usual ones.
    pub(crate) fn and(more: &[i32]) -> Result<Watch> {
        let signals = sys::signals_and(more);
        signals
            .map(Watch)
            .map_err(|error| Error::internal(format!("signals: {error}")))
    }

    /// A signal that came and ends programs, before there is a command to pass it on to.
    pub(crate) fn told_to_end(&self) -> Option<i32> {
        std::iter::from_fn(|| sys::next_signal(self.0.as_fd()))
            .map(|caught| caught.signal)
            .find(|signal| *signal != libc::SIGCHLD)
    }

    /// Runs a command to its end; its memory is looked at once a `period`, never if `None`.
    ///
    /// # Errors
    /// [`outlive_base::Code::CommandFailed`] if it cannot be started.
    pub(crate) fn run(&self, command: Command, period: Option<Duration>) -> Result<Outcome> {
        let begun = Instant::now();
        let child = process::spawn(command, Group::Shared, false)?;
        let (mut samples, mut peak, mut told_to_end) = (0, Peak::default(), false);
        let mut wait = period.map_or(IDLE, |period| FIRST.min(period));
        let mut next = begun + wait;
        loop {
            if let Some((_, ended)) = process::reap().into_iter().find(|of| of.0 == child.pid) {
                return Ok(Outcome {
                    ended,
                    seconds: begun.elapsed().as_secs_f64(),
                    samples,
                    peak,
                    told_to_end,
                });
            }
            while let Some(caught) = sys::next_signal(self.0.as_fd()) {
                let ends = caught.signal != libc::SIGCHLD;
                told_to_end |= ends;
                // One of the terminal has reached the command too.
                let signal = Signal::from_named_raw(caught.signal);
                if let Some(signal) = signal.filter(|_| ends && !caught.from_terminal) {
                    process::signal(&child.fd, signal);
                }
            }
            if let Some(period) = period.filter(|_| Instant::now() >= next) {
                peak = peak.or(look());
                samples += 1;
                wait = (2 * wait).min(period);
                next = Instant::now() + wait;
            }
            // With SIGCHLD blocked, its end is seen however late the wait begins.
            self.sleep(next.saturating_duration_since(Instant::now()).min(IDLE));
            if period.is_none() {
                next = Instant::now() + IDLE;
            }
        }
    }

    /// Until a signal comes, a child's end included, or for this long.
    fn sleep(&self, most: Duration) {
        let most = Timespec {
            tv_sec: most.as_secs() as i64,
            tv_nsec: i64::from(most.subsec_nanos()),
        };
        let _ = rustix::event::poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&most));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = sys::restore_mask();
    }
}

/// What all processes below this one have now.
fn look() -> Peak {
    let below = process::descendants(std::process::id(), &BTreeSet::new()).unwrap_or_default();
    let amounts = below.into_iter().filter_map(sum_of);
    amounts.fold(Peak::default(), |peak, amount| Peak {
        processes: peak.processes + 1,
        amount: peak.amount.and(amount),
    })
}

//! How processes end.

use serde::{Deserialize, Serialize};

/// An interrupt from the terminal.
pub const SIGINT: i32 = 2;
/// Ends a process that must not answer; by number, since this crate knows no system.
pub const SIGKILL: i32 = 9;
/// What batch systems send before they end a job.
pub const SIGUSR1: i32 = 10;
/// Asks a process to end.
pub const SIGTERM: i32 = 15;
/// The exit code by which a shell tells that its command was ended by SIGKILL.
const KILLED: i32 = 128 + SIGKILL;
/// The same for SIGTERM.
const TERMINATED: i32 = 128 + SIGTERM;

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// It returned or called exit.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl Ended {
    /// From the status word of wait(2).
    pub const fn from_wait_status(status: i32) -> Ended {
        match status & 0x7f {
            0 => Ended::Code(status >> 8 & 0xff),
            signal => Ended::Signal(signal),
        }
    }
    /// As a shell shows it: 128 + signal.
    pub const fn exit_status(self) -> u8 {
        match self {
            Ended::Code(code) => code as u8,
            Ended::Signal(signal) => (128 + signal) as u8,
        }
    }
    /// True for the signals with which launchers end the ranks that are left, also as a
    /// shell between tells them.
    pub const fn is_kill(self) -> bool {
        matches!(
            self,
            Ended::Signal(SIGKILL | SIGTERM) | Ended::Code(KILLED | TERMINATED)
        )
    }
    /// True for exit code 0.
    pub const fn is_success(self) -> bool {
        matches!(self, Ended::Code(0))
    }
}

impl core::fmt::Display for Ended {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Ended::Code(code) => write!(f, "exit code {code}"),
            Ended::Signal(signal) => match name_of(*signal) {
                Some(name) => write!(f, "signal {signal} ({name})"),
                None => write!(f, "signal {signal}"),
            },
        }
    }
}

/// The name of a signal, "signal" for the less common ones.
pub const fn signal_name(signal: i32) -> &'static str {
    match name_of(signal) {
        Some(name) => name,
        None => "signal",
    }
}

/// By the numbers of Linux on most processors (signal(7)).
const fn name_of(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        SIGINT => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        SIGKILL => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        SIGTERM => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

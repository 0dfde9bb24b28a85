//! The keeper: the process that owns a node's memory.
//!
//! It keeps every descriptor that its agent deposits (memory slabs, control
//! blocks), starts the agent again when it dies, and hands the descriptors to
//! the next one. Staged checkpoints so survive the agent.
//!
//! Invariants:
//! - One thread; it waits only in poll(2), and each wait has an end or an event
//!   that must come (P5).
//! - It parses no network byte: only datagrams of at most [`DATAGRAM_BYTES_MAX`]
//!   bytes from its own child, over a socket pair that nobody else holds (P7).
//!   Each start of the agent has a fresh pair.
//! - It never waits for its child: a child that does not read its answers loses
//!   them.
//! - At most [`KeeperOptions::descriptors_max`] descriptors are kept.
//! - The agent ends with the keeper (PR_SET_PDEATHSIG), the keeper with its
//!   parent (a pidfd of the parent; the launcher may set PR_SET_PDEATHSIG too).
//!
//! [`run`] is the keeper's side, [`Deposit`] the agent's.

mod datagrams;
mod deposit;
mod process;
mod supervise;
mod wire;

use std::ffi::OsString;
use std::time::Duration;

pub use deposit::Deposit;
pub use process::Caught;
pub use supervise::run;
pub use wire::{BATCH_MAX, DATAGRAM_BYTES_MAX, TAG_BYTES_MAX, fuzz_parsers};

/// The variable that tells the agent the number of its socket to the keeper.
pub const KEEPER_FD: &str = "OUTLIVE_KEEPER_FD";
/// The variable that tells the agent how often it was started again.
pub const AGENT_RESTARTS: &str = "OUTLIVE_AGENT_RESTARTS";

/// What a keeper is told, with its bounds.
#[derive(Clone, Debug)]
pub struct KeeperOptions {
    /// Program and arguments of the agent.
    pub agent_command: Vec<OsString>,
    /// The process that must live: the launcher. None: whoever is the parent
    /// when [`run`] begins. A launcher gives its own id, so that its death before
    /// that moment is noticed too.
    pub parent: Option<u32>,
    /// Starts of the agent after the first one. Forgiven after
    /// [`KeeperOptions::stable_after`]. Default 10.
    pub max_restarts: u32,
    /// Delay before the first new start; doubles. Default 50 ms.
    pub restart_backoff: Duration,
    /// Largest delay before a new start. Default 5 s.
    pub restart_backoff_max: Duration,
    /// An agent that lived this long has its restarts forgiven. Default 60 s.
    pub stable_after: Duration,
    /// From SIGTERM to SIGKILL for the agent. Default 5 s.
    pub stop_timeout: Duration,
    /// Descriptors kept at most; the limit of the process is raised as far as it
    /// goes and may be lower. Default 65,536.
    pub descriptors_max: usize,
}

impl KeeperOptions {
    /// The defaults for this agent.
    pub fn new(agent_command: Vec<OsString>) -> KeeperOptions {
        KeeperOptions {
            agent_command,
            parent: None,
            max_restarts: 10,
            restart_backoff: Duration::from_millis(50),
            restart_backoff_max: Duration::from_secs(5),
            stable_after: Duration::from_secs(60),
            stop_timeout: Duration::from_secs(5),
            descriptors_max: 65_536,
        }
    }
}

/// Why a keeper ended in good order. In each case its exit status is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitReason {
    /// The agent ended with status 0.
    AgentDone,
    /// SIGTERM came; the agent was ended.
    Terminated,
    /// The parent is gone; the agent was ended.
    ParentGone,
}

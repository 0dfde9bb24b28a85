//! The keeper's loop: start, keep, hand over, start again.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::datagrams::{Parcel, receive, send};
use crate::process::{self, Agent, Caught};
use crate::wire::{Answer, BATCH_MAX, Status, Wish, parse_wish, write_answer};
use crate::{ExitReason, KeeperOptions};

/// Descriptors that the keeper needs for itself.
const OWN_DESCRIPTORS: usize = 64;
/// Datagrams handled before the other sources are looked at.
const DATAGRAMS_IN_A_ROW: usize = 32;
/// So often that is repeated for an agent that has ended: more than a socket
/// holds.
const LAST_ROUNDS: usize = 64;

/// What ended a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Woken {
    /// SIGTERM.
    Terminate,
    /// The parent has ended.
    ParentGone,
    /// The agent has ended.
    AgentEnded,
    /// The time is over.
    Time,
}

struct Keeper {
    options: KeeperOptions,
    termination: Caught,
    /// None once its end has been noticed.
    parent: Option<OwnedFd>,
    kept: BTreeMap<String, OwnedFd>,
    kept_max: usize,
}

/// Runs the agent until it ends with status 0, SIGTERM comes or the parent
/// ends; then `last`, which SIGTERM does not end: the kernel sends one for every
/// thread of the parent that dies, and `last` may be about what the parent left.
/// Blocks; call it in a process that has no other thread.
///
/// # Errors
/// [`Code::CommandFailed`] if the agent cannot be started;
/// [`Code::RestartsExhausted`] if it died more often than `max_restarts`;
/// [`Code::Internal`] if the kernel refuses what the keeper needs.
pub fn run(options: KeeperOptions, last: impl FnOnce()) -> Result<ExitReason, Error> {
    // Held until the end, also when `keep` has let go of its own.
    let _deaf = Caught::catch(libc::SIGTERM).map_err(kernel)?;
    let ended = keep(options);
    last();
    ended
}

fn kernel(error: std::io::Error) -> Error {
    Error::internal(format!("keeper: {error}"))
}

fn keep(options: KeeperOptions) -> Result<ExitReason, Error> {
    let termination = Caught::catch(libc::SIGTERM).map_err(kernel)?;
    let Some(parent) = process::watch_parent(options.parent).map_err(kernel)? else {
        return Ok(ExitReason::ParentGone);
    };
    let limit = process::raise_descriptor_limit().saturating_sub(OWN_DESCRIPTORS);
    let kept_max = options.descriptors_max.min(limit);
    Keeper {
        options,
        termination,
        parent: Some(parent),
        kept: BTreeMap::new(),
        kept_max,
    }
    .run()
}

impl Keeper {
    fn run(mut self) -> Result<ExitReason, Error> {
        let (mut restarts, mut in_a_row) = (0u32, 0u32);
        loop {
            let begin = Instant::now();
            let mut agent = process::start(&self.options.agent_command, restarts)
                .map_err(|error| self.command_failed(&error))?;
            tracing::info!(pid = agent.child.id(), restarts, "agent started");
            match self.wait(Some(&mut agent), None)? {
                Woken::Terminate => return self.stop(agent, ExitReason::Terminated),
                Woken::ParentGone => return self.stop(agent, ExitReason::ParentGone),
                Woken::AgentEnded | Woken::Time => {}
            }
            let status = agent
                .child
                .wait()
                .map_err(|e| Error::internal(format!("wait: {e}")))?;
            if status.success() {
                return Ok(ExitReason::AgentDone);
            }
            if begin.elapsed() >= self.options.stable_after {
                in_a_row = 0;
            }
            tracing::warn!(%status, in_a_row, "agent died");
            if in_a_row >= self.options.max_restarts {
                return Err(exhausted(status, in_a_row));
            }
            let delay = backoff(&self.options, in_a_row);
            in_a_row += 1;
            restarts = restarts.saturating_add(1);
            match self.wait(None, Some(Instant::now() + delay))? {
                Woken::Terminate => return Ok(ExitReason::Terminated),
                Woken::ParentGone => return Ok(ExitReason::ParentGone),
                Woken::AgentEnded | Woken::Time => {}
            }
        }
    }

    /// Ends the agent: asks, waits within the bound, insists.
    fn stop(&mut self, mut agent: Agent, reason: ExitReason) -> Result<ExitReason, Error> {
        agent.signal(Signal::TERM);
        self.parent = None;
        let end = Instant::now() + self.options.stop_timeout;
        loop {
            match self.wait(Some(&mut agent), Some(end))? {
                Woken::AgentEnded => break,
                Woken::Time => {
                    agent.signal(Signal::KILL);
                    break;
                }
                // It is ending already.
                Woken::Terminate | Woken::ParentGone => {}
            }
        }
        // After SIGKILL the kernel ends it: not a wait for the agent's goodwill.
        agent
            .child
            .wait()
            .map_err(|error| Error::internal(format!("wait: {error}")))?;
        Ok(reason)
    }

    /// Serves the agent until something else happens.
    fn wait(
        &mut self,
        mut agent: Option<&mut Agent>,
        end: Option<Instant>,
    ) -> Result<Woken, Error> {
        loop {
            let (mut terminate, mut parent, mut ended, mut spoke) = (false, false, false, false);
            {
                let input = PollFlags::IN;
                // Without a parent its place is held and not looked at.
                let parent_or_any = self.parent.as_ref().unwrap_or(&self.termination.descriptor);
                let mut sources = vec![
                    PollFd::new(&self.termination.descriptor, input),
                    PollFd::new(parent_or_any, input),
                ];
                if let Some(agent) = agent.as_deref() {
                    sources.push(PollFd::new(&agent.pidfd, input));
                    sources.extend(agent.line.as_ref().map(|line| PollFd::new(line, input)));
                }
                let left = end.map(|end| end.saturating_duration_since(Instant::now()));
                match poll(&mut sources, left.map(timespec).as_ref()) {
                    Ok(0) | Err(Errno::INTR) => {}
                    Ok(_) => {
                        let ready = |at: usize| {
                            sources
                                .get(at)
                                .is_some_and(|source| !source.revents().is_empty())
                        };
                        (terminate, parent, ended, spoke) = (
                            ready(0),
                            self.parent.is_some() && ready(1),
                            ready(2),
                            ready(3),
                        );
                    }
                    Err(error) => return Err(Error::internal(format!("poll: {error}"))),
                }
            }
            // What the agent left before it died is kept first.
            if let Some(agent) = agent.as_deref_mut().filter(|_| spoke || ended) {
                let rounds = if ended { LAST_ROUNDS } else { 1 };
                (0..rounds).take_while(|_| self.serve(agent)).for_each(drop);
            }
            if terminate {
                // Read, so that the next wait sees only a new one.
                let _ = rustix::io::read(&self.termination.descriptor, &mut [0; 128]);
                return Ok(Woken::Terminate);
            }
            match (parent, ended) {
                (_, true) => return Ok(Woken::AgentEnded),
                (true, _) => return Ok(Woken::ParentGone),
                _ => {}
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(Woken::Time);
            }
        }
    }

    /// Handles what the agent has sent; true if there may be more.
    fn serve(&mut self, agent: &mut Agent) -> bool {
        for _ in 0..DATAGRAMS_IN_A_ROW {
            let Some(line) = agent.line.as_ref() else {
                return false;
            };
            match receive(line.as_fd()) {
                Ok(Some(parcel)) => self.grant(line.as_fd(), parcel),
                Err(Errno::AGAIN) => return false,
                Ok(None) | Err(_) => agent.line = None,
            }
        }
        true
    }

    /// Answers one datagram. One that cannot be understood has no answer.
    fn grant(&mut self, line: BorrowedFd<'_>, parcel: Parcel) {
        let Ok((id, wish)) = parse_wish(&parcel.bytes) else {
            tracing::warn!(
                bytes = parcel.bytes.len(),
                "the agent sent something unknown"
            );
            return;
        };
        let answer = match wish {
            Wish::Keep(tag) => Answer::Done(self.keep(tag, parcel)),
            Wish::Drop(tag) => Answer::Done(match self.kept.remove(&tag) {
                Some(_) => Status::Done,
                None => Status::Unknown,
            }),
            Wish::Adopt(from) => return self.hand_over(line, id, from),
        };
        if let Err(error) = send(line, &write_answer(id, &answer), &[]) {
            tracing::warn!(%error, "the agent does not take its answer");
        }
    }

    fn keep(&mut self, tag: String, mut parcel: Parcel) -> Status {
        let full = self.kept.len() >= self.kept_max && !self.kept.contains_key(&tag);
        match (parcel.descriptors.pop(), parcel.descriptors.is_empty()) {
            _ if full => Status::Full,
            // The kernel dropped the descriptor: no room in this process.
            (None, _) if parcel.cut => Status::Full,
            (Some(descriptor), true) if !parcel.cut => {
                self.kept.insert(tag, descriptor);
                Status::Done
            }
            _ => Status::Descriptor,
        }
    }

    fn hand_over(&self, line: BorrowedFd<'_>, id: u32, from: u32) {
        let batch = self.kept.iter().skip(from as usize).take(BATCH_MAX);
        let (tags, descriptors): (Vec<_>, Vec<_>) = batch
            .map(|(tag, descriptor)| (tag.clone(), descriptor.as_fd()))
            .unzip();
        let total = u32::try_from(self.kept.len()).unwrap_or(u32::MAX);
        let answer = write_answer(id, &Answer::Batch { total, tags });
        if let Err(error) = send(line, &answer, &descriptors) {
            tracing::warn!(%error, "the agent does not take its descriptors");
        }
    }

    fn command_failed(&self, error: &std::io::Error) -> Error {
        let name = self.options.agent_command.first();
        let name = name.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Error::new(
            Code::CommandFailed,
            Entity::File(name),
            format!("the agent cannot be started: {error}"),
            "check the path and its permissions",
        )
    }
}

fn exhausted(status: ExitStatus, restarts: u32) -> Error {
    Error::new(
        Code::RestartsExhausted,
        Entity::Call,
        format!(
            "the agent died {}, at last with {status} (max_restarts)",
            outlive_base::count(restarts + 1, "time")
        ),
        "look into the agent's log for the reason",
    )
}

/// The delay before restart number `in_a_row` (from 0).
fn backoff(options: &KeeperOptions, in_a_row: u32) -> Duration {
    let factor = 1u32 << in_a_row.min(20);
    options
        .restart_backoff
        .saturating_mul(factor)
        .min(options.restart_backoff_max)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: duration.subsec_nanos().into(),
    }
}

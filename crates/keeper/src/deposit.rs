//! The agent's side: leaving descriptors with the keeper and taking them back.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags};

use crate::datagrams::{Parcel, receive, send};
use crate::wire::{Answer, Status, TAG_BYTES_MAX, Wish, parse_answer, write_wish};
use crate::{AGENT_RESTARTS, KEEPER_FD};

/// Bound of every exchange with the keeper, which does nothing that takes time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The agent's line to its keeper. May be used from any thread, one call at a
/// time.
#[derive(Debug)]
pub struct Deposit {
    line: Mutex<Line>,
    restarts: u32,
}

#[derive(Debug)]
struct Line {
    socket: OwnedFd,
    next_id: u32,
}

impl Deposit {
    /// The line that the keeper left in the environment; None if this process
    /// was not started by a keeper.
    ///
    /// # Errors
    /// [`Code::Config`] if the variable holds no such socket;
    /// [`Code::InvalidArgument`] if the line was taken before.
    pub fn from_env() -> Result<Option<Deposit>, Error> {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let Some(text) = std::env::var_os(KEEPER_FD) else {
            return Ok(None);
        };
        let bad = |reason: &str| {
            Error::new(
                Code::Config,
                Entity::Option(KEEPER_FD.into()),
                reason,
                "let a keeper start the agent, or unset the variable",
            )
        };
        let number: Option<RawFd> = text.to_str().and_then(|text| text.parse().ok());
        let number = number
            .filter(|n| *n > 2)
            .ok_or_else(|| bad("is no descriptor"))?;
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Call,
                "the line to the keeper was taken before",
                "keep the Deposit of the first call",
            ));
        }
        // SAFETY: the keeper made this descriptor for this process and nobody
        // else knows it: TAKEN lets only one owner come to be. If the variable
        // is wrong the checks below fail and the descriptor is released unused.
        let socket = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_setfd(socket, FdFlags::CLOEXEC).map_err(|_| bad("is not open"))?;
        if rustix::net::sockopt::socket_type(socket) != Ok(rustix::net::SocketType::SEQPACKET) {
            return Err(bad("is not the keeper's socket"));
        }
        // SAFETY: as above; it is open and of the keeper's kind.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        let restarts = std::env::var(AGENT_RESTARTS)
            .ok()
            .and_then(|text| text.parse().ok());
        let line = Mutex::new(Line { socket, next_id: 1 });
        Ok(Some(Deposit {
            line,
            restarts: restarts.unwrap_or(0),
        }))
    }

    /// How often the agent was started again; 0 in its first life.
    pub fn agent_restarts(&self) -> u32 {
        self.restarts
    }

    /// Leaves a copy of a descriptor with the keeper under a tag of 1 to
    /// [`TAG_BYTES_MAX`] bytes. What was kept under this tag before is replaced.
    /// When it returns the descriptor is kept.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for a bad tag; [`Code::MemoryBudget`] if the
    /// keeper has no room for another descriptor; [`Code::AgentUnreachable`] or
    /// [`Code::AgentTimeout`] if it does not answer.
    pub fn keep(&self, tag: &str, descriptor: BorrowedFd<'_>) -> Result<(), Error> {
        let wish = Wish::Keep(check_tag(tag)?);
        let (answer, _) = self.ask(&wish, &[descriptor])?;
        match answer {
            Answer::Done(Status::Done) => Ok(()),
            Answer::Done(Status::Full) => Err(Error::new(
                Code::MemoryBudget,
                Entity::Call,
                "the keeper can hold no more descriptors",
                "raise the hard limit of open files (ulimit -Hn)",
            )),
            _ => Err(strange()),
        }
    }

    /// The keeper gives up what it keeps under this tag.
    ///
    /// # Errors
    /// [`Code::NotFound`] if there is nothing; else as [`Deposit::keep`].
    pub fn drop(&self, tag: &str) -> Result<(), Error> {
        let wish = Wish::Drop(check_tag(tag)?);
        match self.ask(&wish, &[])?.0 {
            Answer::Done(Status::Done) => Ok(()),
            Answer::Done(Status::Unknown) => Err(Error::new(
                Code::NotFound,
                Entity::File(tag.into()),
                "the keeper keeps nothing under this tag",
                "nothing is to be done",
            )),
            _ => Err(strange()),
        }
    }

    /// Copies of all kept descriptors with their tags, in the order of the tags.
    /// The keeper goes on keeping them. They are close-on-exec.
    ///
    /// # Errors
    /// As [`Deposit::keep`]; [`Code::MemoryBudget`] if this process cannot hold
    /// so many descriptors.
    pub fn adopt(&self) -> Result<Vec<(String, OwnedFd)>, Error> {
        let mut adopted = Vec::new();
        loop {
            let from = u32::try_from(adopted.len()).map_err(|_| strange())?;
            let (answer, parcel) = self.ask(&Wish::Adopt(from), &[])?;
            let Answer::Batch { total, tags } = answer else {
                return Err(strange());
            };
            if tags.len() != parcel.descriptors.len() || parcel.cut {
                return Err(Error::new(
                    Code::MemoryBudget,
                    Entity::Call,
                    "descriptors were lost on their way from the keeper",
                    "raise the limit of open files (ulimit -n)",
                ));
            }
            let empty = tags.is_empty();
            adopted.extend(tags.into_iter().zip(parcel.descriptors));
            if adopted.len() >= total as usize {
                return Ok(adopted);
            }
            if empty {
                return Err(strange());
            }
        }
    }

    /// One question, one answer. Answers to questions that were given up are
    /// skipped.
    fn ask(&self, wish: &Wish, with: &[BorrowedFd<'_>]) -> Result<(Answer, Parcel), Error> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let id = line.next_id;
        line.next_id = id.wrapping_add(1);
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let socket = line.socket.as_fd();
        let bytes = write_wish(id, wish);
        loop {
            match send(socket, &bytes, with) {
                Ok(()) => break,
                Err(Errno::AGAIN) => wait(socket, PollFlags::OUT, deadline)?,
                Err(error) => return Err(gone(error)),
            }
        }
        loop {
            let parcel = match receive(socket) {
                Ok(Some(parcel)) => parcel,
                Ok(None) => return Err(gone(Errno::PIPE)),
                Err(Errno::AGAIN) => {
                    wait(socket, PollFlags::IN, deadline)?;
                    continue;
                }
                Err(error) => return Err(gone(error)),
            };
            let (answered, answer) = parse_answer(&parcel.bytes).map_err(|_| strange())?;
            if answered == id {
                return Ok((answer, parcel));
            }
        }
    }
}

fn wait(socket: BorrowedFd<'_>, flags: PollFlags, deadline: Instant) -> Result<(), Error> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Error::new(
            Code::AgentTimeout,
            Entity::Call,
            format!(
                "the keeper did not answer within {} s",
                ANSWER_TIMEOUT.as_secs()
            ),
            "check the keeper's process",
        ));
    }
    let timeout = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: left.subsec_nanos().into(),
    };
    match poll(
        &mut [PollFd::from_borrowed_fd(socket, flags)],
        Some(&timeout),
    ) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(gone(error)),
    }
}

fn check_tag(tag: &str) -> Result<String, Error> {
    if (1..=TAG_BYTES_MAX).contains(&tag.len()) {
        return Ok(tag.to_owned());
    }
    Err(Error::new(
        Code::InvalidArgument,
        Entity::Call,
        format!("a tag of {} bytes", tag.len()),
        format!("use 1 to {TAG_BYTES_MAX} bytes"),
    ))
}

fn gone(error: Errno) -> Error {
    Error::new(
        Code::AgentUnreachable,
        Entity::Call,
        format!("the keeper is gone: {error}"),
        "the agent must end; the launcher replaces the node",
    )
}

fn strange() -> Error {
    Error::internal("the keeper answered something that does not belong here")
}

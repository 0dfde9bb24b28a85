//! The connection to the node's agent: requests with a bound, and a new connection
//! when the agent was started anew.
//!
//! Invariant: an answer is matched to its request by the sequence number; answers
//! that came too late are dropped.

use core::time::Duration;
use outlive_base::{Code, Entity, Error, Incarnation, NodeId, Rank, Result, Version};
use outlive_capture::control::CONTROL_ABI;
use outlive_capture::ipc::{Connection, IpcError, ToAgent, ToRank};
use rustix::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use crate::environment::RankOf;
use crate::traced;

const RETRY_MIN: Duration = Duration::from_millis(2);
const RETRY_MAX: Duration = Duration::from_millis(50);

/// What the agent told at the last Hello.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Welcome {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) restore: Option<Version>,
}

#[derive(Debug)]
pub(crate) struct Link {
    path: PathBuf,
    place: RankOf,
    timeout: Duration,
    /// The process that opened it.
    pid: u32,
    connection: Option<Connection>,
    sequence: u32,
    pub(crate) welcome: Welcome,
    /// The control block in use, to recognise it after a new Hello.
    control: Option<OwnedFd>,
    /// Another control block than before came with a new Hello.
    replaced: bool,
    /// A notice that could not be sent; the next Hello is followed by it.
    unsent: Option<ToAgent>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// Why one attempt failed, and whether another makes sense.
enum Attempt {
    Retry(String),
    Final(Error),
}

impl Link {
    /// Connects and says Hello, within the timeout.
    pub(crate) fn open(
        path: PathBuf,
        place: RankOf,
        incarnation: u32,
        timeout: Duration,
    ) -> Result<Link> {
        let welcome = Welcome {
            node: NodeId(0),
            incarnation: Incarnation(incarnation),
            restore: None,
        };
        let mut link = Link {
            path,
            place,
            timeout,
            pid: std::process::id(),
            connection: None,
            sequence: 0,
            welcome,
            control: None,
            replaced: false,
            unsent: None,
        };
        link.connect(Instant::now() + timeout)?;
        link.replaced = false;
        Ok(link)
    }

    /// The descriptor of the control block in use.
    pub(crate) fn control(&self) -> Option<&OwnedFd> {
        self.control.as_ref()
    }

    /// True once after a Hello brought another control block.
    pub(crate) fn take_replaced(&mut self) -> bool {
        core::mem::take(&mut self.replaced)
    }

    fn bound(&self) -> String {
        format!("{} ms (timeout_ms)", self.timeout.as_millis())
    }

    fn unreachable(&self, reason: &str) -> Error {
        Error::new(
            Code::AgentUnreachable,
            Entity::File(self.path.display().to_string()),
            format!("{reason}, for {}", self.bound()),
            "see outlive status and the agent's log; the program may go on unprotected",
        )
    }

    fn silent(&self, request: &ToAgent) -> Error {
        Error::new(
            Code::AgentTimeout,
            Entity::Node(self.welcome.node.0),
            format!("no answer to {} within {}", name(request), self.bound()),
            "see the agent's log, or raise timeout_ms",
        )
    }

    fn connect(&mut self, deadline: Instant) -> Result<()> {
        let mut pause = RETRY_MIN;
        loop {
            let reason = match self.attempt(deadline) {
                Ok(()) => return Ok(()),
                Err(Attempt::Final(error)) => return Err(error),
                Err(Attempt::Retry(reason)) => reason,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.unreachable(&reason));
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    fn attempt(&mut self, deadline: Instant) -> core::result::Result<(), Attempt> {
        let retry = |error: IpcError| Attempt::Retry(error.to_string());
        let connection =
            Connection::connect(&self.path, Some(deadline)).map_err(|error| match error {
                IpcError::PathTooLong { .. } | IpcError::Foreign(_) => {
                    Attempt::Final(self.unreachable(&error.to_string()))
                }
                error => retry(error),
            })?;
        if let Ok(agent) = connection.peer() {
            traced::by(agent.pid);
        }
        let hello = ToAgent::Hello {
            abi: CONTROL_ABI,
            rank: Rank(self.place.rank),
            ranks: self.place.ranks,
            pid: std::process::id(),
            incarnation: self.welcome.incarnation,
        };
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        connection
            .send(sequence, &hello, None, Some(deadline))
            .map_err(retry)?;
        let received = connection.recv::<ToRank>(Some(deadline)).map_err(retry)?;
        let (welcome, fd) = match (received.message, received.fd) {
            (
                ToRank::Welcome {
                    node,
                    incarnation,
                    restore,
                },
                Some(fd),
            ) => (
                Welcome {
                    node,
                    incarnation,
                    restore,
                },
                fd,
            ),
            (ToRank::Error { error }, _) => return Err(Attempt::Final(error)),
            _ => {
                let error = self.unreachable("the agent does not greet as agents do");
                return Err(Attempt::Final(error));
            }
        };
        let expected = self.welcome.incarnation.0;
        if expected != 0 && welcome.incarnation.0 != expected {
            let reason = format!(
                "the agent serves start {}, this is {expected}",
                welcome.incarnation.0
            );
            return Err(Attempt::Final(self.unreachable(&reason)));
        }
        if !self.control.as_ref().is_some_and(|old| same_file(old, &fd)) {
            self.control = Some(fd);
            self.replaced = true;
        }
        self.welcome = welcome;
        if let Some(notice) = &self.unsent {
            connection
                .send(0, notice, None, Some(deadline))
                .map_err(retry)?;
            self.unsent = None;
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Ends the connection, for the agent too: a forked child may still hold a copy of the
    /// descriptor. Such a child itself only gives up its copy.
    fn hang_up(&mut self) {
        if let Some(connection) = self.connection.take()
            && std::process::id() == self.pid
        {
            connection.hang_up();
        }
    }

    /// Connects anew if the connection is broken: one attempt, for the next call will
    /// be another.
    pub(crate) fn revive(&mut self) -> Result<()> {
        if self.connection.as_ref().is_some_and(Connection::is_whole) {
            return Ok(());
        }
        self.hang_up();
        match self.attempt(Instant::now() + self.timeout) {
            Ok(()) => Ok(()),
            Err(Attempt::Final(error)) => Err(error),
            Err(Attempt::Retry(reason)) => Err(self.unreachable(&reason)),
        }
    }

    /// Asks and waits for the answer, at most `within` (the job's timeout if
    /// `None`). Connects anew, and asks again, if the agent was started anew. An
    /// Error of the agent's is an error here.
    pub(crate) fn request(
        &mut self,
        request: &ToAgent,
        within: Option<Duration>,
    ) -> Result<(ToRank, Option<OwnedFd>)> {
        let deadline = Instant::now() + within.unwrap_or(self.timeout);
        loop {
            if self.connection.is_none() {
                self.connect(deadline)?;
            }
            match self.exchange(request, deadline) {
                Ok((ToRank::Error { error }, _)) => return Err(error),
                Ok(answer) => return Ok(answer),
                Err(IpcError::TimedOut) => return Err(self.silent(request)),
                // Broken, or bytes that are no message: start over.
                Err(_) => self.hang_up(),
            }
            if Instant::now() >= deadline {
                return Err(self.silent(request));
            }
            // An agent that hangs up at once must not make this a busy loop.
            std::thread::sleep(RETRY_MIN);
        }
    }

    fn exchange(
        &mut self,
        request: &ToAgent,
        deadline: Instant,
    ) -> core::result::Result<(ToRank, Option<OwnedFd>), IpcError> {
        let connection = self.connection.as_ref().ok_or(IpcError::Closed)?;
        self.sequence = self.sequence.wrapping_add(1);
        connection.send(self.sequence, request, None, Some(deadline))?;
        loop {
            let received = connection.recv::<ToRank>(Some(deadline))?;
            if received.sequence == self.sequence {
                return Ok((received.message, received.fd));
            }
        }
    }

    /// Tells the agent something that has no answer. If that is not possible within
    /// the timeout, it is told after the next Hello; only the last such notice is
    /// kept, and slabs tell the rest by themselves.
    pub(crate) fn notify(&mut self, notice: ToAgent) -> Result<()> {
        let deadline = Instant::now() + self.timeout;
        for _ in 0..2 {
            if self.connection.is_none() {
                self.unsent = Some(notice.clone());
                // The notice follows the greeting.
                return self.connect(deadline);
            }
            if let Some(connection) = &self.connection {
                match connection.send(0, &notice, None, Some(deadline)) {
                    Ok(()) => return Ok(()),
                    Err(IpcError::TimedOut) => return Err(self.silent(&notice)),
                    Err(_) => self.hang_up(),
                }
            }
        }
        Err(self.silent(&notice))
    }
}

fn same_file(one: &OwnedFd, other: &OwnedFd) -> bool {
    let key = |fd: &OwnedFd| {
        rustix::fs::fstat(fd.as_fd())
            .map(|s| (s.st_dev, s.st_ino))
            .ok()
    };
    key(one).is_some() && key(one) == key(other)
}

fn name(request: &ToAgent) -> &'static str {
    match request {
        ToAgent::Hello { .. } => "HELLO",
        ToAgent::Slab { .. } => "SLAB",
        ToAgent::Captured { .. } => "CAPTURED",
        ToAgent::Failed { .. } => "FAILED",
        ToAgent::Wait { .. } => "WAIT",
        ToAgent::Restore => "RESTORE",
        ToAgent::Restored { .. } => "RESTORED",
        ToAgent::Route { .. } => "ROUTE",
        ToAgent::Inject { .. } => "INJECT",
        ToAgent::Force { .. } => "FORCE",
        ToAgent::Close => "CLOSE",
    }
}

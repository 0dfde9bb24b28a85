//! The thread that listens to the ranks of this node.
//!
//! It accepts connections of the same user only, reads datagrams and watches the
//! ranks' processes through pidfds, so that an ended rank is known at once even if
//! a forked child still holds its socket. It decides nothing: everything becomes an
//! [`IpcEvent`] for the agent's main loop, which also sends the answers.
//!
//! Invariants: a token is never used twice; after the [`IpcEvent::Gone`] of an ended
//! process nothing more comes for its token; one rank cannot make another's datagrams wait for longer
//! than one decoding.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::SendTimeoutError;
use outlive_base::{Code, Entity, Error, Result};
use outlive_capture::ipc::{Connection as Socket, IpcError, Listener, ToAgent};
use outlive_copies::reports::Reports;
use rustix::event::epoll;
use rustix::process::{Pid, PidfdFlags};

/// Most connections at once: a bound against a program that leaks them.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Between two looks, while there is no room for an event, at whether all is over.
const ROOM_LOOK: Duration = Duration::from_millis(50);
/// Pause after a caller could not be taken, for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const FIRST_TOKEN: u64 = 2;
/// Marks the pidfd of a token in epoll's data.
const EXIT: u64 = 1 << 63;

/// What happened among the ranks.
#[derive(Debug)]
pub enum IpcEvent {
    /// A process connected; answers go to `socket`.
    Connected {
        /// Names the connection from now on.
        token: u64,
        /// For answers.
        socket: Arc<Socket>,
        /// The process, as the kernel knows it.
        pid: u32,
        /// Readable once the process has ended; `None` if the kernel gives none.
        pidfd: Option<Arc<OwnedFd>>,
    },
    /// A datagram.
    Message {
        /// The connection.
        token: u64,
        /// Comes back with the answer.
        sequence: u32,
        /// What it says.
        message: ToAgent,
    },
    /// The connection is closed (its process may follow), or its process has ended.
    Gone {
        /// The connection.
        token: u64,
        /// True if the process has ended; false if only the socket closed.
        exited: bool,
    },
    /// Something went wrong that the operator should know.
    Trouble(Error),
}

enum Next {
    Message(u32, ToAgent),
    Nothing,
    End,
}

struct Connection {
    socket: Arc<Socket>,
    pidfd: Option<Arc<OwnedFd>>,
}

/// The listening side. Dropping it ends the thread.
pub struct IpcServer {
    _wake: OwnedFd,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl IpcServer {
    /// Listens at `path` (replacing a stale socket) and reports to `events`.
    pub fn start(path: &Path, events: Reports<IpcEvent>) -> Result<IpcServer> {
        let listener = Listener::bind(path).map_err(|error| cannot_listen(path, &error))?;
        let failed = |error: rustix::io::Errno| Error::io(path, "watch the socket", &error.into());
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let (wake, woken) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(failed)?;
        watch(&poll, listener.as_fd(), LISTENER).map_err(failed)?;
        watch(&poll, wake.as_fd(), WAKE).map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("outlive-ranks".into())
            .spawn(move || {
                let mut serve = Serve {
                    poll,
                    listener,
                    wake,
                    events,
                    connections: BTreeMap::new(),
                    next: FIRST_TOKEN,
                    troubled: false,
                };
                while serve.turn() {}
            })
            .map_err(|error| Error::io(path, "start the thread for ranks", &error))?;
        Ok(IpcServer {
            _wake: woken,
            thread: Some(thread),
        })
    }
}

impl Drop for IpcServer {
    fn drop(&mut self) {
        // Closing the write end wakes the thread with a hang-up.
        let (read, write) = match rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) {
            Ok(pair) => pair,
            Err(_) => return,
        };
        drop(read);
        drop(std::mem::replace(&mut self._wake, write));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(poll: &OwnedFd, fd: BorrowedFd<'_>, data: u64) -> rustix::io::Result<()> {
    epoll::add(
        poll,
        fd,
        epoll::EventData::new_u64(data),
        epoll::EventFlags::IN,
    )
}

struct Serve {
    poll: OwnedFd,
    listener: Listener,
    wake: OwnedFd,
    events: Reports<IpcEvent>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// The last caller could not be taken, and that was told.
    troubled: bool,
}

impl Serve {
    /// Handles what is ready; false when the thread should end.
    fn turn(&mut self) -> bool {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        match epoll::wait(
            &self.poll,
            rustix::buffer::spare_capacity(&mut events),
            None,
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                let error = Error::io("epoll", "wait for ranks", &error.into());
                self.tell(IpcEvent::Trouble(error));
                return false;
            }
        }
        for event in events {
            let alive = match event.data.u64() {
                WAKE => false,
                LISTENER => self.accept(),
                data if data & EXIT != 0 => self.exited(data & !EXIT),
                token => self.read(token),
            };
            if !alive {
                return false;
            }
        }
        true
    }

    /// Waits for room, so that messages wait in the ranks' sockets; false at the end.
    fn tell(&self, mut event: IpcEvent) -> bool {
        loop {
            match self.events.send_timeout(event, ROOM_LOOK) {
                Ok(()) => return true,
                Err(SendTimeoutError::Disconnected(_)) => return false,
                Err(SendTimeoutError::Timeout(_)) if self.is_over() => return false,
                Err(SendTimeoutError::Timeout(back)) => event = back,
            }
        }
    }

    /// True if the server was dropped: the write end of the pipe is closed.
    fn is_over(&self) -> bool {
        is_readable(&self.wake)
    }

    fn accept(&mut self) -> bool {
        let (socket, peer) = match self.listener.accept(None) {
            Ok(accepted) => accepted,
            Err(IpcError::TimedOut | IpcError::Closed | IpcError::Foreign(_)) => return true,
            Err(error) => {
                // It is there still, and would be met again at once.
                std::thread::sleep(ACCEPT_PAUSE);
                if std::mem::replace(&mut self.troubled, true) {
                    return true;
                }
                let error = Error::new(
                    Code::AgentUnreachable,
                    Entity::Call,
                    format!("a rank could not connect: {error}"),
                    "check the limit of open files of the agent (ulimit -n)",
                );
                return self.tell(IpcEvent::Trouble(error));
            }
        };
        if self.connections.len() >= CONNECTIONS_MAX {
            if std::mem::replace(&mut self.troubled, true) {
                return true;
            }
            return self.tell(IpcEvent::Trouble(Error::new(
                Code::AgentUnreachable,
                Entity::Call,
                format!("{CONNECTIONS_MAX} processes are connected; another was turned away"),
                "look for a program that opens the job again and again without closing it",
            )));
        }
        self.troubled = false;
        let token = self.next;
        self.next += 1;
        let pid = peer.pid.max(0) as u32;
        let pidfd = socket.peer_pidfd().or_else(|| {
            let pid = Pid::from_raw(peer.pid)?;
            rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
        });
        let pidfd = pidfd.map(Arc::new);
        if watch(&self.poll, socket.as_fd(), token).is_err() {
            return true;
        }
        if let Some(pidfd) = &pidfd {
            let _ = watch(&self.poll, pidfd.as_fd(), token | EXIT);
        }
        let socket = Arc::new(socket);
        self.connections.insert(
            token,
            Connection {
                socket: Arc::clone(&socket),
                pidfd: pidfd.clone(),
            },
        );
        self.tell(IpcEvent::Connected {
            token,
            socket,
            pid,
            pidfd,
        })
    }

    fn read(&mut self, token: u64) -> bool {
        match self.next_message(token) {
            Next::Message(sequence, message) => self.tell(IpcEvent::Message {
                token,
                sequence,
                message,
            }),
            Next::Nothing => true,
            Next::End => {
                let exited = self.connections.get(&token).is_some_and(has_exited);
                if exited {
                    self.gone(token)
                } else {
                    self.hung_up(token)
                }
            }
        }
    }

    fn next_message(&self, token: u64) -> Next {
        let Some(connection) = self.connections.get(&token) else {
            return Next::Nothing;
        };
        match connection.socket.recv::<ToAgent>(None) {
            Ok(received) => Next::Message(received.sequence, received.message),
            Err(IpcError::TimedOut) => Next::Nothing,
            // Closed, or a process that does not speak the protocol: cut off.
            Err(_) => Next::End,
        }
    }

    fn exited(&mut self, token: u64) -> bool {
        // What the rank said before it ended comes first: drain its socket.
        while let Next::Message(sequence, message) = self.next_message(token) {
            if !self.tell(IpcEvent::Message {
                token,
                sequence,
                message,
            }) {
                return false;
            }
        }
        self.gone(token)
    }

    /// The socket is closed and the process lives: its end is still watched for.
    fn hung_up(&mut self, token: u64) -> bool {
        let Some(connection) = self.connections.get(&token) else {
            return true;
        };
        if connection.pidfd.is_none() {
            return self.gone(token);
        }
        let _ = epoll::delete(&self.poll, connection.socket.as_fd());
        self.tell(IpcEvent::Gone {
            token,
            exited: false,
        })
    }

    /// The process has ended, or nothing is left to watch of it.
    fn gone(&mut self, token: u64) -> bool {
        let Some(connection) = self.connections.remove(&token) else {
            return true;
        };
        let _ = epoll::delete(&self.poll, connection.socket.as_fd());
        if let Some(pidfd) = &connection.pidfd {
            let _ = epoll::delete(&self.poll, pidfd.as_fd());
        }
        self.tell(IpcEvent::Gone {
            token,
            exited: true,
        })
    }
}

/// True if the connection's process has ended (its pidfd is readable).
fn has_exited(connection: &Connection) -> bool {
    connection.pidfd.as_deref().is_some_and(is_readable)
}

/// True if a pidfd says that its process has ended, or a pipe that it was closed.
pub(crate) fn is_readable(fd: &OwnedFd) -> bool {
    let mut poll = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut poll, Some(&now)), Ok(1..))
}

fn cannot_listen(path: &Path, error: &IpcError) -> Error {
    Error::new(
        Code::AgentUnreachable,
        Entity::File(path.display().to_string()),
        format!("cannot listen for the ranks: {error}"),
        "set XDG_RUNTIME_DIR to a short private directory on a local file system",
    )
}

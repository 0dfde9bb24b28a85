//! The socket: datagrams with descriptors, deadlines by poll, peers of the same
//! user only. Every call returns by its deadline, whatever the other side and the
//! program's signals do (P5).

use core::mem::MaybeUninit;
use core::time::Duration;
use outlive_base::wire::WireError;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;
use thiserror::Error;

use outlive_base::ipc::{DATAGRAM_BYTES_MAX, Message, decode, encode};

/// Longest path of a Unix socket, in bytes.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Most descriptors in one datagram.
const DESCRIPTORS_MAX: usize = 2;
const BACKLOG: i32 = 1024;

/// Until when a call may wait; `None` for a poll without waiting.
pub type Deadline = Option<Instant>;

/// Why a datagram was not sent or received.
#[derive(Debug, Error)]
pub enum IpcError {
    /// The other side is gone.
    #[error("the connection is closed")]
    Closed,
    /// The deadline has passed.
    #[error("the deadline has passed")]
    TimedOut,
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The bytes are no message.
    #[error("not a message: {0}")]
    Wire(#[from] WireError),
    /// The path does not fit into a socket's address.
    #[error("socket path of {length} bytes, at most 107 are possible: {path}")]
    PathTooLong {
        /// The path.
        path: String,
        /// Its length in bytes.
        length: usize,
    },
    /// The directory of the socket belongs to or is open to others.
    #[error("directory {0} must belong to this user and be closed to others (mode 0700)")]
    NotPrivate(PathBuf),
    /// The peer is another user.
    #[error("the peer is user {0}, not ours")]
    Foreign(u32),
}

fn failed(doing: &'static str) -> impl FnOnce(Errno) -> IpcError {
    move |errno| match errno {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::SHUTDOWN => IpcError::Closed,
        errno => IpcError::Io {
            doing,
            source: errno.into(),
        },
    }
}

/// Waits until `fd` is ready for `flags`.
fn ready(fd: BorrowedFd<'_>, flags: PollFlags, deadline: Deadline) -> Result<(), IpcError> {
    loop {
        let left = deadline.map_or(Duration::ZERO, |deadline| {
            deadline.saturating_duration_since(Instant::now())
        });
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&timeout)) {
            Ok(0) if left.is_zero() => return Err(IpcError::TimedOut),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(failed("wait for a socket")(errno)),
        }
    }
}

fn address(path: &Path) -> Result<SocketAddrUnix, IpcError> {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_BYTES_MAX || path.as_os_str().as_bytes().contains(&0) {
        return Err(IpcError::PathTooLong {
            path: path.display().to_string(),
            length,
        });
    }
    SocketAddrUnix::new(path).map_err(failed("make a socket address"))
}

fn socket() -> Result<OwnedFd, IpcError> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(failed("create a socket"))
}

/// A datagram as it came.
#[derive(Debug)]
pub struct Received<M> {
    /// Its sequence number.
    pub sequence: u32,
    /// The message.
    pub message: M,
    /// The descriptor that came with it.
    pub fd: Option<OwnedFd>,
}

/// Who is at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Process id in this process's namespace; 0 if it lies outside.
    pub pid: i32,
    /// User id; always ours.
    pub uid: u32,
}

/// One end of a connection between a rank and its agent.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
}

impl Connection {
    /// Connects to an agent's socket and checks that it belongs to the same user.
    /// Does not wait for an agent to appear: that is the caller's loop.
    pub fn connect(path: &Path, deadline: Deadline) -> Result<Connection, IpcError> {
        let address = address(path)?;
        let socket = socket()?;
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                // The backlog is full; a Unix socket cannot be polled for that.
                Err(Errno::AGAIN) => {
                    if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
                        return Err(IpcError::TimedOut);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(errno) => {
                    return Err(IpcError::Io {
                        doing: "connect",
                        source: errno.into(),
                    });
                }
            }
        }
        let connection = Connection { socket };
        connection.peer()?;
        Ok(connection)
    }

    /// Two ends that are connected with each other.
    pub fn pair() -> Result<(Connection, Connection), IpcError> {
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(failed("create sockets"))?;
        Ok((Connection { socket: one }, Connection { socket: other }))
    }

    /// Who is at the other end; [`IpcError::Foreign`] if it is another user.
    pub fn peer(&self) -> Result<Peer, IpcError> {
        let (pid, uid) =
            credentials(self.socket.as_fd()).map_err(failed("ask for the peer's credentials"))?;
        if uid != rustix::process::geteuid().as_raw() {
            return Err(IpcError::Foreign(uid));
        }
        Ok(Peer { pid, uid })
    }

    /// The process at the other end as a descriptor, which no later process with the same
    /// number can be taken for; `None` before Linux 6.5.
    pub fn peer_pidfd(&self) -> Option<OwnedFd> {
        peer_pidfd(self.socket.as_fd())
    }

    /// True unless the other end has hung up: closed the socket, or ended.
    pub fn is_whole(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let gone = PollFlags::HUP | PollFlags::ERR;
        let mut fds = [PollFd::from_borrowed_fd(
            self.socket.as_fd(),
            PollFlags::empty(),
        )];
        poll(&mut fds, Some(&now)).is_err() || !fds[0].revents().intersects(gone)
    }

    /// Ends the connection for both ends at once, whoever else (a forked child) still
    /// holds a copy of the descriptor.
    pub fn hang_up(&self) {
        // Not connected any more is what was wanted.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Sends a message, with a descriptor if there is one.
    pub fn send<M: Message>(
        &self,
        sequence: u32,
        message: &M,
        fd: Option<BorrowedFd<'_>>,
        deadline: Deadline,
    ) -> Result<(), IpcError> {
        let datagram = encode(sequence, message);
        let fds: &[BorrowedFd<'_>] = fd.as_slice();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        loop {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(fds));
            }
            let sent = rustix::net::sendmsg(
                &self.socket,
                &[IoSlice::new(&datagram)],
                &mut control,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            );
            match sent {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => ready(self.socket.as_fd(), PollFlags::OUT, deadline)?,
                Err(errno) => return Err(failed("send")(errno)),
            }
        }
    }

    /// Receives the next message. A datagram that is no message of this kind is an
    /// error and consumed; descriptors beyond the first are closed.
    pub fn recv<M: Message>(&self, deadline: Deadline) -> Result<Received<M>, IpcError> {
        let mut datagram = [0u8; DATAGRAM_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = rustix::net::recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut datagram)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
            );
            let received = match received {
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    ready(self.socket.as_fd(), PollFlags::IN, deadline)?;
                    continue;
                }
                Err(errno) => return Err(failed("receive")(errno)),
            };
            let mut fd = None;
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = part {
                    for one in fds {
                        fd.get_or_insert(one);
                    }
                }
            }
            // No message is empty: an empty datagram is the end of the connection.
            if received.bytes == 0 {
                return Err(IpcError::Closed);
            }
            if received
                .flags
                .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
            {
                return Err(WireError::Value("datagram cut off").into());
            }
            let (sequence, message) = decode(&datagram[..received.bytes])?;
            return Ok(Received {
                sequence,
                message,
                fd,
            });
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<OwnedFd> for Connection {
    /// Takes over a connected SOCK_SEQPACKET socket.
    fn from(socket: OwnedFd) -> Connection {
        Connection { socket }
    }
}

/// An agent's listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
}

impl Listener {
    /// Binds at `path`: its directory is made with mode 0700 and must belong to this
    /// user alone; what a former agent left at the path is removed.
    pub fn bind(path: &Path) -> Result<Listener, IpcError> {
        let address = address(path)?;
        let directory = path
            .parent()
            .ok_or_else(|| IpcError::NotPrivate(path.into()))?;
        private_directory(directory)?;
        let socket = socket()?;
        match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed("remove a former socket")(errno)),
        }
        rustix::net::bind(&socket, &address).map_err(failed("bind"))?;
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(failed("chmod"))?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed("listen"))?;
        Ok(Listener { socket })
    }

    /// The next connection; one of another user is refused as [`IpcError::Foreign`].
    pub fn accept(&self, deadline: Deadline) -> Result<(Connection, Peer), IpcError> {
        loop {
            match rustix::net::accept_with(
                &self.socket,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            ) {
                Ok(socket) => {
                    let connection = Connection { socket };
                    let peer = connection.peer()?;
                    return Ok((connection, peer));
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => ready(self.socket.as_fd(), PollFlags::IN, deadline)?,
                Err(errno) => return Err(failed("accept")(errno)),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Process and user at the other end. By libc, because a process outside of our
/// namespace has number 0, which rustix's type for it cannot hold.
fn credentials(socket: BorrowedFd<'_>) -> Result<(i32, u32), Errno> {
    let mut found = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `found`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &mut length,
        )
    };
    if result == 0 && length as usize == size_of::<libc::ucred>() {
        Ok((found.pid, found.uid))
    } else {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }
}

/// The peer's pidfd (SO_PEERPIDFD), which rustix does not know.
fn peer_pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    use std::os::fd::FromRawFd;
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut found: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `found`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut found).cast(),
            &mut length,
        )
    };
    // SAFETY: on success it is a new descriptor (close-on-exec) that only we know.
    (result == 0 && found >= 0).then(|| unsafe { OwnedFd::from_raw_fd(found) })
}

/// Makes a directory (and its parents) with mode 0700, or checks that it is so.
fn private_directory(directory: &Path) -> Result<(), IpcError> {
    let io = |doing| move |source| IpcError::Io { doing, source };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(io("create the socket's directory"))?;
    let found = std::fs::symlink_metadata(directory).map_err(io("inspect a directory"))?;
    let ours = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_dir() || !ours || found.mode() & 0o077 != 0 {
        return Err(IpcError::NotPrivate(directory.into()));
    }
    Ok(())
}

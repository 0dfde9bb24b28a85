//! A connection that this process opened, and what waits to be sent on it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read as _, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sockopt,
};

use super::Options;
use super::proof::{self, CHALLENGE_BYTES, KEY_BYTES};
use crate::rail::STALL;
use crate::rail::frame::{Bytes, Content, Frame, HEADER_BYTES};

/// Pause between two calls to a host that did not answer.
const RETRY: Duration = Duration::from_millis(100);

#[derive(PartialEq, Eq)]
pub(super) enum Progress {
    Fine,
    /// There is a new socket to be watched.
    Recalled,
    Dead,
}

enum State {
    /// No socket; another call is due then.
    Waiting(Instant),
    /// Called; the challenge is not all here yet.
    Calling(TcpStream, [u8; CHALLENGE_BYTES], usize),
    Open(TcpStream),
}

struct Waiting {
    header: [u8; HEADER_BYTES],
    body: Bytes,
    /// The list of the absent.
    list: Vec<u8>,
    sent: usize,
}

pub(super) struct Outgoing {
    address: SocketAddr,
    state: State,
    /// The process is dead if no call was answered by then.
    end: Instant,
    fresh: bool,
    queue: VecDeque<Waiting>,
    queued: usize,
    /// When bytes last left, or began to wait.
    moved: Instant,
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

fn tune(socket: &TcpStream, silence: Duration) -> io::Result<()> {
    let third = (silence / 3).max(Duration::from_secs(1));
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, third)?;
    sockopt::set_tcp_keepintvl(socket, third)?;
    sockopt::set_tcp_keepcnt(socket, 2)?;
    let bound = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(socket, bound)?)
}

impl Outgoing {
    pub(super) fn call(address: SocketAddr, end: Instant) -> Outgoing {
        let mut out = Outgoing {
            address,
            state: State::Waiting(Instant::now()),
            end,
            fresh: false,
            queue: VecDeque::new(),
            queued: 0,
            moved: Instant::now(),
        };
        out.dial();
        out
    }

    /// Calls again: what was under way on the old connection is lost with it.
    pub(super) fn recall(&mut self, end: Instant) {
        if matches!(self.state, State::Open(_)) {
            self.drop_begun();
            self.end = end;
            self.state = State::Waiting(Instant::now());
            self.dial();
        }
    }

    fn drop_begun(&mut self) {
        if self.queue.front().is_some_and(|first| first.sent > 0)
            && let Some(first) = self.queue.pop_front()
        {
            self.queued -= first.bytes();
        }
    }

    /// True if the call was refused at once.
    fn dial(&mut self) -> bool {
        match connect(self.address) {
            Ok(socket) => {
                self.state = State::Calling(socket, [0; CHALLENGE_BYTES], 0);
                self.fresh = true;
                false
            }
            Err(error) => {
                self.state = State::Waiting(Instant::now() + RETRY);
                error.kind() == ErrorKind::ConnectionRefused
            }
        }
    }

    /// A socket that nobody watches yet, once.
    pub(super) fn fresh_socket(&mut self) -> Option<&TcpStream> {
        if !std::mem::take(&mut self.fresh) {
            return None;
        }
        match &self.state {
            State::Calling(socket, ..) | State::Open(socket) => Some(socket),
            State::Waiting(_) => None,
        }
    }

    /// The other side has answered the last call.
    #[cfg(feature = "ucx")]
    pub(super) fn answered(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// What waits has not moved for long.
    pub(super) fn stalled(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.moved) > STALL
    }

    pub(super) fn queue(&mut self, frame: Frame) {
        if self.queue.is_empty() {
            self.moved = Instant::now();
        }
        let waiting = Waiting {
            header: frame.header(),
            list: frame
                .body
                .as_ref()
                .map_or(Vec::new(), Content::absent_bytes),
            body: frame.body.map_or(Bytes::default(), |body| body.bytes),
            sent: 0,
        };
        self.queued += waiting.bytes();
        self.queue.push_back(waiting);
    }

    /// When [`Outgoing::progress`] is needed though no event tells so.
    pub(super) fn attention(&self) -> Option<Instant> {
        match self.state {
            State::Waiting(at) => Some(at.min(self.end)),
            State::Calling(..) => Some(self.end),
            State::Open(_) => None,
        }
    }

    pub(super) fn overdue(&self, now: Instant) -> bool {
        self.attention().is_some_and(|at| at <= now)
    }

    pub(super) fn progress(
        &mut self,
        me: u32,
        key: &[u8; KEY_BYTES],
        options: &Options,
    ) -> Progress {
        let now = Instant::now();
        if !matches!(self.state, State::Open(_)) && now >= self.end {
            return Progress::Dead;
        }
        if let State::Waiting(at) = self.state {
            if now < at {
                return Progress::Fine;
            }
            if self.dial() {
                return Progress::Dead;
            }
            return Progress::Recalled;
        }
        match self.push(me, key, options) {
            Ok(()) => Progress::Fine,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Progress::Fine,
            Err(error) if matches!(self.state, State::Calling(..)) => {
                if error.kind() == ErrorKind::ConnectionRefused {
                    return Progress::Dead;
                }
                self.state = State::Waiting(now + RETRY);
                Progress::Fine
            }
            Err(_) => {
                self.recall(now + options.silence);
                Progress::Recalled
            }
        }
    }

    fn push(&mut self, me: u32, key: &[u8; KEY_BYTES], options: &Options) -> io::Result<()> {
        if let State::Calling(socket, challenge, filled) = &mut self.state {
            sockopt::socket_error(&*socket)??;
            while *filled < CHALLENGE_BYTES {
                match (&*socket).read(&mut challenge[*filled..]) {
                    Ok(0) => return Err(ErrorKind::ConnectionReset.into()),
                    Ok(read) => *filled += read,
                    // Not connected yet is no failure of the call.
                    Err(error) if error.kind() == ErrorKind::NotConnected => {
                        return Err(ErrorKind::WouldBlock.into());
                    }
                    Err(error) => return Err(error),
                }
            }
            tune(socket, options.silence)?;
            let answer = proof::answer(key, challenge, me).ok_or(ErrorKind::Other)?;
            // A connection that was just opened has room for it.
            (&*socket).write_all(&answer)?;
            let due = State::Waiting(Instant::now());
            if let State::Calling(socket, ..) = std::mem::replace(&mut self.state, due) {
                self.state = State::Open(socket);
            }
        }
        let State::Open(socket) = &self.state else {
            return Ok(());
        };
        // The other side never writes after its challenge: bytes or an end are news.
        let mut byte = [0];
        match (&mut &*socket).read(&mut byte) {
            Ok(_) => return Err(ErrorKind::ConnectionReset.into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        while let Some(first) = self.queue.front_mut() {
            let written = first.write(socket)?;
            if written == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            first.sent += written;
            self.moved = Instant::now();
            if first.sent == first.bytes() {
                self.queued -= first.bytes();
                self.queue.pop_front();
            }
        }
        Ok(())
    }
}

impl Waiting {
    fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len() + self.list.len()
    }
    fn write(&self, socket: &TcpStream) -> io::Result<usize> {
        let head = self.sent.min(HEADER_BYTES);
        let body = (self.sent - head).min(self.body.len());
        let list = self.sent - head - body;
        let parts = [
            IoSlice::new(&self.header[head..]),
            IoSlice::new(&self.body[body..]),
            IoSlice::new(&self.list[list..]),
        ];
        // Not write_vectored: it would raise SIGPIPE in a host that did not ask for it (P6).
        let flags = SendFlags::NOSIGNAL;
        let mut none = SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(socket, &parts, &mut none, flags)?)
    }
}

//! Sockets: listening, non-blocking calls, and the options that bound how long
//! a dead peer can go unnoticed.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use outlive_base::{Code, Entity, Error};
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::event::DownReason;
use crate::options::Options;

/// An idle connection is probed after this long, ...
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
/// ... then this often, ...
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// ... and is dead after this many probes without an answer.
const KEEPALIVE_PROBES: u32 = 3;

/// Listens, without blocking.
pub(crate) fn listen(addr: SocketAddr) -> Result<TcpListener, Error> {
    let failed = |error: io::Error| {
        let (code, remedy) = match error.kind() {
            io::ErrorKind::AddrInUse => (
                Code::AddressInUse,
                "stop the program that listens there or choose port 0",
            ),
            io::ErrorKind::PermissionDenied => {
                (Code::Permission, "choose a port above 1023, or port 0")
            }
            _ => (Code::Network, "choose an address of this node"),
        };
        Error::new(
            code,
            Entity::Address(addr.to_string()),
            format!("listen: {error}"),
            remedy,
        )
    };
    let listener = TcpListener::bind(addr).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Sets what every connection needs.
pub(crate) fn tune(socket: &TcpStream, options: &Options) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    let bound = u32::try_from(options.write_timeout.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, bound)?;
    Ok(())
}

/// Begins a call without blocking; the socket is writable once it is decided.
pub(crate) fn call(addr: SocketAddr) -> io::Result<TcpStream> {
    let family = if addr.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &addr) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// The outcome of a call that became writable.
pub(crate) fn call_outcome(socket: &TcpStream) -> io::Result<()> {
    sockopt::socket_error(socket)??;
    Ok(())
}

/// Why a connection with this error is down.
pub(crate) fn down_reason(error: &io::Error) -> DownReason {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable => DownReason::Timeout,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => DownReason::Timeout,
        _ => DownReason::Reset,
    }
}

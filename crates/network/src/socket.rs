//! Sockets: listening, non-blocking calls, and the options that bound how long
//! a dead peer can go unnoticed.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Ports};
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

/// Listens at one of these ports; which one is the listener's to say.
///
/// # Errors
/// That of the last port that was tried: `AddrInUse` if all are in use.
pub fn listen_within(address: IpAddr, ports: Ports) -> io::Result<TcpListener> {
    let mut refused = io::ErrorKind::AddrInUse.into();
    for port in ports.tries(std::process::id()) {
        match TcpListener::bind((address, port)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = error,
            done => return done,
        }
    }
    Err(refused)
}

/// Listens, without blocking.
pub(crate) fn listen(addr: SocketAddr, ports: Ports) -> Result<TcpListener, Error> {
    let failed = |error: io::Error| {
        let (code, remedy) = match error.kind() {
            io::ErrorKind::AddrInUse => (
                Code::AddressInUse,
                match ports.is_any() {
                    true => "stop the program that listens there or choose port 0",
                    false => "all of these ports are in use: give a wider range by --ports",
                },
            ),
            io::ErrorKind::PermissionDenied => {
                (Code::Permission, "choose a port above 1023, or port 0")
            }
            _ => (Code::Network, "choose an address of this node"),
        };
        Error::new(
            code,
            Entity::Address(match ports.is_any() {
                true => addr.to_string(),
                false => format!("{}:{ports}", addr.ip()),
            }),
            format!("listen: {error}"),
            remedy,
        )
    };
    let listener = match addr.port() {
        0 => listen_within(addr.ip(), ports),
        _ => TcpListener::bind(addr),
    };
    let listener = listener.map_err(failed)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ports_of_a_range_are_taken_and_no_other() {
        let host: IpAddr = std::net::Ipv4Addr::new(127, 77, 3, 1).into();
        let ports: Ports = "20000-20002".parse().unwrap();
        let mut taken: Vec<_> = (0..3)
            .map(|_| listen_within(host, ports).unwrap())
            .collect();
        let mut at: Vec<_> = taken
            .iter()
            .map(|it| it.local_addr().unwrap().port())
            .collect();
        at.sort_unstable();
        assert_eq!(at, [20000, 20001, 20002]);
        let error = listen((host, 0).into(), ports).unwrap_err();
        assert_eq!(error.code(), Code::AddressInUse);
        assert!(error.to_string().contains("--ports"), "{error}");
        drop(taken.pop());
        assert!(listen((host, 0).into(), ports).is_ok(), "one is free");
    }
}

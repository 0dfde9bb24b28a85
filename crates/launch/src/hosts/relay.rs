//! A way from a host's agent to the launcher where the host reaches no port of the launcher's
//! machine: what the source's own command (ssh, srun) carries.
//!
//! ```text
//! agent ── TCP ── outlive host ── socket ── outlive relay ── ssh ── outlive run ── TCP ── itself
//! ```
//!
//! Only bytes pass here: agent and launcher prove themselves to each other as over any network, and
//! what they say is sealed between them. One relay for each connection that the agent makes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use outlive_base::{Error, Result};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::host_words::FromHost;
use crate::layout;
use crate::process::{self, Group, Process};
use crate::threads;

/// What a relay says before what it carries: a login shell may have greeted already.
const MARK: &[u8] = b"outlive-relay/1\n";
/// Most bytes of a greeting.
const GREETING_BYTES_MAX: usize = 1 << 16;
/// How long the launcher may take to send a relay.
const RELAY_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks whether it is there.
const LOOK: Duration = Duration::from_millis(5);

/// On a host: waits for agents that look for the launcher, and asks it for a way for each; the
/// address that stands for the launcher's.
///
/// # Errors
/// Those of the kernel and the file system.
pub(super) fn wait(run_dir: &Path, said: Sender<FromHost>) -> Result<SocketAddr> {
    let failed = |error: std::io::Error| Error::internal(format!("relay: {error}"));
    let agents = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let address = agents.local_addr().map_err(failed)?;
    let path = run_dir.join(layout::RELAY);
    let _ = std::fs::remove_file(&path);
    // In a directory that is this user's alone.
    let relays = UnixListener::bind(&path).map_err(|error| Error::io(&path, "bind", &error))?;
    relays.set_nonblocking(true).map_err(failed)?;
    let pair = move || {
        for agent in agents.incoming().flatten() {
            if said.send(FromHost::Relay).is_err() {
                return;
            }
            match next(&relays) {
                Some(relay) => join(agent, relay),
                None => tracing::warn!("the launcher sends no relay"),
            }
        }
    };
    threads::start("relays", pair)?;
    Ok(address)
}

fn next(relays: &UnixListener) -> Option<UnixStream> {
    let until = Instant::now() + RELAY_WITHIN;
    while Instant::now() < until {
        if let Ok((relay, _)) = relays.accept() {
            relay.set_nonblocking(false).ok()?;
            return Some(relay);
        }
        std::thread::sleep(LOOK);
    }
    None
}

/// Carries bytes both ways until one side ends; that ends the other.
fn join(agent: TcpStream, relay: UnixStream) {
    let (Ok(from_agent), Ok(to_relay)) = (agent.try_clone(), relay.try_clone()) else {
        return;
    };
    let _ = agent.set_nodelay(true);
    let there = threads::start("to launcher", move || {
        carry(&from_agent, &to_relay);
        let _ = to_relay.shutdown(Shutdown::Both);
        let _ = from_agent.shutdown(Shutdown::Both);
    });
    let back = threads::start("from launcher", move || {
        carry(&relay, &agent);
        let _ = relay.shutdown(Shutdown::Both);
        let _ = agent.shutdown(Shutdown::Both);
    });
    if let Err(error) = there.and(back) {
        tracing::warn!(%error, "nothing is carried");
    }
}

/// Until the end of what comes, or nothing more is taken.
fn carry(mut from: impl Read, mut to: impl Write) {
    let mut buffer = vec![0u8; 1 << 16];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        if to
            .write_all(&buffer[..count])
            .and_then(|()| to.flush())
            .is_err()
        {
            return;
        }
    }
}

/// The relay on a host, over its standard input and output.
///
/// # Errors
/// If nobody waits for it.
pub fn serve(run_dir: &Path) -> Result<u8> {
    let path = run_dir.join(layout::RELAY);
    let failed = |error: std::io::Error| Error::io(&path, "connect to", &error);
    let to = UnixStream::connect(&path).map_err(failed)?;
    let from = to.try_clone().map_err(failed)?;
    let mut out = std::io::stdout();
    out.write_all(MARK)
        .and_then(|()| out.flush())
        .map_err(failed)?;
    threads::start("in", move || {
        carry(std::io::stdin().lock(), &to);
        let _ = to.shutdown(Shutdown::Both);
    })?;
    carry(from, out.lock());
    Ok(0)
}

/// In the launcher: starts the relay on a host and joins it with this process's own port.
///
/// # Errors
/// If the command cannot be started; [`outlive_base::Code::Internal`].
pub(super) fn lead(mut command: Command, port: u16) -> Result<Process> {
    let pipe = || {
        pipe_with(PipeFlags::CLOEXEC)
            .map_err(|error| Error::internal(format!("pipe to a relay: {error}")))
    };
    let ((theirs_in, ours_out), (ours_in, theirs_out)) = (pipe()?, pipe()?);
    command
        .stdin(Stdio::from(theirs_in))
        .stdout(Stdio::from(theirs_out));
    let process = process::spawn(command, Group::Session, true)?;
    threads::start("relay", move || {
        if let Err(error) = joined(ours_in, ours_out, port) {
            tracing::warn!(%error, "a relay leads nowhere");
        }
    })?;
    Ok(process)
}

fn joined(from: OwnedFd, to: OwnedFd, port: u16) -> std::io::Result<()> {
    let (mut from, to) = (std::fs::File::from(from), std::fs::File::from(to));
    after_greeting(&mut from)?;
    let own = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    own.set_nodelay(true)?;
    let back = own.try_clone()?;
    let spawned = threads::start("relay back", move || {
        // With its end the command's input ends, and the relay with that.
        carry(&back, to);
        let _ = back.shutdown(Shutdown::Both);
    });
    spawned.map_err(|error| std::io::Error::other(error.to_string()))?;
    carry(from, &own);
    own.shutdown(Shutdown::Both)
}

/// Passes over what a shell says before the relay does.
fn after_greeting(from: &mut impl Read) -> std::io::Result<()> {
    let (mut seen, mut byte) = (Vec::new(), [0u8]);
    while !seen.ends_with(MARK) {
        from.read_exact(&mut byte)?;
        seen.push(byte[0]);
        if seen.len() > GREETING_BYTES_MAX {
            return Err(std::io::Error::other("no relay answers"));
        }
    }
    Ok(())
}

/// This machine's own address on the way to the first of these, whether that answers or not.
///
/// # Errors
/// If no way leads there.
pub(super) fn own_address(to: &[SocketAddr]) -> Result<std::net::IpAddr> {
    let of = |to: &SocketAddr| -> std::io::Result<std::net::IpAddr> {
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        // Of UDP nothing is sent to connect: the kernel only looks for the way.
        let socket = UdpSocket::bind(any)?;
        socket.connect(to)?;
        Ok(socket.local_addr()?.ip())
    };
    to.iter()
        .find_map(|to| of(to).ok())
        .ok_or_else(|| Error::internal("no way leads to the launcher's machine"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_passed_over_and_one_without_end_is_given_up() {
        let mut said: &[u8] = b"Welcome!\noutlive-relay/1\nrest";
        after_greeting(&mut said).unwrap();
        assert_eq!(said, b"rest");
        assert!(after_greeting(&mut &b"Welcome!\n"[..]).is_err());
        assert!(after_greeting(&mut std::io::repeat(7)).is_err());
    }

    #[test]
    fn what_an_agent_says_goes_through_relay_and_launcher_and_back() {
        let dir = tempfile::tempdir().unwrap();
        let (said, says) = crossbeam_channel::unbounded();
        let address = wait(dir.path(), said).unwrap();
        let launcher = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = launcher.local_addr().unwrap().port();
        let mut agent = TcpStream::connect(address).unwrap();
        assert!(matches!(says.recv(), Ok(FromHost::Relay)));
        // In place of ssh and the relay there: a shell that greets, and a pipe each way.
        let ((far_in, near_out), (near_in, mut far_out)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        far_out.write_all(b"hello\n").unwrap();
        far_out.write_all(MARK).unwrap();
        let relay = UnixStream::connect(dir.path().join(layout::RELAY)).unwrap();
        let to = relay.try_clone().unwrap();
        std::thread::spawn(move || carry(&relay, far_out));
        std::thread::spawn(move || {
            carry(far_in, &to);
            to.shutdown(Shutdown::Both)
        });
        std::thread::spawn(move || joined(near_in.into(), near_out.into(), port));
        let (mut heard, _) = launcher.accept().unwrap();
        agent.write_all(b"to the launcher").unwrap();
        let mut bytes = [0u8; 15];
        heard.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"to the launcher");
        heard.write_all(b"back").unwrap();
        let mut bytes = [0u8; 4];
        agent.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"back");
        // The launcher's end is the agent's.
        drop(heard);
        assert_eq!(agent.read(&mut bytes).unwrap(), 0);
    }

    #[test]
    fn the_own_address_is_known_though_nobody_answers() {
        let to: SocketAddr = "127.0.0.1:9".parse().unwrap();
        assert_eq!(own_address(&[to]).unwrap(), Ipv4Addr::LOCALHOST);
        assert!(own_address(&[]).is_err());
    }
}

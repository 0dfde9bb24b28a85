//! A socket that may have died with the kernel below.
//!
//! After its kernel was replaced, a process has its memory and no sockets: a
//! descriptor's number may be free, or belong to something else by then. So
//! every call here is one that only sockets take, and nothing is closed that is
//! not the file that was opened.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use outlive_base::{Error, Ports};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, sockopt};

use crate::socket;

/// What a call brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    /// So many bytes.
    Bytes(usize),
    /// Not now.
    Later,
    /// The connection is over.
    Over,
    /// The descriptor is not ours any more: the kernel was replaced.
    Dead,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Sock {
    raw: RawFd,
    file: (u64, u64),
}

impl Sock {
    fn adopt(fd: OwnedFd) -> Sock {
        let file = rustix::fs::fstat(&fd).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        Sock {
            raw: fd.into_raw_fd(),
            file,
        }
    }

    /// Listens at `addr`.
    pub(crate) fn listen(addr: SocketAddr) -> Result<Sock, Error> {
        socket::listen(addr, Ports::ANY).map(|listener| Sock::adopt(listener.into()))
    }

    /// Begins a call.
    pub(crate) fn call(addr: SocketAddr) -> Option<Sock> {
        let stream = socket::call(addr).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Sock::adopt(stream.into()))
    }

    /// The next caller.
    pub(crate) fn accept(&self) -> Result<Option<Sock>, Done> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(self.fd(), flags) {
            Ok(fd) => {
                let _ = sockopt::set_tcp_nodelay(&fd, true);
                Ok(Some(Sock::adopt(fd)))
            }
            Err(Errno::BADF | Errno::NOTSOCK | Errno::INVAL) => Err(Done::Dead),
            // Out of descriptors, or a caller that went away: later.
            Err(_) => Ok(None),
        }
    }

    /// The port that the socket is bound to.
    #[cfg(test)]
    pub(crate) fn port(&self) -> Option<u16> {
        let addr = rustix::net::getsockname(self.fd()).ok()?;
        SocketAddr::try_from(addr).ok().map(|addr| addr.port())
    }

    /// The descriptor for one call.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is not -1. If the kernel was replaced it may name
        // nothing or another file: then the calls made here fail or are only
        // looked at (see the module), so nothing of another owner is touched.
        unsafe { BorrowedFd::borrow_raw(self.raw) }
    }

    /// True if the number still names the file that was opened.
    pub(crate) fn ours(&self) -> bool {
        rustix::fs::fstat(self.fd()).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.file)
    }

    /// True once a call that became writable stands.
    pub(crate) fn connected(&self) -> bool {
        matches!(sockopt::socket_error(self.fd()), Ok(Ok(())))
    }

    /// Fault injection: ends both directions.
    pub(crate) fn shutdown(&self) {
        let _ = rustix::net::shutdown(self.fd(), rustix::net::Shutdown::Both);
    }

    /// Fault injection: closes the descriptor behind this value's back.
    pub(crate) fn lose(&self) {
        if self.ours() {
            // SAFETY: the number names the file that this value alone owns; every
            // later use finds it dead.
            unsafe { rustix::io::close(self.raw) };
        }
    }

    /// Sends what the kernel takes.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> Done {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            let mut none = SendAncillaryBuffer::default();
            match rustix::net::sendmsg(self.fd(), parts, &mut none, flags) {
                Err(Errno::INTR) => {}
                result => return outcome(result),
            }
        }
    }

    /// Receives into `first` and then into `rest`.
    pub(crate) fn recv(&self, first: &mut [u8], rest: &mut [u8]) -> Done {
        loop {
            let mut none = rustix::net::RecvAncillaryBuffer::default();
            let mut parts = [IoSliceMut::new(first), IoSliceMut::new(rest)];
            let result =
                rustix::net::recvmsg(self.fd(), &mut parts, &mut none, RecvFlags::DONTWAIT);
            match result {
                Err(Errno::INTR) => {}
                result => return outcome(result.map(|message| message.bytes)),
            }
        }
    }

    /// Receives at most `count` bytes to the end of `out`, which has the room.
    pub(crate) fn recv_to(&self, out: &mut Vec<u8>, count: usize) -> Done {
        loop {
            let length = out.len();
            let spare = out.spare_capacity_mut();
            let count = count.min(spare.len());
            let spare: &mut [MaybeUninit<u8>] = &mut spare[..count];
            match rustix::net::recv(self.fd(), spare, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Err(error) => return outcome(Err(error)),
                Ok(((filled, _), _)) => {
                    let bytes = filled.len();
                    // SAFETY: the kernel filled these bytes behind the old end.
                    unsafe { out.set_len(length + bytes) };
                    return outcome(Ok(bytes));
                }
            }
        }
    }
}

fn outcome(result: rustix::io::Result<usize>) -> Done {
    match result {
        Ok(bytes) => Done::Bytes(bytes),
        Err(Errno::AGAIN) => Done::Later,
        Err(Errno::BADF | Errno::NOTSOCK) => Done::Dead,
        Err(_) => Done::Over,
    }
}

impl Drop for Sock {
    fn drop(&mut self) {
        if self.ours() {
            // SAFETY: the number names the file that this value opened and
            // alone owns.
            unsafe { rustix::io::close(self.raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_number_that_names_another_file_is_neither_used_nor_closed() {
        let listener = Sock::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = SocketAddr::from(([127, 0, 0, 1], listener.port().unwrap()));
        let call = Sock::call(addr).unwrap();
        let mut dir = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut dir, b"kept").unwrap();
        let raw = call.raw;
        // What a restorer does: the number now names a file of the program.
        // SAFETY: `call` finds that the number is no longer its own.
        let mut target = unsafe {
            std::mem::ManuallyDrop::new(<OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(raw))
        };
        rustix::io::dup2(&dir, &mut target).unwrap();
        assert!(!call.ours());
        assert_eq!(call.send(&[IoSlice::new(b"x")]), Done::Dead);
        assert_eq!(call.recv(&mut [0; 4], &mut []), Done::Dead);
        drop(call);
        // SAFETY: the duplicate that this test made.
        let mut file = std::fs::File::from(std::mem::ManuallyDrop::into_inner(target));
        std::io::Seek::rewind(&mut file).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "kept");
    }
}

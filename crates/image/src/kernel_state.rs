//! Locks and descriptors with a state in the kernel, made again in this process.

use std::io;

use crate::model::{Lock, LockKind, OpenFile};
use crate::sys::{answer, close};

/// `struct flock` of x86-64: type, whence, start, length, process (0: as an OFD lock wants it).
pub(crate) fn flock_words(lock: &Lock) -> [u8; 32] {
    let mut bytes = [0; 32];
    let kind = if lock.exclusive {
        libc::F_WRLCK
    } else {
        libc::F_RDLCK
    };
    // From the start of the file; a length of 0 is to its end.
    let length = match lock.end {
        end if end >= i64::MAX as u64 => 0,
        end => end - lock.start + 1,
    };
    bytes[..2].copy_from_slice(&(kind as u16).to_le_bytes());
    bytes[8..16].copy_from_slice(&lock.start.to_le_bytes());
    bytes[16..24].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Takes a lock of an open file description again, without waiting for it.
pub(crate) fn take_lock(fd: i32, lock: &Lock) -> io::Result<()> {
    // SAFETY: plain numbers, or 32 live bytes of which the kernel reads `struct flock`.
    let taken = unsafe {
        match lock.kind {
            LockKind::Whole => {
                let how = if lock.exclusive {
                    libc::LOCK_EX
                } else {
                    libc::LOCK_SH
                };
                libc::flock(fd, how | libc::LOCK_NB)
            }
            LockKind::Range => {
                let words = flock_words(lock);
                libc::fcntl(fd, libc::F_OFD_SETLK, words.as_ptr())
            }
        }
    };
    answer(taken.into()).map(drop)
}

/// An eventfd whose reads take one at a time.
///
/// # Errors
/// Of the kernel.
pub fn semaphore(counter: u64) -> io::Result<i32> {
    let low = counter.min(u64::from(u32::MAX)) as u32;
    // SAFETY: plain numbers; 8 bytes are read from a live word.
    unsafe {
        let fd = answer(libc::eventfd(low, libc::EFD_SEMAPHORE).into())? as i32;
        let rest = counter - u64::from(low);
        if rest > 0 {
            libc::write(fd, (&raw const rest).cast(), 8);
        }
        Ok(fd)
    }
}

/// `TFD_IOC_SET_TICKS`.
const SET_TICKS: u64 = 0x4008_5400;

/// A timerfd with what was left, its period and the expirations that nobody has read.
///
/// # Errors
/// Of the kernel.
pub fn timer(kind: &OpenFile) -> io::Result<i32> {
    let OpenFile::Timer {
        clock,
        flags,
        interval_ns,
        next_ns,
        expired,
    } = kind
    else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let time = |ns: u64| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    };
    let times = libc::itimerspec {
        it_interval: time(*interval_ns),
        it_value: time(*next_ns),
    };
    // SAFETY: plain numbers, and words that live through the calls.
    unsafe {
        let fd = answer(libc::timerfd_create(*clock, 0).into())? as i32;
        let set = libc::timerfd_settime(fd, *flags, &raw const times, std::ptr::null_mut());
        let told = match *expired {
            _ if set != 0 => set,
            0 => 0,
            ref ticks => libc::ioctl(fd, SET_TICKS, std::ptr::from_ref(ticks)),
        };
        answer(told.into()).map(|_| fd).inspect_err(|_| close(fd))
    }
}

/// An epoll that watches nothing yet.
///
/// # Errors
/// Of the kernel.
pub fn epoll() -> io::Result<i32> {
    // SAFETY: a plain number.
    answer(unsafe { libc::epoll_create1(0) }.into()).map(|fd| fd as i32)
}

/// Lets an epoll watch a descriptor.
///
/// # Errors
/// Of the kernel.
pub fn watch(epoll: i32, fd: i32, events: u32, data: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: the event lives through the call.
    let added = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    answer(added.into()).map(drop)
}

/// Room for as much as a pipe held.
pub(crate) fn widen(pipe: i32, bytes: usize) -> io::Result<()> {
    const USUAL: usize = 65_536;
    if bytes <= USUAL {
        return Ok(());
    }
    // SAFETY: plain numbers.
    answer(unsafe { libc::fcntl(pipe, libc::F_SETPIPE_SZ, bytes) }.into()).map(drop)
}

/// `struct epoll_event` of x86-64, which has no padding.
pub(crate) fn epoll_event(events: u32, data: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&events.to_le_bytes());
    bytes[4..].copy_from_slice(&data.to_le_bytes());
    bytes
}

/// A signalfd for these signals (bit n-1 for signal n).
///
/// # Errors
/// Of the kernel.
pub fn signals(mask: u64) -> io::Result<i32> {
    // SAFETY: 8 bytes are read from a live word.
    let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const mask, 8, 0) };
    answer(fd).map(|fd| fd as i32)
}

/// A connected pair of Unix sockets of this type.
pub(crate) fn pair(kind: i32) -> io::Result<[i32; 2]> {
    let mut pair = [0; 2];
    // SAFETY: the array has room for two descriptors.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) };
    answer(made.into()).map(|_| pair)
}

/// Sends a message that was there before: it must have room.
pub(crate) fn send(fd: i32, message: &[u8]) -> io::Result<()> {
    // SAFETY: the bytes live through the call.
    let sent = unsafe {
        libc::send(
            fd,
            message.as_ptr().cast(),
            message.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    match answer(sent as std::ffi::c_long)? {
        sent if sent as usize == message.len() => Ok(()),
        _ => Err(io::Error::other("a socket has not the room that it had")),
    }
}

/// Shuts a socket down as it was: bit 0 for reading, bit 1 for writing.
pub(crate) fn shut(fd: i32, directions: u32) -> io::Result<()> {
    let how = match directions & 3 {
        0 => return Ok(()),
        1 => libc::SHUT_RD,
        2 => libc::SHUT_WR,
        _ => libc::SHUT_RDWR,
    };
    // SAFETY: plain numbers.
    answer(unsafe { libc::shutdown(fd, how) }.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsRawFd, FromRawFd};

    use super::*;

    fn lock(kind: LockKind, start: u64, end: u64) -> Lock {
        Lock {
            kind,
            exclusive: true,
            start,
            end,
        }
    }

    #[test]
    fn a_lock_that_another_has_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locked");
        let open = || {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .unwrap()
        };
        let (one, other) = (open(), open());
        for kind in [LockKind::Whole, LockKind::Range] {
            let part = lock(kind, 10, 19);
            take_lock(one.as_raw_fd(), &part).unwrap();
            take_lock(one.as_raw_fd(), &part).unwrap();
            let error = take_lock(other.as_raw_fd(), &part).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{kind:?}");
        }
        // Beside it, and to the end.
        let rest = lock(LockKind::Range, 20, i64::MAX as u64);
        take_lock(other.as_raw_fd(), &rest).unwrap();
        assert_eq!(flock_words(&rest)[16..24], [0; 8]);
    }

    #[test]
    fn a_timer_has_what_nobody_read() {
        let made = timer(&OpenFile::Timer {
            clock: libc::CLOCK_MONOTONIC,
            flags: 0,
            interval_ns: 3_600_000_000_000,
            next_ns: 3_600_000_000_000,
            expired: 3,
        });
        // Kernels without CONFIG_CHECKPOINT_RESTORE cannot be told.
        let Ok(fd) = made else { return };
        // SAFETY: it was just made.
        let mut file = unsafe { File::from_raw_fd(fd) };
        let mut count = [0; 8];
        file.read_exact(&mut count).unwrap();
        assert_eq!(u64::from_le_bytes(count), 3);
    }
}

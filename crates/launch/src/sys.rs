//! The few system calls that no safe wrapper offers: blocked signals, `signalfd`,
//! and how a process that is not our child ended. All `unsafe` of this crate.

use std::ffi::CString;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use outlive_control::ended::Ended;

/// A signal that reached the launcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caught {
    /// Its number.
    pub signal: i32,
    /// True if the kernel sent it (the terminal's interrupt key): then every
    /// process of the foreground group has it already.
    pub from_terminal: bool,
}

/// Signals that the launcher takes through a descriptor instead of handlers, unless it
/// was started with them ignored (`nohup`, or in the background of a script): a blocked
/// signal would come although it is ignored.
pub const SIGNALS: [i32; 5] = [
    libc::SIGCHLD,
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
];

/// True if this process ignores the signal.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: sigaction is plain data, for which all zeroes are valid; nothing is set.
    unsafe {
        let mut now = std::mem::zeroed::<libc::sigaction>();
        libc::sigaction(signal, std::ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    }
}

/// The file that a signal removes on its way; null: none.
static DOOMED: AtomicPtr<libc::c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Lets a signal that ends this process remove a file first. Children take nothing of it over.
///
/// # Errors
/// If the path has a zero byte.
pub fn remove_when_ended(path: &Path) -> io::Result<()> {
    extern "C" fn end(signal: libc::c_int) {
        let path = DOOMED.load(Ordering::Acquire);
        // SAFETY: all three may be called in a handler; the path is null or lives for ever.
        unsafe {
            if !path.is_null() {
                libc::unlink(path);
            }
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
    // A handler may be in the middle of reading it at any time: it is never freed.
    let path = CString::new(path.as_os_str().as_bytes())?.into_raw();
    DOOMED.store(path, Ordering::Release);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if !is_ignored(signal) {
            // SAFETY: the handler calls only what a handler may.
            unsafe { libc::signal(signal, end as *const () as libc::sighandler_t) };
        }
    }
    Ok(())
}

/// The mask that this process had when it began: what its children get.
static ORIGINAL: OnceLock<libc::sigset_t> = OnceLock::new();

/// Gives a child the signal mask that the launcher was started with. For use between
/// fork and exec: it only makes a system call.
///
/// # Errors
/// That of `sigprocmask`.
pub fn restore_mask() -> io::Result<()> {
    let Some(mask) = ORIGINAL.get() else {
        return Ok(());
    };
    // SAFETY: the pointer is to an initialised set that lives for ever.
    match unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ignores SIGUSR1 here and in what is started from here.
pub fn ignore_warnings() {
    // SAFETY: to ignore a signal installs no handler.
    unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
}

/// The limit of open files that this process had when it began: what its children get.
static FILES: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit of open files as far as allowed: a descriptor stands for each rank
/// on this machine. [`restore_limit`] undoes it for children.
pub fn raise_limit() {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    FILES.get_or_init(|| before);
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::info!(%error, "the limit of open files stays");
    }
}

/// Gives a child the limit of open files that the launcher was started with. For use
/// between fork and exec: it only makes a system call.
///
/// # Errors
/// That of `setrlimit`.
pub fn restore_limit() -> io::Result<()> {
    match FILES.get() {
        Some(before) => Ok(setrlimit(Resource::Nofile, *before)?),
        None => Ok(()),
    }
}

/// Blocks [`SIGNALS`] in this thread and those it starts, and returns the
/// descriptor that reports them. [`restore_mask`] undoes it for children.
///
/// # Errors
/// Those of `pthread_sigmask` and `signalfd`.
pub fn signals() -> io::Result<OwnedFd> {
    signals_and(&[])
}

/// As [`signals`], and these besides.
///
/// # Errors
/// As [`signals`].
pub fn signals_and(more: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before use; pointers are to locals.
    unsafe {
        // A parent that ignores its children passes that on: their ends would be lost.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        let all = SIGNALS.iter().chain(more).copied();
        for signal in all.filter(|signal| !is_ignored(*signal)) {
            libc::sigaddset(&mut set, signal);
        }
        let mut before = set;
        let code = libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        ORIGINAL.get_or_init(|| before);
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The next signal of a descriptor of [`signals`], if there is one.
pub fn next_signal(fd: BorrowedFd<'_>) -> Option<Caught> {
    // SAFETY: signalfd_siginfo is plain data, for which all zeroes are valid.
    let mut info = unsafe { std::mem::zeroed::<libc::signalfd_siginfo>() };
    let bytes = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the buffer is a live local of exactly the length passed.
    let got = unsafe { libc::read(fd.as_raw_fd(), (&raw mut info).cast(), bytes) };
    (got == bytes as isize).then_some(Caught {
        signal: info.ssi_signo as i32,
        from_terminal: info.ssi_code == libc::SI_KERNEL,
    })
}

/// Memory that programs may still take, in bytes.
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The addresses of all interfaces that are up; not those that are valid on one link alone.
///
/// # Errors
/// That of `getifaddrs`.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the call writes a list of its own to `first`, freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut found, mut next) = (Vec::new(), first);
    // SAFETY: each entry is valid until the list is freed, its address may be missing, and
    // an address of a family has that family's layout.
    unsafe {
        while let Some(entry) = next.as_ref() {
            next = entry.ifa_next;
            if entry.ifa_flags & libc::IFF_UP as libc::c_uint == 0 || entry.ifa_addr.is_null() {
                continue;
            }
            match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let at = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    found.push(IpAddr::from(at.sin_addr.s_addr.to_ne_bytes()));
                }
                libc::AF_INET6 => {
                    let at = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    let address = Ipv6Addr::from(at.sin6_addr.s6_addr);
                    if !address.is_unicast_link_local() {
                        found.push(address.into());
                    }
                }
                _ => {}
            }
        }
        libc::freeifaddrs(first);
    }
    Ok(found)
}

/// `struct pidfd_info` of Linux 6.15, first version.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}
const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(0xFF, 11, struct pidfd_info)` with 64 bytes.
const PIDFD_GET_INFO: libc::Ioctl = (3 << 30 | 64 << 16 | 0xFF << 8 | 11) as libc::Ioctl;

/// How a process that ended and was reaped by its parent ended, on kernels that
/// tell (Linux 6.15 and later).
pub fn exit_of(pidfd: BorrowedFd<'_>) -> Option<Ended> {
    let mut info = PidfdInfo {
        mask: PIDFD_INFO_EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: the kernel writes at most the 64 bytes encoded in the request, the
    // size of `info`; a kernel without the request returns an error.
    let code = unsafe { libc::ioctl(pidfd.as_fd().as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    (code == 0 && info.mask & PIDFD_INFO_EXIT != 0).then(|| Ended::from_wait_status(info.exit_code))
}

const _: () = assert!(size_of::<PidfdInfo>() == 64);

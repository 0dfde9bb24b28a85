//! The system call that a thread is in.

use std::fs;

/// Calls in which threads are usually found. Of those with `true` the first argument is a
/// descriptor.
const CALLS: &[(i64, &str, bool)] = &[
    (libc::SYS_read, "read", true),
    (libc::SYS_write, "write", true),
    (libc::SYS_pread64, "pread64", true),
    (libc::SYS_pwrite64, "pwrite64", true),
    (libc::SYS_readv, "readv", true),
    (libc::SYS_writev, "writev", true),
    (libc::SYS_preadv, "preadv", true),
    (libc::SYS_pwritev, "pwritev", true),
    (libc::SYS_recvfrom, "recvfrom", true),
    (libc::SYS_recvmsg, "recvmsg", true),
    (libc::SYS_recvmmsg, "recvmmsg", true),
    (libc::SYS_sendto, "sendto", true),
    (libc::SYS_sendmsg, "sendmsg", true),
    (libc::SYS_accept, "accept", true),
    (libc::SYS_accept4, "accept4", true),
    (libc::SYS_connect, "connect", true),
    (libc::SYS_fsync, "fsync", true),
    (libc::SYS_fdatasync, "fdatasync", true),
    (libc::SYS_flock, "flock", true),
    (libc::SYS_fcntl, "fcntl", true),
    (libc::SYS_ioctl, "ioctl", true),
    (libc::SYS_epoll_wait, "epoll_wait", true),
    (libc::SYS_epoll_pwait, "epoll_pwait", true),
    (libc::SYS_poll, "poll", false),
    (libc::SYS_ppoll, "ppoll", false),
    (libc::SYS_select, "select", false),
    (libc::SYS_pselect6, "pselect6", false),
    (libc::SYS_futex, "futex", false),
    (libc::SYS_nanosleep, "nanosleep", false),
    (libc::SYS_clock_nanosleep, "clock_nanosleep", false),
    (libc::SYS_sched_yield, "sched_yield", false),
    (libc::SYS_pause, "pause", false),
    (libc::SYS_rt_sigsuspend, "rt_sigsuspend", false),
    (libc::SYS_rt_sigtimedwait, "rt_sigtimedwait", false),
    (libc::SYS_restart_syscall, "restart_syscall", false),
    (libc::SYS_wait4, "wait4", false),
    (libc::SYS_waitid, "waitid", false),
    (libc::SYS_openat, "openat", false),
    (libc::SYS_semtimedop, "semtimedop", false),
    (libc::SYS_msgrcv, "msgrcv", false),
    (libc::SYS_io_uring_enter, "io_uring_enter", true),
    (libc::SYS_munmap, "munmap", false),
    (libc::SYS_mmap, "mmap", false),
];

/// In words; `None` for a thread that computes, or of which it is not told.
pub fn of(pid: i32, tid: i32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    let mut words = text.split_whitespace();
    let number: i64 = words.next()?.parse().ok().filter(|it| *it >= 0)?;
    let Some((_, name, takes_descriptor)) = CALLS.iter().find(|(known, ..)| *known == number)
    else {
        return Some(format!("system call {number}"));
    };
    let first = words.next().and_then(|word| word.strip_prefix("0x"));
    let first = first.and_then(|word| u64::from_str_radix(word, 16).ok());
    Some(match first.filter(|_| *takes_descriptor) {
        Some(fd) => {
            let link = fs::read_link(format!("/proc/{pid}/fd/{fd}"));
            let to = link.map_or_else(|_| String::new(), |to| format!(": {}", to.display()));
            format!("{name}({fd}{to})")
        }
        None => format!("{name}()"),
    })
}

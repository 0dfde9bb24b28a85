//! How a system call ends that was in flight when the process was stopped.
//!
//! On x86-64 the kernel shows a call in flight by `orig_rax >= 0`, with `rax` either
//! one of its private restart codes (-512 to -516, include/linux/errno.h) or, when the
//! thread sleeps or the kernel died in the middle of the call, -ENOSYS. The policy:
//! calls that wait or that can be made twice without harm run again, as the kernel does
//! after a signal without handler; all others end with EINTR. What was already done is
//! then done once more: *at least once* (a write to a terminal or pipe may repeat).

/// Words of `struct user_regs_struct`, by name.
pub mod reg {
    /// r15
    pub const R15: usize = 0;
    /// rbp
    pub const RBP: usize = 4;
    /// rbx
    pub const RBX: usize = 5;
    /// r9
    pub const R9: usize = 8;
    /// r8
    pub const R8: usize = 9;
    /// r10
    pub const R10: usize = 7;
    /// rax
    pub const RAX: usize = 10;
    /// rcx
    pub const RCX: usize = 11;
    /// rdx
    pub const RDX: usize = 12;
    /// rsi
    pub const RSI: usize = 13;
    /// rdi
    pub const RDI: usize = 14;
    /// orig_rax: the number of the call in flight, or -1
    pub const ORIG_RAX: usize = 15;
    /// rip
    pub const RIP: usize = 16;
    /// cs
    pub const CS: usize = 17;
    /// rsp
    pub const RSP: usize = 19;
    /// fs_base
    pub const FS_BASE: usize = 21;
}

const EINTR: i64 = -4;
const ENOSYS: i64 = -38;
/// `syscall` has two bytes.
const CALL_BYTES: u64 = 2;

/// What became of a call in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// None was in flight; nothing was changed.
    None,
    /// Its result was there already.
    Finished,
    /// It runs again.
    Again,
    /// It ends with EINTR.
    Interrupted,
}

/// True if the call may be made once more although it may have begun.
pub fn repeatable(number: u64) -> bool {
    let waits = [
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_pread64,
        libc::SYS_preadv,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_pwrite64,
        libc::SYS_pwritev,
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_select,
        libc::SYS_pselect6,
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_flock,
        libc::SYS_futex,
        libc::SYS_wait4,
        libc::SYS_waitid,
        libc::SYS_nanosleep,
        libc::SYS_clock_nanosleep,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let harmless = [
        libc::SYS_mmap,
        libc::SYS_mprotect,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_brk,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_yield,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_getppid,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_lseek,
        // What it changed is taken back before: see the area of minickpt.
        libc::SYS_epoll_ctl,
        libc::SYS_timerfd_gettime,
        libc::SYS_fstat,
        libc::SYS_newfstatat,
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_statx,
        libc::SYS_readlink,
        libc::SYS_readlinkat,
        libc::SYS_faccessat,
        libc::SYS_faccessat2,
        libc::SYS_getcwd,
        libc::SYS_access,
        libc::SYS_getrandom,
        libc::SYS_clock_gettime,
        libc::SYS_gettimeofday,
        libc::SYS_uname,
        libc::SYS_getrusage,
        libc::SYS_sched_getaffinity,
        libc::SYS_set_robust_list,
        libc::SYS_rseq,
        libc::SYS_execve,
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_vfork,
        libc::SYS_fork,
    ];
    let number = number as i64;
    waits.contains(&number)
        || harmless.contains(&number)
        || ASKS.contains(&number)
        || SETS.contains(&number)
}

/// Calls that only ask; most of them cannot fail, and programs take what they say as it is.
const ASKS: &[i64] = &[
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getpgrp,
    libc::SYS_getsid,
    libc::SYS_getpriority,
    libc::SYS_getrlimit,
    libc::SYS_getitimer,
    libc::SYS_timer_gettime,
    libc::SYS_timer_getoverrun,
    libc::SYS_getcpu,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_getparam,
    libc::SYS_sched_rr_get_interval,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_get_robust_list,
    libc::SYS_capget,
    libc::SYS_sysinfo,
    libc::SYS_times,
    libc::SYS_time,
    libc::SYS_clock_getres,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_mincore,
    libc::SYS_rt_sigpending,
];

/// Calls that set something to what it then is, however often; none tells what it was before, but
/// for what programs throw away. A new program cannot start without some of them.
const SETS: &[i64] = &[
    libc::SYS_set_tid_address,
    libc::SYS_arch_prctl,
    libc::SYS_prctl,
    libc::SYS_prlimit64,
    libc::SYS_setrlimit,
    libc::SYS_sigaltstack,
    libc::SYS_setitimer,
    libc::SYS_timer_settime,
    libc::SYS_timerfd_settime,
    libc::SYS_setpgid,
    libc::SYS_setpriority,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_setsockopt,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_chown,
    libc::SYS_fchown,
    libc::SYS_lchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_sync,
    libc::SYS_syncfs,
    libc::SYS_sync_file_range,
    libc::SYS_msync,
    libc::SYS_membarrier,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
    libc::SYS_munlock,
    libc::SYS_munlockall,
];

/// True for an open(2) that may be made once more: one that must make its file may have. Programs
/// expect no EINTR from it.
fn opens(registers: &[u64]) -> bool {
    let flags = match registers[reg::ORIG_RAX] as i64 {
        libc::SYS_open => registers[reg::RSI],
        libc::SYS_openat => registers[reg::RDX],
        _ => return false,
    };
    flags & libc::O_EXCL as u64 == 0
}

/// True for a call of fcntl(2) that asks or sets what it then is, however often.
fn locks(registers: &[u64]) -> bool {
    const OF_DESCRIPTIONS: [i32; 3] = [36, 37, 38];
    let command = registers[reg::RSI] as i32;
    registers[reg::ORIG_RAX] as i64 == libc::SYS_fcntl
        && ((libc::F_GETFD..=libc::F_SETLKW).contains(&command)
            || OF_DESCRIPTIONS.contains(&command))
}

/// What a wait that the kernel goes on with by restart_syscall(2) was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// nanosleep(2) or clock_nanosleep(2), for a time.
    Sleep,
    /// futex(2) with a time.
    Futex,
    /// poll(2) with a time.
    Poll,
}

/// Gives the call its own number again if it goes on by restart_syscall(2): its arguments are
/// where they were. After a signal without a handler the kernel makes that call in the place of
/// one that waits for a time; what is left of it is known to the kernel alone, so it waits anew.
pub fn unrestart(registers: &mut [u64], wait: Wait) {
    if registers[reg::ORIG_RAX] as i64 != libc::SYS_restart_syscall {
        return;
    }
    /// Numbers of clocks are small, and no address is.
    const CLOCKS: u64 = 4096;
    let number = match wait {
        Wait::Futex => libc::SYS_futex,
        Wait::Poll => libc::SYS_poll,
        Wait::Sleep if registers[reg::RDI] < CLOCKS => libc::SYS_clock_nanosleep,
        Wait::Sleep => libc::SYS_nanosleep,
    };
    registers[reg::ORIG_RAX] = number as u64;
}

/// True for an ioctl(2) of a terminal that only asks, as each program does at its first output.
fn asks_terminal(registers: &[u64]) -> bool {
    const ASKING: [libc::c_ulong; 4] = [
        libc::TCGETS,
        libc::TIOCGWINSZ,
        libc::TIOCGPGRP,
        libc::FIONREAD,
    ];
    registers[reg::ORIG_RAX] as i64 == libc::SYS_ioctl
        && ASKING.contains(&(registers[reg::RSI] & 0xffff_ffff))
}

/// Makes registers ready to run in user mode, and says what became of a call.
pub fn settle(registers: &mut [u64]) -> Outcome {
    let number = registers[reg::ORIG_RAX];
    if (number as i64) < 0 {
        return Outcome::None;
    }
    let opens = opens(registers) || locks(registers) || asks_terminal(registers);
    registers[reg::ORIG_RAX] = u64::MAX;
    let result = registers[reg::RAX] as i64;
    let again = match result {
        // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND: as the kernel without a handler.
        -514..=-512 => true,
        // ERESTART_RESTARTBLOCK keeps its state in the kernel, which is gone: the call
        // runs again from its arguments.
        -516 | ENOSYS => opens || repeatable(number),
        _ => return Outcome::Finished,
    };
    // rt_sigsuspend and pause wait for a signal: they wait again.
    let suspended = [libc::SYS_rt_sigsuspend, libc::SYS_pause].contains(&(number as i64));
    if again || suspended {
        registers[reg::RAX] = number;
        registers[reg::RIP] = registers[reg::RIP].wrapping_sub(CALL_BYTES);
        Outcome::Again
    } else {
        registers[reg::RAX] = EINTR as u64;
        Outcome::Interrupted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_call(number: i64, result: i64) -> Vec<u64> {
        let mut registers = vec![0; 27];
        registers[reg::ORIG_RAX] = number as u64;
        registers[reg::RAX] = result as u64;
        registers[reg::RIP] = 1000;
        registers
    }

    #[test]
    fn a_wait_runs_again_from_its_instruction() {
        for (number, result) in [
            (libc::SYS_futex, -512),
            (libc::SYS_read, ENOSYS),
            (libc::SYS_clock_nanosleep, -516),
            (libc::SYS_rt_sigsuspend, -514),
        ] {
            let mut registers = in_call(number, result);
            assert_eq!(settle(&mut registers), Outcome::Again);
            assert_eq!(registers[reg::RIP], 998);
            assert_eq!(registers[reg::RAX], number as u64);
            // The kernel must not restart it once more.
            assert_eq!(registers[reg::ORIG_RAX], u64::MAX);
        }
    }

    #[test]
    fn a_wait_that_the_kernel_went_on_with_is_the_call_that_it_was() {
        for (wait, first, number) in [
            (Wait::Sleep, 1, libc::SYS_clock_nanosleep),
            (Wait::Sleep, 0x7fff_0000, libc::SYS_nanosleep),
            (Wait::Futex, 0x7fff_0000, libc::SYS_futex),
            (Wait::Poll, 0x7fff_0000, libc::SYS_poll),
        ] {
            for result in [ENOSYS, -516] {
                let mut registers = in_call(libc::SYS_restart_syscall, result);
                registers[reg::RDI] = first;
                unrestart(&mut registers, wait);
                assert_eq!(settle(&mut registers), Outcome::Again);
                assert_eq!(
                    (registers[reg::RAX], registers[reg::RIP]),
                    (number as u64, 998)
                );
            }
        }
        let mut registers = in_call(libc::SYS_read, ENOSYS);
        unrestart(&mut registers, Wait::Poll);
        assert_eq!(registers, in_call(libc::SYS_read, ENOSYS));
    }

    #[test]
    fn a_file_is_opened_again_unless_it_must_be_new() {
        for (number, place) in [(libc::SYS_open, reg::RSI), (libc::SYS_openat, reg::RDX)] {
            for (flags, outcome) in [
                (libc::O_RDWR | libc::O_CREAT, Outcome::Again),
                (
                    libc::O_RDWR | libc::O_CREAT | libc::O_EXCL,
                    Outcome::Interrupted,
                ),
            ] {
                let mut registers = in_call(number, ENOSYS);
                registers[place] = flags as u64;
                assert_eq!(settle(&mut registers), outcome);
            }
        }
    }

    #[test]
    fn other_calls_end_with_eintr_and_results_stand() {
        let mut registers = in_call(libc::SYS_ioctl, ENOSYS);
        assert_eq!(settle(&mut registers), Outcome::Interrupted);
        assert_eq!(registers[reg::RAX] as i64, -4);
        assert_eq!(registers[reg::RIP], 1000);
        // What cannot fail does not, and who asks a terminal is told what it is.
        for number in [libc::SYS_getuid, libc::SYS_set_tid_address] {
            assert_eq!(settle(&mut in_call(number, ENOSYS)), Outcome::Again);
        }
        let mut registers = in_call(libc::SYS_ioctl, ENOSYS);
        registers[reg::RSI] = libc::TCGETS;
        assert_eq!(settle(&mut registers), Outcome::Again);
        let mut registers = in_call(libc::SYS_ioctl, 7);
        assert_eq!(settle(&mut registers), Outcome::Finished);
        assert_eq!(registers[reg::RAX], 7);
        let mut user = in_call(-1, ENOSYS);
        assert_eq!(settle(&mut user), Outcome::None);
        assert_eq!(user, in_call(-1, ENOSYS));
    }
}

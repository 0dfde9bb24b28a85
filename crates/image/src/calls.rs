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
    waits.contains(&number) || harmless.contains(&number)
}

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

/// Makes registers ready to run in user mode, and says what became of a call.
pub fn settle(registers: &mut [u64]) -> Outcome {
    let number = registers[reg::ORIG_RAX];
    if (number as i64) < 0 {
        return Outcome::None;
    }
    let opens = opens(registers) || locks(registers);
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
        let mut registers = in_call(libc::SYS_ioctl, 7);
        assert_eq!(settle(&mut registers), Outcome::Finished);
        assert_eq!(registers[reg::RAX], 7);
        let mut user = in_call(-1, ENOSYS);
        assert_eq!(settle(&mut user), Outcome::None);
        assert_eq!(user, in_call(-1, ENOSYS));
    }
}

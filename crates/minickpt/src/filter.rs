//! Which system calls of a protected program meet the supervisor.
//!
//! A seccomp program (classic BPF) decides in the kernel: calls that change the memory
//! map or make processes stop at the supervisor, everything else runs at full speed: it
//! is allowed by its number alone, so that since Linux 5.11 the kernel has it in a bitmap
//! and does not run the program. Calls from the gate are the supervisor's own and pass.

use outlive_image::calls::reg;
use outlive_image::gate::GATE;

use crate::memory::PROTECT_AHEAD;
use crate::supervisor::files::{Files, OPENS, changes};

/// What to do when a program makes a descriptor that cannot be brought back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Special {
    /// The call fails with ENOSYS and the launcher says why.
    #[default]
    Refuse,
    /// The same for those that are kept elsewhere: the module does not know this kernel's.
    RefuseAll,
    /// It is made; after a panic each call on it fails with EBADF, which is told.
    Lose,
}

const ALLOW: u32 = 0x7fff_0000;
const TRACE: u32 = 0x7ff0_0000;
const ERRNO: u32 = 0x0005_0000;
const ARCH_X86_64: u32 = 0xc000_003e;
// Offsets in struct seccomp_data.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const POINTER_LOW: u32 = 8;
const POINTER_HIGH: u32 = 12;
const ARGUMENT_0: u32 = 16;
const LENGTH_LOW: u32 = 24;
const LENGTH_HIGH: u32 = 28;
const ARGUMENT_1: u32 = 24;
const ARGUMENT_2: u32 = 32;
// Instructions of classic BPF.
const LOAD: u16 = 0x20;
const EQUAL: u16 = 0x15;
const AT_LEAST: u16 = 0x35;
const MORE: u16 = 0x25;
const ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Calls that make memory that no file of ours can hold.
const ABSENT: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_userfaultfd,
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_process_madvise,
    libc::SYS_remap_file_pages,
];

/// Calls that make descriptors with a state in the kernel that is kept.
pub const KEPT: &[(i64, &str)] = &[
    (libc::SYS_signalfd, "signalfd"),
    (libc::SYS_signalfd4, "signalfd"),
    (libc::SYS_timerfd_create, "timerfd"),
    (libc::SYS_eventfd, "eventfd"),
    (libc::SYS_eventfd2, "eventfd"),
    (libc::SYS_epoll_create, "epoll"),
    (libc::SYS_epoll_create1, "epoll"),
];

/// Calls that make descriptors with a state in the kernel that is not kept.
pub const SPECIAL: &[(i64, &str)] = &[
    (libc::SYS_inotify_init, "inotify"),
    (libc::SYS_inotify_init1, "inotify"),
    (libc::SYS_fanotify_init, "fanotify"),
    (libc::SYS_perf_event_open, "perf_event"),
    (libc::SYS_pidfd_open, "pidfd"),
];

/// Calls after which a process is not the one that was registered, or stands elsewhere: its
/// namespaces, and tables that threads no longer share, are not saved.
pub const APART: &[(i64, &str)] = &[(libc::SYS_unshare, "unshare"), (libc::SYS_setns, "setns")];

type Step = (u16, u8, u8, u32);

/// What is done about calls on files, by their numbers.
fn file_calls() -> Vec<(i64, Vec<Step>)> {
    // What is opened for writing; what is only read is allowed.
    let open = |flags| {
        vec![
            (LOAD, 0, 0, flags),
            (ANY_BIT, 0, 1, libc::O_ACCMODE as u32),
            (RETURN, 0, 0, TRACE),
            (RETURN, 0, 0, ALLOW),
        ]
    };
    let place = |place| {
        if place == reg::RSI {
            ARGUMENT_1
        } else {
            ARGUMENT_2
        }
    };
    let opens = OPENS
        .iter()
        .map(|(number, flags)| (*number, open(place(*flags))));
    let changes = changes().map(|number| (number, vec![(RETURN, 0, 0, TRACE)]));
    // Their flags are elsewhere: programs fall back to the others.
    let absent = [libc::SYS_openat2, libc::SYS_open_by_handle_at];
    let none = vec![(RETURN, 0, 0, ERRNO | libc::ENOSYS as u32)];
    let absent = absent.map(|number| (number, none.clone()));
    opens.chain(changes).chain(absent).collect()
}

/// The program as `struct sock_filter`s: code u16, jumps u8 u8, value u32.
pub fn program(special: Special, files: Files) -> Vec<u8> {
    let mut numbers = Vec::new();
    let mut code: Vec<Step> = Vec::new();
    let mut on = |number: i64, then: &[Step]| {
        numbers.push(number as u32);
        code.push((EQUAL, 0, then.len() as u8, number as u32));
        code.extend_from_slice(then);
    };
    for number in [
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_fork,
        libc::SYS_vfork,
    ] {
        on(number, &[(RETURN, 0, 0, TRACE)]);
    }
    // The program then finds its heap by mmap.
    on(libc::SYS_brk, &[(RETURN, 0, 0, ERRNO)]);
    let advice = [
        libc::MADV_DONTNEED,
        libc::MADV_FREE,
        libc::MADV_REMOVE,
        libc::MADV_DONTNEED_LOCKED,
    ];
    let mut madvise = vec![(LOAD, 0, 0, ARGUMENT_2)];
    for value in advice {
        madvise.extend([(EQUAL, 0, 1, value as u32), (RETURN, 0, 0, TRACE)]);
    }
    madvise.push((RETURN, 0, 0, ALLOW));
    on(libc::SYS_madvise, &madvise);
    // Memory that becomes writable is zeroed ahead (see crate::memory), but not much of it.
    let mprotect = [
        (LOAD, 0, 0, ARGUMENT_2),
        (ANY_BIT, 0, 5, libc::PROT_WRITE as u32),
        (LOAD, 0, 0, LENGTH_HIGH),
        (EQUAL, 0, 3, 0),
        (LOAD, 0, 0, LENGTH_LOW),
        (MORE, 1, 0, PROTECT_AHEAD as u32),
        (RETURN, 0, 0, TRACE),
        (RETURN, 0, 0, ALLOW),
    ];
    on(libc::SYS_mprotect, &mprotect);
    // All but threads: a thread stops at its birth only.
    let clone = [
        (LOAD, 0, 0, ARGUMENT_0),
        (ANY_BIT, 0, 1, libc::CLONE_THREAD as u32),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, TRACE),
    ];
    on(libc::SYS_clone, &clone);
    for number in ABSENT {
        on(*number, &[(RETURN, 0, 0, ERRNO | libc::ENOSYS as u32)]);
    }
    let kept = KEPT.iter().filter(|_| special == Special::RefuseAll);
    let others = SPECIAL.iter().chain(APART);
    let others = others.filter(|_| special != Special::Lose);
    for (number, _) in kept.chain(others) {
        on(*number, &[(RETURN, 0, 0, TRACE)]);
    }
    if files == Files::Through {
        for (number, steps) in file_calls() {
            on(number, &steps);
        }
    }
    code.push((RETURN, 0, 0, ALLOW));
    // Nothing but architecture and number may be looked at before the others are allowed.
    let mut whole = vec![
        (LOAD, 0, 0, ARCH),
        (EQUAL, 1, 0, ARCH_X86_64),
        (RETURN, 0, 0, ERRNO | libc::ENOSYS as u32),
        (LOAD, 0, 0, NUMBER),
    ];
    for (at, number) in numbers.iter().enumerate() {
        whole.push((EQUAL, (numbers.len() - at) as u8, 0, *number));
    }
    whole.extend([
        (RETURN, 0, 0, ALLOW),
        (LOAD, 0, 0, POINTER_HIGH),
        (EQUAL, 0, 3, (GATE >> 32) as u32),
        (LOAD, 0, 0, POINTER_LOW),
        (AT_LEAST, 1, 0, 0x1000),
        (RETURN, 0, 0, ALLOW),
        (LOAD, 0, 0, NUMBER),
    ]);
    whole.append(&mut code);
    let mut bytes = Vec::with_capacity(whole.len() * 8);
    for (operation, yes, no, value) in whole {
        bytes.extend_from_slice(&operation.to_le_bytes());
        bytes.extend_from_slice(&[yes, no]);
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program says of a call, and whether it looked at architecture and number
    /// only, as the kernel's bitmap demands.
    fn run(number: i64, pointer: u64, arguments: [u64; 3]) -> (u32, bool) {
        let mut data = vec![number as u32, ARCH_X86_64];
        for word in [pointer, arguments[0], arguments[1], arguments[2]] {
            data.extend([word as u32, (word >> 32) as u32]);
        }
        let code = program(Special::Refuse, Files::Through);
        let (mut at, mut word, mut constant) = (0, 0, true);
        loop {
            let step: &[u8; 8] = code[at * 8..][..8].try_into().unwrap();
            let value = u32::from_le_bytes(step[4..].try_into().unwrap());
            let holds = match u16::from_le_bytes([step[0], step[1]]) {
                LOAD => {
                    constant &= [NUMBER, ARCH].contains(&value);
                    word = data[value as usize / 4];
                    at += 1;
                    continue;
                }
                RETURN => return (value, constant),
                EQUAL => word == value,
                AT_LEAST => word >= value,
                MORE => word > value,
                ANY_BIT => word & value != 0,
                other => panic!("{other:x}"),
            };
            at += 1 + usize::from(step[if holds { 2 } else { 3 }]);
        }
    }

    #[test]
    fn what_is_not_ours_is_allowed_by_its_number_and_the_gate_may_do_all() {
        let program = 0x40_0000;
        for number in [libc::SYS_read, libc::SYS_futex, libc::SYS_rt_sigreturn, 334] {
            assert_eq!(run(number, program, [0; 3]), (ALLOW, true));
        }
        let refused = ERRNO | libc::ENOSYS as u32;
        let dropped = [0, 4096, libc::MADV_DONTNEED as u64];
        let kept = [0, 4096, libc::MADV_WILLNEED as u64];
        let thread = [libc::CLONE_THREAD as u64, 0, 0];
        for (number, arguments, expected) in [
            (libc::SYS_mmap, [0; 3], TRACE),
            (libc::SYS_fork, [0; 3], TRACE),
            (libc::SYS_brk, [0; 3], ERRNO),
            (libc::SYS_madvise, dropped, TRACE),
            (libc::SYS_madvise, kept, ALLOW),
            (libc::SYS_mprotect, [0, 0, libc::PROT_WRITE as u64], TRACE),
            (libc::SYS_mprotect, [0, 0, libc::PROT_READ as u64], ALLOW),
            (libc::SYS_mprotect, [0, PROTECT_AHEAD, 3], TRACE),
            (libc::SYS_mprotect, [0, PROTECT_AHEAD + 1, 3], ALLOW),
            (libc::SYS_mprotect, [0, 1 << 32, 3], ALLOW),
            (libc::SYS_clone, thread, ALLOW),
            (libc::SYS_clone, [0; 3], TRACE),
            (libc::SYS_shmat, [0; 3], refused),
            (libc::SYS_pidfd_open, [0; 3], TRACE),
            (libc::SYS_unshare, [0; 3], TRACE),
            (libc::SYS_eventfd2, [0; 3], ALLOW),
            (libc::SYS_open, [0, libc::O_RDONLY as u64, 0], ALLOW),
            (libc::SYS_open, [0, libc::O_RDWR as u64, 0], TRACE),
            (libc::SYS_openat, [0, 0, libc::O_WRONLY as u64], TRACE),
            (libc::SYS_openat, [0, 0, libc::O_CLOEXEC as u64], ALLOW),
            (libc::SYS_renameat2, [0; 3], TRACE),
            (libc::SYS_openat2, [0; 3], refused),
        ] {
            for place in [program, GATE - 2, GATE + 0x1000, GATE + (1 << 32)] {
                assert_eq!(run(number, place, arguments).0, expected, "{number}");
            }
            assert_eq!(run(number, GATE + 0x20, arguments).0, ALLOW, "{number}");
        }
    }
}

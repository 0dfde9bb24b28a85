//! What open files hold in the kernel: locks, counters, times, what is watched, what was not
//! yet read; and calls that were changing it when the kernel died.
//!
//! A call that was under way is made again. One that slept had done nothing; of one that ran
//! nobody knows whether it had, so what it was changing is given up by its name.

use outlive_image::model::{Lock, LockKind, OpenFile};

use super::Bytes;

const SPECIAL_BYTES: usize = 64;
const DAMAGED: u32 = 1;
const ABSOLUTE: u32 = 1 << 1;
const NAMED: u32 = 1 << 2;
/// TFD_TIMER_ABSTIME.
const ABSTIME: u64 = 1;

/// A lock of a description or of a process, or why it cannot be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Held {
    Description(u64, Lock),
    Process(i32, Lock),
    Lease(i32),
}

/// The locks of a process.
pub(super) fn locks(records: &[u8]) -> impl Iterator<Item = Held> {
    records.chunks_exact(32).map(|entry| {
        let entry = Bytes(entry);
        let (fd, about) = (entry.i32(8), entry.u32(12));
        let lock = |kind| Lock {
            kind,
            exclusive: about >> 16 == libc::F_WRLCK as u32,
            start: entry.u64(16),
            end: entry.u64(24).max(entry.u64(16)),
        };
        match about & 0xffff {
            1 => Held::Description(entry.u64(0), lock(LockKind::Whole)),
            2 => Held::Description(entry.u64(0), lock(LockKind::Range)),
            3 => Held::Process(fd, lock(LockKind::Range)),
            _ => Held::Lease(fd),
        }
    })
}

/// Pieces of what the descriptions of a process hold; `None` for one that was lost.
pub(super) fn held(records: &[u8], description: u64) -> Option<Vec<Vec<u8>>> {
    let (mut at, mut found) = (0, Vec::new());
    while let Some(bytes) = records.get(at..).filter(|rest| rest.len() >= 16) {
        let head = Bytes(bytes);
        let length = head.u32(8) as usize;
        if head.u64(0) == description {
            found.push(
                bytes
                    .get(16..16 + length)
                    .filter(|_| head.u32(12) == 0)?
                    .to_vec(),
            );
        }
        at += 16 + length.next_multiple_of(8);
    }
    Some(found)
}

/// What a descriptor is that is neither file, pipe nor device.
pub(super) fn special(specials: &[u8], held_by: Option<&[u8]>, description: u64) -> OpenFile {
    let mut entries = specials.chunks_exact(SPECIAL_BYTES).map(Bytes);
    let Some(entry) = entries.find(|entry| entry.u64(0) == description) else {
        return OpenFile::Gone("a descriptor of which nothing was saved".to_owned());
    };
    let (kind, flags) = (entry.u32(8), entry.u32(12));
    let value = |at: usize| entry.u64(16 + at * 8);
    let name = entry.text(48, 16);
    let name = name.trim_matches(['[', ']']);
    if flags & DAMAGED != 0 {
        return OpenFile::Gone(format!(
            "a descriptor of kind {name} that was being changed"
        ));
    }
    match kind {
        1 if value(1) == 0 => OpenFile::Event(value(0)),
        1 => OpenFile::Semaphore(value(0)),
        2 => {
            // A relative time is what is left of it, however it was set.
            let set = value(0) >> 32 & !ABSTIME;
            let absolute = flags & ABSOLUTE != 0;
            OpenFile::Timer {
                clock: value(0) as i32,
                flags: if absolute { (set | ABSTIME) as i32 } else { 0 },
                interval_ns: value(1),
                next_ns: value(2),
                expired: value(3),
            }
        }
        3 => OpenFile::Epoll(Vec::new()),
        4 if flags & NAMED == 0 => {
            let Some(held) = held_by.and_then(|bytes| held(bytes, description)) else {
                return OpenFile::Gone("a socket that held what is not kept".to_owned());
            };
            OpenFile::Pair {
                id: value(0),
                peer: value(1),
                kind: value(2) as i32,
                shut: (value(2) >> 32) as u32,
                held,
            }
        }
        4 => OpenFile::Socket,
        // The kernel holds which signals not to take.
        5 => OpenFile::Signals(!value(0)),
        _ => OpenFile::Gone(format!("a descriptor of kind {name}")),
    }
}

/// A call that was under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    /// It may have moved something through this descriptor.
    Moves(i32),
    /// epoll_wait(2) that did not sleep.
    Waits(i32),
    /// epoll_ctl(2): epoll, operation, descriptor.
    Watches(i32, i32, i32),
}

/// What the thread of a record was doing.
pub(super) fn calls(thread: Bytes<'_>) -> Vec<Call> {
    const IN_CALL: u32 = 1 << 1;
    const EXITING: u32 = 1 << 4;
    const SLEEPS: u32 = 1;
    /// A pipe takes as much at once or not at all.
    const PIPE_BUF: u64 = 4096;
    const WAITALL: u64 = 0x100;
    let flags = thread.u32(8);
    if flags & IN_CALL == 0 || flags & EXITING != 0 {
        return Vec::new();
    }
    let sleeps = thread.u32(276) & SLEEPS != 0;
    let word = |register: usize| thread.u64(16 + register * 8);
    let (rdi, rsi, rdx, r10) = (word(14), word(13), word(12), word(7));
    let moves = |sure: bool, fds: &[u64]| -> Vec<Call> {
        let fds = fds.iter().filter(|_| !sure);
        fds.map(|fd| Call::Moves(*fd as i32)).collect()
    };
    match word(15) as i64 {
        libc::SYS_read | libc::SYS_readv | libc::SYS_pread64 | libc::SYS_preadv => {
            moves(sleeps, &[rdi])
        }
        libc::SYS_recvfrom => moves(sleeps && r10 & WAITALL == 0, &[rdi]),
        libc::SYS_recvmsg => moves(sleeps && rdx & WAITALL == 0, &[rdi]),
        libc::SYS_write => moves(sleeps && rdx <= PIPE_BUF, &[rdi]),
        libc::SYS_writev
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_recvmmsg
        | libc::SYS_vmsplice => moves(false, &[rdi]),
        libc::SYS_sendfile | libc::SYS_tee => moves(false, &[rdi, rsi]),
        libc::SYS_splice => moves(false, &[rdi, rdx]),
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 if !sleeps => {
            vec![Call::Waits(rdi as i32)]
        }
        libc::SYS_epoll_ctl => vec![Call::Watches(rdi as i32, rsi as i32, rdx as i32)],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn two(low: u64, high: u64) -> u64 {
        low | high << 32
    }

    #[test]
    fn locks_are_of_the_description_or_of_the_process() {
        let write = libc::F_WRLCK as u64;
        let bytes = words(
            &[
                [7, two(3, 1), 0, i64::MAX as u64],
                [7, two(3, 2 | write << 16), 5, 9],
                [7, two(4, 3 | write << 16), 5, 9],
                [8, two(9, 4), 0, 0],
            ]
            .concat(),
        );
        let lock = |kind, exclusive, start, end| Lock {
            kind,
            exclusive,
            start,
            end,
        };
        let found: Vec<Held> = locks(&bytes).collect();
        assert_eq!(
            found,
            [
                Held::Description(7, lock(LockKind::Whole, false, 0, i64::MAX as u64)),
                Held::Description(7, lock(LockKind::Range, true, 5, 9)),
                Held::Process(4, lock(LockKind::Range, true, 5, 9)),
                Held::Lease(9),
            ]
        );
    }

    #[test]
    fn each_kind_is_known_and_others_by_their_name() {
        let entry = |kind: u64, flags: u64, value: [u64; 4], name: &str| {
            let mut bytes = words(&[[77, two(kind, flags)], [value[0], value[1]]].concat());
            bytes.extend(words(&value[2..]));
            bytes.extend_from_slice(name.as_bytes());
            bytes.resize(SPECIAL_BYTES, 0);
            bytes
        };
        let chunk = |length: u64, lost: u64, text: &[u8]| {
            let mut bytes = words(&[77, two(length, lost)]);
            bytes.extend_from_slice(text);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes
        };
        let held_by = [chunk(3, 0, b"abc"), chunk(0, 0, b"")].concat();
        let is = |bytes: &[u8]| special(bytes, Some(&held_by), 77);
        assert_eq!(is(&entry(1, 0, [5, 0, 0, 0], "")), OpenFile::Event(5));
        assert_eq!(is(&entry(1, 0, [5, 1, 0, 0], "")), OpenFile::Semaphore(5));
        assert_eq!(is(&entry(5, 0, [!6, 0, 0, 0], "")), OpenFile::Signals(6));
        let timer = |flags, next_ns| OpenFile::Timer {
            clock: 1,
            flags,
            interval_ns: 8,
            next_ns,
            expired: 2,
        };
        // An absolute time of a clock that starts anew is what is left of it.
        assert_eq!(is(&entry(2, 0, [two(1, 1), 8, 9, 2], "")), timer(0, 9));
        assert_eq!(is(&entry(2, 2, [two(1, 3), 8, 9, 2], "")), timer(3, 9));
        let OpenFile::Pair { held, shut, .. } = is(&entry(4, 0, [1, 2, two(1, 2), 0], "")) else {
            panic!("no pair");
        };
        assert_eq!((held, shut), (vec![b"abc".to_vec(), Vec::new()], 2));
        assert_eq!(is(&entry(4, 4, [1, 2, 1, 0], "")), OpenFile::Socket);
        let gone = |bytes: &[u8], held: Option<&[u8]>, word: &str| {
            let OpenFile::Gone(why) = special(bytes, held, 77) else {
                panic!("{word}");
            };
            assert!(why.contains(word), "{why}");
        };
        gone(&entry(0, 0, [0; 4], "[pidfd]"), None, "kind pidfd");
        gone(&entry(3, 1, [0; 4], "[eventpoll]"), None, "being changed");
        gone(
            &entry(4, 0, [1, 2, 1, 0], ""),
            Some(&chunk(0, 1, b"")),
            "held",
        );
        gone(&[], None, "nothing was saved");
    }

    #[test]
    fn a_call_that_slept_had_done_nothing() {
        let thread = |number: i64, state: u32, rdx: u64| {
            let mut bytes = vec![0; 576];
            bytes[8] = 2;
            bytes[276..280].copy_from_slice(&state.to_le_bytes());
            for (register, value) in [(15, number as u64), (14, 3), (12, rdx), (13, 1)] {
                bytes[16 + register * 8..][..8].copy_from_slice(&value.to_le_bytes());
            }
            calls(Bytes(&bytes))
        };
        let moves = [Call::Moves(3)];
        assert_eq!(thread(libc::SYS_read, 1, 0), []);
        assert_eq!(thread(libc::SYS_read, 0, 0), moves);
        assert_eq!(thread(libc::SYS_write, 1, 4096), []);
        assert_eq!(thread(libc::SYS_write, 1, 4097), moves);
        assert_eq!(thread(libc::SYS_recvmsg, 1, 0x100), moves);
        assert_eq!(thread(libc::SYS_sendmsg, 1, 0), moves);
        assert_eq!(thread(libc::SYS_epoll_wait, 1, 0), []);
        assert_eq!(thread(libc::SYS_epoll_wait, 0, 0), [Call::Waits(3)]);
        assert_eq!(thread(libc::SYS_epoll_ctl, 1, 9), [Call::Watches(3, 1, 9)]);
        assert_eq!(thread(libc::SYS_getpid, 0, 0), []);
    }
}

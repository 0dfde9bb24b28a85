//! Threads and processes that were being made, or were ending, when the kernel died.
//!
//! The maker is still in clone(2) when its thread is there already, and may run. Making
//! the call again would put a second thread on the same stack: the call ends with the
//! number of the thread instead. A thread that never ran is left out, and made again.
//!
//! So it is with a process, which is kept as soon as it has memory of its own. Which one a
//! call made is in the journal.

use std::collections::BTreeMap;

use outlive_image::calls::reg;
use outlive_image::model::{Process, Thread};

const ENOSYS: u64 = -38i64 as u64;
/// TASK_NEW of include/linux/sched.h: in the lists, but not yet let run.
const NEVER_RAN: u32 = 0x800;

/// True for a thread that does not come back, by its record: whether it was `exiting`, its
/// `call`, the word that is cleared at its end (0 when it was), and its `state`.
///
/// One that never ran is made again: what its maker is told (CLONE_PARENT_SETTID) is written
/// before it runs, so it may not have been. One that was ending is wanted until its word is
/// cleared, for which others wait: it ends again.
pub fn left_out(exiting: bool, call: u64, clear_tid: u64, state: u32) -> bool {
    let ended = exiting && (clear_tid == 0 || call != libc::SYS_exit as u64);
    ended || state & NEVER_RAN != 0
}

/// True if the call in flight makes a thread. clone3(2) is absent for programs.
pub fn makes_thread(registers: &[u64]) -> bool {
    let clone = registers[reg::ORIG_RAX] == libc::SYS_clone as u64;
    clone && registers[reg::RDI] & libc::CLONE_THREAD as u64 != 0
}

/// A call that makes a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Birth {
    maker: i32,
    flags: u64,
    child_tid: u64,
    tls: u64,
    /// Behind the call.
    rip: u64,
}

impl Birth {
    /// The birth that `maker` was in the middle of, by its registers in the kernel.
    pub fn of(maker: i32, registers: &[u64]) -> Option<Birth> {
        (makes_thread(registers) && registers[reg::RAX] == ENOSYS).then_some(Birth {
            maker,
            flags: registers[reg::RDI],
            child_tid: registers[reg::R10],
            tls: registers[reg::R8],
            rip: registers[reg::RIP],
        })
    }

    /// True for the thread that this call made: no two have the same memory of their own.
    fn made(&self, thread: &Thread) -> bool {
        let has = |flag: i32| self.flags & flag as u64 != 0;
        thread.tid != self.maker
            && if has(libc::CLONE_CHILD_CLEARTID) {
                thread.clear_tid == self.child_tid
            } else {
                has(libc::CLONE_SETTLS) && thread.registers[reg::FS_BASE] == self.tls
            }
    }
}

/// Ends the calls whose threads are there.
pub fn finish(threads: &mut [Thread], births: &[Birth]) {
    for birth in births {
        let Some(child) = threads.iter().find(|thread| birth.made(thread)) else {
            continue;
        };
        let child = child.tid;
        if let Some(maker) = threads.iter_mut().find(|thread| thread.tid == birth.maker) {
            maker.registers[reg::RAX] = child as u64;
            maker.registers[reg::ORIG_RAX] = u64::MAX;
            maker.registers[reg::RIP] = birth.rip;
        }
    }
}

/// True if the process that this call makes lives in its maker's memory.
pub fn shares(registers: &[u64]) -> bool {
    match registers[reg::ORIG_RAX] as i64 {
        libc::SYS_vfork => true,
        libc::SYS_clone => registers[reg::RDI] & libc::CLONE_VM as u64 != 0,
        _ => false,
    }
}

/// A call that makes a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fork {
    maker: i32,
    /// Behind the call.
    rip: u64,
}

impl Fork {
    /// The call that `maker` was in the middle of, by its registers in the kernel.
    pub fn of(maker: i32, registers: &[u64]) -> Option<Fork> {
        let makes = match registers[reg::ORIG_RAX] as i64 {
            libc::SYS_fork | libc::SYS_vfork => true,
            libc::SYS_clone => registers[reg::RDI] & libc::CLONE_THREAD as u64 == 0,
            _ => false,
        };
        (makes && registers[reg::RAX] == ENOSYS).then_some(Fork {
            maker,
            rip: registers[reg::RIP],
        })
    }
}

/// Ends the calls whose processes are there, by the journal's `children`.
pub fn finish_forks(processes: &mut [Process], forks: &[Fork], children: &BTreeMap<i32, i32>) {
    for fork in forks {
        let child = children.get(&fork.maker).copied();
        let Some(child) = child.filter(|pid| processes.iter().any(|p| p.pid == *pid)) else {
            continue;
        };
        let mut threads = processes.iter_mut().flat_map(|p| &mut p.threads);
        if let Some(maker) = threads.find(|thread| thread.tid == fork.maker) {
            maker.registers[reg::RAX] = child as u64;
            maker.registers[reg::ORIG_RAX] = u64::MAX;
            maker.registers[reg::RIP] = fork.rip;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: i32 = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SETTLS;

    fn thread(tid: i32, clear_tid: u64, tls: u64) -> Thread {
        let mut registers = vec![0; 27];
        registers[reg::FS_BASE] = tls;
        registers[reg::RIP] = 0x1002;
        registers[reg::ORIG_RAX] = u64::MAX;
        Thread {
            tid,
            registers,
            clear_tid,
            ..Thread::default()
        }
    }

    /// Thread 7 in clone(2) for a thread whose own memory is at 0x9000.
    fn maker(flags: i32) -> (Thread, Birth) {
        let mut made = thread(7, 0x8010, 0x8000);
        made.registers[reg::ORIG_RAX] = libc::SYS_clone as u64;
        made.registers[reg::RAX] = ENOSYS;
        made.registers[reg::RDI] = flags as u64;
        made.registers[reg::R10] = 0x9010;
        made.registers[reg::R8] = 0x9000;
        let birth = Birth::of(7, &made.registers).unwrap();
        outlive_image::calls::settle(&mut made.registers);
        (made, birth)
    }

    fn told(threads: &[Thread]) -> (u64, u64) {
        let registers = &threads[0].registers;
        (registers[reg::RAX], registers[reg::RIP])
    }

    #[test]
    fn a_thread_that_is_there_is_not_made_again() {
        for (flags, clear_tid) in [(FLAGS | libc::CLONE_CHILD_CLEARTID, 0x9010), (FLAGS, 0)] {
            let (maker, birth) = maker(flags);
            let mut threads = [
                maker,
                thread(8, 0x7010, 0x7000),
                thread(9, clear_tid, 0x9000),
            ];
            finish(&mut threads, &[birth]);
            assert_eq!(told(&threads), (9, 0x1002));
        }
    }

    #[test]
    fn a_thread_that_is_not_there_is_made_again() {
        let (maker, birth) = maker(FLAGS | libc::CLONE_CHILD_CLEARTID);
        let mut threads = [maker, thread(8, 0x7010, 0x7000)];
        finish(&mut threads, &[birth]);
        assert_eq!(told(&threads), (libc::SYS_clone as u64, 0x1000));
        assert!(left_out(false, 0, 0x9010, 0x800));
        assert!(!left_out(false, 0, 0x9010, 8));
    }

    #[test]
    fn a_thread_ends_again_until_its_word_is_cleared() {
        let exit = libc::SYS_exit as u64;
        assert!(!left_out(true, exit, 0x9010, 0));
        assert!(left_out(true, exit, 0, 0));
        // By a signal: its process ends.
        assert!(left_out(true, libc::SYS_read as u64, 0x9010, 0));
        assert!(!left_out(false, exit, 0, 0));
        // What it was in when it began to end is made again.
        let mut registers = thread(7, 0, 0).registers;
        registers[reg::ORIG_RAX] = exit;
        registers[reg::RAX] = ENOSYS;
        let outcome = outlive_image::calls::settle(&mut registers);
        assert_eq!(outcome, outlive_image::calls::Outcome::Again);
    }

    #[test]
    fn other_calls_make_none() {
        let mut registers = thread(7, 0, 0).registers;
        registers[reg::ORIG_RAX] = libc::SYS_clone as u64;
        registers[reg::RAX] = ENOSYS;
        // A process.
        registers[reg::RDI] = libc::CLONE_VM as u64 | libc::CLONE_VFORK as u64;
        assert_eq!(Birth::of(7, &registers), None);
        registers[reg::RDI] = FLAGS as u64;
        assert!(Birth::of(7, &registers).is_some());
        // Its thread is made: the result is there; or it is to be made again (ERESTARTNOINTR).
        for result in [9, -513i64 as u64] {
            registers[reg::RAX] = result;
            assert_eq!(Birth::of(7, &registers), None);
        }
    }

    /// Process 7 in `call`, and process 8 if it is `there`: where 7 goes on, with which RAX.
    fn forked(call: i64, flags: u64, there: bool, noted: &[(i32, i32)]) -> (u64, u64) {
        let mut maker = thread(7, 0, 0);
        maker.registers[reg::ORIG_RAX] = call as u64;
        maker.registers[reg::RAX] = ENOSYS;
        maker.registers[reg::RDI] = flags;
        let forks: Vec<Fork> = Fork::of(7, &maker.registers).into_iter().collect();
        outlive_image::calls::settle(&mut maker.registers);
        let process = |pid, threads| Process {
            pid,
            threads,
            ..Process::default()
        };
        let mut processes = vec![process(7, vec![maker])];
        if there {
            processes.push(process(8, vec![thread(8, 0, 0)]));
        }
        finish_forks(&mut processes, &forks, &noted.iter().copied().collect());
        told(&processes[0].threads)
    }

    #[test]
    fn a_process_that_is_there_is_not_made_again() {
        let vfork = (libc::CLONE_VM | libc::CLONE_VFORK) as u64;
        for (call, flags) in [
            (libc::SYS_fork, 0),
            (libc::SYS_vfork, 0),
            (libc::SYS_clone, libc::SIGCHLD as u64),
            (libc::SYS_clone, vfork),
        ] {
            let again = (call as u64, 0x1000);
            assert_eq!(forked(call, flags, true, &[(7, 8)]), (8, 0x1002));
            // It was not kept; this call made none: an older one made 8, or another thread.
            assert_eq!(forked(call, flags, false, &[(7, 8)]), again);
            assert_eq!(forked(call, flags, true, &[]), again);
            assert_eq!(forked(call, flags, true, &[(9, 8)]), again);
        }
        // Another call, a thread, and a call that has its result.
        assert_eq!(forked(libc::SYS_read, 0, true, &[(7, 8)]), (0, 0x1000));
        assert_eq!(Fork::of(7, &maker(FLAGS).0.registers), None);
        let mut registers = thread(7, 0, 0).registers;
        registers[reg::ORIG_RAX] = libc::SYS_fork as u64;
        registers[reg::RAX] = 8;
        assert_eq!(Fork::of(7, &registers), None);
    }
}

//! The last steps of a restore: what belongs to threads, and what must come last.

use std::fs::File;
use std::io;

use crate::blame::blame;
use crate::calls::reg;
use crate::gate::{self, List};
use crate::model::{OpenFile, Process, Thread};
use crate::restore::{Built, Restorer};
use crate::rseq;
use crate::skeleton::{credentials, pending};
use crate::sys;
use crate::timers;
use crate::together::{self, Calls};

impl Restorer<'_> {
    /// What belongs to threads, limits, and what must come last.
    pub(crate) fn finish_all(&self, built: &[Built]) -> io::Result<()> {
        let all = || self.image.processes.iter().zip(built);
        let lanes = all().map(|(process, (pid, tids))| {
            let mut lane = Calls::new(*pid, process.pid)?;
            self.foreground(process, &mut lane.list);
            for (thread, tid) in process.threads.iter().zip(tids) {
                lane.turn(*tid);
                self.thread(process, thread, *tid, &mut lane.list);
                // It stands on no stack of its own while it runs this list.
                let mut registers = sys::registers(*tid)?;
                registers[reg::RSP] = gate::GATE + gate::GATE_BYTES - 4096;
                sys::set_registers(*tid, &registers)?;
            }
            Ok(lane)
        });
        together::run(lanes).1?;
        let mut gates = Vec::new();
        for (process, (pid, tids)) in all() {
            let memory = gate::memory(*pid)?;
            for (thread, tid) in process.threads.iter().zip(tids) {
                self.notices(process, thread, (*pid, *tid, tids), &memory)
                    .map_err(|error| blame(&[process.pid], error))?;
            }
            if !self.options.keep_gate {
                let vdso = crate::dump::vdso(&process.mappings)?;
                gates.push((*pid, gate::instruction(&memory, vdso)?));
            }
        }
        gate::close_all(&gates)?;
        all().try_for_each(|(process, (pid, tids))| {
            finish(process, *pid, tids).map_err(|error| blame(&[process.pid], error))
        })
    }

    /// The process group in the foreground of the terminal that `process` leads; all groups
    /// are there by now.
    fn foreground(&self, process: &Process, list: &mut List) {
        if process.sid != process.pid || !self.options.numbers {
            return;
        }
        for descriptor in &process.descriptors {
            let description = &self.image.descriptions[descriptor.description as usize];
            if let OpenFile::Terminal {
                foreground: group @ 1..,
                ..
            } = description.kind
            {
                let at = list.bytes(&group.to_le_bytes());
                list.attempt(
                    libc::SYS_ioctl,
                    &[descriptor.fd as u64, libc::TIOCSPGRP, at],
                );
                return;
            }
        }
    }

    /// The calls that a thread makes for itself.
    fn thread(&self, process: &Process, thread: &Thread, tid: i32, list: &mut List) {
        list.call(libc::SYS_set_tid_address, &[thread.clear_tid]);
        list.call(libc::SYS_set_robust_list, &[thread.robust_list, 24]);
        let (at, bytes, mut flags) = thread.altstack;
        if bytes == 0 {
            // None, in whichever way it was said.
            const SS_DISABLE: u32 = 2;
            flags = SS_DISABLE;
        }
        let words = [at, u64::from(flags), bytes];
        let stack: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let stack = list.bytes(&stack);
        list.call(libc::SYS_sigaltstack, &[stack, 0]);
        let name = list.path(&thread.name);
        list.call(libc::SYS_prctl, &[libc::PR_SET_NAME as u64, name]);
        let (area, bytes, signature) = thread.rseq;
        if area != 0 {
            let arguments = [area, u64::from(bytes), 0, u64::from(signature)];
            list.call(libc::SYS_rseq, &arguments);
        }
        if tid == thread.tid || !self.options.numbers {
            credentials(&self.own, process, list);
        }
        if thread.tid == process.pid {
            for (timer, (interval, value)) in process.timers.iter().enumerate() {
                let micros = |time: u64| [time / 1_000_000, time % 1_000_000];
                let words = [micros(*interval), micros(*value)].concat();
                let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
                let at = list.bytes(&bytes);
                list.call(libc::SYS_setitimer, &[timer as u64, at, 0]);
            }
        }
    }

    /// Where it runs, its timers, and the signals that wait for it.
    fn notices(
        &self,
        process: &Process,
        thread: &Thread,
        (pid, tid, tids): (i32, i32, &[i32]),
        memory: &File,
    ) -> io::Result<()> {
        if !thread.affinity.is_empty() {
            // CPUs may be fewer now: then any will do.
            let _ = sys::set_affinity(tid, &thread.affinity);
        }
        if thread.tid == process.pid {
            let outside = |tid| {
                let mut both = process.threads.iter().zip(tids);
                let found = both.find(|(thread, _)| thread.tid == tid);
                found.map_or(tid, |(_, outside)| *outside)
            };
            let now = |tid| {
                if self.options.numbers {
                    tid
                } else {
                    outside(tid)
                }
            };
            timers::make(tid, memory, &process.posix_timers, now)?;
        }
        let own = (thread.pending, &thread.queued[..]);
        pending((pid, tid), false, own, memory)?;
        if thread.tid == process.pid {
            let shared = (process.pending, &process.queued[..]);
            pending((pid, tid), true, shared, memory)?;
        }
        Ok(())
    }
}

/// State of which the kernel lets only a tracer dispose; limits, which could forbid the rest.
fn finish(process: &Process, pid: i32, tids: &[i32]) -> io::Result<()> {
    let memory = gate::memory(pid)?;
    for (thread, tid) in process.threads.iter().zip(tids) {
        let mut registers = thread.registers.clone();
        rseq::settle(&memory, thread, &mut registers)?;
        if !thread.xstate.is_empty() {
            sys::set_xstate(*tid, &thread.xstate)?;
        }
        sys::set_registers(*tid, &registers)?;
        sys::set_mask(*tid, thread.mask)?;
    }
    for (resource, (soft, hard)) in process.limits.iter().enumerate() {
        // An ordinary user may not raise a hard limit: it then keeps ours.
        let _ = sys::set_limit(pid, resource as u32, *soft, *hard);
    }
    Ok(())
}

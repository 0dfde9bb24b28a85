//! Threads and processes that are born under the supervisor.

use std::io;
use std::path::Path;
use std::rc::Rc;

use outlive_image::gate;
use outlive_image::procfs;
use outlive_image::sys::{self, Change};

use super::{Body, Supervisor};
use crate::births::shares;
use crate::memory::put_back;

impl Supervisor<'_> {
    /// A thread was born by `tid`, which is stopped in its call. It runs only when its maker
    /// has its number, but both come to their stops at the same time.
    pub(super) fn thread_born(&mut self, tid: i32) -> io::Result<()> {
        let child = sys::event_message(tid)? as i32;
        let begun = sys::to_call(tid);
        if self.is_there(child)? {
            self.threads.insert(child, self.threads[&tid]);
            self.counts.threads += 1;
            begun?;
            let out = gate::await_end_of_call(tid);
            // The end of its maker, or what was executed in its place, is told only once: it
            // must not be forgotten over a child that is gone, too.
            if let Err(error) = sys::resume(child, 0) {
                self.lost(child, error)?;
            }
            self.go_on(tid, out?)
        } else {
            begun?;
            let out = gate::await_end_of_call(tid)?;
            self.go_on(tid, out)
        }
    }

    /// Lets a maker run that came out of its call, or keeps what it did instead.
    fn go_on(&mut self, tid: i32, out: Option<Change>) -> io::Result<()> {
        match out {
            Some(change) => self.queue.push_back((tid, change)),
            None => sys::resume(tid, 0)?,
        }
        Ok(())
    }

    /// Waits for the first stop of a newborn; false if it is gone already.
    fn is_there(&mut self, child: i32) -> io::Result<bool> {
        match self.early.remove(&child) {
            Some(true) => return Ok(true),
            // Unless the number is another's by now.
            Some(false) if !Path::new(&format!("/proc/{child}")).exists() => return Ok(false),
            _ => {}
        }
        let stop = sys::wait(child, true)?;
        Ok(matches!(stop, Some((_, Change::Stopped { .. }))))
    }

    /// A process was born by `tid`, which is stopped in its call, as `event` says.
    pub(super) fn process_born(&mut self, tid: i32, event: i32) -> io::Result<()> {
        let child = sys::event_message(tid)? as i32;
        let there = self.is_there(child)?;
        if there && let Err(error) = self.take(tid, child) {
            // Its maker goes on without it.
            self.lost(child, error)?;
        }
        // First the maker, to the end of its call: a kernel that dies while it is in there
        // must find its child, not one that has already ended. A vfork ends only after its
        // child.
        let out = match event {
            libc::PTRACE_EVENT_VFORK => Ok(None),
            _ => gate::end_of_call(tid),
        };
        if there && let Err(error) = sys::resume(child, 0) {
            self.lost(child, error)?;
        }
        self.go_on(tid, out?)
    }

    /// Takes over the process `child`, which is stopped at its start.
    fn take(&mut self, tid: i32, child: i32) -> io::Result<()> {
        let parent = self.threads[&tid];
        self.threads.insert(child, child);
        self.counts.processes += 1;
        let Some(body) = self.bodies.get(&parent).cloned() else {
            return Ok(());
        };
        // Before the child is kept: its maker must not make it again.
        self.journal.bore(tid, child)?;
        // It has its maker's registers, who may be gone by now.
        if shares(&sys::registers(child)?) {
            // Until it executes a program it is a guest in its parent's memory.
            self.bodies.insert(child, body);
            return Ok(());
        }
        let held = self.hold(tid, parent)?;
        let copied = self.copy(child, &body);
        for other in held {
            if let Err(error) = self.let_run(other) {
                self.lost(other, error)?;
            }
        }
        copied
    }

    /// Stops the other threads of a process; those that were not stopped already.
    fn hold(&mut self, tid: i32, parent: i32) -> io::Result<Vec<i32>> {
        let others: Vec<i32> = self
            .threads
            .iter()
            .filter(|(other, pid)| **pid == parent && **other != tid)
            .map(|(other, _)| *other)
            .collect();
        let mut held = Vec::new();
        for other in others {
            if self.queue.iter().any(|(queued, _)| *queued == other) {
                continue;
            }
            if sys::interrupt(other).is_err() {
                continue;
            }
            match sys::wait(other, true)? {
                Some((
                    _,
                    Change::Stopped {
                        event: libc::PTRACE_EVENT_STOP,
                        signal: libc::SIGTRAP,
                    },
                )) => {
                    held.push(other);
                }
                // It waits for its turn; the interruption comes after it.
                Some(change) => self.queue.push_back(change),
                None => {}
            }
        }
        Ok(held)
    }

    /// Gives a forked child memory of its own; nothing else of its parent runs.
    fn copy(&mut self, child: i32, body: &Body) -> io::Result<()> {
        let space = self.new_space(child)?;
        space.copy_all(&body.space)?;
        let memory = gate::memory(child)?;
        let mut maps = procfs::mappings(child)?;
        maps.retain(|mapping| body.space.holds(mapping));
        let saved = (sys::registers(child)?, sys::mask(child)?);
        gate::quiet(child)?;
        let guest = self.policy.guest(child, &memory, &space);
        guest.remap_all(&maps)?;
        put_back(child, saved)?;
        self.bodies.insert(child, Rc::new(Body::new(space, memory)));
        self.announce(child);
        Ok(())
    }
}

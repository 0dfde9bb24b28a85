//! From an image to running processes.
//!
//! Everything outside of the processes is opened first, in this process, at high
//! descriptor numbers: what cannot be opened is an error before anything starts. Then a
//! skeleton is made for each process, by its parent and with its old number; its memory
//! is replaced by lists of calls through its gate (see [`crate::gate`]); its threads are
//! born with their old numbers; last come masks, vector state and registers. All are
//! stopped until [`Restored::release`], so that a caller can arm itself again before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use outlive_base::{Code, Entity, Error, Result};

use crate::descriptors::{self, Inherited, Stdio};
use crate::gate::{self, List};
use crate::model::{Backing, Credentials, Image, Kind, Mapping, Process, Thread};
use crate::procfs;
use crate::rseq;
use crate::skeleton::{Lists, born, credentials, filter, layout, open_skeleton, pending};
use crate::source::Contents;
use crate::sys;
use crate::timers;

/// Where special mappings wait while the rest is replaced.
const PARKING: u64 = gate::GATE + 0x100_0000;

/// How often, and after which pause, an old number is asked for again.
const NUMBER_TRIES: u32 = 200;
const NUMBER_PAUSE: std::time::Duration = std::time::Duration::from_millis(5);

/// How to restore.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Give processes and threads their old numbers (needs CAP_CHECKPOINT_RESTORE).
    pub numbers: bool,
    /// What takes the place of pipes and sockets that led outside.
    pub stdio: Stdio,
    /// Map shared files on DAX with MAP_SYNC.
    pub synchronous: bool,
    /// A seccomp program (`struct sock_filter`s) that all processes get.
    pub filter: Vec<u8>,
    /// Leave the gates open: for a supervisor that stays.
    pub keep_gate: bool,
}

/// Restored processes, stopped before their first instruction.
#[derive(Debug, Default)]
pub struct Restored {
    /// Processes with their threads, leader first, as this process knows them.
    pub processes: Vec<(i32, Vec<i32>)>,
}

impl Restored {
    /// Lets all run, no longer traced.
    ///
    /// # Errors
    /// A thread that is gone.
    pub fn release(self) -> Result<()> {
        for tid in self.processes.iter().flat_map(|(_, tids)| tids) {
            sys::detach(*tid, 0).map_err(|error| wrap("release", &error))?;
        }
        Ok(())
    }

    /// Ends all, and leaves their memory as it is, for another restore: an ending thread
    /// would clear its number in it and mark the mutexes that it holds.
    pub fn kill(self) {
        for (pid, tids) in &self.processes {
            let Ok(memory) = gate::memory(*pid) else {
                continue;
            };
            for tid in tids {
                let mut list = List::new();
                list.attempt(libc::SYS_set_tid_address, &[0]);
                list.attempt(libc::SYS_set_robust_list, &[0, 24]);
                // One that did not come so far has neither.
                let _ = gate::quiet(*tid).and_then(|()| gate::run(*tid, &memory, &list));
            }
        }
        let frozen = crate::freeze::Frozen {
            processes: self.processes,
            ..Default::default()
        };
        frozen.kill();
    }
}

fn wrap(doing: &str, error: &io::Error) -> Error {
    let (code, remedy) = match error.kind() {
        io::ErrorKind::PermissionDenied => (
            Code::Permission,
            "restore as root, or with CAP_CHECKPOINT_RESTORE and CAP_SYS_PTRACE",
        ),
        io::ErrorKind::AlreadyExists => {
            (Code::Unsupported, "a process of that number runs: end it")
        }
        io::ErrorKind::NotFound => (Code::NotFound, "put the file back where it was"),
        _ => (
            Code::Io,
            "the image is unharmed: see the reason, then try again",
        ),
    };
    Error::new(code, Entity::Call, format!("{doing}: {error}"), remedy)
}

/// Release and CRC-32C of the vdso of the running kernel, and the names of its special
/// mappings, ascending.
///
/// # Errors
/// /proc is not there.
pub fn running_kernel() -> Result<(String, u32, Vec<String>)> {
    let read = || -> io::Result<(String, u32, Vec<String>)> {
        let maps = procfs::mappings(std::process::id() as i32)?;
        let range = crate::dump::vdso(&maps)?;
        let mut code = vec![0; (range.1 - range.0) as usize];
        File::open("/proc/self/mem")?.read_exact_at(&mut code, range.0)?;
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &code) as u32;
        let names = maps
            .into_iter()
            .filter_map(|mapping| match mapping.backing {
                Backing::Kernel(name) => Some(name),
                _ => None,
            });
        Ok((procfs::kernel()?, crc, names.collect()))
    };
    read().map_err(|error| wrap("look at the kernel", &error))
}

/// Refuses an image of another kernel build, whose vdso is other code.
///
/// # Errors
/// [`Code::ImageForeign`].
pub fn check_kernel(image: &Image) -> Result<()> {
    let (kernel, crc, _) = running_kernel()?;
    if kernel == image.kernel && crc == image.vdso_crc {
        return Ok(());
    }
    Err(Error::new(
        Code::ImageForeign,
        Entity::Call,
        format!("the image is of Linux {}, this is {kernel}", image.kernel),
        "boot the same build of the kernel",
    ))
}

/// Brings an image up; its processes are stopped.
///
/// # Errors
/// [`Code::ImageForeign`], [`Code::Corrupt`], [`Code::NotFound`] for a file that is no
/// longer there, [`Code::Permission`]; nothing then runs.
pub fn restore(image: &Image, contents: &Contents, options: &Options) -> Result<Restored> {
    image.check()?;
    check_kernel(image)?;
    let mut restored = Restored::default();
    let result = Restorer::new(image, contents, options)
        .and_then(|mut restorer| restorer.all(&mut restored));
    if let Err(error) = result {
        restored.kill();
        return Err(wrap("restore", &error));
    }
    Ok(restored)
}

struct Restorer<'a> {
    image: &'a Image,
    contents: &'a Contents,
    options: &'a Options,
    /// First number of our descriptors that processes inherit.
    least: i32,
    descriptions: Inherited,
    /// Mapped files by path and whether they are written to.
    files: BTreeMap<(String, bool), i32>,
    /// Of them, those that can be mapped with MAP_SYNC: others lie on no DAX.
    synchronous: BTreeSet<i32>,
    executables: Vec<Option<i32>>,
    /// What children inherit from us.
    own: Credentials,
}

impl Drop for Restorer<'_> {
    fn drop(&mut self) {
        let files = self.files.values().chain(self.executables.iter().flatten());
        files.for_each(|fd| sys::close(*fd));
    }
}

impl<'a> Restorer<'a> {
    fn new(image: &'a Image, contents: &'a Contents, options: &'a Options) -> io::Result<Self> {
        let descriptors = image.processes.iter().flat_map(|p| &p.descriptors);
        let least = descriptors.map(|d| d.fd).max().unwrap_or(0).max(63) + 1;
        let own = std::process::id() as i32;
        // Our own numbers must reach beyond all of theirs.
        let hard = sys::limits(own)?[libc::RLIMIT_NOFILE as usize].1;
        sys::set_limit(own, libc::RLIMIT_NOFILE, hard, hard)?;
        let mut restorer = Restorer {
            image,
            contents,
            options,
            least,
            descriptions: descriptors::open(&image.descriptions, options.stdio, least)?,
            files: BTreeMap::new(),
            synchronous: BTreeSet::new(),
            executables: Vec::new(),
            own: procfs::status(own, own)?.credentials,
        };
        for process in &image.processes {
            for mapping in &process.mappings {
                restorer.open_mapped(mapping)?;
            }
            let exe = File::open(&process.exe).ok();
            let exe = exe.map(|file| descriptors::give(file, least)).transpose()?;
            restorer.executables.push(exe);
        }
        Ok(restorer)
    }

    /// Opens the file under a mapping, once.
    fn open_mapped(&mut self, mapping: &Mapping) -> io::Result<()> {
        let Backing::File {
            path,
            size,
            modified_ns,
            ..
        } = &mapping.backing
        else {
            return Ok(());
        };
        let writable = mapping.shared;
        if self.files.contains_key(&(path.clone(), writable)) {
            return Ok(());
        }
        if !mapping.shared && *size != 0 && procfs::identity(path)? != (*size, *modified_ns) {
            return Err(io::Error::other(format!(
                "{path} has changed since the image was made"
            )));
        }
        let flags = if writable {
            libc::O_RDWR
        } else {
            libc::O_RDONLY
        };
        let file = match descriptors::reopen(path, flags) {
            // Shared and only read.
            Err(_) if mapping.protection & libc::PROT_WRITE as u32 == 0 => {
                descriptors::reopen(path, libc::O_RDONLY)?
            }
            other => other?,
        };
        let number = descriptors::give(file, self.least)?;
        if writable && self.options.synchronous && sys::maps_synchronously(number) {
            self.synchronous.insert(number);
        }
        self.files.insert((path.clone(), writable), number);
        Ok(())
    }

    fn all(&mut self, restored: &mut Restored) -> io::Result<()> {
        let mut outside = BTreeMap::new();
        for process in &self.image.processes {
            let pid = match outside.get(&process.ppid) {
                None => self.root(process)?,
                Some(parent) => self.child(*parent, process)?,
            };
            restored.processes.push((pid, vec![pid]));
            outside.insert(process.pid, pid);
            if process.sid == process.pid {
                let list = List::new().with(libc::SYS_setsid, &[]);
                gate::run(pid, &gate::memory(pid)?, &list)?;
            }
        }
        for (process, (pid, _)) in self.image.processes.iter().zip(&restored.processes) {
            self.replace_memory(process, *pid)?;
        }
        self.write_all(&restored.processes)?;
        for (index, process) in self.image.processes.iter().enumerate() {
            self.rebuild(
                process,
                self.executables[index],
                &mut restored.processes[index],
            )?;
        }
        for (process, (pid, tids)) in self.image.processes.iter().zip(&restored.processes) {
            self.finish(process, *pid, tids)?;
        }
        Ok(())
    }

    /// The skeleton of the root: a child of this process, with an open gate.
    fn root(&self, process: &Process) -> io::Result<i32> {
        let pipe = sys::pipe()?;
        let wanted = self.options.numbers.then_some(process.pid);
        let mut made = sys::skeleton(wanted, pipe);
        for _ in 0..NUMBER_TRIES {
            if !matches!(&made, Err(e) if e.kind() == io::ErrorKind::AlreadyExists) {
                break;
            }
            // The number of a process that was just ended is free once it is reaped.
            std::thread::sleep(NUMBER_PAUSE);
            made = sys::skeleton(wanted, pipe);
        }
        sys::close(pipe[0]);
        let opened = made.and_then(|pid| {
            let opened = open_skeleton(pid);
            if opened.is_err() {
                let _ = sys::kill(pid, libc::SIGKILL);
                let _ = sys::wait(pid, true);
            }
            opened.map(|()| pid)
        });
        sys::close(pipe[1]);
        opened
    }

    /// A child of a skeleton; it has the gate of its parent.
    fn child(&self, parent: i32, process: &Process) -> io::Result<i32> {
        let mut list = List::new();
        let signal = process.exit_signal.max(0) as u64;
        self.clone_call(&mut list, 0, signal, process.pid);
        let ran = gate::run(parent, &gate::memory(parent)?, &list)?;
        born(&ran.born, 1).map(|pids| pids[0])
    }

    fn clone_call(&self, list: &mut List, flags: u64, signal: u64, tid: i32) {
        let wanted = list.bytes(&tid.to_le_bytes());
        let mut arguments = [0u64; 11];
        arguments[0] = flags;
        arguments[4] = signal;
        if self.options.numbers {
            arguments[8] = wanted;
            arguments[9] = 1;
        }
        let bytes: Vec<u8> = arguments.iter().flat_map(|w| w.to_le_bytes()).collect();
        let at = list.bytes(&bytes);
        list.call(libc::SYS_clone3, &[at, bytes.len() as u64]);
    }

    fn rebuild(
        &self,
        process: &Process,
        exe: Option<i32>,
        built: &mut (i32, Vec<i32>),
    ) -> io::Result<()> {
        let (pid, tids) = (built.0, &mut built.1);
        let memory = gate::memory(pid)?;
        let mut lists = Lists {
            tid: pid,
            memory: &memory,
            list: List::new(),
        };
        layout(process, exe, &mut lists)?;
        for (index, action) in process.actions.iter().enumerate() {
            let signal = index as u64 + 1;
            if [libc::SIGKILL, libc::SIGSTOP].contains(&(signal as i32)) {
                continue;
            }
            lists.room(1, 32)?;
            let words = [action.handler, action.flags, action.restorer, action.mask];
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let at = lists.list.bytes(&bytes);
            lists.list.call(libc::SYS_rt_sigaction, &[signal, at, 0, 8]);
        }
        self.files(process, &mut lists)?;
        self.session(process, &mut lists)?;
        if !self.options.filter.is_empty() {
            filter(&self.options.filter, &mut lists)?;
        }
        lists.flush()?;
        const THREAD: i32 = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM;
        for group in process.threads[1..].chunks(100) {
            let mut list = List::new();
            for thread in group {
                self.clone_call(&mut list, THREAD as u64, 0, thread.tid);
            }
            let ran = gate::run(pid, &memory, &list)?;
            tids.extend(born(&ran.born, group.len())?);
        }
        Ok(())
    }

    /// Unmaps the skeleton's memory and maps the image's.
    fn replace_memory(&self, process: &Process, pid: i32) -> io::Result<()> {
        let old = procfs::mappings(pid)?;
        let memory = gate::memory(pid)?;
        let mut lists = Lists {
            tid: pid,
            memory: &memory,
            list: List::new(),
        };
        let special = |m: &&Mapping| matches!(m.backing, Backing::Kernel(_));
        let mut parked = PARKING;
        let mut places = BTreeMap::new();
        for mapping in &old {
            lists.room(1, 0)?;
            let length = mapping.end - mapping.start;
            if special(&mapping) {
                let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
                let arguments = [mapping.start, length, length, flags, parked];
                lists.list.call(libc::SYS_mremap, &arguments);
                places.insert(format!("{:?}", mapping.backing), (parked, length));
                parked += length;
            } else {
                lists.list.call(libc::SYS_munmap, &[mapping.start, length]);
            }
        }
        for mapping in &process.mappings {
            lists.room(1, 0)?;
            let length = mapping.end - mapping.start;
            if special(&mapping) {
                let place = places.get(&format!("{:?}", mapping.backing));
                let (from, _) = place.filter(|(_, bytes)| *bytes == length).ok_or_else(|| {
                    io::Error::other(format!(
                        "the kernel has no {:?} of that size",
                        mapping.backing
                    ))
                })?;
                let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
                let arguments = [*from, length, length, flags, mapping.start];
                lists.list.call(libc::SYS_mremap, &arguments);
            } else {
                self.map(mapping, &mut lists.list);
            }
        }
        lists.flush()
    }

    fn map(&self, mapping: &Mapping, list: &mut List) {
        let mut flags = libc::MAP_NORESERVE;
        let (mut fd, mut at) = (u64::MAX, 0);
        match &mapping.backing {
            Backing::File { path, offset, .. } => {
                let number = self.files.get(&(path.clone(), mapping.shared));
                // Opened in `new`, which has seen all mappings.
                fd = number.copied().unwrap_or(-1) as u64;
                at = *offset;
            }
            _ => flags |= libc::MAP_ANONYMOUS,
        }
        flags |= match (mapping.shared, self.synchronous.contains(&(fd as i32))) {
            // With MAP_SYNC the kernel knows no MAP_FIXED_NOREPLACE. The address space is
            // empty, and mappings that overlap were refused before.
            (true, true) => libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC | libc::MAP_FIXED,
            (true, false) => libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
            (false, _) => libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE,
        };
        if mapping.grows_down {
            flags |= libc::MAP_GROWSDOWN;
        }
        let length = mapping.end - mapping.start;
        let protection = u64::from(mapping.protection);
        let arguments = [mapping.start, length, protection, flags as u64, fd, at];
        list.call(libc::SYS_mmap, &arguments);
    }

    /// Writes the contents of all memory, of processes side by side: calls inside of them are
    /// the tracer's alone, but this is not.
    fn write_all(&self, built: &[(i32, Vec<i32>)]) -> io::Result<()> {
        let next = AtomicUsize::new(0);
        let left = Mutex::new(Vec::new());
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some((pid, _)) = built.get(index) else {
                    return;
                };
                if self.write(index, *pid).is_err() {
                    let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
                    left.push((index, *pid));
                }
            }
        };
        let has_some = |process: &&Process| process.mappings.iter().any(|m| !m.runs.is_empty());
        let busy = self.image.processes.iter().filter(has_some).count();
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        std::thread::scope(|scope| {
            for _ in 1..busy.min(processors) {
                scope.spawn(work);
            }
            work();
        });
        // A kernel may let nobody but the tracer write to what is read-only.
        let left = left.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut left = left.into_iter();
        left.try_for_each(|(index, pid)| self.write(index, pid))
    }

    fn write(&self, index: usize, pid: i32) -> io::Result<()> {
        let memory = gate::memory(pid)?;
        let mut bytes = vec![0; 1 << 20];
        for mapping in &self.image.processes[index].mappings {
            for run in &mapping.runs {
                let mut done = 0;
                while done < run.length {
                    let some = (run.length - done).min(1 << 20) as usize;
                    self.contents.read(run.source + done, &mut bytes[..some])?;
                    memory.write_all_at(&bytes[..some], mapping.start + run.at + done)?;
                    done += some as u64;
                }
            }
        }
        Ok(())
    }

    /// Working directory, mask, descriptors; nothing of ours stays open.
    fn files(&self, process: &Process, lists: &mut Lists<'_>) -> io::Result<()> {
        lists.room(2, process.cwd.len())?;
        let cwd = lists.list.path(&process.cwd);
        lists.list.call(libc::SYS_chdir, &[cwd]);
        lists
            .list
            .call(libc::SYS_umask, &[u64::from(process.umask)]);
        let mut next = 0;
        let close = |lists: &mut Lists<'_>, from: u64, to: u64| {
            if from <= to {
                lists.list.attempt(libc::SYS_close_range, &[from, to, 0]);
            }
        };
        for descriptor in &process.descriptors {
            lists.room(2, 0)?;
            let fd = descriptor.fd as u64;
            close(lists, next, fd.wrapping_sub(1).min(fd));
            next = fd + 1;
            let from = self.descriptions.numbers[descriptor.description as usize] as u64;
            let flags = if descriptor.close_on_exec {
                libc::O_CLOEXEC
            } else {
                0
            };
            lists.list.call(libc::SYS_dup3, &[from, fd, flags as u64]);
        }
        close(lists, next, u64::from(u32::MAX));
        lists.flush()
    }

    /// Process group and terminal.
    fn session(&self, process: &Process, lists: &mut Lists<'_>) -> io::Result<()> {
        lists.room(4, 16)?;
        let group = |pid: i32| self.image.processes.iter().any(|p| p.pid == pid);
        if self.options.numbers && process.sid != process.pid && group(process.pgid) {
            lists
                .list
                .attempt(libc::SYS_setpgid, &[0, process.pgid as u64]);
        }
        if process.sid != process.pid || !self.options.numbers {
            return Ok(());
        }
        for descriptor in &process.descriptors {
            let description = &self.image.descriptions[descriptor.description as usize];
            if let Kind::Terminal {
                foreground: 1.., ..
            } = description.kind
            {
                let fd = descriptor.fd as u64;
                lists
                    .list
                    .attempt(libc::SYS_ioctl, &[fd, libc::TIOCSCTTY, 0]);
                break;
            }
        }
        Ok(())
    }

    /// The process group in the foreground of the terminal that `process` leads; all groups
    /// are there by now.
    fn foreground(&self, process: &Process, pid: i32, memory: &File) -> io::Result<()> {
        if process.sid != process.pid || !self.options.numbers {
            return Ok(());
        }
        for descriptor in &process.descriptors {
            let description = &self.image.descriptions[descriptor.description as usize];
            if let Kind::Terminal {
                foreground: group @ 1..,
                ..
            } = description.kind
            {
                let mut list = List::new();
                let at = list.bytes(&group.to_le_bytes());
                list.attempt(
                    libc::SYS_ioctl,
                    &[descriptor.fd as u64, libc::TIOCSPGRP, at],
                );
                return gate::run(pid, memory, &list).map(drop);
            }
        }
        Ok(())
    }

    /// What belongs to threads, limits, and what must come last.
    fn finish(&self, process: &Process, pid: i32, tids: &[i32]) -> io::Result<()> {
        let memory = gate::memory(pid)?;
        self.foreground(process, pid, &memory)?;
        for (thread, tid) in process.threads.iter().zip(tids) {
            self.thread(process, thread, (pid, *tid, tids), &memory)?;
        }
        if !self.options.keep_gate {
            let vdso = crate::dump::vdso(&process.mappings)?;
            gate::close(pid, &memory, vdso)?;
        }
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

    fn thread(
        &self,
        process: &Process,
        thread: &Thread,
        (pid, tid, tids): (i32, i32, &[i32]),
        memory: &File,
    ) -> io::Result<()> {
        let mut list = List::new();
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
            credentials(&self.own, process, &mut list);
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
        // It stands on no stack of its own while it runs this list.
        let mut registers = sys::registers(tid)?;
        registers[crate::calls::reg::RSP] = gate::GATE + gate::GATE_BYTES - 4096;
        sys::set_registers(tid, &registers)?;
        gate::run(tid, memory, &list)?;
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

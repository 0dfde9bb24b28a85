//! From an image to running processes.
//!
//! Everything outside of the processes is opened first, in this process, at high
//! descriptor numbers: what cannot be opened is an error before anything starts. Then a
//! skeleton is made for each process, by its parent and with its old number; its memory
//! is replaced by lists of calls through its gate (see [`crate::gate`]), those of several
//! processes at the same time (see `together`); its threads are born with their old
//! numbers; last come masks, vector state and registers. All are stopped until
//! [`Restored::release`], so that a caller can arm itself again before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use outlive_base::{Code, Entity, Error, Result};

use crate::blame::blame;
use crate::descriptors::{self, Inherited, Stdio};
use crate::gate::{self, List};
use crate::kernel_state;
use crate::model::{Backing, Credentials, Image, Mapping, OpenFile, Process};
use crate::owner::{self, Owner};
use crate::procfs;
use crate::skeleton::{expect, filter, first_stops, layout, open_skeleton};
use crate::source::Contents;
use crate::sys;
use crate::together::{self, Calls};

mod space;

use space::{Parked, empty};

/// Bytes beside a list that one birth takes.
const CLONE_BYTES: usize = 128;

/// How often, and after which pause, an old number is asked for again.
const NUMBER_TRIES: u32 = 200;
const NUMBER_PAUSE: std::time::Duration = std::time::Duration::from_millis(5);

/// A process and its threads, leader first, as this process knows them.
pub(crate) type Built = (i32, Vec<i32>);

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
    /// Descriptors on which each call now fails, a line each: who has it, what it was, and why.
    pub gone: Vec<String>,
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

pub(crate) fn wrap(doing: &str, error: &io::Error) -> Error {
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
    attempt(image, contents, options)?.map_err(|error| wrap("restore", &error))
}

/// As [`restore`]: an error that may concern some processes only is the inner one.
pub(crate) fn attempt(
    image: &Image,
    contents: &Contents,
    options: &Options,
) -> Result<io::Result<Restored>> {
    image.check()?;
    check_kernel(image)?;
    let mut restored = Restored::default();
    let result = Restorer::new(image, contents, options).and_then(|mut restorer| {
        restored.gone = restorer.gone();
        restorer.all(&mut restored)
    });
    Ok(match result {
        Ok(()) => Ok(restored),
        Err(error) => {
            restored.kill();
            Err(error)
        }
    })
}

pub(crate) struct Restorer<'a> {
    pub(crate) image: &'a Image,
    pub(crate) contents: &'a Contents,
    pub(crate) options: &'a Options,
    /// First number of our descriptors that processes inherit.
    least: i32,
    descriptions: Inherited,
    /// Mapped files by path and whether they are written to.
    pub(crate) files: BTreeMap<(String, bool), i32>,
    /// Of them, those that can be mapped with MAP_SYNC: others lie on no DAX.
    pub(crate) synchronous: BTreeSet<i32>,
    executables: Vec<Option<i32>>,
    /// Working directories of other users' processes.
    directories: Vec<Option<i32>>,
    /// What children inherit from us.
    pub(crate) own: Credentials,
}

impl Drop for Restorer<'_> {
    fn drop(&mut self) {
        let files = self.files.values().chain(self.executables.iter().flatten());
        let files = files.chain(self.directories.iter().flatten());
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
        let credentials = procfs::status(own, own)?.credentials;
        let owners: Vec<Option<Owner>> = image
            .processes
            .iter()
            .map(|process| Owner::of(&credentials, &process.credentials))
            .collect();
        // What root and another share is opened with the other's rights.
        let owner = |description: usize| {
            let has = |process: &Process| {
                let mut all = process.descriptors.iter();
                all.any(|d| d.description as usize == description)
            };
            let mut both = image.processes.iter().zip(&owners);
            both.find_map(|(process, owner)| owner.as_ref().filter(|_| has(process)))
        };
        let holders = |description: usize| {
            let has = |process: &&Process| {
                let mut all = process.descriptors.iter();
                all.any(|d| d.description as usize == description)
            };
            let all = image.processes.iter().filter(has);
            all.map(|process| process.pid).collect()
        };
        let opened = descriptors::open(&image.descriptions, owner, holders, options.stdio, least);
        let mut restorer = Restorer {
            image,
            contents,
            options,
            least,
            descriptions: opened?,
            files: BTreeMap::new(),
            synchronous: BTreeSet::new(),
            executables: Vec::new(),
            directories: Vec::new(),
            own: credentials,
        };
        let mut both: Vec<_> = image.processes.iter().zip(&owners).collect();
        for (process, owner) in &both {
            let exe = owner::open(owner.as_ref(), &process.exe, libc::O_RDONLY).ok();
            let exe = exe.map(|file| descriptors::give(file, least)).transpose()?;
            restorer.executables.push(exe);
            let cwd = owner.as_ref().map(|owner| {
                let place = libc::O_PATH | libc::O_DIRECTORY;
                descriptors::give(owner::open(Some(owner), &process.cwd, place)?, least)
            });
            let cwd = cwd
                .transpose()
                .map_err(|error| blame(&[process.pid], error))?;
            restorer.directories.push(cwd);
        }
        both.sort_by_key(|(_, owner)| owner.is_none());
        for (process, owner) in both {
            for mapping in &process.mappings {
                restorer
                    .open_mapped(mapping, owner.as_ref())
                    .map_err(|error| blame(&[process.pid], error))?;
            }
        }
        Ok(restorer)
    }

    /// Opens the file under a mapping, once.
    fn open_mapped(&mut self, mapping: &Mapping, owner: Option<&Owner>) -> io::Result<()> {
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
        let file = match owner::open(owner, path, flags) {
            // Shared and only read.
            Err(_) if mapping.protection & libc::PROT_WRITE as u32 == 0 => {
                owner::open(owner, path, libc::O_RDONLY)?
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

    /// What [`Restored::gone`] says.
    fn gone(&self) -> Vec<String> {
        let lines = self.descriptions.gone.iter().flat_map(|(index, why)| {
            let holders = self.image.processes.iter().flat_map(|process| {
                let all = process.descriptors.iter();
                let found = all.filter(|d| d.description as usize == *index);
                found.map(|d| (process.pid, d.fd))
            });
            holders.map(move |(pid, fd)| format!("descriptor {fd} of process {pid}: {why}"))
        });
        lines.collect()
    }

    fn all(&mut self, restored: &mut Restored) -> io::Result<()> {
        let parked = self.tree(&mut restored.processes)?;
        self.bodies(&parked, &mut restored.processes)?;
        self.lock_all(&restored.processes)?;
        self.end_children(&restored.processes)?;
        self.write_all(&restored.processes)?;
        self.finish_all(&restored.processes)
    }

    /// A skeleton for each process, in the image's order; what mappings all have parked.
    fn tree(&self, built: &mut Vec<Built>) -> io::Result<Parked> {
        let processes = &self.image.processes;
        let mut children: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
        let mut generation = Vec::new();
        for (index, process) in processes.iter().enumerate() {
            if processes[..index].iter().any(|p| p.pid == process.ppid) {
                children.entry(process.ppid).or_default().push(index);
            } else {
                generation.push(index);
            }
        }
        let mut pids = vec![0; processes.len()];
        let mut parked = None;
        for index in &generation {
            let process = &processes[*index];
            let root = self
                .root(process)
                .map_err(|error| blame(&[process.pid], error))?;
            built.push((root, vec![root]));
            pids[*index] = root;
            // Before it has children: what is not there is not copied. All are copies of this
            // process, so their mappings of the kernel are parked at the same places.
            let places = empty(root)?;
            if parked.get_or_insert_with(|| places.clone()) != &places {
                return Err(io::Error::other("mappings of the kernel differ"));
            }
        }
        let parked = parked.unwrap_or_default();
        while !generation.is_empty() {
            let of = |index: usize| children.get(&processes[index].pid).map_or(&[][..], |c| c);
            let (born, result) = together::run(generation.iter().map(|index| {
                let mut lane = Calls::new(pids[*index], processes[*index].pid)?;
                let children = of(*index).iter().map(|child| &processes[*child]);
                self.family(&processes[*index], children, &mut lane);
                Ok(lane)
            }));
            let next: Vec<usize> = generation.iter().flat_map(|i| of(*i)).copied().collect();
            let born = born.concat();
            built.extend(born.iter().map(|pid| (*pid, vec![*pid])));
            first_stops(&born)?;
            result?;
            expect(&born, next.len())?;
            next.iter()
                .zip(born)
                .for_each(|(index, pid)| pids[*index] = pid);
            generation = next;
        }
        *built = pids.iter().map(|pid| (*pid, vec![*pid])).collect();
        Ok(parked)
    }

    /// Session, children, which have the gate of their parent, and then its own group: each
    /// group is there once the tree is.
    fn family<'p>(
        &self,
        process: &Process,
        children: impl Iterator<Item = &'p Process>,
        lane: &mut Calls,
    ) {
        if process.sid == process.pid {
            lane.list.call(libc::SYS_setsid, &[]);
        }
        for child in children {
            lane.room(1, CLONE_BYTES);
            lane.bear(child.pid);
            let signal = child.exit_signal.max(0) as u64;
            self.clone_call(&mut lane.list, 0, signal, child.pid);
        }
        if self.options.numbers && process.sid != process.pid && process.pgid == process.pid {
            lane.room(1, 0);
            let group = process.pgid as u64;
            lane.list.attempt(libc::SYS_setpgid, &[0, group]);
        }
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

    pub(crate) fn clone_call(&self, list: &mut List, flags: u64, signal: u64, tid: i32) {
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

    /// Memory maps, what the kernel knows of each process, descriptors, threads.
    fn bodies(&self, parked: &Parked, built: &mut [Built]) -> io::Result<()> {
        let all = self.image.processes.iter().zip(built.iter()).enumerate();
        let (born, result) = together::run(all.map(|(index, (process, built))| {
            let mut lane = Calls::new(built.0, process.pid)?;
            self.map_all(process, parked, &mut lane)
                .map_err(|error| blame(&[process.pid], error))?;
            self.rebuild(index, process, &mut lane);
            Ok(lane)
        }));
        for (built, born) in built.iter_mut().zip(&born) {
            built.1.extend(born);
        }
        first_stops(&born.concat())?;
        result?;
        let all = self.image.processes.iter().zip(built);
        all.into_iter()
            .try_for_each(|(process, built)| expect(&built.1, process.threads.len()))
    }

    fn rebuild(&self, index: usize, process: &Process, lane: &mut Calls) {
        layout(process, self.executables[index], lane);
        for (index, action) in process.actions.iter().enumerate() {
            let signal = index as u64 + 1;
            if [libc::SIGKILL, libc::SIGSTOP].contains(&(signal as i32)) {
                continue;
            }
            lane.room(1, 32);
            let words = [action.handler, action.flags, action.restorer, action.mask];
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let at = lane.list.bytes(&bytes);
            lane.list.call(libc::SYS_rt_sigaction, &[signal, at, 0, 8]);
        }
        self.files(process, self.directories[index], lane);
        self.watch(process, lane);
        self.session(process, lane);
        if !self.options.filter.is_empty() {
            filter(&self.options.filter, lane);
        }
        const THREAD: i32 = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM;
        for thread in &process.threads[1..] {
            lane.room(1, CLONE_BYTES);
            self.clone_call(&mut lane.list, THREAD as u64, 0, thread.tid);
        }
    }

    /// Working directory, mask, descriptors; nothing of ours stays open.
    fn files(&self, process: &Process, directory: Option<i32>, lane: &mut Calls) {
        lane.room(2, process.cwd.len());
        if let Some(directory) = directory {
            lane.list.call(libc::SYS_fchdir, &[directory as u64]);
        } else {
            let cwd = lane.list.path(&process.cwd);
            lane.list.call(libc::SYS_chdir, &[cwd]);
        }
        lane.list.call(libc::SYS_umask, &[u64::from(process.umask)]);
        let mut next = 0;
        let close = |lane: &mut Calls, from: u64, to: u64| {
            if from <= to {
                lane.list.attempt(libc::SYS_close_range, &[from, to, 0]);
            }
        };
        for descriptor in &process.descriptors {
            lane.room(2, 0);
            let fd = descriptor.fd as u64;
            close(lane, next, fd.wrapping_sub(1).min(fd));
            next = fd + 1;
            let from = self.descriptions.numbers[descriptor.description as usize] as u64;
            let flags = if descriptor.close_on_exec {
                libc::O_CLOEXEC
            } else {
                0
            };
            lane.list.call(libc::SYS_dup3, &[from, fd, flags as u64]);
        }
        close(lane, next, u64::from(u32::MAX));
    }

    /// What epolls watch, by the first process that has it under the number that it had then.
    fn watch(&self, process: &Process, lane: &mut Calls) {
        let has = |process: &Process, fd: Option<i32>, description: u32| {
            let mut all = process.descriptors.iter();
            let found = all
                .find(|d| d.description == description && fd.is_none_or(|number| number == d.fd));
            found.map(|d| d.fd)
        };
        for (index, description) in self.image.descriptions.iter().enumerate() {
            let OpenFile::Epoll(watched) = &description.kind else {
                continue;
            };
            for one in watched {
                let both = |process: &Process| {
                    has(process, Some(one.fd), one.description)?;
                    has(process, None, index as u32)
                };
                let first = self.image.processes.iter().find(|p| both(p).is_some());
                let Some(epoll) =
                    both(process).filter(|_| first.is_some_and(|first| first.pid == process.pid))
                else {
                    continue;
                };
                lane.room(1, 16);
                let event = kernel_state::epoll_event(one.events, one.data);
                let at = lane.list.bytes(&event);
                let add = libc::EPOLL_CTL_ADD as u64;
                let arguments = [epoll as u64, add, one.fd as u64, at];
                // What takes the place of something that is gone may not be watched.
                let target = &self.image.descriptions[one.description as usize].kind;
                if matches!(target, OpenFile::Gone(_) | OpenFile::Outside { .. }) {
                    lane.list.attempt(libc::SYS_epoll_ctl, &arguments);
                } else {
                    lane.list.call(libc::SYS_epoll_ctl, &arguments);
                }
            }
        }
    }

    /// Locks of the process: all that is not its own is closed by now, which would drop them.
    fn lock_all(&self, built: &[Built]) -> io::Result<()> {
        for (process, (pid, _)) in self.image.processes.iter().zip(built) {
            for (fd, lock) in &process.locks {
                let mut list = List::new();
                let at = list.bytes(&kernel_state::flock_words(lock));
                list.call(libc::SYS_fcntl, &[*fd as u64, libc::F_SETLK as u64, at]);
                let locked = gate::run(*pid, &gate::memory(*pid)?, &list);
                locked.map_err(|error| {
                    let path = format!("descriptor {fd}");
                    let path = self.name(process, *fd).unwrap_or(path);
                    blame(&[process.pid], descriptors::not_locked(&path, &error))
                })?;
            }
        }
        Ok(())
    }

    fn name(&self, process: &Process, fd: i32) -> Option<String> {
        let found = process.descriptors.iter().find(|d| d.fd == fd)?;
        match &self.image.descriptions[found.description as usize].kind {
            OpenFile::Path(path) => Some(path.clone()),
            _ => None,
        }
    }

    /// Process group and terminal.
    fn session(&self, process: &Process, lane: &mut Calls) {
        lane.room(4, 16);
        // One that leads its group has it already.
        let group = |pid: i32| self.image.processes.iter().any(|p| p.pid == pid);
        let member = process.sid != process.pid && process.pgid != process.pid;
        if self.options.numbers && member && group(process.pgid) {
            lane.list
                .attempt(libc::SYS_setpgid, &[0, process.pgid as u64]);
        }
        if process.sid != process.pid || !self.options.numbers {
            return;
        }
        for descriptor in &process.descriptors {
            let description = &self.image.descriptions[descriptor.description as usize];
            if let OpenFile::Terminal {
                foreground: 1.., ..
            } = description.kind
            {
                let fd = descriptor.fd as u64;
                lane.list
                    .attempt(libc::SYS_ioctl, &[fd, libc::TIOCSCTTY, 0]);
                break;
            }
        }
    }
}

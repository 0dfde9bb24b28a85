//! What a process is, as data.
//!
//! Invariants: addresses and lengths are bytes in the address space of the process;
//! mappings ascend and do not overlap; `threads[0]` is the leader (tid = pid); a
//! parent stands before its children. [`Image::check`] refuses anything else, so
//! that the restorer can trust what it is given.

use serde::{Deserialize, Serialize};

use outlive_base::{Code, Entity, Error, Result};

/// Processes in one image, at most.
pub const PROCESSES_MAX: usize = 4096;
/// Threads of one process, at most.
pub const THREADS_MAX: usize = 65_536;
/// Timers of one process have lower numbers: each number on the way is made and deleted.
pub const TIMERS_MAX: i32 = 1 << 20;
/// Bytes of the kernel's `siginfo_t`.
pub const SIGINFO_BYTES: usize = 128;
/// The highest address of user space on x86-64 with four-level tables.
pub const ADDRESS_MAX: u64 = 0x7fff_ffff_f000;
/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// A tree of processes at one instant.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Image {
    /// Release of the kernel that ran it (`uname -r`): the vdso must be the same code.
    pub kernel: String,
    /// CRC-32C of the vdso's code.
    pub vdso_crc: u32,
    /// CLOCK_MONOTONIC as the processes saw it, in ns.
    pub monotonic_ns: u64,
    /// CLOCK_BOOTTIME as the processes saw it, in ns.
    pub boottime_ns: u64,
    /// The processes, parents first. One whose parent is not here is the root of a tree: the
    /// first one, orphans, and what was started beside it.
    pub processes: Vec<Process>,
    /// Open file descriptions, to which descriptors point: `dup` and `fork` share them.
    pub descriptions: Vec<Description>,
    /// Children of these processes that ended and were not waited for; not in an image that was
    /// written to a file.
    #[serde(skip)]
    pub ended: Vec<Ended>,
}

/// A process that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ended {
    /// Its number.
    pub pid: i32,
    /// The number of its parent.
    pub ppid: i32,
    /// The signal that its parent gets.
    pub exit_signal: i32,
    /// How it ended, as wait4(2) tells it.
    pub status: i32,
}

/// One process.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Process {
    /// Its number in its innermost PID namespace.
    pub pid: i32,
    /// The number of its parent; not of this image for the root.
    pub ppid: i32,
    /// The process group.
    pub pgid: i32,
    /// The session.
    pub sid: i32,
    /// The signal that its parent gets at its end.
    pub exit_signal: i32,
    /// Who it is.
    pub credentials: Credentials,
    /// `PR_SET_DUMPABLE`, as far as it is known; not in an image that was written to a file.
    #[serde(skip)]
    pub dumpable: Option<bool>,
    /// The file creation mask.
    pub umask: u32,
    /// The working directory.
    pub cwd: String,
    /// The executable.
    pub exe: String,
    /// Soft and hard limits, by resource number.
    pub limits: Vec<(u64, u64)>,
    /// The 64 signal actions, for signals 1 to 64.
    pub actions: Vec<Action>,
    /// Signals pending for the process: bit n-1 for signal n.
    pub pending: u64,
    /// The data of signals pending for the process, in their order: `siginfo_t`, cut at
    /// its last byte that is not zero or longer. Of a pending signal without any, there is
    /// one, of which no more is known.
    pub queued: Vec<Vec<u8>>,
    /// The interval timers (real, virtual, profiling): interval and value, in µs.
    pub timers: [(u64, u64); 3],
    /// The timers of timer_create(2), by ascending number.
    pub posix_timers: Vec<PosixTimer>,
    /// Where its parts lie, as the kernel shows them in /proc.
    pub layout: Layout,
    /// The memory map.
    pub mappings: Vec<Mapping>,
    /// The descriptors.
    pub descriptors: Vec<Descriptor>,
    /// The threads.
    pub threads: Vec<Thread>,
    /// Locks of the process itself (fcntl), by a descriptor that they were taken with; not in an
    /// image that was written to a file.
    #[serde(skip)]
    pub locks: Vec<(i32, Lock)>,
}

/// A lock on a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Which.
    pub kind: LockKind,
    /// False for one that others may have as well.
    pub exclusive: bool,
    /// Its first byte.
    pub start: u64,
    /// Its last byte.
    pub end: u64,
}

/// What a lock is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// flock(2).
    Whole,
    /// fcntl(2).
    Range,
}

/// A timer of timer_create(2).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PosixTimer {
    /// Its number.
    pub id: i32,
    /// The clock, as the kernel numbers it.
    pub clock: i32,
    /// `SIGEV_*`: how it tells that it has gone off.
    pub notify: i32,
    /// By which signal.
    pub signal: i32,
    /// With which value.
    pub value: u64,
    /// To which thread, with `SIGEV_THREAD_ID`.
    pub tid: i32,
    /// True if [`PosixTimer::next_ns`] is a time on its clock, and not what is left.
    pub absolute: bool,
    /// How often it goes off after that, in ns; 0: not again.
    pub interval_ns: u64,
    /// When it goes off, in ns; 0: it is not set.
    pub next_ns: u64,
}

/// Users, groups and whether privileges can be gained.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Credentials {
    /// Real, effective, saved and file system user.
    pub uid: [u32; 4],
    /// Real, effective, saved and file system group.
    pub gid: [u32; 4],
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Inheritable, permitted, effective, bounding and ambient capabilities.
    pub capabilities: [u64; 5],
    /// True if `exec` cannot gain privileges.
    pub no_new_privs: bool,
    /// `PR_SET_SECUREBITS`; 0 in an image that was written to a file.
    #[serde(skip)]
    pub securebits: u32,
}

/// The kernel's notes about an address space (`prctl(PR_SET_MM)`, proc_pid_stat(5)).
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Layout {
    /// start_code, end_code, start_data, end_data, start_brk, brk, start_stack,
    /// arg_start, arg_end, env_start, env_end: the order of `prctl_mm_map`.
    pub bounds: [u64; 11],
    /// The auxiliary vector, as in /proc/PID/auxv.
    pub auxv: Vec<u8>,
}

/// A signal action as rt_sigaction(2) of the kernel takes it.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Action {
    /// The handler, 0 for the default, 1 for none.
    pub handler: u64,
    /// SA_ flags.
    pub flags: u64,
    /// The return trampoline.
    pub restorer: u64,
    /// Signals blocked while it runs.
    pub mask: u64,
}

/// Contents of a page run that a mapping does not get from its file.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Bytes from the start of the mapping.
    pub at: u64,
    /// Bytes.
    pub length: u64,
    /// Where they stand in the contents of the image.
    pub source: u64,
}

/// What lies under a mapping.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Backing {
    /// Zeroes.
    Anonymous,
    /// A file.
    File {
        /// Its path.
        path: String,
        /// Bytes from its start.
        offset: u64,
        /// Its size, 0 if it may change (writable shared mappings).
        size: u64,
        /// Its modification time in ns, 0 if it may change.
        modified_ns: i64,
    },
    /// Code and data of the kernel: its name, as `[vdso]`.
    Kernel(String),
}

/// A range of addresses.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mapping {
    /// The first byte.
    pub start: u64,
    /// The byte behind the last.
    pub end: u64,
    /// PROT_ bits.
    pub protection: u32,
    /// True for MAP_SHARED.
    pub shared: bool,
    /// True for MAP_GROWSDOWN: the stack of the leader.
    pub grows_down: bool,
    /// What lies under it.
    pub backing: Backing,
    /// Pages on top of it.
    pub runs: Vec<Run>,
}

/// A descriptor of a process.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Descriptor {
    /// Its number.
    pub fd: i32,
    /// FD_CLOEXEC.
    pub close_on_exec: bool,
    /// Index into [`Image::descriptions`].
    pub description: u32,
}

/// An open file description.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Description {
    /// O_ flags, access mode included.
    pub flags: u32,
    /// The position in bytes.
    pub position: u64,
    /// True if a file that is not there will not come back, for its file system was in memory;
    /// not in an image that was written to a file.
    #[serde(skip)]
    pub volatile: bool,
    /// Major and minor number of its file system's device, if it has one: a name that is not in
    /// a directory there will not come back either; not in an image that was written to a file.
    #[serde(skip)]
    pub device: Option<(u32, u32)>,
    /// Locks that it has (flock, OFD); not in an image that was written to a file.
    #[serde(skip)]
    pub locks: Vec<Lock>,
    /// What is open.
    pub kind: OpenFile,
}

/// A file that an epoll watches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Watched {
    /// The descriptor that it was added as.
    pub fd: i32,
    /// Index into [`Image::descriptions`].
    pub description: u32,
    /// EPOLL*.
    pub events: u32,
    /// What is told with them.
    pub data: u64,
}

/// What is open.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum OpenFile {
    /// A file, directory or harmless device with a path.
    Path(String),
    /// A terminal: path, `struct termios` of the kernel, rows and columns, and the
    /// foreground process group (0: not the controlling terminal).
    Terminal {
        /// The device.
        path: String,
        /// As TCGETS gives it.
        termios: Vec<u8>,
        /// Rows and columns.
        size: (u16, u16),
        /// The process group in the foreground.
        foreground: i32,
    },
    /// An end of a pipe: its inode number names the pipe; with what it still holds.
    Pipe {
        /// The pipe.
        id: u64,
        /// True for the end that is written to.
        write: bool,
        /// Bytes not yet read (in the read end only).
        held: Vec<u8>,
    },
    /// An end of a pipe whose other end is outside of the image: the restorer's caller
    /// says what takes its place, by number 0, 1 or 2; else it is a closed one.
    Outside {
        /// The descriptor that the process first had it as.
        stdio: i32,
    },
    /// eventfd(2) with its counter.
    Event(u64),
    /// A socket: comes back as one whose peer is gone.
    Socket,
    /// What was open is gone with the kernel: its name. Each call on it fails with EBADF.
    Gone(String),
    /// eventfd(2) with EFD_SEMAPHORE and its counter.
    Semaphore(u64),
    /// timerfd_create(2).
    Timer {
        /// The clock.
        clock: i32,
        /// As timerfd_settime(2) takes them.
        flags: i32,
        /// Its period in ns; 0: none.
        interval_ns: u64,
        /// When it goes off, in ns; 0: it is not set.
        next_ns: u64,
        /// Expirations that nobody has read.
        expired: u64,
    },
    /// epoll_create(2).
    Epoll(Vec<Watched>),
    /// signalfd(2): bit n-1 for signal n.
    Signals(u64),
    /// An end of a pair of Unix sockets.
    Pair {
        /// This end.
        id: u64,
        /// The other one; 0 if it is closed.
        peer: u64,
        /// SOCK_*.
        kind: i32,
        /// Directions that are shut down: bit 0 for reading, bit 1 for writing.
        shut: u32,
        /// Messages that were not yet received.
        held: Vec<Vec<u8>>,
    },
}

/// A thread.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Thread {
    /// Its number in its innermost PID namespace.
    pub tid: i32,
    /// `struct user_regs_struct` of x86-64: 27 words.
    pub registers: Vec<u64>,
    /// The XSAVE area as NT_X86_XSTATE gives it (not compacted).
    pub xstate: Vec<u8>,
    /// Blocked signals.
    pub mask: u64,
    /// Pending signals of this thread.
    pub pending: u64,
    /// Their data, as [`Process::queued`].
    pub queued: Vec<Vec<u8>>,
    /// The alternate signal stack: address, bytes, flags.
    pub altstack: (u64, u64, u32),
    /// The head of the robust futex list.
    pub robust_list: u64,
    /// The word that is cleared and woken at the thread's end.
    pub clear_tid: u64,
    /// Restartable sequences: address, bytes, signature; address 0 if not registered.
    pub rseq: (u64, u32, u32),
    /// The name (`PR_SET_NAME`).
    pub name: String,
    /// The CPUs it may run on: bit n for CPU n. Empty: any.
    pub affinity: Vec<u8>,
}

fn bad(reason: String) -> Error {
    Error::new(
        Code::Corrupt,
        Entity::Call,
        format!("process image: {reason}"),
        "take another image; nothing was started from this one",
    )
}

impl Image {
    /// Refuses an image that breaks the invariants of this module.
    ///
    /// # Errors
    /// [`Code::Corrupt`] with what is wrong.
    pub fn check(&self) -> Result<()> {
        if self.processes.is_empty() || self.processes.len() > PROCESSES_MAX {
            return Err(bad(format!("{} processes", self.processes.len())));
        }
        let mut ids = std::collections::BTreeSet::new();
        for (index, process) in self.processes.iter().enumerate() {
            if self.processes[index..]
                .iter()
                .any(|p| p.pid == process.ppid)
            {
                return Err(bad(format!(
                    "process {}: its parent is not before it",
                    process.pid
                )));
            }
            process.check(self.descriptions.len())?;
            for thread in &process.threads {
                if thread.tid <= 0 || !ids.insert(thread.tid) {
                    return Err(bad(format!("thread {} twice or not positive", thread.tid)));
                }
            }
        }
        Ok(())
    }

    /// Bytes of contents that must stand beside the image.
    pub fn contents_bytes(&self) -> u64 {
        let runs = self.processes.iter().flat_map(|p| &p.mappings);
        let ends = runs
            .flat_map(|m| &m.runs)
            .map(|r| r.source.saturating_add(r.length));
        ends.max().unwrap_or(0)
    }
}

impl Process {
    fn check(&self, descriptions: usize) -> Result<()> {
        let say = |what: String| bad(format!("process {}: {what}", self.pid));
        if self.threads.first().map(|t| t.tid) != Some(self.pid) || self.threads.len() > THREADS_MAX
        {
            return Err(say("its first thread is not its leader".into()));
        }
        if self.actions.len() != 64 || self.limits.len() > 16 {
            return Err(say("signal actions or limits are incomplete".into()));
        }
        let mut last = 0;
        for map in &self.mappings {
            let aligned = map.start % PAGE == 0 && map.end % PAGE == 0;
            let special = matches!(map.backing, Backing::Kernel(_));
            if !aligned || map.start < last || map.end <= map.start || map.end > ADDRESS_MAX + PAGE
            {
                return Err(say(format!("mapping {:x}-{:x}", map.start, map.end)));
            }
            last = map.end;
            let length = map.end - map.start;
            let inside = |run: &Run| {
                run.at
                    .checked_add(run.length)
                    .is_some_and(|end| end <= length)
                    && run.source.checked_add(run.length).is_some()
            };
            if (special && !map.runs.is_empty()) || !map.runs.iter().all(inside) {
                return Err(say(format!("contents of mapping {:x}", map.start)));
            }
        }
        let signal = |info: &Vec<u8>| {
            let number = info.first_chunk().map(|word| i32::from_le_bytes(*word));
            info.len() <= SIGINFO_BYTES && number.is_some_and(|n| (1..=64).contains(&n))
        };
        if !self.queued.iter().all(signal) {
            return Err(say("queued signals".into()));
        }
        let mut numbers = self.posix_timers.iter().map(|timer| timer.id);
        if !numbers.all(|id| (0..TIMERS_MAX).contains(&id))
            || !self.posix_timers.is_sorted_by(|a, b| a.id < b.id)
        {
            return Err(say("numbers of timers".into()));
        }
        for descriptor in &self.descriptors {
            let known = (descriptor.description as usize) < descriptions;
            if !known || !(0..1 << 20).contains(&descriptor.fd) {
                return Err(say(format!("descriptor {}", descriptor.fd)));
            }
        }
        for thread in &self.threads {
            if !thread.queued.iter().all(signal) {
                return Err(say(format!("queued signals of thread {}", thread.tid)));
            }
            let xstate = thread.xstate.len();
            if thread.registers.len() != 27 || (xstate != 0 && !(576..=65_536).contains(&xstate)) {
                return Err(say(format!("registers of thread {}", thread.tid)));
            }
        }
        Ok(())
    }
}

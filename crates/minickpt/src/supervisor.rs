//! The process that stands beside protected programs: their tracer.
//!
//! It is called only for what [`crate::filter`] names, for births, deaths and signals.
//! One loop handles one stop after the other; a call on memory is carried out to its end
//! before the next stop is looked at. If it dies, so do its programs (`EXITKILL`): they
//! never run with memory that is not kept.

mod born;
pub mod files;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use outlive_base::{Code, Entity, Error};
use outlive_image::calls::reg;
use outlive_image::freeze::Frozen;
use outlive_image::gate::{self, Gone};
use outlive_image::model::{Backing, Image};
use outlive_image::procfs;
use outlive_image::restore::Restored;
use outlive_image::sys::{self, Change, Others};

use self::files::Files;
use crate::births::{makes_thread, shares};
use crate::filter::{APART, KEPT, SPECIAL, Special};
use crate::journal::Journal;
use crate::memory::{self, Done, Guest, answer, put_back, set_answer};
pub use crate::register::{Counts, Native, Register};
use crate::space::{Space, unguessable};
use crate::stacks::Stacks;

/// What a plain fork does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fork {
    /// It fails with ENOSYS and the launcher says why.
    #[default]
    Refuse,
    /// The child gets a copy of all memory at once, and is protected too.
    Copy,
}

/// How programs are supervised.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The directory for their memory.
    pub memory: PathBuf,
    /// True if that is on DAX.
    pub dax: bool,
    /// What fork does.
    pub fork: Fork,
    /// What special descriptors do.
    pub special: Special,
    /// What files that are written to do.
    pub files: Files,
}

impl Policy {
    /// A process whose memory is being moved, by its stopped thread.
    fn guest<'a>(&'a self, tid: i32, memory: &'a File, space: &'a Space) -> Guest<'a> {
        Guest {
            tid,
            memory,
            space,
            common: &self.memory,
            dax: self.dax,
            journal: None,
            stacks: None,
            through: self.files == Files::Through,
        }
    }
}

/// The space and the memory of an address space; several processes while one is in vfork.
#[derive(Debug)]
struct Body {
    space: Space,
    memory: File,
    stacks: Stacks,
}

impl Body {
    fn new(space: Space, memory: File) -> Body {
        let stacks = Stacks::default();
        Body {
            space,
            memory,
            stacks,
        }
    }
}

/// The tracer of a tree of processes.
pub struct Supervisor<'a> {
    policy: Policy,
    register: &'a mut dyn Register,
    journal: Journal,
    bodies: BTreeMap<i32, Rc<Body>>,
    /// Threads and the process that each belongs to.
    threads: BTreeMap<i32, i32>,
    /// Newborns that stopped (or ended: false) before their birth was reported.
    early: BTreeMap<i32, bool>,
    queue: VecDeque<(i32, Change)>,
    /// Threads that are in a call on a file.
    files: BTreeMap<i32, files::Open>,
    /// Names of files that were refused.
    refused: BTreeSet<String>,
    /// Until its processes are another's.
    others: Option<Others>,
    root: i32,
    status: Option<i32>,
    said: BTreeSet<&'static str>,
    /// How often it was called.
    pub counts: Counts,
    /// What is said to the user, a line each.
    pub say: Box<dyn FnMut(&Error) + 'a>,
}

fn broken(doing: &str, error: &io::Error) -> Error {
    let what = format!("supervise: {doing}: {error}");
    if error.kind() == io::ErrorKind::PermissionDenied {
        let remedy = "programs map their memory themselves: let all users enter that directory \
                      and those above it (chmod o+x)";
        return Error::new(Code::Permission, Entity::Call, what, remedy);
    }
    let remedy = "the programs were ended; their output tells how far they came";
    Error::new(Code::Io, Entity::Call, what, remedy)
}

impl<'a> Supervisor<'a> {
    /// A supervisor without processes.
    ///
    /// # Errors
    /// The directory of the policy cannot be written to.
    pub fn new(
        policy: Policy,
        register: &'a mut dyn Register,
    ) -> outlive_base::Result<Supervisor<'a>> {
        let journal = Journal::open(&policy.memory)
            .map_err(|error| Error::io(&policy.memory, "write the journal", &error))?;
        Ok(Supervisor {
            journal,
            policy,
            register,
            bodies: BTreeMap::new(),
            threads: BTreeMap::new(),
            early: BTreeMap::new(),
            others: Some(Others::new()),
            queue: VecDeque::new(),
            files: BTreeMap::new(),
            refused: BTreeSet::new(),
            root: 0,
            status: None,
            said: BTreeSet::new(),
            counts: Counts::default(),
            say: Box::new(|error| eprintln!("outlive: {error}")),
        })
    }

    /// Empties the journal: nothing waits to be restored that could need it.
    ///
    /// # Errors
    /// The directory of the policy cannot be written to.
    pub fn forget_calls(&mut self) -> outlive_base::Result<()> {
        let cleared = self.journal.clear();
        cleared.map_err(|error| Error::io(&self.policy.memory, "write the journal", &error))
    }

    /// Takes over a seized process that has not executed its program yet.
    pub fn adopt(&mut self, pid: i32) {
        self.root = pid;
        self.threads.insert(pid, pid);
    }

    /// Takes over restored processes; they are still stopped.
    ///
    /// # Errors
    /// Their files or the register.
    pub fn resume(&mut self, image: &Image, restored: &Restored) -> outlive_base::Result<()> {
        for (process, (pid, tids)) in image.processes.iter().zip(&restored.processes) {
            let dirs = process.mappings.iter().filter_map(|m| match &m.backing {
                Backing::File { path, .. } => PathBuf::from(path).parent().map(PathBuf::from),
                _ => None,
            });
            let mut own = dirs.filter(|dir| dir.parent() == Some(self.policy.memory.as_path()));
            let body = own.next().map(|dir| -> io::Result<Body> {
                Ok(Body::new(Space::open(&dir)?, gate::memory(*pid)?))
            });
            let body = body.ok_or_else(|| {
                Error::new(
                    Code::NotFound,
                    Entity::File(self.policy.memory.display().to_string()),
                    format!("the memory of process {} is not here", process.pid),
                    "give the --memory that outlive minickpt run had",
                )
            })?;
            let body = body.map_err(|error| broken("open protected memory", &error))?;
            self.bodies.insert(*pid, Rc::new(body));
            for tid in tids {
                sys::end_with_tracer(*tid).map_err(|error| broken("take over", &error))?;
                self.threads.insert(*tid, *pid);
            }
            self.register.add(*pid)?;
        }
        self.root = restored.processes.first().map_or(0, |(pid, _)| *pid);
        Ok(())
    }

    /// The first process did not come back: it ended as if killed, whatever the others do.
    pub fn first_is_lost(&mut self) {
        self.root = 0;
        self.status = Some(libc::SIGKILL);
    }

    /// Lets restored processes run.
    ///
    /// # Errors
    /// A thread that is gone.
    pub fn start(&mut self) -> outlive_base::Result<()> {
        for tid in self.threads.keys() {
            sys::resume(*tid, 0).map_err(|error| broken("resume", &error))?;
        }
        Ok(())
    }

    /// Handles stops until all processes have ended; the wait status of the first one.
    ///
    /// # Errors
    /// The supervisor cannot go on; the processes end with it.
    pub fn run(&mut self) -> outlive_base::Result<i32> {
        while self.step(true)? {}
        self.told()
    }

    /// How the first process ended. That nobody knows it is not a success.
    fn told(&self) -> outlive_base::Result<i32> {
        self.status.ok_or_else(|| {
            let error = io::Error::other("the end of the first program was not told");
            broken("wait", &error)
        })
    }

    fn step(&mut self, block: bool) -> outlive_base::Result<bool> {
        let change = match self.queue.pop_front() {
            Some(change) => Some(change),
            None => match sys::wait(-1, block) {
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(false),
                other => other.map_err(|error| broken("wait", &error))?,
            },
        };
        if let Some((tid, change)) = change {
            self.handle(tid, change)?;
        }
        Ok(!self.threads.is_empty())
    }

    /// As [`Supervisor::run`], but asks `stop` all the time (this burns a processor: for
    /// tests and measurements), and gives `None` when it says so.
    ///
    /// # Errors
    /// As [`Supervisor::run`].
    pub fn run_polled(
        &mut self,
        mut stop: impl FnMut(&Counts) -> bool,
    ) -> outlive_base::Result<Option<i32>> {
        while self.step(false)? {
            if stop(&self.counts) {
                return Ok(None);
            }
            std::thread::yield_now();
        }
        self.told().map(Some)
    }

    /// Forgets all processes, but leaves their files: something else restores them.
    pub fn abandon(&mut self) {
        self.others = None;
        self.threads.clear();
        self.bodies.clear();
    }

    /// Stops all processes between two instructions, for an image. They are in the order
    /// of the tree.
    ///
    /// # Errors
    /// As [`Supervisor::run`].
    pub fn freeze(&mut self) -> outlive_base::Result<Frozen> {
        let mut stopped = BTreeSet::new();
        let mut frozen = Frozen::default();
        while let Some(tid) = self
            .threads
            .keys()
            .find(|tid| !stopped.contains(*tid))
            .copied()
        {
            if sys::interrupt(tid).is_err() {
                self.threads.remove(&tid);
                continue;
            }
            loop {
                let waited = sys::wait(tid, true).map_err(|error| broken("wait", &error))?;
                match waited {
                    Some((
                        _,
                        Change::Stopped {
                            event: libc::PTRACE_EVENT_STOP,
                            ..
                        },
                    )) => {
                        stopped.insert(tid);
                        break;
                    }
                    Some((_, change)) => {
                        self.handle(tid, change)?;
                        // Calls made in its name may have taken the stop that was asked
                        // for; two that are asked for are one.
                        if self.threads.contains_key(&tid) && sys::interrupt(tid).is_err() {
                            self.threads.remove(&tid);
                        }
                        if !self.threads.contains_key(&tid) {
                            break;
                        }
                    }
                    None => {}
                }
            }
        }
        let mut order: Vec<i32> = self.bodies.keys().copied().collect();
        order.sort_by_key(|pid| (*pid != self.root, *pid));
        for pid in order {
            let of = |tid: &&i32| self.threads[*tid] == pid;
            let mut tids: Vec<i32> = self.threads.keys().filter(of).copied().collect();
            tids.sort_by_key(|tid| (*tid != pid, *tid));
            frozen.processes.push((pid, tids));
        }
        Ok(frozen)
    }

    fn handle(&mut self, tid: i32, change: Change) -> outlive_base::Result<()> {
        let handled = self.stopped(tid, change);
        let handled = handled.or_else(|error| self.lost(tid, error));
        handled.map_err(|error| broken(&format!("thread {tid}"), &error))
    }

    /// Takes an error for no error if it came because thread `tid`, or the one that it speaks
    /// of, is gone: it can be ended at any point of its handling, by SIGKILL or because its
    /// process ends, and by an exec.
    fn lost(&mut self, tid: i32, error: io::Error) -> io::Result<()> {
        let Some(Gone { tid, change }) = Gone::of(&error) else {
            let ended = |error: &io::Error| error.raw_os_error() == Some(libc::ESRCH);
            // One that is no longer stopped is ending, and one that was not there and now stands
            // where a program was executed has its number from there: either will be told.
            let ending = sys::registers(tid).is_err_and(|error| ended(&error))
                || ended(&error) && sys::is_at_exec(tid);
            return if ending { Ok(()) } else { Err(error) };
        };
        let exec =
            matches!(change, Change::Stopped { event, .. } if event == libc::PTRACE_EVENT_EXEC);
        if !exec && !matches!(change, Change::Ended(_)) {
            return Err(error);
        }
        // The call that it was in is nobody's any more.
        self.journal.end()?;
        self.stopped(tid, change)
    }

    fn stopped(&mut self, tid: i32, change: Change) -> io::Result<()> {
        let (signal, event) = match change {
            Change::Ended(status) => {
                self.ended(tid, status);
                return Ok(());
            }
            Change::Stopped { signal, event } => (signal, event),
        };
        if !self.threads.contains_key(&tid) {
            self.early.insert(tid, true);
            return Ok(());
        }
        if event != libc::PTRACE_EVENT_EXEC && sys::is_at_exec(tid) {
            // What was told before another thread executed a program; that is told yet.
            return Ok(());
        }
        match event {
            libc::PTRACE_EVENT_SECCOMP => self.call(tid),
            libc::PTRACE_EVENT_CLONE if makes_thread(&sys::registers(tid)?) => {
                self.thread_born(tid)
            }
            libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                self.process_born(tid, event)
            }
            libc::PTRACE_EVENT_EXEC => self.executed(tid),
            libc::PTRACE_EVENT_STOP => {
                let jobs = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
                if jobs.contains(&signal) {
                    sys::listen(tid)
                } else {
                    self.let_run(tid)
                }
            }
            0 if Self::is_end_of_call(change) => self.call_ended(tid),
            0 if signal & 0x80 == 0 => {
                self.counts.signals += 1;
                if signal == libc::SIGBUS {
                    self.full_at_fault(tid);
                }
                sys::resume(tid, signal)
            }
            _ => sys::resume(tid, 0),
        }
    }

    fn ended(&mut self, tid: i32, status: i32) {
        let Some(pid) = self.threads.remove(&tid) else {
            self.early.insert(tid, false);
            return;
        };
        self.files.remove(&tid);
        // A word that stays names nobody who is there.
        let _ = self.journal.forget(tid);
        if tid == self.root {
            self.status = Some(status);
        }
        if tid == pid {
            self.forget(pid);
        }
    }

    fn forget(&mut self, pid: i32) {
        self.register.remove(pid);
        if let Some(body) = self.bodies.remove(&pid)
            && Rc::strong_count(&body) == 1
        {
            body.space.remove();
        }
    }

    /// Says something once.
    fn tell(&mut self, key: &'static str, error: &Error) {
        if self.said.insert(key) {
            (self.say)(error);
        }
    }

    fn full(&mut self, bytes: u64) {
        let error = Error::new(
            Code::NoSpace,
            Entity::File(self.policy.memory.display().to_string()),
            format!("the program asks for {bytes} bytes more than there is protected memory"),
            "reserve more (outlive minickpt setup), or make the problem smaller",
        );
        self.tell("full", &error);
    }

    /// A bus error in a sparse file means that its file system is full.
    fn full_at_fault(&mut self, tid: i32) {
        let body = self.threads.get(&tid).and_then(|pid| self.bodies.get(pid));
        if body.is_some_and(|body| body.space.free().is_ok_and(|free| free < 1 << 20)) {
            self.full(4096);
        }
    }

    /// A call that the filter sends here.
    fn call(&mut self, tid: i32) -> io::Result<()> {
        let mut registers = sys::registers(tid)?;
        let number = registers[reg::ORIG_RAX] as i64;
        let arguments = [reg::RDI, reg::RSI, reg::RDX, reg::R10, reg::R8, reg::R9]
            .map(|register| registers[register]);
        let body = self
            .threads
            .get(&tid)
            .and_then(|pid| self.bodies.get(pid))
            .cloned();
        let Some(body) = body else {
            // Before the first exec the program is still the launcher's copy.
            return sys::resume(tid, 0);
        };
        if files::is_file_call(number) {
            return self.file_call(tid, registers);
        }
        if let Some((_, name)) = APART.iter().find(|(apart, _)| *apart == number) {
            self.refuse_apart(name);
            return answer(tid, &mut registers, -i64::from(libc::EPERM));
        }
        if let Some((_, name)) = SPECIAL
            .iter()
            .chain(KEPT)
            .find(|(special, _)| *special == number)
        {
            self.refuse_special(name);
            return answer(tid, &mut registers, -i64::from(libc::ENOSYS));
        }
        if [libc::SYS_fork, libc::SYS_vfork, libc::SYS_clone].contains(&number) {
            // What it made last is not what this call makes.
            self.journal.forget(tid)?;
            if self.policy.fork == Fork::Copy || shares(&registers) {
                return sys::resume(tid, 0);
            }
            self.refuse_fork();
            return answer(tid, &mut registers, -i64::from(libc::ENOSYS));
        }
        if number == libc::SYS_mmap
            && let Some(stack) = body.stacks.take(&registers)
        {
            // Nothing to be written down: a thread that has not got it asks again.
            self.counts.map += 1;
            return answer(tid, &mut registers, stack as i64);
        }
        let mask = sys::mask(tid)?;
        self.journal.begin(tid, &registers, mask)?;
        gate::quiet(tid)?;
        let guest = Guest {
            journal: Some(&self.journal),
            stacks: Some(&body.stacks),
            ..self.policy.guest(tid, &body.memory, &body.space)
        };
        let done = match number {
            libc::SYS_mmap => {
                self.counts.map += 1;
                guest.map(arguments)
            }
            libc::SYS_munmap => {
                self.counts.unmap += 1;
                guest.unmap(arguments[0], arguments[1])
            }
            libc::SYS_mremap => {
                self.counts.remap += 1;
                guest.remap(arguments)
            }
            libc::SYS_mprotect => {
                self.counts.protect += 1;
                guest.protect(arguments[0], arguments[1])
            }
            libc::SYS_madvise => {
                self.counts.advise += 1;
                guest.drop_pages(arguments[0], arguments[1], arguments[2])
            }
            _ => Ok(Done::Pass),
        };
        let done = memory::settle(done)?;
        let result = match done {
            Done::Result(result) => result,
            Done::Full(bytes) => {
                self.full(bytes);
                -i64::from(libc::ENOMEM)
            }
            Done::Unkept(why) => {
                self.refuse_file(&why);
                -i64::from(libc::ENODEV)
            }
            Done::Pass => self.pass(tid, &registers, &body)?,
        };
        self.journal.decided(result)?;
        sys::set_mask(tid, mask)?;
        set_answer(tid, &mut registers, result)?;
        self.journal.end()?;
        sys::resume(tid, 0)
    }

    /// Makes a call as the program wrote it, through the gate.
    fn pass(&self, tid: i32, registers: &[u64], body: &Body) -> io::Result<i64> {
        let arguments = [reg::RDI, reg::RSI, reg::RDX, reg::R10, reg::R8, reg::R9]
            .map(|register| registers[register]);
        let mut list = gate::List::new();
        list.attempt(registers[reg::ORIG_RAX] as i64, &arguments);
        gate::run(tid, &body.memory, &list).map(|ran| ran.results[0])
    }

    fn refuse_special(&mut self, name: &'static str) {
        let error = Error::new(
            Code::Unsupported,
            Entity::Call,
            format!(
                "the program makes a descriptor of kind {name}, whose state is lost in a panic"
            ),
            "it was told ENOSYS; --special lose lets it have one, on which each call fails after a panic",
        );
        self.tell(name, &error);
    }

    fn refuse_apart(&mut self, name: &'static str) {
        let error = Error::new(
            Code::Unsupported,
            Entity::Call,
            format!("the program calls {name}: namespaces of its own are not kept"),
            "it was told EPERM; start it inside of them",
        );
        self.tell(name, &error);
    }

    fn refuse_fork(&mut self) {
        let error = Error::new(
            Code::Unsupported,
            Entity::Call,
            "the program forks, and no policy for that was given",
            "it was told ENOSYS; --fork copy gives each child a protected copy of all memory",
        );
        self.tell("fork", &error);
    }

    /// Files for the memory of a process, which its user may open.
    fn new_space(&self, pid: i32) -> io::Result<Space> {
        let name = format!("p{pid}-{}", unguessable()?);
        let user = procfs::status(pid, pid)?.credentials.uid[3];
        Space::create(&self.policy.memory, &name, user)
    }

    fn announce(&mut self, pid: i32) {
        if let Err(error) = self.register.add(pid) {
            (self.say)(&error);
        }
    }

    /// A process executed a program: its new memory moves into files.
    fn executed(&mut self, tid: i32) -> io::Result<()> {
        self.counts.programs += 1;
        self.queue.retain(|(other, _)| *other != tid);
        self.threads
            .retain(|other, pid| *pid != tid || *other == tid);
        // The end of the others may not be told; their numbers come again.
        let threads = &self.threads;
        self.files
            .retain(|other, _| *other != tid && threads.contains_key(other));
        let former = self.bodies.contains_key(&tid);
        if former {
            self.forget(tid);
        }
        gate::to_end_of_call(tid)?;
        let mut saved = (sys::registers(tid)?, sys::mask(tid)?);
        saved.0[reg::ORIG_RAX] = u64::MAX;
        gate::quiet(tid)?;
        let space = self.new_space(tid)?;
        let memory = gate::memory(tid)?;
        let vdso = outlive_image::dump::vdso(&procfs::mappings(tid)?)?;
        gate::open(tid, &memory, vdso)?;
        let guest = self.policy.guest(tid, &memory, &space);
        let adopted = guest.adopt();
        if let Err(error) = adopted {
            let denied = error.kind() == io::ErrorKind::PermissionDenied;
            if !denied && Gone::of(&error).is_none() {
                self.full(0);
            }
            return Err(error);
        }
        put_back(tid, saved)?;
        self.bodies.insert(tid, Rc::new(Body::new(space, memory)));
        self.announce(tid);
        sys::resume(tid, 0)
    }
}

impl Drop for Supervisor<'_> {
    fn drop(&mut self) {
        // Nothing runs unwatched; its files go when nobody may restore them.
        for pid in self.bodies.keys() {
            let _ = sys::kill(*pid, libc::SIGKILL);
        }
    }
}

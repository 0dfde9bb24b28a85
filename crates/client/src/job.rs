//! The job as a rank sees it: how it is joined, what it protects, its state and its
//! end. What it does for a checkpoint is in `capture`, for a restore in `restore`, and how bytes
//! go past the program's own memory in `route`.

use core::time::Duration;
use outlive_base::{Code, Entity, Error, Result, Survives, Version};
use outlive_capture::control::{Armed, ControlBlock, ControlWords, Identity, Side};
use outlive_capture::ipc::{ToAgent, ToRank};
use outlive_capture::region::Element;
use rustix::fd::AsFd;

use crate::environment::{self, RankOf};
use crate::forked::ForkGuard;
use crate::link::Link;
use crate::protected::Registry;

pub(crate) mod capture;
pub(crate) mod restore;
pub(crate) mod route;

use capture::Slabs;
use restore::Pending;
use route::Routes;

/// Bound of every wait on the agent unless [`Options::timeout`] says otherwise.
pub const DEFAULT_TIMEOUT_MS: u64 = 10_000;

/// Longest bound of a wait: what a request can carry, 49 days. Longer ones are cut to it.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_millis(u32::MAX as u64);

/// How to join a job.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The rank; `None`: from the launcher's environment.
    pub rank: Option<u32>,
    /// The number of ranks; `None`: from the launcher's environment.
    pub ranks: Option<u32>,
    /// Bound of every wait on the agent, from 1 ms to 49 days.
    pub timeout: Duration,
    /// Threads that copy in a capture, the calling one included. `OUTLIVE_COPY_THREADS`
    /// in the environment comes before it.
    pub copy_threads: usize,
    /// Whether each capture is compared with the memory that it was copied from: what was written
    /// to meanwhile costs the version (error 207). Takes about as long as the copy.
    /// `OUTLIVE_CHECK_CAPTURES` in the environment comes before it.
    pub check_captures: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            rank: None,
            ranks: None,
            timeout: Duration::from_millis(DEFAULT_TIMEOUT_MS),
            copy_threads: 1,
            check_captures: false,
        }
    }
}

/// What a checkpoint call did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Not wanted now: the usual answer.
    Skipped,
    /// Captured; [`Job::wait`] tells when it is committed.
    Taken,
}

/// What a wait found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// The version survives what was asked: it is committed and stable at such a level.
    Committed,
    /// The program runs unprotected: nothing is saved and nothing was waited for.
    Unprotected,
}

/// What is known without waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// True under `outlive run`.
    pub is_protected: bool,
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The node slot; 0 if not protected.
    pub node: u32,
    /// Which start of the job this is, from 1; 0 if not protected.
    pub incarnation: u32,
    /// Regions protected.
    pub regions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Captures since the job was opened.
    pub taken: u64,
    /// Captures that failed.
    pub failed: u64,
    /// How long the last capture blocked the program, in nanoseconds.
    pub blocked_ns: u64,
    /// The last version captured.
    pub version_taken: Option<u64>,
    /// For each of [`Survives::ALL`], the newest version that survives at least this.
    pub version_surviving: [Option<u64>; 5],
    /// The version restored at this start.
    pub version_restored: Option<u64>,
}

/// A level of the job: where versions are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    /// As `outlive run --levels` names it.
    pub name: &'static str,
    /// The most that its versions survive.
    pub survives: Survives,
    /// The newest version that is committed and stable there.
    pub version: Option<u64>,
}

/// An answer of [`Job::wanted`] that the checkpoint with this version keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decision {
    pub(crate) version: u64,
    pub(crate) armed: Option<Armed>,
}

/// A rank's handle on its job. May be used by any thread, by one at a time.
#[derive(Debug)]
pub struct Job {
    /// The smallest version that may be offered; `u64::MAX` sends every call to the
    /// cold path (then `held_next` is the true value).
    pub(crate) next: u64,
    pub(crate) control: ControlBlock,
    pub(crate) guard: ForkGuard,
    pub(crate) held_next: u64,
    pub(crate) decision: Option<Decision>,
    pub(crate) link: Option<Link>,
    pub(crate) place: RankOf,
    /// The job's number in slabs, from the first one seen.
    pub(crate) job_hash: Option<u64>,
    pub(crate) timeout: Duration,
    pub(crate) copy_threads: usize,
    pub(crate) check_captures: bool,
    pub(crate) regions: Registry,
    pub(crate) slabs: Slabs,
    pub(crate) routes: Routes,
    pub(crate) pending: Pending,
    /// The last version that was captured or failed: what was armed up to it has had
    /// its answer.
    pub(crate) answered: Option<Version>,
    pub(crate) injected: Option<Version>,
    pub(crate) taken: u64,
    pub(crate) failed: u64,
    pub(crate) version_taken: Option<u64>,
    pub(crate) version_restored: Option<u64>,
    last_error: Option<Error>,
}

// SAFETY: the raw pointers are addresses of the program's regions, which it has
// promised to keep valid for whichever thread uses the job.
unsafe impl Send for Job {}

impl Job {
    /// Joins the job: reads rank and size from `options` or the environment, and
    /// says Hello to the node's agent. Not started under `outlive run`: a job that
    /// saves nothing.
    ///
    /// # Errors
    /// 200 if the rank cannot be found (only under `outlive run`) or is impossible, 300
    /// if the agent does not answer, 600 if a variable of `outlive run` makes no sense, or
    /// the agent's own refusal (200, 201, 202, 305).
    pub fn open(options: &Options) -> Result<Job> {
        Job::open_with(options, &|name| std::env::var(name).ok())
    }

    /// As [`Job::open`], with another environment.
    pub fn open_with(options: &Options, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Job> {
        let surroundings = environment::surroundings(lookup)?;
        let place = match (options.rank, options.ranks) {
            (Some(rank), Some(ranks)) => environment::checked(rank, ranks)?,
            (rank, ranks) => {
                let found = match environment::place(lookup) {
                    Ok(found) => found,
                    // Unprotected, a puzzling environment must not stop a program.
                    Err(_) if surroundings.is_none() => RankOf { rank: 0, ranks: 1 },
                    Err(error) => return Err(error),
                };
                environment::checked(rank.unwrap_or(found.rank), ranks.unwrap_or(found.ranks))?
            }
        };
        let timeout = options.timeout.clamp(Duration::from_millis(1), TIMEOUT_MAX);
        let copy_threads = match environment::copy_threads(lookup) {
            Ok(asked) => asked.unwrap_or(options.copy_threads),
            Err(_) if surroundings.is_none() => options.copy_threads,
            Err(error) => return Err(error),
        };
        let check_captures = match environment::check_captures(lookup) {
            Ok(asked) => asked.unwrap_or(options.check_captures),
            Err(_) if surroundings.is_none() => options.check_captures,
            Err(error) => return Err(error),
        };
        let guard = ForkGuard::new().map_err(|e| Error::io("memory", "map a page", &e))?;
        let (control, link) = match surroundings {
            None => (private_control(place)?, None),
            Some(found) => {
                let link = Link::open(found.socket(place)?, place, found.incarnation, timeout)?;
                (map_control(&link, place)?, Some(link))
            }
        };
        // A rank that was started anew under a living control block goes on there.
        let next = if link.is_some() { control.called() } else { 0 };
        let job = Job {
            next,
            control,
            guard,
            held_next: next,
            decision: None,
            link,
            place,
            job_hash: None,
            timeout,
            copy_threads,
            check_captures,
            regions: Registry::default(),
            slabs: Slabs::default(),
            routes: Routes::default(),
            pending: Pending::Unknown,
            answered: None,
            injected: None,
            taken: 0,
            failed: 0,
            version_taken: None,
            version_restored: None,
            last_error: None,
        };
        job.control.set_bytes_needed(job.regions.needed());
        Ok(job)
    }

    // ---- errors ----

    /// The last error on this handle.
    pub fn last_error(&self) -> Option<&Error> {
        self.last_error.as_ref()
    }

    /// Makes an error the last one and gives it back: for a binding that finds out by
    /// itself that a state cannot be taken.
    pub fn note(&mut self, error: Error) -> Error {
        self.last_error = Some(error.clone());
        error
    }

    pub(crate) fn noted<T>(&mut self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.note(error))
    }

    /// True if a slab belongs to the same job as those seen before.
    pub(crate) fn same_job(&mut self, hash: u64) -> bool {
        *self.job_hash.get_or_insert(hash) == hash
    }

    /// Refuses a forked child, which is not the rank.
    pub(crate) fn alive(&self) -> Result<()> {
        if self.guard.is_surely_here() {
            return Ok(());
        }
        Err(Error::new(
            Code::NotOpen,
            Entity::Rank(self.place.rank),
            "the job was opened by the parent process, this is a forked child",
            "use the job in the process that opened it",
        ))
    }

    // ---- regions ----

    /// Declares a region under a name; the same name again replaces it.
    ///
    /// # Safety
    /// Until it is replaced, unprotected or the job is dropped: at every call of
    /// `checkpoint` the range is readable and no thread writes to it; at every call
    /// of `restore` it is writable and no thread touches it.
    ///
    /// # Errors
    /// 100 for a name, size or address that cannot be.
    pub unsafe fn protect(&mut self, name: &str, data: *mut u8, bytes: usize) -> Result<()> {
        let result = self
            .alive()
            .and_then(|()| self.regions.insert(name, data, bytes));
        self.announce();
        self.noted(result)
    }

    /// Says what floating-point numbers a region consists of, until it is protected anew: versions
    /// with NaN or infinity in it are told of (error 206), or given up (`--refuse`). Of complex
    /// numbers it is the type of their parts.
    ///
    /// # Errors
    /// 103 if no region of this name is protected, 100 if its size is no multiple of the element's.
    pub fn describe(&mut self, name: &str, element: Element) -> Result<()> {
        let result = self
            .alive()
            .and_then(|()| self.regions.describe(name, element));
        self.announce();
        self.noted(result)
    }

    /// Forgets a region. Unknown names: error 103.
    pub fn unprotect(&mut self, name: &str) -> Result<()> {
        let result = self.alive().and_then(|()| {
            if self.regions.remove(name) {
                return Ok(());
            }
            Err(Error::new(
                Code::RegionMissing,
                Entity::Region(name.chars().take(255).collect()),
                "no region of this name is protected",
                "check the name",
            ))
        });
        self.announce();
        self.noted(result)
    }

    fn announce(&self) {
        if self.guard.is_here() {
            self.control.set_bytes_needed(self.regions.needed());
        }
    }

    /// Tells the agent how large a slab has to be, in bytes, before the first
    /// capture of a state that is not declared by `protect`.
    pub fn expect_bytes(&mut self, bytes: u64) {
        if self.guard.is_here() {
            self.control
                .set_bytes_needed(self.regions.needed().saturating_add(bytes));
        }
    }

    // ---- the agent ----

    /// Asks the agent; `within` the job's timeout if `None`. Does not set the last
    /// error.
    pub(crate) fn request(
        &mut self,
        request: &ToAgent,
        within: Option<Duration>,
    ) -> Result<(ToRank, Option<rustix::fd::OwnedFd>)> {
        self.alive()?;
        let link = self.link.as_mut().ok_or_else(unprotected)?;
        let answer = link.request(request, within);
        self.follow()?;
        answer
    }

    /// Tells the agent; a failure is remembered as the last error, no more.
    pub(crate) fn notify(&mut self, notice: ToAgent) {
        let Some(link) = self.link.as_mut() else {
            return;
        };
        let result = link.notify(notice);
        let result = result.and(self.follow());
        let _ = self.noted(result);
    }

    /// An agent that was started anew asks for attention until its ranks are back.
    pub(crate) fn look_after_link(&mut self) {
        if let Some(link) = self.link.as_mut() {
            let result = link.revive();
            let result = result.and(self.follow());
            let _ = self.noted(result);
        }
    }

    /// If the agent brought another control block (the old one was lost with its
    /// keeper), goes on in that one.
    fn follow(&mut self) -> Result<()> {
        let Some(link) = self.link.as_mut() else {
            return Ok(());
        };
        if !link.take_replaced() {
            return Ok(());
        }
        let fresh = map_control(link, self.place)?;
        let called = self.control.called();
        if let Some(version) = self.control.forced() {
            fresh.announce(version);
        }
        if called > 0 {
            fresh.offer(called - 1);
        }
        if let Some(version) = self.control.entered() {
            fresh.claim(version);
        }
        fresh.set_bytes_needed(self.control.bytes_needed());
        fresh.count_taken(self.taken, self.control.blocked_ns());
        self.control = fresh;
        Ok(())
    }

    /// What is known without waiting.
    pub fn status(&self) -> Status {
        let identity = self.control.identity();
        let is_protected = self.link.is_some();
        Status {
            is_protected,
            rank: self.place.rank,
            ranks: self.place.ranks,
            node: identity.node.0,
            incarnation: identity.incarnation.0,
            regions: self.regions.all().len() as u64,
            bytes: self.regions.bytes(),
            taken: self.taken,
            failed: self.failed,
            blocked_ns: self.control.blocked_ns(),
            version_taken: self.version_taken,
            version_surviving: Survives::ALL.map(|what| self.control.surviving(what).map(|v| v.0)),
            version_restored: self.version_restored,
        }
    }

    /// The levels of the job, the nearest copies first, without waiting. None if it is not
    /// protected.
    pub fn levels(&self) -> Vec<Level> {
        let levels = self.control.levels().iter();
        let told = levels.map(|level| Level {
            name: level.name(),
            survives: level.survives(),
            version: self.control.committed(level).map(|v| v.0),
        });
        told.collect()
    }

    /// Leaves the job after the last iteration, so that no further checkpoint waits
    /// for this rank. Dropping a job without closing it looks like a lost rank.
    ///
    /// # Errors
    /// 300 or 301 if the agent does not answer; the job is gone all the same.
    pub fn close(mut self) -> Result<()> {
        self.alive()?;
        if let Some(Decision {
            version,
            armed: Some(_),
        }) = self.decision.take()
        {
            self.control.leave();
            let code = Code::NotOpen;
            self.notify(ToAgent::Failed {
                version: Version(version),
                code,
            });
        }
        self.routes.discard_private();
        if self.link.is_none() {
            return Ok(());
        }
        self.request(&ToAgent::Close, None).map(drop)
    }
}

pub(crate) fn unprotected() -> Error {
    Error::new(
        Code::Unprotected,
        Entity::Call,
        "there is no agent",
        "start the program by outlive run",
    )
}

fn private_control(place: RankOf) -> Result<ControlBlock> {
    let identity = Identity {
        rank: outlive_base::Rank(place.rank),
        ranks: place.ranks,
        node: outlive_base::NodeId(0),
        incarnation: outlive_base::Incarnation(0),
    };
    ControlBlock::private(identity).map_err(|error| Error::internal(error.to_string()))
}

fn map_control(link: &Link, place: RankOf) -> Result<ControlBlock> {
    let refuse = |reason: String| {
        Error::new(
            Code::PeerVersion,
            Entity::Node(link.welcome.node.0),
            format!("control block: {reason}"),
            "use the agent and the library of the same release",
        )
    };
    let fd = link.control().ok_or_else(|| refuse("missing".into()))?;
    let control = ControlBlock::map(fd.as_fd(), Side::Rank).map_err(|e| refuse(e.to_string()))?;
    let identity = control.identity();
    if (identity.rank.0, identity.ranks) != (place.rank, place.ranks)
        || identity.incarnation != link.welcome.incarnation
    {
        return Err(refuse("it belongs to another rank or start".into()));
    }
    Ok(control)
}

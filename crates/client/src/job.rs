//! The job as a rank sees it, and the fast path of a checkpoint.
//!
//! The fast path is three loads and a store: the offer is stored in the control
//! block, `attention` is loaded, and the version is skipped if it is smaller. All
//! else (order of versions, forks, an answer given earlier by `wanted`) is folded
//! into `next`, so that it costs nothing more: whenever something unusual is
//! pending, `next` is `u64::MAX` and every call takes the cold path.

use core::time::Duration;
use outlive_base::{Code, Entity, Error, Level, Result, Version};
use outlive_capture::control::{Armed, ControlBlock, Identity, Side};
use outlive_capture::ipc::{ToAgent, ToRank, VersionState};
use rustix::fd::AsFd;
use std::time::Instant;

use crate::capture::{Slabs, Source};
use crate::environment::{self, Place};
use crate::forked::ForkGuard;
use crate::link::Link;
use crate::protected::Registry;
use crate::restore::Pending;
use crate::route::Routes;

/// Bound of every wait on the agent unless [`Options::timeout`] says otherwise.
pub const DEFAULT_TIMEOUT_MS: u64 = 10_000;
/// What a wait may exceed its bound by, for the agent's answer to arrive.
const GRACE: Duration = Duration::from_millis(500);

/// How to join a job.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The rank; `None`: from the launcher's environment.
    pub rank: Option<u32>,
    /// The number of ranks; `None`: from the launcher's environment.
    pub ranks: Option<u32>,
    /// Bound of every wait on the agent.
    pub timeout: Duration,
    /// Threads that copy in a capture, the calling one included.
    pub copy_threads: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            rank: None,
            ranks: None,
            timeout: Duration::from_millis(DEFAULT_TIMEOUT_MS),
            copy_threads: 1,
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
    /// The version is committed at the level, and stable.
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
    /// The last version committed, per level.
    pub version_committed: [Option<u64>; 4],
    /// The version restored at this start.
    pub version_restored: Option<u64>,
}

/// An answer of [`Job::wanted`] that the checkpoint with this version keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decision {
    version: u64,
    armed: Option<Armed>,
}

/// A rank's handle on its job. May be used by any thread, by one at a time.
#[derive(Debug)]
pub struct Job {
    /// The smallest version that may be offered; `u64::MAX` sends every call to the
    /// cold path (then `held_next` is the true value).
    next: u64,
    pub(crate) control: ControlBlock,
    guard: ForkGuard,
    held_next: u64,
    decision: Option<Decision>,
    pub(crate) link: Option<Link>,
    pub(crate) place: Place,
    pub(crate) job_name: Option<String>,
    pub(crate) timeout: Duration,
    pub(crate) copy_threads: usize,
    pub(crate) regions: Registry,
    pub(crate) slabs: Slabs,
    pub(crate) routes: Routes,
    pub(crate) pending: Pending,
    /// The last armed version that was captured, failed or reported as overtaken.
    pub(crate) answered: Option<Version>,
    injected: Option<Version>,
    pub(crate) taken: u64,
    pub(crate) failed: u64,
    pub(crate) version_taken: Option<u64>,
    pub(crate) version_restored: Option<u64>,
    last_error: Option<Error>,
}

// SAFETY: the raw pointers are addresses of the program's regions, which it has
// promised to keep valid for whichever thread uses the job.
unsafe impl Send for Job {}

enum Offer {
    Skip,
    Attention,
    Cold,
}

impl Job {
    /// Joins the job: reads rank and size from `options` or the environment, and
    /// says Hello to the node's agent. Not started under `outlive run`: a job that
    /// saves nothing.
    ///
    /// # Errors
    /// 200 if the rank cannot be found (only under `outlive run`), 100 for an
    /// impossible rank, 300 or 301 if the agent does not answer, or the agent's own
    /// refusal (201, 305).
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
                    Err(_) if surroundings.is_none() => Place { rank: 0, ranks: 1 },
                    Err(error) => return Err(error),
                };
                environment::checked(rank.unwrap_or(found.rank), ranks.unwrap_or(found.ranks))?
            }
        };
        let timeout = options.timeout.max(Duration::from_millis(1));
        let guard = ForkGuard::new().map_err(|e| Error::io("memory", "map a page", &e))?;
        let (control, link, job_name) = match surroundings {
            None => (private_control(place)?, None, None),
            Some(found) => {
                let link = Link::open(found.socket(place)?, place, found.incarnation, timeout)?;
                (map_control(&link, place)?, Some(link), found.job)
            }
        };
        let copy_threads = lookup("OUTLIVE_COPY_THREADS")
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(options.copy_threads);
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
            job_name,
            timeout,
            copy_threads,
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

    pub(crate) fn note(&mut self, error: Error) -> Error {
        self.last_error = Some(error.clone());
        error
    }

    pub(crate) fn noted<T>(&mut self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.note(error))
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

    // ---- checkpoints ----

    /// Offers a checkpoint of the protected regions. Versions rise strictly within
    /// a start.
    ///
    /// # Errors
    /// 102 for a version out of order, 101 in a forked child, and whatever kept a
    /// wanted capture from being made. The program may go on after any.
    #[inline]
    pub fn checkpoint(&mut self, version: u64) -> Result<Outcome> {
        match self.offer(version) {
            Offer::Skip => Ok(Outcome::Skipped),
            Offer::Attention => {
                // SAFETY: there are no further sources.
                unsafe { self.attend(version, || Ok(Vec::new())) }
            }
            // SAFETY: as above.
            Offer::Cold => unsafe { self.cold(version, || Ok(Vec::new())) },
        }
    }

    /// As [`Job::checkpoint`], for state that is walked only when it is wanted:
    /// `sources` is called at most once, and its regions are captured in addition to
    /// the protected ones. Its error fails the capture.
    ///
    /// # Safety
    /// Every source is readable, and not written to, until this call returns.
    pub unsafe fn capture_with(
        &mut self,
        version: u64,
        sources: impl FnOnce() -> Result<Vec<Source>>,
    ) -> Result<Outcome> {
        match self.offer(version) {
            Offer::Skip => Ok(Outcome::Skipped),
            // SAFETY: the caller's promise.
            Offer::Attention => unsafe { self.attend(version, sources) },
            // SAFETY: the caller's promise.
            Offer::Cold => unsafe { self.cold(version, sources) },
        }
    }

    /// A checkpoint that is taken whatever the policy says; all ranks must force
    /// the same version. Unprotected: skipped.
    ///
    /// # Errors
    /// As [`Job::checkpoint`]; 301 or 302 if the agent gives no memory.
    pub fn checkpoint_now(&mut self, version: u64) -> Result<Outcome> {
        // SAFETY: there are no further sources.
        unsafe { self.capture_now_with(version, || Ok(Vec::new())) }
    }

    /// As [`Job::checkpoint_now`], for state that is walked when it is needed.
    ///
    /// # Safety
    /// As [`Job::capture_with`].
    pub unsafe fn capture_now_with(
        &mut self,
        version: u64,
        sources: impl FnOnce() -> Result<Vec<Source>>,
    ) -> Result<Outcome> {
        let admitted = self.admit(version);
        let decided = self.noted(admitted)?;
        if self.link.is_none() {
            return Ok(Outcome::Skipped);
        }
        let armed = match decided {
            Some(armed) => armed,
            None => self.decide(version),
        };
        // SAFETY: the caller's promise.
        unsafe { self.capture(Version(version), armed, sources) }
    }

    /// True if the checkpoint with this version, which must be the next call, will
    /// capture.
    ///
    /// # Errors
    /// As [`Job::checkpoint`].
    pub fn wanted(&mut self, version: u64) -> Result<bool> {
        if let Some(decision) = self.decision.filter(|d| d.version == version) {
            let alive = self.alive();
            return self.noted(alive).map(|()| decision.armed.is_some());
        }
        let armed = match self.offer(version) {
            Offer::Skip => None,
            Offer::Attention => self.decide(version),
            Offer::Cold => {
                let admitted = self.admit(version);
                self.noted(admitted)?
                    .flatten()
                    .or_else(|| self.decide(version))
            }
        };
        self.hold(Decision { version, armed });
        Ok(armed.is_some())
    }

    #[inline]
    fn offer(&mut self, version: u64) -> Offer {
        if version < self.next || version > Version::MAX.0 || !self.guard.is_here() {
            return Offer::Cold;
        }
        self.next = version + 1;
        if version < self.control.offer(version) {
            Offer::Skip
        } else {
            Offer::Attention
        }
    }

    /// The cold path's offer: checks everything. `Some` if `wanted` has decided.
    fn admit(&mut self, version: u64) -> Result<Option<Option<Armed>>> {
        self.alive()?;
        if version > Version::MAX.0 {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Version(version),
                "the two largest numbers are not versions",
                "count versions from 0",
            ));
        }
        if let Some(decision) = self.decision.take() {
            if self.next == u64::MAX {
                self.next = self.held_next;
            }
            if decision.version == version {
                return Ok(Some(decision.armed));
            }
            if decision.armed.is_some() {
                self.control.leave();
                self.answered = Some(Version(decision.version));
                let code = Code::VersionOrder;
                self.notify(ToAgent::Failed {
                    version: Version(decision.version),
                    code,
                });
            }
        }
        if version < self.next {
            return Err(Error::new(
                Code::VersionOrder,
                Entity::Version(version),
                format!("after version {}", self.next - 1),
                "offer each version once, in rising order; after a restore go on from its version",
            ));
        }
        self.next = version + 1;
        self.control.offer(version);
        Ok(None)
    }

    fn hold(&mut self, decision: Decision) {
        if decision.armed.is_some() {
            // The rank is inside: no other version may pass by on the fast path.
            self.held_next = self.next;
            self.next = u64::MAX;
        }
        self.decision = Some(decision);
    }

    /// The smallest version that may be offered.
    pub(crate) fn next_version(&self) -> u64 {
        if self.next == u64::MAX {
            self.held_next
        } else {
            self.next
        }
    }

    /// True if the answer of `wanted` for this version is still to be kept.
    pub(crate) fn is_decided(&self, version: u64) -> bool {
        self.decision
            .is_some_and(|decision| decision.version == version)
    }

    pub(crate) fn go_on_from(&mut self, version: u64) {
        if self.decision.is_none() {
            self.next = self.next.max(version);
        }
    }

    /// # Safety
    /// As [`Job::capture_with`].
    #[cold]
    unsafe fn attend(
        &mut self,
        version: u64,
        sources: impl FnOnce() -> Result<Vec<Source>>,
    ) -> Result<Outcome> {
        match self.decide(version) {
            None => Ok(Outcome::Skipped),
            // SAFETY: the caller's promise.
            armed => unsafe { self.capture(Version(version), armed, sources) },
        }
    }

    /// # Safety
    /// As [`Job::capture_with`].
    #[cold]
    unsafe fn cold(
        &mut self,
        version: u64,
        sources: impl FnOnce() -> Result<Vec<Source>>,
    ) -> Result<Outcome> {
        let admitted = self.admit(version);
        let armed = match self.noted(admitted)? {
            Some(armed) => armed,
            None if version < self.control.attention() => None,
            None => self.decide(version),
        };
        match armed {
            None => Ok(Outcome::Skipped),
            // SAFETY: the caller's promise.
            armed => unsafe { self.capture(Version(version), armed, sources) },
        }
    }

    /// After an offer that met attention: injection, then whether it is armed. If
    /// so, the rank is inside ([`ControlBlock::enter`]).
    fn decide(&mut self, version: u64) -> Option<Armed> {
        let version = Version(version);
        if let Some(inject) = self.control.inject()
            && inject <= version
            && self.injected != Some(inject)
        {
            self.injected = Some(inject);
            // Either this process ends here, or the answer says that another does.
            let _ = self.request(&ToAgent::Inject { version: inject }, None);
        }
        if let Some(armed) = self.control.enter(version) {
            return Some(armed);
        }
        if let Some(armed) = self.control.armed()
            && armed.version < version
            && self
                .answered
                .is_none_or(|answered| answered < armed.version)
        {
            self.answered = Some(armed.version);
            self.notify(ToAgent::Overtaken {
                version,
                armed: armed.version,
            });
        }
        None
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

    /// Waits until `version` is committed at `level`, at most `timeout` (the job's
    /// own if `None`) and half a second for the answer to arrive.
    ///
    /// # Errors
    /// 501 if it was aborted, 106 if the time passed, 300 or 301 if there is no
    /// agent.
    pub fn wait(
        &mut self,
        version: u64,
        level: Level,
        timeout: Option<Duration>,
    ) -> Result<Waited> {
        let result = self.wait_inner(version, level, timeout.unwrap_or(self.timeout));
        self.noted(result)
    }

    fn wait_inner(&mut self, version: u64, level: Level, timeout: Duration) -> Result<Waited> {
        self.alive()?;
        if self.link.is_none() {
            return Ok(Waited::Unprotected);
        }
        let wanted = Version(version.min(Version::MAX.0));
        let state = if self.control.committed(level) == Some(wanted) {
            VersionState::Committed
        } else if self.control.aborted() == Some(wanted) {
            VersionState::Aborted
        } else {
            let start = Instant::now();
            let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
            let request = ToAgent::Wait {
                version: wanted,
                level,
                timeout_ms,
            };
            match self.request(&request, Some(timeout + GRACE)) {
                Ok((
                    ToRank::State {
                        version,
                        level: at,
                        state,
                    },
                    _,
                )) if version == wanted && at == level => state,
                Ok(_) => return Err(Error::internal("the agent answers WAIT with another kind")),
                // Silence for the whole bound is the bound passing, whoever is silent.
                Err(error) if error.code() == Code::AgentTimeout && start.elapsed() >= timeout => {
                    VersionState::Pending
                }
                Err(error) => return Err(error),
            }
        };
        match state {
            VersionState::Committed => Ok(Waited::Committed),
            VersionState::Aborted => Err(Error::new(
                Code::CommitAborted,
                Entity::Version(version),
                format!("it was not committed at level {level}"),
                "see the agent's log for the rank or node and the phase; wait for a later version",
            )),
            VersionState::Pending => Err(Error::new(
                Code::TimedOut,
                Entity::Version(version),
                format!(
                    "not committed at level {level} within {} ms (timeout_ms)",
                    timeout.as_millis()
                ),
                "wait longer, or check that the level is enabled and all ranks have taken it",
            )),
        }
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
            version_committed: Level::ALL.map(|level| self.control.committed(level).map(|v| v.0)),
            version_restored: self.version_restored,
        }
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

fn private_control(place: Place) -> Result<ControlBlock> {
    let identity = Identity {
        rank: outlive_base::Rank(place.rank),
        ranks: place.ranks,
        node: outlive_base::NodeId(0),
        incarnation: outlive_base::Incarnation(0),
    };
    ControlBlock::private(identity).map_err(|error| Error::internal(error.to_string()))
}

fn map_control(link: &Link, place: Place) -> Result<ControlBlock> {
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

//! Checkpoints: the fast path, and the decision whether to capture.
//!
//! The fast path is a store and a few loads: the offer is stored in the control
//! block, `attention` is loaded, and the version is skipped if it is smaller. All
//! else (order of versions, an answer given earlier by `wanted`) is folded into
//! `next`, so that it costs nothing more: while something unusual is pending, `next`
//! is `u64::MAX` and every call takes the cold path.

use outlive_base::{Code, Entity, Error, Result, Version};
use outlive_capture::control::{Armed, ControlWords};
use outlive_capture::ipc::ToAgent;

use crate::job::capture::Source;
use crate::job::{Decision, Job, Outcome};

enum Offer {
    Skip,
    Attention,
    Cold,
}

impl Job {
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
        // A forked child has the words of its parent.
        if self.guard.is_here() {
            self.control.announce(Version(version));
        }
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
        if let Some(decision) = self.decision.filter(|d| d.version == version)
            && self.is_newest(version)
        {
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

    /// The first half of a checkpoint, for a caller that has to gather its state before
    /// it can lend it: offers the version; true if it will be captured. Then the next
    /// call must be [`Job::capture_with`] with the same version. Unlike
    /// [`Job::wanted`] this is the checkpoint of its version: it cannot be repeated.
    ///
    /// # Errors
    /// 100 for an impossible version, 101 in a forked child, 102 out of order; never
    /// because a capture failed.
    #[inline]
    pub fn begin(&mut self, version: u64) -> Result<bool> {
        match self.offer(version) {
            Offer::Skip => Ok(false),
            Offer::Attention => {
                let armed = self.decide(version);
                Ok(self.begun(version, armed))
            }
            Offer::Cold => self.begin_cold(version),
        }
    }

    #[cold]
    fn begin_cold(&mut self, version: u64) -> Result<bool> {
        let admitted = self.admit(version);
        let armed = match self.noted(admitted)? {
            Some(armed) => armed,
            None if version < self.control.attention() => None,
            None => self.decide(version),
        };
        Ok(self.begun(version, armed))
    }

    fn begun(&mut self, version: u64, armed: Option<Armed>) -> bool {
        if armed.is_some() {
            self.hold(Decision { version, armed });
        }
        armed.is_some()
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
            if decision.version == version && self.is_newest(version) {
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

    /// True if this version was offered last. An answer of "no" is not taken back when
    /// the fast path passes it by.
    fn is_newest(&self, version: u64) -> bool {
        version + 1 == self.next_version()
    }

    /// True if the answer of `wanted` for this version is still to be kept.
    pub(crate) fn is_decided(&self, version: u64) -> bool {
        self.decision
            .is_some_and(|decision| decision.version == version)
    }

    /// The first version whose checkpoint may still come.
    pub(crate) fn first_open(&self) -> u64 {
        match self.decision {
            Some(decision) if self.is_newest(decision.version) => decision.version,
            _ => self.next_version(),
        }
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

    /// After an offer that met attention: injection, then whether it is the first at
    /// or past an armed one. If so, the rank is inside ([`ControlBlock::enter`]).
    fn decide(&mut self, version: u64) -> Option<Armed> {
        let version = Version(version);
        self.look_after_link();
        if let Some(inject) = self.control.inject()
            && inject <= version
            && self.injected != Some(inject)
        {
            // Either this process ends here, or the answer says that another does. Then the
            // agent waits for it no more; the next agent may, if the launcher has not heard.
            let answer = self.request(&ToAgent::Inject { version: inject }, None);
            self.injected = answer.is_err().then_some(inject);
        }
        self.control.enter(version, self.answered)
    }
}

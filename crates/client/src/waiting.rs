//! Waiting for a version to be committed.

use core::time::Duration;
use outlive_base::control_block::ControlWords;
use outlive_base::{Code, Entity, Error, Result, Survives, Version};
use outlive_capture::ipc::{ToAgent, ToRank, VersionState};
use std::time::Instant;

use crate::job::{Job, TIMEOUT_MAX, Waited};

/// What a wait may exceed its bound by, for the agent's answer to arrive.
const GRACE: Duration = Duration::from_millis(500);

impl Job {
    /// Waits until `version`, or a newer one that takes its place, is committed and stable at
    /// a level that survives this, at most `timeout` (the job's own if `None`) and half a
    /// second for the answer to arrive.
    ///
    /// # Errors
    /// 501 if it was given up at these levels, was not meant for them, or was skipped by this
    /// rank and nothing newer captured, 106 if the time passed, 300 or 301 if there is no
    /// agent.
    pub fn wait(
        &mut self,
        version: u64,
        survives: Survives,
        timeout: Option<Duration>,
    ) -> Result<Waited> {
        let result = self.wait_inner(version, survives, timeout.unwrap_or(self.timeout));
        self.noted(result)
    }

    /// True if this rank has offered `version`, and has captured neither it nor a newer one.
    fn was_left_out(&self, version: Version) -> bool {
        let newest = self.version_taken.max(self.version_restored);
        Some(version.0) > newest && version.0 < self.next_version() && !self.is_decided(version.0)
    }

    /// False if the job has levels, and none survives this.
    fn may_survive(&self, survives: Survives) -> bool {
        let levels = self.control.levels();
        levels.is_empty() || levels.iter().any(|level| level.survives() >= survives)
    }

    fn wait_inner(
        &mut self,
        version: u64,
        survives: Survives,
        timeout: Duration,
    ) -> Result<Waited> {
        self.alive()?;
        if self.link.is_none() {
            return Ok(Waited::Unprotected);
        }
        let wanted = Version(version.min(Version::MAX.0));
        if self.was_left_out(wanted) {
            return Err(Error::new(
                Code::CommitAborted,
                Entity::Version(version),
                "its call was skipped or failed here, so nobody can commit it",
                "wait for a version that the checkpoint call said it took, or force one",
            ));
        }
        if !self.may_survive(survives) {
            return Err(Error::new(
                Code::CommitAborted,
                Entity::Version(version),
                format!("no level of this job survives '{survives}'"),
                "wait for less, or start the job with a level that survives it (--levels)",
            ));
        }
        let state = if let Some(state) = self.control.outcome(wanted, survives) {
            state
        } else {
            let start = Instant::now();
            let timeout = timeout.min(TIMEOUT_MAX);
            let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
            let request = ToAgent::Wait {
                version: wanted,
                survives,
                timeout_ms,
            };
            match self.request(&request, Some(timeout + GRACE)) {
                Ok((
                    ToRank::State {
                        version,
                        survives: what,
                        state,
                    },
                    _,
                )) if version == wanted && what == survives => state,
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
                format!("it was not committed at a level that survives '{survives}'"),
                "see the agent's log for the rank or node and the phase; wait for a later version",
            )),
            VersionState::Pending => Err(Error::new(
                Code::TimedOut,
                Entity::Version(version),
                format!(
                    "not committed at a level that survives '{survives}' within {} ms \
                     (timeout_ms)",
                    timeout.as_millis()
                ),
                "wait longer, or check that all ranks have taken it",
            )),
        }
    }
}

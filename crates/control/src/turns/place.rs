//! Turns on one tier: who takes part, whose turn it is, and until when.
//!
//! Invariants: every turn ends, at its lease's end at the latest; jobs of other tiers are not
//! known here.

use std::collections::BTreeMap;

use outlive_base::Time;
use outlive_planner::coordinate::{Answer as Turn, Coordinator, JobId, Refused, Size, Turns as _};
use serde::{Deserialize, Serialize};

use super::{Counts, MS_MAX, Need};

/// What is known of a job on a tier, besides its times.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Holder {
    pub(super) need: Need,
    /// Its turn ends by then, whatever it says.
    lease: Option<Time>,
    /// When its turn began.
    began: Option<Time>,
    /// What its last write took, in milliseconds.
    pub(super) took_ms: Option<u64>,
}

impl Holder {
    pub(super) fn is_writing(&self) -> bool {
        self.lease.is_some()
    }

    fn is_late(&self, now: Time) -> bool {
        self.lease.is_some_and(|until| now >= until)
    }
}

/// How long a turn lasts at most: a write may be slower than the last ones, not without bound.
fn lease(write_ms: u64) -> Time {
    Time::from_ms(write_ms.saturating_mul(4).max(10_000))
}

/// The turns on one tier.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    turns: Coordinator,
    jobs: BTreeMap<JobId, Holder>,
    pub(super) counts: Counts,
    /// Since when nobody takes part.
    pub(super) empty: Option<Time>,
}

impl Place {
    pub(super) fn join(
        &mut self,
        now: Time,
        id: JobId,
        need: Need,
        since_ms: u64,
        writing_ms: Option<u64>,
    ) -> Result<(), Refused> {
        let before = |ms: u64| now.as_secs() - ms.min(MS_MAX) as f64 / 1e3;
        let seconds = |ms: u64| ms.clamp(1, MS_MAX) as f64 / 1e3;
        let size = Size {
            nodes: f64::from(need.nodes),
            mtbf: seconds(need.mtbf_ms),
            write: seconds(need.write_ms),
            // What else it could use is not known: alone, a write takes all there is.
            share: 1.0,
            // What is written was captured into memory.
            background: true,
        };
        if let Err(refused) = self.turns.join(before(since_ms), id, size) {
            self.leave(now, id);
            return Err(refused);
        }
        let lease = writing_ms.map(|ms| {
            self.turns.began(before(ms), id);
            now + lease(need.write_ms)
        });
        // One that began before this clock did cannot be measured.
        let ago = writing_ms.map(|ms| Time::from_ms(ms.min(MS_MAX)));
        let began = ago.filter(|ago| *ago <= now).map(|ago| now - ago);
        let known = self.jobs.get(&id).filter(|known| known.need == need);
        let holder = Holder {
            began,
            took_ms: known.and_then(|known| known.took_ms),
            need,
            lease,
        };
        self.jobs.insert(id, holder);
        self.empty = None;
        Ok(())
    }

    /// Whether the job may write. Not yet: the milliseconds until it may, about.
    pub(super) fn offer(&mut self, now: Time, id: JobId) -> Result<Option<u64>, Refused> {
        let at = now.as_secs();
        let is_alone = self.jobs.len() == 1;
        let Some(holder) = self.jobs.get_mut(&id) else {
            return Err(Refused::Unknown);
        };
        // Asked again: the answer was lost.
        if holder.lease.is_some() {
            return Ok(None);
        }
        let turn = match is_alone {
            // Its own plan knows better when to write, and there is nobody to be kept apart from.
            true => Turn::Accept,
            false => self.turns.offer(at, id),
        };
        match turn {
            Turn::Accept => {
                self.counts.accepted += 1;
                holder.lease = Some(now + lease(holder.need.write_ms));
                holder.began = Some(now);
                self.turns.began(at, id);
                Ok(None)
            }
            Turn::Later { at: when } => {
                self.counts.later += 1;
                let after = ((when - at).max(0.0) * 1e3).ceil().min(MS_MAX as f64);
                Ok(Some(after as u64))
            }
            Turn::Deny(refused) => Err(refused),
        }
    }

    pub(super) fn ended(&mut self, now: Time, id: JobId) {
        if let Some(holder) = self.jobs.get_mut(&id)
            && holder.lease.take().is_some()
        {
            let took = holder.began.take().map(|began| now.since(began).as_ms());
            holder.took_ms = took.map(|ms| ms as u64);
            self.turns.ended(now.as_secs(), id);
        }
    }

    pub(super) fn paused(&mut self, now: Time, id: JobId) {
        self.free(id);
        self.turns.paused(now.as_secs(), id);
    }

    pub(super) fn resumed(&mut self, now: Time, id: JobId) {
        self.turns.resumed(now.as_secs(), id);
    }

    /// Nothing is heard of a job: it holds up nobody.
    pub(super) fn lost(&mut self, id: JobId) {
        self.free(id);
        self.turns.lost(id);
    }

    /// Its turn is over without a write that could be measured.
    fn free(&mut self, id: JobId) {
        if let Some(holder) = self.jobs.get_mut(&id) {
            (holder.lease, holder.began) = (None, None);
        }
    }

    pub(super) fn leave(&mut self, now: Time, id: JobId) {
        self.jobs.remove(&id);
        self.turns.leave(id);
        if self.jobs.is_empty() {
            self.empty.get_or_insert(now);
        }
    }

    /// True if [`Place::on_time`] would take a turn back.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.jobs.values().any(|holder| holder.is_late(now))
    }

    /// Takes back the turns that have lasted too long.
    pub(super) fn on_time(&mut self, now: Time) {
        let late = self.jobs.iter().filter(|(_, holder)| holder.is_late(now));
        let late: Vec<JobId> = late.map(|(id, _)| *id).collect();
        for id in late {
            self.counts.expired += 1;
            self.free(id);
            // What it measured says nothing; it computes, as far as anybody knows.
            self.turns.paused(now.as_secs(), id);
            self.turns.resumed(now.as_secs(), id);
        }
    }

    pub(super) const fn jobs(&self) -> &BTreeMap<JobId, Holder> {
        &self.jobs
    }

    pub(super) fn writing(&self) -> usize {
        let jobs = self.jobs.values();
        jobs.filter(|holder| holder.is_writing()).count()
    }
}

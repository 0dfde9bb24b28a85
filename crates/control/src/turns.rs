//! Turns on storage that jobs share: what jobs and their coordinator say to each other, and the
//! coordinator's side. Who goes when is decided by [`outlive_planner::coordinate`].
//!
//! A job announces itself on each *tier* that it shares with others ([`Tier`]: a file system, a
//! bucket, a memory server), offers each version that shall go there, and is told to write it or
//! to compute on. Jobs of one tier take turns; those of two do not know each other. Leases: who was
//! accepted says when it has written; a job that does not, or is not heard any more, loses its
//! turn after a bound. What the coordinator was told is kept, in one order ([`Kept`]), so that
//! another goes on where one has died; and each job says again since when it computes and whether
//! it writes, so that one that knows nothing can too.
//!
//! Invariants: no answer makes a job wait; every lease ends; who is silent for
//! [`SILENT`] is forgotten; the same words at the same times give the same answers; how many
//! tiers are known is bounded by the jobs that are.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::{JobName, Time, count};
use outlive_planner::coordinate::{JOBS_MAX, JobId, Refused};
use serde::{Deserialize, Serialize};

mod kept;
mod place;
mod tier;

pub use kept::{Batch, Kept, Word};
use place::Place;
pub use tier::{NoTier, TIER_BYTES_MAX, Tier, Tiers};

/// A job says that it lives this often.
pub const ALIVE: Time = Time::from_secs(5);
/// Who was not heard for so long is forgotten.
pub const SILENT: Time = Time::from_secs(30);
/// Tiers of one job: more than there are kinds.
pub const TIERS_OF_A_JOB_MAX: usize = 4;
/// Tiers on which nobody is any more, and of which what was answered is still known.
const EMPTY_MAX: usize = 64;
/// What a job says of its writes is in doubt beyond this factor and this difference in milliseconds:
/// other writes beside it explain less, and messages take their time.
const FAR: (u64, u64) = (4, 1_000);
/// Times that jobs say are cut to this, in milliseconds: a year.
const MS_MAX: u64 = 366 * 86_400_000;

/// What a job says of a write to a tier, and of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Need {
    /// Its nodes.
    pub nodes: u32,
    /// The mean time between failures for which its interval is the best, in milliseconds.
    pub mtbf_ms: u64,
    /// What a write takes, in milliseconds.
    pub write_ms: u64,
}

/// A job to the coordinator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// First message of each tier on each connection, and when what it needs there has changed.
    Join {
        /// The job.
        job: JobName,
        /// Where it writes.
        tier: Tier,
        /// What it needs.
        need: Need,
        /// Its computing since it captured the last version there, in milliseconds.
        since_ms: u64,
        /// It writes since so many milliseconds.
        writing_ms: Option<u64>,
    },
    /// It would write now.
    Offer {
        /// There.
        tier: Tier,
        /// Comes back with the answer.
        sequence: u32,
    },
    /// It has written, or will not.
    Ended {
        /// There.
        tier: Tier,
    },
    /// It writes to this tier no more.
    Quit {
        /// Which.
        tier: Tier,
    },
    /// It failed and does not compute.
    Paused,
    /// It computes again.
    Resumed,
    /// It lives.
    Alive,
    /// It has ended.
    Leave,
}

/// The coordinator to a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Write now.
    Accept {
        /// Of the offer.
        sequence: u32,
    },
    /// Compute on, and offer again.
    Later {
        /// Of the offer.
        sequence: u32,
        /// In about so many milliseconds.
        after_ms: u64,
    },
    /// Go on by your own plan.
    Deny {
        /// Where; none: everywhere.
        tier: Option<Tier>,
        /// Of the offer; 0: of the announcement.
        sequence: u32,
        /// Why.
        why: String,
    },
}

/// A job whose writes are not what it says of them. Turns go by what they take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubt<'a> {
    /// The job.
    pub job: &'a JobName,
    /// Where it writes.
    pub tier: &'a Tier,
    /// What it says that a write takes, in milliseconds.
    pub said_ms: u64,
    /// What its last one took, in milliseconds.
    pub took_ms: u64,
}

/// What was answered, for people.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Counts {
    /// Turns given.
    pub accepted: u64,
    /// Offers that were put off.
    pub later: u64,
    /// Offers that were refused.
    pub denied: u64,
    /// Turns that were taken back: the job did not say in time that it had written.
    pub expired: u64,
    /// Jobs that were not heard any more.
    pub lost: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.accepted += other.accepted;
        self.later += other.later;
        self.denied += other.denied;
        self.expired += other.expired;
        self.lost += other.lost;
    }
}

/// A job that takes turns.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Known {
    name: JobName,
    heard: Time,
    /// Where.
    tiers: BTreeSet<Tier>,
}

impl Known {
    fn is_silent(&self, now: Time) -> bool {
        now.since(self.heard) >= SILENT
    }
}

/// What is known of a job, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobSeen<'a> {
    /// Its name.
    pub name: &'a JobName,
    /// Where it takes turns, each with whether it writes there.
    pub tiers: Vec<(&'a Tier, bool)>,
}

impl JobSeen<'_> {
    /// Whether it is its turn anywhere.
    pub fn writes(&self) -> bool {
        self.tiers.iter().any(|(_, writes)| *writes)
    }
}

/// What is known of a tier, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TierSeen<'a> {
    /// Its name.
    pub tier: &'a Tier,
    /// Jobs that take turns there.
    pub jobs: u64,
    /// Of them, those whose turn it is.
    pub writing: u64,
    /// What was answered.
    pub counts: Counts,
}

impl TierSeen<'_> {
    /// In words.
    pub fn words(&self) -> String {
        format!(
            "{}: {}, {} writing; {} given, {} put off, {} taken back",
            self.tier,
            count(self.jobs, "job"),
            self.writing,
            count(self.counts.accepted, "turn"),
            self.counts.later,
            self.counts.expired,
        )
    }
}

/// The coordinator of one store's jobs and their guests.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Service {
    jobs: BTreeMap<JobId, Known>,
    tiers: BTreeMap<Tier, Place>,
    /// What was answered on tiers that are known no more, or never were.
    past: Counts,
    /// Jobs that were not heard any more, each counted once.
    lost: u64,
}

impl Service {
    /// A job says something; the answer, if there is one.
    pub fn on(&mut self, now: Time, id: JobId, ask: Ask) -> Option<Answer> {
        if let Some(known) = self.jobs.get_mut(&id) {
            known.heard = now;
        }
        self.on_time(now);
        match ask {
            Ask::Join {
                job,
                tier,
                need,
                since_ms,
                writing_ms,
            } => return self.join(now, id, (job, tier), need, (since_ms, writing_ms)),
            Ask::Offer { tier, sequence } => return Some(self.offer(now, id, tier, sequence)),
            Ask::Ended { tier } => {
                if let Some(place) = self.tiers.get_mut(&tier) {
                    place.ended(now, id);
                }
            }
            Ask::Quit { tier } => self.quit(now, id, &tier),
            Ask::Paused => self.everywhere(id, |place| place.paused(now, id)),
            Ask::Resumed => self.everywhere(id, |place| place.resumed(now, id)),
            Ask::Alive => {}
            Ask::Leave => self.leave(now, id),
        }
        None
    }

    /// On each tier of a job.
    fn everywhere(&mut self, id: JobId, mut act: impl FnMut(&mut Place)) {
        let Some(known) = self.jobs.get(&id) else {
            return;
        };
        for tier in &known.tiers {
            if let Some(place) = self.tiers.get_mut(tier) {
                act(place);
            }
        }
    }

    fn join(
        &mut self,
        now: Time,
        id: JobId,
        (name, tier): (JobName, Tier),
        need: Need,
        (since_ms, writing_ms): (u64, Option<u64>),
    ) -> Option<Answer> {
        let refused = match self.jobs.get(&id) {
            None => self.jobs.len() >= JOBS_MAX,
            Some(known) => known.tiers.len() >= TIERS_OF_A_JOB_MAX && !known.tiers.contains(&tier),
        };
        let joined = match refused {
            true => Err(Refused::TooMany),
            false => {
                let place = self.tiers.entry(tier.clone()).or_default();
                place.join(now, id, need, since_ms, writing_ms)
            }
        };
        if let Err(refused) = joined {
            self.quit(now, id, &tier);
            return Some(Answer::Deny {
                tier: Some(tier),
                sequence: 0,
                why: words(refused).to_owned(),
            });
        }
        let known = self.jobs.entry(id).or_insert_with(|| Known {
            name: name.clone(),
            heard: now,
            tiers: BTreeSet::new(),
        });
        (known.name, known.heard) = (name, now);
        known.tiers.insert(tier);
        None
    }

    fn offer(&mut self, now: Time, id: JobId, tier: Tier, sequence: u32) -> Answer {
        let place = self.tiers.get_mut(&tier);
        let answer = match place {
            Some(place) => place.offer(now, id),
            None => Err(Refused::Unknown),
        };
        match answer {
            Ok(None) => Answer::Accept { sequence },
            Ok(Some(after_ms)) => Answer::Later { sequence, after_ms },
            Err(refused) => {
                let counts = self.tiers.get_mut(&tier).map(|place| &mut place.counts);
                counts.unwrap_or(&mut self.past).denied += 1;
                Answer::Deny {
                    tier: Some(tier),
                    sequence,
                    why: words(refused).to_owned(),
                }
            }
        }
    }

    /// A job takes part on a tier no more; where that was its only one, it has left.
    fn quit(&mut self, now: Time, id: JobId, tier: &Tier) {
        if let Some(place) = self.tiers.get_mut(tier) {
            place.leave(now, id);
        }
        if let Some(known) = self.jobs.get_mut(&id) {
            known.tiers.remove(tier);
            if known.tiers.is_empty() {
                self.jobs.remove(&id);
            }
        }
        self.forget_empty();
    }

    fn leave(&mut self, now: Time, id: JobId) {
        self.everywhere(id, |place| place.leave(now, id));
        self.jobs.remove(&id);
        self.forget_empty();
    }

    /// Of tiers on which nobody is, the oldest beyond a bound are forgotten, but for the sum of
    /// what was answered.
    fn forget_empty(&mut self) {
        let empty = |(tier, place): (&Tier, &Place)| Some((place.empty?, tier.clone()));
        let mut found: Vec<(Time, Tier)> = self.tiers.iter().filter_map(empty).collect();
        let Some(beyond) = found.len().checked_sub(EMPTY_MAX) else {
            return;
        };
        found.sort();
        for (_, tier) in found.into_iter().take(beyond) {
            if let Some(place) = self.tiers.remove(&tier) {
                self.past.add(place.counts);
            }
        }
    }

    /// The connection to a job is gone. It does not hold up others; it may come back.
    pub fn gone(&mut self, id: JobId) {
        self.everywhere(id, |place| place.lost(id));
    }

    /// True if [`Service::on_time`] would end something.
    pub fn is_due(&self, now: Time) -> bool {
        self.jobs.values().any(|known| known.is_silent(now))
            || self.tiers.values().any(|place| place.is_due(now))
    }

    /// Ends what has lasted too long.
    pub fn on_time(&mut self, now: Time) {
        for place in self.tiers.values_mut() {
            place.on_time(now);
        }
        let silent = self.jobs.iter().filter(|(_, known)| known.is_silent(now));
        let silent: Vec<JobId> = silent.map(|(id, _)| *id).collect();
        for id in silent {
            self.lost += 1;
            self.everywhere(id, |place| place.counts.lost += 1);
            self.leave(now, id);
        }
    }

    /// What was answered so far, on all tiers.
    pub fn counts(&self) -> Counts {
        let mut all = self.past;
        for place in self.tiers.values() {
            all.add(place.counts);
        }
        Counts {
            lost: self.lost,
            ..all
        }
    }

    /// The jobs that are known.
    pub fn jobs(&self) -> impl Iterator<Item = JobSeen<'_>> {
        self.jobs.iter().map(|(id, known)| {
            let writes = |tier: &Tier| {
                let holder = self.tiers.get(tier).and_then(|place| place.jobs().get(id));
                holder.is_some_and(place::Holder::is_writing)
            };
            JobSeen {
                name: &known.name,
                tiers: known.tiers.iter().map(|it| (it, writes(it))).collect(),
            }
        })
    }

    /// The tiers that are known.
    pub fn tiers(&self) -> impl Iterator<Item = TierSeen<'_>> {
        self.tiers.iter().map(|(tier, place)| TierSeen {
            tier,
            jobs: place.jobs().len() as u64,
            writing: place.writing() as u64,
            counts: place.counts,
        })
    }

    /// The jobs whose last write somewhere took far more or less than they say.
    pub fn doubts(&self) -> impl Iterator<Item = Doubt<'_>> {
        let far = |said: u64, took: u64| {
            let (less, more) = (said.min(took), said.max(took));
            more > less.saturating_mul(FAR.0) && more - less > FAR.1
        };
        let all = self.tiers.iter().flat_map(|(tier, place)| {
            let jobs = place.jobs().iter();
            jobs.map(move |(id, holder)| (tier, id, holder))
        });
        all.filter_map(move |(tier, id, holder)| {
            let (said_ms, took_ms) = (holder.need.write_ms, holder.took_ms?);
            let job = &self.jobs.get(id)?.name;
            far(said_ms, took_ms).then_some(Doubt {
                job,
                tier,
                said_ms,
                took_ms,
            })
        })
    }
}

const fn words(refused: Refused) -> &'static str {
    match refused {
        Refused::Unknown => "the job has not announced itself",
        Refused::TooMany => "there are too many jobs, or tiers of this job",
        Refused::Impossible => "what it says of itself cannot be",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

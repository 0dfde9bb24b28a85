//! Turns on storage that jobs share: what jobs and their coordinator say to each other, and the
//! coordinator's side. Who goes when is decided by [`outlive_planner::coordinate`].
//!
//! A job announces itself, offers each version that shall go to shared storage, and is told to
//! write it or to compute on. Leases: who was accepted says when it has written; a job that does
//! not, or is not heard any more, loses its turn after a bound. What the coordinator was told is
//! kept, in one order ([`Kept`]), so that another goes on where one has died; and each job says
//! again since when it computes and whether it writes, so that one that knows nothing can too.
//!
//! Invariants: no answer makes a job wait; every lease ends; who is silent for
//! [`SILENT`] is forgotten; the same words at the same times give the same answers.

use std::collections::BTreeMap;

use outlive_base::{JobName, Time, count};
use outlive_planner::coordinate::{Answer as Turn, Coordinator, JobId, Refused, Size, Turns as _};
use serde::{Deserialize, Serialize};

mod kept;

pub use kept::{Batch, Kept, Word};

/// A job says that it lives this often.
pub const ALIVE: Time = Time::from_secs(5);
/// Who was not heard for so long is forgotten.
pub const SILENT: Time = Time::from_secs(30);
/// What a job says of its writes is in doubt beyond this factor and this difference in milliseconds:
/// other writes beside it explain less, and messages take their time.
const FAR: (u64, u64) = (4, 1_000);
/// Times that jobs say are cut to this, in milliseconds: a year.
const MS_MAX: u64 = 366 * 86_400_000;

/// What a job says of a write to shared storage, and of itself.
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
    /// First message on each connection, and when what it needs has changed.
    Join {
        /// The job.
        job: JobName,
        /// What it needs.
        need: Need,
        /// Its computing since the last version there, in milliseconds.
        since_ms: u64,
        /// It writes since so many milliseconds.
        writing_ms: Option<u64>,
    },
    /// It would write now.
    Offer {
        /// Comes back with the answer.
        sequence: u32,
    },
    /// It has written, or will not.
    Ended,
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
        /// Of the offer; 0: of the announcement.
        sequence: u32,
        /// Why.
        why: String,
    },
}

/// What is known of a job besides its times.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Holder {
    name: JobName,
    need: Need,
    heard: Time,
    /// Its turn ends by then, whatever it says.
    lease: Option<Time>,
    /// When its turn began.
    began: Option<Time>,
    /// What its last write took, in milliseconds.
    took_ms: Option<u64>,
}

/// A job whose writes are not what it says of them. Turns go by what they take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubt<'a> {
    /// The job.
    pub job: &'a JobName,
    /// What it says that a write takes, in milliseconds.
    pub said_ms: u64,
    /// What its last one took, in milliseconds.
    pub took_ms: u64,
}

impl Holder {
    fn is_silent(&self, now: Time) -> bool {
        now.since(self.heard) >= SILENT
    }

    fn is_late(&self, now: Time) -> bool {
        self.lease.is_some_and(|until| now >= until)
    }
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

/// The coordinator of one store.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Service {
    turns: Coordinator,
    jobs: BTreeMap<JobId, Holder>,
    counts: Counts,
}

/// How long a turn lasts at most: a write may be slower than the last ones, not without bound.
fn lease(write_ms: u64) -> Time {
    Time::from_ms(write_ms.saturating_mul(4).max(10_000))
}

impl Service {
    /// A job says something; the answer, if there is one.
    pub fn on(&mut self, now: Time, id: JobId, ask: Ask) -> Option<Answer> {
        if let Some(holder) = self.jobs.get_mut(&id) {
            holder.heard = now;
        }
        self.on_time(now);
        let at = now.as_secs();
        match ask {
            Ask::Join {
                job,
                need,
                since_ms,
                writing_ms,
            } => return self.join(now, id, (job, need), since_ms, writing_ms),
            Ask::Offer { sequence } => return Some(self.offer(now, id, sequence)),
            Ask::Ended => {
                if let Some(holder) = self.jobs.get_mut(&id)
                    && holder.lease.take().is_some()
                {
                    let took = holder.began.take().map(|began| now.since(began).as_ms());
                    holder.took_ms = took.map(|ms| ms as u64);
                    self.turns.ended(at, id);
                }
            }
            Ask::Paused => {
                self.free(id);
                self.turns.paused(at, id);
            }
            Ask::Resumed => self.turns.resumed(at, id),
            Ask::Alive => {}
            Ask::Leave => self.leave(id),
        }
        None
    }

    fn join(
        &mut self,
        now: Time,
        id: JobId,
        (name, need): (JobName, Need),
        since_ms: u64,
        writing_ms: Option<u64>,
    ) -> Option<Answer> {
        let before = |ms: u64| now.as_secs() - ms.min(MS_MAX) as f64 / 1e3;
        let seconds = |ms: u64| ms.clamp(1, MS_MAX) as f64 / 1e3;
        let size = Size {
            nodes: f64::from(need.nodes),
            mtbf: seconds(need.mtbf_ms),
            write: seconds(need.write_ms),
            // What else it could use is not known: alone, a write takes all there is.
            share: 1.0,
        };
        if let Err(refused) = self.turns.join(before(since_ms), id, size) {
            self.leave(id);
            return Some(Answer::Deny {
                sequence: 0,
                why: words(refused).to_owned(),
            });
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
            name,
            need,
            heard: now,
            lease,
        };
        self.jobs.insert(id, holder);
        None
    }

    fn offer(&mut self, now: Time, id: JobId, sequence: u32) -> Answer {
        let at = now.as_secs();
        let Some(holder) = self.jobs.get_mut(&id) else {
            self.counts.denied += 1;
            let why = words(Refused::Unknown).to_owned();
            return Answer::Deny { sequence, why };
        };
        // Asked again: the answer was lost.
        if holder.lease.is_some() {
            return Answer::Accept { sequence };
        }
        match self.turns.offer(at, id) {
            Turn::Accept => {
                self.counts.accepted += 1;
                holder.lease = Some(now + lease(holder.need.write_ms));
                holder.began = Some(now);
                self.turns.began(at, id);
                Answer::Accept { sequence }
            }
            Turn::Later { at: when } => {
                self.counts.later += 1;
                let after_ms = ((when - at).max(0.0) * 1e3).ceil().min(MS_MAX as f64) as u64;
                Answer::Later { sequence, after_ms }
            }
            Turn::Deny(refused) => {
                self.counts.denied += 1;
                let why = words(refused).to_owned();
                Answer::Deny { sequence, why }
            }
        }
    }

    /// Its turn is over without a write that could be measured.
    fn free(&mut self, id: JobId) {
        if let Some(holder) = self.jobs.get_mut(&id) {
            (holder.lease, holder.began) = (None, None);
        }
    }

    fn leave(&mut self, id: JobId) {
        self.jobs.remove(&id);
        self.turns.leave(id);
    }

    /// The connection to a job is gone. It does not hold up others; it may come back.
    pub fn gone(&mut self, id: JobId) {
        self.free(id);
        self.turns.lost(id);
    }

    /// True if [`Service::on_time`] would end something.
    pub fn is_due(&self, now: Time) -> bool {
        let mut jobs = self.jobs.values();
        jobs.any(|holder| holder.is_silent(now) || holder.is_late(now))
    }

    /// Ends what has lasted too long.
    pub fn on_time(&mut self, now: Time) {
        let silent = |holder: &Holder| holder.is_silent(now);
        let late = |holder: &Holder| holder.is_late(now);
        let pick = |which: &dyn Fn(&Holder) -> bool| -> Vec<JobId> {
            let found = self.jobs.iter().filter(|(_, holder)| which(holder));
            found.map(|(id, _)| *id).collect()
        };
        let (lost, expired) = (pick(&silent), pick(&late));
        for id in lost {
            self.counts.lost += 1;
            self.leave(id);
        }
        for id in expired {
            self.counts.expired += 1;
            self.free(id);
            // What it measured says nothing; it computes, as far as anybody knows.
            self.turns.paused(now.as_secs(), id);
            self.turns.resumed(now.as_secs(), id);
        }
    }

    /// What was answered so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The jobs that are known, each with whether it writes.
    pub fn jobs(&self) -> impl Iterator<Item = (&JobName, bool)> {
        let jobs = self.jobs.values();
        jobs.map(|holder| (&holder.name, holder.lease.is_some()))
    }

    /// The jobs whose last write took far more or less than they say.
    pub fn doubts(&self) -> impl Iterator<Item = Doubt<'_>> {
        let doubt = |holder: &'_ Holder| Some((holder.need.write_ms, holder.took_ms?));
        let far = |(said, took): (u64, u64)| {
            let (less, more) = (said.min(took), said.max(took));
            more > less.saturating_mul(FAR.0) && more - less > FAR.1
        };
        self.jobs.values().filter_map(move |holder| {
            let (said_ms, took_ms) = doubt(holder).filter(|both| far(*both))?;
            let job = &holder.name;
            Some(Doubt {
                job,
                said_ms,
                took_ms,
            })
        })
    }

    /// In words.
    pub fn words(&self) -> String {
        let writing = self.jobs().filter(|(_, writes)| *writes).count() as u64;
        let counts = self.counts;
        format!(
            "{}, {writing} writing; {} given, {} put off, {} taken back",
            count(self.jobs.len() as u64, "job"),
            count(counts.accepted, "turn"),
            counts.later,
            counts.expired,
        )
    }
}

const fn words(refused: Refused) -> &'static str {
    match refused {
        Refused::Unknown => "the job has not announced itself",
        Refused::TooMany => "there are too many jobs",
        Refused::Impossible => "what it says of itself cannot be",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const A: JobId = 1;
    const B: JobId = 2;

    fn join(since_ms: u64, writing_ms: Option<u64>) -> Ask {
        Ask::Join {
            job: JobName::new("job").unwrap(),
            need: Need {
                nodes: 4,
                // With a write of 2 s: every 20 s.
                mtbf_ms: 100_000,
                write_ms: 2_000,
            },
            since_ms,
            writing_ms,
        }
    }

    fn offer(service: &mut Service, at: u64, id: JobId) -> Option<Answer> {
        service.on(Time::from_ms(at), id, Ask::Offer { sequence: 7 })
    }

    fn two() -> Service {
        let mut service = Service::default();
        for id in [A, B] {
            assert_eq!(service.on(Time::ZERO, id, join(0, None)), None);
        }
        service
    }

    #[test]
    fn one_writes_at_a_time() {
        let mut service = two();
        let accepted = Some(Answer::Accept { sequence: 7 });
        assert_eq!(offer(&mut service, 22_000, A), accepted);
        // Said again, because the answer was lost: the same turn.
        assert_eq!(offer(&mut service, 22_100, A), accepted);
        let Some(Answer::Later { after_ms, .. }) = offer(&mut service, 22_200, B) else {
            panic!("two write");
        };
        assert!((500..4_000).contains(&after_ms), "{after_ms}");
        service.on(Time::from_ms(24_000), A, Ask::Ended);
        assert_eq!(offer(&mut service, 24_100, B), accepted);
        let counts = service.counts();
        assert_eq!((counts.accepted, counts.later), (2, 1), "{counts:?}");
    }

    #[test]
    fn a_dead_holder_holds_up_nobody() {
        let accepted = Some(Answer::Accept { sequence: 7 });
        // Its connection ends.
        let mut service = two();
        assert_eq!(offer(&mut service, 22_000, A), accepted);
        service.gone(A);
        assert_eq!(offer(&mut service, 22_600, B), accepted);
        // It is only silent: its turn ends, and then it is forgotten.
        let mut service = two();
        service.on(Time::from_ms(20_000), B, Ask::Alive);
        assert_eq!(offer(&mut service, 22_000, A), accepted);
        assert_ne!(offer(&mut service, 31_900, B), accepted);
        assert_eq!(offer(&mut service, 32_100, B), accepted);
        assert_eq!(service.counts().expired, 1);
        service.on(Time::from_ms(53_000), B, Ask::Alive);
        assert_eq!((service.jobs().count(), service.counts().lost), (1, 1));
    }

    /// It reads its version, alone if the other can wait: until it computes, or for twice as long as it
    /// writes.
    #[test]
    fn a_holder_that_has_failed_is_waited_for_while_it_reads() {
        let accepted = Some(Answer::Accept { sequence: 7 });
        for resumes in [true, false] {
            let mut service = two();
            assert_eq!(offer(&mut service, 22_000, A), accepted);
            service.on(Time::from_ms(22_500), A, Ask::Paused);
            let Some(Answer::Later { after_ms, .. }) = offer(&mut service, 22_600, B) else {
                panic!("beside one who reads");
            };
            assert!((500..4_000).contains(&after_ms), "{after_ms}");
            let mut at = 22_600 + after_ms;
            if resumes {
                at = 23_000;
                service.on(Time::from_ms(at), A, Ask::Resumed);
            }
            assert_eq!(offer(&mut service, at, B), accepted, "{resumes}");
        }
    }

    /// It says 2 s, and takes 9 s.
    #[test]
    fn who_lies_about_its_size_is_named() {
        let mut service = Service::default();
        let accepted = Some(Answer::Accept { sequence: 7 });
        service.on(Time::ZERO, A, join(0, None));
        let mut at = 0;
        let mut write = |service: &mut Service, took: u64| {
            // It lives meanwhile.
            for _ in 0..2 {
                at += 25_000;
                service.on(Time::from_ms(at), A, Ask::Alive);
            }
            assert_eq!(offer(service, at, A), accepted);
            service.on(Time::from_ms(at + took), A, Ask::Ended);
            at + took
        };
        write(&mut service, 2_500);
        assert_eq!(service.doubts().count(), 0);
        // Longer than its turn may last, it would be taken back.
        for _ in 0..3 {
            write(&mut service, 9_000);
            let doubts: Vec<Doubt<'_>> = service.doubts().collect();
            let [doubt] = doubts[..] else {
                panic!("{doubts:?}");
            };
            assert_eq!((doubt.said_ms, doubt.took_ms), (2_000, 9_000));
        }
        // What it says again is in doubt still.
        let now = write(&mut service, 9_000);
        service.on(Time::from_ms(now), A, join(0, None));
        assert_eq!(service.doubts().count(), 1);
        // Of another that has not written nothing is known.
        service.on(Time::from_ms(now), B, join(60_000, None));
        assert_eq!(service.doubts().count(), 1);
    }

    #[test]
    fn a_coordinator_that_was_started_anew_learns_from_the_jobs() {
        let mut service = Service::default();
        service.on(Time::ZERO, A, join(20_000, Some(500)));
        service.on(Time::ZERO, B, join(25_000, None));
        assert!(matches!(
            offer(&mut service, 10, B),
            Some(Answer::Later { .. })
        ));
        service.on(Time::from_ms(1_500), A, Ask::Ended);
        assert_eq!(
            offer(&mut service, 1_600, B),
            Some(Answer::Accept { sequence: 7 })
        );
    }

    #[test]
    fn who_is_unknown_or_impossible_goes_by_its_own_plan() {
        let mut service = Service::default();
        assert!(matches!(
            offer(&mut service, 1, A),
            Some(Answer::Deny { sequence: 7, .. })
        ));
        let mut ask = join(0, None);
        if let Ask::Join { need, .. } = &mut ask {
            need.nodes = 0;
        }
        let denied = service.on(Time::ZERO, A, ask);
        assert!(matches!(denied, Some(Answer::Deny { sequence: 0, .. })));
        assert_eq!(service.jobs().count(), 0);
        // Times that cannot be are cut.
        service.on(Time::ZERO, A, join(u64::MAX, Some(u64::MAX)));
        assert_eq!(service.jobs().count(), 1);
    }
}

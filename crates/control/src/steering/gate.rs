//! A job's side of turns on shared storage ([`crate::turns`]).
//!
//! Invariants: an offer that is not answered within [`ANSWER`] is written; one that is put off
//! for longer than the level's own interval is written; without a coordinator everything is.

use outlive_base::level::StoreKind;
use outlive_base::{JobName, Time};
use outlive_planner::classes::Mask;
use outlive_planner::online::{Policy as _, Seen};

use super::Steering;
use crate::turns::{ALIVE, Answer, Ask, Need};

/// How long an offer waits for its answer.
const ANSWER: Time = Time::from_secs(2);
/// Offered again at the earliest after this, so that a coordinator is not flooded.
const AGAIN: Time = Time::from_ms(200);
/// What is needed is said anew when it has changed by this factor.
const OTHER: f64 = 1.5;

/// What a coordinator is to a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate {
    /// The job, and its nodes, if a coordinator serves it.
    served: Option<(JobName, u32)>,
    said: Vec<Ask>,
    need: Option<Need>,
    sequence: u32,
    /// What waits for an answer, since when.
    offered: Option<(Mask, Time)>,
    /// The answer.
    answer: Option<Turn>,
    /// Since when it has been put off, and until when.
    put_off: Option<(Time, Time)>,
    /// It is this job's turn, since then.
    turn: Option<Time>,
    /// When it last had a version there, or began.
    since: Time,
    alive: Time,
    /// The coordinator does not answer: for the one who tells.
    silent: bool,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    Now,
    In(u64),
}

impl Steering {
    fn shared(&self) -> Option<usize> {
        self.place_in(StoreKind::Shared)
    }

    /// There is a coordinator of the shared storage.
    pub fn served(&mut self, now: Time, job: &JobName, nodes: u32) {
        if self.shared().is_none() {
            return;
        }
        self.turn.served = Some((job.clone(), nodes));
        self.turn.need = None;
        self.turn.offered = None;
        self.turn.silent = false;
        self.turn.alive = now;
        self.announce(now);
    }

    /// True while a coordinator is asked.
    pub const fn is_served(&self) -> bool {
        self.turn.served.is_some()
    }

    /// It is gone: the job goes on by its own plan.
    pub fn not_served(&mut self) {
        self.turn.served = None;
        self.turn.need = None;
        self.turn.put_off = None;
        self.turn.said.clear();
        if self.turn.offered.is_some() {
            // The policy counts on it that this is written.
            self.turn.answer = Some(Turn::Now);
        }
    }

    /// What the coordinator answers.
    pub fn answered(&mut self, answer: &Answer) {
        let (sequence, turn) = match answer {
            Answer::Accept { sequence } => (*sequence, Turn::Now),
            Answer::Later { sequence, after_ms } => (*sequence, Turn::In(*after_ms)),
            // By its own plan.
            Answer::Deny { sequence, why } => {
                tracing::info!(why, "no turn");
                // One that was silent for long was forgotten: it announces itself again.
                self.turn.need = None;
                (*sequence, Turn::Now)
            }
        };
        if self.turn.offered.is_some() && sequence == self.turn.sequence {
            self.turn.answer = Some(turn);
        }
    }

    /// What is to be said to the coordinator.
    pub fn take_said(&mut self, now: Time) -> Vec<Ask> {
        if self.turn.served.is_some() && now.since(self.turn.alive) >= ALIVE {
            self.turn.alive = now;
            self.turn.said.push(Ask::Alive);
            self.announce(now);
        }
        std::mem::take(&mut self.turn.said)
    }

    /// True once for each coordinator that does not answer.
    pub fn take_silent(&mut self) -> bool {
        std::mem::take(&mut self.turn.silent)
    }

    pub(super) fn say_turn(&mut self, ask: Ask) {
        if self.turn.served.is_some() {
            self.turn.said.push(ask);
        }
    }

    /// What the job needs of the shared storage, by what is known now.
    fn need(&mut self, now: Time) -> Option<Need> {
        let (place, (_, nodes)) = (self.shared()?, self.turn.served.clone()?);
        if self.looked.is_none() {
            self.look(now);
        }
        let level = self.entry.levels.get(place)?;
        let (write_ms, period) = (level.background_ms?.max(1.0), level.seconds?);
        // The mean for which this interval is the best one for such a write (Young).
        let period_ms = period * 1e3;
        let mtbf_ms = period_ms * period_ms / (2.0 * write_ms);
        Some(Need {
            nodes,
            mtbf_ms: mtbf_ms.clamp(1.0, 1e13) as u64,
            write_ms: write_ms.clamp(1.0, 1e13) as u64,
        })
    }

    fn announce(&mut self, now: Time) {
        let (Some(need), Some((job, _))) = (self.need(now), self.turn.served.clone()) else {
            return;
        };
        let near = |a: u64, b: u64| {
            let ratio = a as f64 / b as f64;
            (1.0 / OTHER..OTHER).contains(&ratio)
        };
        let known = self.turn.need.is_some_and(|known| {
            near(known.mtbf_ms, need.mtbf_ms) && near(known.write_ms, need.write_ms)
        });
        if known {
            return;
        }
        self.turn.need = Some(need);
        let ms = |since: Time| now.since(since).as_ms() as u64;
        self.turn.said.push(Ask::Join {
            job,
            need,
            since_ms: ms(self.turn.since),
            writing_ms: self.turn.turn.map(ms),
        });
        if !self.computing {
            self.turn.said.push(Ask::Paused);
        }
    }

    /// True if this goes to shared storage and the coordinator has something to say.
    pub(super) fn must_offer(&self, mask: Mask) -> bool {
        let shared = self.shared().is_some_and(|place| mask & (1 << place) != 0);
        shared && self.turn.need.is_some() && self.turn.served.is_some()
    }

    pub(super) fn offer_turn(&mut self, now: Time, mask: Mask) {
        self.turn.sequence += 1;
        let sequence = self.turn.sequence;
        self.turn.said.push(Ask::Offer { sequence });
        self.turn.offered = Some((mask, now));
        self.turn.answer = None;
        self.wake = Some(now + ANSWER);
    }

    /// What became of an offer: the levels that are wanted now, if there was one; nothing at
    /// all while it waits.
    pub(super) fn offered_turn(&mut self, now: Time) -> Option<Option<Mask>> {
        let Some((mask, since)) = self.turn.offered else {
            return Some(None);
        };
        let waited = now.since(since) >= ANSWER;
        let answer = match self.turn.answer.take() {
            None if !waited => {
                self.wake = Some(since + ANSWER);
                return None;
            }
            None => {
                // Said once; the connection says when there is one again.
                self.turn.silent = self.turn.served.take().is_some();
                Turn::Now
            }
            Some(answer) => answer,
        };
        self.turn.offered = None;
        let first = self.turn.put_off.map_or(now, |(first, _)| first);
        let period = self.shared_period();
        match answer {
            Turn::In(ms) if now.since(first).as_secs() < period => {
                let until = now + Time::from_ms(ms).max(AGAIN);
                self.turn.put_off = Some((first, until));
                let shared = self.shared().map_or(0, |place| 1 << place);
                if let Some(level) = self.shared() {
                    self.policy.see(self.at(now), Seen::Failed { level });
                }
                let rest = mask & !shared;
                if rest == 0 {
                    self.wake = Some(until);
                    return None;
                }
                Some(Some(rest))
            }
            Turn::In(_) | Turn::Now => {
                self.turn.put_off = None;
                self.turn.turn = Some(now);
                Some(Some(mask))
            }
        }
    }

    fn shared_period(&self) -> f64 {
        let level = self.shared().and_then(|place| self.entry.levels.get(place));
        level.and_then(|level| level.seconds).unwrap_or(0.0)
    }

    /// The shared level, while it has been put off.
    pub(super) fn not_its_turn(&self, now: Time) -> Mask {
        match (self.turn.put_off, self.shared()) {
            (Some((_, until)), Some(place)) if now < until => 1 << place,
            _ => 0,
        }
    }

    /// A write is over, well or not.
    pub(super) fn turn_over(&mut self, place: usize) {
        if self.shared() == Some(place) && self.turn.turn.take().is_some() {
            self.say_turn(Ask::Ended);
        }
    }

    /// A version is there.
    pub(super) fn turn_kept(&mut self, now: Time, place: usize) {
        if self.shared() == Some(place) {
            self.turn.since = now;
        }
    }

    /// The job ends: nothing is said any more.
    pub(super) fn leave_turns(&mut self) {
        self.say_turn(Ask::Leave);
        self.turn.served = None;
    }

    pub(super) fn forget_turn(&mut self) {
        self.turn.turn = None;
        self.turn.offered = None;
        self.turn.put_off = None;
    }

    pub(super) fn turn_words(&self) -> &'static str {
        match self.turn.served {
            Some(_) => " (in turns on shared storage)",
            None => "",
        }
    }
}

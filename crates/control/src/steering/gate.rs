//! A job's side of turns on shared storage ([`crate::turns`]).
//!
//! Where a job writes what other jobs may write to as well is a *place*: what all its nodes share,
//! and its memory server, each with the levels that lie there, and with the tier that it is, as
//! far as that is known. A checkpoint is offered at each place that it goes to; what is accepted
//! is written, the rest waits.
//!
//! Invariants: an offer that is not answered within [`ANSWER`] is written; one that is put off
//! for longer than [`PUT_OFF_MAX`] of the level's own intervals is written; without a coordinator
//! everything is, and so is what lies on a tier that is not known.

use outlive_base::level::StoreKind;
use outlive_base::{JobName, Level, Time};
use outlive_planner::classes::Mask;
use outlive_planner::online::{Policy as _, Seen};

use super::Steering;
use crate::turns::{ALIVE, Answer, Ask, Need, Tier, Tiers};

/// How long an offer waits for its answer.
const ANSWER: Time = Time::from_secs(2);
/// Offered again at the earliest after this, so that a coordinator is not flooded.
const AGAIN: Time = Time::from_ms(200);
/// So many of its own intervals is a job put off at most. Where the storage cannot serve all as
/// often as they want, one interval is usual, and who then wrote without a turn would undo those
/// of the others; after two the coordinator lets a job go before the others, once what is being
/// written is there.
const PUT_OFF_MAX: f64 = 3.0;
/// What is needed is said anew when it has changed by this factor.
const OTHER: f64 = 1.5;
/// What several jobs may write to, and how people know it.
const SHARED: [(StoreKind, &str); 2] = [
    (StoreKind::Shared, "shared storage"),
    (StoreKind::Server, "the memory server"),
];

/// What a coordinator is to a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate {
    /// The job, and its nodes, if a coordinator serves it.
    served: Option<(JobName, u32)>,
    said: Vec<Ask>,
    sequence: u32,
    places: Vec<Place>,
    /// What waits for answers, since when.
    offered: Option<(Mask, Time)>,
    alive: Time,
    /// The coordinator does not answer: for the one who tells.
    silent: bool,
}

/// Where levels lie that other jobs may write to as well.
#[derive(Clone, Debug)]
struct Place {
    store: StoreKind,
    name: &'static str,
    levels: Mask,
    /// What it is, for all its jobs.
    tier: Option<Tier>,
    /// What was announced there.
    need: Option<Need>,
    /// The number of the offer that waits, and its answer.
    asked: Option<u32>,
    answer: Option<Turn>,
    /// Since when it has been put off, and until when.
    put_off: Option<(Time, Time)>,
    /// It is this job's turn, since then; the levels that are not written yet.
    turn: Option<(Time, Mask)>,
    /// When it captured the last version that is there, or began to compute.
    since: Time,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    Now,
    In(u64),
}

impl Gate {
    /// Of a job at these levels.
    pub(super) fn of(levels: &[Level]) -> Gate {
        let place = |(store, name): (StoreKind, &'static str)| {
            let there = levels.iter().enumerate();
            let there = there.filter(|(_, level)| level.store() == store);
            let levels: Mask = there.map(|(place, _)| 1 << place).sum();
            (levels != 0).then_some(Place {
                store,
                name,
                levels,
                tier: None,
                need: None,
                asked: None,
                answer: None,
                put_off: None,
                turn: None,
                since: Time::ZERO,
            })
        };
        Gate {
            places: SHARED.into_iter().filter_map(place).collect(),
            ..Gate::default()
        }
    }

    fn at(&mut self, level: usize) -> Option<&mut Place> {
        let mut places = self.places.iter_mut();
        places.find(|place| place.levels & (1 << level) != 0)
    }
}

impl Place {
    fn forget(&mut self) {
        (self.turn, self.put_off) = (None, None);
        (self.asked, self.answer) = (None, None);
    }
}

impl Steering {
    /// There is a coordinator of the tiers on which this job writes.
    pub fn served(&mut self, now: Time, job: &JobName, nodes: u32) {
        if self.turn.places.is_empty() {
            return;
        }
        self.turn.served = Some((job.clone(), nodes));
        for place in &mut self.turn.places {
            (place.need, place.asked, place.answer) = (None, None, None);
        }
        self.turn.offered = None;
        self.turn.silent = false;
        self.turn.alive = now;
        self.announce(now);
    }

    /// True while a coordinator is asked.
    pub const fn is_served(&self) -> bool {
        self.turn.served.is_some()
    }

    /// The tiers on which this job writes, as far as they are known now.
    pub fn on_tiers(&mut self, now: Time, tiers: &Tiers) {
        let served = self.turn.served.is_some();
        for place in &mut self.turn.places {
            let tier = tiers.get(&place.store);
            if place.tier.as_ref() == tier {
                continue;
            }
            // It is elsewhere now, for example a server that was started anew.
            let before = std::mem::replace(&mut place.tier, tier.cloned());
            if let (Some(tier), Some(_), true) = (before, place.need.take(), served) {
                self.turn.said.push(Ask::Quit { tier });
            }
            (place.turn, place.put_off) = (None, None);
            // The policy counts on it that this is written.
            place.answer = place.asked.map(|_| Turn::Now);
        }
        self.announce(now);
    }

    /// It is gone: the job goes on by its own plan.
    pub fn not_served(&mut self) {
        self.turn.served = None;
        self.turn.said.clear();
        for place in &mut self.turn.places {
            (place.need, place.put_off) = (None, None);
            // The policy counts on it that this is written.
            place.answer = place.asked.map(|_| Turn::Now);
        }
    }

    /// What the coordinator answers.
    pub fn answered(&mut self, answer: &Answer) {
        let (sequence, turn) = match answer {
            Answer::Accept { sequence } => (*sequence, Turn::Now),
            Answer::Later { sequence, after_ms } => (*sequence, Turn::In(*after_ms)),
            // By its own plan.
            Answer::Deny {
                tier,
                sequence,
                why,
            } => {
                tracing::info!(?tier, why, "no turn");
                // One that was silent for long was forgotten: it announces itself again.
                let places = self.turn.places.iter_mut();
                let denied = places.filter(|place| tier.is_none() || place.tier == *tier);
                denied.for_each(|place| place.need = None);
                (*sequence, Turn::Now)
            }
        };
        let mut places = self.turn.places.iter_mut();
        if let Some(place) = places.find(|place| place.asked == Some(sequence)) {
            place.answer = Some(turn);
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

    /// What the job needs of a place, by what is known now: of all levels there together, for
    /// they are written in one turn.
    fn need(&mut self, now: Time, place: usize) -> Option<Need> {
        let (_, nodes) = self.turn.served.clone()?;
        if self.looked.is_none() {
            self.look(now);
        }
        let there = self.turn.places.get(place)?.levels;
        let levels = self.entry.levels.iter().enumerate();
        let levels = levels.filter(|(level, _)| there & (1 << level) != 0);
        let known = levels.filter_map(|(level, of)| Some((of.background_ms?, self.every(level)?)));
        let both = |a: (f64, f64), b: (f64, f64)| (a.0 + b.0, a.1.min(b.1));
        let (write_ms, period) = known.reduce(both)?;
        let write_ms = write_ms.max(1.0);
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
        let near = |a: u64, b: u64| {
            let ratio = a as f64 / b as f64;
            (1.0 / OTHER..OTHER).contains(&ratio)
        };
        let ms = |since: Time| now.since(since).as_ms() as u64;
        let mut joined = false;
        for index in 0..self.turn.places.len() {
            let (Some(need), Some((job, _))) = (self.need(now, index), self.turn.served.clone())
            else {
                continue;
            };
            let place = &mut self.turn.places[index];
            let known = place.need.is_some_and(|known| {
                near(known.mtbf_ms, need.mtbf_ms) && near(known.write_ms, need.write_ms)
            });
            let Some(tier) = place.tier.clone().filter(|_| !known) else {
                continue;
            };
            place.need = Some(need);
            joined = true;
            self.turn.said.push(Ask::Join {
                job,
                tier,
                need,
                since_ms: ms(place.since),
                writing_ms: place.turn.map(|(since, _)| ms(since)),
            });
        }
        if joined && !self.computing {
            self.turn.said.push(Ask::Paused);
        }
    }

    /// The places to which this goes and of which the coordinator has something to say.
    fn to_offer(&self, mask: Mask) -> impl Iterator<Item = usize> {
        let served = self.turn.served.is_some();
        let places = self.turn.places.iter().enumerate();
        let places = places
            .filter(move |(_, place)| served && mask & place.levels != 0 && place.need.is_some());
        places.map(|(index, _)| index)
    }

    /// True if the coordinator has something to say of this.
    pub(super) fn must_offer(&self, mask: Mask) -> bool {
        self.to_offer(mask).next().is_some()
    }

    pub(super) fn offer_turn(&mut self, now: Time, mask: Mask) {
        let places: Vec<usize> = self.to_offer(mask).collect();
        for index in places {
            self.turn.sequence += 1;
            let sequence = self.turn.sequence;
            let place = &mut self.turn.places[index];
            (place.asked, place.answer) = (Some(sequence), None);
            if let Some(tier) = place.tier.clone() {
                self.turn.said.push(Ask::Offer { tier, sequence });
            }
        }
        self.turn.offered = Some((mask, now));
        self.wake = Some(now + ANSWER);
    }

    /// What became of an offer: the levels that are wanted now, if there was one; nothing at
    /// all while it waits.
    pub(super) fn offered_turn(&mut self, now: Time) -> Option<Option<Mask>> {
        let Some((mask, since)) = self.turn.offered else {
            return Some(None);
        };
        let waits = |place: &Place| place.asked.is_some() && place.answer.is_none();
        if self.turn.places.iter().any(waits) {
            if now.since(since) < ANSWER {
                self.wake = Some(since + ANSWER);
                return None;
            }
            // Said once; the connection says when there is one again.
            self.turn.silent |= self.turn.served.take().is_some();
        }
        self.turn.offered = None;
        let (mut rest, mut accepted) = (mask, false);
        for index in 0..self.turn.places.len() {
            let period = self.period(index);
            let place = &mut self.turn.places[index];
            let here = mask & place.levels;
            if place.asked.take().is_none() {
                continue;
            }
            let first = place.put_off.map_or(now, |(first, _)| first);
            match place.answer.take().unwrap_or(Turn::Now) {
                Turn::In(ms) if now.since(first).as_secs() < PUT_OFF_MAX * period => {
                    // The coordinator does not call, and what it waits for often ends sooner or later
                    // than it supposes: half of what is left at a time, few words are said, and the
                    // storage is not idle for long.
                    let again = now + Time::from_ms(ms / 2).max(AGAIN);
                    place.put_off = Some((first, again));
                    rest &= !here;
                    self.put_off(now, here);
                }
                Turn::In(_) | Turn::Now => {
                    place.put_off = None;
                    // Another level there may be written still: one turn for both.
                    let open = place.turn.map_or(0, |(_, open)| open);
                    place.turn = Some((now, open | here));
                    accepted = true;
                }
            }
        }
        if !accepted {
            // None of what was wanted is taken: other levels were to have that version because it was
            // made anyway. What is due there by itself the policy says.
            self.put_off(now, rest);
            return Some(None);
        }
        Some(Some(rest))
    }

    /// The policy is told that these levels get no version now.
    fn put_off(&mut self, now: Time, levels: Mask) {
        let at = self.at(now);
        for level in (0..self.levels.len()).filter(|level| levels & (1 << level) != 0) {
            self.policy.see(at, Seen::Failed { level });
        }
    }

    /// The interval of a level in seconds. One that is not in use now may be at any time: then it is that
    /// of the level for which it would stand.
    fn every(&self, level: usize) -> Option<f64> {
        let above = self.entry.levels.get(level..)?;
        above.iter().find_map(|level| level.seconds)
    }

    /// The shortest interval of the levels of a place, in seconds: it is put off for no longer.
    fn period(&self, place: usize) -> f64 {
        let there = self.turn.places[place].levels;
        let levels = (0..self.levels.len()).filter(|level| there & (1 << level) != 0);
        let periods = levels.filter_map(|level| self.every(level));
        periods.reduce(f64::min).unwrap_or(0.0)
    }

    /// The levels that have been put off, for as long as that lasts.
    pub(super) fn not_its_turn(&self, now: Time) -> Mask {
        let places = self.turn.places.iter();
        let waits = places.filter(|place| place.put_off.is_some_and(|(_, until)| now < until));
        waits.fold(0, |all, place| all | place.levels)
    }

    /// When the first of those that have been put off is to be offered again.
    pub(super) fn put_off_until(&self, now: Time) -> Option<Time> {
        let places = self.turn.places.iter();
        let untils = places.filter_map(|place| place.put_off.map(|(_, until)| until));
        untils.filter(|until| now < *until).min()
    }

    /// A write is over, well or not.
    pub(super) fn turn_over(&mut self, level: usize) {
        let Some(place) = self.turn.at(level) else {
            return;
        };
        let Some((since, mut open)) = place.turn else {
            return;
        };
        open &= !(1 << level);
        place.turn = (open != 0).then_some((since, open));
        if let (None, Some(tier)) = (place.turn, place.tier.clone()) {
            self.say_turn(Ask::Ended { tier });
        }
    }

    /// A version is there that was captured then.
    pub(super) fn turn_kept(&mut self, captured: Time, level: usize) {
        if let Some(place) = self.turn.at(level) {
            place.since = place.since.max(captured);
        }
    }

    /// The program computes, from its newest version.
    pub(super) fn turn_begins(&mut self, now: Time) {
        for place in &mut self.turn.places {
            place.since = now;
        }
    }

    /// The job ends: nothing is said any more.
    pub(super) fn leave_turns(&mut self) {
        self.say_turn(Ask::Leave);
        self.turn.served = None;
    }

    pub(super) fn forget_turn(&mut self) {
        self.turn.offered = None;
        self.turn.places.iter_mut().for_each(Place::forget);
    }

    pub(super) fn turn_words(&self) -> String {
        let places = self.turn.places.iter().filter(|place| place.tier.is_some());
        let names: Vec<&str> = places.map(|place| place.name).collect();
        match self.turn.served.is_some() && !names.is_empty() {
            true => format!(" (in turns on {})", names.join(" and ")),
            false => String::new(),
        }
    }
}

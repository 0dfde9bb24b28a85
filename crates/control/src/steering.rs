//! When to checkpoint at which level, decided by what a job's checkpoints cost and how often
//! it fails: [`outlive_planner::online`] in a running job.
//!
//! The supervisor hears of everything that counts: what a capture took on every node, when a
//! level keeps a version, what failed and what that took, what was restored. It outlives each
//! start of the job, and what it learned is kept in the job's file. So the policy lives here,
//! and the coordinator's node is told what is wanted ([`crate::orders::Order::CheckpointNow`]).
//!
//! Invariants: until a checkpoint has been measured at each level, and whenever nothing is
//! known, versions go to all levels every [`FIRST_MS`]; a failure counts only if the program had
//! begun to compute; time is the time of watching, in all runs of the job.

mod gate;
mod leaving;
mod wishes;

use std::collections::BTreeMap;

use outlive_base::level::StoreKind;
use outlive_base::{Level, Survives, Time, Version, count};
use outlive_planner::classes::Mask;
pub use outlive_planner::online::Energy;
use outlive_planner::online::cost::CostPrior;
use outlive_planner::online::learned::{Known, Learned, Lost};
use outlive_planner::online::rate::{EVENTS, RatePrior};
use outlive_planner::online::{Adaptive, LevelPrior, Policy as _, Seen, Settings, Why};

use crate::report::{PolicyEntry, PolicyLevel};
use crate::turns::Ask;
use crate::units::show_ms;

pub use wishes::{Powers, Wishes};

/// Between two checkpoints at all levels, while their costs are not known, in milliseconds.
pub const FIRST_MS: u64 = 10_000;
/// So many of these; a level that has kept none of them is taken for as dear as guessed.
const FIRST_MAX: u32 = 3;
/// No level is written more often, in milliseconds: what a version costs beside its capture and
/// its writing (records, messages, collection) is not measured.
pub const LEAST_MS: u64 = 1_000;
/// The share of background writing by which a program is slower: a guess, for it is not
/// measured in a job.
const INTERFERENCE: f64 = 0.05;
/// What is wanted is said again, for the word may be lost.
const SAY_AGAIN: Time = Time::from_secs(5);
/// All levels that are due are being written: it is looked at again after this.
const BUSY_PAUSE: Time = Time::from_secs(1);
/// The policy is asked at least so often.
const LOOK: Time = Time::from_secs(30);
/// Between two offers it is taken for at least this, in seconds: signs of life are as rare.
const GAP_MIN: f64 = 0.5;
/// Between two writes of what was learned, where nothing has failed.
const KEEP_EVERY: Time = Time::from_secs(60);

/// Before anything was seen: a job stops once a day, and each node fails once in five years
/// with its memory, and once with its storage. Known as badly as from [`EVENTS`] failures.
const STOPS_SECONDS: f64 = 86_400.0;
const NODE_SECONDS: f64 = 5.0 * 365.25 * 86_400.0;
/// Costs before the first is measured: a factor of ten either way.
const GUESS: CostPrior = CostPrior {
    seconds: 0.1,
    spread: 2.3,
};
/// Costs of an earlier run: by so much less sure, for the machine may be another.
const ANOTHER_RUN: f64 = 0.3;
/// Said again when an interval has changed by this factor.
const WORTH_A_WORD: f64 = 1.3;

/// What is wanted and not captured yet.
#[derive(Clone, Copy, Debug)]
struct Asked {
    mask: Mask,
    said: Time,
}

/// The policy of a running job.
#[derive(Debug)]
pub struct Steering {
    policy: Adaptive,
    levels: Vec<Level>,
    learned: Learned,
    /// The powers, if energy is saved.
    energy: Option<Energy>,
    /// The time of watching when this run began, less what is forgotten.
    before: f64,
    /// The time of watching at which the policy's began.
    zero: f64,
    begun: Time,
    /// What is being written for longer comes to nothing, and the word of it was lost.
    writing_max: Time,
    first: Time,
    /// From a warning to the end, if the owner has said it.
    notice: Option<Time>,
    /// When the run is ended anyway, if that was known at its beginning.
    ends: Option<Time>,
    leaving: Option<leaving::Leaving>,
    /// Levels that outlast the run.
    outlasting: Mask,
    /// The program computes: all ranks have registered.
    computing: bool,
    asked: Option<Asked>,
    /// Levels that are being written: the version, and when it was captured.
    flying: BTreeMap<usize, (Version, Time)>,
    /// The newest version of each level in this incarnation.
    newest: BTreeMap<usize, Version>,
    /// Levels that have kept a version, in this run or an earlier one.
    measured: Mask,
    tries: u32,
    /// When all levels were wanted last, or the program began to compute.
    last: Time,
    last_offer: Option<Time>,
    last_blocked: f64,
    /// The failure of the recovery under way.
    failed: Option<(Time, Lost)>,
    /// Since the last failure: what the next start restores.
    reopened: Option<(Option<usize>, Mask)>,
    why: Option<Why>,
    turn: gate::Gate,
    wake: Option<Time>,
    kept: Option<Time>,
    entry: PolicyEntry,
    looked: Option<Time>,
    /// The intervals that were told last.
    told: Vec<Option<f64>>,
}

impl Steering {
    /// Of a job at these levels, ascending, on so many nodes. What was learned must have no
    /// [`Learned::fault`].
    pub fn new(levels: &[Level], nodes: u32, wishes: &Wishes, now: Time) -> Steering {
        let learned = wishes.learned.clone();
        let before = learned.seconds - learned.since;
        let known = |level: &Level| {
            learned
                .levels
                .get(level.name())
                .copied()
                .unwrap_or_default()
        };
        let cost = |known: Option<Known>| known.map_or(GUESS, |known| known.prior(ANOTHER_RUN));
        let rates = rates(levels, nodes);
        let prior = |(place, level): (usize, &Level)| LevelPrior {
            cost: CostPrior {
                seconds: 0.0,
                spread: 0.0,
            },
            background: cost(known(level).background),
            restart: cost(known(level).restart),
            failures: rates[place],
        };
        let outlasting = leaving::outlasting(levels, wishes.preempts);
        let settings = Settings {
            levels: levels.iter().enumerate().map(prior).collect(),
            capture: cost(learned.capture),
            beyond: rates[levels.len()],
            outlasting,
            budget: wishes.overhead_max,
            lost_max: wishes.lost_max_ms.map(|ms| ms as f64 / 1e3),
            ends_at: wishes.ends_after_ms.map(|ms| before + ms as f64 / 1e3),
            notice: leaving::notice(wishes),
            energy: wishes.energy,
            interference: INTERFERENCE,
            least: wishes.least_ms as f64 / 1e3,
            ahead: true,
        };
        let mut policy = Adaptive::new(settings);
        policy.see(0.0, Seen::Gap { seconds: GAP_MIN });
        for (at, lost) in history(&learned) {
            let survive = lost.map(|lost| survivors(levels, lost));
            let seen = survive.map_or(Seen::Preempted, |survive| Seen::Stopped { survive });
            policy.see(at - learned.since, seen);
        }
        let measured = levels.iter().enumerate();
        let measured = measured.filter(|(_, level)| known(level).background.is_some());
        let mut steering = Steering {
            policy,
            levels: levels.to_vec(),
            energy: wishes.energy,
            before,
            zero: learned.since,
            begun: now,
            writing_max: Time::from_ms(wishes.commit_ms.saturating_mul(2)) + BUSY_PAUSE,
            first: Time::from_ms(wishes.first_ms),
            notice: wishes.notice_ms.map(Time::from_ms),
            ends: wishes.ends_after_ms.map(|ms| now + Time::from_ms(ms)),
            leaving: None,
            outlasting,
            computing: false,
            asked: None,
            flying: BTreeMap::new(),
            newest: BTreeMap::new(),
            measured: measured.map(|(place, _)| 1 << place).sum(),
            tries: 0,
            last: now,
            last_offer: None,
            last_blocked: learned.capture.map_or(0.0, |known| known.seconds),
            failed: None,
            reopened: None,
            why: None,
            turn: gate::Gate::of(levels),
            wake: None,
            kept: None,
            entry: PolicyEntry::default(),
            looked: None,
            told: Vec::new(),
            learned,
        };
        steering.look(now);
        steering
    }

    fn at(&self, now: Time) -> f64 {
        self.before + now.since(self.begun).as_secs()
    }

    fn all(&self) -> Mask {
        (1 << self.levels.len()) - 1
    }

    fn place_in(&self, store: StoreKind) -> Option<usize> {
        self.levels.iter().position(|level| level.store() == store)
    }

    fn place(&self, level: Level) -> Option<usize> {
        self.levels.iter().position(|known| *known == level)
    }

    // ---- what happens ----

    /// What runs next begins with this version; `from`: the most stable level that was needed.
    pub fn reopened(&mut self, restored: Option<Version>, from: Option<Level>) {
        self.forget_orders();
        let holds = self.newest.iter();
        let holds = holds.filter(|(_, version)| Some(**version) == restored);
        let mut holds: Mask = holds.map(|(place, _)| 1 << place).sum();
        let from = restored.and_then(|_| {
            let needed = from.and_then(|level| self.place(level));
            needed.or_else(|| (0..self.levels.len()).rev().find(|p| holds & (1 << p) != 0))
        });
        if let Some(place) = from {
            holds |= 1 << place;
            // What is restored lies in memory on every node.
            let memory = self.place_in(StoreKind::Keeper);
            holds |= memory.map_or(0, |memory| 1 << memory);
        }
        self.newest.clear();
        self.reopened = Some((from, holds));
    }

    /// All ranks have registered: the program computes.
    pub fn ready(&mut self, now: Time) {
        self.count_failure();
        let (from, holds) = self.reopened.take().unwrap_or_default();
        let failed = self.failed.take().map(|(since, _)| since);
        let seconds = failed.map_or(0.0, |since| now.since(since).as_secs());
        let restarted = Seen::Restarted {
            from,
            holds,
            seconds,
        };
        self.policy.see(self.at(now), restarted);
        self.computing = true;
        self.say_turn(Ask::Resumed);
        self.turn_begins(now);
        self.last = now;
        self.last_offer = None;
        if self.measured == self.all() {
            self.looked = None;
        }
    }

    /// The program has offered a version, or more.
    pub fn offered(&mut self, now: Time) {
        if let Some(before) = self.last_offer.replace(now) {
            let seconds = now.since(before).as_secs();
            if seconds >= GAP_MIN {
                self.policy.see(self.at(now), Seen::Gap { seconds });
            }
        }
    }

    /// All ranks have captured a version; the longest was blocked for so many seconds.
    pub fn captured(&mut self, now: Time, version: Version, blocked: f64) {
        let mask = self.asked.take().map_or(self.all(), |asked| asked.mask);
        for place in (0..self.levels.len()).filter(|place| mask & (1 << place) != 0) {
            self.flying.insert(place, (version, now));
        }
        if mask == self.all() {
            self.last = now;
        }
        self.last_blocked = blocked;
        let at = self.at(now);
        self.policy.see(at, Seen::Captured { seconds: blocked });
        self.policy.see(at, Seen::Resumed);
    }

    /// A level keeps a version.
    pub fn stable(&mut self, now: Time, version: Version, level: Level) {
        let Some(place) = self.place(level) else {
            return;
        };
        let mine = self.flying.get(&place).filter(|at| at.0 == version);
        let since = mine.map(|(_, since)| *since);
        if let Some(since) = since {
            self.flying.remove(&place);
            self.turn_over(place);
            self.saved(since, place);
        }
        let newest = self.newest.entry(place).or_insert(version);
        *newest = version.max(*newest);
        if since.is_some() && self.measured & (1 << place) == 0 {
            self.measured |= 1 << place;
            self.looked = None;
        }
        self.turn_kept(since.unwrap_or(now), place);
        let seconds = since.map_or(0.0, |since| now.since(since).as_secs());
        let level = place;
        self.policy
            .see(self.at(now), Seen::Stored { level, seconds });
    }

    /// A version comes to nothing, at one level or at all.
    pub fn given_up(&mut self, now: Time, version: Version, level: Option<Level>) {
        let places: Vec<usize> = (0..self.levels.len())
            .filter(|place| level.is_none_or(|level| self.levels[*place] == level))
            .filter(|place| self.flying.get(place).is_some_and(|at| at.0 == version))
            .collect();
        for level in places {
            self.flying.remove(&level);
            self.turn_over(level);
            self.policy.see(self.at(now), Seen::Failed { level });
        }
    }

    /// The job fails. What it took becomes known little by little: the worst counts.
    pub fn failed(&mut self, now: Time, lost: Lost) {
        if self.computing {
            self.failed = Some((now, lost));
            self.computing = false;
            self.say_turn(Ask::Paused);
            self.forget_orders();
        } else if let Some((_, known)) = &mut self.failed {
            *known = lost.max(*known);
        }
    }

    /// The job stops without a failure.
    pub fn ended(&mut self) {
        self.leave_turns();
        self.computing = false;
        self.count_failure();
        self.forget_orders();
    }

    /// The failure that is over: only now it is known what it took.
    fn count_failure(&mut self) {
        let Some((since, lost)) = self.failed else {
            return;
        };
        self.looked = None;
        if self.was_announced(since, lost) {
            return;
        }
        let at = self.at(since);
        let survive = survivors(&self.levels, lost);
        self.policy.see(at, Seen::Stopped { survive });
        self.learned.fail(at + self.zero, lost);
        self.kept = None;
    }

    fn forget_orders(&mut self) {
        self.asked = None;
        self.flying.clear();
        self.forget_turn();
        self.wake = None;
    }

    // ---- what is wanted ----

    /// The levels at which a checkpoint is wanted now, to be said to the coordinator.
    pub fn ask(&mut self, now: Time) -> Option<Vec<Level>> {
        if !self.computing {
            self.wake = None;
            return None;
        }
        if let Some(asked) = &mut self.asked {
            let again = asked.said + SAY_AGAIN;
            self.wake = Some(again.max(now));
            if now < again {
                return None;
            }
            asked.said = now;
            self.wake = Some(now + SAY_AGAIN);
            return Some(self.names(self.asked?.mask));
        }
        self.drop_forgotten(now);
        if let Some(mask) = self.offered_turn(now)? {
            return Some(self.want(now, mask));
        }
        let mask = match self.is_measuring() {
            true if now >= self.last + self.first && self.flying.is_empty() => {
                self.tries += 1;
                self.last = now;
                self.why = None;
                self.all()
            }
            true => {
                self.wake = Some((self.last + self.first).max(now + BUSY_PAUSE));
                return None;
            }
            false => self.decide(now)?,
        };
        if self.must_offer(mask) && !self.is_leaving(now) {
            self.offer_turn(now, mask);
            return None;
        }
        Some(self.want(now, mask))
    }

    fn want(&mut self, now: Time, mask: Mask) -> Vec<Level> {
        self.asked = Some(Asked { mask, said: now });
        self.wake = Some(now + SAY_AGAIN);
        self.names(mask)
    }

    fn drop_forgotten(&mut self, now: Time) {
        let late = |(_, since): &(Version, Time)| now.since(*since) > self.writing_max;
        let late: Vec<usize> = self
            .flying
            .iter()
            .filter(|(_, flying)| late(flying))
            .map(|(place, _)| *place)
            .collect();
        for level in late {
            self.flying.remove(&level);
            self.turn_over(level);
            self.policy.see(self.at(now), Seen::Failed { level });
        }
    }

    fn is_measuring(&self) -> bool {
        self.measured != self.all() && self.tries < FIRST_MAX
    }

    fn decide(&mut self, now: Time) -> Option<Mask> {
        let due = self.due(now);
        if due > now {
            self.wake = Some(due);
            return None;
        }
        let busy: Mask = self.flying.keys().map(|place| 1 << place).sum();
        let waits = match self.is_leaving(now) {
            true => 0,
            false => self.not_its_turn(now),
        };
        let decision = self.policy.decide(self.at(now), busy | waits);
        if decision.levels == 0 {
            let pause = now + BUSY_PAUSE;
            let turn = self.put_off_until(now);
            self.wake = Some(turn.map_or(pause, |until| until.min(pause)));
            return None;
        }
        self.why = Some(decision.why);
        Some(decision.levels)
    }

    /// When the policy wants a checkpoint: at most [`LOOK`] from now.
    fn due(&mut self, now: Time) -> Time {
        let at = self.at(now);
        let left = self.policy.due(at).map_or(f64::INFINITY, |due| due - at);
        let left = left.clamp(0.0, LOOK.as_secs());
        now + Time((left * 1e9) as u64)
    }

    fn names(&self, mask: Mask) -> Vec<Level> {
        let levels = self.levels.iter().enumerate();
        let wanted = levels.filter(|(place, _)| mask & (1 << place) != 0);
        wanted.map(|(_, level)| *level).collect()
    }

    /// When it wants to be asked again, if nothing happens.
    pub fn wake(&self) -> Option<Time> {
        self.wake.into_iter().chain(self.leaves()).min()
    }

    // ---- what is known ----

    /// What is to be kept of what was learned, if it is time; `at_once`: in any case.
    pub fn keep(&mut self, now: Time, at_once: bool) -> Option<Learned> {
        if self.kept.is_some_and(|at| now.since(at) < KEEP_EVERY) && !at_once {
            return None;
        }
        let (capture, levels) = self.policy.costs();
        // Nothing was learned yet.
        let past = self.learned.failures.len() + self.learned.preemptions.len();
        if capture.seen() == 0 && past == 0 && !at_once {
            return None;
        }
        self.kept = Some(now);
        let mut learned = self.learned.clone();
        learned.seconds += now.since(self.begun).as_secs();
        learned.capture = Known::of(&capture).or(learned.capture);
        for (level, (background, restart)) in self.levels.iter().zip(levels) {
            let known = learned.levels.entry(level.name().to_owned()).or_default();
            known.background = Known::of(&background).or(known.background);
            known.restart = Known::of(&restart).or(known.restart);
        }
        Some(learned)
    }

    /// What is in force and why, and whether that is worth a word.
    pub fn entry(&mut self, now: Time) -> (&PolicyEntry, bool) {
        let mut news = false;
        if self.looked.is_none_or(|at| now.since(at) >= LOOK) {
            self.look(now);
            let intervals = self.entry.levels.iter().map(|level| level.seconds);
            let intervals: Vec<Option<f64>> = intervals.collect();
            let apart = |(now, told): (&Option<f64>, &Option<f64>)| match (now, told) {
                (Some(now), Some(told)) => now / told > WORTH_A_WORD || told / now > WORTH_A_WORD,
                (now, told) => now.is_some() != told.is_some(),
            };
            news = self.computing
                && (intervals.len() != self.told.len()
                    || intervals.iter().zip(&self.told).any(apart));
            if news {
                self.told = intervals;
            }
        }
        (&self.entry, news)
    }

    fn look(&mut self, now: Time) {
        self.looked = Some(now);
        let at = self.at(now);
        let advice = self.policy.advice(at);
        let measuring = self.is_measuring();
        let level = |(level, found): (&Level, &outlive_planner::online::LevelAdvice)| PolicyLevel {
            level: level.name().to_owned(),
            seconds: match measuring {
                true => Some(self.first.as_secs()),
                false => found.period.filter(|period| period.is_finite()),
            },
            background_ms: Some(found.background * 1e3).filter(|_| found.seen.1 > 0),
            mtbf_seconds: Some(1.0 / found.rate),
            mtbf_low_seconds: Some(1.0 / found.rate_between.1),
            mtbf_high_seconds: Some(1.0 / found.rate_between.0),
            confidence: Some(found.confidence),
            failures: Some(found.seen.0),
        };
        let levels: Vec<PolicyLevel> = self.levels.iter().zip(&advice.levels).map(level).collect();
        let (checkpoint, lost, restart) = advice.overhead;
        let watched = self.learned.seconds - self.learned.since + now.since(self.begun).as_secs();
        let failures = self.learned.failures.len() as u64;
        self.entry = PolicyEntry {
            mode: "auto".to_owned(),
            why: self.words(measuring, &levels, watched, failures, advice.over_budget),
            levels,
            blocked_ms: Some(self.last_blocked * 1e3).filter(|_| self.measured != 0),
            watched_seconds: Some(watched),
            failures: Some(failures),
            overhead: (!measuring).then_some([checkpoint, lost, restart]),
        };
    }

    fn words(
        &self,
        measuring: bool,
        levels: &[PolicyLevel],
        watched: f64,
        failures: u64,
        over_budget: bool,
    ) -> String {
        let energy = match self.energy {
            Some(Energy {
                compute,
                checkpoint,
            }) => format!(", energy is saved ({compute} W computing, {checkpoint} W blocked)"),
            None => String::new(),
        };
        if measuring {
            return format!(
                "every {} to all levels, until their costs are known{energy}",
                show_ms(self.first.as_ms())
            );
        }
        let used = levels.iter().filter_map(|level| {
            let every = show_ms(level.seconds? * 1e3);
            Some(format!("{} every {every}", level.level))
        });
        let used: Vec<String> = used.collect();
        let used = match used.is_empty() {
            true => "no level".to_owned(),
            false => used.join(", "),
        };
        let (seen, blocked) = (count(failures, "failure"), show_ms(self.last_blocked * 1e3));
        let watched = show_ms(watched * 1e3);
        let over = match over_budget {
            true => "; --overhead-max cannot be kept beside --redo-max",
            false => "",
        };
        let turns = self.turn_words();
        let preempted = match self.learned.preemptions.len() as u64 {
            0 => String::new(),
            number => format!(" and {}", count(number, "preemption")),
        };
        format!(
            "{used}{turns}: {seen}{preempted} in {watched}, a version blocks for {blocked}{energy}{over}"
        )
    }
}

/// Levels that survive the loss.
fn survivors(levels: &[Level], lost: Lost) -> Mask {
    let survives = |level: Level| match lost {
        Lost::Process => true,
        Lost::Memory => level.survives() >= Survives::NodeCrash,
        Lost::Storage => level.outlives_a_node(),
    };
    let levels = levels.iter().enumerate();
    let alive = levels.filter(|(_, level)| survives(**level));
    alive.map(|(place, _)| 1 << place).sum()
}

/// What stopped the job in the order of time, and what each took; none: it was preempted.
fn history(learned: &Learned) -> Vec<(f64, Option<Lost>)> {
    let failures = learned.failures.iter();
    let failures = failures.map(|failure| (failure.at, Some(failure.lost)));
    let preemptions = learned.preemptions.iter().map(|at| (*at, None));
    let mut all: Vec<_> = failures.chain(preemptions).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

/// What is believed before anything is seen: for each level the failures that need it, and
/// last those that none survives.
fn rates(levels: &[Level], nodes: u32) -> Vec<RatePrior> {
    // What cannot happen by this may happen yet.
    let mut rates = vec![1e-3 / NODE_SECONDS; levels.len() + 1];
    let node = f64::from(nodes) / NODE_SECONDS;
    for (lost, rate) in [
        (Lost::Process, 1.0 / STOPS_SECONDS),
        (Lost::Memory, node),
        (Lost::Storage, node),
    ] {
        let survive = survivors(levels, lost);
        let needed = (0..levels.len()).find(|place| survive & (1 << place) != 0);
        rates[needed.unwrap_or(levels.len())] += rate;
    }
    let prior = |rate: f64| RatePrior {
        events: EVENTS,
        seconds: EVENTS / rate,
    };
    rates.into_iter().map(prior).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

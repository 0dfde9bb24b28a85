//! When a checkpoint is wanted, by the job's policy or because somebody asks (coordinator only).

use outlive_base::level::StoreKind;
use outlive_base::{Time, Version};
use outlive_protocols::commit::{Command, Levels, Why};

use super::core::{Aborted, Core, News, abort_error};
use super::service::{Haste, Service, Silent};
use super::shell::Shell;
use crate::orders::{LevelSetting, Order};

/// How far ahead of the ranks a version is armed: the time that arming may take.
const ARM_AHEAD: Time = Time::from_ms(20);
/// A version is armed only when the ranks will be there within this time.
const ARM_WINDOW: Time = Time::from_ms(500);
/// A wanted version that nothing came of is wanted again after this.
const WANT_AGAIN: Time = Time::from_secs(2);
/// Least pause after a round that came to nothing.
const WANT_PAUSE: Time = Time::from_ms(5);
/// Smoothing of the measured rate of versions.
const SMOOTHING: f64 = 0.3;
/// How often the rate is sampled.
const SAMPLE: Time = Time::from_ms(50);
/// So many versions in a row that ranks have passed are no coincidence.
const PASSED_MAX: u32 = 12;
/// The least pause of looks at a version that is far: rates change.
const FAR: Time = Time::from_ms(25);

/// What is wanted, and what ranks do.
pub struct Policy {
    last: Time,
    wanted: Option<(Version, Time)>,
    not_before: Option<Time>,
    misses: u32,
    /// Versions in a row that came to nothing because ranks had passed them.
    passed: u32,
    rounds: u32,
    /// A copy at `shared` was due, and an older one was still on its way there.
    owed: bool,
    /// Versions a second, smoothed, and its last sample.
    rate: f64,
    sample: (Time, u64),
    /// Versions between the last two samples that differed.
    stride: u64,
    /// The next version to want is not near: how long ranks need to come near it at their
    /// rate, for ever if they do not call.
    far: Option<Time>,
    /// The launcher asks for one, at these levels, if any are named.
    asked: Option<Levels>,
}

impl Service for Policy {
    type Word = Silent;

    fn new(now: Time) -> Policy {
        Policy {
            last: now,
            wanted: None,
            not_before: None,
            misses: 0,
            passed: 0,
            rounds: 0,
            owed: false,
            rate: 0.0,
            sample: (now, 0),
            stride: 0,
            far: None,
            asked: None,
        }
    }

    fn on_order<S: Shell>(&mut self, _: &mut Core<S>, order: Order) -> Option<Order> {
        let Order::CheckpointNow { levels } = order else {
            return Some(order);
        };
        // What was asked for before, and was not taken yet, is wanted as well.
        let before = self.asked.unwrap_or(Levels::NONE);
        let both = levels.iter().fold(before, |set, &level| set.with(level));
        self.asked = Some(both);
        // Whatever the next version by number is, this is wanted now.
        self.far = None;
        None
    }

    fn on_news<S: Shell>(&mut self, core: &mut Core<S>, news: &News) {
        match news {
            News::Opening => (self.wanted, self.asked) = (None, None),
            News::Opened { .. } => {
                self.last = core.now();
                self.wanted = None;
                self.sample = (core.now(), 0);
            }
            News::Captured => self.last = core.now(),
            News::CapturedEverywhere(levels) => {
                self.note_owed(core, *levels);
                self.rounds += 1;
                self.wanted = None;
                self.answer_asked(core, *levels);
                (self.misses, self.passed) = (0, 0);
            }
            News::Passed { armed, version } => {
                if let Some(wanted) = self.wanted.as_mut().filter(|(v, _)| v == armed) {
                    *wanted = (*version, core.now());
                }
            }
            News::Aborted(aborted) => self.on_aborted(core, aborted),
            News::Declined => self.want_later(core),
            _ => {}
        }
    }

    fn on_look<S: Shell>(&mut self, core: &mut Core<S>) {
        if core.incarnation().0 != 0 {
            self.sample_rate(core);
            if core.is_coordinator() {
                self.want(core);
            }
        }
    }

    fn look_at<S: Shell>(&self, core: &Core<S>) -> Option<Time> {
        let at = self.due(core)?;
        Some(match self.far {
            Some(until) => at.max(core.now() + Time(until.0 / 2).max(FAR)),
            None => at,
        })
    }

    fn haste<S: Shell>(&self, core: &Core<S>) -> Haste {
        let due = self.far.is_none() && self.due(core).is_some_and(|at| at <= core.now());
        if due { Haste::Waiting } else { Haste::Calm }
    }
}

fn is_shared(setting: &LevelSetting) -> bool {
    setting.level.store() == StoreKind::Shared
}

impl Policy {
    /// When the next checkpoint may be wanted; `None` while one is under way, or while there is
    /// nothing to want.
    fn due<S: Shell>(&self, core: &Core<S>) -> Option<Time> {
        let ready = core.is_coordinator()
            && core.incarnation().0 != 0
            && !core.is_opening()
            && self.wanted.is_none()
            && core.ranks().complete(core.me(), core.nodes())
            && core.ranks().called_max().is_some()
            && core.has_memory_for_all();
        let policy = core.config().filter(|_| ready)?.policy;
        if self.asked.is_some() || policy.every.is_some_and(|every| every != 0) {
            return self.not_before.or(Some(self.last));
        }
        Some(self.last + Time::from_ms(policy.interval_ms?))
    }

    fn sample_rate<S: Shell>(&mut self, core: &Core<S>) {
        let (at, called) = self.sample;
        let elapsed = core.now().since(at);
        if elapsed < SAMPLE {
            return;
        }
        let now = core.ranks().called_max();
        let now = now.map_or(0, |version| version.0 + 1);
        // A new incarnation counts from elsewhere: only steps forward are a rate.
        if now >= called && called != 0 {
            let rate = (now - called) as f64 / elapsed.as_secs();
            self.rate += SMOOTHING * (rate - self.rate);
            if now > called {
                self.stride = now - called;
            }
        }
        self.sample = (core.now(), now);
    }

    /// Wants the next checkpoint when it is due.
    fn want<S: Shell>(&mut self, core: &mut Core<S>) {
        self.far = None;
        let Some(policy) = core.config().map(|config| config.policy) else {
            return;
        };
        let now = core.now();
        if core.is_finishing() || core.is_opening() || !core.slots_ready() {
            return;
        }
        if self.not_before.is_some_and(|at| now < at) {
            return;
        }
        if let Some((_, since)) = self.wanted {
            if now.since(since) < WANT_AGAIN {
                return;
            }
            self.wanted = None;
        }
        // Nothing has been offered yet: the program is still starting.
        let Some(called) = core.ranks().called_max() else {
            return;
        };
        let soon = (self.rate * ARM_AHEAD.as_secs()) as u64;
        let ahead = called.0.saturating_add(1).saturating_add(soon);
        let due = policy
            .interval_ms
            .is_some_and(|ms| now.since(self.last) >= Time::from_ms(ms));
        let next = if due || self.asked.is_some() {
            Some(ahead)
        } else {
            policy.every.filter(|&every| every != 0).and_then(|every| {
                let restored = core.restored().map_or(0, |(_, version)| version.0);
                ahead.max(restored + 1).checked_next_multiple_of(every)
            })
        };
        // An armed version holds a slot and the round of others: only what is near, by
        // the rate, or by what ranks that call rarely went on by the last time.
        let soon = (self.rate * ARM_WINDOW.as_secs()) as u64;
        let near = ahead.saturating_add(soon.max(self.stride));
        let Some(next) = next.filter(|&next| next <= near.min(Version::MAX.0)) else {
            let until = |next: u64| (next - near.min(next)) as f64 / self.rate * 1e9;
            // No rate: infinite, which is the largest time.
            self.far = next.map(|next| Time(until(next) as u64));
            return;
        };
        let levels = self.levels_of_round(core);
        self.wanted = Some((Version(next), now));
        core.command(Command::Want {
            at_least: Version(next),
            levels,
            any: self.asked.is_some(),
        });
    }

    /// A round came to nothing; the next one waits, longer each time.
    fn want_later<S: Shell>(&mut self, core: &Core<S>) {
        self.wanted = None;
        self.misses = (self.misses + 1).min(8);
        self.not_before = Some(core.now() + Time(WANT_PAUSE.0 << self.misses));
    }

    fn on_aborted<S: Shell>(&mut self, core: &mut Core<S>, aborted: &Aborted) {
        let wanted = self
            .wanted
            .is_some_and(|(wanted, _)| wanted == aborted.version);
        // The end of a version can also come level by level.
        if aborted.level.is_none() || wanted && !aborted.live {
            self.want_later(core);
        }
        // Ranks that had passed are no failure; but if it is always so, they do not offer the
        // same versions.
        if core.is_coordinator() && matches!(aborted.why, Why::Passed | Why::Overtaken) {
            self.passed = self.passed.saturating_add(1);
            if self.passed == PASSED_MAX {
                core.warn(abort_error(
                    aborted.version,
                    Why::Overtaken,
                    aborted.culprit,
                ));
            }
        }
    }

    /// A version for these levels was captured: it is what was asked for if all that were named
    /// are among them.
    fn answer_asked<S: Shell>(&mut self, core: &Core<S>, levels: Levels) {
        let named = self.asked.is_some_and(|asked| !asked.is_empty());
        // One that was wanted before somebody asked may go to fewer.
        let mut wanted = self.levels_of_round(core).iter();
        if !named || wanted.all(|level| levels.contains(level)) {
            self.asked = None;
        }
    }

    fn is_due(&self, setting: &LevelSetting) -> bool {
        let owed = self.owed && is_shared(setting);
        owed || self.rounds.is_multiple_of(setting.every.max(1))
    }

    /// A version for these levels was captured.
    fn note_owed<S: Shell>(&mut self, core: &Core<S>, levels: Levels) {
        let mut settings = core.config().into_iter().flat_map(|config| &config.levels);
        let due = settings.any(|it| is_shared(it) && self.is_due(it));
        self.owed = due && !levels.uses(StoreKind::Shared);
    }

    /// The levels that were asked for. Else a level with `every = n` takes part in each n-th
    /// round, the first included.
    fn levels_of_round<S: Shell>(&self, core: &Core<S>) -> Levels {
        let settings = core.config().map_or(&[][..], |config| &config.levels);
        let asked = self.asked.filter(|asked| !asked.is_empty());
        let busy = core.is_transferring();
        let wanted = |setting: &&LevelSetting| match asked {
            Some(asked) => asked.contains(setting.level),
            // Shared storage takes what it can; more would only wait there. Where each version is to
            // go so far, versions wait.
            None => self.is_due(setting) && !(busy && is_shared(setting) && setting.every > 1),
        };
        let levels = settings
            .iter()
            .filter(wanted)
            .fold(Levels::NONE, |set, setting| set.with(setting.level));
        if !core.has_one_slot() {
            return levels;
        }
        // Memory is only a way then: what was asked for there alone is worth the others.
        let kept = levels.kept_elsewhere(StoreKind::Keeper);
        match asked.is_some() && kept.is_empty() {
            true => core.all_levels().kept_elsewhere(StoreKind::Keeper),
            false => kept,
        }
    }
}

//! Housekeeping: staging memory ahead of need, the policy that wants checkpoints,
//! garbage collection, the end of the job, and taking up work after a restart of
//! the agent.

use std::collections::BTreeSet;

use outlive_base::control_block::ControlWords;
use outlive_base::placement::ranks_of;
use outlive_base::{Incarnation, Level, NodeId, Result, Time, Version};
use outlive_ledger::GcPolicy;
use outlive_protocols::commit::{Command, Levels, Why};

use super::ranks::{RankEntry, Use};
use super::shell::{Ask, Collected, Shell};
use super::{Node, Planted};
use crate::orders::{LevelSetting, Notice};

/// How far ahead of the ranks a version is armed: the time that arming may take.
const ARM_AHEAD: Time = Time::from_ms(20);
/// A version is armed only when the ranks will be there within this time.
const ARM_WINDOW: Time = Time::from_ms(500);
/// A wanted version that nothing came of is wanted again after this.
const WANT_AGAIN: Time = Time::from_secs(2);
/// Least pause after a round that came to nothing.
const WANT_PAUSE: Time = Time::from_ms(5);
/// How long after the bound of the last flushes a launcher may let an agent live.
const STAY: Time = Time::from_secs(10);
/// How long a collection waits for the other levels of a version.
const COLLECT_AFTER: Time = Time::from_secs(1);
/// Smoothing of the measured rate of versions.
const SMOOTHING: f64 = 0.3;
/// How often the rate is sampled.
const SAMPLE: Time = Time::from_ms(50);

/// What housekeeping sees of ranks, of which nothing else tells. As long as that stays the
/// same, and nothing waits, it need not look often.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sight {
    ranks: usize,
    bytes_needed: u64,
    memory: u64,
    called: bool,
}

impl<S: Shell> Node<S> {
    pub(super) fn sight(&self) -> Sight {
        let needed = self.ranks.iter().filter_map(|entry| entry.block());
        Sight {
            ranks: self
                .ranks
                .iter()
                .filter(|entry| entry.link.is_some())
                .count(),
            bytes_needed: needed
                .map(|block| block.bytes_needed())
                .fold(0, u64::saturating_add),
            memory: self.ranks.memory(),
            called: self.ranks.called_max().is_some(),
        }
    }

    /// True while somebody waits for what no event may tell of.
    pub(super) fn is_awaited(&self) -> bool {
        !self.asks.is_empty() || self.finishing.is_some()
    }

    /// True while something may become possible without an event that tells.
    pub(super) fn is_waiting_for_room(&self) -> bool {
        self.deferred.is_some()
            || self.is_awaited()
            || self.policy.far.is_none() && self.checkpoint_due().is_some_and(|at| at <= self.now)
    }

    /// Coordinator: when the next checkpoint may be wanted; `None` while one is under
    /// way, or while there is nothing to want.
    pub(super) fn checkpoint_due(&self) -> Option<Time> {
        let ready = self.me == NodeId(0)
            && self.incarnation.0 != 0
            && self.opening.is_none()
            && self.policy.wanted.is_none()
            && self.ranks.complete(self.me, self.nodes())
            && self.ranks.called_max().is_some()
            && (!self.memory_warned || self.staging);
        let policy = self.config.as_ref().filter(|_| ready)?.policy;
        if self.policy.asked.is_some() || policy.every.is_some_and(|every| every != 0) {
            return self.policy.not_before.or(Some(self.policy.last));
        }
        Some(self.policy.last + Time::from_ms(policy.interval_ms?))
    }

    pub(super) fn look_around(&mut self) {
        if self.incarnation.0 != 0 {
            self.call_back();
            self.prepare_memory();
            self.sample_rate();
            if self.me == NodeId(0) {
                self.want();
            }
        }
        let now = self.now;
        if self.isolated_until.take_if(|until| now >= *until).is_some() {
            self.shell.isolate(false);
        }
        self.find_passed();
        self.prepare_late();
        self.try_collect();
        self.try_deferred();
        self.try_asks();
        if !self.waits.is_empty() {
            self.answer_waits();
        }
        self.maybe_finished();
    }

    fn sample_rate(&mut self) {
        let (at, called) = self.policy.sample;
        let elapsed = self.now.since(at);
        if elapsed < SAMPLE {
            return;
        }
        let now = self.ranks.called_max().map_or(0, |version| version.0 + 1);
        // A new incarnation counts from elsewhere: only steps forward are a rate.
        if now >= called && called != 0 {
            let rate = (now - called) as f64 / elapsed.as_secs();
            self.policy.rate += SMOOTHING * (rate - self.policy.rate);
            if now > called {
                self.policy.stride = now - called;
            }
        }
        self.policy.sample = (self.now, now);
    }

    /// Coordinator: wants the next checkpoint when it is due.
    fn want(&mut self) {
        self.policy.far = None;
        let Some(config) = &self.config else { return };
        if self.finishing.is_some() || self.opening.is_some() || !self.slots_ready() {
            return;
        }
        if self.policy.not_before.is_some_and(|at| self.now < at) {
            return;
        }
        if let Some((_, since)) = self.policy.wanted {
            if self.now.since(since) < WANT_AGAIN {
                return;
            }
            self.policy.wanted = None;
        }
        // Nothing has been offered yet: the program is still starting.
        let Some(called) = self.ranks.called_max() else {
            return;
        };
        let soon = (self.policy.rate * ARM_AHEAD.as_secs()) as u64;
        let ahead = called.0.saturating_add(1).saturating_add(soon);
        let policy = config.policy;
        let due = policy
            .interval_ms
            .is_some_and(|ms| self.now.since(self.policy.last) >= Time::from_ms(ms));
        let next = if due || self.policy.asked.is_some() {
            Some(ahead)
        } else {
            policy.every.filter(|&every| every != 0).and_then(|every| {
                let restored = self.restored.map_or(0, |(_, version)| version.0);
                ahead.max(restored + 1).checked_next_multiple_of(every)
            })
        };
        // An armed version holds a slot and the round of others: only what is near, by
        // the rate, or by what ranks that call rarely went on by the last time.
        let soon = (self.policy.rate * ARM_WINDOW.as_secs()) as u64;
        let near = ahead.saturating_add(soon.max(self.policy.stride));
        let Some(next) = next.filter(|&next| next <= near.min(Version::MAX.0)) else {
            let until = |next: u64| (next - near.min(next)) as f64 / self.policy.rate * 1e9;
            // No rate: infinite, which is the largest time.
            self.policy.far = next.map(|next| Time(until(next) as u64));
            return;
        };
        let levels = self.levels_of_round();
        self.policy.wanted = Some((Version(next), self.now));
        self.command(Command::Want {
            at_least: Version(next),
            levels,
            any: self.policy.asked.is_some(),
        });
    }

    /// Coordinator: a round came to nothing; the next one waits, longer each time.
    pub(super) fn want_later(&mut self) {
        self.policy.wanted = None;
        self.policy.misses = (self.policy.misses + 1).min(8);
        let pause = Time(WANT_PAUSE.0 << self.policy.misses);
        self.policy.not_before = Some(self.now + pause);
    }

    /// True while a version is armed that the local ranks have not all captured.
    pub(super) fn is_armed_here(&self) -> bool {
        self.rounds.values().any(|round| !round.told && !round.void)
    }

    /// True if every local rank could be armed now.
    fn slots_ready(&self) -> bool {
        let keep = self.reuse();
        self.ranks.complete(self.me, self.nodes())
            && self.ranks.iter().all(|entry| {
                let needed = entry.block().map_or(0, |block| block.bytes_needed());
                needed > 0
                    && entry
                        .free_slot(keep)
                        .is_some_and(|slot| entry.slots[slot].capacity() >= needed)
            })
    }

    /// A version for these levels was captured: it is what was asked for if all that were named
    /// are among them.
    pub(super) fn answer_asked(&mut self, levels: Levels) {
        let named = self.policy.asked.is_some_and(|asked| !asked.is_empty());
        // One that was wanted before somebody asked may go to fewer.
        if !named
            || self
                .levels_of_round()
                .iter()
                .all(|level| levels.contains(level))
        {
            self.policy.asked = None;
        }
    }

    /// The levels that were asked for. Else a level with `every = n` takes part in each n-th
    /// round, the first included.
    fn levels_of_round(&self) -> Levels {
        let round = self.policy.rounds;
        let settings = self
            .config
            .as_ref()
            .map_or(&[][..], |config| &config.levels);
        let asked = self.policy.asked.filter(|asked| !asked.is_empty());
        let wanted = |setting: &&LevelSetting| match asked {
            Some(asked) => asked.contains(setting.level),
            None => round.is_multiple_of(setting.every.max(1)),
        };
        let levels = settings
            .iter()
            .filter(wanted)
            .fold(Levels::NONE, |set, setting| set.with(setting.level));
        if !self.staging {
            return levels;
        }
        // Memory is only a way then: what was asked for there alone is worth the others.
        let kept = levels.without(Level::MEMORY);
        match asked.is_some() && kept.is_empty() {
            true => self.all_levels().without(Level::MEMORY),
            false => kept,
        }
    }

    // ---- garbage collection ----

    /// Collects once for all levels of a version that became stable.
    ///
    /// Not while an incarnation is opening: the coordinator then sends the other nodes the
    /// records of what it has found, and must have their contents.
    pub(super) fn try_collect(&mut self) {
        if self.opening.is_some() {
            return;
        }
        if let Some(result) = self.collected.take() {
            self.on_collected(result);
        }
        let Some((version, since)) = self.collect_due else {
            return;
        };
        if self.collecting
            || self.rounds.contains_key(&version) && self.now.since(since) < COLLECT_AFTER
        {
            return;
        }
        self.collect_due = None;
        self.collect();
    }

    /// Removes what a newer stable version of at least the same tolerance replaces.
    pub(super) fn collect(&mut self) {
        if self.collecting {
            return;
        }
        let keep = self.config.as_ref().map_or(1, |config| config.keep.max(1));
        let policy = self.gc_policy(keep as usize);
        let shared = self.me == NodeId(0);
        self.collecting = true;
        self.shell.ask(Ask::Collect { policy, shared });
    }

    fn gc_policy(&self, keep: usize) -> GcPolicy {
        let rounds = self
            .rounds
            .keys()
            .map(|&version| (self.incarnation, version));
        // Until a version of this incarnation is stable, ranks may still restore.
        let mine = |stable: &(Incarnation, _, _)| stable.0 == self.incarnation;
        let over = self.line.stable.iter().any(mine);
        let restored = self.restored.filter(|_| !over);
        // The commit machine may still be asked for the decision on some.
        let machine = self.commit.as_ref().map(|driver| driver.machine());
        let versions = self.contents.versions().into_iter();
        let asked = versions.filter(|&(source, version)| {
            machine.is_none_or(|machine| !machine.may_forget(source, version))
        });
        let in_use = rounds.chain(restored).chain(asked).collect();
        let mut stable = self.line.stable.clone();
        if self.is_planted(Planted::CollectEarly) {
            let captured = self.rounds.keys();
            let levels = self.all_levels();
            let each =
                captured.flat_map(|version| levels.iter().map(move |level| (*version, level)));
            stable.extend(each.map(|(version, level)| (self.incarnation, version, level)));
        }
        GcPolicy {
            stable,
            keep,
            in_use,
            levels: self.line.levels.clone(),
            used: self.all_levels(),
        }
    }

    pub(super) fn on_collected(&mut self, result: Result<Collected>) {
        if self.opening.is_some() {
            // It was under way when the incarnation before ended.
            self.collected = Some(result);
            return;
        }
        self.collecting = false;
        match result {
            Ok(report) => {
                let mine = report.removed.iter().filter(|id| id.node == self.me);
                let copies = mine.map(|id| (id.incarnation, id.version));
                // Versions in memory alone never have copies that are removed.
                let gone: BTreeSet<_> = copies.chain(report.forgotten).collect();
                for (source, version) in gone {
                    self.contents.forget(source, version);
                    self.line
                        .stable
                        .retain(|(s, v, _)| (*s, *v) != (source, version));
                    self.line.levels.remove(&(source, version));
                    self.command(Command::Forget { source, version });
                }
            }
            Err(error) => self.warn_of_copy(Level::PARTNER, error),
        }
    }

    // ---- the end of the job ----

    fn maybe_finished(&mut self) {
        let Some(until) = self.finishing else { return };
        let late = self.now >= until;
        if self.finished {
            // Others may still need an answer: this agent goes when it is told to.
            self.over = late && self.now.since(until) >= STAY;
            return;
        }
        // Without storage this node cannot take note of a decision, however long it waits.
        let undecided = self.undecided() && !self.unwritable;
        let flushing = self.rounds.values().any(|round| round.flushing);
        let busy = undecided || flushing || self.is_rejoining();
        if late || !busy {
            self.finished = true;
            self.tell(&Notice::Finished);
        }
    }

    /// True while a coordinator that was started anew asks the others: until it has their
    /// answers, nobody knows what is undecided.
    fn is_rejoining(&self) -> bool {
        let machine = self.commit.as_ref().map(|driver| driver.machine());
        let asks = machine.is_some_and(|it| !it.is_idle() && it.incarnation().is_none());
        asks && self.opening.is_none()
    }

    /// True if a captured version is not decided yet at one of its levels.
    fn undecided(&self) -> bool {
        self.rounds.iter().any(|(&version, round)| {
            let at = (self.incarnation, version);
            round.told && !round.void && !round.is_decided(&self.stable, at)
        })
    }

    // ---- after a restart of this agent ----

    /// The commit machine takes part again in an open incarnation: what the control
    /// blocks and slabs say is taken up or given up.
    pub(super) fn rejoined(&mut self, incarnation: Incarnation) {
        if self.opening.is_some() {
            return;
        }
        self.incarnation = incarnation;
        self.ranks.drop_controls_but(incarnation);
        self.restored = self.restored_and_held(incarnation);
        if let Some((source, version)) = self.restored {
            self.restore_line(source, version);
            self.count_what_may_be_committed(source, version);
        }
        for version in self.versions_inside(incarnation) {
            self.take_up(incarnation, version);
        }
        self.tell(&Notice::NodeReady {
            incarnation,
            level: None,
            rebuilt_bytes: 0,
        });
        self.greet_early();
    }

    /// A rank whose connection broke learns of it when it says something; one that
    /// has nothing to say is made to look by its control block.
    fn call_back(&self) {
        let lost = |entry: &&RankEntry<S>| entry.link.is_none() && !entry.closed;
        for block in self.ranks.iter().filter(lost).filter_map(|e| e.block()) {
            if block.attention() != 0 {
                block.set_attention(0);
            }
        }
    }

    /// Versions that local ranks have armed, captured or were capturing in this incarnation.
    pub(super) fn versions_inside(&self, incarnation: Incarnation) -> BTreeSet<Version> {
        let armed = self
            .ranks
            .iter()
            .filter_map(|entry| Some(entry.block()?.armed()?.version));
        let slots = self.ranks.iter().flat_map(|entry| &entry.slots);
        let captured = slots.filter_map(|slot| match slot.usage {
            Use::Full { source, version } if source == incarnation => Some(version),
            _ => None,
        });
        armed.chain(captured).chain(self.forced_inside()).collect()
    }

    /// Forced versions that ranks were capturing when the agent before this one ended. Its
    /// memory of the round is lost, so nobody would ever hear of them: they are voted down.
    fn forced_inside(&self) -> impl Iterator<Item = Version> {
        self.ranks.iter().flat_map(|entry| {
            let block = entry.block().filter(|block| block.armed().is_none());
            let entered = block.and_then(|block| block.entered());
            let slots = entry.slots.iter().enumerate();
            slots.filter_map(move |(slot, at)| match at.usage {
                Use::Filling(version) if block.is_some() => {
                    let inside = entered == Some(version) || entry.holds_capture(slot, version);
                    inside.then_some(version)
                }
                _ => None,
            })
        })
    }

    /// Tells the commit machine of a version that the control blocks and slabs know.
    /// Its levels come back with `Resumed`, or its end with `Aborted`.
    fn take_up(&mut self, incarnation: Incarnation, version: Version) {
        let ranks = self.ranks.job_ranks().unwrap_or(0);
        let mut captured = BTreeSet::new();
        let mut whole = true;
        for rank in ranks_of(self.me, ranks, self.nodes()) {
            let Some(entry) = self.ranks.get_mut(rank) else {
                whole = false;
                continue;
            };
            let armed = entry.block().and_then(|block| block.armed());
            if entry.slot_with(incarnation, version).is_some() {
                captured.insert(rank);
            } else if let Some(armed) = armed.filter(|armed| armed.version == version)
                && let Some(slot) = entry.slots.get_mut(armed.slot as usize)
                && !matches!(slot.usage, Use::Full { source, .. } if source == incarnation)
            {
                slot.usage = Use::Filling(version);
            } else {
                whole = false;
            }
        }
        let all = whole && ranks_of(self.me, ranks, self.nodes()).all(|r| captured.contains(&r));
        self.open_round(version, Levels::NONE);
        if let Some(round) = self.rounds.get_mut(&version) {
            round.captured = captured;
            round.told = all;
        }
        self.command(Command::Armed {
            version,
            ok: whole,
            max_called: None,
        });
        if !whole {
            self.withdraw(version);
            // If it began without being armed, others wait for this node.
            return self.command(Command::CaptureFailed {
                version,
                why: Why::Coordinator,
            });
        }
        if all {
            self.command(Command::Captured { version });
        }
    }

    /// The version that this incarnation restored, if a slab still holds it. What else was
    /// captured before is void: an agent that ended while this one was opened has left it.
    fn restored_and_held(&mut self, incarnation: Incarnation) -> Option<(Incarnation, Version)> {
        let restored = self.commit.as_ref()?.machine().restored();
        let mut held = false;
        for slot in self.ranks.iter_mut().flat_map(|entry| &mut entry.slots) {
            match slot.usage {
                Use::Full { source, version } if Some((source, version)) == restored => held = true,
                Use::Full { source, .. } if source < incarnation => slot.usage = Use::Free,
                _ => {}
            }
        }
        restored.filter(|_| held)
    }

    /// A round lives on after this agent's restart: its levels are known again.
    pub(super) fn resume_round(&mut self, version: Version, levels: Levels) {
        let source = self.incarnation;
        self.line
            .levels
            .insert((source, version), levels.iter().collect());
        if !self.rounds.contains_key(&version) && self.may_have_no_rank() {
            self.open_round(version, levels);
            return self.capture_nothing();
        }
        let Some(round) = self.rounds.get_mut(&version) else {
            return;
        };
        round.levels = levels;
        if round.told && !round.flushing {
            round.flushing = true;
            self.start_flush(source, version, levels);
        }
    }
}

/// How long what was found holds: listing directories is no business of every second.
const DISK_USAGE_HOLDS: Time = Time::from_secs(10);

impl<S: Shell> Node<S> {
    /// Bytes in node storage and free bytes there, as a worker found them last. It looks
    /// again if that is older than [`DISK_USAGE_HOLDS`].
    pub(super) fn disk_usage(&mut self) -> (u64, u64) {
        let (at, found) = self.disk_usage;
        if self.now.since(at) >= DISK_USAGE_HOLDS {
            self.shell.ask(Ask::DiskUsage);
            self.disk_usage.0 = self.now;
        }
        found
    }
}

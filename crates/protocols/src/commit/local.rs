//! The participant: this node's part in a round.
//!
//! Invariants: PREPARED is sent only when durable; once it is (or may be), only
//! the coordinator's word ends the level; every unfinished round says its state
//! again at growing intervals, and the coordinator answers with the decision, so
//! a lost decision is never lost for good.

mod ending;

use super::*;

/// The way of one level at this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Not written yet.
    Idle,
    /// PREPARED is being persisted.
    Preparing,
    /// PREPARED is durable.
    Prepared,
    /// COMMIT is being persisted.
    Committing,
    /// COMMIT is durable here.
    Committed,
    /// Could not be written; waits for the coordinator to say so to all.
    Failed(Why),
    /// Decided: nothing more to do.
    Over,
}

/// How far each level of a version is.
#[derive(Clone, Debug, Default)]
struct Steps(BTreeMap<Level, Step>);

impl Steps {
    fn of(&self, level: Level) -> Step {
        self.0.get(&level).copied().unwrap_or(Step::Idle)
    }
    fn at(&mut self, level: Level) -> &mut Step {
        self.0.entry(level).or_insert(Step::Idle)
    }
    fn any(&self, is: impl Fn(Step) -> bool) -> bool {
        self.0.values().any(|step| is(*step))
    }
}

/// This node's part in the round of one version.
#[derive(Clone, Debug)]
pub(super) struct Local {
    levels: Levels,
    /// After a restart: there may be more levels, which the coordinator will say.
    partial: bool,
    /// The answer to Arm.
    answer: Option<(bool, Option<Version>)>,
    forced: bool,
    /// Levels that are forced here, and not confirmed by the coordinator.
    asked: Levels,
    /// The coordinator knows the round.
    known: bool,
    captured: bool,
    /// The driver of this life knows the version (not only the log does).
    told: bool,
    failed: Option<Why>,
    /// Written before it was known whether the version goes.
    ready: Levels,
    steps: Steps,
    /// Say it again.
    again: Backoff,
    /// The bound on this round here.
    bound: Time,
}

impl Local {
    fn new(cx: &C, levels: Levels) -> Local {
        let mut timeouts =
            cx.config.arm_timeout + cx.config.commit_timeout + cx.config.commit_timeout;
        // Of a round that an earlier life has begun it is not known what it has.
        let asked = if levels.is_empty() {
            cx.config.levels
        } else {
            levels
        };
        if !asked.and(cx.config.background).is_empty() {
            timeouts = timeouts + cx.config.background_timeout;
        }
        Local {
            levels,
            partial: levels.is_empty(),
            answer: None,
            forced: false,
            asked: Levels::NONE,
            known: false,
            captured: false,
            told: false,
            failed: None,
            ready: Levels::NONE,
            steps: Steps::default(),
            again: Backoff::patient(cx.now, cx.config.resend),
            // Twice the coordinator's bounds: it decides first if it can.
            bound: cx.now + timeouts + timeouts,
        }
    }

    /// It goes to these levels too, as in a round that has just `begun` with them.
    fn widen(&mut self, levels: Levels, begun: &Local) {
        for level in levels.less(self.levels).iter() {
            let step = self.steps.at(level);
            if *step == Step::Idle {
                *step = begun.steps.of(level);
            }
        }
        self.levels = self.levels.or(levels);
        self.bound = self.bound.max(begun.bound);
    }

    fn over(&self, config: &Config) -> bool {
        let known = if self.partial {
            config.levels
        } else {
            self.levels
        };
        known.iter().all(|level| self.steps.of(level) == Step::Over)
    }
}

impl Commit {
    fn touch(&mut self, cx: &C, version: Version) -> Option<&mut Local> {
        let local = self.locals.get_mut(&version)?;
        local.again = Backoff::patient(cx.now, cx.config.resend);
        Some(local)
    }

    pub(super) fn key(&self, version: Version, level: Level) -> log::Key {
        (self.ballot.incarnation, version, level)
    }

    pub(super) fn local_command(&mut self, cx: &C, command: Command) {
        // A coordinator that asks the others takes note of what its driver finds.
        if !matches!(self.mode, Mode::Running | Mode::Rejoining(_)) {
            return;
        }
        match command {
            Command::Force { version, levels } => self.force(cx, version, levels),
            Command::Armed {
                version,
                ok,
                max_called,
            } => {
                self.adopt(cx, version);
                if let Some(local) = self.touch(cx, version) {
                    local.answer = Some((ok, max_called));
                    local.told = true;
                }
            }
            Command::Captured { version } => {
                self.adopt(cx, version);
                if let Some(local) = self.touch(cx, version) {
                    local.captured = true;
                    local.told = true;
                }
            }
            Command::CaptureFailed { version, why } => {
                // Said once; the resend says it again.
                let known = self
                    .locals
                    .get(&version)
                    .is_none_or(|it| it.failed.is_some());
                if known {
                    return;
                }
                if let Some(local) = self.touch(cx, version) {
                    local.failed = Some(why);
                }
            }
            Command::Prepared { version, level } => return self.prepare(cx, version, level),
            Command::LevelFailed {
                version,
                level,
                why,
            } => {
                if let Some(local) = self.touch(cx, version)
                    && local.steps.of(level) == Step::Idle
                {
                    *local.steps.at(level) = Step::Failed(why);
                }
            }
            _ => return,
        }
        if let Command::Armed { version, .. }
        | Command::Captured { version }
        | Command::CaptureFailed { version, .. }
        | Command::LevelFailed { version, .. } = command
        {
            self.say_state(cx, version);
        }
    }

    /// A version that this instance does not know, found by the driver after a
    /// restart: asked about as if it were alive.
    fn adopt(&mut self, cx: &C, version: Version) {
        if self.given_up.contains(&version) {
            // The driver of an earlier life may have ended before it heard of it.
            return self.refuse(cx, version);
        }
        if Some(version) > self.forgotten && !self.locals.contains_key(&version) {
            self.seen = self.seen.max(Some(version));
            let local = self.begin(cx, version, Levels::NONE);
            self.locals.insert(version, local);
        }
    }

    /// Called aborted once, aborted for ever: the coordinator and the driver are told.
    fn refuse(&mut self, cx: &C, version: Version) {
        let (level, why, culprit) = (None, Why::Overtaken, Some(NodeId(cx.me)));
        let failed = MsgKind::Failed {
            version,
            level,
            why,
        };
        self.say(cx, cx.config.coordinator, failed);
        let being_recorded = |pending: &Pending| matches!(pending.then, Then::GivenUp { version: one, level: None, .. } if one == version);
        if !self.pending.values().any(being_recorded) {
            self.out.event(Event::Aborted {
                version,
                level,
                why,
                culprit,
            });
        }
    }

    /// This node's part in a round that it does not know. A level that ended in an earlier
    /// life is not written again; the coordinator's answer ends it for the driver of this one.
    fn begin(&self, cx: &C, version: Version, levels: Levels) -> Local {
        let mut local = Local::new(cx, levels);
        for level in cx.config.levels.iter() {
            if self.log.marks.get(&self.key(version, level)) == Some(&Mark::Aborted) {
                *local.steps.at(level) = Step::Failed(Why::Timeout);
            }
        }
        local
    }

    fn force(&mut self, cx: &C, version: Version, levels: Levels) {
        let levels = levels.and(cx.config.levels);
        if self.given_up.contains(&version) {
            return self.refuse(cx, version);
        }
        let begun = self.begin(cx, version, levels);
        let local = self.locals.entry(version).or_insert(begun.clone());
        // A round that was armed here goes to the other levels as well.
        let confirmed = match local.known {
            true => local.levels,
            false => Levels::NONE,
        };
        (local.forced, local.asked) = (true, levels.less(confirmed));
        local.widen(levels, &begun);
        self.tell_ended(version);
        self.seen = self.seen.max(Some(version));
        self.say_state(cx, version);
        self.prepare_ready(cx, version);
    }

    /// The version goes: what was written before is prepared.
    fn prepare_ready(&mut self, cx: &C, version: Version) {
        let local = self.locals.get_mut(&version);
        let ready = local.map_or(Levels::NONE, |local| {
            core::mem::replace(&mut local.ready, Levels::NONE)
        });
        for level in ready.iter() {
            self.prepare(cx, version, level);
        }
    }

    fn prepare(&mut self, cx: &C, version: Version, level: Level) {
        let record = Record::Prepared {
            incarnation: self.ballot.incarnation,
            version,
            level,
        };
        let Some(local) = self.touch(cx, version) else {
            return;
        };
        let asked = local.partial || local.levels.contains(level);
        if local.steps.of(level) != Step::Idle || !asked {
            return;
        }
        // What is prepared can be ended, and not forgotten: whoever forces a version that was not
        // armed everywhere would find it given up.
        if !(local.known || local.forced || local.partial) {
            local.ready = local.ready.with(level);
            return;
        }
        *local.steps.at(level) = Step::Preparing;
        self.persist(record, Then::Prepared { version, level });
        if cx.config.planted == Some(Planted::AckBeforePersist) {
            self.say(
                cx,
                cx.config.coordinator,
                MsgKind::Prepared { version, level },
            );
        }
    }

    pub(super) fn prepared_done(&mut self, cx: &C, version: Version, level: Level, ok: bool) {
        let Some(local) = self.touch(cx, version) else {
            return;
        };
        let step = local.steps.at(level);
        if *step != Step::Preparing {
            return;
        }
        *step = if ok {
            Step::Prepared
        } else {
            Step::Failed(Why::Storage)
        };
        self.say_state(cx, version);
    }

    /// Says where this node stands, all of it: each message is idempotent.
    fn say_state(&mut self, cx: &C, version: Version) {
        let Some(local) = self.locals.get(&version) else {
            return;
        };
        let (levels, steps) = (local.levels, local.steps.clone());
        if local.forced && !(local.known && local.asked.is_empty()) {
            // Alone and first: what overtook it would be about an unknown round, or end it without these levels.
            return self.say(
                cx,
                cx.config.coordinator,
                MsgKind::Forced { version, levels },
            );
        }
        let started = steps.any(|step| step != Step::Idle);
        let whole = match (local.failed, local.captured, local.answer) {
            // Levels that others gave up before are no reason not to say it.
            (Some(why), captured, _) if !captured || !started => Some(MsgKind::Failed {
                version,
                level: None,
                why,
            }),
            (_, true, _) => Some(MsgKind::Captured { version }),
            (_, false, Some((ok, max_called))) => Some(MsgKind::ArmAck {
                version,
                ok,
                max_called: max_called.map(Called::new),
            }),
            (_, false, None) => None,
        };
        if let Some(kind) = whole
            && (local.partial || levels.iter().any(|level| steps.of(level) == Step::Idle))
        {
            self.say(cx, cx.config.coordinator, kind);
        }
        for level in cx.config.levels.iter() {
            match steps.of(level) {
                Step::Prepared => self.say(
                    cx,
                    cx.config.coordinator,
                    MsgKind::Prepared { version, level },
                ),
                Step::Committed => self.say(
                    cx,
                    cx.config.coordinator,
                    MsgKind::CommitAck { version, level },
                ),
                Step::Failed(why) => {
                    self.say(
                        cx,
                        cx.config.coordinator,
                        MsgKind::Failed {
                            version,
                            level: Some(level),
                            why,
                        },
                    );
                }
                _ => {}
            }
        }
    }

    pub(super) fn local_message(&mut self, cx: &C, kind: MsgKind) {
        match kind {
            MsgKind::Arm { version, levels } => self.on_arm(cx, version, levels),
            MsgKind::Join { version, levels } => self.on_join(cx, version, levels),
            MsgKind::Go { version, levels } => self.on_go(cx, version, levels),
            MsgKind::Commit { version, level } => self.on_commit(cx, version, level),
            MsgKind::Stable { version, level } => self.on_stable(cx, version, level),
            MsgKind::Abort {
                version,
                level,
                why,
                culprit,
            } => {
                let culprit = (culprit != u32::MAX).then_some(NodeId(culprit));
                self.on_abort(cx, version, level, why, culprit);
            }
            _ => {}
        }
    }

    fn on_go(&mut self, cx: &C, version: Version, levels: Levels) {
        if self.given_up.contains(&version) {
            return self.refuse(cx, version);
        }
        let begun = self.begin(cx, version, levels);
        let Some(local) = self.locals.get_mut(&version) else {
            return;
        };
        let asked = core::mem::replace(&mut local.asked, Levels::NONE);
        local.asked = asked.less(levels);
        let news = !core::mem::replace(&mut local.known, true) || local.asked != asked;
        let partial = core::mem::take(&mut local.partial);
        if partial {
            // What is only forced here is said to have ended, if nothing comes of it.
            local.levels = levels.or(local.asked);
        }
        if partial || !levels.less(local.levels).is_empty() {
            local.widen(levels, &begun);
            let levels = local.levels;
            self.out.event(Event::Resumed { version, levels });
            self.tell_ended(version);
        }
        if news && self.locals.get(&version).is_some_and(|local| local.forced) {
            self.say_state(cx, version);
        }
        self.prepare_ready(cx, version);
        // What was decided before it was known that there are no more levels.
        self.leave_if_over(cx, version);
    }

    /// Tells the driver which levels of a round ended before it knew of them: it was started
    /// anew, or has just begun a round that was armed here and waited for room.
    fn tell_ended(&mut self, version: Version) {
        let Some(local) = self.locals.get(&version) else {
            return;
        };
        let (levels, steps) = (local.levels, local.steps.clone());
        for level in levels.iter() {
            let ended = steps.of(level) == Step::Over;
            if ended && self.log.committed(self.key(version, level)).is_none() {
                let (why, culprit) = (Why::Coordinator, None);
                let level = Some(level);
                self.out.event(Event::Aborted {
                    version,
                    level,
                    why,
                    culprit,
                });
            }
        }
    }

    fn on_arm(&mut self, cx: &C, version: Version, levels: Levels) {
        if self.locals.contains_key(&version) {
            return self.say_state(cx, version);
        }
        if Some(version) <= self.seen {
            let max_called = self.seen.map(Called::new);
            return self.say(
                cx,
                cx.config.coordinator,
                MsgKind::ArmAck {
                    version,
                    ok: false,
                    max_called,
                },
            );
        }
        self.seen = Some(version);
        self.locals.insert(version, Local::new(cx, levels));
        self.out.event(Event::Arm { version, levels });
    }

    /// A round that began at another node. What was seen of later versions is no
    /// reason to refuse: the ranks may not have come so far.
    fn on_join(&mut self, cx: &C, version: Version, levels: Levels) {
        if let Some(local) = self.locals.get(&version) {
            // The log knows of it from an earlier life, the driver of this one does
            // not: a node without ranks keeps nothing that would tell it.
            let unknown = local.partial && !local.told;
            // The word that it goes to more levels was lost.
            let more = !local.partial && !levels.less(local.levels).is_empty();
            if unknown || more {
                self.on_go(cx, version, levels);
            }
            return self.say_state(cx, version);
        }
        // A late repetition must not bring a round back that is over. One that was
        // forgotten, by a restart too, has left a newer commit behind.
        if self.given_up.contains(&version) {
            return self.refuse(cx, version);
        }
        let newest = self.log.newest_commit(self.ballot.incarnation);
        if newest >= Some(version) {
            return self.say_ended(cx, version, levels);
        }
        self.seen = self.seen.max(Some(version));
        let mut local = self.begin(cx, version, levels);
        local.known = true;
        self.locals.insert(version, local);
        self.out.event(Event::Join { version, levels });
    }

    /// Levels of a round that is over here and not at the coordinator: this node took it for lost,
    /// and ended alone what it had not prepared. In the background that would be waited for
    /// for a day. That they ended may be forgotten here, once newer versions have replaced this
    /// one; what is not committed is never prepared any more.
    fn say_ended(&mut self, cx: &C, version: Version, levels: Levels) {
        for level in levels.iter() {
            let mark = self.log.marks.get(&self.key(version, level));
            if !matches!(mark, Some(Mark::Commit(_))) {
                let (level, why) = (Some(level), Why::Timeout);
                let failed = MsgKind::Failed {
                    version,
                    level,
                    why,
                };
                self.say(cx, cx.config.coordinator, failed);
            }
        }
    }

    pub(super) fn on_commit(&mut self, cx: &C, version: Version, level: Level) {
        let durable = self.log.committed(self.key(version, level)).is_some();
        let known = Levels::NONE.with(level);
        let over = Some(version) <= self.forgotten;
        if (durable || over) && !self.locals.contains_key(&version) {
            return self.say(
                cx,
                cx.config.coordinator,
                MsgKind::CommitAck { version, level },
            );
        }
        // A node whose own record of the round was damaged still keeps the decision.
        let local = self
            .locals
            .entry(version)
            .or_insert_with(|| Local::new(cx, known));
        local.levels = local.levels.with(level);
        local.asked = local.asked.without(level);
        let step = local.steps.at(level);
        match *step {
            Step::Committing | Step::Over => {}
            Step::Committed => self.say(
                cx,
                cx.config.coordinator,
                MsgKind::CommitAck { version, level },
            ),
            _ if durable => {
                *step = Step::Committed;
                self.out.event(Event::Committed { version, level });
                self.say(
                    cx,
                    cx.config.coordinator,
                    MsgKind::CommitAck { version, level },
                );
            }
            _ => {
                *step = Step::Committing;
                let (incarnation, ballot) = (self.ballot.incarnation, self.ballot);
                let record = Record::Commit {
                    incarnation,
                    version,
                    level,
                    ballot,
                };
                self.persist(record, Then::Committed { version, level });
                if cx.config.planted == Some(Planted::AckBeforePersist) {
                    self.say(
                        cx,
                        cx.config.coordinator,
                        MsgKind::CommitAck { version, level },
                    );
                }
            }
        }
    }

    pub(super) fn committed_done(&mut self, cx: &C, version: Version, level: Level, ok: bool) {
        let Some(local) = self.touch(cx, version) else {
            return;
        };
        let step = local.steps.at(level);
        if *step != Step::Committing {
            return;
        }
        if !ok {
            // Not durable here: ask again later, the coordinator repeats COMMIT.
            *step = Step::Prepared;
            return;
        }
        *step = Step::Committed;
        self.out.event(Event::Committed { version, level });
        self.say(
            cx,
            cx.config.coordinator,
            MsgKind::CommitAck { version, level },
        );
    }

    fn on_stable(&mut self, cx: &C, version: Version, level: Level) {
        let Some(local) = self.locals.get(&version) else {
            return;
        };
        let planted = cx.config.planted == Some(Planted::StableBeforePersist);
        // The log keeps the newest marks only. What is durable by this round's own word is no
        // less so: to acknowledge it again would be answered with the same, without end.
        let durable = self.log.committed(self.key(version, level)).is_some()
            || matches!(local.steps.of(level), Step::Committed | Step::Over);
        if !planted && !durable {
            return self.on_commit(cx, version, level);
        }
        let Some(local) = self.locals.get_mut(&version) else {
            return;
        };
        if local.steps.of(level) == Step::Over {
            return;
        }
        if local.steps.of(level) != Step::Committed {
            self.out.event(Event::Committed { version, level });
        }
        *local.steps.at(level) = Step::Over;
        let over = local.over(cx.config);
        self.out.event(Event::Stable { version, level });
        if over {
            self.locals.remove(&version);
        }
    }

    pub(super) fn local_timeout(&mut self, cx: &C) {
        for version in self.locals.keys().copied().collect::<Vec<_>>() {
            let Some(local) = self.locals.get_mut(&version) else {
                continue;
            };
            if cx.now >= local.bound {
                self.give_up(cx, version, Why::Timeout);
            } else if local.again.due(cx.now, cx.config.resend) {
                self.say_state(cx, version);
            }
        }
    }

    pub(super) fn local_deadline(&self) -> Option<Time> {
        self.locals
            .values()
            .map(|local| local.again.next.min(local.bound))
            .min()
    }

    /// Rounds of the open incarnation that the log shows, after a restart.
    pub(super) fn local_recover(&mut self, cx: &C) {
        let incarnation = self.ballot.incarnation;
        for (&(source, version, level), &mark) in &self.log.marks {
            let step = match mark {
                Mark::Prepared => Step::Prepared,
                Mark::Commit(_) => Step::Committed,
                Mark::Aborted => continue,
            };
            if source != incarnation || self.given_up.contains(&version) {
                continue;
            }
            if !self.locals.contains_key(&version) {
                let local = self.begin(cx, version, Levels::NONE);
                self.locals.insert(version, local);
            }
            let Some(local) = self.locals.get_mut(&version) else {
                continue;
            };
            local.captured = true;
            local.partial = true;
            local.levels = local.levels.with(level);
            *local.steps.at(level) = step;
        }
    }
}

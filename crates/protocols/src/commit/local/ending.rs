//! How a round, or a level of it, ends at a participant without a commit.
//!
//! Invariants: a COMMIT that is durable here is never ended. What this node ends without
//! the coordinator's word is durable before it is said, and the next agent of this node
//! keeps to it. So is what the coordinator's own node is told: the job hears of it there, and
//! a coordinator that is started anew knows of its decisions only what it finds recorded. A
//! PREPARED level is ended by the coordinator's word alone.

use super::*;

/// What a call that ends a level has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// Nothing that was open and asked for.
    None,
    /// A level of which no PREPARED is, or may be, durable here.
    Unprepared,
    /// A level that is, or may be, PREPARED here.
    Prepared,
}

impl Commit {
    pub(super) fn on_abort(
        &mut self,
        cx: &C,
        version: Version,
        level: Option<Level>,
        why: Why,
        culprit: Option<NodeId>,
    ) {
        if let Some(level) = level {
            let why = if why == Why::Rearmed {
                Why::Passed
            } else {
                why
            };
            let ended = self.end_level(cx, version, level);
            self.say_level_ended(cx, (version, level, ended), why, culprit);
            return self.leave_if_over(cx, version);
        }
        self.end_version(cx, version, why, culprit, false);
    }

    /// Says that the coordinator has ended a level: on its own node only once that is durable.
    fn say_level_ended(
        &mut self,
        cx: &C,
        (version, level, ended): (Version, Level, Ending),
        why: Why,
        culprit: Option<NodeId>,
    ) {
        let recorded = self.log.marks.get(&self.key(version, level)) == Some(&Mark::Aborted);
        let used = cx.config.levels.contains(level);
        match ended {
            Ending::None => return,
            _ if cx.me == COORDINATOR && used && !recorded => {
                return self.end(version, Some(level), why, culprit);
            }
            Ending::Prepared => self.record_end(version, Some(level), Then::Nothing),
            Ending::Unprepared => {}
        }
        self.out.event(Event::Aborted {
            version,
            level: Some(level),
            why,
            culprit,
        });
    }

    /// Ends all of a version here. `alone`: without the coordinator's word.
    pub(super) fn end_version(
        &mut self,
        cx: &C,
        version: Version,
        why: Why,
        culprit: Option<NodeId>,
        alone: bool,
    ) {
        if !self.locals.contains_key(&version) {
            return;
        }
        let committed = |level| self.log.committed(self.key(version, level)).is_some();
        let committing = self.locals.get(&version).is_some_and(|local| {
            local
                .steps
                .iter()
                .any(|step| matches!(step, Step::Committing | Step::Committed))
        });
        if committing || Level::ALL.into_iter().any(committed) {
            // One level counts for good: only the others can end.
            for level in cx.config.levels.iter() {
                self.on_abort(cx, version, Some(level), why, culprit);
            }
            return;
        }
        // Armed, then the coordinator was restarted: the version was never taken.
        let local = self.locals.get(&version);
        let taken = local.is_some_and(|local| local.captured || local.known);
        // What the coordinator has decided it takes up no more. But its next term knows
        // nothing of that, and another node may still call for a forced version. Ranks that
        // have captured it here are told that it is given up, and of what has failed the
        // coordinator's own node tells the job.
        let inside = |local: &Local| local.captured || local.forced;
        let failed = !matches!(why, Why::Passed | Why::NoRoom | Why::Left);
        let lasting = alone || cx.me == COORDINATOR && failed || local.is_some_and(inside);
        for level in Level::ALL {
            if self.end_level(cx, version, level) == Ending::Prepared {
                self.record_end(version, Some(level), Then::Nothing);
            }
        }
        self.locals.remove(&version);
        if why == Why::Rearmed || why == Why::Coordinator && !taken {
            return self.out.event(Event::Disarm { version });
        }
        self.given_up.insert(version);
        if self.given_up.len() > GIVEN_UP_MAX {
            self.given_up.pop_first();
        }
        if lasting {
            return self.end(version, None, why, culprit);
        }
        self.out.event(Event::Aborted {
            version,
            level: None,
            why,
            culprit,
        });
    }

    /// Records that a version, or a level of it, ended at this node, then says so: an agent
    /// that is started anew must not prepare what was called aborted.
    fn end(&mut self, version: Version, level: Option<Level>, why: Why, culprit: Option<NodeId>) {
        let then = Then::GivenUp {
            version,
            level,
            why,
            culprit,
        };
        self.record_end(version, level, then);
    }

    fn record_end(&mut self, version: Version, level: Option<Level>, then: Then) {
        let record = Record::Abort {
            incarnation: self.ballot.incarnation,
            version,
            level,
        };
        self.persist(record, then);
    }

    /// Ends a level that is not committed; a PREPARED is to get its ABORT record. A
    /// COMMIT that is durable here contradicts an abort: it is shown instead.
    fn end_level(&mut self, cx: &C, version: Version, level: Level) -> Ending {
        let Some(local) = self.locals.get_mut(&version) else {
            return Ending::None;
        };
        let asked = local.partial && local.told || local.levels.contains(level);
        let step = &mut local.steps[level as usize];
        match *step {
            Step::Committing | Step::Over => Ending::None,
            Step::Committed => {
                self.say(cx, COORDINATOR, Kind::CommitAck { version, level });
                Ending::None
            }
            Step::Preparing | Step::Prepared => {
                *step = Step::Over;
                Ending::Prepared
            }
            Step::Idle | Step::Failed(_) => {
                *step = Step::Over;
                match asked {
                    true => Ending::Unprepared,
                    false => Ending::None,
                }
            }
        }
    }

    /// Ends what this node may end alone; the rest is said to be undecided.
    pub(super) fn give_up(&mut self, cx: &C, version: Version, why: Why) {
        let Some(local) = self.locals.get(&version) else {
            return;
        };
        let culprit = Some(NodeId(COORDINATOR));
        let levels = if local.partial {
            Levels::ALL
        } else {
            local.levels
        };
        let mine = |step: Step| matches!(step, Step::Idle | Step::Failed(_) | Step::Over);
        if levels.iter().all(|level| mine(local.steps[level as usize])) {
            return self.end_version(cx, version, why, culprit, true);
        }
        for level in levels.iter() {
            let Some(local) = self.locals.get(&version) else {
                return;
            };
            match local.steps[level as usize] {
                Step::Idle | Step::Failed(_) => {
                    if self.end_level(cx, version, level) == Ending::Unprepared {
                        self.end(version, Some(level), why, culprit);
                    }
                }
                Step::Over => {}
                _ => self.out.event(Event::Undecided { version, level }),
            }
        }
        if let Some(local) = self.locals.get_mut(&version) {
            local.bound = Time::NEVER;
        }
        self.leave_if_over(cx, version);
    }

    pub(super) fn leave_if_over(&mut self, cx: &C, version: Version) {
        let local = self.locals.get(&version);
        if local.is_some_and(|local| local.over(cx.config)) {
            self.locals.remove(&version);
        }
    }

    pub(in crate::commit) fn local_coordinator_lost(&mut self, cx: &C) {
        for version in self.locals.keys().copied().collect::<Vec<_>>() {
            self.give_up(cx, version, Why::NodeLost);
        }
    }

    /// A coordinator of a higher term knows nothing of rounds that are not
    /// prepared: they end here.
    pub(in crate::commit) fn local_new_term(&mut self, cx: &C) {
        let mut over = Vec::new();
        for (&version, local) in &mut self.locals {
            local.forced = false;
            let unprepared =
                |step: &Step| matches!(step, Step::Idle | Step::Failed(_) | Step::Over);
            if local.steps.iter().all(unprepared) {
                over.push(version);
            }
        }
        let culprit = (cx.me != COORDINATOR).then_some(NodeId(COORDINATOR));
        for version in over {
            self.end_version(cx, version, Why::Coordinator, culprit, true);
        }
    }
}

//! How a round, or a level of it, ends at a participant without a commit.
//!
//! Invariants: a COMMIT that is durable here is never ended. What this node ends without
//! the coordinator's word is durable before it is said, and the next agent of this node
//! keeps to it. A PREPARED level is ended by the coordinator's word alone.

use super::*;

impl Commit {
    pub(super) fn on_abort(
        &mut self,
        cx: &C,
        version: Version,
        level: Option<Level>,
        why: Why,
        culprit: Option<NodeId>,
    ) {
        if why == Why::Unarmed {
            return self.on_unarmed(cx, version, culprit);
        }
        if let Some(level) = level {
            let why = if why == Why::Rearmed {
                Why::Passed
            } else {
                why
            };
            if self.end_level(cx, version, level) {
                self.out.event(Event::Aborted {
                    version,
                    level: Some(level),
                    why,
                    culprit,
                });
            }
            return self.leave_if_over(cx, version);
        }
        self.end_version(cx, version, why, culprit, false);
    }

    /// What is forced here the coordinator is told of again, for it may have heard of it while the
    /// version was being armed: its answer to that counts, and so does what it said of the round later. A version that was never armed everywhere is
    /// forgotten, so that it can be forced: by whoever captured it while it was armed here, at once.
    /// Where some of it is written already it is given up for good, as by any other word of its end.
    fn on_unarmed(&mut self, cx: &C, version: Version, culprit: Option<NodeId>) {
        let Some(local) = self.locals.get(&version).filter(|local| !local.known) else {
            return;
        };
        if local.forced {
            return self.say_state(cx, version);
        }
        if local.steps.any(|step| step != Step::Idle) {
            return self.end_version(cx, version, Why::NoRoom, culprit, false);
        }
        self.locals.remove(&version);
        let (level, why) = (None, Why::Unarmed);
        self.out.event(Event::Aborted {
            version,
            level,
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
            let steps = &local.steps;
            steps.any(|step| matches!(step, Step::Committing | Step::Committed))
        });
        if committing || cx.config.levels.iter().any(committed) {
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
        // nothing of that, and another node may still call for a forced version.
        let lasting = alone || local.is_some_and(|local| local.forced);
        for level in cx.config.levels.iter() {
            self.end_level(cx, version, level);
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
        let record = Record::Abort {
            incarnation: self.ballot.incarnation,
            version,
            level,
        };
        let then = Then::GivenUp {
            version,
            level,
            why,
            culprit,
        };
        self.persist(record, then);
    }

    /// Ends a level that is not committed; a PREPARED gets its ABORT record. A
    /// COMMIT that is durable here contradicts an abort: it is shown instead. True
    /// if this call ended it.
    fn end_level(&mut self, cx: &C, version: Version, level: Level) -> bool {
        let incarnation = self.ballot.incarnation;
        let Some(local) = self.locals.get_mut(&version) else {
            return false;
        };
        let asked = local.partial && local.told || local.levels.contains(level);
        local.asked = local.asked.without(level);
        let step = local.steps.at(level);
        match *step {
            Step::Committing | Step::Over => false,
            Step::Committed => {
                self.say(
                    cx,
                    cx.config.coordinator,
                    MsgKind::CommitAck { version, level },
                );
                false
            }
            Step::Preparing | Step::Prepared => {
                *step = Step::Over;
                self.persist(
                    Record::Abort {
                        incarnation,
                        version,
                        level: Some(level),
                    },
                    Then::Nothing,
                );
                true
            }
            Step::Idle | Step::Failed(_) => {
                *step = Step::Over;
                asked
            }
        }
    }

    /// Ends what this node may end alone; the rest is said to be undecided.
    pub(super) fn give_up(&mut self, cx: &C, version: Version, why: Why) {
        let Some(local) = self.locals.get(&version) else {
            return;
        };
        let culprit = Some(NodeId(cx.config.coordinator));
        let levels = if local.partial {
            cx.config.levels
        } else {
            local.levels
        };
        let mine = |step: Step| matches!(step, Step::Idle | Step::Failed(_) | Step::Over);
        if levels.iter().all(|level| mine(local.steps.of(level))) {
            return self.end_version(cx, version, why, culprit, true);
        }
        for level in levels.iter() {
            let Some(local) = self.locals.get(&version) else {
                return;
            };
            match local.steps.of(level) {
                Step::Idle | Step::Failed(_) => {
                    if self.end_level(cx, version, level) {
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
            let begun = |step| !matches!(step, Step::Idle | Step::Failed(_) | Step::Over);
            if !local.steps.any(begun) {
                over.push(version);
            }
        }
        let culprit = (cx.me != cx.config.coordinator).then_some(NodeId(cx.config.coordinator));
        for version in over {
            self.end_version(cx, version, Why::Coordinator, culprit, true);
        }
    }
}

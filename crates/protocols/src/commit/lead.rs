//! The coordinator's rounds while an incarnation is open.
//!
//! Invariants: at most one round is being armed or captured; a version is used
//! once in a term; COMMIT is sent after its record is durable; what a participant
//! says about a round that is over is answered from the log, so the answer is the
//! same for ever.

mod forced;

use super::*;

use super::round::{Phase, Round, Tally, Verdict, code, unarmed};

/// So many nodes that have not captured are asked about it at once.
const ASKED_TO_CAPTURE: usize = 16;

/// The next version of the policy's stride.
fn aligned(cx: &C, version: Version) -> Version {
    let next = version.0.checked_next_multiple_of(cx.config.stride.max(1));
    Version(next.unwrap_or(u64::MAX)).min(Version::MAX)
}

impl Commit {
    pub(super) fn want(&mut self, cx: &C, at_least: Version, levels: Levels, any: bool) {
        let levels = levels.and(cx.config.levels);
        let arming = self
            .rounds
            .values()
            .any(|round| round.phase != Phase::Flushing);
        let undecided = self
            .rounds
            .values()
            .filter(|round| round.undecided(cx.config.background))
            .count();
        // They are decided, and shared storage may be away for long.
        let doubted = self.rounds.iter();
        let doubted = doubted.filter(|(version, round)| {
            round.undecided(cx.config.background) && self.has_doubt(**version)
        });
        let undecided = undecided - doubted.count();
        let why = if !self.running() || cx.me != cx.config.coordinator || levels.is_empty() {
            Some(Why::NotOpen)
        } else if !self.lost.is_empty() {
            Some(Why::NodeLost)
        } else if arming
            || undecided >= cx.config.rounds_max as usize
            || self.rounds.len() >= 4 * cx.config.rounds_max as usize
        {
            Some(Why::Busy)
        } else {
            None
        };
        if let Some(why) = why {
            let culprit = self.lost.iter().next().map(NodeId);
            self.out.event(Event::Declined {
                at_least,
                why,
                culprit,
            });
            return;
        }
        let next = self
            .ended
            .used
            .map_or(Version(0), |used| Version(used.0.saturating_add(1)));
        let least = at_least.max(next).min(Version::MAX);
        let version = if any { least } else { aligned(cx, least) };
        let deadline = cx.now + cx.config.arm_timeout;
        self.arm(cx, version, levels, deadline, (0, any));
    }

    fn arm(
        &mut self,
        cx: &C,
        version: Version,
        levels: Levels,
        deadline: Time,
        (retries, any): (u32, bool),
    ) {
        self.ended.used = self.ended.used.max(Some(version));
        let mut round = Round::new(cx, levels, Phase::Arming, deadline, retries);
        round.any = any;
        self.rounds.insert(version, round);
        self.say_all(cx, MsgKind::Arm { version, levels });
    }

    pub(super) fn lead_message(&mut self, cx: &C, from: Peer, kind: MsgKind) {
        if cx.me != cx.config.coordinator {
            return;
        }
        match kind {
            MsgKind::ArmAck {
                version,
                ok,
                max_called,
            } => {
                self.on_arm_ack(cx, from, version, ok, max_called.map(Called::version));
            }
            MsgKind::Forced { version, levels } => self.on_forced(cx, from, version, levels),
            MsgKind::Captured { version } => self.on_captured(cx, from, version),
            MsgKind::Failed {
                version,
                level,
                why,
            } => self.on_failed(cx, from, version, level, why),
            MsgKind::Prepared { version, level } => self.on_prepared(cx, from, version, level),
            MsgKind::CommitAck { version, level } => self.on_commit_ack(cx, from, version, level),
            _ => {}
        }
    }

    /// The answer about a round that is over, from the log: COMMIT where it is
    /// recorded, ABORT for the rest.
    fn answer_over(&mut self, cx: &C, from: Peer, version: Version) {
        // What is called over stays over: no later message may start it.
        self.ended.add(version);
        let (why, culprit) = (Why::Coordinator, u32::MAX);
        let committed = |level| {
            self.log
                .committed((self.ballot.incarnation, version, level))
        };
        let levels = cx.config.levels.iter();
        let levels: Vec<(Level, bool)> = levels
            .map(|level| (level, committed(level).is_some()))
            .collect();
        if levels.iter().all(|(_, committed)| !committed) {
            return self.say(
                cx,
                from,
                MsgKind::Abort {
                    version,
                    level: None,
                    why,
                    culprit,
                },
            );
        }
        for (level, committed) in levels {
            self.say(
                cx,
                from,
                if committed {
                    MsgKind::Commit { version, level }
                } else {
                    MsgKind::Abort {
                        version,
                        level: Some(level),
                        why,
                        culprit,
                    }
                },
            );
        }
    }

    fn on_arm_ack(
        &mut self,
        cx: &C,
        from: Peer,
        version: Version,
        ok: bool,
        max_called: Option<Version>,
    ) {
        let Some(round) = self.rounds.get_mut(&version) else {
            if self.is_unarmed(cx, version) {
                return self.say(cx, from, unarmed(version, None));
            }
            return self.answer_over(cx, from, version);
        };
        let levels = round.levels;
        if round.phase != Phase::Arming {
            return self.say(cx, from, MsgKind::Go { version, levels });
        }
        if ok {
            round.armed.insert(from);
            return self.go_if_armed(cx, version);
        }
        let (deadline, retries, any) = (round.deadline, round.retries, round.any);
        let Some(max_called) = max_called else {
            self.rounds.remove(&version);
            self.ended.add_unarmed(version);
            return self.say_all(cx, unarmed(version, Some(from)));
        };
        if retries >= cx.config.arm_retries_max {
            return self.abort(cx, version, None, Why::Passed, Some(from));
        }
        self.abort(cx, version, None, Why::Rearmed, Some(from));
        let next = max_called.0.saturating_add(cx.config.margin.max(1));
        // A version is used once, by a forced round too.
        let used = self.ended.used.unwrap_or(version).max(version);
        let next = next.max(used.0.saturating_add(1));
        let next = Version(next).min(Version::MAX);
        let next = if any { next } else { aligned(cx, next) };
        self.arm(cx, next, levels, deadline, (retries + 1, any));
    }

    /// True of a round that ended while it was armed, and of which nothing is recorded.
    fn is_unarmed(&self, cx: &C, version: Version) -> bool {
        let mut levels = cx.config.levels.iter();
        let recorded = levels.any(|level| self.log.committed(self.key(version, level)).is_some());
        !recorded && !self.ended.contains(version)
    }

    fn go_if_armed(&mut self, cx: &C, version: Version) {
        let Some(round) = self.rounds.get_mut(&version) else {
            return;
        };
        if round.phase != Phase::Arming || !round.armed.is_full(cx.config.nodes) {
            return;
        }
        round.phase = Phase::Capturing;
        round.deadline = cx.now + cx.config.commit_timeout;
        let levels = round.levels;
        self.say_all(cx, MsgKind::Go { version, levels });
        self.flush_if_captured(cx, version);
    }

    /// Asks the nodes that were armed and have not captured, or have captured and not prepared. One on
    /// which no rank lives keeps nothing by which an agent that is started anew would know of the
    /// round. Where ranks take their time with the capture, that is no reason to ask all of them.
    fn ask_again(&mut self, cx: &C, version: Version) {
        let Some(round) = self.rounds.get(&version) else {
            return;
        };
        let open = |node: u32| match round.phase {
            Phase::Arming => false,
            Phase::Capturing => round.armed.contains(node) && !round.captured.contains(node),
            Phase::Flushing => {
                let mut tallies = round.tallies.values();
                tallies.any(|it| it.verdict == Verdict::Open && !it.prepared.contains(node))
            }
        };
        let most = match round.phase {
            Phase::Flushing => usize::MAX,
            _ => ASKED_TO_CAPTURE,
        };
        let levels = round.levels;
        let asked: Vec<u32> = (0..cx.config.nodes)
            .filter(|&node| open(node))
            .take(most)
            .collect();
        for node in asked {
            self.say(cx, node, MsgKind::Join { version, levels });
        }
    }

    fn on_captured(&mut self, cx: &C, from: Peer, version: Version) {
        let Some(round) = self.rounds.get_mut(&version) else {
            // An instance that was started anew knows of none.
            if self.ended.unarmed.contains(&version) {
                return self.say(cx, from, unarmed(version, None));
            }
            return self.answer_over(cx, from, version);
        };
        round.armed.insert(from);
        let (again, levels) = (!round.captured.insert(from), round.levels);
        // Not while some are still to be armed, as in `on_forced`.
        if again && round.phase != Phase::Arming {
            self.say(cx, from, MsgKind::Go { version, levels });
            self.answer_levels(cx, from, version);
        }
        self.go_if_armed(cx, version);
        self.flush_if_captured(cx, version);
    }

    /// Tells a node that repeats itself which levels are decided.
    fn answer_levels(&mut self, cx: &C, from: Peer, version: Version) {
        let Some(round) = self.rounds.get(&version) else {
            return;
        };
        let decided: Vec<(Level, Verdict)> = round
            .tallies
            .iter()
            .map(|(&level, tally)| (level, tally.verdict))
            .collect();
        for (level, verdict) in decided {
            let (why, culprit) = (Why::Coordinator, u32::MAX);
            match verdict {
                Verdict::Open | Verdict::Deciding => {}
                Verdict::Committed | Verdict::Stable => {
                    self.say(cx, from, MsgKind::Commit { version, level });
                }
                Verdict::Aborted => {
                    self.say(
                        cx,
                        from,
                        MsgKind::Abort {
                            version,
                            level: Some(level),
                            why,
                            culprit,
                        },
                    );
                }
            }
        }
    }

    /// COMMIT again to the nodes that have not acknowledged it: a round ends, and
    /// its records may go, only when all have.
    fn repeat_commits(&mut self, cx: &C, version: Version) {
        let Some(round) = self.rounds.get(&version) else {
            return;
        };
        let mut missing = Vec::new();
        for (&level, tally) in &round.tallies {
            if matches!(tally.verdict, Verdict::Committed | Verdict::Stable) {
                let silent =
                    |node: &u32| !tally.acked.contains(*node) && !self.lost.contains(*node);
                missing.extend(
                    (0..cx.config.nodes)
                        .filter(silent)
                        .map(|node| (node, level)),
                );
            }
        }
        for (node, level) in missing {
            self.say(cx, node, MsgKind::Commit { version, level });
        }
    }

    fn flush_if_captured(&mut self, cx: &C, version: Version) {
        let Some(round) = self.rounds.get_mut(&version) else {
            return;
        };
        if round.phase == Phase::Capturing && round.captured.is_full(cx.config.nodes) {
            round.phase = Phase::Flushing;
            round.deadline = cx.now + cx.config.commit_timeout;
            let levels = round.levels;
            self.out.event(Event::AllCaptured { version, levels });
        }
    }

    fn on_failed(&mut self, cx: &C, from: Peer, version: Version, level: Option<Level>, why: Why) {
        match self.rounds.get(&version) {
            None => self.answer_over(cx, from, version),
            Some(round) => {
                let open = match level {
                    Some(level) => round
                        .tallies
                        .get(&level)
                        .is_some_and(|t| t.verdict == Verdict::Open),
                    // A level that was given up before is no reason to wait for the others.
                    None => round
                        .tallies
                        .values()
                        .all(|t| matches!(t.verdict, Verdict::Open | Verdict::Aborted)),
                };
                if open {
                    // What others have captured was offered there and not here.
                    let passed = why == Why::Passed && !round.captured.is_empty();
                    let why = if passed { Why::Overtaken } else { why };
                    self.abort(cx, version, level, why, Some(from));
                } else {
                    self.answer_levels(cx, from, version);
                }
            }
        }
    }

    fn on_prepared(&mut self, cx: &C, from: Peer, version: Version, level: Level) {
        let committed = self
            .log
            .committed((self.ballot.incarnation, version, level))
            .is_some();
        if committed {
            return self.say(cx, from, MsgKind::Commit { version, level });
        }
        let Some(round) = self.rounds.get_mut(&version) else {
            return self.answer_over(cx, from, version);
        };
        round.armed.insert(from);
        round.captured.insert(from);
        let (why, culprit) = (Why::Coordinator, u32::MAX);
        let abort = MsgKind::Abort {
            version,
            level: Some(level),
            why,
            culprit,
        };
        let Some(tally) = round.tallies.get_mut(&level) else {
            return self.say(cx, from, abort);
        };
        if tally.verdict == Verdict::Aborted {
            return self.say(cx, from, abort);
        }
        tally.prepared.insert(from);
        let missing = cx.config.nodes - tally.prepared.len();
        let planted = cx.config.planted == Some(Planted::CommitOneMissing) && missing <= 1;
        if tally.verdict == Verdict::Open && (missing == 0 || planted) {
            tally.verdict = Verdict::Deciding;
            let (incarnation, ballot) = (self.ballot.incarnation, self.ballot);
            let record = Record::Commit {
                incarnation,
                version,
                level,
                ballot,
            };
            self.persist(record, Then::Decided { version, level });
            if cx.config.planted == Some(Planted::StableBeforePersist) {
                self.say_all(cx, MsgKind::Stable { version, level });
            }
        }
        self.go_if_armed(cx, version);
        self.flush_if_captured(cx, version);
    }

    pub(super) fn decided(&mut self, cx: &C, version: Version, level: Level, ok: bool) {
        let tally = self
            .rounds
            .get_mut(&version)
            .and_then(|round| round.tallies.get_mut(&level));
        let Some(tally) = tally.filter(|tally| tally.verdict == Verdict::Deciding) else {
            return;
        };
        if ok {
            tally.verdict = Verdict::Committed;
            self.say_all(cx, MsgKind::Commit { version, level });
        } else {
            tally.verdict = Verdict::Open;
            self.abort(cx, version, Some(level), Why::Storage, Some(cx.me));
        }
    }

    fn on_commit_ack(&mut self, cx: &C, from: Peer, version: Version, level: Level) {
        if !self.rounds.contains_key(&version) {
            if self.ended.contains(version) {
                return self.say(cx, from, MsgKind::Stable { version, level });
            }
            // A durable COMMIT proves the round, whatever this node has lost.
            self.lead_adopt(cx, from, version, level);
            return self.on_commit(cx, version, level);
        }
        let Some(tally) = self
            .rounds
            .get_mut(&version)
            .and_then(|round| round.tallies.get_mut(&level))
        else {
            return;
        };
        tally.acked.insert(from);
        match tally.verdict {
            Verdict::Stable => self.say(cx, from, MsgKind::Stable { version, level }),
            Verdict::Committed => {}
            _ => return,
        }
        self.count(cx, version, level);
    }

    /// STABLE when enough failure domains hold COMMIT; over when all nodes do.
    pub(super) fn count(&mut self, cx: &C, version: Version, level: Level) {
        let doubted = self.doubts.contains(&self.key(version, level));
        let Some(round) = self.rounds.get_mut(&version) else {
            return;
        };
        let Some(tally) = round.tallies.get_mut(&level) else {
            return;
        };
        // The domains are counted until there are enough of them, and not at each of the
        // acknowledgements that follow: that would cost the square of the number of nodes.
        if tally.verdict == Verdict::Committed
            && !doubted
            && domains(cx.config, &tally.acked) >= domains_needed(cx.config, level)
        {
            tally.verdict = Verdict::Stable;
            self.say_all(cx, MsgKind::Stable { version, level });
        }
        self.close_if_over(cx, version);
    }

    fn close_if_over(&mut self, cx: &C, version: Version) {
        let Some(round) = self.rounds.get(&version) else {
            return;
        };
        // A lost node too: it may be heard again, and would be told ABORT of what is forgotten.
        let all = |acked: &NodeSet| acked.is_full(cx.config.nodes);
        let over = round.tallies.values().all(|tally| match tally.verdict {
            Verdict::Aborted => true,
            Verdict::Stable => all(&tally.acked),
            _ => false,
        });
        if over {
            self.rounds.remove(&version);
            self.ended.add(version);
        }
    }

    /// Ends a round, or one level of it, where COMMIT is not yet being recorded.
    fn abort(
        &mut self,
        cx: &C,
        version: Version,
        level: Option<Level>,
        why: Why,
        culprit: Option<u32>,
    ) {
        let Some(round) = self.rounds.get_mut(&version) else {
            return;
        };
        let culprit = code(culprit);
        let whole = level.is_none()
            && round
                .tallies
                .values()
                .all(|tally| tally.verdict == Verdict::Open);
        if whole {
            self.rounds.remove(&version);
            self.ended.add(version);
            return self.say_all(
                cx,
                MsgKind::Abort {
                    version,
                    level: None,
                    why,
                    culprit,
                },
            );
        }
        let mut ended = Vec::new();
        for (&at, tally) in &mut round.tallies {
            if level.is_none_or(|level| level == at) && tally.verdict == Verdict::Open {
                tally.verdict = Verdict::Aborted;
                ended.push(at);
            }
        }
        for level in ended {
            self.say_all(
                cx,
                MsgKind::Abort {
                    version,
                    level: Some(level),
                    why,
                    culprit,
                },
            );
        }
        self.close_if_over(cx, version);
    }

    pub(super) fn lead_lost(&mut self, cx: &C, node: Peer) {
        for version in self.rounds.keys().copied().collect::<Vec<_>>() {
            self.abort(cx, version, None, Why::NodeLost, Some(node));
            self.close_if_over(cx, version);
        }
    }

    /// A round that is known to be committed at `level` and durable at `node`: met
    /// after a restart.
    pub(super) fn lead_adopt(&mut self, cx: &C, node: Peer, version: Version, level: Level) {
        self.ended.used = self.ended.used.max(Some(version));
        // Of a coordinator before this one that was in doubt itself, and whose record is gone.
        let key = self.key(version, level);
        if level.store() == StoreKind::Shared && self.log.committed(key).is_none() {
            self.doubts.insert(key);
        }
        let known = Levels::NONE.with(level);
        let round = self
            .rounds
            .entry(version)
            .or_insert_with(|| Round::new(cx, known, Phase::Flushing, Time::NEVER, 0));
        round.levels = round.levels.with(level);
        let nodes = cx.config.nodes;
        let tally = round.tallies.entry(level).or_insert_with(|| Tally {
            prepared: NodeSet::new(nodes),
            acked: NodeSet::new(nodes),
            verdict: Verdict::Committed,
        });
        tally.verdict = Verdict::Committed;
        tally.acked.insert(node);
    }

    /// After a restart, when every node has said its decisions.
    pub(super) fn lead_resumed(&mut self, cx: &C) {
        for version in self.rounds.keys().copied().collect::<Vec<_>>() {
            self.write_doubted(version);
            for level in cx.config.levels.iter() {
                self.count(cx, version, level);
            }
        }
    }

    pub(super) fn lead_timeout(&mut self, cx: &C) {
        for version in self.rounds.keys().copied().collect::<Vec<_>>() {
            let Some(round) = self.rounds.get_mut(&version) else {
                continue;
            };
            if cx.now >= round.deadline {
                self.expire(cx, version);
            } else if round.again.due(cx.now, cx.config.resend) {
                if round.phase != Phase::Arming {
                    self.ask_to_join(cx, version);
                    self.ask_again(cx, version);
                    self.repeat_commits(cx, version);
                    self.write_doubted(version);
                    continue;
                }
                let (levels, armed) = (round.levels, round.armed.clone());
                for node in (0..cx.config.nodes).filter(|&node| !armed.contains(node)) {
                    self.say(cx, node, MsgKind::Arm { version, levels });
                }
            }
        }
    }

    fn expire(&mut self, cx: &C, version: Version) {
        let nodes = cx.config.nodes;
        let Some(round) = self.rounds.get_mut(&version) else {
            return;
        };
        // What may come later is waited for once more.
        let later = cx.config.background_timeout;
        let first = round.phase == Phase::Flushing && !std::mem::replace(&mut round.late, true);
        let excused = |level: Level| first && cx.config.background.contains(level);
        round.deadline = match round
            .tallies
            .iter()
            .any(|(level, tally)| excused(*level) && tally.verdict == Verdict::Open)
        {
            true => cx.now + later,
            false => Time::NEVER,
        };
        match round.phase {
            Phase::Arming => {
                // Whoever forces it comes to it later than the policy wanted: that is no reason to
                // have given it up.
                let missing = round.armed.first_missing(nodes);
                self.rounds.remove(&version);
                self.ended.add_unarmed(version);
                let culprit = missing.map(NodeId);
                self.out.event(Event::Unready { version, culprit });
                self.say_all(cx, unarmed(version, missing));
            }
            Phase::Capturing => {
                let missing = round.captured.first_missing(nodes);
                self.abort(cx, version, None, Why::Timeout, missing);
            }
            Phase::Flushing => {
                let late: Vec<(Level, Option<u32>)> = round
                    .tallies
                    .iter()
                    .filter(|(level, tally)| tally.verdict == Verdict::Open && !excused(**level))
                    .map(|(&level, tally)| (level, tally.prepared.first_missing(nodes)))
                    .collect();
                for (level, missing) in late {
                    self.abort(cx, version, Some(level), Why::Timeout, missing);
                }
            }
        }
    }

    pub(super) fn lead_deadline(&self) -> Option<Time> {
        self.rounds
            .values()
            .map(|round| round.deadline.min(round.again.next))
            .min()
    }
}

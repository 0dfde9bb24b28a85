//! Opening an incarnation, as every node sees it, and coming back after a
//! restart of this node's agent.
//!
//! Invariants: nothing is said in a ballot before its promise is durable; from
//! the request on nothing of an older ballot is done; the incarnation's record is
//! persisted after every decision that rolls forward, and by the coordinator only
//! after all others have it, so a coordinator that has the record knows that all
//! have.

use super::items::{FORWARD_MAX, end, numbered};
use super::*;

/// How far this node's part has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// The promise is being persisted.
    Promising,
    /// The driver collects, the coordinator fetches, the ranks are rebuilt.
    Serving,
    /// The decisions that roll forward are being fetched and persisted.
    Recalling(Recall),
    /// The record is being persisted.
    Recording,
    /// The record is durable here.
    Begun,
}

/// Decisions on their way to a node: up to [`RECALL_WINDOW`] are asked for or being
/// persisted at a time, in any order, so that a driver can make many durable at
/// once; the incarnation's record is persisted after the last of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Recall {
    /// How many there are, at most [`FORWARD_MAX`].
    commits: u16,
    /// Those below were asked for.
    asked: u16,
    /// Bit i: decision i is durable here.
    durable: u64,
    /// Bit i: decision i is being persisted.
    writing: u64,
}

/// Decisions asked for and not yet durable, at one node.
const RECALL_WINDOW: u32 = 16;
const _: () = assert!(FORWARD_MAX <= u64::BITS as usize);

impl Recall {
    fn missing(&self, index: u16) -> bool {
        index < self.asked && (self.durable | self.writing) >> index & 1 == 0
    }

    /// The next one to ask for, if the window has room.
    fn next(&mut self) -> Option<u16> {
        let open = u32::from(self.asked) - self.durable.count_ones();
        if self.asked == self.commits || open >= RECALL_WINDOW {
            return None;
        }
        self.asked += 1;
        Some(self.asked - 1)
    }

    fn is_complete(&self) -> bool {
        self.durable.count_ones() == u32::from(self.commits)
    }
}

/// An incarnation that is opening at this node.
#[derive(Debug)]
pub(super) struct Opening {
    pub incarnation: Incarnation,
    part: Part,
    collected: bool,
    items: Vec<MsgKind>,
    /// The coordinator asked for this item before the inventory was there.
    asked: Option<u16>,
    rebuild: Option<(Incarnation, Version)>,
    result: Option<Rebuilding>,
    chosen: (Incarnation, Version),
    again: Backoff,
    bound: Time,
    /// On the coordinator.
    pub lead: Option<Box<Lead>>,
}

impl Opening {
    pub fn deadline(&self) -> Time {
        let lead = self
            .lead
            .as_ref()
            .map_or(Time::NEVER, |lead| lead.deadline());
        self.again.next.min(self.bound).min(lead)
    }
}

impl Commit {
    pub(super) fn open(&mut self, cx: &C, incarnation: Incarnation, lead: Option<Box<Lead>>) {
        if incarnation == self.ballot.incarnation {
            match self.mode {
                Mode::Opening(_) | Mode::Rejoining(_) => return,
                Mode::Running => return self.say_opened(),
                Mode::Idle => {}
            }
        }
        let again = incarnation == self.known()
            && cx.me != cx.config.coordinator
            && !self.log.lines.contains_key(&incarnation);
        if incarnation <= self.known() && !again {
            let known = self.known();
            let (why, culprit) = (Why::Stale, None);
            return self.out.event(Event::OpenFailed {
                incarnation,
                why,
                culprit,
                known,
            });
        }
        self.ballot = Ballot {
            incarnation,
            term: 0,
        };
        self.lost = NodeSet::new(cx.config.nodes);
        self.locals.clear();
        self.rounds.clear();
        self.doubts.clear();
        self.ended = Ended::default();
        self.seen = None;
        self.forgotten = None;
        self.given_up.clear();
        self.items = None;
        self.found = (0, false);
        self.out.drop_sends();
        let patience = cx.config.recovery_timeout;
        self.mode = Mode::Opening(Box::new(Opening {
            incarnation,
            part: Part::Promising,
            collected: false,
            items: Vec::new(),
            asked: None,
            rebuild: None,
            result: None,
            chosen: (Incarnation(0), Version(0)),
            again: Backoff::new(cx.now, cx.config.resend),
            // The coordinator gives up first, and then says so to nobody.
            bound: cx.now + Time(patience.0.saturating_mul(4)),
            lead,
        }));
        self.persist(
            Record::Promise {
                ballot: self.ballot,
            },
            Then::Opened,
        );
    }

    fn opening(&mut self) -> Option<&mut Opening> {
        match &mut self.mode {
            Mode::Opening(opening) => Some(opening),
            _ => None,
        }
    }

    pub(super) fn open_failed(&mut self, why: Why, culprit: Option<NodeId>) {
        let known = self.known();
        let incarnation = self.ballot.incarnation;
        self.mode = Mode::Idle;
        self.out.drop_sends();
        self.out.event(Event::OpenFailed {
            incarnation,
            why,
            culprit,
            known,
        });
    }

    pub(super) fn promised(&mut self, cx: &C, ok: bool) {
        if !ok {
            return self.open_failed(Why::Storage, Some(NodeId(cx.me)));
        }
        let Some(opening) = self.opening() else {
            return;
        };
        if opening.part == Part::Promising {
            opening.part = Part::Serving;
            let incarnation = opening.incarnation;
            self.out.event(Event::CollectInventory { incarnation });
        }
    }

    pub(super) fn inventory(&mut self, item: MsgKind) {
        if let Some(opening) = self.opening()
            && !opening.collected
            && opening.items.len() < usize::from(ITEMS_MAX)
        {
            opening.items.push(item);
        }
    }

    pub(super) fn inventory_done(&mut self, cx: &C, incarnation: Incarnation) {
        let mut items: Vec<MsgKind> = self.log_items();
        let Some(opening) = self.opening() else {
            return;
        };
        if opening.incarnation != incarnation || opening.collected {
            return;
        }
        opening.collected = true;
        let asked = opening.asked.take();
        items.append(&mut opening.items);
        // If the bound cuts the list, copies are lost and not the word that there were any, or
        // that there may be.
        let is_word =
            |it: &MsgKind| matches!(it, MsgKind::ItemTrace { .. } | MsgKind::ItemBlind { .. });
        items.sort_by_key(|item| !is_word(item));
        items.truncate(usize::from(ITEMS_MAX));
        self.items = Some(items);
        if cx.me == cx.config.coordinator {
            self.lead_begin(cx);
        } else if let Some(index) = asked {
            // It need not ask again, which would cost an interval.
            self.serve(cx, cx.config.coordinator, index);
        }
    }

    /// The log as items: incarnations, decisions, undecided rounds. Incarnations
    /// come first: if the bound cuts the list, copies are lost, not decisions.
    fn log_items(&self) -> Vec<MsgKind> {
        let lines =
            self.log
                .lines
                .iter()
                .map(|(&number, &(source, version))| MsgKind::ItemIncarnation {
                    index: 0,
                    number,
                    source,
                    version,
                });
        let marks =
            self.log.marks.iter().rev().filter_map(
                |(&(source, version, level), &mark)| match mark {
                    Mark::Commit(by) => Some(MsgKind::ItemCommit {
                        index: 0,
                        level,
                        source,
                        version,
                        by,
                    }),
                    Mark::Prepared => Some(MsgKind::ItemPrepared {
                        index: 0,
                        level,
                        source,
                        version,
                    }),
                    Mark::Aborted => None,
                },
            );
        lines.chain(marks).collect()
    }

    /// A coordinator that was restarted asks: promise its term first.
    pub(super) fn promise_term(&mut self, ballot: Ballot, from: Peer) {
        self.ballot = ballot;
        self.items = None;
        self.out.drop_sends();
        self.persist(Record::Promise { ballot }, Then::Serve { from });
    }

    /// Records the promise of the ballot in force, unless that is under way.
    pub(super) fn promise_again(&mut self, then: Then) {
        let record = Record::Promise {
            ballot: self.ballot,
        };
        if !self
            .pending
            .values()
            .any(|pending| pending.record == record)
        {
            self.persist(record, then);
        }
    }

    /// Sends item `index` of the inventory.
    pub(super) fn serve(&mut self, cx: &C, from: Peer, index: u16) {
        if let Some(opening) = self.opening()
            && !opening.collected
            && from == cx.config.coordinator
        {
            opening.asked = Some(index);
        }
        if self.log.promised != self.ballot {
            // Not promised yet, or that could not be recorded, and whoever leads asks again.
            if self.running() {
                self.promise_again(Then::Serve { from });
            }
            return;
        }
        if self.running() && self.ballot.term == 0 {
            // A late repetition of the opening's question: whoever asked has had the answer,
            // and this is no coordinator that knows nothing of the rounds.
            return;
        }
        if self.running() || matches!(self.mode, Mode::Rejoining(_)) {
            self.serve_term(cx);
        }
        let Some(items) = &self.items else { return };
        let kind = match items.get(usize::from(index)) {
            Some(item) => numbered(*item, index),
            None => end(items),
        };
        self.say(cx, from, kind);
    }

    fn serve_term(&mut self, cx: &C) {
        if self.items.is_some() {
            return;
        }
        self.local_new_term(cx);
        let source = self.ballot.incarnation;
        let commits = self.log.commits_of(source).into_iter();
        let item = |(version, level, by)| MsgKind::ItemCommit {
            index: 0,
            level,
            source,
            version,
            by,
        };
        self.items = Some(commits.map(item).take(usize::from(ITEMS_MAX)).collect());
    }

    pub(super) fn open_message(&mut self, cx: &C, from: Peer, kind: MsgKind) {
        match kind {
            MsgKind::Fetch { index } if from == cx.config.coordinator => {
                self.serve(cx, from, index)
            }
            MsgKind::Rebuild {
                source,
                version,
                level,
            } if from == cx.config.coordinator => {
                self.on_rebuild(cx, source, version, level);
            }
            MsgKind::Begin {
                source,
                version,
                commits,
            } if from == cx.config.coordinator => {
                self.on_begin(cx, (source, version), commits);
            }
            MsgKind::ItemCommit {
                index,
                level,
                source,
                version,
                by,
            } if from == cx.config.coordinator && self.recalling(index) => {
                let record = Record::Commit {
                    incarnation: source,
                    version,
                    level,
                    ballot: by,
                };
                self.forward(cx, index, record);
            }
            MsgKind::Started if from == cx.config.coordinator => self.on_started(),
            _ if cx.me == cx.config.coordinator => self.recovery_message(cx, from, kind),
            _ => {}
        }
    }

    fn on_rebuild(&mut self, cx: &C, source: Incarnation, version: Version, level: Level) {
        let bound = cx.now + Time(cx.config.recovery_timeout.0.saturating_mul(4));
        let Some(opening) = self.opening() else {
            return;
        };
        if opening.part != Part::Serving {
            return;
        }
        if opening.rebuild == Some((source, version)) {
            if let Some(outcome) = opening.result {
                self.say(
                    cx,
                    cx.config.coordinator,
                    MsgKind::Rebuilt {
                        source,
                        version,
                        outcome,
                    },
                );
            }
            return;
        }
        opening.bound = bound;
        opening.rebuild = Some((source, version));
        opening.result = None;
        self.out.event(Event::Rebuild {
            source,
            version,
            level,
        });
    }

    pub(super) fn rebuilt(
        &mut self,
        cx: &C,
        source: Incarnation,
        version: Version,
        outcome: Rebuilding,
    ) {
        let Some(opening) = self.opening() else {
            return;
        };
        if opening.rebuild == Some((source, version)) && opening.result.is_none() {
            opening.result = Some(outcome);
            self.say(
                cx,
                cx.config.coordinator,
                MsgKind::Rebuilt {
                    source,
                    version,
                    outcome,
                },
            );
        }
    }

    fn on_begin(&mut self, cx: &C, chosen: (Incarnation, Version), commits: u16) {
        let bound = cx.now + Time(cx.config.recovery_timeout.0.saturating_mul(4));
        let Some(opening) = self.opening() else {
            return;
        };
        match opening.part {
            Part::Serving if usize::from(commits) <= FORWARD_MAX => {
                opening.bound = bound;
                opening.chosen = chosen;
                opening.part = Part::Recalling(Recall {
                    commits,
                    ..Recall::default()
                });
                self.recall(cx);
            }
            Part::Begun => self.say(cx, cx.config.coordinator, MsgKind::Begun),
            _ => {}
        }
    }

    fn recalling(&self, index: u16) -> bool {
        match &self.mode {
            Mode::Opening(opening) => {
                matches!(opening.part, Part::Recalling(recall) if recall.missing(index))
            }
            _ => false,
        }
    }

    /// Asks for the next decisions that roll forward, or records the incarnation
    /// when all are durable.
    fn recall(&mut self, cx: &C) {
        let interval = cx.config.resend;
        let Some(opening) = self.opening() else {
            return;
        };
        let Part::Recalling(recall) = &mut opening.part else {
            return;
        };
        opening.again = Backoff::new(cx.now, interval);
        if !recall.is_complete() {
            let wanted: Vec<u16> = std::iter::from_fn(|| recall.next()).collect();
            for index in wanted {
                self.say(cx, cx.config.coordinator, MsgKind::Recall { index });
            }
            return;
        }
        opening.part = Part::Recording;
        let (number, (source, version)) = (opening.incarnation, opening.chosen);
        self.persist(
            Record::Incarnation {
                number,
                source,
                version,
            },
            Then::Recorded,
        );
    }

    fn forward(&mut self, cx: &C, index: u16, record: Record) {
        let Record::Commit {
            incarnation,
            version,
            level,
            ..
        } = record
        else {
            return;
        };
        // What is recorded here need not stand in shared storage: an agent may have ended in
        // between, of a run before this one too.
        let elsewhere = cx.me == cx.config.coordinator && level.store() == StoreKind::Shared;
        let known = self.log.committed((incarnation, version, level));
        if known.is_some() && !elsewhere {
            return self.forwarded(cx, index, true);
        }
        if let Some(opening) = self.opening()
            && let Part::Recalling(recall) = &mut opening.part
        {
            recall.writing |= 1 << index;
            self.persist(record, Then::Forward { index });
        }
    }

    pub(super) fn forwarded(&mut self, cx: &C, index: u16, ok: bool) {
        if !ok {
            return self.open_failed(Why::Storage, Some(NodeId(cx.me)));
        }
        if let Some(opening) = self.opening()
            && let Part::Recalling(recall) = &mut opening.part
        {
            recall.writing &= !(1 << index);
            recall.durable |= 1 << index;
            self.recall(cx);
        }
    }

    pub(super) fn recorded(&mut self, cx: &C, ok: bool) {
        if !ok {
            return self.open_failed(Why::Storage, Some(NodeId(cx.me)));
        }
        let interval = cx.config.resend;
        let Some(opening) = self.opening() else {
            return;
        };
        opening.part = Part::Begun;
        opening.again = Backoff::new(cx.now, interval);
        self.say(cx, cx.config.coordinator, MsgKind::Begun);
    }

    pub(super) fn on_started(&mut self) {
        let Mode::Opening(opening) = &self.mode else {
            return;
        };
        if opening.part != Part::Begun {
            return;
        }
        self.mode = Mode::Running;
        self.items = None;
        self.tidy();
        self.start_after_restored();
        self.say_opened();
    }

    /// Versions of a new incarnation come after the restored one.
    fn start_after_restored(&mut self) {
        if let Some(&(source, version)) = self.log.lines.get(&self.ballot.incarnation)
            && source.0 != 0
        {
            self.ended.used = self.ended.used.max(Some(version));
        }
    }

    /// Undecided rounds of older incarnations get their ABORT; void decisions leave
    /// memory.
    fn tidy(&mut self) {
        let newest = self.ballot.incarnation;
        let line = Line::to(newest, &self.log.lines);
        let undecided: Vec<log::Key> = self
            .log
            .marks
            .iter()
            .filter(|(key, mark)| key.0 < newest && **mark == Mark::Prepared)
            .map(|(&key, _)| key)
            .collect();
        for (incarnation, version, level) in undecided {
            self.persist(
                Record::Abort {
                    incarnation,
                    version,
                    level: Some(level),
                },
                Then::Nothing,
            );
        }
        self.log.marks.retain(|key, mark| match mark {
            Mark::Prepared => true,
            Mark::Commit(_) => line.holds(key.0, key.1),
            Mark::Aborted => key.0 == newest,
        });
    }

    fn say_opened(&mut self) {
        let incarnation = self.ballot.incarnation;
        let nothing = (Incarnation(0), Version(0));
        let (source, version) = self.log.lines.get(&incarnation).copied().unwrap_or(nothing);
        let (skipped, uncertain) = self.found;
        self.out.event(Event::Opened {
            incarnation,
            source,
            version,
            skipped,
            uncertain,
        });
    }

    pub(super) fn opening_timeout(&mut self, cx: &C) {
        self.lead_opening_timeout(cx);
        let (now, interval) = (cx.now, cx.config.resend);
        let Some(opening) = self.opening() else {
            return;
        };
        if now >= opening.bound {
            return self.open_failed(Why::Timeout, Some(NodeId(cx.config.coordinator)));
        }
        if !opening.again.due(now, interval) {
            return;
        }
        match opening.part {
            Part::Recalling(recall) => {
                for index in (0..recall.asked).filter(|index| recall.missing(*index)) {
                    self.say(cx, cx.config.coordinator, MsgKind::Recall { index });
                }
            }
            Part::Begun => self.say(cx, cx.config.coordinator, MsgKind::Begun),
            _ => {}
        }
    }

    /// After the log was replayed: back into the open incarnation, if it is open.
    pub(super) fn resume(&mut self, cx: &C) {
        self.ballot = self.log.promised;
        let incarnation = self.ballot.incarnation;
        if incarnation.0 == 0 || !self.log.lines.contains_key(&incarnation) {
            return;
        }
        self.given_up = self.log.given_up(incarnation);
        self.local_recover(cx);
        self.start_after_restored();
        self.seen = self.locals.keys().next_back().copied();
        if cx.me == cx.config.coordinator {
            self.ballot.term += 1;
            self.mode = Mode::Rejoining(Box::new(Lead::rejoining(cx, incarnation)));
            self.persist(
                Record::Promise {
                    ballot: self.ballot,
                },
                Then::Rejoin,
            );
        } else {
            self.mode = Mode::Running;
            self.out.event(Event::Rejoined { incarnation });
        }
    }
}

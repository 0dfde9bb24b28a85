//! A job that stands still: it is told where its ranks are, then done what the owner wants.
//!
//! The ranks are at work while the command runs, one of them has joined and not left, every agent
//! is heard, and none of them holds a rank that asked it for something. What else takes time
//! (opening, recovering, a silent node, a rank that is gone for a reason not yet known) has bounds
//! of its own.
//!
//! Invariants: nothing is done before the stacks are asked for and the answers have come, or
//! [`HangRule::answer_ms`] has passed; a job that comes forward meanwhile is left alone.
//!
//! [`HangRule::answer_ms`]: crate::standstill::HangRule::answer_ms

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::{Code, Entity, Error, NodeId, Time};

use super::faults::Found;
use super::{Action, Event, NodeSlot, Site, Supervisor};
use crate::orders::{Order, Stacks};
use crate::report::HangEntry;
use crate::standstill::{Bound, OnHang};
use crate::units::show_ms;
use crate::whereabouts;

/// All answers together, in bytes.
const ANSWERS_BYTES: u32 = 64 << 20;
/// Of one node, at least and at most.
const ANSWER_BYTES: (u32, u32) = (16 << 10, 900 << 10);
/// So much earlier than it is waited for an answer is to be given, in milliseconds.
const ON_ITS_WAY_MS: u64 = 2_000;
/// Nodes that have not answered are asked again after so long.
const ASK_AGAIN: Time = Time::from_secs(2);
/// Looks at the clock that may be left out before time counts no more.
const LOOKS: u64 = 2;

/// What is being found out about a standstill: the last entry of the report.
#[derive(Debug)]
pub(super) struct Inquiry {
    since: Time,
    again: Time,
    missing: BTreeSet<NodeId>,
    found: BTreeMap<NodeId, Stacks>,
    bound: Bound,
}

impl Supervisor {
    /// Time has passed until now.
    pub(super) fn time_at_work(&mut self, now: Time) {
        let most = Time::from_ms(self.set.look_ms * LOOKS);
        let at_work = self.is_at_work();
        self.judge.pass(now, most, at_work);
        let awaits = self.awaits_ranks();
        self.joining.pass(now, most, awaits);
    }

    fn is_at_work(&self) -> bool {
        self.is_alive()
            && self.is_running()
            && self.unexplained.is_empty()
            && self.slots.values().all(NodeSlot::speaks)
            && self.slots.values().any(|slot| !slot.ranks.is_empty())
    }

    /// When a standstill may be found, or the answers about one are due.
    pub(super) fn next_hang(&self) -> Time {
        let inquiry = self.inquiry.as_ref();
        let answers = inquiry.map(|it| it.again.min(self.answers_until(it)));
        let due = self.judge.due(&self.set.hang);
        let free = inquiry.is_none() && self.look.is_none();
        let due = due.filter(|_| free && self.is_at_work());
        let joining = self.next_joining();
        due.into_iter().chain(answers).fold(joining, Time::min)
    }

    fn answers_until(&self, inquiry: &Inquiry) -> Time {
        inquiry.since + Time::from_ms(self.set.hang.answer_ms)
    }

    /// Looks whether the job stands still, and whether all is known that can be of that.
    pub(super) fn check_hang(&mut self, now: Time) {
        if self.inquiry.is_none()
            && self.look.is_none()
            && self.is_at_work()
            && let Some(bound) = self.judge.alarm(&self.set.hang)
        {
            self.inquire(now, bound);
        }
        let Some(inquiry) = &self.inquiry else { return };
        let over = now >= self.answers_until(inquiry) || !self.is_running();
        if inquiry.missing.is_empty() || over {
            return self.conclude(now);
        }
        if now >= inquiry.again {
            self.ask_where(now);
        }
    }

    fn inquire(&mut self, now: Time, bound: Bound) {
        let number = self.next_hang_number();
        self.report.hangs.push(HangEntry {
            number,
            file: self.hang_path(number),
            incarnation: self.last_incarnation,
            version: self.newest_offered.map(|version| version.0),
            at_seconds: now.as_secs(),
            still_seconds: self.judge.still().as_secs(),
            bound_seconds: bound.time.as_secs(),
            learnt: bound.learnt,
            action: OnHang::Report,
            ..HangEntry::default()
        });
        let with_ranks = self.slots.iter().filter(|(_, slot)| !slot.ranks.is_empty());
        self.inquiry = Some(Inquiry {
            since: now,
            again: now,
            missing: with_ranks.map(|(node, _)| *node).collect(),
            found: BTreeMap::new(),
            bound,
        });
    }

    pub(super) fn next_hang_number(&self) -> u32 {
        self.set.hang.before + self.report.hangs.len() as u32 + 1
    }

    pub(super) fn hang_path(&self, number: u32) -> String {
        format!("{}/{}", self.set.hang.dir, file_name(number))
    }

    /// The last standstill of ranks.
    fn last_still(&mut self) -> Option<&mut HangEntry> {
        self.report.hangs.iter_mut().rfind(|entry| !entry.joining)
    }

    /// Asks the nodes that have not answered.
    fn ask_where(&mut self, now: Time) {
        let number = self.report.hangs.last().map_or(0, |entry| entry.number);
        let Some(inquiry) = &mut self.inquiry else {
            return;
        };
        inquiry.again = now + ASK_AGAIN;
        let gone = now.since(inquiry.since).as_ms() as u64;
        let left = self.set.hang.answer_ms.saturating_sub(gone);
        let within_ms = left.saturating_sub(ON_ITS_WAY_MS).max(left / 2);
        let bytes_max = (ANSWERS_BYTES / self.set.nodes).clamp(ANSWER_BYTES.0, ANSWER_BYTES.1);
        for node in inquiry.missing.clone() {
            let order = Order::Stacks {
                number,
                within_ms,
                bytes_max,
            };
            self.order(node, order);
        }
    }

    /// A node says where its ranks are.
    pub(super) fn on_stacks(&mut self, node: NodeId, number: u32, found: Stacks) {
        let current = self.report.hangs.last().map(|entry| entry.number);
        if let Some(inquiry) = self.inquiry.as_mut().filter(|_| current == Some(number))
            && inquiry.missing.remove(&node)
        {
            inquiry.found.insert(node, found);
        }
    }

    /// Tells what was found, and does what the owner wants.
    fn conclude(&mut self, now: Time) {
        let may_act = self.is_alive() && self.is_running();
        let (Some(inquiry), Some(entry)) = (self.inquiry.take(), self.report.hangs.last_mut())
        else {
            return;
        };
        entry.places = whereabouts::groups(&inquiry.found);
        entry.silent_nodes = inquiry.missing.iter().map(|node| node.0).collect();
        if entry.resumed_seconds.is_none() && may_act {
            entry.action = self.set.hang.on;
        }
        let entry = entry.clone();
        let head = head(&entry, inquiry.bound);
        let silent: Vec<NodeId> = inquiry.missing.into_iter().collect();
        let title = format!(
            "job {}, incarnation {}: {head}",
            self.set.job, entry.incarnation
        );
        self.actions.push_back(Action::WriteStacks {
            number: entry.number,
            text: whereabouts::text(&title, &entry.places, &inquiry.found, &silent),
        });
        let mut what = head.clone();
        if !entry.places.is_empty() {
            what += &format!(": {}", whereabouts::line(&entry.places));
        }
        for node in silent {
            what += &format!("; {node} has not said where its ranks are");
        }
        what += &format!("; all stacks: {}", entry.file);
        self.tell(Event::Hang { what });
        if let Some(seconds) = entry.resumed_seconds {
            return self.tell_resumed(seconds);
        }
        let error = Error::new(
            Code::NoProgress,
            Entity::Job(self.set.job.to_string()),
            format!("{head}; ended by --on-hang kill"),
            format!(
                "{} says where each rank was; the same command goes on from the newest version",
                entry.file
            ),
        );
        self.act_on_hang(now, Site::Hang, head, &entry, error);
    }

    /// Does what the owner wants about a job that stands still, or ranks that do not join.
    pub(super) fn act_on_hang(
        &mut self,
        now: Time,
        place: Site,
        head: String,
        entry: &HangEntry,
        error: Error,
    ) {
        match entry.action {
            OnHang::Report => {}
            OnHang::Restart => {
                let stood = Time((entry.still_seconds * 1e9) as u64);
                let found = Found {
                    place,
                    cause: format!("{head}; stacks in {}", entry.file),
                    ended: None,
                    base: Some(Time(now.0.saturating_sub(stood.0))),
                    injected: false,
                    suspected: None,
                };
                self.found(now, found);
            }
            OnHang::Kill => self.give_up(now, error, None),
        }
    }

    /// A newer version than any before is offered.
    pub(super) fn came_forward(&mut self) {
        let Some(still) = self.judge.advanced() else {
            return;
        };
        let seconds = still.as_secs();
        if let Some(entry) = self.last_still() {
            entry.resumed_seconds = Some(seconds);
        }
        // Else it is said after that it stood still.
        if self.inquiry.is_none() {
            self.tell_resumed(seconds);
        }
    }

    fn tell_resumed(&mut self, seconds: f64) {
        let mut what = format!(
            "the ranks come forward again after {}",
            show_ms(seconds * 1e3)
        );
        if let Some(bound) = self.judge.bound(&self.set.hang) {
            what += &format!("; the bound is {} now", show_ms(bound.time.as_ms()));
        }
        self.tell(Event::Resumed { what });
    }
}

/// How the file of a standstill is called.
pub fn file_name(number: u32) -> String {
    format!("hang-{number}.txt")
}

fn head(entry: &HangEntry, bound: Bound) -> String {
    let still = show_ms(entry.still_seconds * 1e3);
    let since = entry.version.map_or_else(
        || "before the first version".to_owned(),
        |version| format!("after version {version}"),
    );
    let from = match bound.learnt {
        true => "learnt from its pace",
        false => "as given",
    };
    let bound = show_ms(bound.time.as_ms());
    format!("no progress for {still} {since} (bound: {bound}, {from})")
}

//! What this node knows to be durable: its own records, as they were replayed or
//! acknowledged.
//!
//! Invariants: a COMMIT is never undone by an ABORT; of two COMMITs of one key
//! the higher ballot stays; nothing enters before its `on_done` (or, at
//! recovery, before it was read back).

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::{Incarnation, Level, Version};

use super::{Ballot, GIVEN_UP_MAX, Record};

/// The key of a decision.
pub(super) type Key = (Incarnation, Version, Level);

/// Most decisions kept in memory; beyond it the oldest are forgotten here (their
/// records stay on disk until the driver collects them).
const MARKS_MAX: usize = 2048;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    Prepared,
    Commit(Ballot),
    /// Ended here for good: never prepared again, in another life of the agent either.
    Aborted,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    /// The highest ballot promised.
    pub promised: Ballot,
    /// Opened incarnations: what each restored (incarnation 0: nothing).
    pub lines: BTreeMap<Incarnation, (Incarnation, Version)>,
    /// Undecided, committed and aborted levels.
    pub marks: BTreeMap<Key, Mark>,
    /// Versions that ended as a whole, the newest [`GIVEN_UP_MAX`].
    given_up: BTreeSet<(Incarnation, Version)>,
}

impl Log {
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Promise { ballot } => self.promised = self.promised.max(ballot),
            Record::Prepared {
                incarnation,
                version,
                level,
            } => {
                self.marks
                    .entry((incarnation, version, level))
                    .or_insert(Mark::Prepared);
            }
            Record::Commit {
                incarnation,
                version,
                level,
                ballot,
            } => {
                let mark = self
                    .marks
                    .entry((incarnation, version, level))
                    .or_insert(Mark::Prepared);
                *mark = match *mark {
                    Mark::Commit(old) => Mark::Commit(old.max(ballot)),
                    Mark::Prepared | Mark::Aborted => Mark::Commit(ballot),
                };
            }
            Record::Abort {
                incarnation,
                version,
                level: Some(level),
            } => {
                let mark = self
                    .marks
                    .entry((incarnation, version, level))
                    .or_insert(Mark::Aborted);
                if *mark == Mark::Prepared {
                    *mark = Mark::Aborted;
                }
            }
            Record::Abort {
                incarnation,
                version,
                level: None,
            } => {
                self.given_up.insert((incarnation, version));
                if self.given_up.len() > GIVEN_UP_MAX {
                    self.given_up.pop_first();
                }
            }
            Record::Incarnation {
                number,
                source,
                version,
            } => {
                self.lines.insert(number, (source, version));
                self.promised = self.promised.max(Ballot {
                    incarnation: number,
                    term: 0,
                });
            }
        }
        while self.marks.len() > MARKS_MAX {
            self.marks.pop_first();
        }
    }

    pub fn committed(&self, key: Key) -> Option<Ballot> {
        match self.marks.get(&key) {
            Some(&Mark::Commit(ballot)) => Some(ballot),
            _ => None,
        }
    }

    pub fn forget(&mut self, source: Incarnation, version: Version) {
        let all = (source, version, Level::FIRST)..=(source, version, Level::LAST);
        self.marks.retain(|key, _| !all.contains(key));
    }

    /// The versions of an incarnation that ended here as a whole.
    pub fn given_up(&self, incarnation: Incarnation) -> BTreeSet<Version> {
        let of = |(source, version): &(Incarnation, Version)| {
            (*source == incarnation).then_some(*version)
        };
        self.given_up.iter().filter_map(of).collect()
    }

    /// The newest version of an incarnation that is committed at any level.
    pub fn newest_commit(&self, incarnation: Incarnation) -> Option<Version> {
        let mut marks = self.marks.iter().rev();
        let newest = marks
            .find(|((source, ..), mark)| *source == incarnation && matches!(mark, Mark::Commit(_)));
        newest.map(|(&(_, version, _), _)| version)
    }

    /// The decisions of one incarnation.
    pub fn commits_of(&self, incarnation: Incarnation) -> Vec<(Version, Level, Ballot)> {
        self.marks
            .iter()
            .filter_map(|(&(source, version, level), &mark)| match mark {
                Mark::Commit(ballot) if source == incarnation => Some((version, level, ballot)),
                _ => None,
            })
            .collect()
    }
}

/// The versions that are not void: of each incarnation on the line that leads to
/// `newest`, those up to the one that its successor restored.
#[derive(Debug, Default)]
pub(super) struct Line {
    limits: BTreeMap<Incarnation, Version>,
    /// Below this incarnation nothing is known.
    known_from: Incarnation,
}

impl Line {
    pub fn to(newest: Incarnation, lines: &BTreeMap<Incarnation, (Incarnation, Version)>) -> Line {
        let mut limits = BTreeMap::new();
        let (mut at, mut limit) = (newest, Version::MAX);
        // Numbers fall strictly along a line, so a damaged record cannot loop.
        while at.0 != 0 {
            limits.insert(at, limit);
            match lines.get(&at) {
                Some(&(source, version)) if source < at => (at, limit) = (source, version),
                _ => break,
            }
        }
        Line {
            limits,
            known_from: at,
        }
    }

    /// True if no record says whether this incarnation's versions are on the line.
    pub fn is_unknown(&self, source: Incarnation) -> bool {
        source < self.known_from
    }

    pub fn holds(&self, source: Incarnation, version: Version) -> bool {
        self.limits
            .get(&source)
            .is_some_and(|&limit| version <= limit)
    }
}

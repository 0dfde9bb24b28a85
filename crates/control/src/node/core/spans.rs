//! What took how long at this node, for people: kept until the launcher is told, which is when it
//! asks how the node is.
//!
//! Invariants: at most [`SPANS_MAX`] are kept, the oldest go first and are counted; times are
//! differences of this node's clock alone, because clocks of machines differ.

use std::collections::{BTreeMap, VecDeque};

use outlive_base::{Level, Rank, Time, Version};

use super::Core;
use crate::node::shell::Shell;
use crate::orders::{Notice, SPANS_MAX, Span, Spans, Work};

/// Levels of versions that are under way at most; older ones were forgotten by all.
const UNDER_WAY_MAX: usize = 64;

/// A span that has ended.
struct Kept {
    work: Work,
    version: Option<Version>,
    bytes: u64,
    ended: Time,
    lasted: Time,
}

/// How far a version is at a level, and since when.
#[derive(Clone, Copy)]
enum Stage {
    Writing(Time),
    Committing(Time),
}

/// See the module.
#[derive(Default)]
pub(super) struct Lives {
    kept: VecDeque<Kept>,
    left_out: u64,
    under_way: BTreeMap<(Version, Level), Stage>,
}

impl Lives {
    fn keep(&mut self, kept: Kept) {
        if self.kept.len() == SPANS_MAX {
            self.kept.pop_front();
            self.left_out += 1;
        }
        self.kept.push_back(kept);
    }
}

impl<S: Shell> Core<S> {
    fn keep_span(&mut self, work: Work, version: Option<Version>, bytes: u64, since: Time) {
        let ended = self.now;
        self.lives.keep(Kept {
            work,
            version,
            bytes,
            ended,
            lasted: ended.since(since),
        });
    }

    /// A rank has captured; it was blocked for so long until now.
    pub(super) fn span_captured(&mut self, rank: Rank, version: Version, ns: u64, bytes: u64) {
        let lasted = Time(ns);
        let ended = self.now;
        self.lives.keep(Kept {
            work: Work::Capture(rank),
            version: Some(version),
            bytes,
            ended,
            lasted,
        });
    }

    /// A level of a version is being written from now on.
    pub(super) fn span_writes(&mut self, version: Version, level: Level) {
        let under_way = &mut self.lives.under_way;
        under_way.insert((version, level), Stage::Writing(self.now));
        while under_way.len() > UNDER_WAY_MAX {
            under_way.pop_first();
        }
    }

    /// It is written and read back: what is left is the others, and the decision.
    pub(super) fn span_written(&mut self, version: Version, level: Level) {
        let Some(stage) = self.lives.under_way.get_mut(&(version, level)) else {
            return;
        };
        if let Stage::Writing(since) = *stage {
            *stage = Stage::Committing(self.now);
            let bytes = self.rounds.get(&version).map_or(0, |round| round.bytes);
            self.keep_span(Work::Write(level), Some(version), bytes, since);
        }
    }

    /// It is known to be stable.
    pub(super) fn span_stable(&mut self, version: Version, level: Level) {
        if let Some(Stage::Committing(since)) = self.lives.under_way.remove(&(version, level)) {
            self.keep_span(Work::Commit(level), Some(version), 0, since);
        }
    }

    /// A version is given up, at a level or at all.
    pub(super) fn span_ended(&mut self, version: Version, level: Option<Level>) {
        self.lives
            .under_way
            .retain(|at, _| at.0 != version || level.is_some_and(|level| level != at.1));
    }

    /// An incarnation is open: what the one before had under way is over.
    pub(super) fn span_opened(&mut self, restored: Option<Version>, bytes: u64, since: Time) {
        self.lives.under_way.clear();
        self.keep_span(Work::Rebuild, restored, bytes, since);
    }

    /// Tells the launcher what has ended since it was told last, if anything has.
    pub(in crate::node) fn tell_spans(&mut self) {
        if self.lives.kept.is_empty() {
            return;
        }
        let now = self.now;
        let kept = std::mem::take(&mut self.lives.kept);
        let span = |kept: Kept| Span {
            work: kept.work,
            version: kept.version,
            bytes: kept.bytes,
            ago_ns: now.since(kept.ended).0,
            lasted_ns: kept.lasted.0,
        };
        let spans = Spans {
            spans: kept.into_iter().map(span).collect(),
            left_out: std::mem::take(&mut self.lives.left_out),
        };
        self.tell(&Notice::Spans(spans));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_are_counted() {
        let mut lives = Lives::default();
        for n in 0..SPANS_MAX as u64 + 3 {
            lives.keep(Kept {
                work: Work::Rebuild,
                version: Some(Version(n)),
                bytes: 0,
                ended: Time::ZERO,
                lasted: Time::ZERO,
            });
        }
        assert_eq!((lives.kept.len(), lives.left_out), (SPANS_MAX, 3));
        assert_eq!(lives.kept[0].version, Some(Version(3)));
    }
}

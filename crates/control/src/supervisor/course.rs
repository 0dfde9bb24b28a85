//! How far the program has come in computing time, for what the report says of failures and of
//! levels: the computing that each failure lost, and for how long levels took to keep versions.
//!
//! Invariants: time in which the program does not compute (restarts, recoveries) counts as none;
//! what was captured after the version that is restored is forgotten, for it will be again; only
//! the newest [`KEPT_MAX`] versions are remembered, and of others nothing is claimed.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::{Level, Time, Version};

/// Versions that are remembered; retention keeps far fewer.
const KEPT_MAX: usize = 1_024;

/// A version that all ranks have captured, or the beginning of the run.
#[derive(Clone, Debug)]
struct Captured {
    /// The computing before it.
    done: Time,
    /// When it was captured; none: before this run.
    at: Option<Time>,
    /// Levels of which it is known.
    kept: BTreeSet<Level>,
    /// For how long it has blocked a rank, in nanoseconds.
    blocked_ns: u64,
}

/// The course of a run.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// Computing that is behind the program, up to `since`.
    done: Time,
    /// Since when it computes.
    since: Option<Time>,
    /// By version; none: nothing was restored.
    captured: BTreeMap<Option<Version>, Captured>,
}

impl Course {
    fn done(&self, now: Time) -> Time {
        self.since.map_or(self.done, |since| {
            self.done + Time(now.0.saturating_sub(since.0))
        })
    }

    /// All ranks have joined: the program computes.
    pub fn runs(&mut self, now: Time) {
        self.since = Some(now);
    }

    /// It computes no more, since then.
    pub fn stands(&mut self, at: Time) {
        self.done = self.done(at);
        self.since = None;
    }

    /// A rank of this version was blocked for so many nanoseconds; by how many the longest of its
    /// ranks is longer than was known.
    pub fn captured(&mut self, now: Time, version: Version, blocked_ns: u64) -> u64 {
        let done = self.done(now);
        // Nodes say it one after the other, some when others have the next one.
        let one = self.captured.entry(Some(version)).or_insert(Captured {
            done,
            at: Some(now),
            kept: BTreeSet::new(),
            blocked_ns: 0,
        });
        let longer = blocked_ns.saturating_sub(one.blocked_ns);
        one.blocked_ns += longer;
        if self.captured.len() > KEPT_MAX {
            self.captured.pop_first();
        }
        longer
    }

    /// How long a level has taken to keep a version that was captured in this run; none: it is not
    /// known, or was told before.
    pub fn kept(&mut self, now: Time, version: Version, level: Level) -> Option<Time> {
        let one = self.captured.get_mut(&Some(version))?;
        let at = one.at?;
        one.kept.insert(level).then(|| now.since(at))
    }

    /// What runs next begins with this version. The computing that was lost; none at the first
    /// start, and where the version is older than what is remembered.
    pub fn restored(&mut self, version: Option<Version>) -> Option<Time> {
        self.captured.retain(|known, _| *known <= version);
        if let Some(one) = self.captured.get(&version) {
            let lost = self.done.since(one.done);
            self.done = one.done;
            return Some(lost);
        }
        // Of what was before it nothing is known: what is lost next is counted from here.
        let one = Captured {
            done: self.done,
            at: None,
            kept: BTreeSet::new(),
            blocked_ns: 0,
        };
        self.captured.insert(version, one);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Time = Time::from_secs;

    #[test]
    fn what_a_failure_lost_is_computing_and_nothing_else() {
        let mut course = Course::default();
        assert_eq!(course.restored(None), None, "the first start");
        course.runs(S(10));
        course.captured(S(15), Version(1), 7);
        course.captured(S(20), Version(2), 7);
        course.stands(S(26));
        // The newest one was lost: the program comes back to 5 s of its 16.
        assert_eq!(course.restored(Some(Version(1))), Some(S(11)));
        course.runs(S(40));
        course.captured(S(42), Version(2), 7);
        course.stands(S(45));
        // It failed before it computed again: nothing more is lost.
        course.stands(S(47));
        assert_eq!(course.restored(Some(Version(2))), Some(S(3)));
        course.stands(S(48));
        assert_eq!(course.restored(Some(Version(2))), Some(Time::ZERO));
        // All of it.
        course.runs(S(50));
        course.stands(S(51));
        assert_eq!(course.restored(None), Some(S(8)), "5, 2 and 1");
    }

    #[test]
    fn of_versions_of_earlier_runs_nothing_is_claimed() {
        let mut course = Course::default();
        assert_eq!(course.restored(Some(Version(9))), None);
        course.runs(S(0));
        assert_eq!(course.kept(S(3), Version(9), Level::SHARED), None);
        course.stands(S(4));
        assert_eq!(course.restored(Some(Version(9))), Some(S(4)));
        course.runs(S(5));
        course.stands(S(6));
        // Older than the one that the run began with.
        assert_eq!(course.restored(Some(Version(8))), None);
        course.runs(S(6));
        course.stands(S(7));
        assert_eq!(course.restored(Some(Version(8))), Some(S(1)));
    }

    #[test]
    fn a_level_is_measured_once_and_of_ranks_the_longest_counts() {
        let mut course = Course::default();
        course.restored(None);
        course.runs(S(0));
        let longer: u64 = [3, 5, 4]
            .map(|ns| course.captured(S(1), Version(1), ns))
            .iter()
            .sum();
        assert_eq!(longer, 5);
        // A node that is late.
        assert_eq!(course.captured(S(2), Version(2), 1), 1);
        assert_eq!(course.captured(S(3), Version(1), 6), 1);
        assert_eq!(course.captured(S(3), Version(2), 2), 1);
        assert_eq!(course.kept(S(4), Version(1), Level::SHARED), Some(S(3)));
        assert_eq!(course.kept(S(5), Version(1), Level::SHARED), None);
        assert_eq!(course.kept(S(5), Version(1), Level::DISK), Some(S(4)));
        assert_eq!(course.kept(S(5), Version(7), Level::DISK), None);
    }

    #[test]
    fn it_remembers_a_bounded_number() {
        let mut course = Course::default();
        course.restored(None);
        course.runs(S(0));
        for version in 0..2 * KEPT_MAX as u64 {
            course.captured(S(version), Version(version), 1);
        }
        assert_eq!(course.captured.len(), KEPT_MAX);
        course.stands(S(5_000));
        assert_eq!(course.restored(Some(Version(3))), None);
    }
}

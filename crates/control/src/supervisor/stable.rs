//! Which versions of this incarnation are stable, at which level: each is counted once.
//!
//! A coordinator that is started anew says some again, and one that was written for longer than the next is
//! stable after it.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::{Level, Version};

/// How many are remembered: far more than can be under way at a time.
const KEPT: usize = 64;

/// Versions of which a word was heard.
#[derive(Debug, Default)]
pub(super) struct Heard(BTreeSet<Version>);

impl Heard {
    /// True if it was said before, or is older than all that is remembered.
    pub fn is_known(&self, version: Version) -> bool {
        let past = self.0.len() >= KEPT && self.0.first().is_some_and(|first| version < *first);
        past || self.0.contains(&version)
    }

    /// It is heard; the newest of which it was is given back.
    pub fn note(&mut self, version: Version) -> Version {
        self.0.insert(version);
        if self.0.len() > KEPT {
            self.0.pop_first();
        }
        self.0.last().copied().unwrap_or(version)
    }

    /// Another incarnation begins.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// The versions that are stable at each level.
#[derive(Debug, Default)]
pub(super) struct Stable {
    at: BTreeMap<Level, Heard>,
}

impl Stable {
    /// True if this was said before.
    pub fn is_known(&self, version: Version, level: Level) -> bool {
        let heard = self.at.get(&level);
        heard.is_some_and(|heard| heard.is_known(version))
    }

    /// It is stable; the newest there is given back.
    pub fn note(&mut self, version: Version, level: Level) -> Version {
        self.at.entry(level).or_default().note(version)
    }

    /// The newest at each level.
    pub fn newest(&self) -> BTreeMap<Level, Version> {
        let last = |heard: &Heard| heard.0.last().copied();
        let newest = self.at.iter().map(|(level, heard)| (*level, last(heard)));
        newest
            .filter_map(|(level, last)| Some((level, last?)))
            .collect()
    }

    /// Another incarnation begins.
    pub fn clear(&mut self) {
        self.at.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counts_once_in_whatever_order_it_comes() {
        let mut stable = Stable::default();
        let level = Level::DISK;
        assert_eq!(stable.note(Version(20), level), Version(20));
        assert!(!stable.is_known(Version(10), level));
        assert_eq!(stable.note(Version(10), level), Version(20));
        for said in [10, 20] {
            assert!(stable.is_known(Version(said), level));
            assert!(!stable.is_known(Version(said), Level::MEMORY));
        }
        assert_eq!(stable.newest(), BTreeMap::from([(level, Version(20))]));
    }

    #[test]
    fn what_is_older_than_all_that_is_remembered_was_said() {
        let mut stable = Stable::default();
        let many = 3 * KEPT as u64;
        for version in 10..10 + many {
            assert!(!stable.is_known(Version(version), Level::DISK));
            stable.note(Version(version), Level::DISK);
        }
        assert!(stable.is_known(Version(9), Level::DISK));
        assert!(stable.is_known(Version(10), Level::DISK));
        assert!(!stable.is_known(Version(10 + many), Level::DISK));
    }
}

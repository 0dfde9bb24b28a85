//! Reading what is stored before it is needed (scrub): what is wanted of nodes, and what they say
//! of it. Each node reads its own copies: [`crate::node`].

use std::collections::BTreeMap;

use outlive_base::{Level, Time, Version};
use serde::{Deserialize, Serialize};

/// Versions and levels of which a status speaks at most: the newest.
pub const TOLD_MAX: usize = 64;

/// How a node reads what it keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubSetting {
    /// A copy that was last read whole this many milliseconds ago is read again; `None`: never.
    pub every_ms: Option<u64>,
    /// Bytes a second that a node reads for it at most.
    pub bytes_per_s: u64,
}

impl Default for ScrubSetting {
    fn default() -> ScrubSetting {
        ScrubSetting {
            every_ms: Some(3_600_000),
            bytes_per_s: 32 << 20,
        }
    }
}

/// When a node last read its copies of a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReadAt {
    /// The version.
    pub version: Version,
    /// The level.
    pub level: Level,
    /// Milliseconds since the copy that was read least lately was read whole, or read back when it was
    /// written; `None`: one was not since this agent began, or is damaged.
    pub ago_ms: Option<u64>,
    /// No copy that records name here was there: of a version that newer ones have replaced the records
    /// stay longer.
    pub gone: bool,
}

/// What a node says of its reading.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Copies that were read whole.
    pub read: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Copies that were found damaged.
    pub damaged: u64,
    /// Of these, such that were mended.
    pub mended: u64,
    /// What is kept, newest first, at most [`TOLD_MAX`].
    pub versions: Vec<ReadAt>,
}

/// What a report says of it: of all nodes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubEntry {
    /// Copies that were read whole before they were needed.
    pub read: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Copies that were found damaged.
    pub damaged: u64,
    /// Of these, such that were mended.
    pub mended: u64,
    /// When each version that is kept was last read whole, newest first.
    pub versions: Vec<ReadVersion>,
}

/// When a version was last read whole at a level.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ReadVersion {
    /// The version.
    pub version: u64,
    /// The level.
    pub level: String,
    /// Each of its copies was last read whole so many seconds after the run began, or later.
    /// `None`: one of them was not read, or is damaged.
    pub read_seconds: Option<f64>,
}

/// What all nodes have said.
#[derive(Clone, Debug, Default)]
pub struct Scrubs {
    /// What each node said last: which agent of it, when, what.
    last: BTreeMap<u32, (u32, Time, ScrubStatus)>,
    /// What agents that were started anew, or are gone, had counted.
    before: ScrubStatus,
}

impl Scrubs {
    /// A node says something; `agent` tells one agent of it from the next.
    pub fn note(&mut self, now: Time, node: u32, agent: u32, said: ScrubStatus) {
        if let Some((known, _, last)) = self.last.get(&node)
            && (*known != agent || last.read > said.read || last.damaged > said.damaged)
        {
            let before = &mut self.before;
            before.read += last.read;
            before.read_bytes += last.read_bytes;
            before.damaged += last.damaged;
            before.mended += last.mended;
        }
        self.last.insert(node, (agent, now, said));
    }

    /// For the report; of a run that began at 0.
    pub fn entry(&self) -> ScrubEntry {
        let each = || self.last.values().map(|(_, _, said)| said);
        let before = &self.before;
        let sum = |of: fn(&ScrubStatus) -> u64| of(before) + each().map(of).sum::<u64>();
        let mut versions: BTreeMap<(Version, Level), (Option<Time>, bool)> = BTreeMap::new();
        for (_, at, said) in self.last.values() {
            for read in &said.versions {
                let when = read.ago_ms.map(|ago| at.since(Time::from_ms(ago)));
                let (known, is_there) = versions
                    .entry((read.version, read.level))
                    .or_insert((Some(Time(u64::MAX)), false));
                *known = known.zip(when).map(|(one, other)| one.min(other));
                *is_there |= !read.gone;
            }
        }
        let there = versions.into_iter().filter(|(_, (_, is_there))| *is_there);
        let newest = there.rev().take(TOLD_MAX);
        ScrubEntry {
            read: sum(|said| said.read),
            read_bytes: sum(|said| said.read_bytes),
            damaged: sum(|said| said.damaged),
            mended: sum(|said| said.mended),
            versions: newest
                .map(|((version, level), (when, _))| ReadVersion {
                    version: version.0,
                    level: level.name().to_owned(),
                    read_seconds: when.map(Time::as_secs),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(read: u64, versions: &[(u64, Option<u64>)]) -> ScrubStatus {
        let read_at = |&(version, ago_ms): &(u64, Option<u64>)| ReadAt {
            version: Version(version),
            level: Level::DISK,
            ago_ms,
            gone: false,
        };
        ScrubStatus {
            read,
            read_bytes: 10 * read,
            versions: versions.iter().map(read_at).collect(),
            ..ScrubStatus::default()
        }
    }

    #[test]
    fn a_version_is_read_when_all_nodes_have_read_it() {
        let mut all = Scrubs::default();
        let now = Time::from_secs(100);
        all.note(now, 0, 0, said(3, &[(5, Some(10_000)), (4, Some(1_000))]));
        all.note(now, 1, 0, said(2, &[(5, Some(30_000)), (4, None)]));
        let entry = all.entry();
        assert_eq!((entry.read, entry.read_bytes), (5, 50));
        let versions = entry.versions.iter();
        let versions: Vec<_> = versions.map(|it| (it.version, it.read_seconds)).collect();
        assert_eq!(versions, [(5, Some(70.0)), (4, None)]);
    }

    #[test]
    fn a_version_that_is_gone_everywhere_is_not_told() {
        let mut all = Scrubs::default();
        let gone = |versions: &[(u64, Option<u64>)]| {
            let mut said = said(0, versions);
            said.versions.iter_mut().for_each(|it| it.gone = true);
            said
        };
        all.note(Time::ZERO, 0, 0, gone(&[(5, None), (4, None)]));
        all.note(Time::ZERO, 1, 0, gone(&[(4, None)]));
        all.note(Time::ZERO, 2, 0, said(1, &[(5, Some(0))]));
        let versions = all.entry().versions;
        assert_eq!(versions.len(), 1, "of one a copy is there, and not all are");
        assert_eq!((versions[0].version, versions[0].read_seconds), (5, None));
    }

    #[test]
    fn what_an_agent_before_has_counted_counts() {
        let mut all = Scrubs::default();
        all.note(Time::ZERO, 0, 0, said(3, &[]));
        all.note(Time::ZERO, 0, 0, said(4, &[]));
        all.note(Time::ZERO, 0, 1, said(1, &[]));
        assert_eq!(all.entry().read, 5);
        // Another holder of the slot, whose agent is as new.
        all.note(Time::ZERO, 0, 1, said(0, &[]));
        assert_eq!(all.entry().read, 5);
    }
}

//! Decisions that may not have reached the storage that all nodes share: the coordinator's agent was
//! started anew while that could not be read, and the agent before may have ended between the
//! node's record and the one there.
//!
//! Invariants: such a decision stands, for all nodes have prepared it and the one before may have
//! called it stable; it is called stable by this instance only when it has been written again. No
//! round waits for that, and none is refused for it.

use super::*;

impl Commit {
    /// The driver could not see what stands in shared storage: the newest decisions there, as
    /// many as can have been on their way, are in doubt.
    pub(super) fn doubt(&mut self, cx: &C) {
        let of = self.ballot.incarnation;
        let all = self.log.commits_of(of).into_iter();
        let shared = all.filter(|(_, level, _)| level.store() == StoreKind::Shared);
        let shared = shared.filter(|_| cx.me == cx.config.coordinator);
        let newest = shared.rev().take(4 * cx.config.rounds_max as usize);
        let newest = newest.map(|(version, level, _)| (of, version, level));
        self.doubts = newest.collect();
    }

    /// True if a level of this version is in doubt.
    pub(super) fn has_doubt(&self, version: Version) -> bool {
        self.doubts
            .iter()
            .any(|(_, doubted, _)| *doubted == version)
    }

    /// Writes what is in doubt of a version again.
    pub(super) fn write_doubted(&mut self, version: Version) {
        for key in self.doubts.clone() {
            let (incarnation, doubted, level) = key;
            let under_way = |pending: &Pending| {
                matches!(pending.then, Then::Confirmed { version: one, level: at }
                    if (one, at) == (doubted, level))
            };
            let ballot = self.log.committed(key).unwrap_or(self.ballot);
            if doubted == version && !self.pending.values().any(under_way) {
                let record = Record::Commit {
                    incarnation,
                    version,
                    level,
                    ballot,
                };
                self.persist(record, Then::Confirmed { version, level });
            }
        }
    }

    pub(super) fn confirmed(&mut self, cx: &C, version: Version, level: Level, ok: bool) {
        if ok {
            self.doubts.remove(&self.key(version, level));
            self.count(cx, version, level);
        }
    }
}

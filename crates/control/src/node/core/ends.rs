//! How a version ends at this node: stable at a level, or given up.

use std::collections::BTreeSet;

use outlive_base::control_block::ControlWords;
use outlive_base::level::StoreKind;
use outlive_base::{Code, Entity, Error, Level, NodeId, Version};
use outlive_protocols::commit::{Command, Levels, Why};

use super::{Aborted, Core, News, Planted, Round};
use crate::node::shell::Shell;
use crate::orders::{Notice, Step};

impl<S: Shell> Core<S> {
    /// A copy was not made. What the storage of another node refuses is told by that
    /// node, once.
    pub(in crate::node) fn warn_of_copy(&mut self, store: StoreKind, error: Error) {
        let of_storage = matches!(
            error.code(),
            Code::NoSpace | Code::Permission | Code::Io | Code::NotFound
        );
        let of_server = matches!(error.entity(), Entity::Address(_) | Entity::Region(_));
        match (error.entity(), of_storage && !of_server) {
            (Entity::Node(node), true) if *node != self.me.0 => {
                tracing::info!(%error, "another node's storage");
            }
            (_, true) if store != StoreKind::Shared => self.warn_of_storage(error),
            _ => self.warn(error),
        }
    }

    /// Nothing comes of a version here at these levels.
    pub(super) fn levels_failed(&mut self, version: Version, levels: Levels, why: Why) {
        for level in levels.iter() {
            self.command(Command::LevelFailed {
                version,
                level,
                why,
            });
        }
    }

    /// True if a level of the job puts containers into node storage.
    pub(super) fn has_containers_here(&self) -> bool {
        let mut levels = self.all_levels().iter();
        levels.any(|level| level.store().is_of_nodes())
    }

    pub(in crate::node) fn on_stable(&mut self, version: Version, level: Level) {
        self.span_stable(version, level);
        let at = (self.open.incarnation(), version);
        // Also if a newer one is known: an agent that was started anew hears of what it has
        // found in the slots after what it was told first, and waits for its levels.
        let newer = self.line.newest.get(&level) >= Some(&at);
        let ignored = newer && self.is_planted(Planted::IgnoreOlderStable);
        let unknown = self.has_unknown_levels(version);
        if let Some(round) = self.rounds.get_mut(&version)
            && !ignored
            && !unknown
        {
            round.levels = round.levels.with(level);
            // No version gets more levels once all nodes have captured it.
            round.unsure = false;
        }
        let newest = self.line.newest.get(&level).is_none_or(|known| *known < at);
        self.news(News::Stable {
            version,
            level,
            newest,
        });
        if newest {
            self.line.newest.insert(level, at);
        }
        if unknown && !ignored {
            self.end_unknown(version, level);
        }
        // The older, which took longer to be written, is as stable, and counted.
        if self.is_coordinator() {
            self.tell(&Notice::Checkpoint {
                version,
                step: Step::Stable(level),
            });
        }
        if !newest {
            return self.retire_rounds();
        }
        self.line.stable.insert((at.0, at.1, level));
        if let Some(known) = self.line.levels.get_mut(&at) {
            known.insert(level);
        }
        self.ranks.set_committed(level, version);
        self.retire_rounds();
        // A slot may be free now: for what waits here, and for what is wanted next.
        self.try_deferred();
        self.look_for_the_next();
    }

    /// Met by an agent that was started anew: its levels are still to come.
    fn has_unknown_levels(&self, version: Version) -> bool {
        let round = self.rounds.get(&version);
        round.is_some_and(|round| round.levels.is_empty() && !round.void)
    }

    /// A level of such a version has ended. Once all that it can have had ended, nobody will say
    /// any more which it had; until then those that are left are still to be written here.
    fn end_unknown(&mut self, version: Version, level: Level) {
        let at = (self.open.incarnation(), version);
        let used = self.all_levels();
        let Some(round) = self.rounds.get_mut(&version) else {
            return;
        };
        round.ended = round.ended.with(level);
        if !used.iter().all(|level| round.ended.contains(level)) {
            return;
        }
        let known = |level: &Level| self.line.newest.get(level) >= Some(&at);
        let stable = used.iter().filter(known);
        round.levels = stable.fold(Levels::NONE, Levels::with);
        // Known from now on: a rank that waits for more than that waits for nothing.
        self.line.levels.insert(at, round.levels.iter().collect());
        if round.levels.is_empty() {
            self.withdraw(version);
        }
    }

    /// The version will not be taken, a larger one perhaps. A rank may have captured it
    /// all the same, and wait for it.
    pub(super) fn on_disarmed(&mut self, version: Version) {
        // Also where they were not known, after a restart of this agent: that there are none is
        // known now, and a rank may wait for them.
        let at = (self.open.incarnation(), version);
        self.line.levels.insert(at, BTreeSet::new());
        self.withdraw(version);
        self.try_deferred();
        self.news(News::Disarmed(version));
    }

    /// A decision is known here before it is durable. One that could not be recorded must not
    /// count when this version is restored: older ones would go for it (P3).
    fn forget_decisions(&mut self, version: Version, level: Option<Level>) {
        if self.is_planted(Planted::CountUnrecorded) {
            return;
        }
        let source = self.open.incarnation();
        let ended = level.map_or_else(|| self.all_levels(), |level| Levels::of(&[level]));
        for level in ended.iter() {
            if !self.line.stable.contains(&(source, version, level)) {
                self.contents.undecided(source, version, level);
            }
        }
    }

    pub(super) fn on_aborted(
        &mut self,
        version: Version,
        level: Option<Level>,
        why: Why,
        culprit: Option<NodeId>,
    ) {
        self.forget_decisions(version, level);
        self.span_ended(version, level);
        let at = (self.open.incarnation(), version);
        match level {
            Some(level) => {
                let known = self.line.levels.get_mut(&at);
                known.map(|known| known.remove(&level));
            }
            // Also where they were not known: ranks find their new agent after this, and after the
            // end of a later version, which is what their blocks say then.
            None => drop(self.line.levels.insert(at, BTreeSet::new())),
        }
        // A level that is not in use: an agent that was started anew asks for all.
        let mut quiet = level.is_some_and(|level| !self.all_levels().contains(level));
        if let Some(level) = level {
            self.deferred.end(version, level);
        }
        if let Some(level) = level
            && self.has_unknown_levels(version)
        {
            self.end_unknown(version, level);
        }
        if let (Some(level), Some(round)) = (level, self.rounds.get_mut(&version)) {
            round.ended = round.ended.with(level);
            // Met again after a restart: a level that it never had is no news.
            quiet |= !round.levels.contains(level);
            round.levels = round.levels.without(level);
            if !quiet && round.levels.is_empty() {
                // Nothing will come of it, captured or not: the slots are free again.
                self.withdraw(version);
            }
        }
        if level.is_none() {
            let spent = why != Why::Unarmed || self.is_planted(Planted::EndUnarmed);
            for block in self.ranks.iter().filter_map(|entry| entry.block()) {
                if spent {
                    block.set_aborted(version);
                }
            }
            // The word of what was captured in its place may be behind this one.
            if why == Why::Passed
                && let Some(round) = self.rounds.get(&version).filter(|round| !round.void)
            {
                self.passed = Some((version, round.levels));
            }
            if spent || !self.begin_again(version) {
                self.withdraw(version);
            }
        }
        let live = |round: &Round| !round.void && !round.levels.is_empty();
        let live = self.rounds.get(&version).is_some_and(live);
        self.news(News::Aborted(Aborted {
            version,
            level,
            why,
            culprit,
            live,
        }));
        // Ranks that had passed, or memory still being made, are no failure.
        quiet |= level.is_none() && why == Why::NoRoom;
        quiet |= matches!(why, Why::Passed | Why::Left | Why::MadeWay | Why::Unarmed);
        if self.is_coordinator() && !quiet {
            let error = abort_error(version, why, culprit);
            self.tell(&Notice::Checkpoint {
                version,
                step: Step::Aborted { level, error },
            });
        }
        self.retire_rounds();
        self.try_deferred();
    }
}

/// In words, why nothing came of a version.
pub(in crate::node) fn abort_error(version: Version, why: Why, culprit: Option<NodeId>) -> Error {
    let entity = culprit.map_or(Entity::Version(version.0), |node| Entity::Node(node.0));
    let (code, reason, remedy) = match why {
        Why::Timeout => (
            Code::CommitAborted,
            "did not answer within its bound",
            "raise --commit-timeout if storage is slow; look at the node otherwise",
        ),
        Why::NoRoom | Why::MadeWay | Why::Unarmed => (
            Code::MemoryBudget,
            "no staging memory",
            "raise --memory or protect less",
        ),
        Why::RankLost => (Code::RankLost, "a rank ended", "the job is restarted"),
        Why::Overtaken | Why::Passed => (
            Code::CommitAborted,
            "a rank passed the version or left the job",
            "let all ranks offer the same versions",
        ),
        Why::Storage => (
            Code::Io,
            "could not be written or verified",
            "see the warnings",
        ),
        // Of storage or of a connection: whoever met it says which.
        Why::Partner => (
            Code::CommitAborted,
            "no copy was made on another node",
            "see the warnings, or what was told of that node",
        ),
        Why::NodeLost => (Code::NodeLost, "a node was lost", "the job is restarted"),
        _ => (
            Code::CommitAborted,
            "the round ended",
            "nothing: the next version will be offered",
        ),
    };
    Error::new(code, entity, reason, remedy)
}

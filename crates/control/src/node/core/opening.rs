//! Opening an incarnation on this node: what can be supplied, rebuilding, readiness.

use std::collections::BTreeSet;

use outlive_base::level::StoreKind;
use outlive_base::placement::ranks_of;
use outlive_base::{Code, Entity, Error, Incarnation, Level, NodeId, Result, Version};
use outlive_ledger::Part;
use outlive_protocols::commit::{Command, Rebuilding, Why};
use outlive_protocols::nodes::NodeSet;

use super::contents::short;
use super::missing::Missing;
use super::ranks::Use;
use super::{Core, News, Opening, Planted};
use crate::node::shell::{Ask, Found, Rebuild, Rebuilt, Shell};
use crate::orders::{Notice, Opened, Rejected};

impl<S: Shell> Core<S> {
    /// The launcher opens an incarnation.
    pub(super) fn open(
        &mut self,
        incarnation: Incarnation,
        replaced: Vec<NodeId>,
        (fenced, fresh): (bool, bool),
        history: Incarnation,
    ) {
        if self.config.is_none() {
            // The launcher asked the agent before this one. When it has heard this one's greeting
            // it tells it of the job, and asks again.
            return;
        }
        let under_way = self.opening.as_ref().map(|opening| opening.incarnation);
        if under_way == Some(incarnation) {
            // Asked again: the order was not lost, the answer will come.
            return;
        }
        // An agent that no keeper had to start anew, and that has opened nothing, takes part
        // in nothing: the number in its records is of an earlier run.
        let known = self.commit.as_ref().map(|driver| driver.machine().known());
        let known = known.unwrap_or_default();
        let is_new = self.restarts.is_none_or(|restarts| restarts == 0);
        let idle = self.opening.is_none() && self.open.told().is_empty();
        let tells = incarnation == known && self.is_planted(Planted::TellOpened);
        if is_new && idle && incarnation <= known && !tells {
            return self.on_open_failed(incarnation, Why::Stale, None, known);
        }
        let has_open = self.machine().is_some_and(|it| it.has_open(incarnation));
        let has_open = has_open && !self.is_planted(Planted::AwaitWord);
        let is_open = has_open || self.open.incarnation() == incarnation;
        if self.opening.is_none() && is_open {
            return self.answer_again(incarnation, known);
        }
        self.leaving.clear();
        self.ranks.end_incarnation();
        // Routed files that no rank of the ended incarnation will capture any more.
        self.shell.ask(Ask::EndRouted { but: incarnation });
        self.rounds.clear();
        self.deferred.take();
        self.passed = None;
        self.asks.clear();
        self.news(News::Opening);
        self.open.close();
        let set = NodeSet::of(self.nodes(), replaced.iter().map(|node| node.0));
        self.opening = Some(Opening {
            incarnation,
            since: self.now,
            replaced,
            level: None,
            bytes: 0,
            rejected: Vec::new(),
            checking: None,
            damaged: BTreeSet::new(),
            short: None,
        });
        self.greet_early();
        self.command(Command::Open {
            incarnation,
            replaced: set,
            fenced,
            fresh,
            history,
        });
    }

    /// Asked to open what is open: the answer was lost, or the agent that opened it ended.
    fn answer_again(&mut self, incarnation: Incarnation, known: Incarnation) {
        let word = self.before.as_ref();
        if word.is_some_and(|word| word.incarnation == incarnation) {
            // Told when the others have said that they take part.
            return;
        }
        let told = match self.open.incarnation() == incarnation {
            true => self.open.told().to_vec(),
            false => Vec::new(),
        };
        if told.is_empty() && self.is_coordinator() {
            if self.is_planted(Planted::TellOpened) {
                return self.tell(&self.opened_before(incarnation));
            }
            // The agent before this one ended before it left word, or it is of an earlier run: which
            // of them cannot be known, and another number opens the same.
            return self.on_open_failed(incarnation, Why::Stale, None, known);
        }
        for notice in told {
            self.tell(&notice);
        }
    }

    /// The commit machine asks what this node can supply.
    pub(super) fn collect_inventory(&mut self, incarnation: Incarnation) {
        self.shell.ask(Ask::Inventory { incarnation });
    }

    /// Versions of which the ranks here hold complete captures.
    fn held(&self) -> BTreeSet<(Incarnation, Version)> {
        // Which ranks live here depends on the number of ranks at that version.
        let counts: BTreeSet<u32> = self.ranks.iter().map(|entry| entry.ranks).collect();
        let (me, nodes) = (self.me, self.nodes());
        let held = counts.into_iter();
        held.flat_map(|ranks| self.ranks.held(me, ranks, nodes))
            .collect()
    }

    pub(super) fn on_inventory(&mut self, incarnation: Incarnation, found: Result<Found>) {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.warn(error);
                return self.command(Command::InventoryDone { incarnation });
            }
        };
        for error in found.errors {
            self.warn(error);
        }
        if let Some(incarnation) = found.newest {
            self.command(Command::Trace { incarnation });
        }
        // A job without that level may have nodes from which it was never to be seen.
        let uses = self.all_levels().uses(StoreKind::Shared);
        if uses && !found.unseen.is_empty() {
            self.command(Command::Blind);
        }
        for error in found.unseen {
            match uses {
                true => self.warn(error),
                false => tracing::info!(%error, "shared storage is not looked at"),
            }
        }
        if let Some(text) = found.text {
            self.tell(&Notice::Trace { text });
        }
        for record in &found.records {
            self.contents.learn(record);
            if let Some(record) = short(record) {
                self.command(Command::Found { record });
            }
        }
        let me = self.me;
        let held = self
            .held()
            .into_iter()
            .map(|(source, version)| (source, version, me));
        let available: BTreeSet<_> = found.available.into_iter().chain(held).collect();
        for (source, version, node) in available {
            self.command(Command::Available {
                source,
                version,
                node,
            });
        }
        for (source, version, level) in found.parities {
            self.command(Command::Piece {
                source,
                version,
                level,
            });
        }
        // A node on which no rank lives can always supply its nothing.
        let mut nothing = self.contents.versions();
        nothing.retain(|&(source, version)| self.is_empty_at(source, version));
        nothing.extend(self.contents.empty_parts(me));
        if self.is_planted(Planted::SupplyNoNothing) {
            nothing.clear();
        }
        for (source, version) in nothing {
            self.command(Command::Available {
                source,
                version,
                node: me,
            });
        }
        self.command(Command::InventoryDone { incarnation });
    }

    fn is_empty_at(&self, source: Incarnation, version: Version) -> bool {
        let ranks = self.contents.ranks_of(source, version);
        self.ranks.none_here(self.me, self.nodes(), ranks)
    }

    /// The commit machine wants a version brought into memory.
    pub(super) fn rebuild(&mut self, source: Incarnation, version: Version) {
        let Some(ranks_total) = self.contents.ranks_of(source, version) else {
            self.warn(Error::internal(format!(
                "no commit record of version {}",
                version.0
            )));
            return self.command(Command::Rebuilt {
                source,
                version,
                outcome: Rebuilding::Unusable,
            });
        };
        if self.is_empty_at(source, version) {
            return self.command(Command::Rebuilt {
                source,
                version,
                outcome: Rebuilding::Done,
            });
        }
        let rebuild = self.rebuild_of(source, version, ranks_total);
        self.shell.ask(Ask::Rebuild(rebuild));
    }

    /// The incarnation that is being opened, else the open one.
    pub(super) fn opening_or_open(&self) -> Incarnation {
        let opening = self.opening.as_ref();
        opening.map_or(self.open.incarnation(), |opening| opening.incarnation)
    }

    fn rebuild_of(
        &mut self,
        source: Incarnation,
        version: Version,
        ranks_total: u32,
    ) -> Rebuild<S::Slab> {
        let nodes = self.nodes();
        let complete = ranks_of(self.me, ranks_total, nodes).all(|rank| {
            self.ranks.get_mut(rank).is_some_and(|entry| {
                entry.ranks == ranks_total && entry.slot_with(source, version).is_some()
            })
        });
        let opening = self.opening.as_mut();
        let damaged = opening.is_some_and(|opening| {
            let damaged = opening.damaged.contains(&(source, version));
            opening.checking = (complete && !damaged).then_some((source, version));
            damaged
        });
        let complete = complete && !damaged;
        let mut unused = Vec::new();
        if !complete {
            // Room for the new slabs: what is there is not wanted any more. Nor is a capture
            // of this version that some ranks have: it would lie in both their slots.
            for entry in self.ranks.iter_mut() {
                for slot in &mut entry.slots {
                    slot.usage = Use::Free;
                    unused.extend(slot.staged.take().map(|it| it.slab));
                    // What comes of it is given back at once.
                    slot.making = None;
                }
            }
        }
        let in_memory = complete
            .then(|| self.captures(source, version, ranks_total))
            .and_then(Result::ok);
        let mut parts: Vec<_> = self
            .contents
            .parts_of(source, version, self.me)
            .into_iter()
            .map(|(level, part)| (level, part.clone()))
            .collect();
        self.guess_parts(&mut parts, complete);
        if complete {
            // While this copy is there no other has room; if it is damaged, it goes.
            parts.retain(|(level, _)| level.store() == StoreKind::Keeper);
        }
        let made_of = parts.iter().filter_map(|(level, _)| {
            let (group, parts) = self.contents.group(source, version, *level, self.me)?;
            Some((*level, (group, parts)))
        });
        Rebuild {
            source,
            version,
            incarnation: self.opening_or_open(),
            ranks_total,
            made_of: made_of.collect(),
            parts,
            in_memory,
            budget: self.spec.memory_bytes.saturating_sub(self.ranks.memory()),
            unused,
        }
    }

    /// Every level's copy of a node has the same bytes, so a copy may exist at a
    /// level whose commit record is not known here: it is tried last, against the
    /// same digest.
    fn guess_parts(&self, parts: &mut Vec<(Level, Part)>, in_memory: bool) {
        let Some(known) = parts.first().map(|(_, part)| part.clone()) else {
            return;
        };
        let holders = [
            (Level::MEMORY, in_memory.then_some(self.me)),
            (Level::DISK, Some(self.me)),
            (Level::PARTNER, self.partner_of(self.me, known.id.version)),
            (Level::SHARED, Some(NodeId::LAUNCHER)),
        ];
        for (level, holder) in holders {
            let missing = parts.iter().all(|(known, _)| *known != level);
            if let (true, Some(holder)) = (missing, holder) {
                parts.push((
                    level,
                    Part {
                        holder,
                        ..known.clone()
                    },
                ));
            }
        }
        parts.retain(|(level, _)| level.store() != StoreKind::Keeper || in_memory);
        parts.sort_by_key(|(level, _)| *level);
    }

    pub(super) fn on_rebuilt(
        &mut self,
        source: Incarnation,
        version: Version,
        result: Result<Rebuilt<S::Slab>>,
    ) {
        let outcome = match result {
            Ok(rebuilt) => {
                let Rebuilt {
                    level,
                    bytes,
                    slabs,
                    rejected,
                } = rebuilt;
                let total = self.contents.ranks_of(source, version).unwrap_or(0);
                for (rank, slab) in slabs {
                    let entry = self.ranks.entry(rank, total);
                    entry.ranks = total;
                    entry.install(0, slab, Use::Full { source, version });
                    self.keep_slab(rank, 0);
                }
                if let Some(opening) = &mut self.opening {
                    opening.level = Some(level);
                    opening.bytes += bytes;
                }
                for error in rejected {
                    // A new node has nothing: that its copies are missing is no news.
                    if error.code() != Code::NotFound {
                        self.warn(error);
                    }
                }
                Rebuilding::Done
            }
            Err(error) if self.was_checking(source, version) => {
                self.warn(error);
                return self.rebuild(source, version);
            }
            Err(error) => {
                if let Some(opening) = &mut self.opening {
                    opening.rejected.push(Rejected {
                        version,
                        reason: error.reason().to_owned(),
                    });
                }
                // Copies are looked for there whatever the levels: a job without that level goes on.
                let uses_shared = self.all_levels().uses(StoreKind::Shared);
                let outcome = match error.code() {
                    Code::Io if uses_shared => Rebuilding::Unreadable,
                    Code::AgentUnreachable => Rebuilding::OutOfReach,
                    _ => Rebuilding::Unusable,
                };
                self.warn(error);
                outcome
            }
        };
        self.command(Command::Rebuilt {
            source,
            version,
            outcome,
        });
    }

    /// True if it was the copy in memory that cannot be used: it is not tried again.
    fn was_checking(&mut self, source: Incarnation, version: Version) -> bool {
        let again = self.is_planted(Planted::TryMemoryAgain);
        let Some(opening) = &mut self.opening else {
            return false;
        };
        let checked = opening.checking.take() == Some((source, version));
        checked && (again || opening.damaged.insert((source, version)))
    }

    pub(super) fn on_opened(
        &mut self,
        incarnation: Incarnation,
        restored: Option<(Incarnation, Version)>,
        skipped: u16,
        uncertain: bool,
    ) {
        let Some(opening) = self.opening.take() else {
            return;
        };
        self.open.begin(incarnation, restored, self.now);
        self.line.newest.clear();
        self.doubt_unrecorded();
        if let Some((source, version)) = restored {
            self.restore_line(source, version);
        }
        if !self.is_planted(Planted::KeepVoidCaptures) {
            self.ranks.drop_after(restored);
        }
        self.span_opened(restored.map(|(_, it)| it), opening.bytes, opening.since);
        let ranks = restored.and_then(|(source, version)| self.contents.ranks_of(source, version));
        // Ranks of another count have no place in this incarnation.
        if self.is_coordinator() {
            let mut rejected = opening.rejected;
            for _ in rejected.len()..skipped as usize {
                rejected.push(Rejected {
                    version: Version(0),
                    reason: "could not be rebuilt on another node".into(),
                });
            }
            let opened = Opened {
                incarnation,
                restored: restored.map(|(_, version)| version),
                level: opening.level,
                ranks: ranks.unwrap_or(0),
                rebuild_ms: self.now.since(opening.since).as_ms(),
                rebuilt_bytes: opening.bytes,
                rejected,
                uncertain,
            };
            self.shell.leave_word(&opened);
            let notice = Notice::Opened(opened);
            self.tell(&notice);
            self.open.was_told(notice);
        }
        let notice = Notice::NodeReady {
            incarnation,
            level: opening.level,
            rebuilt_bytes: opening.bytes,
        };
        self.tell(&notice);
        self.open.was_told(notice);
        if let Some((source, version)) = restored {
            self.protect_again(source, version, &opening.replaced);
        }
        self.news(News::Opened {
            restored,
            replaced: opening.replaced,
        });
    }

    /// What the restored version is worth: it lies in memory everywhere now, and
    /// keeps the levels at which it was committed.
    ///
    /// A node that was lost, at this opening or at one before, may have decided more levels than
    /// anybody else has heard of: their copies of it are as good as those of a committed one, and
    /// stay as long.
    pub(super) fn restore_line(&mut self, source: Incarnation, version: Version) {
        let mut levels = self.contents.levels_of(source, version);
        levels.insert(Level::MEMORY);
        for &level in &levels {
            self.line.newest.insert(level, (source, version));
            self.line.stable.insert((source, version, level));
        }
        if !self.is_planted(Planted::ForgetMaybeCommitted) {
            levels.extend(self.all_levels().iter());
        }
        self.line.levels.insert((source, version), levels);
    }

    /// After a node was replaced, the restored version lacks copies: the new node's
    /// own container, and what the lost node kept for others. The slabs hold the
    /// same bytes, so the same containers are written again.
    fn protect_again(&mut self, source: Incarnation, version: Version, replaced: &[NodeId]) {
        let mut missing = Vec::new();
        let levels = self.all_levels();
        if replaced.contains(&self.me) {
            let stored = levels.iter().filter(|it| it.store().is_of_nodes());
            missing.extend(stored);
        } else if self
            .partner_at(source, version)
            .is_some_and(|partner| replaced.contains(&partner))
        {
            missing.extend(levels.iter().filter(|it| it.has_partner()));
        }
        missing.retain(|level| {
            levels.contains(*level)
                && self
                    .contents
                    .part(source, version, *level, self.me)
                    .is_some()
        });
        if missing.is_empty() || self.is_empty_at(source, version) {
            return;
        }
        let levels = outlive_protocols::commit::Levels::of(&missing);
        let total = self.contents.ranks_of(source, version).unwrap_or(0);
        match self.flush_at(source, version, total) {
            Ok(mut flush) => {
                flush.keep_targets(levels);
                flush.quiet = true;
                self.shell.ask(Ask::Flush(flush));
            }
            Err(error) => self.warn(error),
        }
    }

    pub(super) fn on_open_failed(
        &mut self,
        incarnation: Incarnation,
        why: Why,
        culprit: Option<NodeId>,
        known: Incarnation,
    ) {
        let opening = self.opening.take();
        // Not the node's own storage, for which another could take its place.
        let refused =
            why == Why::Storage && culprit == Some(self.me) && self.trouble.is_by_shared();
        let of_all = matches!(why, Why::Unreadable | Why::OutOfReach) || refused;
        let entity = culprit
            .filter(|_| !of_all)
            .map_or(Entity::Job(self.spec.job.to_string()), |n| {
                Entity::Node(n.0)
            });
        let number = incarnation.0;
        let (code, reason, remedy) = match why {
            Why::NothingUsable => {
                let opening = opening.as_ref();
                (
                    Code::NoValidCheckpoint,
                    Missing {
                        nodes: self.nodes(),
                        lost: opening.map_or(&[][..], |it| &it.replaced),
                        culprit,
                        rejected: opening.map_or(&[][..], |it| &it.rejected),
                        pieces: opening.and_then(|it| it.short.as_ref()),
                    }
                    .told(&self.contents),
                    "bring back what is missing (outlive checkpoints verify lists it), or \
                     begin anew with --fresh",
                )
            }
            Why::NoRecord => (
                Code::NoValidCheckpoint,
                "versions of this job were committed, and no record of one can be read".to_owned(),
                "bring back what was removed or damaged, or begin anew with --fresh",
            ),
            Why::NoQuorum => (
                Code::NoQuorum,
                format!("start {number} did not open: too few nodes of the last start answer"),
                "end all processes of the job, then start it again",
            ),
            Why::Storage if refused && self.trouble.is_superseded() => (
                Code::JobBusy,
                format!(
                    "start {number} did not open: another run of the job has opened one since, in \
                     what all nodes share"
                ),
                "let that run go on; when it has ended, the same command goes on from where it was",
            ),
            Why::Storage if refused => (
                Code::Io,
                format!("start {number} did not open: the shared directory takes no record of it"),
                "see the warnings: it is full or out of reach; this is tried again",
            ),
            Why::Storage => (
                Code::Io,
                format!("start {number} did not open: a record could not be written"),
                "see the warnings: the node's storage is full or broken",
            ),
            Why::Unreadable | Why::OutOfReach => out_of_sight(number, why, culprit),
            Why::Stale => (
                Code::JobBusy,
                format!(
                    "start {number} did not open: number {} was used before",
                    known.0
                ),
                "let one run at a time use a job's store",
            ),
            _ => (
                Code::AgentTimeout,
                format!("start {number} did not open within --recovery-timeout"),
                "raise --recovery-timeout or look at the node",
            ),
        };
        let error = Error::new(code, entity, reason, remedy);
        // Another number would only take the job from who runs it.
        let known = match refused && self.trouble.is_superseded() {
            true => Incarnation(0),
            false => known,
        };
        self.tell(&Notice::OpenFailed {
            incarnation,
            error,
            known,
        });
    }
}

/// An older version than may lie where a node does not see is not taken: what to say of it.
fn out_of_sight(number: u32, why: Why, culprit: Option<NodeId>) -> (Code, String, &'static str) {
    let node = culprit.map_or_else(|| "a node".to_owned(), |node| node.to_string());
    match why {
        Why::OutOfReach => (
            Code::AgentUnreachable,
            format!(
                "start {number} did not open: {node} cannot reach the node that has its copy of the \
                 newest version, and an older one is not taken"
            ),
            "look at the network between them (outlive doctor): this is tried again; end the node \
             that has it, if it cannot come back",
        ),
        _ => (
            Code::Io,
            format!(
                "start {number} did not open: {node} cannot read the shared directory, and an older \
                 version than may lie in it is not taken"
            ),
            "bring it back: this is tried again; or name levels without shared (--levels), and what \
             lies elsewhere is taken",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::still::{Still, alone};

    /// The order was meant for the agent before this one, and overtook the word of the job. It
    /// comes again with that.
    #[test]
    fn an_agent_that_does_not_know_its_job_yet_opens_nothing() {
        let mut agent = alone(0);
        let open = |agent: &mut Core<Still>| {
            agent.open(Incarnation(2), Vec::new(), (true, false), Incarnation(1));
            agent.opening.as_ref().map(|it| it.incarnation)
        };
        let job = agent.config.take();
        assert!(job.is_some());
        assert_eq!(open(&mut agent), None);
        agent.config = job;
        assert_eq!(open(&mut agent), Some(Incarnation(2)));
    }
}

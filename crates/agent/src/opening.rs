//! Opening an incarnation on this node: what can be supplied, rebuilding, readiness.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use outlive_base::placement::ranks_of;
use outlive_base::{Code, Entity, Error, Incarnation, Level, NodeId, Result, Version};
use outlive_protocols::commit::{Command, Why};
use outlive_protocols::nodes::NodeSet;
use outlive_vault::{Inventory, Record, Trace};

use crate::contents::short;
use crate::core::{Agent, Opening, Work};
use crate::ranks::Use;
use crate::rebuild::{Rebuild, Rebuilt};
use outlive_control::orders::{Notice, Opened, Rejected};

/// What an inventory shows besides versions.
pub(crate) struct Traces {
    /// The newest incarnation of which something shows that versions were committed.
    pub newest: Option<Incarnation>,
    /// For people: what lies here, if it is no committed version.
    pub text: Option<String>,
    /// What could not be read.
    pub errors: Vec<Error>,
}

impl Agent {
    /// The launcher opens an incarnation.
    pub(crate) fn open(
        &mut self,
        incarnation: Incarnation,
        replaced: Vec<NodeId>,
        (fenced, fresh): (bool, bool),
        history: Incarnation,
    ) {
        let under_way = self.opening.as_ref().map(|opening| opening.incarnation);
        if under_way == Some(incarnation) {
            // Asked again: the order was not lost, the answer will come.
            return;
        }
        // An agent that no keeper had to start anew, and that has opened nothing, takes part
        // in nothing: the number in its records is of an earlier run.
        let known = self.commit.as_ref().map(|driver| driver.machine().known());
        let known = known.unwrap_or_default();
        let is_new = self
            .deposit
            .as_ref()
            .is_none_or(|it| it.agent_restarts() == 0);
        let idle = self.opening.is_none() && self.opened.is_empty();
        if is_new && idle && incarnation <= known {
            return self.on_open_failed(incarnation, Why::Stale, None, known);
        }
        if self.opening.is_none() && self.incarnation == incarnation {
            // The answer was lost.
            for notice in self.opened.clone() {
                self.tell(&notice);
            }
            return;
        }
        self.opened.clear();
        self.ranks.end_incarnation();
        self.remove_routed(incarnation);
        self.rounds.clear();
        self.deferred = None;
        self.waits.clear();
        self.asks.clear();
        self.injections.retain(|injection| !injection.told);
        for injection in &mut self.injections {
            injection.held.clear();
        }
        self.policy.wanted = None;
        self.incarnation = Incarnation(0);
        self.restored = None;
        self.job_ranks = None;
        let set = NodeSet::of(self.nodes(), replaced.iter().map(|node| node.0));
        self.opening = Some(Opening {
            incarnation,
            since: Instant::now(),
            replaced,
            level: None,
            bytes: 0,
            rejected: Vec::new(),
            checking: None,
            damaged: BTreeSet::new(),
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

    /// Routed files that no rank of the ended incarnation will capture any more.
    fn remove_routed(&mut self, incarnation: Incarnation) {
        let store = Arc::clone(&self.store);
        let mine = format!("i{}-", incarnation.0);
        let job = move || {
            let entries = std::fs::read_dir(store.files()).into_iter().flatten();
            for entry in entries.flatten() {
                // Ranks of the new incarnation may have begun to write.
                let stays = entry.file_name().to_string_lossy().starts_with(&mine);
                if !stays && let Err(error) = std::fs::remove_dir_all(entry.path()) {
                    tracing::warn!(%error, directory = %entry.path().display(), "not removed");
                }
            }
        };
        if let Err(error) = self.incoming.run(job) {
            tracing::warn!(%error, "routed files stay");
        }
    }

    /// The commit machine asks what this node can supply.
    pub(crate) fn collect_inventory(&mut self, incarnation: Incarnation) {
        let (store, shared, me) = (Arc::clone(&self.store), Arc::clone(&self.shared), self.me);
        let (nodes, job_hash) = (self.nodes(), self.spec.job_hash);
        let work = self.work.clone();
        let mut available: Vec<(Incarnation, Version, NodeId)> = Vec::new();
        // Which ranks live here depends on the number of ranks at that version.
        let mut held: Vec<(Incarnation, Version)> = Vec::new();
        for ranks in self
            .ranks
            .iter()
            .map(|entry| entry.ranks)
            .collect::<std::collections::BTreeSet<_>>()
        {
            held.extend(self.ranks.held(me, ranks, nodes));
        }
        available.extend(
            held.into_iter()
                .map(|(source, version)| (source, version, me)),
        );
        let job = move || {
            // A directory that cannot be listed supplies nothing, and says so.
            let here = Inventory::of_node(me, store.root(), job_hash);
            let there = Inventory::of_shared(shared.root(), job_hash);
            let traces = look_for_traces(&here, &there);
            let mine = there.copies.iter().filter(|found| found.id.node == me);
            for found in here.copies.iter().chain(mine) {
                available.push((found.id.incarnation, found.id.version, found.id.node));
            }
            available.sort_unstable();
            available.dedup();
            let _ = work.send(Work::Inventory {
                incarnation,
                available,
                records: there.records,
                traces,
            });
        };
        if let Err(error) = self.incoming.run(job) {
            self.warn(error);
            self.command(Command::InventoryDone { incarnation });
        }
    }

    /// What the storage here shows besides versions.
    pub(crate) fn on_traces(&mut self, traces: Traces) {
        for error in traces.errors {
            self.warn(error);
        }
        if let Some(incarnation) = traces.newest {
            self.command(Command::Trace { incarnation });
        }
        if let Some(text) = traces.text {
            self.tell(&Notice::Trace { text });
        }
    }

    pub(crate) fn on_inventory(
        &mut self,
        incarnation: Incarnation,
        available: Vec<(Incarnation, Version, NodeId)>,
        records: Vec<Record>,
    ) {
        for record in &records {
            self.contents.learn(record);
            if let Some(record) = short(record) {
                self.command(Command::Found { record });
            }
        }
        for (source, version, node) in available {
            self.command(Command::Available {
                source,
                version,
                node,
            });
        }
        // A node on which no rank lives can always supply its nothing.
        for (source, version) in self.contents.versions() {
            if self.is_empty_at(source, version) {
                self.command(Command::Available {
                    source,
                    version,
                    node: self.me,
                });
            }
        }
        self.command(Command::InventoryDone { incarnation });
    }

    fn is_empty_at(&self, source: Incarnation, version: Version) -> bool {
        let ranks = self.contents.ranks_of(source, version);
        self.ranks.none_here(self.me, self.nodes(), ranks)
    }

    /// The commit machine wants a version brought into memory.
    pub(crate) fn rebuild(&mut self, source: Incarnation, version: Version) {
        let Some(ranks_total) = self.contents.ranks_of(source, version) else {
            self.warn(Error::internal(format!(
                "no commit record of version {}",
                version.0
            )));
            return self.command(Command::Rebuilt {
                source,
                version,
                ok: false,
            });
        };
        if self.is_empty_at(source, version) {
            return self.command(Command::Rebuilt {
                source,
                version,
                ok: true,
            });
        }
        let rebuild = self.rebuild_of(source, version, ranks_total);
        let (work, incarnation) = (self.work.clone(), rebuild.incarnation);
        let job = move || {
            let _ = work.send(Work::Rebuilt {
                incarnation,
                source,
                version,
                result: rebuild.run(),
            });
        };
        if let Err(error) = self.outgoing.run(job) {
            self.warn(error);
            self.command(Command::Rebuilt {
                source,
                version,
                ok: false,
            });
        }
    }

    /// The incarnation that is being opened, else the open one.
    pub(crate) fn opening_or_open(&self) -> Incarnation {
        let opening = self.opening.as_ref();
        opening.map_or(self.incarnation, |opening| opening.incarnation)
    }

    fn rebuild_of(&mut self, source: Incarnation, version: Version, ranks_total: u32) -> Rebuild {
        let target = Use::Full { source, version };
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
            // Room for the new slabs: what is there is not wanted any more.
            for entry in self.ranks.iter_mut() {
                for slot in &mut entry.slots {
                    if slot.usage != target || damaged {
                        slot.usage = Use::Free;
                        unused.extend(slot.staged.take());
                        // What comes of it is given back at once.
                        slot.making = None;
                    }
                }
            }
        }
        let in_memory = complete
            .then(|| self.flush_at(source, version, ranks_total))
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
            parts.retain(|(level, _)| *level == Level::Memory);
        }
        Rebuild {
            source,
            version,
            node: self.me,
            incarnation: self.opening_or_open(),
            job_hash: self.spec.job_hash,
            ranks_total,
            parts,
            in_memory,
            store: Arc::clone(&self.store),
            shared: Arc::clone(&self.shared),
            endpoint: Arc::clone(&self.endpoint),
            budget: self.spec.memory_bytes.saturating_sub(self.ranks.memory()),
            unused,
        }
    }

    /// Every level's copy of a node has the same bytes, so a copy may exist at a
    /// level whose commit record is not known here: it is tried last, against the
    /// same digest.
    fn guess_parts(&self, parts: &mut Vec<(Level, outlive_vault::Part)>, in_memory: bool) {
        let Some(known) = parts.first().map(|(_, part)| part.clone()) else {
            return;
        };
        let holders = [
            (Level::Memory, in_memory.then_some(self.me)),
            (Level::Disk, Some(self.me)),
            (Level::Partner, self.partner_of(self.me)),
            (Level::Shared, Some(NodeId::LAUNCHER)),
        ];
        for (level, holder) in holders {
            let missing = parts.iter().all(|(known, _)| *known != level);
            if let (true, Some(holder)) = (missing, holder) {
                parts.push((
                    level,
                    outlive_vault::Part {
                        holder,
                        ..known.clone()
                    },
                ));
            }
        }
        parts.retain(|(level, _)| *level != Level::Memory || in_memory);
        parts.sort_by_key(|(level, _)| *level);
    }

    pub(crate) fn on_rebuilt(
        &mut self,
        source: Incarnation,
        version: Version,
        result: Result<Rebuilt>,
    ) {
        let ok = match result {
            Ok(rebuilt) => {
                let Rebuilt {
                    level,
                    bytes,
                    slabs,
                    rejected,
                } = rebuilt;
                let total = self.contents.ranks_of(source, version).unwrap_or(0);
                for (rank, slab, fd) in slabs {
                    let entry = self.ranks.entry(rank, total);
                    entry.ranks = total;
                    entry.install(0, slab, fd, Use::Full { source, version });
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
                true
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
                self.warn(error);
                false
            }
        };
        self.command(Command::Rebuilt {
            source,
            version,
            ok,
        });
    }

    /// True if it was the copy in memory that cannot be used: it is not tried again.
    fn was_checking(&mut self, source: Incarnation, version: Version) -> bool {
        let Some(opening) = &mut self.opening else {
            return false;
        };
        let checked = opening.checking.take() == Some((source, version));
        checked && opening.damaged.insert((source, version))
    }

    pub(crate) fn on_opened(
        &mut self,
        incarnation: Incarnation,
        restored: Option<(Incarnation, Version)>,
        skipped: u16,
        uncertain: bool,
    ) {
        let Some(opening) = self.opening.take() else {
            return;
        };
        self.incarnation = incarnation;
        self.restored = restored;
        self.stable = [None; 4];
        if let Some((source, version)) = restored {
            self.restore_line(source, version);
        }
        self.ranks.drop_after(restored);
        self.policy.last = Instant::now();
        self.policy.wanted = None;
        self.policy.sample = (Instant::now(), 0);
        let ranks = restored.and_then(|(source, version)| self.contents.ranks_of(source, version));
        // Ranks of another count have no place in this incarnation.
        if self.me == NodeId(0) {
            let mut rejected = opening.rejected;
            for _ in rejected.len()..skipped as usize {
                rejected.push(Rejected {
                    version: Version(0),
                    reason: "could not be rebuilt on another node".into(),
                });
            }
            let notice = Notice::Opened(Opened {
                incarnation,
                restored: restored.map(|(_, version)| version),
                level: opening.level,
                ranks: ranks.unwrap_or(0),
                rebuild_ms: opening.since.elapsed().as_secs_f64() * 1e3,
                rebuilt_bytes: opening.bytes,
                rejected,
                uncertain,
            });
            self.tell(&notice);
            self.opened.push(notice);
        }
        let notice = Notice::NodeReady {
            incarnation,
            level: opening.level,
            rebuilt_bytes: opening.bytes,
        };
        self.tell(&notice);
        self.opened.push(notice);
        if let Some((source, version)) = restored {
            self.protect_again(source, version, &opening.replaced);
        }
    }

    /// What the restored version is worth: it lies in memory everywhere now, and
    /// keeps the levels at which it was committed.
    pub(crate) fn restore_line(&mut self, source: Incarnation, version: Version) {
        let mut levels = self.contents.levels_of(source, version);
        levels.insert(Level::Memory);
        for &level in &levels {
            self.stable[level as usize] = Some((source, version));
            self.line.stable.insert((source, version, level));
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
            missing.extend([Level::Disk, Level::Partner]);
        } else if self
            .partner_of(self.me)
            .is_some_and(|partner| replaced.contains(&partner))
        {
            missing.push(Level::Partner);
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
        let flush = self.flush_at(source, version, total).map(|mut flush| {
            flush.keep_targets(levels);
            flush
        });
        let work = self.work.clone();
        let outcome = flush.and_then(|flush| {
            self.outgoing.run(move || {
                let result = flush.run_quietly();
                let _ = work.send(Work::Protected { result });
            })
        });
        if let Err(error) = outcome {
            self.warn(error);
        }
    }

    pub(crate) fn on_open_failed(
        &mut self,
        incarnation: Incarnation,
        why: Why,
        culprit: Option<NodeId>,
        known: Incarnation,
    ) {
        let opening = self.opening.take();
        let entity = culprit.map_or(Entity::Job(self.spec.job.to_string()), |n| {
            Entity::Node(n.0)
        });
        let number = incarnation.0;
        let (code, reason, remedy) = match why {
            Why::NothingUsable => {
                let opening = opening.as_ref();
                let replaced = opening.map_or(&[][..], |it| &it.replaced);
                let rejected = opening.map_or(&[][..], |it| &it.rejected);
                (
                    Code::NoValidCheckpoint,
                    self.contents
                        .what_is_missing(self.nodes(), replaced, culprit, rejected),
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
            Why::Storage => (
                Code::Io,
                format!("start {number} did not open: a record could not be written"),
                "see the warnings: the node's storage is full or broken",
            ),
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
        self.tell(&Notice::OpenFailed {
            incarnation,
            error,
            known,
        });
    }
}

/// What shows in storage that versions were committed, if no record of one can be read.
fn look_for_traces(here: &Inventory, there: &Inventory) -> Traces {
    let found: Vec<Trace> = [here, there].into_iter().filter_map(Trace::of).collect();
    let committed = |record: &Record| matches!(record, Record::Commit { .. });
    let records = here.records.iter().chain(&there.records);
    let nothing = || format!("{}: no record of a version", here.root.display());
    let text = match records.clone().any(committed) {
        true => None,
        false if found.is_empty() => Some(nothing()),
        false => Some(
            found
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; "),
        ),
    };
    Traces {
        newest: found.iter().map(|trace| trace.incarnation).max(),
        text,
        errors: here.errors.iter().chain(&there.errors).cloned().collect(),
    }
}

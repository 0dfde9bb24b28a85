//! A version's way through this node: armed, captured, written at its levels,
//! committed or aborted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outlive_base::control_block::ControlWords;
use outlive_base::level::{Scheme, StoreKind};
use outlive_base::placement::ranks_of;
use outlive_base::{Entity, Error, Incarnation, Level, Rank, Result, Time, Version};
use outlive_ledger::Part;
use outlive_protocols::commit::{Command, Levels, Why};

use super::ranks::{RankEntry, Reuse, Use, overwritten};
use super::{Core, News, Planted, Round, Through};
use crate::node::SHORT_BYTES;
use crate::node::shell::{Ask, Captures, Flush, Shell, Staging, Target};
use crate::orders::{Notice, Step};
use crate::refused::Refused;

/// How long an arming waits for a slot that is still being flushed, at most half of
/// the coordinator's bound.
const ARM_PATIENCE: Time = Time::from_ms(1000);

/// How long a written level of a short version waits for the others.
const TOGETHER: Time = Time::from_ms(100);

impl<S: Shell> Core<S> {
    /// The levels in use.
    pub(in crate::node) fn all_levels(&self) -> Levels {
        let config = self.config.as_ref();
        config.map_or(Levels::NONE, |config| {
            config
                .levels
                .iter()
                .fold(Levels::NONE, |set, setting| set.with(setting.level))
        })
    }

    pub(super) fn open_round(&mut self, version: Version, levels: Levels) {
        // Met by an agent that was started anew, its levels are not known yet: that is not
        // the same as none, by which its copies might go.
        if !levels.is_empty() {
            let known = levels.iter().collect();
            self.line
                .levels
                .insert((self.open.incarnation(), version), known);
        }
        self.rounds.insert(
            version,
            Round {
                levels,
                ended: Levels::NONE,
                more: Levels::NONE,
                captured: BTreeSet::new(),
                blocked_ns: 0,
                bytes: 0,
                told: false,
                flushing: false,
                written: Vec::new(),
                written_until: None,
                prepared: Levels::NONE,
                forced: false,
                through: Through::Slots,
                made_way: false,
                again: None,
                unsure: false,
                void: false,
            },
        );
    }

    /// The commit machine wants `version` armed.
    pub(super) fn on_arm(&mut self, version: Version, levels: Levels) {
        if self.has_no_rank() {
            // A node without ranks takes part with nothing.
            self.open_round(version, levels);
            self.command(Command::Armed {
                version,
                ok: true,
                max_called: None,
            });
            return self.all_captured_here(version);
        }
        self.deferred.put(version, levels, self.now + ARM_PATIENCE);
        self.try_deferred();
    }

    /// Answers the arming that waits, if it can be answered now: a slot that is still
    /// being flushed is worth waiting for, a rank that has passed is not.
    pub(super) fn try_deferred(&mut self) {
        let Some((version, levels, until)) = self.deferred.get() else {
            return;
        };
        let answer = match self.arm_all(version) {
            Ok(()) => {
                self.open_round(version, levels);
                if self.is_coordinator() {
                    self.tell(&Notice::Checkpoint {
                        version,
                        step: Step::Armed,
                    });
                }
                (true, None)
            }
            Err(None) if self.may_have_room_later() && self.now < until => return,
            Err(max_called) => (false, max_called),
        };
        self.deferred.take();
        let (ok, max_called) = answer;
        self.command(Command::Armed {
            version,
            ok,
            max_called,
        });
    }

    /// Also true at the start of a job, while nobody has said how many ranks it has.
    fn may_have_room_later(&self) -> bool {
        let unknown = self.ranks_of_job().is_none();
        !self.finishing && (unknown || self.ranks.complete(self.me, self.nodes()))
    }

    /// True if it is known that no rank of this job lives here.
    pub(super) fn has_no_rank(&self) -> bool {
        let ranks = self.ranks_of_job();
        self.ranks.none_here(self.me, self.nodes(), ranks)
    }

    pub(super) fn ranks_of_job(&self) -> Option<u32> {
        let restored = self
            .open
            .restored()
            .and_then(|(source, v)| self.contents.ranks_of(source, v));
        self.ranks.job_ranks().or(self.open.ranks()).or(restored)
    }

    /// Arms every local rank, or none; then says why not.
    fn arm_all(&mut self, version: Version) -> std::result::Result<(), Option<Version>> {
        let reuse = self.reuse();
        let (job, incarnation) = (self.spec.job_hash, self.open.incarnation());
        if !self.ranks.complete(self.me, self.nodes()) || self.finishing {
            return Err(None);
        }
        // Called aborted once, aborted for ever: a coordinator that was started anew may know
        // nothing of it, the ranks do.
        let spent = |entry: &RankEntry<S>| entry.block()?.spent();
        let spent = self.ranks.iter().filter_map(spent).max();
        if spent >= Some(version) {
            return Err(spent);
        }
        let mut places = Vec::new();
        for entry in self.ranks.iter() {
            let needed = entry.block().map_or(0, |block| block.bytes_needed());
            match entry.free_slot(reuse) {
                Some(slot) if needed > 0 && entry.slots[slot].capacity() >= needed => {
                    places.push((entry.rank, slot));
                }
                _ => return Err(None),
            }
        }
        let mut refused = None;
        let mut armed = Vec::new();
        for (rank, slot) in places {
            let Some(entry) = self.ranks.get_mut(rank) else {
                continue;
            };
            let Ok(generation) = entry.stamp(slot, job, incarnation) else {
                refused = Some(None);
                break;
            };
            let capacity = entry.slots[slot].capacity();
            entry.slots[slot].usage = Use::Filling(version);
            armed.push(rank);
            let Some(block) = entry.block() else { continue };
            if let Err(no) = block.try_arm(version, slot as u32, generation, capacity) {
                // It forces this very version, and asks for the slot or has seen it.
                if no.called == version.0 + 1 && block.forced() == Some(version) {
                    continue;
                }
                refused = Some(no.called.checked_sub(1).map(Version));
                break;
            }
        }
        match refused {
            None => Ok(()),
            Some(max_called) => {
                for rank in armed {
                    self.disarm_rank(rank, version);
                }
                Err(max_called.max(self.ranks.called_max()))
            }
        }
    }

    pub(super) fn disarm_rank(&mut self, rank: Rank, version: Version) {
        let Some(entry) = self.ranks.get_mut(rank) else {
            return;
        };
        let armed_here = entry.block().and_then(|block| block.armed());
        let entered = match (entry.block(), armed_here) {
            (Some(block), Some(armed)) if armed.version == version => block.disarm(),
            (Some(block), _) => block.entered(),
            (None, _) => None,
        };
        if entered >= Some(version) {
            // The rank is inside this version or one past it: its slot comes back with
            // CAPTURED, FAILED or its end, or is found. One inside an earlier version, a
            // forced one, has no use for what was armed here, and may wait for this slot.
            return;
        }
        for slot in 0..entry.slots.len() {
            // A capture of which the message is under way comes back with it.
            if entry.slots[slot].usage == Use::Filling(version)
                && !entry.holds_capture(slot, version)
            {
                entry.slots[slot].usage = Use::Free;
            }
        }
    }

    /// The version is withdrawn: whoever is inside finishes for nothing.
    pub(super) fn withdraw(&mut self, version: Version) {
        self.deferred.forget(version);
        self.hand_over(version);
        let ranks: Vec<Rank> = self.ranks.iter().map(|entry| entry.rank).collect();
        for rank in ranks {
            self.disarm_rank(rank, version);
        }
        if let Some(round) = self.rounds.get_mut(&version) {
            (round.void, round.again) = (true, None);
        }
        self.drop_void(version);
    }

    /// Frees the slots of a void version unless a flush still reads them.
    fn drop_void(&mut self, version: Version) {
        let source = self.open.incarnation();
        let Some(round) = self.rounds.get(&version) else {
            return;
        };
        if !round.void || round.flushing {
            return;
        }
        let again = round.again;
        self.rounds.remove(&version);
        if self.is_planted(Planted::KeepVoidSlot) {
            return;
        }
        for entry in self.ranks.iter_mut() {
            for slot in &mut entry.slots {
                if slot.usage == (Use::Full { source, version }) {
                    slot.usage = Use::Free;
                }
            }
        }
        if let Some(levels) = again {
            self.on_join(version, levels);
        }
    }

    /// A rank has captured.
    pub(super) fn on_captured(
        &mut self,
        rank: Rank,
        version: Version,
        slot: u32,
        generation: u32,
        blocked_ns: u64,
        forced: bool,
    ) {
        self.fail_point("capture:taken");
        let source = self.open.incarnation();
        let armed = self.ranks.get(rank).and_then(|entry| {
            let slot = entry.slots.get(slot as usize)?;
            match slot.usage {
                Use::Filling(armed) if armed < version => Some(armed),
                _ => None,
            }
        });
        let taken = self.take_capture(rank, version, slot as usize, generation);
        let Some(entry) = self.ranks.get_mut(rank) else {
            return;
        };
        if let Some(block) = entry.block()
            && block.armed().is_some_and(|armed| armed.version <= version)
        {
            let _ = block.disarm();
        }
        if let (Some(armed), Ok(Some(_))) = (armed, &taken) {
            self.captured_past(rank, armed, version, forced);
        }
        let bytes = match taken {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return self.taken_before(rank, version),
            Err(error) => {
                // Of a version that was withdrawn meanwhile, nothing is wanted.
                if self.rounds.get(&version).is_some_and(|round| !round.void) {
                    self.warn(error);
                    self.capture_failed(rank, version, Why::Storage);
                }
                return self.captured_in_vain(version);
            }
        };
        self.drop_routed(version, rank);
        self.begin_forced(rank, version, forced);
        let Some(round) = self.rounds.get_mut(&version) else {
            // Aborted long ago: the slot is free again.
            if let Some(entry) = self.ranks.get_mut(rank)
                && let Some(slot) = entry.slot_with(source, version)
            {
                entry.slots[slot].usage = Use::Free;
            }
            return self.captured_in_vain(version);
        };
        round.blocked_ns = round.blocked_ns.max(blocked_ns);
        round.bytes += bytes;
        self.span_captured(rank, version, blocked_ns, bytes);
        self.taken_before(rank, version);
    }

    /// Counts a rank's capture, which lies in a slot.
    pub(super) fn taken_before(&mut self, rank: Rank, version: Version) {
        let Some(round) = self.rounds.get_mut(&version) else {
            return;
        };
        round.captured.insert(rank);
        if round.void {
            return self.drop_void(version);
        }
        let captured = round.captured.clone();
        let ranks = self.ranks.job_ranks().unwrap_or(0);
        let early = self.is_planted(Planted::CountCaptureForAll);
        if early || ranks_of(self.me, ranks, self.nodes()).all(|rank| captured.contains(&rank)) {
            self.all_captured_here(version);
        }
    }

    /// Checks and seals what a rank says that it captured; its bytes, or `None` if that
    /// was known.
    fn take_capture(
        &mut self,
        rank: Rank,
        version: Version,
        slot: usize,
        generation: u32,
    ) -> Result<Option<u64>> {
        let source = self.open.incarnation();
        let entry = self
            .ranks
            .get_mut(rank)
            .ok_or_else(|| Error::internal("unknown rank"))?;
        let odd = || {
            let reason = "what it says that it captured is not in its slab";
            overwritten(Entity::Rank(rank.0), reason)
        };
        let place = entry.slots.get_mut(slot).ok_or_else(odd)?;
        if place.usage == (Use::Full { source, version }) {
            // An agent that was started anew has found the capture by itself.
            let head = place.staged.as_ref().map(|staged| staged.slab.head());
            return match head {
                Some(Ok(head)) if head.id.generation == generation => Ok(None),
                _ => Err(odd()),
            };
        }
        if !matches!(place.usage, Use::Filling(armed) if armed <= version) {
            return Err(odd());
        }
        place.usage = Use::Free;
        let staged = place
            .staged
            .as_mut()
            .filter(|staged| staged.generation == generation);
        let slab = staged
            .and_then(|staged| Arc::get_mut(&mut staged.slab))
            .ok_or_else(odd)?;
        let head = slab.head()?;
        if head.version != version || head.id.rank != rank || head.id.incarnation != source {
            return Err(odd());
        }
        slab.seal()?;
        place.usage = Use::Full { source, version };
        Ok(Some(head.data_bytes))
    }

    pub(super) fn all_captured_here(&mut self, version: Version) {
        let Some(round) = self.rounds.get_mut(&version) else {
            return;
        };
        if round.told {
            return;
        }
        round.told = true;
        let step = Step::Captured {
            bytes: round.bytes,
            blocked_ns: round.blocked_ns,
        };
        self.news(News::Captured);
        self.tell(&Notice::Checkpoint { version, step });
        self.command(Command::Captured { version });
        self.write_told(version);
    }

    /// Writes a version, whose bytes all lie in local slots, at these levels.
    pub(super) fn start_flush(&mut self, source: Incarnation, version: Version, levels: Levels) {
        match self.flush_of(source, version, levels) {
            Ok(flush) => {
                for level in levels.iter() {
                    self.span_writes(version, level);
                }
                self.shell.ask(Ask::Flush(flush));
            }
            Err(error) => self.flush_refused(version, levels, &error),
        }
    }

    fn flush_refused(&mut self, version: Version, levels: Levels, error: &Error) {
        self.warn(error.clone());
        self.levels_failed(version, levels, Why::Storage);
        self.flush_over(self.open.incarnation(), version);
    }

    /// Everything that a flush needs, so that it can run without this state.
    fn flush_of(
        &mut self,
        source: Incarnation,
        version: Version,
        levels: Levels,
    ) -> Result<Flush<S::Slab>> {
        let ranks = self.ranks_of_job().unwrap_or(0);
        let mut flush = self.flush_at(source, version, ranks)?;
        flush.keep_targets(levels);
        Ok(flush)
    }

    /// A version of `ranks` ranks in local slots.
    pub(super) fn captures(
        &mut self,
        source: Incarnation,
        version: Version,
        ranks: u32,
    ) -> Result<Captures<S::Slab>> {
        let nodes = self.nodes();
        let mut slabs = Vec::new();
        for rank in ranks_of(self.me, ranks, nodes) {
            let slab = self.ranks.get(rank).and_then(|entry| {
                let slot = entry.slot_with(source, version)?;
                let staged = entry.slots[slot].staged.as_ref();
                staged.map(|staged| Arc::clone(&staged.slab))
            });
            slabs.push((
                rank,
                slab.ok_or_else(|| Error::internal("a capture is gone"))?,
            ));
        }
        Ok(Captures {
            source,
            version,
            ranks_total: ranks,
            slabs,
        })
    }

    /// The same, to all levels in use.
    pub(super) fn flush_at(
        &mut self,
        source: Incarnation,
        version: Version,
        ranks: u32,
    ) -> Result<Flush<S::Slab>> {
        let targets = self
            .all_levels()
            .iter()
            .filter_map(|level| self.target(level, (source, version)))
            .collect();
        Ok(Flush {
            captures: self.captures(source, version, ranks)?,
            targets,
            partner_epoch: self
                .partner_at(source, version)
                .filter(|_| !self.is_planted(Planted::OldPartnerEpoch))
                .map_or(0, |node| self.epoch_of(node)),
            shared_bytes_per_s: self.shared_rate(),
            refused: self.refused(),
            known: self.contents.known_part(source, version, self.me),
            quiet: false,
        })
    }

    /// The numbers that a version may not hold.
    pub(in crate::node) fn refused(&self) -> Refused {
        let config = self.config.as_ref();
        config.map_or_else(Refused::default, |config| config.refused)
    }

    fn target(&self, level: Level, at: (Incarnation, Version)) -> Option<Target> {
        match (level.store(), level.scheme()) {
            (StoreKind::Keeper, _) => Some(Target::Memory),
            (StoreKind::Shared, _) => Some(Target::Shared),
            (StoreKind::Node, Scheme::Single) => Some(Target::Disk),
            (StoreKind::Node, Scheme::Copies) => self.partner_at(at.0, at.1).map(Target::Partner),
            (StoreKind::Node, Scheme::Xor | Scheme::ReedSolomon) | (StoreKind::Server, _) => {
                Some(Target::Group(level))
            }
        }
    }

    pub(super) fn on_level_done(
        &mut self,
        source: Incarnation,
        version: Version,
        level: Level,
        result: Result<Part>,
    ) {
        let source = match self.is_planted(Planted::TakeOldFlush) {
            true => self.open.incarnation(),
            false => source,
        };
        match result {
            Ok(part) => {
                if level.store().is_of_nodes() {
                    self.trouble.storage_works();
                    if source == self.open.incarnation() {
                        self.own_written(version, &part);
                    }
                }
                if level.members().is_some() {
                    // Written when its parity is.
                    if source == self.open.incarnation() {
                        self.news(News::Sealed {
                            version,
                            level,
                            part,
                        });
                    }
                    return;
                }
                self.contents.add_part(source, version, level, part);
                if source == self.open.incarnation() {
                    self.level_written(version, level);
                }
            }
            Err(error) => {
                let why = if level.has_partner() {
                    Why::Partner
                } else {
                    Why::Storage
                };
                self.warn_of_copy(level.store(), error);
                if source == self.open.incarnation() {
                    self.command(Command::LevelFailed {
                        version,
                        level,
                        why,
                    });
                }
            }
        }
    }

    /// A level is prepared now, or with the others of its version.
    fn level_written(&mut self, version: Version, level: Level) {
        self.span_written(version, level);
        let short = |round: &&mut Round| round.flushing && round.bytes <= SHORT_BYTES;
        let Some(round) = self.rounds.get_mut(&version).filter(short) else {
            return self.prepared(version, level);
        };
        round.written.push(level);
        let until = self.now + TOGETHER;
        round.written_until.get_or_insert(until);
        let awaited = match round.through {
            Through::Slots => round.levels,
            Through::Waits | Through::Container => round.levels.kept_elsewhere(StoreKind::Shared),
        };
        if awaited.iter().all(|level| round.written.contains(&level)) {
            self.prepare_written(version);
        }
    }

    pub(super) fn prepared(&mut self, version: Version, level: Level) {
        if let Some(round) = self.rounds.get_mut(&version) {
            // What is void here may have begun again elsewhere, with other bytes.
            if round.void {
                return;
            }
            round.prepared = round.prepared.with(level);
        }
        self.fail_point("flush:prepared");
        self.command(Command::Prepared { version, level });
    }

    fn prepare_written(&mut self, version: Version) {
        let Some(round) = self.rounds.get_mut(&version) else {
            return;
        };
        round.written_until = None;
        for level in std::mem::take(&mut round.written) {
            self.prepared(version, level);
        }
    }

    /// Prepares levels that have waited long enough for the others of their version.
    pub(super) fn prepare_late(&mut self) {
        let now = self.now;
        let late = |round: &Round| round.written_until.is_some_and(|until| now >= until);
        let late: Vec<Version> = self
            .rounds
            .iter()
            .filter(|(_, round)| late(round))
            .map(|(version, _)| *version)
            .collect();
        for version in late {
            self.prepare_written(version);
        }
    }

    /// A flush has ended. One of an ended incarnation says nothing about a round that has
    /// the same version.
    pub(super) fn flush_over(&mut self, source: Incarnation, version: Version) {
        let any = self.is_planted(Planted::TakeOldFlush);
        if any || source == self.open.incarnation() {
            self.prepare_written(version);
            if self.goes_straight(version) || self.goes_further(version) {
                return;
            }
            if let Some(round) = self.rounds.get_mut(&version) {
                round.flushing = false;
                if round.void {
                    return self.drop_void(version);
                }
            }
        }
        self.look_for_the_next();
        self.retire_rounds();
        self.news(News::Released);
        self.try_deferred();
        self.try_asks();
        self.arm_again();
    }

    /// Rounds that are over need no memory of their own.
    pub(super) fn retire_rounds(&mut self) {
        let (stable, source) = (&self.line.newest, self.open.incarnation());
        self.rounds.retain(|&version, round| {
            round.flushing || !round.told || !round.is_decided(stable, (source, version))
        });
    }

    /// The newest version that is stable at some level: every level survives what the
    /// slots survive, so it replaces older captures there.
    pub(super) fn newest_stable(&self) -> Option<(Incarnation, Version)> {
        self.line.newest.values().max().copied()
    }

    /// Which slots may be used again.
    pub(super) fn reuse(&self) -> Reuse {
        let stable = self.line.newest.iter();
        let elsewhere = stable.filter(|(level, _)| level.store() != StoreKind::Keeper);
        let elsewhere = elsewhere.map(|(_, at)| *at).max();
        Reuse {
            keep: match self.supply.is_one_slot() {
                _ if self.is_planted(Planted::ReuseSlotEarly) => {
                    Some((Incarnation(u32::MAX), Version::MAX))
                }
                true => elsewhere,
                false => self.newest_stable(),
            },
            staging: self.supply.is_one_slot(),
        }
    }
}

impl Round {
    /// True if every level that it still has is decided.
    pub(super) fn is_decided(
        &self,
        stable: &BTreeMap<Level, (Incarnation, Version)>,
        at: (Incarnation, Version),
    ) -> bool {
        let mut levels = self.levels.iter();
        !self.levels.is_empty()
            && levels.all(|level| stable.get(&level).is_some_and(|known| *known >= at))
    }
}

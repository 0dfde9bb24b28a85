//! Ranks that leave versions out.
//!
//! A program may offer a checkpoint at every thousandth step only. What is armed is
//! then a bound: a rank captures the first version that it offers at or past it. Which
//! one that is shows with the first capture; it goes on as a forced version does, and
//! the other nodes are asked to join.
//!
//! Invariants: a slot is armed, being filled, or holds a capture of which the message
//! is under way; what is none of these is found by `Node::find_passed`, so that no
//! round waits for a rank that has gone on.

use outlive_base::control_block::ControlWords;
use outlive_base::placement::ranks_of;
use outlive_base::{Incarnation, Rank, Version};
use outlive_protocols::commit::{Command, Levels, Why};

use super::ranks::{RankEntry, Use};
use super::{Core, News};
use crate::node::shell::{Shell, Staging};
use crate::orders::{Notice, Step};

/// Where a rank is with a version for which it has a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// It has not come so far, or is about to enter.
    Armed,
    /// It has not come so far, and its block was needed for something else: it may still force it.
    Ahead,
    /// It is inside an earlier version, which was forced.
    Before,
    /// It is capturing, or has seen in vain whether it should.
    Inside,
    /// It has captured; the message is under way.
    Captured,
    /// It has offered the version, and not gone on.
    There,
    /// It has gone on without a capture, or left the job.
    Passed,
}

impl<S: Shell> RankEntry<S> {
    /// The slot that is armed for `version` or for an earlier one, or that a rank fills.
    pub fn filling_up_to(&self, version: Version) -> Option<(usize, Version)> {
        let slots = self.slots.iter().enumerate();
        let filling = slots.filter_map(|(slot, at)| match at.usage {
            Use::Filling(armed) if armed <= version => Some((slot, armed)),
            _ => None,
        });
        filling.max_by_key(|&(_, armed)| armed)
    }

    /// True if this rank has not come to a version, nor has a slot for it: of what is armed already
    /// it makes that version by itself. One that has left the job comes to none.
    fn lacks_slot(&self, source: Incarnation, version: Version) -> bool {
        self.block()
            .is_some_and(|block| block.called() <= version.0 && block.armed().is_none())
            && !self.closed
            && self.filling_up_to(version).is_none()
            && self.slot_with(source, version).is_none()
    }

    fn is_armed(&self, version: Version) -> bool {
        let armed = self.block().and_then(|block| block.armed());
        armed.is_some_and(|armed| armed.version == version)
    }

    /// Only what is not armed any more can have been passed: as long as it is, a rank
    /// that has made its offer may be about to enter.
    fn way(&self, slot: usize, version: Version) -> Way {
        let Some(block) = self.block() else {
            return Way::Passed;
        };
        if self.is_armed(version) {
            return Way::Armed;
        }
        // In this order: a rank captures, then leaves, then offers the next.
        let offered = block.called();
        match block.entered() {
            // It has the slot of what it is forced to capture, not this one.
            Some(inside) if inside < version => return Way::Before,
            Some(_) => return Way::Inside,
            None => {}
        }
        match self.holds_capture(slot, version) {
            true => Way::Captured,
            false if offered <= version.0 && !self.closed => Way::Ahead,
            false if offered == version.0 + 1 && !self.closed => Way::There,
            false => Way::Passed,
        }
    }

    /// A rank that is inside `version` and asks for memory of its own has not seen what was
    /// armed before, when that was withdrawn: nobody fills that slot.
    pub fn free_unseen(&mut self, version: Version) {
        if self.block().and_then(|block| block.entered()) != Some(version) {
            return;
        }
        for slot in 0..self.slots.len() {
            if let Use::Filling(at) = self.slots[slot].usage
                && at != version
                && !self.is_armed(at)
                && !self.holds_capture(slot, at)
            {
                self.slots[slot].usage = Use::Free;
            }
        }
    }

    /// True if a rank has captured `version` or a later one into a slot. A slot is
    /// emptied when it is armed: what is in it came after that.
    pub fn holds_capture(&self, slot: usize, version: Version) -> bool {
        self.slots[slot].staged.as_ref().is_some_and(|staged| {
            let head = staged.slab.head();
            head.is_ok_and(|head| head.state.is_complete() && head.version >= version)
        })
    }
}

impl<S: Shell> Core<S> {
    /// Ranks of other nodes capture `version` without its having been armed.
    pub(super) fn on_join(&mut self, version: Version, levels: Levels) {
        if let Some(round) = self.rounds.get_mut(&version) {
            if round.void {
                round.again = Some(levels);
            }
            // Met by an agent that was started anew: its levels come with this.
            if round.levels.is_empty() && !round.void {
                self.resume_round(version, levels);
            }
            return;
        }
        self.open_round(version, levels);
        if self.has_no_rank() {
            return self.all_captured_here(version);
        }
        if self.was_given_up(version) {
            // Whoever asks for it has been told of a later end, or of none.
            let why = Why::Coordinator;
            return self.command(Command::CaptureFailed { version, why });
        }
        self.arm_ranks(version);
        self.find_passed();
    }

    /// Arms the ranks that have neither come to a version that others have begun nor a slot for
    /// it, as far as they have a free one.
    fn arm_ranks(&mut self, version: Version) {
        let (job, incarnation, reuse) = (self.spec.job_hash, self.open.incarnation(), self.reuse());
        let Some(round) = self.rounds.get(&version) else {
            return;
        };
        for entry in self.ranks.iter_mut() {
            if !entry.lacks_slot(incarnation, version) || round.captured.contains(&entry.rank) {
                continue;
            }
            let needed = entry.block().map_or(0, |block| block.bytes_needed());
            if let Some(slot) = entry.free_slot(reuse)
                && needed > 0
                && entry.slots[slot].capacity() >= needed
                && entry.stamp(slot, job, incarnation).is_ok()
            {
                entry.slots[slot].usage = Use::Filling(version);
                arm(entry, slot, version);
            }
        }
    }

    /// A slot may be free again: for the first of the versions under way for which a rank has
    /// none, because a forced one before it was lent the slot, or there was none when it began.
    pub(super) fn arm_again(&mut self) {
        if self.deferred.is_some() || !self.asks.is_empty() {
            return;
        }
        let lacks = |(version, round): &(&Version, &super::Round)| {
            let live = !round.told && !round.void && !round.levels.is_empty();
            let lacks = |entry: &RankEntry<S>| {
                !round.captured.contains(&entry.rank)
                    && entry.lacks_slot(self.open.incarnation(), **version)
            };
            live && self.ranks.iter().any(lacks)
        };
        if let Some((&version, _)) = self.rounds.iter().find(lacks) {
            self.arm_ranks(version);
        }
    }

    /// True if ranks of this node were told last that this version has ended. Called so once, it is
    /// for ever: a rank that has read it does not look again.
    pub(super) fn was_given_up(&self, version: Version) -> bool {
        let mut blocks = self.ranks.iter().filter_map(|entry| entry.block());
        blocks.any(|block| block.aborted() == Some(version))
    }

    /// True unless a rank lives here or is said to: those that ever did are known, after
    /// a restart of this agent too.
    pub(super) fn may_have_no_rank(&self) -> bool {
        let none = self.ranks.iter().next().is_none();
        none && (self.ranks_of_job().is_none() || self.has_no_rank())
    }

    /// A node without ranks hears how many the job has: with their first word, while
    /// others may have begun a version already, which waits for this node.
    pub(super) fn capture_nothing(&mut self) {
        if !self.has_no_rank() {
            return;
        }
        if let Some((version, levels, _)) = self.deferred.take() {
            self.on_arm(version, levels);
        }
        let waiting = self.rounds.iter().filter(|(_, round)| {
            // What comes without levels was met after a restart; they follow.
            !round.told && !round.void && !round.levels.is_empty()
        });
        let waiting: Vec<Version> = waiting.map(|(&version, _)| version).collect();
        for version in waiting {
            self.all_captured_here(version);
        }
    }

    /// A rank has captured `version` into the slot that was armed for `armed`, which it
    /// leaves out: all ranks offer the same, so all will capture this one.
    pub(super) fn captured_past(
        &mut self,
        rank: Rank,
        armed: Version,
        version: Version,
        said: bool,
    ) {
        let live = self.rounds.get(&armed).filter(|round| !round.void);
        let levels = live.map(|round| round.levels);
        // Withdrawn while this rank was inside, since another has passed it with such a capture.
        let passed = self.passed.filter(|(version, _)| *version == armed);
        let levels = levels.or(passed.map(|(_, levels)| levels));
        let block = self.ranks.get(rank).and_then(|entry| entry.block());
        let aborted = block.and_then(ControlWords::aborted);
        // What is forced begins by itself, also if what was armed has ended since.
        let is_new = !self.rounds.contains_key(&version);
        self.begin_forced(rank, version, said);
        if let Some(levels) = levels
            && aborted != Some(version)
            && !self.rounds.contains_key(&version)
        {
            self.begin_captured(version, levels);
        }
        if is_new && self.rounds.contains_key(&version) {
            self.news(News::Passed { armed, version });
        }
        // The others hear of the new version first.
        self.capture_failed(rank, armed, Why::Passed);
    }

    /// A rank has captured what it forces: the version begins by that, as elsewhere where nothing was
    /// armed, at all levels; also if its own arming was withdrawn while the rank was inside. What
    /// has ended for good is not begun: the coordinator says so, or it is known here. `said`: by the
    /// rank, with its capture.
    pub(super) fn begin_forced(&mut self, rank: Rank, version: Version, said: bool) {
        let block = self.ranks.get(rank).and_then(|entry| entry.block());
        // Its block may name the next one already.
        let forced = said || block.and_then(ControlWords::forced) == Some(version);
        let aborted = block.and_then(ControlWords::aborted) == Some(version);
        if !forced || aborted {
            return;
        }
        match self.rounds.get_mut(&version) {
            None => self.begin_captured(version, self.all_levels()),
            Some(round) if round.forced => {}
            Some(round) => {
                round.forced = true;
                self.widen_forced(version);
            }
        }
    }

    /// What the policy armed at fewer levels goes to all of them, if it is forced. Where its levels are not
    /// known, after a restart of this agent, they come first.
    pub(super) fn widen_forced(&mut self, version: Version) {
        let levels = self.all_levels();
        let Some(round) = self.rounds.get(&version).filter(|round| round.forced) else {
            return;
        };
        let more = levels.less(round.levels).less(round.ended);
        if round.void || round.levels.is_empty() || more.is_empty() {
            return;
        }
        self.command(Command::Force { version, levels });
        self.widen_round(version, levels);
    }

    /// A version that was not armed everywhere, which a rank here has captured and forces: it begins by
    /// that. False if there is none. What other ranks are armed for stays, for they force it as well.
    pub(super) fn begin_again(&mut self, version: Version) -> bool {
        let (source, all) = (self.open.incarnation(), self.all_levels());
        // It may force the next one already.
        let before = self.rounds.get(&version).is_some_and(|round| round.forced);
        let captured = |entry: &RankEntry<S>| {
            let forced = entry.block().and_then(ControlWords::forced) == Some(version);
            (forced || before) && entry.slot_with(source, version).is_some()
        };
        if !self.ranks.iter().any(captured) {
            return false;
        }
        let Some(round) = self.rounds.get_mut(&version).filter(|round| !round.void) else {
            return false;
        };
        let (told, prepared) = (round.told, round.prepared);
        let levels = all;
        self.command(Command::Force { version, levels });
        self.widen_round(version, levels);
        // Its end was noted, and may have been the end of all levels to which it goes again.
        if let Some(round) = self.rounds.get(&version) {
            let levels = round.levels.iter().collect();
            self.line.levels.insert((source, version), levels);
        }
        if told {
            self.command(Command::Captured { version });
            for level in prepared.iter() {
                self.command(Command::Prepared { version, level });
            }
            self.write_told(version);
        }
        true
    }

    /// A version that nobody has begun here begins with a capture.
    fn begin_captured(&mut self, version: Version, levels: Levels) {
        self.open_round(version, levels);
        if self.is_coordinator() {
            let step = Step::Armed;
            self.tell(&Notice::Checkpoint { version, step });
        }
        self.command(Command::Force { version, levels });
    }

    /// A local rank will not capture `version`.
    pub(super) fn capture_failed(&mut self, rank: Rank, version: Version, why: Why) {
        let told = self.rounds.get(&version).is_some_and(|round| round.told);
        if let Some(entry) = self.ranks.get_mut(rank) {
            for slot in &mut entry.slots {
                if slot.usage == Use::Filling(version) {
                    slot.usage = Use::Free;
                }
            }
        }
        if self.rounds.contains_key(&version) && !told {
            self.command(Command::CaptureFailed { version, why });
        }
    }

    /// Nobody has begun this version: it took the place of one that was armed, and withdrawn while the
    /// rank was inside. The rank may wait for it.
    pub(super) fn captured_in_vain(&mut self, version: Version) {
        let at = (self.open.incarnation(), version);
        // One that was written here may be committed, whatever an agent before this one was told.
        if !self.rounds.contains_key(&version) && self.own_part(at.0, at.1).is_none() {
            self.line.levels.entry(at).or_default();
        }
    }

    /// What was armed is withdrawn: the ranks that have not come so far are armed for
    /// the version past it that others have begun, if there is one.
    pub(super) fn hand_over(&mut self, armed: Version) {
        let next = self.rounds.iter().find(|(version, round)| {
            **version > armed && !round.void && !round.told && !round.levels.is_empty()
        });
        let Some((&version, _)) = next else { return };
        for entry in self.ranks.iter_mut() {
            let filling = entry.filling_up_to(armed);
            let Some((slot, _)) = filling.filter(|&(_, at)| at == armed) else {
                continue;
            };
            if entry.slot_with(self.open.incarnation(), version).is_some() || !entry.is_armed(armed)
            {
                continue;
            }
            match entry.block().and_then(|block| block.disarm()) {
                // It has captured something: the message says what.
                None if entry.holds_capture(slot, armed) => {}
                Some(inside) if inside == version => {
                    entry.slots[slot].usage = Use::Filling(version);
                }
                Some(inside) if inside >= armed => {}
                // It has not come so far, or is inside an earlier one that was forced.
                None | Some(_) => {
                    entry.slots[slot].usage = Use::Filling(version);
                    arm(entry, slot, version);
                }
            }
        }
    }

    /// Ends what waits for ranks that have gone on, and frees the slots that nobody
    /// will fill.
    pub(super) fn find_passed(&mut self) {
        for (rank, version, why) in self.passed() {
            self.capture_failed(rank, version, why);
        }
    }

    /// The ranks that have gone past what is under way. Slots that nobody will fill are free then.
    fn passed(&mut self) -> Vec<(Rank, Version, Why)> {
        let live = |round: Option<&super::Round>| round.is_some_and(|round| !round.void);
        // Its processes have ended with the job: an agent that was started anew does not know of those that
        // had left before that they have.
        let finishing = self.finishing;
        let over = |entry: &RankEntry<S>| finishing && entry.link.is_none();
        let mut passed = Vec::new();
        for entry in self.ranks.iter_mut() {
            for slot in 0..entry.slots.len() {
                let Use::Filling(version) = entry.slots[slot].usage else {
                    continue;
                };
                let way = match over(entry) && !entry.holds_capture(slot, version) {
                    true => Way::Passed,
                    false => entry.way(slot, version),
                };
                if live(self.rounds.get(&version)) {
                    if way == Way::Passed {
                        passed.push((entry.rank, version, Why::Passed));
                    }
                } else if matches!(way, Way::Ahead | Way::Before | Way::Passed | Way::There) {
                    entry.slots[slot].usage = Use::Free;
                }
            }
        }
        // Those that have no slot for a version which others have begun.
        let ranks = self.ranks.job_ranks().unwrap_or(0);
        for (&version, round) in &self.rounds {
            if round.told || round.void || round.levels.is_empty() {
                continue;
            }
            for rank in ranks_of(self.me, ranks, self.nodes()) {
                let gone = |entry: &RankEntry<S>| {
                    let further = entry.block().is_some_and(|b| b.called() > version.0 + 1);
                    (further || entry.closed || over(entry))
                        && entry.filling_up_to(version).is_none()
                        && entry.slot_with(self.open.incarnation(), version).is_none()
                };
                if !round.captured.contains(&rank) && self.ranks.get(rank).is_some_and(gone) {
                    let made_way = round.made_way;
                    let why = if made_way { Why::MadeWay } else { Why::Passed };
                    passed.push((rank, version, why));
                }
            }
        }
        passed
    }
}

/// Arms a slot that is stamped. A rank that has gone past is found later.
fn arm<S: Shell>(entry: &RankEntry<S>, slot: usize, version: Version) {
    let capacity = entry.slots[slot].capacity();
    if let (Some(staged), Some(block)) = (&entry.slots[slot].staged, entry.block()) {
        let _ = block.try_arm(version, slot as u32, staged.generation, capacity);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

//! Taking up work after a restart of this agent.

use std::collections::BTreeSet;

use outlive_base::control_block::ControlWords;
use outlive_base::placement::ranks_of;
use outlive_base::{Incarnation, Rank, Version};
use outlive_protocols::commit::{Command, Commit, Levels, Why};

use super::ranks::{RankEntry, Use};
use super::{Core, Round};
use crate::node::shell::Shell;
use crate::orders::{Notice, Opened};

impl<S: Shell> Core<S> {
    /// The commit machine takes part again in an open incarnation: what the control
    /// blocks and slabs say is taken up or given up.
    pub(super) fn rejoined(&mut self, incarnation: Incarnation) {
        if self.opening.is_some() {
            return;
        }
        let restored = self.restored_and_held(incarnation);
        self.open.take_up(incarnation, restored);
        self.ranks.drop_controls_but(incarnation);
        if let Some((source, version)) = self.open.restored() {
            self.restore_line(source, version);
        }
        for version in self.versions_inside(incarnation) {
            self.take_up(incarnation, version);
        }
        // The launcher may still wait for it: its connection broke, and the agent ended before it was
        // back. What records alone call open may be of an earlier run.
        let opened = self.before.take();
        let opened = opened.filter(|it| it.incarnation == incarnation);
        let ready = Notice::NodeReady {
            incarnation,
            level: None,
            rebuilt_bytes: 0,
        };
        // Who has been told something of this run does not say that its number is used already.
        if let Some(opened) = opened.map(Notice::Opened) {
            self.tell(&opened);
            self.open.was_told(opened);
            self.open.was_told(ready.clone());
        }
        self.tell(&ready);
        self.greet_early();
    }

    /// Only where a fault is planted.
    pub(super) fn opened_before(&self, incarnation: Incarnation) -> Notice {
        let restored = self.machine().and_then(Commit::restored);
        Notice::Opened(Opened {
            incarnation,
            restored: restored.map(|(_, version)| version),
            level: None,
            ranks: self.ranks.job_ranks().unwrap_or(0),
            rebuild_ms: 0.0,
            rebuilt_bytes: 0,
            rejected: Vec::new(),
            uncertain: true,
        })
    }

    /// A rank whose connection broke learns of it when it says something; one that
    /// has nothing to say is made to look by its control block.
    pub(super) fn call_back(&self) {
        let lost = |entry: &&RankEntry<S>| entry.link.is_none() && !entry.closed;
        for block in self.ranks.iter().filter(lost).filter_map(|e| e.block()) {
            if block.attention() != 0 {
                block.set_attention(0);
            }
        }
    }

    /// Versions that local ranks have armed, captured or were capturing in this incarnation.
    pub(super) fn versions_inside(&self, incarnation: Incarnation) -> BTreeSet<Version> {
        let armed = self
            .ranks
            .iter()
            .filter_map(|entry| Some(entry.block()?.armed()?.version));
        let slots = self.ranks.iter().flat_map(|entry| &entry.slots);
        let captured = slots.filter_map(|slot| match slot.usage {
            Use::Full { source, version } if source == incarnation => Some(version),
            _ => None,
        });
        armed.chain(captured).chain(self.forced_inside()).collect()
    }

    /// Forced versions that ranks were capturing when the agent before this one ended. Its
    /// memory of the round is lost, so nobody would ever hear of them: they are voted down.
    fn forced_inside(&self) -> impl Iterator<Item = Version> {
        self.ranks.iter().flat_map(|entry| {
            let block = entry.block().filter(|block| block.armed().is_none());
            let entered = block.and_then(|block| block.entered());
            let slots = entry.slots.iter().enumerate();
            slots.filter_map(move |(slot, at)| match at.usage {
                Use::Filling(version) if block.is_some() => {
                    let inside = entered == Some(version) || entry.holds_capture(slot, version);
                    inside.then_some(version)
                }
                _ => None,
            })
        })
    }

    /// Tells the commit machine of a version that the control blocks and slabs know.
    /// Its levels come back with `Resumed`, or its end with `Aborted`.
    fn take_up(&mut self, incarnation: Incarnation, version: Version) {
        let ranks = self.ranks.job_ranks().unwrap_or(0);
        let mut captured = BTreeSet::new();
        // An agent may have ended between that word and what follows from it.
        let mut whole = !self.was_given_up(version);
        let (mut forced, mut unsure) = (false, false);
        for rank in ranks_of(self.me, ranks, self.nodes()) {
            let Some(entry) = self.ranks.get_mut(rank) else {
                whole = false;
                continue;
            };
            let armed = entry.block().and_then(|block| block.armed());
            if entry.slot_with(incarnation, version).is_some() {
                captured.insert(rank);
                // The word of it may be lost, and its block may name a later one by now.
                let last = entry.block().and_then(|block| block.forced());
                forced |= last == Some(version);
                unsure |= last > Some(version);
            } else if let Some(armed) = armed.filter(|armed| armed.version == version)
                && let Some(slot) = entry.slots.get_mut(armed.slot as usize)
                && !matches!(slot.usage, Use::Full { source, .. } if source == incarnation)
            {
                slot.usage = Use::Filling(version);
            } else {
                whole = false;
            }
        }
        let all = whole && ranks_of(self.me, ranks, self.nodes()).all(|r| captured.contains(&r));
        self.open_round(version, Levels::NONE);
        if let Some(round) = self.rounds.get_mut(&version) {
            round.captured = captured;
            round.told = all;
            (round.forced, round.unsure) = (forced, unsure && !forced);
        }
        self.command(Command::Armed {
            version,
            ok: whole,
            max_called: None,
        });
        if !whole {
            self.withdraw(version);
            // If it began without being armed, others wait for this node.
            return self.command(Command::CaptureFailed {
                version,
                why: Why::Coordinator,
            });
        }
        if all {
            self.command(Command::Captured { version });
        }
    }

    /// A rank waits for a version of which nothing is left here: an agent before this one may have
    /// heard how it ended, and have ended itself before it told. It is voted down, as whatever is
    /// found in parts: what was decided is told then, and all else has ended. A container that was
    /// never said to be prepared is nothing.
    pub(in crate::node) fn ask_how_it_ended(&mut self, rank: Rank, version: Version) {
        let at = (self.open.incarnation(), version);
        if self.has_lost_capture(rank, version) {
            return self.capture_failed(rank, version, Why::Passed);
        }
        let waits_here = self.deferred.is(version);
        let is_known = self.rounds.contains_key(&version) || self.line.levels.contains_key(&at);
        // A rank may also wait for what it has not come to.
        let block = self.ranks.get(rank).and_then(|entry| entry.block());
        let is_passed = block.is_some_and(|block| block.called() > version.0);
        if self.opening.is_some() || waits_here || is_known || !is_passed {
            return;
        }
        let is_settled = self.machine().is_some_and(|it| {
            it.may_forget(at.0, version) && it.decided_here(version, self.all_levels()).is_empty()
        });
        if !is_settled || self.versions_inside(at.0).contains(&version) {
            return;
        }
        self.command(Command::Armed {
            version,
            ok: false,
            max_called: None,
        });
        self.command(Command::CaptureFailed {
            version,
            why: Why::Coordinator,
        });
    }

    /// The version that this incarnation restored, if a slab still holds it. What else was
    /// captured before is void: an agent that ended while this one was opened has left it.
    fn restored_and_held(&mut self, incarnation: Incarnation) -> Option<(Incarnation, Version)> {
        let restored = self.commit.as_ref()?.machine().restored();
        let mut held = false;
        for slot in self.ranks.iter_mut().flat_map(|entry| &mut entry.slots) {
            match slot.usage {
                Use::Full { source, version } if Some((source, version)) == restored => held = true,
                Use::Full { source, .. } if source < incarnation => slot.usage = Use::Free,
                _ => {}
            }
        }
        restored.filter(|_| held)
    }

    /// A rank waits for a version that is still to be captured here, and has nothing of it: the one
    /// it had was given up with a round of that version before this one, of which the coordinator
    /// that was started anew knew nothing. Those that force it begin it again.
    fn has_lost_capture(&self, rank: Rank, version: Version) -> bool {
        let open = |round: &&Round| !round.told && !round.void && !round.levels.is_empty();
        let Some(round) = self.rounds.get(&version).filter(open) else {
            return false;
        };
        // A rank may also wait for what it has not come to.
        let nothing = |entry: &RankEntry<S>| {
            let is_passed = entry.block().is_some_and(|it| it.called() > version.0);
            is_passed
                && entry.filling_up_to(version).is_none()
                && entry.slot_with(self.open.incarnation(), version).is_none()
        };
        !round.captured.contains(&rank) && self.ranks.get(rank).is_some_and(nothing)
    }

    /// A round lives on after this agent's restart: its levels are known again.
    pub(super) fn resume_round(&mut self, version: Version, levels: Levels) {
        let source = self.open.incarnation();
        self.line
            .levels
            .insert((source, version), levels.iter().collect());
        // What is recorded as decided was written, and may have been removed since.
        let machine = self.machine();
        let recorded = machine.map_or(Levels::NONE, |it| it.decided_here(version, levels));
        let open = recorded.iter().fold(levels, Levels::without);
        let Some(round) = self.rounds.get_mut(&version) else {
            if open.is_empty() {
                return;
            }
            if !self.may_have_no_rank() {
                return self.resume_transfer(version, levels);
            }
            self.open_round(version, open);
            let known = levels.iter().collect();
            self.line.levels.insert((source, version), known);
            return self.capture_nothing();
        };
        if !round.levels.is_empty() {
            // Begun here at fewer levels than elsewhere.
            return self.widen_round(version, open);
        }
        round.levels = levels;
        if open.is_empty() {
            return self.retire_rounds();
        }
        if self.rounds.get(&version).is_some_and(|round| round.told) {
            // With what is recorded: a copy at `shared` is made of the container.
            self.write_told(version);
        }
        self.widen_forced(version);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::found::Found;
    use super::*;
    use crate::config::{JobConfig, LevelSetting};
    use crate::node::plain::PlainSlab;
    use crate::node::shell::Link;
    use crate::node::still::{alone, block_of, one_of};
    use crate::orders::Order;
    use outlive_base::ipc::ToAgent;
    use outlive_base::{Level, NodeId, Survives};
    use outlive_ledger::Record;

    /// Its capture went with a round before this one. A rank may also wait for what it has not come to:
    /// that may be captured still.
    #[test]
    fn a_rank_has_lost_its_capture_if_it_has_come_to_the_version_and_has_nothing_of_it() {
        let (mut agent, rank, version) = (alone(0), Rank(0), Version(3));
        let (block, program) = block_of(rank, Incarnation(1));
        agent.ranks.entry(rank, 1).control = Some(block);
        agent.open_round(version, Levels::NONE.with(Level::DISK));
        assert!(!agent.has_lost_capture(rank, version));
        program.offer(version.0);
        assert!(agent.has_lost_capture(rank, version));
        agent
            .rounds
            .get_mut(&version)
            .unwrap()
            .captured
            .insert(rank);
        assert!(!agent.has_lost_capture(rank, version));
    }

    /// A rank has captured what it forces, and the word of that was lost with the agent. The policy had armed the version
    /// at one level: it goes to all of them, and who waits for more than the one waits. Where that cannot be known,
    /// others may have said so: it is known when the version is stable at what it has.
    #[test]
    fn what_was_forced_before_this_agent_goes_to_all_levels() {
        let (rank, version, source) = (Rank(0), Version(3), Incarnation(1));
        let cases = [
            (None, false, true),
            (Some(2), false, true),
            (Some(3), true, false),
            (Some(4), false, false),
        ];
        for (forced, all, answered) in cases {
            let mut agent = alone(0);
            let mut config = JobConfig::clone(agent.core.config.as_ref().unwrap());
            let level = Level::SHARED;
            config.levels.push(LevelSetting { level, every: 1 });
            agent.core.configure_alone(config);
            agent.on_order(Order::Ranks {
                incarnation: source,
                ranks: 1,
            });
            let (block, program) = block_of(rank, source);
            let entry = agent.ranks.entry(rank, 1);
            entry.control = Some(block);
            entry.install(0, PlainSlab::new(1 << 16), Use::Full { source, version });
            if let Some(forced) = forced {
                program.announce(Version(forced));
            }
            program.offer(version.0);
            agent.take_up(source, version);
            assert!(agent.rounds[&version].told);
            agent.resume_round(version, Levels::NONE.with(Level::DISK));
            let levels = &agent.line.levels[&(source, version)];
            assert_eq!(levels.contains(&Level::SHARED), all, "{forced:?}");
            agent.ranks.get_mut(rank).unwrap().link = Some(Link { token: 1, pid: 1 });
            let waits = ToAgent::Wait {
                version,
                survives: Survives::AllNodes,
                timeout_ms: 600_000,
            };
            agent.on_said(1, 7, waits);
            agent.deliver();
            assert_eq!(!agent.shell.answered.is_empty(), answered, "{forced:?}");
            agent.on_stable(version, Level::DISK);
            agent.deliver();
            assert_eq!(agent.shell.answered.is_empty(), all, "{forced:?}");
        }
    }

    /// What its records call open may be an incarnation of an earlier run, and a launcher that has lost
    /// its own record of that may be about to open one of the same number: it would begin anew.
    #[test]
    fn nobody_is_told_that_an_incarnation_was_opened_by_who_finds_it_open() {
        let mut agent = alone(0);
        agent.rejoined(Incarnation(1));
        let opened = |it: &Notice| matches!(it, Notice::Opened(_));
        assert!(!agent.shell.told.iter().any(opened));
    }

    /// The keeper has the word of the agent before this one: the launcher is told, and again when it asks.
    #[test]
    fn the_word_of_the_agent_before_is_told_again() {
        let open = Incarnation(2);
        for said in [Incarnation(1), open] {
            let mut agent = alone(0);
            let Notice::Opened(word) = agent.opened_before(said) else {
                panic!("another notice");
            };
            agent.before = Some(word.clone());
            agent.rejoined(open);
            let opened = Notice::Opened(word);
            let of_this = said == open;
            assert_eq!(agent.shell.told.contains(&opened), of_this, "{said:?}");
            agent.shell.told.clear();
            agent.restarts = Some(1);
            agent.open(open, Vec::new(), (true, false), Incarnation(0));
            assert_eq!(agent.shell.told.contains(&opened), of_this, "{said:?}");
            let ready = |it: &Notice| matches!(it, Notice::NodeReady { incarnation, .. } if *incarnation == open);
            assert_eq!(agent.shell.told.iter().any(ready), of_this, "{said:?}");
            // Without word another number is asked for, and nobody waits for his bound.
            let refused = |it: &Notice| matches!(it, Notice::OpenFailed { .. });
            assert_eq!(agent.shell.told.iter().any(refused), !of_this, "{said:?}");
        }
    }

    /// The number is said to be used already, and what is known.
    fn used(notice: &Notice) -> bool {
        matches!(notice, Notice::OpenFailed { incarnation, known, .. } if known >= incarnation)
    }

    /// The coordinator's agent ended when its record was made, in the middle of an opening, and is asked to
    /// open while it still asks the others what they know.
    #[test]
    fn an_opening_in_which_the_coordinator_ends_after_its_record_is_no_wait() {
        let open = Incarnation(2);
        for word in [false, true] {
            let mut agent = one_of(2, 0, Level::DISK);
            let config = agent.core.config.take().unwrap();
            agent.core.open.close();
            agent.core.restarts = Some(1);
            let ballot = u64::from(open.0) << 32;
            let records = vec![
                Record::Promise { ballot },
                Record::Incarnation {
                    number: open,
                    restored: None,
                    members: vec![NodeId(0), NodeId(1)],
                    ranks: 0,
                },
            ];
            agent.core.found = Found::new(Ok(records), Vec::new(), false);
            if word && let Notice::Opened(word) = agent.opened_before(open) {
                agent.core.before = Some(word);
            }
            agent.core.on_order(Order::Configure(config));
            assert!(agent.machine().unwrap().has_open(open));
            agent
                .core
                .open(open, Vec::new(), (true, false), Incarnation(1));
            assert_eq!(agent.shell.told.iter().any(used), !word, "{word}");
            // So that what it is told by the others is heeded.
            assert!(agent.core.opening.is_none(), "{word}");
        }
    }
}

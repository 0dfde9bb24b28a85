//! What a look around finds for the versions of this node.

use outlive_base::control_block::ControlWords;

use super::Core;
use crate::node::shell::Shell;

/// What a look sees of ranks, of which nothing else tells. As long as that stays the
/// same, and nothing waits, it need not look often.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::node) struct Sight {
    ranks: usize,
    bytes_needed: u64,
    memory: u64,
    called: bool,
}

impl<S: Shell> Core<S> {
    /// What can be seen of the ranks.
    pub(in crate::node) fn sight(&self) -> Sight {
        let needed = self.ranks.iter().filter_map(|entry| entry.block());
        Sight {
            ranks: self
                .ranks
                .iter()
                .filter(|entry| entry.link.is_some())
                .count(),
            bytes_needed: needed
                .map(|block| block.bytes_needed())
                .fold(0, u64::saturating_add),
            memory: self.ranks.memory(),
            called: self.ranks.called_max().is_some(),
        }
    }

    /// Looks around, before services do.
    pub(in crate::node) fn look_around(&mut self) {
        if self.open.is_any() {
            self.call_back();
            self.prepare_memory();
        }
        self.find_passed();
        self.prepare_late();
        self.try_deferred();
        self.try_asks();
        self.arm_again();
    }

    /// True while a rank waits for memory to capture into.
    pub(in crate::node) fn is_asked(&self) -> bool {
        !self.asks.is_empty()
    }

    /// True while an arming waits for room.
    pub(in crate::node) const fn has_deferred(&self) -> bool {
        self.deferred.is_some()
    }

    /// True while a version is armed that the local ranks have not all captured.
    pub(super) fn is_armed_here(&self) -> bool {
        self.rounds.values().any(|round| !round.told && !round.void)
    }

    /// True if every local rank could be armed now.
    pub(in crate::node) fn slots_ready(&self) -> bool {
        let keep = self.reuse();
        self.ranks.complete(self.me, self.nodes())
            && self.ranks.iter().all(|entry| {
                let needed = entry.block().map_or(0, |block| block.bytes_needed());
                needed > 0
                    && entry
                        .free_slot(keep)
                        .is_some_and(|slot| entry.slots[slot].capacity() >= needed)
            })
    }

    /// True while a coordinator that was started anew asks the others: until it has their
    /// answers, nobody knows what is undecided.
    pub(in crate::node) fn is_rejoining(&self) -> bool {
        let machine = self.machine();
        let asks = machine.is_some_and(|it| !it.is_idle() && it.incarnation().is_none());
        asks && self.opening.is_none()
    }

    /// True if a captured version is not decided yet at one of its levels.
    pub(in crate::node) fn is_undecided(&self) -> bool {
        self.rounds.iter().any(|(&version, round)| {
            let at = (self.open.incarnation(), version);
            round.told && !round.void && !round.is_decided(&self.line.newest, at)
        })
    }

    /// True while a rank may still say what it has captured: its connection is open, and it has not closed.
    pub(in crate::node) fn has_speakers(&self) -> bool {
        let mut ranks = self.ranks.iter();
        ranks.any(|entry| entry.link.is_some() && !entry.closed)
    }

    /// True while a version is being written.
    pub(in crate::node) fn is_flushing(&self) -> bool {
        self.rounds.values().any(|round| round.flushing)
    }

    /// Something has happened since this was asked last.
    pub(in crate::node) const fn take_stirred(&mut self) -> bool {
        self.turn.take_stirred()
    }

    /// A slot may have come free: whoever wants the next version looks at once.
    pub(super) fn look_for_the_next(&mut self) {
        self.turn.look(self.me == self.spec.coordinator);
    }

    /// True if a look is due at once; not any more then.
    pub(in crate::node) const fn take_look_now(&mut self) -> bool {
        self.turn.take_look()
    }

    /// A look is due at once.
    pub(in crate::node) const fn wants_look(&self) -> bool {
        self.turn.is_look_due()
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::{Incarnation, Level, Rank, Time, Version};
    use outlive_protocols::commit::Levels;

    use super::super::ranks::Use;
    use super::*;
    use crate::node::looks::{BEGINNING, LOOKS_APART, TICK, TICK_FAR};
    use crate::node::plain::{PlainBlock, PlainSlab};
    use crate::node::shell::{Done, Link};
    use crate::node::still::{Still, alone, block_of};
    use crate::node::{Input, Node};
    use crate::orders::{Notice, Order, Step};

    /// To wake every few milliseconds for a slot costs a program that keeps all cores busy more
    /// than the version.
    #[test]
    fn an_arming_that_waits_for_a_slot_goes_on_with_the_event_that_frees_one() {
        let mut agent = alone(0);
        let (rank, source) = (Rank(0), Incarnation(1));
        let (block, program) = block_of(rank, source);
        program.set_bytes_needed(1 << 12);
        let entry = agent.ranks.entry(rank, 1);
        entry.control = Some(block);
        entry.link = Some(Link { token: 1, pid: 1 });
        for (slot, version) in [Version(1), Version(2)].into_iter().enumerate() {
            entry.install(slot, PlainSlab::new(1 << 16), Use::Full { source, version });
        }
        agent
            .line
            .newest
            .insert(Level::MEMORY, (source, Version(1)));
        let disk = Levels::NONE.with(Level::DISK);
        agent.open_round(Version(1), disk);
        agent.on_arm(Version(3), disk);
        assert!(agent.deferred.is_some(), "both slots are in use");
        agent.on_time(agent.now + Time::from_ms(100));
        assert!(agent.wake_at() >= agent.now + TICK_FAR);
        agent.on_stable(Version(2), Level::DISK);
        assert!(!agent.deferred.is_some() && agent.rounds.contains_key(&Version(3)));
    }

    #[test]
    fn the_coordinator_looks_when_something_has_happened_and_not_again_at_once() {
        let mut agent = alone(0);
        agent.open_round(Version(1), Levels::NONE.with(Level::DISK));
        let now = agent.now + BEGINNING;
        agent.on(now, Input::Done(Done::Kept { result: Ok(()) }));
        agent.on_time(now);
        assert!(agent.look_at >= now + Time(TICK.0 << LOOKS_APART));
    }

    /// A node with a rank whose connection is open, and the rank's side.
    fn with_a_rank() -> (Node<Still>, PlainBlock) {
        let mut agent = alone(0);
        let (block, program) = block_of(Rank(0), Incarnation(1));
        let entry = agent.ranks.entry(Rank(0), 1);
        entry.control = Some(block);
        entry.link = Some(Link { token: 1, pid: 1 });
        entry.process = Some((1, 1));
        (agent, program)
    }

    fn finish(agent: &mut Node<Still>) -> bool {
        agent.on(agent.now, Input::Order(Order::Finish { success: true }));
        agent.look_around();
        is_finished(agent)
    }

    fn is_finished(agent: &Node<Still>) -> bool {
        agent.shell.told.contains(&Notice::Finished)
    }

    /// They may have captured a version of which this node has not read yet.
    #[test]
    fn the_last_words_of_ranks_are_heard_before_the_end() {
        let (mut agent, _program) = with_a_rank();
        assert!(!finish(&mut agent));
        let (token, exited) = (1, true);
        agent.on(agent.now, Input::Gone { token, exited });
        agent.look_around();
        assert!(is_finished(&agent));
    }

    #[test]
    fn a_rank_that_has_closed_has_said_all() {
        let (mut agent, _program) = with_a_rank();
        agent.ranks.get_mut(Rank(0)).unwrap().closed = true;
        assert!(finish(&mut agent));
    }

    #[test]
    fn a_connection_that_a_child_holds_open_does_not_hold_up_the_end() {
        let (mut agent, _program) = with_a_rank();
        assert!(!finish(&mut agent));
        let later = agent.now + Time::from_secs(1);
        agent.on_time(later);
        agent.look_around();
        assert!(is_finished(&agent));
    }

    /// The larger was written in less time.
    #[test]
    fn what_is_stable_after_a_newer_version_is_told_too() {
        let (mut agent, _program) = with_a_rank();
        for version in [2, 1] {
            agent.on_stable(Version(version), Level::DISK);
        }
        let told = agent.shell.told.iter();
        let stable = told.filter_map(|notice| match notice {
            Notice::Checkpoint {
                version,
                step: Step::Stable(Level::DISK),
            } => Some(version.0),
            _ => None,
        });
        assert_eq!(stable.collect::<Vec<_>>(), [2, 1]);
    }
}

//! When a node looks around for what nothing tells it of: what ranks say through shared memory
//! alone, and what is due by the clock.

use outlive_base::{NodeId, Time, Version};

use super::Node;
use super::shell::Shell;

/// How often housekeeping looks around while something is under way: memory to
/// prepare, policy, waits. Each look that finds nothing new doubles the pause.
pub(super) const TICK: Time = Time::from_ms(5);
/// How often it does while only the rate of versions is of interest, or a slot is awaited.
const TICK_FAR: Time = Time::from_ms(25);
/// How often it does when nothing was: what ranks say through shared memory alone
/// (their first call, how much memory they need) is noticed this late.
const TICK_CALM: Time = Time::from_ms(250);
/// After an event a node looks as if so many looks had found nothing: 80 ms later. Events are
/// carried out when they come; what is left is what ranks say through shared memory.
const LOOKS_APART: u32 = 4;
/// How long the first version of a start is looked for closely.
const BEGINNING: Time = Time::from_secs(5);

impl<S: Shell> Node<S> {
    /// What time brings: deadlines of the machines, and a look around where one is due.
    pub fn on_time(&mut self, now: Time) {
        self.now = now;
        self.fire_deadlines();
        let stirred = std::mem::take(&mut self.stirred);
        // Most of what happens is carried out when it does. Only the coordinator waits for its
        // next version, and who waits for room, for that: to look now costs less than to wake
        // once more for it.
        let soon = stirred && (self.me == NodeId(0) || self.is_waiting_for_room());
        let look = std::mem::take(&mut self.look_now) | soon | self.is_look_due(now);
        if look {
            self.look_around();
            let pause = self.until_next_look(stirred);
            self.look_at = match pause == TICK_CALM {
                true => self.with_a_heartbeat(now + pause),
                false => now + pause,
            };
        }
        self.carry_out();
        if stirred && !look {
            self.looks.1 = LOOKS_APART;
            self.look_at = self.look_at.min(now + self.pause());
        }
        if self.look_now {
            self.look_at = now;
        }
    }

    /// True if [`Node::on_time`] would look around. A look that is nearly due goes with what
    /// woke this node anyway.
    pub fn is_look_due(&self, now: Time) -> bool {
        now + Time(self.pause().0 / 4) >= self.look_at
    }

    /// When it must hear of the time again.
    pub fn wake_at(&self) -> Time {
        let commit = self.commit.as_ref().and_then(|it| it.deadline(self.now));
        let detector = self.detector.as_ref().and_then(|it| it.deadline(self.now));
        let missing = self.gathering.deadline();
        let first = [commit, detector, missing].into_iter().flatten().min();
        first.map_or(self.look_at, |at| at.min(self.look_at))
    }

    /// How long housekeeping may wait: not long while something is under way that no
    /// event will tell of.
    fn until_next_look(&mut self, stirred: bool) -> Time {
        let sight = self.sight();
        self.looks = match self.looks {
            _ if stirred => (sight, LOOKS_APART),
            (last, count) if last == sight => (sight, count.saturating_add(1)),
            _ => (sight, 0),
        };
        if self.is_awaited() || self.is_beginning() {
            return TICK;
        }
        // That a slot is free is an event; only what ranks say through shared memory is none.
        if self.is_waiting_for_room() {
            return TICK_FAR;
        }
        let pause = self.pause();
        let first = self.waits.iter().map(|waiting| waiting.until);
        let written = self.rounds.values().filter_map(|round| round.written_until);
        // A multiple that is far by the rate needs a look now and then: rates change.
        let due = self.checkpoint_due().map(|at| match self.policy.far {
            Some(until) => at.max(self.now + Time(until.0 / 2).max(TICK_FAR)),
            None => at,
        });
        let first = first.chain(written).chain(due).min();
        first
            .map_or(pause, |at| at.since(self.now))
            .clamp(TICK, pause)
    }

    /// The time of the heartbeat nearest to a look that is not urgent: each time that this
    /// node wakes costs, and heartbeats wake it anyway.
    fn with_a_heartbeat(&self, at: Time) -> Time {
        let next = self.detector.as_ref().and_then(|it| it.deadline(self.now));
        let slack = Time(TICK_CALM.0 / 4);
        let near = |beat: &Time| *beat + slack >= at && *beat <= at + slack;
        let beats = next.map(|next| [next, next + self.heartbeat()]);
        beats.into_iter().flatten().find(near).unwrap_or(at)
    }

    /// True while the first version of a start is awaited, at its beginning: ranks say by
    /// shared memory alone how much memory they need and when they begin to call, and a
    /// short program would be over before that was noticed.
    fn is_beginning(&self) -> bool {
        let first = (self.incarnation, Version(0));
        let none = self.line.levels.range(first..).next().is_none();
        none && self.now.since(self.policy.last) < BEGINNING
    }

    /// The pause after so many looks that found nothing new.
    fn pause(&self) -> Time {
        Time(TICK.0 << self.looks.1.min(16)).min(TICK_CALM)
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::control_block::ControlWords;
    use outlive_base::{Incarnation, Level, Rank};
    use outlive_protocols::commit::Levels;

    use super::*;
    use crate::node::plain::PlainSlab;
    use crate::node::ranks::Use;
    use crate::node::shell::{Done, Link};
    use crate::node::still::{alone, block_of};

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
        agent.stable.insert(Level::MEMORY, (source, Version(1)));
        let disk = Levels::NONE.with(Level::DISK);
        agent.open_round(Version(1), disk);
        agent.on_arm(Version(3), disk);
        assert!(agent.deferred.is_some(), "both slots are in use");
        agent.on_time(agent.now + Time::from_ms(100));
        assert!(agent.wake_at() >= agent.now + TICK_FAR);
        agent.on_stable(Version(2), Level::DISK);
        assert!(agent.deferred.is_none() && agent.rounds.contains_key(&Version(3)));
    }

    #[test]
    fn the_coordinator_looks_when_something_has_happened_and_not_again_at_once() {
        let mut agent = alone(0);
        agent.open_round(Version(1), Levels::NONE.with(Level::DISK));
        let now = agent.now + BEGINNING;
        agent.on(now, crate::node::Input::Done(Done::Kept { result: Ok(()) }));
        agent.on_time(now);
        assert!(agent.look_at >= now + Time(TICK.0 << LOOKS_APART));
    }
}

//! When a node looks around for what nothing tells it of: what ranks say through shared memory
//! alone, and what is due by the clock.

use outlive_base::{Time, Version};

use super::Node;
use super::service::{Haste, Service};
use super::shell::Shell;

/// How often housekeeping looks around while something is under way: memory to
/// prepare, policy, waits. Each look that finds nothing new doubles the pause.
pub(super) const TICK: Time = Time::from_ms(5);
/// How often it does while only the rate of versions is of interest, or a slot is awaited.
pub(super) const TICK_FAR: Time = Time::from_ms(25);
/// How often it does when nothing was: what ranks say through shared memory alone
/// (their first call, how much memory they need) is noticed this late.
const TICK_CALM: Time = Time::from_ms(250);
/// After an event a node looks as if so many looks had found nothing: 80 ms later. Events are
/// carried out when they come; what is left is what ranks say through shared memory.
pub(super) const LOOKS_APART: u32 = 4;
/// How long the first version of a start is looked for closely.
pub(super) const BEGINNING: Time = Time::from_secs(5);

impl<S: Shell> Node<S> {
    /// What time brings: deadlines, and a look around where one is due.
    pub fn on_time(&mut self, now: Time) {
        self.core.at(now, false);
        self.services.on_time(&mut self.core);
        self.core.on_time();
        self.deliver();
        let stirred = self.core.take_stirred();
        // Most of what happens is carried out when it does. Only the coordinator waits for its
        // next version, and who waits for room, for that: to look now costs less than to wake
        // once more for it.
        let soon = stirred && (self.core.is_coordinator() || self.haste() != Haste::Calm);
        let look = self.core.take_look_now() | soon | self.is_look_due(now);
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
        if self.core.wants_look() {
            self.look_at = now;
        }
    }

    /// Looks around now.
    pub(super) fn look_around(&mut self) {
        self.core.look_around();
        self.deliver();
        self.services.on_look(&mut self.core);
        self.deliver();
    }

    /// How closely to look around.
    fn haste(&self) -> Haste {
        let core = match () {
            () if self.core.is_asked() => Haste::Awaited,
            () if self.core.has_deferred() => Haste::Waiting,
            () => Haste::Calm,
        };
        core.max(self.services.haste(&self.core))
    }

    /// True if [`Node::on_time`] would look around. A look that is nearly due goes with what
    /// woke this node anyway.
    pub fn is_look_due(&self, now: Time) -> bool {
        now + Time(self.pause().0 / 4) >= self.look_at
    }

    /// When it must hear of the time again.
    pub fn wake_at(&self) -> Time {
        let services = self.services.deadline(&self.core);
        let first = services.into_iter().chain(self.core.deadline()).min();
        first.map_or(self.look_at, |at| at.min(self.look_at))
    }

    /// How long housekeeping may wait: not long while something is under way that no
    /// event will tell of.
    fn until_next_look(&mut self, stirred: bool) -> Time {
        let sight = self.core.sight();
        self.looks = match self.looks {
            _ if stirred => (sight, LOOKS_APART),
            (last, count) if last == sight => (sight, count.saturating_add(1)),
            _ => (sight, 0),
        };
        match self.haste() {
            Haste::Awaited => return TICK,
            _ if self.is_beginning() => return TICK,
            // That a slot is free is an event; only what ranks say through shared memory is none.
            Haste::Waiting => return TICK_FAR,
            Haste::Calm => {}
        }
        let pause = self.pause();
        let rounds = self.core.rounds().values();
        let written = rounds.filter_map(|round| round.written_until);
        let first = written.chain(self.services.look_at(&self.core)).min();
        first
            .map_or(pause, |at| at.since(self.core.now()))
            .clamp(TICK, pause)
    }

    /// The time of the heartbeat nearest to a look that is not urgent: each time that this
    /// node wakes costs, and heartbeats wake it anyway.
    fn with_a_heartbeat(&self, at: Time) -> Time {
        let next = self.services.silence.deadline(&self.core);
        let slack = Time(TICK_CALM.0 / 4);
        let near = |beat: &Time| *beat + slack >= at && *beat <= at + slack;
        let beats = next.map(|next| [next, next + self.heartbeat()]);
        beats.into_iter().flatten().find(near).unwrap_or(at)
    }

    /// True while the first version of a start is awaited, at its beginning: ranks say by
    /// shared memory alone how much memory they need and when they begin to call, and a
    /// short program would be over before that was noticed.
    fn is_beginning(&self) -> bool {
        let first = (self.core.incarnation(), Version(0));
        let none = self.core.line().levels.range(first..).next().is_none();
        none && self.core.now().since(self.core.began()) < BEGINNING
    }

    /// The pause after so many looks that found nothing new.
    fn pause(&self) -> Time {
        Time(TICK.0 << self.looks.1.min(16)).min(TICK_CALM)
    }
}

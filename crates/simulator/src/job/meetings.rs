//! Meetings of events that chance alone brings about rarely: something ends while something else
//! is under way. A history may have them beside the faults that are drawn at ticks.

use outlive_base::Time;

use super::node::Process;
use super::*;

/// What is under way at a node when something ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occasion {
    /// A rank captures a version.
    Fills,
    /// A rank has captured a version.
    Captures,
    /// A version is being written.
    Writes,
    /// The coordinator has just made durable that a version survives the loss of nodes, and told
    /// nobody.
    Decides,
    /// The coordinator, the last of all, has just made durable that an incarnation is open, and told nobody.
    Begins,
    /// A decision is about to be written to the shared directory, which is full or out of reach
    /// from then on for a while.
    Shares,
    /// A decision is about to be durable at the coordinator, from where it goes to the shared directory.
    Sends,
    /// An agent was ordered to open an incarnation.
    Opens,
    /// Old copies are being removed.
    Removes,
}

/// How often something ends at which occasion, per million, and what.
#[derive(Clone, Debug, Default)]
pub struct Meetings {
    /// See [`Occasion::Fills`].
    pub fills: u32,
    /// See [`Occasion::Captures`].
    pub captures: u32,
    /// See [`Occasion::Writes`].
    pub writes: u32,
    /// See [`Occasion::Decides`].
    pub decides: u32,
    /// See [`Occasion::Begins`].
    pub begins: u32,
    /// See [`Occasion::Shares`].
    pub shares: u32,
    /// See [`Occasion::Sends`].
    pub sends: u32,
    /// See [`Occasion::Opens`].
    pub opens: u32,
    /// See [`Occasion::Removes`].
    pub removes: u32,
    /// Relative weights: the agent there ends; its node is lost; any rank ends.
    pub agent: u32,
    /// See `agent`.
    pub node: u32,
    /// See `agent`.
    pub rank: u32,
    /// The longest time that a capture takes, in microseconds; 300 if less.
    pub fill_us: u64,
    /// From one to the next, at least: a job must get on in between.
    pub apart: Time,
}

impl Meetings {
    const fn at(&self, occasion: Occasion) -> u32 {
        match occasion {
            Occasion::Fills => self.fills,
            Occasion::Captures => self.captures,
            Occasion::Writes => self.writes,
            Occasion::Decides => self.decides,
            Occasion::Begins => self.begins,
            Occasion::Shares => self.shares,
            Occasion::Sends => self.sends,
            Occasion::Opens => self.opens,
            Occasion::Removes => self.removes,
        }
    }
}

impl Job {
    /// Something is under way at a node: it may meet an end, in a moment or, if so, at once.
    pub(super) fn meets(&mut self, who: Process, occasion: Occasion) -> bool {
        let chance = self.options.meetings.at(occasion);
        // Without meetings nothing is drawn, and a seed's history stays as it was.
        if chance == 0 || self.calm || self.now < self.struck + self.options.meetings.apart {
            return false;
        }
        if !self.random.chance(chance) {
            return false;
        }
        self.struck = self.now;
        self.met += 1;
        let life = self.home(who).life;
        self.note(|| format!("p{who} {occasion:?}: something is to end"));
        if occasion == Occasion::Shares {
            self.outage(None);
        }
        if occasion == Occasion::Sends {
            return true;
        }
        let delay = match self.random.below(3) {
            0 if matches!(
                occasion,
                Occasion::Decides | Occasion::Begins | Occasion::Shares
            ) =>
            {
                return true;
            }
            0 => Time(1),
            1 => self.some_us(3_000),
            _ => self.some_us(100_000),
        };
        self.after(delay, Action::Strike { who, life });
        false
    }

    /// A rank begins to capture: how long it takes.
    pub(super) fn fills(&mut self, who: Process) -> Time {
        self.comes_to(strikes::Stage::Capture, who);
        let _ = self.meets(who, Occasion::Fills);
        self.some_us(self.options.meetings.fill_us.max(300))
    }

    pub(super) fn strike(&mut self, who: Process, life: u32) {
        if self.calm || self.home(who).lost || self.home(who).life != life {
            return;
        }
        let meetings = &self.options.meetings;
        let (agent, node, rank) = (meetings.agent, meetings.node, meetings.rank);
        let at = self.random.below(u64::from(agent + node + rank)) as u32;
        match at {
            at if at < agent => self.end_agent(who),
            at if at < agent + node => self.lose_node(who),
            _ => self.rank_fails(),
        }
    }
}

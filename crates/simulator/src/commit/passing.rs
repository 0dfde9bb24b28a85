//! Nodes, continued: ranks that leave an armed version out, and nodes that join a version
//! which others have begun.

use outlive_protocols::commit::{Command, Levels, Why};

use super::agent::*;
use super::*;

impl History {
    /// Ranks of other nodes capture a version that was not armed.
    pub(super) fn join(&mut self, world: &mut W, who: Process, v: u64, levels: Levels) {
        let home = self.home(who);
        if let Some(work) = home.work.get_mut(&v) {
            // Met by an agent that was started anew: its levels come with this.
            if work.levels.is_none() {
                work.levels = Some(levels);
                self.flush_all(world, who, v);
                self.finish(world, who, v);
            }
            return;
        }
        if home.is_bare() {
            home.work.insert(v, Work::new(levels, 0, world.now));
            return self.capture_nothing(world, who, v);
        }
        let gone = home.aborted.contains(&v) || home.furthest() >= v;
        let room = home.mem.len() + usize::from(!home.work.is_empty()) <= SLOTS;
        let mut work = Work::new(levels, home.called.len(), world.now);
        work.passed = gone;
        home.work.insert(v, work);
        if home.armed.is_none() && room {
            home.armed = Some(v);
        }
        if gone {
            let (version, why) = (version(v), Why::Passed);
            self.tell(world, who, 500, Command::CaptureFailed { version, why });
        }
    }

    /// The first version that a rank offers past an armed one takes its place.
    pub(super) fn capture_past(
        &mut self,
        world: &mut W,
        who: Process,
        rank: usize,
        (armed, v): (u64, u64),
        state: u64,
    ) {
        let (all, now) = (self.options.levels, world.now);
        let home = self.home(who);
        let up = home.up;
        let levels = home.work.get(&armed).map(|work| work.levels.unwrap_or(all));
        let Some(levels) = levels.filter(|_| !home.aborted.contains(&v)) else {
            return;
        };
        let begins = !home.work.contains_key(&v);
        if begins {
            let work = Work::new(levels, home.called.len(), now);
            home.work.insert(v, work);
        }
        if begins && up {
            let version = version(v);
            world.command(who, Command::Force { version, levels });
        }
        self.capture(world, who, rank, v, state);
        if up {
            let (version, why) = (version(armed), Why::Passed);
            world.command(who, Command::CaptureFailed { version, why });
        }
    }

    /// Tells of versions that this rank will not capture any more.
    pub(super) fn find_passed(&mut self, world: &mut W, who: Process, rank: usize, v: u64) {
        let home = self.home(who);
        if !home.up {
            return;
        }
        let mut passed = Vec::new();
        for (&at, work) in home.work.range_mut(..v) {
            if work.captured[rank].is_none() && !work.passed {
                work.passed = true;
                passed.push(at);
            }
        }
        for at in passed {
            let (version, why) = (version(at), Why::Passed);
            self.tell(world, who, 500, Command::CaptureFailed { version, why });
        }
    }
}

//! Nodes, continued: nodes on which no rank lives. They take part in versions with nothing.
//!
//! An agent learns from the launcher how many ranks the job has, some time after the
//! first of them said so; one that was started anew learns it again. It keeps nothing
//! between its lives by which it would know of a version that it has captured.

use std::collections::BTreeSet;

use outlive_base::{Incarnation, Level};
use outlive_protocols::commit::{Command, Levels};

use super::agent::*;
use super::*;

impl Home {
    /// True if no rank lives here.
    pub fn is_bare(&self) -> bool {
        self.called.is_empty()
    }
}

impl History {
    /// Ranks of node `node`.
    pub(super) fn ranks_of(&self, node: u32) -> usize {
        match node < self.options.nodes - self.options.bare {
            true => self.options.ranks as usize,
            false => 0,
        }
    }

    pub(super) fn learn(&mut self, world: &mut W, who: Process, life: u32, incarnation: u32) {
        let home = self.home(who);
        if home.up && home.life == life && home.incarnation == incarnation {
            home.knows = true;
            let waiting: Vec<u64> = home.work.keys().copied().collect();
            for v in waiting {
                self.capture_nothing(world, who, v);
            }
        }
    }

    /// A version goes on of which the driver knows nothing.
    pub(super) fn resume_nothing(&mut self, world: &mut W, who: Process, v: u64, levels: Levels) {
        let home = self.home(who);
        if home.is_bare() && !home.work.contains_key(&v) {
            let mut work = Work::new(levels, 0, world.now);
            work.decided = home.stable.remove(&v).unwrap_or(Levels::NONE);
            work.committed = !work.decided.is_empty();
            home.work.insert(v, work);
            self.finish(world, who, v);
            self.capture_nothing(world, who, v);
        }
    }

    /// Versions on which the commit machine may still be asked for the decision.
    pub(super) fn asked_about(&mut self, world: &mut W, who: Process) -> Vec<Key> {
        let home = self.home(who);
        let held = home.mem.keys().chain(home.disk.keys()).copied();
        let held: BTreeSet<Key> = held
            .chain(home.partner.keys().map(|&(key, _)| key))
            .collect();
        let machine = world.machine(who);
        let asked = |&(source, v): &Key| {
            machine.is_some_and(|machine| !machine.may_forget(Incarnation(source), version(v)))
        };
        held.into_iter().filter(asked).collect()
    }

    /// Captures the nothing of this node, if it is known to be nothing.
    pub(super) fn capture_nothing(&mut self, world: &mut W, who: Process, v: u64) {
        let home = self.home(who);
        if !home.is_bare() || !home.knows {
            return;
        }
        let key = (home.incarnation, v);
        let Some(work) = home.work.get_mut(&v) else {
            return;
        };
        if std::mem::replace(&mut work.told, true) {
            return;
        }
        let (node, first) = (home.node, !home.mem.contains_key(&key));
        if first {
            home.mem.insert(key, Blob::new(Vec::new()));
            let (level, owner) = (Level::Memory, node);
            self.judge.captures(world.now, key, node, &[]);
            self.judge.stores(Place { level, key, owner }, &[]);
        }
        let version = version(v);
        self.tell(world, who, 500, Command::Captured { version });
        self.flush_all(world, who, v);
    }
}

//! Faults, drawn one after another from the seed.

use std::collections::BTreeSet;

use outlive_base::{Code, Entity, Error, Level, Result, Time};
use outlive_control::node::plain::PlainSlab;
use outlive_control::node::shell::Staging;

use super::checker::CopyAt;
use super::*;
use crate::network::LossyOptions;

/// How much longer an act takes at most where storage is slow.
pub const SLOW_MAX: Time = Time::from_secs(3);
/// Per million.
const ALWAYS: u32 = 1_000_000;

impl Job {
    pub(super) fn chaos(&mut self) {
        if self.calm {
            return;
        }
        let tick = self.options.tick.0;
        let delay = Time(tick / 2 + self.random.below(tick));
        self.after(delay, Action::Chaos);
        let node = self.random.below(u64::from(self.options.nodes)) as u32;
        let who = self.at(node);
        let fault = self.options.weights.draw(&mut self.random);
        self.note(|| format!("fault {fault:?} for n{node} (p{who})"));
        match fault {
            Some(0) => self.end_agent(who),
            Some(1) if !self.home(who).lost => self.lose_node(who),
            Some(2) => self.rank_fails(),
            Some(3) => {
                let side = self.random.u64() & ((1 << self.options.nodes) - 1);
                self.net.partition(side);
                let length = Time::from_ms(50 + self.random.below(2000));
                self.after(length, Action::Rejoin);
            }
            Some(4) => {
                let length = Time::from_ms(20 + self.random.below(1500));
                self.home(who).paused_until = self.now + length;
            }
            Some(5) => self.damage(who),
            // Frozen for so long that it is taken for dead; wakes up later.
            Some(6) => {
                let length = Time::from_ms(700 + self.random.below(2000));
                self.home(who).paused_until = self.now + length;
            }
            Some(7) => {
                for node in 0..self.options.nodes {
                    let who = self.at(node);
                    if !self.home(who).lost {
                        self.lose_node(who);
                    }
                }
            }
            Some(8) => self.next_run(),
            Some(9) => {
                let levels = self.options.levels.iter();
                let grouped = levels.filter(|level| level.members().is_some());
                let count = grouped.map(|level| u32::from(level.protection().m)).max();
                for next in 0..count.unwrap_or(0) {
                    let who = self.at((node + next) % self.options.nodes);
                    if !self.home(who).lost {
                        self.lose_node(who);
                    }
                }
            }
            Some(10) => self.twin(),
            Some(11) => {
                let domains = self.options.domains.clone();
                let same = |other: &u32| domains.get(*other as usize) == domains.get(node as usize);
                for other in (0..self.options.nodes).filter(same) {
                    let who = self.at(other);
                    if !self.home(who).lost {
                        self.lose_node(who);
                    }
                }
            }
            Some(12) => {
                self.outage(Some(node));
            }
            Some(13) => self.server_fails(),
            Some(14) => self.overwrites(who),
            _ => {}
        }
    }

    /// The shared directory is full, or cannot even be read, for a while; perhaps at one node only.
    pub(super) fn outage(&mut self, node: Option<u32>) {
        let length = Time::from_ms(20 + self.random.below(3_000));
        let hidden = self.random.chance(500_000);
        let until = self.now + length;
        (self.shared.out_until, self.shared.hidden) = (until, hidden);
        self.shared.only = node.filter(|_| self.random.chance(300_000));
    }

    /// How much longer a copy takes to write.
    pub(super) fn lasting(&mut self, who: Process) -> Time {
        let (amid, after) = self.options.lasts;
        let most = if self.calm { after } else { amid };
        let lasts = match most {
            Time::ZERO => Time::ZERO,
            most => Time(self.random.below(most.0)),
        };
        lasts + self.slowness(who)
    }

    /// How much longer storage takes for an act where it is slow.
    pub(super) fn slowness(&mut self, who: Process) -> Time {
        let slow = self.home(who).slow;
        let slow = match slow {
            _ if self.calm => 0,
            true => ALWAYS,
            false => self.options.slow,
        };
        match slow > 0 && self.random.chance(slow) {
            true => Time::from_ms(10) + Time(self.random.below(SLOW_MAX.0)),
            false => Time::ZERO,
        }
    }

    /// How many of a million acts a node's storage refuses.
    pub(super) fn refusals(&mut self, who: Process) -> u32 {
        let full = self.home(who).full;
        match full {
            _ if self.calm => 0,
            true => ALWAYS,
            false => self.options.faults.refuse,
        }
    }

    /// The shared directory takes nothing of this node.
    pub(super) fn shared_refuses(&self, node: u32) -> Result<()> {
        let others = self.shared.only.is_some_and(|only| only != node);
        if self.calm || others || self.shared.out_until <= self.now {
            return Ok(());
        }
        let (code, reason, remedy) = match self.shared.hidden {
            true => (Code::Io, "input/output error", "see the storage"),
            false => (Code::NoSpace, "no space is left", "make room"),
        };
        let entity = Entity::File("shared".into());
        Err(Error::new(code, entity, reason, remedy))
    }

    /// Nor can it be read.
    pub(super) fn shared_is_hidden(&self, node: u32) -> bool {
        self.shared.hidden && self.shared_refuses(node).is_err()
    }

    /// Something stored at a node goes bad: its domain counts as failed.
    fn damage(&mut self, who: Process) {
        let mut random = self.random.clone();
        let parities = self.options.levels.iter().any(|it| it.members().is_some());
        let home = self.home(who);
        let node = home.node;
        let place = match random.below(if parities { 4 } else { 3 }) {
            0 => {
                home.storage.records.damage(&mut random);
                home.damaged = true;
                None
            }
            1 => {
                let found = home.storage.own.iter_mut().next_back();
                found.map(|(&key, container)| {
                    container.flip(&mut random);
                    CopyAt {
                        level: Level::DISK,
                        key,
                        owner: node,
                    }
                })
            }
            3 => {
                let found = home.storage.parity.iter_mut().next_back();
                found.map(|(&(key, level), bytes)| {
                    if let Some(byte) = bytes.first_mut() {
                        *byte ^= 1 << random.below(8);
                    }
                    CopyAt {
                        level,
                        key,
                        owner: node,
                    }
                })
            }
            _ => {
                let found = home.storage.partner.iter_mut().next_back();
                found.map(|(&(key, owner), container)| {
                    container.flip(&mut random);
                    CopyAt {
                        level: Level::PARTNER,
                        key,
                        owner,
                    }
                })
            }
        };
        self.random = random;
        self.judge.fails(self.now, node);
        if let Some(place) = place {
            self.judge.copy_fails(place);
        }
    }

    /// The newest capture in a node's memory of which a level is stable, and which lies on the disk
    /// and at the partner as well, is overwritten by something. Before that nobody could know.
    fn overwrites(&mut self, who: Process) {
        let node = self.home(who).node;
        // What is overwritten between the look at it and the restore is not seen.
        let ranks = self.ranks_of(node);
        let mut programs = ranks.iter().map(|rank| self.programs.get(&rank.0));
        if programs.any(|program| program.is_none_or(|it| it.stage.is_before_work())) {
            return;
        }
        let captured = self.in_memory(who);
        let stable: BTreeSet<Key> = self.judge.all_stable().into_iter().map(|it| it.0).collect();
        let lies_elsewhere = |key: &&Key| {
            let own = self.homes[who as usize].storage.own.contains_key(key);
            let mut others = self.homes.iter();
            own && stable.contains(*key)
                && others.any(|home| home.storage.partner.contains_key(&(**key, node)))
        };
        let Some(&key) = captured.iter().rev().find(lies_elsewhere) else {
            return;
        };
        let mut slabs = self.home(who).slabs.values();
        let of_it = |slab: &&PlainSlab| {
            let head = slab.head().ok().filter(|head| head.state.is_complete());
            head.is_some_and(|head| (head.id.incarnation.0, head.version.0) == key)
        };
        if let Some(slab) = slabs.find(of_it) {
            slab.damage();
            self.note(|| format!("the capture of {key:?} in n{node} is overwritten"));
            let (level, owner) = (Level::MEMORY, node);
            self.judge.copy_fails(CopyAt { level, key, owner });
            self.judge.fails(self.now, node);
            // What wrote over it ends soon after, or the agent does.
            let delay = self.some_us(200_000);
            let life = self.home(who).life;
            self.after(delay, Action::Strike { who, life });
        }
    }

    /// A node's memory is gone; what it stored stays.
    pub(super) fn forgets(&mut self, who: Process) {
        let (owner, level) = (self.home(who).node, Level::MEMORY);
        for key in self.in_memory(who) {
            self.judge.copy_fails(CopyAt { level, key, owner });
        }
        self.judge.fails(self.now, owner);
    }

    /// A node's storage is out of reach for good.
    pub(super) fn wiped(&mut self, who: Process) {
        if std::mem::replace(&mut self.home(who).wiped, true) {
            return;
        }
        let node = self.home(who).node;
        let mut places = Vec::new();
        for key in self.in_memory(who) {
            places.push((Level::MEMORY, key, node));
        }
        let storage = &self.home(who).storage;
        places.extend(storage.own.keys().map(|&key| (Level::DISK, key, node)));
        let parity = storage.parity.keys();
        places.extend(parity.map(|&(key, level)| (level, key, node)));
        let kept = storage.partner.keys();
        places.extend(kept.map(|&(key, owner)| (Level::PARTNER, key, owner)));
        for (level, key, owner) in places {
            self.judge.copy_fails(CopyAt { level, key, owner });
        }
        self.judge.fails(self.now, node);
    }

    pub(super) fn heal(&mut self) {
        self.calm = true;
        self.net.partition(0);
        self.net.options = LossyOptions::CALM;
        self.note(|| "all faults end".to_string());
    }
}

//! Nodes: ranks, their memory, the agent's storage, and how an agent obeys.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::rng::draw;
use outlive_base::{Incarnation, Level, Time, Version};
use outlive_control::orders::{Notice, Step};
use outlive_protocols::commit::{Command, Event, Levels, Planted, Record, Why};

use super::*;

/// Memory slots of a node: two that hold, one that fills.
pub(super) const SLOTS: usize = 3;

/// Bytes of all ranks of a node (a word stands for a rank's bytes) and the digest
/// that was computed when they were captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    pub words: Vec<u64>,
    digest: u64,
}

fn digest(words: &[u64]) -> u64 {
    words
        .iter()
        .fold(words.len() as u64, |sum, &word| draw(sum, word, 1))
}

impl Blob {
    pub fn new(words: Vec<u64>) -> Blob {
        Blob {
            digest: digest(&words),
            words,
        }
    }
    pub fn good(&self) -> bool {
        digest(&self.words) == self.digest
    }
    pub fn flip(&mut self, random: &mut Sequence) {
        if self.words.is_empty() {
            // Of a node without ranks: its header.
            self.digest ^= 1;
            return;
        }
        let at = random.below(self.words.len() as u64) as usize;
        self.words[at] ^= 1 << random.below(64);
    }
}

/// A version that is being taken.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub levels: Option<Levels>,
    pub captured: Vec<Option<u64>>,
    pub decided: Levels,
    pub committed: bool,
    pub since: Time,
    /// A node without ranks has captured its nothing, in this life of its agent.
    pub told: bool,
    /// A rank has gone past it, and the agent knows.
    pub passed: bool,
}

impl Work {
    pub fn new(levels: Levels, ranks: usize, since: Time) -> Work {
        Work {
            levels: Some(levels),
            captured: vec![None; ranks],
            decided: Levels::NONE,
            committed: false,
            since,
            told: false,
            passed: false,
        }
    }
}

/// One physical node.
#[derive(Debug)]
pub(super) struct Home {
    pub node: u32,
    pub lost: bool,
    /// What it stored is out of reach.
    pub wiped: bool,
    pub up: bool,
    /// Grows with every start of the agent.
    pub life: u32,
    pub incarnation: u32,
    pub mem: BTreeMap<Key, Blob>,
    pub disk: BTreeMap<Key, Blob>,
    pub partner: BTreeMap<(Key, u32), Blob>,
    pub armed: Option<u64>,
    pub called: Vec<u64>,
    /// The version that each rank captured last.
    pub answered: Vec<u64>,
    pub state: Vec<u64>,
    pub work: BTreeMap<u64, Work>,
    /// Versions called aborted, as the control blocks remember them.
    pub aborted: BTreeSet<u64>,
    pub opened: u32,
    /// The launcher has said how many ranks there are.
    pub knows: bool,
    /// Levels of versions that this life of the agent does not know, and that are stable.
    pub stable: BTreeMap<u64, Levels>,
}

impl Home {
    /// The largest version a local rank has called.
    pub fn furthest(&self) -> u64 {
        self.called.iter().copied().max().unwrap_or(0)
    }
}

pub(super) fn version(v: u64) -> Version {
    Version(v)
}

impl History {
    pub(super) fn new_home(&mut self, world: &mut W, node: u32) -> Process {
        let who = world.add(node);
        let ranks = self.ranks_of(node);
        self.homes.insert(
            who,
            Home {
                node,
                lost: false,
                wiped: false,
                up: true,
                life: 1,
                incarnation: 0,
                mem: BTreeMap::new(),
                disk: BTreeMap::new(),
                partner: BTreeMap::new(),
                armed: None,
                called: vec![0; ranks],
                answered: vec![0; ranks],
                state: vec![0; ranks],
                work: BTreeMap::new(),
                aborted: BTreeSet::new(),
                opened: 0,
                knows: false,
                stable: BTreeMap::new(),
            },
        );
        who
    }

    pub(super) fn home(&mut self, who: Process) -> &mut Home {
        self.homes.get_mut(&who).expect("homes are never removed")
    }

    pub(super) fn tell(
        &mut self,
        world: &mut W,
        who: Process,
        delay_max_us: u64,
        command: Command,
    ) {
        let life = self.home(who).life;
        let delay = Time(1000 * (10 + self.random.below(delay_max_us)));
        world.after(delay, Action::Tell { who, life, command });
    }

    pub(super) fn tell_now(&mut self, world: &mut W, who: Process, life: u32, command: Command) {
        let home = self.home(who);
        if home.up && home.life == life {
            world.command(who, command);
        }
    }

    pub(super) fn agent_event(&mut self, world: &mut W, who: Process, event: Event) {
        let key = |home: &Home, version: Version| (home.incarnation, version.0);
        match event {
            Event::Arm { version, levels } => self.arm(world, who, version.0, levels),
            Event::Join { version, levels } => self.join(world, who, version.0, levels),
            Event::Disarm { version } => self.drop_version(world, who, version.0),
            Event::Resumed { version, levels } => {
                if let Some(work) = self.home(who).work.get_mut(&version.0) {
                    work.levels = Some(levels);
                }
                self.resume_nothing(world, who, version.0, levels);
                self.flush_all(world, who, version.0);
                self.finish(world, who, version.0);
            }
            Event::Stable { version, level } => {
                let key = key(self.home(who), version);
                self.judge.declares_stable(world.now, key, level);
                if self.home(who).node == 0 {
                    let step = Step::Stable(level);
                    self.notify(world, who, Notice::Checkpoint { version, step });
                }
                self.decide(world, who, key.1, level, true);
                self.collect(world, who, key, level);
            }
            Event::Aborted { version, level, .. } => {
                let key = key(self.home(who), version);
                self.judge.declares_aborted(world.now, key, level);
                match level {
                    Some(level) => self.decide(world, who, key.1, level, false),
                    None => {
                        self.home(who).aborted.insert(key.1);
                        self.drop_version(world, who, key.1);
                    }
                }
            }
            Event::CollectInventory { incarnation } => self.inventory(world, who, incarnation),
            Event::Rebuild {
                source, version, ..
            } => {
                let life = self.home(who).life;
                let delay = Time(1000 * self.random.below(20_000));
                let key = (source.0, version.0);
                world.after(delay, Action::Rebuild { who, life, key });
            }
            Event::Opened {
                incarnation,
                source,
                version,
                ..
            } => {
                self.opened(world, who, incarnation.0, (source.0, version.0));
            }
            Event::OpenFailed {
                incarnation,
                why,
                known,
                ..
            } => {
                self.open_failed(world, who, (incarnation.0, why, known.0));
            }
            Event::Rejoined { incarnation } => self.home(who).incarnation = incarnation.0,
            Event::Declined { .. }
            | Event::AllCaptured { .. }
            | Event::Committed { .. }
            | Event::Undecided { .. }
            | Event::RejoinLate { .. } => {}
        }
    }

    fn arm(&mut self, world: &mut W, who: Process, v: u64, levels: Levels) {
        let now = world.now;
        let reuse = self.options.planted == Some(Planted::ReuseSlotEarly);
        let home = self.home(who);
        let mut freed = Vec::new();
        if reuse && home.mem.len() >= 2 {
            freed.extend(home.mem.pop_first().map(|(key, _)| key));
        }
        let called = home.called.iter().copied().max().unwrap_or(0);
        let room = home.mem.len() + usize::from(!home.work.is_empty()) <= SLOTS;
        let bare = home.is_bare();
        let ok = match bare {
            true => home.knows,
            false => room && called < v,
        };
        if ok {
            home.armed = (!bare).then_some(v);
            let work = Work::new(levels, home.called.len(), now);
            home.work.insert(v, work);
        }
        let node = home.node;
        for key in freed {
            self.judge.removes(
                now,
                Place {
                    level: Level::Memory,
                    key,
                    owner: node,
                },
            );
        }
        let max_called = (!ok && room && !bare).then_some(version(called));
        self.tell(
            world,
            who,
            2000,
            Command::Armed {
                version: version(v),
                ok,
                max_called,
            },
        );
        self.capture_nothing(world, who, v);
    }

    /// A rank goes one step and calls `checkpoint`. It never waits.
    pub(super) fn step(&mut self, world: &mut W, who: Process, rank: usize, epoch: u32) {
        if epoch != self.epoch || self.home(who).lost {
            return;
        }
        let stride = self.options.stride;
        let jump = if !self.calm && self.random.chance(3_000) {
            2 * stride
        } else {
            stride
        };
        let forced = self.forced;
        let home = self.home(who);
        let v = home.called[rank] + jump;
        home.called[rank] = v;
        let word = (home.node as u64) << 8 | rank as u64;
        home.state[rank] = draw(home.state[rank], word, v << 8 | u64::from(home.incarnation));
        let key = (home.incarnation, v);
        let refused = home.aborted.contains(&v);
        if forced == Some(key) && !refused && !home.work.contains_key(&v) {
            let ranks = home.called.len();
            let levels = self.options.levels;
            let work = Work::new(levels, ranks, world.now);
            self.home(who).work.insert(v, work);
            // In order before the captures that follow.
            let version = version(v);
            if self.home(who).up {
                world.command(who, Command::Force { version, levels });
            }
        }
        let home = self.home(who);
        let state = home.state[rank];
        let armed = home.armed;
        if armed == Some(v) || forced == Some(key) {
            self.capture(world, who, rank, v, state);
        } else if let Some(armed) = armed.filter(|&armed| armed < v)
            && home.answered[rank] < armed
        {
            self.capture_past(world, who, rank, (armed, v), state);
        }
        self.find_passed(world, who, rank, v);
        // Ranks exchange messages, so none stays far behind for long.
        let behind = v + 4 * stride < self.furthest(world);
        let most = if behind {
            500_000
        } else {
            self.options.step_max.0
        };
        let delay = Time(500_000 + self.random.below(most));
        world.after(delay, Action::Step { who, rank, epoch });
    }

    pub(super) fn capture(&mut self, world: &mut W, who: Process, rank: usize, v: u64, state: u64) {
        let home = self.home(who);
        let Some(work) = home.work.get_mut(&v) else {
            return;
        };
        work.captured[rank] = Some(state);
        home.answered[rank] = v;
        let words: Vec<u64> = work.captured.iter().flatten().copied().collect();
        if words.len() < work.captured.len() {
            return;
        }
        let (key, node) = ((home.incarnation, v), home.node);
        home.mem.insert(key, Blob::new(words.clone()));
        home.armed = home.armed.filter(|&armed| armed > v);
        self.judge.captures(world.now, key, node, &words);
        self.judge.stores(
            Place {
                level: Level::Memory,
                key,
                owner: node,
            },
            &words,
        );
        if self.home(who).up {
            self.tell(
                world,
                who,
                500,
                Command::Captured {
                    version: version(v),
                },
            );
            self.flush_all(world, who, v);
        }
    }

    pub(super) fn flush_all(&mut self, world: &mut W, who: Process, v: u64) {
        let home = self.home(who);
        let (life, key) = (home.life, (home.incarnation, v));
        let Some(levels) = home.work.get(&v).and_then(|work| work.levels) else {
            return;
        };
        if !home.mem.contains_key(&key) {
            return;
        }
        for level in levels.iter() {
            let delay = Time(1000 * (600 + self.random.below(60_000)));
            world.after(
                delay,
                Action::Flush {
                    who,
                    life,
                    key,
                    level,
                },
            );
        }
    }

    pub(super) fn flush(&mut self, world: &mut W, who: Process, life: u32, key: Key, level: Level) {
        let home = self.home(who);
        if home.life != life || !home.up || home.incarnation != key.0 {
            return;
        }
        let open = home
            .work
            .get(&key.1)
            .is_some_and(|work| !work.decided.contains(level));
        let Some(blob) = home.mem.get(&key).filter(|_| open).cloned() else {
            return;
        };
        let result = self.write(world, who, key, level, blob);
        let version = version(key.1);
        self.tell(
            world,
            who,
            500,
            match result {
                Ok(()) => Command::Prepared { version, level },
                Err(why) => Command::LevelFailed {
                    version,
                    level,
                    why,
                },
            },
        );
    }

    /// Writes one level and reads it back.
    fn write(
        &mut self,
        world: &mut W,
        who: Process,
        key: Key,
        level: Level,
        mut blob: Blob,
    ) -> Result<(), Why> {
        let owner = self.home(who).node;
        let place = Place { level, key, owner };
        let good = blob.clone();
        let replaced = world.at(owner) != who;
        let (full, torn) = (
            world.faults.refuse,
            if self.calm { 0 } else { self.options.torn },
        );
        if level != Level::Memory {
            if self.random.chance(full) {
                return Err(Why::Storage);
            }
            if self.random.chance(torn) {
                match blob.words.first_mut() {
                    Some(first) => *first = 0,
                    None => blob.digest ^= 1,
                }
            }
        }
        // Containers are immutable: one that was verified is not written again.
        let partner = world.at((owner + 1) % self.options.nodes);
        let there = match level {
            Level::Memory => None,
            Level::Disk => self.home(who).disk.get(&key),
            Level::Partner => self.home(partner).partner.get(&(key, owner)),
            Level::Shared => self.shared.get(&(key, owner)),
        };
        if there.is_some_and(Blob::good) {
            return Ok(());
        }
        match level {
            Level::Memory => {}
            Level::Disk => drop(self.home(who).disk.insert(key, blob.clone())),
            Level::Partner => {
                // The level means two copies: the own container and the partner's. One
                // that rots after it was verified is not noticed, so it is not replaced.
                if !self.home(who).disk.contains_key(&key) {
                    self.write(world, who, key, Level::Disk, good)?;
                }
                let there = self.home(partner);
                if replaced || !there.up || there.lost || world.paused(partner) {
                    return Err(Why::Partner);
                }
                self.home(partner)
                    .partner
                    .insert((key, owner), blob.clone());
            }
            Level::Shared => drop(self.shared.insert((key, owner), blob.clone())),
        }
        if level != Level::Memory {
            self.judge.stores(place, &blob.words);
            if replaced {
                self.judge.copy_fails(place); // Out of everyone's reach.
            }
        }
        if !blob.good() && self.options.planted != Some(Planted::SkipReadBack) {
            self.remove(world, who, key, level);
            return Err(Why::Storage);
        }
        Ok(())
    }

    /// Removes this node's copy of a version from a place.
    fn remove(&mut self, world: &mut W, who: Process, key: Key, level: Level) {
        let owner = self.home(who).node;
        if world.at(owner) != who {
            // A replaced process: partner and judge no longer listen to it.
            let home = self.home(who);
            home.mem.remove(&key);
            return drop(home.disk.remove(&key));
        }
        let removed = match level {
            Level::Memory => self.home(who).mem.remove(&key).is_some(),
            Level::Disk => self.home(who).disk.remove(&key).is_some(),
            Level::Partner => {
                let partner = world.at((owner + 1) % self.options.nodes);
                self.home(partner).partner.remove(&(key, owner)).is_some()
            }
            Level::Shared => self.shared.remove(&(key, owner)).is_some(),
        };
        if removed {
            self.judge.removes(world.now, Place { level, key, owner });
        }
    }

    /// A level of a version is decided; when all are, the version's work is over.
    fn decide(&mut self, world: &mut W, who: Process, v: u64, level: Level, committed: bool) {
        let home = self.home(who);
        let key = (home.incarnation, v);
        let Some(work) = home.work.get_mut(&v) else {
            if home.is_bare() && committed {
                let stable = home.stable.entry(v).or_insert(Levels::NONE);
                *stable = stable.with(level);
            }
            return;
        };
        work.decided = work.decided.with(level);
        work.committed |= committed;
        self.finish(world, who, v);
        // An own container may serve the partner level too: it goes with the rest.
        if !committed && !matches!(level, Level::Memory | Level::Disk) {
            self.remove(world, who, key, level);
        }
    }

    /// Ends a version's work when all its levels are decided.
    pub(super) fn finish(&mut self, world: &mut W, who: Process, v: u64) {
        let all = self.options.levels;
        let home = self.home(who);
        let key = (home.incarnation, v);
        let Some(work) = home.work.get(&v) else {
            return;
        };
        let levels = work.levels.unwrap_or(all);
        let any = work.committed;
        if levels.and(work.decided) != levels {
            return;
        }
        home.work.remove(&v);
        if !any {
            self.remove(world, who, key, Level::Memory);
            self.remove(world, who, key, Level::Disk);
        }
    }

    fn drop_version(&mut self, world: &mut W, who: Process, v: u64) {
        let home = self.home(who);
        if home.armed == Some(v) {
            // What others have begun past it is armed in its place.
            let open = |work: &Work| work.captured.iter().any(Option::is_none);
            let mut later = home.work.range(v + 1..);
            home.armed = later.find(|(_, work)| open(work)).map(|(&at, _)| at);
        }
        let key = (home.incarnation, v);
        if home.work.remove(&v).is_some() {
            for level in Level::ALL {
                self.remove(world, who, key, level);
            }
        }
    }

    /// Garbage collection: what a stable version supersedes.
    fn collect(&mut self, world: &mut W, who: Process, stable: Key, level: Level) {
        let home = self.home(who);
        let mut busy: BTreeSet<Key> = home.work.keys().map(|&v| (home.incarnation, v)).collect();
        if home.is_bare() {
            busy.extend(self.asked_about(world, who));
        }
        let home = self.home(who);
        let old = |key: &&Key| **key < stable && !busy.contains(key);
        let mut gone: Vec<(Key, Level)> = Vec::new();
        gone.extend(home.mem.keys().filter(old).map(|&key| (key, Level::Memory)));
        if level >= Level::Partner {
            gone.extend(home.disk.keys().filter(old).map(|&key| (key, Level::Disk)));
        }
        let partner = world.at((home.node + 1) % self.options.nodes);
        let node = self.home(who).node;
        if level >= Level::Partner {
            let held = self
                .home(partner)
                .partner
                .keys()
                .filter(|(_, owner)| *owner == node);
            let keys: Vec<Key> = held.map(|&(key, _)| key).collect();
            let old = keys
                .iter()
                .filter(|key| **key < stable && !busy.contains(key));
            gone.extend(old.map(|&key| (key, Level::Partner)));
        }
        let recorded = world
            .disk(who)
            .replay()
            .into_iter()
            .filter_map(|record| match record {
                Record::Commit {
                    incarnation,
                    version,
                    ..
                } => Some((incarnation.0, version.0)),
                _ => None,
            });
        let old = |key: &Key| *key < stable && !busy.contains(key);
        let touched: BTreeSet<Key> = recorded
            .filter(old)
            .chain(gone.iter().map(|&(key, _)| key))
            .collect();
        for (key, level) in gone {
            self.remove(world, who, key, level);
        }
        for key in touched {
            self.forget(world, who, key);
        }
    }

    /// Drops the records of a version of which this node holds nothing.
    fn forget(&mut self, world: &mut W, who: Process, key: Key) {
        let home = self.home(who);
        let held = home.mem.contains_key(&key)
            || home.disk.contains_key(&key)
            || home.partner.keys().any(|&(held, _)| held == key);
        if held || self.shared.keys().any(|&(held, _)| held == key) {
            return;
        }
        let (source, version) = (Incarnation(key.0), version(key.1));
        if !world
            .machine(who)
            .is_some_and(|machine| machine.may_forget(source, version))
        {
            return;
        }
        self.judge.forgets(key);
        world.disk(who).remove(|record| match *record {
            Record::Prepared {
                incarnation,
                version,
                ..
            }
            | Record::Abort {
                incarnation,
                version,
                ..
            }
            | Record::Commit {
                incarnation,
                version,
                ..
            } => (incarnation.0, version.0) == key,
            _ => false,
        });
        world.command(who, Command::Forget { source, version });
    }
}

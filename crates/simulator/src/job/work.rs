//! What takes time: records, copies, rebuilds, looking and collecting.

use std::cell::RefCell;
use std::rc::Rc;

use outlive_base::level::StoreKind;
use outlive_base::slab::SlabId;
use outlive_base::{
    Code, ContainerId, Entity, Error, Incarnation, Level, NodeId, Rank, Result, Time, Version,
};
use outlive_control::node::plain::PlainSlab;
use outlive_control::node::shell::{
    Ask, Collected, Done, Flush, Found, Rebuild, Rebuilt, Staging, Target,
};
use outlive_control::node::{Input as NodeInput, overwritten};
use outlive_control::orders::{Place, RankStacks};
use outlive_ledger::{GcPolicy, Part, Record, Rules};
use outlive_protocols::commit::Planted;

use super::checker::CopyAt;
use super::node::{JOB_HASH, Process};
use super::storage::{Container, Storage};
use super::strikes::Stage;
use super::*;

/// How often an absent partner is asked again.
const TRIES_MAX: u32 = 100;

/// A version that is being written.
pub struct Writing {
    flush: Flush<PlainSlab>,
    /// What is on its way to shared storage, in histories in which that outlasts the process.
    sent: Option<Container>,
    /// The digest that is known of it, else of what the slabs held when it began, if that was
    /// complete: sums are made once.
    sealed: Option<u128>,
    results: RefCell<BTreeMap<Level, Result<()>>>,
}

impl Writing {
    fn key(&self) -> Key {
        let captures = &self.flush.captures;
        (captures.source.0, captures.version.0)
    }
}

/// What the slabs hold of a version; `None` if a capture is not complete.
fn words_of(flush: &Flush<PlainSlab>) -> Option<Vec<(Rank, u64)>> {
    let slabs = flush.captures.slabs.iter();
    let words = slabs.map(|(rank, slab)| Some((*rank, slab.content()? as u64)));
    words.collect()
}

impl Job {
    pub(super) fn later(&mut self, who: Process, life: u32, most_us: u64, done: Done<PlainSlab>) {
        let delay = self.some_us(most_us);
        let done = Box::new(done);
        self.after(delay, Action::Done { who, life, done });
    }

    pub(super) fn done(&mut self, who: Process, life: u32, done: Done<PlainSlab>) {
        self.input(who, life, NodeInput::Done(done));
    }

    pub(super) fn begin(&mut self, who: Process, life: u32, ask: Ask<PlainSlab>) {
        match ask {
            Ask::Persist { op, record, shared } => self.persist(who, life, op, record, shared),
            Ask::Flush(flush) => {
                let _ = self.meets(who, Occasion::Writes);
                let copies = flush.targets.iter().any(|it| *it != Target::Memory);
                self.protects(who, copies, flush.quiet);
                self.flush(who, life, flush);
            }
            Ask::Parity(making) => {
                self.protects(who, true, making.quiet);
                let delay = Time(600_000) + self.some_us(60_000) + self.slowness(who);
                let making = Rc::new(making);
                self.after(delay, Action::Parity { who, life, making });
            }
            Ask::Transfer(wanted) => self.begin_transfer(who, life, *wanted),
            Ask::Scrub(reading) => {
                let delay = self.some_us(50_000) + self.slowness(who);
                let reading = Rc::from(reading);
                self.after(delay, Action::Scrub { who, life, reading });
            }
            Ask::Rebuild(wanted) => {
                if wanted.in_memory.is_none() {
                    self.comes_to(Stage::Rebuild, who);
                }
                let delay = self.some_us(20_000) + self.slowness(who);
                let wanted = Rc::new(wanted);
                self.after(
                    delay,
                    Action::Rebuild {
                        who,
                        life,
                        tries: 0,
                        wanted,
                    },
                );
            }
            Ask::Inventory { incarnation } => {
                let found = Ok(self.look(who));
                self.later(who, life, 5_000, Done::Inventory { incarnation, found });
            }
            Ask::Collect { policy, shared } => {
                let _ = self.meets(who, Occasion::Removes);
                self.comes_to(Stage::Collection, who);
                // By then much may have happened that its rules do not know.
                let delay = self.some_us(2_000) + self.slowness(who);
                let policy = Box::new(policy);
                self.after(
                    delay,
                    Action::Collect {
                        who,
                        life,
                        policy,
                        shared,
                    },
                );
            }
            Ask::Slab {
                rank,
                slot,
                ticket,
                bytes,
                stop,
                ..
            } => {
                let made = Ok((!stop.is_given_up()).then(|| PlainSlab::new(bytes)));
                let done = Done::SlabMade {
                    rank,
                    slot,
                    ticket,
                    made,
                };
                self.later(who, life, 5_000, done);
            }
            Ask::Stacks { number, ranks, .. } => {
                let found = |(rank, _)| RankStacks {
                    rank,
                    place: Place::default(),
                    text: String::new(),
                };
                let ranks = ranks.into_iter().map(found).collect();
                self.later(who, life, 5_000, Done::Stacks { number, ranks });
            }
            Ask::Health => self.read_sensors(who, life),
            // Nothing of a job depends on it.
            Ask::Daemon(_) => {}
            Ask::DiskUsage => self.later(who, life, 1_000, Done::DiskUsage((0, 0))),
            Ask::Finished(_) => self.later(who, life, 2_000, Done::Protected { result: Ok(()) }),
            Ask::GiveBack(_)
            | Ask::Corrupt { .. }
            | Ask::Route { .. }
            | Ask::DropRouted { .. }
            | Ask::EndRouted { .. } => {}
        }
    }

    /// Redundancy is made of a version, or made again.
    fn protects(&mut self, who: Process, copies: bool, again: bool) {
        match again {
            true => self.comes_to(Stage::ReProtection, who),
            false if copies => self.comes_to(Stage::Redundancy, who),
            false => {}
        }
    }

    pub(super) fn flush(&mut self, who: Process, life: u32, flush: Flush<PlainSlab>) {
        let node = self.home(who).node;
        let held = words_of(&flush).map(Container::new);
        let known = flush.known.as_ref().map(|known| known.digest);
        let sealed = known.or(held.as_ref().map(|held| held.digest));
        let writing = Rc::new(Writing {
            flush,
            sent: held.filter(|_| self.options.late > 0),
            sealed,
            results: RefCell::default(),
        });
        let key = writing.key();
        if writing.flush.captures.slabs.is_empty() && !writing.flush.quiet {
            // A node without ranks captures its nothing now.
            self.judge.captures(self.now, key, node, &[]);
            self.stored(Level::MEMORY, key, node, &[]);
        }
        if !writing.flush.quiet {
            let levels = writing.flush.targets.iter().map(|it| it.level());
            levels.for_each(|level| self.judge.writes(key, level));
        }
        let (mut last, mut own) = (Time::ZERO, Time::ZERO);
        for &target in &writing.flush.targets {
            let mut delay = Time(600_000) + self.some_us(60_000) + self.lasting(who);
            if matches!(target, Target::Partner(_)) {
                // The partner's copy counts with the node's own.
                delay = delay.max(own + Time(1_000));
            }
            if matches!(target, Target::Disk | Target::Group(_)) {
                own = own.max(delay);
            }
            last = last.max(delay);
            let writing = Rc::clone(&writing);
            self.after(
                delay,
                Action::Copy {
                    who,
                    life,
                    writing,
                    target,
                },
            );
        }
        let over = last + Time(1_000);
        self.after(over, Action::Written { who, life, writing });
    }

    pub(super) fn stored(&mut self, level: Level, key: Key, owner: u32, words: &[u64]) {
        self.judge.stores(CopyAt { level, key, owner }, words);
    }

    pub(super) fn copy(&mut self, who: Process, life: u32, writing: &Rc<Writing>, target: Target) {
        if self.home(who).life != life || self.home(who).agent.is_none() {
            if let Some(sent) = writing.sent.clone() {
                self.outlasts(who, writing.key(), target, sent);
            }
            return;
        }
        let captures = &writing.flush.captures;
        let words = words_of(&writing.flush);
        let level = target.level();
        let node = NodeId(self.home(who).node);
        let odd = || Err(Error::internal("a capture is not complete"));
        let written = words.map_or_else(odd, |words| {
            let container = Container::new(words);
            let digest = container.digest;
            let length = parity::bytes_of(&container.words).len() as u64;
            if writing.sealed.is_some_and(|sealed| sealed != digest) {
                let entity = Entity::Node(node.0);
                return Err(overwritten(entity, "it is not what was captured"));
            }
            self.reaches(who, target, writing.flush.partner_epoch)?;
            self.write(who, writing.key(), target, container)?;
            Ok(Part {
                node,
                id: ContainerId {
                    incarnation: captures.source,
                    version: captures.version,
                    node,
                },
                length,
                digest,
                holder: match target {
                    Target::Memory | Target::Disk | Target::Group(_) => node,
                    Target::Partner(partner) => partner,
                    Target::Shared => NodeId::LAUNCHER,
                },
                ranks: captures.slabs.iter().map(|(rank, _)| *rank).collect(),
                parity: None,
            })
        });
        let outcome = written.as_ref().map(drop).map_err(Error::clone);
        writing.results.borrow_mut().insert(level, outcome);
        if writing.flush.quiet {
            return;
        }
        let done = Done::LevelDone {
            source: captures.source,
            version: captures.version,
            level,
            result: written,
        };
        self.input(who, life, NodeInput::Done(done));
    }

    pub(super) fn written(&mut self, who: Process, life: u32, writing: Rc<Writing>) {
        let captures = &writing.flush.captures;
        let (source, version) = (captures.source, captures.version);
        let done = match writing.flush.quiet {
            true => {
                let results = writing.results.take();
                let result = results.into_values().collect::<Result<()>>();
                Done::Protected { result }
            }
            false => Done::FlushOver { source, version },
        };
        // The slabs are released before the slots may be used again.
        drop(writing);
        self.input(who, life, NodeInput::Done(done));
    }

    /// A stream to a holder of the partner's slot that was replaced comes to nothing.
    fn reaches(&mut self, who: Process, target: Target, epoch: u64) -> Result<()> {
        let Target::Partner(partner) = target else {
            return Ok(());
        };
        if self.home(who).known.get(partner) == Some(epoch) {
            return Ok(());
        }
        let entity = Entity::Node(partner.0);
        let (reason, remedy) = ("the connection ended", "see the storage");
        Err(Error::new(Code::Network, entity, reason, remedy))
    }

    /// Writes one copy and reads it back.
    pub(super) fn write(
        &mut self,
        who: Process,
        key: Key,
        target: Target,
        good: Container,
    ) -> Result<()> {
        let owner = self.home(who).node;
        let no = |code, reason: &str| {
            let entity = Entity::Node(owner);
            Err(Error::new(code, entity, reason, "see the storage"))
        };
        if target == Target::Memory {
            return Ok(());
        }
        let refuse = self.refusals(who);
        let torn = if self.calm { 0 } else { self.options.torn };
        if self.random.chance(refuse) {
            return no(Code::NoSpace, "no space is left");
        }
        if target == Target::Shared {
            self.shared_refuses(owner)?;
        }
        let mut container = good.clone();
        if self.random.chance(torn) {
            container.flip(&mut self.random);
            if self.options.planted != Some(Planted::SkipReadBack) {
                return no(Code::Corrupt, "reads back with another digest");
            }
        }
        let words = container.bare();
        match target {
            Target::Memory => {}
            Target::Disk | Target::Group(_) => {
                drop(self.home(who).storage.own.insert(key, container));
            }
            Target::Shared => drop(self.shared.containers.insert((key, owner), container)),
            Target::Partner(partner) => {
                if !self.home(who).storage.own.contains_key(&key) {
                    self.write(who, key, Target::Disk, good)?;
                }
                let Some(there) = self.partner(who, partner) else {
                    return no(Code::Network, "the connection ended");
                };
                let kept = &mut self.home(there).storage.partner;
                kept.insert((key, owner), container);
            }
        }
        let level = match target {
            // The level's own is the parity that is made later.
            Target::Group(_) => Level::DISK,
            target => target.level(),
        };
        self.stored(level, key, owner, &words);
        if self.at(owner) != who {
            // Out of everyone's reach.
            self.judge.copy_fails(CopyAt { level, key, owner });
        }
        Ok(())
    }

    /// The holder of a node's slot, if it can be talked to from here.
    pub(super) fn partner(&mut self, who: Process, partner: NodeId) -> Option<Process> {
        let there = self.at(partner.0);
        let known = self.home(who).known.get(partner);
        let now = self.now;
        let home = self.home(there);
        let is_up = home.agent.is_some() && home.paused_until <= now && !home.wiped;
        let same = known == Some(home.epoch);
        let from = self.home(who).node;
        let reached = self.net.carry(now, from, partner.0)[0].is_some();
        (is_up && same && reached).then_some(there)
    }

    pub(super) fn rebuild(
        &mut self,
        who: Process,
        life: u32,
        tries: u32,
        wanted: Rc<Rebuild<PlainSlab>>,
    ) {
        if self.home(who).life != life || self.home(who).agent.is_none() {
            return;
        }
        let key = (wanted.source.0, wanted.version.0);
        let node = self.home(who).node;
        let mut away = false;
        let mut found = None;
        for (level, part) in &wanted.parts {
            let container = match *level {
                level if level.members().is_some() => {
                    let made = self.made_of_group(who, &wanted, level, part);
                    away |= made.as_ref().is_err_and(|it| it.code() == Code::Network);
                    // Whoever asks a server that stands still waits for its answer.
                    away |= self.server_is_out() && level.store() == StoreKind::Server;
                    made.ok()
                }
                Level::MEMORY => wanted.in_memory.as_ref().and_then(|captures| {
                    let slabs = captures.slabs.iter();
                    slabs
                        .map(|(rank, slab)| Some((*rank, slab.content()? as u64)))
                        .collect::<Option<Vec<_>>>()
                        .map(Container::new)
                }),
                Level::DISK => self.home(who).storage.own.get(&key).cloned(),
                Level::SHARED if self.shared_is_hidden(node) => None,
                Level::SHARED => self.shared.containers.get(&(key, node)).cloned(),
                _ => match self.partner(who, part.holder) {
                    Some(there) => self.home(there).storage.partner.get(&(key, node)).cloned(),
                    None => {
                        away = true;
                        None
                    }
                },
            };
            let skip = self.options.planted == Some(Planted::SkipReadBack);
            let sound = |it: &Container| skip || it.is_good() && it.digest == part.digest;
            if let Some(container) = container.filter(sound) {
                found = Some((*level, container));
                break;
            }
        }
        if found.is_none() && away && tries < TRIES_MAX {
            let delay = Time::from_ms(10);
            let tries = tries + 1;
            return self.after(
                delay,
                Action::Rebuild {
                    who,
                    life,
                    tries,
                    wanted,
                },
            );
        }
        let result = match found {
            Some((level, container)) => Ok(self.fill(node, &wanted, level, &container)),
            None => {
                let mut levels = wanted.parts.iter().map(|(level, _)| *level);
                let is_blind = levels.any(|it| it == Level::SHARED) && self.shared_is_hidden(node);
                // It is lost after that, and others may have what it had.
                let served = wanted
                    .parts
                    .iter()
                    .any(|it| it.0.store() == StoreKind::Server);
                let code = match is_blind {
                    _ if away && !(served && self.server_is_out()) => Code::AgentUnreachable,
                    true => Code::Io,
                    false => Code::NoValidCheckpoint,
                };
                let entity = Entity::Version(wanted.version.0);
                Err(Error::new(
                    code,
                    entity,
                    "no copy can be used",
                    "see the storage",
                ))
            }
        };
        let done = Done::Rebuilt {
            incarnation: wanted.incarnation,
            source: wanted.source,
            version: wanted.version,
            result,
        };
        self.input(who, life, NodeInput::Done(done));
    }

    /// New slabs with a container's ranks.
    pub(super) fn fill(
        &mut self,
        node: u32,
        wanted: &Rebuild<PlainSlab>,
        level: Level,
        container: &Container,
    ) -> Rebuilt<PlainSlab> {
        let mut slabs = Vec::new();
        if level != Level::MEMORY {
            for &(rank, word) in &container.words {
                let mut slab = PlainSlab::new(1 << 16);
                let id = SlabId {
                    job: JOB_HASH,
                    incarnation: wanted.source,
                    rank,
                    ranks: wanted.ranks_total,
                    slot: 0,
                    generation: wanted.incarnation.0 << 16,
                };
                slab.format(id).expect("a rank of the job");
                slab.begin_fill(wanted.version, 8);
                slab.finish(u128::from(word));
                slab.seal().expect("it was captured");
                slabs.push((rank, slab));
            }
            let key = (wanted.source.0, wanted.version.0);
            self.stored(Level::MEMORY, key, node, &container.bare());
        }
        Rebuilt {
            level,
            bytes: 4096,
            slabs,
            rejected: Vec::new(),
        }
    }

    /// What lies in storage.
    pub(super) fn look(&mut self, who: Process) -> Found {
        let node = self.home(who).node;
        let named = |(key, owner): (Key, u32)| (Incarnation(key.0), Version(key.1), NodeId(owner));
        let hidden = self.shared_is_hidden(node);
        let there = match hidden {
            true => &[][..],
            false => &self.shared.records,
        };
        let shared = self.shared.containers.keys().filter(|_| !hidden);
        let shared = shared.filter(|(_, owner)| *owner == node).copied();
        let storage = &self.homes[who as usize].storage;
        let own = storage.own.keys().map(|&key| (key, node));
        let all = own.chain(storage.partner.keys().copied()).chain(shared);
        let readable = storage.records.readable().chain(there);
        let parities = storage.parity.keys();
        let parities = parities.map(|(key, level)| (*key, *level));
        let parities = parities.chain(self.served_by(node).map(|(key, level, _)| (key, level)));
        let parities = parities.map(|(key, level)| (Incarnation(key.0), Version(key.1), level));
        let committed = readable
            .clone()
            .any(|it| matches!(it, Record::Commit { .. }));
        let newest = (storage.mark.0 != 0).then_some(storage.mark);
        Found {
            available: all.map(named).collect(),
            parities: parities.collect(),
            records: there.to_vec(),
            newest,
            unseen: hidden
                .then(|| self.shared_refuses(node))
                .into_iter()
                .filter_map(Result::err)
                .collect(),
            text: (!committed).then(|| "no record of a version".to_owned()),
            errors: Vec::new(),
        }
    }

    /// Old copies are removed, unless the agent has ended meanwhile.
    pub(super) fn collected(&mut self, who: Process, life: u32, policy: &GcPolicy, shared: bool) {
        if self.home(who).life == life && self.home(who).agent.is_some() {
            let result = Ok(self.collect(who, policy, shared));
            self.input(who, life, NodeInput::Done(Done::Collected { result }));
        }
    }

    /// Removes what the ledger's rules let go.
    fn collect(&mut self, who: Process, policy: &GcPolicy, shared: bool) -> Collected {
        // What cannot be removed there stays; the node's own goes.
        let node = self.home(who).node;
        let shared = shared && !self.shared_is_hidden(node);
        let records = &self.homes[who as usize].storage.records;
        let rules = Rules::new(records.readable(), policy);
        let may = |key: &Key, level| rules.may_go((Incarnation(key.0), Version(key.1)), level);
        self.collect_served(who, &rules);
        let mut gone: Vec<(Key, u32, Level)> = Vec::new();
        let storage = &self.homes[who as usize].storage;
        let own = storage.own.keys().filter(|key| may(key, Level::DISK));
        gone.extend(own.map(|&key| (key, node, Level::DISK)));
        let kept = storage.partner.keys();
        let kept = kept.filter(|(key, _)| may(key, Level::PARTNER));
        gone.extend(kept.map(|&(key, owner)| (key, owner, Level::PARTNER)));
        let parity = storage.parity.keys();
        let parity = parity.filter(|(key, level)| may(key, *level));
        gone.extend(parity.map(|&(key, level)| (key, node, level)));
        if shared {
            let there = Rules::new(self.shared.records.iter(), policy);
            let may = |key: &Key| there.may_go((Incarnation(key.0), Version(key.1)), Level::SHARED);
            let all = self.shared.containers.keys();
            let all = all.filter(|(key, _)| may(key));
            gone.extend(all.map(|&(key, owner)| (key, owner, Level::SHARED)));
        }
        let mut removed = Vec::new();
        for (key, owner, level) in gone {
            let id = ContainerId {
                incarnation: Incarnation(key.0),
                version: Version(key.1),
                node: NodeId(owner),
            };
            let storage = &mut self.homes[who as usize].storage;
            match level {
                Level::DISK => drop(storage.own.remove(&key)),
                Level::PARTNER => drop(storage.partner.remove(&(key, owner))),
                level if level.members().is_some() => drop(storage.parity.remove(&(key, level))),
                _ => drop(self.shared.containers.remove(&(key, owner))),
            }
            match level {
                Level::SHARED => self.shared.tombs.insert((id, level)),
                _ => storage.tombs.insert((id, level)),
            };
            if self.at(node) == who {
                self.judge.removes(self.now, CopyAt { level, key, owner });
                // What it holds nothing of any more, it need not remember.
                if owner == node {
                    self.judge.forgets(key);
                }
            }
            // What went from shared storage says nothing of what is left here.
            if level != Level::SHARED {
                removed.push(id);
            }
        }
        let storage = &mut self.homes[who as usize].storage;
        let own = storage.own.keys().copied();
        let parity = storage.parity.keys().map(|(key, _)| *key);
        let kept = storage.partner.keys().map(|(key, _)| *key);
        let present = own.chain(kept).chain(parity);
        let Storage { records, tombs, .. } = storage;
        let forgotten = tombs.forget(records.readable(), present, policy);
        let gone = |record: &Record| {
            record
                .checkpoint()
                .is_some_and(|it| forgotten.contains(&it))
        };
        storage.records.remove(gone);
        if shared {
            let shared = &mut self.shared;
            let present = shared.containers.keys().map(|(key, _)| *key);
            let gone = shared.tombs.forget(shared.records.iter(), present, policy);
            let gone = |record: &Record| record.checkpoint().is_some_and(|it| gone.contains(&it));
            self.shared.records.retain(|record| !gone(record));
        }
        if self.at(node) == who {
            for (source, version) in &forgotten {
                self.judge.forgets((source.0, version.0));
            }
        }
        Collected {
            removed,
            forgotten: forgotten.into_iter().collect(),
        }
    }
}

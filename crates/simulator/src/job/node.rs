//! Slots of the job: keepers with their memory, the node that runs over it, and carrying out
//! what it wants.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use outlive_base::control_block::ControlWords;
use outlive_base::{Code, JobName, NodeId, Ports, Rank, Time, Version};
use outlive_control::node::plain::{PlainBlock, PlainSlab};
use outlive_control::node::shell::{Ask, Link, PeerMessage, Staging};
use outlive_control::node::{Hello, Input as NodeInput, Node, Ranks, Start};
use outlive_control::orders::{AgentSpec, Fault, Notice, Opened, Step, decode, encode};
use outlive_ledger::{Part, Record};
use serde::{Serialize, de::DeserializeOwned};

use super::shell::{Effect, Sim};
use super::storage::Storage;
use super::*;

/// Index of a holder of a slot; a replaced one keeps its index.
pub type Process = u32;

/// What identifies the job in records and slabs.
pub const JOB_HASH: u64 = 7;
/// Most staging memory of a node: more than it ever needs.
const MEMORY_BYTES: u64 = 1 << 30;

/// Orders that one life of an agent has taken and not answered.
#[derive(Clone, Copy, Default, Debug)]
pub struct OpenOrders {
    pub status: i32,
    pub end_ranks: i32,
    pub finish: Option<Time>,
    pub finished: bool,
    /// A fault has ended it.
    pub killed: bool,
}

/// An agent that waits at a fail point.
pub struct Held {
    pub id: u32,
    /// What it was about to do.
    pub rest: VecDeque<Effect>,
    /// Faults that it was told of meanwhile: they happen before the rest.
    pub ordered: Vec<(u32, Fault)>,
}

/// The epochs of a node's peers, by slot: every node knows all others.
#[derive(Default)]
pub struct Known(Vec<u64>);

impl Known {
    pub fn insert(&mut self, node: NodeId, epoch: u64) {
        let at = node.0 as usize;
        self.0.resize(self.0.len().max(at + 1), 0);
        self.0[at] = epoch;
    }
    /// Numbers begin above 0.
    pub fn get(&self, node: NodeId) -> Option<u64> {
        let known = self.0.get(node.0 as usize).copied();
        known.filter(|epoch| *epoch != 0)
    }
    fn clear(&mut self) {
        self.0.clear();
    }
}

/// A holder of a slot: a keeper, and what it and its storage hold.
pub struct Home {
    pub node: u32,
    pub epoch: u64,
    pub agent: Option<Node<Sim>>,
    /// No process of it is left.
    pub lost: bool,
    /// What it stored is out of reach.
    pub wiped: bool,
    /// Its agent was sent SIGSTOP, and its keeper; what the agent was to hear.
    pub stopped: bool,
    pub keeper_stopped: bool,
    pub missed: Vec<Action>,
    /// It waits at a fail point; what it hears meanwhile.
    pub held: Option<Held>,
    pub put_off: VecDeque<NodeInput<PlainSlab>>,
    /// Its agent drops all traffic.
    pub isolated: bool,
    /// Its agent finds storage slow, or full.
    pub slow: bool,
    pub full: bool,
    /// Grows with every start of the agent.
    pub life: u32,
    pub paused_until: Time,
    /// A fault has damaged its records: an agent that is started anew may know less than it did.
    pub damaged: bool,
    /// The incarnation that its agent has said to have opened.
    pub incarnation: u32,
    pub storage: Storage,
    /// When the agent was started: its own clock begins there.
    pub started: Time,
    wake: Time,
    pub last_sync: Time,
    /// Orders that were not answered.
    pub open: OpenOrders,
    blocks: BTreeMap<Rank, PlainBlock>,
    pub slabs: BTreeMap<(Rank, usize), PlainSlab>,
    /// The epochs of its peers, as it was told.
    pub known: Known,
    /// What its agent left with the keeper of the incarnation that it opened.
    word: Option<Opened>,
    live: Rc<RefCell<BTreeSet<u64>>>,
}

/// A message as it comes out of a connection: what bytes do not carry, a history shall not
/// carry either.
///
/// # Panics
/// If it cannot be written or read again.
pub(super) fn carried<T: Serialize + DeserializeOwned>(message: &T) -> T {
    let read = encode(message).and_then(|bytes| decode(&bytes));
    read.expect("what nodes say can be sent")
}

impl Home {
    /// The process number of its agent.
    pub const fn agent_pid(&self, who: Process) -> u32 {
        who * 1_000 + self.life
    }
}

impl Job {
    pub(super) fn new_home(&mut self, node: u32, epoch: u64) -> Process {
        self.homes.push(Home {
            node,
            epoch,
            agent: None,
            lost: false,
            wiped: false,
            stopped: false,
            keeper_stopped: false,
            missed: Vec::new(),
            held: None,
            put_off: VecDeque::new(),
            isolated: false,
            slow: false,
            full: false,
            life: 0,
            paused_until: Time::ZERO,
            damaged: false,
            incarnation: 0,
            storage: Storage::default(),
            started: Time::ZERO,
            wake: Time::NEVER,
            last_sync: Time::ZERO,
            open: OpenOrders::default(),
            blocks: BTreeMap::new(),
            slabs: BTreeMap::new(),
            known: Known::default(),
            word: None,
            live: Rc::default(),
        });
        self.homes.len() as Process - 1
    }

    pub(super) fn home(&mut self, who: Process) -> &mut Home {
        &mut self.homes[who as usize]
    }

    pub(super) fn at(&self, node: u32) -> Process {
        self.slots[node as usize]
    }

    /// The ranks of a node.
    pub(super) fn ranks_of(&self, node: u32) -> Vec<Rank> {
        let (ranks, nodes) = (self.ranks_total(), self.options.nodes);
        outlive_base::placement::ranks_of(NodeId(node), ranks, nodes).collect()
    }

    pub(super) fn ranks_total(&self) -> u32 {
        self.options.ranks_total()
    }

    /// The keeper starts the agent: it finds what the one before it has left.
    pub(super) fn start_agent(&mut self, who: Process) {
        let now = self.now;
        let planted = self.options.planted_node;
        let base = match self.meter {
            Some(_) => outlive_protocols::commit::Config::default(),
            None => self.options.config(),
        };
        let coordinator = self.options.coordinator;
        let memo = self.meter.as_ref().map(|meter| Rc::clone(&meter.memo));
        let service = self.options.service();
        let home = self.home(who);
        home.life += 1;
        home.started = now;
        self.begins_clock(who);
        let home = self.home(who);
        home.wake = Time::NEVER;
        home.last_sync = now;
        home.open = OpenOrders::default();
        home.incarnation = 0;
        home.known.clear();
        home.live = Rc::default();
        let mut found_records = home.storage.records.replay();
        let began = home.node == coordinator && home.life > 1;
        let shared_unseen = began && self.finish_shared(who, &mut found_records);
        let home = self.home(who);
        let mut ranks = Ranks::default();
        for block in home.blocks.values() {
            ranks.adopt_block(block.of_agent());
        }
        let mut troubles = Vec::new();
        for slab in home.slabs.values() {
            troubles.extend(ranks.adopt_slab(slab.clone()).err());
        }
        let (node, epoch, life) = (home.node, home.epoch, home.life);
        let local = core::net::IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);
        let spec = AgentSpec {
            job: JobName::new("history").expect("a good name"),
            job_hash: JOB_HASH,
            node: NodeId(node),
            coordinator: NodeId(coordinator),
            epoch,
            launcher: (local, 1).into(),
            bind: local,
            key_file: "key".into(),
            node_dir: "node".into(),
            job_dir: "job".into(),
            object_store: None,
            ports: Ports::ANY,
            memory_server: None,
            socket: "socket".into(),
            memory_bytes: MEMORY_BYTES,
            encrypt: false,
            health: Default::default(),
            service,
        };
        let start = Start {
            spec,
            shell: Sim {
                effects: VecDeque::new(),
                points: Vec::new(),
                passed: Vec::new(),
                live: Rc::clone(&home.live),
                memo,
            },
            now: Time::ZERO,
            ranks,
            troubles,
            found_records: Ok(found_records),
            kept_records: Vec::new(),
            opened: home.word.clone(),
            shared_unseen,
            restarts: Some(life - 1),
            disk_usage: (0, 0),
            hello: Hello {
                address: (local, 1024 + who as u16).into(),
                pid: home.agent_pid(who),
                keeper_pid: who * 1000,
            },
            commit: base,
            planted,
        };
        home.agent = Some(Node::new(start));
        self.note(|| format!("n{node} (p{who}) agent {life} starts"));
        self.carry_out(who);
    }

    /// The agent ends: what was under way in it is over.
    pub(super) fn end_agent(&mut self, who: Process) {
        let mut random = self.random.clone();
        let now = self.now;
        let home = self.home(who);
        if home.agent.take().is_none() {
            return;
        }
        let records = home.storage.records.crash(&mut random);
        home.open.killed = true;
        // What an injection did to its process ends with it.
        (home.held, home.isolated) = (None, false);
        (home.slow, home.full, home.stopped) = (false, false, false);
        home.put_off.clear();
        let (node, life, lost) = (home.node, home.life, home.lost);
        self.random = random;
        for record in &records {
            self.on_durable(who, record);
        }
        self.records_outlast(who, &records);
        self.note(|| format!("n{node} (p{who}) agent {life} ends"));
        self.judge.agent_ends(now, who);
        self.goes_on(who);
        self.cut_links(who, life);
        if !lost {
            let delay = Time::from_ms(2 + self.random.below(150));
            self.after(delay, Action::Restart { who });
        }
    }

    pub(super) fn restart(&mut self, who: Process) {
        let home = self.home(who);
        if home.keeper_stopped && !home.lost {
            self.after(STOPPED_LOOK, Action::Restart { who });
        } else if !home.lost && home.agent.is_none() {
            self.launcher_connects(who);
            self.start_agent(who);
        }
    }

    /// Gives an agent an input, if it still lives this life.
    pub(super) fn input(&mut self, who: Process, life: u32, input: NodeInput<PlainSlab>) {
        let now = self.now;
        let home = self.home(who);
        let started = home.started;
        let Some(node) = home.agent.as_mut().filter(|_| home.life == life) else {
            return;
        };
        if home.held.is_some() {
            return home.put_off.push_back(input);
        }
        node.on(now.since(started), input);
        node.on_time(now.since(started));
        self.carry_out(who);
    }

    pub(super) fn wake(&mut self, who: Process, life: u32, at: Time) {
        let now = self.now;
        let home = self.home(who);
        let started = home.started;
        if home.wake != at || home.life != life {
            return;
        }
        home.wake = Time::NEVER;
        if home.held.is_some() {
            return;
        }
        if let Some(node) = &mut home.agent {
            node.on_time(now.since(started));
            self.carry_out(who);
        }
    }

    /// Carries out what a node wants. It may end between any two wishes.
    fn carry_out(&mut self, who: Process) {
        let Some(node) = &mut self.home(who).agent else {
            return;
        };
        let (effects, passed) = (
            node.shell().take_effects(),
            std::mem::take(&mut node.shell().passed),
        );
        self.passed(who, passed);
        self.carry_out_all(who, effects);
    }

    pub(super) fn carry_out_all(&mut self, who: Process, mut effects: VecDeque<Effect>) {
        let life = self.home(who).life;
        while let Some(effect) = effects.pop_front() {
            if let Effect::Hold(id) = effect {
                return self.hold(who, id, effects);
            }
            let crash = if self.calm {
                0
            } else {
                self.options.faults.crash
            };
            self.effect(who, life, effect);
            if self.random.chance(crash) {
                if let Some(Effect::Isolate(true)) = effects.front() {
                    // It had said so, and is not heard any more.
                    self.isolates(who, true);
                }
                return self.end_agent(who);
            }
            if self.home(who).life != life || self.home(who).agent.is_none() {
                return;
            }
        }
        let now = self.now;
        let home = self.home(who);
        if let Some(node) = &home.agent {
            // A moment later: the same time again would be no time.
            let at = (node.wake_at() + home.started).max(now + Time(1_000));
            if at < home.wake {
                home.wake = at;
                self.after(at.since(now), Action::Wake { who, life, at });
            }
        }
    }

    fn effect(&mut self, who: Process, life: u32, effect: Effect) {
        match effect {
            Effect::Tell(notice) => self.says(who, notice),
            Effect::Fault(id, fault) => self.storage_fault(who, id, &fault),
            Effect::Isolate(on) => self.isolates(who, on),
            Effect::Hold(_) => {}
            Effect::Ask(Ask::Corrupt { id, level }) => self.corrupt(who, life, id, level),
            Effect::Send(to, message) => self.post(who, to, message),
            Effect::Meet(node, epoch) => self.home(who).known.insert(node, epoch),
            Effect::Answer(link, sequence, message, carry) => {
                let delay = self.some_us(200);
                let token = link.token;
                self.after(
                    delay,
                    Action::Answer {
                        token,
                        sequence,
                        message,
                        carry,
                    },
                );
            }
            Effect::Kill(pid) => self.kill_rank(pid),
            Effect::KeepBlock(rank, block) => drop(self.home(who).blocks.insert(rank, block)),
            Effect::KeepSlab(rank, slot, slab) => {
                self.home(who).slabs.insert((rank, slot), slab);
            }
            Effect::Word(opened) => self.home(who).word = Some(opened),
            Effect::Ask(ask) => self.begin(who, life, ask),
        }
    }

    /// An agent says something to the launcher.
    pub(super) fn says(&mut self, who: Process, notice: Notice) {
        if let Some(meter) = &mut self.meter
            && self.homes[who as usize].node == self.options.coordinator
        {
            meter.tells(&notice);
        }
        self.answers(who, &notice);
        self.says_of_injections(&notice);
        self.heard(who, &notice);
        self.notify(who, notice);
    }

    // ---- peers ----

    fn post(&mut self, who: Process, to: NodeId, message: PeerMessage) {
        let (from, epoch) = (NodeId(self.home(who).node), self.home(who).epoch);
        let isolated = self.home(who).isolated;
        let Some(known) = self.home(who).known.get(to).filter(|_| !isolated) else {
            return;
        };
        let holder = |home: &Home| home.node == to.0 && home.epoch == known;
        // The present holder of the slot is the last one.
        let present = self.at(to.0);
        let there = match holder(&self.homes[present as usize]) {
            true => Some(present as usize),
            false => self.homes.iter().rposition(holder),
        };
        let Some(there) = there else {
            return;
        };
        let message = Rc::new(match self.meter {
            // What its bytes are is shared by all to whom it goes.
            Some(_) => message,
            None => carried(&message),
        });
        let arrivals = self.net.carry(self.now, from.0, to.0);
        for at in arrivals.into_iter().flatten() {
            let now = self.now;
            let at = match &mut self.meter {
                Some(meter) => {
                    let what = (message.is_sign_of_life(), scale::length(&message));
                    meter.carries(now, (from, to), what, at.since(now))
                }
                None => at,
            };
            let message = Rc::clone(&message);
            let arrives = Action::Deliver {
                to: there as Process,
                from,
                epoch,
                message,
            };
            self.after(at.since(self.now), arrives);
        }
    }

    pub(super) fn deliver(&mut self, to: Process, from: NodeId, epoch: u64, message: &PeerMessage) {
        let home = self.home(to);
        let life = home.life;
        // A holder that was replaced is not listened to.
        if home.isolated || home.known.get(from).is_none_or(|known| epoch < known) {
            return;
        }
        let message = message.clone();
        self.input(to, life, NodeInput::Peer { from, message });
    }

    // ---- what the judge hears ----

    /// True for a process that was replaced, as all that it knows were. One that was frozen may find
    /// answers of them when it wakes up, and open with them what they had promised it; nobody
    /// who lives has a part in that, or hears of it.
    fn is_past(&self, who: Process) -> bool {
        let known = &self.homes[who as usize].known;
        let replaced = |node: u32| {
            let holder = self.at(node);
            let epoch = self.homes[holder as usize].epoch;
            holder != who && known.get(NodeId(node)) != Some(epoch)
        };
        (0..self.options.nodes).all(replaced)
    }

    fn heard(&mut self, who: Process, notice: &Notice) {
        let now = self.now;
        match notice {
            Notice::NodeReady { incarnation, .. } => self.home(who).incarnation = incarnation.0,
            Notice::Status(status) => self.hears_clock(who, status.clock),
            Notice::Opened(Opened { incarnation, .. }) => {
                let number = incarnation.0;
                let source = self.sources.get(&number).copied().unwrap_or((0, 0));
                self.home(who).incarnation = number;
                if !self.is_past(who) {
                    self.judge.opens(now, number, source);
                }
            }
            Notice::Checkpoint { version, step } => {
                let key = (self.home(who).incarnation, version.0);
                match step {
                    // Its question is one for each node and level.
                    Step::Stable(_) if self.meter.is_some() => {}
                    // One that was frozen may wake up with all it needs to call a version stable
                    // at a level whose COMMIT lies with itself, while the next incarnation opens
                    // without it. Nobody listens to it any more.
                    Step::Stable(level) => {
                        self.comes_to(strikes::Stage::Stable, who);
                        let is_heard = self.at(self.homes[who as usize].node) == who;
                        self.judge.declares_stable(now, key, *level, is_heard);
                    }
                    Step::Aborted { level, .. } => {
                        self.judge.declares_aborted(now, key, *level, Some(who));
                    }
                    _ => {}
                }
            }
            Notice::OpenFailed { error, .. }
                if error.code() == Code::NoValidCheckpoint
                    && self.at(self.homes[who as usize].node) == who =>
            {
                self.nothing = Some(error.reason().to_owned());
                self.judge.gives_up(now);
            }
            _ => {}
        }
        let node = self.homes[who as usize].node;
        self.note(|| format!("n{node} (p{who}) tells {notice:?}"));
    }

    pub(super) fn on_durable(&mut self, who: Process, record: &Record) {
        let node = self.home(who).node;
        match *record {
            Record::Prepared {
                incarnation,
                version,
                level,
                ..
            } => {
                self.comes_to(strikes::Stage::Prepare, who);
                self.judge.prepares(node, (incarnation.0, version.0), level);
            }
            Record::Commit {
                incarnation,
                version,
                level,
                ref parts,
                ..
            } => {
                let what = (incarnation.0, version.0);
                let bytes = |part: &Part| {
                    let words = self.captured.get(&(what, part.node.0))?;
                    let words: Vec<_> = words.iter().map(|(rank, it)| (Rank(*rank), *it)).collect();
                    Some(storage::digest(&words))
                };
                let named = parts.iter().map(|part| {
                    let same = bytes(part).is_none_or(|digest| digest == part.digest);
                    (part.node.0, same)
                });
                let named = named.collect();
                self.judge.names(self.now, what, level, &named);
                let mark = &mut self.homes[who as usize].storage.mark;
                *mark = incarnation.max(*mark);
                let key = (incarnation.0, version.0);
                self.judge.commits(self.now, node, key, level);
                if node == self.options.coordinator {
                    self.comes_to(strikes::Stage::Commit, who);
                }
            }
            Record::Incarnation {
                number, restored, ..
            } => {
                let source = restored.map_or((0, 0), |(source, version, _)| (source.0, version.0));
                self.sources.entry(number.0).or_insert(source);
                self.judge.begins(number.0, source);
            }
            _ => {}
        }
    }

    /// Copies of the ranks' blocks, for who looks at them.
    pub(super) fn adopt_storage(&mut self, old: Process, new: Process) {
        let storage = std::mem::take(&mut self.home(old).storage);
        self.home(new).storage = storage;
    }

    /// The keys that a node's memory holds.
    pub(super) fn in_memory(&mut self, who: Process) -> BTreeSet<Key> {
        let slabs = self.home(who).slabs.values();
        let heads = slabs.filter_map(|slab| slab.head().ok());
        heads
            .filter(|head| head.state.is_complete())
            .map(|head| (head.id.incarnation.0, head.version.0))
            .collect()
    }

    /// The connections of ranks to one life of an agent are gone.
    fn cut_links(&mut self, who: Process, life: u32) {
        let mut cut = Vec::new();
        self.links.retain(|_, &mut (there, of, rank, epoch)| {
            let is = there == who && of == life;
            if is {
                cut.push((rank, epoch));
            }
            !is
        });
        for (rank, epoch) in cut {
            self.lost_link(rank, epoch);
        }
    }

    /// A process connects to the agent of its node.
    pub(super) fn joins(&mut self, who: Process, token: u64, pid: u32) {
        let home = self.home(who);
        home.live.borrow_mut().insert(token);
        let life = home.life;
        self.input(who, life, NodeInput::Joined(Link { token, pid }));
    }

    /// A connection of a process is gone, with the process or without.
    pub(super) fn leaves(&mut self, token: u64, exited: bool) {
        let Some(&(who, life, ..)) = self.links.get(&token) else {
            return;
        };
        self.links.remove(&token);
        self.home(who).live.borrow_mut().remove(&token);
        self.input(who, life, NodeInput::Gone { token, exited });
    }

    /// What a rank sees of its block: what was called stable, and that what it captured last
    /// was given up. Of a version that it has not come to, the word binds nobody: a
    /// coordinator that is started anew may take it up.
    pub(super) fn judge_block(&mut self, block: &PlainBlock, captured: Option<Version>) {
        if self.meter.is_some() {
            return;
        }
        let incarnation = block.identity().incarnation.0;
        for level in block.levels().iter() {
            if let Some(version) = block.committed(level) {
                let key = (incarnation, version.0);
                // What was restored is told to ranks with its version, and was judged before.
                let mut captured = self.captured.range((key, 0)..=(key, u32::MAX));
                if captured.next().is_some() {
                    self.judge.declares_stable(self.now, key, level, true);
                }
            }
        }
        if let Some(version) = block.aborted().filter(|it| Some(*it) == captured) {
            self.judge
                .declares_aborted(self.now, (incarnation, version.0), None, None);
        }
    }
}

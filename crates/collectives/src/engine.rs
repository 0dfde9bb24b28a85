//! Many instances of one machine over one rail.
//!
//! Invariants: see the crate. An instance that finished here goes on living for
//! those that are later, until [`Bounds`] pushes it out, oldest first; a frame for an
//! instance that was pushed out is dropped and counted. Frames for an instance that
//! this process did not start yet wait for it, within the same bounds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use outlive_base::Time;
use outlive_base::machine::{Body, Cx, Fault, MESSAGE_BYTES_MAX, Machine, Op, Output, Peer, Ready};
use outlive_network::rail::{Content, Frame, Key, Rail};

use crate::arena::{Arena, Operator};

/// What a machine needs beside [`Machine`] to leave its process.
pub trait Wired: Machine {
    /// Bytes that may wait in the rail before this machine sends no more: the rail's
    /// back-pressure. Machines that send only what is awaited need none.
    const WINDOW: usize = usize::MAX;

    /// The message as bytes.
    fn encode(msg: Self::Msg) -> [u8; MESSAGE_BYTES_MAX];
    /// The message of these bytes; `None` if there is none such.
    fn decode(bytes: &[u8; MESSAGE_BYTES_MAX]) -> Option<Self::Msg>;
    /// How the machine is told that the rail knows a process to be dead; `None` for
    /// machines that need no such knowledge.
    fn death(peer: Peer) -> Option<Self::Command>;
    /// The call that a message's body belongs to, so that it meets its own operator.
    fn call(msg: Self::Msg) -> u32;
    /// Of an event that marks a rank as missing from a body: both. Such an event goes
    /// no further than the arena.
    fn absent(event: &Self::Event) -> Option<(Body, Peer)>;
    /// The body that an event delivers: read when the event is pulled.
    fn result(event: &Self::Event) -> Option<Body>;
}

/// Bounds of an engine's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Most finished instances that are kept for latecomers.
    pub finished: usize,
    /// Most bytes of their bodies.
    pub finished_bytes: usize,
    /// Most frames that wait for an instance to start here.
    pub early: usize,
    /// Most bytes of their bodies.
    pub early_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            finished: 128,
            finished_bytes: 256 << 20,
            early: 1 << 16,
            early_bytes: 1 << 30,
        }
    }
}

/// What an instance starts from.
pub struct Start<M: Wired> {
    /// Its name, the same in all its processes.
    pub key: Key,
    /// The rail's process behind each of the machine's peers.
    pub members: Arc<[u32]>,
    /// This process among the members.
    pub me: Peer,
    /// The machine.
    pub machine: M,
    /// Its configuration.
    pub config: Arc<M::Config>,
    /// Seed of its random source.
    pub seed: u64,
}

struct Running<M: Wired> {
    start: Start<M>,
    arena: Arena,
    dones: VecDeque<(Op, Result<(), Fault>)>,
    events: VecDeque<(M::Event, Option<Content>)>,
    /// Bodies of messages that the machine has not been pulled after yet.
    visiting: Vec<Body>,
    deadline: Option<Time>,
    finished: bool,
}

/// Counters of what did not go its usual way.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Frames that came in.
    pub received: u64,
    /// Frames that went out.
    pub sent: u64,
    /// Frames for instances that were forgotten already.
    pub too_late: u64,
    /// Frames that were dropped because too much waited.
    pub overflow: u64,
    /// Frames of another incarnation, from strangers, or that no machine understands.
    pub refused: u64,
}

/// See the module.
pub struct Engine<M: Wired> {
    incarnation: u32,
    bounds: Bounds,
    running: BTreeMap<Key, Running<M>>,
    deadlines: BTreeSet<(Time, Key)>,
    finished: VecDeque<(Key, usize)>,
    finished_bytes: usize,
    early: BTreeMap<Key, Vec<(u32, Frame)>>,
    early_frames: usize,
    early_bytes: usize,
    /// The first sequence that did not start here, by communicator.
    next: BTreeMap<u64, u32>,
    dead: BTreeSet<u32>,
    /// Instances that have news, or that the rail could not serve.
    due: BTreeSet<Key>,
    counts: Counts,
}

impl<M: Wired> Engine<M> {
    /// An engine without instances.
    pub fn new(incarnation: u32, bounds: Bounds) -> Engine<M> {
        Engine {
            incarnation,
            bounds,
            running: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            finished: VecDeque::new(),
            finished_bytes: 0,
            early: BTreeMap::new(),
            early_frames: 0,
            early_bytes: 0,
            next: BTreeMap::new(),
            dead: BTreeSet::new(),
            due: BTreeSet::new(),
            counts: Counts::default(),
        }
    }

    /// What did not go its usual way so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Starts an instance: it is told of the deaths that are known and gets the frames
    /// that were early. Nothing is pulled before [`Engine::pump`].
    pub fn start(&mut self, rail: &dyn Rail, start: Start<M>) {
        let key = start.key;
        let next = self.next.entry(key.comm).or_default();
        *next = (*next).max(key.sequence.saturating_add(1));
        let mut fresh = Running {
            start,
            arena: Arena::default(),
            dones: VecDeque::new(),
            events: VecDeque::new(),
            visiting: Vec::new(),
            deadline: None,
            finished: false,
        };
        let now = rail.now();
        let dead = self.dead.iter().filter_map(|dead| fresh.peer(*dead));
        for peer in dead.collect::<Vec<_>>() {
            fresh.death(now, peer);
        }
        self.running.insert(key, fresh);
        self.due.insert(key);
        for (from, frame) in self.early.remove(&key).unwrap_or_default() {
            self.early_frames -= 1;
            self.early_bytes -= frame.body.as_ref().map_or(0, Content::wire_bytes);
            self.deliver(rail, from, frame);
        }
    }

    /// Gives an instance a command, which `make` makes from the handle of `content` of
    /// the collective `call`. False if there is no such instance.
    pub fn command(
        &mut self,
        rail: &dyn Rail,
        key: Key,
        content: Option<(u32, Content)>,
        make: impl FnOnce(Option<Body>) -> M::Command,
    ) -> bool {
        let Some(running) = self.running.get_mut(&key) else {
            return false;
        };
        let body = content.map(|(call, content)| running.arena.put(call, content));
        let command = make(body);
        running.input(rail.now(), |machine, cx| machine.on_command(cx, command));
        self.due.insert(key);
        true
    }

    /// A frame arrived.
    pub fn deliver(&mut self, rail: &dyn Rail, from: u32, frame: Frame) {
        self.counts.received += 1;
        if frame.key.incarnation != self.incarnation {
            self.counts.refused += 1;
            return;
        }
        let key = frame.key;
        let Some(running) = self.running.get_mut(&key) else {
            self.keep_early(from, frame);
            return;
        };
        let (Some(peer), Some(msg)) = (running.peer(from), M::decode(&frame.msg)) else {
            self.counts.refused += 1;
            return;
        };
        let body = frame
            .body
            .map(|content| running.arena.put(M::call(msg), content));
        running.visiting.extend(body);
        running.input(rail.now(), |machine, cx| {
            machine.on_message(cx, peer, msg, body)
        });
        self.due.insert(key);
    }

    fn keep_early(&mut self, from: u32, frame: Frame) {
        let bytes = frame.body.as_ref().map_or(0, Content::wire_bytes);
        if frame.key.sequence < self.next.get(&frame.key.comm).copied().unwrap_or(0) {
            self.counts.too_late += 1;
        } else if self.early_frames >= self.bounds.early
            || self.early_bytes.saturating_add(bytes) > self.bounds.early_bytes
        {
            self.counts.overflow += 1;
        } else {
            self.early_frames += 1;
            self.early_bytes += bytes;
            self.early.entry(frame.key).or_default().push((from, frame));
        }
    }

    /// A process of the rail is dead.
    pub fn death(&mut self, rail: &dyn Rail, dead: u32) {
        if !self.dead.insert(dead) {
            return;
        }
        for (key, running) in &mut self.running {
            if let Some(peer) = running.peer(dead) {
                running.death(rail.now(), peer);
                self.due.insert(*key);
            }
        }
    }

    /// Processes that are known to be dead.
    pub fn dead(&self) -> impl Iterator<Item = u32> {
        self.dead.iter().copied()
    }

    /// Lets deadlines pass and pulls every instance that has news. `op` combines for
    /// the instance `current`; the others combine nothing here.
    pub fn pump(&mut self, rail: &mut dyn Rail, current: Key, mut op: Option<&mut dyn Operator>) {
        let now = rail.now();
        while let Some((at, key)) = self.deadlines.first().copied()
            && at <= now
        {
            self.deadlines.pop_first();
            if let Some(running) = self.running.get_mut(&key) {
                running.deadline = None;
                running.input(now, |machine, cx| machine.on_timeout(cx));
                self.due.insert(key);
            }
        }
        for key in std::mem::take(&mut self.due) {
            let own = if key == current {
                reborrow(&mut op)
            } else {
                None
            };
            self.drive(rail, key, own);
        }
    }

    /// When [`Engine::pump`] is needed at the latest.
    pub fn deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// What the machine told the layer above, with the body that it delivers.
    pub fn event(&mut self, key: Key) -> Option<(M::Event, Option<Content>)> {
        self.running.get_mut(&key)?.events.pop_front()
    }
    /// The machine itself, for what it tells of itself.
    pub fn machine(&self, key: Key) -> Option<&M> {
        self.running.get(&key).map(|running| &running.start.machine)
    }
    /// Instances that are kept, finished or not.
    pub fn len(&self) -> usize {
        self.running.len()
    }
    /// True if no instance is kept.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// The layer above has what it wanted: the instance stays for latecomers only.
    pub fn finish(&mut self, key: Key) {
        let Some(running) = self.running.get_mut(&key) else {
            return;
        };
        if std::mem::replace(&mut running.finished, true) {
            return;
        }
        let bytes = running.arena.bytes();
        self.finished.push_back((key, bytes));
        self.finished_bytes += bytes;
        while self.finished.len() > self.bounds.finished
            || self.finished_bytes > self.bounds.finished_bytes && self.finished.len() > 1
        {
            if let Some((old, bytes)) = self.finished.pop_front() {
                self.finished_bytes -= bytes;
                if let Some(gone) = self.running.remove(&old)
                    && let Some(at) = gone.deadline
                {
                    self.deadlines.remove(&(at, old));
                }
            }
        }
    }

    fn drive(&mut self, rail: &mut dyn Rail, key: Key, mut op: Option<&mut dyn Operator>) {
        let Some(running) = self.running.get_mut(&key) else {
            return;
        };
        loop {
            let now = rail.now();
            let send = rail.ready() && (M::WINDOW == usize::MAX || rail.waiting() < M::WINDOW);
            let ready = Ready {
                send,
                persist: true,
            };
            if let Some((number, result)) = running.dones.pop_front() {
                running.input(now, |machine, cx| machine.on_done(cx, number, result));
                continue;
            }
            let output = running.input(now, |machine, cx| machine.poll(cx, ready));
            let Some(output) = output else {
                if !send {
                    self.due.insert(key);
                }
                break;
            };
            match output {
                Output::Send { to, msg, body } => {
                    let body = body.and_then(|body| running.arena.get(body).cloned());
                    if let Some(process) = running.start.members.get(to as usize) {
                        let msg = M::encode(msg);
                        rail.send(*process, Frame { key, msg, body });
                        self.counts.sent += 1;
                    }
                }
                Output::Persist { op: number, .. } => {
                    // A collective's memory is its processes: nothing is stored.
                    running.dones.push_back((number, Err(Fault::Storage)));
                }
                Output::Combine {
                    op: number,
                    acc,
                    arg,
                    acc_left,
                } => {
                    let done = reborrow(&mut op)
                        .is_some_and(|op| running.arena.combine(acc, arg, acc_left, op));
                    let result = if done { Ok(()) } else { Err(Fault::Closed) };
                    running.dones.push_back((number, result));
                }
                Output::Retain { body } => {
                    running.arena.retain(body);
                }
                Output::Release { body } => {
                    running.arena.release(body);
                }
                Output::Event(event) => {
                    if let Some((body, peer)) = M::absent(&event) {
                        running.arena.absent(body, peer);
                    } else {
                        let result = M::result(&event);
                        let content = result.and_then(|body| running.arena.get(body).cloned());
                        running.events.push_back((event, content));
                    }
                }
            }
        }
        for body in std::mem::take(&mut running.visiting) {
            // What the machine did not retain goes.
            running.arena.release(body);
        }
        let deadline = running.read_deadline(rail.now());
        if deadline != running.deadline {
            if let Some(at) = running.deadline {
                self.deadlines.remove(&(at, key));
            }
            if let Some(at) = deadline {
                self.deadlines.insert((at, key));
            }
            running.deadline = deadline;
        }
    }
}

/// A shorter borrow of an optional operator.
fn reborrow<'a>(op: &'a mut Option<&mut dyn Operator>) -> Option<&'a mut dyn Operator> {
    match op {
        Some(op) => Some(&mut **op),
        None => None,
    }
}

impl<M: Wired> Running<M> {
    fn input<T>(&mut self, now: Time, call: impl FnOnce(&mut M, &Cx<M>) -> T) -> T {
        let Start {
            me,
            config,
            seed,
            machine,
            ..
        } = &mut self.start;
        let cx = Cx {
            me: *me,
            now,
            config: config.as_ref(),
            seed: *seed,
        };
        call(machine, &cx)
    }
    fn read_deadline(&mut self, now: Time) -> Option<Time> {
        self.input(now, |machine, cx| machine.deadline(cx))
    }
    fn peer(&self, process: u32) -> Option<Peer> {
        let members = &self.start.members;
        // Most communicators are the whole job, in order.
        if members.get(process as usize) == Some(&process) {
            return Some(process);
        }
        let place = members.iter().position(|member| *member == process);
        place.map(|place| place as Peer)
    }
    fn death(&mut self, now: Time, peer: Peer) {
        if let Some(command) = M::death(peer) {
            self.input(now, |machine, cx| machine.on_command(cx, command));
        }
    }
}

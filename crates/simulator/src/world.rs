//! Processes that run one [`Machine`] each, over a network, with disks.
//!
//! Invariants: a machine sees only its own inputs; outputs are carried out in the
//! order in which they were pulled; a crash may come between any two of them; what
//! was on its way to a process that crashed is delivered to nobody (its life is
//! over), unless it is a message, which finds whoever has the address then.

use std::collections::VecDeque;

use outlive_base::machine::{Cx, Fault, Machine, Op, Output, Peer, Ready};
use outlive_base::rng::Sequence;
use outlive_base::{NodeId, Time};

use crate::disk::Disk;
use crate::engine::{Happening, Queue, Slab, Trace};
use crate::network::Network;

const DELIVER: u32 = 0;
const TIMER: u32 = 1;
const SYNC: u32 = 2;
const ACTION: u32 = 3;

/// Index of a process; not its address: a replaced process keeps its index.
pub type Process = u32;

/// The layer above the machines: agents, ranks and launcher of a history.
pub trait Driver<M: Machine, N: Network>: Sized {
    /// What the driver schedules for itself.
    type Action;
    /// A machine said something.
    fn on_event(&mut self, world: &mut World<M, N, Self>, who: Process, event: M::Event);
    /// A record became durable (perhaps without its machine knowing).
    fn on_durable(&mut self, world: &mut World<M, N, Self>, who: Process, record: M::Record);
    /// A process crashed between two outputs.
    fn on_crash(&mut self, world: &mut World<M, N, Self>, who: Process);
    /// A scheduled action is due.
    fn on_action(&mut self, world: &mut World<M, N, Self>, action: Self::Action);
}

/// Faults of processes and disks, per million; may be changed in a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Crash after an output.
    pub crash: u32,
    /// A record is refused (disk full).
    pub refuse: u32,
    /// Largest time of a sync.
    pub sync_max: Time,
}

struct Life<M: Machine> {
    machine: Option<M>,
    me: Peer,
    life: u32,
    paused_until: Time,
    timer: Time,
    disk: Disk<M::Record>,
    /// Records become durable in the order in which they were asked for.
    last_sync: Time,
    inbox: VecDeque<M::Command>,
}

/// All processes, the queue, the network. `D` is the driver that is called.
pub struct World<M: Machine, N: Network, D: Driver<M, N>> {
    /// The clock.
    pub now: Time,
    /// The network.
    pub net: N,
    /// What may go wrong.
    pub faults: Faults,
    /// The hash of the history.
    pub trace: Trace,
    /// Lines of the history, if asked for.
    pub lines: Option<Vec<String>>,
    config: M::Config,
    seed: u64,
    random: Sequence,
    queue: Queue,
    processes: Vec<Life<M>>,
    /// Which process has a node's address.
    addresses: Vec<Process>,
    launcher: Process,
    messages: Slab<(Peer, M::Msg)>,
    syncs: Slab<(u32, Op)>,
    actions: Slab<D::Action>,
    busy: VecDeque<Process>,
}

impl<M: Machine, N: Network, D: Driver<M, N>> World<M, N, D> {
    /// A world without processes.
    pub fn new(config: M::Config, net: N, faults: Faults, seed: u64, explain: bool) -> Self {
        World {
            now: Time::ZERO,
            net,
            faults,
            trace: Trace::default(),
            lines: explain.then(Vec::new),
            config,
            seed,
            random: Sequence::new(seed, 0x776f_726c),
            queue: Queue::default(),
            processes: Vec::new(),
            addresses: Vec::new(),
            launcher: 0,
            messages: Slab::default(),
            syncs: Slab::default(),
            actions: Slab::default(),
            busy: VecDeque::new(),
        }
    }

    /// The configuration that all machines share.
    pub fn config(&self) -> &M::Config {
        &self.config
    }

    /// Adds a process that is not running, with an empty disk, and gives it the
    /// address `me` if that is new or free to be taken over.
    pub fn add(&mut self, me: Peer) -> Process {
        let process = self.processes.len() as Process;
        self.processes.push(Life {
            machine: None,
            me,
            life: 0,
            paused_until: Time::ZERO,
            timer: Time::NEVER,
            disk: Disk::default(),
            last_sync: Time::ZERO,
            inbox: VecDeque::new(),
        });
        if me == NodeId::LAUNCHER.0 {
            self.launcher = process;
            return process;
        }
        let slot = me as usize;
        if self.addresses.len() <= slot {
            self.addresses.resize(slot + 1, process);
        }
        self.addresses[slot] = process;
        process
    }

    /// The process that has the address of `node` now.
    pub fn at(&self, node: u32) -> Process {
        if node == NodeId::LAUNCHER.0 {
            return self.launcher;
        }
        self.addresses.get(node as usize).copied().unwrap_or(0)
    }

    /// The machine of a process, if it runs.
    pub fn machine(&self, who: Process) -> Option<&M> {
        self.processes[who as usize].machine.as_ref()
    }

    /// The node whose address this process has or had.
    pub fn node(&self, who: Process) -> Peer {
        self.processes[who as usize].me
    }

    /// The disk of a process.
    pub fn disk(&mut self, who: Process) -> &mut Disk<M::Record> {
        &mut self.processes[who as usize].disk
    }

    /// A line of the printable history; `text` is called only if it is wanted.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>12.3} ms  {}", self.now.as_ms(), text()));
        }
    }

    /// Starts a process from what its disk holds.
    pub fn start(&mut self, who: Process) {
        self.note(|| format!("p{who} starts"));
        let life = &mut self.processes[who as usize];
        let cx = Cx {
            me: life.me,
            now: self.now,
            config: &self.config,
            seed: self.seed,
        };
        life.machine = Some(M::recover(&cx, life.disk.replay().into_iter()));
        life.life += 1;
        life.timer = Time::NEVER;
        life.inbox.clear();
        self.busy.push_back(who);
    }

    /// Ends a process; writes under way are whole, torn or lost. Returns the records
    /// that turn out whole.
    pub fn kill(&mut self, who: Process) -> Vec<M::Record> {
        let life = &mut self.processes[who as usize];
        if life.machine.take().is_none() {
            return Vec::new();
        }
        life.life += 1;
        life.inbox.clear();
        life.disk.crash(&mut self.random)
    }

    /// Freezes a process: it handles nothing until then.
    pub fn pause(&mut self, who: Process, until: Time) {
        self.processes[who as usize].paused_until = until;
    }

    /// True while it is frozen.
    pub fn paused(&self, who: Process) -> bool {
        self.processes[who as usize].paused_until > self.now
    }

    /// Gives a command to a process, if it runs (a frozen one gets it later).
    pub fn command(&mut self, who: Process, command: M::Command) {
        let life = &mut self.processes[who as usize];
        if life.machine.is_some() {
            life.inbox.push_back(command);
            self.busy.push_back(who);
        }
    }

    /// Schedules an action of the driver.
    pub fn after(&mut self, delay: Time, action: D::Action) {
        let index = self.actions.put(action);
        self.queue
            .push(self.now + delay, Happening::new(0, ACTION, index));
    }

    /// Runs until the clock passes `end` or nothing is left.
    pub fn run(&mut self, driver: &mut D, end: Time) {
        self.settle(driver);
        while let Some((at, what)) = self.queue.pop() {
            if at > end {
                // Put back, so that a later call goes on from here.
                self.queue.push(at, what);
                self.now = end;
                return;
            }
            self.now = at;
            self.happen(driver, what);
            self.settle(driver);
        }
        self.now = end;
    }

    /// How many happenings there were.
    pub fn happenings(&self) -> u64 {
        self.queue.pushed()
    }

    fn happen(&mut self, driver: &mut D, what: Happening) {
        if what.kind() == ACTION {
            if let Some(action) = self.actions.take(what.index()) {
                driver.on_action(self, action);
            }
            return;
        }
        let paused_until = self.processes[what.who as usize].paused_until;
        if paused_until > self.now {
            return self.queue.push(paused_until, what);
        }
        self.trace.add(self.now.0);
        self.trace
            .add(u64::from(what.who) << 8 | u64::from(what.kind()));
        match what.kind() {
            DELIVER => self.deliver(what),
            TIMER => self.timer(what),
            _ => self.sync(driver, what),
        }
        self.busy.push_back(what.who);
    }

    fn deliver(&mut self, what: Happening) {
        let Some((from, msg)) = self.messages.take(what.index()) else {
            return;
        };
        let life = &mut self.processes[what.who as usize];
        let Some(machine) = &mut life.machine else {
            return;
        };
        if let Some(lines) = &mut self.lines {
            let (now, me) = (self.now.as_ms(), life.me);
            lines.push(format!(
                "{now:>12.3} ms  n{from} -> n{me} (p{}) {msg:?}",
                what.who
            ));
        }
        let cx = Cx {
            me: life.me,
            now: self.now,
            config: &self.config,
            seed: self.seed,
        };
        machine.on_message(&cx, from, msg, None);
    }

    fn timer(&mut self, what: Happening) {
        let life = &mut self.processes[what.who as usize];
        if life.life & 0x0fff_ffff != what.index() {
            return;
        }
        let Some(machine) = &mut life.machine else {
            return;
        };
        if life.timer > self.now {
            return; // The deadline moved; its own timer is in the queue.
        }
        life.timer = Time::NEVER;
        let cx = Cx {
            me: life.me,
            now: self.now,
            config: &self.config,
            seed: self.seed,
        };
        if machine
            .deadline(&cx)
            .is_some_and(|deadline| deadline <= self.now)
        {
            machine.on_timeout(&cx);
        }
    }

    fn sync(&mut self, driver: &mut D, what: Happening) {
        let Some((of, op)) = self.syncs.take(what.index()) else {
            return;
        };
        let life = &mut self.processes[what.who as usize];
        if life.life != of || life.machine.is_none() {
            return;
        }
        let refused = self.random.chance(self.faults.refuse);
        let record = if refused {
            life.disk.refuse(op);
            None
        } else {
            life.disk.sync(op)
        };
        if let Some(record) = &record {
            let (who, shown) = (what.who, record.clone());
            self.note(|| format!("p{who} durable {shown:?}"));
            driver.on_durable(self, what.who, record.clone());
            // Between the sync and its completion there is time to crash.
            if self.crashes(driver, what.who) {
                return;
            }
        }
        let life = &mut self.processes[what.who as usize];
        let Some(machine) = &mut life.machine else {
            return;
        };
        let cx = Cx {
            me: life.me,
            now: self.now,
            config: &self.config,
            seed: self.seed,
        };
        machine.on_done(&cx, op, record.map(|_| ()).ok_or(Fault::Storage));
    }

    fn crashes(&mut self, driver: &mut D, who: Process) -> bool {
        if !self.random.chance(self.faults.crash) {
            return false;
        }
        self.note(|| format!("p{who} crashes"));
        for record in self.kill(who) {
            driver.on_durable(self, who, record);
        }
        driver.on_crash(self, who);
        true
    }

    /// Commands and outputs of everyone who has some, until there are none.
    fn settle(&mut self, driver: &mut D) {
        while let Some(who) = self.busy.pop_front() {
            if self.paused(who) {
                let life = &self.processes[who as usize];
                let what = Happening::new(who, TIMER, life.life & 0x0fff_ffff);
                self.queue.push(life.paused_until, what);
                continue;
            }
            self.pull(driver, who);
            while let Some(command) = self.processes[who as usize].inbox.pop_front() {
                self.note(|| format!("p{who} <= {command:?}"));
                let life = &mut self.processes[who as usize];
                let Some(machine) = &mut life.machine else {
                    break;
                };
                let cx = Cx {
                    me: life.me,
                    now: self.now,
                    config: &self.config,
                    seed: self.seed,
                };
                machine.on_command(&cx, command);
                self.pull(driver, who);
            }
            self.set_timer(who);
        }
    }

    fn pull(&mut self, driver: &mut D, who: Process) {
        loop {
            let life = &mut self.processes[who as usize];
            let Some(machine) = &mut life.machine else {
                return;
            };
            let cx = Cx {
                me: life.me,
                now: self.now,
                config: &self.config,
                seed: self.seed,
            };
            let Some(output) = machine.poll(&cx, Ready::ALL) else {
                return;
            };
            self.carry_out(driver, who, output);
            if self.crashes(driver, who) {
                return;
            }
        }
    }

    fn carry_out(&mut self, driver: &mut D, who: Process, output: Output<M>) {
        let (me, of) = (
            self.processes[who as usize].me,
            self.processes[who as usize].life,
        );
        match output {
            Output::Send { to, msg, .. } => {
                for at in self.net.carry(self.now, me, to).into_iter().flatten() {
                    let index = self.messages.put((me, msg));
                    let receiver = self.at(to);
                    self.queue
                        .push(at, Happening::new(receiver, DELIVER, index));
                }
            }
            Output::Persist { op, record } => {
                let delay = Time(1000 + self.random.below(self.faults.sync_max.0.max(1)));
                let life = &mut self.processes[who as usize];
                life.disk.write(op, record);
                life.last_sync = life.last_sync.max(self.now + delay);
                let index = self.syncs.put((of, op));
                self.queue
                    .push(life.last_sync, Happening::new(who, SYNC, index));
            }
            Output::Event(event) => {
                self.note(|| format!("p{who} says {event:?}"));
                driver.on_event(self, who, event);
            }
            Output::Combine { .. } | Output::Retain { .. } | Output::Release { .. } => {}
        }
    }

    fn set_timer(&mut self, who: Process) {
        let life = &mut self.processes[who as usize];
        let Some(machine) = &life.machine else { return };
        let cx = Cx {
            me: life.me,
            now: self.now,
            config: &self.config,
            seed: self.seed,
        };
        if let Some(deadline) = machine.deadline(&cx)
            && deadline < life.timer
            && deadline != Time::NEVER
        {
            life.timer = deadline.max(self.now);
            let what = Happening::new(who, TIMER, life.life & 0x0fff_ffff);
            self.queue.push(life.timer, what);
        }
    }
}

//! A network that costs what LogP and LogGP say: for the time of a protocol, where
//! [`crate::world`] is for its safety. No message is lost; processes may die.
//!
//! The model (Culler et al., PPoPP 1993; Alexandrov et al., SPAA 1995):
//! - a send occupies its sender for `o`; the next one starts at least `g` after it;
//! - the message arrives `o + L` after the start of the send, and its reception takes
//!   `o`; receptions of a process start at least `g` apart;
//! - a message of k bytes takes (k-1)G longer on its way, and (k-1)G more of either
//!   port;
//! - full duplex: sending and receiving do not disturb each other; half duplex: the
//!   process does one thing at a time, and of two that could start a reception goes
//!   first;
//! - at equal times receptions end before time-outs, and those come before sends, so
//!   that a send knows of everything that was heard until then. Of messages that
//!   arrive at the same time one that yields (see [`Host::yields`]) goes last, then that
//!   of the lower rank is received first. Of those that wait at a busy port goes first
//!   what was decided on first (see [`Host::decided`]).
//!
//! A message is on its way until it arrives, also one to the dead: the network is not
//! quiet before.
//!
//! A dead process handles nothing from the time of its death on; what it sent before
//! arrives. Invariants: a run is a function of its inputs (P8); memory is that of the
//! machines, 24 bytes for the ports of each, and what is in flight.

use std::collections::BTreeMap;

use outlive_base::machine::{Body, Cx, Machine, Op, Output, Peer, Ready};
use outlive_base::{Code, Entity, Error, Result, Time};
use outlive_protocols::broadcast::LogP;

use crate::wheel::Wheel;

/// What the network costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Model {
    /// L, o and g.
    pub logp: LogP,
    /// G: for each byte after the first.
    pub byte_gap: u64,
    /// A process sends or receives, never both at once.
    pub half_duplex: bool,
}

/// When a process dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// At this time (0: before the start): it handles nothing then or later.
    At(Time),
    /// After so many sends: the next one does not happen.
    AfterSends(u32),
}

/// What surrounds the machines.
pub trait Host<M: Machine> {
    /// A machine says something.
    fn on_event(&mut self, who: Peer, now: Time, event: M::Event);
    /// Combine two bodies (see [`Output::Combine`]); done at once.
    fn combine(&mut self, _who: Peer, _acc: Body, _arg: Body, _acc_left: bool) {}
    /// Keep (true) or let go a body.
    fn retain(&mut self, _who: Peer, _body: Body, _keep: bool) {}
    /// A send starts.
    fn on_send(&mut self, _from: Peer, _to: Peer, _msg: &M::Msg, _now: Time) {}
    /// A reception has ended.
    fn on_receive(&mut self, _from: Peer, _to: Peer, _msg: &M::Msg, _now: Time) {}
    /// True if a message is received after others that arrive at the same time, whatever
    /// the rank of its sender: it was only decided on when the port was free, and the
    /// others were waiting for the port.
    fn yields(&self, _msg: &M::Msg) -> bool {
        false
    }
    /// When it was decided to send a message whose send started at `sent`: before, if it
    /// had to wait for the port.
    fn decided(&self, _from: Peer, _msg: &M::Msg, sent: Time) -> Time {
        sent
    }
    /// True if it matters which of two messages is received first at a busy port.
    fn in_turn(&self) -> bool {
        false
    }
    /// Bytes of a message, at least 1; read only if `byte_gap` is not 0.
    fn bytes(&self, _msg: &M::Msg, _body: Option<Body>) -> u64 {
        1
    }
}

/// What a run came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// The end of the last send or reception, or the last arrival at the dead.
    pub quiescence: Time,
    /// Messages sent, also to the dead.
    pub messages: u64,
    /// Entries of the calendar.
    pub events: u64,
    /// True if the run was cut off by its bound, with work left.
    pub cut_off: bool,
}

/// A message on its way; 24 bytes at most (tested for the broadcast).
#[derive(Clone, Copy, Debug)]
struct Delivery<Msg> {
    to: Peer,
    from: Peer,
    msg: Msg,
    body: Option<Body>,
    /// Received; else it has only arrived and must find the port free.
    received: bool,
    /// (k-1)G of the message.
    extra: u32,
}

#[derive(Clone, Copy)]
struct Ports {
    send_free: u64,
    receive_free: u64,
    timer: u64,
}

/// Who is received next of those that wait: by receiver, the time of the
/// decision to send, whether it yields, sender and order.
type Turn = (Peer, u64, bool, Peer, u64);

/// All processes and what is on its way between them.
pub struct World<'a, M: Machine, H> {
    model: Model,
    config: &'a M::Config,
    seed: u64,
    /// The surroundings.
    pub host: H,
    machines: Vec<M>,
    ports: Vec<Ports>,
    /// Until when the process is busy; half duplex only.
    busy: Vec<u64>,
    /// When each dies; empty if nobody does.
    deaths: Vec<u64>,
    quotas: BTreeMap<Peer, u32>,
    deliveries: Wheel<Delivery<M::Msg>>,
    wakes: Wheel<Peer>,
    /// Arrived, and not yet received.
    waiting: BTreeMap<Turn, Delivery<M::Msg>>,
    /// Sent now, to be given a place at the receiver's port after the others.
    yielding: Vec<Delivery<M::Msg>>,
    trying: Vec<Peer>,
    ready: Vec<Peer>,
    marked: Vec<u64>,
    now: u64,
    outcome: Outcome,
}

impl<'a, M: Machine, H: Host<M>> World<'a, M, H> {
    /// A world of these machines, numbered from 0.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if the model is not valid (see [`LogP::check`]).
    pub fn new(
        model: Model,
        config: &'a M::Config,
        seed: u64,
        machines: Vec<M>,
        host: H,
    ) -> Result<Self> {
        model.logp.check()?;
        if model.byte_gap > 1 << 20 {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Option("byte-gap".into()),
                format!("{} is above 2^20", model.byte_gap),
                "choose a longer unit of time",
            ));
        }
        let count = machines.len();
        let ports = Ports {
            send_free: 0,
            receive_free: 0,
            timer: u64::MAX,
        };
        Ok(World {
            model,
            config,
            seed,
            host,
            ports: vec![ports; count],
            busy: vec![0; if model.half_duplex { count } else { 0 }],
            deaths: Vec::new(),
            quotas: BTreeMap::new(),
            deliveries: Wheel::default(),
            wakes: Wheel::default(),
            waiting: BTreeMap::new(),
            yielding: Vec::new(),
            trying: Vec::new(),
            ready: Vec::new(),
            marked: vec![0; count.div_ceil(64)],
            machines,
            now: 0,
            outcome: Outcome::default(),
        })
    }

    /// Lets a process die.
    pub fn kill(&mut self, who: Peer, death: Death) {
        if self.deaths.is_empty() {
            self.deaths = vec![u64::MAX; self.machines.len()];
        }
        match death {
            Death::At(time) => self.deaths[who as usize] = time.0,
            Death::AfterSends(0) => self.deaths[who as usize] = self.now,
            Death::AfterSends(sends) => {
                self.quotas.insert(who, sends);
            }
        }
    }

    /// True if the process is dead now.
    pub fn dead(&self, who: Peer) -> bool {
        let death = self.deaths.get(who as usize);
        death.is_some_and(|&death| death <= self.now)
    }

    /// Gives a machine a command now.
    pub fn command(&mut self, who: Peer, command: M::Command) {
        if !self.dead(who) {
            let cx = self.cx(who);
            self.machines[who as usize].on_command(&cx, command);
            self.mark(who);
        }
    }

    /// The machines.
    pub fn machines(&self) -> &[M] {
        &self.machines
    }

    /// The clock.
    pub fn now(&self) -> Time {
        Time(self.now)
    }

    /// Runs until nothing is left to happen, or the clock would pass `end`.
    pub fn run(&mut self, end: Time) -> Outcome {
        self.poll_ready();
        while let Some(next) = self.next() {
            if next > end.0 {
                self.outcome.cut_off = true;
                break;
            }
            self.now = next;
            self.deliveries.advance(next);
            self.wakes.advance(next);
            while let Some(delivery) = self.deliveries.take() {
                self.deliver(delivery);
            }
            while let Some(who) = self.wakes.take() {
                self.wake(who);
            }
            if !self.trying.is_empty() {
                self.receive_waiting();
            }
            self.poll_ready();
        }
        self.outcome.events = self.deliveries.pushed() + self.wakes.pushed();
        self.outcome
    }

    fn next(&self) -> Option<u64> {
        match (self.deliveries.next(), self.wakes.next()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn cx(&self, who: Peer) -> Cx<'a, M> {
        Cx {
            me: who,
            now: Time(self.now),
            config: self.config,
            seed: self.seed,
        }
    }

    fn mark(&mut self, who: Peer) {
        let (word, bit) = (who as usize / 64, 1 << (who % 64));
        if self.marked[word] & bit == 0 {
            self.marked[word] |= bit;
            self.ready.push(who);
        }
    }

    fn deliver(&mut self, mut delivery: Delivery<M::Msg>) {
        let who = delivery.to;
        if self.dead(who) {
            return;
        }
        if !delivery.received {
            delivery.received = true;
            let yields = self.host.yields(&delivery.msg);
            let logp = self.model.logp;
            let way = logp.overhead + logp.latency + u64::from(delivery.extra);
            let sent = Time(self.now.saturating_sub(way));
            let decided = self.host.decided(delivery.from, &delivery.msg, sent).0;
            let key = (who, decided, yields, delivery.from, self.outcome.messages);
            self.waiting.insert(key, delivery);
            self.trying.push(who);
            return;
        }
        self.outcome.quiescence = Time(self.now).max(self.outcome.quiescence);
        let cx = self.cx(who);
        self.host
            .on_receive(delivery.from, who, &delivery.msg, cx.now);
        let machine = &mut self.machines[who as usize];
        machine.on_message(&cx, delivery.from, delivery.msg, delivery.body);
        self.mark(who);
    }

    /// Starts receptions at ports that are free: what arrived first goes first.
    fn receive_waiting(&mut self) {
        let mut trying = std::mem::take(&mut self.trying);
        trying.sort_unstable();
        trying.dedup();
        for &who in &trying {
            if self.dead(who) {
                continue;
            }
            let of = (who, 0, false, 0, 0)..=(who, u64::MAX, true, u32::MAX, u64::MAX);
            while let Some((&key, &delivery)) = self.waiting.range(of.clone()).next() {
                let free = self.ports[who as usize].receive_free;
                let busy = self.busy.get(who as usize).copied().unwrap_or(0);
                if free.max(busy) > self.now {
                    self.wakes.push(free.max(busy), who);
                    break;
                }
                self.waiting.remove(&key);
                let end = self.receive_at(who, self.now, delivery.extra);
                self.deliveries.push(end, delivery);
            }
        }
        trying.clear();
        self.trying = trying;
    }

    /// Takes the port for a reception that starts then; gives its end.
    fn receive_at(&mut self, who: Peer, start: u64, extra: u32) -> u64 {
        let LogP { overhead, gap, .. } = self.model.logp;
        self.ports[who as usize].receive_free = start + gap + u64::from(extra);
        if let Some(busy) = self.busy.get_mut(who as usize) {
            *busy = start + overhead;
        }
        start + overhead
    }

    fn wake(&mut self, who: Peer) {
        if self.dead(who) {
            return;
        }
        if !self.waiting.is_empty() {
            self.trying.push(who);
        }
        let timer = &mut self.ports[who as usize].timer;
        if *timer <= self.now {
            *timer = u64::MAX;
            let cx = self.cx(who);
            let machine = &mut self.machines[who as usize];
            if machine.deadline(&cx).is_some_and(|at| at <= cx.now) {
                machine.on_timeout(&cx);
            }
        }
        self.mark(who);
    }

    /// Polls everyone marked, in the order of ranks.
    fn poll_ready(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        if ready.len() > self.marked.len() / 4 {
            for word in 0..self.marked.len() {
                let mut bits = std::mem::take(&mut self.marked[word]);
                while bits != 0 {
                    let who = (word * 64) as Peer + bits.trailing_zeros();
                    bits &= bits - 1;
                    self.poll(who);
                }
            }
        } else {
            ready.sort_unstable();
            for &who in &ready {
                self.marked[who as usize / 64] &= !(1 << (who % 64));
                self.poll(who);
            }
        }
        ready.clear();
        self.ready = ready;
        let mut yielding = std::mem::take(&mut self.yielding);
        for delivery in yielding.drain(..) {
            self.receive_later(delivery);
        }
        self.yielding = yielding;
    }

    /// Takes a place at the receiver's port for a message that is sent now.
    fn receive_later(&mut self, delivery: Delivery<M::Msg>) {
        let LogP {
            latency, overhead, ..
        } = self.model.logp;
        let arrival = self.now + overhead + latency;
        let start = arrival.max(self.ports[delivery.to as usize].receive_free);
        let end = self.receive_at(delivery.to, start, 0);
        self.deliveries.push(end, delivery);
    }

    fn poll(&mut self, who: Peer) {
        loop {
            if self.dead(who) {
                return;
            }
            let busy = self.busy.get(who as usize).copied().unwrap_or(0);
            let send = self.ports[who as usize].send_free.max(busy) <= self.now;
            let ready = Ready {
                send,
                persist: true,
            };
            let cx = self.cx(who);
            let Some(output) = self.machines[who as usize].poll(&cx, ready) else {
                break;
            };
            match output {
                Output::Send { to, msg, body } => self.carry(who, to, msg, body),
                Output::Event(event) => self.host.on_event(who, cx.now, event),
                Output::Combine {
                    op,
                    acc,
                    arg,
                    acc_left,
                } => {
                    self.host.combine(who, acc, arg, acc_left);
                    self.machines[who as usize].on_done(&cx, op, Ok(()));
                }
                Output::Retain { body } => self.host.retain(who, body, true),
                Output::Release { body } => self.host.retain(who, body, false),
                Output::Persist { op, .. } => self.done(who, op),
            }
        }
        self.set_timer(who);
    }

    /// There is no disk here: a record is durable at once.
    fn done(&mut self, who: Peer, op: Op) {
        let cx = self.cx(who);
        self.machines[who as usize].on_done(&cx, op, Ok(()));
    }

    fn carry(&mut self, from: Peer, to: Peer, msg: M::Msg, body: Option<Body>) {
        let LogP {
            latency,
            overhead,
            gap,
        } = self.model.logp;
        let extra = if self.model.byte_gap == 0 {
            0
        } else {
            let bytes = self.host.bytes(&msg, body).max(1) - 1;
            u32::try_from(bytes.saturating_mul(self.model.byte_gap)).unwrap_or(u32::MAX)
        };
        self.outcome.messages += 1;
        self.host.on_send(from, to, &msg, Time(self.now));
        let end = self.now + overhead;
        self.outcome.quiescence = self.outcome.quiescence.max(Time(end));
        let port = &mut self.ports[from as usize];
        port.send_free = self.now + gap + u64::from(extra);
        self.wakes.push(port.send_free, from);
        if let Some(busy) = self.busy.get_mut(from as usize) {
            *busy = end;
            self.wakes.push(end, from);
        }
        if let Some(left) = self.quotas.get_mut(&from) {
            *left -= 1;
            if *left == 0 {
                self.quotas.remove(&from);
                self.deaths[from as usize] = self.now;
            }
        }
        if to as usize >= self.machines.len() {
            return; // To nobody: lost, as on a real network.
        }
        let arrival = end + latency + u64::from(extra);
        self.outcome.quiescence = self.outcome.quiescence.max(Time(arrival));
        let mut delivery = Delivery {
            to,
            from,
            msg,
            body,
            received: false,
            extra,
        };
        // With equal ways messages arrive in the order in which they are sent, so the
        // reception is known now and one entry of the calendar is saved.
        if self.busy.is_empty() && self.model.byte_gap == 0 && !self.host.in_turn() {
            delivery.received = true;
            if self.host.yields(&delivery.msg) {
                self.yielding.push(delivery);
            } else {
                self.receive_later(delivery);
            }
        } else {
            self.deliveries.push(arrival, delivery);
        }
    }

    fn set_timer(&mut self, who: Peer) {
        let cx = self.cx(who);
        let timer = &mut self.ports[who as usize].timer;
        if let Some(at) = self.machines[who as usize].deadline(&cx)
            && at != Time::NEVER
            && at.0 < *timer
        {
            // One that stays in the past must not stop the clock.
            *timer = at.0.max(self.now + 1);
            self.wakes.push(*timer, who);
        }
    }

    /// The largest entry of the calendar, in bytes.
    pub const EVENT_BYTES: usize = size_of::<Delivery<M::Msg>>();
}

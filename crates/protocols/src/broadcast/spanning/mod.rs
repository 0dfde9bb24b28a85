//! Independent spanning trees, grown online by corrected gossip, used by many broadcasts.
//!
//! The framework that the FFMK report builds on corrected gossip (Weinhold et al., FFMK,
//! 2020, section 3.2; Hoefler et al., Corrected gossip algorithms, IPDPS 2017): plan once,
//! run many times, and repair by taking another of the trees that are kept. How the trees
//! are kept apart, completed and changed is not published; it is defined here.
//!
//! *Independent*: K trees over the same processes with the same root, such that the ways
//! from the root to any process share no process between them (Itai and Rodeh, The
//! multi-tree approach to reliability in distributed networks, Information and
//! Computation 79, 1988). Here more holds: a process other than the root has children in
//! one tree at most, and everybody can compute in which ([`Config::inner_in`]). So f
//! failures hurt f trees at most, and who failed says which.
//!
//! *Growing.* In each tree the root and those that may have children gossip among
//! themselves until a time, then offer the tree to their neighbours on the ring until
//! enough senders were heard ([`Repair`]). The first offer makes the parent. Every offer
//! is answered, a process answers the one of its parent last, when all it sent are
//! answered (Dijkstra and Scholten, Termination detection for diffusing computations,
//! 1980): so the root knows when a tree is complete, without a bound on time.
//!
//! *Running.* A broadcast goes down one tree and is acknowledged up it. A silent child is
//! asked and, if it stays silent, dropped. If it could have children in this tree, the
//! tree is hurt: the root hears of it and sends again over a whole one, now and later.
//! Without a whole one the trees are grown again among those that are left.
//!
//! Invariants:
//! - a process offers or forwards in its own tree only, and only after it has told its
//!   parent that it joined: so a tree with a dead inner process has a live one, or the
//!   root, that waits for it;
//! - a tree is complete at the root, and not hurt, only if all who offered it live to have
//!   all their offers answered or made to a dead one that never forwarded. So in this tree
//!   nobody died as far as the correction sees, and checked correction holds its promise:
//!   all live processes are in it, whatever else failed meanwhile;
//! - a broadcast is completed only if all below the root have acknowledged it over one
//!   tree that is not hurt: then every live process has it.
//!
//! They need links that neither lose nor double, processes that stop when they fail, a
//! root that lives, and a time-out above the time from a question to its answer. With a
//! shorter one a live process may be dropped: it is taken back when it is heard, and told
//! how many broadcasts it missed.
//!
//! State: a word for each tree, and an entry for each process that an offer went to: the
//! logarithm of the processes and a few more for each tree, but as many as there are dead
//! neighbours in a row, for all of these have to be tried.

mod grow;
mod run;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use outlive_base::Time;
use outlive_base::machine::{Body, Cx, Fault, Machine, Op, Output, Peer, Ready};

pub use types::{Command, Config, Event, Msg, QUEUE_MAX, Repair, TREES_MAX, Trees, Way};

use super::side::Side;

/// How far a child is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It was offered the tree.
    Offered,
    /// It took the offer and may have children.
    Joined,
    /// It took the offer, and so did all below it.
    Complete,
    /// It has another parent.
    Declined,
    /// It is silent.
    Dead,
}

#[derive(Clone, Copy, Debug)]
struct Child {
    state: State,
    /// How many were offered the tree before: the earlier, the more it has below it.
    nth: u32,
    /// It was heard since it was asked.
    answered: bool,
}

/// Since when a process waits for its children.
#[derive(Clone, Copy, Debug, Default)]
struct Patience {
    since: Time,
    asked: bool,
}

impl Patience {
    fn end(self, config: &Config) -> Time {
        Time(self.since.0.saturating_add(config.timeout.0))
    }
}

/// A tree in which this process may have children.
#[derive(Clone, Debug)]
struct Inner {
    tree: u32,
    left: Side,
    right: Side,
    /// Offers by gossip.
    drawn: u32,
    children: BTreeMap<Peer, Child>,
    /// No more offers are sent.
    offered: bool,
    /// All were answered.
    complete: bool,
    patience: Patience,
    hurt: Trees,
}

/// A broadcast that goes through this process.
#[derive(Clone, Debug)]
struct Running {
    attempt: u32,
    number: u32,
    tree: u32,
    /// Who is told of the end; at the root itself.
    from: Peer,
    body: Option<Body>,
    /// The body is held.
    held: bool,
    /// Still to be sent to, from the end.
    to_send: Vec<Peer>,
    /// Not yet acknowledged, and whether they were heard since they were asked.
    waiting: BTreeMap<Peer, bool>,
    acknowledged: bool,
    patience: Patience,
    hurt: Trees,
}

/// What is to be done before the next message.
#[derive(Clone, Copy, Debug)]
enum Say {
    Event(Event),
    Retain(Body),
    Release(Body),
}

/// One process of the spanning trees.
#[derive(Clone, Debug, Default)]
pub struct SpanningTrees {
    /// How often the trees were grown; 0: never.
    generation: u32,
    /// When the gossip ends.
    until: Time,
    /// For each tree.
    parents: Vec<Option<Peer>>,
    /// One, or at the root all.
    inner: Vec<Inner>,
    /// Whom to tell, before all else, that this process joined its own tree.
    join: Option<Peer>,
    say: VecDeque<Say>,
    outbox: VecDeque<(Peer, Msg)>,
    running: Option<Running>,
    /// Known to be dead, not from their silence here.
    gone: BTreeSet<Peer>,
    /// The highest seen.
    attempt: u32,
    /// The highest number delivered.
    delivered: u32,
    /// Random values drawn.
    draws: u64,
    /// Whose turn it is to send at the root.
    turn: usize,
    /// The root: all trees are grown.
    planned: bool,
    /// The root: trees that are not to be used.
    hurt: Trees,
    /// The root: the tree in use.
    tree: u32,
    /// The root: broadcasts that wait.
    queue: VecDeque<Option<Body>>,
}

const fn bit(tree: u32) -> Trees {
    1 << tree
}

impl SpanningTrees {
    /// The parent in a tree of the newest generation, if there is one.
    pub fn parent(&self, tree: u32) -> Option<Peer> {
        *self.parents.get(tree as usize)?
    }

    /// The children in a tree that are taken for alive, in the order in which they were
    /// offered it: those that have most below them first.
    pub fn children(&self, tree: u32) -> Vec<Peer> {
        let inner = self.inner.iter().find(|inner| inner.tree == tree);
        let all = inner.into_iter().flat_map(|inner| &inner.children);
        let taken = all.filter(|(_, c)| matches!(c.state, State::Joined | State::Complete));
        let mut children: Vec<(u32, Peer)> = taken.map(|(&who, c)| (c.nth, who)).collect();
        children.sort_unstable();
        children.into_iter().map(|(_, who)| who).collect()
    }

    /// How often the trees were grown, as far as this process heard.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// The root: the trees that are grown and not known to be hurt; `None` while they grow.
    pub fn whole(&self, config: &Config) -> Option<Trees> {
        let all = Trees::MAX >> (TREES_MAX - config.trees);
        self.planned.then_some(all & !self.hurt)
    }

    /// When this process ends its gossip, if it takes part in it at `now`. A driver without a
    /// clock that all share may put its time there once nothing else is to be sent.
    pub fn gossip_end(&self, now: Time) -> Option<Time> {
        (!self.inner.is_empty() && now < self.until).then_some(self.until)
    }

    /// A process is known to be dead.
    fn lost(&mut self, cx: &Cx<Self>, who: Peer) {
        if !self.gone.insert(who) {
            return;
        }
        let trees = cx.config.inner_in(who).map_or(0, bit);
        if cx.me == cx.config.ring.root && self.generation > 0 {
            // It may have joined: where it did, its parent hears of it as well.
            self.hurt |= trees;
        }
        let mut waited = Vec::new();
        for inner in &mut self.inner {
            let Some(child) = inner.children.get_mut(&who) else {
                continue;
            };
            match child.state {
                State::Declined | State::Dead => continue,
                State::Joined | State::Complete => inner.hurt |= trees,
                State::Offered => {}
            }
            child.state = State::Dead;
            waited.push(inner.tree);
        }
        for tree in waited {
            self.check_complete(cx, tree);
        }
        if let Some(running) = &mut self.running
            && running.waiting.remove(&who).is_some()
        {
            running.hurt |= trees;
            running.to_send.retain(|&to| to != who);
            self.check_acknowledged(cx);
        }
    }

    fn event(&mut self, event: Event) {
        self.say.push_back(Say::Event(event));
    }

    fn child(&mut self, tree: u32, who: Peer) -> Option<(&mut Inner, Child)> {
        let inner = self.inner.iter_mut().find(|inner| inner.tree == tree)?;
        let child = *inner.children.get(&who)?;
        Some((inner, child))
    }

    /// A child was heard: it lives.
    fn heard(&mut self, tree: u32, who: Peer) {
        if let Some((inner, mut child)) = self.child(tree, who) {
            child.answered = true;
            if child.state == State::Dead && inner.complete {
                // Taken for dead too early. The next broadcast finds it again.
                child.state = State::Complete;
            }
            inner.children.insert(who, child);
        }
        if let Some(running) = &mut self.running
            && running.tree == tree
            && let Some(answered) = running.waiting.get_mut(&who)
        {
            *answered = true;
        }
    }

    /// The next message that waits. A question starts the wait for its answer.
    fn post(&mut self, now: Time) -> Option<(Peer, Msg, Option<Body>)> {
        let (to, msg) = self.outbox.pop_front()?;
        match msg {
            Msg::Ask {
                tree, attempt: 0, ..
            } => {
                let asked = self.inner.iter_mut().filter(|inner| inner.tree == tree);
                asked.for_each(|inner| inner.patience.since = now);
            }
            Msg::Ask { attempt, .. } => {
                if let Some(running) = &mut self.running
                    && running.attempt == attempt
                {
                    running.patience.since = now;
                }
            }
            _ => {}
        }
        Some((to, msg, None))
    }
}

impl AsRef<SpanningTrees> for SpanningTrees {
    fn as_ref(&self) -> &SpanningTrees {
        self
    }
}

impl Machine for SpanningTrees {
    type Config = Config;
    type Msg = Msg;
    type Command = Command;
    type Record = ();
    type Event = Event;

    fn on_message(&mut self, cx: &Cx<Self>, from: Peer, msg: Msg, body: Option<Body>) {
        if from >= cx.config.ring.processes || from == cx.me {
            return; // Not of these trees.
        }
        if let Msg::Offer {
            generation,
            tree,
            way,
            until,
        } = msg
        {
            if generation > self.generation && cx.me != cx.config.ring.root {
                self.begin(cx, generation, until);
            }
            if generation == self.generation && tree < cx.config.trees {
                self.on_offer(cx, from, tree, way);
            }
            return;
        }
        if msg.generation() != self.generation {
            return; // These trees are no more.
        }
        match msg {
            Msg::Offer { .. } => {}
            Msg::Joined { tree, .. } => self.on_answer(cx, from, tree, State::Joined, 0),
            Msg::Complete { tree, hurt, .. } => {
                self.on_answer(cx, from, tree, State::Complete, hurt);
            }
            Msg::Declined { tree, .. } => self.on_answer(cx, from, tree, State::Declined, 0),
            Msg::Data {
                attempt,
                number,
                tree,
                ..
            } => self.on_data(cx, from, (attempt, number, tree), body),
            Msg::Acknowledge { attempt, hurt, .. } => {
                self.on_acknowledge(cx, from, attempt, hurt);
            }
            Msg::Ask { tree, attempt, .. } => self.on_ask(cx, from, tree, attempt),
            Msg::Wait { tree, .. } => self.heard(tree, from),
        }
    }

    fn on_command(&mut self, cx: &Cx<Self>, command: Command) {
        match command {
            Command::Dead { peer } => return self.lost(cx, peer),
            Command::Returned { peer } => {
                self.gone.remove(&peer);
                return;
            }
            _ if cx.me != cx.config.ring.root => return,
            Command::Again if self.planned && self.running.is_none() => self.plan(cx),
            Command::Plan | Command::Again | Command::Broadcast { .. } => {}
        }
        if let Command::Broadcast { body } = command {
            if self.queue.len() >= QUEUE_MAX {
                return self.event(Event::Refused);
            }
            if let Some(body) = body {
                self.say.push_back(Say::Retain(body));
            }
            self.queue.push_back(body);
        }
        if self.generation == 0 {
            self.plan(cx);
        }
        self.next(cx);
    }

    fn on_timeout(&mut self, cx: &Cx<Self>) {
        self.growth_timeout(cx);
        self.running_timeout(cx);
    }

    fn on_done(&mut self, _: &Cx<Self>, _: Op, _: Result<(), Fault>) {}

    /// Before everything that it was decided to say; then, most urgent first: the joining,
    /// gossip, broadcasts, answers and questions, offers along the ring.
    fn poll(&mut self, cx: &Cx<Self>, ready: Ready) -> Option<Output<Self>> {
        loop {
            if let Some(say) = self.say.pop_front() {
                return Some(match say {
                    Say::Event(event) => Output::Event(event),
                    Say::Retain(body) => Output::Retain { body },
                    Say::Release(body) => Output::Release { body },
                });
            }
            if !ready.send {
                return None;
            }
            let next = self
                .joining(cx)
                .or_else(|| self.gossip(cx))
                .or_else(|| self.forward(cx))
                .or_else(|| self.post(cx.now))
                .or_else(|| self.correct(cx));
            if let Some((to, msg, body)) = next {
                return Some(Output::Send { to, msg, body });
            }
            if !self.all_offered(cx) {
                return None;
            }
        }
    }

    fn deadline(&self, cx: &Cx<Self>) -> Option<Time> {
        let gossip = self.gossip_end(cx.now);
        let growing = self.inner.iter().filter(|i| i.offered && !i.complete);
        let growing = growing.map(|inner| inner.patience.end(cx.config));
        let running = self.running.as_ref();
        let running = running.filter(|r| !r.acknowledged && r.to_send.is_empty());
        let running = running.map(|running| running.patience.end(cx.config));
        growing.chain(gossip).chain(running).min()
    }

    fn recover(_: &Cx<Self>, _: impl Iterator<Item = ()>) -> Self {
        SpanningTrees::default()
    }
}

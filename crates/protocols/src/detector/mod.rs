//! The failure detector: who is silent, and who is dead.
//!
//! Agents form a ring: each watches the next `watch` live nodes and sends
//! heartbeats to the `watch` live nodes before it and to the launcher; the
//! launcher watches all nodes. So every node has `watch` + 1 observers.
//!
//! Invariants:
//! - A node is called dead by silence only when this instance *and* another
//!   observer have both heard nothing of it for `dead_timeout`; a closed
//!   connection or an ended process is proof by itself.
//! - Time in which this instance did not run does not count as silence of
//!   others: it was paused or starved, so everyone is given that time again.
//! - Death by silence is undone by a word: a dead node is asked ([`Msg::Watch`]) each
//!   `suspect_timeout`, for a network that was parted may come together again. Its driver lets
//!   nothing through from a holder of a slot that was replaced.
//! - State is O(`watch` + dead nodes) at an agent, O(nodes) at the launcher.
//!
//! A false suspicion costs nothing: the node is asked ([`Msg::Watch`]) at every
//! interval while it is silent, and one answer clears it.

pub mod rule;
mod types;

use std::collections::{BTreeSet, VecDeque};

use outlive_base::machine::{Body, Cx, Fault, Machine, Op, Output, Peer, Ready};
use outlive_base::{NodeId, Time};

use rule::{Rule, excused};
pub use types::*;

/// The launcher as a peer.
const LAUNCHER: Peer = NodeId::LAUNCHER.0;
/// Intervals of silence after which a node is asked.
const ASK_AFTER: u64 = 3;
/// Intervals by which a wake-up may be late before it counts as a pause.
const LATE_AFTER: u64 = 1;
/// Intervals for which a witness's word holds.
const WITNESS_HOLDS: u64 = 5;

#[derive(Debug)]
struct Watched {
    node: Peer,
    heard: Time,
    suspected: bool,
    /// Another observer that finds the node silent, and when it said so.
    witness: Option<(Peer, Time)>,
}

/// One observer. See the module.
#[derive(Debug)]
pub struct Detector {
    watched: Vec<Watched>,
    dead: BTreeSet<Peer>,
    /// The next tick; `ZERO` before the first.
    tick: Time,
    /// When dead nodes are asked next.
    ask_dead: Time,
    out: VecDeque<(Peer, Msg)>,
    events: VecDeque<Event>,
}

type C<'a> = Cx<'a, Detector>;

impl Detector {
    /// An observer that has just started: everyone was heard now.
    pub fn new(cx: &Cx<Self>) -> Detector {
        let mut detector = Detector {
            watched: Vec::new(),
            dead: BTreeSet::new(),
            tick: cx.now,
            ask_dead: cx.now,
            out: VecDeque::new(),
            events: VecDeque::new(),
        };
        detector.choose(cx);
        detector
    }

    /// True if the node was found or said to be dead and has not joined again.
    pub fn is_dead(&self, node: NodeId) -> bool {
        self.dead.contains(&node.0)
    }

    /// The live nodes that follow `me` (or come before it), nearest first.
    fn ring(&self, cx: &C, backwards: bool, count: u32) -> Vec<Peer> {
        let nodes = cx.config.nodes;
        let step = |k: u32| {
            if backwards {
                (cx.me + nodes - k) % nodes
            } else {
                (cx.me + k) % nodes
            }
        };
        let live = (1..nodes)
            .map(step)
            .filter(|node| !self.dead.contains(node));
        live.take(count as usize).collect()
    }

    /// Whom this instance watches, given who is dead; keeps what it knows of them.
    fn choose(&mut self, cx: &C) {
        let nodes: Vec<Peer> = if cx.me == LAUNCHER {
            (0..cx.config.nodes)
                .filter(|node| !self.dead.contains(node))
                .collect()
        } else {
            self.ring(cx, false, cx.config.watch)
        };
        let mut old = core::mem::take(&mut self.watched);
        for node in nodes {
            let known = old.iter().position(|watched| watched.node == node);
            self.watched.push(match known {
                Some(at) => old.swap_remove(at),
                None => Watched {
                    node,
                    heard: cx.now,
                    suspected: false,
                    witness: None,
                },
            });
        }
    }

    /// Gives everyone the time in which this instance did not run.
    fn wake(&mut self, cx: &C) {
        let late = cx.now.since(self.tick);
        if late > Time(cx.config.interval.0 * LATE_AFTER) {
            for watched in &mut self.watched {
                watched.heard = excused(watched.heard, late, cx.now);
                watched.witness = None;
            }
            self.tick = cx.now;
        }
    }

    fn heard(&mut self, cx: &C, node: Peer) {
        if self.dead.remove(&node) {
            self.watched.retain(|watched| watched.node != node);
            self.choose(cx);
            return self.events.push_back(Event::Cleared { node: NodeId(node) });
        }
        if let Some(watched) = self.watched.iter_mut().find(|watched| watched.node == node) {
            watched.heard = cx.now;
            watched.witness = None;
            if core::mem::take(&mut watched.suspected) {
                self.events.push_back(Event::Cleared { node: NodeId(node) });
            }
        }
    }

    fn dies(&mut self, cx: &C, node: Peer, by_witness: Option<Peer>, say: bool) {
        if node >= cx.config.nodes || node == cx.me || !self.dead.insert(node) {
            return;
        }
        self.ask_dead = cx.now + cx.config.suspect_timeout;
        if say {
            let by_witness = by_witness.map(NodeId);
            self.events.push_back(Event::Dead {
                node: NodeId(node),
                by_witness,
            });
        }
        self.choose(cx);
    }

    /// The others who may watch `node`: the launcher and the nodes before it.
    fn observers(&self, cx: &C, node: Peer) -> Vec<Peer> {
        let nodes = cx.config.nodes;
        let before = (1..nodes)
            .map(|k| (node + nodes - k) % nodes)
            .filter(|other| !self.dead.contains(other))
            .take(cx.config.watch as usize);
        before
            .chain([LAUNCHER])
            .filter(|&other| other != cx.me)
            .collect()
    }

    fn heartbeats(&mut self, cx: &C) {
        if cx.me != LAUNCHER {
            for to in self.ring(cx, true, cx.config.watch) {
                self.out.push_back((to, Msg::Heartbeat));
            }
            self.out.push_back((LAUNCHER, Msg::Heartbeat));
        }
    }

    fn judge(&mut self, cx: &C) {
        let config = cx.config;
        let rule = Rule {
            suspect: config.suspect_timeout,
            dead: config.dead_timeout,
        };
        let holds = Time(config.interval.0 * WITNESS_HOLDS);
        let mut dead = Vec::new();
        let mut silent = Vec::new();
        for watched in &mut self.watched {
            let silent_for = cx.now.since(watched.heard);
            let node = NodeId(watched.node);
            if silent_for >= Time(config.interval.0 * ASK_AFTER) {
                self.out.push_back((watched.node, Msg::Watch));
            }
            if rule.suspects(silent_for) && !watched.suspected {
                watched.suspected = true;
                self.events.push_back(Event::Suspected { node, silent_for });
            }
            if rule.is_witness(silent_for) {
                silent.push(watched.node);
            }
            let fresh = |&(_, at): &(Peer, Time)| cx.now.since(at) <= holds;
            let witness = watched.witness.filter(fresh);
            if rule.is_dead_to_peer(silent_for, witness.is_some()) {
                dead.extend(witness.map(|(witness, _)| (watched.node, witness)));
            }
        }
        for node in silent {
            for other in self.observers(cx, node) {
                self.out.push_back((other, Msg::Silent { node }));
            }
        }
        for (node, witness) in dead {
            self.dies(cx, node, Some(witness), true);
        }
    }
}

impl Machine for Detector {
    type Config = Config;
    type Msg = Msg;
    type Command = Command;
    type Record = Record;
    type Event = Event;

    fn on_message(&mut self, cx: &Cx<Self>, from: Peer, msg: Msg, _body: Option<Body>) {
        self.wake(cx);
        self.heard(cx, from);
        match msg {
            Msg::Heartbeat => {}
            Msg::Watch => self.out.push_back((from, Msg::Heartbeat)),
            Msg::Silent { node } if node != from => {
                let found = self.watched.iter_mut().find(|watched| watched.node == node);
                if let Some(watched) = found {
                    watched.witness = Some((from, cx.now));
                }
            }
            Msg::Silent { .. } => {}
        }
    }

    fn on_command(&mut self, cx: &Cx<Self>, command: Command) {
        self.wake(cx);
        match command {
            Command::Closed { node } => self.dies(cx, node.0, None, true),
            Command::Lost { node } => self.dies(cx, node.0, None, false),
            Command::Heard { node } => self.heard(cx, node.0),
            Command::Joined { node } => {
                self.dead.remove(&node.0);
                self.watched.retain(|watched| watched.node != node.0);
                self.choose(cx);
            }
        }
    }

    fn on_timeout(&mut self, cx: &Cx<Self>) {
        self.wake(cx);
        if cx.now < self.tick {
            return;
        }
        self.tick = cx.now + cx.config.interval;
        self.heartbeats(cx);
        self.judge(cx);
        if cx.now >= self.ask_dead {
            self.ask_dead = cx.now + cx.config.suspect_timeout;
            let asked = self.dead.iter().map(|node| (*node, Msg::Watch));
            self.out.extend(asked);
        }
    }

    fn on_done(&mut self, _cx: &Cx<Self>, _op: Op, _result: Result<(), Fault>) {}

    fn poll(&mut self, _cx: &Cx<Self>, ready: Ready) -> Option<Output<Self>> {
        if let Some(event) = self.events.pop_front() {
            return Some(Output::Event(event));
        }
        if !ready.send {
            // Old heartbeats are worth nothing: keep a bounded number.
            self.out.truncate(64);
            return None;
        }
        let (to, msg) = self.out.pop_front()?;
        Some(Output::Send {
            to,
            msg,
            body: None,
        })
    }

    fn deadline(&self, _cx: &Cx<Self>) -> Option<Time> {
        Some(self.tick)
    }

    fn recover(cx: &Cx<Self>, _log: impl Iterator<Item = Record>) -> Self {
        Detector::new(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bounded() {
        assert!(size_of::<Msg>() <= outlive_base::machine::MESSAGE_BYTES_MAX);
        assert!(size_of::<Event>() <= 24);
    }

    #[test]
    fn a_closed_connection_is_death_at_once_and_moves_the_ring() {
        let config = Config {
            nodes: 5,
            ..Config::default()
        };
        let cx = Cx {
            me: 0,
            now: Time::ZERO,
            config: &config,
            seed: 0,
        };
        let mut detector = Detector::new(&cx);
        detector.on_command(&cx, Command::Closed { node: NodeId(1) });
        detector.on_command(&cx, Command::Closed { node: NodeId(1) });
        let dead = Event::Dead {
            node: NodeId(1),
            by_witness: None,
        };
        assert!(matches!(detector.poll(&cx, Ready::ALL), Some(Output::Event(e)) if e == dead));
        assert!(detector.poll(&cx, Ready::ALL).is_none(), "said once");
        assert_eq!(
            detector.watched.iter().map(|w| w.node).collect::<Vec<_>>(),
            [2, 3]
        );
        detector.on_command(&cx, Command::Joined { node: NodeId(1) });
        assert!(detector.poll(&cx, Ready::ALL).is_none());
        assert_eq!(
            detector.watched.iter().map(|w| w.node).collect::<Vec<_>>(),
            [1, 2]
        );
    }

    #[test]
    fn a_parted_network_that_comes_together_again_has_no_dead() {
        let config = Config {
            nodes: 3,
            ..Config::default()
        };
        let at = |now| Cx {
            me: 0,
            now,
            config: &config,
            seed: 0,
        };
        let mut detector = Detector::new(&at(Time::ZERO));
        detector.on_command(&at(Time::ZERO), Command::Lost { node: NodeId(1) });
        let mut asked = Vec::new();
        let mut now = Time::ZERO;
        while asked.is_empty() && now < Time::from_secs(5) {
            now = now.max(detector.deadline(&at(now)).unwrap()) + Time::from_ms(1);
            detector.on_timeout(&at(now));
            while let Some(output) = detector.poll(&at(now), Ready::ALL) {
                match output {
                    Output::Send { to: 1, msg, .. } => asked.push(msg),
                    Output::Event(Event::Suspected { .. }) | Output::Send { .. } => {}
                    _ => panic!("nobody else said anything"),
                }
            }
        }
        assert_eq!(asked, [Msg::Watch]);
        // It answers, as everyone does who is asked.
        detector.on_message(&at(now), 1, Msg::Heartbeat, None);
        assert!(!detector.is_dead(NodeId(1)));
        let cleared = Event::Cleared { node: NodeId(1) };
        assert!(
            matches!(detector.poll(&at(now), Ready::ALL), Some(Output::Event(e)) if e == cleared)
        );
    }
}

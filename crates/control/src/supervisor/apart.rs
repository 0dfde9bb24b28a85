//! Nodes that do not hear each other while the launcher hears both.
//!
//! Neither is dead, and others may reach both. Ranks that speak over the cut link wait until
//! their MPI library gives up its connection, a quarter of an hour by the defaults of TCP. So
//! - it is told when an agent has missed a peer for as long as a dead node is missed;
//! - one of the two is given up for a spare when its ranks seem to wait: no rank of the job
//!   has offered a newer version for [`Settings::apart_ms`] and for twice as long as ranks
//!   ever took from one to the next in this incarnation.
//!
//! It is not given up where that would lose more than it wins: without a spare, or when no
//! level in use outlives a node. A link that was cut for a shorter time costs nothing, and a
//! job whose ranks do not use it goes on (P4).
//!
//! An opening needs all nodes, so one that is cut off from its peers holds all of them up. When
//! that is overdue it is given up alone: the others lose no memory with it (P9).
//!
//! [`Settings::apart_ms`]: super::Settings::apart_ms

use std::collections::BTreeMap;

use outlive_base::{Code, Entity, Error, NodeId, Time};

use super::faults::Found;
use super::{Site, Storage, Supervisor};

/// Heartbeats by which a witness's word, said at each, may be late.
const WORD_HOLDS: u64 = 8;

/// How the ranks come forward in this incarnation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// When a rank last offered a newer version than any before, or all could begin to.
    at: Time,
    /// The longest time from one to the next.
    longest: Time,
}

impl Pace {
    pub const fn new(now: Time) -> Pace {
        Pace {
            at: now,
            longest: Time::ZERO,
        }
    }

    /// A newer version was offered.
    pub fn step(&mut self, now: Time) {
        self.longest = self.longest.max(now.since(self.at));
        self.at = now;
    }
}

/// One that misses a node, as long as it says so.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missed {
    since: Time,
    /// Its last word; [`Time::NEVER`]: it holds until it is taken back.
    last: Time,
}

impl Supervisor {
    /// An agent has missed a peer for as long as a dead node is missed. It says so at each
    /// heartbeat until it hears it, or, if others miss it too, once.
    pub(super) fn on_missed(&mut self, now: Time, witness: NodeId, peer: NodeId, once: bool) {
        let Some(slot) = self.slots.get_mut(&peer).filter(|slot| slot.is_up()) else {
            return;
        };
        let holds = Time::from_ms(self.set.bounds.heartbeat_ms * WORD_HOLDS);
        let fresh = Missed {
            since: now,
            last: now,
        };
        let missed = slot.missed.entry(witness).or_insert(fresh);
        if now > missed.last + holds {
            *missed = fresh;
        }
        missed.last = if once {
            Time::NEVER
        } else {
            missed.last.max(now)
        };
    }

    /// Tells who misses whom, and gives one of them up when ranks wait for it.
    pub(super) fn check_apart(&mut self, now: Time) {
        if !self.is_alive() {
            return;
        }
        let pairs = self.apart(now);
        let rule = self.rule();
        for (witness, peer, since) in &pairs {
            // One that all its peers miss is told of otherwise, a moment later.
            if rule.suspects(now.since(*since)) && self.slots[peer].dead_by.is_empty() {
                self.tell_apart(*witness, *peer);
            }
        }
        let Some(bound) = self.set.apart_ms.filter(|_| self.is_running()) else {
            return;
        };
        let bound = Time::from_ms(bound).max(self.pace.longest + self.pace.longest);
        let over = |since: Time| now.since(since.max(self.pace.at)) >= bound;
        let pairs: Vec<_> = pairs.into_iter().filter(|pair| over(pair.2)).collect();
        let outlives = |level: &crate::orders::LevelSetting| level.level.outlives_a_node();
        if self.spares_left == 0 || !self.set.levels.iter().any(outlives) {
            return;
        }
        if let Some((node, other, since)) = worst(&pairs) {
            self.part_with(now, node, other, since);
        }
    }

    /// Who misses whom since when, of those that the launcher hears.
    fn apart(&self, now: Time) -> Vec<(NodeId, NodeId, Time)> {
        let holds = Time::from_ms(self.set.bounds.heartbeat_ms * WORD_HOLDS);
        let rule = self.rule();
        let heard = |node: &NodeId| {
            let slot = self.slots.get(node);
            slot.is_some_and(|slot| slot.is_up() && !rule.suspects(now.since(slot.last_heard)))
        };
        let mut pairs = Vec::new();
        let missed = self
            .slots
            .iter()
            .filter(|(_, slot)| !slot.missed.is_empty());
        for (peer, slot) in missed.filter(|(peer, _)| heard(peer)) {
            for (witness, missed) in &slot.missed {
                let says = missed.last == Time::NEVER || now.since(missed.last) <= holds;
                if says && heard(witness) {
                    pairs.push((*witness, *peer, missed.since));
                }
            }
        }
        pairs
    }

    /// The node that is parted from most others, which the launcher hears too.
    pub(super) fn parted_from_most(&self, now: Time) -> Option<NodeId> {
        worst(&self.apart(now)).map(|(node, ..)| node)
    }

    fn tell_apart(&mut self, witness: NodeId, peer: NodeId) {
        let (a, b) = (witness.min(peer), witness.max(peer));
        let error = Error::new(
            Code::NodeSilent,
            Entity::Node(b.0),
            format!(
                "{a} and it do not reach each other, the launcher reaches both; ranks may wait"
            ),
            "check the network between the two; checkpoints there may be aborted",
        );
        if !self.was_told(None, &error) {
            self.warn(error);
        }
    }

    fn part_with(&mut self, now: Time, node: NodeId, other: NodeId, since: Time) {
        let slot = &self.slots[&node];
        let found = Found {
            place: Site::Node(node, slot.epoch),
            cause: format!(
                "it and {other} have not reached each other for {:.0} s more than a dead \
                 node is missed, and the ranks wait; a spare takes its place",
                now.since(since).as_secs()
            ),
            ended: None,
            base: Some(since),
            injected: false,
            suspected: None,
        };
        self.lose_slot(now, node, Storage::Empty);
        self.found(now, found);
    }
}

/// Of the nodes that are parted from others the one that is parted from most, the last of
/// them if there are several; one from which it is parted, and since when.
fn worst(pairs: &[(NodeId, NodeId, Time)]) -> Option<(NodeId, NodeId, Time)> {
    let mut parted: BTreeMap<NodeId, BTreeMap<NodeId, Time>> = BTreeMap::new();
    for (a, b, since) in pairs {
        for (one, other) in [(a, b), (b, a)] {
            let known = parted.entry(*one).or_default().entry(*other);
            known
                .and_modify(|known| *known = (*known).min(*since))
                .or_insert(*since);
        }
    }
    let (node, others) = parted
        .into_iter()
        .max_by_key(|(node, others)| (others.len(), *node))?;
    let (other, since) = others.into_iter().next()?;
    Some((node, other, since))
}

//! Who is silent, and when silence is death.
//!
//! The launcher hears the heartbeats of every agent, asks for its status each `probe_ms`, and so
//! is a witness of its own. What it calls dead is [`Rule::is_dead_to_launcher`], with
//! [`silence_ms`](crate::orders::Bounds::silence_ms), a little less than `dead_ms`, by when the
//! replacement is to have begun.
//!
//! A node that peers miss while the launcher hears it is cut off from them, not
//! dead: the job goes on and a warning says what protection is missing (P4); what follows
//! when ranks wait for it, `apart.rs` decides.
//! Time during which the launcher itself did not run does not count as silence.

use crate::orders::Order;
use outlive_base::{Code, Entity, Error, Incarnation, NodeId, Time};
use outlive_protocols::detector::rule::{Rule, Words, excused};

use super::faults::Found;
use super::{Event, NodeSlot, Phase, Site, Storage, Supervisor};

impl Supervisor {
    /// The launcher woke late: nobody is to blame but itself.
    pub(super) fn excuse_own_stall(&mut self, now: Time) {
        let expected = Time::from_ms(self.set.look_ms * 2);
        let gap = now.since(self.last_seen);
        if gap > expected {
            for slot in self.slots.values_mut() {
                slot.last_heard = excused(slot.last_heard, gap, now);
            }
        }
        self.last_seen = now;
    }

    pub(super) fn check_silence(&mut self, now: Time) {
        if !self.is_alive() {
            return;
        }
        // Looked at often, and rarely true of any.
        let rule = self.rule();
        let concerns = |slot: &NodeSlot| {
            let silent = now.since(slot.last_heard);
            let new = rule.suspects(silent) && slot.suspected.is_none();
            slot.is_up() && (new || self.is_dead(slot, silent))
        };
        let found = self.slots.iter().filter(|(_, slot)| concerns(slot));
        let found: Vec<NodeId> = found.map(|(node, _)| *node).collect();
        for node in found {
            let slot = &self.slots[&node];
            if !slot.is_up() {
                continue;
            }
            let silent = now.since(slot.last_heard);
            if rule.suspects(silent) && slot.suspected.is_none() {
                if let Some(slot) = self.slots.get_mut(&node) {
                    slot.suspected = Some(now);
                }
                let silent_ms = silent.as_ms() as u64;
                self.tell(Event::Suspected { node, silent_ms });
            }
            if self.is_dead(&self.slots[&node], silent) {
                self.bury(now, node, silent);
            }
        }
    }

    /// When the next node that is silent now will be suspected or given up.
    pub(super) fn next_silence(&self) -> Time {
        let rule = self.rule();
        let up = self.slots.values().filter(|slot| slot.is_up());
        let next = |slot: &NodeSlot| rule.next(slot.last_heard, self.last_seen);
        up.filter_map(next).min().unwrap_or(Time::NEVER)
    }

    /// The bounds by which silence is judged.
    pub(super) fn rule(&self) -> Rule {
        Rule {
            suspect: Time::from_ms(self.set.bounds.suspect_ms),
            dead: Time::from_ms(self.set.bounds.silence_ms()),
        }
    }

    fn is_dead(&self, slot: &NodeSlot, silent: Time) -> bool {
        let words = Words {
            missed: !slot.suspected_by.is_empty() || self.set.nodes == 1,
            dead: !slot.dead_by.is_empty(),
        };
        self.rule().is_dead_to_launcher(silent, words)
    }

    fn bury(&mut self, now: Time, node: NodeId, silent: Time) {
        let slot = &self.slots[&node];
        let (epoch, hit, last_heard) = (slot.epoch, slot.hit, slot.last_heard);
        let suspected = slot.suspected;
        let witnesses = slot.suspected_by.len();
        let storage = match self.set.storage_stays && !slot.wiped {
            true => Storage::Keep,
            false => Storage::Empty,
        };
        self.lose_slot(now, node, storage);
        let found = Found {
            place: Site::Node(node, epoch),
            cause: format!(
                "silent for {:.0} ms, missed by {}; fenced",
                silent.as_ms(),
                outlive_base::count(witnesses as u64, "peer")
            ),
            ended: None,
            base: hit.or(Some(last_heard)),
            injected: hit.is_some(),
            suspected,
        };
        self.found(now, found);
    }

    /// An agent asks for the second witness. A node that the launcher has not heard
    /// for `suspect_ms` either is silent for both.
    pub(super) fn on_silent_for(&mut self, now: Time, witness: NodeId, peer: NodeId) {
        let rule = self.rule();
        let Some(slot) = self.slots.get_mut(&peer) else {
            return;
        };
        slot.suspected_by.insert(witness);
        if slot.is_up() && rule.suspects(now.since(slot.last_heard)) {
            self.order(witness, Order::Silent { node: peer });
        }
    }

    pub(super) fn on_suspected_by(&mut self, witness: NodeId, peer: NodeId) {
        let Some(slot) = self.slots.get_mut(&peer) else {
            return;
        };
        let first = slot.suspected_by.insert(witness);
        let heard = slot.is_up() && slot.suspected.is_none();
        if first && heard {
            tracing::info!(%witness, %peer, "a peer misses a node that the launcher hears");
        }
    }

    /// Whom an agent missed that is gone says nothing any more.
    pub(super) fn forget_words_of(&mut self, witness: NodeId) {
        for slot in self.slots.values_mut() {
            slot.suspected_by.remove(&witness);
            slot.dead_by.remove(&witness);
            slot.missed.remove(&witness);
        }
    }

    pub(super) fn on_link_down(&mut self, node: NodeId, epoch: u64) {
        if let Some(slot) = self.slots.get_mut(&node) {
            slot.told = None;
        }
        // Not death: the keeper may start the agent again. Silence is counted on.
        tracing::info!(%node, epoch, "connection lost");
    }

    pub(super) fn probe(&mut self, now: Time) {
        let due = self.last_probe + self.probe_every();
        if now < due || matches!(self.phase, Phase::Done) {
            return;
        }
        self.last_probe = now;
        self.report.scrub = self.scrubs.entry();
        if matches!(self.phase, Phase::Finishing { asked: true, .. }) {
            self.order_finish();
        }
        let up: Vec<NodeId> = self.up().collect();
        for node in up {
            self.repeat_injections(node);
            self.order(node, Order::Status);
            self.remind_of_ranks(node);
            self.warn_cut_off(now, node);
        }
    }

    /// A node without ranks learns their number from here alone; at the end too, if its agent was
    /// started anew: the others wait for its part of what is not decided yet.
    pub(super) fn remind_of_ranks(&mut self, node: NodeId) {
        let known = self.is_running() || matches!(self.phase, Phase::Finishing { .. });
        if let (true, Some(ranks)) = (known, self.ranks_total)
            && self.slots[&node].ranks.is_empty()
        {
            let incarnation = Incarnation(self.last_incarnation);
            self.order(node, Order::Ranks { incarnation, ranks });
        }
    }

    /// Agents that know no job yet have no heartbeat: they speak when they are asked.
    pub(super) fn probe_every(&self) -> Time {
        let ms = match self.phase {
            Phase::Assembling { .. } => self.set.probe_ms.min(self.set.bounds.suspect_ms / 3),
            _ => self.set.probe_ms,
        };
        Time::from_ms(ms.max(1))
    }

    fn warn_cut_off(&mut self, now: Time, node: NodeId) {
        let rule = self.rule();
        let Some(slot) = self.slots.get_mut(&node) else {
            return;
        };
        if slot.dead_by.is_empty() || rule.suspects(now.since(slot.last_heard)) {
            slot.cut_off = None;
            return;
        }
        // One that was frozen is heard here first, by its peers a moment later.
        let since = *slot.cut_off.get_or_insert(now);
        if rule.suspects(now.since(since)) {
            let error = Error::new(
                Code::NodeSilent,
                Entity::Node(node.0),
                "its peers cannot reach it, the launcher can; the job goes on",
                "check the network between the nodes: checkpoints there may be aborted",
            );
            if !self.was_told(None, &error) {
                self.warn(error);
            }
        }
    }
}

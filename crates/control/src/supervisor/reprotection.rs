//! How far nodes have made again what lost nodes had kept.
//!
//! Invariants: a node is told as lacking something until it says that it does not, or is replaced itself;
//! nothing is decided by it.

use outlive_base::{Level, NodeId, Time, Version};

use super::{Event, Supervisor};
use crate::orders::Order;
use crate::reprotection::{
    Reprotecting, ReprotectingNode, Reprotection, ReprotectionEntry, endangered,
};

impl Supervisor {
    /// A node says how far it is: as it begins, with each copy, and each time it is asked how it is.
    pub(super) fn on_reprotection(&mut self, now: Time, node: NodeId, said: Reprotection) {
        let Some(slot) = self.slots.get_mut(&node) else {
            return;
        };
        let is_done = said.is_done();
        let before = match is_done {
            true => slot.reprotection.take(),
            false => slot.reprotection.replace(said.clone()),
        };
        // Another agent of the node begins to count anew, and is the same story.
        let open = self
            .report
            .reprotections
            .iter()
            .rposition(|entry| entry.node == node.0 && entry.incarnation == said.incarnation.0);
        let at_seconds = now.as_secs() - said.lasted_ms as f64 / 1e3;
        let is_new = open.is_none();
        if is_new && said.copies_total == 0 {
            // It had kept nothing.
            return;
        }
        let at = open.unwrap_or(self.report.reprotections.len());
        if is_new {
            self.report.reprotections.push(ReprotectionEntry {
                node: node.0,
                incarnation: said.incarnation.0,
                version: said.version.0,
                at_seconds: at_seconds.max(0.0),
                ..ReprotectionEntry::default()
            });
        }
        let entry = &mut self.report.reprotections[at];
        if entry.seconds.is_some() {
            // It was told.
            return;
        }
        entry.note(&said);
        if is_done {
            entry.seconds = Some((now.as_secs() - entry.at_seconds).max(0.0));
            let ms = entry.seconds.unwrap_or(0.0) * 1e3;
            self.tell(Event::Reprotected {
                node,
                version: said.version,
                copies: said.copies,
                bytes: said.bytes,
                ms,
            });
        } else if is_new && before.is_none() {
            let not_survived = self.not_survived();
            self.tell(Event::Reprotecting {
                node,
                version: said.version,
                copies: said.copies_total,
                bytes: said.bytes_total,
                not_survived,
            });
        }
    }

    /// An agent that knows of nothing to be made again was started anew if one before it did.
    pub(super) fn remind_of_lost(&mut self, node: NodeId, incarnation: u32) {
        let lacks = self
            .slots
            .get(&node)
            .is_some_and(|slot| slot.reprotection.is_some());
        if lacks && self.is_running() && incarnation == self.last_incarnation {
            self.order(node, Order::LookForLost);
        }
    }

    /// What all nodes have said; `None` if nothing is lacking.
    pub(super) fn reprotecting(&self) -> Option<Reprotecting> {
        let each = || {
            self.slots
                .iter()
                .filter_map(|(node, slot)| Some((node, slot.reprotection.as_ref()?)))
        };
        let newest = each().map(|(_, it)| it.version).max()?;
        let sum = |of: fn(&Reprotection) -> u64| each().map(|(_, it)| of(it)).sum();
        let nodes = each().map(|(node, it)| ReprotectingNode {
            node: node.0,
            copies: it.copies,
            copies_total: it.copies_total,
            bytes: it.bytes,
            bytes_total: it.bytes_total,
        });
        Some(Reprotecting {
            version: newest.0,
            lasted_ms: each().map(|(_, it)| it.lasted_ms).max().unwrap_or(0),
            copies: sum(|it| it.copies),
            copies_total: sum(|it| it.copies_total),
            bytes: sum(|it| it.bytes),
            bytes_total: sum(|it| it.bytes_total),
            not_survived: self.not_survived().into_iter().map(|it| it.0).collect(),
            nodes: nodes.collect(),
        })
    }

    /// The nodes whose loss would not be survived now, with what is lacking: not by the version that was
    /// restored, nor by a newer one.
    fn not_survived(&self) -> Vec<NodeId> {
        let slots = self.slots.iter();
        let said: Vec<(NodeId, &Reprotection)> = slots
            .filter_map(|(node, slot)| Some((*node, slot.reprotection.as_ref()?)))
            .collect();
        let Some(version) = said.iter().map(|(_, it)| it.version).max() else {
            return Vec::new();
        };
        // What the incarnation before had made is forgotten when the command is started.
        let stable = self.is_running().then(|| self.stable_here.newest());
        let newer =
            |(level, stable): (&Level, &Version)| level.outlives_a_node() && *stable > version;
        if stable.iter().flatten().any(newer) {
            return Vec::new();
        }
        // Of an earlier version only what it says of this one would count.
        let of_it: Vec<_> = said
            .into_iter()
            .filter(|(_, it)| it.version == version)
            .collect();
        endangered(&of_it).into_iter().collect()
    }
}

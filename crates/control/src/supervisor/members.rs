//! What the agents are told of each other.

use std::collections::BTreeMap;

use outlive_base::NodeId;

use super::{NodeSlot, Supervisor};
use crate::orders::{JobConfig, Member, Order};

impl Supervisor {
    /// What all agents must know now.
    pub(super) fn job_config(&self) -> JobConfig {
        let members = self.slots.iter();
        let members = members.filter_map(|(node, slot)| self.member(*node, slot));
        JobConfig {
            revision: self.changes,
            members: members.collect(),
            levels: self.set.levels.clone(),
            policy: self.set.policy,
            bounds: self.set.bounds,
            keep: self.set.keep,
            partners: self.set.partners,
            scrub: self.set.scrub,
            transfer: self.set.transfer,
            refused: self.set.refused,
        }
    }

    fn member(&self, node: NodeId, slot: &NodeSlot) -> Option<Member> {
        Some(Member {
            node,
            epoch: slot.epoch,
            address: slot.address?,
            domain: self.set.domain_of(node),
        })
    }

    /// All of it for a node that may have heard some of it.
    pub(super) fn configure(&mut self, node: NodeId) {
        if let Some(slot) = self.slots.get_mut(&node) {
            slot.told = Some(self.changes);
        }
        let config = self.job_config();
        self.order(node, Order::Configure(config));
    }

    /// Tells each agent what it does not know yet. All that there is goes to one that has said
    /// hello since; of the others each would be told the same of all others again, which would
    /// cost the square of their number whenever one is replaced.
    pub(super) fn configure_all(&mut self) {
        let config = self.job_config();
        let (changes, up) = (self.changes, self.up().collect::<Vec<NodeId>>());
        let mut since: BTreeMap<u64, Vec<Member>> = BTreeMap::new();
        for node in up {
            let told = self
                .slots
                .get_mut(&node)
                .and_then(|it| it.told.replace(changes));
            let order = match told {
                None => Order::Configure(config.clone()),
                Some(told) => {
                    let changed = since
                        .entry(told)
                        .or_insert_with(|| self.changed_since(told));
                    Order::Members {
                        revision: changes,
                        changed: changed.clone(),
                    }
                }
            };
            self.order(node, order);
        }
    }

    /// Tells an agent on a new connection of the members that have changed since what it has heard of;
    /// of none if that is all. So thousands that call again at once cost nothing.
    pub(super) fn catch_up(&mut self, node: NodeId, heard: u64) {
        let revision = self.changes;
        if let Some(slot) = self.slots.get_mut(&node) {
            slot.told = Some(revision);
        }
        let changed = self.changed_since(heard);
        if !changed.is_empty() {
            self.order(node, Order::Members { revision, changed });
        }
    }

    fn changed_since(&self, told: u64) -> Vec<Member> {
        let changed = self.slots.iter().filter(|(_, slot)| slot.changed > told);
        let member = |(node, slot): (&NodeId, &NodeSlot)| self.member(*node, slot);
        changed.filter_map(member).collect()
    }
}

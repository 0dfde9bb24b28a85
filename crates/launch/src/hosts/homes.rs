//! Under which switch, or in which other domain, each slot was when the run began. The
//! failure domains of a run are made of that once, for all agents must agree on them: a slot
//! whose host is replaced goes to one of the same domain, if there is one that is free.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::NodeId;

use super::source::Host;

/// The domain of each slot when the run began.
#[derive(Debug, Default)]
pub(super) struct Homes {
    domains: BTreeMap<NodeId, Option<String>>,
    /// Hosts of which it was said that they lie elsewhere.
    said: BTreeSet<usize>,
}

impl Homes {
    /// Of slots that were placed on these hosts.
    pub fn of(hosts: &[Host], placed: &BTreeMap<NodeId, usize>) -> Homes {
        let domain = |(node, at): (&NodeId, &usize)| (*node, hosts[*at].domain.clone());
        Homes {
            domains: placed.iter().map(domain).collect(),
            said: BTreeSet::new(),
        }
    }

    /// In the order of the slots.
    pub fn domains(&self) -> Vec<Option<String>> {
        self.domains.values().cloned().collect()
    }

    /// They mean nothing in this run.
    pub fn forget(&mut self) {
        self.domains.clear();
    }

    fn of_slot(&self, node: NodeId) -> Option<&String> {
        self.domains.get(&node)?.as_ref()
    }

    /// The host that a slot takes of those that are free: the next of its domain, else the next
    /// of the list.
    pub fn next(
        &self,
        node: NodeId,
        hosts: &[Host],
        free: impl Fn(&usize) -> bool,
    ) -> Option<usize> {
        let home = self.of_slot(node);
        let near = |at: &usize| home.is_some() && hosts[*at].domain.as_ref() == home;
        let all = || (0..hosts.len()).filter(&free);
        all().find(near).or_else(|| all().next())
    }

    /// What is to be said, once, of a slot that lives in another domain than the one to which
    /// it counts.
    pub fn astray(&mut self, node: NodeId, at: usize, host: &Host) -> Option<String> {
        let (home, here) = (self.domains.get(&node)?, &host.domain);
        if home == here || !self.said.insert(at) {
            return None;
        }
        let name = |domain: &Option<String>| match domain {
            Some(name) => format!("under {name}"),
            None => "under no switch of the job's".to_owned(),
        };
        Some(format!(
            "node {} is on {} now, {}, and counts as one {} until the next run",
            node.0,
            host.name,
            name(here),
            name(home)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(domains: &[&str]) -> Vec<Host> {
        let host = |(at, domain): (usize, &&str)| Host {
            name: format!("n{at}"),
            slots: None,
            domain: (*domain != "-").then(|| (*domain).to_owned()),
        };
        domains.iter().enumerate().map(host).collect()
    }

    fn homes(hosts: &[Host], slots: u32) -> Homes {
        let placed = (0..slots).map(|slot| (NodeId(slot), slot as usize));
        Homes::of(hosts, &placed.collect())
    }

    #[test]
    fn a_spare_of_the_same_switch_goes_before_the_next_of_the_list() {
        let hosts = hosts(&["a", "b", "-", "b", "a"]);
        let mut homes = homes(&hosts, 3);
        let next = |homes: &Homes, slot, free: &[usize]| {
            homes.next(NodeId(slot), &hosts, |at| free.contains(at))
        };
        assert_eq!(next(&homes, 0, &[3, 4]), Some(4));
        assert_eq!(next(&homes, 1, &[3, 4]), Some(3));
        assert_eq!(next(&homes, 0, &[3]), Some(3));
        assert_eq!(next(&homes, 2, &[3, 4]), Some(3), "no switch is no home");
        assert_eq!(next(&homes, 0, &[]), None);
        homes.forget();
        assert_eq!(next(&homes, 0, &[3, 4]), Some(3));
    }

    #[test]
    fn a_slot_in_another_domain_is_told_of_once() {
        let hosts = hosts(&["a", "b", "-", "b", "a"]);
        let mut homes = homes(&hosts, 3);
        assert_eq!(homes.domains().len(), 3);
        assert_eq!(homes.astray(NodeId(0), 4, &hosts[4]), None);
        let said = homes.astray(NodeId(0), 3, &hosts[3]).unwrap();
        assert!(
            said.contains("on n3 now, under b, and counts as one under a"),
            "{said}"
        );
        assert_eq!(homes.astray(NodeId(0), 3, &hosts[3]), None);
        let said = homes.astray(NodeId(2), 4, &hosts[4]).unwrap();
        assert!(said.contains("counts as one under no switch"), "{said}");
        homes.forget();
        assert_eq!(homes.astray(NodeId(1), 4, &hosts[4]), None);
    }
}

//! Which host is which slot's.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::{Code, Entity, Error, NodeId, Result};

use super::source::Host;

/// A host for each slot: the one of the run before where it is there still, else the next
/// of the list.
pub(super) fn place(
    hosts: &[Host],
    nodes: u32,
    before: &[String],
) -> Result<BTreeMap<NodeId, usize>> {
    if hosts.len() < nodes as usize {
        return Err(Error::new(
            Code::NoSpare,
            Entity::Option("hosts".to_owned()),
            format!(
                "{} for {nodes} nodes",
                outlive_base::count(hosts.len() as u64, "host")
            ),
            "give more hosts, or fewer --spares",
        ));
    }
    let mut placed = BTreeMap::new();
    let mut taken = BTreeSet::new();
    let known = |node: u32| {
        let name = before.get(node as usize)?;
        hosts.iter().position(|host| host.name == *name)
    };
    for node in 0..nodes {
        if let Some(at) = known(node).filter(|at| taken.insert(*at)) {
            placed.insert(NodeId(node), at);
        }
    }
    for node in (0..nodes).map(NodeId) {
        if !placed.contains_key(&node)
            && let Some(at) = (0..hosts.len()).find(|at| taken.insert(*at))
        {
            placed.insert(node, at);
        }
    }
    Ok(placed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(hosts: &[&str], nodes: u32, before: &[&str]) -> Vec<usize> {
        let host = |name: &&str| Host {
            name: (*name).to_owned(),
            slots: None,
            domain: None,
        };
        let hosts: Vec<Host> = hosts.iter().map(host).collect();
        let before: Vec<String> = before.iter().map(|name| (*name).to_owned()).collect();
        place(&hosts, nodes, &before)
            .unwrap()
            .into_values()
            .collect()
    }

    #[test]
    fn a_slot_stays_on_its_host_and_others_take_the_next_of_the_list() {
        assert_eq!(placed(&["a", "b", "c"], 2, &[]), [0, 1]);
        assert_eq!(placed(&["c", "b", "a"], 2, &["a", "b"]), [2, 1]);
        // One is no more in the list, and one was a spare before.
        assert_eq!(placed(&["b", "c", "d"], 2, &["a", "c"]), [0, 1]);
        assert_eq!(placed(&["a", "b", "d"], 3, &["x", "d", "a"]), [1, 2, 0]);
        // What was written down may say anything.
        assert_eq!(placed(&["a", "b"], 2, &["a", "a", "a"]), [0, 1]);
    }

    #[test]
    fn fewer_hosts_than_slots_are_refused() {
        let error = place(&[], 1, &[]).unwrap_err();
        assert_eq!(error.code(), Code::NoSpare);
    }
}

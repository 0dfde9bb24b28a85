//! Which rank lives where, and which node keeps whose copies: computed here and nowhere
//! else, so that a launcher, its agents and a rank that looks for its agent agree.

use crate::{NodeId, Rank};

/// On which of `nodes` nodes rank `rank` of `ranks` lives: in blocks, by number.
pub const fn node_of(rank: Rank, ranks: u32, nodes: u32) -> NodeId {
    let ranks = if ranks == 0 { 1 } else { ranks as u64 };
    NodeId((rank.0 as u64 * nodes as u64 / ranks) as u32)
}

/// The ranks that live on `node`: as many steps as there are, however many the job has.
pub fn ranks_of(node: NodeId, ranks: u32, nodes: u32) -> impl Iterator<Item = Rank> {
    let (ranks, nodes) = (u64::from(ranks), u64::from(nodes.max(1)));
    let first = |node: u64| (node * ranks).div_ceil(nodes).min(ranks) as u32;
    let node = u64::from(node.0);
    (first(node)..first(node + 1)).map(Rank)
}

/// Where a node's second copy goes: to the next node of another failure domain, if there is
/// one. `domains[n]` is the domain of node `n`.
pub fn partner_of(node: NodeId, domains: &[u32]) -> Option<NodeId> {
    let domain = domains.get(node.0 as usize)?;
    let count = domains.len() as u32;
    (1..count)
        .map(|step| (node.0 + step) % count)
        .find(|other| domains[*other as usize] != *domain)
        .map(NodeId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_dealt_in_blocks_and_every_rank_has_one_node() {
        for (ranks, nodes) in [(8, 4), (7, 3), (1, 1), (2, 5), (100, 7)] {
            let mut all: Vec<Rank> = (0..nodes)
                .flat_map(|node| ranks_of(NodeId(node), ranks, nodes).collect::<Vec<_>>())
                .collect();
            all.sort();
            assert_eq!(all, (0..ranks).map(Rank).collect::<Vec<_>>());
            for node in (0..nodes).map(NodeId) {
                assert!(ranks_of(node, ranks, nodes).all(|r| node_of(r, ranks, nodes) == node));
            }
        }
        // As many as a rank may claim: found without counting through all of them.
        let last = NodeId(1023);
        assert_eq!(
            ranks_of(last, u32::MAX, 1024).next(),
            Some(Rank(u32::MAX - (1 << 22) + 1))
        );
        assert_eq!(
            ranks_of(last, u32::MAX, 1024).size_hint().1,
            Some((1 << 22) - 1)
        );
        assert_eq!(ranks_of(NodeId(0), 0, 4).next(), None);
        assert_eq!(node_of(Rank(5), 8, 4), NodeId(2));
    }

    #[test]
    fn a_partner_is_outside_of_the_own_failure_domain() {
        let partners = |domains: &[u32]| -> Vec<Option<u32>> {
            let nodes = (0..domains.len() as u32).map(NodeId);
            nodes
                .map(|node| partner_of(node, domains).map(|partner| partner.0))
                .collect()
        };
        assert_eq!(partners(&[0, 1, 2]), [Some(1), Some(2), Some(0)]);
        assert_eq!(
            partners(&[0, 0, 1, 1]),
            [Some(2), Some(2), Some(0), Some(0)]
        );
        assert_eq!(partners(&[5, 5]), [None, None], "nowhere is outside");
        assert_eq!(partner_of(NodeId(2), &[0, 1]), None, "no node of this job");
    }
}

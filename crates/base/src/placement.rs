//! Which rank lives where, and which node keeps whose copies: computed here and nowhere
//! else, so that a launcher, its agents and a rank that looks for its agent agree.

use std::collections::BTreeMap;

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

/// Where a node's second copy goes: to a node of another failure domain, if there is one.
/// `domains[n]` is the domain of node `n`.
///
/// No node keeps the copies of two others, unless one domain has more than half of all nodes;
/// then its copies are dealt over the others. Where each node is a domain of its own, the
/// partner is the next node.
pub fn partner_of(node: NodeId, domains: &[u32]) -> Option<NodeId> {
    partner_in(0, node, domains)
}

/// [`partner_of`] in a turn of its own: in each all of this holds, and in two that follow each other no node
/// has the same partner, as far as there are others.
pub fn partner_in(turn: u32, node: NodeId, domains: &[u32]) -> Option<NodeId> {
    let (domain, turn) = (*domains.get(node.0 as usize)?, turn as usize);
    if domains.len() > 1 && domains.iter().zip(0..).all(|(domain, own)| *domain == own) {
        // As usual: each is its own. The rule below says the same of these, and sorts them.
        let further = 1 + turn % (domains.len() - 1);
        return Some(NodeId(((node.0 as usize + further) % domains.len()) as u32));
    }
    // Of each domain: its first node, and how many it has.
    let mut known: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    for (at, domain) in domains.iter().enumerate() {
        known.entry(*domain).or_insert((at, 0)).1 += 1;
    }
    let (largest, size) = known
        .iter()
        .map(|(domain, (_, size))| (*domain, *size))
        .max_by_key(|(_, size)| *size)?;
    let numbers = 0..domains.len();
    let place = |of: &[usize]| of.iter().position(|at| *at == node.0 as usize);
    let of = if 2 * size <= domains.len() {
        // Domain after domain: so many places further on, none of the same domain is met, nor so
        // many before the own place is reached again.
        let mut order: Vec<usize> = numbers.collect();
        order.sort_by_key(|at| (known[&domains[*at]].0, *at));
        let further = size + turn % (domains.len() - 2 * size + 1);
        order[(place(&order)? + further) % domains.len()]
    } else {
        let (large, others): (Vec<usize>, Vec<usize>) =
            numbers.partition(|at| domains[*at] == largest);
        match domain == largest {
            true => *others.get((place(&large)? + turn) % others.len().max(1))?,
            false => large[(place(&others)? + turn) % large.len()],
        }
    };
    Some(NodeId(of as u32))
}

#[cfg(test)]
mod tests {
    use crate::rng::Sequence;

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
            [Some(2), Some(3), Some(0), Some(1)]
        );
        assert_eq!(
            partners(&[7, 3, 7, 3, 1]),
            [Some(1), Some(4), Some(3), Some(0), Some(2)]
        );
        assert_eq!(
            partners(&[0, 0, 0, 9, 0, 8]),
            [Some(3), Some(5), Some(3), Some(0), Some(5), Some(1)]
        );
        assert_eq!(partners(&[5, 5]), [None, None], "nowhere is outside");
        assert_eq!(partner_of(NodeId(2), &[0, 1]), None, "no node of this job");
    }

    /// A rack's copies on one node of the next would fill that node and bind all to its speed.
    #[test]
    fn no_node_keeps_more_copies_than_the_domains_force_on_it() {
        for seed in crate::seeds!(400) {
            let mut random = Sequence::new(seed, 0);
            let nodes = 1 + random.below(40) as u32;
            let of = 1 + random.below(u64::from(nodes));
            let domains: Vec<u32> = (0..nodes).map(|_| random.below(of) as u32).collect();
            let size = |domain: u32| domains.iter().filter(|it| **it == domain).count();
            let largest = domains
                .iter()
                .map(|domain| size(*domain))
                .max()
                .unwrap_or(0);
            let others = domains.len() - largest;
            let turn = random.below(50) as u32;
            let mut kept = vec![0; domains.len()];
            for node in 0..nodes {
                let partner = partner_in(turn, NodeId(node), &domains).map(|it| it.0 as usize);
                assert_eq!(partner.is_some(), others > 0, "{domains:?}");
                let Some(partner) = partner else { continue };
                assert_ne!(domains[partner], domains[node as usize], "{domains:?}");
                kept[partner] += 1;
            }
            let most = kept.into_iter().max().unwrap_or(0);
            assert!(
                most <= largest.div_ceil(others.max(1)).max(1),
                "{domains:?}"
            );
        }
    }

    #[test]
    fn partners_of_turns_that_follow_each_other_differ_where_there_are_others() {
        for seed in crate::seeds!(200) {
            let mut random = Sequence::new(seed, 1);
            let nodes = 3 + random.below(20) as u32;
            let of = 1 + random.below(u64::from(nodes));
            let domains: Vec<u32> = match random.chance(300_000) {
                true => (0..nodes).collect(),
                false => (0..nodes).map(|_| random.below(of) as u32).collect(),
            };
            let node = NodeId(random.below(u64::from(nodes)) as u32);
            let partner = |turn| partner_in(turn, node, &domains);
            assert_eq!(partner(0), partner_of(node, &domains));
            let turns = || (0..nodes).map(partner);
            let all: std::collections::BTreeSet<_> = turns().collect();
            if all.len() > 1 {
                let pairs = turns().zip(turns().skip(1));
                assert!(
                    pairs.into_iter().all(|(one, next)| one != next),
                    "{domains:?}"
                );
            }
        }
    }
}

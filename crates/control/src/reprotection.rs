//! Redundancy that was lost with a node, and is made again on the one that took its place: what that node
//! says of it, and whose loss a version would not survive meanwhile.
//!
//! Invariants: each node speaks of what it keeps itself, so that two never speak of one copy; what is
//! said of a version's ways to survive is what the records name; whose loss is not survived is asked of
//! the schemes ([`Group::terms`]), as recovery asks them.

use std::collections::BTreeSet;

use outlive_base::{Incarnation, Level, NodeId, Time, Version};
use outlive_ledger::scheme::{Group, Piece};
use serde::{Deserialize, Serialize};

/// A copy that the node is to keep and does not have yet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Lost {
    /// Its own container.
    Own,
    /// The container of this other node.
    Kept(NodeId),
    /// Its parity of this level.
    Parity(Level),
}

/// How the nodes that depend on what was lost can survive it, at the version that was restored.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ways {
    /// The nodes of which all ways are named: those that depend on the node.
    pub nodes: BTreeSet<NodeId>,
    /// Whose second container lies at which node.
    pub copies: BTreeSet<(NodeId, NodeId)>,
    /// The groups that these nodes are members of.
    pub groups: Vec<Group>,
    /// All nodes' containers lie in shared storage.
    pub shared: bool,
}

/// What a node that took the place of a lost one says of the copies that it is to keep.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reprotection {
    /// The incarnation with which it took the place.
    pub incarnation: Incarnation,
    /// The version that was restored then.
    pub version: Version,
    /// For how long it has been under way, or took, in milliseconds.
    pub lasted_ms: u64,
    /// Copies of all versions that are there again.
    pub copies: u64,
    /// Copies that are to be there.
    pub copies_total: u64,
    /// Bytes that are there again, also of copies under way.
    pub bytes: u64,
    /// Bytes that are to be there.
    pub bytes_total: u64,
    /// What is not there yet of the version that was restored.
    pub lost: BTreeSet<Lost>,
    /// How those that depend on it can survive.
    pub ways: Ways,
}

impl Reprotection {
    /// True if all is there again.
    pub const fn is_done(&self) -> bool {
        self.copies == self.copies_total
    }
}

/// The nodes whose loss a version would not survive, by what each node says of it that lacks something.
pub fn endangered(said: &[(NodeId, &Reprotection)]) -> BTreeSet<NodeId> {
    if said.iter().any(|(_, it)| it.ways.shared) {
        return BTreeSet::new();
    }
    let is_lost = |node: NodeId, lost: Lost| {
        let mut all = said.iter();
        all.any(|(at, it)| *at == node && it.lost.contains(&lost))
    };
    let copies = || said.iter().flat_map(|(_, it)| it.ways.copies.iter());
    let groups = || said.iter().flat_map(|(_, it)| it.ways.groups.iter());
    let survives = |node: NodeId| {
        let mut held = copies().filter(|(owner, _)| *owner == node).peekable();
        let mut in_groups = groups().filter(|it| it.members.contains(&node)).peekable();
        // Of one that no level protected from its loss nothing is claimed.
        if held.peek().is_none() && in_groups.peek().is_none() {
            return true;
        }
        let has_copy = |holder: NodeId| holder != node && !is_lost(holder, Lost::Kept(node));
        held.any(|(_, holder)| has_copy(*holder))
            || in_groups.any(|group| {
                let have = |piece: Piece| {
                    let lost = match piece {
                        Piece::Whole(member) => is_lost(member, Lost::Own),
                        Piece::Parity(member) => is_lost(member, Lost::Parity(group.level)),
                    };
                    group.is_beside(piece, node) && (!lost || group.is_served(piece))
                };
                group.terms(Piece::Whole(node), have).is_some()
            })
    };
    let all = said.iter().flat_map(|(_, it)| it.ways.nodes.iter());
    all.copied().filter(|node| !survives(*node)).collect()
}

/// How far it is on all nodes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Reprotecting {
    /// The version that was restored.
    pub version: u64,
    /// For how long it has been under way, in milliseconds.
    pub lasted_ms: u64,
    /// Copies that are there again.
    pub copies: u64,
    /// Copies that are to be there.
    pub copies_total: u64,
    /// Bytes that are there again.
    pub bytes: u64,
    /// Bytes that are to be there.
    pub bytes_total: u64,
    /// The nodes whose loss that version would not survive now, while no newer one would.
    pub not_survived: Vec<u32>,
    /// Each node that lacks something.
    pub nodes: Vec<ReprotectingNode>,
}

/// How far it is on a node.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ReprotectingNode {
    /// The node.
    pub node: u32,
    /// Copies that are there again.
    pub copies: u64,
    /// Copies that are to be there.
    pub copies_total: u64,
    /// Bytes that are there again.
    pub bytes: u64,
    /// Bytes that are to be there.
    pub bytes_total: u64,
}

/// What a report says of it: of one node that took the place of a lost one.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ReprotectionEntry {
    /// The node.
    pub node: u32,
    /// The incarnation with which it took the place.
    pub incarnation: u32,
    /// The version that was restored then.
    pub version: u64,
    /// Seconds since the run began when it began.
    pub at_seconds: f64,
    /// How long it took; `None`: it was not done when the node was lost, or the job ended.
    pub seconds: Option<f64>,
    /// Copies of all versions that are there again.
    pub copies: u64,
    /// Copies that were to be there.
    pub copies_total: u64,
    /// Bytes that are there again.
    pub bytes: u64,
    /// Bytes that were to be there.
    pub bytes_total: u64,
}

impl ReprotectionEntry {
    /// Takes over what the node says.
    pub fn note(&mut self, said: &Reprotection) {
        self.copies = said.copies;
        self.copies_total = said.copies_total;
        self.bytes = said.bytes;
        self.bytes_total = said.bytes_total;
        self.seconds = said
            .is_done()
            .then(|| Time::from_ms(said.lasted_ms).as_secs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u32) -> NodeId {
        NodeId(number)
    }

    fn group(level: Level, members: &[u32]) -> Group {
        Group {
            level,
            members: members.iter().copied().map(NodeId).collect(),
            lengths: vec![1 << 20; members.len()],
        }
    }

    fn said(lost: &[Lost], copies: &[(u32, u32)], groups: &[Group]) -> Reprotection {
        let owners = copies.iter().map(|(owner, _)| node(*owner));
        let members = groups.iter().flat_map(|it| it.members.iter().copied());
        Reprotection {
            lost: lost.iter().copied().collect(),
            ways: Ways {
                nodes: owners.chain(members).collect(),
                copies: copies
                    .iter()
                    .map(|(it, at)| (node(*it), node(*at)))
                    .collect(),
                groups: groups.to_vec(),
                shared: false,
            },
            ..Reprotection::default()
        }
    }

    fn found(said: &[(u32, &Reprotection)]) -> Vec<u32> {
        let said: Vec<_> = said.iter().map(|(at, it)| (node(*at), *it)).collect();
        endangered(&said).into_iter().map(|node| node.0).collect()
    }

    #[test]
    fn with_partners_the_one_whose_copy_was_lost_is_in_danger() {
        // Node 2 was lost: it has the copy of node 1, and its own lies at node 3.
        let ways = [(1, 2), (2, 3)];
        let all = said(&[Lost::Own, Lost::Kept(node(1))], &ways, &[]);
        assert_eq!(found(&[(2, &all)]), [1]);
        let own = said(&[Lost::Own], &ways, &[]);
        assert!(found(&[(2, &own)]).is_empty());
        let mut shared = all;
        shared.ways.shared = true;
        assert!(found(&[(2, &shared)]).is_empty());
    }

    #[test]
    fn of_a_group_of_xor_all_others_are_until_the_lost_one_has_its_own() {
        let xor = Level::xor(4).unwrap();
        let groups = [group(xor, &[0, 1, 2, 3])];
        let all = said(&[Lost::Own, Lost::Parity(xor)], &[], &groups);
        assert_eq!(found(&[(2, &all)]), [0, 1, 3]);
        let parity = said(&[Lost::Parity(xor)], &[], &groups);
        assert_eq!(
            found(&[(2, &parity)]),
            [0, 1, 3],
            "a segment of each lies in it"
        );
        assert!(found(&[(2, &said(&[], &[], &groups))]).is_empty());
    }

    #[test]
    fn a_code_with_two_parities_survives_one_more_and_not_two() {
        let rs = Level::rs(3, 2).unwrap();
        let groups = [group(rs, &[0, 1, 2, 3, 4])];
        let all = said(&[Lost::Own, Lost::Parity(rs)], &[], &groups);
        assert!(found(&[(2, &all)]).is_empty());
        // Two nodes at once: each by itself would do no harm.
        assert_eq!(found(&[(2, &all), (4, &all)]), [0, 1, 3]);
    }

    #[test]
    fn another_level_makes_up_for_it() {
        let xor = Level::xor(3).unwrap();
        let groups = [group(xor, &[0, 1, 5])];
        let both = said(&[Lost::Kept(node(1))], &[(1, 2)], &groups);
        assert!(found(&[(2, &both)]).is_empty(), "its group is whole");
        // Whom no level protects is no news.
        let mut none = said(&[Lost::Own], &[], &[]);
        none.ways.nodes = [node(7)].into();
        assert!(found(&[(2, &none)]).is_empty());
    }
}

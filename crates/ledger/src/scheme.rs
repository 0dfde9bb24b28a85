//! Redundancy schemes: how groups are laid, what each member stores, and what can be made of
//! what is left. A scheme is a file that implements [`Layout`] and a row of `layout`.
//!
//! Invariants: recovery, rehearsal and the judges of both ask one question, [`Group::terms`];
//! encoding is the same question about a parity. Everything is a function of the arguments.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::level::{Scheme, StoreKind};
use outlive_base::rng::draw;
use outlive_base::{Code, Entity, Error, Level, NodeId, Result};

pub use crate::pieces::{Group, Layout, Piece, Term};
use crate::record::Part;
use crate::reed_solomon::ReedSolomon;
use crate::served::Served;
use crate::xor::Xor;

/// The layout of a level; `None` for one without groups. To add one, add a row.
fn layout(level: Level) -> Option<&'static dyn Layout> {
    match (level.scheme(), level.store()) {
        (Scheme::Xor, StoreKind::Server) => Some(&Served),
        (Scheme::Xor, _) => Some(&Xor),
        (Scheme::ReedSolomon, _) => Some(&ReedSolomon),
        (Scheme::Single | Scheme::Copies, _) => None,
    }
}

impl Group {
    /// The group of a node in a commit at `level`: of its members' parts.
    pub fn of(level: Level, groups: &[Vec<NodeId>], parts: &[Part], node: NodeId) -> Option<Group> {
        let members = groups.iter().find(|members| members.contains(&node))?;
        let length = |member: &NodeId| {
            let part = parts.iter().find(|part| part.node == *member);
            part.map(|part| part.length)
        };
        Some(Group {
            level,
            members: members.clone(),
            lengths: members.iter().map(length).collect::<Option<_>>()?,
        })
    }

    /// Bytes of each parity of the group.
    pub fn parity_bytes(&self) -> u64 {
        layout(self.level).map_or(0, |it| it.parity_bytes(self))
    }

    /// The sum that gives a piece, of pieces that `have`; `None` if these are not enough. What
    /// is wanted itself is not asked for.
    pub fn terms(&self, want: Piece, have: impl Fn(Piece) -> bool) -> Option<Vec<Term>> {
        layout(self.level)?.terms(self, want, &have)
    }

    /// Which of its members have lost more than it tolerates, in words; `None` if that is not so.
    pub fn lacks(&self, have: impl Fn(Piece) -> bool) -> Option<String> {
        let whole = |node: &NodeId| {
            let pieces = [Piece::Whole(*node), Piece::Parity(*node)];
            let mut own = pieces.into_iter().filter(|piece| !self.is_served(*piece));
            own.all(&have)
        };
        let gone = self.members.iter().filter(|node| !whole(node));
        let gone: Vec<String> = gone.map(ToString::to_string).collect();
        let served = self.level.store() == StoreKind::Server;
        let first = self.members.first().copied();
        let parity = !served || first.is_none_or(|node| have(Piece::Parity(node)));
        let tolerated = match parity {
            true => usize::from(self.level.protection().m),
            false => 0,
        };
        (gone.len() > tolerated).then(|| {
            let why = match parity {
                true => format!("and it tolerates {tolerated}"),
                false => "and the memory server gave no parity of theirs".to_owned(),
            };
            format!(
                "{} of the {} nodes of a group of {} have lost what they stored ({}), {why}",
                gone.len(),
                self.members.len(),
                self.level,
                gone.join(", ")
            )
        })
    }

    /// True if a member has a parity of its own.
    pub fn has_parity(&self, node: NodeId) -> bool {
        match self.level.store() {
            StoreKind::Server => self.members.first() == Some(&node),
            _ => self.level.members().is_some() && self.members.contains(&node),
        }
    }

    /// True if a piece lies at the memory server, and no node is needed to read it.
    pub fn is_served(&self, piece: Piece) -> bool {
        self.level.store() == StoreKind::Server && matches!(piece, Piece::Parity(_))
    }

    /// True if a piece may be used to make up for what a node has lost: of what it stored itself
    /// nothing is left.
    pub fn is_beside(&self, piece: Piece, lost: NodeId) -> bool {
        piece.node() != lost || self.is_served(piece)
    }

    /// True if the container of each member is there or can be made.
    pub fn survives(&self, have: impl Fn(Piece) -> bool) -> bool {
        let whole = |member: &NodeId| {
            let piece = Piece::Whole(*member);
            have(piece) || self.terms(piece, &have).is_some()
        };
        self.members.iter().all(whole)
    }
}

/// The groups of a level over nodes of these failure domains: at most one node of a domain in
/// each. Empty for a level without groups.
///
/// # Errors
/// [`Code::Config`] if there are too few nodes, or too many in one domain.
pub fn groups(level: Level, domains: &[u32]) -> Result<Vec<Vec<NodeId>>> {
    groups_in(0, level, domains)
}

/// The same in a turn: in each the nodes are dealt otherwise to as many groups of the same sizes, so that
/// nodes that share a group at one version do not at most others. Turn 0 is that of [`groups`].
///
/// # Errors
/// As above, whatever the turn.
pub fn groups_in(turn: u32, level: Level, domains: &[u32]) -> Result<Vec<Vec<NodeId>>> {
    let Some(members) = level.members() else {
        return Ok(Vec::new());
    };
    let (members, nodes) = (usize::from(members), domains.len());
    let refused = |reason: String, remedy: &str| {
        let entity = Entity::Option("levels".into());
        Err(Error::new(Code::Config, entity, reason, remedy))
    };
    let count = nodes / members;
    if count == 0 {
        let reason = format!("{level} needs at least {members} nodes, the job has {nodes}");
        return refused(reason, "take smaller groups or more nodes");
    }
    let distinct: BTreeSet<u32> = domains.iter().copied().collect();
    let size = |domain: u32| domains.iter().filter(|it| **it == domain).count();
    let largest = distinct.into_iter().map(size).max().unwrap_or(0);
    if largest > count {
        let reason = format!(
            "a failure domain has {largest} nodes, and {nodes} nodes make {} of {level}: two of \
             one group would fail together",
            outlive_base::count(count as u64, "group")
        );
        return refused(reason, "take smaller groups, or the level partner");
    }
    let mut first: BTreeMap<u32, usize> = BTreeMap::new();
    for (node, domain) in domains.iter().enumerate() {
        first.entry(*domain).or_insert(node);
    }
    let mut order: Vec<usize> = (0..nodes).collect();
    order.sort_by_key(|&node| (first.get(&domains[node]), node));
    let mut groups = match turn {
        0 => dealt_in_order(&order, count),
        turn => dealt_by_chance(u64::from(turn), &order, domains, count),
    };
    groups.iter_mut().for_each(|group| group.sort());
    Ok(groups)
}

/// Neighbours in a domain go to groups that follow each other.
fn dealt_in_order(order: &[usize], count: usize) -> Vec<Vec<NodeId>> {
    let mut groups = vec![Vec::new(); count];
    for (nth, node) in order.iter().enumerate() {
        groups[nth % count].push(NodeId(*node as u32));
    }
    groups
}

/// Round by round each group gets one node, in an order that is drawn; a group that has one of a domain
/// waits for the next.
fn dealt_by_chance(turn: u64, order: &[usize], domains: &[u32], count: usize) -> Vec<Vec<NodeId>> {
    let mut groups = vec![Vec::new(); count];
    let (mut round, mut left) = (0, Vec::new());
    for domain in order.chunk_by(|one, other| domains[*one] == domains[*other]) {
        let mut taken = BTreeSet::new();
        for node in domain {
            if left.is_empty() {
                round += 1;
                left = (0..count).collect();
                left.sort_by_key(|group| draw(turn, round, *group as u64));
            }
            // A domain has no more nodes than there are groups: one is left.
            let at = left.iter().rposition(|group| !taken.contains(group));
            let group = left.remove(at.unwrap_or(0));
            taken.insert(group);
            groups[group].push(NodeId(*node as u32));
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(level: Level, domains: &[u32]) -> Vec<Vec<u32>> {
        let groups = groups(level, domains).unwrap().into_iter();
        groups
            .map(|group| group.iter().map(|node| node.0).collect())
            .collect()
    }

    #[test]
    fn groups_have_at_least_the_members_that_were_asked_for() {
        let xor = |members| Level::xor(members).unwrap();
        assert_eq!(of(xor(4), &[0, 1, 2, 3]), [[0, 1, 2, 3]]);
        assert_eq!(of(xor(3), &[0, 1, 2, 3, 4]), [[0, 1, 2, 3, 4]]);
        assert_eq!(of(xor(3), &[0, 1, 2, 3, 4, 5]), [[0, 2, 4], [1, 3, 5]]);
        assert_eq!(of(Level::PARTNER, &[0, 1]), Vec::<Vec<u32>>::new());
        let few = groups(xor(4), &[0, 1, 2]).unwrap_err();
        assert!(few.reason().contains("at least 4 nodes"), "{few}");
    }

    #[test]
    fn no_group_has_two_nodes_of_a_domain() {
        let xor = Level::xor(3).unwrap();
        assert_eq!(of(xor, &[7, 7, 8, 8, 9, 9]), [[0, 2, 4], [1, 3, 5]]);
        assert_eq!(of(xor, &[1, 2, 3, 1, 2, 3]), [[0, 1, 2], [3, 4, 5]]);
        let crowded = groups(xor, &[1, 1, 2, 3]).unwrap_err();
        assert_eq!(crowded.code(), Code::Config);
        assert!(
            crowded.reason().contains("a failure domain has 2 nodes"),
            "{crowded}"
        );
        for nodes in 3..40u32 {
            for size in 1..5 {
                let domains: Vec<u32> = (0..nodes).map(|node| node / size).collect();
                let turn = nodes * size % 7;
                let Ok(groups) = groups_in(turn, xor, &domains) else {
                    continue;
                };
                let mut all: Vec<NodeId> = groups.concat();
                all.sort();
                assert_eq!(all, (0..nodes).map(NodeId).collect::<Vec<_>>());
                for group in groups {
                    let domain = |node: &NodeId| domains[node.0 as usize];
                    let distinct: BTreeSet<u32> = group.iter().map(domain).collect();
                    assert_eq!(distinct.len(), group.len());
                    assert!(group.len() >= 3);
                }
            }
        }
    }

    #[test]
    fn in_each_turn_groups_are_as_large_and_keep_domains_apart() {
        for (nodes, size, members) in [(10, 1, 3), (16, 2, 4), (24, 3, 5), (40, 4, 8), (61, 2, 6)] {
            let level = Level::xor(members).unwrap();
            let domains: Vec<u32> = (0..nodes).map(|node| node / size).collect();
            let sizes = |groups: &[Vec<NodeId>]| {
                let mut sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
                sizes.sort_unstable();
                sizes
            };
            let usual = sizes(&groups(level, &domains).unwrap());
            for turn in 0..64 {
                let groups = groups_in(turn, level, &domains).unwrap();
                assert_eq!(sizes(&groups), usual, "turn {turn}");
                let mut all: Vec<NodeId> = groups.concat();
                all.sort();
                assert_eq!(all, (0..nodes).map(NodeId).collect::<Vec<_>>());
                for group in &groups {
                    let domain = |node: &NodeId| domains[node.0 as usize];
                    let distinct: BTreeSet<u32> = group.iter().map(domain).collect();
                    assert_eq!(distinct.len(), group.len(), "turn {turn}: {group:?}");
                }
                assert_eq!(groups, groups_in(turn, level, &domains).unwrap());
            }
        }
    }

    /// Two that share a group in one turn do in another no more often than any two.
    #[test]
    fn who_shares_a_group_in_one_turn_seldom_does_in_the_next() {
        let (nodes, members, turns) = (32, 4, 200);
        let domains: Vec<u32> = (0..nodes).collect();
        let level = Level::xor(members).unwrap();
        let pairs = |turn| -> BTreeSet<(NodeId, NodeId)> {
            let groups = groups_in(turn, level, &domains).unwrap();
            let of = |group: Vec<NodeId>| {
                let others = group.clone();
                let pair = move |one: NodeId| others.clone().into_iter().map(move |it| (one, it));
                group.into_iter().flat_map(pair)
            };
            groups
                .into_iter()
                .flat_map(of)
                .filter(|(one, it)| one < it)
                .collect()
        };
        let again = |turn| pairs(turn).intersection(&pairs(turn + 1)).count();
        let met: usize = (0..turns).map(again).sum();
        let all = turns as usize * pairs(0).len();
        // By chance 3 of the 31 others.
        let share = met as f64 / all as f64;
        assert!((0.07..0.13).contains(&share), "{share}");
    }
}

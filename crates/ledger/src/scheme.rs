//! Redundancy schemes: how groups are laid, what each member stores, and what can be made of
//! what is left. A scheme is a file that implements [`Layout`] and a row of `layout`.
//!
//! Invariants: recovery, rehearsal and the judges of both ask one question, [`Group::terms`];
//! encoding is the same question about a parity. Everything is a function of the arguments.

use std::collections::BTreeSet;

use outlive_base::level::{Scheme, StoreKind};
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
    // Neighbours in a domain go to groups that follow each other.
    let mut order: Vec<usize> = (0..nodes).collect();
    order.sort_by_key(|&node| {
        let first = domains.iter().position(|it| *it == domains[node]);
        (first, node)
    });
    let mut groups = vec![Vec::new(); count];
    for (nth, node) in order.into_iter().enumerate() {
        groups[nth % count].push(NodeId(node as u32));
    }
    groups.iter_mut().for_each(|group| group.sort());
    Ok(groups)
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
                let Ok(groups) = groups(xor, &domains) else {
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
}

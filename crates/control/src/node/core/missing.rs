//! Why nothing can be restored, in words.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::level::StoreKind;
use outlive_base::{Incarnation, Level, NodeId, Survives, Version};
use outlive_ledger::Part;
use outlive_ledger::scheme::Piece;
use outlive_protocols::commit::Pieces;

use super::contents::Contents;
use crate::orders::Rejected;

/// What is known of it.
#[derive(Default)]
pub struct Missing<'a> {
    /// Nodes of the job.
    pub nodes: u32,
    /// Those that were replaced.
    pub lost: &'a [NodeId],
    /// A node of whose part no copy was found.
    pub culprit: Option<NodeId>,
    /// What was tried.
    pub rejected: &'a [Rejected],
    /// What there is of a version that its groups do not give back.
    pub pieces: Option<&'a (Incarnation, Version, Pieces)>,
}

impl Missing<'_> {
    /// Why the newest committed version cannot be rebuilt: which groups have lost more than their
    /// level tolerates, else where its parts lay and which of the nodes were lost; and what would
    /// have survived that.
    pub fn told(&self, contents: &Contents) -> String {
        let Some((source, version)) = contents.versions().into_iter().next_back() else {
            return "no record of a committed version is left".to_owned();
        };
        let levels = contents.levels_of(source, version);
        let named: Vec<&str> = levels.iter().map(|level| level.name()).collect();
        let mut said = format!(
            "version {} ({}) cannot be rebuilt",
            version.0,
            named.join(", ")
        );
        let groups: Vec<String> = levels
            .iter()
            .flat_map(|level| self.short_groups(contents, (source, version), *level))
            .collect();
        let mut reasons = groups.clone();
        reasons.extend(self.places(contents, (source, version), &levels, !groups.is_empty()));
        reasons.extend(self.unserved((source, version), &levels));
        if !reasons.is_empty() {
            said += &format!(": {}", reasons.join("; "));
        }
        if let Some(newest) = self.rejected.first() {
            said += &format!("; {}", newest.reason);
        }
        let outside = |level: &Level| level.survives() == Survives::AllNodes;
        if !self.lost.is_empty() && !levels.iter().any(outside) {
            let pairs = levels.iter().any(|level| level.outlives_a_node()) || self.lost.len() > 1;
            said += match pairs {
                true => "; the level shared survives the loss of any number of nodes",
                false => "; the levels partner and shared survive the loss of a node",
            };
        }
        said
    }

    /// The groups of a level of which more is gone than it tolerates.
    fn short_groups(
        &self,
        contents: &Contents,
        (source, version): (Incarnation, Version),
        level: Level,
    ) -> Vec<String> {
        let known = self.pieces.filter(|it| (it.0, it.1) == (source, version));
        let Some((_, _, pieces)) = known.filter(|_| level.members().is_some()) else {
            return Vec::new();
        };
        let have = |piece| match piece {
            Piece::Whole(node) => pieces.whole.contains(&node),
            Piece::Parity(node) => pieces.parity.contains(&(level, node)),
        };
        let mut seen = BTreeSet::new();
        let mut told = Vec::new();
        for node in (0..self.nodes).map(NodeId) {
            let Some((group, _)) = contents.group(source, version, level, node) else {
                continue;
            };
            if let Some(lacks) = group.lacks(have)
                && seen.insert(group.members.clone())
            {
                told.push(lacks);
            }
        }
        told
    }

    /// That a memory server has nothing of a version that it was to protect.
    fn unserved(
        &self,
        at: (Incarnation, Version),
        levels: &BTreeSet<Level>,
    ) -> impl Iterator<Item = String> {
        let known = self.pieces.filter(|it| (it.0, it.1) == at);
        let parities = known.map(|it| it.2.parity.iter());
        let has: BTreeSet<Level> = parities.into_iter().flatten().map(|it| it.0).collect();
        let served = levels.iter().copied();
        let lacks = move |level: &Level| level.store() == StoreKind::Server && !has.contains(level);
        served
            .filter(lacks)
            .map(|_| "the memory server gave no parity of it".to_owned())
    }

    /// Where the copies of a part lay that is gone. If a group is to blame, only copies that are
    /// none of its business.
    fn places(
        &self,
        contents: &Contents,
        (source, version): (Incarnation, Version),
        levels: &BTreeSet<Level>,
        has_group: bool,
    ) -> Option<String> {
        // What lies at a level at which it was not committed is no promise.
        let parts_of = |node: NodeId| {
            let mut parts = contents.parts_of(source, version, node);
            parts.retain(|(level, part)| {
                levels.contains(level) && (!has_group || part.holder != node)
            });
            parts
        };
        let gone = |node: &NodeId| {
            let parts = parts_of(*node);
            !parts.is_empty()
                && parts
                    .iter()
                    .all(|(_, part)| self.lost.contains(&part.holder))
        };
        let node = self
            .culprit
            .or_else(|| (0..self.nodes).map(NodeId).find(gone))?;
        let mut places: BTreeMap<NodeId, Vec<&str>> = BTreeMap::new();
        for (level, part) in parts_of(node) {
            places.entry(part.holder).or_default().push(level.name());
        }
        let place = |(holder, levels): (&NodeId, &Vec<&str>)| match *holder == Part::SHARED {
            true => "the shared directory".to_owned(),
            false => {
                let state = match self.lost.contains(holder) {
                    true => ", lost",
                    false => "",
                };
                format!("{holder} ({}{state})", levels.join(", "))
            }
        };
        let places: Vec<String> = places.iter().map(place).collect();
        let also = if has_group { " also" } else { "" };
        (!places.is_empty()).then(|| {
            format!(
                "the part of {node} lay{also} on {}, and no copy of it is left",
                places.join(" and ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use outlive_ledger::Record;

    use super::*;
    use crate::node::still::part_of;

    const AT: (Incarnation, Version) = (Incarnation(1), Version(74));

    fn part(node: u32, holder: NodeId) -> Part {
        Part {
            holder,
            ..part_of(AT, node)
        }
    }

    /// Of six nodes, whose copies of their parts are held by these.
    fn commit(level: Level, groups: &[&[u32]], holder: impl Fn(u32) -> NodeId) -> Record {
        Record::Commit {
            incarnation: AT.0,
            version: AT.1,
            level,
            ballot: 1,
            ranks: 6,
            parts: (0..6).map(|node| part(node, holder(node))).collect(),
            groups: groups
                .iter()
                .map(|group| group.iter().copied().map(NodeId).collect())
                .collect(),
        }
    }

    fn told(records: &[Record], lost: &[u32]) -> String {
        let mut contents = Contents::default();
        records.iter().for_each(|record| contents.learn(record));
        // A capture that was only staged.
        contents.add_part(AT.0, AT.1, Level::MEMORY, part(0, NodeId(0)));
        let left = || (0..6).filter(|node| !lost.contains(node)).map(NodeId);
        let levels = contents.levels_of(AT.0, AT.1);
        let grouped = levels.iter().filter(|level| level.members().is_some());
        let pieces = Pieces {
            whole: left().collect(),
            parity: grouped
                .flat_map(|level| left().map(|node| (*level, node)))
                .collect(),
        };
        let lost: Vec<NodeId> = lost.iter().copied().map(NodeId).collect();
        let missing = Missing {
            nodes: 6,
            // The last was found lost when the others had been replaced.
            lost: &lost[lost.len() - 1..],
            culprit: lost.first().copied(),
            rejected: &[],
            pieces: Some(&(AT.0, AT.1, pieces)),
        };
        missing.told(&contents)
    }

    #[test]
    fn groups_are_named_with_what_they_tolerate() {
        let own = |node| NodeId(node);
        let rs = Level::rs(4, 2).unwrap();
        let said = told(
            &[
                commit(Level::DISK, &[], own),
                commit(rs, &[&[0, 1, 2, 3, 4, 5]], own),
            ],
            &[0, 2, 5],
        );
        assert_eq!(
            said,
            "version 74 (disk, rs:4+2) cannot be rebuilt: 3 of the 6 nodes of a group of rs:4+2 \
             have lost what they stored (node 0, node 2, node 5), and it tolerates 2; the level \
             shared survives the loss of any number of nodes"
        );
        let xor = Level::xor(3).unwrap();
        let groups: &[&[u32]] = &[&[0, 2, 4], &[1, 3, 5]];
        let said = told(&[commit(xor, groups, own)], &[1, 3, 4]);
        assert!(
            said.contains("2 of the 3 nodes of a group of xor:3"),
            "{said}"
        );
        assert!(
            said.contains("(node 1, node 3), and it tolerates 1"),
            "{said}"
        );
        assert!(!said.contains("lay") && !said.contains("memory"), "{said}");
    }

    #[test]
    fn copies_elsewhere_are_named_too() {
        let partner = |node| NodeId((node + 1) % 6);
        let xor = Level::xor(6).unwrap();
        let group: &[&[u32]] = &[&[0, 1, 2, 3, 4, 5]];
        let both = [
            commit(Level::PARTNER, &[], partner),
            commit(xor, group, NodeId),
        ];
        let said = told(&both, &[1, 2]);
        let end = "; the part of node 1 lay also on node 2 (partner, lost), and no copy";
        assert!(
            said.contains("2 of the 6 nodes of a group of xor:6"),
            "{said}"
        );
        assert!(said.contains(end), "{said}");
        let said = told(&both[..1], &[1, 2]);
        assert!(
            said.contains(": the part of node 1 lay on node 2 (partner, lost), and no copy"),
            "{said}"
        );
        let disk = commit(Level::DISK, &[], NodeId);
        let said = told(&[disk], &[3]);
        assert!(said.contains("lay on node 3 (disk, lost)"), "{said}");
        assert!(said.contains("partner and shared survive"), "{said}");
    }
}

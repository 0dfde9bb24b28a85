//! Which node keeps a node's second copy of a version (level partner).
//!
//! Invariants: what records say of a version counts, whatever the rule says now; all nodes turn together,
//! so that none keeps the copies of two others; a turn follows from the version's number alone, so that a
//! node that was replaced, or missed versions, turns as the others do.

use outlive_base::placement::partner_in;
use outlive_base::rng::{below, draw};
use outlive_base::{Incarnation, NodeId, Version};

use super::{Core, Planted};
use crate::node::shell::Shell;
use crate::orders::Member;

/// The turn of a version, of so many. Versions are often as far apart as the turns are many, or a multiple:
/// their numbers are mixed.
fn turn_of(version: Version, partners: u32) -> u32 {
    below(draw(version.0, 0, 0), u64::from(partners.max(1))) as u32
}

impl<S: Shell> Core<S> {
    /// Where this node's second copy of a version lies, as the records have it, or goes.
    pub(super) fn partner_at(&self, source: Incarnation, version: Version) -> Option<NodeId> {
        let known = self.contents.parts_of(source, version, self.me).into_iter();
        let mut copies = known.filter(|(level, _)| level.has_partner());
        let holder = copies.next().map(|(_, part)| part.holder);
        holder.or_else(|| self.partner_of(self.me, version))
    }

    /// Where a node's second copy of a version goes: fixed by the membership and the version's number, so
    /// that all nodes turn together and none keeps the copies of two others.
    pub(super) fn partner_of(&self, node: NodeId, version: Version) -> Option<NodeId> {
        let config = self.config.as_ref()?;
        let members = &config.members;
        let anywhere = self.is_planted(Planted::PartnerAnywhere);
        let domain = |member: &Member| match anywhere {
            true => member.node.0,
            false => member.domain,
        };
        let domains: Vec<u32> = members.iter().map(domain).collect();
        partner_in(turn_of(version, config.partners), node, &domains)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use outlive_base::Level;
    use outlive_ledger::{Part, Record};

    use super::*;
    use crate::node::still::{alone_at, part_of};

    const SOURCE: Incarnation = Incarnation(1);

    /// How often each turn comes, and how often it is the one before, for versions so far apart.
    #[test]
    fn turns_are_dealt_evenly_whatever_the_distance_of_versions() {
        for partners in [2, 3, 4, 8] {
            for stride in [1, 2, 3, 4, 8, 10, 16, 50, 100, 1000, 1024] {
                let turns = (0..400).map(|nth| turn_of(Version(nth * stride), partners));
                let turns: Vec<u32> = turns.collect();
                let same = turns.windows(2).filter(|pair| pair[0] == pair[1]).count();
                let expected = 400 / partners as usize;
                assert!(same < 2 * expected, "{partners}, {stride}: {same}");
                for turn in 0..partners {
                    let count = turns.iter().filter(|it| **it == turn).count();
                    assert!(count > expected / 2, "{partners}, {stride}: {turn} {count}");
                }
            }
        }
        assert_eq!(turn_of(Version(77), 1), 0);
        assert_eq!(turn_of(Version(77), 0), 0, "as of an older launcher");
    }

    #[test]
    fn partners_turn_and_what_is_recorded_counts() {
        let mut node = alone_at(1, Level::PARTNER);
        let of =
            |node: &crate::node::Node<_>, version| node.core.partner_at(SOURCE, Version(version));
        let fixed: BTreeSet<_> = (0..50).map(|version| of(&node, version)).collect();
        assert_eq!(fixed.len(), 1, "by default none turns");
        let mut config = node.core.config().unwrap().clone();
        config.partners = 3;
        let members = (0..5).map(|number| Member {
            node: NodeId(number),
            domain: number,
            ..config.members[0].clone()
        });
        config.members = members.collect();
        node.core.configure_alone(config);
        let turned: BTreeSet<_> = (0..50).filter_map(|version| of(&node, version)).collect();
        assert_eq!(turned, [2, 3, 4].map(NodeId).into(), "the next three");
        let holder = NodeId(0);
        let parts = [Part {
            holder,
            ..part_of((SOURCE, Version(7)), 1)
        }];
        node.core.learn(&Record::Commit {
            incarnation: SOURCE,
            version: Version(7),
            level: Level::PARTNER,
            ballot: 1,
            ranks: 5,
            parts: parts.to_vec().into(),
            groups: Vec::new(),
        });
        assert_eq!(of(&node, 7), Some(holder));
    }
}

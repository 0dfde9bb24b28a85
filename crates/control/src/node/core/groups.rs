//! Levels with groups: which there are, and whether what is left of one gives back what was lost.

use outlive_base::{Incarnation, Level, NodeId, Result, Version};
use outlive_ledger::scheme::{Group, Piece, groups};
use outlive_protocols::commit::Pieces;

use super::{Core, Planted};
use crate::node::shell::Shell;

impl<S: Shell> Core<S> {
    /// The groups of a level over the nodes of this job.
    pub(in crate::node) fn groups_at(&self, level: Level) -> Result<Vec<Vec<NodeId>>> {
        let members = self.config.iter().flat_map(|config| config.members.iter());
        let domains: Vec<u32> = members.map(|member| member.domain).collect();
        groups(level, &domains)
    }

    /// True if the bytes of every node of a version can be had or made (`Event::Plan`).
    pub(super) fn can_be_made(&mut self, source: Incarnation, version: Version) -> bool {
        let Some(driver) = &self.commit else {
            return false;
        };
        let pieces = driver.machine().pieces(source, version);
        let most = match self.is_planted(Planted::TolerateOneLost) {
            true => 1,
            false => usize::MAX,
        };
        let made = |node: NodeId| {
            let mut levels = self.contents.levels_of(source, version).into_iter();
            levels.any(|level| {
                let group = self.contents.group(source, version, level, node);
                let lost = |group: &Group| {
                    let members = group.members.iter();
                    members.filter(|it| !pieces.whole.contains(it)).count()
                };
                group.is_some_and(|(group, _)| {
                    lost(&group) <= most && is_made(&group, node, level, &pieces)
                })
            })
        };
        let mut nodes = (0..self.nodes()).map(NodeId);
        let all = nodes.all(|node| pieces.whole.contains(&node) || made(node));
        if let Some(opening) = &mut self.opening
            && !all
            && opening
                .short
                .as_ref()
                .is_none_or(|it| (it.0, it.1) <= (source, version))
        {
            opening.short = Some((source, version, pieces));
        }
        all
    }
}

/// True if a group gives back what one of its members has lost.
fn is_made(group: &Group, node: NodeId, level: Level, pieces: &Pieces) -> bool {
    let have = |piece| match piece {
        Piece::Whole(node) => pieces.whole.contains(&node),
        Piece::Parity(node) => pieces.parity.contains(&(level, node)),
    };
    group.terms(Piece::Whole(node), have).is_some()
}

//! Levels with groups: which there are at a version, and whether what is left of one gives back what was lost.

use outlive_base::{Error, Incarnation, Level, NodeId, Result, Version};
use outlive_ledger::scheme::{Group, Piece, groups_in};
use outlive_protocols::commit::Pieces;

use super::{Core, Planted};
use crate::node::shell::Shell;

impl<S: Shell> Core<S> {
    /// The groups of a level over the nodes of this job, in each turn.
    pub(super) fn laid(&self, level: Level) -> Result<Vec<Vec<Vec<NodeId>>>> {
        let members = self.config.iter().flat_map(|config| config.members.iter());
        let domains: Vec<u32> = members.map(|member| member.domain).collect();
        let turns = self
            .config
            .as_ref()
            .map_or(1, |config| config.group_turns.max(1));
        (0..turns)
            .map(|turn| groups_in(turn, level, &domains))
            .collect()
    }

    /// The members of this node's group of a version.
    ///
    /// # Errors
    /// If the job's nodes make no such groups.
    pub(in crate::node) fn group_at(&self, level: Level, version: Version) -> Result<Vec<NodeId>> {
        let none = || Error::internal(format!("{level} has no group for {}", self.me));
        let groups = self.contents.groups_for(level, version).ok_or_else(none)?;
        let own = groups.iter().find(|members| members.contains(&self.me));
        own.cloned().ok_or_else(none)
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

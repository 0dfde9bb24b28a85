//! What is known of one version of a job.

use outlive_base::level::{Scheme, StoreKind};
use outlive_base::{Incarnation, Level, NodeId, Version};
use outlive_ledger::scheme::{self, Piece};
use outlive_ledger::{Parity, Part};
use serde::{Deserialize, Serialize};

/// A version at one level.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LevelState {
    /// The level.
    pub level: Level,
    /// The ballot of the winning commit; absent: not committed.
    pub committed: Option<u64>,
    /// In how many places that commit is recorded.
    pub recorded: u32,
    /// Recorded in f + 1 failure domains, or in the shared directory.
    pub stable: bool,
    /// Why it was aborted, if it was and is not committed.
    pub aborted: Option<String>,
}

/// A copy that a version's records call for, or that was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyState {
    /// Where: a node, or [`Part::SHARED`].
    pub place: NodeId,
    /// Disk: the node's own; partner; shared; or that of a parity, which is no copy of the
    /// node's bytes but gives back those of others.
    pub level: Level,
    /// What people find it by, if there is one of the right length.
    pub path: Option<String>,
    /// True if it can be opened from here.
    pub local: bool,
    /// What a parity must be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parity: Option<Parity>,
}

impl CopyState {
    /// True if it is the container in its node's own storage, which several levels call for.
    pub fn is_own(&self) -> bool {
        (self.level.store(), self.level.scheme()) == (StoreKind::Node, Scheme::Single)
    }
}

/// Nodes that protect each other at a level.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// The level.
    pub level: Level,
    /// Its members, in the order of the code.
    pub members: Vec<NodeId>,
}

/// The container of one node, and its copies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartState {
    /// What the copies must be. Its holder is that of one of them.
    pub part: Part,
    /// Copies, the cheapest to read first.
    pub copies: Vec<CopyState>,
}

/// One version of the job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The incarnation that captured it.
    pub incarnation: Incarnation,
    /// Its number.
    pub version: Version,
    /// True if a later incarnation went on from an older version.
    pub void: bool,
    /// True if no record that can be read says whether that is so.
    #[serde(default)]
    pub unproven: bool,
    /// True if a pin keeps it, at one place at least.
    pub pinned: bool,
    /// True if a place of the job lacks the pin: whoever pinned it, or took the pin away, was cut
    /// off, or a node has lost its storage since.
    #[serde(default)]
    pub half_pinned: bool,
    /// True if newer versions took its place and its copies were, or are being,
    /// removed.
    pub superseded: bool,
    /// True if it was committed, or a node at least wrote its part. False for one that was
    /// wanted and given up before that.
    pub captured: bool,
    /// Ranks of the job, by the commit.
    pub ranks: u32,
    /// Bytes of its containers, one copy of each.
    pub bytes: u64,
    /// Levels of which something is recorded.
    pub levels: Vec<LevelState>,
    /// Its containers, by node; empty if it is not committed.
    pub parts: Vec<PartState>,
    /// The groups of nodes that give each other's bytes back, by level.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
}

impl Entry {
    /// True if newer versions took its place and no copy of it is left.
    pub fn is_gone(&self) -> bool {
        self.superseded && !self.is_stored()
    }

    /// True if a copy of it is left somewhere.
    pub fn is_stored(&self) -> bool {
        self.parts
            .iter()
            .flat_map(|part| &part.copies)
            .any(|copy| copy.path.is_some())
    }

    /// The farthest level at which it is committed.
    pub fn committed(&self) -> Option<Level> {
        self.levels
            .iter()
            .filter(|it| it.committed.is_some())
            .map(|it| it.level)
            .max()
    }

    /// The groups of a node, with the lengths of their members' containers.
    pub fn groups_of(&self, node: NodeId) -> impl Iterator<Item = scheme::Group> {
        let length = |member: &NodeId| {
            let part = self.parts.iter().find(|it| it.part.node == *member);
            part.map(|it| it.part.length)
        };
        let own = self
            .groups
            .iter()
            .filter(move |it| it.members.contains(&node));
        own.filter_map(move |group| {
            Some(scheme::Group {
                level: group.level,
                members: group.members.clone(),
                lengths: group.members.iter().map(length).collect::<Option<_>>()?,
            })
        })
    }

    /// What is there of a group, at the places that were looked at.
    pub fn piece(&self, level: Level, piece: Piece) -> Option<(&PartState, &CopyState)> {
        let (node, place) = match piece {
            Piece::Parity(node) if level.store() == StoreKind::Server => (node, NodeId::SERVER),
            Piece::Whole(node) | Piece::Parity(node) => (node, node),
        };
        let state = self.parts.iter().find(|it| it.part.node == node)?;
        let is_it = |copy: &CopyState| match piece {
            Piece::Whole(_) => copy.is_own(),
            Piece::Parity(_) => copy.level == level,
        };
        let mut there = state.copies.iter().filter(|copy| copy.path.is_some());
        Some((
            state,
            there.find(|copy| copy.place == place && is_it(copy))?,
        ))
    }
}

//! What all agents of a job are told of it: who its nodes are, levels, bounds.

use core::net::SocketAddr;
use std::sync::Arc;

use outlive_base::{Level, NodeId};
use serde::{Deserialize, Serialize};

use crate::refused::Refused;
use crate::scrubbing::ScrubSetting;
use crate::transfers::TransferSetting;

/// A level in use: every `every`-th committed capture goes there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LevelSetting {
    /// The level.
    pub level: Level,
    /// 1: each capture; n: each n-th.
    pub every: u32,
}

/// When a checkpoint is wanted. Both may be given: whichever comes first. None: when the
/// launcher says so ([`crate::orders::Order::CheckpointNow`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Policy {
    /// At versions divisible by this.
    pub every: Option<u64>,
    /// When this many milliseconds have passed since the last capture.
    pub interval_ms: Option<u64>,
}

/// Bounds, all in milliseconds (P5); every one can be set on the command line or
/// in the configuration (`docs/reference/configuration.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Bounds {
    /// Heartbeats between agents.
    pub heartbeat_ms: u64,
    /// Silence after which a node is suspected.
    pub suspect_ms: u64,
    /// Silence after which a suspected node, with a second witness, has been replaced:
    /// it is given up [`Bounds::silence_ms`] after its last sign of life.
    pub dead_ms: u64,
    /// Answers to an arming round.
    pub arm_ms: u64,
    /// From the first capture of a version to the last, and to each level's commit.
    pub commit_ms: u64,
    /// Inventory and rebuild at a restart.
    pub recovery_ms: u64,
    /// Flushes still under way when the job ends.
    pub drain_ms: u64,
}

/// Heartbeats by which a silent node is given up before `dead_ms` has passed: a
/// replacement takes its time, as do the witness's word and waking up.
const GIVEN_UP_BEFORE: u64 = 3;

impl Bounds {
    /// Silence after which a node is given up, in milliseconds: so long before
    /// `dead_ms` that its replacement has begun by then, never before `suspect_ms`.
    pub fn silence_ms(&self) -> u64 {
        let margin = self.heartbeat_ms.saturating_mul(GIVEN_UP_BEFORE);
        let early = self.dead_ms.saturating_sub(margin);
        early.max(self.suspect_ms).min(self.dead_ms)
    }
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            heartbeat_ms: 250,
            suspect_ms: 1_000,
            dead_ms: 10_000,
            arm_ms: 2_000,
            commit_ms: 60_000,
            recovery_ms: 300_000,
            drain_ms: 60_000,
        }
    }
}

/// A member of the job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its slot.
    pub node: NodeId,
    /// Which holder of the slot.
    pub epoch: u64,
    /// Where its agent listens.
    pub address: SocketAddr,
    /// Failure domain: nodes with the same number are assumed to fail together.
    pub domain: u32,
}

/// Everything an agent must know of the job; sent again when the membership changes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobConfig {
    /// How often the members had changed in this run of the launcher.
    pub revision: u64,
    /// All slots, ascending. Shared, for it goes to each of them.
    pub members: Arc<[Member]>,
    /// Levels in use, ascending.
    pub levels: Vec<LevelSetting>,
    /// When a checkpoint is wanted.
    pub policy: Policy,
    /// Bounds.
    pub bounds: Bounds,
    /// Committed versions to keep per level, at least 1.
    pub keep: u32,
    /// How many nodes take turns at a node's copies, version by version (level partner); at least 1.
    pub partners: u32,
    /// How copies are read before they are needed.
    pub scrub: ScrubSetting,
    /// How they come to shared storage.
    pub transfer: TransferSetting,
    /// What a version may not hold.
    pub refused: Refused,
}

impl JobConfig {
    /// The member of a slot.
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        let at = self
            .members
            .binary_search_by_key(&node, |member| member.node);
        self.members.get(at.ok()?)
    }

    /// The same at a later revision, with these members in the place of those of their slots. Of
    /// slots that it does not have nothing is taken.
    #[must_use]
    pub fn with(&self, revision: u64, changed: &[Member]) -> JobConfig {
        let mut members = self.members.to_vec();
        for member in changed {
            if let Ok(at) = members.binary_search_by_key(&member.node, |known| known.node) {
                members[at] = member.clone();
            }
        }
        JobConfig {
            revision,
            members: members.into(),
            ..self.clone()
        }
    }
}

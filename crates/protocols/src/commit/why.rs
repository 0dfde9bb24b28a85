//! Why something came to nothing.

use serde::{Deserialize, Serialize};

/// Why a version, a level or an opening failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Why {
    /// Not within its bound; the culprit is the node not heard of.
    Timeout,
    /// A rank had passed the version, every time it was armed; not a failure.
    Passed,
    /// Being armed again at a larger version. Never in [`Event::Aborted`](super::Event::Aborted).
    Rearmed,
    /// No staging memory or no slot.
    NoRoom,
    /// A node had no room for it when it was to be armed, or was not ready within the bound: who forces
    /// it begins it, or has begun it by a capture.
    Unarmed,
    /// A rank ended.
    RankLost,
    /// A rank closed its handle or reached a larger version first.
    Overtaken,
    /// A rank has left the job, as programs do at their end; not a failure.
    Left,
    /// Writing or verifying failed.
    Storage,
    /// The partner did not take or verify its copy.
    Partner,
    /// A node was declared dead.
    NodeLost,
    /// The coordinator's agent was started anew, or does not know the round.
    Coordinator,
    /// No incarnation is open.
    NotOpen,
    /// As many rounds as permitted are running.
    Busy,
    /// The incarnation's number was used before.
    Stale,
    /// Neither a majority with the last coordinator nor the launcher's word.
    NoQuorum,
    /// Committed versions exist but none can be rebuilt.
    NothingUsable,
    /// Versions were committed, and no record of one can be read.
    NoRecord,
    /// The storage that all nodes share cannot be read, and a newer version may lie there than
    /// any that can be rebuilt without it.
    Unreadable,
    /// A node's copy of the version lies at one that takes part and that it cannot reach.
    OutOfReach,
    /// A forced version before it had the rank's slot, and no other was free when the rank came to
    /// it; not a failure.
    MadeWay,
}

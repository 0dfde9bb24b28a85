//! What the head of a slab says: the staging memory of one rank and slot describes itself,
//! so that an agent that starts anew adopts what it finds by reading.

use crate::{Incarnation, Rank, Version};

/// What a slab holds. Numbers are part of the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// Nothing.
    Empty = 0,
    /// Being filled, or its filler died.
    Filling = 1,
    /// A complete capture.
    Captured = 2,
    /// A complete capture that the agent has taken over.
    Sealed = 3,
}

impl State {
    /// The state with this number.
    pub const fn from_u32(value: u32) -> Option<State> {
        match value {
            0 => Some(State::Empty),
            1 => Some(State::Filling),
            2 => Some(State::Captured),
            3 => Some(State::Sealed),
            _ => None,
        }
    }
    /// True if the content is complete and does not change.
    pub const fn is_complete(self) -> bool {
        matches!(self, State::Captured | State::Sealed)
    }
}

/// Whose slab it is: what the agent stamps on an empty one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlabId {
    /// The number that stands for the job's name.
    pub job: u64,
    /// The start of the job that fills it.
    pub incarnation: Incarnation,
    /// The rank.
    pub rank: Rank,
    /// Ranks of the job.
    pub ranks: u32,
    /// 0 or 1; higher for slabs that are only for a restore.
    pub slot: u32,
    /// Distinguishes slabs that took the same slot after one another.
    pub generation: u32,
}

/// The checked head of a slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlabHead {
    /// Whose it is.
    pub id: SlabId,
    /// What it holds.
    pub state: State,
    /// The version; meaningless while EMPTY.
    pub version: Version,
    /// Bytes of the region table; 0 while EMPTY.
    pub table_bytes: u64,
    /// Bytes of the data, padding between regions included; 0 while EMPTY.
    pub data_bytes: u64,
    /// CRC-64/NVME of the table.
    pub table_crc: u64,
}

//! Shared memory of a node: slabs and control blocks with their descriptors, and taking over
//! what an agent before this one left with the keeper.

use std::os::fd::OwnedFd;

use outlive_base::control_block::Page;
use outlive_base::slab::{SlabHead, SlabId};
use outlive_base::{Code, Entity, Error, Rank, Result};
use outlive_capture::ShareError;
use outlive_capture::control::{ControlBlock, ControlWords, Side};
use outlive_capture::slab::Slab;
use outlive_control::node::overwritten;
use outlive_control::node::shell::{Done, Staging, Stop};

use crate::faults::Faults;

/// Bytes that are made at a time: so soon a maker that is to stop ends.
const PIECE_BYTES: usize = 8 << 20;

/// What a worker reports.
pub type Work = Done<Memory>;

/// A slab and its descriptor, which goes to the rank and to the keeper.
pub struct Memory {
    /// Mapped by this agent.
    pub slab: Slab,
    /// The file.
    pub fd: OwnedFd,
}

impl Memory {
    /// A slab of at least `bytes` with all its pages; `None` if it was not wanted any more.
    pub fn make(bytes: u64, stop: &Stop, faults: &Faults) -> Result<Option<Memory>> {
        let (slab, fd, pages) = Slab::begin(bytes).map_err(share)?;
        for start in (0..pages.bytes()).step_by(PIECE_BYTES) {
            if stop.is_given_up() {
                return Ok(None);
            }
            let piece = start..(start + PIECE_BYTES).min(pages.bytes());
            faults.slow_down(piece.len() as u64);
            pages.make(piece).map_err(share)?;
        }
        Ok(Some(Memory { slab, fd }))
    }
}

impl Staging for Memory {
    fn capacity(&self) -> u64 {
        self.slab.capacity()
    }
    fn head(&self) -> Result<SlabHead> {
        self.slab.head().map_err(share)
    }
    fn format(&mut self, id: SlabId) -> Result<()> {
        self.slab.format(id).map_err(share)
    }
    fn seal(&mut self) -> Result<()> {
        self.slab.seal().map_err(share)
    }
}

/// A control block and its descriptor, which goes to the rank and to the keeper.
pub struct Block {
    /// Mapped by this agent.
    pub words: ControlBlock,
    /// The file.
    pub fd: OwnedFd,
}

impl ControlWords for Block {
    #[inline]
    fn page(&self) -> &Page {
        self.words.page()
    }
    #[inline]
    fn side(&self) -> Side {
        self.words.side()
    }
}

/// An error of shared memory, for a user: the system has none, or what is in it is not what
/// rank and agent write there.
pub fn share(error: ShareError) -> Error {
    match error {
        ShareError::Io { .. } => Error::new(
            Code::MemoryBudget,
            Entity::Call,
            format!("staging memory: {error}"),
            "free memory on the node or protect less; see outlive doctor",
        ),
        error => overwritten(Entity::Call, &format!("staging memory: {error}")),
    }
}

/// The keeper's name for a rank's control block.
pub fn control_tag(rank: Rank) -> String {
    format!("control-{}", rank.0)
}

/// The keeper's name for a rank's slab.
pub fn slab_tag(rank: Rank, slot: usize) -> String {
    format!("slab-{}-{slot}", rank.0)
}

//! The control block of a rank in shared memory. What its words mean stands with them, in
//! [`outlive_base::control_block`].

use core::mem::size_of;
pub use outlive_base::control_block::{
    Armed, CONTROL_ABI, CONTROL_BYTES, ControlWords, Identity, Refused, Side,
};
use outlive_base::control_block::{Odd, Page};
use outlive_base::{Incarnation, NodeId, Rank};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::mapping::{Mapping, ShareError, sealed_bytes, sealed_memfd};

const _: () = assert!(size_of::<Page>() <= CONTROL_BYTES);

/// The mapped control block of one rank.
#[derive(Debug)]
pub struct ControlBlock {
    map: Mapping,
    side: Side,
}

impl ControlBlock {
    /// Agent: makes the block of one rank. Nothing is armed; versions are "none".
    /// The descriptor goes to the rank and to the keeper.
    pub fn create(
        rank: Rank,
        ranks: u32,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<(ControlBlock, OwnedFd), ShareError> {
        if rank.0 >= ranks {
            return Err(ShareError::Field("rank outside the job"));
        }
        let fd = sealed_memfd("outlive-control", CONTROL_BYTES as u64)?;
        let map = Mapping::shared(fd.as_fd(), CONTROL_BYTES as u64, true)?;
        let block = ControlBlock {
            map,
            side: Side::Agent,
        };
        block.page().format(Identity {
            rank,
            ranks,
            node,
            incarnation,
        });
        Ok((block, fd))
    }

    /// A block of this process alone, for a job without an agent: nothing is ever
    /// armed in it, so the fast path needs no special case.
    pub fn private(identity: Identity) -> Result<ControlBlock, ShareError> {
        let block = ControlBlock {
            map: Mapping::private(CONTROL_BYTES)?,
            side: Side::Rank,
        };
        block.page().format(identity);
        Ok(block)
    }

    /// Maps a block that came as a descriptor, after checking seals, size, magic,
    /// version of the layout, and the identity's ranges.
    pub fn map(fd: BorrowedFd<'_>, side: Side) -> Result<ControlBlock, ShareError> {
        let bytes = sealed_bytes(fd)?;
        if bytes != CONTROL_BYTES as u64 {
            return Err(ShareError::Size {
                found: bytes,
                expected: CONTROL_BYTES as u64,
            });
        }
        let block = ControlBlock {
            map: Mapping::shared(fd, bytes, true)?,
            side,
        };
        block.page().check().map_err(|odd| match odd {
            Odd::Magic => ShareError::Magic("a control block"),
            Odd::Abi(abi) => ShareError::Abi(abi),
            Odd::Rank => ShareError::Field("control block: rank outside the job"),
        })?;
        Ok(block)
    }
}

impl ControlWords for ControlBlock {
    #[inline]
    fn page(&self) -> &Page {
        // SAFETY: the mapping is page-aligned, at least `size_of::<Page>()` bytes,
        // lives as long as `self`, and Page consists of atomics for which every bit
        // pattern is valid.
        unsafe { self.map.base().cast::<Page>().as_ref() }
    }

    #[inline]
    fn side(&self) -> Side {
        self.side
    }
}

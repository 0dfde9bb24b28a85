//! The control block: one page shared by a rank and its agent.
//!
//! Each 64-byte line has one writer, so nothing is ever read-modify-written and no
//! lock exists that a killed process could leave behind.
//!
//! Two handshakes of Dekker's kind, all accesses sequentially consistent:
//!
//! 1. *Offer and arm.* The rank stores `called`, then loads `attention`; the agent
//!    stores `attention`, then loads `called`. Either the rank sees the arming or
//!    the agent sees the call: never neither.
//! 2. *Enter and disarm.* The rank stores `entered`, then loads `armed`; the agent
//!    stores `armed = none`, then loads `entered`. Either the rank sees that the
//!    version is not armed any more, or the agent sees that the rank is inside and
//!    waits for it before the slot is used again.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use outlive_base::{Incarnation, Level, NodeId, Rank, Version};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::mapping::{Mapping, ShareError, sealed_bytes, sealed_memfd};

/// Bytes of a control block.
pub const CONTROL_BYTES: usize = 4096;
/// Version of the layout and of the messages of [`crate::ipc`].
pub const CONTROL_ABI: u32 = 2;

const MAGIC: u64 = u64::from_le_bytes(*b"OLCTRL1\0");
const NONE: u64 = u64::MAX;

#[repr(C, align(64))]
struct IdentityLine {
    magic: AtomicU64,
    abi: AtomicU32,
    rank: AtomicU32,
    ranks: AtomicU32,
    node: AtomicU32,
    incarnation: AtomicU32,
}

#[repr(C, align(64))]
struct OfferLine {
    called: AtomicU64,
    entered: AtomicU64,
}

#[repr(C, align(64))]
struct AttentionLine {
    attention: AtomicU64,
}

#[repr(C, align(64))]
struct ArmedLine {
    armed: AtomicU64,
    slot: AtomicU32,
    generation: AtomicU32,
    capacity: AtomicU64,
    inject: AtomicU64,
}

#[repr(C, align(64))]
struct ReportLine {
    bytes_needed: AtomicU64,
    taken: AtomicU64,
    blocked_ns: AtomicU64,
}

#[repr(C, align(64))]
struct OutcomeLine {
    committed: [AtomicU64; 4],
    aborted: AtomicU64,
}

#[repr(C)]
struct Page {
    identity: IdentityLine,
    offer: OfferLine,
    attention: AttentionLine,
    armed: ArmedLine,
    report: ReportLine,
    outcome: OutcomeLine,
}

const _: () = {
    assert!(offset_of!(Page, offer) == 64);
    assert!(offset_of!(Page, attention) == 128);
    assert!(offset_of!(Page, armed) == 192);
    assert!(offset_of!(Page, report) == 256);
    assert!(offset_of!(Page, outcome) == 320);
    assert!(offset_of!(ArmedLine, inject) == 24);
    assert!(size_of::<Page>() <= CONTROL_BYTES);
};

/// Which process holds the mapping; each line may be written by one side only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The program.
    Rank,
    /// The node's agent.
    Agent,
}

/// Whose control block it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The rank.
    pub rank: Rank,
    /// Ranks of the job.
    pub ranks: u32,
    /// The node slot it lives on.
    pub node: NodeId,
    /// The start of the job it belongs to.
    pub incarnation: Incarnation,
}

/// What a rank shall capture, and where to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Armed {
    /// The version.
    pub version: Version,
    /// The slab's number, 0 or 1.
    pub slot: u32,
    /// Distinguishes slabs that took the same slot after one another.
    pub generation: u32,
    /// Bytes of the slab, head page included.
    pub capacity: u64,
}

/// Why a version could not be armed. The block is disarmed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Last version offered + 1: the next attempt must be at this or later.
    pub called: u64,
    /// The version that the rank has entered, if any: wait until
    /// [`ControlBlock::entered`] is `None`, or the rank is dead, before the slot
    /// is used again.
    pub entered: Option<Version>,
}

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
        block.format(Identity {
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
        block.format(identity);
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
        let line = &block.page().identity;
        if line.magic.load(SeqCst) != MAGIC {
            return Err(ShareError::Magic("a control block"));
        }
        let abi = line.abi.load(Relaxed);
        if abi != CONTROL_ABI {
            return Err(ShareError::Abi(abi));
        }
        let identity = block.identity();
        if identity.rank.0 >= identity.ranks {
            return Err(ShareError::Field("control block: rank outside the job"));
        }
        Ok(block)
    }

    fn format(&self, identity: Identity) {
        let page = self.page();
        page.attention.attention.store(NONE, Relaxed);
        page.armed.armed.store(NONE, Relaxed);
        page.armed.inject.store(NONE, Relaxed);
        for word in &page.outcome.committed {
            word.store(NONE, Relaxed);
        }
        page.outcome.aborted.store(NONE, Relaxed);
        let line = &page.identity;
        line.abi.store(CONTROL_ABI, Relaxed);
        line.rank.store(identity.rank.0, Relaxed);
        line.ranks.store(identity.ranks, Relaxed);
        line.node.store(identity.node.0, Relaxed);
        line.incarnation.store(identity.incarnation.0, Relaxed);
        line.magic.store(MAGIC, SeqCst);
    }

    #[inline]
    fn page(&self) -> &Page {
        // SAFETY: the mapping is page-aligned, at least `size_of::<Page>()` bytes,
        // lives as long as `self`, and Page consists of atomics for which every bit
        // pattern is valid.
        unsafe { self.map.base().cast::<Page>().as_ref() }
    }

    fn writes(&self, side: Side) {
        debug_assert_eq!(self.side, side, "a line has one writer");
    }

    /// Whose block it is.
    pub fn identity(&self) -> Identity {
        let line = &self.page().identity;
        Identity {
            rank: Rank(line.rank.load(Relaxed)),
            ranks: line.ranks.load(Relaxed),
            node: NodeId(line.node.load(Relaxed)),
            incarnation: Incarnation(line.incarnation.load(Relaxed)),
        }
    }

    // ---- the rank's words ----

    /// Rank: offers a version (at most [`Version::MAX`]) and returns `attention`:
    /// the offer is skipped if `version < attention`.
    #[inline]
    pub fn offer(&self, version: u64) -> u64 {
        let page = self.page();
        page.offer.called.store(version.wrapping_add(1), SeqCst);
        page.attention.attention.load(SeqCst)
    }

    /// Last version offered + 1; 0 before the first.
    pub fn called(&self) -> u64 {
        self.page().offer.called.load(SeqCst)
    }

    /// Rank: enters `version`. If it is armed, or an earlier one is that this rank has
    /// left out, the answer says where to capture it and stays true until
    /// [`ControlBlock::leave`], whatever the agent does. What was armed up to `answered`
    /// has had its answer.
    pub fn enter(&self, version: Version, answered: Option<Version>) -> Option<Armed> {
        self.claim(version);
        let wanted = |armed: &Armed| armed.version <= version && Some(armed.version) > answered;
        let armed = self.armed().filter(wanted);
        if armed.is_none() {
            self.leave();
        }
        armed
    }

    /// Rank: enters a version that need not be armed (a forced one).
    pub fn claim(&self, version: Version) {
        self.writes(Side::Rank);
        self.page()
            .offer
            .entered
            .store(version.0.wrapping_add(1), SeqCst);
    }

    /// Rank: the capture has ended, well or not.
    pub fn leave(&self) {
        self.writes(Side::Rank);
        self.page().offer.entered.store(0, SeqCst);
    }

    /// The version that the rank is inside of.
    pub fn entered(&self) -> Option<Version> {
        match self.page().offer.entered.load(SeqCst) {
            0 => None,
            word => Some(Version(word - 1)),
        }
    }

    /// Rank: bytes of a slab that holds all regions now.
    pub fn set_bytes_needed(&self, bytes: u64) {
        self.writes(Side::Rank);
        self.page().report.bytes_needed.store(bytes, SeqCst);
    }
    /// Bytes of a slab that holds all regions now; 0 if not known yet.
    pub fn bytes_needed(&self) -> u64 {
        self.page().report.bytes_needed.load(SeqCst)
    }
    /// Rank: counts a capture that blocked the program for `blocked_ns`.
    pub fn count_taken(&self, taken: u64, blocked_ns: u64) {
        self.writes(Side::Rank);
        self.page().report.blocked_ns.store(blocked_ns, Relaxed);
        self.page().report.taken.store(taken, SeqCst);
    }
    /// Captures so far.
    pub fn taken(&self) -> u64 {
        self.page().report.taken.load(SeqCst)
    }
    /// How long the last capture blocked the program, in nanoseconds.
    pub fn blocked_ns(&self) -> u64 {
        self.page().report.blocked_ns.load(Relaxed)
    }

    // ---- the agent's words ----

    /// Agent: arms `version`, unless the rank has offered it or a later one.
    pub fn try_arm(
        &self,
        version: Version,
        slot: u32,
        generation: u32,
        capacity: u64,
    ) -> Result<(), Refused> {
        self.arm(version, slot, generation, capacity);
        let called = self.called();
        if called <= version.0 {
            return Ok(());
        }
        let entered = self.disarm();
        Err(Refused { called, entered })
    }

    /// Agent: arms without looking at `called`; see [`ControlBlock::try_arm`].
    pub fn arm(&self, version: Version, slot: u32, generation: u32, capacity: u64) {
        self.writes(Side::Agent);
        let line = &self.page().armed;
        line.slot.store(slot, Relaxed);
        line.generation.store(generation, Relaxed);
        line.capacity.store(capacity, Relaxed);
        line.armed.store(version.0, SeqCst);
        self.refresh_attention();
    }

    /// Agent: nothing is armed any more. If a version is returned, the rank is
    /// inside it: its slot must not be used until it leaves or is dead.
    #[must_use]
    pub fn disarm(&self) -> Option<Version> {
        self.writes(Side::Agent);
        self.page().armed.armed.store(NONE, SeqCst);
        self.refresh_attention();
        self.entered()
    }

    /// What is armed.
    pub fn armed(&self) -> Option<Armed> {
        let line = &self.page().armed;
        let version = line.armed.load(SeqCst);
        (version <= Version::MAX.0).then(|| Armed {
            version: Version(version),
            slot: line.slot.load(Relaxed),
            generation: line.generation.load(Relaxed),
            capacity: line.capacity.load(Relaxed),
        })
    }

    /// Agent: the version at which a failure is to be injected.
    pub fn set_inject(&self, version: Option<Version>) {
        self.writes(Side::Agent);
        self.page()
            .armed
            .inject
            .store(version.map_or(NONE, |v| v.0), SeqCst);
        self.refresh_attention();
    }
    /// The version at which a failure is to be injected.
    pub fn inject(&self) -> Option<Version> {
        let version = self.page().armed.inject.load(SeqCst);
        (version <= Version::MAX.0).then_some(Version(version))
    }

    fn refresh_attention(&self) {
        let line = &self.page().armed;
        self.set_attention(line.armed.load(SeqCst).min(line.inject.load(SeqCst)));
    }
    /// Agent: the smallest version that needs the slow path; `u64::MAX` for none.
    /// [`ControlBlock::arm`], [`ControlBlock::disarm`] and
    /// [`ControlBlock::set_inject`] keep it by themselves.
    pub fn set_attention(&self, version: u64) {
        self.writes(Side::Agent);
        self.page().attention.attention.store(version, SeqCst);
    }
    /// The smallest version that needs the slow path; `u64::MAX` for none.
    pub fn attention(&self) -> u64 {
        self.page().attention.attention.load(SeqCst)
    }

    /// Agent: `version` is stable at `level`.
    pub fn set_committed(&self, level: Level, version: Version) {
        self.writes(Side::Agent);
        self.page().outcome.committed[level as usize].store(version.0, SeqCst);
    }
    /// The last version that is stable at `level`.
    pub fn committed(&self, level: Level) -> Option<Version> {
        let version = self.page().outcome.committed[level as usize].load(SeqCst);
        (version <= Version::MAX.0).then_some(Version(version))
    }
    /// Agent: `version` was aborted.
    pub fn set_aborted(&self, version: Version) {
        self.writes(Side::Agent);
        self.page().outcome.aborted.store(version.0, SeqCst);
    }
    /// The last version that was aborted.
    pub fn aborted(&self) -> Option<Version> {
        let version = self.page().outcome.aborted.load(SeqCst);
        (version <= Version::MAX.0).then_some(Version(version))
    }
}

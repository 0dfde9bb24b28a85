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

use crate::ipc::VersionState;
use crate::levels::{LEVELS_MAX, Levels};
use crate::{Incarnation, Level, NodeId, Rank, Survives, Version};

/// Bytes of a control block.
pub const CONTROL_BYTES: usize = 4096;
/// Version of the layout and of the messages of [`crate::ipc`].
pub const CONTROL_ABI: u32 = 3;

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
    /// One more than the last version that was forced; 0: none.
    forced: AtomicU64,
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
    /// The job's levels by their codes, nearest first; [`u8::MAX`] for none.
    levels: AtomicU64,
    /// The last version that is stable at each of them.
    committed: [AtomicU64; LEVELS_MAX],
    aborted: AtomicU64,
    /// One more than the largest version that was aborted; 0: none. For agents alone.
    spent: AtomicU64,
}

/// The words of a control block; its owner decides where they lie.
#[repr(C)]
pub struct Page {
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
    assert!(offset_of!(IdentityLine, abi) == 8);
    assert!(offset_of!(IdentityLine, rank) == 12);
    assert!(offset_of!(IdentityLine, ranks) == 16);
    assert!(offset_of!(IdentityLine, node) == 20);
    assert!(offset_of!(IdentityLine, incarnation) == 24);
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

impl Identity {
    /// Bytes of a block in which its identity lies.
    pub const BYTES: usize = 28;

    /// The identity in the first bytes of a block, as another process has copied them; `None` if
    /// they are of no block, or of another release.
    pub fn in_copy(bytes: &[u8; Identity::BYTES]) -> Option<Identity> {
        let (magic, rest) = bytes.split_first_chunk()?;
        let (words, _) = rest.as_chunks::<4>();
        let &[abi, rank, ranks, node, incarnation] = words else {
            return None;
        };
        let known = u64::from_le_bytes(*magic) == MAGIC && u32::from_le_bytes(abi) == CONTROL_ABI;
        known.then(|| Identity {
            rank: Rank(u32::from_le_bytes(rank)),
            ranks: u32::from_le_bytes(ranks),
            node: NodeId(u32::from_le_bytes(node)),
            incarnation: Incarnation(u32::from_le_bytes(incarnation)),
        })
    }
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
    /// [`ControlWords::entered`] is `None`, or the rank is dead, before the slot
    /// is used again.
    pub entered: Option<Version>,
}

/// A control block as one side sees it. The words are where [`ControlWords::page`] says: in
/// a mapping, or in a simulated node.
pub trait ControlWords {
    /// The words.
    fn page(&self) -> &Page;
    /// Who holds this view; each line may be written by one side only.
    fn side(&self) -> Side;

    /// Whose block it is.
    fn identity(&self) -> Identity {
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
    fn offer(&self, version: u64) -> u64 {
        let page = self.page();
        page.offer.called.store(version.wrapping_add(1), SeqCst);
        page.attention.attention.load(SeqCst)
    }

    /// Rank: the version that is offered next will be captured, armed or not: who arms it
    /// meanwhile, and comes too late for that, need not give it up.
    fn announce(&self, forced: Version) {
        writes(self, Side::Rank);
        let word = forced.0.wrapping_add(1);
        self.page().offer.forced.store(word, SeqCst);
    }

    /// The last version that the rank has forced, or is about to.
    fn forced(&self) -> Option<Version> {
        let next = self.page().offer.forced.load(SeqCst);
        Some(Version(next.checked_sub(1)?))
    }

    /// Last version offered + 1; 0 before the first.
    fn called(&self) -> u64 {
        self.page().offer.called.load(SeqCst)
    }

    /// Rank: enters `version`. If it is armed, or an earlier one is that this rank has
    /// left out, the answer says where to capture it and stays true until
    /// [`ControlWords::leave`], whatever the agent does. What was armed up to `answered`
    /// has had its answer.
    fn enter(&self, version: Version, answered: Option<Version>) -> Option<Armed> {
        self.claim(version);
        let wanted = |armed: &Armed| armed.version <= version && Some(armed.version) > answered;
        let armed = self.armed().filter(wanted);
        if armed.is_none() {
            self.leave();
        }
        armed
    }

    /// Rank: enters a version that need not be armed (a forced one).
    fn claim(&self, version: Version) {
        writes(self, Side::Rank);
        self.page()
            .offer
            .entered
            .store(version.0.wrapping_add(1), SeqCst);
    }

    /// Rank: the capture has ended, well or not.
    fn leave(&self) {
        writes(self, Side::Rank);
        self.page().offer.entered.store(0, SeqCst);
    }

    /// The version that the rank is inside of.
    fn entered(&self) -> Option<Version> {
        match self.page().offer.entered.load(SeqCst) {
            0 => None,
            word => Some(Version(word - 1)),
        }
    }

    /// Rank: bytes of a slab that holds all regions now.
    fn set_bytes_needed(&self, bytes: u64) {
        writes(self, Side::Rank);
        self.page().report.bytes_needed.store(bytes, SeqCst);
    }
    /// Bytes of a slab that holds all regions now; 0 if not known yet.
    fn bytes_needed(&self) -> u64 {
        self.page().report.bytes_needed.load(SeqCst)
    }
    /// Rank: counts a capture that blocked the program for `blocked_ns`.
    fn count_taken(&self, taken: u64, blocked_ns: u64) {
        writes(self, Side::Rank);
        self.page().report.blocked_ns.store(blocked_ns, Relaxed);
        self.page().report.taken.store(taken, SeqCst);
    }
    /// Captures so far.
    fn taken(&self) -> u64 {
        self.page().report.taken.load(SeqCst)
    }
    /// How long the last capture blocked the program, in nanoseconds.
    fn blocked_ns(&self) -> u64 {
        self.page().report.blocked_ns.load(Relaxed)
    }

    // ---- the agent's words ----

    /// Agent: arms `version`, unless the rank has offered it or a later one.
    fn try_arm(
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

    /// Agent: arms without looking at `called`; see [`ControlWords::try_arm`].
    fn arm(&self, version: Version, slot: u32, generation: u32, capacity: u64) {
        writes(self, Side::Agent);
        let line = &self.page().armed;
        line.slot.store(slot, Relaxed);
        line.generation.store(generation, Relaxed);
        line.capacity.store(capacity, Relaxed);
        line.armed.store(version.0, SeqCst);
        refresh_attention(self);
    }

    /// Agent: nothing is armed any more. If a version is returned, the rank is
    /// inside it: its slot must not be used until it leaves or is dead.
    #[must_use]
    fn disarm(&self) -> Option<Version> {
        writes(self, Side::Agent);
        self.page().armed.armed.store(NONE, SeqCst);
        refresh_attention(self);
        self.entered()
    }

    /// What is armed.
    fn armed(&self) -> Option<Armed> {
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
    fn set_inject(&self, version: Option<Version>) {
        writes(self, Side::Agent);
        self.page()
            .armed
            .inject
            .store(version.map_or(NONE, |v| v.0), SeqCst);
        refresh_attention(self);
    }
    /// The version at which a failure is to be injected.
    fn inject(&self) -> Option<Version> {
        let version = self.page().armed.inject.load(SeqCst);
        (version <= Version::MAX.0).then_some(Version(version))
    }

    /// Agent: the smallest version that needs the slow path; `u64::MAX` for none.
    /// [`ControlWords::arm`], [`ControlWords::disarm`] and
    /// [`ControlWords::set_inject`] keep it by themselves.
    fn set_attention(&self, version: u64) {
        writes(self, Side::Agent);
        self.page().attention.attention.store(version, SeqCst);
    }
    /// The smallest version that needs the slow path; `u64::MAX` for none.
    fn attention(&self) -> u64 {
        self.page().attention.attention.load(SeqCst)
    }

    /// Agent: the levels of the job, before any version is stable at one. A job keeps them
    /// as long as its block stands.
    fn set_levels(&self, levels: Levels) {
        writes(self, Side::Agent);
        self.page().outcome.levels.store(levels.to_word(), SeqCst);
    }
    /// The levels of the job.
    fn levels(&self) -> Levels {
        Levels::from_word(self.page().outcome.levels.load(SeqCst))
    }
    /// Agent: `version` is stable at `level`, which is one of the job's.
    fn set_committed(&self, level: Level, version: Version) {
        writes(self, Side::Agent);
        if let Some(nth) = self.levels().place(level) {
            self.page().outcome.committed[nth].store(version.0, SeqCst);
        }
    }
    /// The last version that is stable at `level`.
    fn committed(&self, level: Level) -> Option<Version> {
        let word = &self.page().outcome.committed[self.levels().place(level)?];
        let version = word.load(SeqCst);
        (version <= Version::MAX.0).then_some(Version(version))
    }
    /// The last version that survives this, at whatever level.
    fn surviving(&self, what: Survives) -> Option<Version> {
        let levels = self.levels().iter();
        let enough = levels.filter(|level| level.survives() >= what);
        enough.filter_map(|level| self.committed(level)).max()
    }
    /// What became of a version as far as survival of this goes; `None`: the agent has to be asked.
    fn outcome(&self, version: Version, what: Survives) -> Option<VersionState> {
        if self.surviving(what) >= Some(version) {
            return Some(VersionState::Committed);
        }
        (self.aborted() == Some(version)).then_some(VersionState::Aborted)
    }
    /// Agent: `version` was aborted.
    fn set_aborted(&self, version: Version) {
        writes(self, Side::Agent);
        let line = &self.page().outcome;
        line.aborted.store(version.0, SeqCst);
        line.spent.fetch_max(version.0.saturating_add(1), SeqCst);
    }
    /// The last version that was aborted.
    fn aborted(&self) -> Option<Version> {
        let version = self.page().outcome.aborted.load(SeqCst);
        (version <= Version::MAX.0).then_some(Version(version))
    }
    /// Agent: the largest version that was aborted, of those for which this block stood.
    fn spent(&self) -> Option<Version> {
        let next = self.page().outcome.spent.load(SeqCst);
        let version = next.checked_sub(1)?;
        Some(Version(version.min(Version::MAX.0)))
    }
}

fn writes(block: &(impl ControlWords + ?Sized), side: Side) {
    debug_assert_eq!(block.side(), side, "a line has one writer");
}

fn refresh_attention(block: &(impl ControlWords + ?Sized)) {
    let line = &block.page().armed;
    block.set_attention(line.armed.load(SeqCst).min(line.inject.load(SeqCst)));
}

/// What is wrong with words that came from elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Odd {
    /// They are no control block.
    Magic,
    /// Another version of the layout.
    Abi(u32),
    /// The rank is outside the job.
    Rank,
}

impl Page {
    /// Words of a block of which nothing is armed and all versions are "none".
    pub fn new(identity: Identity) -> Page {
        let zero = || AtomicU64::new(0);
        let word = || AtomicU32::new(0);
        let page = Page {
            identity: IdentityLine {
                magic: zero(),
                abi: word(),
                rank: word(),
                ranks: word(),
                node: word(),
                incarnation: word(),
            },
            offer: OfferLine {
                called: zero(),
                entered: zero(),
                forced: zero(),
            },
            attention: AttentionLine { attention: zero() },
            armed: ArmedLine {
                armed: zero(),
                slot: word(),
                generation: word(),
                capacity: zero(),
                inject: zero(),
            },
            report: ReportLine {
                bytes_needed: zero(),
                taken: zero(),
                blocked_ns: zero(),
            },
            outcome: OutcomeLine {
                levels: zero(),
                committed: [const { AtomicU64::new(0) }; LEVELS_MAX],
                aborted: zero(),
                spent: zero(),
            },
        };
        page.format(identity);
        page
    }

    /// Writes the words of a new block over zeroes.
    pub fn format(&self, identity: Identity) {
        self.attention.attention.store(NONE, Relaxed);
        self.armed.armed.store(NONE, Relaxed);
        self.armed.inject.store(NONE, Relaxed);
        for word in &self.outcome.committed {
            word.store(NONE, Relaxed);
        }
        self.outcome.levels.store(Levels::NONE.to_word(), Relaxed);
        self.outcome.aborted.store(NONE, Relaxed);
        let line = &self.identity;
        line.abi.store(CONTROL_ABI, Relaxed);
        line.rank.store(identity.rank.0, Relaxed);
        line.ranks.store(identity.ranks, Relaxed);
        line.node.store(identity.node.0, Relaxed);
        line.incarnation.store(identity.incarnation.0, Relaxed);
        line.magic.store(MAGIC, SeqCst);
    }

    /// Checks words that came from elsewhere: magic, version of the layout, identity.
    ///
    /// # Errors
    /// What is odd about them.
    pub fn check(&self) -> Result<(), Odd> {
        let line = &self.identity;
        if line.magic.load(SeqCst) != MAGIC {
            return Err(Odd::Magic);
        }
        match line.abi.load(Relaxed) {
            CONTROL_ABI => {}
            abi => return Err(Odd::Abi(abi)),
        }
        match line.rank.load(Relaxed) < line.ranks.load(Relaxed) {
            true => Ok(()),
            false => Err(Odd::Rank),
        }
    }
}

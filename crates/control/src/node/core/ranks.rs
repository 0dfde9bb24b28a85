//! The ranks of this node, their control blocks and their staging slots.
//!
//! Invariants: a slot that a flush reads (its slab is shared) or that a rank may be
//! filling is never given away; the newest version that is stable in memory keeps
//! its slot until a newer one is (P3); the sum of all slabs stays within the budget.

use std::collections::BTreeMap;
use std::sync::Arc;

use outlive_base::control_block::ControlWords;
use outlive_base::placement::ranks_of;
use outlive_base::slab::{SlabId, State};
use outlive_base::{Code, Entity, Error, Incarnation, Level, NodeId, Rank, Result, Version};

use crate::node::shell::{Link, Shell, Staging, Stop};

/// Slots a rank: one holds the newest stable version, the other takes the next.
pub const SLOTS: usize = 2;

/// Which slots may be used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reuse {
    /// With two slots, the newest version that is stable anywhere: it keeps its slot.
    /// With one, the newest that is stable elsewhere than in memory: its slot is free.
    pub keep: Option<(Incarnation, Version)>,
    /// There is memory for one slot only.
    pub staging: bool,
}

impl Reuse {
    /// How many slots a rank has.
    pub const fn slots(self) -> usize {
        if self.staging { 1 } else { SLOTS }
    }
}

/// What a slot is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Nothing.
    Free,
    /// Armed for a version, or a rank is filling it.
    Filling(Version),
    /// A complete capture.
    Full {
        /// The incarnation of the capture.
        source: Incarnation,
        /// The version.
        version: Version,
    },
}

/// A slab in a slot.
pub struct Staged<L> {
    /// Shared with flushes while they read it.
    pub slab: Arc<L>,
    /// Distinguishes slabs that took the slot after one another.
    pub generation: u32,
}

/// One of a rank's slots.
pub struct Slot<L> {
    /// The memory, once made.
    pub staged: Option<Staged<L>>,
    /// What for.
    pub usage: Use,
    /// Memory that a worker makes for it: never more than one at a time.
    pub making: Option<Making>,
}

/// A slab that is being made.
pub struct Making {
    /// Tells the worker's answer from one that is not waited for any more.
    pub ticket: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Makes the worker give up.
    pub stop: Stop,
}

impl<L: Staging> Slot<L> {
    /// Bytes of the slab, 0 without one.
    pub fn capacity(&self) -> u64 {
        self.staged
            .as_ref()
            .map_or(0, |staged| staged.slab.capacity())
    }
    /// Bytes of the slab and of what is being made for it.
    pub fn bytes(&self) -> u64 {
        let making = self.making.as_ref().map_or(0, |making| making.bytes);
        self.capacity().saturating_add(making)
    }
    /// True if no flush reads it.
    fn unshared(&self) -> bool {
        self.staged
            .as_ref()
            .is_none_or(|staged| Arc::strong_count(&staged.slab) == 1)
    }
}

/// A rank of this node.
pub struct RankEntry<S: Shell> {
    /// Its number.
    pub rank: Rank,
    /// Number of ranks of the job, as it says.
    pub ranks: u32,
    /// Its connection, while there is one.
    pub link: Option<Link>,
    /// Its last connection's name and its process, until that has ended.
    pub process: Option<(u64, u32)>,
    /// Its control block in this incarnation.
    pub control: Option<S::Block>,
    /// Its staging memory; outlives incarnations.
    pub slots: [Slot<S::Slab>; SLOTS],
    /// It left the job properly.
    pub closed: bool,
    next_generation: u32,
}

impl<S: Shell> RankEntry<S> {
    fn new(rank: Rank, ranks: u32) -> RankEntry<S> {
        let slot = || Slot {
            staged: None,
            usage: Use::Free,
            making: None,
        };
        RankEntry {
            rank,
            ranks,
            link: None,
            process: None,
            control: None,
            slots: [slot(), slot()],
            closed: false,
            next_generation: 1,
        }
    }

    /// The control block of this incarnation.
    pub fn block(&self) -> Option<&S::Block> {
        self.control.as_ref()
    }

    /// The slot that holds `version` of `source`.
    pub fn slot_with(&self, source: Incarnation, version: Version) -> Option<usize> {
        self.slots
            .iter()
            .position(|slot| slot.usage == Use::Full { source, version })
    }

    /// A slot that may take a new version.
    pub fn free_slot(&self, reuse: Reuse) -> Option<usize> {
        (0..reuse.slots()).find(|&slot| self.slots[slot].unshared() && self.is_over(slot, reuse))
    }

    /// True if what lies in a slot is not needed any more, and nobody fills it or makes
    /// memory for it.
    pub fn is_over(&self, slot: usize, reuse: Reuse) -> bool {
        if self.slots[slot].making.is_some() {
            return false;
        }
        let same = |other: &Slot<_>| other.usage == self.slots[slot].usage;
        match self.slots[slot].usage {
            Use::Free => true,
            // Rebuilt beside what an agent before left of it: one of the two is enough. Kept
            // both, they would leave no slot for a newer version, for ever.
            Use::Full { .. } if self.slots[..slot].iter().any(same) => true,
            // What was restored stays until this rank has taken it over.
            Use::Full { source, version } if reuse.staging => {
                self.has_called() && reuse.keep.is_some_and(|keep| keep >= (source, version))
            }
            Use::Full { source, version } => {
                reuse.keep.is_some_and(|keep| keep > (source, version))
            }
            Use::Filling(_) => false,
        }
    }

    /// What its slots hold, for an error.
    pub fn slots_in_words(&self) -> String {
        let words = self.slots.iter().map(|slot| match slot.usage {
            Use::Filling(version) => format!("one is held for version {}", version.0),
            Use::Full { version, .. } => format!("one holds version {}", version.0),
            Use::Free if slot.making.is_some() => "one is being made".into(),
            Use::Free => "one is still being written".into(),
        });
        words.collect::<Vec<_>>().join(", ")
    }

    fn has_called(&self) -> bool {
        self.block().is_some_and(|block| block.called() > 0)
    }

    /// Stamps a free slot's slab for the next version; gives its generation.
    pub fn stamp(&mut self, slot: usize, job: u64, incarnation: Incarnation) -> Result<u32> {
        let (rank, ranks) = (self.rank, self.ranks);
        let staged = self.slots[slot]
            .staged
            .as_mut()
            .ok_or_else(|| Error::internal("a slot without memory was armed"))?;
        let generation = staged.generation;
        let id = SlabId {
            job,
            incarnation,
            rank,
            ranks,
            slot: slot as u32,
            generation,
        };
        let slab = Arc::get_mut(&mut staged.slab)
            .ok_or_else(|| Error::internal("a slot in use was armed"))?;
        slab.format(id)?;
        Ok(staged.generation)
    }

    /// Puts a new slab into a slot.
    pub fn install(&mut self, slot: usize, slab: S::Slab, usage: Use) {
        self.adopt(slot, slab, usage, self.next_generation);
    }

    fn adopt(&mut self, slot: usize, slab: S::Slab, usage: Use, generation: u32) {
        self.next_generation = self.next_generation.max(generation.saturating_add(1));
        self.slots[slot] = Slot {
            staged: Some(Staged {
                slab: Arc::new(slab),
                generation,
            }),
            usage,
            making: None,
        };
    }
}

/// Shared memory holds what neither agent nor library wrote there: the program did.
pub fn overwritten(entity: Entity, reason: &str) -> Error {
    Error::new(
        Code::SharedMemory,
        entity,
        reason,
        "look for writes beyond the program's arrays (-fsanitize=address, valgrind)",
    )
}

/// The budget does not hold what the ranks protect.
pub fn no_memory(node: u32, needed: u64, budget: u64) -> Error {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Error::new(
        Code::MemoryBudget,
        Entity::Node(node),
        format!(
            "staging needs {} MiB, the budget is {} MiB",
            mib(needed),
            mib(budget)
        ),
        "raise --memory, use more nodes or protect less",
    )
}

/// All ranks of this node.
pub struct Ranks<S: Shell> {
    entries: BTreeMap<Rank, RankEntry<S>>,
}

impl<S: Shell> Default for Ranks<S> {
    fn default() -> Ranks<S> {
        Ranks {
            entries: BTreeMap::new(),
        }
    }
}

impl<S: Shell> Ranks<S> {
    /// The ranks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &RankEntry<S>> {
        self.entries.values()
    }
    /// The ranks, ascending.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut RankEntry<S>> {
        self.entries.values_mut()
    }
    /// One rank.
    pub fn get(&self, rank: Rank) -> Option<&RankEntry<S>> {
        self.entries.get(&rank)
    }
    /// One rank.
    pub fn get_mut(&mut self, rank: Rank) -> Option<&mut RankEntry<S>> {
        self.entries.get_mut(&rank)
    }
    /// One rank, made if it is new.
    pub fn entry(&mut self, rank: Rank, ranks: u32) -> &mut RankEntry<S> {
        self.entries
            .entry(rank)
            .or_insert_with(|| RankEntry::new(rank, ranks))
    }
    /// The rank of a connection.
    pub fn by_token(&mut self, token: u64) -> Option<&mut RankEntry<S>> {
        self.entries
            .values_mut()
            .find(|entry| entry.link.as_ref().is_some_and(|link| link.token == token))
    }
    /// The rank whose last connection it was.
    pub fn by_last_token(&mut self, token: u64) -> Option<&mut RankEntry<S>> {
        let last = |entry: &RankEntry<S>| entry.process.is_some_and(|(last, _)| last == token);
        self.entries.values_mut().find(|entry| last(entry))
    }
    /// Number of ranks of the job, if any rank said it.
    pub fn job_ranks(&self) -> Option<u32> {
        self.entries
            .values()
            .find(|entry| entry.control.is_some())
            .map(|entry| entry.ranks)
    }
    /// True if every rank of `node` is connected and none has left.
    pub fn complete(&self, node: NodeId, nodes: u32) -> bool {
        self.job_ranks().is_some_and(|ranks| {
            ranks_of(node, ranks, nodes).all(|rank| {
                self.entries.get(&rank).is_some_and(|entry| {
                    entry.link.is_some() && entry.control.is_some() && !entry.closed
                })
            })
        })
    }
    /// True if no rank of the job lives on this node.
    pub fn none_here(&self, node: NodeId, nodes: u32, ranks: Option<u32>) -> bool {
        ranks.is_some_and(|ranks| ranks_of(node, ranks, nodes).next().is_none())
    }
    /// Staging memory in use or being made, in bytes.
    pub fn memory(&self) -> u64 {
        self.entries
            .values()
            .flat_map(|entry| &entry.slots)
            .map(Slot::bytes)
            .fold(0, u64::saturating_add)
    }
    /// The largest version that a rank of this node has offered.
    pub fn called_max(&self) -> Option<Version> {
        self.entries
            .values()
            .filter_map(RankEntry::block)
            .filter_map(|block| block.called().checked_sub(1).map(Version))
            .max()
    }
    /// Tells all ranks that a version is stable.
    pub fn set_committed(&self, level: Level, version: Version) {
        for block in self.entries.values().filter_map(RankEntry::block) {
            block.set_committed(level, version);
        }
    }
    /// The versions of which every rank of this node holds a complete capture.
    pub fn held(&self, node: NodeId, ranks: u32, nodes: u32) -> Vec<(Incarnation, Version)> {
        let mut here = ranks_of(node, ranks, nodes).map(|rank| self.entries.get(&rank));
        let Some(first) = here.next() else {
            return Vec::new();
        };
        let versions = |entry: &RankEntry<S>| -> Vec<(Incarnation, Version)> {
            entry
                .slots
                .iter()
                .filter_map(|slot| match slot.usage {
                    Use::Full { source, version } => Some((source, version)),
                    _ => None,
                })
                .collect()
        };
        let mut held = first.map(versions).unwrap_or_default();
        for entry in here {
            let theirs = entry.map(versions).unwrap_or_default();
            held.retain(|version| theirs.contains(version));
        }
        held
    }
    /// Ends the incarnation: connections and control blocks go, complete captures stay.
    pub fn end_incarnation(&mut self) {
        for entry in self.entries.values_mut() {
            entry.link = None;
            entry.process = None;
            entry.control = None;
            entry.closed = false;
            for slot in &mut entry.slots {
                if matches!(slot.usage, Use::Filling(_)) {
                    slot.usage = Use::Free;
                }
                if let Some(making) = &slot.making {
                    making.stop.give_up();
                }
            }
        }
    }
    /// Forgets control blocks of other incarnations: an agent that ended while one was
    /// being opened has left those of the one before with the keeper.
    pub fn drop_controls_but(&mut self, incarnation: Incarnation) {
        for entry in self.entries.values_mut() {
            let is_other = |block: &S::Block| block.identity().incarnation != incarnation;
            if entry.block().is_some_and(is_other) {
                entry.control = None;
            }
        }
    }
    /// Forgets slots whose version does not lie at or before `last`: void versions.
    pub fn drop_after(&mut self, last: Option<(Incarnation, Version)>) {
        for slot in self.entries.values_mut().flat_map(|entry| &mut entry.slots) {
            if let Use::Full { source, version } = slot.usage
                && last.is_none_or(|last| (source, version) > last)
            {
                slot.usage = Use::Free;
            }
        }
    }

    /// Takes over a control block that the agent before this one left with the keeper.
    pub fn adopt_block(&mut self, block: S::Block) {
        let identity = block.identity();
        self.entry(identity.rank, identity.ranks).control = Some(block);
    }

    /// Takes over a slab that the agent before this one left with the keeper.
    ///
    /// # Errors
    /// If what is there is no slab's head.
    pub fn adopt_slab(&mut self, slab: S::Slab) -> Result<()> {
        let head = slab.head()?;
        let entry = self.entry(head.id.rank, head.id.ranks);
        let slot = head.id.slot as usize;
        if slot >= SLOTS {
            return Ok(());
        }
        let usage = match head.state {
            State::Sealed | State::Captured => Use::Full {
                source: head.id.incarnation,
                version: head.version,
            },
            State::Filling => Use::Filling(head.version),
            State::Empty => Use::Free,
        };
        // The rank knows its mapping by slot and generation: both stay.
        entry.adopt(slot, slab, usage, head.id.generation);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::still::{Still, block_of};

    #[test]
    fn the_newest_stable_version_keeps_its_slot() {
        let mut ranks = Ranks::<Still>::default();
        let entry = ranks.entry(Rank(0), 1);
        let full = |version| Use::Full {
            source: Incarnation(1),
            version: Version(version),
        };
        let stable = |version| Reuse {
            keep: Some((Incarnation(1), Version(version))),
            staging: false,
        };
        let none = Reuse {
            keep: None,
            staging: false,
        };
        assert_eq!(entry.free_slot(none), Some(0));
        entry.slots[0].usage = full(10);
        assert_eq!(entry.free_slot(stable(10)), Some(1));
        entry.slots[1].usage = Use::Filling(Version(20));
        assert_eq!(entry.free_slot(stable(10)), None, "back-pressure");
        entry.slots[1].usage = full(20);
        assert_eq!(entry.free_slot(stable(10)), None, "20 is not stable yet");
        assert_eq!(entry.free_slot(stable(20)), Some(0));
        entry.slots[0].usage = full(20);
        assert_eq!(entry.free_slot(stable(20)), Some(1), "twice the same");
        entry.slots[0].usage = full(10);
        // One slot is only a way: free when the version lies elsewhere, and, if it was
        // restored, when the rank has gone on.
        let one = |version| Reuse {
            staging: true,
            ..stable(version)
        };
        assert_eq!(entry.free_slot(one(10)), None, "not taken over yet");
        let (block, rank) = block_of(Rank(0), Incarnation(1));
        entry.control = Some(block);
        assert_eq!(entry.free_slot(one(10)), None, "not offered anything yet");
        let _ = rank.offer(11);
        assert_eq!(entry.free_slot(one(10)), Some(0));
        assert_eq!(entry.free_slot(one(9)), None, "10 lies nowhere else");
        entry.slots[0].usage = Use::Filling(Version(30));
        assert_eq!(
            entry.free_slot(one(20)),
            None,
            "the second slot is not used"
        );
    }
}

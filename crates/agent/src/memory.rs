//! Staging memory ahead of need: how many slots the budget holds, and making them.
//!
//! Invariants: what is being made and what is there stay within the budget; a slab in
//! use is never dropped; a version is armed only into memory that is there.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use outlive_base::{Error, Level, Rank, Result};
use outlive_capture::slab::Slab;

use crate::core::{Agent, Work};
use crate::ranks::{SLOTS, Use, no_memory, share};

impl Agent {
    /// Makes the slabs that the ranks will need, before any version is armed, so
    /// that arming never waits for memory.
    pub(crate) fn prepare_memory(&mut self) {
        if !self.ranks.complete(self.me, self.nodes()) {
            return;
        }
        let budget = self.spec.memory_bytes;
        let demand: u64 = self
            .ranks
            .iter()
            .filter_map(|entry| entry.block().map(|block| block.bytes_needed()))
            .fold(0, u64::saturating_add);
        if !self.choose_slots(demand, budget) {
            return;
        }
        let reuse = self.reuse();
        let mut making = Vec::new();
        let mut used = self.ranks.memory();
        for entry in self.ranks.iter_mut() {
            let needed = entry.block().map_or(0, |block| block.bytes_needed());
            if needed == 0 {
                continue;
            }
            for slot in 0..SLOTS {
                let place = &entry.slots[slot];
                let reusable = entry.is_over(slot, reuse);
                let shared = place
                    .staged
                    .as_ref()
                    .is_some_and(|staged| Arc::strong_count(&staged.slab) > 1);
                let here = slot < reuse.slots();
                if !reusable || shared || (here && place.capacity() >= needed) {
                    continue;
                }
                used -= place.capacity();
                entry.slots[slot].staged = None;
                entry.slots[slot].usage = Use::Free;
                // Memory of a slot that is still in use comes first.
                if here && used.saturating_add(needed) <= budget {
                    used += needed;
                    entry.slots[slot].usage = Use::Busy;
                    making.push((entry.rank, slot, needed));
                }
            }
        }
        for (rank, slot, needed) in making {
            let work = self.work.clone();
            let job = move || {
                let made = Slab::create(needed).map_err(share);
                let _ = work.send(Work::SlabMade { rank, slot, made });
            };
            if let Err(error) = self.memory_maker.run(job) {
                self.on_slab_made(rank, slot, Err(error));
            }
        }
    }

    /// Two slots a rank where the budget holds them; else one, which is a way to the
    /// other levels (checkpoints are rarer, and none lies in memory); else none. False
    /// if none. What is lost is said once.
    fn choose_slots(&mut self, demand: u64, budget: u64) -> bool {
        let two = demand.saturating_mul(SLOTS as u64);
        let other = !self.all_levels().without(Level::Memory).is_empty();
        let slots = match () {
            () if two <= budget => 2,
            () if demand <= budget && other => 1,
            () => 0,
        };
        self.staging = slots == 1;
        if slots < SLOTS && !self.memory_warned {
            self.memory_warned = true;
            let said = no_memory(self.me.0, two, budget);
            self.warn(match slots {
                1 => Error::new(
                    said.code(),
                    said.entity().clone(),
                    format!(
                        "{}: one slot is used, the level memory is not",
                        said.reason()
                    ),
                    said.remedy(),
                ),
                _ => said,
            });
        }
        slots > 0
    }

    pub(crate) fn on_slab_made(&mut self, rank: Rank, slot: usize, made: Result<(Slab, OwnedFd)>) {
        let (job, incarnation) = (self.spec.job_hash, self.incarnation);
        let Some(entry) = self.ranks.get_mut(rank) else {
            return;
        };
        match made {
            Ok((slab, fd)) => {
                if entry.slots[slot].usage == Use::Busy {
                    entry.install(slot, slab, fd, Use::Free);
                    // An agent that is started anew must find whose it is.
                    match entry.stamp(slot, job, incarnation) {
                        Ok(_) => self.keep_slab(rank, slot),
                        Err(error) => self.warn(error),
                    }
                }
            }
            Err(error) => {
                if entry.slots[slot].usage == Use::Busy {
                    entry.slots[slot].usage = Use::Free;
                }
                if !self.memory_warned {
                    self.memory_warned = true;
                    self.warn(error);
                }
            }
        }
    }
}

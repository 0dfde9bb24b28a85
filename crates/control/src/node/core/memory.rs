//! Staging memory: how many slots the budget holds, and making them, ahead of need or
//! while a rank waits.
//!
//! Invariants: what is being made and what is there stay within the budget; at most one
//! worker makes memory for a slot; a slab in use is never dropped; a version is armed
//! only into memory that is there. Pages are made and given back by workers only: for
//! 3 GiB either takes longer than a heartbeat.

use std::sync::Arc;

use outlive_base::control_block::ControlWords;
use outlive_base::level::StoreKind;
use outlive_base::{Error, Rank, Result};

use super::Core;
use super::ranks::{Making, SLOTS, Use, no_memory};
use crate::node::shell::{Ask, Shell, Stop};

/// What memory can be had.
#[derive(Default)]
pub(super) struct Supply {
    /// The number of the last slab that was begun.
    tickets: u64,
    /// There is memory for one slot a rank: it is a way to the other levels, no level.
    is_one_slot: bool,
    /// That there is too little was said.
    is_said: bool,
}

impl Supply {
    fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// There is too little: true if that is news.
    const fn is_news(&mut self) -> bool {
        !std::mem::replace(&mut self.is_said, true)
    }

    /// True if there is memory for one slot a rank only.
    pub const fn is_one_slot(&self) -> bool {
        self.is_one_slot
    }

    /// True if there is memory for what the ranks protect, for one slot at least.
    pub const fn is_enough(&self) -> bool {
        !self.is_said || self.is_one_slot
    }
}

impl<S: Shell> Core<S> {
    /// Makes the slabs that the ranks will need, before any version is armed, so
    /// that arming never waits for memory.
    pub(super) fn prepare_memory(&mut self) {
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
        let (mut wanted, mut unused) = (Vec::new(), Vec::new());
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
                entry.slots[slot].usage = Use::Free;
                // Memory of a slot that is still in use comes first.
                if here && used.saturating_add(needed) <= budget {
                    used += needed;
                    wanted.push((entry.rank, slot, needed));
                } else {
                    unused.extend(entry.slots[slot].staged.take().map(|it| it.slab));
                }
            }
        }
        self.give_back(unused);
        for (rank, slot, needed) in wanted {
            if let Err(error) = self.begin_making(rank, slot, needed) {
                self.cannot_make(rank, error);
            }
        }
    }

    /// True if a slot has a slab of at least `bytes`; else such a slab is on its way, and
    /// `Node::try_asks` follows when it has come.
    ///
    /// # Errors
    /// If the budget does not hold it.
    pub(super) fn has_memory(&mut self, rank: Rank, slot: usize, bytes: u64) -> Result<bool> {
        let Some(entry) = self.ranks.get_mut(rank) else {
            return Err(Error::internal("an unknown rank asks for memory"));
        };
        let place = &entry.slots[slot];
        match &place.making {
            Some(making) if making.bytes < bytes => making.stop.give_up(),
            Some(_) => {}
            None if place.capacity() >= bytes => return Ok(true),
            None => self.begin_making(rank, slot, bytes)?,
        }
        Ok(false)
    }

    /// Lets a worker make a slab for a slot. The slab that is there goes first: both
    /// together would break the bound.
    fn begin_making(&mut self, rank: Rank, slot: usize, bytes: u64) -> Result<()> {
        let (used, budget) = (self.ranks.memory(), self.spec.memory_bytes);
        let node = self.me.0;
        let ticket = self.supply.next_ticket();
        let Some(entry) = self.ranks.get_mut(rank) else {
            return Err(Error::internal("an unknown rank asks for memory"));
        };
        let place = &mut entry.slots[slot];
        let after = (used - place.bytes()).saturating_add(bytes);
        if after > budget {
            return Err(no_memory(node, after, budget));
        }
        let stop = Stop::default();
        place.making = Some(Making {
            ticket,
            bytes,
            stop: stop.clone(),
        });
        let old = place.staged.take().map(|it| it.slab);
        self.shell.ask(Ask::Slab {
            rank,
            slot,
            ticket,
            bytes,
            stop,
            old,
        });
        Ok(())
    }

    /// Unmaps slabs that nobody needs.
    pub(super) fn give_back(&mut self, slabs: Vec<Arc<S::Slab>>) {
        if !slabs.is_empty() {
            self.shell.ask(Ask::GiveBack(slabs));
        }
    }

    /// Two slots a rank where the budget holds them; else one, which is a way to the
    /// other levels (checkpoints are rarer, and none lies in memory); else none. False
    /// if none. What is lost is said once.
    fn choose_slots(&mut self, demand: u64, budget: u64) -> bool {
        let two = demand.saturating_mul(SLOTS as u64);
        let others = self.all_levels().kept_elsewhere(StoreKind::Keeper);
        let slots = match () {
            () if two <= budget => 2,
            () if demand <= budget && !others.is_empty() => 1,
            () => 0,
        };
        self.supply.is_one_slot = slots == 1;
        if slots < SLOTS && self.supply.is_news() {
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

    pub(super) fn on_slab_made(
        &mut self,
        rank: Rank,
        slot: usize,
        ticket: u64,
        made: Result<Option<S::Slab>>,
    ) {
        let (job, incarnation) = (self.spec.job_hash, self.open.incarnation());
        let awaited = |making: &Making| making.ticket == ticket;
        let entry = self.ranks.get_mut(rank);
        let Some(entry) = entry.filter(|e| e.slots[slot].making.as_ref().is_some_and(awaited))
        else {
            let unused = made.ok().flatten().map(Arc::new);
            return self.give_back(unused.into_iter().collect());
        };
        entry.slots[slot].making = None;
        match made {
            Ok(Some(slab)) => {
                let usage = entry.slots[slot].usage;
                entry.install(slot, slab, usage);
                // An agent that is started anew must find whose it is.
                match entry.stamp(slot, job, incarnation) {
                    Ok(_) => self.keep_slab(rank, slot),
                    Err(error) => self.warn(error),
                }
            }
            Ok(None) => {}
            Err(error) => self.cannot_make(rank, error),
        }
        self.try_asks();
    }

    /// Who waits for the memory hears of it; else it is said once.
    fn cannot_make(&mut self, rank: Rank, error: Error) {
        if self.asks.has(rank) {
            return self.refuse_ask(rank, error);
        }
        if self.supply.is_news() {
            self.warn(error);
        }
    }

    /// Leaves a slot's slab with the keeper.
    pub(super) fn keep_slab(&mut self, rank: Rank, slot: usize) {
        let entry = self.ranks.get(rank);
        if let Some(staged) = entry.and_then(|entry| entry.slots[slot].staged.as_ref()) {
            self.shell.keep_slab(rank, slot, &staged.slab);
        }
    }
}

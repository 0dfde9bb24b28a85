//! Memory for captures: a rank asks for a slab of an armed version, or forces one, and
//! waits for the answer, at most as long as it has said to itself.
//!
//! Invariants: a rank has at most one ask here; what has been answered, or given up by
//! the rank, is asked no more.

use outlive_base::control_block::ControlWords;
use outlive_base::ipc::ToRank;
use outlive_base::{Code, Entity, Error, Rank, Result, Time, Version};
use outlive_protocols::commit::{Command, Why};

use super::Core;
use super::ranks::Use;
use crate::node::shell::{Shell, Staging, With};

/// Longest time a forced capture waits for a slot that is being written: less
/// than a rank waits for its agent by default.
const FORCE_PATIENCE: Time = Time::from_secs(5);

/// A rank that waits for memory to capture into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub rank: Rank,
    sequence: u32,
    version: Version,
    bytes: u64,
    /// Whatever the policy says; else the version is armed.
    forced: bool,
    /// How long it waits for a slot.
    until: Time,
}

/// Ranks that wait.
#[derive(Default)]
pub(super) struct Asks {
    /// For memory to capture into, each at most once.
    waiters: Vec<Waiter>,
    /// So many for a version to be safe.
    for_safety: usize,
}

impl Asks {
    /// It waits for memory.
    fn put(&mut self, ask: Waiter) {
        self.waiters.push(ask);
    }

    /// What the rank waits for.
    fn take(&mut self, rank: Rank) -> Option<Waiter> {
        let at = self.waiters.iter().position(|ask| ask.rank == rank)?;
        Some(self.waiters.swap_remove(at))
    }

    fn take_all(&mut self) -> Vec<Waiter> {
        std::mem::take(&mut self.waiters)
    }

    /// The rank waits for memory no more.
    pub fn forget(&mut self, rank: Rank) {
        self.waiters.retain(|ask| ask.rank != rank);
    }

    /// None does.
    pub fn clear(&mut self) {
        self.waiters.clear();
    }

    /// True if the rank waits for memory.
    pub fn has(&self, rank: Rank) -> bool {
        self.waiters.iter().any(|ask| ask.rank == rank)
    }

    /// True if none waits for memory.
    pub const fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// True while a rank waits for anything.
    pub const fn is_anybody_waiting(&self) -> bool {
        self.for_safety > 0 || !self.waiters.is_empty()
    }

    /// So many ranks wait for a version to be safe.
    pub const fn note_waiting(&mut self, ranks: usize) {
        self.for_safety = ranks;
    }
}

impl<S: Shell> Core<S> {
    /// A rank needs memory for a version. It waits for one at a time.
    pub(super) fn ask(
        &mut self,
        rank: Rank,
        sequence: u32,
        version: Version,
        bytes: u64,
        forced: bool,
    ) {
        self.asks.forget(rank);
        self.serve(Waiter {
            rank,
            sequence,
            version,
            bytes,
            forced,
            until: self.now + FORCE_PATIENCE,
        });
    }

    fn serve(&mut self, ask: Waiter) {
        match ask.forced {
            true => self.force(ask),
            false => self.give_slab(ask),
        }
    }

    /// Tries again what waits for a slot or for memory.
    pub(super) fn try_asks(&mut self) {
        for ask in self.asks.take_all() {
            self.serve(ask);
        }
    }

    /// The memory that a rank waits for cannot be made.
    pub(super) fn refuse_ask(&mut self, rank: Rank, error: Error) {
        let Some(ask) = self.asks.take(rank) else {
            return;
        };
        match ask.forced {
            true => self.end_force(ask, Err(error)),
            false => self.send_slab(rank, ask.sequence, ask.version, Err(error)),
        }
    }

    /// A rank needs the slab of an armed version, for the first time or larger.
    fn give_slab(&mut self, ask: Waiter) {
        let Some(entry) = self.ranks.get_mut(ask.rank) else {
            return;
        };
        let filling = entry.filling_up_to(ask.version).map(|(slot, _)| slot);
        let ready = match filling {
            Some(slot) => self
                .has_memory(ask.rank, slot, ask.bytes)
                .map(|has| (slot, has)),
            None => Err(Error::new(
                Code::CommitAborted,
                Entity::Version(ask.version.0),
                "is not armed any more",
                "nothing to do: the next version will be offered",
            )),
        };
        match ready {
            Ok((_, false)) => self.asks.put(ask),
            Ok((slot, true)) => self.send_slab(ask.rank, ask.sequence, ask.version, Ok(slot)),
            Err(error) => self.send_slab(ask.rank, ask.sequence, ask.version, Err(error)),
        }
    }

    pub(super) fn send_slab(
        &mut self,
        rank: Rank,
        sequence: u32,
        version: Version,
        slot: Result<usize>,
    ) {
        let Some(entry) = self.ranks.get_mut(rank) else {
            return;
        };
        let staged = slot.and_then(|slot| {
            let staged = entry.slots[slot].staged.as_ref();
            staged
                .map(|staged| (slot, staged))
                .ok_or_else(|| Error::internal("no slab"))
        });
        match staged {
            Ok((slot, staged)) => {
                let message = ToRank::Slab {
                    version,
                    slot: slot as u32,
                    generation: staged.generation,
                    capacity: staged.slab.capacity(),
                };
                if let Some(link) = entry.link {
                    let with = With::Slab(&*staged.slab);
                    self.shell.answer(link, sequence, &message, with);
                }
            }
            Err(error) => {
                let message = ToRank::Error {
                    error: error.clone(),
                };
                self.answer(rank, sequence, message);
                self.warn(error);
            }
        }
    }

    /// A forced version comes before one that is armed only, if there is no free slot: it is lent
    /// the slot, and what was armed is armed again when one is free (`Core::arm_again`).
    fn make_way(&mut self, rank: Rank, version: Version) {
        let reuse = self.reuse();
        let Some(entry) = self.ranks.get_mut(rank) else {
            return;
        };
        let armed = entry.block().and_then(|block| block.armed());
        let making = entry.slots.iter().any(|slot| slot.making.is_some());
        if let Some(armed) = armed.filter(|armed| armed.version > version)
            && entry.free_slot(reuse).is_none()
            && !making
        {
            self.disarm_rank(rank, armed.version);
            if let Some(round) = self.rounds.get_mut(&armed.version) {
                round.made_way = true;
            }
        }
    }

    /// A checkpoint that the ranks take whatever the policy says. While the slots are
    /// being written the answer waits, up to a bound; while memory is made, as long as the
    /// rank does.
    fn force(&mut self, ask: Waiter) {
        let Waiter { rank, version, .. } = ask;
        self.make_way(rank, version);
        let keep = self.reuse();
        let Some(entry) = self.ranks.get_mut(rank) else {
            return;
        };
        if entry.block().and_then(|block| block.aborted()) == Some(version) {
            let error = Error::new(
                Code::CommitAborted,
                Entity::Version(version.0),
                "was given up before this rank reached it",
                "force the next version",
            );
            return self.send_slab(rank, ask.sequence, version, Err(error));
        }
        entry.free_unseen(version);
        let slot = entry
            .slots
            .iter()
            .position(|slot| slot.usage == Use::Filling(version))
            .or_else(|| entry.free_slot(keep));
        let Some(slot) = slot else {
            let making = entry.slots.iter().find_map(|slot| slot.making.as_ref());
            // What is made ahead of need is for this one, if it is large enough.
            if let Some(making) = making.filter(|making| making.bytes < ask.bytes) {
                making.stop.give_up();
            }
            if (making.is_some() || self.now < ask.until) && !self.finishing {
                return self.asks.put(ask);
            }
            let error = Error::new(
                Code::AgentTimeout,
                Entity::Rank(rank.0),
                format!(
                    "no slot is free after {:.0} ms: {}",
                    FORCE_PATIENCE.as_ms(),
                    entry.slots_in_words()
                ),
                "wait for the previous version (outlive_wait) before forcing another",
            );
            return self.send_slab(rank, ask.sequence, version, Err(error));
        };
        entry.slots[slot].usage = Use::Filling(version);
        match self.has_memory(rank, slot, ask.bytes) {
            Ok(false) => self.asks.put(ask),
            Ok(true) => self.end_force(ask, Ok(slot)),
            Err(error) => self.end_force(ask, Err(error)),
        }
    }

    /// Gives the slab of a forced version, or why there is none; either begins its round.
    fn end_force(&mut self, ask: Waiter, memory: Result<usize>) {
        let Waiter { rank, version, .. } = ask;
        let (job, incarnation) = (self.spec.job_hash, self.open.incarnation());
        let Some(entry) = self.ranks.get_mut(rank) else {
            return;
        };
        let ready = memory.and_then(|slot| entry.stamp(slot, job, incarnation).map(|_| slot));
        if ready.is_err() {
            for slot in &mut entry.slots {
                if slot.usage == Use::Filling(version) {
                    slot.usage = Use::Free;
                }
            }
        }
        let levels = self.all_levels();
        let failed = ready.is_err();
        self.send_slab(rank, ask.sequence, version, ready);
        if !self.rounds.contains_key(&version) {
            // Its arming may wait here for room: this is more than an answer to it.
            self.deferred.forget(version);
            self.open_round(version, levels);
            self.command(Command::Force { version, levels });
        }
        if failed {
            return self.capture_failed(rank, version, Why::NoRoom);
        }
        self.fail_point("capture:slab");
    }
}

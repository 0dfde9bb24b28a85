//! The regions of all jobs: who has what, who is reading and writing where.
//!
//! A part of a region that is written or read is *held*. Two holds that overlap wait for each
//! other, unless both read; those who come first are served first. So nobody reads half of a put.
//! A hold under which something was written and that is dropped before [`Hold::finish`] leaves its
//! part *torn*: it is given out no more until a whole put covers it.
//!
//! A hold that was *lent* to a client of the same machine ends at its bound, when somebody else
//! needs the part: the client may be stopped for ever. Memory that a lost writer can still reach
//! is moved before anybody else gets it.
//!
//! Invariants: no operation waits longer than its bound, nor without asking its [`Tick`]; the lock
//! is never held over input, output or the allocation of memory; what a job can make the server
//! keep is bounded by its quota and the numbers of regions and connections.

mod hold;
mod region;
mod ring;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outlive_base::{Code, Result};

use crate::fault::{Fault, Outcome, Tick, invalid, late, no_region, of_region};
use crate::pool::{PAGE_BYTES, Pool};
use crate::wire::{LIST_MAX, RegionKind, Stat, check_name};

pub use hold::{Hold, How};
pub use region::RING_HEAD_BYTES;
use region::{Job, Memory, Region, State};

/// A wait looks at least this often whether it should end.
const SLICE: Duration = Duration::from_millis(200);
/// The regions of all jobs.
#[derive(Debug)]
pub struct Store {
    state: Mutex<State>,
    changed: Condvar,
    pool: Pool,
    memory: u64,
    regions_max: usize,
    hold: Duration,
}

impl Store {
    /// A store over `pool`, of `memory` bytes. `hold` bounds how long a part is held, beside the
    /// time that its bytes may take.
    pub fn new(pool: Pool, memory: u64, regions_max: usize, hold: Duration) -> Store {
        Store {
            state: Mutex::default(),
            changed: Condvar::new(),
            pool,
            memory,
            regions_max,
            hold,
        }
    }

    /// Admits a job; before any of its clients comes.
    pub fn admit(&self, job: &str, quota: u64) {
        let admitted = Job {
            quota,
            used: 0,
            regions: BTreeMap::new(),
        };
        self.state().jobs.insert(job.to_owned(), admitted);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock; if it did, the state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State>, until: Instant) -> MutexGuard<'a, State> {
        let left = until.saturating_duration_since(Instant::now()).min(SLICE);
        let slept = self.changed.wait_timeout(state, left);
        slept.unwrap_or_else(PoisonError::into_inner).0
    }

    /// All memory, what is free of it, and the quota and use of this job, in bytes.
    pub fn room(&self, job: &str) -> (u64, u64, u64, u64) {
        let state = self.state();
        let (quota, used) = state
            .jobs
            .get(job)
            .map_or((0, 0), |job| (job.quota, job.used));
        (self.memory, self.memory - state.used, quota, used)
    }

    /// Makes a region; false if it is there already, of this size and kind.
    ///
    /// # Errors
    /// [`Code::NoSpace`] beyond the quota or the server's memory, [`Code::InvalidArgument`] for
    /// an impossible size or name or if the region is another one.
    pub fn allocate(
        &self,
        job: &str,
        name: &str,
        bytes: u64,
        kind: RegionKind,
        tick: Tick<'_>,
    ) -> Outcome<bool> {
        if !check_name(name) {
            return Err(
                invalid(name, "a name has 1 to 255 bytes and no control characters").into(),
            );
        }
        let least = if kind == RegionKind::Ring {
            2 * RING_HEAD_BYTES
        } else {
            1
        };
        if bytes < least {
            return Err(invalid(name, format!("{bytes} bytes: the least is {least}")).into());
        }
        let pages = bytes.checked_next_multiple_of(PAGE_BYTES);
        let charged = pages.unwrap_or(u64::MAX);
        let Some(id) = self.book(job, name, (bytes, charged), kind)? else {
            return Ok(false);
        };
        let made = self.pool.allocate(charged, tick);
        let mut state = self.state();
        let number = state.number();
        let (file, fault) = match made {
            Ok(file) => (Some(Arc::new(file)), None),
            Err(error) => (None, Some(error)),
        };
        let ours = state.region(job, name).filter(|region| region.id == id);
        match (ours, file) {
            (Some(region), Some(file)) => {
                region.memory = Some(Memory { file, number });
                self.changed.notify_all();
                Ok(true)
            }
            (None, file) => {
                // It was deleted meanwhile, and with that it is no longer charged.
                drop(state);
                if let Some(file) = file {
                    self.pool.release(&file, charged);
                }
                Err(no_region(name).into())
            }
            (Some(_), None) => {
                state.forget(job, name);
                self.changed.notify_all();
                drop(state);
                Err(match fault {
                    Some(error)
                        if error.kind() != std::io::ErrorKind::OutOfMemory
                            && error.kind() != std::io::ErrorKind::StorageFull =>
                    {
                        Fault::Gone(error)
                    }
                    _ => of_region(
                        Code::NoSpace,
                        name,
                        "the server's machine has no memory left for it",
                        "end what uses the memory there, or start the server without --unreserved",
                    )
                    .into(),
                })
            }
        }
    }

    /// Charges a region and puts it in its place, without memory; `None` if it is there.
    fn book(
        &self,
        job: &str,
        name: &str,
        (bytes, charged): (u64, u64),
        kind: RegionKind,
    ) -> Result<Option<u64>> {
        let mut state = self.state();
        let of_each = self.regions_max / state.jobs.len().max(1);
        let (id, free) = (state.number(), self.memory - state.used);
        let owner = state.jobs.get_mut(job).ok_or_else(|| no_region(name))?;
        if let Some(there) = owner.regions.get(name) {
            if (there.bytes, there.kind) == (bytes, kind) {
                return Ok(None);
            }
            let kind = match there.kind {
                RegionKind::Plain => "a plain region",
                RegionKind::Ring => "a ring",
            };
            let reason = format!("it is there already, {kind} of {} bytes", there.bytes);
            return Err(invalid(name, reason));
        }
        let left = owner.quota.saturating_sub(owner.used);
        let reason = if charged > left {
            format!(
                "{charged} bytes: of the job's quota of {} {left} are left",
                owner.quota
            )
        } else if charged > free {
            format!(
                "{charged} bytes: of the server's {} {free} are free",
                self.memory
            )
        } else if owner.regions.len() >= of_each {
            format!("the job has {of_each} regions, as many as the server keeps of it")
        } else {
            owner.used += charged;
            owner
                .regions
                .insert(name.to_owned(), Region::new(id, bytes, charged, kind));
            state.used += charged;
            return Ok(Some(id));
        };
        let remedy = "delete regions, raise --quota or --memory, or use another server";
        Err(of_region(Code::NoSpace, name, reason, remedy))
    }

    /// Removes a region and takes its memory back, whoever uses it; once nobody allocates or moves
    /// that memory, which would be counted twice.
    ///
    /// # Errors
    /// [`Code::NotFound`].
    pub fn delete(&self, job: &str, name: &str, tick: Tick<'_>) -> Outcome<()> {
        let mut state = loop {
            let mut state = self.state();
            let region = state.region(job, name).ok_or_else(|| no_region(name))?;
            if region.memory.is_some() && !region.moving {
                break state;
            }
            drop(self.sleep(state, Instant::now() + SLICE));
            tick()?;
        };
        let region = state.forget(job, name).ok_or_else(|| no_region(name))?;
        // Until its memory is back it is not to be had by others.
        state.used += region.charged;
        drop(state);
        self.changed.notify_all();
        if let Some(memory) = &region.memory {
            self.pool.release(&memory.file, region.charged);
        }
        self.state().used -= region.charged;
        Ok(())
    }

    /// What is known of a region.
    ///
    /// # Errors
    /// [`Code::NotFound`].
    pub fn stat(&self, job: &str, name: &str) -> Result<Stat> {
        let mut state = self.state();
        let region = state.region(job, name).ok_or_else(|| no_region(name))?;
        Ok(region.stat(name))
    }

    /// Up to [`LIST_MAX`] regions, in the order of their names, after this name.
    pub fn list(&self, job: &str, after: &str) -> Vec<Stat> {
        let state = self.state();
        let regions = state.jobs.get(job).into_iter().flat_map(|job| &job.regions);
        let rest = regions.filter(|(name, _)| name.as_str() > after);
        // Ranges are told by `stat` alone, so that an answer stays within one message.
        let short = |(name, region): (&String, &Region)| Stat {
            torn: region.torn.list().into_iter().take(1).collect(),
            ..region.stat(name)
        };
        rest.take(LIST_MAX).map(short).collect()
    }

    /// Waits until the region has had more puts than `after`; gives their number.
    ///
    /// # Errors
    /// [`Code::TimedOut`], [`Code::NotFound`].
    pub fn wait(
        &self,
        job: &str,
        name: &str,
        after: u64,
        bound: Duration,
        tick: Tick<'_>,
    ) -> Outcome<u64> {
        let until = Instant::now() + bound;
        let mut state = self.state();
        let id = state.region(job, name).ok_or_else(|| no_region(name))?.id;
        loop {
            let region = state.same(job, name, id)?;
            if region.puts > after {
                return Ok(region.puts);
            }
            if Instant::now() >= until {
                return Err(late(name, "nothing was put").into());
            }
            drop(self.sleep(state, until));
            tick()?;
            state = self.state();
        }
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;

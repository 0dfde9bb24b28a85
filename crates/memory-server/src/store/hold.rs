//! Holding parts of regions: turns, bounds, and what becomes of a part whose writer is lost.

use std::cell::Cell;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outlive_base::{Code, Error, Result};

use super::Store;
use super::region::{Held, Memory, RING_HEAD_BYTES, Region, Which};
use crate::fault::{Outcome, Tick, invalid, late, no_region, of_region};
use crate::wire::{Part, RegionKind};

/// How a part is to be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// By the server, to read.
    Read,
    /// By the server, to write.
    Write,
    /// By a client of the same machine, to read.
    LendRead,
    /// By a client of the same machine, to write.
    LendWrite,
}

/// A part of a region that is being read or written.
#[derive(Debug)]
pub struct Hold<'a> {
    store: &'a Store,
    job: String,
    name: String,
    pub(super) region: u64,
    pub(super) held: Held,
    /// The memory; offsets are the region's own.
    pub file: Arc<File>,
    /// The number of the memory: another one after it was moved.
    pub number: u64,
    /// Size of the region, in bytes.
    pub bytes: u64,
    ring: bool,
    /// Something was written: half of it cannot be told from the whole.
    begun: Cell<bool>,
    over: bool,
}

impl Store {
    /// Holds a part, once nobody else does who is in the way.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] beyond the region's end or if it is a ring, [`Code::NotFound`],
    /// [`Code::TimedOut`], and to read [`Code::Incomplete`].
    pub fn hold(
        &self,
        job: &str,
        part: &Part,
        how: How,
        bound: Duration,
        tick: Tick<'_>,
    ) -> Outcome<Hold<'_>> {
        let mut state = self.state();
        let name = &part.name;
        let region = state.region(job, name).ok_or_else(|| no_region(name))?;
        if region.kind == RegionKind::Ring {
            return Err(invalid(name, "it is a ring: push and pop").into());
        }
        let end = part.offset.checked_add(part.length);
        let Some(end) = end.filter(|end| *end <= region.bytes) else {
            let reason = format!(
                "{} bytes at {}: it has {} bytes",
                part.length, part.offset, region.bytes
            );
            return Err(invalid(name, reason).into());
        };
        // Another one of that name may be smaller, or a ring.
        let id = region.id;
        let which = Which { job, name, id };
        drop(state);
        let hold = self.acquire(which, part.offset..end, how, bound, tick)?;
        let writes = matches!(how, How::Write | How::LendWrite);
        let mut state = self.state();
        let region = state.same(job, name, hold.region)?;
        let torn = region.torn.overlap(&hold.held.range);
        drop(state);
        match torn.filter(|_| !writes) {
            None => Ok(hold),
            Some(torn) => Err(of_region(
                Code::Incomplete,
                name,
                format!(
                    "bytes {} to {} were written in part only: the writer, or a source, was lost",
                    torn.start, torn.end
                ),
                "put them again as a whole, or delete the region",
            )
            .into()),
        }
    }

    pub(super) fn acquire(
        &self,
        which: Which<'_>,
        range: Range<u64>,
        how: How,
        bound: Duration,
        tick: Tick<'_>,
    ) -> Outcome<Hold<'_>> {
        let until = Instant::now() + bound;
        let mut state = self.state();
        let id = state.number();
        let region = state.that(which)?;
        let mut held = Held {
            id,
            range,
            writes: matches!(how, How::Write | How::LendWrite),
            lent: matches!(how, How::LendRead | How::LendWrite),
            until,
        };
        region.queue.push(held.clone());
        drop(state);
        let granted = self.queued(which, &mut held, until, tick);
        let mut state = self.state();
        if let Ok(region) = state.that(which) {
            region.queue.retain(|other| other.id != id);
            if let Ok(memory) = &granted {
                let ring = region.kind == RegionKind::Ring;
                return Ok(Hold {
                    store: self,
                    job: which.job.to_owned(),
                    name: which.name.to_owned(),
                    region: which.id,
                    held,
                    file: memory.file.clone(),
                    number: memory.number,
                    bytes: region.bytes,
                    ring,
                    begun: Cell::new(how == How::LendWrite),
                    over: false,
                });
            }
        }
        drop(state);
        self.changed.notify_all();
        Err(granted
            .err()
            .unwrap_or_else(|| no_region(which.name).into()))
    }

    /// Waits for its turn, and is among those who hold when it has come.
    fn queued(
        &self,
        which: Which<'_>,
        held: &mut Held,
        until: Instant,
        tick: Tick<'_>,
    ) -> Outcome<Memory> {
        loop {
            let mut state = self.state();
            let region = state.that(which)?;
            region.expire(Instant::now());
            if region.exposed && !region.moving && region.holds.is_empty() {
                drop(state);
                self.move_away(which, tick)?;
                continue;
            }
            if let Some(memory) = region.memory.clone()
                && !region.exposed
                && !region.is_in_the_way_of(held)
            {
                held.until = Instant::now() + self.bound_of(&held.range);
                region.holds.push(held.clone());
                return Ok(memory);
            }
            if Instant::now() >= until {
                return Err(late(which.name, "others read or write there, and did not end").into());
            }
            drop(self.sleep(state, until));
            tick()?;
        }
    }

    /// How long a part may be held: at least a mebibyte a second is expected of everybody.
    pub(super) fn bound_of(&self, range: &Range<u64>) -> Duration {
        self.hold + Duration::from_secs((range.end - range.start) >> 20)
    }

    /// Moves a region's memory out of a lost writer's reach.
    fn move_away(&self, which: Which<'_>, tick: Tick<'_>) -> Outcome<()> {
        let mut state = self.state();
        let region = state.that(which)?;
        let Some(old) = region
            .memory
            .clone()
            .filter(|_| region.exposed && !region.moving)
        else {
            return Ok(());
        };
        region.moving = true;
        let charged = region.charged;
        drop(state);
        let mut stopped = None;
        let keep_going = &mut || {
            // Whoever waits may go; the others need the memory moved all the same.
            if stopped.is_none() {
                stopped = tick().err();
            }
            Ok(())
        };
        let moved = self.pool.moved(&old.file, charged, keep_going);
        let fresh = match moved {
            Ok(file) => Ok((file, false)),
            // Its content is lost, and that is said: everything is torn.
            Err(_) => self
                .pool
                .allocate(charged, &mut || Ok(()))
                .map(|file| (file, true)),
        };
        let failed = fresh.is_err();
        if failed {
            self.pool.owe(charged);
        }
        let mut state = self.state();
        let number = state.number();
        if let Ok(region) = state.that(which) {
            region.moving = false;
            if failed {
                region.torn.add(0..region.bytes);
            }
            if let Ok((file, lost)) = fresh {
                region.exposed = false;
                region.memory = Some(Memory {
                    file: Arc::new(file),
                    number,
                });
                if lost {
                    region.torn.add(0..region.bytes);
                }
            }
        } else if let Ok((file, _)) = fresh {
            // Deleted meanwhile.
            drop(state);
            self.pool.release(&file, charged);
        }
        self.changed.notify_all();
        match stopped {
            Some(error) => Err(error.into()),
            None if failed => Err(of_region(
                Code::NoSpace,
                which.name,
                "its memory must be moved, and the server's machine has none",
                "end what uses the memory there; the region's content is lost",
            )
            .into()),
            None => Ok(()),
        }
    }
}

impl Hold<'_> {
    /// When the part must be given back.
    pub fn until(&self) -> Instant {
        self.held.until
    }

    /// The first byte is about to be written: without [`Hold::finish`] the part is torn from now.
    pub fn begin(&self) {
        self.begun.set(true);
    }

    /// All was done: what was written is whole, and counts as a put.
    ///
    /// # Errors
    /// [`Code::Incomplete`] if the part was taken away meanwhile, [`Code::NotFound`] if the
    /// region was deleted.
    pub fn finish(mut self) -> Result<()> {
        self.end(true, |_| {})
    }

    /// The message was added to the ring, with its head.
    ///
    /// # Errors
    /// As [`Hold::finish`].
    pub fn pushed(mut self, length: u64) -> Result<()> {
        self.end(true, |region| region.tail += RING_HEAD_BYTES + length)
    }

    /// The message is with its taker.
    ///
    /// # Errors
    /// As [`Hold::finish`].
    pub fn popped(mut self, length: u64) -> Result<()> {
        self.end(false, |region| region.head += RING_HEAD_BYTES + length)
    }

    /// Why a call on the memory failed: only who holds its descriptor can have done that.
    pub fn broken(&self) -> Error {
        let mut state = self.store.state();
        if state.same(&self.job, &self.name, self.region).is_err() {
            return no_region(&self.name);
        }
        of_region(
            Code::Incomplete,
            &self.name,
            "its memory is gone: a client that was given it directly has cut it off",
            "delete the region and make it anew",
        )
    }

    fn end(&mut self, put: bool, change: impl FnOnce(&mut Region)) -> Result<()> {
        self.over = true;
        let mut state = self.store.state();
        let region = state.same(&self.job, &self.name, self.region)?;
        let before = region.holds.len();
        region.holds.retain(|held| held.id != self.held.id);
        if region.holds.len() == before {
            return Err(of_region(
                Code::Incomplete,
                &self.name,
                "the part was taken back: this client took too long, and others waited",
                "do it again; if it repeats, look why the process is stopped or starved",
            ));
        }
        change(region);
        if self.held.writes && put {
            region.puts += 1;
            region.torn.remove(&self.held.range);
        }
        drop(state);
        self.store.changed.notify_all();
        Ok(())
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut state = self.store.state();
        if let Ok(region) = state.same(&self.job, &self.name, self.region) {
            let before = region.holds.len();
            region.holds.retain(|held| held.id != self.held.id);
            let ours = region.holds.len() < before;
            // A message that was not added is not there; a part that was begun is torn.
            if ours && self.held.writes && self.begun.get() && !self.ring {
                region.torn.add(self.held.range.clone());
                // Another process may have the descriptor from it.
                region.exposed |= self.held.lent;
            }
        }
        drop(state);
        self.store.changed.notify_all();
    }
}

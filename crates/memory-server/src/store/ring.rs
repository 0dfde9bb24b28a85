//! Rings: regions that are queues of messages. One at a time adds, one at a time takes; a message
//! is there when all of it is, and goes when its taker has said that it came.

use std::ops::Range;
use std::time::{Duration, Instant};

use outlive_base::Result;

use super::region::{RING_HEAD_BYTES, Region, Which};
use super::{Hold, How, Store};
use crate::fault::{Outcome, Tick, invalid, late, no_region};
use crate::wire::RegionKind;

/// In a ring, whoever adds holds this "part", ...
const PRODUCER: Range<u64> = 0..1;
/// ... and whoever takes this one.
const CONSUMER: Range<u64> = 1..2;

impl Store {
    /// Holds a ring's end to add a message of `length` bytes, once there is room for it; gives
    /// where it begins, counted from the ring's beginning in time.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if it can never fit or the region is no ring, and those of a wait.
    pub fn hold_push(
        &self,
        job: &str,
        name: &str,
        length: u64,
        bound: Duration,
        tick: Tick<'_>,
    ) -> Outcome<(Hold<'_>, u64)> {
        let (id, bytes) = self.ring(job, name)?;
        let Some(need) = length
            .checked_add(RING_HEAD_BYTES)
            .filter(|need| *need <= bytes)
        else {
            let most = bytes - RING_HEAD_BYTES;
            let reason = format!("{length} bytes: a message has at most {most} there");
            return Err(invalid(name, reason).into());
        };
        let which = Which { job, name, id };
        self.hold_ring(which, PRODUCER, bound, tick, &|region| {
            (region.tail - region.head + need <= bytes).then_some(region.tail)
        })
    }

    /// Holds a ring's beginning to take the next message, once there is one; gives where it
    /// begins.
    ///
    /// # Errors
    /// Those of a wait; [`Code::InvalidArgument`] if the region is no ring.
    pub fn hold_pop(
        &self,
        job: &str,
        name: &str,
        bound: Duration,
        tick: Tick<'_>,
    ) -> Outcome<(Hold<'_>, u64)> {
        let (id, _) = self.ring(job, name)?;
        let which = Which { job, name, id };
        self.hold_ring(which, CONSUMER, bound, tick, &|region| {
            (region.tail > region.head).then_some(region.head)
        })
    }

    fn ring(&self, job: &str, name: &str) -> Result<(u64, u64)> {
        let mut state = self.state();
        let region = state.region(job, name).ok_or_else(|| no_region(name))?;
        match region.kind {
            RegionKind::Ring => Ok((region.id, region.bytes)),
            RegionKind::Plain => Err(invalid(name, "it is no ring: put and get")),
        }
    }

    fn hold_ring(
        &self,
        which: Which<'_>,
        end: Range<u64>,
        bound: Duration,
        tick: Tick<'_>,
        ready: &dyn Fn(&Region) -> Option<u64>,
    ) -> Outcome<(Hold<'_>, u64)> {
        let until = Instant::now() + bound;
        let hold = self.acquire(which, end, How::Write, bound, tick)?;
        loop {
            let mut state = self.state();
            let region = state.that(which)?;
            if let Some(at) = ready(region) {
                // What it may take begins now.
                let deadline = Instant::now() + self.bound_of(&(0..region.bytes));
                drop(state);
                let mut hold = hold;
                hold.held.until = deadline;
                return Ok((hold, at));
            }
            if Instant::now() >= until {
                return Err(late(which.name, "the ring did not get room, or a message,").into());
            }
            drop(self.sleep(state, until));
            tick()?;
        }
    }
}

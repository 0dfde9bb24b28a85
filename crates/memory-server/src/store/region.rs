//! What the store knows of jobs and regions; under its lock.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use outlive_base::Result;

use crate::fault::no_region;
use crate::ranges::Ranges;
use crate::wire::{RegionKind, Stat};

/// Bytes that stand before each message of a ring: its length.
pub const RING_HEAD_BYTES: u64 = 8;

/// One region, and none that has its name later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Which<'a> {
    pub(super) job: &'a str,
    pub(super) name: &'a str,
    pub(super) id: u64,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) jobs: BTreeMap<String, Job>,
    pub(super) used: u64,
    /// The last number that was given to a region, a hold or a memory.
    pub(super) numbers: u64,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) quota: u64,
    pub(super) used: u64,
    pub(super) regions: BTreeMap<String, Region>,
}

#[derive(Debug)]
pub(super) struct Region {
    pub(super) id: u64,
    pub(super) bytes: u64,
    pub(super) charged: u64,
    pub(super) kind: RegionKind,
    pub(super) memory: Option<Memory>,
    pub(super) puts: u64,
    pub(super) torn: Ranges,
    pub(super) holds: Vec<Held>,
    /// Who waits for a hold, first come first.
    pub(super) queue: Vec<Held>,
    /// A lost writer can still reach the memory: it must be moved.
    pub(super) exposed: bool,
    pub(super) moving: bool,
    /// Bytes that were ever taken from and added to a ring.
    pub(super) head: u64,
    pub(super) tail: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Memory {
    pub(super) file: Arc<File>,
    pub(super) number: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) id: u64,
    pub(super) range: Range<u64>,
    pub(super) writes: bool,
    pub(super) lent: bool,
    pub(super) until: Instant,
}

impl Held {
    pub(super) fn conflicts(&self, other: &Held) -> bool {
        let from = self.range.start.max(other.range.start);
        // Nobody is in the way of no bytes.
        let meet = from < self.range.end && from < other.range.end;
        meet && (self.writes || other.writes)
    }
}

impl State {
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn region(&mut self, job: &str, name: &str) -> Option<&mut Region> {
        self.jobs.get_mut(job)?.regions.get_mut(name)
    }

    /// The region, if it is still that one.
    pub(super) fn same(&mut self, job: &str, name: &str, id: u64) -> Result<&mut Region> {
        let found = self.region(job, name).filter(|region| region.id == id);
        found.ok_or_else(|| no_region(name))
    }

    /// As [`State::same`].
    pub(super) fn that(&mut self, which: Which<'_>) -> Result<&mut Region> {
        self.same(which.job, which.name, which.id)
    }

    /// Takes a region out, with what it is charged.
    pub(super) fn forget(&mut self, job: &str, name: &str) -> Option<Region> {
        let job = self.jobs.get_mut(job)?;
        let region = job.regions.remove(name)?;
        job.used -= region.charged;
        self.used -= region.charged;
        Some(region)
    }
}

impl Region {
    pub(super) fn new(id: u64, bytes: u64, charged: u64, kind: RegionKind) -> Region {
        Region {
            id,
            bytes,
            charged,
            kind,
            memory: None,
            puts: 0,
            torn: Ranges::default(),
            holds: Vec::new(),
            queue: Vec::new(),
            exposed: false,
            moving: false,
            head: 0,
            tail: 0,
        }
    }

    pub(super) fn stat(&self, name: &str) -> Stat {
        let writers = self.holds.iter().filter(|held| held.writes);
        Stat {
            name: name.to_owned(),
            kind: self.kind,
            bytes: self.bytes,
            puts: self.puts,
            waiting: self.tail - self.head,
            writers: if self.kind == RegionKind::Ring {
                0
            } else {
                writers.count() as u32
            },
            torn: self.torn.list(),
        }
    }

    pub(super) fn is_in_the_way_of(&self, held: &Held) -> bool {
        let earlier = self.queue.iter().take_while(|other| other.id != held.id);
        self.holds
            .iter()
            .chain(earlier)
            .any(|other| other.conflicts(held))
    }

    /// Ends what was lent and is overdue. Memory that a lost writer can reach is given to nobody
    /// until it was moved; those who hold a part of it may end first.
    pub(super) fn expire(&mut self, now: Instant) {
        let (torn, exposed) = (&mut self.torn, &mut self.exposed);
        self.holds.retain(|held| {
            let ends = held.lent && held.until <= now;
            if ends && held.writes {
                torn.add(held.range.clone());
                *exposed = true;
            }
            !ends
        });
    }
}

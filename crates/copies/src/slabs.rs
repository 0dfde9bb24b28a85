//! New slabs for a rebuild, made while their bytes arrive.
//!
//! Making a page costs more than receiving it. So the slabs of all ranks are begun
//! as soon as the container's header has said their sizes, and a few threads make
//! their pages in order, ahead of whoever fills them ([`Pace`]).
//!
//! Invariants: no page is touched before it was made; every [`Pace`] ends complete
//! or failed, so nobody waits for ever (P5); a slab is given away only when all of
//! its pages are there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use outlive_base::{Error, Rank, Result};
use outlive_capture::slab::{HEAD_BYTES, Pages, Slab, SlabId, capacity_for, memory_available};
use outlive_vault::{Pace, RankEntry};

use outlive_control::node::no_memory;
use outlive_control::node::shell::Rebuild;

use crate::memory::{Memory, share};
use crate::places::Places;

/// Threads that make pages.
const MAKERS: usize = 2;
/// Bytes that one of them makes at a time.
const PIECE_BYTES: usize = 8 << 20;

/// The slabs of one rebuild.
pub struct Slabs {
    made: BTreeMap<Rank, One>,
    stop: Arc<AtomicBool>,
    makers: Vec<JoinHandle<()>>,
}

struct One {
    slab: Slab,
    fd: OwnedFd,
    pace: Arc<Pace>,
}

/// A slab whose pages are being made.
struct Growing {
    pages: Pages,
    pace: Arc<Pace>,
    /// Where the data begins.
    start: usize,
    pieces: Vec<Range<usize>>,
    done: Mutex<Done>,
}

struct Done {
    pieces: Vec<bool>,
    /// The first piece that is not done.
    next: usize,
}

impl Slabs {
    /// Begins the slabs of these ranks, and making their pages in this order.
    pub fn begin(
        places: &Places,
        rebuild: &Rebuild<Memory>,
        ranks: &[RankEntry<'_>],
    ) -> Result<Slabs> {
        let mut total = 0u64;
        for entry in ranks {
            total = capacity_for(entry.table.len() as u64, entry.data_bytes)
                .and_then(|bytes| total.checked_add(bytes))
                .ok_or_else(|| Error::internal("the ranks' bytes overflow"))?;
        }
        let available = memory_available().unwrap_or(u64::MAX);
        let budget = rebuild.budget.min(available);
        if total > budget {
            return Err(no_memory(places.node.0, total, budget));
        }
        let mut slabs = Slabs {
            made: BTreeMap::new(),
            stop: Arc::new(AtomicBool::new(false)),
            makers: Vec::new(),
        };
        let mut growing = Vec::new();
        for entry in ranks {
            growing.push(slabs.begin_one(places, rebuild, entry)?);
        }
        let count: usize = growing.iter().map(|one| one.pieces.len()).sum();
        let shared = Arc::new((growing, AtomicUsize::new(0)));
        for _ in 0..MAKERS.min(count) {
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&slabs.stop));
            let maker = std::thread::Builder::new()
                .name("outlive-pages".into())
                .spawn(move || make(&shared.0, &shared.1, &stop));
            match maker {
                Ok(maker) => slabs.makers.push(maker),
                Err(error) if slabs.makers.is_empty() => {
                    return Err(Error::io("thread", "start a thread", &error));
                }
                Err(_) => break,
            }
        }
        Ok(slabs)
    }

    fn begin_one(
        &mut self,
        places: &Places,
        rebuild: &Rebuild<Memory>,
        entry: &RankEntry<'_>,
    ) -> Result<Growing> {
        let capacity = capacity_for(entry.table.len() as u64, entry.data_bytes)
            .ok_or_else(|| Error::internal("a rank's bytes overflow"))?;
        let (mut slab, fd, pages) = Slab::begin(capacity).map_err(share)?;
        let start = HEAD_BYTES as usize + entry.table.len().next_multiple_of(HEAD_BYTES as usize);
        pages.make(0..start).map_err(share)?;
        slab.format(SlabId {
            job: places.job_hash,
            incarnation: rebuild.source,
            rank: entry.rank,
            ranks: rebuild.ranks_total,
            slot: 0,
            generation: rebuild.incarnation.0 << 16,
        })
        .map_err(share)?;
        slab.begin_fill(rebuild.version, entry.table, entry.data_bytes)
            .map_err(share)?;
        let pace = Arc::new(Pace::default());
        let one = One {
            slab,
            fd,
            pace: Arc::clone(&pace),
        };
        self.made.insert(entry.rank, one);
        let pieces: Vec<Range<usize>> = (start..pages.bytes())
            .step_by(PIECE_BYTES)
            .map(|at| at..(at + PIECE_BYTES).min(pages.bytes()))
            .collect();
        let done = Mutex::new(Done {
            pieces: vec![false; pieces.len()],
            next: 0,
        });
        Ok(Growing {
            pages,
            pace,
            start,
            pieces,
            done,
        })
    }

    /// How far a rank's slab is there.
    pub fn pace(&self, rank: Rank) -> Option<Arc<Pace>> {
        self.made.get(&rank).map(|one| Arc::clone(&one.pace))
    }

    /// The data part of a rank's slab: to be touched as [`Slabs::pace`] allows.
    pub fn data(&mut self, rank: Rank) -> Result<&mut [u8]> {
        let one = self.made.get_mut(&rank);
        let one = one.ok_or_else(|| Error::internal("a rank that was not planned"))?;
        one.slab.data_mut().map_err(share)
    }

    /// All slabs, filled and sealed.
    pub fn finish(mut self) -> Result<Vec<(Rank, Memory)>> {
        for maker in self.makers.drain(..) {
            maker
                .join()
                .map_err(|_| Error::internal("a thread that makes memory panicked"))?;
        }
        let mut slabs = Vec::new();
        for (rank, mut one) in std::mem::take(&mut self.made) {
            let bytes = one.slab.data_mut().map_err(share)?.len() as u64;
            one.pace.wait(bytes)?;
            one.slab.finish().map_err(share)?;
            one.slab.seal().map_err(share)?;
            let memory = Memory {
                slab: one.slab,
                fd: one.fd,
            };
            slabs.push((rank, memory));
        }
        Ok(slabs)
    }
}

impl Drop for Slabs {
    fn drop(&mut self) {
        // A maker holds the mapping by itself; it ends after its piece.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Makes pieces until none is left.
fn make(slabs: &[Growing], next: &AtomicUsize, stop: &AtomicBool) {
    loop {
        let mut nth = next.fetch_add(1, Ordering::Relaxed);
        let mut found = None;
        for one in slabs {
            if nth < one.pieces.len() {
                found = Some((one, nth));
                break;
            }
            nth -= one.pieces.len();
        }
        let Some((one, piece)) = found else { return };
        if stop.load(Ordering::Relaxed) {
            one.pace.fail(Error::internal("the rebuild was given up"));
            continue;
        }
        match one.pages.make(one.pieces[piece].clone()) {
            Ok(()) => one.made(piece),
            Err(error) => one.pace.fail(share(error)),
        }
    }
}

impl Growing {
    fn made(&self, piece: usize) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.pieces[piece] = true;
        while done.pieces.get(done.next) == Some(&true) {
            done.next += 1;
        }
        let ready = match done.next {
            0 => self.start,
            next => self.pieces[next - 1].end,
        };
        drop(done);
        self.pace.advance((ready - self.start) as u64);
    }
}

//! Slabs: the staging memory of one (rank, slot).
//!
//! A slab describes itself, so that an agent that starts anew adopts what it finds
//! by reading. Its state word orders everything else in it:
//!
//! - EMPTY: the agent may change the head; nobody reads data.
//! - FILLING: stored before the first byte is copied. The filler (the rank, or the
//!   agent at a restore) owns head, table and data. Whoever finds FILLING after the
//!   filler's death treats the slab as without content.
//! - CAPTURED: stored (release) after the last byte; content does not change.
//! - SEALED: the agent has taken over; content does not change.
//!
//! Sizes: `capacity` is always the whole file, head page included, a multiple of
//! 4096. Region data starts at 4 KiB boundaries in table order.

use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use core::sync::atomic::{Ordering::SeqCst, fence};
pub use outlive_base::slab::{SlabHead, SlabId, State};
use outlive_base::{Incarnation, Rank, Version};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::sync::Arc;

use crate::mapping::{Mapping, ShareError, sealed_bytes, sealed_empty_memfd, sealed_memfd};
use crate::memory::affordable;
pub use crate::memory::{HEAD_BYTES, Pages, memory_available};
use crate::region::{self, Region, align_up};

const MAGIC: u64 = u64::from_le_bytes(*b"OLSLAB1\0");

#[repr(C)]
struct Head {
    magic: AtomicU64,
    job: AtomicU64,
    incarnation: AtomicU32,
    rank: AtomicU32,
    ranks: AtomicU32,
    slot: AtomicU32,
    generation: AtomicU32,
    state: AtomicU32,
    version: AtomicU64,
    table_bytes: AtomicU64,
    data_bytes: AtomicU64,
    table_crc: AtomicU64,
}

const _: () = {
    assert!(offset_of!(Head, incarnation) == 16);
    assert!(offset_of!(Head, state) == 36);
    assert!(offset_of!(Head, version) == 40);
    assert!(offset_of!(Head, table_crc) == 64);
};

/// The number that stands for a job's name in slabs.
pub fn job_hash(name: &str) -> u64 {
    table_crc(name.as_bytes())
}

/// The checksum of a region table: CRC-64/NVME.
pub fn table_crc(table: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, table)
}

/// Bytes of a slab for a table and its data, head page included; `None` on overflow.
pub fn capacity_for(table_bytes: u64, data_bytes: u64) -> Option<u64> {
    HEAD_BYTES
        .checked_add(align_up(table_bytes)?)?
        .checked_add(align_up(data_bytes)?)
}

/// A mapped slab.
#[derive(Debug)]
pub struct Slab {
    map: Arc<Mapping>,
}

impl Slab {
    /// Agent: makes a slab of `capacity` bytes (rounded up to pages), all of them
    /// present, sealed against resizing, EMPTY. Fails with ENOMEM, without touching
    /// any memory, if the machine or its control group cannot give so much.
    pub fn create(capacity: u64) -> Result<(Slab, OwnedFd), ShareError> {
        let capacity = affordable(capacity)?;
        let fd = sealed_memfd("outlive-slab", capacity)?;
        let slab = Slab {
            map: Arc::new(Mapping::shared(fd.as_fd(), capacity, true)?),
        };
        slab.head_page().magic.store(MAGIC, Release);
        Ok((slab, fd))
    }

    /// Agent: as [`Slab::create`], but only the head page is there. The rest must be
    /// made by [`Pages::make`] before it is touched, and before the slab is given
    /// away: memory that is being made while bytes arrive costs no time of its own.
    pub fn begin(capacity: u64) -> Result<(Slab, OwnedFd, Pages), ShareError> {
        let capacity = affordable(capacity)?;
        let fd = sealed_empty_memfd("outlive-slab", capacity)?;
        let map = Arc::new(Mapping::shared_empty(fd.as_fd(), capacity)?);
        let pages = Pages::of(&map, &fd)?;
        pages.make(0..HEAD_BYTES as usize)?;
        let slab = Slab { map };
        slab.head_page().magic.store(MAGIC, Release);
        Ok((slab, fd, pages))
    }

    /// Maps a slab that came as a descriptor, after checking seals, size and magic.
    /// All pages are entered into the page table at once.
    pub fn map(fd: BorrowedFd<'_>, writable: bool) -> Result<Slab, ShareError> {
        let bytes = slab_bytes(fd)?;
        Slab::checked(Mapping::shared(fd, bytes, writable)?)
    }

    /// Agent: as [`Slab::map`], writable, but pages are entered as they are touched: an
    /// agent that starts anew has no time for all pages of all slabs.
    pub fn adopt(fd: BorrowedFd<'_>) -> Result<Slab, ShareError> {
        let bytes = slab_bytes(fd)?;
        Slab::checked(Mapping::shared_empty(fd, bytes)?)
    }

    fn checked(map: Mapping) -> Result<Slab, ShareError> {
        let slab = Slab { map: Arc::new(map) };
        if slab.head_page().magic.load(Acquire) != MAGIC {
            return Err(ShareError::Magic("a slab"));
        }
        Ok(slab)
    }

    /// A second descriptor of a slab's file that cannot be mapped writable: for a
    /// rank that restores.
    pub fn read_only(fd: BorrowedFd<'_>) -> Result<OwnedFd, ShareError> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(ShareError::io("open a slab for reading"))
    }

    fn head_page(&self) -> &Head {
        // SAFETY: the mapping is page-aligned and at least one page long, lives as
        // long as `self`, and Head consists of atomics for which every bit pattern
        // is valid.
        unsafe { self.map.base().cast::<Head>().as_ref() }
    }

    /// Bytes of the whole slab, head page included.
    pub fn capacity(&self) -> u64 {
        self.map.bytes() as u64
    }

    fn writable(&self) -> Result<(), ShareError> {
        if self.map.is_writable() {
            Ok(())
        } else {
            Err(ShareError::Field("slab is mapped read-only"))
        }
    }

    /// Agent: makes it EMPTY and stamps whose it is from now on.
    pub fn format(&mut self, id: SlabId) -> Result<(), ShareError> {
        self.writable()?;
        if id.rank.0 >= id.ranks {
            return Err(ShareError::Field("rank outside the job"));
        }
        let head = self.head_page();
        head.state.store(State::Empty as u32, SeqCst);
        fence(SeqCst);
        head.job.store(id.job, Relaxed);
        head.incarnation.store(id.incarnation.0, Relaxed);
        head.rank.store(id.rank.0, Relaxed);
        head.ranks.store(id.ranks, Relaxed);
        head.slot.store(id.slot, Relaxed);
        head.generation.store(id.generation, Release);
        Ok(())
    }

    /// Reads and checks the head: what a new agent does to adopt a slab. Whether the
    /// table is intact is for [`Slab::regions`].
    pub fn head(&self) -> Result<SlabHead, ShareError> {
        let page = self.head_page();
        let state = State::from_u32(page.state.load(Acquire))
            .ok_or(ShareError::Field("slab: state unknown"))?;
        let id = SlabId {
            job: page.job.load(Relaxed),
            incarnation: Incarnation(page.incarnation.load(Relaxed)),
            rank: Rank(page.rank.load(Relaxed)),
            ranks: page.ranks.load(Relaxed),
            slot: page.slot.load(Relaxed),
            generation: page.generation.load(Relaxed),
        };
        if id.rank.0 >= id.ranks {
            return Err(ShareError::Field("slab: rank outside the job"));
        }
        let empty = state == State::Empty;
        let word = |word: &AtomicU64| if empty { 0 } else { word.load(Relaxed) };
        let head = SlabHead {
            id,
            state,
            version: Version(word(&page.version)),
            table_bytes: word(&page.table_bytes),
            data_bytes: word(&page.data_bytes),
            table_crc: word(&page.table_crc),
        };
        if head.version > Version::MAX {
            return Err(ShareError::Field("slab: version out of range"));
        }
        if state.is_complete() {
            self.fits(head.table_bytes, head.data_bytes)?;
        }
        Ok(head)
    }

    fn fits(&self, table_bytes: u64, data_bytes: u64) -> Result<(), ShareError> {
        let needed = capacity_for(table_bytes, data_bytes).unwrap_or(u64::MAX);
        if needed > self.capacity() {
            return Err(ShareError::Full {
                needed,
                capacity: self.capacity(),
            });
        }
        Ok(())
    }

    /// Filler: FILLING, then head and table. `data_bytes` as [`region::offsets`]
    /// gives it. The slab must not hold anything that is still needed.
    pub fn begin_fill(
        &mut self,
        version: Version,
        table: &[u8],
        data_bytes: u64,
    ) -> Result<(), ShareError> {
        self.writable()?;
        if version > Version::MAX {
            return Err(ShareError::Field("version out of range"));
        }
        self.fits(table.len() as u64, data_bytes)?;
        let head = self.head_page();
        head.state.store(State::Filling as u32, SeqCst);
        fence(SeqCst);
        head.version.store(version.0, Relaxed);
        head.table_bytes.store(table.len() as u64, Relaxed);
        head.data_bytes.store(data_bytes, Relaxed);
        head.table_crc.store(table_crc(table), Relaxed);
        let start = HEAD_BYTES as usize;
        self.bytes_mut(start..start + table.len())
            .copy_from_slice(table);
        Ok(())
    }

    /// Filler: the part for the regions' data, of a slab that is FILLING.
    pub fn data_mut(&mut self) -> Result<&mut [u8], ShareError> {
        self.writable()?;
        let head = self.head()?;
        if head.state != State::Filling {
            return Err(ShareError::Field("slab is not being filled"));
        }
        self.fits(head.table_bytes, head.data_bytes)?;
        Ok(self.bytes_mut(data_range(&head)))
    }

    /// Filler: CAPTURED, after the last byte.
    pub fn finish(&mut self) -> Result<(), ShareError> {
        self.turn(State::Filling, State::Captured)
    }

    /// Agent: CAPTURED becomes SEALED.
    pub fn seal(&mut self) -> Result<(), ShareError> {
        self.turn(State::Captured, State::Sealed)
    }

    /// Agent: EMPTY again, with the same identity.
    pub fn clear(&mut self) -> Result<(), ShareError> {
        self.writable()?;
        self.head_page().state.store(State::Empty as u32, SeqCst);
        Ok(())
    }

    fn turn(&mut self, from: State, to: State) -> Result<(), ShareError> {
        self.writable()?;
        let state = &self.head_page().state;
        if state.load(Acquire) != from as u32 {
            return Err(ShareError::Field("slab is in another state"));
        }
        state.store(to as u32, Release);
        Ok(())
    }

    fn complete(&self) -> Result<SlabHead, ShareError> {
        let head = self.head()?;
        if !head.state.is_complete() {
            return Err(ShareError::Field("slab holds no complete capture"));
        }
        Ok(head)
    }

    /// The region table's bytes, of a complete slab; not verified.
    pub fn table(&self) -> Result<&[u8], ShareError> {
        let head = self.complete()?;
        let start = HEAD_BYTES as usize;
        Ok(self.slice(start..start + head.table_bytes as usize))
    }

    /// The data of all regions, padding included, of a complete slab.
    pub fn data(&self) -> Result<&[u8], ShareError> {
        let head = self.complete()?;
        Ok(self.slice(data_range(&head)))
    }

    /// The regions of a complete slab and where each lies in [`Slab::data`], after
    /// verifying the table's checksum.
    pub fn regions(&self) -> Result<Vec<(Region, Range<usize>)>, ShareError> {
        let head = self.complete()?;
        // A copy: what is checked is what is decoded.
        let table = self.table()?.to_vec();
        if table_crc(&table) != head.table_crc {
            return Err(ShareError::Table("checksum".into()));
        }
        let regions =
            region::decode(&table).map_err(|error| ShareError::Table(error.to_string()))?;
        let (offsets, total) =
            region::offsets(&regions).ok_or(ShareError::Table("too long".into()))?;
        if total != head.data_bytes {
            return Err(ShareError::Table("another length than the data".into()));
        }
        Ok(regions
            .into_iter()
            .zip(offsets)
            .map(|(region, at)| {
                let range = at as usize..(at + region.bytes) as usize;
                (region, range)
            })
            .collect())
    }

    /// Forbids (or permits again) writing to table and data; the head stays
    /// writable. Guards a capture against stray writes of the program.
    pub fn protect(&mut self, readonly: bool) -> Result<(), ShareError> {
        self.writable()?;
        self.map.protect(HEAD_BYTES as usize, readonly)
    }

    fn slice(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.map.bytes());
        // SAFETY: in bounds of the mapping, which lives as long as `self`; in the
        // complete states no side writes, by the protocol of the state word.
        unsafe {
            core::slice::from_raw_parts(self.map.base().as_ptr().add(range.start), range.len())
        }
    }

    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.map.bytes());
        // SAFETY: in bounds of the writable mapping, which lives as long as `self`;
        // while FILLING the other side does not look at these bytes.
        unsafe {
            core::slice::from_raw_parts_mut(self.map.base().as_ptr().add(range.start), range.len())
        }
    }
}

/// The size of a slab's file.
fn slab_bytes(fd: BorrowedFd<'_>) -> Result<u64, ShareError> {
    let bytes = sealed_bytes(fd)?;
    if bytes < HEAD_BYTES || !bytes.is_multiple_of(region::REGION_ALIGN) {
        return Err(ShareError::Size {
            found: bytes,
            expected: HEAD_BYTES,
        });
    }
    Ok(bytes)
}

/// Where the data lies; the head's lengths were checked against the capacity.
fn data_range(head: &SlabHead) -> Range<usize> {
    let start = HEAD_BYTES + head.table_bytes.next_multiple_of(region::REGION_ALIGN);
    start as usize..(start + head.data_bytes) as usize
}

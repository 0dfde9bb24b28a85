//! Sealed memory files and their mappings.
//!
//! Invariant: a [`Mapping`] is never longer than its file, and the file carries
//! `F_SEAL_SHRINK`: touching the mapping cannot raise SIGBUS for a missing page.

use core::ffi::c_void;
use core::ops::Range;
use core::ptr::{NonNull, null_mut};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use std::io;
use thiserror::Error;

/// Why shared memory of the other side was refused.
#[derive(Debug, Error)]
pub enum ShareError {
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The file may shrink under the mapping.
    #[error("the memory file is not sealed against shrinking")]
    NotSealed,
    /// The file is too short, too long or not of whole pages.
    #[error("the memory file has {found} bytes where {expected} are expected")]
    Size {
        /// Bytes found.
        found: u64,
        /// Bytes expected, at least.
        expected: u64,
    },
    /// The bytes are something else.
    #[error("not {0}")]
    Magic(&'static str),
    /// Another version of the layout.
    #[error("layout version {0}, not ours")]
    Abi(u32),
    /// A field outside its range or not what was expected.
    #[error("{0}")]
    Field(&'static str),
    /// More bytes than the slab holds.
    #[error("{needed} bytes do not fit into {capacity}")]
    Full {
        /// Bytes needed.
        needed: u64,
        /// Bytes there.
        capacity: u64,
    },
    /// The table does not match its checksum or cannot be decoded.
    #[error("region table damaged: {0}")]
    Table(String),
}

impl ShareError {
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(Errno) -> ShareError {
        move |errno| ShareError::Io {
            doing,
            source: errno.into(),
        }
    }
}

/// A mapped range of pages.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access to bytes
// that change concurrently is atomic or ordered by the slab's state word.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives only atomics and read-only bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the whole of a sealed file of `bytes` bytes, as [`sealed_bytes`] found.
    /// All pages are entered into the page table at once.
    pub(crate) fn shared(
        fd: BorrowedFd<'_>,
        bytes: u64,
        writable: bool,
    ) -> Result<Mapping, ShareError> {
        Mapping::shared_with(fd, bytes, writable, MapFlags::POPULATE)
    }

    /// As [`Mapping::shared`], but no page is entered or made: see
    /// [`Mapping::populate`].
    pub(crate) fn shared_empty(fd: BorrowedFd<'_>, bytes: u64) -> Result<Mapping, ShareError> {
        Mapping::shared_with(fd, bytes, true, MapFlags::empty())
    }

    fn shared_with(
        fd: BorrowedFd<'_>,
        bytes: u64,
        writable: bool,
        flags: MapFlags,
    ) -> Result<Mapping, ShareError> {
        let length =
            usize::try_from(bytes).map_err(|_| ShareError::Field("too long for this machine"))?;
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap(
                null_mut(),
                length,
                protection,
                MapFlags::SHARED | flags,
                fd,
                0,
            )
        };
        Mapping::wrap(
            base.map_err(ShareError::io("map shared memory"))?,
            length,
            writable,
        )
    }

    /// Maps private zeroed memory.
    pub(crate) fn private(bytes: usize) -> Result<Mapping, ShareError> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        Mapping::wrap(base.map_err(ShareError::io("map memory"))?, bytes, true)
    }

    fn wrap(base: *mut c_void, bytes: usize, writable: bool) -> Result<Mapping, ShareError> {
        let base = NonNull::new(base.cast()).ok_or(ShareError::Field("mapped at address 0"))?;
        Ok(Mapping {
            base,
            bytes,
            writable,
        })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Makes the pages of a range (at page boundaries) and enters them, in one go.
    /// False if this kernel cannot (before 5.14). ENOMEM if the memory is not there.
    pub(crate) fn populate(&self, range: Range<usize>) -> Result<bool, ShareError> {
        assert!(range.start <= range.end && range.end <= self.bytes);
        loop {
            // SAFETY: the range lies within this mapping; its content stays.
            let done = unsafe {
                rustix::mm::madvise(
                    self.base.as_ptr().add(range.start).cast(),
                    range.len(),
                    rustix::mm::Advice::LinuxPopulateWrite,
                )
            };
            match done {
                Ok(()) => return Ok(true),
                Err(Errno::INVAL) => return Ok(false),
                Err(Errno::INTR | Errno::AGAIN) => {}
                // A touch would have raised SIGBUS: the memory is not there.
                Err(Errno::FAULT) => return Err(ShareError::io("reserve memory")(Errno::NOMEM)),
                Err(errno) => return Err(ShareError::io("reserve memory")(errno)),
            }
        }
    }

    /// Forbids or permits writing from `from` bytes on (a page boundary).
    pub(crate) fn protect(&self, from: usize, readonly: bool) -> Result<(), ShareError> {
        let flags = if readonly {
            MprotectFlags::READ
        } else {
            MprotectFlags::READ | MprotectFlags::WRITE
        };
        if from >= self.bytes {
            return Ok(());
        }
        // SAFETY: the range lies within this mapping; `&self` of a writable slab that
        // is being protected has no outstanding `&mut` bytes (callers hold `&mut Slab`).
        unsafe {
            rustix::mm::mprotect(
                self.base.as_ptr().add(from).cast(),
                self.bytes - from,
                flags,
            )
        }
        .map_err(ShareError::io("change protection"))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by this value and nobody keeps a reference.
        // A failure would only leave it mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Makes a memory file of `bytes` bytes, every page present, sealed against any
/// change of its size. ENOMEM or ENOSPC if the memory is not there.
pub(crate) fn sealed_memfd(name: &str, bytes: u64) -> Result<OwnedFd, ShareError> {
    let fd = sized_memfd(name, bytes)?;
    reserve(fd.as_fd(), bytes)?;
    seal(&fd)?;
    Ok(fd)
}

/// As [`sealed_memfd`], but no page is there yet.
pub(crate) fn sealed_empty_memfd(name: &str, bytes: u64) -> Result<OwnedFd, ShareError> {
    let fd = sized_memfd(name, bytes)?;
    seal(&fd)?;
    Ok(fd)
}

fn seal(fd: &OwnedFd) -> Result<(), ShareError> {
    rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(ShareError::io("seal a memory file"))
}

fn sized_memfd(name: &str, bytes: u64) -> Result<OwnedFd, ShareError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        other => other,
    }
    .map_err(ShareError::io("create a memory file"))?;
    rustix::fs::ftruncate(&fd, bytes).map_err(ShareError::io("size a memory file"))?;
    Ok(fd)
}

/// Allocates the pages of a range, without entering them anywhere.
pub(crate) fn allocate(fd: BorrowedFd<'_>, range: Range<usize>) -> Result<(), ShareError> {
    let (at, bytes) = (range.start as u64, range.len() as u64);
    loop {
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), at, bytes) {
            Err(Errno::INTR) => {}
            done => return done.map_err(ShareError::io("reserve memory")),
        }
    }
}

/// Allocates all pages. In pieces, so that a signal (which makes the kernel undo
/// the piece) costs little and a job with a fast timer still gets through.
fn reserve(fd: BorrowedFd<'_>, bytes: u64) -> Result<(), ShareError> {
    const PIECE: u64 = 16 << 20;
    const INTERRUPTS_MAX: u32 = 10_000;
    let mut at = 0;
    let mut interrupts = 0;
    while at < bytes {
        let piece = PIECE.min(bytes - at);
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), at, piece) {
            Ok(()) => at += piece,
            Err(Errno::INTR) if interrupts < INTERRUPTS_MAX => interrupts += 1,
            Err(errno) => return Err(ShareError::io("reserve memory")(errno)),
        }
    }
    Ok(())
}

/// The size of a memory file that cannot shrink: safe to map whole.
pub(crate) fn sealed_bytes(fd: BorrowedFd<'_>) -> Result<u64, ShareError> {
    // Not a memory file at all: EINVAL.
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| ShareError::NotSealed)?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(ShareError::NotSealed);
    }
    let stat = rustix::fs::fstat(fd).map_err(ShareError::io("inspect a memory file"))?;
    u64::try_from(stat.st_size).map_err(|_| ShareError::Field("negative size"))
}

//! Notices a fork. A child inherits the job's memory and socket but is not the
//! rank: it must not offer versions in the rank's name.
//!
//! A page that the kernel wipes in every child (MADV_WIPEONFORK, Linux 4.14) makes
//! the check one load, cheap enough for the fast path. Where the kernel cannot, the
//! slow path still compares process ids.

use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use rustix::mm::{MapFlags, ProtFlags};

const PAGE_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct ForkGuard {
    word: NonNull<AtomicU32>,
    pid: u32,
}

// SAFETY: the word is an atomic in a mapping that lives as long as the guard.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    pub(crate) fn new() -> std::io::Result<ForkGuard> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe {
            rustix::mm::mmap_anonymous(
                null_mut(),
                PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        // SAFETY: the range is the mapping made above. An old kernel refuses; then
        // the word stays set in a child, and only the slow path notices.
        unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) };
        let word = NonNull::new(page.cast::<AtomicU32>())
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        let guard = ForkGuard {
            word,
            pid: std::process::id(),
        };
        guard.word().store(1, Relaxed);
        Ok(guard)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: aligned, mapped as long as `self`, valid for every bit pattern.
        unsafe { self.word.as_ref() }
    }

    /// False in a forked child; one load.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.word().load(Relaxed) != 0
    }

    /// False in a forked child, on every kernel; a system call.
    pub(crate) fn is_surely_here(&self) -> bool {
        self.is_here() && std::process::id() == self.pid
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        let page: *mut c_void = self.word.as_ptr().cast();
        // SAFETY: the mapping made in `new`; nobody keeps a reference.
        let _ = unsafe { rustix::mm::munmap(page, PAGE_BYTES) };
    }
}

//! The memory that the server owns.
//!
//! Each region is a memory file (memfd) of its own, so that a client of the same machine can be
//! given its descriptor and reaches nothing else. What no region has is kept in one more file,
//! the reserve, whose pages are allocated as well: the server never finds later that the machine
//! has promised the same memory twice. Pages change owner in steps of [`STEP_BYTES`].
//!
//! Nobody maps these files, neither here nor in the client: they are read and written by calls,
//! one copy by the processor that asks. So memory can be taken back from a client at any time (a
//! truncated file), and whoever still uses it gets an error instead of SIGBUS.
//!
//! Invariants: a region's file is sealed against growing, and against further seals: a client
//! that holds it can give memory back and never take more.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outlive_base::{Code, Entity, Error, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate};

use crate::fault::Tick;

/// Memory changes owner in steps of this size.
const STEP_BYTES: u64 = 16 << 20;
/// Sizes are counted in pages.
pub const PAGE_BYTES: u64 = 4096;

/// See the module.
#[derive(Debug)]
pub struct Pool {
    reserve: Mutex<Reserve>,
}

#[derive(Debug)]
struct Reserve {
    file: File,
    held: u64,
    /// What it should hold while no region is allocated; 0: nothing is reserved.
    wanted: u64,
    /// What regions have: so much less it should hold.
    given: u64,
}

/// Memory that this process can still have, in bytes, as the kernel estimates it; `None` if it
/// does not say.
pub fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    let of_machine = field("MemAvailable:")?;
    Some(group_room().map_or(of_machine, |room| room.min(of_machine)))
}

/// What the control groups of this process leave it (cgroup v2), where they say so.
fn group_room() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = Path::new("/sys/fs/cgroup").join(path);
    let groups = group
        .ancestors()
        .take_while(|it| it.starts_with("/sys/fs/cgroup"));
    groups.filter_map(room_of).min()
}

fn room_of(group: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let most: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    // Copies of files that nobody uses are given up first.
    let stat = read("memory.stat")?;
    let files = stat
        .lines()
        .find_map(|line| line.strip_prefix("inactive_file "))?;
    let files: u64 = files.trim().parse().ok()?;
    Some(most.saturating_sub(used.saturating_sub(files)))
}

fn new_file() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(rustix::fs::memfd_create("outlive-memory", flags)?.into())
}

fn grow(file: &File, from: u64, to: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::empty(), from, to - from)?)
}

impl Pool {
    /// A pool of `bytes`. With `reserved` they are taken now, page by page.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if the machine has less; [`Code::NoSpace`] if it has not now.
    pub fn new(bytes: u64, reserved: bool) -> Result<Pool> {
        let refuse = |code, reason: String| {
            let remedy = "give less (--memory), end what uses the memory, or use a larger machine";
            Err(Error::new(
                code,
                Entity::Option("memory".into()),
                reason,
                remedy,
            ))
        };
        if let Some(free) = available()
            // The kernel's own tables, and what other processes will want next.
            && bytes.saturating_add(bytes / 64) > free
        {
            let reason = format!("{bytes} bytes are wanted and {free} are free on this machine");
            return refuse(Code::InvalidArgument, reason);
        }
        let fault = |error: io::Error| Error::io("memory file", "make", &error);
        let file = new_file().map_err(fault)?;
        let mut held = 0;
        while reserved && held < bytes {
            let to = bytes.min(held + STEP_BYTES);
            if let Err(error) = grow(&file, held, to) {
                let reason = format!("only {held} of {bytes} bytes could be reserved: {error}");
                return refuse(Code::NoSpace, reason);
            }
            held = to;
        }
        let wanted = if reserved { bytes } else { 0 };
        Ok(Pool {
            reserve: Mutex::new(Reserve {
                file,
                held,
                wanted,
                given: 0,
            }),
        })
    }

    fn reserve(&self) -> MutexGuard<'_, Reserve> {
        self.reserve.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one step of memory go from the reserve to a file that is about to grow.
    fn step_to(&self, file: &File, from: u64, to: u64) -> io::Result<()> {
        let mut reserve = self.reserve();
        let step = to - from;
        let taken = step.min(reserve.held);
        if taken < step && available().is_some_and(|free| free < step - taken) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        ftruncate(&reserve.file, reserve.held - taken)?;
        reserve.held -= taken;
        grow(file, from, to)
    }

    /// A region no longer has so many bytes: the reserve takes what it lacks, as far as the machine
    /// has it.
    fn refill(&self, bytes: u64) {
        let mut reserve = self.reserve();
        reserve.given = reserve.given.saturating_sub(bytes);
        let to = reserve.wanted.saturating_sub(reserve.given);
        // What could not be had before is tried again, in steps.
        let to = to.min(reserve.held + bytes + STEP_BYTES);
        if to > reserve.held {
            match grow(&reserve.file, reserve.held, to) {
                Ok(()) => reserve.held = to,
                Err(error) => tracing::warn!(%error, "memory could not be taken back"),
            }
        }
    }

    /// Memory for a region, full of zeroes.
    ///
    /// # Errors
    /// What the kernel or `tick` says; then nothing was taken.
    pub fn allocate(&self, bytes: u64, tick: Tick<'_>) -> io::Result<File> {
        let file = new_file()?;
        self.reserve().given += bytes;
        let mut have = 0;
        while have < bytes {
            let to = bytes.min(have + STEP_BYTES);
            let grown = self.step_to(&file, have, to);
            if let Err(error) = grown.and_then(|()| tick()) {
                self.release(&file, bytes);
                return Err(error);
            }
            have = to;
        }
        if let Err(error) = seal(&file) {
            self.release(&file, bytes);
            return Err(error);
        }
        Ok(file)
    }

    /// A region is owed so many bytes, which could not be had: they are released with it.
    pub fn owe(&self, bytes: u64) {
        self.reserve().given += bytes;
    }

    /// Takes a region's memory back, whoever still holds its file.
    pub fn release(&self, file: &File, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            let to = left.saturating_sub(STEP_BYTES);
            // A client may have made it shorter.
            let short = file.metadata().is_ok_and(|meta| meta.len() < to);
            if !short && let Err(error) = ftruncate(file, to) {
                tracing::warn!(%error, "memory of a region could not be taken back");
                return;
            }
            self.refill(left - to);
            left = to;
        }
    }

    /// The content in a new file; who holds the old one reaches it no more.
    ///
    /// # Errors
    /// What the kernel or `tick` says; then the content is lost, and the memory is released.
    pub fn moved(&self, old: &File, bytes: u64, tick: Tick<'_>) -> io::Result<File> {
        let new = new_file()?;
        ftruncate(&new, bytes)?;
        let mut buffer = vec![0; STEP_BYTES as usize];
        let mut left = bytes;
        // From the end, so that the old file gives back what the new one takes.
        while left > 0 {
            let to = left.saturating_sub(STEP_BYTES);
            let part = &mut buffer[..(left - to) as usize];
            let done = old
                .read_exact_at(part, to)
                .and_then(|()| ftruncate(old, to).map_err(io::Error::from))
                .and_then(|()| grow(&new, to, left))
                .and_then(|()| new.write_all_at(part, to))
                .and_then(|()| tick());
            if let Err(error) = done {
                drop(new);
                self.release(old, bytes);
                return Err(error);
            }
            left = to;
        }
        if let Err(error) = seal(&new) {
            drop(new);
            self.release(old, bytes);
            return Err(error);
        }
        Ok(new)
    }
}

fn seal(file: &File) -> io::Result<()> {
    Ok(fcntl_add_seals(file, SealFlags::GROW | SealFlags::SEAL)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(file: &File) -> u64 {
        use std::os::unix::fs::MetadataExt;
        file.metadata().unwrap().blocks() * 512
    }

    fn held(pool: &Pool) -> u64 {
        let reserve = pool.reserve();
        assert_eq!(blocks(&reserve.file), reserve.held, "really there");
        reserve.held
    }

    #[test]
    fn memory_is_reserved_moves_to_regions_and_comes_back() {
        let pool = Pool::new(40 << 20, true).unwrap();
        assert_eq!(held(&pool), 40 << 20);
        let file = pool.allocate(33 << 20, &mut || Ok(())).unwrap();
        assert_eq!((held(&pool), blocks(&file)), (7 << 20, 33 << 20));
        pool.release(&file, 33 << 20);
        assert_eq!((held(&pool), blocks(&file)), (40 << 20, 0));
        // A client that holds the file can make nothing grow there.
        assert!(file.write_all_at(&[1], 0).is_err());
        assert!(grow(&file, 0, 4096).is_err());
        assert!(fcntl_add_seals(&file, SealFlags::SHRINK).is_err());
        // One who gives up in the middle leaves nothing behind.
        let mut calls = 0;
        let mut tick = || {
            calls += 1;
            if calls < 2 {
                Ok(())
            } else {
                Err(io::ErrorKind::TimedOut.into())
            }
        };
        assert!(pool.allocate(40 << 20, &mut tick).is_err());
        assert_eq!(held(&pool), 40 << 20);
    }

    #[test]
    fn what_is_moved_is_the_same_and_out_of_reach() {
        let pool = Pool::new(20 << 20, true).unwrap();
        let old = pool.allocate(17 << 20, &mut || Ok(())).unwrap();
        let bytes: Vec<u8> = (0..17u32 << 20).map(|i| (i % 253) as u8).collect();
        old.write_all_at(&bytes, 0).unwrap();
        let new = pool.moved(&old, 17 << 20, &mut || Ok(())).unwrap();
        let mut got = vec![0; bytes.len()];
        new.read_exact_at(&mut got, 0).unwrap();
        assert!(got == bytes);
        assert_eq!(blocks(&old), 0);
        assert!(old.write_all_at(&[1], 5).is_err());
    }

    #[test]
    fn more_than_the_machine_has_is_refused() {
        let error = Pool::new(1 << 50, true).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(!error.remedy().is_empty());
    }
}

//! Memory for slabs: what there is, and making pages while others use the first.

use core::ops::Range;
use std::sync::Arc;

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

use crate::mapping::{Mapping, ShareError, allocate};
use crate::region::align_up;

/// Bytes of the head page; the region table follows it.
pub const HEAD_BYTES: u64 = 4096;

/// Makes the pages of a slab that [`Slab::begin`](crate::slab::Slab::begin) gave, from any thread.
#[derive(Debug)]
pub struct Pages {
    map: Arc<Mapping>,
    fd: OwnedFd,
}

impl Pages {
    pub(crate) fn of(map: &Arc<Mapping>, fd: &OwnedFd) -> Result<Pages, ShareError> {
        let fd = fd.try_clone().map_err(|source| ShareError::Io {
            doing: "duplicate a descriptor",
            source,
        })?;
        let map = Arc::clone(map);
        Ok(Pages { map, fd })
    }

    /// Bytes of the slab.
    pub fn bytes(&self) -> usize {
        self.map.bytes()
    }

    /// Makes the pages of a range, which starts and ends at page boundaries.
    ///
    /// # Errors
    /// ENOMEM if the memory is not there.
    pub fn make(&self, range: Range<usize>) -> Result<(), ShareError> {
        match self.map.populate(range.clone())? {
            true => Ok(()),
            false => allocate(self.fd.as_fd(), range),
        }
    }
}

/// `capacity` in whole pages, if the machine and the control group can give it.
pub(crate) fn affordable(capacity: u64) -> Result<u64, ShareError> {
    let capacity = align_up(capacity.max(HEAD_BYTES))
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or(ShareError::Field("capacity too large"))?;
    if memory_available().is_some_and(|available| capacity > available) {
        return Err(ShareError::io("reserve memory")(Errno::NOMEM));
    }
    Ok(capacity)
}

/// Bytes that a new slab may take: MemAvailable, or what the control group of this
/// process leaves if that is less. `None` if neither can be read.
pub fn memory_available() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("MemAvailable:"))?;
            line.trim()
                .strip_suffix("kB")?
                .trim()
                .parse::<u64>()
                .ok()?
                .checked_mul(1024)
        });
    let group = std::fs::read_to_string("/proc/self/cgroup")
        .ok()
        .and_then(|text| {
            let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
            let read = |file: &str| {
                let text = std::fs::read_to_string(format!("/sys/fs/cgroup/{path}/{file}")).ok()?;
                text.trim().parse::<u64>().ok()
            };
            // File pages of the group can be reclaimed (shared memory is not among them).
            let stat =
                std::fs::read_to_string(format!("/sys/fs/cgroup/{path}/memory.stat")).ok()?;
            let file: u64 = stat
                .lines()
                .filter_map(|line| line.split_once(' '))
                .filter(|(key, _)| matches!(*key, "inactive_file" | "active_file"))
                .filter_map(|(_, value)| value.parse::<u64>().ok())
                .sum();
            Some(read("memory.max")?.saturating_sub(read("memory.current")?.saturating_sub(file)))
        });
    match (machine, group) {
        (Some(machine), Some(group)) => Some(machine.min(group)),
        (one, other) => one.or(other),
    }
}

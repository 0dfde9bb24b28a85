//! The address space of a skeleton: emptied, then mapped, then filled.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Restorer;
use crate::gate::{self, List};
use crate::model::{Backing, Mapping, Process};
use crate::procfs;
use crate::together::{self, Calls};

/// Where special mappings wait while the rest is replaced.
const PARKING: u64 = gate::GATE + 0x100_0000;

/// Address and length of parked mappings of the kernel, by their kind.
pub(crate) type Parked = BTreeMap<String, (u64, u64)>;

const MOVE: u64 = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;

fn kind(mapping: &Mapping) -> Option<String> {
    matches!(mapping.backing, Backing::Kernel(_)).then(|| format!("{:?}", mapping.backing))
}

/// Takes everything but the gate out of a skeleton; mappings of the kernel are parked. A
/// child that is made then has as little.
pub(crate) fn empty(pid: i32) -> io::Result<Parked> {
    let mut lane = Calls::new(pid, 0)?;
    let mut at = PARKING;
    let mut parked = Parked::new();
    for mapping in procfs::mappings(pid)? {
        lane.room(1, 0);
        let length = mapping.end - mapping.start;
        if let Some(kind) = kind(&mapping) {
            let arguments = [mapping.start, length, length, MOVE, at];
            lane.list.call(libc::SYS_mremap, &arguments);
            parked.insert(kind, (at, length));
            at += length;
        } else {
            let arguments = [mapping.start, length];
            lane.list.call(libc::SYS_munmap, &arguments);
        }
    }
    together::run(std::iter::once(Ok(lane))).1.map(|()| parked)
}

impl Restorer<'_> {
    /// Maps an image's memory in an emptied skeleton.
    pub(crate) fn map_all(
        &self,
        process: &Process,
        parked: &Parked,
        lane: &mut Calls,
    ) -> io::Result<()> {
        for mapping in &process.mappings {
            lane.room(1, 0);
            let Some(kind) = kind(mapping) else {
                self.map(mapping, &mut lane.list);
                continue;
            };
            let length = mapping.end - mapping.start;
            let place = parked.get(&kind).filter(|(_, bytes)| *bytes == length);
            let (from, _) = place.ok_or_else(|| {
                io::Error::other(format!(
                    "the kernel has no {:?} of that size",
                    mapping.backing
                ))
            })?;
            let arguments = [*from, length, length, MOVE, mapping.start];
            lane.list.call(libc::SYS_mremap, &arguments);
        }
        Ok(())
    }

    fn map(&self, mapping: &Mapping, list: &mut List) {
        let mut flags = libc::MAP_NORESERVE;
        let (mut fd, mut at) = (u64::MAX, 0);
        match &mapping.backing {
            Backing::File { path, offset, .. } => {
                let number = self.files.get(&(path.clone(), mapping.shared));
                // Opened in `new`, which has seen all mappings.
                fd = number.copied().unwrap_or(-1) as u64;
                at = *offset;
            }
            _ => flags |= libc::MAP_ANONYMOUS,
        }
        flags |= match (mapping.shared, self.synchronous.contains(&(fd as i32))) {
            // With MAP_SYNC the kernel knows no MAP_FIXED_NOREPLACE. The address space is
            // empty, and mappings that overlap were refused before.
            (true, true) => libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC | libc::MAP_FIXED,
            (true, false) => libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
            (false, _) => libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE,
        };
        if mapping.grows_down {
            flags |= libc::MAP_GROWSDOWN;
        }
        let length = mapping.end - mapping.start;
        let protection = u64::from(mapping.protection);
        let arguments = [mapping.start, length, protection, flags as u64, fd, at];
        list.call(libc::SYS_mmap, &arguments);
    }

    /// Writes the contents of all memory, of processes side by side: calls inside of them are
    /// the tracer's alone, but this is not.
    pub(crate) fn write_all(&self, built: &[(i32, Vec<i32>)]) -> io::Result<()> {
        let next = AtomicUsize::new(0);
        let left = Mutex::new(Vec::new());
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some((pid, _)) = built.get(index) else {
                    return;
                };
                if self.write(index, *pid).is_err() {
                    let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
                    left.push((index, *pid));
                }
            }
        };
        let has_some = |process: &&Process| process.mappings.iter().any(|m| !m.runs.is_empty());
        let busy = self.image.processes.iter().filter(has_some).count();
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        std::thread::scope(|scope| {
            for _ in 1..busy.min(processors) {
                scope.spawn(work);
            }
            work();
        });
        // A kernel may let nobody but the tracer write to what is read-only.
        let left = left.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut left = left.into_iter();
        left.try_for_each(|(index, pid)| self.write(index, pid))
    }

    fn write(&self, index: usize, pid: i32) -> io::Result<()> {
        let memory = gate::memory(pid)?;
        let mut bytes = vec![0; 1 << 20];
        for mapping in &self.image.processes[index].mappings {
            for run in &mapping.runs {
                let mut done = 0;
                while done < run.length {
                    let some = (run.length - done).min(1 << 20) as usize;
                    self.contents.read(run.source + done, &mut bytes[..some])?;
                    memory.write_all_at(&bytes[..some], mapping.start + run.at + done)?;
                    done += some as u64;
                }
            }
        }
        Ok(())
    }
}

//! Containers that were removed, whose files the next ones take: a new file costs an
//! inode, blocks and, on some file systems, a long search for both; one that is written
//! over costs none of that.
//!
//! Invariants: at most [`FILES`] files, each of at most [`FILE_BYTES`]; a file comes here
//! only under a durable tombstone, so that nobody reads it under its old name should a power
//! cut give that back; what stands here is never read, and goes when a process begins.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;

use crate::disk::{TEMPORARY_PREFIX, Temporary, parent};

/// Files that are kept: a version's own container and the partner's.
const FILES: usize = 2;
/// The longest that is kept: of longer ones the bytes cost more than the file.
const FILE_BYTES: u64 = 8 << 20;
/// The directory's name, beside those of containers.
pub(crate) const NAME: &str = "spare";

/// The files of one node.
#[derive(Debug)]
pub(crate) struct Spares {
    directory: PathBuf,
    next: AtomicU64,
    free: Mutex<Vec<PathBuf>>,
}

impl Spares {
    /// Those in a directory that exists and is empty.
    pub(crate) fn at(directory: PathBuf) -> Spares {
        Spares {
            directory,
            next: AtomicU64::new(0),
            free: Mutex::default(),
        }
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<PathBuf>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a container's file out of its directory, if one is wanted; false if it is still
    /// there.
    pub(crate) fn keep(&self, path: &Path) -> bool {
        let mut free = self.free();
        let short = || {
            path.metadata()
                .is_ok_and(|it| it.is_file() && it.len() <= FILE_BYTES)
        };
        if free.len() >= FILES || !short() {
            return false;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let spare = self.directory.join(format!("{TEMPORARY_PREFIX}{number}"));
        let kept = std::fs::rename(path, &spare).is_ok();
        if kept {
            free.push(spare);
        }
        kept
    }

    /// A file for `target`, of `length` bytes with any content. It is written where it is, and
    /// takes its name when it is whole.
    pub(crate) fn take(&self, target: &Path, direct: bool, length: u64) -> Option<Temporary> {
        // A directory that is missing is made with the first new file.
        if !parent(target).is_dir() {
            return None;
        }
        let spare = self.free().pop()?;
        let flags = match direct {
            true => OFlags::DIRECT,
            false => OFlags::empty(),
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let opened = options.custom_flags(flags.bits() as i32).open(&spare);
        let Ok(file) = opened else {
            let _ = std::fs::remove_file(&spare);
            return None;
        };
        let mut taken = Temporary::at(spare, target, file);
        // What cannot be cut to its length is dropped, and goes with it.
        let found = taken.file.metadata().ok()?;
        if found.len() != length {
            taken.file.set_len(length).ok()?;
        } else if found.blocks() * 512 >= length {
            taken.has_room();
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn files_are_kept_taken_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(NAME)).unwrap();
        let spares = Spares::at(dir.path().join(NAME));
        let target = dir.path().join("new.olc");
        assert!(spares.take(&target, true, 5).is_none());
        let old = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, [7; 5000]).unwrap();
            path
        };
        let long = old("long");
        File::options()
            .write(true)
            .open(&long)
            .unwrap()
            .set_len(FILE_BYTES + 1)
            .unwrap();
        assert!(!spares.keep(&long) && long.exists());
        assert!(spares.keep(&old("a")) && !dir.path().join("a").exists());
        assert!(spares.keep(&old("b")));
        assert!(!spares.keep(&old("c")), "enough");
        for length in [4096, 8192] {
            let file = spares.take(&target, true, length).unwrap();
            assert_eq!(file.file.metadata().unwrap().len(), length);
            file.publish().unwrap();
        }
        assert!(spares.take(&target, true, 1).is_none());
        // One that was removed behind our back is none.
        assert!(spares.keep(&old("d")));
        std::fs::remove_dir_all(dir.path().join(NAME)).unwrap();
        assert!(spares.take(&target, true, 1).is_none());
        assert!(!spares.keep(&old("e")) && dir.path().join("e").exists());
        std::fs::create_dir(dir.path().join(NAME)).unwrap();
        // Where it shall go is missing: a new file's maker makes that.
        assert!(spares.keep(&old("e")));
        assert!(
            spares
                .take(&dir.path().join("missing/x"), true, 1)
                .is_none()
        );
        // One that is not finished is no file any more.
        drop(spares.take(&target, true, 1).unwrap());
        assert_eq!(std::fs::read_dir(dir.path().join(NAME)).unwrap().count(), 0);
    }
}

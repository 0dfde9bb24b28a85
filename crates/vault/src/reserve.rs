//! Room for records on a full disk: files made ahead, each of which can become a record.
//!
//! A full disk must not cost more than what would lie on it (P9): the node still
//! promises, opens, notes what it removes, and so makes room. A record that finds no
//! space takes one of these files, which has its blocks and its inode already: it is
//! renamed and written over, so nobody who fills the disk can be quicker.
//!
//! Invariants: at most [`FILES`] files of [`FILE_BYTES`]; they are made again when there
//! is room; what stands here is never read.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FallocateFlags, fallocate};

use crate::disk;

/// Files that are kept ready: an opening takes three, a removal one for each copy.
pub const FILES: usize = 24;
/// Bytes of each: a record of some sixty nodes.
pub const FILE_BYTES: u64 = 8 * 1024;

/// The directory's name, beside the records.
pub(crate) const NAME: &str = "reserve";

/// The files of one node.
#[derive(Debug)]
pub(crate) struct Reserve {
    directory: PathBuf,
    /// Numbers of the files that are there.
    ready: Mutex<Vec<usize>>,
}

impl Reserve {
    /// The reserve in `directory`, which need not exist; nothing is made yet.
    pub(crate) fn at(directory: PathBuf) -> Reserve {
        let there = |number: &usize| {
            let data = std::fs::metadata(file(&directory, *number));
            data.is_ok_and(|data| data.is_file() && data.len() == FILE_BYTES)
        };
        let ready = (0..FILES).filter(there).collect();
        Reserve {
            directory,
            ready: Mutex::new(ready),
        }
    }

    /// Makes what is missing, as far as there is room. Costs nothing while all is there.
    pub(crate) fn fill(&self) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.len() == FILES || disk::create_directory(&self.directory).is_err() {
            return;
        }
        let missing: Vec<usize> = (0..FILES).filter(|nth| !ready.contains(nth)).collect();
        for number in missing {
            let path = file(&self.directory, number);
            if make(&path).is_err() {
                // Half a file would hold room and help nobody.
                let _ = std::fs::remove_file(&path);
                return;
            }
            ready.push(number);
        }
    }

    /// Gives up one file for `path`, which must be on the same file system: opened for
    /// writing, with room for `bytes`.
    pub(crate) fn give(&self, path: &Path, bytes: u64) -> Option<File> {
        if bytes > FILE_BYTES {
            return None;
        }
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(number) = ready.pop() {
            let from = file(&self.directory, number);
            let opened = OpenOptions::new().read(true).write(true).open(&from);
            if let (Ok(file), Ok(())) = (opened, std::fs::rename(&from, path)) {
                return Some(file);
            }
        }
        None
    }
}

fn file(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("{number}.room"))
}

fn make(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES) {
        Ok(()) => Ok(()),
        // A file system that reserves nothing: zeros have their room too.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            std::os::unix::fs::FileExt::write_all_at(&file, &[0; FILE_BYTES as usize], 0)?;
            file.sync_data()
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk still takes what a node must say, and nothing else.
    #[test]
    fn a_record_takes_the_room_that_is_kept() {
        use crate::faulty::{Act, Fate, Faults, Faulty};
        use crate::{Directory, Key, Record, Vault};
        use outlive_base::{Code, Incarnation, Version};
        use std::sync::Arc;
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
        #[derive(Debug)]
        struct Full(AtomicBool);
        impl Faults for Full {
            fn before(&self, act: Act, _: &Key, _: u64) -> Fate {
                match act == Act::Put && self.0.load(Relaxed) {
                    true => Fate::Fails(std::io::ErrorKind::StorageFull),
                    false => Fate::Goes,
                }
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let full = Arc::new(Full(true.into()));
        let directory = Arc::new(Directory::own(dir.path()).unwrap());
        let store = Vault::own(Arc::new(Faulty::new(directory, full.clone())), 7);
        let records = store.records();
        let abort = Record::Abort {
            incarnation: Incarnation(1),
            version: Version(1),
            level: None,
            code: Code::Io,
            text: "x".into(),
        };
        for ballot in 1..=FILES as u64 {
            let promise = Record::Promise { ballot };
            let mut results = records.persist_all(&[&promise, &abort]);
            assert!(results.pop().unwrap().unwrap_err().is_full());
            results.pop().unwrap().unwrap();
            assert_eq!(records.scan().unwrap().records, [promise]);
        }
        let more = Record::Promise { ballot: 100 };
        assert!(records.persist(&more).is_err(), "used up");
        // With room again there is room for the next time.
        full.0.store(false, Relaxed);
        records.persist(&more).unwrap();
        store.store().remove(&[]).unwrap();
        full.0.store(true, Relaxed);
        let next = Record::Promise { ballot: 101 };
        records.persist(&next).unwrap();
        // Another life finds it, and nothing unfinished.
        let again = Vault::create(dir.path(), 7).unwrap();
        assert_eq!(again.records().scan().unwrap().records, [next]);
    }

    #[test]
    fn files_are_given_up_one_by_one_and_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::at(dir.path().join(NAME));
        let target = dir.path().join("x");
        assert!(reserve.give(&target, 1).is_none(), "nothing was made yet");
        reserve.fill();
        assert!(reserve.give(&target, FILE_BYTES + 1).is_none());
        for _ in 0..FILES {
            let given = reserve.give(&target, 100).unwrap();
            assert_eq!(given.metadata().unwrap().len(), FILE_BYTES);
        }
        assert!(reserve.give(&target, 1).is_none());
        reserve.fill();
        // Another life finds what is there.
        let again = Reserve::at(dir.path().join(NAME));
        assert!(again.give(&target, FILE_BYTES).is_some());
    }
}

//! A store in a directory: the storage of a node, or what all nodes share. The only module
//! that knows which object is which file; `docs/design/first-rescue.md`, "Directories".
//!
//! Invariants: nothing unfinished ever carries a final name; all is private to the user
//! (P7); unfinished files, spare ones and the room that is kept are the business of the one
//! process that owns the directory, see [`Directory::own`].

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::aligned::PAGE64;
use crate::disk::{self, Opened, Temporary, parent, sync_directory, write_all};
use crate::error::WriteError;
use crate::reserve::{self, Reserve};
use crate::spares::{self, Spares};
use crate::store::{Draft, Item, Key, Object, ObjectKind, Put, Space, Store, Unappended};

/// Where programs write files of their own.
const ROUTED: &str = "files";
/// The directories of a node, in which a killed process may leave unfinished files.
const NAMES: [&str; 5] = ["containers", "partner", "records", ROUTED, spares::NAME];

/// Objects as files of a directory.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    /// Files for new containers.
    spares: Option<Spares>,
    /// Room for records on a full disk.
    reserve: Option<Reserve>,
    /// Somebody else has made it: if it is missing, it is out of reach, and not empty.
    of_all: bool,
}

impl Directory {
    /// The objects in a directory, for any number of processes. It need not exist: what is
    /// missing is made by the first that writes.
    pub fn at(root: &Path) -> Directory {
        Directory {
            root: root.to_owned(),
            spares: None,
            reserve: None,
            of_all: false,
        }
    }

    /// The objects in the directory that all nodes of a job share. It must exist. Where its file
    /// system is not mounted any more there is none: it is then not read as empty, nor made anew
    /// in the place of the mount, where nobody else would ever find what is written.
    pub fn of_all(root: &Path) -> Directory {
        Directory {
            of_all: true,
            ..Directory::at(root)
        }
    }

    /// The objects in a directory, for the one process that writes there: makes what is
    /// missing, removes unfinished files of an earlier life, keeps room for records.
    pub fn own(root: &Path) -> Result<Directory, WriteError> {
        for name in NAMES {
            let directory = root.join(name);
            disk::create_directory(&directory)?;
            disk::sweep(&directory)?;
        }
        disk::sweep(root)?;
        sync_directory(root)?;
        let mut store = Directory::at(root).with_reserve();
        store.spares = Some(Spares::at(root.join(spares::NAME)));
        Ok(store)
    }

    /// [`Directory::own`]; on storage that is full or may not be written to, what is there,
    /// and why. Such a node answers, promises and rebuilds from what it can read (P9); what
    /// it cannot write it says when it should.
    pub fn own_or_read(root: &Path) -> Result<(Directory, Option<WriteError>), WriteError> {
        match Directory::own(root) {
            Ok(store) => Ok((store, None)),
            Err(error) if error.is_refusal() => {
                Ok((Directory::at(root).with_reserve(), Some(error)))
            }
            Err(error) => Err(error),
        }
    }

    /// Where what all nodes of a job share lies, in the job's directory.
    pub fn shared_in(job_dir: &Path) -> PathBuf {
        job_dir.join("shared")
    }

    /// Where the objects of a kind lie.
    pub fn of_kind(root: &Path, kind: ObjectKind) -> PathBuf {
        match kind {
            ObjectKind::Container => root.join("containers"),
            ObjectKind::Partner => root.join("partner"),
            ObjectKind::Parity => root.join("parity"),
            ObjectKind::Record => root.join("records"),
            ObjectKind::Mark => root.to_owned(),
        }
    }

    /// True if anything was recorded here, or that cannot be seen.
    pub fn may_have_records(root: &Path) -> bool {
        let records = std::fs::read_dir(Directory::of_kind(root, ObjectKind::Record));
        records.map_or_else(
            |error| error.kind() != std::io::ErrorKind::NotFound,
            |mut records| records.next().is_some(),
        )
    }

    /// Where programs of a node write files of their own: no objects, but part of a rank's
    /// capture once they are closed.
    pub fn routed(root: &Path) -> PathBuf {
        root.join(ROUTED)
    }

    /// The directories that hold what it keeps, records first.
    pub fn parts(root: &Path) -> [PathBuf; 5] {
        ["records", "containers", "partner", "parity", ROUTED].map(|name| root.join(name))
    }

    /// Removes the unfinished files of killed processes. Only while nobody writes there: no
    /// agent of the job may live.
    pub fn sweep(root: &Path) {
        for name in [
            "",
            "containers",
            "partner",
            "parity",
            "records",
            ROUTED,
            spares::NAME,
        ] {
            // A directory that is missing or cannot be read has nothing for us.
            let _ = disk::sweep(&root.join(name));
        }
    }

    /// The unfinished files of killed processes, as [`Directory::sweep`] removes them.
    pub fn unfinished(root: &Path) -> Vec<PathBuf> {
        let parts = Directory::parts(root).into_iter();
        let all = parts.chain([root.to_owned(), root.join(spares::NAME)]);
        all.flat_map(|directory| disk::unfinished(&directory))
            .collect()
    }

    fn with_reserve(mut self) -> Directory {
        let reserve = Reserve::at(self.root.join(reserve::NAME));
        reserve.fill();
        self.reserve = Some(reserve);
        self
    }

    fn directory(&self, kind: ObjectKind) -> PathBuf {
        Directory::of_kind(&self.root, kind)
    }

    fn is_in_reach(&self) -> bool {
        !self.of_all || self.root.is_dir()
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.directory(key.kind()).join(key.name())
    }

    /// Begins a file; its directory is made if it is missing.
    fn create_file(&self, path: &Path, direct: bool) -> Result<Temporary, WriteError> {
        match Temporary::create(path, direct) {
            Err(error) if error.is_absent() && self.is_in_reach() => {
                disk::create_directory(parent(path))?;
                Temporary::create(path, direct)
            }
            made => made,
        }
    }

    /// A small file, written but not durable.
    fn stage(&self, put: &Put<'_>) -> Result<Temporary, WriteError> {
        let path = self.path(&put.key);
        let made = match put.space {
            Space::Kept => Err(WriteError::io(&path, "create", io::ErrorKind::StorageFull)),
            _ => self.create_file(&path, false),
        };
        let written = made.and_then(|file| fill(file, put.bytes));
        written.or_else(|error| match error.is_full() && put.space != Space::Free {
            true => self.stage_in_reserve(&path, put.bytes).ok_or(error),
            false => Err(error),
        })
    }

    /// A small file on a disk that is full.
    fn stage_in_reserve(&self, path: &Path, bytes: &[u8]) -> Option<Temporary> {
        let reserve = self.reserve.as_ref()?;
        let length = bytes.len() as u64;
        let file = Temporary::take(path, |at| reserve.give(at, length))?;
        let file = fill(file, bytes).ok()?;
        file.file.set_len(length).ok()?;
        Some(file)
    }

    fn remove_one(&self, key: &Key) -> Result<(), WriteError> {
        let path = self.path(key);
        if matches!(
            key.kind(),
            ObjectKind::Container | ObjectKind::Partner | ObjectKind::Parity
        ) && self
            .spares
            .as_ref()
            .is_some_and(|spares| spares.keep(&path))
        {
            return Ok(());
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(WriteError::io(&path, "remove", error))
            }
            _ => Ok(()),
        }
    }
}

fn fill(file: Temporary, bytes: &[u8]) -> Result<Temporary, WriteError> {
    match write_all(&file.file, &mut [IoSlice::new(bytes)], 0) {
        Ok(()) => Ok(file),
        Err(error) => Err(WriteError::io(file.target(), "write", error)),
    }
}

fn read(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Store for Directory {
    fn name(&self) -> String {
        self.root.display().to_string()
    }

    fn locate(&self, key: &Key) -> String {
        self.path(key).display().to_string()
    }

    fn begin(&self, key: &Key, length: u64, aligned: bool) -> Result<Box<dyn Draft>, WriteError> {
        let path = self.path(key);
        let spares = self.spares.as_ref();
        let spare = spares.and_then(|spares| spares.take(&path, aligned, length));
        let file = spare.map_or_else(|| self.create_file(&path, aligned), Ok)?;
        // "No space" is known before the first byte is written.
        file.reserve(length)
            .map_err(|error| WriteError::io(&path, "reserve", error))?;
        Ok(Box::new(file))
    }

    fn put_all(&self, small: &[Put<'_>]) -> Vec<Result<u64, WriteError>> {
        let staged: Vec<_> = small.iter().map(|put| self.stage(put)).collect();
        // All are written before the first is synced: the file system then writes its
        // own log once for many.
        let named = staged.into_iter().map(|staged| {
            let file = staged?;
            file.sync()?;
            let data = file.file.metadata();
            let data = data.map_err(|error| WriteError::io(file.target(), "read", error))?;
            file.rename()?;
            Ok(data.ino())
        });
        let mut named: Vec<Result<u64, WriteError>> = named.collect();
        let mut synced: Vec<(ObjectKind, Result<(), WriteError>)> = Vec::new();
        for (put, result) in small.iter().zip(&mut named) {
            let kind = put.key.kind();
            if result.is_err() {
                continue;
            }
            if !synced.iter().any(|(known, _)| *known == kind) {
                synced.push((kind, sync_directory(&self.directory(kind))));
            }
            for (known, outcome) in &synced {
                if let (true, Err(error)) = (*known == kind, outcome) {
                    *result = Err(error.again());
                }
            }
        }
        named
    }

    fn create(&self, key: &Key, bytes: &[u8]) -> Result<bool, WriteError> {
        let file = fill(self.create_file(&self.path(key), false)?, bytes)?;
        file.sync()?;
        if file.publish_new()? {
            return Ok(true);
        }
        // Who made it may have died before it was durable.
        self.settle(key.kind(), std::slice::from_ref(key))?;
        Ok(false)
    }

    fn append(&self, key: &Key, at: u64, parts: &mut [IoSlice<'_>]) -> Result<(), Unappended> {
        let path = self.path(key);
        let failed = |doing, error: io::Error, cut| Unappended {
            error: WriteError::io(&path, doing, error),
            cut,
        };
        // It is not kept open: a file system on which a file is open for writing can be
        // neither unmounted nor made read-only.
        let file = OpenOptions::new().write(true).open(&path);
        let file = &file.map_err(|error| failed("open", error, true))?;
        // Readers of other processes wait for the end of the write. One that holds the lock, or a
        // file system without locks, holds up nothing.
        let _ = flock(file, FlockOperation::NonBlockingLockExclusive);
        let written = write_all(file, parts, at);
        let _ = flock(file, FlockOperation::Unlock);
        let written = written.and_then(|()| file.sync_data());
        // What failed is not there, and the next that is written does not follow it. The empty
        // page at the end, which costs no room, says that nothing else is missing.
        let cut = || file.set_len(at).and_then(|()| file.set_len(at + PAGE64));
        written.map_err(|error| failed("write", error, cut().is_ok()))
    }

    fn open(&self, key: &Key, fresh: bool) -> io::Result<Box<dyn Object>> {
        Ok(Box::new(Opened::open(&self.path(key), fresh)?))
    }

    fn get(&self, key: &Key, most: u64) -> io::Result<Vec<u8>> {
        read(&disk::open_read(&self.path(key), false)?, most)
    }

    fn get_still(&self, key: &Key, most: u64) -> io::Result<Option<Vec<u8>>> {
        let file = disk::open_read(&self.path(key), false)?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            // Locked, or a file system that has no locks.
            _ => read(&file, most).map(Some),
        }
    }

    fn tag(&self, key: &Key) -> Option<u64> {
        std::fs::metadata(self.path(key))
            .ok()
            .map(|data| data.ino())
    }

    fn written(&self, key: &Key) -> io::Result<SystemTime> {
        std::fs::metadata(self.path(key))?.modified()
    }

    fn list(&self, kind: ObjectKind) -> io::Result<Vec<Item>> {
        let entries = match std::fs::read_dir(self.directory(kind)) {
            Ok(entries) => entries,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) if self.is_in_reach() => return Ok(Vec::new()),
            Err(_) => return Err(io::Error::other("the directory of all nodes is not there")),
        };
        let mut items = Vec::new();
        for entry in entries {
            let entry = entry?;
            let Some(key) = Key::new(kind, entry.file_name().to_string_lossy()) else {
                continue;
            };
            let length = match kind {
                // One that was removed since it was listed is not there.
                ObjectKind::Container | ObjectKind::Partner | ObjectKind::Parity => {
                    match entry.metadata() {
                        Ok(data) => Some(data.len()),
                        Err(_) => continue,
                    }
                }
                ObjectKind::Record | ObjectKind::Mark => None,
            };
            let tag = entry.ino();
            items.push(Item { key, tag, length });
        }
        Ok(items)
    }

    fn remove(&self, keys: &[Key]) -> Result<(), WriteError> {
        keys.iter().try_for_each(|key| self.remove_one(key))?;
        // There may be room again.
        if let Some(reserve) = &self.reserve {
            reserve.fill();
        }
        Ok(())
    }

    fn settle(&self, kind: ObjectKind, keys: &[Key]) -> Result<(), WriteError> {
        for key in keys {
            let path = self.path(key);
            let sync = || File::open(&path)?.sync_all();
            sync().map_err(|error| WriteError::io(&path, "sync", error))?;
        }
        match sync_directory(&self.directory(kind)) {
            Err(error) if error.is_absent() => Ok(()),
            synced => synced,
        }
    }

    fn room(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

impl Draft for Temporary {
    fn write(&self, at: u64, parts: &mut [IoSlice<'_>]) -> Result<(), WriteError> {
        write_all(&self.file, parts, at)
            .map_err(|error| WriteError::io(self.target(), "write", error))
    }

    fn read_back(&self) -> Result<Box<dyn Object>, WriteError> {
        // What is not synced is in memory alone, where the disk cannot be seen.
        self.sync()?;
        let opened = Opened::open(self.path(), true);
        let opened = opened.map_err(|error| WriteError::io(self.target(), "read back", error))?;
        Ok(Box::new(opened))
    }

    fn seal(self: Box<Self>) -> Result<(), WriteError> {
        self.sync()?;
        self.publish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_the_promises_of_a_store() {
        for own in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let store = match own {
                true => Directory::own(dir.path()).unwrap(),
                false => Directory::at(dir.path()),
            };
            crate::conform(&store).unwrap();
        }
    }

    #[test]
    fn records_that_cannot_be_listed_may_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let records = Directory::of_kind(dir.path(), ObjectKind::Record);
        assert!(!Directory::may_have_records(dir.path()), "no directory");
        std::fs::create_dir(&records).unwrap();
        assert!(!Directory::may_have_records(dir.path()), "an empty one");
        std::fs::write(records.join("x"), "").unwrap();
        assert!(Directory::may_have_records(dir.path()));
        std::fs::remove_dir_all(&records).unwrap();
        std::fs::write(&records, "").unwrap();
        assert!(Directory::may_have_records(dir.path()), "no list");
    }

    /// As where a file system is not mounted any more.
    #[test]
    fn a_directory_of_all_nodes_that_is_gone_is_not_empty_and_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("shared");
        let store = Directory::of_all(&root);
        let key = Key::new(ObjectKind::Mark, "x").unwrap();
        let put = Put {
            key,
            bytes: b"x",
            space: Space::Free,
        };
        store.list(ObjectKind::Record).unwrap_err();
        store.put_all(&[put]).remove(0).unwrap_err();
        assert!(!root.exists());
        std::fs::create_dir(&root).unwrap();
        assert!(store.list(ObjectKind::Record).unwrap().is_empty());
        crate::conform(&store).unwrap();
    }
}

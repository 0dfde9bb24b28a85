//! Files: direct transfers with a fallback, and temporary files that become final
//! only when they are complete and durable. What a [`crate::Directory`] is made of.
//!
//! Invariants: nothing unfinished ever carries a final name; a [`Temporary`] that is
//! dropped is removed; every file is created 0600 and every directory 0700 (P7);
//! directories are synced after a rename, else the rename may be lost.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use crate::error::WriteError;
use crate::store::Object;

/// Prefix of unfinished files.
pub(crate) const TEMPORARY_PREFIX: &str = ".tmp-";

/// Opens for reading, direct if `direct` and possible. What is no file does not hold up
/// who opens it (a pipe waits for a writer otherwise).
pub(crate) fn open_read(path: &Path, direct: bool) -> io::Result<File> {
    let open = |flags: OFlags| {
        let flags = flags | OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags.bits() as i32);
        options.open(path)
    };
    if direct {
        match open(OFlags::DIRECT) {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
            done => return done,
        }
    }
    let file = open(OFlags::empty())?;
    if direct {
        drop_cache(&file);
    }
    Ok(file)
}

/// Asks the kernel to forget clean pages, so that a read shows what the disk holds.
fn drop_cache(file: &File) {
    // Advice only: a kernel that ignores it costs freshness, not correctness.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

/// One transfer of a file: again if a signal interrupts it, and once again, buffered, if a
/// direct one is refused for its alignment. Also if the file is buffered by then: another
/// of its threads may have met the same and been faster.
fn transfer(
    file: &File,
    mut attempt: impl FnMut() -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    let mut refused = false;
    loop {
        match attempt() {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(Errno::INVAL) if !refused => {
                let flags = rustix::fs::fcntl_getfl(file)?;
                rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT)?;
                refused = true;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes all slices from `offset` on. A direct file that refuses the alignment goes
/// on buffered.
pub(crate) fn write_all(
    file: &File,
    mut slices: &mut [IoSlice<'_>],
    mut offset: u64,
) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match transfer(file, || rustix::io::pwritev(file, slices, offset))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => {
                offset += count as u64;
                IoSlice::advance_slices(&mut slices, count);
            }
        }
    }
    Ok(())
}

/// A file that is read.
pub(crate) struct Opened {
    file: File,
    path: PathBuf,
    /// As it was when the file was opened, if that was looked at.
    length: Option<u64>,
}

impl Opened {
    /// Opens what must be a file; direct if `direct` and possible.
    pub(crate) fn open(path: &Path, direct: bool) -> io::Result<Opened> {
        let file = open_read(path, direct)?;
        let data = file.metadata()?;
        if !data.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a file"));
        }
        Ok(Opened {
            file,
            path: path.to_owned(),
            length: Some(data.len()),
        })
    }
}

impl Object for Opened {
    fn length(&self) -> io::Result<u64> {
        match self.length {
            Some(length) => Ok(length),
            None => Ok(self.file.metadata()?.len()),
        }
    }

    fn read_at(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        transfer(&self.file, || rustix::io::preadv(&self.file, into, at))
    }

    fn again(&self, fresh: bool) -> io::Result<Box<dyn Object>> {
        let file = open_read(&self.path, fresh)?;
        Ok(Box::new(Opened {
            file,
            path: self.path.clone(),
            length: None,
        }))
    }
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_directory(path: &Path) -> Result<(), WriteError> {
    let sync = || File::open(path)?.sync_all();
    sync().map_err(|error| WriteError::io(path, "sync", error))
}

/// Creates a directory and its parents, private to the user, and makes the entries of
/// those that are new durable: what is committed below them must not go with a name that
/// was never written. One that is there is left as it is.
pub(crate) fn create_directory(path: &Path) -> Result<(), WriteError> {
    let missing = missing_directories(path);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| WriteError::io(path, "create", error))?;
    missing
        .iter()
        .try_for_each(|made| sync_directory(parent(made)))
}

/// The directory and its parents as far as they do not exist, outermost first.
fn missing_directories(path: &Path) -> Vec<&Path> {
    let mut missing: Vec<&Path> = path
        .ancestors()
        .take_while(|at| *at != Path::new("") && !at.exists())
        .collect();
    missing.reverse();
    missing
}

/// Numbers of unfinished files: unique in this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Names that are tried for an unfinished file.
const NAMES_MAX: u32 = 1000;

fn create_file(path: &Path, direct: bool) -> io::Result<File> {
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        options.custom_flags(flags.bits() as i32).open(path)
    };
    if !direct {
        return open(OFlags::empty());
    }
    match open(OFlags::DIRECT) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            // Some kernels create the file before they refuse the flag.
            let _ = std::fs::remove_file(path);
            open(OFlags::empty())
        }
        done => done,
    }
}

/// A file under construction.
pub(crate) struct Temporary {
    pub(crate) file: File,
    path: PathBuf,
    target: PathBuf,
    live: bool,
    /// It has all the blocks that it needs.
    has_room: bool,
}

impl Temporary {
    /// Starts a file that will be `target`, in the same directory; direct if asked
    /// for and possible.
    pub(crate) fn create(target: &Path, direct: bool) -> Result<Temporary, WriteError> {
        let name = target
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let name = name.ok_or_else(|| {
            WriteError::Input(format!("{} does not name a file", target.display()))
        })?;
        let mut tried = 1;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let unfinished = format!("{TEMPORARY_PREFIX}{}-{number}-{name}", std::process::id());
            let path = target.with_file_name(unfinished);
            match create_file(&path, direct) {
                Ok(file) => return Ok(Temporary::at(path, target, file)),
                // Of a dead process of our number, or of a living one of another machine.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tried < NAMES_MAX => {
                    tried += 1;
                }
                Err(error) => return Err(WriteError::io(target, "create", error)),
            }
        }
    }

    /// A file under construction that was there before: what `give` opens at the path
    /// that it is told. None if it has nothing to give.
    pub(crate) fn take(
        target: &Path,
        give: impl FnOnce(&Path) -> Option<File>,
    ) -> Option<Temporary> {
        let name = target.file_name()?.to_string_lossy().into_owned();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let unfinished = format!("{TEMPORARY_PREFIX}{}-{number}-{name}", std::process::id());
        let path = target.with_file_name(unfinished);
        let file = give(&path)?;
        Some(Temporary::at(path, target, file))
    }

    /// An open file at `path` that will be `target`, of the same file system.
    pub(crate) fn at(path: PathBuf, target: &Path, file: File) -> Temporary {
        Temporary {
            file,
            path,
            target: target.to_owned(),
            live: true,
            has_room: false,
        }
    }

    /// Says that nothing has to be reserved for it.
    pub(crate) fn has_room(&mut self) {
        self.has_room = true;
    }

    /// What it will be.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Where it is while it is unfinished.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reserves space, where the file system can: "no space" is known before the
    /// first byte is written.
    pub(crate) fn reserve(&self, bytes: u64) -> io::Result<()> {
        if bytes == 0 || self.has_room {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the bytes durable, and what is needed to read them. Its times may be lost: they
    /// would cost a file that is written over a turn of the file system's log.
    pub(crate) fn sync(&self) -> Result<(), WriteError> {
        self.file
            .sync_data()
            .map_err(|error| WriteError::io(&self.target, "sync", error))
    }

    /// Gives the durable file its name, replacing what was there.
    pub(crate) fn publish(self) -> Result<(), WriteError> {
        let target = self.target.clone();
        self.rename()?;
        sync_directory(parent(&target))
    }

    /// [`Temporary::publish`], but the name is durable only when the caller has synced
    /// the directory.
    pub(crate) fn rename(mut self) -> Result<(), WriteError> {
        std::fs::rename(&self.path, &self.target)
            .map_err(|error| WriteError::io(&self.target, "rename", error))?;
        self.live = false;
        Ok(())
    }

    /// Gives the durable file its name only if nothing has that name. False if
    /// something has.
    pub(crate) fn publish_new(self) -> Result<bool, WriteError> {
        match std::fs::hard_link(&self.path, &self.target) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            // No hard links here: rename without replacing is as atomic.
            Err(_) => {
                use rustix::fs::{CWD, RenameFlags, renameat_with};
                match renameat_with(CWD, &self.path, CWD, &self.target, RenameFlags::NOREPLACE) {
                    Ok(()) => {}
                    Err(Errno::EXIST) => return Ok(false),
                    Err(error) => return Err(WriteError::io(&self.target, "link", error)),
                }
            }
        }
        sync_directory(parent(&self.target))?;
        Ok(true)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.live {
            // A leftover is ignored by every reader and swept by its owner.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The directory of a file.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Removes unfinished files that a killed process left. Only for the owner of the
/// directory, before it writes there.
pub(crate) fn sweep(directory: &Path) -> Result<(), WriteError> {
    let entries =
        std::fs::read_dir(directory).map_err(|error| WriteError::io(directory, "list", error))?;
    for path in unfinished_of(entries) {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(WriteError::io(path, "remove", error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The unfinished files in a directory; none if it cannot be listed.
pub(crate) fn unfinished(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter();
    entries.flat_map(unfinished_of).collect()
}

fn unfinished_of(entries: std::fs::ReadDir) -> impl Iterator<Item = PathBuf> {
    let unfinished = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with(TEMPORARY_PREFIX)
    };
    entries
        .flatten()
        .filter(unfinished)
        .map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_directories_are_made_durable_from_the_first_that_was_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c");
        std::fs::create_dir(dir.path().join("a")).unwrap();
        let missing = missing_directories(&path);
        assert_eq!(missing, [dir.path().join("a/b"), path.clone()]);
        create_directory(&path).unwrap();
        assert!(path.is_dir() && missing_directories(&path).is_empty());
        assert_eq!(missing_directories(Path::new("nowhere/x")).len(), 2);
    }

    /// Unfinished files of a process with our number, for example of an agent in a
    /// container that died: nobody sweeps a directory that many share.
    #[test]
    fn leftovers_of_another_process_do_not_stop_a_write() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a.rec");
        let first = NEXT.load(Ordering::Relaxed);
        for number in first..first + 100 {
            let name = format!("{TEMPORARY_PREFIX}{}-{number}-a.rec", std::process::id());
            std::fs::write(dir.path().join(name), b"old").unwrap();
        }
        for direct in [false, true] {
            let file = Temporary::create(&target, direct).unwrap();
            assert_eq!(file.file.metadata().unwrap().len(), 0);
            file.publish().unwrap();
        }
        assert_eq!(std::fs::read(&target).unwrap(), b"");
    }

    /// Two threads whose misaligned transfers of one direct file are refused at once: the
    /// second finds the file buffered already, and tries again all the same.
    #[test]
    fn a_transfer_is_repeated_whoever_has_switched_the_file() {
        let file = tempfile::tempfile().unwrap();
        let after = |errors: &[Errno]| {
            let mut errors = errors.iter().copied();
            transfer(&file, || errors.next().map_or(Ok(7), Err))
        };
        assert_eq!(after(&[]).unwrap(), 7);
        assert_eq!(after(&[Errno::INVAL]).unwrap(), 7);
        let interrupted = [Errno::INTR, Errno::INVAL, Errno::INTR, Errno::INTR];
        assert_eq!(after(&interrupted).unwrap(), 7);
        let refused = after(&[Errno::INVAL, Errno::INVAL]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let full = after(&[Errno::NOSPC]).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        // A direct file is buffered afterwards.
        let dir = tempfile::tempdir().unwrap();
        let direct = create_file(&dir.path().join("a"), true).unwrap();
        write_all(&direct, &mut [IoSlice::new(&[1; 1000])], 0).unwrap();
        let mut bytes = [0; 1000];
        let opened = Opened {
            file: direct,
            path: dir.path().join("a"),
            length: None,
        };
        crate::store::read_exact(&opened, &mut bytes, 0).unwrap();
        assert_eq!(bytes, [1; 1000]);
    }
}

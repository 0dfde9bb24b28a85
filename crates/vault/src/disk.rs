//! Files: direct transfers with a fallback, and temporary files that become final
//! only when they are complete and durable.
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

/// Prefix of unfinished files.
pub(crate) const TEMPORARY_PREFIX: &str = ".tmp-";

/// Opens for reading, direct if `direct` and possible.
pub(crate) fn open_read(path: &Path, direct: bool) -> io::Result<File> {
    if direct {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(OFlags::DIRECT.bits() as i32);
        match options.open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
            done => return done,
        }
    }
    let file = File::open(path)?;
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

/// Switches a file back to buffered transfers.
fn clear_direct(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT)?)
}

fn is_direct(file: &File) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
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
        match rustix::io::pwritev(file, slices, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                offset += count as u64;
                IoSlice::advance_slices(&mut slices, count);
            }
            Err(Errno::INTR) => {}
            Err(Errno::INVAL) if is_direct(file) => clear_direct(file)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Fills all slices from `offset` on; `UnexpectedEof` if the file ends first.
pub(crate) fn read_all(
    file: &File,
    mut slices: &mut [IoSliceMut<'_>],
    mut offset: u64,
) -> io::Result<()> {
    IoSliceMut::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match rustix::io::preadv(file, slices, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                offset += count as u64;
                IoSliceMut::advance_slices(&mut slices, count);
            }
            Err(Errno::INTR) => {}
            Err(Errno::INVAL) if is_direct(file) => clear_direct(file)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// [`read_all`] into one slice.
pub(crate) fn read_exact(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    read_all(file, &mut [IoSliceMut::new(bytes)], offset)
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_directory(path: &Path) -> Result<(), WriteError> {
    let sync = || File::open(path)?.sync_all();
    sync().map_err(|error| WriteError::io(path, "sync", error))
}

/// Creates a directory and its parents, private to the user. One that is there is
/// left as it is.
pub(crate) fn create_directory(path: &Path) -> Result<(), WriteError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| WriteError::io(path, "create", error))
}

/// A file under construction.
pub(crate) struct Temporary {
    pub(crate) file: File,
    path: PathBuf,
    target: PathBuf,
    live: bool,
}

impl Temporary {
    /// Starts a file that will be `target`, in the same directory; direct if asked
    /// for and possible.
    pub(crate) fn create(target: &Path, direct: bool) -> Result<Temporary, WriteError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = target
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let name = name.ok_or_else(|| {
            WriteError::Input(format!("{} does not name a file", target.display()))
        })?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{TEMPORARY_PREFIX}{}-{number}-{name}", std::process::id());
        let path = target.with_file_name(name);
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            options.custom_flags(flags.bits() as i32).open(&path)
        };
        let mut file = open(if direct {
            OFlags::DIRECT
        } else {
            OFlags::empty()
        });
        if direct && matches!(&file, Err(error) if error.kind() == io::ErrorKind::InvalidInput) {
            // Some kernels create the file before they refuse the flag.
            let _ = std::fs::remove_file(&path);
            file = open(OFlags::empty());
        }
        match file {
            Ok(file) => Ok(Temporary {
                file,
                path,
                target: target.to_owned(),
                live: true,
            }),
            Err(error) => Err(WriteError::io(target, "create", error)),
        }
    }

    /// Where it is while it is unfinished.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reserves space, where the file system can: "no space" is known before the
    /// first byte is written.
    pub(crate) fn reserve(&self, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the bytes durable.
    pub(crate) fn sync(&self) -> Result<(), WriteError> {
        self.file
            .sync_all()
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
    for entry in entries.flatten() {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(TEMPORARY_PREFIX)
        {
            match std::fs::remove_file(entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(WriteError::io(&entry.path(), "remove", error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

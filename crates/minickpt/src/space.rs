//! The memory of one process in files.
//!
//! Invariant: private memory at address `a` stands in file `a >> 42` at offset
//! `a & (2^42 - 1)`. So no allocator is needed, a mapping grows in place, and what lies
//! behind an address is known from the address alone. Files are sparse: unmapped ranges
//! are holes and read as zeroes.
//!
//! Invariant: nothing is mapped whose contents the file system could still take back. What is
//! written here and what is dropped is in its journal some seconds later; if the kernel dies
//! before, the old contents are there again. A page that the program writes to is committed by
//! that write (`MAP_SYNC`), one that it only reads is not: so its range is committed before
//! the program can see it ([`Space::commit`]).

use std::cell::{OnceCell, RefCell};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use outlive_image::model::{Backing, Mapping};

use crate::sys;

/// Bytes of address space in one file. ext4 holds 16 TiB, but that of Linux 6.1 punches no
/// holes behind 4 TiB, the end of its block-mapped files, and says that it did.
pub const FILE_BYTES: u64 = 1 << 42;
const FILES: usize = 32;
const PAGE: usize = 4096;
const CHUNK: usize = 1 << 20;
/// Changed ranges that are remembered one by one; more count as all addresses.
const CHANGED_MAX: usize = 64;

/// The files of a process.
#[derive(Debug)]
pub struct Space {
    dir: PathBuf,
    /// Opened when they are needed: most hold nothing.
    files: [OnceCell<File>; FILES],
    /// Ranges (first address, the one behind) that were changed since the last commit.
    changed: RefCell<Vec<(u64, u64)>>,
}

/// Punches a hole: the range reads as zeroes, its memory is free.
fn punch(file: &File, at: u64, length: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain numbers; the descriptor is open.
    let result = unsafe { libc::fallocate64(file.as_raw_fd(), mode, at as i64, length as i64) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A number for a name, so that who may enter the directory, but not list it, finds only what
/// is told to him, as its maps tell a process of its own memory.
pub(crate) fn unguessable() -> io::Result<u64> {
    sys::random()
}

/// Writes all names and lengths of a file system out.
fn sync(directory: &File) -> io::Result<()> {
    // SAFETY: an open descriptor.
    if unsafe { libc::syncfs(directory.as_raw_fd()) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// True if holes can be punched up to the end of a file of that directory.
pub(crate) fn holes(file: &File) -> io::Result<bool> {
    let at = FILE_BYTES - 2 * PAGE as u64;
    let mut byte = [7];
    file.write_all_at(&byte, at)?;
    punch(file, at, PAGE as u64)?;
    file.read_exact_at(&mut byte, at)?;
    Ok(byte == [0])
}

/// The next data (`SEEK_DATA`) or hole from `at` on.
fn seek(file: &File, at: u64, whence: i32) -> io::Result<Option<u64>> {
    // SAFETY: plain numbers; the descriptor is open.
    let found = unsafe { libc::lseek64(file.as_raw_fd(), at as i64, whence) };
    if found >= 0 {
        return Ok(Some(found as u64));
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENXIO) {
        Ok(None)
    } else {
        Err(error)
    }
}

/// True if a range has no blocks, neither written nor reserved; false if that cannot be told.
fn is_free(file: &File, at: u64, length: u64) -> bool {
    /// `struct fiemap` without room for extents: the kernel counts them only.
    #[repr(C)]
    struct Count {
        start: u64,
        length: u64,
        flags: u32,
        mapped: u32,
        room: u32,
        reserved: u32,
    }
    const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
    let mut count = Count {
        start: at,
        length,
        flags: 0,
        mapped: 0,
        room: 0,
        reserved: 0,
    };
    // SAFETY: the kernel reads and writes the structure alone, as it has no room for more.
    unsafe {
        libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut count) == 0 && count.mapped == 0
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

impl Space {
    /// New files for a process, in a directory of their own in `memory`.
    ///
    /// The calls that map them are the process's own, so its `user` must be able to open them,
    /// and nobody else: they are that user's, in a directory that only root can change and
    /// whose name nobody can guess (`unguessable`).
    pub fn create(memory: &Path, name: &str, user: u32) -> io::Result<Space> {
        let dir = memory.join(name);
        fs::create_dir(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o711))?;
        for index in 0..FILES {
            let path = dir.join(index.to_string());
            let mut options = File::options();
            let file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path)?;
            file.set_len(FILE_BYTES - PAGE as u64)?;
            if user != 0 && sys::is_root() {
                fchown(&file, Some(user), None)?;
            }
        }
        // The names must outlive the kernel; contents are mapped with MAP_SYNC.
        sync(&File::open(&dir)?)?;
        Space::open(&dir)
    }

    /// The files that a process had before.
    pub fn open(dir: &Path) -> io::Result<Space> {
        fs::metadata(dir.join((FILES - 1).to_string()))?;
        Ok(Space {
            dir: dir.to_owned(),
            files: Default::default(),
            changed: RefCell::default(),
        })
    }

    /// Lets another user's process open the file of an address: it has changed its user.
    pub fn give(&self, address: u64, user: u32) -> io::Result<()> {
        fchown(self.file(address)?, Some(user), None)
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Removes the files.
    pub fn remove(&self) {
        // What is left over is removed with the whole directory at the next start.
        let _ = fs::remove_dir_all(&self.dir);
    }

    /// Path and offset that belong to a range; `None` if it crosses a file's end.
    pub fn place(&self, address: u64, length: u64) -> Option<(PathBuf, u64)> {
        let end = address.checked_add(length.max(1))? - 1;
        let index = address / FILE_BYTES;
        let inside = index == end / FILE_BYTES && (index as usize) < FILES;
        let last = end % FILE_BYTES < FILE_BYTES - PAGE as u64;
        (inside && last).then(|| (self.dir.join(index.to_string()), address % FILE_BYTES))
    }

    fn file(&self, address: u64) -> io::Result<&File> {
        self.of_index((address / FILE_BYTES) as usize)
    }

    fn of_index(&self, index: usize) -> io::Result<&File> {
        let none = || io::Error::from_raw_os_error(libc::ENOMEM);
        let cell = self.files.get(index).ok_or_else(none)?;
        if cell.get().is_none() {
            let path = self.dir.join(index.to_string());
            let file = File::options().read(true).write(true).open(path)?;
            // Only this thread opens: the cell is empty.
            let _ = cell.set(file);
        }
        cell.get().ok_or_else(none)
    }

    /// Makes a range zero and gives its memory back.
    pub fn clear(&self, address: u64, length: u64) -> io::Result<()> {
        let (mut at, mut left) = (address, length);
        while left > 0 && at / FILE_BYTES < FILES as u64 {
            let part = left.min(FILE_BYTES - at % FILE_BYTES);
            let file = self.file(at)?;
            // Looking is cheaper than a hole in a hole, which the file system journals too.
            if !is_free(file, at % FILE_BYTES, part) {
                punch(file, at % FILE_BYTES, part)?;
                self.note(at, part);
            }
            (at, left) = (at + part, left - part);
        }
        Ok(())
    }

    /// Remembers a range whose contents are not those that the file system would bring back.
    fn note(&self, address: u64, length: u64) {
        let mut changed = self.changed.borrow_mut();
        if changed.len() >= CHANGED_MAX {
            *changed = vec![(0, u64::MAX)];
        }
        changed.push((address, address.saturating_add(length)));
    }

    /// Makes what was written to and dropped from a range durable, if anything was. Files that
    /// are not on DAX do not outlive a kernel anyway: that is for the caller to know.
    pub fn commit(&self, address: u64, length: u64) -> io::Result<()> {
        let end = address.saturating_add(length);
        let hit = |range: &(u64, u64)| range.0 < end && address < range.1;
        let mut changed = self.changed.borrow_mut();
        if !changed.iter().any(hit) {
            return Ok(());
        }
        // What was changed is open. For a file that was not, this asks for nothing.
        for file in self.files.iter().filter_map(OnceCell::get) {
            sys::commit(file, FILE_BYTES - 2 * PAGE as u64)?;
        }
        changed.clear();
        Ok(())
    }

    /// Writes bytes at an address.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        // Exactly these blocks: a plain write makes ext4 hold 8 MiB around it, from which
        // later huge pages would get blocks at no boundary. A failure shows in the write.
        let _ = self.reserve(address, bytes.len() as u64);
        self.file(address)?
            .write_all_at(bytes, address % FILE_BYTES)
    }

    /// Blocks for a range, which still reads as zeroes.
    pub fn reserve(&self, address: u64, length: u64) -> io::Result<()> {
        let file = self.file(address)?.as_raw_fd();
        let at = (address % FILE_BYTES) as i64;
        // SAFETY: plain numbers; the descriptor is open.
        let done = unsafe { libc::fallocate64(file, libc::FALLOC_FL_KEEP_SIZE, at, length as i64) };
        if done == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Writes zeroes: unlike in a hole, a first write by the program allocates nothing.
    pub fn zero(&self, address: u64, length: u64) -> io::Result<()> {
        static ZEROES: [u8; CHUNK / 4] = [0; CHUNK / 4];
        let mut done = 0;
        while done < length {
            let part = (length - done).min(ZEROES.len() as u64);
            self.write(address + done, &ZEROES[..part as usize])?;
            done += part;
        }
        Ok(())
    }

    /// True if a range of one file holds nothing.
    pub fn is_hole(&self, address: u64, length: u64) -> io::Result<bool> {
        let at = address % FILE_BYTES;
        let data = seek(self.file(address)?, at, libc::SEEK_DATA)?;
        Ok(data.is_none_or(|data| data >= at + length))
    }

    /// Fills a range from a reader by offset, leaving zero pages as holes. `read` gives
    /// the bytes that it read; 0 is the end.
    pub fn fill(
        &self,
        address: u64,
        length: u64,
        mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut buffer = vec![0u8; CHUNK];
        let mut done = 0;
        while done < length {
            let want = (length - done).min(CHUNK as u64) as usize;
            let got = read(&mut buffer[..want], done)?;
            if got == 0 {
                break;
            }
            let mut at = 0;
            while at < got {
                let step = PAGE.min(got - at);
                let mut end = at + step;
                if is_zero(&buffer[at..end]) {
                    at = end;
                    continue;
                }
                while end < got {
                    let step = PAGE.min(got - end);
                    if is_zero(&buffer[end..end + step]) {
                        break;
                    }
                    end += step;
                }
                let to = address + done + at as u64;
                self.note(to, (end - at) as u64);
                self.write(to, &buffer[at..end])?;
                at = end;
            }
            done += got as u64;
        }
        Ok(())
    }

    /// Copies a range to another address.
    pub fn copy(&self, from: u64, to: u64, length: u64) -> io::Result<()> {
        let source = self.file(from)?;
        self.fill(to, length, |buffer, at| {
            source.read_at(buffer, from % FILE_BYTES + at)
        })
    }

    /// Copies all that another space holds (the parent's, after a fork).
    pub fn copy_all(&self, parent: &Space) -> io::Result<()> {
        for index in 0..FILES {
            if fs::metadata(parent.dir.join(index.to_string()))?.blocks() == 0 {
                continue;
            }
            let from = parent.of_index(index)?;
            let mut at = 0;
            while let Some(start) = seek(from, at, libc::SEEK_DATA)? {
                let end = seek(from, start, libc::SEEK_HOLE)?.unwrap_or(start);
                let address = index as u64 * FILE_BYTES + start;
                self.fill(address, end - start, |buffer, done| {
                    from.read_at(buffer, start + done)
                })?;
                at = end.max(start + 1);
            }
        }
        Ok(())
    }

    /// True if a mapping stands in these files.
    pub fn holds(&self, mapping: &Mapping) -> bool {
        matches!(&mapping.backing, Backing::File { path, .. } if Path::new(path).starts_with(&self.dir))
    }

    /// Bytes of memory that are free for all processes.
    pub fn free(&self) -> io::Result<u64> {
        let mut stat = std::mem::MaybeUninit::<libc::statvfs64>::zeroed();
        // SAFETY: the kernel fills the structure, which is valid when zero.
        let stat = unsafe {
            if libc::fstatvfs64(self.of_index(0)?.as_raw_fd(), stat.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            stat.assume_init()
        };
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_one_place_and_holes_are_zero() {
        let dir = tempfile::tempdir().unwrap();
        let space = Space::create(dir.path(), "p1", 0).unwrap();
        let address = 0x7f12_3456_7000;
        let (path, offset) = space.place(address, 4096).unwrap();
        assert_eq!(path, dir.path().join("p1/31"));
        assert_eq!(offset, address - 31 * FILE_BYTES);
        assert!(space.place(FILE_BYTES - 4096, 8192).is_none());
        space.write(address, &[7; 8192]).unwrap();
        space.copy(address, address + 0x10_0000, 8192).unwrap();
        space.clear(address, 4096).unwrap();
        let other = Space::create(dir.path(), "p2", 0).unwrap();
        other.copy_all(&space).unwrap();
        let read = |at: u64| {
            let mut byte = [9; 1];
            other
                .file(at)
                .unwrap()
                .read_exact_at(&mut byte, at % FILE_BYTES)
                .unwrap();
            byte[0]
        };
        assert_eq!(read(address), 0);
        assert_eq!(read(address + 4096), 7);
        assert_eq!(read(address + 0x10_0000), 7);
    }

    #[test]
    fn what_is_mapped_anew_is_committed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let space = Space::create(dir.path(), "p1", 0).unwrap();
        let address = 0x7f12_3456_7000;
        let left = || space.changed.borrow().clone();
        space
            .fill(address, 8192, |buffer, done| {
                buffer[..PAGE].fill(7);
                Ok(if done < 8192 { PAGE } else { 0 })
            })
            .unwrap();
        assert_eq!(left().len(), 2);
        // Neighbours wait for their own mapping.
        space.commit(address - 4096, 4096).unwrap();
        space.commit(address + 8192, 4096).unwrap();
        assert_eq!(left().len(), 2);
        space.commit(address + 4096, 4096).unwrap();
        assert_eq!(left(), []);
        // A hole in a hole is none; zeroes ahead may be lost.
        space.clear(address + 8192, 4096).unwrap();
        space.zero(address + 8192, 4096).unwrap();
        assert_eq!(left(), []);
        space.clear(address, 4096).unwrap();
        assert_eq!(left(), [(address, address + 4096)]);
        for _ in 0..2 * CHANGED_MAX {
            space.note(0, 4096);
        }
        assert!(left().len() <= CHANGED_MAX + 1);
        space.commit(1 << 40, 1).unwrap();
        assert_eq!(left(), []);
    }

    #[test]
    fn zeroes_ahead_are_data_and_change_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let space = Space::create(dir.path(), "p1", 0).unwrap();
        let address = 0x7f12_3456_7000;
        space.write(address - 4096, &[7; 4096]).unwrap();
        assert!(space.is_hole(address, 300_000).unwrap());
        space.reserve(address, 2 << 20).unwrap();
        space.zero(address, 300_000).unwrap();
        assert!(!space.is_hole(address, 4096).unwrap());
        let mut bytes = vec![9; 4096 + 300_000];
        let file = space.file(address).unwrap();
        file.read_exact_at(&mut bytes, (address - 4096) % FILE_BYTES)
            .unwrap();
        assert!(bytes[..4096].iter().all(|byte| *byte == 7));
        assert!(is_zero(&bytes[4096..]));
    }
}

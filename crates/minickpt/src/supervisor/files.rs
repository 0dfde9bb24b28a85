//! Files that a program writes to: what a call gave is on the disk when it returns.
//!
//! The position of a descriptor outlives the kernel, what the kernel had not yet written does
//! not. So files are opened with `O_DSYNC`, a change of names is synced before the program
//! hears of it, and what no sync can save is refused when it is opened.
//!
//! Such calls may wait for others (a file lock, a pipe's other end), so they are not made in
//! the program's name: the thread makes them itself and stops at their end.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error};
use outlive_image::calls::reg;
use outlive_image::gate;
use outlive_image::sys::{self, Change};

use super::Supervisor;
use crate::memory::put_back;

/// What becomes of files that a program writes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Files {
    /// What was written is durable when the call returns; files in memory are refused.
    #[default]
    Through,
    /// As without protection: what was not synced may be lost.
    Lose,
}

/// Calls that open a file, and the register with their flags.
pub(crate) const OPENS: [(i64, usize); 2] =
    [(libc::SYS_open, reg::RSI), (libc::SYS_openat, reg::RDX)];

/// How a call names what it changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Named {
    /// A path in this argument.
    Path(usize),
    /// A directory's descriptor in this argument, a path in the next.
    At(usize),
    /// A path in this argument: the file itself.
    File(usize),
    /// A descriptor in this argument: the file itself.
    Itself(usize),
}

/// Calls that change names or lengths, and where. What a rename takes away elsewhere on the
/// file system is in the same transaction.
const CHANGES: [(i64, Named); 19] = [
    (libc::SYS_creat, Named::Path(0)),
    (libc::SYS_rename, Named::Path(1)),
    (libc::SYS_renameat, Named::At(2)),
    (libc::SYS_renameat2, Named::At(2)),
    (libc::SYS_unlink, Named::Path(0)),
    (libc::SYS_unlinkat, Named::At(0)),
    (libc::SYS_rmdir, Named::Path(0)),
    (libc::SYS_mkdir, Named::Path(0)),
    (libc::SYS_mkdirat, Named::At(0)),
    (libc::SYS_mknod, Named::Path(0)),
    (libc::SYS_mknodat, Named::At(0)),
    (libc::SYS_link, Named::Path(1)),
    (libc::SYS_linkat, Named::At(2)),
    (libc::SYS_symlink, Named::Path(1)),
    (libc::SYS_symlinkat, Named::At(1)),
    (libc::SYS_truncate, Named::File(0)),
    (libc::SYS_ftruncate, Named::Itself(0)),
    (libc::SYS_fallocate, Named::Itself(0)),
    (libc::SYS_copy_file_range, Named::Itself(2)),
];

/// The numbers of all of them.
pub(crate) fn changes() -> impl Iterator<Item = i64> {
    CHANGES.iter().map(|(number, _)| *number)
}

/// True if this call is one of ours.
pub(crate) fn is_file_call(number: i64) -> bool {
    OPENS.iter().any(|(open, _)| *open == number) || changes().any(|other| other == number)
}

/// A thread that was met at the end of such a call has its result, but what it did may not have
/// been synced: until the supervisor takes its number away it is in flight.
/// Gives the descriptor that such an open made: nobody knows it, and its file may not be there.
pub(crate) fn still_in_flight(registers: &mut [u64]) -> Option<i32> {
    let result = registers[reg::RAX] as i64;
    let number = registers[reg::ORIG_RAX] as i64;
    if result < 0 || !is_file_call(number) {
        return None;
    }
    registers[reg::RAX] = -i64::from(libc::ENOSYS) as u64;
    let opened = OPENS.iter().any(|(open, _)| *open == number);
    opened.then_some(result as i32)
}

const ARGUMENTS: [usize; 6] = [reg::RDI, reg::RSI, reg::RDX, reg::R10, reg::R8, reg::R9];
const PATH_BYTES: usize = 4096;

/// A call on a file that a thread is in.
#[derive(Debug)]
pub(crate) struct Open {
    /// Its registers at the call.
    registers: Vec<u64>,
}

fn answer(registers: &[u64], result: i64) -> Vec<u64> {
    let mut registers = registers.to_vec();
    registers[reg::RAX] = result as u64;
    registers[reg::ORIG_RAX] = u64::MAX;
    registers
}

/// True for file systems that a reboot empties.
fn is_volatile(file: &File) -> io::Result<bool> {
    const HELD_IN_MEMORY: [i64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
    let kind = crate::sys::file_system(file)?;
    Ok(HELD_IN_MEMORY.contains(&kind))
}

/// Why a descriptor cannot be kept, and what a call is told that made it.
fn objection(tid: i32, fd: i64) -> io::Result<Option<(i32, String)>> {
    let through = format!("/proc/{tid}/fd/{fd}");
    let kind = std::fs::metadata(&through)?.file_type();
    /// The device number of /dev/ptmx: each open makes another terminal.
    const PTMX: u64 = 5 << 8 | 2;
    let rdev = std::fs::metadata(&through)?.rdev();
    if kind.is_char_device() && rdev == PTMX {
        let why = "/dev/ptmx makes a terminal whose other end a panic takes".to_owned();
        return Ok(Some((libc::ENODEV, why)));
    }
    let name = || -> io::Result<String> { Ok(std::fs::read_link(&through)?.display().to_string()) };
    // Devices stand in memory, too, and are none.
    if kind.is_file() && is_volatile(&crate::sys::open_place(Path::new(&through))?)? {
        let why = format!(
            "{} is on a file system in memory, which a panic empties",
            name()?
        );
        return Ok(Some((libc::EROFS, why)));
    }
    Ok(None)
}

impl Supervisor<'_> {
    /// A thread is about to make a call on a file: it makes it, and stops at its end.
    pub(super) fn file_call(&mut self, tid: i32, registers: Vec<u64>) -> io::Result<()> {
        let number = registers[reg::ORIG_RAX] as i64;
        let mut changed = registers.clone();
        if let Some((_, flags)) = OPENS.iter().find(|(open, _)| *open == number) {
            changed[*flags] |= libc::O_DSYNC as u64;
        } else if number == libc::SYS_creat {
            // The same as open(2), which has flags.
            changed[reg::ORIG_RAX] = libc::SYS_open as u64;
            changed[reg::RDX] = registers[reg::RSI];
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC | libc::O_DSYNC;
            changed[reg::RSI] = flags as u64;
        }
        if changed != registers {
            sys::set_registers(tid, &changed)?;
        }
        self.files.insert(tid, Open { registers });
        sys::to_call(tid)
    }

    /// Lets a stopped thread run: one that is in a call on a file, to its end.
    pub(super) fn let_run(&self, tid: i32) -> io::Result<()> {
        if self.files.contains_key(&tid) {
            sys::to_call(tid)
        } else {
            sys::resume(tid, 0)
        }
    }

    /// A thread came to the end of a call.
    pub(super) fn call_ended(&mut self, tid: i32) -> io::Result<()> {
        let Some(open) = self.files.remove(&tid) else {
            return sys::resume(tid, 0);
        };
        let now = sys::registers(tid)?;
        let result = now[reg::RAX] as i64;
        // But for the result the program finds what it had.
        let mut registers = now;
        for place in [reg::RSI, reg::RDX] {
            registers[place] = open.registers[place];
        }
        let number = open.registers[reg::ORIG_RAX] as i64;
        if result < 0 {
            // A restart takes the number of the call from here, too.
            if registers[reg::ORIG_RAX] as i64 >= 0 {
                registers[reg::ORIG_RAX] = number as u64;
            }
            sys::set_registers(tid, &registers)?;
            return sys::resume(tid, 0);
        }
        sys::set_registers(tid, &registers)?;
        let opened = number == libc::SYS_creat || OPENS.iter().any(|(open, _)| *open == number);
        let refused = if opened {
            objection(tid, result)?
        } else {
            None
        };
        let result = match refused {
            Some((error, why)) => {
                self.close(tid, result)?;
                self.refuse_file(&why);
                -i64::from(error)
            }
            None => self.sync(tid, number, &open.registers, result),
        };
        sys::set_registers(tid, &answer(&registers, result))?;
        sys::resume(tid, 0)
    }

    /// Syncs what a call changed; what the program is told.
    fn sync(&mut self, tid: i32, number: i64, registers: &[u64], result: i64) -> i64 {
        let mut places = Vec::new();
        if let Some((_, named)) = CHANGES.iter().find(|(change, _)| *change == number) {
            places.push(self.place(tid, *named, registers));
        } else if let Some((_, flags)) = OPENS.iter().find(|(open, _)| *open == number) {
            // A file that is made has its name in a directory; one that is cut off is another.
            let flags = registers[*flags] as i32;
            if flags & libc::O_CREAT != 0 {
                let at = number == libc::SYS_openat;
                let named = if at { Named::At(0) } else { Named::Path(0) };
                places.push(self.place(tid, named, registers));
            }
            if flags & libc::O_TRUNC != 0 {
                places.push(Ok(Some(PathBuf::from(format!("/proc/{tid}/fd/{result}")))));
            }
        }
        let synced = places.into_iter().try_for_each(|place| match place? {
            Some(path) => durable(&path),
            None => Ok(()),
        });
        match synced {
            Ok(()) => result,
            Err(error) => {
                let what = format!("a change of names could not be synced: {error}");
                let remedy = "the program was told EIO; look at that file system";
                self.tell("sync", &Error::new(Code::Io, Entity::Call, what, remedy));
                -i64::from(libc::EIO)
            }
        }
    }

    /// What is to be synced: the directory of a name, or the file of a descriptor.
    fn place(&self, tid: i32, named: Named, registers: &[u64]) -> io::Result<Option<PathBuf>> {
        let word = |at: usize| registers[ARGUMENTS[at]];
        let process = PathBuf::from(format!("/proc/{tid}"));
        let (base, at) = match named {
            Named::Itself(at) => return Ok(Some(process.join(format!("fd/{}", word(at) as i32)))),
            Named::Path(at) | Named::File(at) => (libc::AT_FDCWD, word(at)),
            Named::At(at) => (word(at) as i32, word(at + 1)),
        };
        let pid = self.threads.get(&tid);
        let Some(body) = pid.and_then(|pid| self.bodies.get(pid)) else {
            return Ok(None);
        };
        let name = text(&body.memory, at)?;
        let name = Path::new(&name);
        let base = match (name.is_absolute(), base) {
            (true, _) => process.join("root"),
            (false, libc::AT_FDCWD) => process.join("cwd"),
            (false, fd) => process.join(format!("fd/{fd}")),
        };
        let name = name.strip_prefix("/").unwrap_or(name);
        let whole = base.join(name);
        if let Named::File(_) = named {
            return Ok(Some(whole));
        }
        Ok(whole.parent().map(Path::to_owned))
    }

    fn close(&self, tid: i32, fd: i64) -> io::Result<()> {
        let body = self.threads.get(&tid).and_then(|pid| self.bodies.get(pid));
        let Some(body) = body.cloned() else {
            return Ok(());
        };
        let saved = (sys::registers(tid)?, sys::mask(tid)?);
        gate::quiet(tid)?;
        let list = gate::List::new().with(libc::SYS_close, &[fd as u64]);
        gate::run(tid, &body.memory, &list)?;
        put_back(tid, saved)
    }

    pub(super) fn refuse_file(&mut self, why: &str) {
        let error = Error::new(
            Code::Unsupported,
            Entity::Call,
            format!("the program opens a file that cannot be kept: {why}"),
            "it was told an error; let it write to persistent memory or to a disk (TMPDIR), or \
             give --files lose",
        );
        // Each by its name.
        if self.refused.len() < REFUSED_MAX && self.refused.insert(why.to_owned()) {
            (self.say)(&error);
        }
    }

    /// True for a stop at the end of a call.
    pub(super) fn is_end_of_call(change: Change) -> bool {
        const END: i32 = libc::SIGTRAP | 0x80;
        matches!(
            change,
            Change::Stopped {
                signal: END,
                event: 0
            }
        )
    }
}

/// Names of refused files that are told.
const REFUSED_MAX: usize = 64;

/// Syncs a file or directory, if there is a disk under it.
fn durable(path: &Path) -> io::Result<()> {
    // The program may have put something else there since, and this opens with root's rights: what
    // a device would do when it is opened is not done.
    let place = crate::sys::open_place(path)?;
    let kind = place.metadata()?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Ok(());
    }
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", place.as_raw_fd()))?;
    if is_volatile(&file)? {
        return Ok(());
    }
    match file.sync_all() {
        // Such as /proc: nothing to be lost.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        synced => synced,
    }
}

/// A path in the memory of a process.
fn text(memory: &File, at: u64) -> io::Result<std::ffi::OsString> {
    use std::os::unix::ffi::OsStringExt;
    use std::os::unix::fs::FileExt;
    let mut bytes = Vec::new();
    while bytes.len() < PATH_BYTES {
        // To the end of a page: the next one may not be there.
        let from = at + bytes.len() as u64;
        let mut part = vec![0; (4096 - from % 4096) as usize];
        memory.read_exact_at(&mut part, from)?;
        let end = part.iter().position(|byte| *byte == 0);
        bytes.extend_from_slice(&part[..end.unwrap_or(part.len())]);
        if end.is_some() {
            return Ok(std::ffi::OsString::from_vec(bytes));
        }
    }
    Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG))
}

/// Descriptors that a program gets from here and that may lose what is written to them: files
/// on a disk without a flag that writes through. Their numbers and names.
pub(crate) fn inherited() -> Vec<(i32, String)> {
    let own = std::process::id() as i32;
    let numbers = outlive_image::procfs::descriptors(own).unwrap_or_default();
    let loses = |fd: &i32| {
        let (_, flags, _) = outlive_image::procfs::fd_info(own, *fd).ok()?;
        let flags = flags as i32;
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
        let file = std::fs::metadata(&path).ok()?.is_file();
        let through = flags & libc::O_DSYNC != 0 || crate::sys::writes_through(*fd);
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_CLOEXEC == 0;
        (file && writes && !through).then(|| (*fd, path.display().to_string()))
    };
    numbers.iter().filter_map(loses).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_was_not_synced_is_in_flight() {
        let met = |number: i64, result: i64| {
            let mut registers = vec![0; 27];
            registers[reg::ORIG_RAX] = number as u64;
            registers[reg::RAX] = result as u64;
            let unknown = still_in_flight(&mut registers);
            (registers[reg::RAX] as i64, unknown)
        };
        let enosys = -i64::from(libc::ENOSYS);
        assert_eq!(met(libc::SYS_rmdir, 0), (enosys, None));
        assert_eq!(met(libc::SYS_openat, 3), (enosys, Some(3)));
        // It failed, it is over (the supervisor has synced), or it is another call.
        assert_eq!(met(libc::SYS_rmdir, -2), (-2, None));
        assert_eq!(met(-1, 0), (0, None));
        assert_eq!(met(libc::SYS_write, 5), (5, None));
    }

    #[test]
    fn what_is_in_memory_and_what_is_synced_are_told_apart() {
        let own = std::process::id() as i32;
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        let file = File::create(&path).unwrap();
        if !is_volatile(&file).unwrap() {
            assert_eq!(objection(own, file.as_raw_fd().into()).unwrap(), None);
            durable(&path).unwrap();
            durable(dir.path()).unwrap();
        }
        durable(Path::new("/proc/self")).unwrap();
        if Path::new("/dev/shm").is_dir() {
            let held = tempfile::tempfile_in("/dev/shm").unwrap();
            let (error, why) = objection(own, held.as_raw_fd().into()).unwrap().unwrap();
            assert_eq!(error, libc::EROFS);
            assert!(why.contains("/dev/shm"), "{why}");
        }
    }
}

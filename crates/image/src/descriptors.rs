//! Open files as data, and back.
//!
//! Descriptors that share one open file description (by `dup` or `fork`) share it again
//! after a restore: the restorer opens each description once, and all processes inherit
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};

use crate::blame::blame;
use crate::kernel_state;
use crate::model::{Description, Descriptor, OpenFile};
use crate::owner::{self, Owner};
use crate::procfs;
use crate::sys;

/// Flags of an open file that fcntl(F_SETFL) can set later.
const STATUS: i32 = libc::O_APPEND | libc::O_NONBLOCK;
/// Character devices that hold no state (major 1 and 5): see null(4), random(4), tty(4).
const HARMLESS: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
];
/// A pipe holds at most this much (fcntl(F_SETPIPE_SZ) as root could raise it).
const PIPE_BYTES: usize = 1 << 20;

/// The descriptions seen so far.
#[derive(Default, Debug)]
pub struct Descriptions {
    found: Vec<(i32, i32, String, Description)>,
    /// Pipes that nobody writes to any more: who did has ended.
    over: BTreeSet<u64>,
}

fn unsupported(fd: i32, link: &str) -> io::Error {
    let what = format!("descriptor {fd} is {link}");
    io::Error::new(io::ErrorKind::Unsupported, what)
}

/// True for the device numbers of terminals: consoles, serial lines, pseudo-terminals.
pub fn is_terminal(rdev: u64) -> bool {
    let major = (rdev >> 8) & 0xfff;
    let minor = rdev & 0xff;
    matches!(major, 4 | 136..=143 | 204 | 229) || (major == 5 && minor == 1)
}

impl Descriptions {
    /// The descriptors of a stopped process.
    pub fn of(&mut self, pid: i32) -> io::Result<Vec<Descriptor>> {
        let mut descriptors = Vec::new();
        for fd in procfs::descriptors(pid)? {
            let link = procfs::link(pid, &format!("fd/{fd}"))?;
            let (position, flags, rest) = procfs::fd_info(pid, fd)?;
            let known = self.found.iter().position(|(other, number, name, _)| {
                *name == link && sys::same_file(*other, *number, pid, fd).unwrap_or(false)
            });
            let index = match known {
                Some(index) => index,
                None => {
                    let kind = kind(pid, fd, &link, flags, &rest)?;
                    if let OpenFile::Pipe {
                        id, write: false, ..
                    } = kind
                        && is_over(pid, fd)?
                    {
                        self.over.insert(id);
                    }
                    let flags = flags & !(libc::O_CLOEXEC as u32);
                    let description = Description {
                        flags,
                        position,
                        volatile: false,
                        device: None,
                        locks: Vec::new(),
                        kind,
                    };
                    self.found.push((pid, fd, link, description));
                    self.found.len() - 1
                }
            };
            descriptors.push(Descriptor {
                fd,
                close_on_exec: flags & libc::O_CLOEXEC as u32 != 0,
                description: index as u32,
            });
        }
        Ok(descriptors)
    }

    /// The descriptions; pipes whose other end is not here lead outside, or are over.
    pub fn finish(self) -> Vec<Description> {
        let ends = |write: bool| -> Vec<u64> {
            let ids = self.found.iter().filter_map(|(_, _, _, d)| match d.kind {
                OpenFile::Pipe { id, write: w, .. } if w == write => Some(id),
                _ => None,
            });
            ids.collect()
        };
        let (writers, readers) = (ends(true), ends(false));
        let written = |id: &u64| writers.contains(id) || self.over.contains(id);
        let whole = |id: &u64| written(id) && readers.contains(id);
        let found = self.found.iter().map(|(_, fd, _, description)| {
            let mut description = description.clone();
            match &description.kind {
                OpenFile::Pipe { id, .. } if !whole(id) => {
                    description.kind = OpenFile::Outside { stdio: *fd };
                }
                OpenFile::Socket if *fd <= 2 => description.kind = OpenFile::Outside { stdio: *fd },
                _ => {}
            }
            description
        });
        found.collect()
    }
}

fn kind(pid: i32, fd: i32, link: &str, flags: u32, rest: &str) -> io::Result<OpenFile> {
    let through = format!("/proc/{pid}/fd/{fd}");
    if let Some(id) = link.strip_prefix("pipe:[") {
        let id = id.trim_end_matches(']').parse().unwrap_or(0);
        let write = flags & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32;
        let held = if write { Vec::new() } else { held(&through)? };
        return Ok(OpenFile::Pipe { id, write, held });
    }
    if link.starts_with("socket:[") {
        return Ok(OpenFile::Socket);
    }
    if link == "anon_inode:[eventfd]" {
        let line = rest
            .lines()
            .find_map(|line| line.strip_prefix("eventfd-count:"));
        let count = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        return count
            .map(OpenFile::Event)
            .ok_or_else(|| unsupported(fd, link));
    }
    if !link.starts_with('/') || link.ends_with(" (deleted)") {
        return Err(unsupported(fd, link));
    }
    let meta = std::fs::metadata(&through)?;
    let kind = meta.file_type();
    if kind.is_char_device() && is_terminal(meta.rdev()) {
        let terminal = File::options()
            .read(true)
            .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK)
            .open(&through)?;
        let (termios, size, _) = sys::terminal(terminal.as_raw_fd())?;
        let stat = procfs::stat(pid)?;
        let foreground = procfs::foreground(pid)?;
        let own = stat.sid != 0 && foreground > 0;
        let foreground = if own { foreground } else { 0 };
        return Ok(OpenFile::Terminal {
            path: link.to_owned(),
            termios,
            size,
            foreground,
        });
    }
    let device = kind.is_char_device() && !HARMLESS.contains(&link);
    if device || kind.is_block_device() || kind.is_fifo() || kind.is_socket() {
        return Err(unsupported(fd, link));
    }
    Ok(OpenFile::Path(link.to_owned()))
}

/// True for the read end of a pipe without a writer anywhere.
fn is_over(pid: i32, fd: i32) -> io::Result<bool> {
    let end = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/{pid}/fd/{fd}"))?;
    sys::hung_up(end.as_raw_fd())
}

/// What a pipe holds, without taking it out.
fn held(through: &str) -> io::Result<Vec<u8>> {
    let from = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(through)?;
    let [read, write] = sys::pipe()?;
    // SAFETY of ownership: both numbers were just made and belong to nobody else.
    let (mut copy, room) = owned(read, write);
    let got = match sys::tee(from.as_raw_fd(), room.as_raw_fd(), PIPE_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        other => other?,
    };
    drop(room);
    let mut bytes = vec![0; got];
    copy.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn owned(first: i32, second: i32) -> (File, File) {
    // SAFETY: the callers made both descriptors and give them away here.
    unsafe { (File::from_raw_fd(first), File::from_raw_fd(second)) }
}

/// What takes the place of pipes and sockets that lead outside.
#[derive(Clone, Copy, Debug)]
pub struct Stdio(pub [i32; 3]);

impl Default for Stdio {
    fn default() -> Stdio {
        Stdio([0, 1, 2])
    }
}

/// Descriptors of ours for processes to inherit; closed when dropped.
#[derive(Debug, Default)]
pub struct Inherited {
    /// By index of the description.
    pub numbers: Vec<i32>,
    /// Descriptions of which only the number came back, with their names and the reason.
    pub gone: Vec<(usize, String)>,
}

impl Drop for Inherited {
    fn drop(&mut self) {
        self.numbers.iter().for_each(|fd| sys::close(*fd));
    }
}

/// Opens all descriptions at numbers from `least` on.
///
/// # Errors
/// What cannot be opened, with its path.
pub fn open<'o>(
    descriptions: &[Description],
    owner: impl Fn(usize) -> Option<&'o Owner>,
    holders: impl Fn(usize) -> Vec<i32>,
    stdio: Stdio,
    least: i32,
) -> io::Result<Inherited> {
    let mut inherited = Inherited::default();
    let mut made = Made::default();
    for (index, description) in descriptions.iter().enumerate() {
        if holders(index).is_empty() {
            // Of a process that is not restored.
            inherited.numbers.push(sys::useless_above(least)?);
            continue;
        }
        let owner = owner(index);
        let opened = open_one(description, owner, stdio, least, &mut made);
        let number = match opened {
            // No later attempt can do better: one program's file does not hold up all.
            Err(error) if is_gone(description, owner, &error) => {
                inherited.gone.push((index, error.to_string()));
                sys::useless_above(least)
            }
            other => other,
        };
        let number = number.map_err(|error| blame(&holders(index), error))?;
        inherited.numbers.push(number);
        let is_gone = inherited
            .gone
            .last()
            .is_some_and(|(last, _)| *last == index);
        if !is_gone {
            lock(description, number).map_err(|error| blame(&holders(index), error))?;
        }
        if let OpenFile::Gone(name) = &description.kind {
            inherited.gone.push((index, name.clone()));
        }
    }
    // Not before all is sent that the other end was to receive.
    for (end, directions) in made.shut {
        kernel_state::shut(end.as_raw_fd(), directions)?;
    }
    Ok(inherited)
}

/// Takes the locks of a description again.
fn lock(description: &Description, number: i32) -> io::Result<()> {
    let OpenFile::Path(path) = &description.kind else {
        return Ok(());
    };
    let mut locks = description.locks.iter();
    locks.try_for_each(|lock| {
        kernel_state::take_lock(number, lock).map_err(|error| not_locked(path, &error))
    })
}

/// Why a lock could not be had again.
pub(crate) fn not_locked(path: &str, error: &io::Error) -> io::Error {
    let what = format!("its lock on {path} cannot be taken again: {error}");
    io::Error::new(io::ErrorKind::ResourceBusy, what)
}

/// Pipes and pairs of sockets of which one end was asked for.
#[derive(Default)]
struct Made {
    pipes: BTreeMap<u64, (File, File)>,
    /// By the number of the end.
    ends: BTreeMap<u64, File>,
    shut: Vec<(File, u32)>,
}

impl Made {
    /// An end of a pair, which gets what it had not yet received.
    fn end(&mut self, kind: &OpenFile) -> io::Result<File> {
        let OpenFile::Pair {
            id,
            peer,
            kind,
            shut,
            held,
        } = kind
        else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if !self.ends.contains_key(id) {
            let [own, other] = kernel_state::pair(*kind)?;
            let (own, other) = owned(own, other);
            self.ends.insert(*id, own);
            self.ends.insert(*peer, other);
        }
        let end = |id: &u64| {
            let found = self.ends.get(id);
            found.ok_or_else(|| io::Error::other("a socket without its other end"))
        };
        let (own, other) = (end(id)?, end(peer)?);
        for message in held {
            kernel_state::send(other.as_raw_fd(), message)?;
        }
        let own = own.try_clone()?;
        if *peer == 0 {
            // It is closed when the last number of it is.
            self.ends.remove(peer);
        } else {
            self.shut.push((own.try_clone()?, *shut));
        }
        Ok(own)
    }
}

/// True if the file system that held a file is there, and the directory that held its name.
fn is_mounted(description: &Description) -> bool {
    let (OpenFile::Path(path), Some(device)) = (&description.kind, description.device) else {
        return false;
    };
    let parent = std::path::Path::new(path).parent();
    parent.is_some_and(|dir| {
        std::fs::metadata(dir).is_ok_and(|meta| {
            let number = meta.dev();
            (libc::major(number), libc::minor(number)) == device
        })
    })
}

fn is_gone(description: &Description, owner: Option<&Owner>, error: &io::Error) -> bool {
    match error.kind() {
        io::ErrorKind::NotFound => description.volatile || is_mounted(description),
        io::ErrorKind::PermissionDenied => owner.is_some(),
        _ => false,
    }
}

fn above(file: &File, least: i32) -> io::Result<i32> {
    sys::duplicate_above(file.as_raw_fd(), least)
}

fn open_one(
    description: &Description,
    owner: Option<&Owner>,
    stdio: Stdio,
    least: i32,
    made: &mut Made,
) -> io::Result<i32> {
    let flags = description.flags as i32;
    let special = |fd: io::Result<i32>| {
        let fd = fd?;
        let number = sys::duplicate_above(fd, least);
        sys::close(fd);
        let number = number?;
        sys::set_status_flags(number, flags & STATUS)?;
        Ok(number)
    };
    match &description.kind {
        OpenFile::Path(path) => {
            let mut file = owner::open(owner, path, flags)?;
            if file.metadata()?.is_file() {
                file.seek(SeekFrom::Start(description.position))?;
            }
            above(&file, least)
        }
        OpenFile::Terminal {
            path,
            termios,
            size,
            ..
        } => {
            let file = owner::open(owner, path, flags | libc::O_NOCTTY)?;
            sys::set_terminal(file.as_raw_fd(), termios, *size)?;
            above(&file, least)
        }
        OpenFile::Pipe { id, write, held } => {
            if !made.pipes.contains_key(id) {
                let [read, write] = sys::pipe()?;
                made.pipes.insert(*id, owned(read, write));
            }
            let (read, room) = made
                .pipes
                .get_mut(id)
                .ok_or_else(|| io::Error::other("pipe"))?;
            if !held.is_empty() {
                // A pipe took them once.
                kernel_state::widen(room.as_raw_fd(), held.len())?;
                room.write_all(held)?;
            }
            let end = if *write { room } else { read };
            let number = above(end, least)?;
            sys::set_status_flags(number, flags & STATUS)?;
            Ok(number)
        }
        OpenFile::Outside { stdio: fd @ 0..=2 } => {
            sys::duplicate_above(stdio.0[*fd as usize], least)
        }
        OpenFile::Outside { .. } | OpenFile::Socket => {
            // One whose peer is gone: end of file for a reader, EPIPE for a writer.
            let [mine, peer] = sys::socket_pair()?;
            let (mine, _) = owned(mine, peer);
            above(&mine, least)
        }
        OpenFile::Gone(_) => sys::useless_above(least),
        OpenFile::Event(counter) => special(sys::event(*counter)),
        OpenFile::Semaphore(counter) => special(kernel_state::semaphore(*counter)),
        kind @ OpenFile::Timer { .. } => special(kernel_state::timer(kind)),
        OpenFile::Epoll(_) => special(kernel_state::epoll()),
        OpenFile::Signals(mask) => special(kernel_state::signals(*mask)),
        kind @ OpenFile::Pair { .. } => special(made.end(kind).map(IntoRawFd::into_raw_fd)),
    }
}

/// A file of ours at a number from `least` on, given away to be inherited.
pub fn give(file: File, least: i32) -> io::Result<i32> {
    let fd = file.into_raw_fd();
    let number = sys::duplicate_above(fd, least);
    sys::close(fd);
    number
}

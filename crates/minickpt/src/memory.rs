//! Calls that change the memory map, carried out for a stopped thread.
//!
//! The supervisor makes each of them itself, through the gate of the process, and sets
//! the thread behind its call with the result. All are made one after the other, so that
//! the files and the map agree whenever a thread of the process runs.
//!
//! Zeroes ahead: on DAX the first write to a page allocates a block, and with MAP_SYNC the
//! program waits until the journal has it, at some hundred thousand instructions. So large
//! mappings start at a boundary of huge pages and get blocks at boundaries too: the first
//! write to one maps 2 MiB at once. What does not fill a huge page is written with zeroes
//! before the program sees it. Of a thread's stack that is its end, which every thread uses:
//! it is placed so that the end lies above a boundary, and what a deeper one needs below it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use outlive_image::calls::reg;
use outlive_image::gate::{self, List};
use outlive_image::model::{Backing, Mapping};
use outlive_image::procfs;
use outlive_image::sys;

use crate::journal::Journal;
use crate::space::{FILE_BYTES, Space, unguessable};
use crate::stacks::{Stacks, is_stack};

const PAGE: u64 = 4096;
const ENOMEM: i64 = -(libc::ENOMEM as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
/// Flags of mmap that make sense for a shared mapping as well.
const KEPT: u64 = (libc::MAP_LOCKED | libc::MAP_NORESERVE) as u64;
const AT_FDCWD: u64 = libc::AT_FDCWD as u64;
const STACK_BYTES: u64 = 8 << 20;
/// Of it, what is zeroed ahead below a fresh program's stack.
const STACK_AHEAD: u64 = 128 << 10;
/// A huge page.
const HUGE: u64 = 2 << 20;
/// Memory that becomes writable by mprotect(2) is zeroed ahead up to this: the steps of
/// an arena of the C library, but not the stack of a thread. More does not stop here.
pub(crate) const PROTECT_AHEAD: u64 = 1 << 20;
/// Of a thread's stack, what is zeroed ahead at its end.
const THREAD_AHEAD: u64 = 64 << 10;
/// Zeroes ahead take at most this part of what is free.
const AHEAD_SHARE: u64 = 8;

/// A process under the supervisor, as calls on its memory need it.
#[derive(Debug)]
pub struct Guest<'a> {
    /// The stopped thread in which calls are made.
    pub tid: i32,
    /// Its process's memory.
    pub memory: &'a File,
    /// Its process's files.
    pub space: &'a Space,
    /// Where shared anonymous memory stands.
    pub common: &'a Path,
    /// True if files are on DAX: mapped with MAP_SYNC.
    pub dax: bool,
    /// What the next kernel must know of the call.
    pub journal: Option<&'a Journal>,
    /// Where stacks that are made ahead go.
    pub(crate) stacks: Option<&'a Stacks>,
    /// True if what is written to files must outlive a panic.
    pub(crate) through: bool,
}

/// What became of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Done {
    /// It was made; its result.
    Result(i64),
    /// It may be made as it is.
    Pass,
    /// There is not enough protected memory; bytes that were asked for.
    Full(u64),
    /// It would map what a panic takes away; what that is.
    Unkept(String),
}

fn refused(error: &io::Error) -> i64 {
    -i64::from(error.raw_os_error().unwrap_or(libc::ENOMEM))
}

fn round(length: u64) -> u64 {
    length.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

fn hits_gate(address: u64, length: u64) -> bool {
    address < gate::GATE + gate::GATE_BYTES && gate::GATE < address.saturating_add(length)
}

/// Where a thread's stack begins in a reserved range: its end lies above a boundary of huge
/// pages, as far as it is zeroed ahead.
fn stack_at(low: u64, length: u64) -> u64 {
    (low + length - THREAD_AHEAD).next_multiple_of(HUGE) + THREAD_AHEAD - length
}

impl Guest<'_> {
    fn run(&self, list: &List) -> io::Result<Vec<i64>> {
        gate::run(self.tid, self.memory, list).map(|ran| ran.results)
    }

    fn one(&self, number: i64, arguments: &[u64]) -> io::Result<i64> {
        let mut list = List::new();
        list.attempt(number, arguments);
        self.run(&list).map(|results| results[0])
    }

    /// What the program is about to see is durable.
    fn commit(&self, address: u64, length: u64) -> io::Result<()> {
        if self.dax {
            self.space.commit(address, length)?;
        }
        Ok(())
    }

    fn shared(&self) -> u64 {
        let flags = if self.dax {
            libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC
        } else {
            libc::MAP_SHARED
        };
        flags as u64
    }

    /// mmap(2).
    pub fn map(&self, arguments: [u64; 6]) -> io::Result<Done> {
        let [address, length, protection, flags, fd, offset] = arguments;
        let has = |flag: i32| flags & flag as u64 != 0;
        let fixed = has(libc::MAP_FIXED) || has(libc::MAP_FIXED_NOREPLACE);
        let length = round(length);
        if length == 0 || (fixed && !address.is_multiple_of(PAGE)) {
            return Ok(Done::Pass);
        }
        if fixed && hits_gate(address, length) {
            return Ok(Done::Result(EINVAL));
        }
        let shared = has(libc::MAP_SHARED);
        let mut anonymous = has(libc::MAP_ANONYMOUS);
        let source = if anonymous { None } else { self.source(fd)? };
        // /dev/zero, shared, is anonymous memory, and stands in files of ours.
        anonymous |= shared && matches!(source, Some(None));
        if has(libc::MAP_HUGETLB) {
            return Ok(Done::Result(ENOMEM));
        }
        if !anonymous && (shared || source.is_none()) {
            return self.map_shared(arguments);
        }
        if protection & libc::PROT_WRITE as u64 != 0 && self.space.free()? < length {
            return Ok(Done::Full(length));
        }
        // What will be zero and written to.
        let zero = !shared && matches!(source, None | Some(None));
        let fresh = zero && protection & libc::PROT_WRITE as u64 != 0 && !has(libc::MAP_STACK);
        let anywhere = length >= HUGE && address == 0 && !fixed && !has(libc::MAP_32BIT);
        let stack = zero && has(libc::MAP_STACK) && anywhere;
        if let Some(stacks) = self.stacks.filter(|_| stack && is_stack(&arguments)) {
            // Addresses that wait count as used, too: where they are limited, none waits.
            let limited = sys::limits(self.tid)?[libc::RLIMIT_AS as usize].0 != u64::MAX;
            let count = if limited { 1 } else { stacks.next() };
            let made = self.stacks_ahead(length, count)?;
            if let Some((first, rest)) = made.split_first() {
                stacks.keep(arguments[1], rest);
                return Ok(Done::Result(*first as i64));
            }
        }
        let huge = (fresh && anywhere) || stack;
        let reserved = length + if huge { HUGE } else { 0 };
        // Where it will lie decides where it stands: the kernel chooses first.
        let mut list = List::new();
        let hint = flags & (libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT) as u64;
        let reserve = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64 | hint;
        let replace = has(libc::MAP_FIXED) && !has(libc::MAP_FIXED_NOREPLACE);
        let guess = if replace { address } else { 31 * FILE_BYTES };
        if !replace {
            list.attempt(
                libc::SYS_mmap,
                &[address, reserved, 0, reserve, u64::MAX, 0],
            );
        }
        let common = (shared && anonymous)
            .then(|| self.new_common(length))
            .transpose()?;
        let opened = self.open_call(&mut list, guess, common.as_deref());
        let results = self.run(&list)?;
        let at = if replace { address as i64 } else { results[0] };
        let mut file = results[opened];
        if common.is_none() {
            file = self.opened(file, guess)?;
        }
        if (-4095..0).contains(&at) || file < 0 {
            if file >= 0 {
                self.one(libc::SYS_close, &[file as u64])?;
            }
            let result = if (-4095..0).contains(&at) { at } else { ENOMEM };
            return Ok(Done::Result(result));
        }
        let low = at as u64;
        let at = match (stack, huge) {
            (true, _) => stack_at(low, length),
            (false, true) => low.next_multiple_of(HUGE),
            (false, false) => low,
        };
        let Some((_, place)) = self.space.place(at, length) else {
            return Ok(Done::Result(ENOMEM));
        };
        if common.is_none() && at / FILE_BYTES != guess / FILE_BYTES {
            self.one(libc::SYS_close, &[file as u64])?;
            let mut list = List::new();
            self.open_call(&mut list, at, None);
            file = self.opened(self.run(&list)?[0], at)?;
        }
        self.space.clear(at, length)?;
        if let Some(source) = source.flatten() {
            self.space.fill(at, length, |buffer, done| {
                source.read_at(buffer, offset + done)
            })?;
        }
        self.commit(at, length)?;
        if fresh && !has(libc::MAP_NORESERVE) {
            self.ahead(at, length)?;
        } else if stack {
            self.ahead(at + length - THREAD_AHEAD, THREAD_AHEAD)?;
        }
        let place = if common.is_some() { 0 } else { place };
        let flags = self.shared() | libc::MAP_FIXED as u64 | (flags & KEPT);
        let mut list = List::new();
        list.attempt(
            libc::SYS_mmap,
            &[at, length, protection, flags, file as u64, place],
        );
        list.attempt(libc::SYS_close, &[file as u64]);
        if huge {
            // What the boundary left over; the end is not at the same place.
            for (start, end) in [(low, at), (at + length, low + reserved)] {
                if start < end {
                    list.attempt(libc::SYS_munmap, &[start, end - start]);
                }
            }
        }
        Ok(Done::Result(self.run(&list)?[0]))
    }

    /// mmap(2) of a file of the program's own, which stays its own; a bad descriptor is its
    /// error. On DAX its pages are durable as the program's memory is.
    fn map_shared(&self, arguments: [u64; 6]) -> io::Result<Done> {
        let [address, length, protection, flags, fd, offset] = arguments;
        let path = format!("/proc/{}/fd/{}", self.tid, fd as i32);
        let shared = flags & libc::MAP_SHARED as u64 != 0;
        let file = File::open(&path).ok().filter(|_| shared && self.dax);
        let kept = file.map(|file| sys::maps_synchronously(file.as_raw_fd()));
        let writes = protection & libc::PROT_WRITE as u64 != 0;
        if self.through && writes && kept == Some(false) {
            let name = std::fs::read_link(&path)?;
            let what = format!(
                "{} is mapped shared and writable, and not on DAX",
                name.display()
            );
            return Ok(Done::Unkept(what));
        }
        if flags & libc::MAP_FIXED as u64 != 0 && address.is_multiple_of(PAGE) {
            self.space.clear(address, round(length))?;
        }
        if kept != Some(true) {
            return Ok(Done::Pass);
        }
        let flags = flags & !(libc::MAP_TYPE as u64) | self.shared();
        let arguments = [address, length, protection, flags, fd, offset];
        self.one(libc::SYS_mmap, &arguments).map(Done::Result)
    }

    /// Makes up to `count` inaccessible stacks of `length` bytes; none if something is short.
    fn stacks_ahead(&self, length: u64, count: usize) -> io::Result<Vec<u64>> {
        let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let whole = length + HUGE;
        let mut list = List::new();
        for _ in 0..count {
            let arguments = [0, whole, 0, reserve as u64, u64::MAX, 0];
            list.attempt(libc::SYS_mmap, &arguments);
        }
        let guess = 31 * FILE_BYTES;
        self.open_call(&mut list, guess, None);
        let results = self.run(&list)?;
        let (lows, file) = (&results[..count], self.opened(results[count], guess)?);
        let flags = self.shared() | (libc::MAP_FIXED | libc::MAP_STACK) as u64;
        let (mut list, mut made) = (List::new(), Vec::new());
        for low in lows.iter().filter(|low| **low > 0) {
            let low = *low as u64;
            let at = stack_at(low, length);
            let place = self.space.place(at, length);
            let place = place.filter(|_| file >= 0 && at / FILE_BYTES == guess / FILE_BYTES);
            let Some((_, place)) = place else {
                list.attempt(libc::SYS_munmap, &[low, whole]);
                continue;
            };
            self.space.clear(at, length)?;
            self.commit(at, length)?;
            self.ahead(at + length - THREAD_AHEAD, THREAD_AHEAD)?;
            let arguments = [at, length, 0, flags, file as u64, place];
            made.push((list.attempt(libc::SYS_mmap, &arguments), at));
            for (start, end) in [(low, at), (at + length, low + whole)] {
                if start < end {
                    list.attempt(libc::SYS_munmap, &[start, end - start]);
                }
            }
        }
        if file >= 0 {
            list.attempt(libc::SYS_close, &[file as u64]);
        }
        let results = self.run(&list)?;
        made.retain(|(call, _)| results[*call] >= 0);
        Ok(made.into_iter().map(|(_, at)| at).collect())
    }

    /// Makes first touches of a range that is all hole cheap, as far as there is room:
    /// blocks for its huge pages, and zeroes before and behind them. What fails here is
    /// done page by page at the touch.
    fn ahead(&self, at: u64, length: u64) -> io::Result<()> {
        if !self.dax {
            return Ok(());
        }
        let end = at + length;
        let (first, last) = (at.next_multiple_of(HUGE), end / HUGE * HUGE);
        let (before, behind) = if first < last {
            (first - at, end - last)
        } else {
            (length, 0)
        };
        let free = self.space.free()?;
        if free / AHEAD_SHARE < before + behind {
            return Ok(());
        }
        if first < last && last - first <= free / 2 {
            // One by one: so the file system gives each at a boundary of its own.
            let mut parts = (first..last).step_by(HUGE as usize);
            let _ = parts.try_for_each(|part| self.space.reserve(part, HUGE));
        }
        let zeroed = self.space.zero(at, before);
        let _ = zeroed.and_then(|()| self.space.zero(end - behind, behind));
        Ok(())
    }

    /// mprotect(2) to writable: pages that nobody could touch so far and that hold nothing
    /// are zeroed ahead.
    pub fn protect(&self, address: u64, length: u64) -> io::Result<Done> {
        let length = round(length);
        if !self.dax || !address.is_multiple_of(PAGE) || length == 0 || length > PROTECT_AHEAD {
            return Ok(Done::Pass);
        }
        // No thread can have it made accessible meanwhile: that call comes here too. One for
        // more than PROTECT_AHEAD does not, but who opens the same pages twice, with other
        // lengths and at the same time, writes to them under a lock of its own.
        let closed = |m: &Mapping| {
            let whole = m.start <= address && address + length <= m.end;
            whole && m.protection == 0 && self.space.holds(m)
        };
        let closed = procfs::mappings(self.tid)?.iter().any(closed);
        if closed && self.space.is_hole(address, length)? {
            self.ahead(address, length)?;
        }
        Ok(Done::Pass)
    }

    /// Opens the file for an address in the guest; the call's place in the list.
    fn open_call(&self, list: &mut List, address: u64, common: Option<&Path>) -> usize {
        let index = address / FILE_BYTES;
        let path = common.map_or_else(|| self.space.dir().join(index.to_string()), Path::to_owned);
        let path = list.path(&path.to_string_lossy());
        let flags = (libc::O_RDWR | libc::O_CLOEXEC) as u64;
        list.attempt(libc::SYS_openat, &[AT_FDCWD, path, flags])
    }

    /// What a private mapping of a descriptor copies: `Some(None)` for zeroes, `None` for
    /// what cannot be copied.
    fn source(&self, fd: u64) -> io::Result<Option<Option<File>>> {
        let path = format!("/proc/{}/fd/{}", self.tid, fd as i32);
        let Ok(meta) = std::fs::metadata(&path) else {
            return Ok(None);
        };
        let kind = meta.file_type();
        // /dev/zero is 1:5.
        if kind.is_char_device() && meta.rdev() == libc::makedev(1, 5) {
            return Ok(Some(None));
        }
        if !kind.is_file() {
            return Ok(None);
        }
        Ok(Some(Some(File::open(path)?)))
    }

    /// A file for memory that a program shares with its children.
    fn new_common(&self, length: u64) -> io::Result<PathBuf> {
        let number = unguessable()?;
        let path = self.common.join(format!("shared-{number}"));
        let mut options = File::options();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        file.set_len(length)?;
        let user = self.user()?;
        if user != 0 && crate::sys::is_root() {
            fchown(&file, Some(user), None)?;
        }
        file.sync_all()?;
        Ok(path)
    }

    /// Whose rights the guest has on files.
    fn user(&self) -> io::Result<u32> {
        Ok(procfs::status(self.tid, self.tid)?.credentials.uid[3])
    }

    /// A file of the space that the guest opened for an address, by the result of that call.
    fn opened(&self, result: i64, address: u64) -> io::Result<i64> {
        if result != -i64::from(libc::EACCES) {
            return Ok(result);
        }
        // It has another user than when it executed its program.
        let user = self.user()?;
        self.space.give(address, user)?;
        let mut list = List::new();
        self.open_call(&mut list, address, None);
        let result = self.run(&list)?[0];
        if result == -i64::from(libc::EACCES) {
            let what = format!("user {user} may not enter {}", self.common.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(result)
    }

    /// munmap(2).
    pub fn unmap(&self, address: u64, length: u64) -> io::Result<Done> {
        if !address.is_multiple_of(PAGE) || length == 0 || hits_gate(address, length) {
            return Ok(Done::Result(EINVAL));
        }
        let result = self.one(libc::SYS_munmap, &[address, length])?;
        if result == 0 {
            self.space.clear(address, round(length))?;
        }
        Ok(Done::Result(result))
    }

    /// madvise(2) with an advice that drops contents.
    pub fn drop_pages(&self, address: u64, length: u64, advice: u64) -> io::Result<Done> {
        if !address.is_multiple_of(PAGE) {
            return Ok(Done::Result(EINVAL));
        }
        if advice != libc::MADV_FREE as u64 {
            self.space.clear(address, round(length))?;
            self.commit(address, round(length))?;
        }
        Ok(Done::Result(0))
    }

    /// mremap(2).
    pub fn remap(&self, arguments: [u64; 6]) -> io::Result<Done> {
        let [old, old_length, new_length, flags, to, _] = arguments;
        let (old_length, new_length) = (round(old_length), round(new_length));
        let maps = procfs::mappings(self.tid)?;
        let Some(mapping) = maps.iter().find(|m| m.start <= old && old < m.end) else {
            return Ok(Done::Pass);
        };
        if !self.space.holds(mapping) {
            return Ok(Done::Pass);
        }
        if old_length == 0 || new_length == 0 || !old.is_multiple_of(PAGE) {
            return Ok(Done::Result(EINVAL));
        }
        let fixed = flags & libc::MREMAP_FIXED as u64 != 0;
        if fixed && hits_gate(to, new_length) {
            return Ok(Done::Result(EINVAL));
        }
        if !fixed {
            if new_length > old_length && self.space.free()? < new_length - old_length {
                return Ok(Done::Full(new_length - old_length));
            }
            let result = self.one(libc::SYS_mremap, &[old, old_length, new_length, 0, 0])?;
            if result >= 0 && new_length < old_length {
                self.space
                    .clear(old + new_length, old_length - new_length)?;
            } else if result >= 0 && new_length > old_length {
                // What was unmapped there may not be dropped for good.
                self.commit(old + old_length, new_length - old_length)?;
                if mapping.protection & libc::PROT_WRITE as u32 != 0 {
                    self.ahead(old + old_length, new_length - old_length)?;
                }
            }
            if result != ENOMEM || flags & libc::MREMAP_MAYMOVE as u64 == 0 {
                return Ok(Done::Result(result));
            }
        }
        // It moves: new memory, the contents, then the old goes.
        let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let fixed = if fixed { libc::MAP_FIXED as u64 } else { 0 };
        let protection = u64::from(mapping.protection);
        let arguments = [
            to * u64::from(fixed != 0),
            new_length,
            protection,
            anonymous | fixed,
            0,
            0,
        ];
        let Done::Result(new) = self.map(arguments)? else {
            return Ok(Done::Full(new_length));
        };
        if (-4095..0).contains(&new) {
            return Ok(Done::Result(new));
        }
        self.space
            .copy(old, new as u64, old_length.min(new_length))?;
        self.commit(new as u64, new_length)?;
        // Made again, it would no longer find what it moves.
        if let Some(journal) = self.journal {
            journal.decided(new)?;
        }
        self.unmap(old, old_length)?;
        Ok(Done::Result(new))
    }

    /// Moves all memory of a fresh program into its files; the gate is open.
    pub fn adopt(&self) -> io::Result<()> {
        let mut maps = procfs::mappings(self.tid)?;
        maps.retain(|m| !matches!(m.backing, Backing::Kernel(_)));
        for mapping in &mut maps {
            if mapping.protection & libc::PROT_WRITE as u32 != 0 {
                let below = if mapping.grows_down { STACK_AHEAD } else { 0 };
                let start = mapping.start.saturating_sub(below);
                self.ahead(start, mapping.end - start)?;
            }
            self.space
                .fill(mapping.start, mapping.end - mapping.start, |buffer, at| {
                    // Pages behind the end of a file cannot be read: they end the copy.
                    self.memory.read_at(buffer, mapping.start + at).or(Ok(0))
                })?;
            if mapping.grows_down {
                mapping.start = mapping.start.min(mapping.end.saturating_sub(STACK_BYTES));
            }
        }
        self.remap_all(&maps)
    }

    /// Maps ranges onto the files of the space.
    pub fn remap_all(&self, maps: &[Mapping]) -> io::Result<()> {
        self.commit(0, u64::MAX)?;
        let mut indices: Vec<u64> = maps.iter().map(|m| m.start / FILE_BYTES).collect();
        indices.dedup();
        for index in indices {
            let mut list = List::new();
            self.open_call(&mut list, index * FILE_BYTES, None);
            let fd = self.opened(self.run(&list)?[0], index * FILE_BYTES)?;
            if fd < 0 {
                return Err(gate::failed(libc::SYS_openat as u64, fd));
            }
            let mut list = List::new();
            for mapping in maps.iter().filter(|m| m.start / FILE_BYTES == index) {
                if list.is_full(2, 0) {
                    self.run(&list)?;
                    list = List::new();
                }
                let length = mapping.end - mapping.start;
                let place = self.space.place(mapping.start, length);
                let (_, place) = place.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
                let flags = self.shared() | libc::MAP_FIXED as u64;
                let protection = u64::from(mapping.protection);
                let arguments = [mapping.start, length, protection, flags, fd as u64, place];
                list.call(libc::SYS_mmap, &arguments);
            }
            list.call(libc::SYS_close, &[fd as u64]);
            self.run(&list)?;
        }
        Ok(())
    }
}

/// The result of a call whose carrying out failed: the program's own error.
pub fn settle(done: io::Result<Done>) -> io::Result<Done> {
    match done {
        // The files are full or the guest has no descriptor left: not the end of it.
        Err(error)
            if [libc::ENOSPC, libc::ENOMEM, libc::EMFILE, libc::EACCES]
                .contains(&error.raw_os_error().unwrap_or(0)) =>
        {
            Ok(Done::Result(refused(&error)))
        }
        other => other,
    }
}

/// Registers and mask of a stopped thread.
pub(crate) fn put_back(tid: i32, saved: (Vec<u64>, u64)) -> io::Result<()> {
    sys::set_registers(tid, &saved.0)?;
    sys::set_mask(tid, saved.1)
}

/// Sets a thread behind its call, with a result, and lets it run.
pub(crate) fn answer(tid: i32, registers: &mut [u64], result: i64) -> io::Result<()> {
    set_answer(tid, registers, result)?;
    sys::resume(tid, 0)
}

/// Sets a thread behind its call, with a result.
pub(crate) fn set_answer(tid: i32, registers: &mut [u64], result: i64) -> io::Result<()> {
    registers[reg::RAX] = result as u64;
    registers[reg::ORIG_RAX] = u64::MAX;
    sys::set_registers(tid, registers)
}

//! The kernel interfaces of launcher and warm reboot that no safe library offers.

use std::ffi::c_long;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

fn answer(value: c_long) -> io::Result<c_long> {
    if value < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(value)
    }
}

/// In the child, before exec: tells its number, waits until it is traced, and installs
/// the seccomp program.
pub(crate) fn wait_for_tracer(ends: [i32; 2], closed: [i32; 2], code: &[u8]) -> io::Result<()> {
    let mut byte = 0u8;
    let program = libc::sock_fprog {
        len: (code.len() / 8) as u16,
        filter: code.as_ptr() as *mut libc::sock_filter,
    };
    // SAFETY: numbers, and buffers of this function that outlive the calls. `code` is an
    // array of sock_filter as bytes; the kernel copies it without need of alignment.
    unsafe {
        closed.iter().for_each(|fd| {
            libc::close(*fd);
        });
        let pid = libc::getpid().to_le_bytes();
        answer(libc::write(ends[0], pid.as_ptr().cast(), 4) as c_long)?;
        if libc::read(ends[1], (&raw mut byte).cast(), 1) != 1 {
            return Err(io::Error::from_raw_os_error(libc::ECHILD));
        }
        // Without privileges a filter needs that exec cannot gain any.
        if libc::geteuid() != 0 {
            answer(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into())?;
        }
        const SET_MODE_FILTER: c_long = 1;
        answer(libc::syscall(
            libc::SYS_seccomp,
            SET_MODE_FILTER,
            0,
            &raw const program,
        ))?;
    }
    Ok(())
}

/// Maps a page of a file shared and executable, and unmaps it.
pub(crate) fn try_execute(file: &File) -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: a new mapping at an address of the kernel's choice, unmapped at once.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            4096,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munmap(at, 4096);
    }
    Ok(())
}

/// True if the files of a directory can be mapped with MAP_SYNC: they are on DAX.
pub fn is_dax(file: &File) -> bool {
    // SAFETY: as above.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
            file.as_raw_fd(),
            0,
        );
        at != libc::MAP_FAILED && libc::munmap(at, 4096) == 0
    }
}

/// Commits what the file system changed of a file: blocks that it gave and took back. Unlike
/// fdatasync(2) this does not look at the file's pages, of which a program may have written
/// gigabytes: msync(2) of one page (at `at`) writes that page and the whole transaction.
pub(crate) fn commit(file: &File, at: u64) -> io::Result<()> {
    // SAFETY: a new mapping at an address of the kernel's choice, which nobody reads, unmapped
    // at once.
    unsafe {
        let page = libc::mmap64(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            at as i64,
        );
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let synced = answer(libc::msync(page, 4096, libc::MS_SYNC).into());
        libc::munmap(page, 4096);
        synced.map(drop)
    }
}

/// The kind of the file system of a file, as statfs(2) numbers it.
pub(crate) fn file_system(file: &File) -> io::Result<i64> {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel fills the structure, which is valid when zero.
    unsafe {
        answer(libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()).into())?;
        Ok(stat.assume_init().f_type)
    }
}

/// Opens a file only to look where it is.
pub(crate) fn open_place(path: &std::path::Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_PATH).open(path)
}

/// True if each write to an open file is durable when it returns: `chattr +S`.
pub(crate) fn writes_through(fd: i32) -> bool {
    const FS_SYNC_FL: libc::c_long = 8;
    let mut flags: libc::c_long = 0;
    // SAFETY: the kernel writes at most a long.
    let got = unsafe { libc::ioctl(fd, libc::FS_IOC_GETFLAGS, &raw mut flags) };
    got == 0 && flags & FS_SYNC_FL != 0
}

/// True if this process may do what root may to files.
pub(crate) fn is_root() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// A number that nobody can guess.
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: a buffer with its length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if answer(got as c_long)? == 8 {
        Ok(u64::from_le_bytes(bytes))
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Leaves signals of the terminal to the program, whose process group we share, and
/// takes orphans in.
pub fn stand_aside() {
    // SAFETY: ignoring signals and plain numbers.
    unsafe {
        for signal in [
            libc::SIGINT,
            libc::SIGQUIT,
            libc::SIGTSTP,
            libc::SIGTTOU,
            libc::SIGTTIN,
        ] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
    }
}

/// Puts this process and its children into a time namespace in which the clocks read at
/// least what is given (ns). The process must have one thread.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN; EINVAL without CONFIG_TIME_NS.
pub fn keep_clocks(monotonic_ns: u64, boottime_ns: u64) -> io::Result<()> {
    const CLONE_NEWTIME: i32 = 0x80;
    // SAFETY: plain number; the namespace is new and nobody else's.
    answer(unsafe { libc::unshare(CLONE_NEWTIME) }.into())?;
    let now = |clock| outlive_image::sys::clock_ns(clock);
    let line = |name: &str, want: u64, have: u64| {
        let ahead = want.saturating_sub(have);
        format!(
            "{name} {} {}\n",
            ahead / 1_000_000_000,
            ahead % 1_000_000_000
        )
    };
    let text = line("monotonic", monotonic_ns, now(libc::CLOCK_MONOTONIC))
        + &line("boottime", boottime_ns, now(libc::CLOCK_BOOTTIME));
    std::fs::write("/proc/self/timens_offsets", text)?;
    // This process joins too: the kernel refuses threads to one whose children would
    // live in another time.
    let own = File::open("/proc/self/ns/time_for_children")?;
    // SAFETY: an open descriptor and a plain number.
    answer(unsafe { libc::setns(own.as_raw_fd(), CLONE_NEWTIME) }.into()).map(drop)
}

/// Loads a kernel for the time after a panic (kexec_file_load(2), KEXEC_FILE_ON_CRASH).
pub fn load_crash_kernel(kernel: &File, initrd: &File, line: &str) -> io::Result<()> {
    const ON_CRASH: u64 = 2;
    let line = std::ffi::CString::new(line)?;
    let length = line.as_bytes_with_nul().len();
    // SAFETY: open descriptors and a string with its length.
    let result = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            kernel.as_raw_fd(),
            initrd.as_raw_fd(),
            length,
            line.as_ptr(),
            ON_CRASH,
        )
    };
    answer(result).map(drop)
}

/// A segment: where its bytes go, and how many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Physical, a multiple of the page size.
    pub at: u64,
}

impl Segment<'_> {
    /// Its room: whole pages.
    pub fn room(&self) -> u64 {
        (self.bytes.len() as u64).next_multiple_of(4096)
    }
}

/// Loads segments for the time after a panic (kexec_load(2), KEXEC_ON_CRASH): bytes and
/// physical address of each. `entry` must lie in the crash area.
pub(crate) fn load_crash_segments(entry: u64, segments: &[Segment<'_>]) -> io::Result<()> {
    const ON_CRASH: u64 = 1;
    const ARCH_X86_64: u64 = 62 << 16;
    // struct kexec_segment: buf, bufsz, mem, memsz
    let table: Vec<[u64; 4]> = segments
        .iter()
        .map(|part| {
            let bytes = (part.bytes.as_ptr() as u64, part.bytes.len() as u64);
            [bytes.0, bytes.1, part.at, part.room()]
        })
        .collect();
    // SAFETY: the kernel reads as many bytes as each slice has; nothing is written here.
    let result = unsafe {
        libc::syscall(
            libc::SYS_kexec_load,
            entry,
            table.len(),
            table.as_ptr(),
            ON_CRASH | ARCH_X86_64,
        )
    };
    answer(result).map(drop)
}

/// A whole file, mapped for reading. It must not be cut while this lives.
pub(crate) struct Mapped {
    at: *mut libc::c_void,
    length: usize,
}

impl Mapped {
    /// Maps a file that is not empty.
    pub fn new(file: &File) -> io::Result<Mapped> {
        let length = usize::try_from(file.metadata()?.len())
            .ok()
            .filter(|length| *length > 0)
            .ok_or(io::ErrorKind::InvalidData)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapped { at, length })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has that length and lives as long as this.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.length) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own mapping; nothing borrows from it any more.
        unsafe { libc::munmap(self.at, self.length) };
    }
}

/// One ioctl of the module's device: `bytes` are read and written in place.
pub(crate) fn control(device: &File, request: u64, bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: the callers give as many bytes as the request announces.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), request, bytes.as_mut_ptr()) };
    answer(result.into()).map(drop)
}

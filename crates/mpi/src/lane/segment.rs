//! Memory that two processes of one host share, without a name.
//!
//! One makes a memory file (memfd), the other opens it through `/proc/PID/fd`: the kernel
//! lets only a process of the same user (with the same name spaces) do that, and nothing
//! is left however either ends. The memory is allocated before it is used, so that a full
//! host is an error here and not a fault later, and sealed, so that nobody can shorten it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::ptr;

use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The name of a memory file in `/proc`, where it is only a label.
const LABEL: &str = "outlive-pair";
/// Bytes of the random number that proves that both mapped the same file.
pub const PROOF_BYTES: usize = 32;

/// A mapping, until it is dropped.
pub struct Segment {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: an address and a length; who touches what is the owner's to say.
unsafe impl Send for Segment {}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and used by nobody any more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
    }
}

fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

impl Segment {
    /// Where it begins: at a page.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    fn map(file: &OwnedFd, bytes: usize) -> io::Result<Segment> {
        // SAFETY: a new mapping of a file that is that long and stays so (sealed).
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let segment = Segment {
            base: base.cast(),
            bytes,
        };
        // SAFETY: the mapping made just now. A child is not to keep the memory alive.
        let _ = unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxDontFork) };
        Ok(segment)
    }

    /// Makes one, zeroed but for `proof` at its start; the file is to stay open until the
    /// other has opened it.
    ///
    /// # Errors
    /// What the kernel refuses: memory files, memory, descriptors.
    pub fn make(bytes: usize, proof: &[u8; PROOF_BYTES]) -> io::Result<(Segment, OwnedFd)> {
        use rustix::fs::MemfdFlags;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(LABEL, flags)?;
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, seals())?;
        let file = File::from(file);
        file.write_all_at(proof, 0)?;
        let file = OwnedFd::from(file);
        Ok((Segment::map(&file, bytes)?, file))
    }

    /// Opens what process `pid` of this host made as its descriptor `number`.
    ///
    /// # Errors
    /// It may not be opened, or is not what the other made.
    pub fn open(
        pid: u32,
        number: i32,
        bytes: usize,
        proof: &[u8; PROOF_BYTES],
    ) -> io::Result<Segment> {
        let path = format!("/proc/{pid}/fd/{number}");
        let odd = |what: &str| io::Error::other(format!("{path} {what}"));
        // Looked at before it is opened: opening some other device may do something.
        let target = std::fs::read_link(&path)?;
        if !target.to_string_lossy().contains(LABEL) {
            return Err(odd("is another file"));
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(&path, flags, Mode::empty())?;
        if rustix::fs::fstat(&file)?.st_size != bytes as i64 {
            return Err(odd("has another size"));
        }
        if !rustix::fs::fcntl_get_seals(&file)?.contains(seals()) {
            return Err(odd("is not sealed"));
        }
        let mut found = [0u8; PROOF_BYTES];
        let file = File::from(file);
        file.read_exact_at(&mut found, 0)?;
        if found != *proof {
            return Err(odd("holds another proof"));
        }
        Segment::map(&OwnedFd::from(file), bytes)
    }
}

/// What tells whether another process can be on this host and see the same processes: the
/// boot, and the name spaces of processes and users.
///
/// # Errors
/// There is no `/proc`, or it may not be read.
pub fn place() -> io::Result<String> {
    let link = |name: &str| {
        let to = std::fs::read_link(format!("/proc/self/ns/{name}"))?;
        Ok::<_, io::Error>(to.display().to_string())
    };
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(format!(
        "{} {} {}",
        boot.trim(),
        link("pid")?,
        link("user")?
    ))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    const PROOF: [u8; PROOF_BYTES] = [7; PROOF_BYTES];

    fn made() -> (Segment, OwnedFd) {
        Segment::make(1 << 16, &PROOF).expect("memory files")
    }

    fn open(file: &OwnedFd, bytes: usize, proof: &[u8; PROOF_BYTES]) -> io::Result<Segment> {
        Segment::open(std::process::id(), file.as_raw_fd(), bytes, proof)
    }

    #[test]
    fn both_see_the_same_memory() {
        let (one, file) = made();
        let other = open(&file, 1 << 16, &PROOF).expect("the same");
        // SAFETY: both mappings are that long; nobody else writes.
        unsafe {
            one.base().add(5000).write(42);
            assert_eq!(other.base().add(5000).read(), 42);
        }
        drop(one);
        // SAFETY: its own mapping outlives the other's.
        assert_eq!(unsafe { other.base().add(5000).read() }, 42);
    }

    #[test]
    fn what_is_not_the_other_s_is_refused() {
        let (_one, file) = made();
        assert!(open(&file, 1 << 15, &PROOF).is_err(), "size");
        assert!(open(&file, 1 << 16, &[8; PROOF_BYTES]).is_err(), "proof");
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = OwnedFd::from(null.expect("/dev/null"));
        assert!(open(&null, 0, &PROOF).is_err(), "another file");
        assert!(open(&file, 1 << 16, &PROOF).is_ok());
        let number = file.as_raw_fd();
        drop(file);
        let gone = Segment::open(u32::MAX - 1, number, 1 << 16, &PROOF);
        assert!(gone.is_err(), "no such process");
    }

    #[test]
    fn nobody_can_shorten_it() {
        let (_one, file) = made();
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
    }

    #[test]
    fn it_is_the_user_s_alone() {
        let (_one, file) = made();
        let mode = rustix::fs::fstat(&file).expect("stat").st_mode & 0o777;
        assert_eq!(mode, 0o600);
    }

    #[test]
    fn this_place_is_this_place() {
        let here = place().expect("a /proc");
        assert_eq!(here, place().expect("a /proc"));
        assert!(here.contains("pid:["), "{here}");
    }
}

//! Misses of the translation buffer for data, counted by the processor where the machine
//! lets it.

use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;

/// The first version of `struct perf_event_attr`, 64 bytes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample: u64,
    read: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}
const _: () = assert!(size_of::<Attributes>() == 64);

/// `PERF_TYPE_HW_CACHE`.
const CACHE: u32 = 3;
/// Data TLB, loads, misses.
const DTLB_LOAD_MISSES: u64 = 3 | 1 << 16;
/// Begins disabled; counts neither kernel nor hypervisor, so that an ordinary user may.
const FLAGS: u64 = 1 | 1 << 5 | 1 << 6;
const ENABLE: libc::Ioctl = 0x2400;
const DISABLE: libc::Ioctl = 0x2401;

/// Counts in what is started from here too, once that has ended.
const INHERIT: u64 = 1 << 1;

/// A counter of this thread's misses, for loads.
#[derive(Debug)]
pub struct Misses(File);

impl Misses {
    /// Opens it; the kernel's reason if there is none. `children`: of processes too that this
    /// thread starts and that end while it counts.
    ///
    /// # Errors
    /// As the kernel has them: no such counter, as in most virtual machines, or it is forbidden
    /// (`perf_event_paranoid`).
    pub fn open(children: bool) -> std::io::Result<Misses> {
        let attributes = Attributes {
            kind: CACHE,
            size: size_of::<Attributes>() as u32,
            config: DTLB_LOAD_MISSES,
            flags: if children { FLAGS | INHERIT } else { FLAGS },
            ..Attributes::default()
        };
        // SAFETY: the kernel reads the 64 bytes that `size` names; the rest are plain numbers:
        // this thread, any core, no group, close on exec.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                0,
                -1,
                -1,
                8,
            )
        };
        match i32::try_from(fd) {
            // SAFETY: a new descriptor that nobody else has.
            Ok(fd) if fd >= 0 => Ok(Misses(unsafe { File::from_raw_fd(fd) })),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    fn set(&self, what: libc::Ioctl) {
        use std::os::fd::AsRawFd;
        // SAFETY: the request takes no pointer.
        unsafe { libc::ioctl(self.0.as_raw_fd(), what, 0) };
    }

    /// Counts during `work`.
    pub fn during<T>(&mut self, work: impl FnOnce() -> T) -> (T, Option<u64>) {
        self.set(ENABLE);
        let result = work();
        self.set(DISABLE);
        let mut bytes = [0; 8];
        let count = self.0.read_exact(&mut bytes);
        (result, count.ok().map(|()| u64::from_ne_bytes(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_counts_or_says_why_it_does_not() {
        match Misses::open(false) {
            Ok(mut misses) => assert!(misses.during(|| 3).1.is_some()),
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
        }
    }
}

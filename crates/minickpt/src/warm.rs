//! The warm reboot: which kernel runs after this one died, and with which memory.
//!
//! A kernel that is loaded for a crash is told by the loader of its small crash
//! area only. Its boot line gives it back everything: one `memmap=SIZE@ADDR` for
//! each range of ordinary memory, and an `elfcorehdr` that is none, which makes it
//! an ordinary kernel and not one that writes a dump. The reservations
//! (`memmap=SIZE!ADDR` protected memory, `memmap=SIZE$ADDR` the module's area,
//! `crashkernel=`) stay, so that it can die and be survived in its turn.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// A range of physical memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// What a `memmap=` word makes of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `@`: ordinary memory.
    Ordinary,
    /// `!`: protected memory, `/dev/pmem*`.
    Protected,
    /// `$`: nobody's; the module's area.
    Reserved,
    /// `#`: ACPI data.
    Acpi,
}

/// Memory below this belongs to the firmware and to the start of processors.
const LOW: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// The kernel refuses longer boot lines.
pub const LINE_MAX: usize = 2047;
/// Switches off what a kernel started after a crash does differently.
const NO_DUMP: &str = "elfcorehdr=0xffffffffffffffff";
/// Words that belong to one boot only.
const DROPPED: [&str; 3] = ["BOOT_IMAGE=", "initrd=", "elfcorehdr="];

/// A number as the kernel reads it: decimal, `0x` or octal, with K, M, G or T.
/// None if it is none, or more than 64 bits.
pub fn memparse(word: &str) -> Option<u64> {
    let (digits, shift) = match word.char_indices().next_back()? {
        (at, 'k' | 'K') => (&word[..at], 10),
        (at, 'm' | 'M') => (&word[..at], 20),
        (at, 'g' | 'G') => (&word[..at], 30),
        (at, 't' | 'T') => (&word[..at], 40),
        _ => (word, 0),
    };
    let number = if let Some(hex) = digits.strip_prefix("0x") {
        u64::from_str_radix(hex, 16).ok()?
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(digits, 8).ok()?
    } else {
        digits.parse().ok()?
    };
    number.checked_mul(1 << shift)
}

/// The ranges of all `memmap=` words, in their order. Words that the kernel does
/// not understand either are left out.
pub fn memmaps(line: &str) -> Vec<(Kind, Range)> {
    let words = line
        .split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix("memmap="));
    words
        .flat_map(|word| word.split(','))
        .filter_map(|word| {
            let at = word.find(['@', '!', '$', '#'])?;
            let kind = match word.as_bytes()[at] {
                b'@' => Kind::Ordinary,
                b'!' => Kind::Protected,
                b'$' => Kind::Reserved,
                _ => Kind::Acpi,
            };
            let size = memparse(&word[..at])?;
            let start = memparse(&word[at + 1..])?;
            let end = start.checked_add(size)?;
            (size > 0).then_some((kind, Range { start, end }))
        })
        .collect()
}

/// What is left of `ranges` when `holes` are taken out, whole pages, ascending.
fn without(ranges: &[Range], holes: &[Range]) -> Vec<Range> {
    let mut left: Vec<Range> = ranges.to_vec();
    for hole in holes {
        left = left
            .iter()
            .flat_map(|r| {
                let before = Range {
                    start: r.start,
                    end: r.end.min(hole.start),
                };
                let after = Range {
                    start: r.start.max(hole.end),
                    end: r.end,
                };
                [before, after]
            })
            .filter(|r| r.start < r.end)
            .collect();
    }
    left.iter_mut().for_each(|r| {
        r.start = r.start.next_multiple_of(PAGE);
        r.end = r.end / PAGE * PAGE;
    });
    left.retain(|r| r.start < r.end);
    left.sort();
    left.dedup();
    left
}

/// Why no next kernel can be prepared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LineError {
    /// The boot line reserves no crash area.
    NoCrashArea,
    /// It has no `crash_kexec_post_notifiers`: the module would not be asked.
    NoPostNotifiers,
    /// It reserves no protected memory (`!`) or no area (`$`).
    NoReservation(&'static str),
    /// The firmware's map shows no ordinary memory.
    NoMemory,
    /// Longer than [`LINE_MAX`] bytes.
    TooLong(usize),
}

impl std::fmt::Display for LineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LineError::NoCrashArea => write!(f, "the boot line lacks crashkernel=SIZE"),
            LineError::NoPostNotifiers => {
                write!(f, "the boot line lacks crash_kexec_post_notifiers")
            }
            LineError::NoReservation(what) => write!(f, "the boot line lacks {what}"),
            LineError::NoMemory => write!(f, "the firmware's memory map shows no memory"),
            LineError::TooLong(bytes) => write!(
                f,
                "the next boot line would have {bytes} bytes, at most {LINE_MAX}"
            ),
        }
    }
}

impl std::error::Error for LineError {}

/// The boot line of the next kernel, from this one's and the firmware's ordinary
/// memory. In a kernel that was itself started warm the firmware's map shows only
/// the old crash area; then this line's own `@` words are taken again.
///
/// # Errors
/// [`LineError`] where this boot line cannot be survived with.
pub fn next_line(line: &str, firmware: &[Range]) -> Result<String, LineError> {
    let has = |want: &str| line.split_ascii_whitespace().any(|w| w.starts_with(want));
    let maps = memmaps(line);
    if !has("crashkernel=") {
        return Err(LineError::NoCrashArea);
    }
    if !has("crash_kexec_post_notifiers") {
        return Err(LineError::NoPostNotifiers);
    }
    for (kind, what) in [
        (Kind::Protected, "memmap=SIZE!ADDR (protected memory)"),
        (Kind::Reserved, "memmap=SIZE$ADDR (the module's area)"),
    ] {
        if !maps.iter().any(|(k, _)| *k == kind) {
            return Err(LineError::NoReservation(what));
        }
    }
    let warm = maps.iter().any(|(k, _)| *k == Kind::Ordinary);
    let mut words: Vec<String> = line
        .split_ascii_whitespace()
        .filter(|w| !DROPPED.iter().any(|d| w.starts_with(d)) && *w != "reset_devices")
        .map(str::to_owned)
        .collect();
    if !warm {
        let mut holes: Vec<Range> = maps.iter().map(|(_, r)| *r).collect();
        holes.push(Range { start: 0, end: LOW });
        let ordinary = without(firmware, &holes);
        if ordinary.is_empty() {
            return Err(LineError::NoMemory);
        }
        words.extend(ordinary.iter().map(|r| {
            let (size, start) = ((r.end - r.start) / 1024, r.start / 1024);
            format!("memmap={size}K@{start}K")
        }));
    }
    words.push("reset_devices".to_owned());
    words.push(NO_DUMP.to_owned());
    let next = words.join(" ");
    if next.len() > LINE_MAX {
        return Err(LineError::TooLong(next.len()));
    }
    Ok(next)
}

/// Ordinary memory as the firmware told it: `/sys/firmware/memmap`.
///
/// # Errors
/// The directory cannot be read.
pub fn firmware_memory(directory: &Path) -> io::Result<Vec<Range>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?.path();
        let read = |name: &str| -> io::Result<String> {
            Ok(fs::read_to_string(entry.join(name))?.trim().to_owned())
        };
        if read("type")? != "System RAM" {
            continue;
        }
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "memory map of the firmware");
        let start = memparse(&read("start")?).ok_or_else(bad)?;
        let last = memparse(&read("end")?).ok_or_else(bad)?;
        let end = last.checked_add(1).ok_or_else(bad)?;
        found.push(Range { start, end });
    }
    found.sort();
    Ok(found)
}

/// Loads the kernel that runs when this one dies.
///
/// # Errors
/// A file cannot be opened, or the system refuses: EPERM without `CAP_SYS_BOOT` or
/// where the kernel is locked down, EADDRNOTAVAIL without room in the crash area.
pub fn load(kernel: &Path, initrd: &Path, line: &str) -> io::Result<()> {
    const KEXEC_FILE_ON_CRASH: libc::c_ulong = 2;
    let (kernel, initrd) = (File::open(kernel)?, File::open(initrd)?);
    let line = CString::new(line)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a zero in the boot line"))?;
    let bytes = line.as_bytes_with_nul().len();
    // SAFETY: the descriptors are open and `line` is alive and `bytes` long during
    // the call; the kernel keeps none of them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            kernel.as_raw_fd(),
            initrd.as_raw_fd(),
            bytes,
            line.as_ptr(),
            KEXEC_FILE_ON_CRASH,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether a next kernel is loaded.
pub fn loaded() -> bool {
    fs::read_to_string("/sys/kernel/kexec_crash_loaded").is_ok_and(|s| s.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;
    const LINE: &str = "BOOT_IMAGE=/vmlinuz root=/dev/vda1 memmap=248M!512M memmap=8M$760M \
                        crashkernel=128M crash_kexec_post_notifiers";

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    #[test]
    fn numbers_are_read_as_the_kernel_does() {
        assert_eq!(memparse("248M"), Some(248 * M));
        assert_eq!(memparse("0x2f800000"), Some(0x2f80_0000));
        assert_eq!(memparse("010"), Some(8));
        assert_eq!(memparse("0"), Some(0));
        assert_eq!(memparse("M"), None);
        assert_eq!(memparse(""), None);
        assert_eq!(memparse("17000000000T"), None);
    }

    #[test]
    fn the_next_kernel_gets_all_memory_but_what_is_protected() {
        let firmware = [range(0, 0x9fc00), range(M, 1024 * M - 0x20000)];
        let next = next_line(LINE, &firmware).expect("the line is sound");
        let maps = memmaps(&next);
        let ordinary: Vec<Range> = maps
            .iter()
            .filter(|(k, _)| *k == Kind::Ordinary)
            .map(|(_, r)| *r)
            .collect();
        assert_eq!(
            ordinary,
            [range(M, 512 * M), range(768 * M, 1024 * M - 0x20000)]
        );
        assert!(maps.contains(&(Kind::Protected, range(512 * M, 760 * M))));
        assert!(!next.contains("BOOT_IMAGE"));
        assert!(next.contains("root=/dev/vda1"));
        assert!(next.ends_with("reset_devices elfcorehdr=0xffffffffffffffff"));
    }

    #[test]
    fn the_line_of_the_next_but_one_is_the_same() {
        let first = next_line(LINE, &[range(M, 1024 * M)]).expect("sound");
        // What a warm kernel sees of the firmware: its crash area.
        let second = next_line(&first, &[range(896 * M, 1000 * M)]).expect("sound");
        assert_eq!(first, second);
    }

    #[test]
    fn what_is_missing_is_named() {
        let all = [range(M, 1024 * M)];
        let cut = |word: &str| LINE.replace(word, "");
        assert_eq!(
            next_line(&cut("crashkernel=128M"), &all),
            Err(LineError::NoCrashArea)
        );
        assert_eq!(
            next_line(&cut("crash_kexec_post_notifiers"), &all),
            Err(LineError::NoPostNotifiers)
        );
        for word in ["memmap=248M!512M", "memmap=8M$760M"] {
            assert!(matches!(
                next_line(&cut(word), &all),
                Err(LineError::NoReservation(_))
            ));
        }
        assert_eq!(next_line(LINE, &[]), Err(LineError::NoMemory));
        let long = format!("{LINE} {}", "x".repeat(LINE_MAX));
        assert!(matches!(
            next_line(&long, &all),
            Err(LineError::TooLong(_))
        ));
    }
}

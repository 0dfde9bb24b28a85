//! The next kernel: loaded now, started by the panic.
//!
//! It is loaded as a crash kernel, but must not stay one: its boot line gives it all
//! memory and processors back and reserves room for a crash kernel of its own. A crash
//! kernel sees only its own memory in the firmware's map, so the line is computed once,
//! at the first boot, and handed on unchanged.

use std::fs::File;
use std::path::Path;

use outlive_base::{Code, Entity, Error, Result};

use crate::segments::{self, Range};
use crate::sys;

const MIB: u64 = 1 << 20;
/// What makes a crash kernel an ordinary one: no dump mode, devices reset.
const ADDED: [&str; 2] = ["reset_devices", "elfcorehdr=0xffffffffffffffff"];
/// The frequency of the time stamp counter (kernels before 5.11 do not know the word).
const CLOCK: &str = "tsc_early_khz=";

/// The ranges of ordinary memory, from /sys/firmware/memmap.
///
/// # Errors
/// The kernel shows none (CONFIG_FIRMWARE_MEMMAP).
pub fn firmware_memory() -> Result<Vec<Range>> {
    let root = Path::new("/sys/firmware/memmap");
    let failed = |error| Error::io(root, "read", &error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let read = |name: &str| std::fs::read_to_string(path.join(name)).map_err(failed);
        let number = |text: String| {
            u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).unwrap_or(0)
        };
        if read("type")?.trim() == "System RAM" {
            found.push((number(read("start")?), number(read("end")?) + 1));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// A number with the suffix K, M, G or T, as the kernel's memparse reads it.
fn size(text: &str) -> Option<u64> {
    let (digits, factor) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 1 << 10),
        b'M' | b'm' => (&text[..text.len() - 1], MIB),
        b'G' | b'g' => (&text[..text.len() - 1], 1 << 30),
        b'T' | b't' => (&text[..text.len() - 1], 1 << 40),
        _ => (text, 1),
    };
    let number = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    number.checked_mul(factor)
}

/// The ranges that a line takes from ordinary memory: `memmap=SIZE!START` (persistent)
/// and `memmap=SIZE$START` (reserved).
fn taken(line: &str, marks: &[char]) -> Vec<Range> {
    let values = line
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("memmap="));
    let ranges = values
        .flat_map(|value| value.split(','))
        .filter_map(|value| {
            let (length, start) = value.split_once(marks)?;
            let (length, start) = (size(length)?, size(start)?);
            Some((start, start.checked_add(length)?))
        });
    ranges.collect()
}

/// The persistent ranges of a line.
pub fn persistent(line: &str) -> Vec<Range> {
    taken(line, &['!'])
}

/// The reserved ranges of a line: where the module's area can be.
pub fn reserved(line: &str) -> Vec<Range> {
    taken(line, &['$'])
}

fn without(ranges: &[Range], hole: Range) -> Vec<Range> {
    let cut = |(start, end): &Range| {
        let left = (*start, (*end).min(hole.0));
        let right = ((*start).max(hole.1), *end);
        [left, right]
            .into_iter()
            .filter(|(start, end)| start < end)
            .collect::<Vec<_>>()
    };
    ranges.iter().flat_map(cut).collect()
}

/// The line for the next kernel. `line` is the one of the running kernel; `memory` is the
/// firmware's memory and matters at the first boot only. `clock_khz` is what the running
/// kernel found its time stamp counter to be: a kernel that measures again can be far off
/// where something interrupts it meanwhile, which a hypervisor may do at any time.
///
/// # Errors
/// [`Code::KernelUnready`] if the line lacks a reservation.
pub fn next_line(line: &str, memory: &[Range], clock_khz: Option<u32>) -> Result<String> {
    let missing = |what: &str| {
        Error::new(
            Code::KernelUnready,
            Entity::File("/proc/cmdline".into()),
            format!("the boot line lacks {what}"),
            "boot with the line that outlive minickpt setup prints",
        )
    };
    if !line.contains("crashkernel=") {
        return Err(missing("crashkernel="));
    }
    if persistent(line).is_empty() {
        return Err(missing("memmap=SIZE!START"));
    }
    if reserved(line).is_empty() {
        return Err(missing("memmap=SIZE$START"));
    }
    let dropped = ["BOOT_IMAGE=", "elfcorehdr=", "reset_devices", "initrd="];
    let kept = line
        .split_whitespace()
        .filter(|word| !dropped.iter().any(|start| word.starts_with(start)));
    let mut words: Vec<String> = kept.map(str::to_owned).collect();
    if taken(line, &['@']).is_empty() {
        // The first megabyte is the firmware's and the trampolines'.
        let mut ranges = without(memory, (0, MIB));
        for hole in taken(line, &['!', '$']) {
            ranges = without(&ranges, hole);
        }
        for (start, end) in ranges {
            let (start, end) = (start.next_multiple_of(4096), end / 4096 * 4096);
            if end > start {
                words.push(format!(
                    "memmap={}K@{}K",
                    (end - start) / 1024,
                    start / 1024
                ));
            }
        }
    }
    if let Some(khz) = clock_khz.filter(|_| !line.contains(CLOCK)) {
        words.push(format!("{CLOCK}{khz}"));
    }
    words.extend(ADDED.map(str::to_owned));
    Ok(words.join(" "))
}

/// How the next kernel was loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// Its boot line.
    pub line: String,
    /// Why it was not by segments of our own, but by kexec_file_load(2), which is slower.
    pub slow: Option<String>,
}

/// Loads the next kernel. `line` is its boot line; computed from the running kernel's, and
/// from its `clock_khz`, if absent.
///
/// # Errors
/// [`Code::KernelUnready`] with what the kernel said.
pub fn load(
    kernel: &Path,
    initrd: &Path,
    line: Option<&str>,
    clock_khz: Option<u32>,
) -> Result<Loaded> {
    let open = |path: &Path| File::open(path).map_err(|error| Error::io(path, "open", &error));
    let line = match line {
        Some(line) => line.trim().to_owned(),
        None => {
            let running = std::fs::read_to_string("/proc/cmdline")
                .map_err(|error| Error::io("/proc/cmdline", "read", &error))?;
            next_line(running.trim(), &firmware_memory()?, clock_khz)?
        }
    };
    let files = (open(kernel)?, open(initrd)?);
    let slow = match by_segments(&files.0, &files.1, &line) {
        Ok(()) => None,
        Err(why) => {
            let loaded = sys::load_crash_kernel(&files.0, &files.1, &line);
            loaded.map_err(|error| refused(kernel, &error))?;
            Some(why)
        }
    };
    Ok(Loaded { line, slow })
}

/// Loads segments of our own; why not, if so. Whatever it is, kexec_file_load(2) may do:
/// it knows more kinds of machines, and says what is wrong.
fn by_segments(kernel: &File, initrd: &File, line: &str) -> std::result::Result<(), String> {
    if Path::new("/sys/firmware/efi").exists() {
        // The next kernel needs the mappings of the firmware's calls.
        return Err("the machine was booted by UEFI".into());
    }
    let failed = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    let running = std::fs::read("/sys/kernel/boot_params/data")
        .map_err(failed("/sys/kernel/boot_params/data"))?;
    let text = std::fs::read_to_string("/proc/iomem").map_err(failed("/proc/iomem"))?;
    let crash = crash_area(&text).ok_or("/proc/iomem shows no crash area")?;
    let kernel = sys::Mapped::new(kernel).map_err(failed("map the kernel"))?;
    let initrd = sys::Mapped::new(initrd).map_err(failed("map the initramfs"))?;
    let plan = segments::plan(kernel.bytes(), initrd.bytes(), line, crash, &running)?;
    sys::load_crash_segments(plan.entry, &plan.segments()).map_err(failed("kexec_load"))
}

/// The largest crash area in /proc/iomem (another one, for DMA, lies below 4 GiB).
fn crash_area(text: &str) -> Option<Range> {
    let areas = text.lines().filter_map(|line| {
        let (range, name) = line.split_once(" : ")?;
        let (start, end) = range.trim().split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let area = (number(start)?, number(end)?.checked_add(1)?);
        (name.trim() == "Crash kernel" && area.0 > 0).then_some(area)
    });
    areas.max_by_key(|(start, end)| end - start)
}

fn refused(kernel: &Path, error: &std::io::Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM) => "run it as root; kexec must not be locked down",
        Some(libc::EADDRNOTAVAIL | libc::ENOMEM) => {
            "raise crashkernel= on the boot line: kernel and initramfs must fit"
        }
        Some(libc::ENOEXEC | libc::EKEYREJECTED) => "give a bzImage that the kernel accepts",
        Some(libc::EBUSY) => "another kexec is going on: try again",
        _ => "outlive minickpt setup says what is missing",
    };
    let entity = Entity::File(kernel.display().to_string());
    Error::new(
        Code::KernelUnready,
        entity,
        format!("load the next kernel: {error}"),
        remedy,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 console=ttyS0 memmap=254M!512M \
                         memmap=2M$766M crashkernel=128M crash_kexec_post_notifiers";

    #[test]
    fn all_memory_comes_back_but_what_is_taken() {
        let memory = [(0, 0x9fc00), (MIB, 1023 * MIB)];
        let line = next_line(FIRST, &memory, Some(2_596_131)).unwrap();
        assert_eq!(
            line,
            "root=/dev/sda1 console=ttyS0 memmap=254M!512M memmap=2M$766M crashkernel=128M \
             crash_kexec_post_notifiers memmap=523264K@1024K memmap=261120K@786432K \
             tsc_early_khz=2596131 reset_devices elfcorehdr=0xffffffffffffffff"
        );
        // The next kernel sees other memory in the firmware's map: the line stays.
        let again = format!("elfcorehdr=0x1000000 {line}");
        assert_eq!(next_line(&again, &[(MIB, 2 * MIB)], None).unwrap(), line);
        // As does the clock: a later kernel refined it by what it inherited.
        assert_eq!(next_line(&again, &[], Some(2_596_132)).unwrap(), line);
        assert!(!next_line(FIRST, &memory, None).unwrap().contains(CLOCK));
    }

    #[test]
    fn a_line_without_reservations_is_refused() {
        for gone in ["crashkernel=128M", "memmap=254M!512M", "memmap=2M$766M"] {
            let line = FIRST.replace(gone, "");
            let error = next_line(&line, &[(MIB, 1023 * MIB)], None).unwrap_err();
            assert_eq!(error.code(), Code::KernelUnready);
        }
    }

    #[test]
    fn the_crash_area_is_the_larger_one() {
        let text = "00100000-1fffffff : System RAM\n  15000000-15ffffff : Crash kernel\n  \
                    17000000-1effffff : Crash kernel\n20000000-2f7fffff : Persistent Memory\n";
        assert_eq!(crash_area(text), Some((0x1700_0000, 0x1f00_0000)));
        let hidden = "00000000-00000000 : Crash kernel\n";
        assert_eq!(crash_area(hidden), None);
    }

    #[test]
    fn sizes_are_read_as_the_kernel_reads_them() {
        assert_eq!(size("0x10"), Some(16));
        assert_eq!(size("2G"), Some(2 << 30));
        assert_eq!(size("x"), None);
        assert_eq!(size(""), None);
        assert_eq!(size("99999999999T"), None);
        assert_eq!(
            persistent("memmap=1M!2M,3M!8M"),
            [(2 * MIB, 3 * MIB), (8 * MIB, 11 * MIB)]
        );
    }
}

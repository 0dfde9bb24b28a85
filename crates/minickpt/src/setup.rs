//! What a machine needs, what it has, and the boot line that is missing.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::device::{Device, Query, Times};
use crate::warm::{self, Range};

const MIB: u64 = 1 << 20;

/// One thing that is needed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// What.
    pub name: String,
    /// True if it is there.
    pub good: bool,
    /// What was seen, and if it is not good, what to do.
    pub seen: String,
}

fn check(name: &str, good: bool, seen: impl Into<String>) -> Check {
    Check {
        name: name.to_owned(),
        good,
        seen: seen.into(),
    }
}

/// Options of the kernel that are needed (`=y`; `=m` will do for the first two).
const OPTIONS: [&str; 9] = [
    "CONFIG_LIBNVDIMM",
    "CONFIG_BLK_DEV_PMEM",
    "CONFIG_X86_PMEM_LEGACY_DEVICE",
    "CONFIG_FS_DAX",
    "CONFIG_KEXEC_FILE",
    "CONFIG_CRASH_DUMP",
    "CONFIG_KPROBES",
    "CONFIG_CHECKPOINT_RESTORE",
    "CONFIG_TIME_NS",
];

/// Looks at the running machine.
pub fn checks(memory: Option<&Path>) -> Vec<Check> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let line = read("/proc/cmdline");
    let release = read("/proc/sys/kernel/osrelease");
    let mut found = vec![configuration(release.trim())];
    let pmem = warm::persistent(&line);
    found.push(check(
        "persistent memory",
        !pmem.is_empty() && Path::new("/dev/pmem0").exists(),
        format!(
            "{} of memmap=SIZE!START on the boot line, /dev/pmem0",
            pmem.len()
        ),
    ));
    let area = warm::reserved(&line);
    found.push(check(
        "area of the module",
        !area.is_empty(),
        format!("{} of memmap=SIZE$START on the boot line", area.len()),
    ));
    let crash = read("/sys/kernel/kexec_crash_size");
    let crash: u64 = crash.trim().parse().unwrap_or(0);
    found.push(check(
        "room for the next kernel",
        crash > 0,
        format!("crashkernel= gives {} MiB", crash / MIB),
    ));
    let words: Vec<&str> = line.split_whitespace().collect();
    let notifiers = words.contains(&"crash_kexec_post_notifiers");
    found.push(check(
        "module before the next kernel",
        notifiers,
        "crash_kexec_post_notifiers",
    ));
    let loaded = read("/sys/kernel/kexec_crash_loaded");
    found.push(check(
        "next kernel loaded",
        loaded.trim() == "1",
        "outlive minickpt run loads it with --kernel and --initrd",
    ));
    match Device::open() {
        Ok(_) => found.push(check("module", true, crate::device::PATH)),
        Err(error) => found.push(check("module", false, error.to_string())),
    }
    if let Some(memory) = memory {
        let policy = crate::revive::policy(memory, Default::default(), Default::default());
        let seen = match &policy {
            Ok(policy) if policy.dax => format!("{} is on DAX", memory.display()),
            Ok(_) => format!(
                "{} is not on DAX: mount it with -o dax=always",
                memory.display()
            ),
            Err(error) => error.to_string(),
        };
        found.push(check("memory directory", policy.is_ok_and(|p| p.dax), seen));
    }
    found
}

fn configuration(release: &str) -> Check {
    let path = format!("/boot/config-{release}");
    let Ok(text) = fs::read_to_string(&path) else {
        return check(
            "kernel configuration",
            false,
            format!("{path} is not there to be looked at"),
        );
    };
    let has = |option: &&&str| {
        let set = |line: &str| line == format!("{option}=y") || line == format!("{option}=m");
        !text.lines().any(set)
    };
    let missing: Vec<&str> = OPTIONS.iter().filter(has).copied().collect();
    let seen = if missing.is_empty() {
        format!("{path} has all that is needed")
    } else {
        format!("{path} lacks {}: take another kernel", missing.join(", "))
    };
    check("kernel configuration", missing.is_empty(), seen)
}

/// Words for the boot line that reserve `bytes` for programs and 4 MiB for the module,
/// at the end of the largest range of memory below or above 4 GiB. `None` if no range
/// leaves at least 256 MiB beside it.
pub fn boot_words(memory: &[Range], bytes: u64, crash: u64) -> Option<String> {
    const AREA: u64 = 4 * MIB;
    const LEFT: u64 = 256 * MIB;
    const ALIGN: u64 = 2 * MIB;
    let bytes = bytes.checked_next_multiple_of(ALIGN)?;
    let (start, end) = memory
        .iter()
        .copied()
        .max_by_key(|(start, end)| end - start)?;
    let need = bytes
        .checked_add(AREA)?
        .checked_add(crash)?
        .checked_add(LEFT)?;
    if end - start < need {
        return None;
    }
    let area = (end - AREA) / ALIGN * ALIGN;
    let pmem = area - bytes;
    Some(format!(
        "memmap={}M!{}M memmap={}M${}M crashkernel={}M crash_kexec_post_notifiers tsc=reliable",
        bytes / MIB,
        pmem / MIB,
        AREA / MIB,
        area / MIB,
        crash / MIB
    ))
}

/// The words as a file for /etc/default/grub.d: the shell and GRUB both read `$`.
pub fn grub_file(words: &str) -> String {
    let quoted = words.replace('$', "\\\\\\$");
    format!("GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT {quoted}\"\n")
}

/// What `outlive minickpt status` shows.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Status {
    /// What the module says.
    pub module: Query,
    /// True if the next kernel is loaded.
    pub next_loaded: bool,
    /// The last survival.
    pub times: Option<Times>,
}

/// Asks the module.
///
/// # Errors
/// It is not loaded, or not for us.
pub fn status() -> outlive_base::Result<Status> {
    let device = Device::open()?;
    let loaded = fs::read_to_string("/sys/kernel/kexec_crash_loaded").unwrap_or_default();
    Ok(Status {
        module: device.query()?,
        next_loaded: loaded.trim() == "1",
        times: device.times()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_line_takes_the_end_of_the_largest_range() {
        let memory = [(0, 0x9f000), (MIB, 3072 * MIB), (4096 * MIB, 5120 * MIB)];
        let words = boot_words(&memory, 512 * MIB, 128 * MIB).unwrap();
        assert_eq!(
            words,
            "memmap=512M!2556M memmap=4M$3068M crashkernel=128M crash_kexec_post_notifiers \
             tsc=reliable"
        );
        // The next kernel's line can be made of it.
        let line = warm::next_line(&words, &memory, None).unwrap();
        assert!(
            line.contains(&format!("memmap={}K@1024K", (2556 - 1) * 1024)),
            "{line}"
        );
        assert_eq!(boot_words(&memory, 4096 * MIB, 128 * MIB), None);
        assert!(grub_file(&words).contains("memmap=4M\\\\\\$3068M"));
    }
}

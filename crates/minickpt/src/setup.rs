//! What a machine needs, what it has, and the boot line that is missing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use outlive_node::cpus::Cpus;
use outlive_node::placement::{self, Home, SYSFS};
use serde::Serialize;

use crate::device::{Device, Query, Times};
use crate::segments::Range;
use crate::warm;

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
        let policy = crate::revive::policy(memory, Default::default());
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
    found.extend(node(Path::new(SYSFS), memory));
    found
}

/// On which node the memory lies, on a machine with several. Nothing is missing where that
/// is not known: programs run everywhere.
fn node(root: &Path, memory: Option<&Path>) -> Option<Check> {
    use std::os::unix::fs::MetadataExt;
    let nodes = placement::nodes(root);
    if nodes.len() < 2 {
        return None;
    }
    let home = match memory.map(fs::metadata) {
        Some(at) => at.map_or(Home::Unknown, |at| placement::home(root, at.dev())),
        None => placement::disk_home(root, "pmem0"),
    };
    let seen = match home {
        Home::Node(node) => {
            let cpus = nodes.get(&node).map(Cpus::to_string);
            let cpus = cpus.map_or("no CPUs".to_owned(), |cpus| format!("CPUs {cpus}"));
            format!("the memory lies on node {node} of {}, {cpus}", nodes.len())
        }
        _ => "not known: programs are not kept near their memory".to_owned(),
    };
    Some(check("NUMA node", true, seen))
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

/// Words for the boot line that reserve `bytes` for programs and 16 MiB for the module,
/// at the end of the largest range of memory below or above 4 GiB. `None` if no range
/// leaves at least 256 MiB beside it.
pub fn boot_words(memory: &[Range], bytes: u64, crash: u64) -> Option<String> {
    // Two images, each with room for 65,536 mappings and for what some hundred threads have.
    const AREA: u64 = 16 * MIB;
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

/// Where ordinary memory of each node begins: ascending first bytes, and whose memory goes
/// on from there; `None` where a block of memory is of two nodes. By the blocks that the
/// kernel shows, of memory that is in use: what is reserved already belongs to the node
/// before it, or to that of `reserved` (range and node).
pub fn node_starts(root: &Path, reserved: Option<(Range, u32)>) -> Vec<(u64, Option<u32>)> {
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let bytes = read("devices/system/memory/block_size_bytes");
    let bytes = u64::from_str_radix(bytes.trim(), 16).unwrap_or(0);
    let mut blocks: BTreeMap<u64, Option<u32>> = BTreeMap::new();
    for node in placement::online(root) {
        let entries = fs::read_dir(root.join(format!("devices/system/node/node{node}")));
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("memory"));
            let number = number.and_then(|number| number.parse::<u64>().ok());
            if let Some(start) = number.and_then(|number| number.checked_mul(bytes)) {
                let whose = blocks.entry(start).or_insert(Some(node));
                *whose = whose.filter(|first| *first == node);
            }
        }
    }
    if let Some(((start, end), node)) = reserved {
        blocks.retain(|at, _| *at < start || *at >= end);
        blocks.insert(start, Some(node));
    }
    let mut starts: Vec<(u64, Option<u32>)> = blocks.into_iter().collect();
    starts.dedup_by_key(|(_, node)| *node);
    starts
}

/// A boot line, and whose memory it takes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Reservation {
    /// The words, see [`boot_words`].
    pub words: String,
    /// The NUMA node of it all, on a machine with several.
    pub node: Option<u32>,
    /// True if it can lie on several nodes: no one of them has room for it.
    pub straddles: bool,
}

/// As [`boot_words`], within one node if there are several: of those of `starts`, that
/// with the largest range among `nodes`, which have CPUs.
pub fn reserve(
    memory: &[Range],
    (starts, nodes): (&[(u64, Option<u32>)], &placement::Nodes),
    (bytes, crash): (u64, u64),
) -> Option<Reservation> {
    let of = |words, node, straddles| Reservation {
        words,
        node,
        straddles,
    };
    if nodes.len() < 2 {
        return Some(of(boot_words(memory, bytes, crash)?, None, false));
    }
    let ends = starts.iter().skip(1).map(|(start, _)| *start);
    let owned = starts.iter().zip(ends.chain([u64::MAX]));
    let pieces = owned.flat_map(|((first, node), last)| {
        let node = node.filter(|node| nodes.contains_key(node));
        let cut = memory.iter().map(move |(start, end)| {
            let piece = ((*start).max(*first), (*end).min(last));
            (piece, node)
        });
        cut.filter(|((start, end), node)| start < end && node.is_some())
    });
    let largest = pieces.max_by_key(|((start, end), _)| end - start);
    let within =
        largest.and_then(|(piece, node)| Some((boot_words(&[piece], bytes, crash)?, node)));
    match within {
        Some((words, node)) => Some(of(words, node, false)),
        None => Some(of(boot_words(memory, bytes, crash)?, None, true)),
    }
}

/// The boot line for this machine: `bytes` for programs, `crash` for the next kernel.
pub fn reserve_here(bytes: u64, crash: u64) -> Option<Reservation> {
    let root = Path::new(SYSFS);
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    // The first range is the first device.
    let taken = warm::persistent(&line).first().copied();
    let taken = match (taken, placement::disk_home(root, "pmem0")) {
        (Some(range), Home::Node(node)) => Some((range, node)),
        _ => None,
    };
    let memory = warm::firmware_memory().unwrap_or_default();
    let starts = node_starts(root, taken);
    reserve(&memory, (&starts, &placement::nodes(root)), (bytes, crash))
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
            "memmap=512M!2544M memmap=16M$3056M crashkernel=128M crash_kexec_post_notifiers \
             tsc=reliable"
        );
        // The next kernel's line can be made of it.
        let line = warm::next_line(&words, &memory, None).unwrap();
        assert!(
            line.contains(&format!("memmap={}K@1024K", (2544 - 1) * 1024)),
            "{line}"
        );
        assert_eq!(boot_words(&memory, 4096 * MIB, 128 * MIB), None);
        assert!(grub_file(&words).contains("memmap=16M\\\\\\$3056M"));
    }

    const GIB: u64 = 1 << 30;

    /// Two nodes of 8 GiB with blocks of 1 GiB; `gone` are reserved.
    fn two_nodes(gone: &[u64]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("devices/system");
        for block in (0..16).filter(|block| !gone.contains(block)) {
            let name = format!("node/node{}/memory{block}", block / 8);
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::create_dir_all(root.join("memory")).unwrap();
        fs::write(root.join("memory/block_size_bytes"), "40000000\n").unwrap();
        fs::write(root.join("node/online"), "0-1\n").unwrap();
        for (node, cpus) in [(0, "0-1\n"), (1, "2-3\n")] {
            fs::write(root.join(format!("node/node{node}/cpulist")), cpus).unwrap();
        }
        dir
    }

    #[test]
    fn a_reservation_lies_on_one_node() {
        let memory = [(0, 640 << 10), (MIB, 16 * GIB)];
        let both = [(0, Some(0)), (8 * GIB, Some(1))];
        let dir = two_nodes(&[]);
        let nodes = placement::nodes(dir.path());
        assert_eq!(node_starts(dir.path(), None), both);
        let starts = |starts| reserve(&memory, (starts, &nodes), (4 * GIB, 256 * MIB)).unwrap();
        let there = starts(&both);
        assert_eq!((there.node, there.straddles), (Some(1), false));
        assert!(there.words.contains("memmap=4096M!12272M "), "{there:?}");
        // A node that is the larger one ends before the other begins.
        let early = [(0, Some(0)), (12 * GIB, Some(1))];
        assert_eq!(starts(&early).node, Some(0));
        assert!(starts(&early).words.contains("memmap=4096M!8176M "));
        // A block of two nodes is nobody's.
        let shared = [(0, Some(0)), (6 * GIB, None), (8 * GIB, Some(1))];
        assert_eq!(starts(&shared).node, Some(1));
        // No node has room: it is told.
        let large = reserve(&memory, (&both, &nodes), (10 * GIB, 256 * MIB)).unwrap();
        assert_eq!((large.node, large.straddles), (None, true));
        let most = reserve(&memory, (&both, &nodes), (16 * GIB, 256 * MIB));
        assert_eq!(most, None);
        // One node, or one with CPUs: as ever.
        let one = placement::Nodes::from([(0, [0].into_iter().collect())]);
        let plain = reserve(&memory, (&both, &one), (10 * GIB, 256 * MIB)).unwrap();
        assert_eq!((plain.node, plain.straddles), (None, false));
    }

    #[test]
    fn what_is_reserved_already_does_not_move_a_boundary() {
        let both = [(0, Some(0)), (8 * GIB, Some(1))];
        for (blocks, range, node) in [
            (12..16, (12 * GIB, 16 * GIB), 1),
            (8..12, (8 * GIB, 12 * GIB), 1),
            (5..8, (5 * GIB, 8 * GIB), 0),
        ] {
            let dir = two_nodes(&blocks.collect::<Vec<u64>>());
            assert_eq!(node_starts(dir.path(), Some((range, node))), both);
        }
        let dir = two_nodes(&[]);
        fs::create_dir(dir.path().join("devices/system/node/node0/memory8")).unwrap();
        let starts = [(0, Some(0)), (8 * GIB, None), (9 * GIB, Some(1))];
        assert_eq!(node_starts(dir.path(), None), starts);
        // A kernel that shows no blocks.
        assert_eq!(node_starts(Path::new("/nonexistent"), None), []);
    }

    #[test]
    fn the_node_is_told_where_there_are_several() {
        let dir = two_nodes(&[]);
        let seen = |root: &Path| node(root, None).map(|check| check.seen);
        assert!(seen(dir.path()).unwrap().contains("not known"));
        let device = dir.path().join("block/pmem0/device");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("numa_node"), "1\n").unwrap();
        let said = "the memory lies on node 1 of 2, CPUs 2-3";
        assert_eq!(seen(dir.path()).as_deref(), Some(said));
        fs::write(dir.path().join("devices/system/node/online"), "1\n").unwrap();
        assert_eq!(seen(dir.path()), None);
    }
}

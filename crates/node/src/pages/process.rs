//! What of a process's memory is huge, from its `smaps`.

use std::fs;
use std::path::PathBuf;

use outlive_base::{Code, Entity, Error, Result};
use serde::Serialize;

/// Memory, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Amount {
    /// What is there, hugetlbfs included.
    pub resident_bytes: u64,
    /// What of it is mapped by huge pages, of any kind.
    pub huge_bytes: u64,
    /// Transparent ones without a file.
    pub anonymous_bytes: u64,
    /// Transparent ones of shared memory.
    pub shared_bytes: u64,
    /// Transparent ones of files, such as text.
    pub file_bytes: u64,
    /// Reserved ones.
    pub hugetlbfs_bytes: u64,
}

impl Amount {
    /// Both together.
    pub fn and(self, other: Amount) -> Amount {
        Amount {
            resident_bytes: self.resident_bytes + other.resident_bytes,
            huge_bytes: self.huge_bytes + other.huge_bytes,
            anonymous_bytes: self.anonymous_bytes + other.anonymous_bytes,
            shared_bytes: self.shared_bytes + other.shared_bytes,
            file_bytes: self.file_bytes + other.file_bytes,
            hugetlbfs_bytes: self.hugetlbfs_bytes + other.hugetlbfs_bytes,
        }
    }

    /// Adds what a line of `smaps` or `smaps_rollup` says.
    fn add(&mut self, line: &str) {
        let Some((name, rest)) = line.split_once(':') else {
            return;
        };
        let kib = rest.trim().strip_suffix("kB").unwrap_or("");
        let bytes = kib.trim().parse().unwrap_or(0u64).saturating_mul(1024);
        let part = match name {
            // Counts no hugetlbfs.
            "Rss" => {
                self.resident_bytes += bytes;
                return;
            }
            "AnonHugePages" => &mut self.anonymous_bytes,
            "ShmemPmdMapped" => &mut self.shared_bytes,
            "FilePmdMapped" => &mut self.file_bytes,
            "Shared_Hugetlb" | "Private_Hugetlb" => {
                self.resident_bytes += bytes;
                &mut self.hugetlbfs_bytes
            }
            _ => return,
        };
        *part += bytes;
        self.huge_bytes += bytes;
    }
}

/// A kind of memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// What malloc takes by `brk`.
    Heap,
    /// Initialised data and bss, of program and libraries.
    Data,
    /// What can be executed.
    Text,
    /// Anonymous mappings: arenas, long blocks of malloc.
    Mappings,
    /// The stack of the first thread.
    Stack,
    /// Shared memory.
    Shared,
    /// The rest of files.
    Files,
}

/// Memory of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Part {
    /// Which.
    pub kind: MemoryKind,
    /// How much.
    #[serde(flatten)]
    pub amount: Amount,
}

/// A mapping's line, as far as it matters.
struct Mapping<'a> {
    start: u64,
    end: u64,
    rights: &'a str,
    file: bool,
    name: &'a str,
}

/// The head of a mapping; `None` for a line of its figures.
fn mapping(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let address = |word: &str| u64::from_str_radix(word, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    let (rights, _, _) = (words.next()?, words.next()?, words.next()?);
    let inode = words.next()?;
    Some(Mapping {
        start,
        end,
        rights,
        file: inode != "0",
        name: words.next().unwrap_or("").trim(),
    })
}

/// The kind of a mapping; `before`: where the one before ended, and its kind.
fn kind_of(mapping: &Mapping, before: (u64, Option<MemoryKind>)) -> MemoryKind {
    let shared = [
        "/dev/shm/",
        "/memfd:",
        "/SYSV",
        "/dev/zero",
        "/anon_hugepage",
    ];
    let name = mapping.name;
    let named = |starts: &&str| name.starts_with(*starts);
    match name {
        "[heap]" => return MemoryKind::Heap,
        "[stack]" => return MemoryKind::Stack,
        _ => {}
    }
    if mapping.rights.contains('x') {
        return MemoryKind::Text;
    }
    let private = mapping.rights.ends_with('p');
    if name.starts_with("/anon_hugepage") && private {
        return match before {
            (end, Some(MemoryKind::Data)) if end == mapping.start => MemoryKind::Data,
            _ => MemoryKind::Mappings,
        };
    }
    if shared.iter().any(named) {
        return MemoryKind::Shared;
    }
    if mapping.file {
        let written = mapping.rights.contains('w');
        return if private && written {
            MemoryKind::Data
        } else {
            MemoryKind::Files
        };
    }
    // The bss of an object, and data that was moved, lie behind the rest of its data. Where the
    // kernel has joined them with what follows, that counts as data too.
    match before {
        (end, Some(MemoryKind::Data)) if end == mapping.start && name.is_empty() => {
            MemoryKind::Data
        }
        _ => MemoryKind::Mappings,
    }
}

/// The parts of a process, in the order of [`MemoryKind`]; `smaps` is the kernel's text.
pub fn parts(smaps: &str) -> Vec<Part> {
    let mut found = std::collections::BTreeMap::<MemoryKind, Amount>::new();
    let mut before = (0, None);
    for line in smaps.lines() {
        if let Some(mapping) = mapping(line) {
            let kind = kind_of(&mapping, before);
            before = (mapping.end, Some(kind));
        } else if let (_, Some(kind)) = before {
            found.entry(kind).or_default().add(line);
        }
    }
    let some = found.into_iter().filter(|one| one.1.resident_bytes > 0);
    some.map(|(kind, amount)| Part { kind, amount }).collect()
}

/// The sum over a process, from `smaps_rollup`.
pub fn sum(rollup: &str) -> Amount {
    let mut amount = Amount::default();
    rollup.lines().for_each(|line| amount.add(line));
    amount
}

/// The sum over the process with this number now; `None` if it is gone or is another user's.
pub fn sum_of(pid: u32) -> Option<Amount> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    Some(sum(&text))
}

/// What of the process with this number is huge.
///
/// # Errors
/// [`Code::NotFound`] if there is none, [`Code::Permission`] for another user's, else those of
/// reading it.
pub fn look(pid: u32) -> Result<Vec<Part>> {
    let path = PathBuf::from(format!("/proc/{pid}/smaps"));
    match fs::read_to_string(&path) {
        Ok(text) => Ok(parts(&text)),
        // A process that ends while it is read.
        Err(error)
            if error.kind() == std::io::ErrorKind::NotFound
                || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) =>
        {
            let entity = Entity::File(format!("process {pid}"));
            let remedy = "check the number (pgrep, or ps)";
            Err(Error::new(Code::NotFound, entity, "there is none", remedy))
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let entity = Entity::File(format!("process {pid}"));
            let remedy = "ask as the user whose process it is, or as root";
            Err(Error::new(
                Code::Permission,
                entity,
                "it is another user's",
                remedy,
            ))
        }
        Err(error) => Err(Error::io(&path, "read", &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
1000-2000 r-xp 00000000 fe:00 12                 /bin/x
Rss:                   4 kB
FilePmdMapped:         0 kB
2000-3000 rw-p 00001000 fe:00 12                 /bin/x
Rss:                   4 kB
AnonHugePages:         0 kB
3000-9000 rw-p 00000000 00:00 0 
Rss:                4096 kB
AnonHugePages:      2048 kB
a000-b000 rw-p 00000000 00:00 0                          [heap]
Rss:                  12 kB
b000-c000 rw-p 00000000 00:00 0 
Rss:                   8 kB
c000-d000 rw-s 00000000 00:01 77                 /memfd:a b (deleted)
Rss:                2048 kB
ShmemPmdMapped:     2048 kB
d000-e000 rw-p 00000000 00:0f 78                 /anon_hugepage (deleted)
Rss:                   0 kB
Private_Hugetlb:    2048 kB
VmFlags: rd wr mr mw me ht
f000-f100 r--p 00000000 fe:00 12                 /bin/x
Rss:                   0 kB
";

    #[test]
    fn every_mapping_counts_once_under_its_kind() {
        let found = parts(SMAPS);
        let of = |kind| {
            let part = found.iter().find(|part| part.kind == kind);
            part.map(|part| {
                (
                    part.amount.resident_bytes >> 10,
                    part.amount.huge_bytes >> 10,
                )
            })
        };
        assert_eq!(of(MemoryKind::Text), Some((4, 0)));
        assert_eq!(of(MemoryKind::Data), Some((4100, 2048)));
        assert_eq!(of(MemoryKind::Heap), Some((12, 0)));
        assert_eq!(of(MemoryKind::Mappings), Some((2056, 2048)));
        assert_eq!(of(MemoryKind::Shared), Some((2048, 2048)));
        assert_eq!(of(MemoryKind::Files), None);
        let all = found
            .iter()
            .fold(Amount::default(), |sum, part| sum.and(part.amount));
        let rolled = sum(SMAPS);
        assert_eq!(all, rolled);
        assert_eq!(rolled.hugetlbfs_bytes, 2048 << 10);
        for cut in 0..SMAPS.len() {
            parts(&SMAPS[..cut]);
        }
    }

    #[test]
    fn this_process_has_text_and_heap_or_mappings() {
        let found = look(std::process::id()).unwrap();
        assert!(found.iter().any(|part| part.kind == MemoryKind::Text));
        for part in &found {
            assert!(part.amount.huge_bytes <= part.amount.resident_bytes);
        }
        assert_eq!(look(u32::MAX).unwrap_err().code(), Code::NotFound);
    }
}

//! What /proc tells of a process.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::model::{Backing, Credentials, Layout, Mapping};

fn unclear(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("/proc: {what}"))
}

/// The memory map, without the gate of this crate and without vsyscall.
pub fn mappings(pid: i32) -> io::Result<Vec<Mapping>> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let parsed = text.lines().filter_map(|line| mapping(line).transpose());
    let all: io::Result<Vec<Mapping>> = parsed.collect();
    let gate = crate::gate::GATE..crate::gate::GATE + crate::gate::GATE_BYTES;
    Ok(all?
        .into_iter()
        .filter(|m| !gate.contains(&m.start))
        .collect())
}

fn mapping(line: &str) -> io::Result<Option<Mapping>> {
    let bad = || unclear(&format!("maps: {line}"));
    let mut words = line.splitn(6, ' ');
    let mut word = || words.next().ok_or_else(bad);
    let (range, modes, offset, _device, inode) = (word()?, word()?, word()?, word()?, word()?);
    let name = word().unwrap_or("").trim_start();
    if name == "[vsyscall]" {
        return Ok(None);
    }
    let (start, end) = range.split_once('-').ok_or_else(bad)?;
    let number = |text: &str| u64::from_str_radix(text, 16).map_err(|_| bad());
    let has = |letter: char, bit: i32| {
        if modes.contains(letter) {
            bit as u32
        } else {
            0
        }
    };
    let protection =
        has('r', libc::PROT_READ) | has('w', libc::PROT_WRITE) | has('x', libc::PROT_EXEC);
    let backing = if name.starts_with("[v") {
        Backing::Kernel(name.to_owned())
    } else if inode == "0" || name == "/dev/zero (deleted)" {
        Backing::Anonymous
    } else {
        Backing::File {
            path: unescape(name),
            offset: number(offset)?,
            size: 0,
            modified_ns: 0,
        }
    };
    Ok(Some(Mapping {
        start: number(start)?,
        end: number(end)?,
        protection,
        shared: modes.contains('s'),
        grows_down: name == "[stack]",
        backing,
        runs: Vec::new(),
    }))
}

/// The kernel writes a line feed in a path as `\012`.
fn unescape(path: &str) -> String {
    path.replace("\\012", "\n")
}

/// What /proc/PID/status says, as far as an image needs it.
#[derive(Debug, Default)]
pub struct Status {
    /// Users, groups, capabilities.
    pub credentials: Credentials,
    /// The file creation mask.
    pub umask: u32,
    /// Pending signals of the thread.
    pub pending: u64,
    /// Pending signals of the process.
    pub pending_shared: u64,
    /// The numbers of the thread, from the outermost PID namespace inwards.
    pub numbers: Vec<i32>,
    /// The state letter.
    pub state: char,
}

/// Reads /proc/PID/task/TID/status.
pub fn status(pid: i32, tid: i32) -> io::Result<Status> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"))?;
    let mut status = Status::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        let list = || {
            value
                .split_whitespace()
                .filter_map(|w| w.parse::<u32>().ok())
        };
        let hex = || u64::from_str_radix(value, 16).unwrap_or(0);
        let four = || {
            let mut four = [0; 4];
            four.iter_mut()
                .zip(list())
                .for_each(|(to, from)| *to = from);
            four
        };
        let credentials = &mut status.credentials;
        match key {
            "State" => status.state = value.chars().next().unwrap_or('?'),
            "Umask" => status.umask = u32::from_str_radix(value, 8).unwrap_or(0o022),
            "Uid" => credentials.uid = four(),
            "Gid" => credentials.gid = four(),
            "Groups" => credentials.groups = list().collect(),
            "NSpid" => status.numbers = list().map(|n| n as i32).collect(),
            "NoNewPrivs" => credentials.no_new_privs = value == "1",
            "SigPnd" => status.pending = hex(),
            "ShdPnd" => status.pending_shared = hex(),
            "CapInh" => credentials.capabilities[0] = hex(),
            "CapPrm" => credentials.capabilities[1] = hex(),
            "CapEff" => credentials.capabilities[2] = hex(),
            "CapBnd" => credentials.capabilities[3] = hex(),
            "CapAmb" => credentials.capabilities[4] = hex(),
            _ => {}
        }
    }
    Ok(status)
}

/// What /proc/PID/stat says, as far as an image needs it.
#[derive(Debug, Default)]
pub struct Stat {
    /// The parent.
    pub ppid: i32,
    /// The process group.
    pub pgid: i32,
    /// The session.
    pub sid: i32,
    /// The signal for the parent.
    pub exit_signal: i32,
    /// Where the parts lie.
    pub layout: Layout,
}

/// Reads /proc/PID/stat and /proc/PID/auxv.
pub fn stat(pid: i32) -> io::Result<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in brackets and may hold anything.
    let rest = text.rfind(") ").map(|at| &text[at + 2..]);
    let words: Vec<&str> = rest
        .ok_or_else(|| unclear("stat"))?
        .split_whitespace()
        .collect();
    // Numbers of proc_pid_stat(5): the word after the name is number 3.
    let word = |number: usize| words.get(number - 3).copied().unwrap_or("0");
    let long = |number: usize| word(number).parse::<u64>().unwrap_or(0);
    let int = |number: usize| word(number).parse::<i32>().unwrap_or(0);
    let brk = long(47);
    let bounds = [
        long(26),
        long(27),
        long(45),
        long(46),
        brk,
        brk,
        long(28),
        long(48),
        long(49),
        long(50),
        long(51),
    ];
    Ok(Stat {
        ppid: int(4),
        pgid: int(5),
        sid: int(6),
        exit_signal: int(38),
        layout: Layout {
            bounds,
            // One that has ended has none.
            auxv: fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default(),
        },
    })
}

/// The foreground process group of the controlling terminal, at most 0 if there is none.
pub fn foreground(pid: i32) -> io::Result<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = text.rfind(") ").map_or("", |at| &text[at + 2..]);
    // proc_pid_stat(5), number 8: tpgid.
    let group = rest
        .split_whitespace()
        .nth(5)
        .and_then(|word| word.parse().ok());
    Ok(group.unwrap_or(0))
}

/// The threads of a process, the leader first.
pub fn threads(pid: i32) -> io::Result<Vec<i32>> {
    let mut found = numbers(&format!("/proc/{pid}/task"))?;
    found.sort_by_key(|tid| (*tid != pid, *tid));
    Ok(found)
}

/// The descriptors of a process, ascending.
pub fn descriptors(pid: i32) -> io::Result<Vec<i32>> {
    let mut found = numbers(&format!("/proc/{pid}/fd"))?;
    found.sort_unstable();
    Ok(found)
}

fn numbers(directory: &str) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(directory)?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

/// The children of a process.
pub fn children(pid: i32) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for tid in threads(pid)? {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"))?;
        found.extend(
            text.split_whitespace()
                .filter_map(|w| w.parse::<i32>().ok()),
        );
    }
    Ok(found)
}

/// Where a link of /proc/PID leads.
pub fn link(pid: i32, name: &str) -> io::Result<String> {
    let path = fs::read_link(format!("/proc/{pid}/{name}"))?;
    path.into_os_string()
        .into_string()
        .map_err(|path| unclear(&format!("{name}: {path:?} is not UTF-8")))
}

/// Position and flags of a descriptor, and the lines that follow.
pub fn fd_info(pid: i32, fd: i32) -> io::Result<(u64, u32, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}"))?;
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.map(str::trim).unwrap_or("0")
    };
    let position = value("pos:").parse().unwrap_or(0);
    let flags = u32::from_str_radix(value("flags:"), 8).unwrap_or(0);
    Ok((position, flags, text.clone()))
}

/// The name of a thread.
pub fn name(pid: i32, tid: i32) -> io::Result<String> {
    let name = fs::read(format!("/proc/{pid}/task/{tid}/comm"))?;
    Ok(String::from_utf8_lossy(&name)
        .trim_end_matches('\n')
        .to_owned())
}

/// Size and modification time in ns of a file.
pub fn identity(path: &str) -> io::Result<(u64, i64)> {
    let meta = fs::metadata(path)?;
    let modified = meta
        .mtime()
        .saturating_mul(1_000_000_000)
        .saturating_add(meta.mtime_nsec());
    Ok((meta.len(), modified))
}

/// The release of the running kernel.
pub fn kernel() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/osrelease")?
        .trim()
        .to_owned())
}

/// Which pages of `range` a private mapping holds beyond its file: pages that were
/// written (present and not of a file, or swapped out), from /proc/PID/pagemap.
pub fn written_pages(pid: i32, start: u64, end: u64, anonymous: bool) -> io::Result<Vec<u64>> {
    use std::os::unix::fs::FileExt;
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const OF_FILE: u64 = 1 << 61;
    let file = fs::File::open(format!("/proc/{pid}/pagemap"))?;
    let mut found = Vec::new();
    let mut at = start;
    while at < end {
        let pages = ((end - at) / 4096).min(65_536);
        let mut bytes = vec![0u8; pages as usize * 8];
        file.read_exact_at(&mut bytes, at / 4096 * 8)?;
        for (index, entry) in bytes.chunks_exact(8).enumerate() {
            let mut word = [0; 8];
            word.copy_from_slice(entry);
            let entry = u64::from_le_bytes(word);
            let of_file = entry & OF_FILE != 0 && !anonymous;
            if entry & (PRESENT | SWAPPED) != 0 && !of_file {
                found.push(at + index as u64 * 4096);
            }
        }
        at += pages * 4096;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_read() {
        let line = "7f00-8f00 r-xs 00002000 fd:01 42                 /a b/c\\012d";
        let map = mapping(&line.replace("7f00-8f00", "7f000-8f000"))
            .unwrap()
            .unwrap();
        assert_eq!((map.start, map.end, map.protection), (0x7f000, 0x8f000, 5));
        assert!(map.shared);
        let Backing::File { path, offset, .. } = map.backing else {
            panic!("a file")
        };
        assert_eq!((path.as_str(), offset), ("/a b/c\nd", 0x2000));
        let stack = mapping("7ff0-8000 rw-p 00000000 00:00 0     [stack]")
            .unwrap()
            .unwrap();
        assert!(stack.grows_down && stack.backing == Backing::Anonymous);
        assert!(mapping("nonsense").is_err());
        let vsyscall = "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]";
        assert!(mapping(vsyscall).unwrap().is_none());
    }

    #[test]
    fn this_process_is_found() {
        let pid = std::process::id() as i32;
        let stat = stat(pid).unwrap();
        assert_eq!(stat.ppid, std::os::unix::process::parent_id() as i32);
        assert!(stat.layout.bounds[6] > 0 && !stat.layout.auxv.is_empty());
        let maps = mappings(pid).unwrap();
        assert!(maps.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert!(
            maps.iter()
                .any(|m| m.backing == Backing::Kernel("[vdso]".into()))
        );
        let status = status(pid, pid).unwrap();
        assert_eq!(status.numbers.last(), Some(&pid));
    }
}

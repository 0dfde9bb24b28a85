//! The machine: what it is, what its storage can do, what processes use of it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use rustix::fs::OFlags;
use serde::Serialize;

/// Bytes of a transfer of the reference.
const TRANSFER: usize = 4 << 20;

/// The monotonic clock, which all processes share, in nanoseconds.
pub fn clock_ns() -> u64 {
    ns(rustix::time::ClockId::Monotonic)
}

/// A clock, in nanoseconds.
pub fn ns(clock: rustix::time::ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Where figures come from.
#[derive(Debug, Serialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_gib: u64,
    pub kernel: String,
    /// Of the last minute, as the measurement began.
    pub load: f64,
    pub version: &'static str,
}

impl Machine {
    pub fn here() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, key: &str| {
            text.lines()
                .find(|line| line.starts_with(key))
                .and_then(|line| line.split_once(':'))
                .map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let memory_kib: u64 = memory
            .split(' ')
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or(0);
        Machine {
            processor: field(&read("/proc/cpuinfo"), "model name"),
            cores: cores(),
            memory_gib: memory_kib.div_ceil(1 << 20),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: load(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}, {} GiB, Linux {}, load {} at the start; outlive {}",
            self.processor,
            outlive_base::count(self.cores as u64, "core"),
            self.memory_gib,
            self.kernel,
            self.load,
            self.version
        )
    }
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// The load of the last minute.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().and_then(|text| text.parse().ok());
    first.unwrap_or(f64::NAN)
}

/// A buffer for direct transfers, held and touched, in the pages that our own transfers use.
pub struct Buffer {
    bytes: outlive_vault::Buffer,
    length: usize,
}

impl Buffer {
    pub fn new() -> Buffer {
        Buffer::of(TRANSFER)
    }

    /// One of `length` bytes.
    pub fn of(length: usize) -> Buffer {
        let mut bytes = outlive_vault::Buffer::new(length);
        bytes.fill(1);
        Buffer { bytes, length }
    }

    pub fn all(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

/// Opens a file past the page cache, where its file system can.
pub fn direct(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECT.bits() as i32;
    match options.custom_flags(flags).open(path) {
        // Some file systems know no direct transfers.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            options.custom_flags(0).open(path)
        }
        done => done,
    }
}

/// Seconds to write `bytes` into a new file, in order, and to sync it.
pub fn write_direct(path: &Path, bytes: u64, buffer: &mut Buffer) -> io::Result<f64> {
    let start = Instant::now();
    let file = direct(
        OpenOptions::new().write(true).create(true).truncate(true),
        path,
    )?;
    // As any writer that knows the length would.
    let _ = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes);
    let mut at = 0;
    while at < bytes {
        file.write_all_at(buffer.all(), at)?;
        at += TRANSFER as u64;
    }
    file.sync_all()?;
    let took = start.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(took)
}

/// Seconds to read a file, in order, past the page cache; and its length.
pub fn read_direct(path: &Path, buffer: &mut Buffer) -> io::Result<(f64, u64)> {
    let start = Instant::now();
    let file = direct(OpenOptions::new().read(true), path)?;
    let mut at = 0;
    loop {
        match file.read_at(buffer.all(), at) {
            Ok(0) => return Ok((start.elapsed().as_secs_f64(), at)),
            Ok(count) => at += count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The descendants of a process, with the second word of their command line.
pub fn descendants(root: u32) -> Vec<(u32, String)> {
    let mut parents: BTreeMap<u32, u32> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name may hold anything; the rest follows its last parenthesis.
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            parents.insert(pid, parent);
        }
    }
    let under = |mut pid: u32| {
        for _ in 0..64 {
            match parents.get(&pid) {
                Some(&parent) if parent == root => return true,
                Some(&parent) => pid = parent,
                None => return false,
            }
        }
        false
    };
    let word = |pid: u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = line.split(|byte| *byte == 0).nth(1).unwrap_or_default();
        String::from_utf8_lossy(words).into_owned()
    };
    let all = parents.keys().copied().filter(|&pid| under(pid));
    all.map(|pid| (pid, word(pid))).collect()
}

/// A process's proportional share of memory, in bytes.
pub fn share_of_memory(pid: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Time of a process on a core, in seconds: of all its threads, also of those that have
/// ended. 0 if the process is gone.
pub fn core_seconds(pid: u32) -> f64 {
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let pid = libc::pid_t::try_from(pid).unwrap_or(0);
    // SAFETY: both calls write to the memory given here and nothing else.
    let read = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    match read {
        true => time.tv_sec as f64 + time.tv_nsec as f64 / 1e9,
        false => 0.0,
    }
}

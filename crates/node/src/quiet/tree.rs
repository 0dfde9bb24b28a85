//! The one way to the machine's settings: files below a directory, and the places of threads. Tests
//! put a machine of files there, which refuses, loses and changes what it is told.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::cpus::Cpus;

/// The longest file that is read, bytes: a list of members, a journal of many thousand threads.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A machine's settings. Paths have no slash at their begin: `proc/sys/vm/swappiness`.
pub trait Tree {
    /// A file's text.
    ///
    /// # Errors
    /// Those of the file.
    fn read(&self, path: &str) -> io::Result<String>;
    /// Writes a file that is there, in one call.
    ///
    /// # Errors
    /// Those of the file, and what the kernel has against the value.
    fn write(&self, path: &str, value: &str) -> io::Result<()>;
    /// Names in a directory, sorted; none if it cannot be listed.
    fn names(&self, path: &str) -> Vec<String>;
    /// Makes a directory (a control group).
    ///
    /// # Errors
    /// Those of the file system.
    fn make(&self, path: &str) -> io::Result<()>;
    /// Removes it.
    ///
    /// # Errors
    /// Those of the file system; busy while it has members.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Whether this process may write a file.
    fn writable(&self, path: &str) -> bool;
    /// Tells a thread on which cores it may run.
    ///
    /// # Errors
    /// What the kernel has against it.
    fn confine(&self, pid: u32, tid: u32, cpus: &Cpus) -> io::Result<()>;
}

/// This machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine;

impl Machine {
    fn at(path: &str) -> PathBuf {
        Path::new("/").join(path)
    }
}

impl Tree for Machine {
    fn read(&self, path: &str) -> io::Result<String> {
        read_at(&Machine::at(path))
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(Machine::at(path))?;
        file.write_all(value.as_bytes())
    }

    fn names(&self, path: &str) -> Vec<String> {
        names_at(&Machine::at(path))
    }

    fn make(&self, path: &str) -> io::Result<()> {
        fs::create_dir(Machine::at(path))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(Machine::at(path))
    }

    fn writable(&self, path: &str) -> bool {
        let mode = rustix::fs::Access::WRITE_OK;
        rustix::fs::access(Machine::at(path), mode).is_ok()
    }

    fn confine(&self, _: u32, tid: u32, cpus: &Cpus) -> io::Result<()> {
        cpus.affinity().apply(tid)
    }
}

/// Reads a file up to the bound.
pub(super) fn read_at(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Lists a directory, in the order of numbers where names are numbers.
pub(super) fn names_at(path: &Path) -> Vec<String> {
    let found = fs::read_dir(path).into_iter().flatten();
    let mut names: Vec<String> = found
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
    names
}

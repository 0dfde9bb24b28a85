//! Where a Python program is, as Python tells it.
//!
//! A native stack of a Python program shows the interpreter only. The Python package of Outlive
//! asks Python's `faulthandler` at import to write the stacks of all Python threads into a memory
//! file when a certain signal comes. That needs no lock of Python's, so a program in a deadlock
//! answers too. The file's name says the signal.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use outlive_image::sys;

/// What the memory file is called; the signal's number follows.
const NAME: &str = "/memfd:outlive-python-stacks-";
/// Bytes of an answer that are read.
const ANSWER_BYTES: u64 = 1 << 20;
/// An answer that has not grown for so long is whole.
const QUIET: Duration = Duration::from_millis(20);

/// What it says; `None` if it is no such program, or does not answer in time.
pub fn of(pid: i32, until: Instant) -> Option<String> {
    let (path, signal) = file_of(pid)?;
    if !catches(pid, signal) {
        // It would end the process.
        return None;
    }
    ask(&path, pid, signal, until).ok()
}

fn file_of(pid: i32) -> Option<(PathBuf, i32)> {
    let mut open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    open.find_map(|entry| {
        let link = fs::read_link(entry.path()).ok()?;
        let rest = link.to_str()?.strip_prefix(NAME)?;
        let signal = rest.split(' ').next()?.parse().ok()?;
        Some((entry.path(), signal))
    })
}

fn catches(pid: i32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    (1..=64).contains(&signal) && caught.is_some_and(|set| set >> (signal - 1) & 1 == 1)
}

fn ask(path: &PathBuf, pid: i32, signal: i32, until: Instant) -> io::Result<String> {
    let file = File::open(path)?;
    let before = file.metadata()?.len();
    sys::kill(pid, signal)?;
    let (mut length, mut changed) = (before, Instant::now());
    while length == before || changed.elapsed() < QUIET {
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(2));
        let now = file.metadata()?.len();
        if now != length {
            (length, changed) = (now, Instant::now());
        }
    }
    let mut bytes = vec![0; usize::try_from((length - before).min(ANSWER_BYTES)).unwrap_or(0)];
    file.read_exact_at(&mut bytes, before)?;
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

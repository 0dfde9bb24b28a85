//! From frozen processes to an image.
//!
//! What the kernel does not show in /proc or by ptrace is asked by calls inside of the
//! process: signal actions, alternate stacks, interval timers. Registers and masks are
//! put back, so that the processes can go on as if nothing had been.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use outlive_base::{Code, Entity, Error, Result};

use crate::descriptors::Descriptions;
use crate::freeze::{Frozen, settled};
use crate::gate::{self, List};
use crate::model::{Action, Backing, Image, Mapping, PAGE, PosixTimer, Process, Run, Thread};
use crate::procfs;
use crate::sys;
use crate::timers;

const PR_GET_TID_ADDRESS: u64 = 40;
const CHUNK: usize = 1 << 20;

/// Dumps frozen processes. Contents that stand in no file are written to `contents`
/// (from its start); shared mappings of files are named, not copied.
///
/// # Errors
/// [`Code::Unsupported`] with the process and what cannot be kept; I/O of `contents`.
pub fn dump(frozen: &Frozen, contents: &File) -> Result<Image> {
    let mut image = Image {
        kernel: procfs::kernel().map_err(|e| Error::io("/proc", "read", &e))?,
        monotonic_ns: sys::clock_ns(libc::CLOCK_MONOTONIC),
        boottime_ns: sys::clock_ns(libc::CLOCK_BOOTTIME),
        ..Image::default()
    };
    let mut descriptions = Descriptions::default();
    let mut pages = Pages {
        to: contents,
        at: 0,
    };
    for (pid, tids) in &frozen.processes {
        let process = one(*pid, tids, frozen, &mut descriptions, &mut pages);
        let (process, vdso_crc) = process.map_err(|error| about(*pid, error))?;
        image.vdso_crc = vdso_crc;
        image.processes.push(process);
    }
    image.descriptions = descriptions.finish();
    Ok(image)
}

fn about(pid: i32, error: io::Error) -> Error {
    let (code, remedy) = match error.kind() {
        io::ErrorKind::Unsupported => (
            Code::Unsupported,
            "close it before, or run the program without it: see the table of features",
        ),
        io::ErrorKind::StorageFull => (Code::NoSpace, "give the image more space"),
        _ => (Code::Io, "see the system log"),
    };
    Error::new(
        code,
        Entity::Call,
        format!("dump process {pid}: {error}"),
        remedy,
    )
}

fn one(
    pid: i32,
    tids: &[i32],
    frozen: &Frozen,
    descriptions: &mut Descriptions,
    pages: &mut Pages<'_>,
) -> io::Result<(Process, u32)> {
    let memory = gate::memory(pid)?;
    let stat = procfs::stat(pid)?;
    let status = procfs::status(pid, pid)?;
    let mut mappings = procfs::mappings(pid)?;
    let vdso = vdso(&mappings)?;
    let mut code = vec![0; (vdso.1 - vdso.0) as usize];
    memory.read_exact_at(&mut code, vdso.0)?;
    let mut threads = Vec::new();
    for tid in tids {
        threads.push(state(pid, *tid, frozen)?);
    }
    let asked = ask(pid, &memory, vdso, &mut threads)?;
    for mapping in &mut mappings {
        fill(pid, &memory, mapping, pages)?;
    }
    let mut layout = stat.layout;
    // The end of the heap: of the mapping that starts where brk started.
    let start = layout.bounds[4];
    let heap = mappings
        .iter()
        .find(|m| m.start <= start && start < m.end && !m.shared);
    layout.bounds[5] = heap.map_or(start, |m| m.end);
    let process = Process {
        locks: Vec::new(),
        pid: number(&status, pid),
        ppid: stat.ppid,
        pgid: stat.pgid,
        sid: stat.sid,
        exit_signal: stat.exit_signal,
        credentials: status.credentials,
        dumpable: None,
        umask: status.umask,
        cwd: procfs::link(pid, "cwd")?,
        exe: procfs::link(pid, "exe")?,
        limits: sys::limits(pid)?,
        actions: asked.0,
        pending: status.pending_shared,
        queued: sys::queued(pid, true)?,
        timers: asked.1,
        posix_timers: asked.2,
        layout,
        mappings,
        descriptors: descriptions.of(pid)?,
        threads,
    };
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &code) as u32;
    Ok((process, crc))
}

/// The number of a task inside of its own PID namespace.
fn number(status: &procfs::Status, outside: i32) -> i32 {
    status.numbers.last().copied().unwrap_or(outside)
}

/// The range of the vdso.
pub fn vdso(mappings: &[Mapping]) -> io::Result<(u64, u64)> {
    let name = Backing::Kernel("[vdso]".to_owned());
    let found = mappings.iter().find(|m| m.backing == name);
    found
        .map(|m| (m.start, m.end))
        .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "it has no vdso"))
}

/// What ptrace and /proc tell of a thread.
fn state(pid: i32, tid: i32, frozen: &Frozen) -> io::Result<Thread> {
    let status = procfs::status(pid, tid)?;
    let held = frozen
        .held
        .get(&tid)
        .map_or(0, |signal| 1u64 << (signal - 1));
    Ok(Thread {
        tid: number(&status, tid),
        registers: settled(tid)?,
        xstate: sys::xstate(tid)?,
        mask: sys::mask(tid)?,
        pending: status.pending | held,
        queued: sys::queued(tid, false)?,
        robust_list: sys::robust_list(tid)?,
        rseq: sys::rseq(tid)?,
        name: procfs::name(pid, tid)?,
        affinity: sys::affinity(tid)?,
        ..Thread::default()
    })
}

type Intervals = [(u64, u64); 3];
type Asked = (Vec<Action>, Intervals, Vec<PosixTimer>);

/// Asks by calls inside of the process. Its threads then have settled registers.
fn ask(pid: i32, memory: &File, vdso: (u64, u64), threads: &mut [Thread]) -> io::Result<Asked> {
    // In a PID namespace of its own the tracer knows the threads by other numbers.
    let outside = procfs::threads(pid)?;
    let gated = std::fs::read_to_string(format!("/proc/{pid}/maps"))?
        .lines()
        .any(|line| line.starts_with(&format!("{:x}-", gate::GATE)));
    let mut asked = None;
    let result = (|| {
        gate::quiet(outside[0])?;
        if !gated {
            gate::open(outside[0], memory, vdso)?;
        }
        let (actions, timers) = actions(outside[0], memory)?;
        let inside = |tid| {
            let place = outside.iter().position(|outside| *outside == tid)?;
            threads.get(place).map(|thread| thread.tid)
        };
        let posix = timers::ask((pid, outside[0]), memory, inside)?;
        asked = Some((actions, timers, posix));
        for (tid, thread) in outside.iter().zip(threads.iter_mut()) {
            gate::quiet(*tid)?;
            ask_thread(*tid, memory, thread)?;
        }
        if !gated {
            gate::close(outside[0], memory, vdso)?;
        }
        Ok(())
    })();
    for (tid, thread) in outside.iter().zip(threads.iter()) {
        sys::set_registers(*tid, &thread.registers)?;
        sys::set_mask(*tid, thread.mask)?;
    }
    result.and_then(|()| asked.ok_or_else(|| io::Error::other("no answer")))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn actions(tid: i32, memory: &File) -> io::Result<(Vec<Action>, Intervals)> {
    let mut list = List::new();
    let buffer = list.bytes(&[0; 64 * 32 + 3 * 32]);
    for signal in 1..=64u64 {
        let at = buffer + (signal - 1) * 32;
        list.call(libc::SYS_rt_sigaction, &[signal, 0, at, 8]);
    }
    for timer in 0..3u64 {
        let at = buffer + (64 + timer) * 32;
        list.call(libc::SYS_getitimer, &[timer, at]);
    }
    gate::run(tid, memory, &list)?;
    let bytes = gate::read(memory, buffer, 67 * 32)?;
    let actions = bytes[..64 * 32].chunks_exact(32).map(|entry| Action {
        handler: word(entry, 0),
        flags: word(entry, 8),
        restorer: word(entry, 16),
        mask: word(entry, 24),
    });
    let mut timers = [(0, 0); 3];
    for (timer, entry) in timers.iter_mut().zip(bytes[64 * 32..].chunks_exact(32)) {
        let micros = |at: usize| word(entry, at).wrapping_mul(1_000_000) + word(entry, at + 8);
        *timer = (micros(0), micros(16));
    }
    Ok((actions.collect(), timers))
}

fn ask_thread(tid: i32, memory: &File, thread: &mut Thread) -> io::Result<()> {
    let mut list = List::new();
    let buffer = list.bytes(&[0; 32]);
    list.call(libc::SYS_sigaltstack, &[0, buffer]);
    list.attempt(libc::SYS_prctl, &[PR_GET_TID_ADDRESS, buffer + 24]);
    // The kernel tells whether the thread is on its alternate stack by its rsp.
    gate::run(tid, memory, &list)?;
    let bytes = gate::read(memory, buffer, 32)?;
    const SS_ONSTACK: u32 = 1;
    let flags = word(&bytes, 8) as u32 & !SS_ONSTACK;
    thread.altstack = (word(&bytes, 0), word(&bytes, 16), flags);
    thread.clear_tid = word(&bytes, 24);
    Ok(())
}

/// Where contents go.
struct Pages<'a> {
    to: &'a File,
    at: u64,
}

/// Gives a mapping its contents: the pages that its file does not have.
fn fill(pid: i32, memory: &File, mapping: &mut Mapping, pages: &mut Pages<'_>) -> io::Result<()> {
    let anonymous = match &mut mapping.backing {
        Backing::Kernel(_) => return Ok(()),
        Backing::File { path, .. } if path.ends_with(" (deleted)") => {
            let what = format!("a mapping of a deleted file: {path}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        Backing::File { .. } if mapping.shared => return Ok(()),
        Backing::File {
            path,
            size,
            modified_ns,
            ..
        } => {
            (*size, *modified_ns) = procfs::identity(path)?;
            false
        }
        Backing::Anonymous => true,
    };
    let found = procfs::written_pages(pid, mapping.start, mapping.end, anonymous)?;
    let mut at = 0;
    while at < found.len() {
        let mut count = 1;
        while at + count < found.len()
            && found[at + count] == found[at] + count as u64 * PAGE
            && count * (PAGE as usize) < CHUNK
        {
            count += 1;
        }
        let start = found[at];
        let mut bytes = vec![0; count * PAGE as usize];
        memory.read_exact_at(&mut bytes, start)?;
        if !(anonymous && bytes.iter().all(|byte| *byte == 0)) {
            pages.to.write_all_at(&bytes, pages.at)?;
            mapping.runs.push(Run {
                at: start - mapping.start,
                length: bytes.len() as u64,
                source: pages.at,
            });
            pages.at += bytes.len() as u64;
        }
        at += count;
    }
    let mut to = pages.to;
    to.flush()
}

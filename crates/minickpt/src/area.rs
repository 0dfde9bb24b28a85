//! The image that the kernel module wrote while its kernel died.
//!
//! The layout is `kernel/include/uapi/outlive_minickpt.h`. Every byte here comes
//! from a kernel that failed, so everything is read through bounds and believed
//! only under its checksum; a record that makes no sense is an error, never a
//! panic, and nothing is allocated beyond the bytes that are there (P7).

use crc_fast::{CrcAlgorithm, checksum};
use outlive_base::wire::{Reader, WireError};
use thiserror::Error;

const IMAGE_MAGIC: u64 = 0x0031_474d_494b_4d4f;
const REC_MAGIC: u32 = 0x4352_4d4f;
const ABI_VERSION: u32 = 1;
const HEAD_BYTES: usize = 576;
const HEAD_ROOM: usize = 4096;
const ALIGN: usize = 64;
/// An offset of a path that was not recorded.
pub const NO_PATH: u32 = u32::MAX;
/// `OMK_THREAD_EXITING`.
const EXITING: u32 = 1 << 4;

/// Why an image cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AreaError {
    /// Not an image, or of another version of the module.
    #[error("no image: {0}")]
    Foreign(&'static str),
    /// A checksum does not match.
    #[error("the image's {0} is damaged")]
    Checksum(&'static str),
    /// A record makes no sense.
    #[error("record {index} at byte {at}: {why}")]
    Record {
        /// Counted from 0.
        index: usize,
        /// From the start of the image.
        at: usize,
        /// What is wrong.
        why: WireError,
    },
    /// Records and header disagree.
    #[error("the image lacks {0}")]
    Incomplete(&'static str),
}

/// What came first when the kernel died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// `panic()` was called.
    Panic,
    /// An oops.
    Oops,
    /// A processor was silent.
    NmiWatchdog,
    /// A processor did not schedule.
    SoftLockup,
    /// A task slept too long.
    HungTask,
    /// Memory was exhausted.
    NoMemory,
}

/// The header: when, where and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Counts the images since the area was formatted.
    pub generation: u64,
    /// A record did not fit, a step died, or a processor never answered (bits 0, 1, 2).
    pub flags: u32,
    /// Why the kernel died.
    pub cause: Cause,
    /// Time stamp counter at the first notice, when all was saved, and its kHz.
    pub panic_tsc: u64,
    /// See `panic_tsc`.
    pub saved_tsc: u64,
    /// See `panic_tsc`.
    pub tsc_khz: u64,
    /// `CLOCK_MONOTONIC`, `CLOCK_BOOTTIME`, `CLOCK_REALTIME` of the dying kernel, ns.
    pub mono_ns: u64,
    /// See `mono_ns`.
    pub boot_ns: u64,
    /// See `mono_ns`.
    pub real_ns: u64,
    /// Processor state components enabled in it.
    pub xcr0: u64,
    /// The processor that panicked, of how many, and how many never answered.
    pub cpu: u32,
    /// See `cpu`.
    pub cpus: u32,
    /// See `cpu`.
    pub cpus_missing: u32,
    /// `uname -r`.
    pub release: String,
    /// `uname -v`.
    pub build: String,
    /// What `panic()` said.
    pub message: String,
}

/// Registers in the order of `struct user_regs_struct`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Regs(pub [u64; 27]);

/// A thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thread {
    /// Its number.
    pub tid: u32,
    /// `OMK_THREAD_*` of the header file.
    pub flags: u32,
    /// The processor it was on last.
    pub cpu: i32,
    /// General registers, with `orig_rax` and the bases of `fs` and `gs`.
    pub regs: Regs,
    /// Blocked signals.
    pub sigmask: u64,
    /// The mask to put back after a call such as `pselect`, if flag 1 << 5.
    pub saved_sigmask: u64,
    /// Pending signals.
    pub pending: u64,
    /// The alternate stack: address, bytes, flags.
    pub alternate: (u64, u64, u32),
    /// Head of the robust list and its length.
    pub robust: (u64, u64),
    /// `set_tid_address`.
    pub clear_child_tid: u64,
    /// rseq: address, length, signature.
    pub rseq: (u64, u32, u32),
    /// What an interrupted call would restart with, `OMK_RESTART_*` and arguments.
    pub restart: (u64, [u64; 4]),
    /// Scheduling policy, nice, real-time priority.
    pub sched: (u32, i32, u32),
    /// Whether `no_new_privs` is set.
    pub no_new_privs: bool,
    /// Allowed processors, bit by bit.
    pub affinity: [u64; 16],
    /// Its name.
    pub comm: String,
    /// The uncompacted XSAVE area; empty if it could not be saved.
    pub xstate: Vec<u8>,
}

/// A mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vma {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// The kernel's own bits.
    pub vm_flags: u64,
    /// Bytes into the file.
    pub offset: u64,
    /// The file's inode.
    pub ino: u64,
    /// Its device, as `st_dev`.
    pub dev: u32,
    /// `OMK_VMA_*`.
    pub flags: u32,
    /// The file's path, if it could be read.
    pub path: Option<String>,
}

/// A file descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fd {
    /// Its number.
    pub fd: u32,
    /// Closed at exec.
    pub cloexec: bool,
    /// Equal for descriptors that share a position.
    pub description: u64,
    /// Position.
    pub pos: u64,
    /// Inode.
    pub ino: u64,
    /// Device, as `st_dev`.
    pub dev: u32,
    /// Device node, as `st_rdev`.
    pub rdev: u32,
    /// `O_*`.
    pub flags: u32,
    /// `st_mode`.
    pub mode: u32,
    /// Bytes, as that kernel knew it.
    pub size: u64,
    /// Path, if it could be read.
    pub path: Option<String>,
}

/// A signal's action.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SigAction {
    /// Address, or `SIG_DFL`, `SIG_IGN`.
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// Return trampoline.
    pub restorer: u64,
    /// Blocked while it runs.
    pub mask: u64,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Process {
    /// Its number.
    pub tgid: u32,
    /// Parent, group, session.
    pub ppid: u32,
    /// See `ppid`.
    pub pgid: u32,
    /// See `ppid`.
    pub sid: u32,
    /// `OMK_PROC_*`: what was found broken.
    pub flags: u32,
    /// Real, effective, saved, file-system user.
    pub uids: [u32; 4],
    /// Real, effective, saved, file-system group.
    pub gids: [u32; 4],
    /// File creation mask.
    pub umask: u32,
    /// Device of the controlling terminal, or 0.
    pub tty: u32,
    /// The signal its parent gets.
    pub exit_signal: i32,
    /// What was given when it was registered.
    pub cookie: u64,
    /// Signals pending for all threads.
    pub shared_pending: u64,
    /// Code, data, break and stack: `start_code, end_code, start_data, end_data,
    /// start_brk, brk, start_stack, arg_start, arg_end, env_start, env_end`.
    pub layout: [u64; 11],
    /// Effective, permitted, inheritable, bounding, ambient capabilities.
    pub capabilities: [u64; 5],
    /// Soft and hard limits by resource number.
    pub limits: Vec<(u64, u64)>,
    /// The auxiliary vector.
    pub auxv: Vec<u64>,
    /// Its name.
    pub comm: String,
    /// Working directory, root, executable, where they could be read.
    pub cwd: Option<String>,
    /// See `cwd`.
    pub root: Option<String>,
    /// See `cwd`.
    pub exe: Option<String>,
    /// The threads that are to be restored; exiting ones are left out.
    pub threads: Vec<Thread>,
    /// The memory map, ascending.
    pub vmas: Vec<Vma>,
    /// Open files, ascending.
    pub fds: Vec<Fd>,
    /// Actions of signals 1 to 64.
    pub actions: Vec<SigAction>,
    /// Any record of it was cut short or held an unreadable pointer.
    pub damaged: bool,
}

/// An image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// When, where and why.
    pub head: Head,
    /// In the order of their registration.
    pub processes: Vec<Process>,
}

/// CRC-32 as zlib's `crc32`.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32IsoHdlc, bytes) as u32
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn path(strings: &[u8], at: u32) -> Option<String> {
    let rest = strings.get(usize::try_from(at).ok()?..)?;
    (at != NO_PATH && !rest.is_empty()).then(|| text(rest))
}

impl Image {
    /// Reads an image, header first.
    ///
    /// # Errors
    /// [`AreaError`]: another version, a checksum, or a record that makes no sense.
    pub fn parse(bytes: &[u8]) -> Result<Image, AreaError> {
        let (head, want) = head(bytes)?;
        let body = bytes
            .get(HEAD_ROOM..)
            .and_then(|rest| rest.get(..usize::try_from(want.body_len).ok()?))
            .ok_or(AreaError::Incomplete("its records"))?;
        if crc32(body) != want.body_crc {
            return Err(AreaError::Checksum("body"));
        }
        let records = records(body)?;
        let mut processes: Vec<Process> = Vec::new();
        for record in records.iter().filter(|r| r.kind == 1) {
            let process = gather(&records, record)?;
            processes.push(process);
        }
        if processes.len() != want.processes as usize {
            return Err(AreaError::Incomplete("a process"));
        }
        Ok(Image { head, processes })
    }
}

struct Want {
    body_len: u64,
    body_crc: u32,
    processes: u32,
}

fn head(bytes: &[u8]) -> Result<(Head, Want), AreaError> {
    let short = |_| AreaError::Incomplete("its header");
    let raw = bytes
        .get(..HEAD_BYTES)
        .ok_or(AreaError::Incomplete("its header"))?;
    let mut r = Reader::new(raw);
    if r.u64().map_err(short)? != IMAGE_MAGIC {
        return Err(AreaError::Foreign("no magic number"));
    }
    if r.u32().map_err(short)? != ABI_VERSION || r.u32().map_err(short)? as usize != HEAD_BYTES {
        return Err(AreaError::Foreign("of another version of the module"));
    }
    let crc = u32::from_le_bytes([raw[572], raw[573], raw[574], raw[575]]);
    if crc != crc32(&raw[..HEAD_BYTES - 4]) {
        return Err(AreaError::Checksum("header"));
    }
    fields(&mut r).map_err(short)
}

fn fields(r: &mut Reader<'_>) -> Result<(Head, Want), WireError> {
    let generation = r.u64()?;
    let flags = r.u32()?;
    let cause = match r.u32()? {
        1 => Cause::Panic,
        2 => Cause::Oops,
        3 => Cause::NmiWatchdog,
        4 => Cause::SoftLockup,
        5 => Cause::HungTask,
        6 => Cause::NoMemory,
        _ => return Err(WireError::Value("cause")),
    };
    let (body_len, body_crc, processes) = (r.u64()?, r.u32()?, r.u32()?);
    let _threads_and_records = r.u64()?;
    let (panic_tsc, mono_ns, boot_ns, real_ns) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    let (saved_tsc, _stop_tsc, tsc_khz, xcr0) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    let (_xstate_size, cpu, cpus, cpus_missing) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
    let head = Head {
        generation,
        flags,
        cause,
        panic_tsc,
        saved_tsc,
        tsc_khz,
        mono_ns,
        boot_ns,
        real_ns,
        xcr0,
        cpu,
        cpus,
        cpus_missing,
        release: text(r.take(72)?),
        build: text(r.take(104)?),
        message: text(r.take(256)?),
    };
    let want = Want {
        body_len,
        body_crc,
        processes,
    };
    Ok((head, want))
}

struct Record<'a> {
    index: usize,
    at: usize,
    kind: u32,
    flags: u32,
    count: u32,
    tgid: u32,
    payload: &'a [u8],
}

impl Record<'_> {
    fn error(&self, why: WireError) -> AreaError {
        AreaError::Record {
            index: self.index,
            at: self.at,
            why,
        }
    }
}

fn records(body: &[u8]) -> Result<Vec<Record<'_>>, AreaError> {
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        let index = found.len();
        let bad = |why| AreaError::Record { index, at, why };
        let mut r = Reader::new(body.get(at..).unwrap_or(&[]));
        if r.u32().map_err(bad)? != REC_MAGIC {
            return Err(bad(WireError::Value("no record")));
        }
        let (kind, flags, count) = (
            r.u32().map_err(bad)?,
            r.u32().map_err(bad)?,
            r.u32().map_err(bad)?,
        );
        let len = usize::try_from(r.u64().map_err(bad)?)
            .map_err(|_| bad(WireError::Value("length")))?;
        let tgid = r.u32().map_err(bad)?;
        if kind == 7 {
            return Ok(found);
        }
        let payload = body
            .get(at + ALIGN..)
            .and_then(|rest| rest.get(..len))
            .ok_or_else(|| bad(WireError::Value("longer than the image")))?;
        found.push(Record {
            index,
            at,
            kind,
            flags,
            count,
            tgid,
            payload,
        });
        // `len` is at most the body's, so this cannot overflow.
        at += ALIGN + len.next_multiple_of(ALIGN);
    }
}

/// A process out of its own record and all others of its number.
fn gather(all: &[Record<'_>], own: &Record<'_>) -> Result<Process, AreaError> {
    let of = |kind| all.iter().filter(move |r| r.kind == kind && r.tgid == own.tgid);
    let strings = of(6).next().map_or(&[][..], |r| r.payload);
    let mut p = process(&mut Reader::new(own.payload), strings).map_err(|w| own.error(w))?;
    for record in of(2) {
        if let Some(t) = thread(record.payload).map_err(|w| record.error(w))? {
            p.threads.push(t);
        }
    }
    for record in of(3) {
        p.vmas = array(record, 56, |r| vma(r, strings))?;
    }
    for record in of(4) {
        p.fds = array(record, 64, |r| fd(r, strings))?;
    }
    for record in of(5) {
        p.actions = array(record, 32, action)?;
    }
    p.damaged = all.iter().any(|r| r.tgid == own.tgid && r.flags != 0);
    if p.threads.is_empty() {
        return Err(AreaError::Incomplete("the threads of a process"));
    }
    Ok(p)
}

fn array<T>(
    record: &Record<'_>,
    bytes: usize,
    mut one: impl FnMut(&mut Reader<'_>) -> Result<T, WireError>,
) -> Result<Vec<T>, AreaError> {
    if record.payload.len() != record.count as usize * bytes {
        return Err(record.error(WireError::Value("count and length disagree")));
    }
    record
        .payload
        .chunks_exact(bytes)
        .map(|chunk| one(&mut Reader::new(chunk)).map_err(|w| record.error(w)))
        .collect()
}

fn process(r: &mut Reader<'_>, strings: &[u8]) -> Result<Process, WireError> {
    let mut p = Process {
        tgid: r.u32()?,
        ppid: r.u32()?,
        pgid: r.u32()?,
        sid: r.u32()?,
        flags: r.u32()?,
        ..Process::default()
    };
    let _threads = r.u32()?;
    p.uids = [r.u32()?, r.u32()?, r.u32()?, r.u32()?];
    p.gids = [r.u32()?, r.u32()?, r.u32()?, r.u32()?];
    p.umask = r.u32()?;
    p.cwd = path(strings, r.u32()?);
    p.root = path(strings, r.u32()?);
    p.exe = path(strings, r.u32()?);
    p.tty = r.u32()?;
    p.exit_signal = r.u32()? as i32;
    p.cookie = r.u64()?;
    p.shared_pending = r.u64()?;
    p.layout = words(r)?;
    p.capabilities = words(r)?;
    let limits: [u64; 32] = words(r)?;
    p.limits = limits.chunks_exact(2).map(|c| (c[0], c[1])).collect();
    p.auxv = words::<64>(r)?.to_vec();
    p.comm = text(r.take(16)?);
    Ok(p)
}

fn words<const N: usize>(r: &mut Reader<'_>) -> Result<[u64; N], WireError> {
    let mut out = [0; N];
    for word in &mut out {
        *word = r.u64()?;
    }
    Ok(out)
}

/// A thread, or none if it was exiting.
fn thread(payload: &[u8]) -> Result<Option<Thread>, WireError> {
    let r = &mut Reader::new(payload);
    let _tgid = r.u32()?;
    let (tid, flags, cpu) = (r.u32()?, r.u32()?, r.u32()? as i32);
    let regs = Regs(words(r)?);
    let (sigmask, saved_sigmask, pending) = (r.u64()?, r.u64()?, r.u64()?);
    let alternate = (r.u64()?, r.u64()?, r.u32()?);
    let _state = r.u32()?;
    let robust = (r.u64()?, r.u64()?);
    let (clear_child_tid, _set_child_tid) = (r.u64()?, r.u64()?);
    let rseq = (r.u64()?, r.u32()?, r.u32()?);
    let restart = (r.u64()?, words(r)?);
    let sched = (r.u32()?, r.u32()? as i32, r.u32()?);
    let no_new_privs = r.u32()? != 0;
    let affinity = words(r)?;
    let _cpu_time_ns = r.u64()?;
    let comm = text(r.take(16)?);
    let _xcr0 = r.u64()?;
    let (offset, length) = (r.u32()? as usize, r.u32()? as usize);
    let xstate = payload
        .get(offset..)
        .and_then(|rest| rest.get(..length))
        .ok_or(WireError::Value("processor state beyond the record"))?
        .to_vec();
    Ok((flags & EXITING == 0).then_some(Thread {
        tid,
        flags,
        cpu,
        regs,
        sigmask,
        saved_sigmask,
        pending,
        alternate,
        robust,
        clear_child_tid,
        rseq,
        restart,
        sched,
        no_new_privs,
        affinity,
        comm,
        xstate,
    }))
}

fn vma(r: &mut Reader<'_>, strings: &[u8]) -> Result<Vma, WireError> {
    let v = Vma {
        start: r.u64()?,
        end: r.u64()?,
        vm_flags: r.u64()?,
        offset: r.u64()?,
        ino: r.u64()?,
        dev: r.u32()?,
        flags: r.u32()?,
        path: path(strings, r.u32()?),
    };
    if v.start >= v.end {
        return Err(WireError::Value("an empty mapping"));
    }
    Ok(v)
}

fn fd(r: &mut Reader<'_>, strings: &[u8]) -> Result<Fd, WireError> {
    let (fd, cloexec, description, pos) = (r.u32()?, r.u32()? != 0, r.u64()?, r.u64()?);
    let (ino, dev, rdev, flags, mode) = (r.u64()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?);
    let (size, at) = (r.u64()?, r.u32()?);
    Ok(Fd {
        fd,
        cloexec,
        description,
        pos,
        ino,
        dev,
        rdev,
        flags,
        mode,
        size,
        path: path(strings, at),
    })
}

fn action(r: &mut Reader<'_>) -> Result<SigAction, WireError> {
    Ok(SigAction {
        handler: r.u64()?,
        flags: r.u64()?,
        restorer: r.u64()?,
        mask: r.u64()?,
    })
}

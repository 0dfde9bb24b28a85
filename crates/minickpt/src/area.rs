//! What the module saved when the kernel died, as a process image.
//!
//! The layout is that of `kernel/include/uapi/outlive_minickpt.h`, version 1. Every
//! number here comes from memory that a dying kernel wrote: lengths are checked against
//! what is there, and both checksums must fit before anything is believed.

mod open;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::{Code, Entity, Error, Result};
use outlive_image::gate::{GATE, GATE_BYTES};
use outlive_image::model::{
    Action, Backing, Credentials, Ended, Image, Layout, Mapping, PosixTimer, Process, TIMERS_MAX,
    Thread,
};

use self::open::Open;
use crate::births::{self, Birth, Fork};
use crate::journal::{Noted, Pending};
use crate::supervisor::files;

const IMAGE_MAGIC: u64 = 0x0031_474d_494b_4d4f;
const RECORD_MAGIC: u32 = 0x4352_4d4f;
const VERSION: u32 = 1;
const HEADER: usize = 4096;
const HEADER_BYTES: usize = 576;
const ALIGN: usize = 64;
const SIP: usize = 16;
const NONE: u32 = u32::MAX;

/// Why the kernel died.
pub const CAUSES: [&str; 7] = [
    "unknown",
    "panic",
    "oops",
    "NMI watchdog",
    "soft lock-up",
    "hung task",
    "out of memory",
];

/// What the image says of the death itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Death {
    /// The number of the image.
    pub generation: u64,
    /// Why.
    pub cause: String,
    /// What panic() said.
    pub message: String,
    /// Release and build of the kernel.
    pub kernel: [String; 2],
    /// The processor that panicked.
    pub cpu: u32,
    /// Processors that never answered.
    pub cpus_missing: u32,
    /// CLOCK_MONOTONIC of the kernel, ns.
    pub monotonic_ns: u64,
    /// CLOCK_BOOTTIME of the kernel, ns.
    pub boottime_ns: u64,
    /// Processes that could not be kept, with the reason.
    pub lost: Vec<(i32, String)>,
    /// The first of all processes.
    #[serde(skip)]
    pub first: i32,
}

impl Death {
    /// True if this kernel, release and build, is the one that died.
    pub(crate) fn is_of(&self, kernel: (&str, &str, u32)) -> bool {
        self.kernel[0] == kernel.0 && self.kernel[1] == kernel.1
    }
}

fn bad(reason: impl Into<String>) -> Error {
    Error::new(
        Code::Corrupt,
        Entity::File("/dev/outlive-minickpt".into()),
        reason,
        "boot as usual and start the program again: nothing was restored",
    )
}

/// Little-endian numbers out of bytes, zero behind their end: callers check lengths.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn u32(self, at: usize) -> u32 {
        let mut word = [0; 4];
        if let Some(bytes) = self.0.get(at..at + 4) {
            word.copy_from_slice(bytes);
        }
        u32::from_le_bytes(word)
    }

    fn u64(self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }

    fn i32(self, at: usize) -> i32 {
        self.u32(at) as i32
    }

    fn words(self, at: usize, count: usize) -> Vec<u64> {
        (0..count).map(|index| self.u64(at + index * 8)).collect()
    }

    fn text(self, at: usize, length: usize) -> String {
        let bytes = self.0.get(at..at + length).unwrap_or_default();
        let end = bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, bytes) as u32
}

#[derive(Default)]
struct Records<'a> {
    process: Option<&'a [u8]>,
    threads: Vec<&'a [u8]>,
    vmas: &'a [u8],
    fds: &'a [u8],
    actions: &'a [u8],
    strings: &'a [u8],
    /// What it can go on without: `None` if it was not written whole.
    groups: Option<&'a [u8]>,
    timers: Option<&'a [u8]>,
    terminals: &'a [u8],
    queued: &'a [u8],
    posix_timers: &'a [u8],
    ended: &'a [u8],
    specials: &'a [u8],
    watched: Option<&'a [u8]>,
    held: Option<&'a [u8]>,
    /// What it cannot go on without.
    locks: Option<&'a [u8]>,
    cut: bool,
}

/// Reads the header.
///
/// # Errors
/// [`Code::Corrupt`] or [`Code::FormatUnknown`].
pub fn death(bytes: &[u8]) -> Result<Death> {
    if bytes.len() < HEADER {
        return Err(bad("the image is cut off"));
    }
    let head = Bytes(bytes);
    if head.u64(0) != IMAGE_MAGIC {
        return Err(bad("there is no image"));
    }
    if head.u32(8) != VERSION {
        return Err(Error::new(
            Code::FormatUnknown,
            Entity::File("/dev/outlive-minickpt".into()),
            format!("the image has version {}", head.u32(8)),
            "use module and command of one release",
        ));
    }
    if crc32(&bytes[..HEADER_BYTES - 4]) != head.u32(HEADER_BYTES - 4) {
        return Err(bad("the header of the image does not match its checksum"));
    }
    let cause = CAUSES.get(head.u32(28) as usize).unwrap_or(&CAUSES[0]);
    Ok(Death {
        generation: head.u64(16),
        cause: (*cause).to_owned(),
        kernel: [head.text(136, 72), head.text(208, 104)],
        message: head.text(312, 256).trim_end().to_owned(),
        cpu: head.u32(124),
        cpus_missing: head.u32(132),
        monotonic_ns: head.u64(64),
        boottime_ns: head.u64(72),
        lost: Vec::new(),
        first: 0,
    })
}

/// Reads a whole image. `kernel` is the running one: release, build and the CRC of its
/// vdso; `special` the names of its special mappings, ascending; `noted` what the supervisor
/// had a hand in.
///
/// # Errors
/// [`Code::Corrupt`]; [`Code::ImageForeign`] for another build; [`Code::NotFound`] if no
/// process can be kept.
pub fn decode(
    bytes: &[u8],
    kernel: (&str, &str, u32),
    special: &[String],
    noted: &Noted,
) -> Result<(Death, Image)> {
    let mut death = death(bytes)?;
    if !death.is_of(kernel) {
        return Err(Error::new(
            Code::ImageForeign,
            Entity::File("/dev/outlive-minickpt".into()),
            format!(
                "the image is of Linux {}, {}",
                death.kernel[0], death.kernel[1]
            ),
            "let the next kernel of a warm reboot be the same build",
        ));
    }
    let length = Bytes(bytes).u64(32) as usize;
    let body = bytes.get(HEADER..).and_then(|rest| rest.get(..length));
    let body = body.ok_or_else(|| bad("the records of the image are cut off"))?;
    if crc32(body) != Bytes(bytes).u32(40) {
        return Err(bad("the records of the image do not match their checksum"));
    }
    let mut image = Image {
        kernel: death.kernel[0].clone(),
        vdso_crc: kernel.2,
        monotonic_ns: death.monotonic_ns,
        boottime_ns: death.boottime_ns,
        ..Image::default()
    };
    let mut open = Open::default();
    let (mut forks, mut killed) = (Vec::new(), Vec::new());
    let groups = group(body)?;
    death.first = first(&groups);
    for (tgid, records) in groups {
        match process(&records, special, noted, &mut open, &mut forks) {
            Ok(process) => image.processes.push(process),
            Err(reason) => {
                death.lost.push((tgid as i32, reason));
                killed.extend(records.process.map(|head| killed_of(Bytes(head))));
            }
        }
        image.ended.extend(ended(records.ended, tgid as i32));
    }
    // One that had ended before the kernel died is not lost; of the others their parents are
    // told as of a kill.
    let told: BTreeSet<i32> = image.ended.iter().map(|ended| ended.pid).collect();
    death.lost.retain(|(pid, _)| !told.contains(pid));
    killed.retain(|killed| !told.contains(&killed.pid));
    image.ended.extend(killed);
    births::finish_forks(&mut image.processes, &forks, &noted.children);
    sort(&mut image.processes);
    image.descriptions = open.finish(&image.processes);
    if image.processes.is_empty() {
        let why: Vec<String> = death
            .lost
            .iter()
            .map(|(pid, why)| format!("{pid}: {why}"))
            .collect();
        return Err(Error::new(
            Code::NotFound,
            Entity::File("/dev/outlive-minickpt".into()),
            format!("no process was kept ({})", why.join("; ")),
            "start the program again",
        ));
    }
    image.check()?;
    Ok((death, image))
}

/// The process that was started as the first: none of these made it.
fn first(groups: &BTreeMap<u32, Records<'_>>) -> i32 {
    let heads = groups.values().filter_map(|records| records.process);
    let mut roots = heads
        .map(Bytes)
        .filter(|head| !groups.contains_key(&head.u32(4)));
    roots.next().map_or(0, |head| head.i32(0))
}

/// A process that could not be kept, to its parent.
fn killed_of(head: Bytes<'_>) -> Ended {
    Ended {
        pid: head.i32(0),
        ppid: head.i32(4),
        exit_signal: head.i32(76),
        status: libc::SIGKILL,
    }
}

/// The children of process `ppid` that ended and were not waited for.
fn ended(records: &[u8], ppid: i32) -> Vec<Ended> {
    let read = |entry: &[u8]| Ended {
        pid: Bytes(entry).i32(0),
        ppid,
        exit_signal: Bytes(entry).i32(8),
        status: Bytes(entry).i32(4) & 0xffff,
    };
    let all = records.chunks_exact(16).map(read);
    all.filter(|ended| ended.pid > 0 && (0..=64).contains(&ended.exit_signal))
        .collect()
}

/// Parents before children.
fn sort(processes: &mut Vec<Process>) {
    let mut sorted: Vec<Process> = Vec::new();
    let mut left = std::mem::take(processes);
    left.sort_by_key(|process| process.pid);
    while !left.is_empty() {
        let pids: Vec<i32> = left.iter().map(|process| process.pid).collect();
        let (ready, rest): (Vec<_>, Vec<_>) = left
            .into_iter()
            .partition(|process| !pids.contains(&process.ppid));
        if ready.is_empty() {
            // A circle cannot be: it would be a damaged image. None of it is kept.
            break;
        }
        sorted.extend(ready);
        left = rest;
    }
    *processes = sorted;
}

fn group(body: &[u8]) -> Result<BTreeMap<u32, Records<'_>>> {
    let mut groups: BTreeMap<u32, Records<'_>> = BTreeMap::new();
    let mut at = 0;
    while at + ALIGN <= body.len() {
        let record = Bytes(&body[at..]);
        let kind = record.u32(4);
        let length = record.u64(16) as usize;
        if record.u32(0) != RECORD_MAGIC {
            return Err(bad(format!("no record at {at}")));
        }
        let start = at + ALIGN;
        let payload = start
            .checked_add(length)
            .and_then(|end| body.get(start..end));
        let payload = payload.ok_or_else(|| bad(format!("record at {at} is too long")))?;
        let (of, whole) = (groups.entry(record.u32(24)), record.u32(8) == 0);
        match kind {
            7 => break,
            1 => of.or_default().process = Some(payload),
            2 => of.or_default().threads.push(payload),
            3 => of.or_default().vmas = payload,
            4 => of.or_default().fds = payload,
            5 => of.or_default().actions = payload,
            6 => of.or_default().strings = payload,
            8 if whole => of.or_default().groups = Some(payload),
            9 if whole => of.or_default().timers = Some(payload),
            10 => of.or_default().terminals = payload,
            11 => of.or_default().queued = payload,
            12 => of.or_default().posix_timers = payload,
            13 => of.or_default().ended = payload,
            14 if whole => of.or_default().locks = Some(payload),
            15 => of.or_default().specials = payload,
            16 if whole => of.or_default().watched = Some(payload),
            17 if whole => of.or_default().held = Some(payload),
            8 | 9 | 14 | 16 | 17 => {}
            other => return Err(bad(format!("record of kind {other}"))),
        }
        if kind < 7 && !whole {
            groups.entry(record.u32(24)).or_default().cut = true;
        }
        at = start + length.next_multiple_of(ALIGN);
    }
    Ok(groups)
}

fn path(strings: &[u8], at: u32) -> Option<String> {
    if at == NONE || at as usize >= strings.len() {
        return None;
    }
    Some(Bytes(&strings[at as usize..]).text(0, strings.len() - at as usize))
}

fn process(
    records: &Records<'_>,
    special: &[String],
    noted: &Noted,
    open: &mut Open,
    forks: &mut Vec<Fork>,
) -> std::result::Result<Process, String> {
    let head = Bytes(records.process.ok_or("its record was not written")?);
    if head.0.len() < 1008 || records.actions.len() < 64 * 32 {
        return Err("its record is cut off".into());
    }
    const EXITING: u32 = 1 << 5;
    const UNDUMPABLE: u32 = 1 << 7;
    if head.u32(16) & EXITING != 0 {
        return Err("it was ending".into());
    }
    if records.cut {
        return Err("its tables did not fit or could not be read".into());
    }
    let pid = head.i32(0);
    let (mut threads, mut making, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for bytes in &records.threads {
        let tid = Bytes(bytes).i32(4);
        let queued = queued(records.queued, tid);
        if let Some(read) = thread(Bytes(bytes), queued, noted.pending.as_ref())? {
            threads.push(read.0);
            making.extend(read.1);
            forks.extend(read.2);
            unknown.extend(read.3);
        }
    }
    births::finish(&mut threads, &making);
    threads.sort_by_key(|thread| (thread.tid != pid, thread.tid));
    let (mut descriptors, locks) = open.of(records)?;
    descriptors.retain(|descriptor| !unknown.contains(&descriptor.fd));
    let four = |at: usize| [0, 4, 8, 12].map(|step| head.u32(at + step));
    let caps = [2, 1, 0, 3, 4].map(|index| head.u64(184 + index * 8));
    let mut auxv = Vec::new();
    for pair in head.0[480..480 + 512].chunks_exact(16) {
        auxv.extend_from_slice(pair);
        if pair[..8] == [0; 8] {
            break;
        }
    }
    let mut bounds = [0; 11];
    bounds.copy_from_slice(&head.words(96, 11));
    let actions = records.actions.chunks_exact(32).take(64).map(|entry| {
        let entry = Bytes(entry);
        Action {
            handler: entry.u64(0),
            flags: entry.u64(8),
            restorer: entry.u64(16),
            mask: entry.u64(24),
        }
    });
    let limits = head.words(224, 32);
    let no_new_privs = records
        .threads
        .first()
        .is_some_and(|t| Bytes(t).u32(380) != 0);
    Ok(Process {
        pid,
        ppid: head.i32(4),
        pgid: head.i32(8),
        sid: head.i32(12),
        exit_signal: head.i32(76),
        credentials: Credentials {
            uid: four(24),
            gid: four(40),
            groups: records.groups.map_or_else(own_groups, |bytes| {
                let words = bytes.chunks_exact(4);
                words.map(|word| Bytes(word).u32(0)).collect()
            }),
            capabilities: caps,
            no_new_privs,
            securebits: head.u32(16) >> 16 & 0xff,
        },
        dumpable: Some(head.u32(16) & UNDUMPABLE == 0),
        umask: head.u32(56),
        cwd: path(records.strings, head.u32(60)).unwrap_or_else(|| "/".into()),
        exe: path(records.strings, head.u32(68)).unwrap_or_default(),
        limits: limits
            .chunks_exact(2)
            .map(|pair| (pair[0], pair[1]))
            .collect(),
        actions: actions.collect(),
        pending: head.u64(88),
        queued: queued(records.queued, 0),
        timers: timers(records.timers),
        posix_timers: posix_timers(records.posix_timers, &threads),
        layout: Layout { bounds, auxv },
        mappings: mappings(records, special)?,
        descriptors,
        threads,
        locks,
    })
}

/// Where supplementary groups could not be saved they are those of this process.
fn own_groups() -> Vec<u32> {
    let pid = std::process::id() as i32;
    outlive_image::procfs::status(pid, pid)
        .map(|s| s.credentials.groups)
        .unwrap_or_default()
}

/// Interval and value in µs; a time that is set is not rounded down to none.
fn timers(bytes: Option<&[u8]>) -> [(u64, u64); 3] {
    let mut found = [(0, 0); 3];
    for (timer, entry) in found.iter_mut().zip(bytes.unwrap_or(&[]).chunks_exact(16)) {
        let micros = |at: usize| Bytes(entry).u64(at).div_ceil(1000);
        *timer = (micros(0), micros(8));
    }
    found
}

/// Timers of timer_create(2), by number; what the dying kernel had overwritten, and those of
/// threads that are no more, are left out, for a process goes on without them.
fn posix_timers(records: &[u8], threads: &[Thread]) -> Vec<PosixTimer> {
    const SIGEV_NONE: i32 = 1;
    const SIGEV_THREAD: i32 = 2;
    const SIGEV_THREAD_ID: i32 = 4;
    let read = |entry: Bytes<'_>| PosixTimer {
        id: entry.i32(0),
        clock: entry.i32(4),
        notify: entry.i32(8),
        signal: entry.i32(12),
        value: entry.u64(16),
        tid: entry.i32(24),
        absolute: entry.u32(28) != 0,
        interval_ns: entry.u64(32),
        next_ns: entry.u64(40),
    };
    let mut found: Vec<PosixTimer> = records.chunks_exact(48).map(|e| read(Bytes(e))).collect();
    found.retain(|timer| {
        let told = match timer.notify {
            SIGEV_NONE => true,
            0 | SIGEV_THREAD => (1..=64).contains(&timer.signal),
            SIGEV_THREAD_ID => {
                let there = threads.iter().any(|thread| thread.tid == timer.tid);
                there && (1..=64).contains(&timer.signal)
            }
            _ => false,
        };
        told && (0..TIMERS_MAX).contains(&timer.id)
    });
    found.sort_by_key(|timer| timer.id);
    found.dedup_by_key(|timer| timer.id);
    found
}

/// The data of the pending signals of a thread, or of the process (0); what the dying kernel
/// had overwritten is left out, for a process goes on without it.
fn queued(records: &[u8], tid: i32) -> Vec<Vec<u8>> {
    let entries = records.chunks_exact(56).map(Bytes);
    entries
        .filter(|entry| entry.i32(0) == tid && entry.i32(4) == entry.i32(8))
        .filter(|entry| (1..=64).contains(&entry.i32(4)))
        .map(|entry| entry.0[8..56].to_vec())
        .collect()
}

/// The signals that wait for a thread, without the trap at the end of a list of calls: a kernel
/// can die between the instruction and the stop. One that somebody sent stays.
fn without_trap(pending: u64, queued: &mut Vec<Vec<u8>>) -> u64 {
    const SI_KERNEL: i32 = 0x80;
    let is_trap = |entry: &Vec<u8>| Bytes(entry).i32(0) == libc::SIGTRAP;
    queued.retain(|entry| !is_trap(entry) || Bytes(entry).i32(8) != SI_KERNEL);
    let bit = u64::from(!queued.iter().any(is_trap)) << (libc::SIGTRAP - 1);
    pending & !bit
}

/// A thread, the call by which it was making another or a process, and a descriptor that it has
/// not been told of.
type Read = (Thread, Option<Birth>, Option<Fork>, Option<i32>);

fn thread(
    bytes: Bytes<'_>,
    mut queued: Vec<Vec<u8>>,
    pending: Option<&Pending>,
) -> std::result::Result<Option<Read>, String> {
    const NO_XSTATE: u32 = 1 << 3;
    const EXITING: u32 = 1 << 4;
    const SAVED_MASK: u32 = 1 << 5;
    const UNSEEN: u32 = 1 << 12;
    if bytes.0.len() < 552 {
        return Err("a thread's record is cut off".into());
    }
    let (tid, flags) = (bytes.i32(4), bytes.u32(8));
    let (exiting, call) = (flags & EXITING != 0, bytes.u64(136));
    if births::left_out(exiting, call, bytes.u64(296), bytes.u32(276)) {
        return Ok(None);
    }
    if flags & UNSEEN != 0 {
        return Err(format!(
            "thread {tid} ran on a processor that never answered"
        ));
    }
    if flags & NO_XSTATE != 0 {
        return Err(format!(
            "the vector state of thread {tid} could not be saved"
        ));
    }
    let mut registers = bytes.words(16, 27);
    let mask_at = if flags & SAVED_MASK != 0 { 240 } else { 232 };
    let mut mask = bytes.u64(mask_at);
    let mut waiting = bytes.u64(248);
    let of_it = pending.filter(|pending| pending.tid == tid);
    if let Some(pending) = of_it.filter(|pending| pending.holds(&registers)) {
        // The supervisor was carrying out a call for it: it is made again, or is over.
        (registers, mask) = pending.state();
        waiting = without_trap(waiting, &mut queued);
    } else if (GATE..GATE + GATE_BYTES).contains(&registers[SIP]) {
        return Err(format!("thread {tid} was in the middle of fork or exec"));
    }
    let unknown = files::still_in_flight(&mut registers);
    let (birth, fork) = (Birth::of(tid, &registers), Fork::of(tid, &registers));
    outlive_image::calls::settle(&mut registers);
    let (at, length) = (bytes.u32(544) as usize, bytes.u32(548) as usize);
    let xstate = at.checked_add(length).and_then(|end| bytes.0.get(at..end));
    let xstate = xstate.ok_or("a thread's vector state is cut off")?;
    let size = bytes.u64(320);
    let thread = Thread {
        tid,
        registers,
        xstate: xstate.to_vec(),
        mask,
        pending: waiting,
        altstack: (bytes.u64(256), bytes.u64(264), bytes.u32(272)),
        robust_list: bytes.u64(280),
        clear_tid: bytes.u64(296),
        rseq: (bytes.u64(312), size as u32, (size >> 32) as u32),
        queued,
        name: bytes.text(520, 16),
        affinity: bytes.0[384..512].to_vec(),
    };
    Ok(Some((thread, birth, fork, unknown)))
}

fn mappings(
    records: &Records<'_>,
    special: &[String],
) -> std::result::Result<Vec<Mapping>, String> {
    const SHARED: u32 = 1 << 3;
    const FILE: u32 = 1 << 4;
    const GROWS_DOWN: u32 = 1 << 7;
    const SPECIAL: u32 = 1 << 8;
    let mut names = special.iter();
    let mut found = Vec::new();
    for entry in records.vmas.chunks_exact(56) {
        let vma = Bytes(entry);
        let (start, end, flags) = (vma.u64(0), vma.u64(8), vma.u32(44));
        if (GATE..GATE + GATE_BYTES).contains(&start) {
            continue;
        }
        let backing = if flags & SPECIAL != 0 {
            let name = names
                .next()
                .ok_or("it has more special mappings than this kernel")?;
            Backing::Kernel(name.clone())
        } else if flags & FILE != 0 {
            let path = path(records.strings, vma.u32(48));
            let path = path.ok_or(format!("the file under {start:x} has no name"))?;
            Backing::File {
                path,
                offset: vma.u64(24),
                size: 0,
                modified_ns: 0,
            }
        } else {
            // Reserved a moment ago, not yet in files: nothing can have been written.
            if flags & 2 != 0 {
                return Err(format!("memory at {start:x} was not yet in its files"));
            }
            Backing::Anonymous
        };
        found.push(Mapping {
            start,
            end,
            protection: flags & 7,
            shared: flags & SHARED != 0,
            grows_down: flags & GROWS_DOWN != 0,
            backing,
            runs: Vec::new(),
        });
    }
    Ok(found)
}

#[cfg(test)]
pub(crate) mod tests;

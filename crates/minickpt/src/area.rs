//! What the module saved when the kernel died, as a process image.
//!
//! The layout is that of `kernel/include/uapi/outlive_minickpt.h`, version 1. Every
//! number here comes from memory that a dying kernel wrote: lengths are checked against
//! what is there, and both checksums must fit before anything is believed.

use std::collections::BTreeMap;

use outlive_base::{Code, Entity, Error, Result};
use outlive_image::gate::{GATE, GATE_BYTES};
use outlive_image::model::{
    Action, Backing, Credentials, Description, Descriptor, Image, Kind, Layout, Mapping, Process,
    Thread,
};

use crate::births::{self, Birth};
use crate::journal::Pending;

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
    })
}

/// Reads a whole image. `kernel` is the running one: release, build and the CRC of its
/// vdso; `special` the names of its special mappings, ascending; `pending` a call on
/// memory that the supervisor was carrying out.
///
/// # Errors
/// [`Code::Corrupt`]; [`Code::ImageForeign`] for another build; [`Code::NotFound`] if no
/// process can be kept.
pub fn decode(
    bytes: &[u8],
    kernel: (&str, &str, u32),
    special: &[String],
    pending: Option<&Pending>,
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
    for (tgid, records) in group(body)? {
        match process(&records, special, pending, &mut open) {
            Ok(process) => image.processes.push(process),
            Err(reason) => death.lost.push((tgid as i32, reason)),
        }
    }
    sort(&mut image.processes);
    image.descriptions = open.finish();
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
        let of = groups.entry(record.u32(24));
        match kind {
            7 => break,
            1 => of.or_default().process = Some(payload),
            2 => of.or_default().threads.push(payload),
            3 => of.or_default().vmas = payload,
            4 => of.or_default().fds = payload,
            5 => of.or_default().actions = payload,
            6 => of.or_default().strings = payload,
            other => return Err(bad(format!("record of kind {other}"))),
        }
        if kind != 7 && record.u32(8) != 0 {
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
    pending: Option<&Pending>,
    open: &mut Open,
) -> std::result::Result<Process, String> {
    let head = Bytes(records.process.ok_or("its record was not written")?);
    if head.0.len() < 1008 || records.actions.len() < 64 * 32 {
        return Err("its record is cut off".into());
    }
    const EXITING: u32 = 1 << 5;
    if head.u32(16) & EXITING != 0 {
        return Err("it was ending".into());
    }
    if records.cut {
        return Err("its tables did not fit or could not be read".into());
    }
    let pid = head.i32(0);
    let (mut threads, mut making) = (Vec::new(), Vec::new());
    for bytes in &records.threads {
        if let Some((thread, birth)) = thread(Bytes(bytes), pending)? {
            threads.push(thread);
            making.extend(birth);
        }
    }
    births::finish(&mut threads, &making);
    threads.sort_by_key(|thread| (thread.tid != pid, thread.tid));
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
            groups: own_groups(),
            capabilities: caps,
            no_new_privs,
        },
        umask: head.u32(56),
        cwd: path(records.strings, head.u32(60)).unwrap_or_else(|| "/".into()),
        exe: path(records.strings, head.u32(68)).unwrap_or_default(),
        limits: limits
            .chunks_exact(2)
            .map(|pair| (pair[0], pair[1]))
            .collect(),
        actions: actions.collect(),
        pending: head.u64(88),
        timers: [(0, 0); 3],
        layout: Layout { bounds, auxv },
        mappings: mappings(records, special)?,
        descriptors: open.of(records)?,
        threads,
    })
}

/// The module does not save supplementary groups: they are those of this process.
fn own_groups() -> Vec<u32> {
    let pid = std::process::id() as i32;
    outlive_image::procfs::status(pid, pid)
        .map(|s| s.credentials.groups)
        .unwrap_or_default()
}

fn thread(
    bytes: Bytes<'_>,
    pending: Option<&Pending>,
) -> std::result::Result<Option<(Thread, Option<Birth>)>, String> {
    const NO_XSTATE: u32 = 1 << 3;
    const EXITING: u32 = 1 << 4;
    const SAVED_MASK: u32 = 1 << 5;
    if bytes.0.len() < 552 {
        return Err("a thread's record is cut off".into());
    }
    let (tid, flags) = (bytes.i32(4), bytes.u32(8));
    let (exiting, call) = (flags & EXITING != 0, bytes.u64(136));
    if births::left_out(exiting, call, bytes.u64(296), bytes.u32(276)) {
        return Ok(None);
    }
    if flags & NO_XSTATE != 0 {
        return Err(format!(
            "the vector state of thread {tid} could not be saved"
        ));
    }
    let mut registers = bytes.words(16, 27);
    let mask_at = if flags & SAVED_MASK != 0 { 240 } else { 232 };
    let mut mask = bytes.u64(mask_at);
    if (GATE..GATE + GATE_BYTES).contains(&registers[SIP]) {
        // The supervisor was carrying out a call for it: the call is made again.
        let pending = pending.filter(|pending| pending.tid == tid);
        let pending = pending.ok_or(format!("thread {tid} was in the middle of fork or exec"))?;
        registers.clone_from(&pending.registers);
        mask = pending.mask;
    }
    let birth = Birth::of(tid, &registers);
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
        pending: bytes.u64(248),
        altstack: (bytes.u64(256), bytes.u64(264), bytes.u32(272)),
        robust_list: bytes.u64(280),
        clear_tid: bytes.u64(296),
        rseq: (bytes.u64(312), size as u32, (size >> 32) as u32),
        name: bytes.text(520, 16),
        affinity: bytes.0[384..512].to_vec(),
    };
    Ok(Some((thread, birth)))
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

/// The open file descriptions of all processes, by the module's number for them.
#[derive(Default)]
struct Open {
    found: Vec<(u64, i32, Description)>,
}

impl Open {
    fn of(&mut self, records: &Records<'_>) -> std::result::Result<Vec<Descriptor>, String> {
        let mut descriptors = Vec::new();
        for entry in records.fds.chunks_exact(64) {
            let bytes = Bytes(entry);
            let (fd, id) = (bytes.i32(0), bytes.u64(8));
            let known = self.found.iter().position(|(other, _, _)| *other == id);
            let index = known.unwrap_or_else(|| {
                let kind = kind(bytes, path(records.strings, bytes.u32(56)), fd);
                let flags = bytes.u32(40) & !(libc::O_CLOEXEC as u32);
                let position = bytes.u64(16);
                self.found.push((
                    id,
                    fd,
                    Description {
                        flags,
                        position,
                        kind,
                    },
                ));
                self.found.len() - 1
            });
            descriptors.push(Descriptor {
                fd,
                close_on_exec: bytes.u32(4) != 0,
                description: index as u32,
            });
        }
        Ok(descriptors)
    }

    fn finish(self) -> Vec<Description> {
        let end = |id: u64, want: bool| {
            self.found.iter().any(|(_, _, d)| {
                matches!(d.kind, Kind::Pipe { id: i, write, .. } if i == id && write == want)
            })
        };
        let found = self.found.iter().map(|(_, fd, description)| {
            let mut description = description.clone();
            if let Kind::Pipe { id, .. } = description.kind
                && !(end(id, true) && end(id, false))
            {
                description.kind = Kind::Outside { stdio: *fd };
            }
            description
        });
        found.collect()
    }
}

fn kind(bytes: Bytes<'_>, path: Option<String>, fd: i32) -> Kind {
    let (mode, rdev) = (bytes.u32(44), u64::from(bytes.u32(36)));
    let closed = Kind::Outside { stdio: fd };
    match (mode & libc::S_IFMT, path) {
        (libc::S_IFIFO, _) => {
            let write = bytes.u32(40) & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32;
            Kind::Pipe {
                id: bytes.u64(24),
                write,
                held: Vec::new(),
            }
        }
        (libc::S_IFSOCK, _) if fd > 2 => Kind::Socket,
        (libc::S_IFREG | libc::S_IFDIR, Some(path)) => Kind::Path(path),
        (libc::S_IFCHR, Some(path)) if outlive_image::descriptors::is_terminal(rdev) => {
            Kind::Terminal {
                path,
                termios: Vec::new(),
                size: (0, 0),
                foreground: 0,
            }
        }
        (libc::S_IFCHR, Some(path)) if path.starts_with("/dev/") => Kind::Path(path),
        _ => closed,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const KERNEL: (&str, &str, u32) = ("6.1.0-test", "#1 SMP", 7);

    /// An image of a process of this kernel, both checksums right.
    pub(crate) fn whole_image(release: &str, build: &str) -> Vec<u8> {
        image_of(release, build, &whole())
    }

    fn image(body: &[u8]) -> Vec<u8> {
        image_of(KERNEL.0, KERNEL.1, body)
    }

    /// An image with these records, both checksums right.
    fn image_of(release: &str, build: &str, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[..8].copy_from_slice(&IMAGE_MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16] = 3;
        bytes[28] = 2;
        bytes[32..40].copy_from_slice(&(body.len() as u64).to_le_bytes());
        bytes[40..44].copy_from_slice(&crc32(body).to_le_bytes());
        bytes[136..136 + release.len()].copy_from_slice(release.as_bytes());
        bytes[208..208 + build.len()].copy_from_slice(build.as_bytes());
        let crc = crc32(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    fn record(kind: u32, tgid: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; ALIGN];
        bytes[..4].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&kind.to_le_bytes());
        bytes[16..24].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        bytes[24..28].copy_from_slice(&tgid.to_le_bytes());
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        bytes
    }

    /// A process with one thread, sleeping in read(2).
    fn whole() -> Vec<u8> {
        let mut process = vec![0; 1008];
        process[..4].copy_from_slice(&42u32.to_le_bytes());
        process[4..8].copy_from_slice(&1u32.to_le_bytes());
        process[60..72].fill(0xff);
        let mut thread = vec![0; 576 + 832];
        thread[..4].copy_from_slice(&42u32.to_le_bytes());
        thread[4..8].copy_from_slice(&42u32.to_le_bytes());
        let ax = 16 + 10 * 8;
        thread[ax..ax + 8].copy_from_slice(&(-38i64).to_le_bytes());
        let ip = 16 + 16 * 8;
        thread[ip..ip + 8].copy_from_slice(&0x1002u64.to_le_bytes());
        thread[544..548].copy_from_slice(&576u32.to_le_bytes());
        thread[548..552].copy_from_slice(&832u32.to_le_bytes());
        [
            record(2, 42, &thread),
            record(5, 42, &[0; 64 * 32]),
            record(1, 42, &process),
            record(6, 42, b"/\0"),
            record(7, 0, &[]),
        ]
        .concat()
    }

    #[test]
    fn a_sleeping_thread_makes_its_call_again() {
        let (death, image) = decode(&image(&whole()), KERNEL, &[], None).unwrap();
        assert_eq!((death.generation, death.cause.as_str()), (3, "oops"));
        let thread = &image.processes[0].threads[0];
        assert_eq!((thread.tid, thread.registers[SIP]), (42, 0x1000));
        assert_eq!(thread.xstate.len(), 832);
    }

    #[test]
    fn damage_and_another_kernel_are_told_and_never_panic() {
        let good = image(&whole());
        let mut flipped = good.clone();
        flipped[HEADER + 200] ^= 1;
        let code = |bytes: &[u8], kernel| decode(bytes, kernel, &[], None).unwrap_err().code();
        assert_eq!(code(&flipped, KERNEL), Code::Corrupt);
        assert_eq!(code(&good[..HEADER + 10], KERNEL), Code::Corrupt);
        assert_eq!(code(&good[..100], KERNEL), Code::Corrupt);
        assert_eq!(code(&good, ("6.1.1", "#1 SMP", 7)), Code::ImageForeign);
        // Damage under right checksums: whatever comes out has passed the check.
        let body = whole();
        for draw in 0..20_000u64 {
            let mut body = body.clone();
            let number = outlive_base::rng::draw(1, 2, draw);
            let at = number as usize % body.len();
            body[at] = (number >> 40) as u8;
            if let Ok((_, image)) = decode(&image(&body), KERNEL, &[], None) {
                image.check().unwrap();
            }
        }
    }

    #[test]
    fn a_thread_in_the_gate_goes_back_to_its_own_call() {
        let mut body = whole();
        let ip = ALIGN + 16 + 16 * 8;
        body[ip..ip + 8].copy_from_slice(&(GATE + 0x23).to_le_bytes());
        let bytes = image(&body);
        let error = decode(&bytes, KERNEL, &[], None).unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        let mut registers = vec![0; 27];
        registers[15] = libc::SYS_mmap as u64;
        registers[10] = (-38i64) as u64;
        registers[SIP] = 0x2002;
        let pending = Pending {
            tid: 42,
            registers,
            mask: 5,
        };
        let (_, image) = decode(&bytes, KERNEL, &[], Some(&pending)).unwrap();
        let thread = &image.processes[0].threads[0];
        assert_eq!((thread.registers[SIP], thread.registers[10]), (0x2000, 9));
        assert_eq!(thread.mask, 5);
    }
}

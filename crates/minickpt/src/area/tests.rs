//! Images made of their records, and what is read from them.

use outlive_image::model::OpenFile;

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
        record(14, 42, &[]),
        record(7, 0, &[]),
    ]
    .concat()
}

#[test]
fn a_sleeping_thread_makes_its_call_again() {
    let (death, image) = decode(&image(&whole()), KERNEL, &[], &Noted::default()).unwrap();
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
    let code = |bytes: &[u8], kernel| {
        decode(bytes, kernel, &[], &Noted::default())
            .unwrap_err()
            .code()
    };
    assert_eq!(code(&flipped, KERNEL), Code::Corrupt);
    assert_eq!(code(&good[..HEADER + 10], KERNEL), Code::Corrupt);
    assert_eq!(code(&good[..100], KERNEL), Code::Corrupt);
    assert_eq!(code(&good, ("6.1.1", "#1 SMP", 7)), Code::ImageForeign);
    // Damage under right checksums: whatever comes out has passed the check.
    let body = whole();
    let mut random = outlive_base::rng::Sequence::new(outlive_base::seed!(), 2);
    for _ in 0..20_000 {
        let mut body = body.clone();
        let number = random.u64();
        let at = number as usize % body.len();
        body[at] = (number >> 40) as u8;
        if let Ok((_, image)) = decode(&image(&body), KERNEL, &[], &Noted::default()) {
            image.check().unwrap();
        }
    }
}

/// The supervisor was carrying out a call of the thread.
fn noted_in(number: i64) -> Noted {
    let mut registers = vec![0; 27];
    registers[15] = number as u64;
    registers[10] = (-38i64) as u64;
    registers[SIP] = 0x2002;
    Noted {
        pending: Some(Pending {
            tid: 42,
            registers,
            mask: 5,
            result: None,
        }),
        ..Noted::default()
    }
}

#[test]
fn a_thread_in_the_gate_goes_back_to_its_own_call() {
    let mut body = whole();
    let ip = ALIGN + 16 + 16 * 8;
    body[ip..ip + 8].copy_from_slice(&(GATE + 0x23).to_le_bytes());
    let bytes = image(&body);
    let error = decode(&bytes, KERNEL, &[], &Noted::default()).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    let noted = noted_in(libc::SYS_mmap);
    let (_, image) = decode(&bytes, KERNEL, &[], &noted).unwrap();
    let thread = &image.processes[0].threads[0];
    assert_eq!((thread.registers[SIP], thread.registers[10]), (0x2000, 9));
    assert_eq!(thread.mask, 5);
}

/// The supervisor blocks a thread's signals before it sends it through the gate.
#[test]
fn a_thread_on_its_way_to_the_gate_keeps_its_signals() {
    let mut body = whole();
    let at = |word: usize| ALIGN + 16 + word * 8;
    let mut noted = noted_in(libc::SYS_munmap);
    let registers = &noted.pending.as_ref().unwrap().registers;
    for word in [10, 15, SIP] {
        body[at(word)..at(word) + 8].copy_from_slice(&registers[word].to_le_bytes());
    }
    body[ALIGN + 232..ALIGN + 240].copy_from_slice(&(!16u64).to_le_bytes());
    let mask = |noted: &Noted| {
        let (_, image) = decode(&image(&body), KERNEL, &[], noted).unwrap();
        image.processes[0].threads[0].mask
    };
    assert_eq!(mask(&noted), 5);
    // With a result it is not made again.
    noted.pending.as_mut().unwrap().result = Some(7);
    let (_, over) = decode(&image(&body), KERNEL, &[], &noted).unwrap();
    let registers = &over.processes[0].threads[0].registers;
    assert_eq!((registers[SIP], registers[10]), (0x2002, 7));
    // Another call of that thread, or another thread: it is as it was saved.
    noted.pending.as_mut().unwrap().registers[SIP] = 0x3002;
    assert_eq!(mask(&noted), !16);
    assert_eq!(mask(&Noted::default()), !16);
}

/// What is known of such a thread is older than its memory.
#[test]
fn a_thread_of_a_processor_that_never_answered_is_lost() {
    let mut body = whole();
    body[ALIGN + 9] |= 1 << 4;
    let error = decode(&image(&body), KERNEL, &[], &Noted::default()).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.reason().contains("never answered"), "{error}");
}

/// Without them a process goes on; with them it is as it was.
#[test]
fn groups_timers_terminals_and_queued_signals_are_read() {
    let numbers = |words: &[u32]| -> Vec<u8> {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        bytes.collect()
    };
    let times: Vec<u8> = [300_000_000u64, 1, 0, 0, 0, 2_500_000]
        .iter()
        .flat_map(|time| time.to_le_bytes())
        .collect();
    let mut fd = vec![0; 64];
    fd[..4].copy_from_slice(&numbers(&[3]));
    fd[8] = 5; // its description
    fd[36..40].copy_from_slice(&numbers(&[4 << 8 | 64])); // ttyS0
    fd[44..48].copy_from_slice(&numbers(&[libc::S_IFCHR]));
    let mut terminal = vec![0; 56];
    terminal[0] = 5;
    terminal[8..12].copy_from_slice(&numbers(&[0x500]));
    terminal[43] = 9;
    terminal[44..52].copy_from_slice(&numbers(&[77 << 16 | 33, 42]));
    let queued = |tid: u32, signal: u32, value: u8| {
        let mut entry = vec![0; 56];
        entry[..12].copy_from_slice(&numbers(&[tid, signal, signal]));
        entry[32] = value;
        entry
    };
    let wild = queued(0, 0xdead, 4);
    let queue = [wild, queued(0, 34, 1), queued(42, 35, 2), queued(0, 34, 3)].concat();
    let timer = |id: u32, notify: u32, tid: u32, value: u8| {
        let mut entry = vec![0; 48];
        entry[..16].copy_from_slice(&numbers(&[id, 1, notify, 34]));
        entry[16] = value;
        entry[24..32].copy_from_slice(&numbers(&[tid, u32::from(value == 2)]));
        entry[32..48].copy_from_slice(&[5u64, 6].map(u64::to_le_bytes).concat());
        entry
    };
    // Of a wild number, of a wild kind, of a thread that is gone; the others out of order.
    let posix_bytes = [
        timer(u32::MAX, 0, 0, 9),
        timer(1, 77, 0, 9),
        timer(2, 4, 43, 9),
        timer(9, 4, 42, 2),
        timer(3, 0, 0, 1),
    ]
    .concat();
    let more = [
        record(12, 42, &posix_bytes),
        record(8, 42, &numbers(&[7, 70_000])),
        record(9, 42, &times),
        record(10, 42, &terminal),
        record(11, 42, &queue),
        record(4, 42, &fd),
    ]
    .concat();
    let read = |more: &[u8]| {
        let body = [more, &whole()[..]].concat();
        let (_, image) = decode(&image(&body), KERNEL, &[], &Noted::default()).unwrap();
        image
    };
    let image = read(&more);
    let process = &image.processes[0];
    assert_eq!(process.credentials.groups, [7, 70_000]);
    // What is left is at least a microsecond.
    assert_eq!(process.timers, [(300_000, 1), (0, 0), (0, 2500)]);
    let posix = process.posix_timers.iter();
    let posix: Vec<_> = posix.map(|t| (t.id, t.value, t.tid, t.absolute)).collect();
    assert_eq!(posix, [(3, 1, 0, false), (9, 2, 42, true)]);
    let timer = &process.posix_timers[0];
    assert_eq!((timer.interval_ns, timer.next_ns), (5, 6));
    let values = |queued: &[Vec<u8>]| -> Vec<u8> { queued.iter().map(|info| info[24]).collect() };
    assert_eq!(values(&process.queued), [1, 3]);
    assert_eq!(values(&process.threads[0].queued), [2]);
    let OpenFile::Terminal {
        termios,
        size,
        foreground,
        ..
    } = &image.descriptions[0].kind
    else {
        panic!("{:?}", image.descriptions);
    };
    assert_eq!((termios[1], termios[35], termios.len()), (5, 9, 36));
    assert_eq!((*size, *foreground), ((33, 77), 42));
    // Flags of damage on these cost what they hold, not the process.
    let mut damaged = more;
    let first = record(12, 42, &posix_bytes).len();
    damaged[first + 8] = 2;
    damaged[first + ALIGN * 2 + 8] = 2;
    let process = &read(&damaged).processes[0];
    assert_eq!(process.timers, [(0, 0); 3]);
    assert_eq!(process.credentials.groups, own_groups());
}

#[test]
fn the_trap_of_the_gate_is_no_signal_of_the_program() {
    let info = |signal: i32, code: i32| {
        let mut bytes = vec![0; 48];
        bytes[..4].copy_from_slice(&signal.to_le_bytes());
        bytes[8..12].copy_from_slice(&code.to_le_bytes());
        bytes
    };
    let (ours, sent) = (info(libc::SIGTRAP, 0x80), info(libc::SIGTRAP, 0));
    let other = info(libc::SIGUSR1, 0x80);
    let bits = 1 << (libc::SIGTRAP - 1) | 1 << (libc::SIGUSR1 - 1);
    let mut queued = vec![ours, other.clone()];
    let left = super::without_trap(bits, &mut queued);
    assert_eq!((left, &queued), (1 << (libc::SIGUSR1 - 1), &vec![other]));
    let mut queued = vec![sent.clone()];
    assert_eq!(super::without_trap(bits, &mut queued), bits);
    assert_eq!(queued, [sent]);
}

/// A descriptor of the process, by its mode, size and the number of its description.
fn descriptor(fd: u32, id: u64, mode: u32, flags: u32, inode: u64, size: u64) -> Vec<u8> {
    let mut entry = vec![0; 64];
    entry[..4].copy_from_slice(&fd.to_le_bytes());
    entry[8..16].copy_from_slice(&id.to_le_bytes());
    entry[24..32].copy_from_slice(&inode.to_le_bytes());
    entry[40..44].copy_from_slice(&flags.to_le_bytes());
    entry[44..48].copy_from_slice(&mode.to_le_bytes());
    entry[48..56].copy_from_slice(&size.to_le_bytes());
    entry[56..60].fill(0xff);
    entry
}

/// The descriptions of a process with a pipe that holds "abc" at 3 and 4, an eventfd at 5 and an
/// epoll at 6 that watches the pipe, whose thread is in this call.
fn descriptions(call: [u64; 4], sleeps: bool) -> Vec<OpenFile> {
    let words = |words: &[u64]| -> Vec<u8> {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        bytes.collect()
    };
    let write = libc::O_WRONLY as u32;
    let fds = [
        descriptor(3, 103, libc::S_IFIFO, 0, 9, 1),
        descriptor(4, 104, libc::S_IFIFO, write, 9, 1),
        descriptor(5, 105, 0, 0, 0, 0),
        descriptor(6, 106, 0, 0, 0, 0),
    ];
    let name = words(&[0, 0]);
    let specials = [
        [words(&[105, 1, 7, 0, 0, 0]), name.clone()].concat(),
        [words(&[106, 3, 1, 0, 0, 0]), name].concat(),
    ];
    let watched = words(&[106, 103, 3 | 1 << 32, 77]);
    let held = [words(&[103, 3]), b"abc\0\0\0\0\0".to_vec()].concat();
    let mut body = whole();
    body[ALIGN + 8] |= 2;
    body[ALIGN + 276] = u8::from(sleeps);
    for (register, value) in [15, 14, 13, 12].into_iter().zip(call) {
        let at = ALIGN + 16 + register * 8;
        body[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let more = [
        record(4, 42, &fds.concat()),
        record(15, 42, &specials.concat()),
        record(16, 42, &watched),
        record(17, 42, &held),
    ];
    let body = [more.concat(), body].concat();
    let (_, image) = decode(&image(&body), KERNEL, &[], &Noted::default()).unwrap();
    image.descriptions.into_iter().map(|d| d.kind).collect()
}

#[test]
fn what_a_call_was_changing_is_given_up_or_put_back() {
    let gone = |kind: &OpenFile| matches!(kind, OpenFile::Gone(_));
    let watches = |kind: &OpenFile| match kind {
        OpenFile::Epoll(watched) => watched.iter().map(|w| (w.fd, w.events, w.data)).collect(),
        _ => vec![(0, 0, 0)],
    };
    let all = descriptions([libc::SYS_read as u64, 3, 0, 0], true);
    let OpenFile::Pipe { held, .. } = &all[0] else {
        panic!("{all:?}");
    };
    assert_eq!((&held[..], &all[2]), (&b"abc"[..], &OpenFile::Event(7)));
    assert_eq!(watches(&all[3]), [(3, 1, 77)]);
    // One that ran: both ends of the pipe; the eventfd.
    let all = descriptions([libc::SYS_read as u64, 3, 0, 0], false);
    assert!(gone(&all[0]) && gone(&all[1]) && !gone(&all[2]), "{all:?}");
    let all = descriptions([libc::SYS_write as u64, 5, 0, 8], false);
    assert!(!gone(&all[0]) && gone(&all[2]), "{all:?}");
    // What was being added is added by the call itself; what was being taken away is there.
    let add = [libc::SYS_epoll_ctl as u64, 6, libc::EPOLL_CTL_ADD as u64, 3];
    assert_eq!(watches(&descriptions(add, false)[3]), []);
    let delete = |fd| {
        [
            libc::SYS_epoll_ctl as u64,
            6,
            libc::EPOLL_CTL_DEL as u64,
            fd,
        ]
    };
    assert_eq!(watches(&descriptions(delete(3), false)[3]), [(3, 1, 77)]);
    assert_eq!(
        watches(&descriptions(delete(5), false)[3]),
        [(3, 1, 77), (5, 0, 0)]
    );
}

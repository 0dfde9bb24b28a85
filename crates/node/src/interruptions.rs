//! Fixed work quanta of one thread, with what interrupted it in each: how often it was switched
//! away, and how many interrupts and softirqs came while it ran.
//!
//! They are counted by `perf_event_open`, for the thread and not for a core: what comes while
//! something else runs there is no interruption of the thread, and a thread that is moved takes its
//! counts along. Tracepoints need root and tracefs; without them `/proc` counts, for the whole time
//! alone, and interrupts only where the thread is bound to one core.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;
use std::time::Duration;

use outlive_base::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::counters::{Counted, difference};
use crate::cycles::{Anchor, Scale, calibrate, now};
use crate::measure::{hold, reading, release, steps_of, work};

/// `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_CONTEXT_SWITCHES`.
const SWITCHES: (u32, u64) = (1, 3);
/// `PERF_TYPE_TRACEPOINT`.
const TRACEPOINT: u32 = 2;
/// `PERF_FORMAT_GROUP`: one read gives all counters.
const GROUP: u64 = 1 << 3;
/// Asleep after counters were opened: a switch away and back.
const SETTLE: Duration = Duration::from_millis(5);
/// Counters in a group at most.
const COUNTERS_MAX: usize = 48;

/// The first version of `struct perf_event_attr`, 64 bytes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample: u64,
    read: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}
const _: () = assert!(size_of::<Attributes>() == 64);

/// Interruptions of a thread, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Interruptions {
    /// The thread was switched away, whether it was taken off its core or moved to another.
    pub switches: u64,
    /// Interrupts, of devices and of the processor itself; null if they could not be counted.
    pub interrupts: Option<u64>,
    /// Softirqs, counted one by one; null if they could not be counted.
    pub softirqs: Option<u64>,
}

impl Interruptions {
    /// All together; `None` if one kind is not known.
    pub fn all(&self) -> Option<u64> {
        Some(self.switches + self.interrupts? + self.softirqs?)
    }
}

/// What a counter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Switch,
    Interrupt,
    Softirq,
}

/// The tracepoints below `events` that begin an interrupt or a softirq: those of the
/// processor's own vectors, of devices and, where vectors are not traced, of calls between cores.
fn tracepoints(events: &Path) -> Vec<(Kind, u64)> {
    let number = |name: &str| {
        let text = fs::read_to_string(events.join(name).join("id")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let mut found = Vec::new();
    for group in ["irq_vectors", "ipi"] {
        let entries = fs::read_dir(events.join(group));
        let names = entries.into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.ends_with("_entry")).collect();
        names.sort();
        let ids = names
            .iter()
            .filter_map(|name| number(&format!("{group}/{name}")));
        found.extend(ids.map(|id| (Kind::Interrupt, id)));
    }
    found.extend(number("irq/irq_handler_entry").map(|id| (Kind::Interrupt, id)));
    found.extend(number("irq/softirq_entry").map(|id| (Kind::Softirq, id)));
    found
}

/// Counters of the calling thread.
struct Counters {
    /// The first is the group's leader.
    files: Vec<File>,
    kinds: Vec<Kind>,
}

impl Counters {
    /// Opens them; in words why they cannot be had.
    fn open(roots: &[&str]) -> std::result::Result<Counters, String> {
        let there = |root: &&&str| Path::new(root).join("events").is_dir();
        let Some(root) = roots.iter().find(there) else {
            let help = "as root: mount -t tracefs tracefs /sys/kernel/tracing";
            return Err(format!("tracefs is not mounted or not readable ({help})"));
        };
        let points = tracepoints(&Path::new(root).join("events"));
        let has = |kind| points.iter().any(|point| point.0 == kind);
        if !has(Kind::Interrupt) || !has(Kind::Softirq) || points.len() >= COUNTERS_MAX {
            return Err("the kernel does not trace interrupts and softirqs".to_owned());
        }
        let told = |error: io::Error| format!("perf_event_open: {error} (it needs root)");
        let leader = open(SWITCHES, None).map_err(told)?;
        let mut counters = Counters {
            files: vec![leader],
            kinds: vec![Kind::Switch],
        };
        for (kind, id) in points {
            let next = open((TRACEPOINT, id), Some(&counters.files[0])).map_err(told)?;
            counters.files.push(next);
            counters.kinds.push(kind);
        }
        // Tracepoints count from the thread's next switch on, and a real-time thread that works
        // has none: without this it would seem never to be interrupted.
        std::thread::sleep(SETTLE);
        Ok(counters)
    }

    /// What was counted until now: switches, interrupts, softirqs. Allocates nothing.
    fn read(&self) -> io::Result<[u64; 3]> {
        let mut words = [0_u64; COUNTERS_MAX + 1];
        let length = 8 * (self.kinds.len() + 1);
        // SAFETY: plain numbers seen as their bytes, as many as the array has.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of_val(&words))
        };
        (&self.files[0]).read_exact(&mut bytes[..length])?;
        let mut sums = [0; 3];
        // The first word is how many there are.
        for (kind, count) in self.kinds.iter().zip(&words[1..]) {
            sums[*kind as usize] += count;
        }
        Ok(sums)
    }
}

/// A counter of this thread on any core, in the group of `leader`.
fn open((kind, config): (u32, u64), leader: Option<&File>) -> io::Result<File> {
    let attributes = Attributes {
        kind,
        size: size_of::<Attributes>() as u32,
        config,
        read: GROUP,
        ..Attributes::default()
    };
    // SAFETY: the kernel reads the 64 bytes that `size` names; the rest are plain numbers: this
    // thread, any core, the group, close on exec.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            0,
            -1,
            leader.map_or(-1, AsRawFd::as_raw_fd),
            8,
        )
    };
    match i32::try_from(fd) {
        // SAFETY: a new descriptor that nobody else has.
        Ok(fd) if fd >= 0 => Ok(unsafe { File::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One measurement of the same work again and again.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    /// Time of each quantum, ns.
    pub times_ns: Vec<f64>,
    /// For each quantum whether something of the kernel's interrupted it or the moment around it;
    /// null where only `/proc` counted. Whoever was not was disturbed by what the kernel does not see.
    pub hit: Option<Vec<bool>>,
    /// From the first quantum to the last, seconds.
    pub seconds: f64,
    /// What interrupted the thread in that time.
    pub interruptions: Interruptions,
    /// Time that the hypervisor took meanwhile from the cores that the thread may use, ns, in
    /// steps of a clock tick; null if the kernel does not say.
    pub stolen_ns: Option<u64>,
    /// Why interruptions were counted by `/proc` alone; null if they were counted by perf.
    pub unseen: Option<String>,
}

/// Steps of [`work`] that take `quantum_ns` when nothing disturbs them: what all parts of a comparison do.
///
/// # Errors
/// The counter stands still.
pub fn size(quantum_ns: u64) -> Result<u64> {
    Ok(steps_of(quantum_ns, &calibrate().ok_or_else(still)?))
}

fn still() -> Error {
    Error::internal("the cycle counter or the clock stands still")
}

/// Does `steps` of work `samples` times on the calling thread, which may use `cores`. Between two
/// quanta lies one read of all counters, which is in no quantum's time.
///
/// # Errors
/// The counter stands still.
pub fn part(steps: u64, samples: usize, cores: &[u32], roots: &[&str]) -> Result<Part> {
    let (counters, unseen) = match Counters::open(roots) {
        Ok(counters) => (Some(counters), None),
        Err(why) => (None, Some(why)),
    };
    let mut cycles = vec![0_u64; samples];
    let mut events = vec![0_u64; samples];
    let locked = (hold(&mut cycles), hold(&mut events));
    let read = || counters.as_ref().map_or(Ok([0; 3]), Counters::read);
    let lost = |error: io::Error| Error::internal(format!("counters of perf: {error}"));
    let before: Vec<_> = cores.iter().map(|core| reading(*core)).collect();
    let first = Anchor::take();
    let begun = read().map_err(lost)?;
    let mut last_read = begun;
    for (cycles, events) in cycles.iter_mut().zip(&mut events) {
        let start = now();
        work(steps);
        *cycles = now().saturating_sub(start);
        let counts = read().map_err(lost)?;
        *events = counts.iter().sum::<u64>() - last_read.iter().sum::<u64>();
        last_read = counts;
    }
    let last = Anchor::take();
    let after: Vec<_> = cores.iter().map(|core| reading(*core)).collect();
    release(&mut cycles, locked.0);
    release(&mut events, locked.1);
    let scale = Scale::between(first, last).ok_or_else(still)?;
    let counted: Vec<_> = before
        .iter()
        .zip(&after)
        .map(|(a, b)| difference(a, b))
        .collect();
    let stolen: Option<Vec<u64>> = counted.iter().map(|of| of.stolen_ns).collect();
    let by_proc = of_proc(&counted);
    let mut result = Part {
        times_ns: cycles.iter().map(|cycles| scale.ns(*cycles)).collect(),
        hit: None,
        seconds: counted.first().map_or(0.0, |of| of.seconds),
        interruptions: by_proc,
        stolen_ns: stolen.map(|all| all.iter().sum()),
        unseen,
    };
    if counters.is_some() {
        let since = |kind: Kind| last_read[kind as usize] - begun[kind as usize];
        let by_perf = Interruptions {
            switches: since(Kind::Switch),
            interrupts: Some(since(Kind::Interrupt)),
            softirqs: Some(since(Kind::Softirq)),
        };
        match doubt(&by_perf, &by_proc) {
            Some(why) => result.unseen = Some(why),
            None => {
                result.interruptions = by_perf;
                result.hit = Some(events.iter().map(|events| *events > 0).collect());
            }
        }
    }
    Ok(result)
}

/// What `/proc` says of a thread that may use the cores of `counted`.
fn of_proc(counted: &[Counted]) -> Interruptions {
    // Where the thread may move, nobody knows whose interrupts were its own.
    let of = |kind: &str| match counted {
        [one] => {
            let sources = one.sources.iter().filter(|of| of.0.starts_with(kind));
            Some(sources.map(|of| of.1).sum())
        }
        _ => None,
    };
    Interruptions {
        switches: counted
            .first()
            .map_or(0, |of| of.involuntary_switches + of.voluntary_switches),
        interrupts: of("interrupt "),
        softirqs: of("softirq "),
    }
}

/// Why counts of perf are not believed: a thread that kept its core to itself was hit by every
/// interrupt that `/proc` counted there, so perf cannot have seen far fewer.
fn doubt(by_perf: &Interruptions, by_proc: &Interruptions) -> Option<String> {
    /// Between the readings of `/proc` lies a little more than the quanta.
    const MORE: u64 = 20;
    let (seen, there) = (by_perf.interrupts?, by_proc.interrupts?);
    let alone = by_perf.switches == 0 && by_proc.switches == 0;
    (alone && there > 2 * seen + MORE)
        .then(|| format!("perf saw {seen} of {there} interrupts of a core that nothing else used"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracepoints_are_those_that_begin_interrupts() {
        let dir = tempfile::tempdir().unwrap();
        for (name, id) in [
            ("irq_vectors/local_timer_entry", 7),
            ("irq_vectors/local_timer_exit", 8),
            ("irq_vectors/vector_alloc", 9),
            ("irq/irq_handler_entry", 10),
            ("irq/irq_handler_exit", 11),
            ("irq/softirq_entry", 12),
            ("irq/softirq_raise", 13),
            ("ipi/ipi_entry", 14),
        ] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("id"), format!("{id}\n")).unwrap();
        }
        let found = tracepoints(dir.path());
        let of = |kind| {
            found
                .iter()
                .filter(|one| one.0 == kind)
                .map(|one| one.1)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(Kind::Interrupt), [7, 14, 10]);
        assert_eq!(of(Kind::Softirq), [12]);
        assert!(tracepoints(&dir.path().join("missing")).is_empty());
    }

    #[test]
    fn without_tracepoints_proc_counts_and_the_reason_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_string_lossy().into_owned();
        let steps = size(100_000).unwrap();
        let part = part(steps, 50, &[0, 1], &[&root]).unwrap();
        assert_eq!(part.times_ns.len(), 50);
        assert!(part.times_ns.iter().all(|time| *time > 0.0));
        assert!(part.seconds * 1e9 >= part.times_ns.iter().sum::<f64>());
        assert_eq!((part.hit, part.interruptions.interrupts), (None, None));
        assert!(part.unseen.unwrap().contains("tracefs"));
    }

    #[test]
    fn perf_is_not_believed_where_it_saw_far_less_than_there_was() {
        let of = |switches, interrupts| Interruptions {
            switches,
            interrupts,
            softirqs: Some(0),
        };
        let why = doubt(&of(0, Some(2)), &of(0, Some(405))).unwrap();
        assert!(why.contains("2 of 405"), "{why}");
        assert_eq!(doubt(&of(0, Some(241)), &of(0, Some(250))), None);
        // A few around it, or those of others on the core: that proves nothing.
        assert_eq!(doubt(&of(0, Some(0)), &of(0, Some(20))), None);
        assert_eq!(doubt(&of(9, Some(2)), &of(9, Some(405))), None);
        assert_eq!(doubt(&of(0, Some(2)), &of(0, None)), None);
    }

    /// Whoever sleeps is switched away: the counters see it, where the machine has them.
    #[test]
    fn a_switch_is_counted() {
        let Ok(counters) = Counters::open(&crate::tracefs::ROOTS) else {
            return;
        };
        let before = counters.read().unwrap();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let after = counters.read().unwrap();
        assert!(after[Kind::Switch as usize] >= before[Kind::Switch as usize] + 5);
    }
}

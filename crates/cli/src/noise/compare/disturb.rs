//! A load that disturbs cores on purpose: daemons that work in bursts, timers and packets that
//! interrupt, and a file whose pages are written back.
//!
//! Its file has no name, so nothing is left however the process ends.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::net::UdpSocket;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use outlive_base::rng::Sequence;
use outlive_base::{Error, Result};
use outlive_node::compare::Load;
use outlive_node::cores;

/// Daemons on each core.
const DAEMONS: u64 = 2;
/// How long a daemon sleeps and works, least and most, µs.
const SLEEP_US: (u64, u64) = (2_000, 20_000);
const BURST_US: (u64, u64) = (200, 2_000);
/// Between two timers of a core, µs.
const TIMER_US: u64 = 1_000;
/// Packets in a burst, and the time between bursts.
const PACKETS: u64 = 32;
const PACKETS_EVERY: Duration = Duration::from_millis(5);
/// What is written before it is synced, and how large the file becomes, bytes.
const SYNC_BYTES: u64 = 4 << 20;
const FILE_BYTES: u64 = 32 << 20;
/// Between two syncs: disks are shared with others.
const SYNC_EVERY: Duration = Duration::from_millis(100);

static BURSTS: AtomicU64 = AtomicU64::new(0);
static TIMERS: AtomicU64 = AtomicU64::new(0);
static SENT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// What it has done until now.
pub(super) fn done() -> Load {
    Load {
        bursts: BURSTS.load(Ordering::Relaxed),
        timers: TIMERS.load(Ordering::Relaxed),
        packets: SENT.load(Ordering::Relaxed),
        bytes: BYTES.load(Ordering::Relaxed),
    }
}

fn between((least, most): (u64, u64), random: &mut Sequence) -> Duration {
    Duration::from_micros(least + random.below(most - least + 1))
}

/// Starts it, on threads that end with the process, which ends itself after `seconds`.
///
/// # Errors
/// No file in `directory`, no socket, no thread.
pub(super) fn start(cores: &[u32], directory: &Path, seed: u64, seconds: u64) -> Result<()> {
    let file = nameless(directory)?;
    let failed = |error: std::io::Error| Error::internal(format!("the load: {error}"));
    let spawn = |work: Box<dyn FnOnce() + Send>| thread::Builder::new().spawn(work).map_err(failed);
    spawn(Box::new(move || {
        thread::sleep(Duration::from_secs(seconds));
        std::process::exit(0);
    }))?;
    for core in cores.iter().copied() {
        for daemon in 0..DAEMONS {
            let random = Sequence::new(seed, u64::from(core) * DAEMONS + daemon);
            spawn(Box::new(move || on(core, || bursts(random))))?;
        }
        spawn(Box::new(move || on(core, timers)))?;
        let socket = UdpSocket::bind("127.0.0.1:0").map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        spawn(Box::new(move || on(core, || packets(&socket))))?;
    }
    spawn(Box::new(move || writeback(file)))?;
    Ok(())
}

/// Binds the thread to a core first. One that is refused works where it may: it was moved away.
fn on(core: u32, work: impl FnOnce()) {
    let _ = cores::pin(core);
    work();
}

/// Awake now and then, for a while.
fn bursts(mut random: Sequence) {
    loop {
        thread::sleep(between(SLEEP_US, &mut random));
        let until = Instant::now() + between(BURST_US, &mut random);
        while Instant::now() < until {
            outlive_node::measure::work(100);
        }
        BURSTS.fetch_add(1, Ordering::Relaxed);
    }
}

fn timers() {
    loop {
        thread::sleep(Duration::from_micros(TIMER_US));
        TIMERS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Packets to itself over the loopback: their softirqs run on the core that sends.
fn packets(socket: &UdpSocket) {
    let mut bytes = [0; 512];
    loop {
        if let Ok(own) = socket.local_addr() {
            for _ in 0..PACKETS {
                let sent = socket.send_to(&bytes, own).is_ok();
                SENT.fetch_add(u64::from(sent), Ordering::Relaxed);
            }
        }
        while socket.recv_from(&mut bytes).is_ok() {}
        thread::sleep(PACKETS_EVERY);
    }
}

/// A file without a name; where the file system has none such, one whose name goes at once.
fn nameless(directory: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    if let Ok(file) = options
        .clone()
        .custom_flags(libc::O_TMPFILE)
        .open(directory)
    {
        return Ok(file);
    }
    let path = directory.join(format!("outlive-noise-{}", std::process::id()));
    let file = options.create_new(true).open(&path);
    let file = file.map_err(|error| Error::io(&path, "create", &error))?;
    std::fs::remove_file(&path).map_err(|error| Error::io(&path, "remove", &error))?;
    Ok(file)
}

/// Ends when nothing can be written: the rest of the load goes on, and its bytes tell.
fn writeback(mut file: File) {
    let block = vec![0x5a; 1 << 20];
    loop {
        let mut at = 0;
        while at < FILE_BYTES {
            if file.write_all(&block).is_err() {
                return;
            }
            at += block.len() as u64;
            if at.is_multiple_of(SYNC_BYTES) {
                if file.sync_data().is_err() {
                    return;
                }
                BYTES.fetch_add(SYNC_BYTES, Ordering::Relaxed);
                thread::sleep(SYNC_EVERY);
            }
        }
        if file.seek(SeekFrom::Start(0)).is_err() {
            return;
        }
    }
}

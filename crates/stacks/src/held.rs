//! A thread's registers and the top of its stack, copied while it is stopped.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use outlive_image::procfs;
use outlive_image::sys::{self, Change};

/// The longest wait for one thread to stop: what does not stop in this time sleeps in the kernel.
const STOP: Duration = Duration::from_millis(200);
/// Bytes of a stack that are copied.
const STACK_BYTES: usize = 512 << 10;

/// Of a thread at one moment.
pub struct Snapshot {
    /// Where it is.
    pub instruction: u64,
    /// The stack's top.
    pub stack: u64,
    /// What may be its frame.
    pub frame: u64,
    bytes: Vec<u8>,
}

impl Snapshot {
    /// A word of the stack, if it was copied.
    pub fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.stack)?).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

/// Stops a thread, copies, and lets it go on. Else why not, in words.
pub fn snapshot(pid: i32, tid: i32, until: Instant) -> Result<Snapshot, String> {
    let seized = sys::seize(tid);
    seized.map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => format!(
            "may not be traced: run as its user, with kernel.yama.ptrace_scope=0 or with \
             CAP_SYS_PTRACE, and with no debugger attached to it ({error})"
        ),
        _ => format!("thread {tid} has ended"),
    })?;
    let stopped = stop(tid, until.min(Instant::now() + STOP));
    let signal = stopped.map_err(|error| match error.kind() {
        // It is let go when this thread of ours ends.
        io::ErrorKind::TimedOut => {
            format!("thread {tid} sleeps in the kernel and cannot be stopped")
        }
        _ => format!("thread {tid} has ended"),
    })?;
    let copied = copy(pid, tid);
    let _ = sys::detach(tid, signal);
    copied.map_err(|error| format!("thread {tid} could not be read: {error}"))
}

/// The signal that the thread was about to get; it is to come back with it.
fn stop(tid: i32, until: Instant) -> io::Result<i32> {
    sys::interrupt(tid)?;
    let mut pause = Duration::from_micros(20);
    loop {
        match sys::seen(tid)? {
            Some(Change::Ended(_)) => return Err(io::ErrorKind::NotFound.into()),
            Some(Change::Stopped { event, .. }) if event == libc::PTRACE_EVENT_STOP => {
                return Ok(0);
            }
            // In the middle of a delivery.
            Some(Change::Stopped { signal, event: 0 }) => return Ok(signal),
            Some(_) => sys::resume(tid, 0)?,
            None if Instant::now() >= until => return Err(io::ErrorKind::TimedOut.into()),
            None => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(2));
            }
        }
    }
}

fn copy(pid: i32, tid: i32) -> io::Result<Snapshot> {
    // In the order of `struct user_regs_struct`.
    const RBP: usize = 4;
    const RIP: usize = 16;
    const RSP: usize = 19;
    let registers = sys::registers(tid)?;
    let word = |at: usize| registers.get(at).copied().unwrap_or(0);
    let stack = word(RSP);
    let end = procfs::mappings(pid)?
        .iter()
        .find(|it| (it.start..it.end).contains(&stack))
        .map_or(stack, |it| it.end);
    let length = usize::try_from(end - stack).unwrap_or(0).min(STACK_BYTES);
    let mut bytes = vec![0; length];
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let mut read = 0;
    while read < length {
        match memory.read_at(&mut bytes[read..], stack + read as u64) {
            Ok(0) | Err(_) => break,
            Ok(more) => read += more,
        }
    }
    bytes.truncate(read);
    Ok(Snapshot {
        instruction: word(RIP),
        stack,
        frame: word(RBP),
        bytes,
    })
}

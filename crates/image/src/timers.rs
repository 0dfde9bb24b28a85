//! Timers of timer_create(2): asked for in a process, and made again in another.
//!
//! The kernel numbers them by counting up from 0 in each process, so a number that is to
//! come again is reached by making timers and deleting them.

use std::fs::File;
use std::io;

use crate::gate::{self, List};
use crate::model::PosixTimer;

const SIGEV_NONE: i32 = 1;
const SIGEV_THREAD: i32 = 2;
const SIGEV_THREAD_ID: i32 = 4;
const TIMER_ABSTIME: u64 = 1;
/// Bytes of the kernel's `struct sigevent`.
const EVENT_BYTES: usize = 64;
/// Timers that are asked for, or passed over, in one list of calls.
const AT_ONCE: usize = 100;
const SECOND: u64 = 1_000_000_000;

/// What /proc/PID/timers tells: all but the times. A kernel without that file tells none.
fn described(pid: i32) -> io::Result<Vec<PosixTimer>> {
    match std::fs::read_to_string(format!("/proc/{pid}/timers")) {
        Ok(text) => parsed(&text)
            .ok_or_else(|| io::Error::other(format!("/proc/{pid}/timers is not understood"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn parsed(text: &str) -> Option<Vec<PosixTimer>> {
    let mut found: Vec<PosixTimer> = Vec::new();
    for line in text.lines() {
        let (key, value) = line.split_once(": ")?;
        if key == "ID" {
            found.push(PosixTimer {
                id: value.parse().ok()?,
                ..PosixTimer::default()
            });
            continue;
        }
        let timer = found.last_mut()?;
        match key {
            "signal" => {
                let (signal, value) = value.split_once('/')?;
                timer.signal = signal.parse().ok()?;
                timer.value = u64::from_str_radix(value, 16).ok()?;
            }
            "notify" => {
                let (how, whom) = value.split_once('/')?;
                timer.notify = match how {
                    "none" => SIGEV_NONE,
                    "thread" => SIGEV_THREAD,
                    _ => 0,
                };
                if let Some(tid) = whom.strip_prefix("tid.") {
                    timer.notify |= SIGEV_THREAD_ID;
                    timer.tid = tid.parse().ok()?;
                }
            }
            "ClockID" => timer.clock = value.parse().ok()?,
            _ => {}
        }
    }
    found.sort_by_key(|timer| timer.id);
    Some(found)
}

/// The timers of process `pid`, by calls in its stopped thread `tid`; `inside` gives the
/// number that a thread has in the process's own eyes.
pub(crate) fn ask(
    (pid, tid): (i32, i32),
    memory: &File,
    inside: impl Fn(i32) -> Option<i32>,
) -> io::Result<Vec<PosixTimer>> {
    let mut timers = described(pid)?;
    for part in timers.chunks_mut(AT_ONCE) {
        let mut list = List::new();
        let buffer = list.bytes(&vec![0; part.len() * 32]);
        for (place, timer) in part.iter().enumerate() {
            let at = buffer + 32 * place as u64;
            list.call(libc::SYS_timer_gettime, &[timer.id as u64, at]);
        }
        gate::run(tid, memory, &list)?;
        let bytes = gate::read(memory, buffer, part.len() * 32)?;
        for (timer, entry) in part.iter_mut().zip(bytes.chunks_exact(32)) {
            let words: Vec<u64> = entry
                .chunks_exact(8)
                .map(|word| word.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b)))
                .collect();
            timer.interval_ns = words[0].saturating_mul(SECOND).saturating_add(words[1]);
            timer.next_ns = words[2].saturating_mul(SECOND).saturating_add(words[3]);
            timer.tid = inside(timer.tid).unwrap_or(timer.tid);
        }
    }
    Ok(timers)
}

/// Makes the timers again, in the stopped thread `tid` of a process that has none;
/// `outside` gives the number that a thread has now.
///
/// # Errors
/// A clock that this kernel does not have, numbers that it gives otherwise, and those of
/// the calls.
pub(crate) fn make(
    tid: i32,
    memory: &File,
    timers: &[PosixTimer],
    outside: impl Fn(i32) -> i32,
) -> io::Result<()> {
    let mut next = 0;
    for timer in timers {
        while next < timer.id {
            let mut list = List::new();
            let event = list.bytes(&event(0, 0, SIGEV_NONE, 0));
            let at = list.bytes(&[0; 8]);
            let upto = timer.id.min(next + AT_ONCE as i32);
            for id in next..upto {
                let clock = libc::CLOCK_MONOTONIC as u64;
                list.call(libc::SYS_timer_create, &[clock, event, at]);
                list.call(libc::SYS_timer_delete, &[id as u64]);
            }
            gate::run(tid, memory, &list)?;
            next = upto;
        }
        let mut list = List::new();
        let whom = outside(timer.tid);
        let event = list.bytes(&event(timer.value, timer.signal, timer.notify, whom));
        let at = list.bytes(&[0xff; 8]);
        list.call(libc::SYS_timer_create, &[timer.clock as u64, event, at]);
        if timer.next_ns > 0 {
            let [interval, first] = [timer.interval_ns, timer.next_ns]
                .map(|ns| [ns / SECOND, ns % SECOND])
                .map(|words| words.map(u64::to_le_bytes).concat());
            let times = list.bytes(&[interval, first].concat());
            let flags = if timer.absolute { TIMER_ABSTIME } else { 0 };
            let arguments = [timer.id as u64, flags, times, 0];
            list.call(libc::SYS_timer_settime, &arguments);
        }
        gate::run(tid, memory, &list)?;
        let number = gate::read(memory, at, 4)?;
        if number != timer.id.to_le_bytes() {
            return Err(io::Error::other(format!(
                "this kernel numbers timers in another way: {number:?}, not {}",
                timer.id
            )));
        }
        next = timer.id + 1;
    }
    Ok(())
}

fn event(value: u64, signal: i32, notify: i32, tid: i32) -> Vec<u8> {
    let mut event = value.to_le_bytes().to_vec();
    for word in [signal, notify, tid] {
        event.extend_from_slice(&word.to_le_bytes());
    }
    event.resize(EVENT_BYTES, 0);
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_tells_of_timers_is_read() {
        let text = "ID: 7\nsignal: 34/00000000deadbeef\nnotify: signal/tid.42\nClockID: 1\n\
                    ID: 2\nsignal: 0/0000000000000000\nnotify: none/pid.40\nClockID: -6\n";
        let found = parsed(text).unwrap();
        assert_eq!((found[0].id, found[1].id), (2, 7));
        assert_eq!((found[0].notify, found[0].clock), (SIGEV_NONE, -6));
        let other = &found[1];
        assert_eq!((other.signal, other.value), (34, 0xdead_beef));
        assert_eq!((other.notify, other.tid), (SIGEV_THREAD_ID, 42));
        assert_eq!(parsed(""), Some(Vec::new()));
        assert_eq!(parsed("signal: 3/0\n"), None);
    }
}

//! What the processes of the command are doing, looked at by a process of its own.
//!
//! A process is stopped for a moment to be looked at, and whoever does that is told of it by
//! wait(2), as its parent is of its end: the driver, which is the parent of some, would take the one
//! for the other.
//!
//! Invariant: the answer comes about when its time is over, whatever becomes of who looks: what is
//! not looked at by then is named all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use outlive_base::{Error, Result};
use outlive_control::orders::Place;
use outlive_control::processes::Process;
use outlive_stacks as stacks;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::nodes::Happened;
use crate::process::{self, Group};
use crate::threads;

/// Most processes that are told; those that were started first.
const PROCESSES_MAX: usize = 256;
/// What is told of one at most, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// And of all.
const ANSWER_BYTES_MAX: usize = 2 * PROCESSES_MAX * TEXT_BYTES_MAX;

/// Looks, and tells the driver.
#[derive(Debug)]
pub(crate) struct Looks {
    to: Sender<Happened>,
}

impl Looks {
    pub(crate) const fn new(to: Sender<Happened>) -> Looks {
        Looks { to }
    }

    /// Begins to look at all processes below this one but for those of keepers.
    pub(crate) fn begin(&self, number: u32, keepers: BTreeSet<u32>, within_ms: u64) {
        let until = Instant::now() + Duration::from_millis(within_ms);
        let to = self.to.clone();
        let look = move || {
            let found = process::descendants(std::process::id(), &keepers)
                .map_err(|error| Error::internal(format!("/proc: {error}")))
                .and_then(|pids| look_at_all(pids, Command::new("/proc/self/exe"), until));
            let found = found.unwrap_or_else(|error| {
                tracing::warn!(%error, "the command's processes are not looked at");
                Vec::new()
            });
            let _ = to.send(Happened::Looked(number, found));
        };
        if let Err(error) = threads::start("look", look) {
            tracing::warn!(%error, "nobody can look at the command's processes");
        }
    }
}

/// These processes, in their order, as `program` (this one) tells of them. It ends with this
/// thread.
fn look_at_all(mut pids: Vec<u32>, mut program: Command, until: Instant) -> Result<Vec<Process>> {
    pids.truncate(PROCESSES_MAX);
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)
        .map_err(|error| Error::internal(format!("pipe to who looks: {error}")))?;
    program.arg("look").args(pids.iter().map(u32::to_string));
    program
        .stdin(Stdio::null())
        .stdout(Stdio::from(theirs))
        .stderr(Stdio::null());
    let _looks = process::spawn(program, Group::Own, true)?;
    let answer = read_until(ours, until);
    let lines = answer.split(|byte| *byte == b'\n');
    let seen = lines.filter_map(|line| serde_json::from_slice::<Process>(line).ok());
    let mut seen: BTreeMap<u32, Process> = seen.map(|one| (one.pid, one)).collect();
    // One that has ended meanwhile is not there.
    let found = pids.into_iter();
    Ok(found
        .filter_map(|pid| seen.remove(&pid).or_else(|| unseen(pid)))
        .collect())
}

/// What comes until the end, or until then.
fn read_until(from: OwnedFd, until: Instant) -> Vec<u8> {
    let mut from = fs::File::from(from);
    let (mut bytes, mut piece) = (Vec::new(), [0; 1 << 14]);
    while bytes.len() < ANSWER_BYTES_MAX {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now()));
        let Ok(left) = left else { break };
        match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&left)) {
            Ok(1..) => {}
            Err(rustix::io::Errno::INTR) => continue,
            _ => break,
        }
        match from.read(&mut piece) {
            Ok(count @ 1..) => bytes.extend_from_slice(&piece[..count]),
            _ => break,
        }
    }
    bytes
}

/// Looks at these processes and tells of them, a line of JSON each: what `outlive run` starts.
///
/// # Errors
/// None that a process can have.
pub fn answer(pids: &[i32]) -> Result<u8> {
    let mut out = std::io::stdout().lock();
    for pid in pids {
        let Some(one) = look_at(*pid) else { continue };
        let mut line = serde_json::to_vec(&one)
            .map_err(|error| Error::internal(format!("a process: {error}")))?;
        line.push(b'\n');
        if out.write_all(&line).and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    Ok(0)
}

fn look_at(pid: i32) -> Option<Process> {
    let seen = stacks::of(pid).ok()?;
    let stacks::Place { does, file, line } = stacks::place_of(&seen);
    let mut text = stacks::describe(&seen);
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    Some(Process {
        pid: u32::try_from(pid).ok()?,
        text,
        command: seen.command,
        place: Place { does, file, line },
    })
}

/// One that was not looked at.
fn unseen(pid: u32) -> Option<Process> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = String::from_utf8_lossy(&words);
    let command = words.trim_end_matches('\0').replace('\0', " ");
    let does = "not looked at in time".to_owned();
    Some(Process {
        pid,
        text: format!("process {pid} ({command}): {does}\n"),
        command,
        place: Place {
            does,
            ..Place::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In place of this program: a shell with these words.
    fn says(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]);
        command
    }

    fn later(ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(ms)
    }

    #[test]
    fn those_that_are_not_told_of_are_named_and_those_that_are_gone_are_not() {
        let me = std::process::id();
        let gone = u32::MAX >> 1;
        let one = Process {
            pid: 1,
            command: "init".to_owned(),
            place: Place {
                does: "waiting in poll".to_owned(),
                ..Place::default()
            },
            text: "process 1 (init)\n".to_owned(),
        };
        let line = serde_json::to_string(&one).unwrap();
        let script = format!("printf '%s\\n' '{line}' nonsense; [ $1 = look ]");
        let found = look_at_all(vec![1, gone, me], says(&script), later(60_000)).unwrap();
        assert_eq!((found.len(), &found[0]), (2, &one), "{found:?}");
        assert_eq!(
            (found[1].pid, &*found[1].place.does),
            (me, "not looked at in time")
        );
        assert!(!found[1].command.is_empty(), "{found:?}");
    }

    #[test]
    fn who_looks_for_too_long_is_given_up_with_what_is_known_by_then() {
        let me = std::process::id();
        let found = look_at_all(vec![me], says("exec sleep 1000"), later(100)).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place.does, "not looked at in time");
        let missing = look_at_all(vec![me], Command::new("/no/such"), later(100));
        assert!(missing.is_err());
        assert_eq!(look_at(-1), None);
    }
}

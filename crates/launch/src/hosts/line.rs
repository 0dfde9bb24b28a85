//! A line to a host: the program that connects (ssh, srun), its pipes, and two threads that
//! keep the driver from ever waiting for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use outlive_base::{Code, Entity, Error, Result};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::host_words::{self as words, FromHost, Heard, LINE_BYTES_MAX, ToHost};
use crate::nodes::Happened;
use crate::process::{self, Group, Process};
use crate::threads;

/// Words that may wait to be written; a host that takes none is given up by its lease.
const QUEUE: usize = 1024;
/// What is kept of the last thing that the program said of itself, in characters.
const LAST_WORDS_MAX: usize = 300;
/// How much later than its words for us the program's words for people may end. What it has started
/// (a master connection of ssh) may hold them for longer.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Line {
    pub process: Process,
    to: Option<Sender<String>>,
    last_words: Arc<Mutex<String>>,
}

impl Line {
    /// Starts `command`; what it says comes as [`Happened::Line`] with `number`.
    ///
    /// # Errors
    /// [`Code::CommandFailed`] if the program cannot be started; [`Code::Internal`].
    pub fn open(mut command: Command, number: u64, events: &Sender<Happened>) -> Result<Line> {
        let pipe = || {
            pipe_with(PipeFlags::CLOEXEC)
                .map_err(|error| Error::internal(format!("pipe to a host: {error}")))
        };
        let ((theirs_in, ours_out), (ours_in, theirs_out), (ours_err, theirs_err)) =
            (pipe()?, pipe()?, pipe()?);
        command
            .stdin(Stdio::from(theirs_in))
            .stdout(Stdio::from(theirs_out))
            .stderr(Stdio::from(theirs_err));
        // With the command the copies of their ends go, or no end would ever be seen.
        let process = process::spawn(command, Group::Session, true)?;
        let (to, words) = bounded(QUEUE);
        let last_words = Arc::new(Mutex::new(String::new()));
        threads::start("to a host", move || write_all(ours_out, &words))?;
        let kept = Arc::clone(&last_words);
        let (saying, said_all) = bounded::<()>(0);
        threads::start("host's errors", move || {
            pass_on(ours_err, &kept);
            drop(saying);
        })?;
        let events = events.clone();
        threads::start("from a host", move || {
            read_all(ours_in, number, &events);
            // Why it has ended is known when that is told.
            let _ = said_all.recv_timeout(LAST_WORDS_WITHIN);
            let _ = events.send(Happened::Line(number, Heard::End));
        })?;
        Ok(Line {
            process,
            to: Some(to),
            last_words,
        })
    }

    /// Says a word; one that finds no room is lost, as is the host then.
    pub fn say(&self, word: &ToHost) {
        let Some(to) = &self.to else { return };
        let sent = words::write(word).map(|text| to.try_send(text).is_ok());
        if !matches!(sent, Ok(true)) {
            tracing::warn!(?sent, "a word for a host is lost");
        }
    }

    /// Lets the host go: it ends everything when it reads the end.
    pub fn close(&mut self) {
        self.to = None;
    }

    /// What the program said of itself last.
    pub fn last_words(&self) -> String {
        let words = self
            .last_words
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        words.clone()
    }
}

fn write_all(to: OwnedFd, words: &Receiver<String>) {
    let mut to = std::fs::File::from(to);
    for word in words {
        if let Err(error) = to.write_all(word.as_bytes()) {
            tracing::info!(%error, "a host takes no more words");
            return;
        }
    }
}

/// Shows what the program writes on its standard error, and keeps the end of it.
fn pass_on(from: OwnedFd, last_words: &Mutex<String>) {
    let mut from = BufReader::new(std::fs::File::from(from));
    while let Ok(Some(line)) = next_line(&mut from) {
        eprintln!("{line}");
        let line = line.trim();
        if !line.is_empty() {
            *last_words.lock().unwrap_or_else(PoisonError::into_inner) =
                line.chars().take(LAST_WORDS_MAX).collect();
        }
    }
}

fn read_all(from: OwnedFd, number: u64, events: &Sender<Happened>) {
    let mut from = BufReader::new(std::fs::File::from(from));
    while let Ok(Some(line)) = next_line(&mut from) {
        let heard = match words::read::<FromHost>(&line) {
            Ok(None) => continue,
            Ok(Some(word)) => Heard::Word(word),
            Err(error) => Heard::Word(FromHost::Failed(error)),
        };
        if events.send(Happened::Line(number, heard)).is_err() {
            return;
        }
    }
}

/// The next line, of bounded length; `None` at the end.
pub(super) fn next_line(from: &mut impl BufRead) -> Result<Option<String>> {
    let mut bytes = Vec::new();
    let read = from
        .by_ref()
        .take(LINE_BYTES_MAX as u64)
        .read_until(b'\n', &mut bytes)
        .map_err(|error| Error::internal(format!("line of a host: {error}")))?;
    if read == LINE_BYTES_MAX && bytes.last() != Some(&b'\n') {
        return Err(Error::new(
            Code::PeerVersion,
            Entity::Call,
            "a host's line has no end",
            "use the same version of outlive on all hosts",
        ));
    }
    Ok((read > 0).then(|| String::from_utf8_lossy(&bytes).trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was said last when the end is told.
    fn ends(script: &str) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let (to, happened) = crossbeam_channel::unbounded();
        let line = Line::open(command, 7, &to).unwrap();
        let said = loop {
            let next = happened.recv_timeout(Duration::from_secs(60)).unwrap();
            if matches!(next, Happened::Line(7, Heard::End)) {
                break line.last_words();
            }
        };
        // What holds its words is of its session.
        let group = rustix::process::Pid::from_raw(line.process.pid as i32).unwrap();
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        said
    }

    #[test]
    fn the_last_words_are_there_when_the_end_is_told() {
        // Its words for us end before those for people.
        let said = ends("exec >&-; sleep 0.05; echo first >&2; echo last >&2");
        assert_eq!(said, "last");
        // Something else holds these, for longer than anybody waits.
        assert_eq!(ends("echo first >&2; sleep 1000 >&- & exit 1"), "first");
    }
}

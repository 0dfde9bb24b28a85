//! The files that say where the ranks of a job were when it stood still: `STORE/JOB/hang-N.txt`.
//!
//! Invariants: a file is complete or absent; numbers only grow, so that none takes the place of
//! another; the newest [`KEPT`] stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use outlive_base::Error;
use outlive_control::supervisor::hang_file;

use crate::files::{hang_of, write_atomic};

/// Files of one job that are kept.
const KEPT: usize = 16;

/// Writes them without holding up the driver.
pub(crate) struct Hangs {
    dir: PathBuf,
    writing: Vec<JoinHandle<Option<Error>>>,
}

impl Hangs {
    /// Those of the job with this directory.
    pub(crate) fn of(dir: &Path) -> Hangs {
        Hangs {
            dir: dir.to_owned(),
            writing: Vec::new(),
        }
    }

    /// The number of the last one, 0 if there is none.
    pub(crate) fn last(&self) -> u32 {
        numbers(&self.dir).last().copied().unwrap_or(0)
    }

    /// Begins to write one.
    pub(crate) fn write(&mut self, number: u32, text: String) {
        let dir = self.dir.clone();
        let write = move || {
            let written = write_atomic(&dir.join(hang_file(number)), text.as_bytes());
            remove_old(&dir);
            written.err()
        };
        let begun = std::thread::Builder::new().name("hang".into()).spawn(write);
        match begun {
            Ok(thread) => self.writing.push(thread),
            Err(error) => tracing::warn!(%error, number, "stacks are not written"),
        }
    }

    /// Why one that ended was not written.
    pub(crate) fn take_error(&mut self) -> Option<Error> {
        let at = self.writing.iter().position(JoinHandle::is_finished)?;
        self.writing.swap_remove(at).join().ok().flatten()
    }

    /// Waits until all are written; why one was not.
    pub(crate) fn finish(&mut self) -> Option<Error> {
        let ended = self.writing.drain(..).map(JoinHandle::join);
        // All are waited for.
        let errors: Vec<Error> = ended.filter_map(|it| it.ok().flatten()).collect();
        errors.into_iter().next()
    }
}

/// Ascending.
fn numbers(dir: &Path) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| hang_of(entry.file_name().to_str()?))
        .collect();
    numbers.sort_unstable();
    numbers
}

fn remove_old(dir: &Path) {
    let numbers = numbers(dir);
    for number in &numbers[..numbers.len().saturating_sub(KEPT)] {
        let _ = fs::remove_file(dir.join(hang_file(*number)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::sweep_unfinished;

    #[test]
    fn numbers_go_on_and_the_newest_stay() {
        let dir = tempfile::tempdir().unwrap();
        let mut hangs = Hangs::of(dir.path());
        assert_eq!(hangs.last(), 0);
        for number in 1..=20 {
            hangs.write(number, format!("{number}"));
            assert_eq!(hangs.finish(), None);
        }
        assert_eq!(numbers(dir.path()), (5..=20).collect::<Vec<_>>());
        assert_eq!(Hangs::of(dir.path()).last(), 20);
        let text = fs::read_to_string(dir.path().join("hang-20.txt")).unwrap();
        assert_eq!(text, "20");
        // What a killed launcher left is no file of a standstill, and goes.
        fs::write(dir.path().join("hang-21.txt.new-7-1"), "half").unwrap();
        fs::write(dir.path().join("hang-notes.txt"), "the user's").unwrap();
        assert_eq!(hangs.last(), 20);
        sweep_unfinished(dir.path());
        assert!(!dir.path().join("hang-21.txt.new-7-1").exists());
        assert!(dir.path().join("hang-notes.txt").exists());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut hangs = Hangs::of(&dir.path().join("gone"));
        hangs.write(1, String::new());
        assert!(hangs.finish().is_some());
    }
}

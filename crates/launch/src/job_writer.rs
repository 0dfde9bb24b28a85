//! The thread that writes `job.json`: who looks after the nodes waits for no disk, but where what is
//! written must be durable before anything else happens.
//!
//! Invariants: one state is written at a time, the newest that is wanted, so that one that waits is
//! never written over a newer one; what was wanted is written before the writer ends.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use outlive_base::{Error, Result};

use crate::files::write_atomic;
use crate::job_file::JobFile;

/// What the two sides know.
#[derive(Default, Debug)]
struct State {
    /// The newest state that is not written yet.
    wanted: Option<JobFile>,
    /// How many states were wanted, and the newest of them that was written or could not be.
    asked: u64,
    done: u64,
    /// Why the last one that nobody waits for could not be written.
    failed: Option<Error>,
    /// Nothing more comes.
    over: bool,
}

#[derive(Default, Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let woken = self.changed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The launcher's end of it. Dropped, it waits for what is not written yet.
#[derive(Debug)]
pub(crate) struct JobWriter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl JobWriter {
    /// # Errors
    /// Those of starting a thread.
    pub fn start(path: PathBuf) -> Result<JobWriter> {
        let shared = Arc::new(Shared::default());
        let there = Arc::clone(&shared);
        let file = path.clone();
        let thread = std::thread::Builder::new()
            .name("job".into())
            .spawn(move || write_all(&there, &path))
            .map_err(|error| Error::io(&file, "start a thread to write", &error))?;
        Ok(JobWriter {
            shared,
            thread: Some(thread),
        })
    }

    /// Writes it, and waits until it is durable.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn now(&self, job: JobFile) -> Result<()> {
        self.later(job);
        self.settle().map_or(Ok(()), Err)
    }

    /// Writes it when the disk has time.
    pub fn later(&self, job: JobFile) {
        let mut state = self.shared.state();
        state.asked += 1;
        state.wanted = Some(job);
        self.shared.changed.notify_all();
    }

    /// Waits until all that was wanted is written or refused; why the newest could not be.
    pub fn settle(&self) -> Option<Error> {
        let mut state = self.shared.state();
        while state.done < state.asked {
            state = self.shared.wait(state);
        }
        state.failed.take()
    }

    /// Why one could not be written for which nobody waited; told once.
    pub fn failed(&self) -> Option<Error> {
        self.shared.state().failed.take()
    }
}

impl Drop for JobWriter {
    fn drop(&mut self) {
        self.shared.state().over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread: until nothing more comes and all is written.
fn write_all(shared: &Shared, path: &std::path::Path) {
    let mut state = shared.state();
    loop {
        let Some(job) = state.wanted.take() else {
            if state.over {
                return;
            }
            state = shared.wait(state);
            continue;
        };
        let number = state.asked;
        drop(state);
        let written = job.text().and_then(|text| write_atomic(path, &text));
        state = shared.state();
        state.done = number;
        // One that was written since says all that this one was to say.
        state.failed = written.err();
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::JobName;

    use super::*;

    fn job(incarnation: u32) -> JobFile {
        let name = JobName::new("job").unwrap();
        JobFile {
            incarnation,
            ..JobFile::new(name, 2, "nodes".into())
        }
    }

    fn read(dir: &std::path::Path) -> u32 {
        crate::job_file::read_job(dir).unwrap().unwrap().incarnation
    }

    #[test]
    fn the_newest_state_is_there_at_the_end_and_one_that_is_waited_for_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let writer = JobWriter::start(dir.path().join(crate::layout::JOB)).unwrap();
        for number in 1..=20 {
            writer.later(job(number));
        }
        writer.now(job(21)).unwrap();
        assert_eq!(read(dir.path()), 21);
        for number in 22..=40 {
            writer.later(job(number));
        }
        drop(writer);
        assert_eq!(read(dir.path()), 40);
    }

    #[test]
    fn a_refusal_is_told_once_to_who_waits_or_asks_and_the_next_state_is_tried() {
        let dir = tempfile::tempdir().unwrap();
        let sub = dir.path().join("sub");
        let writer = JobWriter::start(sub.join(crate::layout::JOB)).unwrap();
        let error = writer.now(job(1)).unwrap_err();
        assert!(error.to_string().contains("job.json"), "{error}");
        assert_eq!(writer.failed(), None);
        writer.later(job(2));
        assert!(writer.settle().is_some());
        assert_eq!(writer.failed(), None);
        assert_eq!(writer.settle(), None);
        std::fs::create_dir(&sub).unwrap();
        writer.now(job(3)).unwrap();
        assert_eq!(read(&sub), 3);
    }
}

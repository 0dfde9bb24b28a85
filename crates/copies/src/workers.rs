//! Bounded pools of threads for what may block: storage and bulk streams.
//!
//! Outgoing and incoming work have pools of their own, so that two nodes that
//! stream to each other can never wait for each other's last free thread.

use outlive_base::{Error, Result};

use crate::queue::{Inlet, Refused, queue};

/// Threads of one pool.
pub const THREADS: usize = 2;
/// Jobs that may wait in a pool; a further one is refused.
pub const QUEUE_MAX: usize = 256;

type Job = Box<dyn FnOnce() + Send>;

/// A pool. Its threads end when it is dropped and their work is done.
pub struct Pool {
    name: &'static str,
    jobs: Inlet<Job>,
}

impl Pool {
    /// Starts the threads.
    pub fn start(name: &'static str, threads: usize) -> Result<Pool> {
        Pool::start_with(name, threads, QUEUE_MAX)
    }

    /// As [`Pool::start`], where another number of jobs may wait.
    pub fn start_with(name: &'static str, threads: usize, queue_max: usize) -> Result<Pool> {
        let (jobs, waiting) = queue::<Job>(queue_max);
        for _ in 0..threads {
            let waiting = waiting.clone();
            std::thread::Builder::new()
                .name(format!("outlive-{name}"))
                .spawn(move || {
                    while let Some(job) = waiting.take() {
                        // Its own end is late or lost then; the thread is still there.
                        let job = std::panic::AssertUnwindSafe(job);
                        if std::panic::catch_unwind(job).is_err() {
                            tracing::error!(pool = name, "a job panicked");
                        }
                    }
                })
                .map_err(|error| Error::io("thread", "start a worker", &error))?;
        }
        Ok(Pool { name, jobs })
    }

    /// Queues a job; refused if as many as may are waiting.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> Result<()> {
        self.jobs.put(Box::new(job)).map_err(|error| match error {
            Refused::Full(_) => Error::internal(format!(
                "{} jobs wait for the {} threads",
                self.jobs.len(),
                self.name
            )),
            Refused::Ended(_) => Error::internal("the workers have ended"),
        })
    }
}

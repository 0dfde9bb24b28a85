//! Reads the sensors of this machine on a thread of its own: one that hangs in a driver or a dead
//! disk holds up nobody else. The thread begins with the first reading.

use std::path::PathBuf;

use outlive_copies::memory::Work;
use outlive_copies::reports::Reports;
use outlive_copies::workers::Pool;
use outlive_node::health::{Root, read};

/// For tests: a directory whose `proc` and `sys` stand for those of the machine.
pub const ROOT_VARIABLE: &str = "OUTLIVE_HEALTH_ROOT";

/// See the module.
pub struct Sensors {
    root: Root,
    storage: PathBuf,
    pool: Option<Pool>,
}

impl Sensors {
    /// Of this machine, where the node's storage lies in a directory.
    pub fn new(storage: PathBuf) -> Sensors {
        let root = std::env::var_os(ROOT_VARIABLE).filter(|path| !path.is_empty());
        Sensors::of(root.map_or_else(Root::machine, Root::beneath), storage)
    }

    fn of(root: Root, storage: PathBuf) -> Sensors {
        Sensors {
            root,
            storage,
            pool: None,
        }
    }

    /// Begins a reading; [`Work::Health`] answers, if it ends.
    pub fn begin(&mut self, work: &Reports<Work>) {
        let begun = match self.pool.take() {
            Some(pool) => Ok(pool),
            None => Pool::start_with("health", 1, 1),
        };
        let begun = begun.and_then(|pool| {
            let (root, storage, to) = (self.root.clone(), self.storage.clone(), work.clone());
            let job = move || {
                // Nobody waits for it: it goes with the next turn.
                let _ = to.leave(Work::Health(read(&root, Some(&storage))));
            };
            let queued = pool.run(job);
            self.pool = Some(pool);
            queued
        });
        if let Err(error) = begun {
            tracing::warn!(%error, "sensors are not read");
            let _ = work.send(Work::Health(Vec::new()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crossbeam_channel::unbounded;
    use outlive_control::health::Sensor;

    use super::*;

    #[test]
    fn a_reading_that_hangs_holds_up_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        // Opening a pipe waits for who writes, as reading of a dead disk waits.
        let pipe = dir.path().join("proc/vmstat");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        let (to, done) = unbounded::<Work>();
        let work = Reports::unwatched(to);
        let mut sensors = Sensors::of(Root::beneath(dir.path()), dir.path().to_owned());
        sensors.begin(&work);
        assert!(done.recv_timeout(Duration::from_millis(50)).is_err());
        // Whoever asks again does not wait either, and what is asked for is bounded.
        for _ in 0..10 {
            sensors.begin(&work);
        }
        std::fs::write(&pipe, "oom_kill 1\npgmajfault 2\n").unwrap();
        let mut found = std::iter::from_fn(|| done.recv_timeout(Duration::from_secs(60)).ok());
        let found = found.find_map(|work| match work {
            Work::Health(samples) if !samples.is_empty() => Some(samples),
            _ => None,
        });
        let found = found.expect("it comes back when the pipe does");
        assert!(found.iter().any(|it| it.sensor == Sensor::OomKills));
    }
}

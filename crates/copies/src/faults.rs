//! Faults that an agent carries out on itself, for tests and rehearsals.
//!
//! Always compiled: a rehearsal on the real machine needs them. Without an order
//! of the launcher every check is one relaxed load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outlive_vault::{Act, Fate, Key};

/// The faults in force.
#[derive(Debug, Default)]
pub struct Faults {
    full: AtomicBool,
    slow: AtomicU64,
    points_set: AtomicBool,
    points: Mutex<Vec<Point>>,
}

#[derive(Debug)]
struct Point {
    id: u32,
    name: String,
    left: u32,
}

impl Faults {
    /// Every write to node storage reports that no space is left.
    pub fn set_full(&self, on: bool) {
        self.full.store(on, Relaxed);
    }
    /// Limits storage to this many bytes a second; 0: no limit.
    pub fn set_slow(&self, bytes_per_second: u64) {
        self.slow.store(bytes_per_second, Relaxed);
    }
    /// Reports `id` when `name` is reached for the `nth` time. One that waits already counts on.
    pub fn add_point(&self, id: u32, name: String, nth: u32) {
        let mut points = self
            .points
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if points.iter().any(|point| point.id == id) {
            return;
        }
        points.push(Point {
            id,
            name,
            left: nth.max(1),
        });
        self.points_set.store(true, Relaxed);
    }
    /// The injection whose point this is, if its count has come; once.
    pub fn reached(&self, name: &str) -> Option<u32> {
        if !self.points_set.load(Relaxed) {
            return None;
        }
        let mut points = self
            .points
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let at = points.iter_mut().position(|point| {
            if point.name == name {
                point.left -= 1;
            }
            point.name == name && point.left == 0
        })?;
        Some(points.remove(at).id)
    }
    /// Called before `bytes` are written to node storage.
    pub fn before_write(&self, bytes: u64) -> std::io::Result<()> {
        if self.full.load(Relaxed) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.slow_down(bytes);
        Ok(())
    }
    /// Takes the time that `bytes` take at the rate in force.
    pub fn slow_down(&self, bytes: u64) {
        let rate = self.slow.load(Relaxed);
        if rate != 0 {
            std::thread::sleep(Duration::from_secs_f64(
                (bytes as f64 / rate as f64).min(60.0),
            ));
        }
    }
}

impl outlive_vault::Faults for Faults {
    fn before(&self, act: Act, _: &Key, bytes: u64) -> Fate {
        let bytes = match act {
            Act::Write => bytes,
            Act::Put | Act::Append => 0,
            _ => return Fate::Goes,
        };
        self.before_write(bytes)
            .map_or_else(|error| Fate::Fails(error.kind()), |()| Fate::Goes)
    }
}

/// The same for shared storage, which has room when a node's own is full.
#[derive(Debug)]
pub struct OfShared(pub Arc<Faults>);

impl outlive_vault::Faults for OfShared {
    fn before(&self, act: Act, _: &Key, bytes: u64) -> Fate {
        if act == Act::Write {
            self.0.slow_down(bytes);
        }
        Fate::Goes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_fires_at_its_count_and_once() {
        let faults = Faults::default();
        assert_eq!(faults.reached("commit:send"), None);
        faults.add_point(7, "commit:send".into(), 2);
        assert_eq!(faults.reached("commit:persist"), None);
        assert_eq!(faults.reached("commit:send"), None);
        // Said again, it is the same one.
        faults.add_point(7, "commit:send".into(), 2);
        assert_eq!(faults.reached("commit:send"), Some(7));
        assert_eq!(faults.reached("commit:send"), None);
    }

    #[test]
    fn a_full_disk_is_reported_as_such() {
        let faults = Faults::default();
        assert!(faults.before_write(1).is_ok());
        faults.set_full(true);
        assert_eq!(
            faults.before_write(1).unwrap_err().kind(),
            std::io::ErrorKind::StorageFull
        );
    }
}

//! Work on storage that may take so many bytes a second and no more.

use std::time::{Duration, Instant};

use outlive_control::node::copies::Brake;

/// How much slower it is where something else needs the storage.
const SLOWED: u32 = 10;
/// The longest wait at a time: whoever stops it does not wait long.
const STEP: Duration = Duration::from_millis(50);
/// What stands still looks so often whether it may go on: a slot may be short.
const PAUSED: Duration = Duration::from_millis(2);

/// So many bytes a second.
pub struct Rate {
    brake: Brake,
    bytes_per_s: u64,
    /// When the next transfer may begin.
    next: Instant,
}

impl Rate {
    /// 0: as many as can be.
    pub fn new(brake: Brake, bytes_per_s: u64) -> Rate {
        Rate {
            brake,
            bytes_per_s,
            next: Instant::now(),
        }
    }

    /// Bytes to move at a time, so that the waits between are short: of `most` at most.
    pub fn portion(&self, most: usize) -> usize {
        match self.bytes_per_s {
            0 => most,
            rate => most.min(usize::try_from(rate / 20).unwrap_or(most).max(4096)),
        }
    }

    /// Waits until these bytes may be moved; false if they are not to be.
    pub fn wait(&mut self, bytes: u64) -> bool {
        loop {
            if self.brake.is_stopped() {
                return false;
            }
            if self.brake.is_paused() {
                std::thread::sleep(PAUSED);
                continue;
            }
            let now = Instant::now();
            let left = self.next.saturating_duration_since(now);
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(STEP));
        }
        if self.bytes_per_s == 0 {
            return true;
        }
        // What was not used is lost: a burst would be no bound.
        let mut takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        if self.brake.is_slow() {
            takes *= SLOWED;
        }
        self.next = Instant::now() + takes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_moved_no_faster_than_they_may_be() {
        let brake = Brake::default();
        let mut rate = Rate::new(brake.clone(), 1_000_000);
        let begun = Instant::now();
        for _ in 0..5 {
            assert!(rate.wait(10_000));
        }
        assert!(begun.elapsed() >= Duration::from_millis(40));
        brake.slow(true);
        assert!(rate.wait(10_000));
        let slowed = Instant::now();
        assert!(rate.wait(1));
        assert!(slowed.elapsed() >= Duration::from_millis(90));
    }

    #[test]
    fn what_is_stopped_does_not_wait_for_its_turn() {
        let brake = Brake::default();
        let mut rate = Rate::new(brake.clone(), 1);
        assert!(rate.wait(1 << 40), "the first begins at once");
        brake.stop();
        assert!(!rate.wait(1));
    }

    #[test]
    fn without_a_rate_nothing_waits_and_all_goes_at_once() {
        let brake = Brake::default();
        let mut rate = Rate::new(brake.clone(), 0);
        assert!((0..100).all(|_| rate.wait(1 << 40)));
        assert_eq!(rate.portion(1 << 22), 1 << 22);
        assert_eq!(
            Rate::new(brake.clone(), 1 << 20).portion(1 << 22),
            (1 << 20) / 20
        );
        assert_eq!(Rate::new(brake.clone(), 1).portion(1 << 22), 4096);
    }
}

//! Fault injection: a partition and a slow network, for tests and rehearsals.
//! Always compiled, off by default; when off it costs one atomic load.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The switches of one endpoint and its streams.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    isolated: AtomicBool,
    gate: Mutex<()>,
    healed: Condvar,
    /// Bytes per second for streams; 0 is unlimited.
    rate: AtomicU64,
    /// Streams open now.
    pub(crate) streams: AtomicUsize,
}

/// Longest pause of a slowed transfer: a part of a second at its rate.
const SLICES_PER_SECOND: u64 = 20;

impl Faults {
    pub(crate) fn isolated(&self) -> bool {
        self.isolated.load(Ordering::SeqCst)
    }

    pub(crate) fn isolate(&self, on: bool) {
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.isolated.store(on, Ordering::SeqCst);
        self.healed.notify_all();
    }

    /// Waits until the partition is over; false if it still stands after
    /// `timeout`.
    pub(crate) fn wait_healed(&self, timeout: Duration) -> bool {
        if !self.isolated() {
            return true;
        }
        let deadline = Instant::now() + timeout;
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        while self.isolated() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.healed.wait_timeout(gate, left);
            gate = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    pub(crate) fn set_rate(&self, rate: Option<u64>) {
        self.rate
            .store(rate.map_or(0, |rate| rate.max(1)), Ordering::Relaxed);
    }

    /// How many of `length` bytes one call may move.
    pub(crate) fn slice(&self, length: usize) -> usize {
        match self.rate.load(Ordering::Relaxed) {
            0 => length,
            rate => {
                length.min(usize::try_from((rate / SLICES_PER_SECOND).max(1)).unwrap_or(length))
            }
        }
    }

    /// Takes the time that `length` bytes take on the slow network.
    pub(crate) fn pace(&self, length: usize) {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate != 0 && length != 0 {
            let nanos = (length as u128 * 1_000_000_000 / u128::from(rate)).min(1_000_000_000);
            std::thread::sleep(Duration::from_nanos(nanos as u64));
        }
    }
}

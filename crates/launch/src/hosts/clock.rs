//! The clocks of hosts beside this machine's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How a host's clock stands to this one's.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ClockOffset {
    /// So much later, in milliseconds.
    pub ms: f64,
    /// Give or take.
    pub error_ms: f64,
}

impl ClockOffset {
    /// Of a time that was read there not longer than `age` ago.
    pub fn within(read_ms: f64, age: Duration) -> ClockOffset {
        let error_ms = age.as_secs_f64() * 1e3 / 2.0;
        ClockOffset {
            ms: read_ms - (unix_ms() - error_ms),
            error_ms,
        }
    }
}

/// Milliseconds since 1970, by this machine's clock.
pub(crate) fn unix_ms() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64() * 1e3)
}

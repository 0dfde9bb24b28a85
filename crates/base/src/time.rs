//! Time as the protocols see it: nanoseconds on a monotonic clock that a driver
//! (real or simulated) supplies. Never a wall clock, so clock jumps cannot reach
//! a protocol.

use core::fmt;
use core::ops::{Add, Sub};
use serde::{Deserialize, Serialize};

/// A point on the driver's monotonic clock, or a length of time, in nanoseconds.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// The start of the clock, or no time at all.
    pub const ZERO: Time = Time(0);
    /// A deadline that never comes.
    pub const NEVER: Time = Time(u64::MAX);

    /// From milliseconds; saturates.
    pub const fn from_ms(ms: u64) -> Time {
        Time(ms.saturating_mul(1_000_000))
    }
    /// From whole seconds; saturates.
    pub const fn from_secs(secs: u64) -> Time {
        Time(secs.saturating_mul(1_000_000_000))
    }
    /// In milliseconds, with the fraction.
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / 1e6
    }
    /// In seconds, with the fraction.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// `self - earlier`, or zero if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Time {
        Time(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Time {
    type Output = Time;
    fn add(self, other: Time) -> Time {
        Time(self.0.saturating_add(other.0))
    }
}

impl Sub for Time {
    type Output = Time;
    fn sub(self, other: Time) -> Time {
        self.since(other)
    }
}

impl From<core::time::Duration> for Time {
    fn from(duration: core::time::Duration) -> Time {
        Time(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Time> for core::time::Duration {
    fn from(time: Time) -> core::time::Duration {
        core::time::Duration::from_nanos(time.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u64::MAX => f.write_str("never"),
            ns if ns < 10_000 => write!(f, "{ns} ns"),
            ns if ns < 10_000_000 => write!(f, "{:.1} us", ns as f64 / 1e3),
            ns if ns < 10_000_000_000 => write!(f, "{:.1} ms", ns as f64 / 1e6),
            ns => write!(f, "{:.1} s", ns as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Time::NEVER + Time::from_secs(1), Time::NEVER);
        assert_eq!(Time(3) - Time(5), Time::ZERO);
        assert_eq!(Time::from_secs(u64::MAX), Time::NEVER);
        assert_eq!(Time::from_ms(1500).as_secs(), 1.5);
    }
}

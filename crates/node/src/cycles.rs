//! The cycle counter, and how its cycles lie on the clock.
//!
//! On x86-64 the time-stamp counter, which modern processors advance at a constant rate
//! whatever the frequency; on AArch64 the virtual counter; elsewhere the monotonic clock in
//! nanoseconds. The clock is `CLOCK_MONOTONIC`, as traces know it too.

use rustix::time::{ClockId, clock_gettime};

/// The name of what [`now`] reads.
pub const COUNTER: &str = if cfg!(target_arch = "x86_64") {
    "tsc"
} else if cfg!(target_arch = "aarch64") {
    "cntvct"
} else {
    "clock"
};

/// The counter now.
#[inline(always)]
pub fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction reads a counter that every x86-64 processor has.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(target_arch = "aarch64")]
    {
        let value: u64;
        // SAFETY: the register can be read by programs on Linux; nothing else is touched.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) value, options(nomem, nostack)) };
        return value;
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    clock_ns()
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub fn clock_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Counter and clock at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Anchor {
    /// The counter, cycles.
    pub cycles: u64,
    /// The clock, ns.
    pub ns: u64,
}

/// Readings of which the quickest counts: it was least disturbed.
const READINGS: u32 = 64;

impl Anchor {
    /// Reads both: of several tries the one during which the least time passed.
    pub fn take() -> Anchor {
        let mut best = (u64::MAX, Anchor { cycles: 0, ns: 0 });
        for _ in 0..READINGS {
            let (before, ns, after) = (now(), clock_ns(), now());
            let took = after.saturating_sub(before);
            if took < best.0 {
                let cycles = before + took / 2;
                best = (took, Anchor { cycles, ns });
            }
        }
        best.1
    }
}

/// A line through two anchors.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    first: Anchor,
    ns_per_cycle: f64,
}

impl Scale {
    /// The line; `None` if counter or clock did not advance.
    pub fn between(first: Anchor, last: Anchor) -> Option<Scale> {
        let cycles = last.cycles.checked_sub(first.cycles).filter(|&c| c > 0)?;
        let ns = last.ns.checked_sub(first.ns).filter(|&ns| ns > 0)?;
        Some(Scale {
            first,
            ns_per_cycle: ns as f64 / cycles as f64,
        })
    }
    /// Cycles a second.
    pub fn frequency_hz(&self) -> f64 {
        1e9 / self.ns_per_cycle
    }
    /// A span in nanoseconds.
    pub fn ns(&self, cycles: u64) -> f64 {
        cycles as f64 * self.ns_per_cycle
    }
    /// A span in cycles.
    pub fn cycles(&self, ns: u64) -> u64 {
        (ns as f64 / self.ns_per_cycle) as u64
    }
    /// The clock when the counter stood there.
    pub fn clock(&self, cycles: u64) -> u64 {
        let ahead = cycles.wrapping_sub(self.first.cycles) as i64;
        self.first
            .ns
            .saturating_add_signed((ahead as f64 * self.ns_per_cycle) as i64)
    }
}

/// A first line, from spinning for 20 ms; measurements draw theirs through their own ends.
pub fn calibrate() -> Option<Scale> {
    let first = Anchor::take();
    while clock_ns() < first.ns + 20_000_000 {
        core::hint::spin_loop();
    }
    Scale::between(first, Anchor::take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_its_anchors() {
        let anchor = |cycles, ns| Anchor { cycles, ns };
        let scale = Scale::between(anchor(1_000, 50), anchor(5_000, 1_050)).unwrap();
        assert_eq!(
            (scale.ns(4), scale.cycles(25), scale.clock(3_000)),
            (1.0, 100, 550)
        );
        assert_eq!((scale.frequency_hz(), scale.clock(800)), (4e9, 0));
        assert!(Scale::between(anchor(1, 1), anchor(1, 2)).is_none());
        assert!(Scale::between(anchor(1, 2), anchor(2, 2)).is_none());
        assert!(now() <= now());
    }
}

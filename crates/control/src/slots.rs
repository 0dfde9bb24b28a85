//! Service work in slots: what agents do now and then beside a job is done at the same time on all
//! nodes, so that a job whose ranks wait for each other in each step loses that time once, and not
//! once for each node. Source: HPC-Colony, annual report 2006, section 2.2, figure 3.
//!
//! A slot begins each period of the coordinator's clock. Each node knows that clock by what it was
//! told over its connection, and how wrong it may be: [`Clock`].

use std::collections::VecDeque;

use outlive_base::Time;
use serde::{Deserialize, Serialize};

/// How far two clocks may run apart, in parts of a million: an oscillator of a computer is wrong by
/// 50 at most.
pub const DRIFT_PPM: u64 = 100;
/// Readings that are kept: a better one may grow old.
const READINGS: usize = 8;

/// When service work is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Slots {
    /// From the begin of a slot to that of the next, in milliseconds; 0: there are no slots, and work is
    /// done when it is due.
    pub period_ms: u64,
    /// How long a slot is, in milliseconds: less than the period.
    pub length_ms: u64,
}

impl Slots {
    /// True if there are any.
    pub const fn are_set(self) -> bool {
        self.period_ms > 0 && self.length_ms > 0 && self.length_ms < self.period_ms
    }

    /// True if a slot is open at `now` of a clock by which the coordinator's is `ahead_ns` further, and how
    /// long that lasts from `now`, one nanosecond at least.
    pub fn at(self, now: Time, ahead_ns: i64) -> (bool, Time) {
        let (period, length) = (
            Time::from_ms(self.period_ms.max(1)),
            Time::from_ms(self.length_ms),
        );
        let there = i128::from(now.0) + i128::from(ahead_ns);
        let phase = there.rem_euclid(i128::from(period.0)) as u64;
        match phase < length.0 {
            true => (true, Time(length.0 - phase)),
            false => (false, Time(period.0 - phase)),
        }
    }
}

/// Service work of a job, as its user wants it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ServiceSettings {
    /// When it is done.
    pub slots: Slots,
    /// A command of the user that each node runs in slots, if there are any, else all the time.
    pub daemon: Option<String>,
}

/// How far clocks may run apart in this time, in nanoseconds.
const fn drift(time: Time) -> u64 {
    time.0.div_ceil(1_000_000 / DRIFT_PPM)
}

/// How another clock stands to one's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offset {
    /// The other is so many nanoseconds ahead.
    pub ahead_ns: i64,
    /// By no more than that is this wrong, if both clocks keep to [`DRIFT_PPM`].
    pub error_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    /// When the answer came.
    at: Time,
    offset: Offset,
}

/// What is known of another clock.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// Which clock: an agent that is started anew has another.
    life: u64,
    readings: VecDeque<Reading>,
}

impl Clock {
    /// The other said `told` at a moment between `sent` and `now` of one's own clock: it is wrong by half
    /// of the way there and back at most, whatever took longer (Cristian, 1989).
    pub fn hear(&mut self, life: u64, sent: Time, told: Time, now: Time) {
        if life != self.life {
            self.life = life;
            self.readings.clear();
        }
        if now < sent {
            return;
        }
        let way = now.since(sent);
        let half = way.0 / 2;
        let ahead = i128::from(told.0) - i128::from(sent.0) - i128::from(half);
        let Ok(ahead_ns) = i64::try_from(ahead) else {
            return;
        };
        let offset = Offset {
            ahead_ns,
            error_ns: half + 1 + drift(way),
        };
        if self.readings.len() == READINGS {
            self.readings.pop_front();
        }
        self.readings.push_back(Reading { at: now, offset });
    }

    /// The best of what is known; `None` before the first answer.
    pub fn offset(&self, now: Time) -> Option<Offset> {
        let aged = |reading: &Reading| Offset {
            ahead_ns: reading.offset.ahead_ns,
            error_ns: reading
                .offset
                .error_ns
                .saturating_add(drift(now.since(reading.at))),
        };
        self.readings.iter().map(aged).min_by_key(|it| it.error_ns)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use outlive_base::rng::Sequence;

    use super::*;

    #[test]
    fn a_slot_begins_each_period() {
        let slots = Slots {
            period_ms: 1_000,
            length_ms: 50,
        };
        let at = |ms: u64, ahead: i64| {
            let (open, lasts) = slots.at(Time::from_ms(ms), ahead * 1_000_000);
            (open, lasts.as_ms() as u64)
        };
        assert_eq!(at(3_000, 0), (true, 50));
        assert_eq!(at(3_049, 0), (true, 1));
        assert_eq!(at(3_050, 0), (false, 950));
        assert_eq!(at(3_000, -1), (false, 1));
        assert_eq!(at(0, -10_000), (true, 50));
        assert!(!Slots::default().are_set());
    }

    /// What is said to be the error is no less than it is, at any time, however unlike both ways are and
    /// however fast or slow the other clock runs.
    #[test]
    fn a_clock_is_no_further_off_than_is_said() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        for _ in 0..500 {
            let ppm = i128::from(random.below(201)) - 100;
            let ahead = i128::from(random.below(2_000_000_000_000)) - 1_000_000_000_000;
            let other = |t: u64| i128::from(t) * (1_000_000 + ppm) / 1_000_000 + ahead;
            let (mut clock, mut t) = (Clock::default(), 2_000_000_000_000_u64);
            for _ in 0..random.below(30) + 1 {
                let pause = random.below(20_000_000_000);
                let (there, back) = (random.below(50_000_000), random.below(50_000_000));
                t += pause;
                let told = u64::try_from(other(t + there)).unwrap();
                clock.hear(7, Time(t), Time(told), Time(t + there + back));
                t += there + back;
                for now in [t, t + pause / 2, t + pause] {
                    let offset = clock.offset(Time(now)).unwrap();
                    let wrong = (other(now) - i128::from(now) - i128::from(offset.ahead_ns)).abs();
                    assert!(
                        wrong <= i128::from(offset.error_ns) + 1,
                        "{wrong} {offset:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_agent_that_is_started_anew_has_another_clock() {
        let mut clock = Clock::default();
        let ms = Time::from_ms;
        clock.hear(1, ms(100), ms(5_000), ms(100));
        assert_eq!(clock.offset(ms(100)).unwrap().ahead_ns, 4_900_000_000);
        clock.hear(2, ms(200), ms(10), ms(300));
        let offset = clock.offset(ms(300)).unwrap();
        assert_eq!(offset.ahead_ns, -240_000_000);
        assert!((50_000_001..50_020_000).contains(&offset.error_ns));
    }
}

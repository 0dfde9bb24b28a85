//! Checkpoints at equal intervals, in computing or in offers.

use super::{Decision, Policy, Seen, Why};
use crate::classes::Mask;

/// After every `interval` of computing; every so many-th at each level. It counts from the
/// version that was restored.
#[derive(Clone, PartialEq, Debug)]
pub struct Fixed {
    interval: f64,
    every: Every,
    /// Seconds of computing since the last checkpoint, up to `resumed`.
    computed: f64,
    resumed: f64,
}

/// Offers seldom come at the very moment: so much of the interval too early is not early.
const TOLERANCE: f64 = 1e-6;

impl Fixed {
    /// A level with multiple n gets every n-th checkpoint; 0: none.
    pub fn new(interval: f64, multiples: &[u32]) -> Fixed {
        Fixed {
            interval,
            every: Every::new(multiples),
            computed: 0.0,
            resumed: 0.0,
        }
    }
}

impl Policy for Fixed {
    fn see(&mut self, at: f64, seen: Seen) {
        match seen {
            Seen::Resumed => self.resumed = at,
            Seen::Restarted { .. } => (self.resumed, self.computed) = (at, 0.0),
            _ => {}
        }
        self.every.see(at, seen);
    }

    fn decide(&mut self, at: f64, busy: Mask) -> Decision {
        self.computed += at - self.resumed;
        self.resumed = at;
        if self.computed < self.interval * (1.0 - TOLERANCE) {
            return Decision::skip(Why::Early);
        }
        self.computed = 0.0;
        self.every.next(busy)
    }

    fn due(&mut self, _at: f64) -> Option<f64> {
        Some(self.resumed + self.interval - self.computed)
    }
}

/// At every offer; every so many-th at each level. It counts from the version that was
/// restored, as [`crate::lifetime`] does.
#[derive(Clone, PartialEq, Debug)]
pub struct Every {
    multiples: Vec<u32>,
    count: u64,
    stored: Vec<u64>,
    writing: Vec<u64>,
}

impl Every {
    /// A level with multiple n gets every n-th checkpoint; 0: none.
    pub fn new(multiples: &[u32]) -> Every {
        Every {
            multiples: multiples.to_vec(),
            count: 0,
            stored: vec![0; multiples.len()],
            writing: vec![0; multiples.len()],
        }
    }

    /// The next checkpoint: the levels that it goes to.
    fn next(&mut self, busy: Mask) -> Decision {
        self.count += 1;
        let mut levels = 0;
        for (level, &multiple) in self.multiples.iter().enumerate() {
            let due = multiple > 0 && self.count.is_multiple_of(u64::from(multiple));
            if due && busy & (1 << level) == 0 {
                levels |= 1 << level;
                self.writing[level] = self.count;
            }
        }
        match levels {
            0 => Decision::skip(Why::Busy),
            levels => Decision {
                levels,
                why: Why::Due,
            },
        }
    }
}

impl Policy for Every {
    fn see(&mut self, _at: f64, seen: Seen) {
        match seen {
            Seen::Stored { level, .. } => self.stored[level] = self.writing[level],
            Seen::Restarted { from, holds, .. } => {
                self.count = from.map_or(0, |level| self.stored[level]);
                for (level, stored) in self.stored.iter_mut().enumerate() {
                    if holds & (1 << level) != 0 {
                        *stored = self.count;
                    }
                }
            }
            _ => {}
        }
    }
    fn decide(&mut self, _at: f64, busy: Mask) -> Decision {
        self.next(busy)
    }
    fn due(&mut self, at: f64) -> Option<f64> {
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nth_goes_to_its_level_and_a_restart_counts_from_its_version() {
        let mut policy = Fixed::new(10.0, &[1, 3]);
        let mut at = 0.0;
        let mut step = |policy: &mut Fixed, busy| {
            at += 5.0;
            let found = policy.decide(at, busy).levels;
            for level in (0..2).filter(|level| found & (1 << level) != 0) {
                let seconds = 0.0;
                policy.see(at, Seen::Stored { level, seconds });
            }
            found
        };
        let found: Vec<Mask> = (0..8).map(|_| step(&mut policy, 0)).collect();
        assert_eq!(found, [0, 1, 0, 1, 0, 3, 0, 1]);
        policy.see(40.0, Seen::Stopped { survive: 2 });
        let restarted = Seen::Restarted {
            from: Some(1),
            holds: 3,
            seconds: 1.0,
        };
        policy.see(40.0, restarted);
        let found: Vec<Mask> = (0..6).map(|_| step(&mut policy, 2)).collect();
        assert_eq!(found, [0, 1, 0, 1, 0, 1], "a busy level refuses");
        assert_eq!(policy.due(70.0), Some(80.0));
    }
}

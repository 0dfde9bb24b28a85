//! The LogP model (Culler et al., PPoPP 1993) as the protocols use it: to shape the
//! optimal tree and to know when a fault-free tree has ended.

use outlive_base::{Code, Entity, Error, Result};

/// Parameters of LogP in one unit of time of the caller's choice (all integers).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogP {
    /// L: from the end of sending to the start of receiving.
    pub latency: u64,
    /// o: what a process spends on sending or on receiving a message.
    pub overhead: u64,
    /// g: at least between two sends, and between two receptions, of a process.
    pub gap: u64,
}

/// No parameter is larger, so that times stay far from 2^64.
pub const TIME_MAX: u64 = 1 << 40;

impl LogP {
    /// From the start of a send to the end of its reception: L + 2o.
    pub const fn delay(&self) -> u64 {
        self.latency + 2 * self.overhead
    }

    /// # Errors
    /// [`Code::InvalidArgument`] if g is 0 or below o, or a parameter is above
    /// [`TIME_MAX`].
    pub fn check(&self) -> Result<()> {
        let refuse = |option: &str, reason: String, remedy: &str| {
            Err(Error::new(
                Code::InvalidArgument,
                Entity::Option(option.into()),
                reason,
                remedy,
            ))
        };
        for (option, value) in [
            ("latency", self.latency),
            ("overhead", self.overhead),
            ("gap", self.gap),
        ] {
            if value > TIME_MAX {
                let reason = format!("{value} is above 2^40");
                return refuse(option, reason, "choose a longer unit of time");
            }
        }
        if self.gap == 0 || self.gap < self.overhead {
            let reason = format!("gap {} with overhead {}", self.gap, self.overhead);
            let remedy = "give a gap of at least 1 and at least the overhead: in LogP a \
                          process is busy for the overhead of each message";
            return refuse("gap", reason, remedy);
        }
        Ok(())
    }
}

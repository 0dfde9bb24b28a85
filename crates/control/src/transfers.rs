//! How copies come to what all nodes share: what is wanted of nodes.

use outlive_base::Version;
use serde::{Deserialize, Serialize};

/// How a node makes its copies at `shared`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TransferSetting {
    /// Of the container in node storage, where a version has one: the slots are free as soon as
    /// that is written. Else straight from the slots.
    pub from_disk: bool,
    /// Bytes a second that each node writes there at most; 0: as many as it can.
    pub bytes_per_s: u64,
    /// The same for all nodes together.
    pub bytes_per_s_job: u64,
}

impl TransferSetting {
    /// Bytes a second that one of so many nodes may write; 0: as many as it can.
    pub fn rate(&self, nodes: u32) -> u64 {
        let share = match self.bytes_per_s_job {
            0 => 0,
            job => (job / u64::from(nodes.max(1))).max(1),
        };
        let given = [self.bytes_per_s, share].into_iter().filter(|it| *it != 0);
        given.min().unwrap_or(0)
    }
}

impl Default for TransferSetting {
    fn default() -> TransferSetting {
        TransferSetting {
            from_disk: true,
            bytes_per_s: 0,
            bytes_per_s_job: 0,
        }
    }
}

/// A copy of a node's container that is on its way to what all nodes share, or waits for its turn.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TransferStatus {
    /// The incarnation that captured the version.
    pub incarnation: u32,
    /// Of which version.
    pub version: Version,
    /// So many bytes were read from node storage and handed on.
    pub bytes: u64,
    /// Bytes of the copy. Once `bytes` are as many, the copy is made durable and read back.
    pub bytes_total: u64,
    /// How long it had been on its way when the node said so, in milliseconds; `None`: it waits
    /// for the one before it.
    pub age_ms: Option<u64>,
    /// Mean bytes a second that were written there or read back, since it began.
    pub bytes_per_second: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrower_bound_counts() {
        let rate = |bytes_per_s, bytes_per_s_job, nodes| {
            let setting = TransferSetting {
                from_disk: true,
                bytes_per_s,
                bytes_per_s_job,
            };
            setting.rate(nodes)
        };
        assert_eq!(rate(0, 0, 4), 0, "none");
        assert_eq!(rate(100, 0, 4), 100);
        assert_eq!(rate(0, 100, 4), 25);
        assert_eq!(rate(30, 100, 4), 25);
        assert_eq!(rate(20, 100, 4), 20);
        assert_eq!(rate(0, 3, 1000), 1, "never none by division");
        assert_eq!(rate(0, 100, 0), 100);
    }
}

//! What launcher and agents send each other, counted. Signs of life come all the time, as many in
//! a second for any number of nodes at a node; all else comes with what happens to the job, and is
//! counted apart.

use serde::{Deserialize, Serialize};

/// Messages and their bytes, encoded and not yet encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Count {
    /// How many.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Count {
    /// Counts a message of so many bytes.
    pub const fn add(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes as u64;
    }

    /// What was counted since an earlier time; nothing if the count began anew.
    #[must_use]
    pub const fn since(self, earlier: Count) -> Count {
        Count {
            messages: self.messages.saturating_sub(earlier.messages),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Count) -> Count {
        Count {
            messages: self.messages + other.messages,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// What a process has sent and received since it began. Bulk data, which travels in streams of
/// its own, is not counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Sent, but for signs of life.
    pub sent: Count,
    /// Received, but for signs of life.
    pub received: Count,
    /// Signs of life, and who misses whom, in both directions.
    pub signs: Count,
    /// Control connections that stand now.
    pub connections: u32,
}

impl Traffic {
    /// Counts a message that leaves.
    pub const fn sends(&mut self, is_sign: bool, bytes: usize) {
        match is_sign {
            true => self.signs.add(bytes),
            false => self.sent.add(bytes),
        }
    }

    /// Counts a message that came.
    pub const fn receives(&mut self, is_sign: bool, bytes: usize) {
        match is_sign {
            true => self.signs.add(bytes),
            false => self.received.add(bytes),
        }
    }

    /// All but signs of life, in both directions.
    pub const fn work(&self) -> Count {
        self.sent.and(self.received)
    }

    /// What was counted since an earlier time; the connections are those of now.
    #[must_use]
    pub const fn since(self, earlier: Traffic) -> Traffic {
        Traffic {
            sent: self.sent.since(earlier.sent),
            received: self.received.since(earlier.received),
            signs: self.signs.since(earlier.signs),
            connections: self.connections,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_life_are_counted_apart_and_a_count_that_began_anew_is_none() {
        let mut before = Traffic::default();
        before.sends(true, 10);
        before.sends(false, 100);
        let mut after = before;
        after.receives(false, 7);
        after.receives(true, 1);
        after.connections = 3;
        let found = after.since(before);
        let count = |messages, bytes| Count { messages, bytes };
        assert_eq!((found.sent, found.received), (count(0, 0), count(1, 7)));
        assert_eq!((found.signs, found.connections), (count(1, 1), 3));
        assert_eq!(found.work(), count(1, 7));
        assert_eq!(Traffic::default().since(before).work(), count(0, 0));
    }
}

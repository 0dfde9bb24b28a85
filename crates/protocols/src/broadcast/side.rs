//! One direction of a correction on the ring, and when it may be left.

/// One direction on the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Side {
    /// Sent to so many neighbours.
    pub(super) sent: u32,
    /// Distinct senders heard from there, as far as they count.
    heard: u32,
    /// The distance of the farthest of them.
    relied: u32,
}

impl Side {
    /// Everybody between here and `needed` senders was sent to.
    pub(super) const fn done(self, needed: u32, limit: u32) -> bool {
        self.sent >= limit || self.heard >= needed && self.sent >= self.relied
    }

    /// A sender was heard. The first `needed` count, of one the nearest: at least as far
    /// as the nearest `needed`, and no list is kept.
    pub(super) const fn hear(&mut self, distance: u32, needed: u32) {
        if needed == 1 && self.heard == 1 {
            if distance < self.relied {
                self.relied = distance;
            }
        } else if self.heard < needed {
            self.heard += 1;
            if distance > self.relied {
                self.relied = distance;
            }
        }
    }
}

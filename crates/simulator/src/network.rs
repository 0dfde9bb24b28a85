//! Networks. The engine asks one thing of a network: when, and how often, does a
//! message arrive. [`Lossy`] is for safety; a LogP/LogGP network for cost will
//! implement the same trait.

use outlive_base::rng::Sequence;
use outlive_base::{NodeId, Time};

/// When a message arrives: at most two times (a duplicate), none if it is lost.
pub type Arrivals = [Option<Time>; 2];

/// A network.
pub trait Network {
    /// The fate of a message from `from` to `to` that leaves at `now`.
    fn carry(&mut self, now: Time, from: u32, to: u32) -> Arrivals;
}

/// Chances and delays of [`Lossy`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossyOptions {
    /// Messages lost, per million.
    pub loss: u32,
    /// Messages duplicated, per million.
    pub duplicate: u32,
    /// Smallest delay.
    pub delay_min: Time,
    /// Largest usual delay; uniform between, so messages overtake each other.
    pub delay_max: Time,
    /// Messages delayed by up to `straggle_max` more, per million.
    pub straggle: u32,
    /// See `straggle`.
    pub straggle_max: Time,
}

impl LossyOptions {
    /// No fault, small delays.
    pub const CALM: LossyOptions = LossyOptions {
        loss: 0,
        duplicate: 0,
        delay_min: Time(50_000),
        delay_max: Time(500_000),
        straggle: 0,
        straggle_max: Time(0),
    };
}

/// Loss, duplication, delay, reorder, partition.
#[derive(Debug)]
pub struct Lossy {
    /// What may happen now; may be changed in the course of a history.
    pub options: LossyOptions,
    /// Pairs that cannot talk: one side's nodes as bits (nodes below 64; the
    /// launcher is bit 63).
    cut: u64,
    random: Sequence,
}

impl Lossy {
    /// A network that draws from `seed`.
    pub fn new(options: LossyOptions, seed: u64) -> Lossy {
        Lossy {
            options,
            cut: 0,
            random: Sequence::new(seed, 0x6e65_7477),
        }
    }

    /// Cuts the nodes of `side` (bits) off from all others; 0 heals.
    pub fn partition(&mut self, side: u64) {
        self.cut = side;
    }

    fn side(&self, node: u32) -> bool {
        let bit = if node == NodeId::LAUNCHER.0 {
            63
        } else {
            node.min(62)
        };
        self.cut >> bit & 1 == 1
    }

    fn delay(&mut self) -> Time {
        let LossyOptions {
            delay_min,
            delay_max,
            straggle,
            straggle_max,
            ..
        } = self.options;
        let mut delay = delay_min + Time(self.random.below((delay_max - delay_min).0 + 1));
        if self.random.chance(straggle) {
            delay = delay + Time(self.random.below(straggle_max.0 + 1));
        }
        delay
    }
}

impl Network for Lossy {
    fn carry(&mut self, now: Time, from: u32, to: u32) -> Arrivals {
        if self.side(from) != self.side(to) || self.random.chance(self.options.loss) {
            return [None, None];
        }
        let first = now + self.delay();
        let second = self
            .random
            .chance(self.options.duplicate)
            .then(|| now + self.delay());
        [Some(first), second]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lossy_network_loses_duplicates_reorders_and_cuts() {
        let options = LossyOptions {
            loss: 100_000,
            duplicate: 100_000,
            ..LossyOptions::CALM
        };
        let mut net = Lossy::new(options, 1);
        let fates: Vec<Arrivals> = (0..1000).map(|_| net.carry(Time(0), 0, 1)).collect();
        let lost = fates.iter().filter(|f| f[0].is_none()).count();
        let doubled = fates.iter().filter(|f| f[1].is_some()).count();
        assert!(
            (50..200).contains(&lost) && (50..200).contains(&doubled),
            "{lost} {doubled}"
        );
        assert!(fates.windows(2).any(|w| w[0][0] > w[1][0]), "no reorder");
        net.partition(0b10);
        assert!((0..100).all(|_| net.carry(Time(0), 0, 1) == [None, None]));
        assert!((0..100).any(|_| net.carry(Time(0), 0, 2)[0].is_some()));
        net.partition(0);
        assert!((0..100).any(|_| net.carry(Time(0), 0, 1)[0].is_some()));
    }
}

//! A counter-based random source: the value is a pure function of (seed,
//! instance, draw), so nothing shared has to be stored and the order in which
//! instances run cannot change what they draw (P8).

/// The `draw`-th 64-bit value of `instance` under `seed`.
///
/// SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014) over a combination
/// of the three words; not for cryptography.
pub const fn draw(seed: u64, instance: u64, draw: u64) -> u64 {
    let a = mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
    let b = mix(a ^ instance.wrapping_mul(0xd1b5_4a32_d192_ed03));
    mix(b.wrapping_add(draw.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// A uniform value in `0..bound`, by multiplication (Lemire 2019, without the
/// rejection step: the bias is below 2^-32 for bounds below 2^32). A bound of 0
/// gives 0.
pub const fn below(random: u64, bound: u64) -> u64 {
    ((random as u128 * bound as u128) >> 64) as u64
}

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A sequential view of [`draw`]: for drivers, workloads and tests. Machines
/// keep their own draw counter instead.
#[derive(Clone, Debug)]
pub struct Sequence {
    seed: u64,
    instance: u64,
    next: u64,
}

impl Sequence {
    /// The sequence of `instance` under `seed`, from its first draw.
    pub const fn new(seed: u64, instance: u64) -> Sequence {
        Sequence {
            seed,
            instance,
            next: 0,
        }
    }
    /// The next 64 random bits.
    pub fn u64(&mut self) -> u64 {
        let value = draw(self.seed, self.instance, self.next);
        self.next += 1;
        value
    }
    /// Uniform in `0..bound` (0 if the bound is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        below(self.u64(), bound)
    }
    /// True with probability `per_million` / 1,000,000.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(per_million)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_key_same_value_and_keys_do_not_collide() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in crate::seeds!(20) {
            for instance in 0..20 {
                for n in 0..20 {
                    assert_eq!(draw(seed, instance, n), draw(seed, instance, n));
                    assert!(seen.insert(draw(seed, instance, n)));
                }
            }
        }
    }

    #[test]
    fn below_is_in_range_and_roughly_uniform() {
        let mut counts = [0u32; 10];
        let mut source = Sequence::new(crate::seed!(), 0);
        for _ in 0..100_000 {
            counts[source.below(10) as usize] += 1;
        }
        assert!(
            counts.iter().all(|&c| (9_500..10_500).contains(&c)),
            "{counts:?}"
        );
        assert_eq!(below(u64::MAX, 0), 0);
        assert_eq!(below(u64::MAX, 5), 4);
    }
}

//! What tests do to files. `crates/coordinator` has it too, by its path.

use outlive_base::rng::Sequence;

/// Each way to hurt a file: each byte flipped, each end, what is added, what is swapped.
pub(crate) fn harms(good: &[u8], random: &mut Sequence) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = (0..good.len()).map(|end| good[..end].to_vec()).collect();
    for at in 0..good.len() {
        for _ in 0..2 {
            let mut bytes = good.to_vec();
            bytes[at] ^= 1 << random.below(8);
            all.push(bytes);
        }
    }
    for more in [&b"\n"[..], b" ", b"}", b"\0", good] {
        all.push([good, more].concat());
    }
    for _ in 0..200 {
        let (one, other) = (
            random.below(good.len() as u64),
            random.below(good.len() as u64),
        );
        let mut bytes = good.to_vec();
        bytes.swap(one as usize, other as usize);
        all.push(bytes);
    }
    all.retain(|bytes| bytes != good);
    all
}

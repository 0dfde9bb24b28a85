//! SHA-256 (FIPS 180-4), computed from its definition: integer units, no instruction of the
//! processor for it. For measurements only.

use std::sync::OnceLock;

/// The first 32 bits of the fractional parts of a root of the first primes.
fn constants(count: usize, root: u32) -> Vec<u32> {
    let prime = |n: &u128| {
        (2..*n)
            .take_while(|d| d * d <= *n)
            .all(|d| !n.is_multiple_of(d))
    };
    let primes = (2u128..).filter(prime).take(count);
    primes
        .map(|prime| {
            // The root of prime * 2^(32 root), by halving: its low 32 bits are the fraction.
            let target = prime << (32 * root);
            let (mut low, mut high) = (0u128, 1 << 37);
            while high - low > 1 {
                let middle = (low + high) / 2;
                let below = middle.pow(root) <= target;
                (low, high) = if below { (middle, high) } else { (low, middle) };
            }
            low as u32
        })
        .collect()
}

fn tables() -> &'static (Vec<u32>, Vec<u32>) {
    static TABLES: OnceLock<(Vec<u32>, Vec<u32>)> = OnceLock::new();
    TABLES.get_or_init(|| (constants(8, 2), constants(64, 3)))
}

fn block(state: &mut [u32; 8], bytes: &[u8], k: &[u32]) {
    let mut w = [0u32; 64];
    for (word, four) in w.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = four
            .iter()
            .fold(0, |word, &byte| word << 8 | u32::from(byte));
    }
    for t in 16..64 {
        let (x, y) = (w[t - 15], w[t - 2]);
        let s0 = x.rotate_right(7) ^ x.rotate_right(18) ^ (x >> 3);
        let s1 = y.rotate_right(17) ^ y.rotate_right(19) ^ (y >> 10);
        w[t] = w[t - 16]
            .wrapping_add(s0)
            .wrapping_add(w[t - 7])
            .wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for t in 0..64 {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let one = h
            .wrapping_add(s1)
            .wrapping_add(choice)
            .wrapping_add(k[t])
            .wrapping_add(w[t]);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let two = s0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
        (h, g, f, e) = (g, f, e, d.wrapping_add(one));
        (d, c, b, a) = (c, b, a, one.wrapping_add(two));
    }
    let more = [a, b, c, d, e, f, g, h];
    state
        .iter_mut()
        .zip(more)
        .for_each(|(word, more)| *word = word.wrapping_add(more));
}

/// The digest of a message.
fn digest(message: &[u8]) -> [u32; 8] {
    let (first, k) = tables();
    let mut state = [0; 8];
    state.copy_from_slice(first);
    let whole = message.chunks_exact(64);
    let mut rest = whole.remainder().to_vec();
    whole.for_each(|bytes| block(&mut state, bytes, k));
    rest.push(0x80);
    while rest.len() % 64 != 56 {
        rest.push(0);
    }
    rest.extend((message.len() as u64 * 8).to_be_bytes());
    rest.chunks_exact(64)
        .for_each(|bytes| block(&mut state, bytes, k));
    state
}

pub(super) fn sha(bytes: u64) -> (u64, Box<dyn FnMut() -> f64 + Send>) {
    let message: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
    let call = move || f64::from(digest(&message)[0]);
    (bytes, Box::new(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standard() {
        let hex = |message: &[u8]| digest(message).map(|word| format!("{word:08x}")).concat();
        assert_eq!(
            hex(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            hex(b""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(
            hex(b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
        );
    }
}

//! XXH3-128 with seed 0 (xxHash specification, version 0.2.0).

use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

/// XXH3-128 of bytes that come in pieces.
#[derive(Clone, Default)]
pub struct Digest(Xxh3Default);

impl Digest {
    /// Of no bytes yet.
    pub fn new() -> Digest {
        Digest(Xxh3Default::new())
    }
    /// Appends bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
    /// The digest of all bytes so far.
    pub fn finish(&self) -> u128 {
        self.0.digest128()
    }
}

/// XXH3-128 of `bytes`.
pub fn digest(bytes: &[u8]) -> u128 {
    xxh3_128(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The buffer of xxHash's own sanity test (`xsum_sanity_check.c`).
    fn sanity_buffer(length: usize) -> Vec<u8> {
        let mut generator = 2_654_435_761u64;
        let mut bytes = Vec::with_capacity(length);
        for _ in 0..length {
            bytes.push((generator >> 56) as u8);
            generator = generator.wrapping_mul(11_400_714_785_074_694_797);
        }
        bytes
    }

    #[test]
    fn known_vectors() {
        // Of the reference implementation in C (xxHash 0.8, XXH128 with seed 0) over
        // its own test buffer: length, low half, high half.
        let vectors: [(usize, u64, u64); 8] = [
            (0, 0x6001_c324_468d_497f, 0x99aa_06d3_0147_98d8),
            (1, 0xc44b_dff4_074e_ecdb, 0xa6cd_5e93_9200_0f6a),
            (6, 0x3e70_39bd_da43_cfc6, 0x082a_fe0b_8162_d12a),
            (12, 0x061a_1927_13f6_9ad9, 0x6e3e_fd8f_c780_2b18),
            (222, 0xf1ae_bd59_7cec_6b3a, 0x337e_0964_1b94_8717),
            (403, 0xcdeb_804d_65c6_dea4, 0x1b6d_e21e_332d_d73d),
            (512, 0x617e_4959_9013_cb6b, 0x18d2_d110_dcc9_bca1),
            (2367, 0xcb37_aeb9_e5d3_61ed, 0xe89c_0f6f_f369_b427),
        ];
        let bytes = sanity_buffer(2367);
        for (length, low, high) in vectors {
            let want = u128::from(high) << 64 | u128::from(low);
            assert_eq!(
                digest(&bytes[..length]),
                want,
                "{length}: {:x}",
                digest(&bytes[..length])
            );
        }
    }

    #[test]
    fn pieces_equal_the_whole() {
        let bytes = sanity_buffer(5000);
        for length in [0, 1, 16, 17, 128, 129, 240, 241, 256, 1024, 1025, 5000] {
            let mut pieces = Digest::new();
            for piece in bytes[..length].chunks(61) {
                pieces.update(piece);
            }
            assert_eq!(pieces.finish(), digest(&bytes[..length]), "{length}");
        }
    }
}

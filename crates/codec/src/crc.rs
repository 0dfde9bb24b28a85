//! CRC-64/NVME, as the NVM Express specification (NVM command set 1.0d, section
//! 5.2.1.3.4) defines it: reflected, polynomial 0xAD93D23594C93659, all ones before
//! and after.

use crc_fast::CrcAlgorithm::Crc64Nvme;

/// CRC-64/NVME of bytes that come in pieces.
#[derive(Clone)]
pub struct Crc64(crc_fast::Digest);

impl Crc64 {
    /// Of no bytes yet.
    pub fn new() -> Crc64 {
        Crc64(crc_fast::Digest::new(Crc64Nvme))
    }
    /// Appends bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
    /// The checksum of all bytes so far.
    pub fn finish(&self) -> u64 {
        self.0.finalize()
    }
}

impl Default for Crc64 {
    fn default() -> Crc64 {
        Crc64::new()
    }
}

/// CRC-64/NVME of `bytes`.
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(Crc64Nvme, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Straight from the definition, bit by bit.
    fn slow(bytes: &[u8]) -> u64 {
        let polynomial = 0xAD93_D235_94C9_3659u64.reverse_bits();
        let mut crc = !0u64;
        for byte in bytes {
            crc ^= u64::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 {
                    (crc >> 1) ^ polynomial
                } else {
                    crc >> 1
                };
            }
        }
        !crc
    }

    #[test]
    fn known_vectors() {
        assert_eq!(crc64(b""), 0);
        assert_eq!(crc64(b"123456789"), 0xAE8B_1486_0A79_9888);
        // The NVM command set's own examples: 4 KiB of zeros and of ones.
        assert_eq!(crc64(&[0; 4096]), 0x6482_D367_EB22_B64E);
        assert_eq!(crc64(&[0xff; 4096]), 0xC0DD_BA73_02EC_A3AC);
    }

    #[test]
    fn any_length_and_any_split_equals_the_definition() {
        let bytes: Vec<u8> = (0..1500u32).map(|i| ((i * 31) ^ (i >> 3)) as u8).collect();
        for length in (0..300).chain([511, 512, 513, 1023, 1024, 1025, 1500]) {
            let want = slow(&bytes[..length]);
            assert_eq!(crc64(&bytes[..length]), want, "{length}");
            let mut pieces = Crc64::default();
            for piece in bytes[..length].chunks(97) {
                pieces.update(piece);
            }
            assert_eq!(pieces.finish(), want, "{length} in pieces");
        }
    }
}

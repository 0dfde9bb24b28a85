//! GF(2^8), the field of the factors of parities: polynomials over bits, modulo
//! x^8 + x^4 + x^3 + x^2 + 1 (0x11D), whose element 2 generates all but zero (as in Plank, *A
//! tutorial on Reed-Solomon coding for fault-tolerance in RAID-like systems*, Software: Practice
//! and Experience 27(9), 1997).
//!
//! Bytes are multiplied by one factor at a time, which is linear over bits: by a matrix of eight
//! by eight bits where the processor has an instruction for that (GFNI), else by two tables of
//! sixteen products that one shuffle looks up (Plank, Greenan, Miller, *Screaming fast Galois
//! field arithmetic using Intel SIMD instructions*, FAST 2013), else byte by byte. All give the
//! same bytes.

/// The polynomial of the field, its highest bit included.
pub const POLYNOMIAL: u16 = 0x11D;

/// The product of two elements.
pub const fn multiply(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (a as u16, b, 0);
    while b != 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        a <<= 1;
        if a & 0x100 != 0 {
            a ^= POLYNOMIAL;
        }
        b >>= 1;
    }
    product as u8
}

/// The element whose product with `a` is 1; `None` for zero.
pub const fn invert(a: u8) -> Option<u8> {
    if a == 0 {
        return None;
    }
    // All elements but zero are a group of 255: the 254th power is the inverse.
    let (mut power, mut left, mut inverse) = (a, 254u8, 1);
    while left != 0 {
        if left & 1 == 1 {
            inverse = multiply(inverse, power);
        }
        power = multiply(power, power);
        left >>= 1;
    }
    Some(inverse)
}

/// Adds each of `bytes`, multiplied by `factor`, to the same number of bytes at the start of
/// `sum`.
///
/// # Panics
/// If `sum` is shorter.
pub fn add_multiple(sum: &mut [u8], bytes: &[u8], factor: u8) {
    let sum = &mut sum[..bytes.len()];
    match factor {
        0 => {}
        1 => crate::add(sum, bytes),
        _ => add_by_best(sum, bytes, factor),
    }
}

#[cfg(target_arch = "x86_64")]
fn add_by_best(sum: &mut [u8], bytes: &[u8], factor: u8) {
    if is_x86_feature_detected!("avx2") {
        if is_x86_feature_detected!("gfni") {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { x86::add_by_matrix(sum, bytes, factor) };
        }
        // SAFETY: the processor has what the function is compiled for.
        return unsafe { x86::add_by_shuffles(sum, bytes, factor) };
    }
    add_by_table(sum, bytes, factor);
}

#[cfg(not(target_arch = "x86_64"))]
fn add_by_best(sum: &mut [u8], bytes: &[u8], factor: u8) {
    add_by_table(sum, bytes, factor);
}

/// On any processor.
fn add_by_table(sum: &mut [u8], bytes: &[u8], factor: u8) {
    let mut products = [0; 256];
    for (byte, product) in (0..=u8::MAX).zip(&mut products) {
        *product = multiply(byte, factor);
    }
    for (sum, byte) in sum.iter_mut().zip(bytes) {
        *sum ^= products[usize::from(*byte)];
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256,
        _mm256_set1_epi8, _mm256_set1_epi64x, _mm256_shuffle_epi8, _mm256_srli_epi64,
        _mm256_storeu_si256, _mm256_xor_si256,
    };

    use super::{add_by_table, multiply};

    const LANES: usize = size_of::<__m256i>();

    #[target_feature(enable = "avx2")]
    fn load(bytes: &[u8; LANES]) -> __m256i {
        // SAFETY: so many bytes are there, at any address.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx2")]
    fn store(bytes: &mut [u8; LANES], value: __m256i) {
        // SAFETY: so many bytes are there, at any address.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), value) }
    }

    /// Adds what is made of each vector; the bytes after the last whole one by the table.
    macro_rules! each {
        ($sum:ident, $bytes:ident, $factor:ident, $product:expr) => {
            let (sums, sum_tail) = $sum.as_chunks_mut::<LANES>();
            let (vectors, tail) = $bytes.as_chunks::<LANES>();
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                let product = $product(load(vector));
                let added = _mm256_xor_si256(load(sum), product);
                store(sum, added);
            }
            add_by_table(sum_tail, tail, $factor);
        };
    }

    /// The matrix that multiplies by a factor, as the instruction wants it: byte 7 - i says of
    /// which bits of a byte bit i of the product is the sum.
    pub(super) fn matrix(factor: u8) -> u64 {
        let mut rows = [0u8; 8];
        for bit in 0..8 {
            let column = multiply(1 << bit, factor);
            for (at, row) in rows.iter_mut().enumerate() {
                *row |= (column >> (7 - at) & 1) << bit;
            }
        }
        u64::from_le_bytes(rows)
    }

    #[target_feature(enable = "avx2,gfni")]
    pub(super) fn add_by_matrix(sum: &mut [u8], bytes: &[u8], factor: u8) {
        let matrix = _mm256_set1_epi64x(matrix(factor).cast_signed());
        let product = |vector| _mm256_gf2p8affine_epi64_epi8::<0>(vector, matrix);
        each!(sum, bytes, factor, product);
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn add_by_shuffles(sum: &mut [u8], bytes: &[u8], factor: u8) {
        // A shuffle looks up within each half of a vector.
        let products =
            |shift: u32| core::array::from_fn(|nth| multiply(((nth % 16) as u8) << shift, factor));
        let (low, high) = (load(&products(0)), load(&products(4)));
        let mask = _mm256_set1_epi8(15);
        let product = |vector| {
            let upper = _mm256_and_si256(_mm256_srli_epi64::<4>(vector), mask);
            let lower = _mm256_and_si256(vector, mask);
            _mm256_xor_si256(
                _mm256_shuffle_epi8(low, lower),
                _mm256_shuffle_epi8(high, upper),
            )
        };
        each!(sum, bytes, factor, product);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_field() {
        let mut seen = [false; 256];
        let mut power = 1;
        for _ in 0..255 {
            assert!(!std::mem::replace(&mut seen[usize::from(power)], true));
            power = multiply(power, 2);
        }
        assert_eq!(power, 1, "2 generates all but zero");
        assert_eq!(invert(0), None);
        for a in 0..=u8::MAX {
            assert_eq!((multiply(a, 1), multiply(a, 0)), (a, 0));
            if let Some(inverse) = invert(a) {
                assert_eq!(multiply(a, inverse), 1);
            }
            for b in 0..=u8::MAX {
                assert_eq!(multiply(a, b), multiply(b, a));
                let c = a.wrapping_mul(31) ^ b.rotate_left(3);
                let apart = multiply(a, b) ^ multiply(a, c);
                assert_eq!(multiply(a, b ^ c), apart);
                assert_eq!(multiply(multiply(a, b), c), multiply(a, multiply(b, c)));
            }
        }
        // By hand: x^7 times x is x^8, which is x^4 + x^3 + x^2 + 1.
        assert_eq!(multiply(0x80, 2), 0x1d);
    }

    type Way = (&'static str, fn(&mut [u8], &[u8], u8));

    /// What this processor can.
    fn ways() -> Vec<Way> {
        #[allow(unused_mut)]
        let mut ways: Vec<Way> = vec![("table", add_by_table), ("best", add_multiple)];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                ways.push(("shuffles", |sum, bytes, factor| {
                    // SAFETY: the processor has what the function is compiled for.
                    unsafe { x86::add_by_shuffles(sum, bytes, factor) }
                }));
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni") {
                ways.push(("matrix", |sum, bytes, factor| {
                    // SAFETY: the processor has what the function is compiled for.
                    unsafe { x86::add_by_matrix(sum, bytes, factor) }
                }));
            }
        }
        ways
    }

    /// Every byte times every factor, at every offset from an address of a vector and with
    /// every length of a tail.
    #[test]
    fn all_ways_give_the_product_by_definition() {
        let bytes: Vec<u8> = (0..600).map(|i| (i * 7 + i / 256) as u8).collect();
        let before: Vec<u8> = (0..600).map(|i| (i * 11) as u8).collect();
        for (name, add) in ways() {
            for factor in 0..=u8::MAX {
                let (at, length) = (usize::from(factor) % 37, 256 + usize::from(factor) % 67);
                let mut sum = before.clone();
                add(&mut sum[at..][..length], &bytes[at / 2..][..length], factor);
                for (nth, (sum, before)) in sum.iter().zip(&before).enumerate() {
                    let inside = (at..at + length).contains(&nth);
                    let product = match inside {
                        true => multiply(bytes[at / 2 + nth - at], factor),
                        false => 0,
                    };
                    assert_eq!(*sum, before ^ product, "{name}, {factor}, byte {nth}");
                }
            }
            add(&mut [], &[], 7);
        }
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn a_sum_that_is_too_short_is_refused() {
        add_multiple(&mut [0; 3], &[0; 4], 2);
    }
}

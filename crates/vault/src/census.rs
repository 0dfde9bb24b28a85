//! Numbers that are none: how many of a region's elements are NaN or infinite.
//!
//! Invariant: a block without any costs one pass that the compiler turns into vector instructions,
//! over bytes that are in the cache because their sums have just been computed.

use std::ops::AddAssign;

use outlive_capture::region::Element;

/// Bytes that are looked at together.
const BLOCK: usize = 4096;

/// How many elements are not finite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Not a number.
    pub nan: u64,
    /// Positive or negative infinity.
    pub infinite: u64,
}

impl AddAssign for Census {
    fn add_assign(&mut self, other: Census) {
        self.nan = self.nan.saturating_add(other.nan);
        self.infinite = self.infinite.saturating_add(other.infinite);
    }
}

impl Census {
    /// Counts; bytes after the last whole element are left out.
    pub fn of(element: Element, bytes: &[u8]) -> Census {
        match element {
            Element::Float16 => of_words::<u16, 2>(bytes, u16::from_le_bytes, 0x7c00),
            Element::BFloat16 => of_words::<u16, 2>(bytes, u16::from_le_bytes, 0x7f80),
            Element::Float32 => of_words::<u32, 4>(bytes, u32::from_le_bytes, 0x7f80_0000),
            Element::Float64 => {
                of_words::<u64, 8>(bytes, u64::from_le_bytes, 0x7ff0_0000_0000_0000)
            }
        }
    }

    /// True if there is none.
    pub fn is_finite(self) -> bool {
        self == Census::default()
    }
}

/// Of words whose exponent has these bits: all of them set is NaN or infinity, and infinity has no
/// other bit than the sign, which is the highest.
fn of_words<W, const N: usize>(bytes: &[u8], word: fn([u8; N]) -> W, exponent: W) -> Census
where
    W: Copy + Eq + std::ops::BitAnd<Output = W> + std::ops::Shl<u32, Output = W>,
{
    let mut census = Census::default();
    for block in bytes.chunks(BLOCK) {
        let (words, _) = block.as_chunks::<N>();
        let words = || words.iter().map(|bytes| word(*bytes));
        let found = words().fold(false, |found, it| found | (it & exponent == exponent));
        if !found {
            continue;
        }
        for it in words().filter(|it| *it & exponent == exponent) {
            match it << 1 == exponent << 1 {
                true => census.infinite += 1,
                false => census.nan += 1,
            }
        }
    }
    census
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(element: Element, words: &[&[u8]]) -> (u64, u64) {
        let census = Census::of(element, &words.concat());
        (census.nan, census.infinite)
    }

    #[test]
    fn every_kind_of_number() {
        let doubles = [
            f64::NAN,
            -f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MAX,
            f64::MIN,
            0.0,
            -0.0,
            5e-324,
        ];
        let bytes: Vec<[u8; 8]> = doubles.iter().map(|it| it.to_le_bytes()).collect();
        let bytes: Vec<&[u8]> = bytes.iter().map(|it| &it[..]).collect();
        assert_eq!(of(Element::Float64, &bytes), (2, 2));
        let signalling = 0x7ff0_0000_0000_0001_u64.to_le_bytes();
        assert_eq!(of(Element::Float64, &[&signalling]), (1, 0));
        let singles = doubles.map(|it| (it as f32).to_le_bytes());
        let singles: Vec<&[u8]> = singles.iter().map(|it| &it[..]).collect();
        // The largest double is no single any more.
        assert_eq!(of(Element::Float32, &singles), (2, 4));
        let halves = [0x7c00_u16, 0xfc00, 0x7e00, 0xfc01, 0x7bff, 0x8000];
        let halves = halves.map(u16::to_le_bytes);
        let halves: Vec<&[u8]> = halves.iter().map(|it| &it[..]).collect();
        assert_eq!(of(Element::Float16, &halves), (2, 2));
        let brains = [0x7f80_u16, 0xff80, 0x7fc0, 0x7f7f, 0x7c00].map(u16::to_le_bytes);
        let brains: Vec<&[u8]> = brains.iter().map(|it| &it[..]).collect();
        assert_eq!(of(Element::BFloat16, &brains), (1, 2));
    }

    #[test]
    fn wherever_they_are() {
        let mut values = vec![1.0_f32; 5000];
        for at in [0, 1023, 1024, 4095, 4999] {
            values[at] = f32::NAN;
        }
        values[1025] = f32::INFINITY;
        let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        let census = Census::of(Element::Float32, &bytes);
        assert_eq!(
            census,
            Census {
                nan: 5,
                infinite: 1
            }
        );
        assert!(!census.is_finite());
        // What is no whole element is none.
        let cut = &bytes[..bytes.len() - 1];
        assert_eq!(Census::of(Element::Float32, cut).nan, 4);
        assert!(Census::of(Element::Float32, &[]).is_finite());
    }
}

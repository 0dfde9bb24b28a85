//! Bounded little-endian reading and writing of bytes from outside (P7).
//!
//! A [`Reader`] never panics, never reads past its end and never allocates more
//! than the bytes it was given: lengths are checked against what remains before
//! anything is reserved.

use thiserror::Error;

use crate::count;

/// Why bytes could not be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum WireError {
    /// The bytes end early.
    #[error("ends {} early", count(*.0 as u64, "byte"))]
    Short(usize),
    /// A length is above its bound.
    #[error("length {length} above the bound {bound}")]
    TooLong {
        /// The length found.
        length: u64,
        /// The bound that holds here.
        bound: u64,
    },
    /// A value that is not allowed here.
    #[error("value not allowed: {0}")]
    Value(&'static str),
    /// Bytes are left over.
    #[error("{} left over", count(*.0 as u64, "byte"))]
    Trailing(usize),
}

/// Reads little-endian values from a slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

macro_rules! reads {
    ($($name:ident: $type:ty),*) => {$(
        /// Reads one little-endian value.
        pub fn $name(&mut self) -> Result<$type, WireError> {
            Ok(<$type>::from_le_bytes(self.array()?))
        }
    )*};
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }
    reads!(u8: u8, u16: u16, u32: u32, u64: u64, u128: u128);

    /// How many bytes are left.
    pub const fn remaining(&self) -> usize {
        self.bytes.len()
    }
    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        if count > self.bytes.len() {
            return Err(WireError::Short(count - self.bytes.len()));
        }
        let (head, tail) = self.bytes.split_at(count);
        self.bytes = tail;
        Ok(head)
    }
    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }
    /// A u32 length, at most `bound`, and that many bytes.
    pub fn blob(&mut self, bound: usize) -> Result<&'a [u8], WireError> {
        let length = self.u32()? as usize;
        if length > bound {
            return Err(WireError::TooLong {
                length: length as u64,
                bound: bound as u64,
            });
        }
        self.take(length)
    }
    /// Like [`Reader::blob`], as UTF-8.
    pub fn text(&mut self, bound: usize) -> Result<&'a str, WireError> {
        core::str::from_utf8(self.blob(bound)?).map_err(|_| WireError::Value("not UTF-8"))
    }
    /// A u32 count of items of at least `item_bytes` each: refused if the bytes
    /// left cannot hold them, so that a caller may reserve space for the count.
    pub fn count(&mut self, item_bytes: usize) -> Result<usize, WireError> {
        let count = self.u32()? as usize;
        let bound = self.bytes.len() / item_bytes.max(1);
        if count > bound {
            return Err(WireError::TooLong {
                length: count as u64,
                bound: bound as u64,
            });
        }
        Ok(count)
    }
    /// Refuses left-over bytes.
    pub fn finish(self) -> Result<(), WireError> {
        if self.bytes.is_empty() {
            Ok(())
        } else {
            Err(WireError::Trailing(self.bytes.len()))
        }
    }
}

/// Appends little-endian values to a vector.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

macro_rules! writes {
    ($($name:ident: $type:ty),*) => {$(
        /// Appends one little-endian value.
        pub fn $name(&mut self, value: $type) -> &mut Writer {
            self.bytes.extend_from_slice(&value.to_le_bytes());
            self
        }
    )*};
}

impl Writer {
    /// An empty writer.
    pub const fn new() -> Writer {
        Writer { bytes: Vec::new() }
    }
    writes!(u8: u8, u16: u16, u32: u32, u64: u64, u128: u128);

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Writer {
        self.bytes.extend_from_slice(bytes);
        self
    }
    /// Appends a u32 length and the bytes.
    ///
    /// # Panics
    /// If the bytes are longer than `u32::MAX`: callers bound them before.
    pub fn blob(&mut self, bytes: &[u8]) -> &mut Writer {
        let length = u32::try_from(bytes.len()).expect("blobs are bounded by their callers");
        self.u32(length).raw(bytes)
    }
    /// How many bytes were written.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
    /// True before anything was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
    /// The bytes so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }
    /// The bytes.
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_short_input_is_refused() {
        let mut writer = Writer::new();
        writer.u8(1).u16(2).u32(3).u64(4).u128(5).blob(b"six");
        let bytes = writer.into_vec();
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.u16(), Ok(2));
        assert_eq!(reader.u32(), Ok(3));
        assert_eq!(reader.u64(), Ok(4));
        assert_eq!(reader.u128(), Ok(5));
        assert_eq!(reader.text(3), Ok("six"));
        assert_eq!(reader.finish(), Ok(()));
        for cut in 0..bytes.len() {
            let mut reader = Reader::new(&bytes[..cut]);
            let all = (|| {
                reader.u8()?;
                reader.u16()?;
                reader.u32()?;
                reader.u64()?;
                reader.u128()?;
                reader.blob(3).map(|_| ())
            })();
            assert!(matches!(all, Err(WireError::Short(_))), "{cut}: {all:?}");
        }
    }

    #[test]
    fn lengths_are_bounded_before_anything_is_reserved() {
        let huge = u32::MAX.to_le_bytes();
        assert!(matches!(
            Reader::new(&huge).blob(100),
            Err(WireError::TooLong { .. })
        ));
        assert!(matches!(
            Reader::new(&huge).count(8),
            Err(WireError::TooLong { .. })
        ));
        assert_eq!(Reader::new(&[0, 0, 0, 0, 9]).blob(0), Ok(&[][..]));
    }
}

//! Containers that leave for shared storage no faster than they may.

use std::io::{self, Read};

use outlive_base::Result;
use outlive_control::node::copies::{Brake, Progress};
use outlive_vault::{Key, Layout, Sealed, Store, WriteOptions, store_stream};

use crate::rate::Rate;

/// Writes a container to shared storage straight from the slots, at a bounded rate.
///
/// # Errors
/// Those of the storage.
pub fn write_paced(
    layout: &Layout<'_>,
    (store, key): (&dyn Store, &Key),
    bytes_per_s: u64,
) -> Result<Sealed> {
    let mut from = Paced {
        from: Segments {
            rest: layout.segments(),
            held: &[],
        },
        rate: Rate::new(Brake::default(), bytes_per_s),
        progress: None,
    };
    let options = WriteOptions::default();
    store_stream(store, key, &mut from, layout.length(), &options)?;
    Ok(layout.seal())
}

/// What may be read so fast and no faster.
pub struct Paced<R> {
    /// Where it comes from.
    pub from: R,
    /// How fast.
    pub rate: Rate,
    /// Counts what was handed on.
    pub progress: Option<Progress>,
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let most = self.rate.portion(bytes.len());
        let count = self.from.read(&mut bytes[..most])?;
        if !self.rate.wait(count as u64) {
            return Err(io::Error::other("it is not wanted any more"));
        }
        if let Some(progress) = &self.progress {
            progress.hand_on(count as u64);
        }
        Ok(count)
    }
}

/// The bytes of a layout, in order.
struct Segments<'a, I> {
    rest: I,
    held: &'a [u8],
}

impl<'a, I: Iterator<Item = &'a [u8]>> Read for Segments<'a, I> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.held.is_empty() {
            match self.rest.next() {
                Some(next) => self.held = next,
                None => return Ok(0),
            }
        }
        let (now, later) = self.held.split_at(self.held.len().min(bytes.len()));
        bytes[..now.len()].copy_from_slice(now);
        self.held = later;
        Ok(now.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_in_portions_is_what_there_is() {
        let parts: [&[u8]; 4] = [b"abc", b"", b"defghij", b"k"];
        let mut from = Paced {
            from: Segments {
                rest: parts.into_iter(),
                held: &[],
            },
            rate: Rate::new(Brake::default(), 0),
            progress: Some(Progress::default()),
        };
        let mut read = Vec::new();
        from.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"abcdefghijk");
        assert_eq!(from.progress.map(|it| it.bytes()), Some(11));
    }

    #[test]
    fn what_is_stopped_says_so() {
        let brake = Brake::default();
        let mut from = Paced {
            from: io::Cursor::new(b"abc"),
            rate: Rate::new(brake.clone(), 0),
            progress: None,
        };
        brake.stop();
        assert!(from.read(&mut [0; 3]).is_err());
    }
}

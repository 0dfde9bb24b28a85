//! Word that an agent leaves with its keeper, for the one that is started anew: which incarnation it
//! has opened. It lies in memory, so it is gone with the keeper, as it must be: what records say of an
//! open incarnation may be of an earlier run.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use outlive_base::{Error, Result};
use outlive_control::orders::{MESSAGE_BYTES_MAX, Opened, decode, encode};
use rustix::fs::MemfdFlags;

/// The keeper's name for it.
pub const WORD_TAG: &str = "opened";

/// Memory with this word.
///
/// # Errors
/// If there is no memory.
pub fn write(opened: &Opened) -> Result<OwnedFd> {
    let failed = |error: std::io::Error| Error::io("memfd", "write", &error);
    let fd = rustix::fs::memfd_create("outlive-opened", MemfdFlags::CLOEXEC)
        .map_err(|error| failed(error.into()))?;
    let file = File::from(fd);
    file.write_all_at(&encode(opened)?, 0).map_err(failed)?;
    Ok(file.into())
}

/// The word in this memory; none if it is cut off or not to be understood.
pub fn read(fd: OwnedFd) -> Option<Opened> {
    let file = File::from(fd);
    let length = usize::try_from(file.metadata().ok()?.len()).ok()?;
    if length > MESSAGE_BYTES_MAX {
        return None;
    }
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).ok()?;
    decode(&bytes).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use outlive_base::{Incarnation, Level, Version};

    use super::*;

    #[test]
    fn a_word_is_read_as_it_was_left_and_none_is_made_up() {
        let opened = Opened {
            incarnation: Incarnation(3),
            restored: Some(Version(7)),
            level: Some(Level::PARTNER),
            ranks: 4,
            rebuild_ms: 12.5,
            rebuilt_bytes: 1 << 20,
            rejected: Vec::new(),
            uncertain: true,
        };
        let left = write(&opened).unwrap();
        assert_eq!(read(left.try_clone().unwrap()), Some(opened));
        let file = File::from(left.try_clone().unwrap());
        let whole = file.metadata().unwrap().len();
        for length in (0..whole).rev() {
            file.set_len(length).unwrap();
            assert_eq!(read(left.try_clone().unwrap()), None, "{length}");
        }
        file.set_len(MESSAGE_BYTES_MAX as u64 + 1).unwrap();
        assert_eq!(read(left), None);
    }
}

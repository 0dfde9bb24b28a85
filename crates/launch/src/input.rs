//! Files whose names come from outside. A device or a pipe in the place of a file must not
//! hang the command, and no file may fill its memory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use outlive_base::{Code, Entity, Error, Result};

/// Configuration, job records, reports, kernel command lines.
pub const TEXT_BYTES_MAX: u64 = 16 << 20;

/// The content of a regular file of at most `bytes_max` bytes.
///
/// # Errors
/// [`Code::InvalidArgument`] if it is not a regular file or longer; those of the file
/// system.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let wrong = |error: io::Error| Error::io(path, "read", &error);
    let refuse = |reason: String, remedy: &str| {
        let entity = Entity::File(path.display().to_string());
        Error::new(Code::InvalidArgument, entity, reason, remedy)
    };
    let file = open(path).map_err(wrong)?;
    let meta = file.metadata().map_err(wrong)?;
    if !meta.is_file() && !meta.is_dir() {
        let remedy = "give a regular file; write what a pipe or device gives to one first";
        return Err(refuse("is a device, pipe or socket".into(), remedy));
    }
    let mut bytes = Vec::new();
    // What it said of its size may change, and files in /proc say 0.
    let read = file
        .take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes);
    read.map_err(wrong)?;
    if bytes.len() as u64 > bytes_max {
        let reason = format!(
            "is longer than {}",
            outlive_control::units::show_bytes(bytes_max)
        );
        return Err(refuse(reason, "check that this is the file you mean"));
    }
    Ok(bytes)
}

/// The same as text.
///
/// # Errors
/// Those of [`read`]; [`Code::InvalidArgument`] if it is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String> {
    String::from_utf8(read(path, bytes_max)?).map_err(|_| {
        let entity = Entity::File(path.display().to_string());
        let remedy = "make it readable text";
        Error::new(Code::InvalidArgument, entity, "is not UTF-8", remedy)
    })
}

/// Opens without waiting for the other end of a pipe.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_regular_files_of_bounded_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        let long = read(&path, 4).unwrap_err();
        assert_eq!(long.code(), Code::InvalidArgument);
        assert!(long.reason().contains("longer"), "{long}");
        std::fs::write(&path, b"\xff").unwrap();
        assert!(read_text(&path, 4).is_err());
        let fifo = dir.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        for path in [
            fifo.as_path(),
            Path::new("/dev/zero"),
            Path::new("/dev/null"),
        ] {
            let error = read(path, 4).unwrap_err();
            assert!(error.reason().contains("device, pipe"), "{error}");
        }
        assert!(read(Path::new("/proc/self/status"), 4).is_err());
        assert!(read(dir.path(), 4).is_err());
        let missing = read(&dir.path().join("none"), 4).unwrap_err();
        assert_eq!(missing.code(), Code::NotFound);
    }
}

//! Files of `/proc` and `/sys`, or of a directory that stands for the machine.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The longest file that is read, in bytes: `/proc/interrupts` of a thousand processors.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Entries of a directory that are looked at.
const ENTRIES_MAX: usize = 512;

/// Where the machine's files lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Root {
    base: PathBuf,
}

impl Default for Root {
    fn default() -> Root {
        Root::machine()
    }
}

impl Root {
    /// This machine.
    pub fn machine() -> Root {
        Root { base: "/".into() }
    }

    /// `proc` and `sys` beneath this directory. What is not in files is not read then.
    pub fn beneath(directory: impl Into<PathBuf>) -> Root {
        Root {
            base: directory.into(),
        }
    }

    /// True if it is this machine.
    pub fn is_machine(&self) -> bool {
        self.base == Path::new("/")
    }

    /// A file's text; `None` if it is not there, or its device is not any more.
    pub(super) fn text(&self, path: &str) -> Result<Option<String>, String> {
        let read = || {
            let mut bytes = Vec::new();
            // One byte more shows that there is more.
            let file = File::open(self.base.join(path))?;
            file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) if bytes.len() as u64 > FILE_BYTES_MAX => Err(format!(
                "/{path} is longer than {} MiB",
                FILE_BYTES_MAX >> 20
            )),
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(format!("/{path}: {error}")),
        }
    }

    /// A number that is all of a file: decimal, or hexadecimal after `0x`.
    pub(super) fn number(&self, path: &str) -> Result<Option<f64>, String> {
        let Some(text) = self.text(path)? else {
            return Ok(None);
        };
        match number(text.trim()) {
            Some(number) => Ok(Some(number)),
            None => Err(format!("/{path}: '{}' is no number", short(text.trim()))),
        }
    }

    /// The names in a directory, sorted; none if it is not there or cannot be listed.
    pub(super) fn entries(&self, path: &str) -> Vec<String> {
        let Ok(found) = fs::read_dir(self.base.join(path)) else {
            return Vec::new();
        };
        let names = found.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.take(8 * ENTRIES_MAX).collect();
        names.sort();
        names.truncate(ENTRIES_MAX);
        names
    }

    /// True if something is there.
    pub(super) fn has(&self, path: &str) -> bool {
        self.base.join(path).exists()
    }
}

/// What is not there, is not supported, or was pulled out while it was read.
fn is_absent(error: &std::io::Error) -> bool {
    let gone = [libc::ENODEV, libc::ENXIO, libc::EOPNOTSUPP];
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
        || error
            .raw_os_error()
            .is_some_and(|code| gone.contains(&code))
}

fn number(text: &str) -> Option<f64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(|it| it as f64),
        None => text.parse::<i64>().ok().map(|it| it as f64),
    }
}

/// As much of what was found as a line can hold.
pub(super) fn short(text: &str) -> String {
    text.chars().take(20).collect()
}

/// A machine made of files.
#[cfg(test)]
pub(super) mod tests_support {
    use super::Root;

    pub struct Planted {
        dir: tempfile::TempDir,
        pub root: Root,
    }

    impl Planted {
        pub fn new() -> Planted {
            let dir = tempfile::tempdir().unwrap();
            let root = Root::beneath(dir.path());
            Planted { dir, root }
        }

        pub fn write(&self, path: &str, text: &str) {
            let path = self.dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_read_and_the_rest_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::beneath(dir.path());
        let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
        write("ten", b"10\n");
        write("hex", b"0x1f\n");
        write("empty", b"");
        write("damaged", &[0xff, 0xfe, b'1']);
        write("huge", &vec![b'1'; FILE_BYTES_MAX as usize + 1]);
        fs::create_dir(dir.path().join("directory")).unwrap();
        assert_eq!(root.number("ten"), Ok(Some(10.0)));
        assert_eq!(root.number("hex"), Ok(Some(31.0)));
        assert_eq!(root.number("none"), Ok(None));
        assert_eq!(root.number("ten/below"), Ok(None));
        for bad in ["empty", "damaged", "huge", "directory"] {
            assert!(root.number(bad).is_err(), "{bad}");
        }
        assert_eq!(root.entries("none"), Vec::<String>::new());
        assert!(!root.is_machine() && Root::default().is_machine());
    }
}

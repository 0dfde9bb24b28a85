//! A file of lines that does not grow without bound: when it is full it takes the place of the file
//! before it, and a new one is begun.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where a file of lines goes when it is full: `events.1.jsonl` of `events.jsonl`.
pub(super) fn older(path: &Path) -> PathBuf {
    path.with_extension("1.jsonl")
}

/// See the module.
#[derive(Debug)]
pub(super) struct Rolling {
    path: PathBuf,
    bytes_max: u64,
    /// Stands at the beginning of each file after the first.
    again: String,
    open: Option<(File, u64)>,
    /// The last line may lack its end.
    torn: bool,
    /// The next file is one after the first, and lacks its beginning.
    headless: bool,
}

impl Rolling {
    /// Goes on with the file at `path`, of at most `bytes_max`; with the one before it, twice that.
    pub fn new(path: PathBuf, bytes_max: u64, again: String) -> Rolling {
        Rolling {
            path,
            bytes_max,
            again,
            open: None,
            torn: false,
            headless: false,
        }
    }

    /// Appends a line, which has its line feed.
    ///
    /// # Errors
    /// Those of the file system; the line is then not there, or only its beginning is.
    pub fn append(&mut self, line: &str) -> io::Result<()> {
        let written = self.try_append(line);
        if written.is_err() {
            // Perhaps it works again later, or somebody has removed the directory.
            self.open = None;
        }
        written
    }

    fn try_append(&mut self, line: &str) -> io::Result<()> {
        self.open()?;
        let full = |(_, bytes): &(File, u64)| bytes + line.len() as u64 > self.bytes_max;
        if self.open.as_ref().is_some_and(full) {
            self.open = None;
            fs::rename(&self.path, older(&self.path))?;
            self.headless = true;
            self.open()?;
        }
        let Some((file, bytes)) = &mut self.open else {
            return Ok(());
        };
        if std::mem::take(&mut self.torn) {
            file.write_all(b"\n")?;
            *bytes += 1;
        }
        self.torn = true;
        file.write_all(line.as_bytes())?;
        self.torn = false;
        *bytes += line.len() as u64;
        Ok(())
    }

    fn open(&mut self) -> io::Result<()> {
        if self.open.is_some() {
            return Ok(());
        }
        let (mut file, mut bytes) = self.begin()?;
        if self.headless {
            file.write_all(self.again.as_bytes())?;
            bytes += self.again.len() as u64;
            self.headless = false;
        }
        self.open = Some((file, bytes));
        Ok(())
    }

    fn begin(&mut self) -> io::Result<(File, u64)> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).read(true).mode(0o600);
        let mut file = options.custom_flags(libc::O_NOFOLLOW).open(&self.path)?;
        let bytes = file.metadata()?.len();
        if bytes > 0 {
            // A launcher that was killed may have left half a line.
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            self.torn |= last != *b"\n";
        }
        Ok((file, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_hold_the_newest_lines_and_each_begins_with_whose_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut file = Rolling::new(path.clone(), 100, "again\n".into());
        for n in 0..60 {
            file.append(&format!("line {n}\n")).unwrap();
        }
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let (old, new) = (read(&older(&path)), read(&path));
        assert!(old.len() <= 100 && new.len() <= 100);
        assert!(old.starts_with("again\n") && new.starts_with("again\n"));
        let lines: Vec<&str> = old.lines().chain(new.lines()).collect();
        let lines: Vec<&str> = lines.into_iter().filter(|line| *line != "again").collect();
        let first = 60 - lines.len();
        let wanted: Vec<String> = (first..60).map(|n| format!("line {n}")).collect();
        assert_eq!(lines, wanted);
    }

    #[test]
    fn half_a_line_spoils_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        fs::write(&path, "whole\nhal").unwrap();
        let mut file = Rolling::new(path.clone(), 1 << 20, String::new());
        file.append("next\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole\nhal\nnext\n");
    }

    #[test]
    fn what_cannot_be_written_is_an_error_and_later_lines_are_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gone/events.jsonl");
        let mut file = Rolling::new(path.clone(), 1 << 20, String::new());
        assert!(file.append("lost\n").is_err());
        fs::create_dir(dir.path().join("gone")).unwrap();
        file.append("kept\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept\n");
    }
}

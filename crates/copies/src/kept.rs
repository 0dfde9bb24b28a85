//! Records in memory that the keeper owns, where the disk takes none.
//!
//! Invariant: at most [`KEPT_BYTES_MAX`] bytes.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use outlive_base::{Error, Result};
use outlive_vault::Record;
use rustix::fs::MemfdFlags;

/// Bytes of records that the keeper holds for a disk that takes none.
pub const KEPT_BYTES_MAX: u64 = 1 << 20;
/// The keeper's name for them.
pub const KEPT_TAG: &str = "records";

/// Records in memory that the keeper owns: each with its length in front. When it is
/// full the older half goes: versions in memory are two, decisions about older ones
/// are of no use.
pub struct Kept {
    file: std::fs::File,
    bytes: u64,
    lengths: VecDeque<u64>,
}

impl Kept {
    /// New and empty, with the descriptor to leave with the keeper.
    pub fn create() -> Result<(Kept, OwnedFd)> {
        let failed = |error: std::io::Error| Error::io("memfd", "create", &error);
        let fd = rustix::fs::memfd_create("outlive-records", MemfdFlags::CLOEXEC)
            .map_err(|error| failed(error.into()))?;
        let file = std::fs::File::from(fd.try_clone().map_err(failed)?);
        let kept = Kept {
            file,
            bytes: 0,
            lengths: VecDeque::new(),
        };
        Ok((kept, fd))
    }

    /// What an agent before this one left. What is cut off or damaged is not there.
    pub fn adopt(fd: OwnedFd, job_hash: u64) -> (Kept, Vec<Record>) {
        let mut kept = Kept {
            file: std::fs::File::from(fd),
            bytes: 0,
            lengths: VecDeque::new(),
        };
        let mut records = Vec::new();
        let mut length = [0; 4];
        while kept.file.read_exact_at(&mut length, kept.bytes).is_ok() {
            let bytes = u64::from(u32::from_le_bytes(length));
            if bytes == 0 || kept.bytes + 4 + bytes > KEPT_BYTES_MAX {
                break;
            }
            let mut record = vec![0; bytes as usize];
            let read = kept.file.read_exact_at(&mut record, kept.bytes + 4);
            let Some(record) = read
                .ok()
                .and_then(|()| Record::decode(&record, job_hash).ok())
            else {
                break;
            };
            records.push(record);
            kept.bytes += 4 + bytes;
            kept.lengths.push_back(4 + bytes);
        }
        (kept, records)
    }

    /// Adds records.
    pub fn add_all(&mut self, records: &[Record], job_hash: u64) -> Result<()> {
        let mut each = records.iter();
        each.try_for_each(|record| self.add(record, job_hash).map(drop))
    }

    /// Adds a record; true if older ones went for it.
    pub fn add(&mut self, record: &Record, job_hash: u64) -> Result<bool> {
        let failed = |error: std::io::Error| Error::io("memfd", "write a record", &error);
        let encoded = record.encode(job_hash);
        let bytes = encoded.filter(|bytes| (bytes.len() as u64) < KEPT_BYTES_MAX / 2 - 4);
        let bytes = bytes.ok_or_else(|| Error::internal("a record is too long to be kept"))?;
        let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
        framed.extend_from_slice(&bytes);
        let halved = self.bytes + framed.len() as u64 > KEPT_BYTES_MAX;
        if halved {
            self.halve().map_err(failed)?;
        }
        self.file
            .write_all_at(&framed, self.bytes)
            .map_err(failed)?;
        self.bytes += framed.len() as u64;
        self.lengths.push_back(framed.len() as u64);
        Ok(halved)
    }

    /// Removes a record wherever it is; one that is not there is no error.
    pub fn remove(&mut self, record: &Record, job_hash: u64) -> Result<()> {
        let failed = |error: std::io::Error| Error::io("memfd", "remove a record", &error);
        let Some(bytes) = record.encode(job_hash) else {
            return Ok(());
        };
        let mut all = vec![0; self.bytes as usize];
        self.file.read_exact_at(&mut all, 0).map_err(failed)?;
        let (mut rest, mut lengths, mut at) = (Vec::new(), VecDeque::new(), 0);
        for &length in &self.lengths {
            let next = at + length as usize;
            if all[at + 4..next] != bytes {
                rest.extend_from_slice(&all[at..next]);
                lengths.push_back(length);
            }
            at = next;
        }
        if lengths.len() < self.lengths.len() {
            self.file.write_all_at(&rest, 0).map_err(failed)?;
            self.file.set_len(rest.len() as u64).map_err(failed)?;
            (self.bytes, self.lengths) = (rest.len() as u64, lengths);
        }
        Ok(())
    }

    /// Drops the older half. A death in the middle leaves a prefix of what was there,
    /// old or new: each record is checked when it is read.
    fn halve(&mut self) -> std::io::Result<()> {
        let mut start = 0;
        while self.bytes - start > KEPT_BYTES_MAX / 2 {
            match self.lengths.pop_front() {
                Some(length) => start += length,
                None => break,
            }
        }
        let mut rest = vec![0; (self.bytes - start) as usize];
        self.file.read_exact_at(&mut rest, start)?;
        self.file.write_all_at(&rest, 0)?;
        self.bytes = rest.len() as u64;
        self.file.set_len(self.bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use outlive_base::{Code, Incarnation, Level, Version};

    fn abort(version: u64) -> Record {
        Record::Abort {
            incarnation: Incarnation(1),
            version: Version(version),
            level: Some(Level::MEMORY),
            code: Code::Io,
            text: "no space".into(),
        }
    }

    #[test]
    fn kept_records_are_found_again_and_bounded() {
        let (mut kept, fd) = Kept::create().unwrap();
        for version in 0..30_000 {
            kept.add(&abort(version), 7).unwrap();
            assert!(kept.bytes <= KEPT_BYTES_MAX);
        }
        let (again, records) = Kept::adopt(fd.try_clone().unwrap(), 7);
        assert_eq!(again.bytes, kept.bytes);
        assert_eq!(records.last(), Some(&abort(29_999)));
        assert!(records.len() > 1000);
        // The records of another job are not taken.
        assert!(Kept::adopt(fd.try_clone().unwrap(), 8).1.is_empty());
        // One that is cut off is not there, those before it are.
        let file = std::fs::File::from(fd.try_clone().unwrap());
        file.set_len(kept.bytes - 1).unwrap();
        assert_eq!(Kept::adopt(fd, 7).1.len(), records.len() - 1);
    }

    pub(crate) fn commit(version: u64) -> Record {
        Record::Commit {
            incarnation: Incarnation(1),
            version: Version(version),
            level: Level::SHARED,
            ballot: 1,
            ranks: 1,
            parts: Vec::new().into(),
            groups: Vec::new(),
        }
    }

    #[test]
    fn a_kept_record_that_is_removed_is_not_found_again() {
        let (mut kept, fd) = Kept::create().unwrap();
        for record in [abort(1), commit(2), abort(3)] {
            kept.add(&record, 7).unwrap();
        }
        kept.remove(&commit(2), 7).unwrap();
        kept.remove(&commit(4), 7).unwrap();
        kept.add(&abort(5), 7).unwrap();
        assert_eq!(Kept::adopt(fd, 7).1, [abort(1), abort(3), abort(5)]);
    }
}

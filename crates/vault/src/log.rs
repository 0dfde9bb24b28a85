//! A node's decisions about versions, one file for those of an incarnation:
//! `docs/format.md`, "Log of decisions". A file of its own for each of the eight records of a
//! version costs eight names, eight inodes and more than eight syncs; appended to one file they
//! cost a write and a sync each time.
//!
//! Invariants: what is durable is never written over, so a torn write harms only what was not
//! durable yet; what is read was whole; a batch that failed is cut off before anything
//! follows it; records go only by a new file that takes the place of the old one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outlive_base::Incarnation;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::aligned::PAGE64;
use crate::disk::{self, Temporary, parent, sync_directory, write_all};
use crate::error::WriteError;
use outlive_ledger::{Record, RecordError};

/// Room with which a log is made or grows: a write into it changes no length, so that a
/// sync is a write of data alone.
const SPARE_BYTES: u64 = 128 << 10;
/// Longest log that is read.
const LOG_BYTES_MAX: u64 = 1 << 32;
/// Looks at a log that somebody writes to, and the pause between two.
const LOOKS_MAX: u32 = 100;
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Records start at multiples of this.
const STEP: usize = 8;
/// Bytes that may be checked in vain, relative to the file: a made-up file must not cost more.
const VAIN_MAX: usize = 4;

/// True for what a log takes: what comes with every version.
pub(crate) fn takes(record: &Record) -> Option<Incarnation> {
    let often = matches!(
        record,
        Record::Prepared { .. }
            | Record::Commit { .. }
            | Record::Abort { .. }
            | Record::Tombstone { .. }
    );
    let (incarnation, _) = record.checkpoint().filter(|_| often)?;
    Some(incarnation)
}

/// True for the name of any job's log.
pub(crate) fn is_log(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b"decisions-i") && name.ends_with(b".log")
}

fn name_of(incarnation: Incarnation, job_hash: u64) -> String {
    format!("decisions-i{}-{job_hash:016x}.log", incarnation.0)
}

/// What a log holds.
#[derive(Default)]
pub(crate) struct Content {
    /// Sound records in the order of writing.
    pub records: Vec<Record>,
    /// The names of sound records of another job.
    pub foreign: Vec<String>,
    /// Damaged records, or stretches that are none.
    pub damaged: usize,
    /// Where the next batch goes.
    end: u64,
}

impl Content {
    /// Reads a log; it need not be of this job. Another process may be writing to it: what
    /// looks like damage is looked at again while nobody writes.
    pub(crate) fn read(path: &Path, job_hash: u64) -> io::Result<Content> {
        let look = |file: &File| {
            let mut bytes = Vec::new();
            file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok::<_, io::Error>(Content::parse(&bytes, job_hash))
        };
        let mut content = look(&disk::open_read(path, false)?)?;
        for _ in 0..LOOKS_MAX {
            if content.damaged == 0 {
                break;
            }
            let file = disk::open_read(path, false)?;
            let locked = flock(&file, FlockOperation::NonBlockingLockShared);
            content = look(&file)?;
            match locked {
                Err(Errno::WOULDBLOCK) => std::thread::sleep(LOOK_AGAIN),
                // Locked, or a file system that has no locks.
                _ => break,
            }
        }
        Ok(content)
    }

    /// Finds the records in any bytes.
    pub(crate) fn parse(bytes: &[u8], job_hash: u64) -> Content {
        let mut content = Content::default();
        // Inside of what is damaged: it is counted once.
        let mut lost = false;
        let (mut at, mut end, mut vain) = (0, 0, 0);
        while let Some(word) = bytes.get(at..at + STEP) {
            let length = Record::length_at(&bytes[at..]);
            let record = &bytes[at..at + length.unwrap_or(0)];
            let decoded = (length.is_some() && vain <= bytes.len().saturating_mul(VAIN_MAX))
                .then(|| Record::decode(record, job_hash));
            match decoded {
                Some(Ok(sound)) => content.records.push(sound),
                Some(Err(RecordError::OtherJob)) => {
                    let theirs = Record::job_hash_at(record);
                    if let Ok(sound) = Record::decode(record, theirs) {
                        content.foreign.push(sound.file_name(false));
                    }
                }
                other => {
                    vain += record.len();
                    if word != [0; STEP] {
                        content.damaged += usize::from(!lost || other.is_some());
                        lost = true;
                        end = at + STEP;
                    }
                    at += STEP;
                    continue;
                }
            }
            lost = false;
            at += record.len().next_multiple_of(STEP);
            end = at;
        }
        let rest = bytes.len() % STEP;
        if bytes[bytes.len() - rest..].iter().any(|byte| *byte != 0) {
            content.damaged += usize::from(!lost);
            end = bytes.len();
        }
        content.end = (end as u64).next_multiple_of(PAGE64);
        content
    }
}

/// One file.
struct Log {
    path: PathBuf,
    /// The number of the file that this process has made: another file of its name is not
    /// it. None before, or after a write that failed. It is not kept open, for a file system
    /// on which a file is open for writing can be neither unmounted nor made read-only.
    number: Option<u64>,
    records: BTreeMap<String, Arc<Record>>,
    end: u64,
    length: u64,
}

/// The logs of a node, for the one process that writes there.
pub(crate) struct Logs {
    directory: PathBuf,
    job_hash: u64,
    logs: BTreeMap<Incarnation, Log>,
    /// Records of the kinds that logs take which have files of their own, by name: of an
    /// earlier release, or written when the disk was full. They stay there.
    pub files: BTreeSet<String>,
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Logs").field(&self.directory).finish()
    }
}

/// A record, its file's name as one of its own, and its bytes.
pub(crate) struct Entry<'a> {
    pub record: &'a Record,
    pub name: String,
    pub bytes: Vec<u8>,
}

impl Logs {
    /// The logs of this job in a directory, as they are there.
    pub(crate) fn open(directory: &Path, job_hash: u64) -> Logs {
        let mut logs = Logs {
            directory: directory.to_owned(),
            job_hash,
            logs: BTreeMap::new(),
            files: BTreeSet::new(),
        };
        // What cannot be listed or read is not there; a scan says why.
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if !is_log(&entry.file_name()) {
                logs.files.extend(entry.file_name().into_string());
                continue;
            }
            let Ok(content) = Content::read(&entry.path(), job_hash) else {
                continue;
            };
            for record in content.records {
                let named = takes(&record)
                    .filter(|incarnation| *name_of(*incarnation, job_hash) == *entry.file_name());
                if let Some(incarnation) = named {
                    let log = logs.of(incarnation);
                    log.records
                        .insert(record.file_name(false), Arc::new(record));
                }
            }
        }
        logs
    }

    fn of(&mut self, incarnation: Incarnation) -> &mut Log {
        let path = self.directory.join(name_of(incarnation, self.job_hash));
        self.logs.entry(incarnation).or_insert_with(|| Log {
            path,
            number: None,
            records: BTreeMap::new(),
            end: 0,
            length: 0,
        })
    }

    /// The record that stands under a name.
    pub(crate) fn get(&self, incarnation: Incarnation, name: &str) -> Option<&Record> {
        self.logs
            .get(&incarnation)?
            .records
            .get(name)
            .map(|it| &**it)
    }

    /// The records of a file, if it is as this process left it.
    pub(crate) fn known(&self, name: &OsStr) -> Option<impl Iterator<Item = &Arc<Record>>> {
        let mut logs = self.logs.values();
        let log = logs.find(|log| log.path.file_name() == Some(name))?;
        log.stands().then(|| log.records.values())
    }

    /// Makes records of one incarnation durable: all, or none.
    pub(crate) fn append(
        &mut self,
        incarnation: Incarnation,
        entries: &[Entry<'_>],
    ) -> Result<(), WriteError> {
        let job_hash = self.job_hash;
        let log = self.of(incarnation);
        let known =
            |entry: &&Entry<'_>| log.records.get(&entry.name).map(|it| &**it) != Some(entry.record);
        let new: Vec<&Entry<'_>> = entries.iter().filter(known).collect();
        match log.stands() {
            true if new.is_empty() => Ok(()),
            true => log.extend(&new),
            // One that was there when this process began is written anew: nobody knows
            // whether its end is durable, or whether damage lies behind it.
            false => log.rewrite(&new, job_hash),
        }
    }

    /// Removes records by name, durably; a log without any goes.
    pub(crate) fn remove(&mut self, records: &[&Record]) -> Result<(), WriteError> {
        let mut changed: BTreeMap<Incarnation, Vec<String>> = BTreeMap::new();
        for record in records {
            let name = record.file_name(false);
            if let Some(incarnation) = takes(record)
                && self.get(incarnation, &name).is_some()
            {
                changed.entry(incarnation).or_default().push(name);
            }
        }
        for (incarnation, names) in changed {
            let job_hash = self.job_hash;
            let log = self.of(incarnation);
            let taken: Vec<(String, Arc<Record>)> = names
                .iter()
                .filter_map(|name| log.records.remove_entry(name))
                .collect();
            let result = match log.records.is_empty() {
                true => log.delete(),
                false => log.rewrite(&[], job_hash),
            };
            if let Err(error) = result {
                log.records.extend(taken);
                return Err(error);
            }
            if log.records.is_empty() {
                self.logs.remove(&incarnation);
            }
        }
        Ok(())
    }
}

impl Log {
    /// True if the file of this name is the one that this process writes to.
    fn stands(&self) -> bool {
        let there = std::fs::metadata(&self.path).map(|data| data.ino());
        self.number.is_some() && there.ok() == self.number
    }

    /// Appends a batch that starts at a page of its own.
    fn extend(&mut self, new: &[&Entry<'_>]) -> Result<(), WriteError> {
        let file = OpenOptions::new().write(true).open(&self.path);
        let file = &file.map_err(|error| WriteError::io(&self.path, "open", error))?;
        let batch = pack(new.iter().map(|entry| &entry.bytes[..]));
        let end = self.end + batch.len() as u64;
        let spare = match end <= self.length {
            true => 0,
            false => SPARE_BYTES,
        };
        let zeros = vec![0; spare as usize];
        let mut slices = [IoSlice::new(&batch), IoSlice::new(&zeros)];
        // Readers of other processes wait for the end of the write. One that holds the lock, or a
        // file system without locks, holds up nothing.
        let _ = flock(file, FlockOperation::NonBlockingLockExclusive);
        let written = write_all(file, &mut slices, self.end);
        let _ = flock(file, FlockOperation::Unlock);
        let written = written.and_then(|()| file.sync_data());
        if let Err(error) = written {
            // What failed is not there, and the next that is written does not follow it.
            if file.set_len(self.end).is_ok() {
                self.length = self.end;
            } else {
                self.number = None;
            }
            return Err(WriteError::io(&self.path, "write", error));
        }
        self.end = end;
        self.length = self.length.max(end + spare);
        self.learn(new);
        Ok(())
    }

    /// Writes all records and new ones into another file, which takes the place of this one.
    fn rewrite(&mut self, new: &[&Entry<'_>], job_hash: u64) -> Result<(), WriteError> {
        let mut encoded = Vec::with_capacity(self.records.len());
        let replaced = |name: &String| new.iter().any(|entry| entry.name == *name);
        for record in self.records.iter().filter(|(name, _)| !replaced(name)) {
            encoded.extend(record.1.encode(job_hash));
        }
        let all = encoded.iter().map(|bytes| &bytes[..]);
        let batch = pack(all.chain(new.iter().map(|entry| &entry.bytes[..])));
        let zeros = vec![0; SPARE_BYTES as usize];
        let made = Temporary::create(&self.path, false)?;
        let failed = |error| WriteError::io(&self.path, "write", error);
        let mut slices = [IoSlice::new(&batch), IoSlice::new(&zeros)];
        write_all(&made.file, &mut slices, 0).map_err(failed)?;
        made.sync()?;
        let number = made.file.metadata().map_err(failed)?.ino();
        // From here on nobody knows which of the two stands, until the directory is synced.
        self.number = None;
        made.rename()?;
        sync_directory(parent(&self.path))?;
        self.number = Some(number);
        self.end = batch.len() as u64;
        self.length = self.end + SPARE_BYTES;
        self.learn(new);
        Ok(())
    }

    fn learn(&mut self, new: &[&Entry<'_>]) {
        let each = new
            .iter()
            .map(|entry| (entry.name.clone(), Arc::new(entry.record.clone())));
        self.records.extend(each);
    }

    fn delete(&mut self) -> Result<(), WriteError> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(WriteError::io(&self.path, "remove", error));
            }
            _ => {}
        }
        self.number = None;
        sync_directory(parent(&self.path))
    }
}

/// Records one after the other, to a whole page.
fn pack<'a>(records: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut batch = Vec::new();
    for bytes in records {
        batch.extend_from_slice(bytes);
        batch.resize(batch.len().next_multiple_of(STEP), 0);
    }
    batch.resize(batch.len().next_multiple_of(PAGE64 as usize), 0);
    batch
}

#[cfg(test)]
mod tests;

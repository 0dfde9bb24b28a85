//! A directory of records.
//!
//! Invariants: a record is there whole and durable, or not at all; persisting the
//! same record again changes nothing; a decision (incarnation, commit) is never
//! replaced by another, a promise only by a higher one; scanning needs no lock and tolerates writers, unfinished
//! files and damage, which it reports (P9).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, Read};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outlive_base::{Incarnation, Level};

use crate::disk::{self, Temporary, create_directory, parent, sync_directory, write_all};
use crate::error::{ReadError, WriteError};
use crate::log::{self, Content, Entry, Logs};
use crate::reserve::{self, Reserve};
use outlive_ledger::{RECORD_BYTES_MAX, Record, RecordError};

/// What [`RecordStore::persist_exclusive`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Exclusive {
    /// The record is there now; it was not before.
    Created,
    /// A record of this name was there before, and stands.
    Stands(Record),
}

/// What a scan found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scan {
    /// All sound records: those with a file of their own, by its name, then those of logs.
    pub records: Vec<Record>,
    /// Files that are damaged, misnamed or of an unknown format; a log once for each record.
    pub damaged: Vec<PathBuf>,
    /// Sound records of another job, left by an earlier life of the directory; one in a log
    /// by the log's path and its own name.
    pub foreign: Vec<PathBuf>,
}

/// The records in one directory.
#[derive(Clone, Debug)]
pub struct RecordStore {
    directory: PathBuf,
    job_hash: u64,
    /// What [`RecordStore::scan_again`] has read.
    known: Arc<Mutex<Known>>,
    /// Room on a full disk, for a node's own records.
    reserve: Option<Arc<Reserve>>,
    /// Where a node's decisions about versions go, for the one process that writes them.
    logs: Option<Arc<Mutex<Logs>>>,
}

/// Sound records by their file's name, with the number of the file: a record is never
/// changed in place, so the same file under the same name says the same.
type Known = BTreeMap<OsString, (u64, Arc<Record>)>;

/// What there is, for a caller that comes often: records are shared, not copied.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Seen {
    pub records: Vec<Arc<Record>>,
    pub damaged: Vec<PathBuf>,
    pub foreign: Vec<PathBuf>,
}

impl From<Seen> for Scan {
    fn from(seen: Seen) -> Scan {
        let records = seen.records.into_iter().map(Arc::unwrap_or_clone);
        Scan {
            records: records.collect(),
            damaged: seen.damaged,
            foreign: seen.foreign,
        }
    }
}

impl RecordStore {
    /// Opens the directory for writing; creates it, private to the user.
    pub fn open(directory: &Path, job_hash: u64) -> Result<RecordStore, WriteError> {
        create_directory(directory)?;
        sync_directory(parent(directory))?;
        Ok(RecordStore::at(directory, job_hash))
    }

    /// The directory for reading; it need not exist.
    pub fn at(directory: &Path, job_hash: u64) -> RecordStore {
        RecordStore {
            directory: directory.to_owned(),
            job_hash,
            known: Arc::default(),
            reserve: None,
            logs: None,
        }
    }

    /// The same for the one process that writes here: decisions about versions are
    /// appended to a log.
    pub(crate) fn with_logs(mut self) -> RecordStore {
        let logs = Logs::open(&self.directory, self.job_hash);
        self.logs = Some(Arc::new(Mutex::new(logs)));
        self
    }

    fn logs(&self) -> Option<MutexGuard<'_, Logs>> {
        let logs = self.logs.as_ref()?;
        Some(logs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same with room kept beside the directory. What is missing of it is made.
    pub(crate) fn with_reserve(mut self) -> RecordStore {
        let beside = parent(&self.directory).join(reserve::NAME);
        self.reserve = Some(Arc::new(Reserve::at(beside)));
        self.refill();
        self
    }

    /// Makes the room again that records on a full disk have taken, if there is some.
    pub fn refill(&self) {
        if let Some(reserve) = &self.reserve {
            reserve.fill();
        }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes a record durable. Returns only when it would survive a power cut. One
    /// that is there already is made durable again; an incarnation or commit that
    /// says something else, or a lower promise, is a conflict; other records are replaced.
    pub fn persist(&self, record: &Record) -> Result<(), WriteError> {
        let mut results = self.persist_all(&[record]);
        results.pop().unwrap_or(Ok(()))
    }

    /// [`RecordStore::persist`] for several records of different names that may share
    /// their syncs: one result each, in their order. After a power cut any of them may
    /// be there without the others.
    pub fn persist_all(&self, records: &[&Record]) -> Vec<Result<(), WriteError>> {
        self.persist_each(records, false)
    }

    /// [`RecordStore::persist_all`] as if nothing were left but the room that is kept.
    pub fn persist_in_reserve(&self, records: &[&Record]) -> Vec<Result<(), WriteError>> {
        self.persist_each(records, true)
    }

    fn persist_each(&self, records: &[&Record], full: bool) -> Vec<Result<(), WriteError>> {
        let mut results: Vec<Option<Result<(), WriteError>>> = match full {
            true => records.iter().map(|_| None).collect(),
            false => self.persist_in_logs(records),
        };
        // What no log takes, or none has room for, has a file of its own.
        let left = results
            .iter()
            .zip(records)
            .filter(|(done, _)| done.is_none());
        let left: Vec<&Record> = left.map(|(_, record)| *record).collect();
        if !left.is_empty() {
            let mut files = self.persist_in_files(&left, full).into_iter();
            results.iter_mut().for_each(|result| {
                if result.is_none() {
                    *result = files.next();
                }
            });
        }
        results.into_iter().flatten().collect()
    }

    /// What of these a log has taken or refused.
    fn persist_in_logs(&self, records: &[&Record]) -> Vec<Option<Result<(), WriteError>>> {
        let mut results: Vec<Option<Result<(), WriteError>>> = Vec::new();
        let mut batches: BTreeMap<Incarnation, (Vec<usize>, Vec<Entry<'_>>)> = BTreeMap::new();
        let Some(mut logs) = self.logs() else {
            return records.iter().map(|_| None).collect();
        };
        for (at, record) in records.iter().enumerate() {
            results.push(None);
            let Some(incarnation) = log::takes(record) else {
                continue;
            };
            let name = record.file_name(false);
            let path = self.directory.join(&name);
            let conflict =
                |found: &Record| matches!(record, Record::Commit { .. }) && found != *record;
            if logs.get(incarnation, &name).is_some_and(conflict) {
                results[at] = Some(Err(WriteError::Conflict(path)));
            } else if !logs.files.contains(&name) {
                match self.encode(record) {
                    Ok(bytes) => {
                        let (places, entries) = batches.entry(incarnation).or_default();
                        places.push(at);
                        entries.push(Entry {
                            record,
                            name,
                            bytes,
                        });
                    }
                    Err(error) => results[at] = Some(Err(error)),
                }
            }
        }
        for (incarnation, (places, entries)) in batches {
            let result = logs.append(incarnation, &entries);
            for at in places {
                results[at] = match &result {
                    Ok(()) => Some(Ok(())),
                    Err(error) if error.is_full() => None,
                    Err(error) => Some(Err(error.again())),
                };
            }
        }
        results
    }

    fn persist_in_files(&self, records: &[&Record], full: bool) -> Vec<Result<(), WriteError>> {
        let staged: Vec<_> = records
            .iter()
            .map(|record| self.stage(record, full))
            .collect();
        // All are written before the first is synced: the file system then writes its
        // own log once for many.
        let named: Vec<Result<(), WriteError>> = records
            .iter()
            .zip(staged)
            .map(|(record, staged)| match staged? {
                Staged::There(path) => sync_file(&path),
                Staged::New(file) => {
                    file.sync()?;
                    let number = file.file.metadata().map(|data| data.ino());
                    file.rename()?;
                    self.remember(record, number.ok());
                    if let (Some(_), Some(mut logs)) = (log::takes(record), self.logs()) {
                        logs.files.insert(record.file_name(false));
                    }
                    Ok(())
                }
            })
            .collect();
        if named.iter().all(Result::is_err) {
            return named;
        }
        let again = || sync_directory(&self.directory);
        match again() {
            Ok(()) => named,
            Err(first) => {
                let mut first = Some(first);
                let failed = |result: Result<(), WriteError>| {
                    result.and_then(|()| first.take().map_or_else(again, Err))
                };
                named.into_iter().map(failed).collect()
            }
        }
    }

    /// What was just written need not be read by [`RecordStore::scan_again`].
    fn remember(&self, record: &Record, number: Option<u64>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let name = record.file_name(false).into();
        match number {
            Some(number) => known.insert(name, (number, Arc::new(record.clone()))),
            None => known.remove(&name),
        };
    }

    /// Writes a record under a temporary name, unless it is there.
    fn stage(&self, record: &Record, full: bool) -> Result<Staged, WriteError> {
        let path = self.directory.join(record.file_name(false));
        let bytes = self.encode(record)?;
        match self.read(&path) {
            Ok(found) if found == bytes => return Ok(Staged::There(path)),
            Ok(found) => match (record, Record::decode(&found, self.job_hash)) {
                (Record::Incarnation { .. } | Record::Commit { .. }, Ok(_)) => {
                    return Err(WriteError::Conflict(path));
                }
                // A promise that went back would be no promise.
                (Record::Promise { ballot }, Ok(Record::Promise { ballot: given }))
                    if *ballot < given =>
                {
                    return Err(WriteError::Conflict(path));
                }
                _ => {}
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // An unreadable record is as good as none: the sound one replaces it.
            Err(error) => tracing::warn!(path = %path.display(), %error, "record replaced"),
        }
        let written = match full {
            true => Err(WriteError::io(&path, "create", io::ErrorKind::StorageFull)),
            false => Temporary::create(&path, false).and_then(|file| fill(file, &bytes)),
        };
        let written = written.or_else(|error| match error.is_full() && is_essential(record) {
            true => self.stage_in_reserve(&path, &bytes).ok_or(error),
            false => Err(error),
        });
        written.map(Staged::New)
    }

    /// A record on a disk that is full.
    fn stage_in_reserve(&self, path: &Path, bytes: &[u8]) -> Option<Temporary> {
        let reserve = self.reserve.as_ref()?;
        let length = bytes.len() as u64;
        let file = Temporary::take(path, |at| reserve.give(at, length))?;
        write_all(&file.file, &mut [IoSlice::new(bytes)], 0).ok()?;
        file.file.set_len(length).ok()?;
        Some(file)
    }

    /// Makes a record durable only if none of its name is there: for directories
    /// that several processes share, where one immutable record a version stands. A
    /// damaged one that is there is an error, for nobody can tell what it said.
    pub fn persist_exclusive(&self, record: &Record) -> Result<Exclusive, WriteError> {
        let path = self.directory.join(record.file_name(true));
        let bytes = self.encode(record)?;
        if self.write(&path, &bytes)?.publish_new()? {
            return Ok(Exclusive::Created);
        }
        self.sync_again(&path)?;
        let found = self
            .read(&path)
            .map_err(|error| WriteError::io(&path, "read", error))?;
        match Record::decode(&found, self.job_hash) {
            Ok(found) => Ok(Exclusive::Stands(found)),
            Err(_) => Err(WriteError::Damaged(path)),
        }
    }

    /// Reads all records. A directory that does not exist holds none.
    pub fn scan(&self) -> Result<Scan, ReadError> {
        let mut known = Known::new();
        let seen = self.scan_beside(&mut known, false)?;
        drop(known);
        Ok(seen.into())
    }

    /// [`RecordStore::scan`] that reads only what it has not read before: for a caller that
    /// comes often. Damage to a record that was read is not seen.
    pub(crate) fn scan_again(&self) -> Result<Seen, ReadError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.scan_beside(&mut known, true)
    }

    /// Reads what is not known, and leaves there what there is.
    fn scan_beside(&self, known: &mut Known, again: bool) -> Result<Seen, ReadError> {
        let mut scan = Seen::default();
        let mut found = Known::new();
        let mut logged = Vec::new();
        for (name, file) in self.names()? {
            let path = self.directory.join(&name);
            if log::is_log(&name) {
                self.scan_log(&name, again, &mut logged, &mut scan);
                continue;
            }
            if let Some((_, record)) = known.remove(&name).filter(|(known, _)| *known == file) {
                found.insert(name, (file, record));
                continue;
            }
            let decoded = match self.read(&path) {
                Ok(bytes) => Record::decode(&bytes, self.job_hash),
                // Removed since it was listed: by its owner, as a record may be.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(_) => Err(RecordError::Checksum),
            };
            let is_its_name = |record: &Record| {
                let mut names = [true, false].into_iter();
                names.any(|exclusive| *record.file_name(exclusive) == name)
            };
            match decoded {
                Ok(record) if is_its_name(&record) => {
                    found.insert(name, (file, Arc::new(record)));
                }
                Err(RecordError::OtherJob) => scan.foreign.push(path),
                _ => scan.damaged.push(path),
            }
        }
        scan.records = found
            .values()
            .map(|(_, record)| Arc::clone(record))
            .collect();
        scan.records.extend(logged);
        *known = found;
        Ok(scan)
    }

    /// What a log says; `again`: this process knows what it has written itself.
    fn scan_log(&self, name: &OsStr, again: bool, logged: &mut Vec<Arc<Record>>, scan: &mut Seen) {
        let logs = self.logs().filter(|_| again);
        if let Some(known) = logs.as_ref().and_then(|logs| logs.known(name)) {
            return logged.extend(known.cloned());
        }
        let path = self.directory.join(name);
        match Content::read(&path, self.job_hash) {
            Ok(content) => {
                // Of records with one name the last stands, as if it had taken the place of
                // the others.
                let named = content.records.into_iter();
                let named = named.map(|record| (record.file_name(false), Arc::new(record)));
                logged.extend(named.collect::<BTreeMap<_, _>>().into_values());
                let theirs = content.foreign.iter().map(|name| path.join(name));
                scan.foreign.extend(theirs);
                let damaged = std::iter::repeat_n(path.clone(), content.damaged);
                scan.damaged.extend(damaged);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => scan.damaged.push(path),
        }
    }

    /// The names of finished records, in order, each with the number of its file.
    fn names(&self) -> Result<BTreeMap<OsString, u64>, ReadError> {
        let entries = match std::fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(ReadError::io(&self.directory, "list", error)),
        };
        let mut names = BTreeMap::new();
        for entry in entries {
            let entry = entry.map_err(|error| ReadError::io(&self.directory, "list", error))?;
            let name = entry.file_name();
            let bytes = name.as_encoded_bytes();
            if !bytes.starts_with(b".") && bytes.ends_with(b".rec") || log::is_log(&name) {
                names.insert(name, entry.ino());
            }
        }
        Ok(names)
    }

    /// Removes records, durably, with one sync; those that are not there are no error.
    pub fn remove_all(&self, records: &[&Record]) -> Result<(), WriteError> {
        self.remove_in_order(records, &[])
    }

    /// [`RecordStore::remove_all`] of two groups, of which the second goes only when the
    /// first has gone, or together with it.
    pub(crate) fn remove_in_order(
        &self,
        first: &[&Record],
        last: &[&Record],
    ) -> Result<(), WriteError> {
        self.remove_files(first)?;
        if let Some(mut logs) = self.logs() {
            logs.remove(&[first, last].concat())?;
        }
        self.remove_files(last)
    }

    /// Removes those that have files of their own.
    fn remove_files(&self, records: &[&Record]) -> Result<(), WriteError> {
        let mut logs = self.logs();
        let mut some = false;
        for record in records {
            let mut names = vec![record.file_name(false), record.file_name(true)];
            names.dedup();
            if let (Some(logs), Some(_)) = (&mut logs, log::takes(record)) {
                names.retain(|name| logs.files.remove(name));
            }
            for name in names {
                some = true;
                let path = self.directory.join(name);
                match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(WriteError::io(&path, "remove", error));
                    }
                    _ => {}
                }
            }
        }
        match some {
            false => Ok(()),
            true => sync_directory(&self.directory),
        }
    }

    /// Removes a record, durably; one that is not there is no error.
    pub fn remove(&self, record: &Record) -> Result<(), WriteError> {
        self.remove_all(&[record])
    }

    /// Removes unfinished files. Only for the one writer of a node's directory,
    /// before it writes; never for a shared one.
    pub fn sweep(&self) -> Result<(), WriteError> {
        disk::sweep(&self.directory)
    }

    fn encode(&self, record: &Record) -> Result<Vec<u8>, WriteError> {
        record
            .encode(self.job_hash)
            .ok_or_else(|| WriteError::Input(format!("{}: too long", record.file_name(false))))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = disk::open_read(path, false)?;
        file.take(RECORD_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<Temporary, WriteError> {
        let file = Temporary::create(path, false)?;
        write_all(&file.file, &mut [IoSlice::new(bytes)], 0)
            .map_err(|error| WriteError::io(path, "write", error))?;
        file.sync()?;
        Ok(file)
    }

    /// A writer before us may have died between rename and sync.
    fn sync_again(&self, path: &Path) -> Result<(), WriteError> {
        sync_file(path)?;
        sync_directory(&self.directory)
    }
}

/// True for what a node must be able to say on a full disk. A refusal is worth nothing
/// that its absence is not; what memory and shared storage keep is kept there.
fn is_essential(record: &Record) -> bool {
    match record {
        Record::Abort { .. } => false,
        Record::Prepared { level, .. } | Record::Commit { level, .. } => {
            matches!(level, Level::Disk | Level::Partner)
        }
        _ => true,
    }
}

fn fill(file: Temporary, bytes: &[u8]) -> Result<Temporary, WriteError> {
    let written = write_all(&file.file, &mut [IoSlice::new(bytes)], 0);
    match written {
        Ok(()) => Ok(file),
        Err(error) => Err(WriteError::io(file.target(), "write", error)),
    }
}

/// A record on its way.
enum Staged {
    /// It is there already, perhaps not durably.
    There(PathBuf),
    /// Written, not durable, without its name.
    New(Temporary),
}

fn sync_file(path: &Path) -> Result<(), WriteError> {
    let sync = || std::fs::File::open(path)?.sync_all();
    sync().map_err(|error| WriteError::io(path, "sync", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::{Incarnation, Version};

    #[test]
    fn a_scan_that_comes_again_sees_what_others_add_replace_and_remove() {
        let dir = tempfile::tempdir().unwrap();
        let store = RecordStore::open(dir.path(), 7).unwrap();
        let other = RecordStore::open(dir.path(), 7).unwrap();
        let pin = |version| Record::Pin {
            incarnation: Incarnation(1),
            version: Version(version),
        };
        store.persist_all(&[&pin(1), &pin(2)]);
        assert_eq!(
            Scan::from(store.scan_again().unwrap()),
            other.scan().unwrap()
        );
        other.persist(&pin(3)).unwrap();
        other.remove(&pin(1)).unwrap();
        assert_eq!(
            Scan::from(store.scan_again().unwrap()).records,
            [pin(2), pin(3)]
        );
        // Another file under a known name is read.
        let path = dir.path().join(pin(2).file_name(false));
        std::fs::write(dir.path().join("new"), b"damage").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        let scan = Scan::from(store.scan_again().unwrap());
        assert_eq!((scan.records, scan.damaged), (vec![pin(3)], vec![path]));
        assert_eq!(
            Scan::from(store.scan_again().unwrap()),
            other.scan().unwrap()
        );
        store.remove_all(&[&pin(2), &pin(3), &pin(4)]).unwrap();
        assert_eq!(store.scan_again().unwrap(), Seen::default());
    }
}

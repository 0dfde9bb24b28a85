//! The records of a store.
//!
//! Invariants: a record is there whole and durable, or not at all; persisting the
//! same record again changes nothing; a decision (incarnation, commit) is never
//! replaced by another, a promise only by a higher one; scanning needs no lock and tolerates writers, unfinished
//! files and damage, which it reports (P9).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outlive_base::Incarnation;

use crate::error::{ReadError, WriteError};
use crate::log::{self, Content, Entry, Logs};
use crate::store::{Item, Key, ObjectKind, Put, Space, Store};
use outlive_ledger::{Checkpoint, RECORD_BYTES_MAX, Record, RecordError};

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
    /// All sound records: those that are objects of their own, by name, then those of logs.
    pub records: Vec<Record>,
    /// Objects that are damaged, misnamed or of an unknown format; a log once for each record.
    pub damaged: Vec<Key>,
    /// Sound records of another job, left by an earlier life of the store; one in a log as if
    /// it were an object of its own.
    pub foreign: Vec<Key>,
}

/// The records of one store.
#[derive(Clone, Debug)]
pub struct RecordStore {
    store: Arc<dyn Store>,
    kind: ObjectKind,
    job_hash: u64,
    /// What [`RecordStore::scan_again`] has read.
    known: Arc<Mutex<Known>>,
    /// Where a node's decisions about versions go, for the one process that writes them.
    logs: Option<Arc<Mutex<Logs>>>,
}

/// Sound records by their key, with the tag of the object: a record is never changed in
/// place, so the same object says the same.
type Known = BTreeMap<Key, (u64, Arc<Record>)>;

/// What there is, for a caller that comes often: records are shared, not copied.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Seen {
    pub records: Vec<Arc<Record>>,
    pub damaged: Vec<Key>,
    pub foreign: Vec<Key>,
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
    /// The records of a kind: [`ObjectKind::Record`] or [`ObjectKind::Mark`].
    pub fn new(store: Arc<dyn Store>, kind: ObjectKind, job_hash: u64) -> RecordStore {
        RecordStore {
            store,
            kind,
            job_hash,
            known: Arc::default(),
            logs: None,
        }
    }

    /// The same for the one process that writes here: decisions about versions are
    /// appended to a log.
    pub(crate) fn with_logs(mut self) -> RecordStore {
        let logs = Logs::open(Arc::clone(&self.store), self.kind, self.job_hash);
        self.logs = Some(Arc::new(Mutex::new(logs)));
        self
    }

    fn logs(&self) -> Option<MutexGuard<'_, Logs>> {
        let logs = self.logs.as_ref()?;
        Some(logs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn key(&self, record: &Record, exclusive: bool) -> Key {
        Key::record(self.kind, record.file_name(exclusive))
    }

    /// What people find a record by.
    pub fn locate(&self, key: &Key) -> String {
        self.store.locate(key)
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
        let mut results = self.persist_in_logs(records);
        // What no log takes, or none has room for, is an object of its own.
        let left = results
            .iter()
            .zip(records)
            .filter(|(done, _)| done.is_none());
        let left: Vec<&Record> = left.map(|(_, record)| *record).collect();
        if !left.is_empty() {
            let mut objects = self.persist_as_objects(&left).into_iter();
            results.iter_mut().for_each(|result| {
                if result.is_none() {
                    *result = objects.next();
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
            if logs.know(incarnation).is_err() {
                continue;
            }
            let name = record.file_name(false);
            let conflict =
                |found: &Record| matches!(record, Record::Commit { .. }) && found != *record;
            if logs.get(incarnation, &name).is_some_and(conflict) {
                let path = self.locate(&self.key(record, false));
                results[at] = Some(Err(WriteError::Conflict(path)));
            } else if !logs.apart.contains(&name) {
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

    fn persist_as_objects(&self, records: &[&Record]) -> Vec<Result<(), WriteError>> {
        let mut results = Vec::new();
        let (mut again, mut new) = (Vec::new(), Vec::new());
        for (at, record) in records.iter().enumerate() {
            let key = self.key(record, false);
            let staged = self.encode(record).and_then(|bytes| {
                match self.stands(&key, record, &bytes)? {
                    true => again.push((at, key)),
                    false => new.push((at, key, bytes)),
                }
                Ok(())
            });
            results.push(staged);
        }
        let space = |record: &Record| match is_essential(record) {
            true => Space::FreeOrKept,
            false => Space::Free,
        };
        let puts = new.iter().map(|(at, key, bytes)| Put {
            key: key.clone(),
            bytes,
            space: space(records[*at]),
        });
        let told = self.store.put_all(&puts.collect::<Vec<_>>());
        for ((at, key, _), put) in new.into_iter().zip(told) {
            self.remember(key, records[at], &put);
            results[at] = put.map(drop);
        }
        for (at, key) in again {
            // It is there, perhaps not durably.
            results[at] = self.store.settle(self.kind, &[key]);
        }
        results
    }

    /// What was just written need not be read by [`RecordStore::scan_again`].
    fn remember(&self, key: Key, record: &Record, put: &Result<u64, WriteError>) {
        // One that failed may be there all the same, unless there was no room for it.
        let full = put.as_ref().is_err_and(WriteError::is_full);
        if let (false, Some(_), Some(mut logs)) = (full, log::takes(record), self.logs()) {
            logs.apart.insert(key.name().to_owned());
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match put {
            Ok(tag) => known.insert(key, (*tag, Arc::new(record.clone()))),
            Err(_) => known.remove(&key),
        };
    }

    /// True if the record stands; an error if another does which must not be replaced.
    fn stands(&self, key: &Key, record: &Record, bytes: &[u8]) -> Result<bool, WriteError> {
        match self.read(key) {
            Ok(found) if found == bytes => return Ok(true),
            Ok(found) => match (record, Record::decode(&found, self.job_hash)) {
                (Record::Incarnation { .. } | Record::Commit { .. }, Ok(_)) => {
                    return Err(WriteError::Conflict(self.locate(key)));
                }
                // A promise that went back would be no promise.
                (Record::Promise { ballot }, Ok(Record::Promise { ballot: given }))
                    if *ballot < given =>
                {
                    return Err(WriteError::Conflict(self.locate(key)));
                }
                _ => {}
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // What it says is not known, and may be read again tomorrow: a decision or a
            // promise is not written over in the dark.
            Err(error)
                if matches!(
                    record,
                    Record::Incarnation { .. } | Record::Commit { .. } | Record::Promise { .. }
                ) =>
            {
                return Err(WriteError::io(self.locate(key), "read", error));
            }
            Err(error) => {
                tracing::warn!(path = self.locate(key), %error, "record replaced");
            }
        }
        Ok(false)
    }

    /// Makes a record durable only if none of its name is there: for directories
    /// that several processes share, where one immutable record a version stands. A
    /// damaged one that is there is an error, for nobody can tell what it said.
    pub fn persist_exclusive(&self, record: &Record) -> Result<Exclusive, WriteError> {
        let key = self.key(record, true);
        if self.store.create(&key, &self.encode(record)?)? {
            return Ok(Exclusive::Created);
        }
        let found = self.read(&key);
        let found = found.map_err(|error| WriteError::io(self.locate(&key), "read", error))?;
        match Record::decode(&found, self.job_hash) {
            Ok(found) => Ok(Exclusive::Stands(found)),
            Err(_) => Err(WriteError::Damaged(self.locate(&key))),
        }
    }

    /// The newest incarnation of which there is a record, by the names of records: one listing.
    pub fn newest_opened(&self) -> Result<Option<Incarnation>, ReadError> {
        let items = self.items()?;
        let opened = items.iter().filter(|item| item.key.is_incarnation());
        Ok(opened.filter_map(|item| item.key.incarnation()).max())
    }

    /// Reads all records. A store that was never written to holds none.
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
        for Item { key, tag, .. } in self.items()? {
            if log::is_log(key.name()) {
                self.scan_log(key, again, &mut logged, &mut scan);
                continue;
            }
            if let Some((_, record)) = known.remove(&key).filter(|(known, _)| *known == tag) {
                found.insert(key, (tag, record));
                continue;
            }
            let decoded = match self.read(&key) {
                Ok(bytes) => Record::decode(&bytes, self.job_hash),
                // Removed since it was listed: by its owner, as a record may be.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(_) => Err(RecordError::Checksum),
            };
            let is_its_name = |record: &Record| {
                let mut names = [true, false].into_iter();
                names.any(|exclusive| record.file_name(exclusive) == key.name())
            };
            match decoded {
                Ok(record) if is_its_name(&record) => {
                    found.insert(key, (tag, Arc::new(record)));
                }
                Err(RecordError::OtherJob) => scan.foreign.push(key),
                _ => scan.damaged.push(key),
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
    fn scan_log(&self, key: Key, again: bool, logged: &mut Vec<Arc<Record>>, scan: &mut Seen) {
        let logs = self.logs().filter(|_| again);
        if let Some(known) = logs.as_ref().and_then(|logs| logs.known(&key)) {
            return logged.extend(known.cloned());
        }
        match Content::read(&*self.store, &key, self.job_hash) {
            Ok(content) => {
                // Of records with one name the last stands, as if it had taken the place of
                // the others.
                let named = content.records.into_iter();
                let named = named.map(|record| (record.file_name(false), Arc::new(record)));
                logged.extend(named.collect::<BTreeMap<_, _>>().into_values());
                let theirs = content.foreign.into_iter();
                scan.foreign
                    .extend(theirs.map(|name| Key::record(self.kind, name)));
                scan.damaged
                    .extend(std::iter::repeat_n(key, content.damaged));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => scan.damaged.push(key),
        }
    }

    /// The versions that are pinned here. The name of a pin counts, whatever its content has
    /// become: in doubt more is kept.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub fn pinned(&self) -> Result<BTreeSet<Checkpoint>, ReadError> {
        let items = self.items()?;
        let pins = items.iter().filter(|item| item.key.is_pin());
        Ok(pins.filter_map(|item| item.key.checkpoint()).collect())
    }

    /// The finished records, by name.
    fn items(&self) -> Result<Vec<Item>, ReadError> {
        let items = self.store.list(self.kind);
        let mut items =
            items.map_err(|error| ReadError::io(&self.store.name(), "list records", error))?;
        items.retain(|item| item.key.name().ends_with(".rec") || log::is_log(item.key.name()));
        items.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(items)
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
        self.remove_objects(first)?;
        if let Some(mut logs) = self.logs() {
            logs.remove(&[first, last].concat())?;
        }
        self.remove_objects(last)
    }

    /// Removes those that are objects of their own.
    fn remove_objects(&self, records: &[&Record]) -> Result<(), WriteError> {
        let logs = self.logs();
        let mut keys = Vec::new();
        for record in records {
            let mut names = vec![record.file_name(false), record.file_name(true)];
            names.dedup();
            if let (Some(logs), Some(_)) = (&logs, log::takes(record)) {
                names.retain(|name| !logs.listed || logs.apart.contains(name));
            }
            keys.extend(names.into_iter().map(|name| Key::record(self.kind, name)));
        }
        if keys.is_empty() {
            return Ok(());
        }
        self.store.remove(&keys)?;
        self.store.settle(self.kind, &[])?;
        if let Some(mut logs) = logs {
            keys.iter().for_each(|key| {
                logs.apart.remove(key.name());
            });
        }
        Ok(())
    }

    /// Removes a record, durably; one that is not there is no error.
    pub fn remove(&self, record: &Record) -> Result<(), WriteError> {
        self.remove_all(&[record])
    }

    fn encode(&self, record: &Record) -> Result<Vec<u8>, WriteError> {
        record
            .encode(self.job_hash)
            .ok_or_else(|| WriteError::Input(format!("{}: too long", record.file_name(false))))
    }

    fn read(&self, key: &Key) -> io::Result<Vec<u8>> {
        self.store.get(key, RECORD_BYTES_MAX as u64 + 1)
    }
}

/// True for what a node must be able to say on a full disk. A refusal is worth nothing
/// that its absence is not; what memory and shared storage keep is kept there.
fn is_essential(record: &Record) -> bool {
    match record {
        Record::Abort { .. } => false,
        Record::Prepared { level, .. } | Record::Commit { level, .. } => {
            level.store().is_of_nodes()
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::{Incarnation, Version};

    #[test]
    fn a_scan_that_comes_again_sees_what_others_add_replace_and_remove() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Arc::new(crate::Directory::at(dir.path()));
        let [store, other] =
            [(); 2].map(|()| RecordStore::new(directory.clone(), ObjectKind::Record, 7));
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
        let key = store.key(&pin(2), false);
        std::fs::write(dir.path().join("new"), b"damage").unwrap();
        std::fs::rename(dir.path().join("new"), directory.locate(&key)).unwrap();
        let scan = Scan::from(store.scan_again().unwrap());
        assert_eq!((scan.records, scan.damaged), (vec![pin(3)], vec![key]));
        assert_eq!(
            Scan::from(store.scan_again().unwrap()),
            other.scan().unwrap()
        );
        store.remove_all(&[&pin(2), &pin(3), &pin(4)]).unwrap();
        assert_eq!(store.scan_again().unwrap(), Seen::default());
    }

    /// A device that fails for a moment must not cost a promise, nor a decision.
    #[test]
    fn what_cannot_be_read_is_not_written_over() {
        use crate::faulty::{Act, Fate, Faults, Faulty};
        #[derive(Debug)]
        struct Unreadable;
        impl Faults for Unreadable {
            fn before(&self, act: Act, _: &Key, _: u64) -> Fate {
                match act {
                    Act::Read => Fate::Fails(io::ErrorKind::Other),
                    _ => Fate::Goes,
                }
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let directory = Arc::new(crate::Directory::at(dir.path()));
        let store = RecordStore::new(directory.clone(), ObjectKind::Record, 7);
        let promise = |ballot| Record::Promise { ballot };
        store.persist(&promise(5)).unwrap();
        let failing = Arc::new(Faulty::new(directory, Arc::new(Unreadable)));
        let failing = RecordStore::new(failing, ObjectKind::Record, 7);
        assert!(failing.persist(&promise(3)).is_err());
        assert_eq!(store.scan().unwrap().records, [promise(5)]);
        // What is no decision is written anew.
        let pin = Record::Pin {
            incarnation: Incarnation(1),
            version: Version(1),
        };
        store.persist(&pin).unwrap();
        failing.persist(&pin).unwrap();
    }
}

//! A node's decisions about versions, one file for those of an incarnation:
//! `docs/format.md`, "Log of decisions". A file of its own for each of the eight records of a
//! version costs eight names, eight inodes and more than eight syncs; appended to one file they
//! cost a write and a sync each time.
//!
//! Invariants: what is durable is never written over, so a torn write harms only what was not
//! durable yet; what is read was whole; a batch that failed is cut off before anything
//! follows it; records go only by a new file that takes the place of the old one.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use outlive_base::Incarnation;

use crate::aligned::PAGE64;
use crate::error::WriteError;
use crate::store::{Key, ObjectKind, Put, Space, Store};
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
pub(crate) fn is_log(name: &str) -> bool {
    name.starts_with("decisions-i") && name.ends_with(".log")
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
    pub(crate) fn read(store: &dyn Store, key: &Key, job_hash: u64) -> io::Result<Content> {
        let bytes = store.get(key, LOG_BYTES_MAX)?;
        let mut content = Content::parse(&bytes, job_hash);
        for _ in 0..LOOKS_MAX {
            if content.damaged == 0 {
                break;
            }
            match store.get_still(key, LOG_BYTES_MAX)? {
                None => std::thread::sleep(LOOK_AGAIN),
                Some(bytes) => {
                    content = Content::parse(&bytes, job_hash);
                    break;
                }
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
                    match Record::decode(record, theirs) {
                        Ok(sound) => content.foreign.push(sound.file_name(false)),
                        // It is sound by its digest, and no record that anybody writes.
                        Err(_) => content.damaged += usize::from(!lost),
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
            // A record follows the one before it, or begins the next batch: zeroes between them
            // stand where others were.
            let follows = at == end || at == end.next_multiple_of(PAGE64 as usize);
            content.damaged += usize::from(!lost && !follows);
            lost = false;
            let padded = at + record.len().next_multiple_of(STEP);
            let padding = bytes.get(at + record.len()..padded).unwrap_or_default();
            content.damaged += usize::from(padding.iter().any(|byte| *byte != 0));
            at = padded;
            end = at;
        }
        let rest = bytes.len() % STEP;
        if bytes[bytes.len() - rest..].iter().any(|byte| *byte != 0) {
            content.damaged += usize::from(!lost);
            end = bytes.len();
        } else if !ends_with_a_page_of_zeros(bytes) || end == 0 {
            // One that holds nothing at all is none that anybody has written.
            content.damaged += usize::from(!lost);
        }
        content.end = (end as u64).next_multiple_of(PAGE64);
        content
    }
}

/// True for a log that is there to its end: behind its last batch there is always an empty
/// page. One that was cut, even between two records, does not have it.
fn ends_with_a_page_of_zeros(bytes: &[u8]) -> bool {
    let rest = bytes.len().checked_sub(PAGE64 as usize);
    rest.is_some_and(|rest| bytes[rest..].iter().all(|byte| *byte == 0))
}

/// One log.
struct Log {
    store: Arc<dyn Store>,
    key: Key,
    /// The tag of the object that this process has made: another in its place is not it.
    /// None before, or after a write of which nobody knows where it ends.
    tag: Option<u64>,
    records: BTreeMap<String, Arc<Record>>,
    end: u64,
    length: u64,
}

/// The logs of a node, for the one process that writes there.
pub(crate) struct Logs {
    store: Arc<dyn Store>,
    kind: ObjectKind,
    job_hash: u64,
    logs: BTreeMap<Incarnation, Log>,
    /// Records of the kinds that logs take which are objects of their own, by name: of an
    /// earlier release, or written when the disk was full. They stay there.
    pub apart: BTreeSet<String>,
    /// True once the store could be listed.
    pub listed: bool,
    /// Logs that could not be read: what they hold is not known, and they are not written.
    unread: BTreeSet<Key>,
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Logs").field(&self.store).finish()
    }
}

/// A record, its name as an object of its own, and its bytes.
pub(crate) struct Entry<'a> {
    pub record: &'a Record,
    pub name: String,
    pub bytes: Vec<u8>,
}

impl Logs {
    /// The logs of this job in a store, as they are there.
    pub(crate) fn open(store: Arc<dyn Store>, kind: ObjectKind, job_hash: u64) -> Logs {
        let mut logs = Logs {
            store,
            kind,
            job_hash,
            logs: BTreeMap::new(),
            apart: BTreeSet::new(),
            listed: false,
            unread: BTreeSet::new(),
        };
        // What cannot be listed or read now is looked at again when it is needed.
        if let Err(error) = logs.list() {
            tracing::warn!(%error, "records cannot be listed");
        }
        logs
    }

    fn list(&mut self) -> io::Result<()> {
        let items = self.store.list(self.kind)?;
        self.listed = true;
        for item in items {
            if !is_log(item.key.name()) {
                self.apart.insert(item.key.name().to_owned());
            } else if let Err(error) = self.read(&item.key) {
                tracing::warn!(key = item.key.name(), %error, "a log cannot be read");
                self.unread.insert(item.key);
            }
        }
        Ok(())
    }

    fn read(&mut self, key: &Key) -> io::Result<()> {
        let job_hash = self.job_hash;
        for record in Content::read(&*self.store, key, job_hash)?.records {
            let named =
                takes(&record).filter(|incarnation| name_of(*incarnation, job_hash) == key.name());
            if let Some(incarnation) = named {
                let log = self.of(incarnation);
                log.records
                    .insert(record.file_name(false), Arc::new(record));
            }
        }
        Ok(())
    }

    /// Makes sure that it is known what an incarnation's log holds: one that is written anew
    /// without that would lose it.
    pub(crate) fn know(&mut self, incarnation: Incarnation) -> io::Result<()> {
        if !self.listed {
            self.list()?;
        }
        let key = self.of(incarnation).key.clone();
        if self.unread.contains(&key) {
            self.read(&key)?;
            self.unread.remove(&key);
        }
        Ok(())
    }

    fn of(&mut self, incarnation: Incarnation) -> &mut Log {
        let (store, kind, job_hash) = (&self.store, self.kind, self.job_hash);
        self.logs.entry(incarnation).or_insert_with(|| Log {
            store: Arc::clone(store),
            key: Key::record(kind, name_of(incarnation, job_hash)),
            tag: None,
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

    /// The records of a log, if it is as this process left it.
    pub(crate) fn known(&self, key: &Key) -> Option<impl Iterator<Item = &Arc<Record>>> {
        let log = self.logs.values().find(|log| log.key == *key)?;
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
            let Some(incarnation) = takes(record) else {
                continue;
            };
            if let Err(error) = self.know(incarnation) {
                let key = self.of(incarnation).key.clone();
                return Err(WriteError::io(self.store.locate(&key), "read", error));
            }
            if self.get(incarnation, &name).is_some() {
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
    /// True if the object of this key is the one that this process writes to.
    fn stands(&self) -> bool {
        self.tag.is_some() && self.store.tag(&self.key) == self.tag
    }

    /// Appends a batch that starts at a page of its own.
    fn extend(&mut self, new: &[&Entry<'_>]) -> Result<(), WriteError> {
        let batch = pack(new.iter().map(|entry| &entry.bytes[..]));
        let end = self.end + batch.len() as u64;
        let spare = match end + PAGE64 <= self.length {
            true => 0,
            false => SPARE_BYTES,
        };
        let zeros = vec![0; spare as usize];
        let mut slices = [IoSlice::new(&batch), IoSlice::new(&zeros)];
        if let Err(failed) = self.store.append(&self.key, self.end, &mut slices) {
            match failed.cut {
                true => self.length = self.end + PAGE64,
                false => self.tag = None,
            }
            return Err(failed.error);
        }
        self.end = end;
        self.length = self.length.max(end + spare);
        self.learn(new);
        Ok(())
    }

    /// Writes all records and new ones into another object, which takes the place of this
    /// one. If that fails, the old one stands, or another than this process knows.
    fn rewrite(&mut self, new: &[&Entry<'_>], job_hash: u64) -> Result<(), WriteError> {
        let mut encoded = Vec::with_capacity(self.records.len());
        let replaced = |name: &String| new.iter().any(|entry| entry.name == *name);
        for record in self.records.iter().filter(|(name, _)| !replaced(name)) {
            encoded.extend(record.1.encode(job_hash));
        }
        let all = encoded.iter().map(|bytes| &bytes[..]);
        let mut bytes = pack(all.chain(new.iter().map(|entry| &entry.bytes[..])));
        let end = bytes.len() as u64;
        bytes.resize(bytes.len() + SPARE_BYTES as usize, 0);
        let put = Put {
            key: self.key.clone(),
            bytes: &bytes,
            space: Space::Free,
        };
        let tags: Result<Vec<u64>, _> = self.store.put_all(&[put]).into_iter().collect();
        self.tag = tags?.pop();
        self.end = end;
        self.length = end + SPARE_BYTES;
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
        self.store.remove(std::slice::from_ref(&self.key))?;
        self.tag = None;
        self.store.settle(self.key.kind(), &[])
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

//! A member's log: what was agreed on and what is proposed, and for whom it voted.
//!
//! One file, to which frames are appended; what a later frame takes back stays in it until the
//! file is written anew, shorter, when a snapshot holds what it said.
//!
//! Invariants: what was confirmed is on the disk; a log with a gap is not believed; a frame that was being
//! written when the machine stopped was confirmed to nobody and is dropped.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::RangeBounds;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    Entry, ErrorSubject, ErrorVerb, LogId, LogState, OptionalSend, RaftLogReader, StorageError,
    StorageIOError, Vote,
};
use outlive_base::{Error, Result};
use outlive_launch::{files, input};
use serde::{Deserialize, Serialize};

use crate::Types;
use crate::frames::{self, End, FRAME_BYTES};

/// What the file begins with; the last byte is the version.
const MAGIC: [u8; frames::MAGIC_BYTES] = *b"OLCLOG\0\x02";

/// Its file, in a member's directory.
pub(crate) const LOG: &str = "log";
/// Longest file that is read: it is written anew long before.
const BYTES_MAX: u64 = 1 << 30;

/// A frame.
#[derive(Serialize, Deserialize)]
enum Record {
    Vote(Vote<u64>),
    Entry(Entry<Types>),
    /// Entries from this one on are taken back.
    Truncate(u64),
    /// Entries up to this one are in a snapshot.
    Purge(LogId<u64>),
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: File,
    vote: Option<Vote<u64>>,
    purged: Option<LogId<u64>>,
    entries: BTreeMap<u64, Entry<Types>>,
}

/// The log of one member.
#[derive(Clone, Debug)]
pub(crate) struct Log(Arc<Mutex<Inner>>);

fn fault(error: &Error, verb: ErrorVerb) -> StorageError<u64> {
    let error = io::Error::other(error.to_string());
    StorageIOError::new(ErrorSubject::Logs, verb, &error).into()
}

impl Log {
    /// Reads the log in a member's directory, or begins one. The bytes at its end that were
    /// dropped, if there were any.
    ///
    /// # Errors
    /// [`outlive_base::Code::Corrupt`], [`outlive_base::Code::FormatUnknown`]; those of the file
    /// system.
    pub(crate) fn open(dir: &Path) -> Result<(Log, usize)> {
        let path = dir.join(LOG);
        if !path.exists() {
            files::write_atomic(&path, &MAGIC)?;
        }
        let bytes = input::read(&path, BYTES_MAX)?;
        let (found, end) = frames::read(&path, &MAGIC, &bytes)?;
        let mut inner = Inner {
            file: open(&path)?,
            path: path.clone(),
            vote: None,
            purged: None,
            entries: BTreeMap::new(),
        };
        for body in found {
            let record = postcard::from_bytes(body)
                .map_err(|error| frames::damaged(&path, &error.to_string()))?;
            if let Record::Entry(entry) = &record
                && inner.next() != entry.log_id.index
            {
                return Err(frames::damaged(&path, "an entry is missing"));
            }
            inner.take(record);
        }
        let dropped = match end {
            End::Whole => 0,
            End::Torn(whole) => {
                let cut = inner.file.set_len(whole as u64);
                cut.and_then(|()| inner.file.sync_all())
                    .map_err(|error| Error::io(&path, "cut off", &error))?;
                bytes.len() - whole
            }
        };
        Ok((Log(Arc::new(Mutex::new(inner))), dropped))
    }

    /// Up to which index its entries are in a snapshot.
    pub(crate) fn purged(&self) -> Option<u64> {
        self.inner().purged.map(|upto| upto.index)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    let options = options.append(true).mode(0o600);
    options
        .open(path)
        .map_err(|error| Error::io(path, "open", &error))
}

fn frame(out: &mut Vec<u8>, record: &Record) -> Result<()> {
    let body = postcard::to_extend(record, Vec::with_capacity(128 + FRAME_BYTES))
        .map_err(|error| Error::internal(format!("cannot encode: {error}")))?;
    frames::put(out, &body)
}

impl Inner {
    /// A record in memory.
    fn take(&mut self, record: Record) {
        match record {
            Record::Vote(vote) => self.vote = Some(vote),
            Record::Entry(entry) => {
                self.entries.insert(entry.log_id.index, entry);
            }
            Record::Truncate(index) => drop(self.entries.split_off(&index)),
            Record::Purge(upto) => {
                self.entries = self.entries.split_off(&upto.index.saturating_add(1));
                self.purged = Some(upto);
            }
        }
    }

    /// The index of the entry that comes next.
    fn next(&self) -> u64 {
        let last = self.entries.last_key_value().map(|(index, _)| *index);
        let last = last.or(self.purged.map(|upto| upto.index));
        last.map_or(0, |last| last.saturating_add(1))
    }

    /// Puts records on the disk, then in memory.
    fn write(&mut self, records: Vec<Record>) -> Result<()> {
        let mut bytes = Vec::new();
        for record in &records {
            frame(&mut bytes, record)?;
        }
        let written = self.file.write_all(&bytes);
        written
            .and_then(|()| self.file.sync_data())
            .map_err(|error| Error::io(&self.path, "write", &error))?;
        records.into_iter().for_each(|record| self.take(record));
        Ok(())
    }

    /// Writes the file anew, with what counts still.
    fn shorten(&mut self, upto: LogId<u64>) -> Result<()> {
        let mut bytes = MAGIC.to_vec();
        if let Some(vote) = self.vote {
            frame(&mut bytes, &Record::Vote(vote))?;
        }
        frame(&mut bytes, &Record::Purge(upto))?;
        for entry in self.entries.range(upto.index + 1..) {
            frame(&mut bytes, &Record::Entry(entry.1.clone()))?;
        }
        files::write_atomic(&self.path, &bytes)?;
        self.file = open(&self.path)?;
        self.take(Record::Purge(upto));
        Ok(())
    }
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> std::result::Result<Vec<Entry<Types>>, StorageError<u64>> {
        let inner = self.inner();
        let found = inner.entries.range(range).map(|(_, entry)| entry.clone());
        Ok(found.collect())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> std::result::Result<LogState<Types>, StorageError<u64>> {
        let inner = self.inner();
        let last = inner
            .entries
            .last_key_value()
            .map(|(_, entry)| entry.log_id);
        Ok(LogState {
            last_purged_log_id: inner.purged,
            last_log_id: last.or(inner.purged),
        })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> std::result::Result<(), StorageError<u64>> {
        let written = self.inner().write(vec![Record::Vote(*vote)]);
        written.map_err(|error| fault(&error, ErrorVerb::Write))
    }

    async fn read_vote(&mut self) -> std::result::Result<Option<Vote<u64>>, StorageError<u64>> {
        Ok(self.inner().vote)
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<Types>,
    ) -> std::result::Result<(), StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let records = entries.into_iter().map(Record::Entry).collect();
        let written = self.inner().write(records);
        callback.log_io_completed(
            written
                .as_ref()
                .copied()
                .map_err(|error| io::Error::other(error.to_string())),
        );
        written.map_err(|error| fault(&error, ErrorVerb::Write))
    }

    async fn truncate(&mut self, since: LogId<u64>) -> std::result::Result<(), StorageError<u64>> {
        let written = self.inner().write(vec![Record::Truncate(since.index)]);
        written.map_err(|error| fault(&error, ErrorVerb::Delete))
    }

    async fn purge(&mut self, upto: LogId<u64>) -> std::result::Result<(), StorageError<u64>> {
        let written = self.inner().shorten(upto);
        written.map_err(|error| fault(&error, ErrorVerb::Delete))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use outlive_base::rng::Sequence;
    use outlive_base::{Code, seed};

    use super::*;
    use crate::testing::{entry, harms};

    type Known = (Option<Vote<u64>>, Option<LogId<u64>>, Vec<Entry<Types>>);

    fn kept(log: &Log) -> Known {
        let inner = log.inner();
        (
            inner.vote,
            inner.purged,
            inner.entries.values().cloned().collect(),
        )
    }

    #[test]
    fn what_was_confirmed_is_there_wherever_the_file_was_cut_off_behind_it() {
        let mut draw = Sequence::new(seed!(), 0);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        // What was kept when the file had this length, since it was last written anew.
        let mut history = Vec::new();
        let (log, _) = Log::open(dir.path()).unwrap();
        let mut next = 0;
        for term in 1..60 {
            let first = log.inner().entries.keys().next().copied().unwrap_or(next);
            match draw.below(8) {
                0 => {
                    let vote = Vote::new(term, draw.below(3));
                    log.inner().write(vec![Record::Vote(vote)]).unwrap();
                }
                1 if next > first => {
                    next = first + draw.below(next - first);
                    log.inner().write(vec![Record::Truncate(next)]).unwrap();
                }
                2 if next > first => {
                    let upto = first + draw.below(next - first);
                    let upto = log.inner().entries[&upto].log_id;
                    log.inner().shorten(upto).unwrap();
                    history.clear();
                }
                _ => {
                    let count = 1 + draw.below(3);
                    let new = (next..next + count).map(|index| entry(term, index));
                    let new = new.map(Record::Entry).collect();
                    log.inner().write(new).unwrap();
                    next += count;
                }
            }
            let length = std::fs::metadata(&path).unwrap().len();
            history.push((length, kept(&log)));
        }
        let bytes = std::fs::read(&path).unwrap();
        let other = tempfile::tempdir().unwrap();
        for (at, (length, state)) in history.iter().enumerate() {
            let until = history.get(at + 1).map_or(*length, |next| next.0);
            // Whole frames of the next step may be there: it was one write of several.
            for cut in [*length, (*length + 1).min(until)] {
                std::fs::write(other.path().join("log"), &bytes[..cut as usize]).unwrap();
                let (found, dropped) = Log::open(other.path()).unwrap();
                assert_eq!((&kept(&found), dropped as u64), (state, cut - length));
                // Nothing of what was dropped is left.
                let (found, dropped) = Log::open(other.path()).unwrap();
                assert_eq!((&kept(&found), dropped), (state, 0));
            }
        }
    }

    /// Whatever happens to the file, nothing comes of it that was not there: it is refused, or it was cut
    /// off, and what was there before is there.
    #[test]
    fn each_damage_is_found_or_is_what_a_write_leaves_that_was_cut_off() {
        let mut draw = Sequence::new(seed!(), 0);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOG);
        let (log, _) = Log::open(dir.path()).unwrap();
        let first = (0..4).map(|index| Record::Entry(entry(1, index)));
        log.inner().write(first.collect()).unwrap();
        let upto = log.inner().entries[&1].log_id;
        log.inner().shorten(upto).unwrap();
        let mut history = Vec::new();
        for index in 4..9 {
            let vote = Record::Vote(Vote::new(index, draw.below(3)));
            log.inner().write(vec![vote]).unwrap();
            history.push((std::fs::read(&path).unwrap().len(), kept(&log)));
            let next = Record::Entry(entry(index, index));
            log.inner().write(vec![next]).unwrap();
            history.push((std::fs::read(&path).unwrap().len(), kept(&log)));
        }
        let good = std::fs::read(&path).unwrap();
        let (mut refused, mut cut_off) = (0, 0);
        for bytes in harms(&good, &mut draw) {
            std::fs::write(&path, &bytes).unwrap();
            let what = |error: &str| format!("{error}: {} of {} bytes", bytes.len(), good.len());
            match Log::open(dir.path()) {
                Err(error) => {
                    let known = [Code::Corrupt, Code::FormatUnknown].contains(&error.code());
                    assert!(known && error.remedy().contains("remove"), "{error}");
                    refused += 1;
                }
                Ok((found, dropped)) => {
                    // Cut off, or something of less than a frame behind it: what was whole is there.
                    let whole = bytes.len() - dropped;
                    assert_eq!(bytes[..whole], good[..whole], "{}", what("believed"));
                    let cut = good.starts_with(&bytes) || bytes.starts_with(&good);
                    assert!(cut, "{}", what("taken for one that was being written"));
                    if let Some((_, state)) = history.iter().rfind(|(end, _)| *end <= whole) {
                        assert_eq!(&kept(&found), state, "{}", what("other words"));
                    }
                    cut_off += 1;
                }
            }
        }
        assert!(refused > good.len() && cut_off > good.len() / 2);
    }

    #[test]
    fn damage_and_gaps_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let open = || Log::open(dir.path()).map(drop);
        let (log, _) = Log::open(dir.path()).unwrap();
        let new = (0..3).map(|index| Record::Entry(entry(1, index)));
        log.inner().write(new.collect()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let mut changed = bytes.clone();
        changed[20] ^= 1;
        std::fs::write(&path, &changed).unwrap();
        let error = open().unwrap_err();
        assert_eq!(error.code(), Code::Corrupt);
        assert!(error.to_string().contains("remove"), "{error}");
        let mut gap = bytes.clone();
        frame(&mut gap, &Record::Entry(entry(1, 7))).unwrap();
        std::fs::write(&path, &gap).unwrap();
        assert_eq!(open().unwrap_err().code(), Code::Corrupt);
        // The first ones are gone, and no snapshot is said to hold them.
        let mut headless = MAGIC.to_vec();
        frame(&mut headless, &Record::Entry(entry(1, 3))).unwrap();
        std::fs::write(&path, &headless).unwrap();
        assert_eq!(open().unwrap_err().code(), Code::Corrupt);
        let mut newer = bytes;
        newer[7] += 1;
        std::fs::write(&path, &newer).unwrap();
        assert_eq!(open().unwrap_err().code(), Code::FormatUnknown);
    }
}

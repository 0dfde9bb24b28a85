//! What was changed, on disk before it is. One line for each record, with its checksum in front;
//! what follows the first line that is not whole was never relied on: a change is only made when
//! its line is on the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::step::Step;
use super::tree::read_at;

/// The form of a journal.
pub const JOURNAL: &str = "outlive.quiet-journal/1";

/// Who made the changes, and which cores are theirs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Head {
    /// [`JOURNAL`].
    pub schema: String,
    /// The name of the run.
    pub id: String,
    /// The process of `outlive quiet`.
    pub pid: u32,
    /// When it began, in ticks since the boot.
    pub start: u64,
    /// Which boot: no setting outlives it.
    pub boot: String,
    /// Where its number counts.
    pub namespace: String,
    /// Compute cores, as a list.
    pub compute: String,
    /// Service cores, as a list.
    pub service: String,
    /// What runs there.
    pub command: String,
}

/// A line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Record {
    /// The first one.
    Head(Head),
    /// This is about to be done.
    Step(Step),
    /// The newest step was tried; what the setting is now.
    Done(String),
    /// The value before a step is another: who had changed it earlier has gone.
    Inherit {
        /// The number of the step.
        step: usize,
        /// What it is set to in the end.
        before: String,
    },
}

/// A step and what is known of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The change.
    pub step: Step,
    /// What the setting was afterwards; `None`: it is not known whether it was changed.
    pub took: Option<String>,
}

impl Entry {
    /// The value that is ours.
    pub fn ours(&self) -> &str {
        self.took.as_deref().unwrap_or(&self.step.after)
    }
}

/// A journal as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Account {
    /// Whose.
    pub head: Head,
    /// Its steps.
    pub entries: Vec<Entry>,
    /// Where it lies.
    pub path: PathBuf,
}

/// FNV-1a: tells a line that was cut from a whole one.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn line(record: &Record) -> io::Result<String> {
    let text = serde_json::to_string(record)?;
    Ok(format!("{:016x} {text}\n", sum(text.as_bytes())))
}

/// Records of a text, and how many of its bytes they take.
pub(super) fn parse(text: &str) -> (Vec<Record>, usize) {
    let (mut records, mut bytes) = (Vec::new(), 0);
    for line in text.split_inclusive('\n') {
        let whole = line.strip_suffix('\n').and_then(|line| {
            let (said, json) = line.split_once(' ')?;
            let said = u64::from_str_radix(said, 16).ok()?;
            let record = serde_json::from_str(json).ok()?;
            (said == sum(json.as_bytes())).then_some(record)
        });
        match whole {
            Some(record) => records.push(record),
            None => break,
        }
        bytes += line.len();
    }
    (records, bytes)
}

/// A journal that is written.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Begins one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn create(directory: &Path, head: &Head) -> io::Result<Journal> {
        let path = directory.join(format!("{}.journal", head.id));
        let options = OpenOptions::new().append(true).create_new(true).clone();
        let mut journal = Journal {
            file: options.open(&path)?,
            path,
        };
        journal.add(&Record::Head(head.clone()))?;
        File::open(directory)?.sync_all()?;
        Ok(journal)
    }

    /// Goes on with one; a last line that is not whole goes.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(path: &Path) -> io::Result<Journal> {
        let (_, bytes) = parse(&read_at(path)?);
        let file = OpenOptions::new().append(true).open(path)?;
        file.set_len(bytes as u64)?;
        Ok(Journal {
            file,
            path: path.to_owned(),
        })
    }

    pub(super) fn add(&mut self, record: &Record) -> io::Result<()> {
        self.file.write_all(line(record)?.as_bytes())?;
        self.file.sync_data()
    }

    /// As [`Journal::add`], with the error for users.
    pub(super) fn note(&mut self, record: &Record) -> outlive_base::Result<()> {
        let added = self.add(record);
        added.map_err(|error| outlive_base::Error::io(&self.path, "write", &error))
    }
}

/// Reads a journal; `None` if not even its first line is whole: then nothing was changed.
///
/// # Errors
/// Those of the file.
pub fn read(path: &Path) -> io::Result<Option<Account>> {
    let mut records = parse(&read_at(path)?).0.into_iter();
    let Some(Record::Head(head)) = records.next() else {
        return Ok(None);
    };
    let mut entries: Vec<Entry> = Vec::new();
    for record in records {
        match record {
            Record::Head(_) => {}
            Record::Step(step) => entries.push(Entry { step, took: None }),
            Record::Done(now) => {
                if let Some(newest) = entries.last_mut() {
                    newest.took = Some(now);
                }
            }
            Record::Inherit { step, before } => {
                if let Some(entry) = entries.get_mut(step) {
                    entry.step.before = before;
                }
            }
        }
    }
    let path = path.to_owned();
    Ok(Some(Account {
        head,
        entries,
        path,
    }))
}

/// The journals of a directory, by name, and files that are none.
///
/// # Errors
/// Those of the file system; a directory that is not there has none.
pub fn all(directory: &Path) -> io::Result<(Vec<Account>, Vec<PathBuf>)> {
    let (mut accounts, mut empty) = (Vec::new(), Vec::new());
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((accounts, empty)),
        Err(error) => return Err(error),
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.extension().is_some_and(|end| end == "journal") {
            match read(&path) {
                Ok(Some(account)) => accounts.push(account),
                Ok(None) => empty.push(path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok((accounts, empty))
}

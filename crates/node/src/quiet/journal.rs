//! What was changed, on disk before it is. One line for each record, with its checksum in front. A
//! last line that is not whole was never relied on: a change is only made when its line is on the
//! disk. One before whole ones is damage, and is told: what it had changed is not known.

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
    /// Lines of it are damaged: it is not all that was changed.
    pub damaged: bool,
}

impl Account {
    fn new(head: Head, path: &Path) -> Account {
        Account {
            head,
            entries: Vec::new(),
            path: path.to_owned(),
            damaged: false,
        }
    }

    /// Takes a record in. `after_damage`: the one before it is not known, nor how many there were.
    fn take(&mut self, record: Record, after_damage: bool) {
        match record {
            Record::Head(_) => {}
            Record::Step(step) => self.entries.push(Entry { step, took: None }),
            Record::Done(now) => {
                if let Some(newest) = self.entries.last_mut().filter(|_| !after_damage) {
                    newest.took = Some(now);
                }
            }
            Record::Inherit { step, before } => {
                if let Some(entry) = self.entries.get_mut(step).filter(|_| !self.damaged) {
                    entry.step.before = before;
                }
            }
        }
    }
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

/// The lines of a text, `None` for one that is not whole, and how many bytes there are up to the
/// last whole one.
pub(super) fn parse(text: &str) -> (Vec<Option<Record>>, usize) {
    let (mut records, mut bytes, mut whole_ones) = (Vec::new(), 0, (0, 0));
    for line in text.split_inclusive('\n') {
        let whole = line.strip_suffix('\n').and_then(|line| {
            let (said, json) = line.split_once(' ')?;
            let said = u64::from_str_radix(said, 16).ok()?;
            let record = serde_json::from_str(json).ok()?;
            (said == sum(json.as_bytes())).then_some(record)
        });
        bytes += line.len();
        let is_whole = whole.is_some();
        records.push(whole);
        if is_whole {
            whole_ones = (records.len(), bytes);
        }
    }
    records.truncate(whole_ones.0);
    (records, whole_ones.1)
}

/// A journal that is written.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    /// What was written since it was begun: the file may be removed, or damaged.
    account: Option<Account>,
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
            account: Some(Account::new(head.clone(), &path)),
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
            account: None,
        })
    }

    /// What was written, if it was begun by this process.
    pub const fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }

    pub(super) fn add(&mut self, record: &Record) -> io::Result<()> {
        self.file.write_all(line(record)?.as_bytes())?;
        self.file.sync_data()?;
        if let Some(account) = &mut self.account {
            account.take(record.clone(), false);
        }
        Ok(())
    }

    /// As [`Journal::add`], with the error for users.
    pub(super) fn note(&mut self, record: &Record) -> outlive_base::Result<()> {
        let added = self.add(record);
        added.map_err(|error| outlive_base::Error::io(&self.path, "write", &error))
    }
}

/// Reads a journal; `None` if not even its first line was written: then nothing was changed.
///
/// # Errors
/// Those of the file; [`io::ErrorKind::InvalidData`] if its first line is damaged, so that it is
/// not known whose it is.
pub fn read(path: &Path) -> io::Result<Option<Account>> {
    let text = read_at(path)?;
    let mut records = parse(&text).0.into_iter();
    let Some(Some(Record::Head(head))) = records.next() else {
        return match text.lines().count() {
            0 | 1 => Ok(None),
            _ => Err(io::ErrorKind::InvalidData.into()),
        };
    };
    let mut account = Account::new(head, path);
    let mut after_damage = false;
    for record in records {
        account.damaged |= record.is_none();
        let lost = record.is_none();
        if let Some(record) = record {
            account.take(record, after_damage);
        }
        after_damage = lost;
    }
    Ok(Some(account))
}

/// The journals of a directory, by name, and files that are none.
///
/// # Errors
/// Those of the file system, and of [`read`], with the path; a directory that is not there has none.
pub fn all(directory: &Path) -> Result<(Vec<Account>, Vec<PathBuf>), (PathBuf, io::Error)> {
    let (mut accounts, mut empty) = (Vec::new(), Vec::new());
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((accounts, empty)),
        Err(error) => return Err((directory.to_owned(), error)),
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.extension().is_some_and(|end| end == "journal") {
            match read(&path) {
                Ok(Some(account)) => accounts.push(account),
                Ok(None) => empty.push(path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err((path, error)),
            }
        }
    }
    Ok((accounts, empty))
}

//! The keys of a coordinator's jobs. Each follows from the coordinator's own key and the job's
//! name, so that none need be kept; a key that was withdrawn has another in its place, and how
//! often that was done is all that is written down.
//!
//! Invariants: who holds a job's key can make no other job's, and no other job's number; a
//! withdrawal is never lost by another at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outlive_base::{Code, Entity, Error, JobName, NodeId, Result};
use outlive_network::{Guest, JobKey};
use serde::{Deserialize, Serialize};

use crate::layout;
use crate::sealed::Unsound;
use crate::{files, input, sealed};

/// What a derived key is for.
const OF_JOB: &str = "outlive coordinator job 1";
const OF_MEMBERS: &str = "outlive coordinator members 1";
const NUMBER: &str = "outlive coordinator number 1";
const MARK: &str = "outlive coordinator mark 1";
const SCHEMA: &str = "outlive.coordinator-withdrawn/1";
/// Looks at a file that another changes, and the time between two.
const TRIES: u32 = 50;
const TRY_EVERY: Duration = Duration::from_millis(100);

/// How often the key of each name was withdrawn.
type Times = BTreeMap<JobName, u32>;

#[derive(Serialize, Deserialize)]
struct Withdrawn {
    schema: String,
    jobs: Times,
}

/// The keys of all jobs of a coordinator, and of its members.
#[derive(Clone, Debug)]
pub struct Keys {
    own: JobKey,
    withdrawn: Times,
}

/// The number under which the job with this key is known to its coordinator. The largest is the
/// coordinator's.
///
/// # Errors
/// Those of [`JobKey::number`].
pub fn number(key: &JobKey) -> Result<u32> {
    Ok(key.number(NUMBER)? & (u32::MAX >> 1))
}

impl Keys {
    /// Those of the coordinator whose files lie in `dir`; its own key is made by who comes first.
    ///
    /// # Errors
    /// Those of the file system; [`Code::Permission`] if others can read the key;
    /// [`Code::FormatUnknown`] or [`Code::Corrupt`] if it cannot be told which keys were withdrawn.
    pub fn make(dir: &Path) -> Result<Keys> {
        files::make_private(dir)?;
        let path = dir.join(layout::KEY);
        let own = match JobKey::load(&path) {
            Err(error) if error.code() == Code::NotFound => match JobKey::create(&path) {
                Err(error) if error.code() == Code::JobBusy => JobKey::load(&path),
                made => made,
            },
            loaded => loaded,
        };
        let (own, withdrawn) = (own?, withdrawn(dir)?);
        Ok(Keys { own, withdrawn })
    }

    /// As [`Keys::make`], where there must be one already.
    ///
    /// # Errors
    /// Those of [`Keys::make`]; [`Code::NotFound`] if there is none.
    pub fn load(dir: &Path) -> Result<Keys> {
        let own = JobKey::load(dir.join(layout::KEY))?;
        let withdrawn = withdrawn(dir)?;
        Ok(Keys { own, withdrawn })
    }

    /// What the members show each other.
    ///
    /// # Errors
    /// Those of [`JobKey::derived`].
    pub fn of_members(&self) -> Result<JobKey> {
        self.own.derived(OF_MEMBERS, "")
    }

    /// A number by which the coordinator's own key is known again; it says nothing useful of it.
    ///
    /// # Errors
    /// Those of [`JobKey::number`].
    pub fn mark(&self) -> Result<u32> {
        self.own.number(MARK)
    }

    /// The key of the job of this name.
    ///
    /// # Errors
    /// Those of [`JobKey::derived`].
    pub fn of(&self, job: &JobName) -> Result<JobKey> {
        let times = self.withdrawn.get(job).copied().unwrap_or(0);
        // No name has a space.
        self.own.derived(OF_JOB, &format!("{times} {job}"))
    }

    /// The key and number of the job of this name, if it can be one.
    pub fn guest(&self, claim: &str) -> Option<Guest> {
        let job = JobName::new(claim).ok()?;
        let key = self.of(&job).ok()?;
        let peer = NodeId(number(&key).ok()?);
        Some(Guest { key, peer })
    }

    /// Looks which keys were withdrawn since: their names, and the numbers of jobs that held them.
    ///
    /// # Errors
    /// Those of reading; what was known before is known still.
    pub fn renew(&mut self, dir: &Path) -> Result<Vec<(JobName, u32)>> {
        let now = withdrawn(dir)?;
        let mut gone = Vec::new();
        if now != self.withdrawn {
            // Of a file that was removed the keys are as they were at first.
            let all: BTreeSet<&JobName> = now.keys().chain(self.withdrawn.keys()).collect();
            for job in all {
                if now.get(job) != self.withdrawn.get(job) {
                    gone.push((job.clone(), number(&self.of(job)?)?));
                }
            }
            self.withdrawn = now;
        }
        Ok(gone)
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join("withdrawn.json")
}

fn withdrawn(dir: &Path) -> Result<Times> {
    let path = path(dir);
    let text = match input::read(&path, input::TEXT_BYTES_MAX) {
        Err(error) if error.code() == Code::NotFound => return Ok(Times::new()),
        read => read?,
    };
    let found = sealed::parse(&text, SCHEMA).map(|found: Withdrawn| found.jobs);
    found.map_err(|why| {
        let first = match why {
            Unsound::Unknown(_) => "start the version that wrote it",
            Unsound::Changed => "check the disk, and put back a copy of it",
        };
        why.of(
            &path,
            format!("{first}; if you remove it, keys that were withdrawn hold again"),
        )
    })
}

/// Withdraws the key of a name: who holds it is not heard any more, and what is issued for the name
/// from now on is another.
///
/// # Errors
/// [`Code::NotFound`] if there is no coordinator's key in `dir`; [`Code::JobBusy`] if another
/// withdraws for longer than 5 s; those of [`Keys::load`] and of the file system.
pub fn withdraw(dir: &Path, job: &JobName) -> Result<()> {
    // Before anything is written there.
    JobKey::load(dir.join(layout::KEY))?;
    let _alone = lock(dir)?;
    let mut jobs = withdrawn(dir)?;
    let times = jobs.entry(job.clone()).or_default();
    *times = times.saturating_add(1);
    let schema = SCHEMA.to_owned();
    let text = sealed::text(&Withdrawn { schema, jobs })?;
    files::write_atomic(&path(dir), &text)
}

fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(layout::LOCK);
    let mut open = OpenOptions::new();
    let open = open.create(true).write(true).truncate(false).mode(0o600);
    let file = open
        .open(&path)
        .map_err(|error| Error::io(&path, "open", &error))?;
    for _ in 0..TRIES {
        if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(file);
        }
        std::thread::sleep(TRY_EVERY);
    }
    Err(Error::new(
        Code::JobBusy,
        Entity::File(path.display().to_string()),
        "another withdraws a key, and does not end",
        "look who holds the file (lsof), and try again",
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn name(text: &str) -> JobName {
        JobName::new(text).unwrap()
    }

    #[test]
    fn each_name_has_a_key_and_a_number_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::make(dir.path()).unwrap();
        let (a, b) = (keys.of(&name("a")).unwrap(), keys.of(&name("b")).unwrap());
        assert_ne!(a.to_hex(), b.to_hex());
        assert_ne!(keys.of_members().unwrap().to_hex(), a.to_hex());
        assert_ne!(number(&a).unwrap(), number(&b).unwrap());
        let guest = keys.guest("a").unwrap();
        assert_eq!(guest.key.to_hex(), a.to_hex());
        assert_eq!(guest.peer, NodeId(number(&a).unwrap()));
        assert_ne!(guest.peer, NodeId::LAUNCHER);
        for no_name in ["", ".a", "a b", "0 a", "a\0"] {
            assert!(keys.guest(no_name).is_none(), "{no_name}");
        }
        // Who comes later finds the same; another coordinator's are others.
        let again = Keys::load(dir.path()).unwrap();
        assert_eq!(again.of(&name("a")).unwrap().to_hex(), a.to_hex());
        let other = tempfile::tempdir().unwrap();
        let error = Keys::load(other.path()).err().unwrap();
        assert_eq!(error.code(), Code::NotFound);
        let other = Keys::make(other.path()).unwrap();
        assert_ne!(other.of(&name("a")).unwrap().to_hex(), a.to_hex());
    }

    /// A name that changed would be heard again.
    #[test]
    fn each_damage_to_what_was_withdrawn_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        Keys::make(dir).unwrap();
        for job in ["heat", "heat", "wave"] {
            withdraw(dir, &name(job)).unwrap();
        }
        let good = std::fs::read(path(dir)).unwrap();
        let mut random = outlive_base::rng::Sequence::new(outlive_base::seed!(), 0);
        for bytes in crate::harms::harms(&good, &mut random) {
            std::fs::write(path(dir), &bytes).unwrap();
            for error in [
                Keys::make(dir).err().unwrap(),
                withdraw(dir, &name("tide")).unwrap_err(),
            ] {
                let known = [Code::Corrupt, Code::FormatUnknown].contains(&error.code());
                assert!(known && error.remedy().contains("hold again"), "{error}");
            }
            assert_eq!(std::fs::read(path(dir)).unwrap(), bytes, "left as it is");
        }
        std::fs::write(path(dir), &good).unwrap();
        assert_eq!(Keys::load(dir).unwrap().withdrawn[&name("heat")], 2);
        // As a version before this one wrote it.
        let old = br#"{"schema":"outlive.coordinator-withdrawn/1","jobs":{"heat":2}}"#;
        std::fs::write(path(dir), old).unwrap();
        assert_eq!(Keys::load(dir).unwrap().withdrawn[&name("heat")], 2);
    }

    #[test]
    fn each_end_of_a_key_is_told() {
        let dir = tempfile::tempdir().unwrap();
        Keys::make(dir.path()).unwrap();
        let file = dir.path().join(layout::KEY);
        let good = std::fs::read(&file).unwrap();
        for end in 0..good.len() {
            std::fs::write(&file, &good[..end]).unwrap();
            let error = Keys::make(dir.path()).err().unwrap();
            assert_eq!(error.code(), Code::Truncated, "{end}");
        }
        // One that changed is another key, and known for that.
        let mark = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            Keys::load(dir.path()).unwrap().mark().unwrap()
        };
        let own = mark(&good);
        for at in 0..good.len() {
            let mut changed = good.clone();
            changed[at] ^= 1 << (at % 8);
            assert_ne!(mark(&changed), own, "{at}");
        }
    }

    #[test]
    fn a_key_that_was_withdrawn_is_another_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let error = withdraw(dir, &name("a")).unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        let mut keys = Keys::make(dir).unwrap();
        let (a, b) = (keys.of(&name("a")).unwrap(), keys.of(&name("b")).unwrap());
        assert!(keys.renew(dir).unwrap().is_empty());
        withdraw(dir, &name("a")).unwrap();
        let held = |text, key| (name(text), number(key).unwrap());
        assert_eq!(keys.renew(dir).unwrap(), [held("a", &a)]);
        assert!(keys.renew(dir).unwrap().is_empty(), "once");
        let anew = keys.of(&name("a")).unwrap();
        assert_ne!(anew.to_hex(), a.to_hex());
        assert_eq!(keys.of(&name("b")).unwrap().to_hex(), b.to_hex());
        assert_eq!(keys.guest("a").unwrap().key.to_hex(), anew.to_hex());
        // Of several at once none is lost, and no name withdraws another.
        std::thread::scope(|scope| {
            for each in ["a", "b", "c", "d"] {
                scope.spawn(move || withdraw(dir, &name(each)).unwrap());
            }
        });
        let gone = keys.renew(dir).unwrap();
        assert_eq!(gone.len(), 4, "{gone:?}");
        assert!(gone.contains(&held("a", &anew)));
        assert!(gone.contains(&held("b", &b)));
        let again = Keys::load(dir).unwrap();
        assert_eq!(
            again.of(&name("a")).unwrap().to_hex(),
            keys.of(&name("a")).unwrap().to_hex()
        );
        // What cannot be read withdraws nothing that was known, and lets nobody in anew.
        std::fs::write(path(dir), b"{}").unwrap();
        assert_eq!(keys.renew(dir).unwrap_err().code(), Code::FormatUnknown);
        assert_eq!(Keys::load(dir).err().unwrap().code(), Code::FormatUnknown);
        assert_ne!(keys.of(&name("a")).unwrap().to_hex(), anew.to_hex());
        // Whoever removes it has the first keys again, and closes the others.
        let last = held("a", &keys.of(&name("a")).unwrap());
        std::fs::remove_file(path(dir)).unwrap();
        assert!(keys.renew(dir).unwrap().contains(&last));
        assert_eq!(keys.of(&name("a")).unwrap().to_hex(), a.to_hex());
    }
}

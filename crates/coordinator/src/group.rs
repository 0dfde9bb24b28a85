//! Which members there are, and which one this process is.
//!
//! Each member has a directory, which a process holds by a lock as long as it lives: who is
//! started takes the first that is free. So the same command is started on each machine, and a
//! member goes on wherever it is started next.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, Result, count};
use outlive_launch::sealed::{self, Unsound};
use outlive_launch::{files, input, layout};
use serde::{Deserialize, Serialize};

use crate::frames::{self, AGAIN};
use crate::log::{LOG, Log};
use crate::machine::{Machine, SNAPSHOT};

const SCHEMA: &str = "outlive.coordinator-group/1";
/// Most members.
const MEMBERS_MAX: u64 = 3;

#[derive(Serialize, Deserialize)]
struct Group {
    schema: String,
    members: u8,
    /// The mark of the coordinator's key; none in what versions before this one wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<u32>,
}

/// A member that this process is, as long as this lives.
pub(crate) struct Member {
    /// From 1 on.
    pub(crate) number: u64,
    pub(crate) dir: PathBuf,
    /// The directories of the others.
    pub(crate) others: BTreeMap<u64, PathBuf>,
    lock: File,
}

impl Member {
    /// What it wrote down: the log, the bytes at the log's end that were dropped, and the state.
    ///
    /// # Errors
    /// [`Code::Corrupt`], [`Code::FormatUnknown`], also if a part of it is gone; those of the file
    /// system.
    pub(crate) fn open(&self) -> Result<(Log, usize, Machine)> {
        let (log, snapshot) = (self.dir.join(LOG), self.dir.join(SNAPSHOT));
        let wrong = |error| Error::io(self.dir.join(layout::LOCK), "read or write", &error);
        let begun = self.lock.metadata().map_err(wrong)?.len() > 0;
        // What it confirmed, and for whom it voted, would be forgotten.
        if !log.exists() && (begun || snapshot.exists()) {
            return Err(frames::damaged(&log, "it is gone"));
        }
        let (read, dropped) = Log::open(&self.dir)?;
        if !begun {
            (&self.lock)
                .write_all(b"begun\n")
                .and_then(|()| self.lock.sync_all())
                .map_err(wrong)?;
        }
        let machine = Machine::open(&self.dir)?;
        // A snapshot was on the disk before the log forgot what it holds.
        if read.purged() > machine.state().applied().map(|upto| upto.index) {
            let what = match snapshot.exists() {
                true => "it ends before its log begins",
                false => "it is gone, and its log begins behind it",
            };
            return Err(frames::damaged(&snapshot, what));
        }
        Ok((read, dropped, machine))
    }
}

/// True if a member of this directory has begun.
fn has_begun(dir: &Path) -> bool {
    let began = |number: u64| {
        let own = dir.join(number.to_string());
        [LOG, SNAPSHOT].iter().any(|file| own.join(file).exists())
    };
    (1..=MEMBERS_MAX).any(began)
}

/// Writes how many members there are, if nobody has yet: of several that begin at the same time,
/// whoever links first decides.
fn begin(dir: &Path, path: &Path, members: u8, key: u32) -> Result<()> {
    let group = Group {
        schema: SCHEMA.to_owned(),
        members,
        key: Some(key),
    };
    let own = dir.join(format!("group.json.{}", std::process::id()));
    files::write_atomic(&own, &sealed::text(&group)?)?;
    let linked = std::fs::hard_link(&own, path);
    let _ = std::fs::remove_file(&own);
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::io(path, "link", &error))
        }
        _ => Ok(()),
    }
}

/// Fixes how many members there are and by which key they are known, or checks it.
fn settle(dir: &Path, members: u8, key: u32) -> Result<()> {
    let path = dir.join("group.json");
    let anew = format!("end all coordinators and remove {}: {AGAIN}", dir.display());
    let damaged = |entity: &Path, reason: &str, remedy: &str| {
        let entity = Entity::File(entity.display().to_string());
        Error::new(Code::Corrupt, entity, reason, format!("{remedy}{anew}"))
    };
    let read = || input::read(&path, input::TEXT_BYTES_MAX);
    let text = match read() {
        Err(error) if error.code() == Code::NotFound => {
            // Who begins writes it first: looked at in the other order.
            let begun = has_begun(dir);
            match read() {
                Err(error) if error.code() == Code::NotFound && begun => {
                    let reason =
                        "it is gone, and members have begun: how many there are is unknown";
                    return Err(damaged(&path, reason, ""));
                }
                Err(error) if error.code() == Code::NotFound => {
                    begin(dir, &path, members, key)?;
                    read()?
                }
                read => read?,
            }
        }
        read => read?,
    };
    let group: Group = sealed::parse(&text, SCHEMA).map_err(|why| {
        let remedy = match why {
            Unsound::Unknown(_) => format!("start the version that wrote it, or {anew}"),
            Unsound::Changed => format!("check the disk, {anew}"),
        };
        why.of(&path, remedy)
    })?;
    if group.key.is_some_and(|known| known != key) {
        let path = dir.with_file_name(layout::KEY);
        let reason = "it is another key than the one with which the members began";
        let remedy = "put the key back; if it is lost, all invitations are to be issued anew, and ";
        return Err(damaged(&path, reason, remedy));
    }
    if group.members != members {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Option("--members".into()),
            format!(
                "{members}, but this store's coordinator has {}",
                count(u64::from(group.members), "member")
            ),
            format!(
                "start it with --members {}; for another number end all coordinators and remove {}",
                group.members,
                dir.display()
            ),
        ));
    }
    Ok(())
}

/// Takes the first member that nobody is. `dir` is that of all members.
///
/// # Errors
/// [`Code::JobBusy`] if all are running; [`Code::InvalidArgument`] if the store's coordinator has
/// another number of members; [`Code::Corrupt`] or [`Code::FormatUnknown`] if that cannot be known, or
/// the key, whose mark this is, is another; those of the file system.
pub(crate) fn join(dir: &Path, members: u8, key: u32) -> Result<Member> {
    files::make_private(dir)?;
    settle(dir, members, key)?;
    let path = |number: u64| dir.join(number.to_string());
    let all = 1..=u64::from(members);
    for number in all.clone() {
        let own = path(number);
        files::make_private(&own)?;
        let lock = own.join(layout::LOCK);
        let mut open = OpenOptions::new();
        let open = open.create(true).write(true).truncate(false).mode(0o600);
        let file = open
            .open(&lock)
            .map_err(|error| Error::io(&lock, "open", &error))?;
        if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok() {
            let others = all.filter(|other| *other != number);
            return Ok(Member {
                number,
                dir: own,
                others: others.map(|other| (other, path(other))).collect(),
                lock: file,
            });
        }
    }
    let store = dir.parent().and_then(Path::parent).unwrap_or(dir);
    let (reason, remedy) = match members {
        1 => (
            "another coordinator serves this store".to_owned(),
            "one is enough; end it first, if this one shall take its place",
        ),
        _ => (
            format!("another coordinator serves this store: all {members} members run"),
            "they are enough; end one first, if this one shall take its place",
        ),
    };
    Err(Error::new(
        Code::JobBusy,
        Entity::File(store.display().to_string()),
        reason,
        remedy,
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use openraft::RaftSnapshotBuilder;
    use openraft::storage::{RaftLogStorage, RaftStateMachine};
    use outlive_base::rng::Sequence;
    use outlive_control::turns::Kept;
    use outlive_launch::coordinator::Keys;

    use super::*;
    use crate::testing::{block_on, entry, harms};

    const KEY: u32 = 7;

    #[test]
    fn each_takes_a_member_of_its_own_and_the_number_is_fixed() {
        let store = tempfile::tempdir().unwrap();
        let dir = store.path().join("members");
        let held: Vec<Member> = (0..3).map(|_| join(&dir, 3, KEY).unwrap()).collect();
        let numbers: Vec<u64> = held.iter().map(|member| member.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(held[1].others.keys().copied().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(join(&dir, 3, KEY).err().unwrap().code(), Code::JobBusy);
        let mut held = held;
        drop(held.remove(1));
        assert_eq!(join(&dir, 3, KEY).unwrap().number, 2);
        let error = join(&dir, 1, KEY).err().unwrap();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains("--members 3"), "{error}");
        std::fs::write(dir.join("group.json"), b"{}").unwrap();
        assert_eq!(
            join(&dir, 3, KEY).err().unwrap().code(),
            Code::FormatUnknown
        );
    }

    /// How a start ends: what a member knows, or an error.
    fn start(dir: &Path, members: u8, key: u32) -> Result<Kept> {
        let (_, _, machine) = join(dir, members, key)?.open()?;
        let kept = machine.state().kept.clone();
        Ok(kept)
    }

    /// A member that has a log and a snapshot, as if it had served.
    fn served(dir: &Path) -> Kept {
        let member = join(dir, 1, KEY).unwrap();
        let (mut log, _, mut machine) = member.open().unwrap();
        // As the library does it: the log of entries, the state, a snapshot, a shorter log.
        block_on(machine.apply((0..20).map(|index| entry(1, index)))).unwrap();
        block_on(machine.build_snapshot()).unwrap();
        let upto = machine.state().applied().unwrap();
        block_on(log.purge(upto)).unwrap();
        machine.state().kept.clone()
    }

    #[test]
    fn each_damage_to_the_number_of_members_is_found() {
        let store = tempfile::tempdir().unwrap();
        let dir = store.path().join("members");
        served(&dir);
        let path = dir.join("group.json");
        let good = std::fs::read(&path).unwrap();
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        for bytes in harms(&good, &mut random) {
            std::fs::write(&path, &bytes).unwrap();
            let error = start(&dir, 1, KEY).err().unwrap();
            let known = [Code::Corrupt, Code::FormatUnknown].contains(&error.code());
            assert!(known && error.remedy().contains("remove"), "{error}");
        }
        // As a version before this one wrote it.
        let old = br#"{"schema":"outlive.coordinator-group/1","members":1}"#;
        std::fs::write(&path, old).unwrap();
        start(&dir, 1, KEY).unwrap();
        // Gone: three that began where one serves would serve beside it.
        std::fs::remove_file(&path).unwrap();
        for members in [1, 3] {
            let error = start(&dir, members, KEY).err().unwrap();
            assert_eq!(error.code(), Code::Corrupt);
            assert!(error.to_string().contains("group.json"), "{error}");
        }
        std::fs::write(&path, &good).unwrap();
        start(&dir, 1, KEY).unwrap();
    }

    #[test]
    fn a_part_that_is_gone_is_not_taken_for_a_beginning() {
        let store = tempfile::tempdir().unwrap();
        let dir = store.path().join("members");
        let kept = served(&dir);
        assert_eq!(start(&dir, 1, KEY).unwrap(), kept);
        let own = dir.join("1");
        for file in [LOG, SNAPSHOT] {
            let path = own.join(file);
            let good = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            for _ in 0..2 {
                let error = start(&dir, 1, KEY).err().unwrap();
                assert_eq!(error.code(), Code::Corrupt, "{file}");
                assert!(error.to_string().contains("gone"), "{error}");
            }
            std::fs::write(&path, &good).unwrap();
        }
        // A snapshot of before, as a backup brings it back.
        let mut machine = Machine::open(store.path()).unwrap();
        block_on(machine.apply((0..5).map(|index| entry(1, index)))).unwrap();
        block_on(machine.build_snapshot()).unwrap();
        let (good, old) = (own.join(SNAPSHOT), store.path().join(SNAPSHOT));
        let newest = std::fs::read(&good).unwrap();
        std::fs::copy(&old, &good).unwrap();
        let error = start(&dir, 1, KEY).err().unwrap();
        assert!(error.to_string().contains("ends before"), "{error}");
        std::fs::write(&good, newest).unwrap();
        assert_eq!(start(&dir, 1, KEY).unwrap(), kept);
        // A log before there was a snapshot, and the directory as the remedy leaves it.
        std::fs::remove_file(&good).unwrap();
        std::fs::remove_file(own.join(LOG)).unwrap();
        assert_eq!(start(&dir, 1, KEY).err().unwrap().code(), Code::Corrupt);
        std::fs::remove_dir_all(&own).unwrap();
        assert_eq!(start(&dir, 1, KEY).unwrap(), Kept::default());
    }

    #[test]
    fn another_key_is_told_from_the_one_that_invitations_were_made_of() {
        let store = tempfile::tempdir().unwrap();
        let dir = store.path().join("members");
        served(&dir);
        let error = start(&dir, 1, KEY ^ 1).err().unwrap();
        assert_eq!(error.code(), Code::Corrupt);
        assert!(error.to_string().contains("put the key back"), "{error}");
        let keys = [(); 2].map(|()| {
            let dir = tempfile::tempdir().unwrap();
            Keys::make(dir.path()).unwrap().mark().unwrap()
        });
        assert_ne!(keys[0], keys[1]);
    }
}
